"""Which `SparseOptimizer` has a table.

A table has one optimizer state a row and one learning rate, so at most one optimizer steps it.
Every module over the table, made before or after the optimizer, asks here at its forward and its
backward pass.

An entry goes when the optimizer gives the table back, or when the optimizer is collected: the
registry refers to it weakly. An optimizer keeps its tables, and so their banks, alive. Therefore an
entry never outlives the bank whose `id` is in its key.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Optional, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from embank import DistinctLease, Table

    from .leaf import AnyLease

Identity = tuple[int, str]


class Awaited(Protocol):
    """The gradient of a lease's rows, which is to come in a backward pass."""

    lease: DistinctLease


class Sink(Protocol):
    """Keeps the gradients of a table until its step."""

    def collect(self, table: Table, lease: AnyLease, rows: Tensor, gradient: Tensor) -> None:
        """Takes the gradient of a lease's rows; both have the shape `(u, dim)`."""

    def check_bound(self, table: Table, keys: NDArray[np.int64]) -> None:
        """Raises where a get of `keys` would wait for leases that only the caller can end."""

    def leased(self, table: Table, awaited: Awaited) -> None:
        """Notes a lease whose gradient is to come. Must refer to `awaited` weakly."""


_sink_of: weakref.WeakValueDictionary[Identity, Sink] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def identity(table: Table) -> Identity:
    """Equal for two objects of one table, as long as one of them is there."""
    return id(table.bank), table.name


def sink_of(table: Table) -> Optional[Sink]:
    """The sink that has the table, or None."""
    return _sink_of.get(identity(table))


def take_over(sink: Sink, tables: Iterable[Table], watched: Iterable[Table]) -> None:
    """Gives `tables` to `sink`, all or none.

    `watched` are tables without an optimizer: `sink` refuses their gradients. Several sinks may
    watch one; the first is asked.

    Raises:
        ValueError: Another sink has a table.
    """
    tables, watched = list(tables), list(watched)
    if any(sink_of(table) is not None for table in tables):
        # A schedule and its optimizer refer to each other. If both are discarded, they wait for the
        # collector.
        gc.collect()
    with _lock:
        for table in tables:
            if identity(table) in _sink_of:
                raise ValueError(
                    f"table {table.name!r} of {table.bank.path} has a SparseOptimizer already: give all modules over "
                    "the table to one SparseOptimizer, or call detach() of the other one first"
                )
        for table in tables:
            _sink_of[identity(table)] = sink
        for table in watched:
            _sink_of.setdefault(identity(table), sink)


def give_back(sink: Sink) -> None:
    """Takes every table from `sink`."""
    with _lock:
        for at, of in list(_sink_of.items()):
            if of is sink:
                del _sink_of[at]
