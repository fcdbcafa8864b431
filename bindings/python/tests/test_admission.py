"""Tests admission: keys that get no row before they are admitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embank


def test_a_key_gets_its_row_with_its_third_get(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table(
            "item",
            dim=2,
            optimizer=embank.SGD(lr=1.0),
            initializer=embank.Constant(1.0),
            admit_after_gets=3,
        )
        for round in range(1, 4):
            with table.get([7, 8 * round, 7]) as lease:
                np.testing.assert_array_equal(lease.rows, np.ones((3, 2), np.float32))
                lease.apply(np.full((3, 2), -1.0, np.float32))
            assert table.contains([7]).tolist() == [round == 3]
        assert table.peek([7]).tolist() == [[3.0, 3.0]]
        assert table.stats()["not_admitted_rows"] == 2 + 3
        assert bank.tables() == ["item"]
        bank.checkpoint()
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.open_table("item")
        for _ in range(2):
            table.get([8]).release()
        assert table.contains([8, 16]).tolist() == [True, False]


def test_chance_admits_its_share(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table("item", dim=1, admit_probability=0.5, seed=4)
        keys = np.arange(10_000)
        table.get(keys).release()
        assert 4700 < table.contains(keys).sum() < 5300


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        with pytest.raises(ValueError, match="not both"):
            bank.table("item", dim=1, admit_after_gets=2, admit_probability=0.5)
        with pytest.raises(ValueError, match="probability"):
            bank.table("item", dim=1, admit_probability=2.0)
        with pytest.raises(ValueError, match="1 Get or more"):
            bank.table("item", dim=1, admit_after_gets=0)
