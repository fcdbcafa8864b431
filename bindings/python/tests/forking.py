"""Forks children while a bank works, and fails if a child does not return from `fork`.

`python tests/forking.py LOAD FORKS DIRECTORY`. It does not import torch, so that a fork is quick.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, vocabulary

ROWS = 60_000
DIM = 8
BATCH = 500
# Seconds. `fork` and `_exit` take milliseconds, so a child that has not ended after this time
# hangs.
CHILD_MS_MAX = 60_000

Step = Callable[[], object]


def spec() -> Spec:
    return Spec(
        [Field("word", "bytes", required=True)],
        [Column("word", vocabulary("words"))],
        [Output("ids", ["word"], "i64")],
    )


def loads(bank: embank.Bank) -> dict[str, list[Step]]:
    """Returns the loads by name: each is a function that a thread repeats."""
    table = bank.table("rows", dim=DIM, optimizer=embank.Adagrad(lr=0.1), staleness_bound=4)
    random = np.random.default_rng(7)

    def keys(rows: int = ROWS) -> np.ndarray:
        return random.integers(0, rows, BATCH)

    def ones(count: int) -> np.ndarray:
        return np.ones((count, DIM), np.float32)

    for first in range(0, ROWS, 5_000):
        table.put(np.arange(first, first + 5_000), ones(5_000))
    bank.checkpoint()

    def get() -> None:
        table.get(keys()).release()

    def apply() -> None:
        lease = table.get_distinct(keys())
        lease.apply(ones(len(lease)))

    def grow() -> None:
        # The index doubles when rows come and never shrinks, so a table is dropped before it fills
        # the disk.
        new = bank.table("new", dim=1)
        for first in range(0, 100_000, 5_000):
            new.put(np.arange(first, first + 5_000), np.ones((5_000, 1), np.float32))
        bank.drop_table("new")

    def share() -> None:
        # A large batch, which the threads of the bank divide among them.
        shared = random.integers(0, ROWS, 5_000)
        bags = table.get_bags(shared, np.arange(0, 5_001, 20))
        bags.apply(ones(len(bags)))
        table.peek(shared)

    pipeline = Pipeline(spec(), format="tsv", bank=bank)

    def feed() -> None:
        words = [f"word{number}\n" for number in keys(1 << 20)]
        for _ in pipeline.feed("".join(words).encode(), batch_rows=64):
            pass

    return {
        "lookahead": [lambda: table.lookahead(keys())],
        "get": [get, get],
        "apply": [apply, apply],
        "checkpoint": [bank.checkpoint, apply],
        "compaction": [bank.compact, apply],
        "growth": [grow],
        "threads": [share],
        "pipeline": [feed],
    }


def fork_and_wait() -> bool:
    """Forks a child that ends at once. Returns True if it ended."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    ended = select.poll()
    descriptor = os.pidfd_open(child)
    ended.register(descriptor, select.POLLIN)
    in_time = bool(ended.poll(CHILD_MS_MAX))
    os.close(descriptor)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(load: str, forks: int, directory: Path) -> None:
    warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
    stop = threading.Event()
    failures: list[BaseException] = []
    path = directory / "bank"
    with embank.Bank(path, memory_budget="2MiB", checkpoints_kept=1, threads=2) as bank:

        def repeat(step: Step) -> None:
            try:
                while not stop.is_set():
                    step()
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=repeat, args=(step,)) for step in loads(bank)[load]]
        for thread in threads:
            thread.start()
        hung = 0
        for _ in range(forks):
            hung += not fork_and_wait()
            if hung == 3 or failures:
                break
        stop.set()
        for thread in threads:
            thread.join()
        bank.checkpoint()
    if hung or failures:
        raise SystemExit(f"{load}: {hung} children hang; the parent's threads: {failures}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
