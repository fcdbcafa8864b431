"""Tests that state dicts refer to checkpoints, and load only if the bank has the rows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[tuple[embank.Bank, Any]]:
    with embank.Bank(path, memory_budget="16MiB", **options) as bank:
        if options.get("read_only"):
            table = bank.open_table("t")
        else:
            table = bank.table("t", dim=2, optimizer=embank.SGD(lr=1.0))
        yield bank, torch.nn.Sequential(embank.torch.Embedding(table), torch.nn.Linear(2, 1))


def train(model: Any) -> None:
    model(torch.tensor([1, 2])).sum().backward()


def saved(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def loaded(state: bytes) -> Any:
    return torch.load(io.BytesIO(state), weights_only=True)


def test_a_state_dict_loads_where_its_checkpoint_is(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        number = bank.checkpoint()
        state = saved(model.state_dict())
        model.load_state_dict(loaded(state))
    with opened(tmp_path / "bank") as (bank, model):
        assert bank.last_checkpoint == number
        model.load_state_dict(loaded(state))
    embank.copy_checkpoint(tmp_path / "bank", tmp_path / "copy")
    with opened(tmp_path / "copy") as (bank, model):
        model.load_state_dict(loaded(state))
    with opened(tmp_path / "copy", read_only=True, checkpoint=number) as (bank, model):
        model.load_state_dict(loaded(state))


def test_rows_that_went_on_are_told_with_the_way_back(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        first = bank.checkpoint()
        state = saved(model.state_dict())
        train(model)
        with pytest.raises(ValueError, match=rf"changed since checkpoint {first}; .*bank\.roll_back\({first}\)"):
            model.load_state_dict(loaded(state))
        second = bank.checkpoint()
        with pytest.raises(ValueError, match=rf"bank\.roll_back\({first}\).*bank\.pin\({first}\)"):
            model.load_state_dict(loaded(state))
    with opened(tmp_path / "bank", read_only=True, checkpoint=first) as (bank, model):
        model.load_state_dict(loaded(state))
    assert embank.roll_back(tmp_path / "bank", first) == [second]
    with opened(tmp_path / "bank") as (bank, model):
        model.load_state_dict(loaded(state))
        train(model)
        assert bank.checkpoint() == second, "a new checkpoint gets the number again, and another id"


def unsaved() -> Any:
    """Expects the warning of a state dict that no checkpoint holds."""
    return pytest.warns(UserWarning, match=r"no checkpoint of .* holds the rows of table 't'.*call bank\.checkpoint\(\)")


def test_a_checkpoint_that_is_gone_or_of_another_bank_is_told(tmp_path: Path) -> None:
    with opened(tmp_path / "bank", checkpoints_kept=1) as (bank, model):
        bank.checkpoint()
        state = saved(model.state_dict())
        train(model)
        bank.checkpoint()
        with pytest.raises(ValueError, match=r"does not hold \(it keeps \[2\]\)"):
            model.load_state_dict(loaded(state))
    with opened(tmp_path / "other") as (bank, model):
        bank.checkpoint()
        with pytest.raises(ValueError, match="another bank"):
            model.load_state_dict(loaded(state))


def test_a_state_dict_between_checkpoints_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as (bank, model):
        with unsaved():
            never = saved(model.state_dict())
        train(model)
        with pytest.raises(ValueError, match=r"embank\.torch\.save"):
            model.load_state_dict(loaded(never))
        bank.checkpoint()
        train(model)
        with unsaved():
            state = saved(model.state_dict())
        train(model)
        bank.checkpoint()
    with opened(tmp_path / "bank") as (bank, model):
        with pytest.raises(ValueError, match=r"embank\.torch\.save"):
            model.load_state_dict(loaded(state))


def test_a_state_dict_in_the_blob_belongs_to_the_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        with unsaved():
            best = model.state_dict()
        embank.torch.save(bank, model=model, best=best)
    with opened(tmp_path / "bank") as (bank, model):
        values = embank.torch.resume(bank, model=model)
        assert values is not None
        model.load_state_dict(values["best"])
        train(model)
        with pytest.raises(ValueError, match="changed since"):
            model.load_state_dict(values["best"])


def test_an_older_state_dict_in_the_blob_is_refused(tmp_path: Path) -> None:
    """Shows that a state dict of an earlier checkpoint, kept in a later one's blob, does not load
    over the later rows."""
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        with unsaved():
            best = model.state_dict()
        train(model)
        embank.torch.save(bank, model=model, best=dict(best))
    with opened(tmp_path / "bank") as (bank, model):
        values = embank.torch.resume(bank, model=model)
        assert values is not None
        with pytest.raises(ValueError, match="had changed since the last checkpoint"):
            model.load_state_dict(values["best"])
        # A state dict of an earlier opening of the bank is refused too.
        embank.torch.save(bank, model=model, best=values["best"])
    with opened(tmp_path / "bank") as (bank, model):
        values = embank.torch.resume(bank, model=model)
        assert values is not None
        with pytest.raises(ValueError, match="had changed since the last checkpoint"):
            model.load_state_dict(values["best"])


def test_training_between_state_dict_and_checkpoint_is_told(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as (bank, model):
        with unsaved():
            state = saved(model.state_dict())
        train(model)
        bank.checkpoint(state)
    with opened(tmp_path / "bank") as (bank, model):
        with pytest.raises(ValueError, match=r"embank\.torch\.save"):
            model.load_state_dict(loaded(state))


def test_a_table_that_was_dropped_and_made_anew_is_told(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        bank.checkpoint()
        state = saved(model.state_dict())
        bank.drop_table("t")
        table = bank.table("t", dim=2, optimizer=embank.SGD(lr=1.0))
        again = torch.nn.Sequential(embank.torch.Embedding(table), torch.nn.Linear(2, 1))
        assert bank.changed_since_checkpoint
        with pytest.raises(ValueError, match="changed since"):
            again.load_state_dict(loaded(state))


def test_training_while_states_are_taken_is_told(tmp_path: Path) -> None:
    class Trains(torch.nn.Linear):  # type: ignore[misc, unused-ignore]
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            train(model)
            return super().state_dict(*args, **kwargs)

    with opened(tmp_path / "bank") as (bank, model):
        with pytest.raises(ValueError, match="no other thread"):
            embank.torch.save(bank, model=model, more=Trains(1, 1))
        assert bank.last_checkpoint is None


def test_another_table_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as (bank, model):
        bank.checkpoint()
        state = loaded(saved(model.state_dict()))
        other = torch.nn.Sequential(
            embank.torch.Embedding(bank.table("u", dim=2)), torch.nn.Linear(2, 1)
        )
        with pytest.raises(RuntimeError, match='Missing.*"0.tables.u"[^M]*Unexpected.*"0.tables.t"'):
            other.load_state_dict(state)
        found = other.load_state_dict(state, strict=False)
        assert (found.missing_keys, found.unexpected_keys) == (["0.tables.u"], ["0.tables.t"])
        state["0._extra_state"] = {"embank": 99}
        with pytest.raises(ValueError, match="not made by this version"):
            model.load_state_dict(state)
