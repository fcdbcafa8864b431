"""Measures what training out of core costs, and what Lookahead gains.

Rows have the Criteo format, and tables have at least 4 times the budget, in two configurations:

  model   a model of ordinary size: most of the time goes into its matrix products. Out of core
          with Lookahead must reach 0.80 of the samples/s of the run fully in memory.
  disk    a tiny model and small batches: every batch waits for 26 short bursts of reads, far
          from filling the disk's queue, so the disk is the bottleneck. Lookahead, which reads
          for many batches at once, must reach 1.3 times the run without it.

The variants train by turns. A turn is an interval of some batches. Each interval is compared with
the other variants' intervals on the same batches. These intervals are seconds apart, so a change of
the machine's speed affects all variants alike. A turn ends when all rows that were announced to
Lookahead have been read.
A figure is the median over all intervals except the first fifth of a run, with the distance between
the quartiles. All banks must end with equal AUC at any budget. In-memory torch rounds in another
order, so its AUC must be nearly equal. --quick takes a third of the rows, once, and has no targets
for the ratios: small tables in a small budget leave no room to look ahead.

The output has the device of the banks and its notes, for example that the kernel's cache may answer
reads. With notes, the gain of the disk configuration is marked invalid and fails.
"""

from __future__ import annotations

import statistics
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import measure
import torch
from experiments import (
    CriteoOptions,
    criteo_data,
    criteo_experiment,
    criteo_variants,
    quarter_budget,
)
from figures import Figure, mebibytes
from measure import Measured, median_and_quartiles
from train import TrainOptions
from variant import WARM_UP_SHARE, Experiment, Outcome, Variant, run_variant

IN_MEMORY_SHARE_MIN = 0.80
LOOKAHEAD_GAIN_MIN = 1.3
BANKS_DIFFERENCE_MAX = 1e-9
TORCH_DIFFERENCE_MAX = 1e-3
RUNS = 3
INTERVAL_STEPS = measure.sized(20, 4)
CONFIGURATIONS = {
    "model": CriteoOptions(),
    "disk": CriteoOptions(
        rows=300_000, batch_size=256, bottom=(64,), top=(64,), lookahead=8
    ),
}


@dataclass
class Rates:
    """The results of one variant: samples/s of every interval, the AUC of each run, and the
    device."""

    samples_per_second: list[float] = field(default_factory=list)
    aucs: list[float] = field(default_factory=list)
    devices: set[str] = field(default_factory=set)
    device_notes: set[str] = field(default_factory=set)


class Turns:
    """Lets several threads run by turns, one at a time."""

    def __init__(self, threads: int) -> None:
        self._waiting = list(range(threads))
        self._changed = threading.Condition()

    def run(self, number: int, work: Callable[[Callable[[], None]], Outcome]) -> Outcome:
        """Runs `work` when it is this thread's turn. `work` gets a function that ends the turn and
        waits for the next one."""
        try:
            self._await(number)
            return work(lambda: self._end(number))
        finally:
            with self._changed:
                self._waiting.remove(number)
                self._changed.notify_all()

    def _await(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting[0] == number)

    def _end(self, number: int) -> None:
        with self._changed:
            self._waiting.append(self._waiting.pop(0))
            self._changed.notify_all()
        self._await(number)


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--runs", type=int, help=f"of each variant (default {RUNS}, quick 1)")
    options.add_argument("--only", choices=tuple(CONFIGURATIONS))
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    runs = given.runs or (1 if given.quick else RUNS)
    rows: list[Measured] = []
    devices: set[str] = set()
    notes: set[str] = set()
    for name, configuration in CONFIGURATIONS.items():
        if given.only not in (None, name):
            continue
        if given.quick:
            configuration = replace(configuration, rows=configuration.rows // 3)
        configuration = measure.criteo(configuration)
        data = criteo_data(None, measure.DATA, configuration)
        experiment = replace(
            criteo_experiment(data, configuration, given.device),
            train=TrainOptions(sample_every=INTERVAL_STEPS),
        )
        print(f"{name}: tables {mebibytes(experiment.table_bytes)}, "
              f"budget {mebibytes(quarter_budget(experiment))}", flush=True)
        measured = rates(name, experiment, configuration.lookahead, runs)
        devices |= set().union(*(seen.devices for seen in measured.values()))
        notes |= set().union(*(seen.device_notes for seen in measured.values()))
        rows += judge(name, measured, asked=not given.quick)
    circumstances = {"device": ", ".join(sorted(devices)), "device_notes": sorted(notes)}
    return measure.report(rows, given, circumstances)


def rates(name: str, experiment: Experiment, lookahead: int, runs: int) -> dict[str, Rates]:
    """Runs all variants by turns, `runs` times."""
    variants = criteo_variants(experiment, quarter_budget(experiment), lookahead)
    measured = {variant.name: Rates() for variant in variants}
    for number in range(runs):
        for variant, outcome in zip(variants, in_turns(experiment, variants)):
            seen = measured[variant.name]
            intervals = interval_rates(outcome)
            seen.samples_per_second += intervals
            seen.aucs.append(outcome.auc)
            if variant.budget_bytes is not None:
                seen.devices.add(outcome.device)
                seen.device_notes.update(outcome.device_notes)
            print(f"  {name}, run {number + 1}: {variant.name}: "
                  f"{statistics.median(intervals):,.0f} samples/s", flush=True)
    return measured


def in_turns(experiment: Experiment, variants: Sequence[Variant]) -> list[Outcome]:
    turns = Turns(len(variants))

    def train(number: int) -> Outcome:
        def work(end_of_turn: Callable[[], None]) -> Outcome:
            options = replace(experiment.train, between=end_of_turn)
            return run_variant(replace(experiment, train=options), variants[number],
                               measure.SCRATCH / "training", False)

        return turns.run(number, work)

    with ThreadPoolExecutor(len(variants)) as threads:
        return list(threads.map(train, range(len(variants))))


def interval_rates(outcome: Outcome) -> list[float]:
    """Returns the samples/s of each interval after the warm-up. The last interval is left out,
    because it may be shorter."""
    history = outcome.history[:-1]
    ends = [int(sample["samples"]) for sample in history]
    counts = [end - begin for begin, end in zip([0, *ends], ends)]
    rates = [count / float(sample["seconds"]) for count, sample in zip(counts, history)]
    return rates[int(len(rates) * WARM_UP_SHARE):]


def compared(rates: Rates, against: Rates) -> tuple[float, float]:
    """Returns the median of the intervals' ratios, and the distance between their quartiles."""
    pairs = zip(rates.samples_per_second, against.samples_per_second)
    return median_and_quartiles([one / other for one, other in pairs])


def judge(name: str, measured: dict[str, Rates], asked: bool) -> list[Measured]:
    """Makes the rows of one configuration. If `asked` is true, they are compared with its
    target."""
    medians = {variant: median_and_quartiles(seen.samples_per_second)
               for variant, seen in measured.items()}
    torch_rate = next(iter(medians.values()))[0]
    rows = [
        Measured(Figure(f"{name}: {variant}", middle, "samples/s", "torch", torch_rate), spread)
        for variant, (middle, spread) in medians.items()
    ]
    _, in_memory, without, ahead = measured.values()
    to_memory, to_memory_spread = compared(ahead, in_memory)
    to_none, to_none_spread = compared(ahead, without)
    torch_run, *banks = measured.values()
    bank_aucs = [auc for seen in banks for auc in seen.aucs]
    between_banks = max(bank_aucs) - min(bank_aucs)
    to_torch = max(abs(bank - auc) for bank in bank_aucs for auc in torch_run.aucs)
    invalid = name == "disk" and any(seen.device_notes for seen in banks)
    share = to_memory >= IN_MEMORY_SHARE_MIN if asked and name == "model" else None
    gain = None
    if asked and name == "disk":
        gain = not invalid and to_none >= LOOKAHEAD_GAIN_MIN
    return [
        *rows,
        Measured(Figure(f"{name}: lookahead against in memory", to_memory, "x"),
                 to_memory_spread, passed=share),
        Measured(Figure(f"{name}: lookahead against none", to_none, "x"),
                 to_none_spread, passed=gain, invalid=invalid),
        Measured(Figure(f"{name}: auc, difference between banks", between_banks, ""),
                 passed=between_banks <= BANKS_DIFFERENCE_MAX),
        Measured(Figure(f"{name}: auc, difference to torch", to_torch, ""),
                 passed=to_torch <= TORCH_DIFFERENCE_MAX),
    ]


if __name__ == "__main__":
    sys.exit(main())
