"""Measures the gain of Lookahead at several sizes of the buffer, or at several staleness bounds.

Trains a model of each family on the generated data of `speed` by turns: without Lookahead, with it
at its automatic depth, the default, and with the fixed depth of `speed`. Budgets are from 1/16 of
the tables' bytes to all bytes that they need. The automatic depth has three targets. Lookahead is
faster at a quarter of the tables. It is faster wherever the run without Lookahead falls below 0.7
of the run with all rows in memory. At every size it costs at most a tenth. --plot DIR draws the
samples/s against the size. --quick takes dlrm-disk, three sizes and few turns.

--bounds measures staleness bounds instead, with a buffer of a quarter of the tables. At each bound,
rows are got as many batches ahead as the bound says (`embank.torch.Pipelined`), so that no get
waits, without Lookahead and with it at its automatic depth. A bound of 0 is the plain loop. Bounds
above 16, and none, get 16 batches ahead. Lookahead reads beyond
the bound, so its gain should be largest at a bound of 0. These lines have no targets.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import measure
from figures import Figure
from measure import Measured, median_and_quartiles
from speed import DISK_BOUND_SHARE, LOOKAHEAD, LOOKAHEAD_SMALL, compared, in_turns, pooled
from workloads import NAMES, ROOMY, Rows, add_options, workload

DEFAULT = ("dlrm-disk", "distmult-disk", "graphsage-disk")
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, ROOMY)
SHARES_QUICK = (1 / 8, 1 / 4, ROOMY)
TURNS, TURNS_QUICK = 6, 4
COST_MAX = 0.10
DEPTH_MAX = 16
"""The most batches that are got ahead. Each one's rows take memory of the bank."""


def main() -> int:
    options = measure.parser(__doc__)
    add = options.add_argument
    add("--model", choices=NAMES, nargs="+", help=f"default: {' '.join(DEFAULT)}")
    add_options(options)
    add("--seeds", type=int, default=1, help="runs, from --seed on; their turns are pooled")
    add("--turns", type=int,
        help=f"at every size or bound (default {TURNS}, quick {TURNS_QUICK})")
    add("--bounds", type=lambda text: None if text == "none" else int(text), nargs="+",
        metavar="N", help="staleness bounds, numbers or none, in place of the sizes")
    add("--plot", type=Path, metavar="DIR")
    given = options.parse_args()
    models = given.model or (["dlrm-disk"] if given.quick else DEFAULT)
    if len(models) > 1:
        return measure.each_alone(__file__, models, given)
    measured = sizes if given.bounds is None else bounds
    more = {"nodes": given.nodes, "dim": given.dim}
    return measure.report(measured(models[0], given), given, more)


def sizes(name: str, given: argparse.Namespace) -> list[Measured]:
    """Measures each size of the buffer, from the largest down, without Lookahead and with it."""
    work = workload(name, given)
    fixed = LOOKAHEAD_SMALL if name.endswith("-disk") else LOOKAHEAD
    turns = given.turns or (TURNS_QUICK if given.quick else TURNS)
    shares = sorted(SHARES_QUICK if given.quick else SHARES, reverse=True)
    rows: list[Measured] = []
    medians: dict[str, list[float]] = {}
    for share in shares:
        budget = work.budget_bytes(share)
        label = "all" if share == ROOMY else f"1/{round(1 / share)}"
        variants = [Rows("without Lookahead", "embank", budget),
                    Rows("with Lookahead", "embank", budget, "auto"),
                    Rows(f"{fixed} batches ahead", "embank", budget, fixed)]
        runs = [in_turns(work, variants, f"{name} {label}".replace("/", "-"), turns, seed,
                         [given.threads])
                for seed in range(given.seed, given.seed + given.seeds)]
        without, *aheads = pooled(runs)
        for one in (without, *aheads):
            rate, spread = median_and_quartiles(one.rates)
            medians.setdefault(one.run.rows.name, []).append(rate)
            rows.append(Measured(
                Figure(f"{name}, buffer {label}: {one.run.rows.name}", rate, "samples/s"), spread
            ))
        rates = medians[without.run.rows.name]
        disk_bound = rates[-1] < DISK_BOUND_SHARE * rates[0]
        least = 1.0 if disk_bound and share == 1 / 4 else 1.0 - COST_MAX
        for ahead in aheads:
            gain, spread = median_and_quartiles(compared(ahead, without))
            asked = ahead.run.rows.lookahead == "auto" and not given.quick
            rows.append(Measured(
                Figure(f"{name}, buffer {label}: gain {ahead.run.rows.name}", gain, "x"), spread,
                passed=gain >= least if asked else None,
            ))
    if given.plot is not None:
        from plots import sweep

        places = ["all" if share == ROOMY else f"1/{round(1 / share)}" for share in shares]
        sweep(given.plot / f"lookahead-{name}.svg", f"{name}: Lookahead on and off",
              "buffer, as a share of the tables", "samples/s", places[::-1],
              {variant: rates[::-1] for variant, rates in medians.items()})
    return rows


def bounds(name: str, given: argparse.Namespace) -> list[Measured]:
    """Measures each staleness bound, without Lookahead and with it."""
    work = workload(name, given)
    turns = given.turns or (TURNS_QUICK if given.quick else TURNS)
    rows: list[Measured] = []
    medians: dict[str, list[float]] = {}
    places = ["none" if bound is None else str(bound) for bound in given.bounds]
    for bound, place in zip(given.bounds, places):
        depth = DEPTH_MAX if bound is None else min(bound, DEPTH_MAX)
        variants = [Rows(label, "embank", work.budget_bytes(1 / 4), lookahead, depth, bound)
                    for label, lookahead in (("without Lookahead", 0), ("with Lookahead", "auto"))]
        runs = [in_turns(work, variants, f"{name} bound {place}", turns, seed, [given.threads])
                for seed in range(given.seed, given.seed + given.seeds)]
        without, ahead = pooled(runs)
        for one in (without, ahead):
            rate, spread = median_and_quartiles(one.rates)
            medians.setdefault(one.run.rows.name, []).append(rate)
            rows.append(Measured(
                Figure(f"{name}, bound {place}: {one.run.rows.name}", rate, "samples/s"), spread
            ))
        gain, spread = median_and_quartiles(compared(ahead, without))
        rows.append(Measured(Figure(f"{name}, bound {place}: gain", gain, "x"), spread))
    if given.plot is not None:
        from plots import sweep

        sweep(given.plot / f"lookahead-bounds-{name}.svg", f"{name}: Lookahead on and off",
              "staleness bound", "samples/s", places, medians)
    return rows


if __name__ == "__main__":
    sys.exit(main())
