"""Measures training beside processes that keep every processor core busy.

A batch of a bank is shared by the bank's threads. If the caller waited for a thread that has lost
its core to another program, a bank with several threads would be slower on a busy machine than a
bank with one. This measurement would show it.

The model is the demo's, on generated rows of the Criteo format: torch in memory, and Embank in
memory, out of core, and out of core with Lookahead, each with `threads=1` and with a thread for
each core. The variants train by turns of some batches. In every second round one process for each
core computes beside them. A quiet round and the busy round after it make a pair; the first pair is
left out. Figures are medians over the pairs, with the distance between the quartiles.

Targets: beside the busy processes, several threads reach 0.95 of one thread; in memory a bank with
several threads keeps 0.45 of its quiet rate. Two computing programs on a core leave 0.5 to each.
All banks must end with equal AUC. --quick takes fewer rows and smaller batches.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import measure
import torch
from clicks import BANKS_DIFFERENCE_MAX, Turns
from experiments import (
    CriteoOptions,
    criteo_data,
    criteo_experiment,
    criteo_variants,
    quarter_budget,
    quick,
)
from figures import Figure, mebibytes
from measure import Measured, median_and_quartiles
from train import TrainOptions
from variant import Experiment, Outcome, Variant, run_variant

THREADS_RATIO_MIN = 0.95
QUIET_SHARE_MIN = 0.45
PAIRS, PAIRS_QUICK = 15, 5
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""The program of a busy process. It ends if the measurement is killed while it runs."""


class BusyProcesses:
    """A computing process for each core. They are stopped until `set(True)`."""

    def __init__(self, count: int) -> None:
        self._processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
        self.set(False)

    def set(self, busy: bool) -> None:
        """Lets the processes compute, or stops them."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Rates:
    """Samples/s of one variant in the rounds of each pair, and its AUC."""

    quiet: list[float]
    busy: list[float]
    auc: float


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--pairs", type=int,
                         help=f"that count (default {PAIRS}, quick {PAIRS_QUICK})")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    pairs = given.pairs or (PAIRS_QUICK if given.quick else PAIRS)
    size = measure.criteo(quick(CriteoOptions()) if given.quick else CriteoOptions())
    data = criteo_data(None, measure.DATA, size)
    experiment = criteo_experiment(data, size, given.device)
    steps = experiment.order.steps // (2 * (pairs + 1) + 1)
    if steps == 0:
        options.error(f"--pairs {pairs}: the run has {experiment.order.steps} batches only")
    experiment = replace(experiment, train=TrainOptions(sample_every=steps))
    variants = variants_of(experiment, size.lookahead)
    print(f"tables {mebibytes(experiment.table_bytes)}, budget "
          f"{mebibytes(quarter_budget(experiment))}, turns of {steps} batches", flush=True)
    processes = BusyProcesses(measure.sized(os.cpu_count() or 1, 1))
    try:
        outcomes = in_turns(experiment, variants, processes)
    finally:
        processes.end()
    measured = {
        variant.name: rates(outcome, pairs) for variant, outcome in zip(variants, outcomes)
    }
    return measure.report(judge(measured), given, {"busy processes": os.cpu_count()})


def variants_of(experiment: Experiment, lookahead: int) -> list[Variant]:
    """Returns torch in memory, and each variant on a bank with one and with several threads."""
    torch_run, *banks = criteo_variants(experiment, quarter_budget(experiment), lookahead)
    cores = max(2, os.cpu_count() or 1)
    return [torch_run, *(
        replace(bank, name=f"{bank.name}, threads={threads}", bank_threads=threads)
        for bank in banks for threads in (1, cores)
    )]


def in_turns(
    experiment: Experiment, variants: Sequence[Variant], processes: BusyProcesses
) -> list[Outcome]:
    """Trains the variants by turns. A variant's turns are quiet and busy alternately, and its first
    turn is quiet."""
    turns = Turns(len(variants))

    def train(number: int) -> Outcome:
        def work(end_of_turn: Callable[[], None]) -> Outcome:
            rounds = 0

            def next_turn() -> None:
                nonlocal rounds
                processes.set(False)
                end_of_turn()
                rounds += 1
                processes.set(rounds % 2 == 1)

            options = replace(experiment.train, between=next_turn)
            outcome = run_variant(replace(experiment, train=options), variants[number],
                                  measure.SCRATCH / "training", False)
            processes.set(False)
            return outcome

        return turns.run(number, work)

    with ThreadPoolExecutor(len(variants)) as threads:
        return list(threads.map(train, range(len(variants))))


def rates(outcome: Outcome, pairs: int) -> Rates:
    """Returns the rates of the last `pairs` pairs of rounds. Leaves the last round out, because it
    may be shorter."""
    counts = [0, *(int(sample["samples"]) for sample in outcome.history)]
    every = [
        (end - begin) / float(sample["seconds"])
        for begin, end, sample in zip(counts, counts[1:], outcome.history)
    ]
    rounds = every[2 : 2 * (pairs + 1)]
    return Rates(rounds[0::2], rounds[1::2], outcome.auc)


def judge(measured: dict[str, Rates]) -> list[Measured]:
    rows = []
    for name, seen in measured.items():
        quiet, _ = median_and_quartiles(seen.quiet)
        busy, spread = median_and_quartiles(seen.busy)
        rows.append(Measured(
            Figure(f"{name}, busy", busy, "samples/s", "quiet", quiet), spread))
    _, *banks = measured.items()
    for (name, one), (_, several) in zip(banks[0::2], banks[1::2]):
        what = name.removesuffix(", threads=1")
        for load, pair in (("quiet", (several.quiet, one.quiet)), ("busy", (several.busy, one.busy))):
            ratio, spread = median_and_quartiles([a / b for a, b in zip(*pair)])
            passed = measure.sized(ratio >= THREADS_RATIO_MIN, None) if load == "busy" else None
            rows.append(Measured(
                Figure(f"{what}, {load}: several threads against one", ratio, "x"),
                spread, passed=passed))
    in_memory = banks[1][1]
    kept, spread = median_and_quartiles(
        [busy / quiet for busy, quiet in zip(in_memory.busy, in_memory.quiet)])
    rows.append(Measured(Figure("in memory: busy against quiet", kept, "x"), spread,
                         passed=measure.sized(kept >= QUIET_SHARE_MIN, None)))
    aucs = [seen.auc for _, seen in banks]
    apart = max(aucs) - min(aucs)
    rows.append(Measured(Figure("auc, difference between banks", apart, ""),
                         passed=apart <= BANKS_DIFFERENCE_MAX))
    return rows


if __name__ == "__main__":
    sys.exit(main())
