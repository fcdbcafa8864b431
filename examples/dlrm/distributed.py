"""Trains a click model on several ranks: the rows over all of them, the dense part with DDP.

`torchrun --nproc-per-node 2 examples/dlrm/distributed.py clicks.banks` trains on generated rows of
the Criteo format, and saves. Started again, it goes on where the last save was, also after a crash
(`--crash-at`). Each rank reads its own rows of each batch.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

import openmp  # noqa: F401, I001  (before torch)
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import criteo
import embank
import embank.torch
from auc import auc
from data import Batch, ClickData, Split
from embank.torch.distributed import ShardedBank, ShardedTable
from generate import GeneratorOptions, generate
from model import ClickModel, ModelShape

DIM = 8


class Model(nn.Module):
    """The dense part of `ClickModel`, over a collection of all tables: one exchange a batch."""

    def __init__(self, tables: list[ShardedTable], dense_features: int) -> None:
        super().__init__()
        self.rows = embank.torch.EmbeddingBagCollection({table.name: table for table in tables})
        shape = ModelShape(dense_features, len(tables), DIM)
        self.dense = ClickModel(shape, [nn.Identity() for _ in tables], seed=0)

    def forward(self, batch: Batch) -> torch.Tensor:
        keys = {name: bag.keys for name, bag in zip(self.rows.features, batch.bags, strict=True)}
        return self.dense.scores(batch.dense, list(self.rows(keys).values()))


class Rows:
    """The batches of this rank: rows `rank`, `rank + ranks`, ... of each global batch."""

    def __init__(self, data: ClickData, split: Split, batch_size: int, epochs: int) -> None:
        self.data, self.split, self.batch_size = data, split, batch_size
        self.per_epoch = split.train // (batch_size * dist.get_world_size())
        self.steps = self.per_epoch * epochs

    def batches(self, first: int) -> Iterator[Batch]:
        """The batches from step `first` on."""
        ranks, rank = dist.get_world_size(), dist.get_rank()
        for step in range(first, self.steps):
            begin = step % self.per_epoch * self.batch_size * ranks
            yield self.data.batch(np.arange(begin + rank, begin + self.batch_size * ranks, ranks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="the directory of the shards")
    parser.add_argument(
        "--data", type=Path, default=Path("target/examples"), help="a folder for the generated rows"
    )
    parser.add_argument("--rows", type=int, default=40_000, help="rows to generate")
    parser.add_argument("--batch-size", type=int, default=128, help="rows of a rank")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--budget", default="32MiB", help="memory for rows, of a rank")
    parser.add_argument("--depth", type=int, default=2, help="batches whose keys go out ahead")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--crash-at", type=int, help="end at this step as in a crash")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() != 0:
        dist.barrier()
    # Rank 0 makes the files, and the other ranks read them.
    arguments.data.mkdir(parents=True, exist_ok=True)
    options = GeneratorOptions(arguments.rows, scale=0.001)
    data = criteo.pack(generate(arguments.data / options.name, options), arguments.data, None)
    if dist.get_rank() == 0:
        dist.barrier()
    rows = Rows(data, Split.by_time(len(data)), arguments.batch_size, arguments.epochs)
    with ShardedBank(arguments.directory, memory_budget=arguments.budget, timeout=120.0) as bank:
        train(bank, rows, arguments)
    # A model in DistributedDataParallel must not outlive the process group.
    gc.collect()
    dist.destroy_process_group()


def train(bank: ShardedBank, rows: Rows, arguments: argparse.Namespace) -> None:
    tables = [
        bank.table(
            column.name, dim=DIM, optimizer=embank.Adagrad(lr=0.05), staleness_bound=arguments.depth
        )
        for column in rows.data.columns
    ]
    inner = Model(tables, rows.data.dense.shape[1])
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.Adam(inner.parameters(), lr=1e-3)
    resumed = embank.torch.resume(bank, model=inner, optimizer=optimizer)
    step = 0 if resumed is None else int(resumed["step"])
    say(f"begins at step {step}")

    def keys(batch: Batch) -> dict[ShardedTable, torch.Tensor]:
        return {table: bag.keys for table, bag in zip(tables, batch.bags, strict=True)}

    loss_of = nn.BCEWithLogitsLoss()
    for batch in embank.torch.Pipelined(rows.batches(step), keys, arguments.depth):
        optimizer.zero_grad()
        loss_of(model(batch), batch.labels).backward()
        optimizer.step()
        step += 1
        if step % arguments.save_every == 0 or step == rows.steps:
            embank.torch.save(bank, step=step, model=inner, optimizer=optimizer)
        if step == arguments.crash_at:
            os._exit(1)  # closes nothing
    labels, scores = evaluated(inner, rows)
    count = torch.tensor(sum(len(table.local) for table in tables))
    dist.all_reduce(count)
    say(f"ends at step {step} with {int(count)} rows, AUC {auc(labels, scores):.6f}")


@torch.no_grad()
def evaluated(model: Model, rows: Rows) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """The labels of the test rows and their scores, of all ranks. A rank reads rows of the others,
    so all ranks evaluate as many batches."""
    model.eval()
    ranks, size = dist.get_world_size(), 1024
    own = np.array_split(np.arange(rows.split.valid, rows.split.test), ranks)[dist.get_rank()]
    batches = (rows.split.test - rows.split.valid) // ranks // size + 1
    scores = [model(rows.data.batch(part)).numpy() for part in np.array_split(own, batches)]
    found: list[tuple[NDArray[np.uint8], NDArray[np.float32]]] = [None] * ranks  # type: ignore[list-item]
    dist.all_gather_object(found, (rows.data.labels[own], np.concatenate(scores)))
    labels, all_scores = zip(*found, strict=True)
    return np.concatenate(labels), np.concatenate(all_scores)


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
