"""Trains with `DataLoader` workers, saves as it goes, and resumes where the last save was.

    python examples/python/workers.py clicks.bank

End the script at any moment, with Ctrl-C or `kill -9`, and start it again: it continues after its
last save and ends with the digest of a run without interruption. `--crash-at 70` ends it like a
crash at step 70.
"""

from __future__ import annotations

import argparse
import hashlib
import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import embank
import embank.torch

SAMPLES = 2048
USERS = 5_000
ITEMS = 20_000
EPOCHS = 3
BATCH_SIZE = 64
SAVE_EVERY_STEPS = 20


class Clicks(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """Made-up clicks: a user, the three items that the user saw last, and whether the user clicked.

    Workers run `__getitem__`, each in a process of its own. It reads raw data and never touches the
    bank, which does not survive a fork.
    """

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        random = np.random.default_rng(index)
        user = int(random.integers(USERS))
        items = torch.from_numpy(random.integers(ITEMS, size=3))
        return torch.tensor([user]), items, torch.tensor([float(user % 2)])


class Model(torch.nn.Module):
    """Rows of two tables, and a dense layer over them."""

    def __init__(self, users: embank.Table, items: embank.Table) -> None:
        super().__init__()
        self.bags = embank.torch.EmbeddingBagCollection({"user": users, "items": items}, mode="sum")
        self.top = torch.nn.Linear(users.dim + items.dim, 1)

    def forward(self, user: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        rows = self.bags({"user": user, "items": items})
        scores: torch.Tensor = self.top(torch.cat([rows["user"], rows["items"]], dim=1))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bank", help="the bank's directory; it is made if it is not there")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--crash-at", type=int, metavar="STEP", help="end without a word at this step")
    arguments = parser.parse_args()

    # A resumed run ends with the same bits only on the same number of threads.
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with embank.Bank(arguments.bank, memory_budget="16MiB") as bank:
        users = bank.table("user", dim=8, optimizer=embank.Adagrad(lr=0.1))
        items = bank.table("item", dim=8, optimizer=embank.Adagrad(lr=0.1))
        model = Model(users, items)
        dense = torch.optim.Adam(model.top.parameters(), lr=0.01)
        data = DataLoader(Clicks(), BATCH_SIZE, shuffle=True, num_workers=arguments.workers)
        # The keys of the next batches are announced in this process, so that their rows are in
        # memory in time.
        ahead = embank.torch.LookaheadLoader(data, lambda batch: {users: batch[0], items: batch[1]})
        loader = embank.torch.ResumableLoader(ahead)

        # `resume` comes after all objects are made, and before training.
        parts = {"model": model, "dense": dense, "loader": loader}
        saved = embank.torch.resume(bank, **parts)
        step = 0 if saved is None else saved["step"]
        print(f"begins at step {step}")
        for _ in range(loader.epoch, EPOCHS):
            for user, seen, clicked in loader:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(model(user, seen), clicked)
                dense.zero_grad()
                loss.backward()  # the tables' optimizers step here
                dense.step()
                step += 1
                if step % SAVE_EVERY_STEPS == 0:
                    # One checkpoint makes rows, dense weights and the place in the pass durable
                    # together.
                    embank.torch.save(bank, step=step, **parts)
                if step == arguments.crash_at:
                    os._exit(1)
        embank.torch.save(bank, step=step, **parts)
        print(f"ends at step {step} with {len(users)} users and {len(items)} items: {digest(model, users, items)}")


def digest(model: Model, users: embank.Table, items: embank.Table) -> str:
    """A short text. It differs between two runs if a row or a dense weight differs in any bit."""
    found = hashlib.sha256()
    for table, size in [(users, USERS), (items, ITEMS)]:
        found.update(table.peek(np.arange(size)).tobytes())
    for parameter in model.top.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    main()
