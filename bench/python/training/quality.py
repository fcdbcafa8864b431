"""Checks that training out of core learns as well as training in memory.

The eight models of the examples run on real data with three seeds each. For equal seeds, the test
metric of two runs is compared: with all rows in memory, and with the rows in a bank that has a
quarter of their bytes as its budget.

  dlrm, dcn, dcnv1, ffnn  MovieLens-100K   AUC        within 0.002 of memory, with every seed
  distmult, complex       WN18RR           MRR        within 0.005, and at least 0.40
  graphsage, gat          Cora             accuracy   within 0.01, and at least 0.78

--plot DIR draws the validation metric against the epoch, for both variants of each family. --quick
takes dlrm, distmult and graphsage, one seed and short runs, and asks only for equality.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
from figures import Figure
from measure import Measured

SEEDS = 3
BUDGET_SHARE = 0.25


@dataclass(frozen=True)
class Asked:
    """What is asked of a family: its metric, the largest allowed difference from the run in memory,
    and the least allowed mean."""

    metric: str
    difference_max: float
    least: float | None = None


CLICKS = Asked("AUC", 0.002)
TRIPLES = Asked("MRR", 0.005, 0.40)
NODES = Asked("accuracy", 0.01, 0.78)
MODELS = {"dlrm": CLICKS, "dcn": CLICKS, "dcnv1": CLICKS, "ffnn": CLICKS, "distmult": TRIPLES,
          "complex": TRIPLES, "graphsage": NODES, "gat": NODES}
QUICK = ("dlrm", "distmult", "graphsage")
QUICK_ARGUMENTS = {"distmult": ["--epochs", "1", "--dim", "32"], "graphsage": ["--epochs", "10"]}
EXAMPLE = {"distmult": "kge", "complex": "kge", "graphsage": "gnn", "gat": "gnn"}


def main() -> int:
    given = parser().parse_args()
    models = given.model or (QUICK if given.quick else tuple(MODELS))
    seeds = range(given.seed, given.seed + (given.seeds or (1 if given.quick else SEEDS)))
    rows: list[Measured] = []
    curves: dict[str, list[Any]] = {}
    for model in models:
        runs = [(outcome(model, seed, True, given), outcome(model, seed, False, given))
                for seed in seeds]
        rows += judge(model, list(seeds), runs, reach=not given.quick)
        curves[model] = runs
    if given.plot is not None:
        from plots import convergence

        for model, runs in curves.items():
            convergence(given.plot / f"quality-{model}.svg", model, MODELS[model].metric, runs)
    return measure.report(rows, given)


def parser() -> argparse.ArgumentParser:
    options = measure.parser(__doc__)
    add = options.add_argument
    add("--model", choices=tuple(MODELS), nargs="+", help="default: all")
    add("--seeds", type=int, help=f"how many, from --seed on (default {SEEDS}, quick 1)")
    add("--budget-share", type=float, default=BUDGET_SHARE, help="of the tables' bytes")
    add("--plot", type=Path, metavar="DIR", help="draw the way there into this folder")
    return options


def outcome(model: str, seed: int, in_memory: bool, given: argparse.Namespace) -> dict[str, Any]:
    """Trains one model in its own process. Returns its `metric` and its `history`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcome.json"
        common = ["--model", model, "--seed", str(seed), "--threads", str(given.threads),
                  "--device", given.device, "--budget-share", str(given.budget_share),
                  "--json", str(out), *(["--in-memory"] if in_memory else [])]
        if model in EXAMPLE:
            script = measure.REPOSITORY / "examples" / EXAMPLE[model] / "train.py"
            common += ["--scratch", str(scratch())]
            common += QUICK_ARGUMENTS.get(model, []) if given.quick else []
        else:
            script = Path(__file__).with_name("movielens_run.py")
        subprocess.run(
            [sys.executable, str(script), *common], check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        found: dict[str, Any] = json.loads(out.read_text())
    print(f"{model}, seed {seed}, {'in memory' if in_memory else 'Embank'}: "
          f"{found['metric']:.6f}", flush=True)
    return found


def scratch() -> Path:
    folder = measure.SCRATCH / "quality"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def judge(
    model: str, seeds: list[int], runs: list[tuple[dict[str, Any], dict[str, Any]]], reach: bool
) -> list[Measured]:
    """Makes a row for each seed, and the means with their targets."""
    asked = MODELS[model]
    memory = [pair[0]["metric"] for pair in runs]
    bank = [pair[1]["metric"] for pair in runs]
    differences = [b - m for b, m in zip(bank, memory)]
    largest = max(differences, key=abs)
    reached = None
    if reach and asked.least is not None:
        reached = statistics.fmean(bank) >= asked.least
    return [
        *(Measured(Figure(f"{model}: {asked.metric}, seed {seed}", b, "", "torch in memory", m))
          for seed, b, m in zip(seeds, bank, memory)),
        Measured(Figure(f"{model}: mean {asked.metric}", statistics.fmean(bank), "",
                        "torch in memory", statistics.fmean(memory)),
                 max(bank) - min(bank), reached),
        Measured(Figure(f"{model}: mean difference", statistics.fmean(differences), ""),
                 max(differences) - min(differences)),
        Measured(Figure(f"{model}: largest difference", largest, ""), None,
                 abs(largest) <= asked.difference_max),
    ]


if __name__ == "__main__":
    sys.exit(main())
