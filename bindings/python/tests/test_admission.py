"""Tests admission: keys that get no row before they are admitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


SETTINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "second Get": {"admit_after_gets": 2},
    "third Get": {"admit_after_gets": 3},
    "chance": {"admit_probability": 1e-9},
}


@pytest.mark.parametrize("before", SETTINGS)
@pytest.mark.parametrize("after", SETTINGS)
@pytest.mark.parametrize("saved", [False, True], ids=["not saved", "saved"])
def test_a_table_is_dropped_with_its_counts(
    tmp_path: Path, before: str, after: str, saved: bool
) -> None:
    """Shows that a table that is dropped and made again begins its counts again, and that each
    checkpoint has a table and its counts, or has neither."""
    path, one = tmp_path / "bank", np.array([7])

    def made(bank: embank.Bank, settings: str) -> embank.Table:
        return bank.table("item", dim=2, optimizer=embank.SGD(lr=1.0), **SETTINGS[settings])

    def tables(settings: str) -> int:
        return 1 if settings == "all" else 2

    def kept(bank: embank.Bank) -> list[str]:
        bank.checkpoint()
        names = list(embank.list_checkpoints(path)[-1]["tables"])
        assert all(name.startswith("item") for name in names)
        return names

    with embank.Bank(path, memory_budget="4MiB") as bank:
        made(bank, before).get(one).release()
        assert len(kept(bank)) == tables(before)
        bank.drop_table("item")
        assert kept(bank) == [] and bank.tables() == []
        # A table that no checkpoint has.
        made(bank, before).get(one).release()
        bank.drop_table("item")
        if saved:
            bank.checkpoint()
    with embank.Bank(path, memory_budget="4MiB") as bank:
        assert bank.tables() == []
        for _ in range(2):
            table = made(bank, after)
            table.get(one).release()
            assert table.contains(one).tolist() == [after == "all"]
            assert len(kept(bank)) == tables(after)
            table.get(one).release()
            assert table.contains(one).tolist() == [after in ("all", "second Get")]
            bank.drop_table("item")
        assert kept(bank) == []


def test_a_roll_back_brings_a_dropped_table_and_its_counts_back(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table("item", dim=1, admit_after_gets=3)
        for _ in range(2):
            table.get([7]).release()
        checkpoint = bank.checkpoint()
        bank.drop_table("item")
        bank.table("item", dim=1, admit_after_gets=2).get([7]).release()
        bank.checkpoint()
        bank.roll_back(checkpoint)
        assert not table.contains([7]).any()
        table.get([7]).release()
        assert table.contains([7]).all(), "the third Get"


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
