"""Checks that a training process stays within its memory budget.

Trains in a separate process, and reads the largest resident memory (VmHWM) from the kernel. A
second process trains on constant tensors instead of embedding rows and never loads Embank, so it
shows the memory of torch and the model. The difference between the two must stay within 1.1 times
the budget, with tables of 1, 4 and 16 times the budget.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import measure
from figures import Figure, mebibytes
from measure import Measured, median_and_spread

MEBI = 1 << 20
TABLES_PER_BUDGET = measure.sized((1, 4, 16), (4,))
BUDGETS = measure.sized((64 * MEBI, 256 * MEBI), (4 * MEBI,))
TOLERANCE = 1.10
BASELINE_RUNS = 3
CHILD = Path(__file__).with_name("memory_child.py")


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--steps", type=int, default=300, help="training steps of every run")
    given = options.parse_args()
    budgets = BUDGETS[:1] if given.quick else BUDGETS
    steps = min(given.steps, 100) if given.quick else given.steps
    common = ["--steps", str(steps), "--threads", str(given.threads), "--device", given.device]

    baselines = [peak_bytes([*common]) for _ in range(1 if given.quick else BASELINE_RUNS)]
    baseline, spread = median_and_spread(baselines)
    rows = [Measured(Figure("torch and model alone", baseline, "bytes"), spread)]
    for budget in budgets:
        for times in TABLES_PER_BUDGET:
            bank = measure.SCRATCH / "memory"
            shutil.rmtree(bank, ignore_errors=True)
            peak = peak_bytes([
                *common, "--bank", str(bank), "--budget", str(budget),
                "--table-bytes", str(budget * times),
            ])
            shutil.rmtree(bank)
            beyond = peak - baseline
            rows.append(Measured(
                Figure(f"budget {mebibytes(budget)}, tables {times}x", beyond, "bytes", "budget",
                       budget),
                passed=measure.sized(beyond <= budget * TOLERANCE, None),
            ))
            print(f"budget {mebibytes(budget)}, tables {times}x: {mebibytes(beyond)} beyond torch",
                  flush=True)
    return measure.report(rows, given)


def peak_bytes(arguments: list[str]) -> float:
    """Runs the training process and returns the peak that it reports."""
    done = subprocess.run(
        [sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(json.loads(done.stdout.strip().splitlines()[-1])["peak_bytes"])


if __name__ == "__main__":
    sys.exit(main())
