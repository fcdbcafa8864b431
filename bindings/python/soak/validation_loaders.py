"""Trains with lookahead while validation loaders fork workers, and fails if a pass makes no
progress.

The workers never touch the bank. `python soak/validation_loaders.py --budget 16MiB --minutes 60`.
"""

from __future__ import annotations

import argparse
import faulthandler
import tempfile
import time
import warnings

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import embank
from embank.torch import Embedding, LookaheadLoader

ROWS = 400_000
DIM = 16
BATCH = 512
# Seconds. A validation pass takes 1 to 2 s. After this time the stacks of all threads are printed,
# and the run ends.
STALL_S = 180


def main(budget: str, minutes: float, directory: str) -> None:
    warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
    random = np.random.default_rng(1)
    with embank.Bank(f"{directory}/bank", memory_budget=budget) as bank:
        table = bank.table("rows", dim=DIM, optimizer=embank.Adagrad(lr=0.1))
        for first in range(0, ROWS, 20_000):
            table.put(np.arange(first, first + 20_000), np.zeros((20_000, DIM), np.float32))
        bank.checkpoint()
        module = Embedding(table)
        validation = TensorDataset(torch.arange(4_000))
        until, passes, steps = time.monotonic() + 60 * minutes, 0, 0
        while time.monotonic() < until:
            faulthandler.dump_traceback_later(STALL_S, exit=True)
            batches = [torch.from_numpy(random.integers(0, ROWS, BATCH)) for _ in range(40)]
            for batch in LookaheadLoader(batches, lambda keys: {table: keys.numpy()}, depth=4):
                module(batch).pow(2).sum().backward()
                steps += 1
                if steps % 20 == 0:
                    loader = DataLoader(validation, batch_size=500, num_workers=2)
                    seen = sum(len(keys) for (keys,) in loader)
                    assert seen == len(validation), f"validation saw {seen} samples"
                    passes += 1
            if steps % 400 == 0:
                print(f"{budget}: {steps:,} steps, {passes:,} validation passes", flush=True)
        faulthandler.cancel_dump_traceback_later()
        print(f"{budget}: done, {steps:,} steps, {passes:,} validation passes, {2 * passes:,} forks")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="16MiB", help="the bank's memory (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="how long (default: %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        main(given.budget, given.minutes, directory)
