"""Tests state dicts in files that other libraries write: torch, safetensors, Lightning and
accelerate."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch import nn  # noqa: E402

KEYS = torch.tensor([1, 2])


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[tuple[embank.Bank, Any]]:
    with embank.Bank(path, memory_budget="16MiB", **options) as bank:
        if options.get("read_only"):
            table = bank.open_table("t")
        else:
            table = bank.table("t", dim=2, optimizer=embank.SGD(lr=1.0))
        yield bank, nn.Sequential(embank.torch.Embedding(table), nn.Linear(2, 1))


def train(model: Any) -> None:
    model(KEYS).sum().backward()


def quiet(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.state_dict()


def file_of(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def of_file(file: bytes) -> Any:
    return torch.load(io.BytesIO(file), weights_only=True)


def test_a_state_dict_without_a_checkpoint_warns_at_the_line_that_asks(tmp_path: Path) -> None:
    """Shows that a state dict without a checkpoint, which can never be loaded, warns at the
    caller's line."""
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        for wrapped in (model, nn.Sequential(nn.ModuleList([model]))):
            with pytest.warns(UserWarning, match=r"table 't'.*bank\.checkpoint\(\) before.*or after it") as told:
                wrapped.state_dict()
            assert [each.filename for each in told] == [__file__]
        bank.checkpoint()
        model.state_dict()
        train(model)
        with pytest.warns(UserWarning, match="no checkpoint of"):
            model[0].state_dict()
        embank.torch.save(bank, model=model)
        model.state_dict()
    with opened(tmp_path / "bank", read_only=True) as (bank, model):
        model.state_dict()


def test_what_goes_into_a_checkpoint_does_not_warn(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        embank.torch.save(bank, model=model, parts=nn.ModuleList([model]))


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_a_state_of_the_same_rows_is_taken_while_the_bank_is_open(tmp_path: Path, checkpoints: int) -> None:
    """Shows that a state dict loads while its bank is open and unchanged, also without a
    checkpoint."""
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        state = quiet(model)
        other = nn.Sequential(embank.torch.Embedding(bank.open_table("t")), nn.Linear(2, 1))
        for _ in range(checkpoints):
            bank.checkpoint()
        other.load_state_dict(state)
        assert torch.equal(other[1].weight, model[1].weight)
        train(model)
        with pytest.raises(ValueError, match="not where this state dict left it"):
            other.load_state_dict(state)


def test_a_save_right_after_a_state_dict_belongs_to_it(tmp_path: Path) -> None:
    """Shows that a checkpoint that is taken right after a state dict holds its rows. The state dict
    then loads in a later process: read-only, after a roll back, and in a copy of the bank."""
    path = tmp_path / "bank"
    with opened(path) as (bank, model):
        train(model)
        file = file_of(quiet(model))
        number = embank.torch.save(bank)
    with opened(path) as (bank, model):
        model.load_state_dict(of_file(file))
        train(model)
        bank.checkpoint()
    with opened(path) as (bank, model):
        with pytest.raises(ValueError, match=rf"bank\.roll_back\({number}\)"):
            model.load_state_dict(of_file(file))
    with opened(path, read_only=True, checkpoint=number) as (bank, model):
        model.load_state_dict(of_file(file))
    embank.roll_back(path, number)
    embank.copy_checkpoint(path, tmp_path / "copy")
    for of in (path, tmp_path / "copy"):
        with opened(of) as (bank, model):
            model.load_state_dict(of_file(file))


def test_a_plain_checkpoint_right_after_a_state_dict_belongs_to_it(tmp_path: Path) -> None:
    """Shows that a checkpoint that `Bank.checkpoint` takes right after a state dict holds its rows.
    In earlier versions, only `embank.torch.save` took such a checkpoint."""
    path = tmp_path / "bank"
    with opened(path) as (bank, model):
        train(model)
        file = file_of(quiet(model))
        number = bank.checkpoint(b"a blob of the framework's")
        bank.checkpoint()
    with opened(path) as (bank, model):
        assert bank.last_checkpoint == number + 1, "two checkpoints of one state: either holds it"
        model.load_state_dict(of_file(file))
        train(model)
        bank.checkpoint()
    with opened(path) as (bank, model):
        with pytest.raises(ValueError, match=rf"refers to checkpoint {number + 1}, and .* is at checkpoint {number + 2}"):
            model.load_state_dict(of_file(file))
    with opened(path, read_only=True, checkpoint=number + 1) as (bank, model):
        model.load_state_dict(of_file(file))
    embank.copy_checkpoint(path, tmp_path / "copy", checkpoint=number + 1)
    with opened(tmp_path / "copy") as (bank, model):
        model.load_state_dict(of_file(file))


def test_a_plain_checkpoint_after_a_row_changed_does_not(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    with opened(path) as (bank, model):
        train(model)
        file = file_of(quiet(model))
        train(model)
        bank.checkpoint()
    with opened(path) as (bank, model):
        with pytest.raises(ValueError, match="no checkpoint that .* keeps has the rows of that moment"):
            model.load_state_dict(of_file(file))


def test_a_reader_that_moved_on_refuses_the_state_of_before(tmp_path: Path) -> None:
    """Shows that a reader refuses an earlier state after `refresh`, although `state_id` stays,
    because a reader changes no row."""
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        bank.checkpoint()
        with opened(tmp_path / "bank", read_only=True) as (reading, copy):
            state = copy.state_dict()
            copy.load_state_dict(state)
            train(model)
            bank.checkpoint()
            copy.load_state_dict(state)
            reading.refresh()
            with pytest.raises(ValueError, match="refers to checkpoint 1, and .* is at checkpoint 2"):
                copy.load_state_dict(state)


def test_a_state_dict_holds_tensors_alone(tmp_path: Path) -> None:
    """Shows that a state dict holds only tensors. safetensors and accelerate fail if it holds a
    dictionary."""
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        bank.checkpoint()
        state = model.state_dict()
        assert {type(value) for value in state.values()} == {torch.Tensor}
        # A framework may cast or copy the tensors that it saves.
        for cast in (torch.float32, torch.bfloat16, torch.int64):
            model.load_state_dict({name: value.clone().to(cast) for name, value in state.items()})
        for broken in (torch.zeros(3, dtype=torch.uint8), torch.ones(2, 2), b"{}", None, 7):
            with pytest.raises(ValueError, match="not made by this version"):
                model.load_state_dict({**state, "0._extra_state": broken})


def test_a_state_dict_of_before_is_read(tmp_path: Path) -> None:
    """Shows that state dicts of an older version load. That version stored the state of a table as
    a dictionary, without the features of collections."""
    with opened(tmp_path / "bank") as (bank, model):
        number = bank.checkpoint()
        (of,) = embank.list_checkpoints(bank.path)
        position = {"bank": "elsewhere", "state_id": "0-0", "checkpoint": number, "id": of["id"], "changed": False}
        old = {"embank": 2, "tables": [{"name": "t", "dim": 2, **position}]}
        model.load_state_dict({**model.state_dict(), "0._extra_state": old})
        collection = embank.torch.EmbeddingCollection({"any": model[0].table})
        collection.load_state_dict({"_extra_state": old})
        old["tables"][0]["dim"] = 3  # type: ignore[index]
        with pytest.raises(ValueError, match="'t' has rows of 2 columns, and in the state dict 3"):
            collection.load_state_dict({"_extra_state": old})


def test_safetensors_takes_a_state_dict(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    with opened(tmp_path / "bank") as (bank, model):
        train(model)
        bank.checkpoint()
        safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    with opened(tmp_path / "bank") as (bank, model):
        model.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_accelerate_saves_and_loads(tmp_path: Path, before: bool, safe: bool) -> None:
    accelerate = pytest.importorskip("accelerate")

    def prepared(model: Any) -> Any:
        accelerator = accelerate.Accelerator(cpu=True)
        tables = embank.torch.SparseOptimizer(model)
        dense = torch.optim.Adam(model[1].parameters())
        return accelerator, *accelerator.prepare(model, dense, tables)

    with opened(tmp_path / "bank") as (bank, model):
        accelerator, model, dense, tables = prepared(model)
        accelerator.backward(model(KEYS).sum())
        dense.step()
        tables.step()
        if before:
            bank.checkpoint()
        accelerator.save_state(str(tmp_path / "state"), safe_serialization=safe)
        if not before:
            embank.torch.save(bank)
        weight = model[1].weight.clone()
    with opened(tmp_path / "bank") as (bank, model):
        accelerator, model, dense, tables = prepared(model)
        accelerator.load_state(str(tmp_path / "state"))
        assert torch.equal(model[1].weight, weight)
        train(model)
        tables.step()
        with pytest.raises(ValueError, match="changed since"):
            accelerator.load_state(str(tmp_path / "state"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["callback", "hook"])
def test_lightning_saves_and_loads(tmp_path: Path, how: str) -> None:
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, bank: embank.Bank, model: Any) -> None:
            super().__init__()
            self.bank, self.model = bank, model

        def training_step(self, keys: Any, at: int) -> Any:
            return self.model(keys).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.model[1].parameters())

        def on_save_checkpoint(self, checkpoint: Any) -> None:
            if how == "hook":
                embank.torch.save(self.bank)

    class Checkpoints(lightning.Callback):  # type: ignore[misc, name-defined, unused-ignore]
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            if how == "callback":
                module.bank.checkpoint()

    def fit(bank: embank.Bank, model: Any, epochs: int, path: Any = None) -> Any:
        quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", callbacks=[Checkpoints()], default_root_dir=tmp_path, **quiet
        )
        data = torch.utils.data.DataLoader(torch.arange(4), batch_size=2)
        trainer.fit(Model(bank, model), data, ckpt_path=path)
        return trainer

    with opened(tmp_path / "bank") as (bank, model):
        path = fit(bank, model, 1).checkpoint_callback.best_model_path
    with opened(tmp_path / "bank") as (bank, model):
        trainer = fit(bank, model, 2, path)
        assert trainer.global_step == 4, "it went on at step 2"
