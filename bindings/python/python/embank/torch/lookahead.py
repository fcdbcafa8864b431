"""A data loader that tells the store what comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, Generic, Literal, TypeVar, Union

import numpy as np
import torch
from numpy.typing import NDArray

from embank import AutoDepth

from .leaf import as_keys

Batch = TypeVar("Batch")

if TYPE_CHECKING:
    from embank import Bank, Table

    _Announced = tuple[Table, NDArray[Any]]
    _Ahead = deque[tuple[Batch, list[_Announced]]]

Keys = Union[torch.Tensor, NDArray[Any]]

_TOGETHER = 3
"""Batches whose keys are announced with one call: the more rows are read together, the nearer they lie to
each other, and the more come with one read (measured with one to four: docs/benchmarks.md)."""


class LookaheadLoader(Generic[Batch]):
    """Iterates over `loader` and announces the keys of the next batches to their tables.

    When a batch is handed out, the keys of at least `depth` batches after it have been announced with
    `Table.lookahead`, which moves their rows from disk to memory in the background while the model
    computes, and keeps them there until they are used. From a depth of 2 on, three batches are announced
    together, which takes fewer reads; so up to `depth` + 2 batches are ahead. The first batch of a pass
    is wanted at once and is not announced. The loader's order and batches are kept, pinned memory too,
    and what is ahead is held in memory. When a pass is given up, by `break` or an exception,
    what was announced and not handed out is cancelled.

    By default the depth follows what reading and computing take (`embank.AutoDepth`);
    `bank.stats()["lookahead"]["depth"]` shows it. A fixed depth that is too small leaves rows late
    (`"late"` there); one too large fills the queue (`"dropped"`) or has rows evicted before their use
    (`"wasted"`).

    Args:
        loader: Any iterable of batches: a `DataLoader` (its workers included), a list. It is
            iterated anew on every pass.
        keys: The keys that a batch will ask for, by table: tensors or arrays of integers, of any
            shape. It runs in this process.
        depth: Batches to look ahead at least, or "auto", the default; 0 announces nothing.

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
        keys: Callable[[Batch], Mapping[Table, Keys]],
        depth: Union[int, Literal["auto"]] = "auto",
    ) -> None:
        if isinstance(depth, str):
            if depth != "auto":
                raise ValueError(f'depth must be a number or "auto", not {depth!r}')
        elif depth < 0:
            raise ValueError(f"depth must be 0 or more, not {depth}")
        self.loader = loader
        self.keys = keys
        self.depth = depth
        self._paces: dict[Bank, AutoDepth] = {}

    def __iter__(self) -> Iterator[Batch]:
        return self.announcing(iter(self.loader))

    def announcing(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """A pass over what is left of an iteration of `loader`."""
        ahead: _Ahead[Batch] = deque()
        first, drained = True, False
        try:
            while True:
                depth = self._next_depth()
                while not drained and len(ahead) <= depth:
                    # The first is wanted at once.
                    announces = depth > 0 and not first
                    together = _TOGETHER if announces and depth > 1 else 1
                    drained = self._draw(source, ahead, together, announces) < together
                    first = False
                if not ahead:
                    return
                yield ahead.popleft()[0]
        finally:
            for _, announced in ahead:
                for table, keys in announced:
                    if not table.bank.closed:
                        table.cancel_lookahead(keys)

    def __len__(self) -> int:
        """Batches in a pass; `TypeError` where the loader does not know."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no len()")
        return len(self.loader)

    def _next_depth(self) -> int:
        """How many batches to have announced beside the one that is handed out next."""
        if not isinstance(self.depth, str):
            return self.depth
        # Before the first batch nobody knows the tables.
        return max((pace.step() for pace in self._paces.values()), default=1)

    def _draw(
        self, source: Iterator[Batch], ahead: _Ahead[Batch], together: int, announces: bool
    ) -> int:
        """Adds up to `together` batches to those ahead; returns how many there were."""
        batches = list(islice(source, together))
        announced: list[list[_Announced]] = [[] for _ in batches]
        # First, so that what is announced is cancelled if the rest can't be.
        ahead.extend(zip(batches, announced))
        if announces:
            self._announce(batches, announced)
        return len(batches)

    def _announce(self, batches: list[Batch], announced: list[list[_Announced]]) -> None:
        """Announces the batches together, and adds what was announced of each to its list."""
        by_table: dict[
            tuple[Table, np.dtype[Any]], list[tuple[list[_Announced], NDArray[Any]]]
        ] = {}
        for batch, its_own in zip(batches, announced):
            for table, keys in self.keys(batch).items():
                if isinstance(keys, torch.Tensor):
                    flat: NDArray[Any] = as_keys(keys)
                else:
                    flat = np.asarray(keys).reshape(-1)
                # Integers of different types would become floats.
                by_table.setdefault((table, flat.dtype), []).append((its_own, flat))
        for (table, _), parts in by_table.items():
            table.lookahead(np.concatenate([flat for _, flat in parts]))
            # Not before: what can't be announced can't be cancelled either.
            for its_own, flat in parts:
                its_own.append((table, flat))
            if self.depth == "auto" and table.bank not in self._paces:
                self._paces[table.bank] = AutoDepth(table.bank)
