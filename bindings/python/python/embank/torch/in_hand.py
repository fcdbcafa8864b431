"""The batches in hand: batches whose rows a `Pipelined` loader got ahead of their forward pass.

A module over a table looks here in a training pass. If its thread has a batch in hand whose rows of
the table wait for their step, the module takes these rows and makes no get of its own.

A framework may draw a batch before it trains the one before (Lightning and Accelerate look one
batch ahead, to know the last one). So several batches may be in hand. A forward pass belongs to the
first of them that has its keys and has not taken its step. A pass that has ended has no batch in
hand. If a framework has drawn the end of the pass before it trains the last batch, the modules make
gets of their own for this batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .sinks import Identity, identity

if TYPE_CHECKING:
    from .many import AnyLease as Lease, AnyTable as Table

    from .bags import BagRequest


class RowsInHand(Protocol):
    """The rows of one table that a batch needs."""

    @property
    def waits(self) -> bool:
        """Whether the rows wait for their backward pass, or for the step of their optimizer."""

    def equals(self, keys: NDArray[np.int64]) -> bool:
        """Whether `keys` were announced, as they are."""

    def lacks(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `keys` that were not announced."""

    def pools(self, keys: NDArray[np.int64]) -> bool:
        """Whether the table can pool bags of `keys`: no forward pass has used the rows, and `keys`
        are all keys of the table that were announced, in their order."""

    def bags(self, request: BagRequest) -> Lease:
        """The lease on all rows, with the bags of the request. Must be called only for keys that
        the table `pools`."""

    def rows(
        self, keys: NDArray[np.int64], device: torch.device
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """The leaf with the rows on `device`, and for each key its place in them."""


Batch = Mapping[Identity, RowsInHand]


class Pass(Protocol):
    """A pass of a `Pipelined` loader."""

    @property
    def in_hand(self) -> Sequence[Batch]:
        """The batches that were handed out, the oldest first."""

    def begin(self, batch: Batch) -> None:
        """Records that a forward pass uses this batch. Earlier batches that no forward pass has
        used were skipped."""

    def withdraw(self) -> None:
        """Cancels the gets ahead. When the call returns, no thread makes gets for this pass."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.passes: list[Pass] = []


_of_thread = _OfThread()


def passes() -> list[Pass]:
    """The passes of `Pipelined` loaders that this thread has begun and not ended."""
    return _of_thread.passes


def _waiting(table: Table) -> Iterator[tuple[Pass, Batch, RowsInHand]]:
    at = identity(table)
    for of in passes():
        for batch in of.in_hand:
            if at in batch and batch[at].waits:
                yield of, batch, batch[at]


def has(table: Table) -> bool:
    """Whether a batch in hand has rows of the table that wait for their step."""
    return any(True for _ in _waiting(table))


def find(table: Table, keys: NDArray[np.int64]) -> RowsInHand:
    """Returns the rows in hand that have all `keys`. Must be called only for a table that `has`.

    Raises:
        ValueError: A key was not announced.
    """
    waiting = list(_waiting(table))
    # A batch with equal keys comes first. Another batch may have these keys among others.
    for of, batch, rows in waiting:
        if rows.equals(keys):
            of.begin(batch)
            return rows
    for of, batch, rows in waiting:
        lacks = rows.lacks(keys)
        if len(lacks) == 0:
            of.begin(batch)
            return rows
    raise ValueError(
        f"key {int(lacks[0]) % 2**64} of table {table.name!r} was not announced for this batch: the function keys of "
        "Pipelined must return all keys of the table that the model looks up before the batch takes its step"
    )
