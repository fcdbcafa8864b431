"""One way of training the model on some data: in memory, or on a bank with a given budget."""

from __future__ import annotations

import gc
import json
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import embank
from data import BatchOrder, ClickData, Split
from embeddings import TableOptions, embank_bags, fill, row_count, torch_bags, torch_optimizer
from meter import resident_bytes
from model import ClickModel, ModelShape
from train import TrainOptions, Trainer

Device = Literal["auto", "io_uring", "threads"]

WARM_UP_SHARE = 0.2
"""Share of a run's first steps that its samples/s leaves out, while caches fill."""
WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Experiment:
    """The parts that all variants have in common: data, order, model, tables, and training options.
    """

    name: str
    data: ClickData
    split: Split
    batch_size: int
    epochs: int
    shuffle: bool
    seed: int
    shape: ModelShape
    tables: TableOptions
    train: TrainOptions
    fill_tables: bool = False
    device: Device = "auto"

    @property
    def order(self) -> BatchOrder:
        return BatchOrder(self.split.train, self.batch_size, self.epochs, self.shuffle, self.seed)

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables in memory: weights and optimizer state of every row."""
        return row_count(self.data) * self.tables.torch_bytes_per_row


@dataclass(frozen=True)
class Variant:
    """Training on a bank with a budget of `budget_bytes`, or, if that is None, on
    `torch.nn.EmbeddingBag` in memory. `bank_threads` is the bank's `threads`."""

    name: str
    budget_bytes: int | None
    lookahead: int = 0
    bank_threads: int | None = None


@dataclass
class Outcome:
    """The result of one variant, in plain values that JSON can hold."""

    variant: str
    auc: float
    samples_per_second: float
    seconds: float
    table_bytes: int
    budget_bytes: int
    baseline_bytes: int
    history: list[dict[str, Any]] = field(default_factory=list)
    aucs: list[tuple[int, float]] = field(default_factory=list)
    device: str = "memory"
    device_notes: list[str] = field(default_factory=list)
    resumed_from: int = 0

    @property
    def row_share(self) -> float:
        """The share of the training time that waited for rows (`RowTimer`), from 0 to 1, without
        the first fifth of the run."""
        return steady_row_share(self.history)

    @property
    def rows_memory_bytes(self) -> int:
        """The bytes of the rows in memory: the bytes of the tensors, or the most that the store had
        in use.

        The store counts its own memory. `cargo xtask bench memory` measures the memory of a whole
        process. It starts a process for this measurement, so that torch's scratch memory can be
        told apart.
        """
        if not self.budget_bytes:
            return self.table_bytes
        return max((sample["used_bytes"] for sample in self.history), default=0)

    def save(self, path: Path) -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> Outcome:
        return Outcome(**json.loads(path.read_text()))


def run_variant(experiment: Experiment, variant: Variant, folder: Path, resume: bool) -> Outcome:
    """Trains one variant to the end and judges it on the test rows.

    With `resume`, a variant that has finished in `folder` is not run again, and a killed one
    continues from its newest checkpoint. A killed run in memory starts again. It ends with equal
    results, because everything is seeded.
    """
    finished = folder / f"{variant.name}.json"
    bank_path = folder / variant.name
    if not resume:
        finished.unlink(missing_ok=True)
        shutil.rmtree(bank_path, ignore_errors=True)
    if finished.exists():
        shutil.rmtree(bank_path, ignore_errors=True)  # left by a kill right after the save
        return Outcome.load(finished)
    folder.mkdir(parents=True, exist_ok=True)
    baseline = torch_memory(experiment)
    started = time.perf_counter()
    if variant.budget_bytes is None:
        outcome = run_in_memory(experiment, variant, folder, baseline)
    else:
        outcome = run_on_bank(experiment, variant, bank_path, baseline)
    outcome.seconds = time.perf_counter() - started
    outcome.save(finished)
    # The bank is removed only now: a killed run resumes from it until the outcome is saved.
    shutil.rmtree(bank_path, ignore_errors=True)
    gc.collect()
    return outcome


def run_in_memory(
    experiment: Experiment, variant: Variant, folder: Path, baseline: int
) -> Outcome:
    """Trains on `torch.nn.EmbeddingBag` with the initial values that the bank's tables would have.
    """
    scratch = folder / f"{variant.name}-initial"
    shutil.rmtree(scratch, ignore_errors=True)
    with embank.Bank(scratch, memory_budget="16MiB", device=experiment.device) as bank:
        bags = torch_bags(experiment.tables.open(bank, experiment.data), experiment.data)
    shutil.rmtree(scratch)
    trainer = Trainer(
        ClickModel(experiment.shape, bags, experiment.seed),
        experiment.data.numbered(),
        experiment.order,
        experiment.train,
        variant.name,
        sparse_optimizer=torch_optimizer(bags, experiment.tables),
    )
    return finish(experiment, variant, trainer, baseline)


def run_on_bank(
    experiment: Experiment, variant: Variant, bank_path: Path, baseline: int
) -> Outcome:
    """Trains on a bank, from its newest checkpoint if it has one."""
    with embank.Bank(
        bank_path, memory_budget=variant.budget_bytes, device=experiment.device,
        threads=variant.bank_threads,
    ) as bank:
        tables = experiment.tables.open(bank, experiment.data)
        options = replace(experiment.train, lookahead=variant.lookahead)
        model = ClickModel(experiment.shape, embank_bags(tables, experiment.data), experiment.seed)
        trainer = Trainer(
            model, experiment.data, experiment.order, options, variant.name, bank, tables
        )
        if not trainer.resume() and experiment.fill_tables:
            fill(tables, experiment.data)
            # A checkpoint makes all rows read-only, so the first use of each row copies it. A
            # measurement of speed takes no checkpoints, so it must not begin with one either.
            if experiment.train.checkpoint_every > 0:
                trainer.checkpoint()
        resumed_from = trainer.progress.step
        outcome = finish(experiment, variant, trainer, baseline)
        outcome.resumed_from = resumed_from
        stats = bank.stats()
        outcome.device = stats["device"]
        outcome.device_notes = list(stats["device_notes"])
    return outcome


def finish(experiment: Experiment, variant: Variant, trainer: Trainer, baseline: int) -> Outcome:
    """Trains to the last step and evaluates."""
    split = experiment.split
    progress = trainer.run(watch=range(split.train, split.valid))
    auc = trainer.evaluate(range(split.valid, split.test))
    return Outcome(
        variant=variant.name,
        auc=auc,
        samples_per_second=steady_rate(progress.history),
        seconds=0.0,
        table_bytes=experiment.table_bytes,
        budget_bytes=variant.budget_bytes or 0,
        baseline_bytes=baseline,
        history=progress.history,
        aucs=progress.aucs,
    )


def steady_rate(history: list[dict[str, Any]]) -> float:
    """Returns the samples per second of training, without the first fifth of the run."""
    if not history:
        return 0.0
    begin = steady_begin(history)
    before = history[begin - 1]["samples"] if begin else 0
    seconds = sum(float(sample["seconds"]) for sample in history[begin:])
    return (int(history[-1]["samples"]) - int(before)) / seconds


def steady_row_share(history: list[dict[str, Any]]) -> float:
    """Returns the share of the time that waited for rows, without the first fifth of the run."""
    steady = history[steady_begin(history):]
    seconds = sum(float(sample["seconds"]) for sample in steady)
    return sum(float(sample["row_seconds"]) for sample in steady) / seconds if seconds else 0.0


def steady_begin(history: list[dict[str, Any]]) -> int:
    """Returns the number of samples to leave out, while caches fill: at least one, unless the
    history has only one."""
    return max(1, int(len(history) * WARM_UP_SHARE)) if len(history) > 1 else 0


class Constant(nn.Module):
    """Takes an embedding bag's place: returns the first vectors, whatever the keys are."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(rows, dim))

    def forward(self, keys: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
        return self.vectors[: len(keys) if offsets is None else len(offsets)]


def torch_memory(experiment: Experiment) -> int:
    """Returns the resident bytes of this process after torch has trained the model without
    embedding rows.

    Trains a throw-away model for a few steps and evaluates once. So torch's threads, code and
    scratch memory exist before the memory of a variant is counted.
    """
    gc.collect()
    rows = max(experiment.batch_size, 4096)
    bags = [Constant(rows, experiment.shape.dim) for _ in experiment.data.columns]
    order = BatchOrder(
        min(experiment.split.train, WARM_UP_STEPS * experiment.batch_size),
        experiment.batch_size, 1, False, 0,
    )
    model = ClickModel(experiment.shape, bags, experiment.seed)
    trainer = Trainer(model, experiment.data, order, TrainOptions(), "warm-up")
    for batch in trainer.batches():
        trainer.train_step(batch)
    trainer.evaluate(range(min(experiment.split.train, rows)))
    return resident_bytes()
