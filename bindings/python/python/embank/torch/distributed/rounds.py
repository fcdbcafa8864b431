"""The exchanges of a sharded bank: gets, peeks and gradients.

One exchange serves all tables of a call: headers with the number of keys for each table and owner,
then keys, then rows back. The owner takes one lease for the keys of all ranks. Gradients come back
in the order of the keys that the owner has, so no key is sent twice. The owner adds the gradients
of a row in the order of the ranks, so a run can be repeated bit for bit.

An error of one shard is an error on all ranks. In a get, the rows carry a flag. An error while an
owner applies gradients goes with the header of its next exchange, on all ranks including the owner:
otherwise each step would need one more message.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Optional

import numpy as np
import torch
from numpy.typing import NDArray

import embank
from embank._embank import place_rows, take_rows

from ..leaf import free_failed_graphs
from ..sinks import sink_of
from . import gradients
from .errors import ForAll, ProtocolMismatch, packed, unpacked
from .exchange import Exchange, joined, pieces
from .gradients import Given
from .lease import Held, Request
from .protocol import (
    DOING, EXPLICIT, FAILED, LENGTH, OPEN_LEASES_MAX, Header, Kind, decide,
)  # fmt: skip

if TYPE_CHECKING:
    from .table import ShardedTable

Rows = NDArray[np.float32]


class Rounds:
    """The exchanges of one bank.

    Args:
        exchange: The ranks.
        shard_of_rank: The shard of each rank.
        divides: Whether sums of gradients are divided by the number of ranks.
        change: Called when rows may change.
        abort: Closes the bank on this rank, because the ranks can't go on together.
    """

    def __init__(
        self,
        exchange: Exchange,
        shard_of_rank: Sequence[int],
        divides: bool,
        change: Callable[[], None],
        abort: Callable[[BaseException], None],
    ) -> None:
        self.exchange = exchange
        self.tables: list[ShardedTable] = []
        self._shard_of_rank = list(shard_of_rank)
        self._divides = divides
        self.change = change
        self._abort = abort
        self._settings: Optional[tuple[list[bool], bytes]] = None
        self._held: dict[int, Held] = {}
        self._next_lease = 0
        # Leases that this rank can release. Their objects end at any time, also inside of a call.
        self._released: set[int] = set()
        self._failure: Optional[Exception] = None
        self._one_thread = threading.Lock()

    def settings_changed(self) -> None:
        """Called after a setting of a table has changed on this rank."""
        self._settings = None

    def awaits(self, number: int) -> bool:
        """Whether this rank has not answered the lease."""
        return number in self._held and number not in self._released

    def release(self, number: int) -> None:
        """Lets the lease go."""
        if number in self._held:
            self._released.add(number)

    def end(self) -> None:
        """Ends the leases of this rank's shard without an exchange."""
        held, self._held = self._held, {}
        for of in held.values():
            of.end()

    @contextmanager
    def round(self, doing: str) -> Iterator[None]:
        """A collective call. Closes the bank if the block raises an error that the other ranks do
        not raise too, because the ranks then are at different places.
        """
        if not self._one_thread.acquire(blocking=False):
            raise RuntimeError(
                f"this thread {doing}, and another thread is inside of a call on the same sharded bank: its calls are "
                "collective, so one thread makes them, on each rank in the same order"
            )
        self.exchange.doing = doing
        try:
            yield
        except ForAll as for_all:
            raise for_all.error from None
        except BaseException as error:
            self._abort(error)
            raise
        finally:
            self._one_thread.release()

    def agree(
        self,
        kind: Kind,
        requests: Sequence[Request] = (),
        *,
        flags: int = 0,
        failure: Optional[BaseException] = None,
        given: Sequence[Given] = (),
        what: bytes = b"",
    ) -> tuple[list[Header], NDArray[np.int64]]:
        """Exchanges headers until all ranks do `kind`. Must be called inside of `round`.

        Args:
            kind: What this rank does.
            requests: The keys for the owners.
            flags: Flags of the header.
            failure: An error that all ranks must raise in place of going on.
            given: The gradients, for `Kind.GRADIENTS`.
            what: Something that must be the same on all ranks.

        Returns:
            The headers of all ranks, and for each rank the number of its keys in each table, `(W,
            T)`.
        """
        digest = self._digest(requests, what)
        if any(not of.whole for of in given):
            flags |= EXPLICIT
        self._free_failed_graphs(given)
        # Ends, because each turn but the last answers a lease.
        while True:
            failed = failure or self._failure
            self._failure = None
            message = self._message(requests, given)
            header = Header(
                kind,
                self.exchange.steps,
                digest,
                flags | (FAILED if failed is not None else 0),
                self._oldest,
                self._bits(of.number for each in given for of in each.leases),
                self._bits(list(self._released)),
            )
            for row in message:
                header.write(row)
            found = self.exchange.headers(message)
            headers = [Header.read(row) for row in found]
            counts = found[:, LENGTH : LENGTH + len(self.tables)]
            decision = decide(headers)
            rates, equal = self._rates_of_all(found)
            if decision.mismatch or not equal:
                self._mismatch(kind, requests, header)
            if decision.failed:
                self._drop(decision.answered)
                self._fail(failed, [bool(of.flags & FAILED) for of in headers])
            if not decision.gradients:
                self._drop(decision.answered)
                return headers, counts
            with self._at_rates(rates):
                self._apply(headers, counts, decision.answered, given)
            if kind == Kind.GRADIENTS:
                return headers, counts

    def keys(self, requests: Sequence[Request], counts: NDArray[np.int64]) -> list[_Keys]:
        """Sends the keys of `requests` to their owners. Returns for each request the keys of all
        ranks that this rank owns.

        Args:
            requests: The keys of this rank.
            counts: The result of `agree`.
        """
        of_tables = [of.table.index for of in requests]
        ranks = range(self.exchange.size)
        by_rank = [pieces(of.keys[of.order], of.counts) for of in requests]
        lengths: list[list[int]] = counts[:, of_tables].tolist()
        received = self.exchange.pieces(
            [joined([of[rank] for of in by_rank], np.int64) for rank in ranks],
            [sum(of_rank) for of_rank in lengths],
        )
        by_table = zip(*(pieces(*of_rank) for of_rank in zip(received, lengths)))
        return [_Keys(joined(of, np.int64), [len(piece) for piece in of]) for of in by_table]

    def rows(
        self,
        requests: Sequence[Request],
        keys: Sequence[Sequence[int]],
        read: Callable[[], Sequence[Found]],
    ) -> list[Rows]:
        """Answers the other ranks with rows, and returns the rows for this rank's requests.

        Args:
            requests: The keys of this rank.
            keys: For each request the number of keys from each rank that this rank owns.
            read: Returns for each request the rows of all these keys. If it fails, all ranks raise
                its error.
        """
        ranks = range(self.exchange.size)

        def lengths(of_each: Iterable[Sequence[int]]) -> list[int]:
            """The numbers in the message of each rank, from the number of its rows in each table.
            """
            dims = [of.table.dim for of in requests]
            # The first number is the flag.
            return [1 + sum(map(mul, dims, counts)) for counts in zip(*of_each)] or [1 for _ in ranks]

        failure: Optional[Exception] = None
        answers = [np.empty(length, dtype=np.float32) for length in lengths(keys)]
        try:
            by_table = [
                [(found.rows, places) for places in pieces(found.places, counts)]
                for found, counts in zip(read(), keys)
            ]
            for answer, parts in zip(answers, zip(*by_table)):
                take_rows(parts, answer[1:])
        except Exception as error:
            failure = error
            for answer in answers:
                answer.fill(0)
        for answer in answers:
            answer[0] = failure is not None
        received = self.exchange.pieces(answers, lengths(of.counts for of in requests))
        failed = [bool(piece[0]) for piece in received]
        if any(failed):
            self._fail(failure, failed)
        rows: list[Rows] = [
            np.empty((len(of.keys), of.table.dim), dtype=np.float32) for of in requests
        ]
        for piece, places in zip(received, zip(*(of.of_rank for of in requests))):
            place_rows(list(zip(rows, places)), piece[1:])
        return rows

    def check_room(self, count: int) -> None:
        """Raises an error on all ranks if `count` more leases do not fit a header. Must be called
        after `agree`, which tells the owners of dropped leases.
        """
        if self._next_lease + count - self._oldest > OPEN_LEASES_MAX:
            raise ForAll(
                RuntimeError(
                    f"forward passes over {OPEN_LEASES_MAX} tables wait for their backward pass: call backward() or step(), or "
                    "drop the graphs that take no backward pass (del loss)"
                )
            )

    def take(self, held: Sequence[Held]) -> list[int]:
        """Gives each lease its number. All ranks call it with the same tables."""
        numbers = list(range(self._next_lease, self._next_lease + len(held)))
        self._next_lease += len(held)
        self._held.update(zip(numbers, held))
        return numbers

    def held(self, number: int) -> Held:
        return self._held[number]

    def replace(self, number: int, held: Held) -> None:
        self._held[number] = held

    def waiting_keys(self, table: ShardedTable) -> Optional[NDArray[np.uint64]]:
        """The keys of the leases on a table that wait for an answer, as this owner has them."""
        found = [
            of.of_owner.keys
            for of in self._held.values()
            if of.request.table is table and isinstance(of.of_owner, embank.Lease)
        ]
        return np.concatenate(found) if found else None

    @property
    def _oldest(self) -> int:
        return min(self._held, default=self._next_lease)

    def _free_failed_graphs(self, given: Sequence[Given]) -> None:
        """Releases the leases that only a failed backward pass of this thread keeps. The others may
        have handed gradients for them over.
        """
        # A running backward pass has freed them at its beginning.
        if torch._C._current_graph_task_id() == -1:
            answered = {of.number for each in given for of in each.leases} | self._released
            if not answered.issuperset(self._held):
                free_failed_graphs()

    def _bits(self, numbers: Any) -> int:
        oldest, bits = self._oldest, 0
        for number in numbers:
            bits |= 1 << (number - oldest)
        return bits

    def _digest(self, requests: Sequence[Request], what: bytes) -> int:
        # The gradients carry the rate of a table with a SparseOptimizer.
        with_rate = [sink_of(table) is None for table in self.tables]
        if self._settings is None or self._settings[0] != with_rate:
            texts = [table.settings(of) for table, of in zip(self.tables, with_rate)]
            self._settings = with_rate, "\n".join(texts).encode()
        of = hashlib.blake2b(self._settings[1], digest_size=8)
        of.update(bytes(str([each.table.index for each in requests]), "ascii"))
        of.update(what)
        return int.from_bytes(of.digest(), "little", signed=True)

    def _message(self, requests: Sequence[Request], given: Sequence[Given]) -> NDArray[np.int64]:
        """Returns a header for each rank, with two numbers for each table: of keys, and the
        learning rate of gradients. A number of keys below 0 stands for a lease, whose gradients
        come in the order of its keys.
        """
        message = np.zeros((self.exchange.size, LENGTH + 2 * len(self.tables)), dtype=np.int64)
        rates = message[:, LENGTH + len(self.tables) :].view(np.float64)
        rates[:] = np.nan
        for of in requests:
            message[:, LENGTH + of.table.index] = of.counts
        for each in given:
            counts = gradients.counts_of(each, self._oldest)
            message[:, LENGTH + each.table.index] = counts
            if each.table.learning_rate is not None:
                rates[:, each.table.index] = each.table.learning_rate
        return message

    def _rates_of_all(self, found: NDArray[np.int64]) -> tuple[dict[int, float], bool]:
        """Returns the learning rates of the gradients in all headers, by table, and whether the
        ranks agree about them.
        """
        given = found[:, LENGTH + len(self.tables) :].view(np.float64)
        by_table: dict[int, set[float]] = {
            index: set(of[~np.isnan(of)].tolist()) for index, of in enumerate(given.T)
        }
        rates = {index: max(of) for index, of in by_table.items() if of}
        return rates, all(len(of) <= 1 for of in by_table.values())

    @contextmanager
    def _at_rates(self, rates: dict[int, float]) -> Iterator[None]:
        """Gives tables the learning rates of the ranks that hand gradients over. This rank may have
        none, because it skipped its step, and so another rate.
        """
        before: list[tuple[ShardedTable, float]] = []
        for index, rate in rates.items():
            table = self.tables[index]
            own = table.learning_rate
            if own is not None and own != rate:
                table.local.learning_rate = rate
                # A SparseOptimizer writes the rate of each step, and this is one.
                if sink_of(table) is None:
                    before.append((table, own))
        try:
            yield
        finally:
            for table, own in before:
                table.local.learning_rate = own

    def _apply(
        self,
        headers: Sequence[Header],
        counts: NDArray[np.int64],
        answered: Sequence[int],
        given: Sequence[Given],
    ) -> None:
        """Exchanges gradients, applies those of this rank's rows, and ends the leases."""
        self.change()
        coming = gradients.coming(self.tables, headers, counts, self._held, self._oldest)
        by_table = gradients.exchanged(self.exchange, headers, coming, given)
        of_leases = {number: self._taken(number) for number in answered}
        divisor = self.exchange.size if self._divides else 1
        self._failure = gradients.apply(of_leases, by_table, self.exchange.size, divisor)

    def _taken(self, number: int) -> Held:
        # In this order, so that a release in between does not add the number again.
        held = self._held.pop(number)
        self._released.discard(number)
        return held

    def _drop(self, answered: Sequence[int]) -> None:
        for number in answered:
            self._taken(number).end()

    def _mismatch(self, kind: Kind, requests: Sequence[Request], header: Header) -> NoReturn:
        """Raises an error that names what each rank does, and a setting that differs."""

        def names(leases: int) -> list[str]:
            """The tables of a set of leases."""
            held = self._held.items()
            return [of.request.table.name for at, of in held if leases >> (at - header.oldest) & 1]

        tables = [of.table.name for of in requests] + names(header.gives)
        waiting = names(~(header.gives | header.offers))
        doing = DOING[kind] + (f" of tables {tables}" if tables else "")
        if waiting:
            doing += f", after forward passes over tables {waiting} that wait for their backward pass"
        of_ranks = "; ".join(
            f"rank {rank} (shard {self._shard_of_rank[rank]}) {text}"
            for rank, text in enumerate(self.exchange.texts(doing))
        )
        settings = self.exchange.texts("\n".join(table.settings() for table in self.tables))
        for rank, text in enumerate(settings):
            for first, other in zip(settings[0].split("\n"), text.split("\n")):
                if first != other:
                    of_ranks += f"; rank 0 has {first}, rank {rank} {other}"
        raise ProtocolMismatch(
            f"the ranks do different things: {of_ranks}. Every call is collective: all ranks make the same calls over the "
            "same tables with the same settings, in the same order"
        )

    def _fail(self, own: Optional[BaseException], failed: Sequence[bool]) -> NoReturn:
        """Raises on all ranks the error of the first rank that has one."""
        texts = self.exchange.texts("" if own is None else packed(own))
        rank = failed.index(True)
        if rank == self.exchange.rank and own is not None:
            raise ForAll(own)
        raise ForAll(unpacked(texts[rank], f"shard {self._shard_of_rank[rank]} (rank {rank})"))


class Found(NamedTuple):
    """The rows of a table for the keys of all ranks that one owner has."""

    rows: Rows
    places: NDArray[np.int64]
    """For each key its place in `rows`, one rank after the other."""


class _Keys(NamedTuple):
    """The keys of a table that one owner gets from all ranks."""

    keys: NDArray[np.int64]
    counts: list[int]
