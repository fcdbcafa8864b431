"""Records which rows of a bank were put before its training run began.

A new run first puts pretrained rows or features into its tables. Then it calls `resume`, which
finds that there is nothing to resume. If training has changed rows before, `resume` must fail,
because it comes too late. So this package records the rows that it puts. Any other use of a table's
rows counts as training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from embank import Bank

    from .many import AnyTable as Table

# The sum of a table's counters (`_uses`) when the last `with filling(table)` block ended. The key
# is the id of an open bank and the table's name. Each opening of a bank has a random id that is
# never used again.
_filled: dict[tuple[str, str], int] = {}


@contextmanager
def filling(table: Table) -> Iterator[None]:
    """Rows that the block puts or deletes count as preparation, unless the table was trained
    before.
    """
    prepared = _is_prepared(table)
    yield
    if prepared:
        _filled[_key(table)] = _uses(table)


class Change(NamedTuple):
    """The reason why rows of a bank differ from those at its opening."""

    table: str
    cause: str
    """A clause that names the call."""


def training(bank: Bank) -> Optional[Change]:
    """Returns the call that has used rows of a bank since it was opened. Puts and deletes inside of
    `filling` do not count. None if no call has used rows.
    """
    return _cause([table for table in _tables(bank) if not _is_prepared(table)], made_rows=True)


def change(bank: Bank) -> Optional[Change]:
    """Returns the call that has changed rows of a bank since it was opened. None if no row has
    changed.
    """
    return _cause(_tables(bank), made_rows=bank.stats()["inserted"] > 0)


def _tables(bank: Bank) -> list[Table]:
    return [bank.open_table(name) for name in bank.tables()]


def _cause(tables: list[Table], made_rows: bool) -> Optional[Change]:
    """Returns the call that has used rows of one of `tables`. A get counts only if it made rows."""
    for counter, cause in _CAUSES.items():
        if counter == "get_rows" and not made_rows:
            continue
        for table in tables:
            # Reads a counter by its name, which is a key of the statistics' TypedDict.
            if dict(table.stats())[counter]:
                return Change(table.name, cause)
    return None


# For each counter of a table, the calls that increase it. `_cause` names the first counter above 0.
# Gets come last, because a get of existing rows changes nothing.
_CAUSES = {
    "apply_rows": "a backward pass, or a call that applies gradients, changed them",
    "put_rows": "Table.put, Table.import_from, from_pretrained or a FeatureStore put them (in a run that is resumed, "
    "call from_pretrained with fill=bank.recovered is None)",
    "deleted_rows": "a call deleted some",
    "get_rows": "a forward pass in training mode, or Table.get, made rows (run what comes "
    "before resume in eval() mode or under torch.no_grad())",
}


def _is_prepared(table: Table) -> bool:
    # The counters of a table that was dropped and made again begin with 0.
    return _uses(table) in (0, _filled.get(_key(table)))


def _key(table: Table) -> tuple[str, str]:
    opening, _, _ = table.bank.state_id.partition("-")
    return opening, table.name


def _uses(table: Table) -> int:
    """Returns a count that grows whenever rows are made, changed or deleted. It grows with each
    lease too, because a lease may make a row."""
    stats = table.stats()
    return stats["get_rows"] + stats["put_rows"] + stats["apply_rows"] + stats["deleted_rows"]
