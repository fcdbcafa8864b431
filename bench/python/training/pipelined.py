"""Measures the gain of getting rows ahead (`embank.torch.Pipelined`) at several depths.

Trains the disk-bound models on the generated data of `speed` by turns, with a budget of an eighth
of the tables: at depth 0, the plain loop, and at further depths, each without Lookahead and with
it. Targets, as medians of the ratios to depth 0: without Lookahead the best depth reaches 1.3, and
with Lookahead no depth falls below 0.95. All runs of a model must have equal losses in the first
steps. --quick takes dlrm-disk, three depths and few turns.
"""

from __future__ import annotations

import argparse
import sys

import measure
from figures import Figure
from measure import Measured, median_and_quartiles
from speed import FIRST_DIFFERENCE_MAX, compared, in_turns, pooled
from workloads import NAMES, Rows, add_options, workload

DEFAULT = ("dlrm-disk", "distmult-disk", "graphsage-disk")
DEPTHS, DEPTHS_QUICK = (0, 1, 2, 4, 8), (0, 1, 4)
TURNS, TURNS_QUICK = 6, 4
SHARE = 1 / 8
GAIN_MIN, LOOKAHEAD_MIN = 1.3, 0.95


def main() -> int:
    options = measure.parser(__doc__)
    add = options.add_argument
    add("--model", choices=NAMES, nargs="+", help=f"default: {' '.join(DEFAULT)}")
    add_options(options)
    add("--seeds", type=int, default=1, help="runs, from --seed on; their turns are pooled")
    add("--turns", type=int, help=f"at every depth (default {TURNS}, quick {TURNS_QUICK})")
    given = options.parse_args()
    models = given.model or (["dlrm-disk"] if given.quick else DEFAULT)
    if len(models) > 1:
        return measure.each_alone(__file__, models, given)
    return measure.report(depths(models[0], given), given, {"nodes": given.nodes, "dim": given.dim})


def depths(name: str, given: argparse.Namespace) -> list[Measured]:
    """Measures each depth, without Lookahead and with it."""
    work = workload(name, given)
    budget = work.budget_bytes(SHARE)
    turns = given.turns or (TURNS_QUICK if given.quick else TURNS)
    tried = DEPTHS_QUICK if given.quick else DEPTHS
    rows: list[Measured] = []
    for lookahead in (False, True):
        suffix = " lookahead" if lookahead else ""
        variants = [
            Rows(f"depth {depth}{suffix}", "embank", budget, "auto" if lookahead else 0, depth)
            for depth in tried
        ]
        runs = [in_turns(work, variants, f"{name}{suffix.replace(' ', '-')}", turns, seed,
                         [given.threads])
                for seed in range(given.seed, given.seed + given.seeds)]
        plain, *others = pooled(runs)
        gains = {}
        for one in (plain, *others):
            rate, spread = median_and_quartiles(one.rates)
            rows.append(Measured(Figure(f"{name} {one.run.rows.name}", rate, "samples/s"), spread))
        for one in others:
            gain, spread = median_and_quartiles(compared(one, plain))
            gains[one.run.rows.depth] = gain
            asked = lookahead and not given.quick
            rows.append(Measured(
                Figure(f"{name} {one.run.rows.name}, of depth 0", gain, "x"), spread,
                passed=gain >= LOOKAHEAD_MIN if asked else None,
            ))
        best = max(gains.values())
        rows.append(Measured(
            Figure(f"{name}{suffix}: best depth, of depth 0", best, "x"),
            passed=best >= GAIN_MIN if not lookahead and not given.quick else None,
        ))
        apart = max(one.first_apart(plain) for one in others)
        rows.append(Measured(
            Figure(f"{name}{suffix}: losses of the first steps apart, relative", apart, ""),
            passed=apart <= FIRST_DIFFERENCE_MAX,
        ))
    return rows


if __name__ == "__main__":
    sys.exit(main())
