"""A bank whose rows are spread over the ranks of a process group."""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Optional, TypeVar, Union

import numpy as np
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

import embank
from embank._embank import FleetSet, route_keys, sum_rows

from .errors import ForAll
from .exchange import Exchange
from .fleet import RecoveredSet, SetName, Sets, on_all, read_reference, reference
from .gradients import Given
from .lease import Held, Request, ShardedLease
from .opening import View, assign, mismatch, open_shard, view_of
from .pending import ShardedQueue
from .protocol import END, Kind
from .rounds import Found, Rounds
from .table import ShardedTable, as_int64

if TYPE_CHECKING:
    from embank import Lease

Batch = TypeVar("Batch")
Part = tuple[
    ShardedTable, Sequence[ShardedLease], Optional[NDArray[np.uint64]], NDArray[np.float32]
]


class ShardedBank:
    """A bank for each rank, and one table over all of them.

    A *shard* is a bank in `DIRECTORY/shard-NNNNN` with a part of the rows of every table. A hash of
    the table's name and the key determines the shard of a row. Each rank serves one shard; the rank
    and the number of its shard may differ. The ranks need no shared file system.

    All calls are collective unless their documentation says otherwise: every rank makes the same
    calls in the same order, from one thread. That includes each forward pass over the tables, also
    in evaluation. If the ranks call different things, all raise `ProtocolMismatch`; if a rank ends
    or hangs, the others raise `PeerLost`. The bank is closed after both.

    Close the bank before the process group: `bank.close()`, then `del model; gc.collect()` if the
    model is in `DistributedDataParallel`, then `torch.distributed.destroy_process_group()`.

    Args:
        directory: The directory of this rank's shard. Ranks of one machine may share it.
        shards: The number of shards; must be the number of ranks. Default: the number of ranks.
        group: The process group. Default: all ranks. Its backend does not matter, because the bank
            makes a gloo group of its own.
        gradients: "mean" divides the sums of gradients by the number of ranks, as
            `DistributedDataParallel` and TorchRec do. "sum" does not.
        timeout: Seconds after which a rank that does not answer counts as lost. It must be longer
            than the longest time between two calls, such as the writing of a large file by one
            rank.
        sets_kept: The number of newest sets that the shards keep.
        set: A kept set to go back to, the same on all ranks: its number, or the result of `set_of`,
            which has its id too. All later sets are removed for good, as `Bank.roll_back` removes
            later checkpoints, and the next `checkpoint` gets the number after it. Default: the
            newest complete set.
        options: The options of `embank.Bank` for each shard, such as `memory_budget`, which counts
            for each rank.

    Raises:
        ShardMismatch: The ranks do not find the shards of one fleet, or another number of them.
        ValueError: The ranks pass different options, or an option does not work over shards. Or
            `set` is no complete set, or has another id: the text names those that are kept, or both
            ids, and nothing has changed.
        embank.EmbankError: A shard can't be opened, or can't go back to `set`: a file of the set's
            checkpoint is damaged, or a process reads a later checkpoint. All ranks raise the error
            of the first one, and keep their sets.
    """

    def __init__(
        self,
        directory: Union[str, PathLike[str]],
        *,
        shards: Optional[int] = None,
        group: Optional[dist.ProcessGroup] = None,
        gradients: Literal["mean", "sum"] = "mean",
        timeout: float = 600.0,
        sets_kept: int = 2,
        set: Union[int, SetName, None] = None,
        **options: Any,
    ) -> None:
        self._closed_by: Optional[str] = "its opening failed"
        self._process = os.getpid()
        if not dist.is_initialized():
            raise RuntimeError(
                "a ShardedBank needs a process group: call torch.distributed.init_process_group first, and start the program "
                "with torchrun"
            )
        exchange = Exchange(group, timeout)
        try:
            folder = Path(directory)
            contents = on_all(
                exchange,
                lambda: view_of(folder, shards, gradients, timeout, set, options).encoded(),
            )
            views = [View.decoded(content) for content in contents]
            # Depends on the views alone, so all ranks raise its error.
            of = assign(views)
            self.shard = of.shard_of_rank[exchange.rank]
            """The number of the shard that this rank serves."""
            self.local, shard = open_shard(
                exchange,
                folder,
                self.shard,
                of.is_new,
                sets_kept,
                set,
                {"wait_timeout": min(60.0, timeout / 2), **options},
            )
        except ForAll as for_all:
            exchange.close()
            raise for_all.error from None
        except BaseException:
            exchange.close()
            raise
        self.shards = exchange.size
        """The number of shards and of ranks."""
        self._shard_of_rank = of.shard_of_rank
        self._exchange = exchange
        self._sets = Sets(exchange, shard)
        self._closed_by = None
        self.rounds = Rounds(
            exchange, of.shard_of_rank, gradients == "mean", self._sets.change, self._abort
        )

    def table(self, name: str, dim: int, **options: Any) -> ShardedTable:
        """Opens a table, or makes it, on all shards. Arguments as for `Bank.table`.

        With `shard=n` all rows of the table are in shard n. The number is fixed when the table is
        made.

        Raises:
            ValueError: The ranks pass different settings, or the table's vocabulary is not frozen
                or not the same on all ranks.
            embank.TableMismatch: A shard has the table with other settings. All ranks raise it.
        """
        self.check_open()
        rounds = self.rounds
        dim = operator.index(dim)
        settings: dict[str, Any] = {"name": name, "dim": dim}
        settings.update((option, repr(value)) for option, value in options.items())
        with rounds.round("opens a table"):
            failure = self._add_vocabulary(settings, options.get("vocabulary"))
            rounds.agree(Kind.OPEN_TABLE, failure=failure)
            texts = self._exchange.texts(json.dumps(settings))
            _compare([json.loads(text) for text in texts])
            local = None
            try:
                local = self.local.table(name, dim, **options)
            except Exception as error:
                failure = error
            rounds.agree(Kind.OPEN_TABLE, failure=failure)
            assert local is not None
            for table in rounds.tables:
                if table.name == name:
                    break
            else:
                table = ShardedTable(self, local, len(rounds.tables))
                rounds.tables.append(table)
            rounds.settings_changed()
        return table

    def _add_vocabulary(
        self, settings: dict[str, Any], name: Optional[str]
    ) -> Optional[Exception]:
        """Adds the fingerprint of a table's vocabulary to its settings. Returns what is wrong with
        the vocabulary."""
        if name is None:
            return None
        try:
            vocabulary = self.local.open_vocabulary(name)
        except Exception as error:
            return error
        settings["fingerprint of the vocabulary"] = f"{vocabulary.fingerprint:016x}"
        if vocabulary.frozen:
            return None
        return ValueError(
            f"vocabulary {name!r} of shard {self.shard} grows, so the ranks would give one id to different values: fill it "
            "with the same values on each rank (bank.local.vocabulary), and set vocabulary.frozen = True"
        )

    def tables(self) -> list[str]:
        """The names of the open tables. Not collective."""
        return [table.name for table in self.rounds.tables]

    def get_many(
        self, requests: Sequence[tuple[ShardedTable, ArrayLike]], *, earlier: object = None
    ) -> list[ShardedLease]:
        """Leases rows of several tables in one exchange.

        Args:
            requests: Tables, each once, with the keys of this rank.
            earlier: Ignored: the owners know which gets wait for their answers.
        """
        self.check_open()
        asked = self._asked(requests)
        rounds = self.rounds
        leases: list[Lease] = []
        with rounds.round("gets rows for training"):
            _, counts = rounds.agree(Kind.GET, asked)
            rounds.check_room(len(asked))
            rounds.change()
            keys = rounds.keys(asked, counts)

            def read() -> list[Found]:
                leases.extend(
                    embank.get_many(
                        [(of.table.local, each.keys) for of, each in zip(asked, keys)],
                        earlier=[
                            None if of.table.admits_all else rounds.waiting_keys(of.table) for of in asked
                        ],
                    )
                )
                return [Found(lease.rows, lease.inverse) for lease in leases]

            try:
                found = rounds.rows(asked, [each.counts for each in keys], read)
            except BaseException:
                for lease in leases:
                    lease.release()
                raise
            numbers = rounds.take(
                [Held(*of) for of in zip(asked, leases, [each.counts for each in keys])]
            )
        return [ShardedLease(self, *of) for of in zip(numbers, asked, found)]

    def peek_many(
        self, requests: Sequence[tuple[ShardedTable, ArrayLike]]
    ) -> list[NDArray[np.float32]]:
        """Reads rows of several tables in one exchange, without leases: for each request float32
        `(n, dim)`.

        Args:
            requests: Tables, each once, with the keys of this rank.
        """
        self.check_open()
        asked = self._asked(requests)
        rounds = self.rounds
        with rounds.round("reads rows for evaluation"):
            _, counts = rounds.agree(Kind.PEEK, asked)
            keys = rounds.keys(asked, counts)
            found = rounds.rows(
                asked,
                [each.counts for each in keys],
                lambda: [
                    Found(of.table.local.peek(each.keys), np.arange(len(each.keys)))
                    for of, each in zip(asked, keys)
                ],
            )
        return [rows[of.inverse] for of, rows in zip(asked, found)]

    def apply_many(self, parts: Sequence[Part]) -> None:
        """Answers leases with gradients: one exchange for all tables, and one step for each row.

        Args:
            parts: Tables, each once; leases of each; the keys of the gradients, None for all keys
                of one lease; and the gradients of this rank, float32 `(n, dim)`.

        Raises:
            ValueError: A gradient of a rank is NaN or infinite, or a table has no optimizer. All
                ranks raise it, and no row has changed.
        """
        if not parts:
            return
        self.check_open()
        failure: Optional[Exception] = None
        given = []
        for table, leases, keys, gradients in parts:
            for lease in leases:
                lease.check()
            of = self._given(
                table, leases, keys, np.ascontiguousarray(gradients, dtype=np.float32)
            )
            given.append(of)
            failure = failure or _refusal(of)
        with self.rounds.round("hands over gradients"):
            self.rounds.agree(Kind.GRADIENTS, given=given, failure=failure)

    def _given(
        self,
        table: ShardedTable,
        leases: Sequence[ShardedLease],
        keys: Optional[NDArray[np.uint64]],
        gradients: NDArray[np.float32],
    ) -> Given:
        first = leases[0]
        if len(leases) == 1 and (keys is None or np.array_equal(keys, first.keys)):
            expected: tuple[int, ...] = first.rows.shape
            if gradients.shape == expected:
                return Given(table, leases, first.request, True, gradients)
        elif keys is not None:
            expected = (len(keys), table.dim)
            if gradients.shape == expected:
                request = table.request(keys.view(np.int64))
                sums = sum_rows(len(request.keys), table.dim, [(gradients, request.inverse)], 1)
                return Given(table, leases, request, False, sums)
        else:
            raise ValueError(f"gradients for several leases of table {table.name!r} need keys")
        raise ValueError(f"gradients of table {table.name!r} must be {expected}, not {gradients.shape}")

    def _asked(self, requests: Sequence[tuple[ShardedTable, ArrayLike]]) -> list[Request]:
        if len({table.index for table, _ in requests}) < len(requests):
            raise ValueError("each table may occur once in a call: join its keys")
        return self.requests(requests)

    def put(self, table: ShardedTable, keys: ArrayLike, rows: ArrayLike) -> None:
        """See `ShardedTable.put`."""
        self.check_open()
        flat = as_int64(keys)
        values = np.ascontiguousarray(rows, dtype=np.float32)
        digest = hashlib.blake2b(flat.tobytes(), digest_size=16)
        digest.update(values.tobytes())
        digest.update(table.name.encode())
        (of,) = self.requests([(table, flat)])
        owned = np.zeros(len(of.keys), dtype=np.bool_)
        owned[of.of_rank[self._exchange.rank]] = True
        own = owned[of.inverse]
        with self.rounds.round("puts rows"):
            self.rounds.agree(Kind.PUT, what=digest.digest())
            self._sets.change()
            failure: Optional[Exception] = None
            try:
                table.local.put(flat[own], values[own])
            except Exception as error:
                failure = error
            self.rounds.agree(Kind.PUT, failure=failure)

    def together(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Iterates over this rank's batches, and ends on all ranks when the first rank has no
        further batch. A rank with more batches leaves the rest out. If the iterable of a rank
        fails, the other ranks end, and this rank raises the error.

        >>> for batch in bank.together(loader):  # doctest: +SKIP
        ...     model(batch).sum().backward()
        """
        iterator = iter(batches)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                self._another(False)
                return
            except Exception:
                self._another(False)
                raise
            if not self._another(True):
                return
            yield batch

    def _another(self, has: bool) -> bool:
        self.check_open()
        with self.rounds.round("asks for the next batch of together()"):
            headers, _ = self.rounds.agree(Kind.TOGETHER, flags=0 if has else END)
        return not any(of.flags & END for of in headers)

    def ahead_queue(self) -> ShardedQueue:
        """A queue of gets ahead, for `Pipelined`. Not collective."""
        self.check_open()
        return ShardedQueue(self)

    def requests(self, asked: Sequence[tuple[ShardedTable, ArrayLike]]) -> list[Request]:
        """Removes repeated keys of each table, and finds the ranks that own their rows. Not
        collective.
        """
        found = route_keys(
            [(table.name, as_int64(keys), table.local.shard) for table, keys in asked],
            self._shard_of_rank,
        )
        return [Request(table, *of) for (table, _), of in zip(asked, found)]

    def settings_changed(self) -> None:
        """Called after a setting of a table has changed on this rank. Not collective."""
        self.rounds.settings_changed()

    def awaits(self, number: int) -> bool:
        """Whether this rank has not answered the lease. Not collective."""
        return self.rounds.awaits(number)

    def release(self, number: int) -> None:
        """Answers a lease with a release, which goes out with the next exchange. Not collective."""
        self.rounds.release(number)

    @property
    def path(self) -> Path:
        """The directory of this rank's shard."""
        return self.local.path

    def checkpoint(self, blob: bytes = b"") -> int:
        """Takes a checkpoint of all shards: a set. When it returns, the set is on stable storage.

        Args:
            blob: Bytes of this rank; `recovered.blob` gives them back to it. `embank.torch.save`
                puts the rest of the run's state here.

        Returns:
            The number of the set.

        Raises:
            embank.EmbankError: A shard has failed. All ranks raise the error of the first one. If
                its checkpoint has failed, the last set is the newest. If only its record has, the
                new set is the newest at the next opening.
            TypeError: `blob` of a rank is no bytes. All ranks raise it.
        """
        self.check_open()
        failure: Optional[Exception] = None
        try:
            blob = bytes(memoryview(blob))
        except TypeError as error:
            failure = error
        with self.rounds.round("takes a checkpoint"):
            self.rounds.agree(Kind.CHECKPOINT, failure=failure)
            return self._sets.take(blob).number

    def sets(self) -> list[FleetSet]:
        """The sets that this rank's shard keeps, the oldest first. Not collective."""
        return self._sets.shard.sets()

    @property
    def recovered(self) -> Optional[RecoveredSet]:
        """The set that the bank was opened at. None for a new fleet."""
        return self._sets.recovered

    @property
    def last_checkpoint(self) -> Optional[int]:
        """The number of the newest set. None for a new fleet."""
        return self._sets.shard.newest_set or None

    @property
    def changed_since_checkpoint(self) -> bool:
        """Whether rows may have changed since the newest set, on any shard: a training get, `put`
        and gradients count on all ranks. `local.evict` counts on the ranks that call it.
        """
        return self._sets.changed(self.local)

    @property
    def state_id(self) -> str:
        """The state of this rank's shard, as `Bank.state_id`."""
        return self.local.state_id

    def state_dict(self) -> dict[str, Tensor]:
        """Names the newest set, for `torch.distributed.checkpoint`: one uint8 tensor of 512 bytes,
        the same on all ranks. Takes no checkpoint: call `checkpoint()` before. Not collective.
        """
        return {"reference": reference(self.position())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Checks that the bank is at the set that a state dict names. Not collective.

        Raises:
            ValueError: It is at another set, or `state_dict` names none.
            ShardMismatch: The state is of another number of shards.
        """
        position = read_reference(state_dict.get("reference"))
        problem = self.problem(position)
        if problem is None:
            return
        if position["shards"] != self.shards:
            raise mismatch(
                str(self.path),
                f"{self.shards} shards",
                f"{position['shards']} shards",
                f"this state is of {position['shards']} shards, and the bank has {self.shards}: start {position['shards']} "
                f"ranks on their directories, or run embank reshard DIR NEW --shards {self.shards} and open NEW",
            )
        raise ValueError(f"the bank is not where this state dict left it: {problem}")

    def position(self) -> dict[str, Any]:
        """What a state dict records of this bank. Not collective."""
        return self._sets.position(self.local)

    def problem(self, position: Mapping[str, Any]) -> Optional[str]:
        """Returns why the rows are not those of a `position`. None if they are. Not collective."""
        return self._sets.problem(position, self.local)

    @property
    def bytes_sent(self) -> int:
        """The bytes of keys, rows and gradients that this rank has sent to others."""
        return self._exchange.bytes_sent

    @property
    def closed(self) -> bool:
        return self._closed_by is not None

    def check_open(self) -> None:
        """Raises `ValueError` if the bank is closed, and `RuntimeError` in a forked child."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this process was forked while a ShardedBank was open: the bank and its connections belong to the parent; let "
                'DataLoader workers only produce keys, or start them with "spawn"'
            )
        if self._closed_by is not None:
            raise ValueError(f"the sharded bank is closed: {self._closed_by}")

    def close(self) -> None:
        """Closes the bank, on all ranks together. Takes no checkpoint. Does nothing if it is
        closed.

        Raises:
            PeerLost: A rank has ended before. This rank's bank is closed nevertheless.
            ProtocolMismatch: A rank has something else to do. All banks are closed nevertheless.
        """
        if self.closed or os.getpid() != self._process:
            return
        try:
            with self.rounds.round("closes the bank"):
                self.rounds.agree(Kind.CLOSE)
        finally:
            self._shut("close() was called")

    def _abort(self, error: BaseException) -> None:
        self._shut(f"{type(error).__name__}: {error}")

    def _shut(self, why: str) -> None:
        """Closes this rank's shard and its connections, without an exchange."""
        if self._closed_by is not None or os.getpid() != self._process:
            return
        self._closed_by = why
        self.rounds.end()
        self.local.close()
        self._exchange.close()

    def __getattr__(self, name: str) -> Any:
        """Raises `AttributeError`. The message says what to use instead of a method of `Bank`."""
        if name == "roll_back":
            raise AttributeError(
                "a ShardedBank has no roll_back: close it, and open it with set=, the number of an earlier set"
            )
        if hasattr(embank.Bank, name):
            raise AttributeError(
                f"a ShardedBank has no {name}: bank.local.{name} is that of this rank's shard; take checkpoints of all "
                "shards with bank.checkpoint()"
            )
        raise AttributeError(f"a ShardedBank has no {name}")

    def __enter__(self) -> ShardedBank:
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        """Closes the bank. After an exception on this rank, the other ranks raise `PeerLost`."""
        if error is None:
            self.close()
        else:
            self._abort(error)

    def __copy__(self) -> ShardedBank:
        return self

    def __deepcopy__(self, memo: object) -> ShardedBank:
        return self

    def __reduce__(self) -> NoReturn:
        """Raises `TypeError`: the bank is open in this process."""
        raise TypeError("a ShardedBank can't be pickled, because it is open in this process")

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<ShardedBank {str(self.path)!r}, shard {self.shard} of {self.shards}, {state}>"


def _compare(of_ranks: Sequence[dict[str, Any]]) -> None:
    """Raises an error on all ranks if they open different tables."""
    first = of_ranks[0]
    for rank, settings in enumerate(of_ranks):
        for name in [*first, *settings]:
            if settings.get(name) != first.get(name):
                raise ForAll(
                    ValueError(
                        f"table {first['name']!r}: {name} must be the same on all ranks; rank 0 has "
                        f"{first.get(name, 'the default')}, rank {rank} {settings.get(name, 'the default')}"
                    )
                )


def _refusal(of: Given) -> Optional[Exception]:
    """Returns why no rank may apply these gradients."""
    if of.table.learning_rate is None:
        return ValueError(
            f"table {of.table.name!r} has no optimizer: give ShardedBank.table one, such as "
            "optimizer=embank.Adagrad(lr=0.01)"
        )
    if np.isfinite(of.gradients).all():
        return None
    row, column = np.argwhere(~np.isfinite(of.gradients))[0]
    key = int(of.request.keys[row]) % 2**64
    return ValueError(
        f"table {of.table.name!r}, key {key}: the gradient of column {column} is {of.gradients[row, column]}; no row of "
        "this step was changed, on no rank; lower the learning rate, clip or unscale the gradients, or skip the batch"
    )
