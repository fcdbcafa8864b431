"""The training loop: steps, samples of its progress, evaluations, checkpoints, and resumption.

A checkpoint holds everything that the next step depends on. The bank holds the rows and their
optimizer state. The checkpoint's blob holds the dense weights, the dense optimizer's state, the
step and the history. Rows and blob become durable in the same instant. The rows that a step trains
on are a function of its number (`BatchOrder`). So a run that is killed and resumed computes what it
would have computed without the kill.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

import embank
import embank.torch
from auc import auc
from data import Batch, BatchOrder, ClickData
from embeddings import batch_keys
from meter import Meter, RowTimer
from model import ClickModel

EVALUATION_ROWS = 4096
BLOB_FORMAT = 5


@dataclass(frozen=True)
class TrainOptions:
    """`sample_every`, `evaluate_every` and `checkpoint_every` are in steps. `lookahead` is the
    number of batches announced ahead, or "auto". `depth` is that of batches whose rows are got.

    `checkpoint_every` should be a multiple of `sample_every`. A checkpoint within an interval lacks
    the seconds of the interval's first part, so a resumed run would count too few.

    `between` is called after each sample, outside of the time of training. Before the call, the
    trainer waits for all announced rows, and this wait counts as training. So no row is read during
    `between` without its time being counted.
    """

    dense_learning_rate: float = 1e-3
    lookahead: int | Literal["auto"] = 0
    depth: int = 0
    sample_every: int = 20
    evaluate_every: int = 0
    checkpoint_every: int = 0
    between: Callable[[], None] | None = None


@dataclass
class Progress:
    """How far a run has come. `history` has one plain `Sample` for each interval, and `aucs` pairs
    (step, AUC)."""

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    aucs: list[tuple[int, float]] = field(default_factory=list)


class Trainer:
    """Trains a model on batches in a given order.

    A model on a bank has `bank` and `tables`, which its bags train. A model in memory has
    `sparse_optimizer` instead. `name` stands in front of the progress bar.
    """

    def __init__(
        self,
        model: ClickModel,
        data: ClickData,
        order: BatchOrder,
        options: TrainOptions,
        name: str,
        bank: embank.Bank | None = None,
        tables: list[embank.Table] | None = None,
        sparse_optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.model, self.data, self.order, self.options = model, data, order, options
        self.name, self.bank, self.tables = name, bank, tables or []
        self.sparse_optimizer = sparse_optimizer
        self.dense_optimizer = torch.optim.Adam(
            model.dense_parameters(), lr=options.dense_learning_rate
        )
        self.loss = nn.BCEWithLogitsLoss()
        self.row_timer = RowTimer(model.bags)
        self.progress = Progress()

    def run(self, watch: range | None = None) -> Progress:
        """Trains from the present step to the last. `watch` are rows to evaluate on the way.

        Time spent on evaluations and checkpoints does not count as training.
        """
        options, progress = self.options, self.progress
        meter = Meter(self.bank, self.row_timer)
        losses: list[torch.Tensor] = []
        seconds = 0.0
        with tqdm(
            total=self.order.steps, initial=progress.step, desc=self.name, unit="batch",
            disable=None,
        ) as bar:
            batches = iter(self.batches())
            while progress.step < self.order.steps:
                started = time.perf_counter()
                losses.append(self.train_step(next(batches)))
                progress.step += 1
                sampled = self.due(options.sample_every)
                if sampled and options.between is not None and self.bank is not None:
                    if not self.bank.wait_lookahead():
                        raise TimeoutError("what was announced has not come in within a minute")
                seconds += time.perf_counter() - started
                bar.update()
                if sampled:
                    loss = float(torch.stack(losses).mean())
                    samples = self.order.samples_before(progress.step)
                    sample = meter.sample(progress.step, samples, seconds, loss)
                    progress.history.append(sample.plain())
                    losses, seconds = [], 0.0
                    bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
                    if options.between is not None:
                        options.between()
                if watch is not None and self.due(options.evaluate_every):
                    progress.aucs.append((progress.step, self.evaluate(watch)))
                    meter = Meter(self.bank, self.row_timer)
                if self.bank is not None and self.due(options.checkpoint_every):
                    self.checkpoint()
        return progress

    def due(self, every: int) -> bool:
        """True at each multiple of `every` steps and at the last step. False if `every` is 0."""
        step = self.progress.step
        return every > 0 and (step % every == 0 or step == self.order.steps)

    def batches(self) -> Iterable[Batch]:
        """Returns the batches from the present step on. If `lookahead` is not 0, their keys are
        announced to the store. If `depth` is not 0, their rows are got ahead."""
        batches: Iterable[Batch] = (
            self.data.batch(rows) for rows in self.order.from_step(self.progress.step)
        )
        if not self.tables:
            return batches

        def keys(batch: Batch) -> dict[embank.Table, NDArray[np.int64]]:
            return batch_keys(self.tables, batch)

        if self.options.lookahead != 0:
            batches = embank.torch.LookaheadLoader(batches, keys, depth=self.options.lookahead)
        return embank.torch.Pipelined(batches, keys, self.options.depth)

    def train_step(self, batch: Batch) -> torch.Tensor:
        """Runs a forward pass, a backward pass and the optimizers. Returns the batch's loss.

        The bank's own optimizer updates the rows of a bank during `backward`.
        """
        self.model.train()
        self.dense_optimizer.zero_grad(set_to_none=True)
        if self.sparse_optimizer is not None:
            self.sparse_optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = self.loss(self.model(batch), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.dense_optimizer.step()
        if self.sparse_optimizer is not None:
            self.sparse_optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, rows: range) -> float:
        """Returns the AUC on these rows. Only reads rows of the bank: changes, creates and counts
        no row."""
        self.model.eval()
        scores = []
        for begin in range(rows.start, rows.stop, EVALUATION_ROWS):
            batch = self.data.batch(slice(begin, min(begin + EVALUATION_ROWS, rows.stop)))
            scores.append(self.model(batch).numpy())
        return auc(self.data.labels[rows.start : rows.stop], np.concatenate(scores))

    def checkpoint(self) -> None:
        """Takes a checkpoint with the rows, the dense weights, the step and the history."""
        if self.bank is None:
            raise ValueError("only a run on a bank can be checkpointed")
        blob = io.BytesIO()
        torch.save(
            {
                "format": BLOB_FORMAT,
                "step": self.progress.step,
                "history": self.progress.history,
                "aucs": self.progress.aucs,
                "model": self.model.dense_state(),
                "optimizer": self.dense_optimizer.state_dict(),
                "rng": torch.get_rng_state(),
            },
            blob,
        )
        self.bank.checkpoint(blob.getvalue())

    def resume(self) -> bool:
        """Restores the bank's newest checkpoint. Returns False if the bank has no checkpoint."""
        if self.bank is None or self.bank.recovered is None:
            return False
        blob = torch.load(io.BytesIO(self.bank.recovered.blob), weights_only=True)
        if blob["format"] != BLOB_FORMAT:
            raise ValueError(
                f"{self.bank.path}: checkpoint of format {blob['format']}, this program writes "
                f"{BLOB_FORMAT}; start afresh without --resume"
            )
        self.progress = Progress(blob["step"], blob["history"], blob["aucs"])
        self.model.load_dense_state(blob["model"])
        self.dense_optimizer.load_state_dict(blob["optimizer"])
        torch.set_rng_state(blob["rng"])
        return True
