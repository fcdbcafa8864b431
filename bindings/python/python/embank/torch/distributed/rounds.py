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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Optional, Union

import numpy as np
from numpy.typing import NDArray

import embank

from .errors import ProtocolMismatch, packed, unpacked
from .exchange import Exchange
from .lease import Held, Request, ShardedLease
from .protocol import (
    DOING, EXPLICIT, FAILED, LENGTH, OPEN_LEASES_MAX, Header, Kind, decide,
)  # fmt: skip

if TYPE_CHECKING:
    from embank import Lease

    from .table import ShardedTable

Rows = NDArray[np.float32]


class Given(NamedTuple):
    """The gradients of one table on this rank."""

    table: ShardedTable
    leases: Sequence[ShardedLease]
    request: Request
    """The keys of the gradients."""
    whole: bool
    """Whether these are all keys of the one lease, in its order."""
    gradients: Rows
    """Float32 `(u, dim)`, a row for each key of the request."""


class _OfRank(NamedTuple):
    """The gradients that one rank has sent for one table: those of a lease, or of keys."""

    of: Union[int, NDArray[np.int64]]
    gradients: Rows


class _ForAll(Exception):
    """Wraps an error that every rank raises at this place, so the exchange goes on afterwards."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Rounds:
    """The exchanges of one bank.

    Args:
        exchange: The ranks.
        shard_of_rank: The shard of each rank.
        divides: Whether sums of gradients are divided by the number of ranks.
        abort: Closes the bank on this rank, because the ranks can't go on together.
    """

    def __init__(
        self,
        exchange: Exchange,
        shard_of_rank: Sequence[int],
        divides: bool,
        abort: Callable[[BaseException], None],
    ) -> None:
        self.exchange = exchange
        self.tables: list[ShardedTable] = []
        self._shard_of_rank = list(shard_of_rank)
        self._divides = divides
        self._abort = abort
        self._settings: Optional[bytes] = None
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
            _end(of)

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
        except _ForAll as for_all:
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
            decision = decide(headers)
            if decision.mismatch:
                self._mismatch(kind, requests, header)
            if decision.failed:
                self._drop(decision.answered)
                self._fail(failed, [bool(of.flags & FAILED) for of in headers])
            if not decision.gradients:
                self._drop(decision.answered)
                return headers, found[:, LENGTH:]
            self._gradients(headers, found[:, LENGTH:], decision.answered, given)
            if kind == Kind.GRADIENTS:
                return headers, found[:, LENGTH:]

    def keys(self, requests: Sequence[Request], counts: NDArray[np.int64]) -> list[_Keys]:
        """Sends the keys of `requests` to their owners. Returns for each request the keys of all
        ranks that this rank owns.

        Args:
            requests: The keys of this rank.
            counts: The result of `agree`.
        """
        of_tables = [of.table.index for of in requests]
        ranks = range(self.exchange.size)
        pieces = self.exchange.pieces(
            [_joined([of.keys[of.of_rank[rank]] for of in requests], np.int64) for rank in ranks],
            [int(counts[rank, of_tables].sum()) for rank in ranks],
        )
        found: list[list[NDArray[np.int64]]] = [[] for _ in requests]
        for rank, piece in enumerate(pieces):
            start = 0
            for at, of_table in enumerate(of_tables):
                count = int(counts[rank, of_table])
                found[at].append(piece[start : start + count])
                start += count
        return [
            _Keys(_joined(of, np.int64), [len(piece) for piece in of]) for of in found
        ]

    def rows(
        self,
        requests: Sequence[Request],
        keys: Sequence[Sequence[int]],
        read: Callable[[], Sequence[Rows]],
    ) -> list[Rows]:
        """Answers the other ranks with rows, and returns the rows for this rank's requests.

        Args:
            requests: The keys of this rank.
            keys: For each request the number of keys from each rank that this rank owns.
            read: Returns for each request the rows of all these keys, one rank after the other. If
                it fails, all ranks raise its error.
        """
        failure: Optional[Exception] = None
        to_each: list[list[Rows]] = [[] for _ in range(self.exchange.size)]
        try:
            for rows, counts in zip(read(), keys):
                start = 0
                for rank, count in enumerate(counts):
                    to_each[rank].append(rows[start : start + count].reshape(-1))
                    start += count
        except Exception as error:
            failure = error
            to_each = [
                [np.zeros(sum(counts[rank] * of.table.dim for of, counts in zip(requests, keys)), np.float32)]
                for rank in range(self.exchange.size)
            ]
        # The first number is the flag.
        flag = np.full(1, failure is not None, dtype=np.float32)
        wanted = [[of.of_rank[rank] for of in requests] for rank in range(self.exchange.size)]
        received = self.exchange.pieces(
            [np.concatenate([flag, *of]) for of in to_each],
            [
                1 + sum(len(places) * of.table.dim for places, of in zip(of_rank, requests))
                for of_rank in wanted
            ],
        )
        failed = [bool(piece[0]) for piece in received]
        if any(failed):
            self._fail(failure, failed)
        found: list[Rows] = [
            np.empty((len(of.keys), of.table.dim), dtype=np.float32) for of in requests
        ]
        for piece, of_rank in zip(received, wanted):
            start = 1
            for places, rows in zip(of_rank, found):
                end = start + len(places) * rows.shape[1]
                rows[places] = piece[start:end].reshape(-1, rows.shape[1])
                start = end
        return found

    def check_room(self, count: int) -> None:
        """Raises an error on all ranks if `count` more leases do not fit a header."""
        if self._next_lease + count - self._oldest > OPEN_LEASES_MAX:
            raise _ForAll(
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

    def _bits(self, numbers: Any) -> int:
        oldest, bits = self._oldest, 0
        for number in numbers:
            bits |= 1 << (number - oldest)
        return bits

    def _digest(self, requests: Sequence[Request], what: bytes) -> int:
        if self._settings is None:
            self._settings = "\n".join(table.settings() for table in self.tables).encode()
        of = hashlib.blake2b(self._settings, digest_size=8)
        of.update(bytes(str([each.table.index for each in requests]), "ascii"))
        of.update(what)
        return int.from_bytes(of.digest(), "little", signed=True)

    def _message(self, requests: Sequence[Request], given: Sequence[Given]) -> NDArray[np.int64]:
        """Returns a header for each rank, with the number of keys for each table. A number below 0
        stands for a lease, whose gradients come in the order of its keys.
        """
        message = np.zeros((self.exchange.size, LENGTH + len(self.tables)), dtype=np.int64)
        for of in requests:
            message[:, LENGTH + of.table.index] = [len(places) for places in of.of_rank]
        for each in given:
            column = message[:, LENGTH + each.table.index]
            if each.whole:
                column[:] = self._oldest - each.leases[0].number - 1
            else:
                column[:] = [len(places) for places in each.request.of_rank]
        return message

    def _gradients(
        self,
        headers: Sequence[Header],
        counts: NDArray[np.int64],
        answered: Sequence[int],
        given: Sequence[Given],
    ) -> None:
        """Exchanges gradients, and applies those of this rank's rows."""
        size, oldest = self.exchange.size, self._oldest
        given = sorted(given, key=lambda of: of.table.index)
        # What each rank sends to this one, by table in the order of their numbers.
        coming: list[list[tuple[ShardedTable, int]]] = [
            [
                (table, int(counts[rank, table.index]))
                for table in self.tables
                if counts[rank, table.index] != 0
            ]
            if headers[rank].kind == Kind.GRADIENTS
            else []
            for rank in range(size)
        ]
        keys: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * size
        if any(of.flags & EXPLICIT for of in headers):
            keys = self.exchange.pieces(
                [
                    _joined([of.request.keys[of.request.of_rank[rank]] for of in given if not of.whole], np.int64)
                    for rank in range(size)
                ],
                [sum(max(count, 0) for _, count in of_rank) for of_rank in coming],
            )
        places: list[list[tuple[ShardedTable, Union[int, NDArray[np.int64]], int]]] = []
        for rank, of_rank in enumerate(coming):
            start, found = 0, []
            of: Union[int, NDArray[np.int64]]
            for table, count in of_rank:
                if count < 0:
                    of = oldest - count - 1
                    count = self._held[of].counts[rank]
                else:
                    of = keys[rank][start : start + count]
                    start += count
                found.append((table, of, count))
            places.append(found)
        pieces = self.exchange.pieces(
            [
                _joined([of.gradients[of.request.of_rank[rank]].reshape(-1) for of in given], np.float32)
                for rank in range(size)
            ],
            [sum(count * table.dim for table, _, count in of_rank) for of_rank in places],
        )
        by_table: dict[int, list[tuple[int, _OfRank]]] = {}
        for rank, (of_rank_places, piece) in enumerate(zip(places, pieces)):
            start = 0
            for table, of, count in of_rank_places:
                end = start + count * table.dim
                gradients = piece[start:end].reshape(count, table.dim)
                by_table.setdefault(table.index, []).append((rank, _OfRank(of, gradients)))
                start = end
        self._apply(answered, by_table)

    def _apply(
        self, answered: Sequence[int], by_table: dict[int, list[tuple[int, _OfRank]]]
    ) -> None:
        """Applies the sums of the gradients, and ends the leases."""
        held = [self._taken(number) for number in answered]
        parts: list[tuple[Any, list[Lease], Any, Rows]] = []
        applied: set[int] = set()
        for index, of_ranks in by_table.items():
            leases = {
                number: of
                for number, of in zip(answered, held)
                if of.request.table.index == index
            }
            # `apply_many` refuses a sum that is infinite.
            with np.errstate(over="ignore"):
                numbers, keys, sums = self._sums(leases, of_ranks)
            if self._divides:
                sums /= np.float32(self.exchange.size)
            of_owner: list[Any] = [leases[number].of_owner for number in numbers]
            parts.append((self.tables[index].local, of_owner, keys, sums))
            applied.update(numbers)
        for number, of in zip(answered, held):
            if number not in applied:
                _end(of)
        try:
            if parts:
                embank.apply_many(parts)
        except Exception as error:
            self._failure = error
            for _, leases_of_part, _, _ in parts:
                for lease in leases_of_part:
                    lease.release()

    def _sums(
        self, leases: dict[int, Held], of_ranks: list[tuple[int, _OfRank]]
    ) -> tuple[list[int], Optional[NDArray[np.uint64]], Rows]:
        """Adds the gradients of one table, of each row in the order of the ranks.

        Returns the leases that the sums belong to, the keys (None for all of one lease), and the
        sums.
        """
        dim = of_ranks[0][1].gradients.shape[1]
        numbers = {of.of for _, of in of_ranks if isinstance(of.of, int)}
        if len(numbers) == 1 and not any(isinstance(of.of, np.ndarray) for _, of in of_ranks):
            (number,) = numbers
            lease: Any = leases[number].of_owner
            sums = np.zeros((len(lease.keys), dim), dtype=np.float32)
            places = leases[number].places()
            for rank, of in of_ranks:
                # The keys of one rank are distinct.
                sums[places[rank]] += of.gradients
            if len(of_ranks) == self.exchange.size:
                return [number], None, sums
            touched = np.zeros(len(sums), dtype=np.bool_)
            for rank, _ in of_ranks:
                touched[places[rank]] = True
            return [number], lease.keys[touched], sums[touched]
        of_each = [
            leases[of.of].keys_of(rank) if isinstance(of.of, int) else of.of.view(np.uint64)
            for rank, of in of_ranks
        ]
        keys, inverse = np.unique(np.concatenate(of_each), return_inverse=True)
        sums, start = np.zeros((len(keys), dim), dtype=np.float32), 0
        for _, of in of_ranks:
            sums[inverse[start : start + len(of.gradients)]] += of.gradients
            start += len(of.gradients)
        return list(leases), keys, sums

    def _taken(self, number: int) -> Held:
        self._released.discard(number)
        return self._held.pop(number)

    def _drop(self, answered: Sequence[int]) -> None:
        for number in answered:
            _end(self._taken(number))

    def _mismatch(self, kind: Kind, requests: Sequence[Request], header: Header) -> NoReturn:
        names = [of.table.name for of in requests]
        doing = DOING[kind] + (f" of tables {names}" if names else "")
        answers = [self._held[at].request.table.name for at in self._held if header.gives >> (at - header.oldest) & 1]
        waits = [
            self._held[at].request.table.name for at in self._held
            if not (header.gives | header.offers) >> (at - header.oldest) & 1
        ]  # fmt: skip
        if answers:
            doing += f" of tables {answers}"
        if waits:
            doing += f", after forward passes over tables {waits} that wait for their backward pass"
        texts = self.exchange.texts(f"{doing} (settings and tables: {header.digest & 0xFFFFFFFF:08x})")
        of_ranks = "; ".join(
            f"rank {rank} (shard {self._shard_of_rank[rank]}) {text}" for rank, text in enumerate(texts)
        )
        raise ProtocolMismatch(
            f"the ranks do different things in exchange {self.exchange.steps}: {of_ranks}. Every call is collective: all "
            "ranks make the same calls over the same tables with the same settings, in the same order"
        )

    def _fail(self, own: Optional[BaseException], failed: Sequence[bool]) -> NoReturn:
        """Raises on all ranks the error of the first rank that has one."""
        texts = self.exchange.texts("" if own is None else packed(own))
        rank = failed.index(True)
        if rank == self.exchange.rank and own is not None:
            raise _ForAll(own)
        raise _ForAll(unpacked(texts[rank], f"shard {self._shard_of_rank[rank]} (rank {rank})"))


class _Keys(NamedTuple):
    """The keys of a table that one owner gets from all ranks."""

    keys: NDArray[np.int64]
    counts: list[int]


def _joined(pieces: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=dtype)


def _end(held: Held) -> None:
    of = held.of_owner
    if isinstance(of, embank.Lease):
        of.release()
    else:
        of.cancel()
