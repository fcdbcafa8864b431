"""The batches in hand: batches whose rows a `Pipelined` loader got ahead of their forward pass.

A module over a table looks here in a training pass. If its thread has a batch in hand with rows of
the table, the module takes these rows and makes no get of its own.

A framework may draw a batch before it trains the one before (Lightning and Accelerate look one
batch ahead, to know the last one). So several batches may be in hand. A forward pass belongs to the
first of them that has its keys and has not taken its step. A pass that has ended has no batch in
hand. If a framework has drawn the end of the pass before it trains the last batch, the modules make
gets of their own for this batch.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .sinks import Identity, identity

if TYPE_CHECKING:
    from embank import Table


class RowsInHand(Protocol):
    """The rows of one table that a batch needs."""

    @property
    def waits(self) -> bool:
        """Whether the rows wait for their backward pass, or for the step of their optimizer."""

    def equals(self, keys: NDArray[np.int64]) -> bool:
        """Whether `keys` were announced, as they are."""

    def lacks(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `keys` that were not announced."""

    def rows(
        self, keys: NDArray[np.int64], device: torch.device
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """The leaf with the rows on `device`, and for each key its place in them."""


Batch = Mapping[Identity, RowsInHand]


class Pass(Protocol):
    """A pass of a `Pipelined` loader."""

    def withdraw(self) -> None:
        """Cancels the gets ahead. Later forward passes over their batches get the rows themselves.
        When the call returns, no thread makes gets for this pass."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.passes: list[Pass] = []


_of_thread = _OfThread()


def batches() -> list[Batch]:
    """The batches in hand of this thread, the oldest first."""
    return _of_thread.batches


def passes() -> list[Pass]:
    """The passes of `Pipelined` loaders that this thread has begun and not ended."""
    return _of_thread.passes


def has(table: Table) -> bool:
    """Whether a batch in hand has rows of the table."""
    return any(identity(table) in batch for batch in batches())


def find(table: Table, keys: NDArray[np.int64]) -> RowsInHand:
    """Returns the rows in hand that have all `keys`. Must be called only for a table that `has`.

    Raises:
        ValueError: A key was not announced, or the batch has taken its step.
    """
    in_hand = [batch[identity(table)] for batch in batches() if identity(table) in batch]
    waiting = [of for of in in_hand if of.waits]
    for of in waiting:
        if of.equals(keys):
            return of
    lacking = [of.lacks(keys) for of in waiting]
    for of, lacks in zip(waiting, lacking):
        if len(lacks) == 0:
            return of
    if not lacking:
        raise ValueError(
            f"the rows of table {table.name!r} that were got ahead for this batch have taken their step: a batch takes "
            "one backward pass, for all its forward passes; make a SparseOptimizer, whose step() takes the sum of "
            "several backward passes, or use Pipelined(..., depth=0)"
        )
    raise ValueError(
        f"key {int(lacking[-1][0])} of table {table.name!r} was not announced for this batch: the function keys of "
        "Pipelined must return all keys of the table that the model looks up"
    )
