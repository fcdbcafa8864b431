"""Tests that a run that is saved in one process and resumed in another ends like an unbroken
run."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402

PROGRAM = Path(__file__).with_name("resumed_training.py")
STEPS = 18


def run(path: Path, end: int) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path), str(end)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_runs_in_several_processes_end_bit_for_bit_as_one(tmp_path: Path) -> None:
    """Shows that a run ends with equal bits if it is stopped in the middle of a pass, at its last
    batch, and between two saves."""
    whole = run(tmp_path / "whole", 0)
    assert len(whole) == 64
    for ends in ((4, 12), (6, 9), (17,)):
        path = tmp_path / f"bank {ends}"
        for end in ends:
            assert run(path, end) == ""
        assert run(path, 0) == whole, ends


def opened(path: Path) -> embank.Bank:
    return embank.Bank(path, memory_budget="16MiB")


def test_everything_comes_back(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with opened(tmp_path / "bank") as bank:
        assert embank.torch.resume(bank, model=model) is None
        number = embank.torch.save(
            bank, model=model, step=3, name="x", history=[0.5, 1.5], weights={"a": torch.ones(2)}
        )
        drawn = torch.rand(2), np.random.rand(), random.random()
    other = torch.nn.Linear(2, 1)
    with opened(tmp_path / "bank") as bank:
        assert bank.last_checkpoint == number
        values = embank.torch.resume(bank, model=other)
        assert values is not None
        assert values.pop("weights")["a"].tolist() == [1.0, 1.0]
        assert values == {"step": 3, "name": "x", "history": [0.5, 1.5]}
        again = torch.rand(2), np.random.rand(), random.random()
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(drawn[0], again[0]) and drawn[1:] == again[1:]


def test_random_generators_may_be_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        embank.torch.save(bank, random_state=False, step=1)
    with opened(tmp_path / "bank") as bank:
        before = torch.get_rng_state()
        embank.torch.resume(bank)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_bank_that_went_on_is_not_resumed(tmp_path: Path) -> None:
    """Shows that the errors name a way inside of the process. They once said only that the bank
    must be opened again."""
    with opened(tmp_path / "bank") as bank:
        table = bank.table("t", dim=1)
        saved = embank.torch.save(bank, step=1)
    with opened(tmp_path / "bank") as bank:
        table = bank.open_table("t")
        table.put([1], [[1.0]])
        with pytest.raises(ValueError, match=rf"bank\.roll_back\({saved}\).*open it anew"):
            embank.torch.resume(bank)
        bank.roll_back(saved)
        assert embank.torch.resume(bank) == {"step": 1}
        table.put([1], [[1.0]])
        later = bank.checkpoint()
        with pytest.raises(ValueError, match=rf"bank\.roll_back\({later}\).*open it anew"):
            embank.torch.resume(bank)
        bank.roll_back(later)
        with pytest.raises(ValueError, match=r"not made by .*bank\.roll_back\(number\)"):
            embank.torch.resume(bank)
        bank.roll_back(saved)
        assert embank.torch.resume(bank) == {"step": 1}


def test_a_model_over_two_banks_is_not_saved(tmp_path: Path) -> None:
    """Shows that `save` refuses a model over two banks, which could not be resumed."""
    with opened(tmp_path / "one") as bank, opened(tmp_path / "two") as other:
        model = torch.nn.ModuleList(
            embank.torch.Embedding(of.table("t", dim=1, optimizer=embank.SGD(lr=1.0)))
            for of in (bank, other)
        )
        with pytest.raises(ValueError, match=r"part 'model' has table 't' of the bank .*two"):
            embank.torch.save(bank, model=model)
        assert bank.last_checkpoint is None


def test_pretrained_rows_are_not_put_again(tmp_path: Path) -> None:
    """Shows that pretrained rows are not put over trained rows, so the run can be resumed."""
    matrix = torch.zeros(4, 2)

    def model_of(bank: embank.Bank) -> Any:
        table = bank.table("t", dim=2, optimizer=embank.SGD(lr=1.0))
        return embank.torch.Embedding.from_pretrained(
            matrix, table, freeze=False, fill=bank.recovered is None
        )

    with opened(tmp_path / "bank") as bank:
        model = model_of(bank)
        model(torch.tensor([1])).sum().backward()
        embank.torch.save(bank, model=model)
    with opened(tmp_path / "bank") as bank:
        model = model_of(bank)
        assert embank.torch.resume(bank, model=model) == {}
        assert model(torch.tensor([0, 1])).tolist() == [[0.0, 0.0], [-1.0, -1.0]]
        with pytest.raises(ValueError, match="shape"):
            embank.torch.Embedding.from_pretrained(torch.zeros(4, 3), model.table, fill=False)


def test_names_must_be_those_that_were_saved(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        embank.torch.save(bank, model=torch.nn.Linear(1, 1), step=1)
    with opened(tmp_path / "bank") as bank:
        for parts in ({}, {"model": torch.nn.Linear(1, 1), "more": torch.nn.Linear(1, 1)}):
            with pytest.raises(ValueError, match=r"has states of \['model'\]"):
                embank.torch.resume(bank, **parts)


@pytest.mark.parametrize("how", ["get", "put", "backward"])
def test_changed_rows_without_a_checkpoint_are_not_resumed(tmp_path: Path, how: str) -> None:
    """Shows that `resume` refuses a bank with changed rows and no checkpoint, and does not begin a
    new run."""
    with opened(tmp_path / "bank") as bank:
        table = bank.table("t", dim=1, optimizer=embank.SGD(lr=1.0))
        assert embank.torch.resume(bank) is None, "a table without rows changes nothing"
        table.peek([1])
        assert embank.torch.resume(bank) is None
        if how == "get":
            table.get([1]).release()
        elif how == "put":
            table.put([1], [[1.0]])
        else:
            embank.torch.Embedding(table)(torch.tensor([1])).sum().backward()
        with pytest.raises(ValueError, match="rows of table 't' have changed.*no checkpoint.*open it anew"):
            embank.torch.resume(bank)


def test_what_prepares_a_new_run_is_no_change(tmp_path: Path) -> None:
    """Shows that a run may fill pretrained rows, features and vocabularies before it calls
    `resume`."""
    pytest.importorskip("torch_geometric")
    from embank.pipeline import Column, Field, Output, Pipeline, Spec, vocabulary
    from embank.torch.geometric import FeatureStore

    options: Any = {"optimizer": embank.SGD(lr=1.0)}
    spec = Spec(
        [Field("word", "bytes", required=True)],
        [Column("word", vocabulary("word"))],
        [Output("ids", ["word"], "i64")],
    )
    with opened(tmp_path / "bank") as bank:
        Pipeline(spec, bank=bank).run(b"red\ngreen\n")
        words = bank.table("word", dim=2, vocabulary="word", **options)
        module = embank.torch.Embedding.from_pretrained(torch.ones(2, 2), words, freeze=False)
        store = FeatureStore(bank)
        store["paper", "x", None] = torch.ones(3, 2)
        store["paper", "x", torch.tensor([4])] = torch.ones(1, 2)
        store.add_embedding("author", "x", 3, 4, **options)
        assert store["paper", "x", [0]].tolist() == [[1.0, 1.0]]
        del store["paper", "x", None]
        store["paper", "x", None] = torch.ones(1, 2)
        assert embank.torch.resume(bank, model=module) is None
        module(torch.tensor([1])).sum().backward()
        embank.torch.Embedding.from_pretrained(torch.ones(2, 2), words)
        with pytest.raises(ValueError, match="rows of table 'word' have changed"):
            embank.torch.resume(bank, model=module)


@pytest.mark.parametrize("trains", [False, True])
def test_a_save_is_not_resumed_by_the_process_that_took_it(tmp_path: Path, trains: bool) -> None:
    """Shows that `resume` refuses a checkpoint that the same process took, and does not begin a new
    run."""
    with opened(tmp_path / "bank") as bank:
        table = bank.table("t", dim=1, optimizer=embank.SGD(lr=1.0))
        number = embank.torch.save(bank, step=1)
        if trains:
            table.get([1]).apply([[1.0]])
        with pytest.raises(ValueError, match=f"has taken checkpoint {number}.*open it anew"):
            embank.torch.resume(bank)
        bank.roll_back(number)
        assert embank.torch.resume(bank) == {"step": 1}


def test_resuming_twice_and_after_reading_works(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        table = bank.table("t", dim=1, optimizer=embank.SGD(lr=1.0))
        table.get([1]).apply([[1.0]])
        embank.torch.save(bank, step=1)
    with opened(tmp_path / "bank") as bank:
        table = bank.table("t", dim=1, optimizer=embank.SGD(lr=1.0))
        assert embank.torch.resume(bank) == {"step": 1}
        table.peek([1, 2])
        lease = table.get([1])
        assert embank.torch.resume(bank) == {"step": 1}, "a lease on a row that is there changes no row"
        lease.apply([[1.0]])
        with pytest.raises(ValueError, match="rows have changed since it was opened at checkpoint 1"):
            embank.torch.resume(bank)


@pytest.mark.parametrize("change", ["put", "delete", "drop_table", "insert", "drop_vocabulary", "freeze"])
def test_every_change_of_the_bank_counts(tmp_path: Path, change: str) -> None:
    with opened(tmp_path / "bank") as bank:
        bank.table("t", dim=1).put([1], [[1.0]])
        bank.vocabulary("v", "u64").ids_or_insert([7])
        embank.torch.save(bank, step=1)
    with opened(tmp_path / "bank") as bank:
        table, words = bank.open_table("t"), bank.open_vocabulary("v")
        words.ids_or_insert([7])
        assert table.delete([2]) == 0
        assert embank.torch.resume(bank) == {"step": 1}
        if change == "put":
            table.put([1], [[1.0]])
        elif change == "delete":
            table.delete([1])
        elif change == "drop_table":
            bank.drop_table("t")
        elif change == "insert":
            words.ids_or_insert([8])
        elif change == "drop_vocabulary":
            bank.drop_vocabulary("v")
        else:
            words.frozen = True
        with pytest.raises(ValueError, match="open it anew"):
            embank.torch.resume(bank)


def test_a_bank_to_read_is_resumed_where_it_is(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        embank.torch.save(bank, step=1)
        with embank.Bank(tmp_path / "bank", memory_budget="16MiB", read_only=True) as reading:
            assert embank.torch.resume(reading) == {"step": 1}
            bank.table("t", dim=1).put([1], [[1.0]])
            embank.torch.save(bank, step=2)
            assert embank.torch.resume(reading) == {"step": 1}
            reading.refresh()
            assert embank.torch.resume(reading) == {"step": 2}
            reading.open_table("t").peek([1, 2])
            assert embank.torch.resume(reading) == {"step": 2}


def archive(state: Any) -> bytes:
    blob = io.BytesIO()
    torch.save(state, blob)
    return blob.getvalue()


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", r"its blob is empty, as that of bank\.checkpoint\(\)"),
        (b"step 1", r"its blob, 6 bytes that begin with b'step 1', was not written by torch\.save"),
        (archive({"step": 1}), r"its blob has 'step', and nothing of embank\.torch\.save"),
        (archive([1]), "its blob holds a list"),
        (archive({"embank.torch": 99}), "its format is 99, and this version reads 1"),
        (archive({"step": 1})[:-30], "its blob can't be read: "),
    ],
    ids=["empty", "text", "another dict", "a list", "another format", "cut short"],
)
def test_a_blob_of_somebody_else_is_told(tmp_path: Path, blob: bytes, reason: str) -> None:
    """Shows that the error gives a reason for a foreign blob, also for the empty blob of
    `bank.checkpoint()`."""
    with opened(tmp_path / "bank") as bank:
        bank.checkpoint(blob)
    with opened(tmp_path / "bank") as bank:
        with pytest.raises(
            ValueError, match=rf"checkpoint 1 of .* was not made by embank\.torch\.save: {reason}.*roll_back"
        ) as raised:
            embank.torch.resume(bank)
        assert "weights_only=False" not in str(raised.value), "torch's advice is not ours"


def test_what_could_not_be_read_back_is_not_saved(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        with pytest.raises(TypeError, match="weights_only"):
            embank.torch.save(bank, path=Path("x"))
        assert bank.last_checkpoint is None


def test_a_forgotten_resume_is_warned_of(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Shows that a save warns if a forgotten `resume` should have come before it. Without the
    warning, the dense part of the earlier run was lost after some saves."""
    with opened(tmp_path / "bank") as bank:
        embank.torch.save(bank, step=1)
        embank.torch.save(bank, step=2)
    assert not recwarn.list
    with opened(tmp_path / "bank") as bank:
        with pytest.warns(UserWarning, match="checkpoint 2 .* without having resumed it"):
            embank.torch.save(bank, step=1)
        embank.torch.save(bank, step=2)
    with opened(tmp_path / "bank") as bank:
        assert embank.torch.resume(bank) == {"step": 2}
        embank.torch.save(bank, step=3)
        bank.checkpoint(b"not made by save")
    with opened(tmp_path / "bank") as bank:
        embank.torch.save(bank, step=1)
    assert not recwarn.list
