"""Measures which staleness bounds make training faster, and which cost quality.

Tables have bounds from 0 (bulk-synchronous) to 80, or no bound (asynchronous). A trainer is a
pipeline: one thread gets and copies the rows of up to --ahead coming batches, and another computes
on them and applies their gradients. So only the bound and the pipeline limit how stale a row is.
(`embank.torch.Pipelined` would show no staleness: it copies rows when their batch is used, with the
updates of all earlier batches.) For each bound the table has samples/s, the quality on the
validation samples, and the mean number of other batches that were applied between a batch's get and
its own apply.

  distmult, complex         WN18RR, two trainers             filtered MRR
  dlrm, dcn, dcnv1, ffnn    Criteo-format rows, one trainer  AUC

A click model has dense weights too. They have one optimizer, and its steps must not overlap, so a
click model has one trainer, which gets more batches early.

Batches are small, so that a trainer waits for its rows for a large part of the time. A bound above
0 saves this time.

All tables of clicks have the bound. For knowledge graphs, the bound holds for entities, and
relations have no bound. A data set has few relations (WN18RR has 22), so every batch uses all of
them. With a bound of 0 on relations no two batches could overlap, and any other bound would be
faster. --bound-relations gives relations the bound of the entities.

Target: some bound above 0 is faster than 0, and loses at most 0.005 MRR or 0.002 AUC against the
better of bound 0 and one trainer that gets no batch early. --plot FILE draws the sweep. --quick
takes bounds 0, 4 and none, and a third of an epoch, and has no target.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from figures import Figure
from measure import Measured
from staleness_tasks import CLICK_MODELS, GRAPH_MODELS, Task, task_of

import embank

BOUNDS: tuple[int | None, ...] = (0, 1, 2, 4, 8, 16, 40, 80, None)
BOUNDS_QUICK: tuple[int | None, ...] = (0, 4, None)


@dataclass
class Result:
    """The result of a bound."""

    rate: float
    quality: float
    staleness: float
    waits: int


def main() -> int:
    given = parser().parse_args()
    task = task_of(given)
    ahead = given.ahead or task.ahead
    bounds = given.bounds or (BOUNDS_QUICK if given.quick else BOUNDS)
    epochs = given.epochs or task.epochs
    steps = given.steps or (task.epoch_steps // 3 if given.quick else epochs * task.epoch_steps)
    alone = [run(task, 0, 1, 1, steps, seed, given) for seed in seeds(given)]
    results: dict[str, list[Result]] = {"one trainer": alone}
    show("one trainer", alone, task)
    for bound in bounds:
        name = "none" if bound is None else str(bound)
        results[name] = [
            run(task, bound, task.trainers, ahead, steps, seed, given)
            for seed in seeds(given)
        ]
        show(name, results[name], task)
    if given.plot is not None:
        plot(given, results, task)
    return measure.report(judge(results, task, asked=not given.quick), given)


def seeds(given: argparse.Namespace) -> range:
    return range(given.seed, given.seed + given.seeds)


def parser() -> argparse.ArgumentParser:
    options = measure.parser(__doc__)
    add = options.add_argument
    add("--model", choices=(*GRAPH_MODELS, *CLICK_MODELS), default="distmult",
        help="default %(default)s")
    add("--seeds", type=int, default=1, help="runs of each bound (default %(default)s)")
    add("--bounds", type=lambda text: None if text == "none" else int(text), nargs="+",
        metavar="N", help="numbers, or none (default: 0 to 80 and none)")
    add("--ahead", type=int, metavar="N",
        help="batches that a trainer gets early, at most (default 40, of clicks 96)")
    add("--epochs", type=int, metavar="N", help="default 4, of clicks 1")
    add("--steps", type=int, metavar="N", help="in place of whole epochs")
    add("--dim", type=int, metavar="N", help="floats a row (default 128, of clicks 32)")
    add("--batch-size", type=int, default=250, help="default %(default)s")
    add("--negatives", type=int, default=250, help="of a batch of triples (default %(default)s)")
    add("--bound-relations", action="store_true", help="as the entities; else they have no bound")
    add("--plot", type=Path, metavar="FILE")
    return options


@dataclass
class Leased:
    """A batch with its rows, and the number of updates that had been applied when it got them."""

    batch: Any
    leases: list[Any]
    seen: int


def run(
    task: Task, bound: int | None, trainers: int, ahead: int, steps: int, seed: int,
    given: argparse.Namespace,
) -> Result:
    """Trains `steps` batches, divided among the trainers."""
    folder = measure.SCRATCH / "staleness"
    shutil.rmtree(folder, ignore_errors=True)
    with embank.Bank(folder, memory_budget=task.budget_bytes, device=given.device) as bank:
        task.open(bank, bound, seed)
        torch.set_num_threads(1)        # of each trainer
        shared = Batches(task.batches(seed), steps)
        started = time.perf_counter()
        work = train(task, shared, trainers, ahead)
        seconds = time.perf_counter() - started
        torch.set_num_threads(given.threads)
        quality, waits = task.quality(), int(bank.stats()["waits"])
    shutil.rmtree(folder)
    staleness = float(np.mean([stale for one in work for stale in one.staleness]))
    return Result(steps * given.batch_size / seconds, quality, staleness, waits)


def train(task: Task, shared: Batches, trainers: int, ahead: int) -> list[Trainer]:
    """Lets some trainers train all batches. Returns them after the last batch."""
    work = [Trainer(task, shared, ahead) for _ in range(trainers)]
    with ThreadPoolExecutor(2 * trainers) as threads:
        running = [threads.submit(part) for one in work for part in (one.get_rows, one.compute)]
        for one in running:
            one.result()
    return work


class Batches:
    """The batches, in the order in which the trainers take them, and the number of applied
    updates."""

    def __init__(self, batches: Iterator[Any], steps: int) -> None:
        self._batches = itertools.islice(batches, steps)
        self._lock = threading.Lock()
        self.updates = 0

    def take(self) -> Any:
        """The next batch, or None."""
        with self._lock:
            return next(self._batches, None)

    def updated(self) -> int:
        """Counts an update. Returns the number of earlier updates."""
        with self._lock:
            self.updates += 1
            return self.updates - 1


class Trainer:
    """A trainer. `get_rows` runs in its own thread, ahead of `compute`.

    The thread that gets rows may wait at the bound of a table, while it holds the rows of the
    tables before. The wait ends for two reasons: `get_many` requests the tables in one order in all
    trainers, and the batches that hold the rows are already in a queue and will be applied. """

    def __init__(self, task: Task, shared: Batches, ahead: int) -> None:
        self.task, self.shared = task, shared
        self.ready: queue.Queue[Leased | None] = queue.Queue(ahead)
        self.staleness: list[int] = []
        self.failed = threading.Event()

    def get_rows(self) -> None:
        try:
            while not self.failed.is_set() and (batch := self.shared.take()) is not None:
                leases = embank.get_many(self.task.keys(batch))
                for lease in leases:
                    lease.hand_over()       # to the thread that computes
                self.ready.put(Leased(batch, leases, self.shared.updates))
        finally:
            self.ready.put(None)

    def compute(self) -> None:
        try:
            while (leased := self.ready.get()) is not None:
                self.learn(leased)
        except BaseException:
            self.failed.set()
            # Ends the waits of `get_rows` for room in the queue, and for the rows of batches that
            # it got before: it still refers to the last of them.
            while (leased := self.ready.get()) is not None:
                for lease in leased.leases:
                    lease.release()
            raise

    def learn(self, leased: Leased) -> None:
        """Computes on a batch and applies its gradients. After a failure the leases are released,
        because another trainer may wait for them."""
        with ExitStack() as held:
            for lease in leased.leases:
                held.enter_context(lease)
            parts = [torch.from_numpy(lease.rows).requires_grad_() for lease in leased.leases]
            places = [torch.from_numpy(lease.inverse) for lease in leased.leases]
            self.task.learn(leased.batch, parts, places)
            # Counted before the apply, which may let the get of another batch go on: that get then
            # sees this update counted.
            self.staleness.append(self.shared.updated() - leased.seen)
            for lease, part in zip(leased.leases, parts):
                lease.apply(part.grad.numpy())


def show(name: str, results: list[Result], task: Task) -> None:
    for result in results:
        print(f"bound {name}: {result.rate:,.0f} samples/s, {task.metric} {result.quality:.4f}, "
              f"{result.staleness:.1f} updates stale, {result.waits} waits", flush=True)


def mean(results: list[Result], of: str) -> float:
    return float(np.mean([getattr(result, of) for result in results]))


def spread(results: list[Result], of: str) -> float:
    values = [getattr(result, of) for result in results]
    return max(values) - min(values)


def judge(results: dict[str, list[Result]], task: Task, asked: bool) -> list[Measured]:
    synchronous = results["0"] if "0" in results else results["one trainer"]
    alone, rate, quality = (mean(results["one trainer"], "quality"), mean(synchronous, "rate"),
                            mean(synchronous, "quality"))
    rows = []
    good: dict[str, float] = {}
    for name, result in results.items():
        title = name if name == "one trainer" else f"bound {name}"
        rows += [
            Measured(Figure(f"{title}: samples/s", mean(result, "rate"), "", "bound 0", rate),
                     spread(result, "rate")),
            Measured(Figure(f"{title}: {task.metric}", mean(result, "quality"), "", "one trainer",
                            alone), spread(result, "quality")),
            Measured(Figure(f"{title}: updates stale", mean(result, "staleness"), "")),
        ]
        lost = max(quality, alone) - mean(result, "quality")
        if lost <= task.difference_max and name not in ("0", "one trainer"):
            good[name] = mean(result, "rate") / rate
    best = max(good, key=lambda name: good[name], default="none")
    return [*rows, Measured(
        Figure(f"fastest bound without loss of quality ({best})", good.get(best, 0.0), "x"),
        passed=good.get(best, 0.0) > 1.0 if asked else None,
    )]


def plot(given: argparse.Namespace, results: dict[str, list[Result]], task: Task) -> None:
    from plots import sweep

    names = [name for name in results if name != "one trainer"]
    sweep(given.plot, f"{given.model} on {task.data_name}, trainers: {task.trainers}",
          "staleness bound", "samples/s", names,
          {"samples/s": [mean(results[name], "rate") for name in names]},
          (f"validation {task.metric}", [mean(results[name], "quality") for name in names],
           mean(results["one trainer"], "quality")))


if __name__ == "__main__":
    sys.exit(main())
