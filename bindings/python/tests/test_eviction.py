"""Tests eviction: rows that are deleted by age, frequency or norm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embank


def test_rows_go_by_age_frequency_and_norm(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table("item", dim=2, tracking="set_time")
        keys = np.arange(1000)
        table.set_time(1)
        table.put(keys, np.full((1000, 2), 2.0, np.float32))
        table.set_time(5)
        table.put(keys[500:], np.full((500, 2), 2.0, np.float32))
        table.put(keys[990:], np.zeros((10, 2), np.float32))
        bank.checkpoint()
        told: list[tuple[int, int]] = []
        report = table.evict(
            unused_for=4, dry_run=True, progress=lambda done, total: told.append((done, total))
        )
        assert (report["rows"], report["examined"], report["keys"]) == (500, 1000, None)
        assert told[-1] == (1000, 1000)
        report = table.evict(unused_for=4, keys=True)
        assert report["keys"] is not None
        assert sorted(report["keys"].tolist()) == list(range(500))
        assert table.contains(keys).tolist() == [key >= 500 for key in range(1000)]
        lease = table.get([999])
        report = table.evict(norm_below=0.5, keys=True)
        assert (report["rows"], report["leased"]) == (9, 1)
        lease.release()
        assert table.evict(used_fewer_than=3)["rows"] == 490
        assert table.contains([999]).tolist() == [True]
        assert table.stats()["evicted_rows"] == 500 + 9 + 490


def test_conditions_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table("item", dim=2)
        bank.checkpoint()
        with pytest.raises(ValueError, match="needs a condition"):
            table.evict()
        with pytest.raises(ValueError, match="does not track"):
            table.evict(unused_for=3)
        with pytest.raises(ValueError, match="set_time"):
            table.set_time(3)
        with pytest.raises(ValueError, match="tracking"):
            bank.table("other", dim=2, tracking="days")  # type: ignore[arg-type]
        with pytest.raises(embank.TableMismatch, match="tracking"):
            bank.table("item", dim=2, tracking="minutes")


def test_what_the_progress_raises_ends_it(tmp_path: Path) -> None:
    def enough(done: int, total: int) -> None:
        raise KeyError("enough")

    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table("item", dim=2)
        table.put([1], [[0.0, 0.0]])
        bank.checkpoint()
        with pytest.raises(KeyError, match="enough"):
            table.evict(norm_below=1.0, progress=enough)
        assert table.contains([1]).tolist() == [False]
