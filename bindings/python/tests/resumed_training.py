"""A training run that `test_training_state.py` starts in separate processes.

`python resumed_training.py BANK END` trains, and saves after every second step. At step `END` the
process ends as in a crash. A run that reaches its last step prints a digest of everything that it
learnt.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from typing import Any

import numpy as np
import torch

import embank
import embank.torch

EPOCHS = 3
BATCHES = 6


def main(path: str, end: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(11)
    random.seed(12)
    np.random.seed(13)
    bank = embank.Bank(path, memory_budget="16MiB")
    options: Any = {"optimizer": embank.Adagrad(lr=0.1)}
    users, items = bank.table("user", dim=4, **options), bank.table("item", dim=6, **options)
    bags = embank.torch.EmbeddingBagCollection({"user": users, "seen": items, "liked": items})
    top = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    dense = torch.optim.Adam(top.parameters(), lr=0.01)
    tables = embank.torch.SparseOptimizer(bags)
    schedule = torch.optim.lr_scheduler.ExponentialLR(tables, gamma=0.9)
    data = torch.randint(0, 500, (BATCHES * 16, 7), generator=torch.Generator().manual_seed(1))
    loader = embank.torch.ResumableLoader(
        embank.torch.LookaheadLoader(
            torch.utils.data.DataLoader(data, batch_size=16, shuffle=True),
            lambda batch: {users: batch[:, 0], items: batch[:, 1:]},
            depth=2,
        )
    )
    parts: Any = {
        "bags": bags, "top": top, "dense": dense, "tables": tables,
        "schedule": schedule, "loader": loader,
    }
    values = embank.torch.resume(bank, **parts)
    step = 0 if values is None else values["step"]
    for _ in range(loader.epoch, EPOCHS):
        for batch in loader:
            noise = random.random() + float(np.random.rand())
            rows = bags({"user": batch[:, :1], "seen": batch[:, 1:4], "liked": batch[:, 4:]})
            loss = (top(torch.cat(list(rows.values()), 1)) - noise).square().mean()
            dense.zero_grad()
            tables.zero_grad()
            loss.backward()
            dense.step()
            tables.step()
            schedule.step()
            step += 1
            if step % 2 == 0:
                embank.torch.save(bank, step=step, **parts)
            if step == end:
                os._exit(0)  # as in a crash: closes nothing, prints nothing
    digest = hashlib.sha256()
    for table in (users, items):
        digest.update(table.peek(np.arange(500)).tobytes())
    for parameter in top.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    digest.update(repr((step, loss.item(), torch.rand(1).item(), random.random())).encode())
    print(digest.hexdigest())
    bank.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
