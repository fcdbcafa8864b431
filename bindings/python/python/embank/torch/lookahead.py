"""A data loader that tells the store what comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar, Union

import numpy as np
import torch
from numpy.typing import NDArray

from .leaf import as_keys

if TYPE_CHECKING:
    from embank import Table

Batch = TypeVar("Batch")
Keys = Union[torch.Tensor, NDArray[Any]]


class LookaheadLoader(Generic[Batch]):
    """Iterates over `loader` and announces the keys of the next `depth` batches to their tables.

    When a batch is handed out, the keys of the `depth` batches after it have been announced with
    `Table.lookahead`, which moves their rows from disk to memory in the background while the model
    computes. The first batch of a pass is wanted at once and is not announced. The loader's
    order is kept, and `depth` batches beside the one in use are held in memory.

    A depth too small leaves rows late (`bank.stats()["lookahead"]["late"]`); one too large fills
    the queue (`"dropped"`) or has rows evicted before their use (`"wasted"`).

    Args:
        loader: Any iterable of batches: a `DataLoader` (its workers included), a list. It is
            iterated anew on every pass.
        keys: The keys that a batch will ask for, by table: tensors or arrays of integers, of any
            shape. It runs in this process.
        depth: Batches to look ahead, 4 by default; 0 announces nothing.

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
        depth: int = 4,
    ) -> None:
        if depth < 0:
            raise ValueError(f"depth must be 0 or more, not {depth}")
        self.loader = loader
        self.keys = keys
        self.depth = depth

    def __iter__(self) -> Iterator[Batch]:
        ahead: deque[Batch] = deque()
        for number, batch in enumerate(self.loader):
            if number > 0 and self.depth > 0:
                self._announce(batch)
            ahead.append(batch)
            if len(ahead) > self.depth:
                yield ahead.popleft()
        while ahead:
            yield ahead.popleft()

    def __len__(self) -> int:
        """Batches in a pass; `TypeError` where the loader does not know."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no len()")
        return len(self.loader)

    def _announce(self, batch: Batch) -> None:
        for table, keys in self.keys(batch).items():
            if isinstance(keys, torch.Tensor):
                table.lookahead(as_keys(keys))
            else:
                table.lookahead(np.asarray(keys).reshape(-1))
