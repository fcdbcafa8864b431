"""Tests that a table object, and all that is kept of a table for it, goes with its last reference.

The tests count the handles that the bank holds for table objects."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import embank
from embank import _embank


def handles(bank: embank.Bank) -> int:
    gc.collect()
    count: int = _embank._table_handles(bank)  # type: ignore[attr-defined]
    return count


def test_dropped_tables_leave_no_handle(bank: embank.Bank) -> None:
    """Regression test: the bank kept a handle of each dropped table until it was closed."""
    for round in range(20):
        table = bank.table("u", dim=2, optimizer=embank.SGD(lr=1.0))
        lease = table.get([1, 2])
        bank.drop_table("u")
        # An object of a dropped table still tells what happened.
        with pytest.raises(embank.NoSuchTable, match="was dropped"):
            table.peek([1])
        assert handles(bank) == 1, round
        del table, lease
        assert handles(bank) == 0, round


def test_a_handle_goes_with_its_object(bank: embank.Bank) -> None:
    table = bank.table("u", dim=2, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros())
    again = bank.open_table("u")
    assert handles(bank) == 2
    lease = table.get([1])
    del table
    assert handles(bank) == 1
    # The lease does not need the object of its table.
    lease.apply(np.ones((1, 2), np.float32))
    assert again.peek([1]).tolist() == [[-1.0, -1.0]]
    del again
    assert handles(bank) == 0
    assert bank.open_table("u").contains([1]).tolist() == [True]


def test_a_module_holds_the_handle_of_its_table(bank: embank.Bank) -> None:
    pytest.importorskip("torch")
    import embank.torch

    module = embank.torch.Embedding(bank.table("u", dim=2, optimizer=embank.SGD(lr=1.0)))
    bank.drop_table("u")
    assert handles(bank) == 1
    del module
    assert handles(bank) == 0


def test_a_roll_back_keeps_the_handles_of_live_objects(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="8MiB") as bank:
        kept, gone = bank.table("kept", dim=1), bank.table("gone", dim=1)
        kept.put([1], [[1.0]])
        checkpoint = bank.checkpoint()
        del gone
        bank.drop_table("kept")
        bank.roll_back(checkpoint)
        assert kept.peek([1]).tolist() == [[1.0]]
        assert handles(bank) == 1
        del kept
        assert handles(bank) == 0
