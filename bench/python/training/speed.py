"""Measures how fast the families train out of core, compared with memory and with RocksDB.

Tables have four times the budget, for a model of each family on generated data:

  dlrm, dcn, dcnv1, ffnn  clicks in Criteo format, the MLPs of DLRM's reference configuration
  distmult, complex       triples over 300,000 entities, 128 floats, batches of 4,000
  graphsage, gat          neighbour sampling on a power-law graph, 512 hidden units
                          (--nodes, 500,000 by default)

Each also exists with "-disk" behind its name: small batches, and little work for each row.

Variants: torch in memory, Embank with room for every row, Embank out of core, Embank out of core
with Lookahead, RocksDB with room for every row, and RocksDB with the budget of Embank out of core.
All run the same loop. They train by turns of some batches, and each turn is compared with the turns
of the other variants in its round. Figures are medians over all turns but the first fifth, with the
distance between their quartiles. In a round each variant has a turn with torch on every core and a
turn with one core left for a thread that reads ahead. A variant counts with the number of threads
(--threads) that is fastest for it in these turns.

Targets: with Lookahead at least 0.85 of Embank in memory, for each model that is not "-disk". For
each "-disk" model at least 3 times the samples/s of RocksDB. That figure is valid only if the disk
is the bottleneck of both stores: out of core, without Lookahead, each runs below 0.7 of its own
speed in memory. The lines before it explain the figure: both stores in memory, without the disk;
the part of its own speed that each store keeps; and the part of RocksDB's time that Python took.
The losses of all variants must be equal, step by step. --quick takes dlrm-disk alone with few
turns, and has no targets for the ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import measure
import torch
from figures import Figure, mebibytes
from measure import Measured, median_and_quartiles
from workloads import MEBI, NAMES, ROOMY, Rows, Run, Workload, add_options, workload

DEFAULT = ("dlrm", "dlrm-disk", "distmult", "distmult-disk", "gat", "graphsage-disk")
IN_MEMORY_SHARE_MIN = 0.85
ROCKSDB_RATIO_MIN = 3.0
DISK_BOUND_SHARE = 0.7
LOSS_DIFFERENCE_MAX = 5e-3
FIRST_STEPS = 12
FIRST_DIFFERENCE_MAX = 1e-4
"""Largest relative difference of the loss in any of the first steps. Rounding differences are still
small there: in dlrm 6e-6 by the twelfth step and 2e-4 by the 22nd. Half the learning rate shows as
1e-3 by the second step and 4e-2 by the fourth."""
TURNS, TURNS_QUICK = 12, 3
TURN_SECONDS = measure.sized(1.0, 0.0)
"""Seconds of a turn in the first run, from which the number of steps of a turn follows."""
TURN_LOOKAHEADS = measure.sized(5, 1)
"""A turn has at least this number of times the batches that may be ahead. It ends with a wait for
the announced rows, which no step hides, and training without turns has no such waits."""
WARM_UP_STEPS = 5
WARM_UP_SHARE = 0.2
LOOKAHEAD, LOOKAHEAD_SMALL = 2, 8
"""Least number of announced batches; the second number is for small batches."""
LOOKAHEAD_AUTO = 14
"""Number of batches ahead that the length of a turn assumes for the automatic depth."""
LOOKAHEAD_MORE = 2
"""Most batches that are announced beyond the depth, because `LookaheadLoader` announces three
together."""


@dataclass
class Turns:
    """The results of a run: samples/s of every turn by the number of torch's threads, the losses of
    all steps, and the losses of the first steps.

    `shim_shares_with` has, for each turn, the share of its time that Python's code around RocksDB
    took. """

    run: Run
    rates_with: dict[int, list[float]] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first: list[torch.Tensor] = field(default_factory=list)
    shim_shares_with: dict[int, list[float]] = field(default_factory=dict)

    def take(self, steps: int, batch: int, threads: int) -> None:
        """Trains for some steps, then waits until the announced rows are read. The wait counts as
        time."""
        torch.set_num_threads(threads)
        started = time.perf_counter()
        self.losses += [next(self.run.steps) for _ in range(steps)]
        self.run.settle()
        seconds = time.perf_counter() - started
        self.rates_with.setdefault(threads, []).append(steps * batch / seconds)
        share = self.run.take_shim_seconds() / seconds
        self.shim_shares_with.setdefault(threads, []).append(share)
        self.run.rest()

    @property
    def threads(self) -> int:
        """The number of threads that the run is fastest with."""
        return max(self.rates_with, key=lambda threads: median(self.rates_with[threads]))

    @property
    def rates(self) -> list[float]:
        """The samples/s with the number of threads that is fastest."""
        return self.rates_with[self.threads]

    def first_apart(self, other: Turns) -> float:
        """Returns the largest relative difference of a loss from that of `other`, among the first
        steps."""
        mine, others = torch.stack(self.first).double(), torch.stack(other.first).double()
        return float(((mine - others).abs() / others.abs()).max())

    def loss(self) -> float:
        return float(torch.stack(self.losses).mean())


def main() -> int:
    given = parser(__doc__).parse_args()
    models = given.model or (["dlrm-disk"] if given.quick else DEFAULT)
    if len(models) > 1:
        return measure.each_alone(__file__, models, given)
    rows = measured(models[0], given)
    more = {"threads": given.threads, "nodes": given.nodes, "dim": given.dim}
    return measure.report(rows, given, more)


def parser(about: str | None) -> argparse.ArgumentParser:
    cores = os.cpu_count() or 1
    options = measure.parser(about or "", sorted({cores, max(1, cores - 1)}, reverse=True))
    add = options.add_argument
    add("--model", choices=NAMES, nargs="+", help=f"default: {' '.join(DEFAULT)}")
    add_options(options)
    add("--seeds", type=int, default=1, help="runs, from --seed on; their turns are pooled")
    add("--turns", type=int, help=f"default {TURNS}, quick {TURNS_QUICK}")
    return options


def measured(name: str, given: argparse.Namespace) -> list[Measured]:
    """Measures all variants of one model by turns."""
    work = workload(name, given)
    seeds = range(given.seed, given.seed + given.seeds)
    budget = work.budget_bytes(1 / 4)
    lookahead = LOOKAHEAD_SMALL if name.endswith("-disk") else LOOKAHEAD
    variants = [
        Rows("torch in memory", "torch"),
        Rows("Embank in memory", "embank", max(64 * MEBI, ROOMY * work.table_bytes)),
        Rows("Embank out of core", "embank", budget),
        Rows("Embank with Lookahead", "embank", budget, lookahead),
        Rows("RocksDB in memory", "rocksdb", max(64 * MEBI, ROOMY * work.table_bytes)),
        Rows("RocksDB out of core", "rocksdb", budget),
    ]
    print(f"{name}: tables {mebibytes(work.table_bytes)}, budget {mebibytes(budget)}", flush=True)
    turns = given.turns or (TURNS_QUICK if given.quick else TURNS)
    seen = pooled([in_turns(work, variants, name, turns, seed, given.threads) for seed in seeds])
    return judge(name, seen, asked=not given.quick)


def pooled(runs: list[list[Turns]]) -> list[Turns]:
    """Joins the turns of all runs, by variant."""
    return [
        Turns(parts[0].run,
              steady(part.rates_with for part in parts),
              [loss for part in parts for loss in part.losses],
              [note for part in parts for note in part.notes],
              [loss for part in parts for loss in part.first],
              steady(part.shim_shares_with for part in parts))
        for parts in zip(*runs)
    ]


def steady(parts: Iterable[dict[int, list[float]]]) -> dict[int, list[float]]:
    """Returns the values of all turns except the first ones of each part, by torch's threads."""
    seen: dict[int, list[float]] = {}
    for part in parts:
        for threads, values in part.items():
            seen.setdefault(threads, []).extend(values[int(len(values) * WARM_UP_SHARE) :])
    return seen


def in_turns(
    work: Workload, variants: list[Rows], name: str, turns: int, seed: int, threads: list[int]
) -> list[Turns]:
    """Lets the variants train by turns: `turns` rounds with each number of threads."""
    folder = measure.SCRATCH / "speed" / name
    shutil.rmtree(folder, ignore_errors=True)
    seen = []
    for number, variant in enumerate(variants):
        seen.append(Turns(work.start(variant, folder / str(number), seed)))
        seen[-1].run.rest()
        if variant.budget_bytes > work.table_bytes:
            seen[-1].run.warm()
    for one in seen:
        one.take(WARM_UP_STEPS, work.batch, threads[0])
    ahead = max(
        LOOKAHEAD_AUTO if variant.lookahead == "auto" else variant.lookahead for variant in variants
    ) + LOOKAHEAD_MORE
    steps = max(TURN_LOOKAHEADS * ahead, round(TURN_SECONDS * seen[0].rates[-1] / work.batch))
    most = (work.steps_max - WARM_UP_STEPS) // (turns * len(threads))
    if most < TURN_LOOKAHEADS * ahead:
        raise SystemExit(f"{name} has data for turns of {most} steps, and {TURN_LOOKAHEADS * ahead} "
                         "are the least: give fewer --turns or --threads")
    steps = min(steps, most)
    for one in seen:
        one.rates_with.clear()
        one.shim_shares_with.clear()
    for turn in range(turns):
        # The order of the numbers of threads is reversed in every other round, so that neither end
        # of the list is always first.
        for count in threads if turn % 2 == 0 else threads[::-1]:
            for one in seen:
                one.take(steps, work.batch, count)
    print(f"  {'; '.join(sorted({line for one in seen for line in one.run.drive}))}", flush=True)
    for one in seen:
        one.notes, one.first = one.run.notes, one.losses[:FIRST_STEPS]
        one.run.bank.close()
    shutil.rmtree(folder)
    print(f"  {turns} turns of {steps} steps of {work.batch} samples", flush=True)
    return seen


def judge(name: str, seen: list[Turns], asked: bool) -> list[Measured]:
    in_memory, without, ahead, rocks_in_memory, rocks = seen[1:]
    rows = []
    for one in seen:
        rate, spread = median_and_quartiles(one.rates)
        rows.append(Measured(Figure(f"{name}: {one.run.rows.name}", rate, "samples/s"), spread))
        if len(one.rates_with) > 1:
            what = f"{name}: {one.run.rows.name}, fastest with torch threads"
            rows.append(Measured(Figure(what, one.threads, "")))

    def line(what: str, ratios: list[float], **judged: Any) -> Measured:
        middle, spread = median_and_quartiles(ratios)
        return Measured(Figure(f"{name}: {what}", middle, "x"), spread, **judged)

    kept, kept_ahead = compared(without, in_memory), compared(ahead, in_memory)
    rocks_kept, ratios = compared(rocks, rocks_in_memory), compared(ahead, rocks)
    notes = [note for one in seen for note in one.notes]
    disk = name.endswith("-disk")
    valid = not notes and all(median(of) < DISK_BOUND_SHARE for of in (kept, rocks_kept))
    losses = [one.loss() for one in seen]
    first = max(one.first_apart(seen[0]) for one in seen[1:])
    apart = max(losses) / min(losses) - 1.0
    if len(in_memory.rates_with) > 1:
        for threads in in_memory.rates_with:
            pairs = zip(ahead.rates_with[threads], in_memory.rates_with[threads])
            rows.append(line(f"Embank with Lookahead, of itself in memory, torch threads {threads} in both",
                             [a / b for a, b in pairs]))
    return [
        *rows,
        line("Embank out of core, of itself in memory", kept),
        line("Embank with Lookahead, of itself in memory", kept_ahead,
             passed=median(kept_ahead) >= IN_MEMORY_SHARE_MIN if asked and not disk else None),
        line("RocksDB out of core, of itself in memory", rocks_kept),
        line("RocksDB out of core, share of Python", rocks.shim_shares_with[rocks.threads]),
        line("Embank against RocksDB, both in memory", compared(in_memory, rocks_in_memory)),
        line("Embank without Lookahead against RocksDB", compared(without, rocks)),
        line("what Embank with Lookahead keeps, over what RocksDB keeps",
             [a / b for a, b in zip(kept_ahead, rocks_kept)]),
        line("Embank with Lookahead against RocksDB", ratios, invalid=disk and not valid,
             passed=median(ratios) >= ROCKSDB_RATIO_MIN if asked and disk and valid else None),
        Measured(Figure(f"{name}: losses of the first steps apart, relative", first, ""),
                 passed=first <= FIRST_DIFFERENCE_MAX),
        Measured(Figure(f"{name}: mean losses apart, relative", apart, ""),
                 passed=apart <= LOSS_DIFFERENCE_MAX),
    ]


def compared(one: Turns, other: Turns) -> list[float]:
    """Returns for each turn how many times as fast `one` was as `other`."""
    return [a / b for a, b in zip(one.rates, other.rates)]


if __name__ == "__main__":
    sys.exit(main())
