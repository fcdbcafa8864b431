"""One training process of `memory.py`: on a bank, or on constant tensors without Embank."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import measure  # noqa: F401  (finds the demo's modules)
import numpy as np
import torch
from data import Bag, Batch
from model import ClickModel, ModelShape
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

TABLES = 4
DIM = 64
BYTES_PER_ROW = DIM * 4 * 2
BATCH_ROWS = 1024
DENSE = 13
FILL_ROWS = 4096
LOOKAHEAD_BATCHES = 4
EVALUATE_EVERY = 100
SKEW = 1.05


class ConstantBag(nn.Module):
    """An embedding bag over a constant tensor: torch does the work of a real bag, but there are no
    rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(BATCH_ROWS, DIM))

    def forward(self, keys: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
        places = torch.arange(keys.numel()).view(keys.shape)
        return functional.embedding_bag(places, self.rows, offsets, mode="sum")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bank", type=Path, help="the bank; without it, constant tensors")
    options.add_argument("--budget", type=int, default=0)
    options.add_argument("--table-bytes", type=int, default=0, help="bytes of all tables together")
    options.add_argument("--steps", type=int, required=True)
    options.add_argument("--threads", type=int, required=True)
    options.add_argument("--device", default="auto")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    if given.bank is None:
        train([ConstantBag() for _ in range(TABLES)], batches(given.steps, FILL_ROWS))
    else:
        train_on_bank(given)
    print(json.dumps({"peak_bytes": peak_resident_bytes()}))


def train_on_bank(given: argparse.Namespace) -> None:
    """Fills tables of the given size and trains on them, with Lookahead."""
    import embank
    import embank.torch

    rows = given.table_bytes // BYTES_PER_ROW // TABLES
    with embank.Bank(given.bank, memory_budget=given.budget, device=given.device) as bank:
        tables = [
            bank.table(f"table{number}", dim=DIM, optimizer=embank.Adagrad(lr=0.01))
            for number in range(TABLES)
        ]
        for table in tables:
            for begin in range(0, rows, FILL_ROWS):
                keys = np.arange(begin, min(begin + FILL_ROWS, rows))
                table.put(keys, table.initial(keys))
        bags: list[nn.Module] = [
            embank.torch.EmbeddingBag(table, mode="sum") for table in tables
        ]
        loader = embank.torch.LookaheadLoader(
            batches(given.steps, rows),
            keys=lambda batch: {
                table: bag.keys.reshape(-1).numpy()
                for table, bag in zip(tables, batch.bags, strict=True)
            },
            depth=LOOKAHEAD_BATCHES,
        )
        train(bags, loader)
        bank.checkpoint()
        stats = bank.stats()
        assert stats["memory"]["used_bytes"] <= given.budget, stats["memory"]
        present = tables[0].contains(np.arange(min(rows, FILL_ROWS)))
        assert bool(np.all(present)), "rows of the table are gone"


def batches(steps: int, rows: int) -> Iterator[Batch]:
    """Random batches whose keys follow Zipf's law over `rows`."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        keys = [zipf(rng, rows) for _ in range(TABLES)]
        yield Batch(
            dense=torch.from_numpy(rng.random((BATCH_ROWS, DENSE), dtype=np.float32)),
            bags=[Bag(torch.from_numpy(column).unsqueeze(1), None) for column in keys],
            labels=torch.from_numpy((rng.random(BATCH_ROWS) < 0.3).astype(np.float32)),
        )


def zipf(rng: np.random.Generator, rows: int) -> NDArray[np.int64]:
    """Draws a key for each row of the batch. Popular keys lie anywhere in the table."""
    power = 1.0 - SKEW
    uniform = rng.random(BATCH_ROWS)
    ranks = (1.0 + uniform * ((rows + 1.0) ** power - 1.0)) ** (1.0 / power) - 1.0
    keys: NDArray[np.int64] = (np.minimum(ranks, rows - 1).astype(np.int64) * 2654435761) % rows
    return keys


def train(bags: list[nn.Module], loader: Iterable[Batch]) -> None:
    """Trains, and evaluates at intervals, as the demo does."""
    model = ClickModel(ModelShape(DENSE, TABLES, DIM, bottom=(64,), top=(64,)), bags, seed=0)
    optimizer = torch.optim.Adam(model.dense_parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    for step, batch in enumerate(loader, start=1):
        model.train()
        optimizer.zero_grad(set_to_none=True)
        criterion(model(batch), batch.labels).backward()
        optimizer.step()
        if step % EVALUATE_EVERY == 0:
            with torch.no_grad():
                model.eval()
                model(batch)


def peak_resident_bytes() -> int:
    """Returns VmHWM of this process: its largest resident memory so far. Pages of files count
    too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kibibytes) * 1024


if __name__ == "__main__":
    main()
