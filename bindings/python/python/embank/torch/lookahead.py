"""A data loader that announces the keys of its next batches to the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, Callable, Generic, Literal, Optional, TypeVar, Union

import numpy as np
import torch
from numpy.typing import NDArray

from embank import AutoDepth

from .keys import as_keys, padding_key

Batch = TypeVar("Batch")

if TYPE_CHECKING:
    from embank import Bank, Table

    _Announced = tuple[Table, NDArray[Any]]

Keys = Union[torch.Tensor, NDArray[Any]]
# By table, or by module over one table. `Mapping` is invariant in its keys, so it has `Any` here.
KeysByTable = Mapping[Any, Keys]

_TOGETHER = 3
"""The number of batches whose keys the loader announces with one call. Rows of more batches lie
nearer to each other on disk, so one read brings more of them (docs/benchmarks.md compares one to
four batches).
"""


class _Ahead(Generic[Batch]):
    """The batches of a pass that were drawn from the loader and not handed out yet."""

    def __init__(self, source: Iterator[Batch]) -> None:
        self.source = source
        self.batches: deque[tuple[Batch, list[_Announced]]] = deque()
        self.waiting: list[tuple[list[_Announced], list[_Announced]]] = []
        """Of the last batches: the keys that are not announced yet, and the list to which the keys
        are added when they are announced.
        """
        self.drained = False
        self.failure: Optional[Exception] = None
        """The error that ended the pass. It is raised after the batches before it have been handed
        out.
        """

    @property
    def announced(self) -> int:
        return len(self.batches) - len(self.waiting)

    def draw(self, keys: Optional[Callable[[Batch], KeysByTable]]) -> None:
        """Adds a batch. If the function `keys` is given, the keys of the batch wait for the next
        announcement.
        """
        try:
            batch = next(self.source)
        except StopIteration:
            self.drained = True
            return
        announced: list[_Announced] = []
        if keys is not None:
            # Copied, because the function `keys` may use its memory again for the next batch.
            of_batch = [(table, of.copy()) for table, of in keys_by_table(keys(batch))]
            self.waiting.append((of_batch, announced))
        self.batches.append((batch, announced))

    def announce(self) -> set[Table]:
        """Announces the waiting keys, with one call for each table. Returns the tables."""
        waiting, self.waiting = self.waiting, []
        by_table: dict[
            tuple[Table, np.dtype[Any]], list[tuple[NDArray[Any], list[_Announced]]]
        ] = {}
        for of_batch, announced in waiting:
            for table, keys in of_batch:
                # NumPy would join integers of different types to floats.
                by_table.setdefault((table, keys.dtype), []).append((keys, announced))
        for (table, _), parts in by_table.items():
            table.lookahead(np.concatenate([keys for keys, _ in parts]))
            # Added after the announcement: only announced keys must be cancelled if the pass ends
            # early.
            for keys, announced in parts:
                announced.append((table, keys))
        return {table for table, _ in by_table}

    def cancel(self) -> None:
        for _, announced in self.batches:
            for table, keys in announced:
                if not table.bank.closed:
                    table.cancel_lookahead(keys)


def keys_by_table(found: object) -> list[tuple[Table, NDArray[Any]]]:
    """Returns the pairs of table and keys in a result of the function `keys`. Leaves out the key of
    the padding of a module.

    Raises:
        TypeError: It is not `{table: keys}` or `{module over one table: keys}`.
    """
    cure = "must return {table: keys} or {module: keys}, with an embank.Table or a module over one table"
    if not isinstance(found, Mapping):
        raise TypeError(f"the function keys {cure}, not {type(found).__name__}")
    pairs = []
    for of, keys in found.items():
        table: Any = getattr(of, "table", of)
        if not hasattr(table, "lookahead"):
            raise TypeError(f"the function keys {cure}, not {of!r}")
        flat = flat_keys(keys)
        padding = padding_key(getattr(of, "padding_idx", None))
        if padding is not None:
            flat = flat[flat.astype(np.int64) != padding]
        pairs.append((table, flat))
    return pairs


def flat_keys(keys: Keys) -> NDArray[Any]:
    """Returns keys that a function `keys` has returned as a 1-D array of integers."""
    if isinstance(keys, torch.Tensor):
        return as_keys(keys)
    flat = np.asarray(keys).reshape(-1)
    if flat.size == 0:
        return flat.astype(np.int64)
    if flat.dtype.kind not in "iu":
        raise TypeError(f"keys must be integers, not {flat.dtype}")
    return flat


class LookaheadLoader(Generic[Batch]):
    """Iterates over `loader` and announces the keys of the next batches to their tables.

    Before a batch is handed out, `Table.lookahead` has announced the keys of at least the next
    `depth` batches. The store moves their rows from disk to memory while the model computes, and
    keeps them there until they are used. From a depth of 2 on, the loader announces three batches
    together, which takes fewer reads. So it holds up to `depth` + 2 batches in memory. At a
    constant depth it draws one batch a step. The first batch of a pass is not announced, because it
    is needed at once. This loader changes neither the batches of `loader` nor their order. Batches
    in pinned memory stay there.

    If `loader` or `keys` fails, the earlier batches are handed out first. A failure of
    `Table.lookahead` is raised at once. If `break` or an exception ends a pass early, the loader
    cancels the announced batches.

    By default the depth is 4. It is less if the queue or a third of the row memory has no room for
    the rows of 4 batches, and 2 while rows are dropped or wasted (`embank.AutoDepth`).
    `bank.stats()["lookahead"]["depth"]` shows it. With tables of several banks, the largest depth
    counts for all. If a fixed depth is too small, rows come late (`"late"` there). If it is too
    large, it fills the queue (`"dropped"`), or rows are evicted before their use (`"wasted"`).

    Args:
        loader: Any iterable of batches: a `DataLoader`, also with workers, or a list. Each pass
            iterates over it again. It must not be a `ResumableLoader`: wrap this loader in the
            `ResumableLoader` instead.
        keys: A function that returns the keys of a batch by table, or by module over one table:
            tensors or arrays of integers, of any shape. It runs in this process.
        depth: The least number of batches to announce ahead; 0 announces nothing. Default: "auto".

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("loader.bank", memory_budget="16MiB")
    >>> items = bank.table("item", dim=8)
    >>> batches = [torch.arange(3) + step for step in range(5)]
    >>> loader = embank.torch.LookaheadLoader(batches, lambda batch: {items: batch}, depth=2)
    >>> len(loader), [int(batch[0]) for batch in loader]
    (5, [0, 1, 2, 3, 4])
    >>> bank.stats()["lookahead"]["requested"]
    8
    >>> bank.close()
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        keys: Callable[[Batch], KeysByTable],
        depth: Union[int, Literal["auto"]] = "auto",
    ) -> None:
        if isinstance(depth, str):
            if depth != "auto":
                raise ValueError(f'depth must be a number or "auto", not {depth!r}')
        elif depth < 0:
            raise ValueError(f"depth must be 0 or more, not {depth}")
        if getattr(loader, "counts_batches", False):
            raise TypeError(
                "a LookaheadLoader draws batches ahead, and a ResumableLoader in it would count them as trained: nest "
                "them as ResumableLoader(LookaheadLoader(loader, keys))"
            )
        if getattr(loader, "hands_out_rows", False):
            raise TypeError(
                "a LookaheadLoader draws batches ahead, and a Pipelined loader in it would get their rows too early: nest "
                "them as Pipelined(LookaheadLoader(loader, keys), keys)"
            )
        self.loader = loader
        self.keys = keys
        self.depth = depth
        self._paces: dict[Bank, AutoDepth] = {}

    def __iter__(self) -> Iterator[Batch]:
        return self.announcing(iter(self.loader))

    def announcing(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """A pass over the remaining batches of an iteration of `loader`."""
        # Drops closed banks: a table may belong to another `Bank` now, if its bank was opened
        # again.
        self._paces = {bank: pace for bank, pace in self._paces.items() if not bank.closed}
        for pace in self._paces.values():
            pace.begin_pass()
        ahead = _Ahead(source)
        # The first batch is needed at once, so its keys are not announced.
        keys = None
        try:
            while True:
                depth = self._next_depth()
                together = _TOGETHER if depth > 1 else 1
                # `together` covers the batch that is handed out next, besides the `depth` batches
                # after it.
                while not ahead.drained and len(ahead.batches) < depth + together:
                    try:
                        ahead.draw(keys)
                    except Exception as error:
                        ahead.drained, ahead.failure = True, error
                    keys = self.keys if depth > 0 else None
                    if len(ahead.waiting) >= together:
                        self._announce(ahead)
                # Announces fewer than `together` batches in two cases: at the end of the pass, and
                # after the depth has grown.
                if ahead.drained or ahead.announced <= depth:
                    self._announce(ahead)
                if not ahead.batches:
                    break
                yield ahead.batches.popleft()[0]
        except BaseException:
            # The pass was left early. The exception in `ahead.failure` refers to this frame, and so
            # would keep the source alive.
            ahead.failure = None
            raise
        finally:
            ahead.cancel()
        failure, ahead.failure = ahead.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure

    def __len__(self) -> int:
        """The number of batches of a pass. `TypeError` if the loader does not know it."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no len()")
        return len(self.loader)

    def _next_depth(self) -> int:
        """The number of batches to announce ahead of the batch that is handed out next."""
        if not isinstance(self.depth, str):
            return self.depth
        # Before the first batch the tables are unknown, and the depth is 1.
        return max((pace.step() for pace in self._paces.values()), default=1)

    def _announce(self, ahead: _Ahead[Batch]) -> None:
        for table in ahead.announce():
            if self.depth == "auto" and table.bank not in self._paces:
                self._paces[table.bank] = AutoDepth(table.bank, together=_TOGETHER)
