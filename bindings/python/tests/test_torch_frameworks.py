"""Tests how frameworks that keep state dicts in files go back to an earlier checkpoint of the bank.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch import nn  # noqa: E402

ROWS = 16


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[embank.Bank]:
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB", checkpoints_kept=1) as bank:
        yield bank
        bank.checkpoint()


class Model(nn.Module):
    """A table and a dense part, which return a loss as models of `transformers` do."""

    def __init__(self, bank: embank.Bank) -> None:
        super().__init__()
        table = bank.table("t", dim=2, optimizer=embank.Adagrad(lr=0.5))
        self.rows = embank.torch.Embedding(table)
        self.top = nn.Linear(2, 1)

    def forward(self, keys: Any, labels: Any) -> Any:
        scores = self.top(self.rows(keys)).squeeze(1)
        return {"loss": nn.functional.mse_loss(scores, labels), "scores": scores}


def keep_in_step(bank: embank.Bank, model: Any) -> None:
    """The recipe of docs/python.md."""

    def keep(*_: Any) -> None:
        bank.pin(bank.checkpoint())

    def go_back(module: Any, state_dict: Any, *_: Any) -> None:
        embank.torch.roll_back(bank, state_dict)

    model.register_state_dict_pre_hook(keep)
    model.register_load_state_dict_pre_hook(go_back)


needs_hooks = pytest.mark.skipif(
    not hasattr(nn.Module, "register_load_state_dict_pre_hook"), reason="PyTorch has this hook from 2.5 on"
)


class Samples(torch.utils.data.Dataset[Any]):  # type: ignore[misc, unused-ignore]
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, at: int) -> Any:
        return {"keys": torch.tensor(at), "labels": torch.tensor(float(at % 2))}


@needs_hooks
def test_transformers_loads_the_best_model_at_the_end(bank: embank.Bank, tmp_path: Path) -> None:
    """Shows the recipe for `load_best_model_at_end`. The error of `load_state_dict` once named no
    way inside of the process."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    model = Model(bank)
    keep_in_step(bank, model)
    losses = iter([0.5, 0.25, 0.75, 1.0])
    rows = []

    def metrics(_: Any) -> dict[str, float]:
        rows.append(model.rows.table.peek(np.arange(ROWS)))
        return {"worth": next(losses)}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), num_train_epochs=4, per_device_train_batch_size=8, eval_strategy="epoch",
        save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="worth", greater_is_better=False,
        report_to=[], use_cpu=True, disable_tqdm=True, label_names=["labels"], remove_unused_columns=False,
        dataloader_pin_memory=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=Samples(), eval_dataset=Samples(), compute_metrics=metrics
        )
        trainer.train()
    best = rows[1]
    assert len(rows) == 4 and not np.array_equal(best, rows[3])
    assert np.array_equal(model.rows.table.peek(np.arange(ROWS)), best)
    file = next((tmp_path / "out").glob("checkpoint-4/model.safetensors"))
    saved = pytest.importorskip("safetensors.torch").load_file(file)
    assert torch.equal(saved["top.weight"], model.top.weight)


@needs_hooks
def test_lightning_finds_a_learning_rate_and_goes_back(bank: embank.Bank, tmp_path: Path) -> None:
    """Shows the recipe for Lightning's `lr_find`, which trains and then restores the model."""
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.tuner import Tuner

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(bank)
            self.lr = 0.1

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    module = Module()
    keep_in_step(bank, module)
    table = module.model.rows.table
    table.get(np.arange(ROWS)).release()
    rows, weight = table.peek(np.arange(ROWS)), module.model.top.weight.detach().clone()
    data = torch.utils.data.DataLoader(Samples(), batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            default_root_dir=tmp_path / "out", accelerator="cpu", max_epochs=2, logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        found = Tuner(trainer).lr_find(module, data, num_training=8, early_stop_threshold=None)
    assert found is not None and len(found.results["loss"]) > 0
    assert np.array_equal(table.peek(np.arange(ROWS)), rows)
    assert torch.equal(module.model.top.weight, weight)
