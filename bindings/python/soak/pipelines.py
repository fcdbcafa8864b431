"""Trains two tables with four pipelines at the same time, and checks every row.

Each pipeline is a thread with a `Pipelined` loader of a random depth, with Lookahead or without it.
Its passes end at the end of the data, by `break`, or by an exception of the loader, of the function
`keys` or of the model; some batches are skipped. All gradients are whole numbers, so the rows count
the steps exactly. Another thread takes checkpoints. After each round of some seconds no lease may
be left, no get may have been beyond the bound, and every row must have its count, also after the
bank was opened again.

    python bindings/python/soak/pipelines.py --minutes 20 --seed 1
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import embank
from embank.torch import Embedding, LookaheadLoader, Pipelined

PIPELINES = 4
ROWS = 60_000
DIM = 32
BATCH = 400
BOUND = 3
ROUND_SECONDS = 10.0
NAMES = ("a", "b")


class Stopped(Exception):
    """Ends a pass."""


class Counts:
    """The steps of each row that the pipelines have taken, and how their passes ended."""

    def __init__(self) -> None:
        self.rows = {name: np.zeros(ROWS, np.int64) for name in NAMES}
        self.ends: dict[str, int] = {}
        self.batches = 0
        self._lock = threading.Lock()

    def step(self, keys: torch.Tensor) -> None:
        with self._lock:
            self.batches += 1
            for name in NAMES:
                # Each place of a key adds one.
                np.add.at(self.rows[name], keys.numpy(), 1)

    def end(self, how: str) -> None:
        with self._lock:
            self.ends[how] = self.ends.get(how, 0) + 1


def open_tables(bank: embank.Bank) -> list[embank.Table]:
    return [
        bank.table(
            name, dim=DIM, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros(),
            staleness_bound=BOUND,
        )
        for name in NAMES
    ]


def train(bank: embank.Bank, seed: int, counts: Counts, until: float) -> None:
    """One pipeline: passes of random lengths and ends, until the time `until`."""
    choice = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    modules = [Embedding(table) for table in open_tables(bank)]
    choice.shuffle(modules)
    while time.monotonic() < until:
        length, how = choice.randint(1, 40), choice.choice(["data", "break", "loader", "keys", "model"])
        at_end = choice.randrange(length)

        def source() -> Iterator[torch.Tensor]:
            for at in range(length):
                if how == "loader" and at == at_end:
                    raise Stopped
                # Squared, so that some rows are hot.
                yield (torch.rand(BATCH, generator=generator).square() * ROWS).long()

        drawn = 0

        def keys(batch: torch.Tensor) -> dict[Any, torch.Tensor]:
            nonlocal drawn
            drawn += 1
            if how == "keys" and drawn > at_end:
                raise Stopped
            return dict.fromkeys(modules, batch)

        loader: Any = source()
        if choice.random() < 0.5:
            loader = LookaheadLoader(loader, lambda batch: dict.fromkeys(modules, batch), depth=4)
        try:
            for at, batch in enumerate(Pipelined(loader, keys, choice.randint(0, BOUND + 1))):
                if choice.random() < 0.05:
                    continue
                loss = -sum(module(batch).sum() for module in modules)
                if how == "model" and at == at_end:
                    raise Stopped
                loss.backward()
                counts.step(batch)
                if how == "break" and at == at_end:
                    break
        except Stopped:
            pass
        loss = None
        counts.end(how)


def check(bank: embank.Bank, counts: Counts) -> None:
    """Raises AssertionError unless each row has its count, no lease is left, and the bound held."""
    assert bank.outstanding_leases() == [], bank.outstanding_leases()
    for table in open_tables(bank):
        rows = table.peek(np.arange(ROWS))
        wrong = np.flatnonzero((rows != counts.rows[table.name][:, None]).any(axis=1))
        assert len(wrong) == 0, f"{len(wrong)} rows of {table.name!r} are wrong, the first is {wrong[0]}"
        assert max(table.stats()["staleness"], default=0) <= BOUND, table.stats()["staleness"]


def one_round(path: Path, counts: Counts, choice: random.Random) -> None:
    with embank.Bank(path, memory_budget="12MiB", threads=choice.randint(1, 3)) as bank:
        until = time.monotonic() + ROUND_SECONDS
        failures: list[BaseException] = []

        def run(seed: int) -> None:
            try:
                train(bank, seed, counts, until)
            except BaseException as error:
                failures.append(error)

        seeds = [choice.getrandbits(32) for _ in range(PIPELINES)]
        threads = [threading.Thread(target=run, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            bank.checkpoint()
            time.sleep(choice.random())
        if failures:
            raise failures[0]
        check(bank, counts)
        bank.checkpoint()
    with embank.Bank(path, memory_budget="12MiB") as bank:
        check(bank, counts)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--minutes", type=float, default=1.0)
    options.add_argument("--seed", type=int, default=None)
    given = options.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    torch.set_num_threads(1)
    choice, counts = random.Random(seed), Counts()
    end = time.monotonic() + given.minutes * 60
    rounds = 0
    with tempfile.TemporaryDirectory() as folder:
        while rounds == 0 or time.monotonic() < end:
            one_round(Path(folder) / "bank", counts, choice)
            rounds += 1
    ends = ", ".join(f"{how} {count}" for how, count in sorted(counts.ends.items()))
    print(f"{rounds} rounds, {counts.batches} batches of {BATCH} keys on two tables; passes: {ends}; 0 rows wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
