"""Calls on several tables of one bank, which may be a `ShardedBank`.

`embank.torch.distributed` is imported by programs that use it, so nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

import embank

if TYPE_CHECKING:
    from embank import Bank, Lease, Table

    from .distributed import ShardedBank, ShardedLease, ShardedTable

    AnyBank = Union[Bank, ShardedBank]
    AnyTable = Union[Table, ShardedTable]
    AnyLease = Union[Lease, ShardedLease]


def is_sharded(table: AnyTable) -> bool:
    """Whether the rows of the table are spread over ranks (`ShardedTable`). Other classes, such as
    tables of another store, count as tables of one process.
    """
    return getattr(table, "is_sharded", False) is True


def get_many(
    requests: Sequence[tuple[AnyTable, NDArray[np.int64]]],
    *,
    earlier: Sequence[Optional[NDArray[np.uint64]]],
) -> list[AnyLease]:
    """`embank.get_many`, or one exchange."""
    bank: Any = requests[0][0].bank
    get: Any = bank.get_many if is_sharded(requests[0][0]) else embank.get_many
    leases: list[AnyLease] = get(requests, earlier=earlier)
    return leases


def peek_many(
    requests: Sequence[tuple[AnyTable, NDArray[np.int64]]],
) -> list[NDArray[np.float32]]:
    """`Table.peek` of each table, or one exchange."""
    if is_sharded(requests[0][0]):
        bank: Any = requests[0][0].bank
        found: list[NDArray[np.float32]] = bank.peek_many(requests)
        return found
    return [table.peek(keys) for table, keys in requests]


def apply_many(parts: Sequence[Any]) -> None:
    """`embank.apply_many`, or one exchange."""
    table = parts[0][0]
    (table.bank.apply_many if is_sharded(table) else embank.apply_many)(parts)
