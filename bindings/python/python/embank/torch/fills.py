"""Which rows a bank without a checkpoint was given before its run began.

A new run fills tables with pretrained rows or features, and then asks `resume`, which says that
there is nothing to resume. Rows that training has changed are another thing: then `resume` comes
too late. So what this package fills is noted, and everything else that has used a table's rows
counts as training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from embank import Bank, Table

# By opening of a bank and name of a table: what the table's counters said after a fill. An
# opening's id is random and never used again, so an entry never speaks of another bank.
_filled: dict[tuple[str, str], int] = {}


@contextmanager
def filling(table: Table) -> Iterator[None]:
    """Rows that the block puts or deletes are part of the preparation, unless the table was trained
    before.
    """
    prepared = _is_prepared(table)
    yield
    if prepared:
        _filled[_key(table)] = _uses(table)


class Change(NamedTuple):
    """Why rows are not as they were when their bank was opened."""

    table: str
    cause: str
    """A clause that names the call."""


def training(bank: Bank) -> Optional[Change]:
    """What has used rows of a bank since it was opened, other than a fill; or None."""
    return _cause([table for table in _tables(bank) if not _is_prepared(table)], made_rows=True)


def change(bank: Bank) -> Optional[Change]:
    """What has changed rows of a bank since it was opened; None if no table tells."""
    return _cause(_tables(bank), made_rows=bank.stats()["inserted"] > 0)


def _tables(bank: Bank) -> list[Table]:
    return [bank.open_table(name) for name in bank.tables()]


def _cause(tables: list[Table], made_rows: bool) -> Optional[Change]:
    """The call that has used rows of one of `tables`; a get counts if it made rows."""
    for counter, cause in _CAUSES.items():
        if counter == "get_rows" and not made_rows:
            continue
        for table in tables:
            # By name: a counter is a key of the statistics' TypedDict.
            if dict(table.stats())[counter]:
                return Change(table.name, cause)
    return None


# By counter of a table, what counts it up. A get comes last: it changes nothing if it makes no row.
_CAUSES = {
    "apply_rows": "a backward pass, or a call that applies gradients, changed them",
    "put_rows": "Table.put, Table.import_from, from_pretrained or a FeatureStore put them (in a run that is resumed, "
    "call from_pretrained with fill=bank.recovered is None)",
    "deleted_rows": "a call deleted some",
    "get_rows": "a forward pass in training mode, or Table.get, made rows (run what comes "
    "before resume in eval() mode or under torch.no_grad())",
}


def _is_prepared(table: Table) -> bool:
    # A table that was dropped and made again under its name begins with 0.
    return _uses(table) in (0, _filled.get(_key(table)))


def _key(table: Table) -> tuple[str, str]:
    opening, _, _ = table.bank.state_id.partition("-")
    return opening, table.name


def _uses(table: Table) -> int:
    """Counts up whenever rows are made, changed or deleted; also with each lease, for a lease may
    make a row.
    """
    stats = table.stats()
    return stats["get_rows"] + stats["put_rows"] + stats["apply_rows"] + stats["deleted_rows"]
