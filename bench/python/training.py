"""What does training out of core cost, and what does Lookahead give back?

Criteo-format rows, tables of at least 4 times the budget, in two configurations:

  model   a model of ordinary size: most of the time goes into its matrix products. Out of core
          with Lookahead must reach 0.80 of the samples/s of the same run fully in memory.
  disk    a tiny model and small batches: every batch waits for 26 short bursts of reads, far
          from filling the disk's queue, so the disk is the bottleneck. Lookahead, which reads
          for many batches at once, must reach 1.3 times the run without it.

The variants alternate, so that a drift of the machine meets all of them; medians are shown with
the spread from the slowest to the fastest run. All banks must end with the same AUC, whatever
their budget, and in-memory torch, which rounds in another order, with nearly the same.
--quick takes a third of the rows, once, and only shows the ratios: small tables in a small budget
leave no room to look ahead.

The device of the banks and its notes (reads that the kernel's cache may answer, say) are printed
and stand in the JSON; with notes, the gain of the disk configuration is marked invalid and fails.
"""

from __future__ import annotations

import sys
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
from measure import Measured, median_and_spread
from train import TrainOptions
from variant import Experiment, run_variant

IN_MEMORY_SHARE_MIN = 0.80
LOOKAHEAD_GAIN_MIN = 1.3
BANKS_DIFFERENCE_MAX = 1e-9
TORCH_DIFFERENCE_MAX = 1e-3
RUNS = 3
CONFIGURATIONS = {
    "model": CriteoOptions(),
    "disk": CriteoOptions(
        rows=300_000, batch_size=256, bottom=(64,), top=(64,), lookahead=8
    ),
}


@dataclass
class Rates:
    """Samples/s of every run of one variant, the AUCs that they ended with, and the device."""

    samples_per_second: list[float] = field(default_factory=list)
    aucs: list[float] = field(default_factory=list)
    devices: set[str] = field(default_factory=set)
    device_notes: set[str] = field(default_factory=set)


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
        data = criteo_data(None, measure.DATA, configuration)
        experiment = replace(
            criteo_experiment(data, configuration, given.device),
            train=TrainOptions(sample_every=10),
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
    """Runs all variants in turn, `runs` times."""
    measured: dict[str, Rates] = {}
    variants = criteo_variants(experiment, quarter_budget(experiment), lookahead)
    for number in range(runs):
        for variant in variants:
            outcome = run_variant(experiment, variant, measure.SCRATCH / "training", False)
            seen = measured.setdefault(variant.name, Rates())
            seen.samples_per_second.append(outcome.samples_per_second)
            seen.aucs.append(outcome.auc)
            if variant.budget_bytes is not None:
                seen.devices.add(outcome.device)
                seen.device_notes.update(outcome.device_notes)
            print(f"  {name}, run {number + 1}: {variant.name}: "
                  f"{outcome.samples_per_second:,.0f} samples/s", flush=True)
    return measured


def judge(name: str, measured: dict[str, Rates], asked: bool) -> list[Measured]:
    """The rows of one configuration; what is asked, if so, differs between the two."""
    medians = {variant: median_and_spread(seen.samples_per_second)
               for variant, seen in measured.items()}
    torch_rate, in_memory, without, ahead = (middle for middle, _ in medians.values())
    rows = [
        Measured(Figure(f"{name}: {variant}", middle, "samples/s", "torch", torch_rate), spread)
        for variant, (middle, spread) in medians.items()
    ]
    torch_run, *banks = measured.values()
    bank_aucs = [auc for seen in banks for auc in seen.aucs]
    between_banks = max(bank_aucs) - min(bank_aucs)
    to_torch = max(abs(bank - auc) for bank in bank_aucs for auc in torch_run.aucs)
    invalid = name == "disk" and any(seen.device_notes for seen in banks)
    share = ahead / in_memory >= IN_MEMORY_SHARE_MIN if asked and name == "model" else None
    gain = None
    if asked and name == "disk":
        gain = not invalid and ahead / without >= LOOKAHEAD_GAIN_MIN
    return [
        *rows,
        Measured(Figure(f"{name}: lookahead against in memory", ahead, "samples/s", "in memory",
                        in_memory), passed=share),
        Measured(Figure(f"{name}: lookahead against none", ahead, "samples/s", "without",
                        without), passed=gain, invalid=invalid),
        Measured(Figure(f"{name}: auc, difference between banks", between_banks, ""),
                 passed=between_banks <= BANKS_DIFFERENCE_MAX),
        Measured(Figure(f"{name}: auc, difference to torch", to_torch, ""),
                 passed=to_torch <= TORCH_DIFFERENCE_MAX),
    ]


if __name__ == "__main__":
    sys.exit(main())
