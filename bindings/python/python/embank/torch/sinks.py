"""The registry of tables that have a `SparseOptimizer`.

A table has one optimizer state for each row and one learning rate, so at most one optimizer steps
it. Every module over the table looks here in its forward and backward pass, also a module that was
made before the optimizer.

An entry is removed when the optimizer gives the table back or is garbage collected: the registry's
reference to it is weak. An optimizer keeps its tables, and so their banks, alive. Therefore an
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
    from .many import AnyLease as Lease, AnyTable as Table

Identity = tuple[int, str]


class Awaited(Protocol):
    """Stands for the gradient of a lease's rows, which a later backward pass will provide."""

    lease: Lease


class Sink(Protocol):
    """An object that keeps the gradients of a table until its step."""

    def collect(
        self,
        table: Table,
        lease: Lease,
        keys: NDArray[np.uint64],
        rows: Tensor,
        gradient: Tensor,
    ) -> None:
        """Takes a gradient: distinct keys `(u,)` of the lease, their rows and the gradient, both
        `(u, dim)`.
        """

    def check_bound(self, table: Table, keys: NDArray[np.int64]) -> None:
        """Raises an error if a get of `keys` would wait for leases that only the caller can end."""

    def leased(self, table: Table, awaited: Awaited) -> None:
        """Records a lease whose gradient will come. The reference to `awaited` must be weak."""


_sink_of: weakref.WeakValueDictionary[Identity, Sink] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def identity(table: Table) -> Identity:
    """Returns a value that is equal for two objects of one table while one of them exists."""
    return id(table.bank), table.name


def sink_of(table: Table) -> Optional[Sink]:
    """Returns the sink that has the table, or None."""
    return _sink_of.get(identity(table))


def take_over(sink: Sink, tables: Iterable[Table], watched: Iterable[Table]) -> None:
    """Assigns all `tables` to `sink`, or no table if it fails.

    `watched` are tables without an optimizer, whose gradients `sink` refuses. Several sinks may
    watch a table; the first of them is asked.

    Raises:
        ValueError: Another sink has a table.
    """
    tables, watched = list(tables), list(watched)
    if any(sink_of(table) is not None for table in tables):
        # A learning rate schedule and its optimizer refer to each other. After the program has
        # dropped both, only the garbage collector frees them.
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
    """Removes every table of `sink`."""
    with _lock:
        for at, of in list(_sink_of.items()):
            if of is sink:
                del _sink_of[at]
