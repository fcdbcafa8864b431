"""Which rows a bank without a checkpoint was given before its run began.

A new run fills tables with pretrained rows or features, and then asks `resume`, which says that there is nothing to
resume. Rows that training has changed are another thing: then `resume` comes too late. So what this package fills is
noted, and everything else that has used a table's rows counts as training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from embank import Bank, Table

# By opening of a bank and name of a table: what the table's counters said after a fill. An opening's id is random and
# never used again, so an entry never speaks of another bank.
_filled: dict[tuple[str, str], int] = {}


@contextmanager
def filling(table: Table) -> Iterator[None]:
    """Rows that the block puts or deletes are part of the preparation, unless the table was trained before."""
    prepared = _is_prepared(table)
    yield
    if prepared:
        _filled[_key(table)] = _uses(table)


def trained_table(bank: Bank) -> Optional[str]:
    """The name of a table of which a row was used since the bank was opened, other than by a fill; or None."""
    tables = (bank.open_table(name) for name in bank.tables())
    return next((table.name for table in tables if not _is_prepared(table)), None)


def _is_prepared(table: Table) -> bool:
    # A table that was dropped and made anew under its name begins with 0.
    return _uses(table) in (0, _filled.get(_key(table)))


def _key(table: Table) -> tuple[str, str]:
    opening, _, _ = table.bank.state_id.partition("-")
    return opening, table.name


def _uses(table: Table) -> int:
    """Counts up whenever rows are made, changed or deleted; also with each lease, for a lease may make a row."""
    stats = table.stats()
    return stats["get_rows"] + stats["put_rows"] + stats["apply_rows"] + stats["deleted_rows"]
