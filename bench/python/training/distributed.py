"""Measures training on two ranks, each on one core, beside one rank on one core.

The model is DLRM on rows of the Criteo format. `dlrm` has the MLPs of DLRM's reference
configuration, and `dlrm-disk` is a small model with small batches. One rank has a bank, whose
budget is a quarter of the tables. Two ranks have a sharded bank
(`embank.torch.distributed.ShardedBank`), half of the budget each, and DistributedDataParallel for
the dense part. Each of them trains on as many rows a step as the one rank. All threads of a rank
run on one core.

The runs train by turns of some steps. Figures are medians over all turns but the first fifth, with
the distance between their quartiles. Programs beside the measurement slow two ranks more than one,
because each rank waits for the slower one. So the ratio is invalid if a rank waited for its core
for more than 5% of the time. A second ratio compares the processor time of the ranks. It leaves out
all waits: for the core, for the disk, and for the other rank.

The runs repeat with room for every row, so that no rank reads from the disk. Ranks on machines of
their own have a drive each. Here both ranks read from one drive, twice as many rows in the time of
a step. The runs without reads leave this out.

The parts of a step of two ranks are measured in their turns. The sum of the dense gradients is
measured alone, after the turns. The price of the exchange is the time in calls of the sharded bank,
without the time in the rank's own shard. The part of the disk is what the calls of the own shard
take beyond those of the run with room for every row.

Targets: two ranks reach 1.6 times the samples/s of one rank with `dlrm`. A rank sends to others
`8 + 2 * 4 * dim` bytes for each distinct key of its batch that another rank owns, within 5%. The
mean losses of two ranks in the first steps are those of one process that trains on the batches of
both. --quick takes fewer turns, and has no target for the ratio. --threads is the number of torch's
threads of each rank.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import measure
from distributed_rank import PARTS, Outcome, Place
from figures import Figure, mebibytes
from measure import Measured, median_and_quartiles
from rank_run import DISTURBED_SHARE_MAX, RANKS, Run, two_cores
from speed import FIRST_DIFFERENCE_MAX, FIRST_STEPS
from workloads import MEBI, ROOMY, Clicks

NAMES = ("dlrm", "dlrm-disk")
RATIO_MIN = 1.6
BYTES_APART_MAX = 0.05
TURNS, TURNS_QUICK = 15, measure.sized(5, 2)
TURN_SECONDS = measure.sized(2.0, 0.0)
TURN_STEPS_MIN = 5


def main() -> int:
    options = measure.parser(__doc__)
    options.set_defaults(threads=1)
    add = options.add_argument
    add("--model", choices=NAMES, nargs="+", help=f"default: {' '.join(NAMES)}; quick dlrm")
    add("--turns", type=int, help=f"of each run (default {TURNS}, quick {TURNS_QUICK})")
    add("--depth", type=int, default=0, help="batches that `Pipelined` gets ahead (default 0)")
    given = options.parse_args()
    models = given.model or (NAMES[:1] if given.quick else NAMES)
    if len(models) > 1:
        return measure.each_alone(__file__, models, given)
    return measure.report(measured(models[0], given), given, {"depth": given.depth})


def measured(name: str, given: argparse.Namespace) -> list[Measured]:
    """Measures the runs by turns, after the first steps of one process on the batches of two ranks.
    """
    model, _, disk = name.partition("-")
    # Makes the files of the data, which the ranks read.
    work = Clicks(given, model, bool(disk))
    budget = work.budget_bytes(1 / 4)
    print(f"{name}: tables {mebibytes(work.table_bytes)}, budget {mebibytes(budget)}", flush=True)
    folder = measure.SCRATCH / "distributed" / name
    alone = Place(0, 1, work.batch, budget, given.depth, folder / "one")
    whole = replace(alone, rows=RANKS * work.batch, depth=0, folder=folder / "whole")
    shared = replace(alone, ranks=RANKS, budget_bytes=budget // RANKS, folder=folder / "two")
    room = max(64 * MEBI, ROOMY * work.table_bytes)
    roomy_alone = replace(alone, budget_bytes=room, folder=folder / "roomy-one")
    roomy = replace(shared, budget_bytes=room // RANKS, folder=folder / "roomy-two")
    cores = two_cores()
    reference = Run(name, given, cores[:1], whole)
    reference.take(FIRST_STEPS)
    reference.end()
    one, two, roomy_one, roomy_two = runs = [
        Run(name, given, cores[: place.ranks], place)
        for place in (alone, shared, roomy_alone, roomy)
    ]
    for run in runs:
        run.take(FIRST_STEPS)
    steps = max(
        TURN_STEPS_MIN, round(TURN_SECONDS * FIRST_STEPS / one.turns[0][0].seconds)
    )
    turns = given.turns or (TURNS_QUICK if given.quick else TURNS)
    for turn in range(turns):
        for run in runs if turn % 2 == 0 else runs[::-1]:
            run.take(steps)
    (of_one,), of_two, *_ = [run.end() for run in runs]
    shutil.rmtree(folder)
    print(f"  {turns} turns of {steps} steps of {work.batch} samples a rank", flush=True)
    asked = name == "dlrm" and not given.quick
    return [
        *speeds(name, one, two, asked),
        *speeds(f"{name}, all rows in memory", roomy_one, roomy_two, asked),
        *parts(name, one, two, roomy_two, of_two),
        *counts(name, of_one, of_two),
        losses(name, two, reference),
    ]


def speeds(name: str, one: Run, two: Run, asked: bool) -> list[Measured]:
    rows = []
    rates = [[run.rows / seconds for seconds in run.step_seconds()] for run in (one, two)]
    for what, of_run in zip(("one rank", "two ranks"), rates):
        rate, spread = median_and_quartiles(of_run)
        rows.append(Measured(Figure(f"{name}: {what}", rate, "samples/s"), spread))
    ratio, spread = median_and_quartiles([b / a for a, b in zip(*rates)])
    for what, run in (("one rank", one), ("two ranks", two)):
        share, its_spread = median_and_quartiles(run.disturbed_share())
        of_time = Figure(f"{name}: {what}, share of time without a core", share, "")
        rows.append(Measured(of_time, its_spread))
    # The shares of both runs count: other programs slow either of them.
    invalid = max(row.figure.value for row in rows[-2:]) > DISTURBED_SHARE_MAX
    computed = zip(one.computed_seconds(), two.computed_seconds())
    of_computing, of_spread = median_and_quartiles([RANKS * a / b for a, b in computed])
    return [
        *rows,
        Measured(Figure(f"{name}: two ranks, of one rank", ratio, "x"), spread, invalid=invalid,
                 passed=ratio >= RATIO_MIN if asked and not invalid else None),
        Measured(Figure(f"{name}: two ranks, of one rank, by processor time", of_computing, "x"),
                 of_spread),
    ]


def parts(
    name: str, one: Run, two: Run, in_memory: Run, of_two: Sequence[Outcome]
) -> list[Measured]:
    """The parts of a step of two ranks, and the price of the exchange. The disk's part is what the
    own shard takes beyond that of `in_memory`, whose ranks have room for all rows."""
    step = two.step_seconds()
    of = {part: two.part_seconds(part) for part in PARTS}
    exchange = [sum(each) for each in zip(*(of[part] for part in PARTS if part != "store"))]
    inside = [sum(each) for each in zip(*of.values())]
    all_reduce = fmean(one.all_reduce_seconds for one in of_two)
    rows = [
        ("step of one rank", one.step_seconds()),
        ("step of two ranks", step),
        ("processor time of a step, one rank", one.computed_seconds()),
        ("processor time of a step, each of two ranks", two.computed_seconds()),
        ("one rank: its bank", one.part_seconds("store")),
        ("two ranks: waits for the other rank in exchanges", of["waits"]),
        ("two ranks: messages of exchanges", of["messages"]),
        ("two ranks: keys, copies and sums of exchanges", of["bank"]),
        ("two ranks: own shard", of["store"]),
        ("two ranks: own shard, the part of the disk",
         [a - b for a, b in zip(of["store"], in_memory.part_seconds("store"))]),
        ("two ranks: sum of dense gradients, alone", [all_reduce] * len(step)),
        ("two ranks: rest of the step, the computing",
         [a - b - all_reduce for a, b in zip(step, inside)]),
        ("price of the exchange", exchange),
    ]
    found = []
    for what, seconds in rows:
        middle, spread = median_and_quartiles([1e3 * each for each in seconds])
        found.append(Measured(Figure(f"{name}: {what}", middle, "ms"), spread))
    share, spread = median_and_quartiles([a / b for a, b in zip(exchange, step)])
    of_step = Figure(f"{name}: price of the exchange, of a step", share, "")
    return [*found, Measured(of_step, spread)]


def counts(name: str, of_one: Outcome, of_two: Sequence[Outcome]) -> list[Measured]:
    """Rows from disk, and bytes to other ranks. Counts of two ranks are the means of both."""
    steps = of_one.steps
    sent, expected, headers, remote, reads = (
        fmean(each) / steps
        for each in zip(*(
            (of.bytes_sent, of.remote_keys * of.key_bytes, of.header_bytes, of.remote_keys,
             of.disk_reads)
            for of in of_two
        ))
    )
    found = [
        ("rows from disk a step, one rank", of_one.disk_reads / steps, ""),
        ("rows from disk a step, each of two ranks", reads, ""),
        ("distinct keys of the other rank in a batch", remote, ""),
        ("bytes of headers to the other rank a step", headers, "B"),
    ]
    bytes_sent = Figure(
        f"{name}: bytes to the other rank a step", sent, "B", "computed", expected
    )
    return [
        *(Measured(Figure(f"{name}: {what}", value, unit)) for what, value, unit in found),
        Measured(bytes_sent, passed=abs(sent / expected - 1) <= BYTES_APART_MAX),
    ]


def losses(name: str, two: Run, whole: Run) -> Measured:
    """The largest relative difference of a loss of two ranks from that of one process."""
    pairs = zip(two.first_losses, whole.first_losses, strict=True)
    apart = max(abs(a / b - 1) for a, b in pairs)
    return Measured(
        Figure(f"{name}: losses of the first steps apart from one process, relative", apart, ""),
        passed=apart <= FIRST_DIFFERENCE_MAX,
    )


if __name__ == "__main__":
    sys.exit(main())
