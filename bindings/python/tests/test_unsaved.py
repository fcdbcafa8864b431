"""Tests that closing a bank warns of the changes that are lost, and that they can be saved."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, modulus, vocabulary

BUDGET = "16MiB"


def put(bank: embank.Bank, keys: list[int]) -> None:
    bank.table("item", dim=1).put(keys, [[1.0]] * len(keys))


def test_close_tells_what_is_lost_since_which_checkpoint(tmp_path: Path) -> None:
    bank = embank.Bank(tmp_path / "bank", memory_budget=BUDGET)
    put(bank, [1, 2])
    assert bank.stats()["changed_since_checkpoint"] == 2
    assert bank.stats()["newest_checkpoint"] == 0
    assert bank.checkpoint() == 1
    put(bank, [1, 2, 3])
    put(bank, [3])
    assert bank.stats()["changed_since_checkpoint"] == 4
    assert bank.stats()["newest_checkpoint"] == 1
    with pytest.warns(ResourceWarning, match="loses 4 changes of rows since checkpoint 1") as told:
        bank.close()
    assert str(tmp_path) in str(told[0].message) and "close(checkpoint=" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bank.close()


def test_the_end_of_a_with_block_tells_too(tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning, match="loses 1 change of a row, and has no checkpoint"):
        with embank.Bank(tmp_path / "bank", memory_budget=BUDGET) as bank:
            put(bank, [1])


def test_the_garbage_collector_tells_too(tmp_path: Path) -> None:
    bank = embank.Bank(tmp_path / "bank", memory_budget=BUDGET)
    put(bank, [1, 2, 3])
    with pytest.warns(ResourceWarning, match="3 changes of rows"):
        del bank
        gc.collect()


def test_nothing_is_told_where_nothing_is_lost(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with embank.Bank(tmp_path / "bank", memory_budget=BUDGET) as bank:
            put(bank, [1])
            bank.checkpoint()
            bank.open_table("item").get([1]).release()
        with embank.Bank(tmp_path / "bank", memory_budget=BUDGET) as bank:
            assert bank.open_table("item").contains([1]).all()
        with embank.Bank(tmp_path / "bank", memory_budget=BUDGET, read_only=True) as bank:
            assert bank.open_table("item").contains([1]).all()
        bank = embank.Bank(tmp_path / "other", memory_budget=BUDGET)
        put(bank, [1])
        bank.checkpoint()
        del bank
        gc.collect()


def test_close_can_take_a_checkpoint(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bank = embank.Bank(tmp_path / "bank", memory_budget=BUDGET)
        put(bank, [1])
        assert bank.close(checkpoint=b"step 7") == 1
        assert bank.close() is None
        with embank.Bank(tmp_path / "bank", memory_budget=BUDGET) as bank:
            assert bank.recovered is not None and bank.recovered.blob == b"step 7"
            assert bank.open_table("item").contains([1]).all()
            assert bank.close(checkpoint=b"") == 2
    with pytest.raises(ValueError, match="bank is closed"):
        bank.close(checkpoint=b"")


def test_a_checkpoint_that_fails_leaves_the_bank_open(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget=BUDGET) as bank:
        put(bank, [1])
        bank.checkpoint()
    reading = embank.Bank(tmp_path / "bank", memory_budget=BUDGET, read_only=True)
    with pytest.raises(embank.ReadOnly):
        reading.close(checkpoint=b"")
    assert not reading.closed
    reading.close()


def site_spec() -> Spec:
    """Makes a spec with a column of numbers of a known range, whose ids the pipeline assigns."""
    return Spec(
        fields=[Field("site", "int32", required=True)],
        columns=[Column("site", modulus(100), vocabulary("site"))],
        outputs=[Output("ids", ["site"], "i64")],
    )


def test_close_with_a_checkpoint_saves_the_pipelines_first(tmp_path: Path) -> None:
    bank = embank.Bank(tmp_path / "bank", memory_budget=BUDGET)
    pipeline = Pipeline(site_spec(), bank=bank)
    evaluating = pipeline.feed(b"5\n", learn=False, batch_rows=1)
    feed = pipeline.feed(b"5\n6\n7\n", batch_rows=1, save_each_batch=False)
    assert next(feed)["ids"].tolist() == [[0]]
    # The feed has numbered values that the bank does not have yet, so `close` with a checkpoint
    # fails.
    with pytest.raises(RuntimeError, match="does not save each batch"):
        bank.close(checkpoint=b"")
    assert not bank.closed and bank.last_checkpoint is None
    feed.close()
    evaluating.close()
    assert bank.close(checkpoint=b"") == 1
    with embank.Bank(tmp_path / "bank", memory_budget=BUDGET) as bank:
        again = Pipeline(site_spec(), bank=bank)
        assert again.vocabularies()["site"][0] == 5
        bank.checkpoint()


def test_a_warning_that_is_an_error_comes_after_the_close(tmp_path: Path) -> None:
    bank = embank.Bank(tmp_path / "bank", memory_budget=BUDGET)
    put(bank, [1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ResourceWarning, match="1 change of a row"):
            bank.close()
    assert bank.closed
    embank.Bank(tmp_path / "bank", memory_budget=BUDGET).close()


def test_the_exception_of_the_block_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda of: told.append(str(of.exc_value)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="of the block"):
            with embank.Bank(tmp_path / "bank", memory_budget=BUDGET) as bank:
                put(bank, [1])
                raise KeyError("of the block")
    assert bank.closed
    assert len(told) == 1 and "1 change of a row" in told[0]


def test_changes_of_calls_that_close_waits_for_count(tmp_path: Path) -> None:
    bank = embank.Bank(tmp_path / "bank", memory_budget=BUDGET)
    table = bank.table("item", dim=1, staleness_bound=0)
    lease = table.get([1])
    bank.checkpoint()
    got: list[str] = []

    def get_another() -> None:
        # Waits until the bank's close gives the lease back, and then makes a row.
        try:
            table.get([1, 2]).release()
        except ValueError as error:
            got.append(str(error))

    thread = threading.Thread(target=get_another)
    thread.start()
    while bank.stats()["waits"] == 0:
        pass
    with pytest.warns(ResourceWarning, match="1 change of a row since checkpoint 1"):
        bank.close()
    thread.join()
    assert got == ["bank is closed"]
    assert not lease.held


def test_the_end_of_the_program_tells_too(tmp_path: Path) -> None:
    program = f"""
import embank
bank = embank.Bank({str(tmp_path / "bank")!r}, memory_budget="16MiB")
bank.table("item", dim=1).put([1], [[1.0]])
"""
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, check=True
    )
    assert "ResourceWarning" in ran.stderr and "1 change of a row" in ran.stderr, ran.stderr
