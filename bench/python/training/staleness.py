"""Measures which staleness bounds make training faster, and which cost quality.

Two trainers share the tables of DistMult (or ComplEx) on WN18RR, with bounds from 0
(bulk-synchronous) to 80, and without a bound (asynchronous). Each trainer is a pipeline: one thread
gets the rows of up to --ahead coming batches, and another computes on them and applies their
gradients. So only the bound and the pipeline limit how stale a row is. For each bound the table has
samples/s, the filtered MRR on the validation triples, and the mean number of other batches that
were applied between a batch's get and its own apply.

Batches are small, so that a trainer waits for its rows for a large part of the time. A bound above
0 saves this time.

The bound holds for entities. Relations have no bound. A data set has few relations (WN18RR has 22),
so every batch uses all of them. With a bound of 0 on relations no two batches could overlap, and
any other bound would be faster. --bound-relations gives relations the bound of the entities.

Target: some bound above 0 is faster than 0, and within 0.005 MRR of the better of bound 0 and one
trainer alone. --plot FILE draws the sweep. --quick takes bounds 0, 4 and none, and a third of an
epoch, and has no target.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import rows as example_rows
import torch
from figures import Figure
from measure import Measured
from workloads import family

import embank

BOUNDS: tuple[int | None, ...] = (0, 1, 2, 4, 8, 16, 40, 80, None)
BOUNDS_QUICK: tuple[int | None, ...] = (0, 4, None)
TRAINERS = 2
DIFFERENCE_MAX = 0.005


@dataclass
class Result:
    """The result of a bound."""

    rate: float
    mrr: float
    staleness: float
    waits: int


def main() -> int:
    given = parser().parse_args()
    train = family("kge")
    names = measure.SCRATCH / "staleness-names"
    shutil.rmtree(names, ignore_errors=True)
    graph = train.load(example_rows.data_folder("wn18rr"), names, given.device)
    shutil.rmtree(names)
    bounds = given.bounds or (BOUNDS_QUICK if given.quick else BOUNDS)
    epoch = -(-len(graph.train) // given.batch_size)
    steps = given.steps or (epoch // 3 if given.quick else given.epochs * epoch)
    alone = [run(train, graph, 0, 1, 1, steps, seed, given) for seed in seeds(given)]
    results: dict[str, list[Result]] = {"one trainer": alone}
    show("one trainer", alone)
    for bound in bounds:
        name = "none" if bound is None else str(bound)
        results[name] = [
            run(train, graph, bound, TRAINERS, given.ahead, steps, seed, given)
            for seed in seeds(given)
        ]
        show(name, results[name])
    if given.plot is not None:
        plot(given, results)
    return measure.report(judge(results, asked=not given.quick), given)


def seeds(given: argparse.Namespace) -> range:
    return range(given.seed, given.seed + given.seeds)


def parser() -> argparse.ArgumentParser:
    options = measure.parser(__doc__)
    add = options.add_argument
    add("--model", choices=("distmult", "complex"), default="distmult")
    add("--seeds", type=int, default=1, help="runs of each bound (default %(default)s)")
    add("--bounds", type=lambda text: None if text == "none" else int(text), nargs="+",
        metavar="N", help="numbers, or none (default: 0 to 80 and none)")
    add("--ahead", type=int, default=40, help="batches that a trainer gets early, at most")
    add("--epochs", type=int, default=4)
    add("--steps", type=int, metavar="N", help="in place of whole epochs")
    add("--dim", type=int, default=128)
    add("--batch-size", type=int, default=250)
    add("--negatives", type=int, default=250)
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
    train: Any, graph: Any, bound: int | None, trainers: int, ahead: int, steps: int, seed: int,
    given: argparse.Namespace,
) -> Result:
    """Trains `steps` batches, divided among the trainers."""
    folder = measure.SCRATCH / "staleness"
    shutil.rmtree(folder, ignore_errors=True)
    options = train.parser().parse_args(
        ["--model", given.model, "--dim", str(given.dim), "--seed", str(seed)]
    )
    budget = example_rows.budget(
        example_rows.table_bytes((graph.entities, given.dim), (graph.relations, given.dim)), 0.25
    )
    with embank.Bank(folder, memory_budget=budget, device=given.device) as bank:
        training = train.build(graph, bank, options)
        entities, relations = training.tables
        entities.staleness_bound = bound
        relations.staleness_bound = bound if given.bound_relations else None
        torch.set_num_threads(1)        # of each trainer
        shared = Batches(graph, given, seed, steps)
        started = time.perf_counter()
        with ThreadPoolExecutor(2 * trainers) as threads:
            work = [Trainer(training, shared, ahead) for _ in range(trainers)]
            running = [threads.submit(part) for one in work for part in (one.get_rows, one.compute)]
            for one in running:
                one.result()
        seconds = time.perf_counter() - started
        torch.set_num_threads(given.threads)
        ranking = train.rank(training.model, graph.valid, graph.known_tails(), graph.entities)
        waits = int(bank.stats()["waits"])
    shutil.rmtree(folder)
    staleness = float(np.mean([stale for one in work for stale in one.staleness]))
    return Result(steps * given.batch_size / seconds, ranking.mrr, staleness, waits)


class Batches:
    """The batches, in the order in which the trainers take them, and the number of applied
    updates."""

    def __init__(self, graph: Any, given: argparse.Namespace, seed: int, steps: int) -> None:
        everything: Iterator[Any] = itertools.chain.from_iterable(
            graph.batches(given.batch_size, given.negatives, seed, epoch)
            for epoch in itertools.count(1)
        )
        self._batches = itertools.islice(everything, steps)
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

    The thread that gets rows may wait at the bound. It waits for entities while it holds no row of
    that batch. If relations have a bound, it waits for them while it holds the batch's entities.
    Each wait ends for two reasons: `get_many` requests the tables in one order in all trainers, and
    the batches that hold the rows are already in a queue and will be applied. """

    def __init__(self, training: Any, shared: Batches, ahead: int) -> None:
        self.training, self.shared = training, shared
        self.ready: queue.Queue[Leased | None] = queue.Queue(ahead)
        self.staleness: list[int] = []
        self.failed = threading.Event()

    def get_rows(self) -> None:
        entities, relations = self.training.tables
        try:
            while not self.failed.is_set() and (batch := self.shared.take()) is not None:
                leases = embank.get_many([
                    (entities, batch.entities.numpy()), (relations, batch.relations.numpy())
                ])
                self.ready.put(Leased(batch, leases, self.shared.updates))
        finally:
            self.ready.put(None)

    def compute(self) -> None:
        try:
            while (leased := self.ready.get()) is not None:
                parts = [torch.from_numpy(lease.rows).requires_grad_() for lease in leased.leases]
                inverse = torch.from_numpy(leased.leases[1].inverse)
                # get_distinct promises no order of its keys.
                order = torch.from_numpy(leased.leases[0].inverse)
                loss = self.training.model.loss(parts[0][order], parts[1][inverse], leased.batch)
                loss.backward()
                for lease, part in zip(leased.leases, parts):
                    lease.apply(part.grad.numpy())
                self.staleness.append(self.shared.updated() - leased.seen)
        except BaseException:
            self.failed.set()
            while self.ready.get() is not None:     # so that `get_rows` is not left waiting
                pass
            raise


def show(name: str, results: list[Result]) -> None:
    for result in results:
        print(f"bound {name}: {result.rate:,.0f} samples/s, MRR {result.mrr:.4f}, "
              f"{result.staleness:.1f} updates stale, {result.waits} waits", flush=True)


def mean(results: list[Result], of: str) -> float:
    return float(np.mean([getattr(result, of) for result in results]))


def spread(results: list[Result], of: str) -> float:
    values = [getattr(result, of) for result in results]
    return max(values) - min(values)


def judge(results: dict[str, list[Result]], asked: bool) -> list[Measured]:
    synchronous = results["0"] if "0" in results else results["one trainer"]
    alone, rate, mrr = (mean(results["one trainer"], "mrr"), mean(synchronous, "rate"),
                        mean(synchronous, "mrr"))
    rows = []
    good: dict[str, float] = {}
    for name, result in results.items():
        title = name if name == "one trainer" else f"bound {name}"
        rows += [
            Measured(Figure(f"{title}: samples/s", mean(result, "rate"), "", "bound 0", rate),
                     spread(result, "rate")),
            Measured(Figure(f"{title}: MRR", mean(result, "mrr"), "", "one trainer", alone),
                     spread(result, "mrr")),
            Measured(Figure(f"{title}: updates stale", mean(result, "staleness"), "")),
        ]
        kept = max(mrr, alone) - mean(result, "mrr") <= DIFFERENCE_MAX
        if kept and name not in ("0", "one trainer"):
            good[name] = mean(result, "rate") / rate
    best = max(good, key=lambda name: good[name], default="none")
    return [*rows, Measured(
        Figure(f"fastest bound without loss of quality ({best})", good.get(best, 0.0), "x"),
        passed=good.get(best, 0.0) > 1.0 if asked else None,
    )]


def plot(given: argparse.Namespace, results: dict[str, list[Result]]) -> None:
    from plots import sweep

    names = [name for name in results if name != "one trainer"]
    sweep(given.plot, f"{given.model} on WN18RR, two trainers", "staleness bound", "samples/s", names,
          {"samples/s": [mean(results[name], "rate") for name in names]},
          ("validation MRR", [mean(results[name], "mrr") for name in names],
           mean(results["one trainer"], "mrr")))


if __name__ == "__main__":
    sys.exit(main())
