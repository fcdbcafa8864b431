"""A data loader that tells the store what comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, Callable, Generic, Literal, TypeVar, Union

import numpy as np
import torch
from numpy.typing import NDArray

from embank import AutoDepth

from .leaf import as_keys

if TYPE_CHECKING:
    from embank import Bank, Table

    _Announced = tuple[Table, NDArray[Any]]

Batch = TypeVar("Batch")
Keys = Union[torch.Tensor, NDArray[Any]]


class LookaheadLoader(Generic[Batch]):
    """Iterates over `loader` and announces the keys of the next batches to their tables.

    When a batch is handed out, the keys of the `depth` batches after it have been announced with
    `Table.lookahead`, which moves their rows from disk to memory in the background while the model
    computes, and keeps them there until they are used. The first batch of a pass is wanted at once and
    is not announced. The loader's order and batches are kept, pinned memory too, and `depth` batches
    beside the one in use are held in memory. When a pass is given up, by `break` or an exception, what
    was announced and not handed out is cancelled.

    By default the depth follows what reading and computing take (`embank.AutoDepth`);
    `bank.stats()["lookahead"]["depth"]` shows it. A fixed depth that is too small leaves rows late
    (`"late"` there); one too large fills the queue (`"dropped"`) or has rows evicted before their use
    (`"wasted"`).

    Args:
        loader: Any iterable of batches: a `DataLoader` (its workers included), a list. It is
            iterated anew on every pass.
        keys: The keys that a batch will ask for, by table: tensors or arrays of integers, of any
            shape. It runs in this process.
        depth: Batches to look ahead, or "auto", the default; 0 announces nothing.

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("loader.bank", memory_budget="16MiB")
    >>> items = bank.table("item", dim=8)
    >>> batches = [torch.arange(3) + step for step in range(5)]
    >>> loader = embank.torch.LookaheadLoader(batches, lambda batch: {items: batch}, depth=2)
    >>> len(loader), [int(batch[0]) for batch in loader]
    (5, [0, 1, 2, 3, 4])
    >>> bank.stats()["lookahead"]["requested"]
    12
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
        ahead: deque[tuple[Batch, list[_Announced]]] = deque()
        first, drained = True, False
        try:
            while True:
                depth = self._next_depth()
                while not drained and len(ahead) <= depth:
                    try:
                        batch = next(source)
                    except StopIteration:
                        drained = True
                        break
                    announced = [] if first or depth == 0 else self._announce(batch)
                    ahead.append((batch, announced))
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

    def _announce(self, batch: Batch) -> list[_Announced]:
        announced: list[_Announced] = []
        for table, keys in self.keys(batch).items():
            if isinstance(keys, torch.Tensor):
                flat: NDArray[Any] = as_keys(keys)
            else:
                flat = np.asarray(keys).reshape(-1)
            table.lookahead(flat)
            announced.append((table, flat))
            if self.depth == "auto" and table.bank not in self._paces:
                self._paces[table.bank] = AutoDepth(table.bank)
        return announced
