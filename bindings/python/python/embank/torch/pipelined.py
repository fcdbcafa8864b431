"""A data loader that gets the rows of coming batches while the model computes.

The keys of each batch go to a queue of gets ahead (`embank.AheadQueue`), one queue for each bank. A
thread of the bank takes the leases in the order of the batches and brings the rows into memory. The
loader hands a batch out with its pending gets (`in_hand`). The first forward pass over a table
waits for the table's get and copies the rows: they then have the updates of all earlier batches.
All modules over the table share this one lease and one leaf, so the table takes one step a batch.

The order of the gets within a batch is that of the tables' names. Two pipelines over the same
tables of a bank therefore never wait for each other: the one that waits at a table has no later
table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import embank

from . import in_hand
from .bags import BagRequest
from .leaf import free_failed_graphs, got, leaf_of, naming_cure
from .lookahead import KeysByTable, keys_by_table
from .many import is_sharded
from .sinks import Identity, identity, sink_of

if TYPE_CHECKING:
    from embank import AheadQueue, Pending

    from .distributed.pending import ShardedPending, ShardedQueue
    from .many import AnyBank as Bank, AnyLease as Lease, AnyTable as Table

    Queue = Union[AheadQueue, ShardedQueue]
    AnyPending = Union[Pending, ShardedPending]

Batch = TypeVar("Batch")
Result = TypeVar("Result")

_HANDED_OUT_MAX = 2
"""The most batches in hand that no forward pass has used. A framework draws one batch ahead."""


class _RowsAhead:
    """The rows of one table that a batch needs: a pending get, and later its lease."""

    def __init__(self, table: Table, parts: list[NDArray[np.int64]]) -> None:
        self.table = table
        self._parts = parts
        self._all = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._pending: Optional[AnyPending] = None
        self._lease: Optional[Lease] = None
        self._leaf: Optional[Tensor] = None
        self._looked_up: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._sorted: Optional[NDArray[np.int64]] = None

    def ask(self, queue: Queue) -> None:
        """Asks for the rows, if that is still to be done."""
        if self._pending is None and self._lease is None:
            table: Any = self.table
            self._pending = table.get_ahead(self._all, queue, distinct=True)

    @property
    def used(self) -> bool:
        """Whether a forward pass has looked the rows up."""
        return self._lease is not None

    @property
    def waits(self) -> bool:
        return self._lease is None or self._lease.held

    def equals(self, keys: NDArray[np.int64]) -> bool:
        if _equal(self._all, keys):
            return True
        return len(self._parts) > 1 and any(_equal(part, keys) for part in self._parts)

    def lacks(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        lacking: NDArray[np.int64] = keys[np.isin(keys, self._all, invert=True)]
        return lacking

    def pools(self, keys: NDArray[np.int64]) -> bool:
        return self._lease is None and _equal(self._all, keys)

    def bags(self, request: BagRequest) -> Lease:
        keys, offsets, pooling, weights = request
        self._lease = self._got(
            lambda: self.table.get_bags(keys, offsets, pooling=pooling, weights=weights),
            lambda of: of.wait(offsets=offsets, pooling=pooling, weights=weights),
        )
        return self._lease

    def rows(
        self, keys: NDArray[np.int64], device: torch.device
    ) -> tuple[Tensor, NDArray[np.int64]]:
        lease, leaf = self._lease, self._leaf
        if lease is None or leaf is None:
            sink = sink_of(self.table)
            if lease is None:
                # The owners of sharded rows see the leases of all ranks, and refuse for all.
                if sink is not None and not is_sharded(self.table):
                    sink.check_bound(self.table, self._all)
                lease = self._got_rows(device)
                rows = lease.rows
            else:
                # The lease has the bags of another forward pass, not the rows.
                rows = self.table.peek(lease.keys)
            self._looked_up = np.zeros(len(rows), dtype=np.bool_)
            leaf = leaf_of(self.table, lease, rows, device, sink, self._looked_up)
            self._lease, self._leaf = lease, leaf
        if leaf.device != device:
            raise ValueError(
                f"the rows of table {self.table.name!r} that were got ahead are on {leaf.device}, and keys of another "
                f"module are on {device}: move them to one device, or use Pipelined(..., depth=0)"
            )
        places = self._places(lease, keys)
        self._looked_up[places] = True
        return leaf, places

    def _got_rows(self, device: torch.device) -> Lease:
        out = None
        if device.type == "cuda" and self._pending is not None:
            shape = (len(self._pending), self.table.dim)
            rows = torch.empty(shape, dtype=torch.float32, device="cpu", pin_memory=True)
            out = rows.numpy()
        return self._got(
            lambda: self.table.get_distinct(self._all), lambda pending: pending.wait(out=out)
        )

    def _got(self, get: Callable[[], Lease], wait: Callable[[Any], Lease]) -> Lease:
        """Returns the lease of the get ahead. Without one, returns what `get` returns."""
        pending, self._pending = self._pending, None
        if pending is not None:
            try:
                with naming_cure():
                    return wait(pending)
            except embank.SelfBlocked:
                pass  # `got` ends the leases that block, if it can
        return got(get)

    def _places(self, lease: Lease, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        start = 0
        for part in self._parts:
            if _equal(part, keys):
                return lease.inverse[start : start + len(part)]
            start += len(part)
        if self._sorted is None:
            self._sorted = np.argsort(lease.keys)
        order = self._sorted
        places: NDArray[np.int64] = order[
            np.searchsorted(lease.keys, keys.view(np.uint64), sorter=order)
        ]
        return places

    def withdraw(self) -> None:
        """Cancels the get if no forward pass has used it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()

    def let_go(self) -> bool:
        """Ends the use of the rows. Returns whether they have taken no step after a forward pass: a
        graph of this pass keeps their lease.
        """
        self.withdraw()
        without_step = self._lease is not None and self._lease.held
        self._lease, self._leaf = None, None
        return without_step


_Hand = dict[Identity, _RowsAhead]


class Pipelined(Generic[Batch]):
    """Iterates over `loader`, and gets the rows of the next `depth` batches while the model
    computes.

    A thread of each bank takes the leases of coming batches and reads their rows from disk. The
    modules of `embank.torch` find their rows in the batch in hand: all modules over a table share
    one lease. A forward pass copies the rows, with the updates of all earlier batches. So in a run
    with one trainer, every depth gives the results of depth 0, if each output is part of the loss.
    They are equal bit for bit if a batch looks a table up once, with the keys as `keys` returns
    them. Otherwise the last digits differ: torch may pool bags in place of the store, and several
    passes over a table sum their gradients in another order.

    Each lease counts for the staleness bound from the get on. A table needs no bound, or one of at
    least `depth` - 1; with a bound of `depth` no get waits for a batch of this loader.

    Over the tables of a `ShardedBank`, all ranks use one depth, and a pass ends on all of them when
    the first one has no batch.

    `LookaheadLoader` announces rows further ahead than the bound allows. Use both as
    `Pipelined(LookaheadLoader(loader, keys), keys)`. `ResumableLoader(Pipelined(...))` resumes
    within a pass.

    If `loader` or `keys` fails, the earlier batches are handed out first. The end of the pass,
    `break` and exceptions end the thread and all leases. A batch takes one backward pass, or
    several with a `SparseOptimizer`. Forward passes after that get their rows themselves. The
    forward pass must run in the thread that iterates over this loader.

    Not every model can get ahead. A table with admission, and a module with `max_norm`, raise
    `ValueError` at a depth above 0.

    Args:
        loader: Any iterable of batches, also a `LookaheadLoader`. Each pass iterates over it again.
            It must not be a `ResumableLoader`: wrap this loader in the `ResumableLoader` instead.
        keys: A function that returns the keys of a batch by table, or by module over one table:
            tensors or arrays of integers, of any shape. It must return all keys that the training
            pass looks up in these tables. It runs in this process.
        depth: The number of batches to get ahead. 0 gets nothing ahead. Default: 1.

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("pipelined.bank", memory_budget="16MiB")
    >>> items = bank.table("item", dim=8, optimizer=embank.SGD(lr=0.1), staleness_bound=2)
    >>> model = embank.torch.Embedding(items)
    >>> batches = [torch.arange(3) + step for step in range(5)]
    >>> for batch in embank.torch.Pipelined(batches, lambda batch: {model: batch}, depth=2):
    ...     model(batch).sum().backward()
    >>> items.stats()["gets"], items.outstanding_leases()
    (5, [])
    >>> bank.close()
    """

    hands_out_rows = True
    """Tells a `LookaheadLoader` that it must not draw ahead from this loader."""

    def __init__(
        self,
        loader: Iterable[Batch],
        keys: Callable[[Batch], KeysByTable],
        depth: int = 1,
    ) -> None:
        if not depth >= 0:
            raise ValueError(f"depth must be 0 or more, not {depth}")
        if getattr(loader, "counts_batches", False):
            raise TypeError(
                "a Pipelined loader draws batches ahead, and a ResumableLoader in it would count them as trained: nest "
                "them as ResumableLoader(Pipelined(loader, keys))"
            )
        if getattr(loader, "hands_out_rows", False):
            raise TypeError("a Pipelined loader gets the rows of its batches: do not wrap it in another")
        self.loader = loader
        self.keys = keys
        self.depth = depth

    def __iter__(self) -> Iterator[Batch]:
        return self.announcing(iter(self.loader))

    def announcing(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """A pass over the remaining batches of an iteration of `loader`."""
        return source if self.depth == 0 else self._ahead(source)

    def __len__(self) -> int:
        """The number of batches of a pass. `TypeError` if the loader does not know it."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no len()")
        return len(self.loader)

    def _ahead(self, source: Iterator[Batch]) -> Iterator[Batch]:
        this_pass: _Pass[Batch] = _Pass(source, self.keys, self.depth)
        # The list of this thread: another thread may close this generator.
        passes = in_hand.passes()
        passes.append(this_pass)
        try:
            while this_pass.hand_out():
                yield this_pass.batch
        except BaseException:
            # The pass was left early. The exception in `failure` refers to this frame, and so would
            # keep the source alive.
            this_pass.failure = None
            raise
        finally:
            passes.remove(this_pass)
            this_pass.end()
        failure, this_pass.failure = this_pass.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure


class _Pass(Generic[Batch]):
    """A pass over the batches of a loader."""

    batch: Batch
    """The batch that was handed out last."""

    def __init__(
        self, source: Iterator[Batch], keys: Callable[[Batch], object], depth: int
    ) -> None:
        self._source = source
        self._keys = keys
        self._depth = depth
        self._queues: dict[Bank, Queue] = {}
        self._coming: deque[tuple[Batch, _Hand]] = deque()
        self.in_hand: list[_Hand] = []
        self._drained = False
        self.failure: Optional[Exception] = None
        """The error that ended the pass. It is raised after the batches before it have been handed
        out.
        """

    def hand_out(self) -> bool:
        """Draws batches and asks for their rows. Hands the next batch out, if there is one."""
        # Over shards, each draw tells the owners which leases were dropped. A rank that skipped its
        # backward pass must have dropped them by then, because the others have handed gradients
        # over.
        used = [of for of in self.in_hand if _used(of)]
        self.in_hand = [of for of in self.in_hand if not _used(of)]
        for of in used:
            _let_go(of)
        # What was withdrawn comes before the gets of later batches.
        for hand in self._hands():
            if not _used(hand):
                try:
                    self._ask(hand)
                except _OfAllRanks as of_all:
                    raise of_all.error from None
        while not self._drained and len(self._coming) <= self._depth:
            self._draw()
        if not self._coming:
            return False
        self.batch, hand = self._coming.popleft()
        for of in self.in_hand[: -(_HANDED_OUT_MAX - 1)]:
            _let_go(of)
        self.in_hand = [*self.in_hand[-(_HANDED_OUT_MAX - 1) :], hand]
        return True

    def _draw(self) -> None:
        """Draws a batch and asks for its rows."""
        try:
            batch = next(self._source)
        except StopIteration:
            self._drained = True
            self._tell_end()
            return
        except Exception as error:
            self._drained, self.failure = True, error
            self._tell_end()
            return
        try:
            drawn = self._hand(batch)
        except _OfAllRanks as of_all:
            self._drained, self.failure = True, of_all.error
            return
        except Exception as error:
            if any(queue.bank.closed for queue in self._queues_of_ranks()):
                # No batch has rows any more, so there is none to hand out before.
                raise
            self._drained, self.failure = True, error
            self._tell_end()
            return
        if drawn is None:
            self._drained = True
        else:
            self._coming.append((batch, drawn))

    def begin(self, batch: in_hand.Batch) -> None:
        if not any(of is batch for of in self.in_hand):
            return
        while self.in_hand[0] is not batch and not _used(self.in_hand[0]):
            _let_go(self.in_hand.pop(0))

    def withdraw(self) -> None:
        for of in self._hands():
            for rows in of.values():
                rows.withdraw()
        self._close_queues()

    def end(self) -> None:
        for of in self._hands():
            _let_go(of)
        self.in_hand = []
        self._close_queues()

    def _hands(self) -> list[_Hand]:
        return [*self.in_hand, *(hand for _, hand in self._coming)]

    def _close_queues(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()

    def _tell_end(self) -> None:
        """Tells other ranks that this one has no further batch, if the tables are sharded."""
        try:
            self._on_all_ranks(lambda queue: queue.end())
        except _OfAllRanks as of_all:
            self.failure = self.failure or of_all.error

    def _hand(self, batch: Batch) -> Optional[_Hand]:
        """Asks for the rows of a batch. None if the tables are sharded, and another rank has no
        further batch.
        """
        by_table: dict[Identity, tuple[Table, list[NDArray[np.int64]]]] = {}
        for table, keys in keys_by_table(self._keys(batch)):
            # Copied, because the function `keys` may use its memory again for the next batch.
            by_table.setdefault(identity(table), (table, []))[1].append(keys.astype(np.int64))
        names = sorted(by_table, key=lambda at: (str(by_table[at][0].bank.path), at[1]))
        hand = {at: _RowsAhead(*by_table[at]) for at in names}
        try:
            asked = self._ask(hand)
        except BaseException:
            _let_go(hand)
            raise
        return hand if asked else None

    def _ask(self, hand: _Hand) -> bool:
        """Returns False if another rank has no further batch."""
        for rows in hand.values():
            self._check(rows.table)
            queue = self._queues.get(rows.table.bank)
            if queue is None:
                queue = self._queues[rows.table.bank] = rows.table.bank.ahead_queue()
            rows.ask(queue)
        return all(self._on_all_ranks(lambda queue: queue.send()))

    def _queues_of_ranks(self) -> list[ShardedQueue]:
        queues = self._queues.values()
        return [queue for queue in queues if not isinstance(queue, embank.AheadQueue)]

    def _on_all_ranks(self, call: Callable[[ShardedQueue], Result]) -> list[Result]:
        """Calls `call` with the queue of each sharded bank.

        Raises:
            _OfAllRanks: All ranks raise the error. So no rank has to tell the others.
        """
        found = []
        for queue in self._queues_of_ranks():
            try:
                found.append(call(queue))
            except Exception as error:
                if queue.bank.closed:
                    raise
                raise _OfAllRanks(error) from None
        return found

    def _check(self, table: Table) -> None:
        bound = table.staleness_bound
        if bound is not None and self._depth > bound + 1:
            raise ValueError(
                f"depth is {self._depth}, and table {table.name!r} has a staleness_bound of {bound}: more than {bound + 1} "
                "batches ahead would only wait for each other; use a smaller depth or a larger bound"
            )
        if not table.admits_all:
            raise ValueError(
                f"table {table.name!r} has admission, which counts the gets of a key: a run that resumes would count the "
                "gets of batches ahead twice; use Pipelined(..., depth=0)"
            )


class _OfAllRanks(Exception):
    """Wraps an error that every rank raises at this place."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _equal(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    return len(one) == len(other) and bool((one == other).all())


def _used(hand: _Hand) -> bool:
    return any(rows.used for rows in hand.values())


def _let_go(hand: _Hand) -> None:
    without_step = [rows.let_go() for rows in hand.values()]
    if any(without_step):
        # The backward pass may have failed, and later gets would wait for the leases of its graph.
        free_failed_graphs()
