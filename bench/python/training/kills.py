"""Checks that a run that is killed at any moment ends as if it had not been killed.

Trains on MovieLens-100K with frequent checkpoints. Kills the process with SIGKILL at a random
moment (from --seed) after the loading of its data, resumes it, and compares the final AUC with that
of an undisturbed run: both must be equal to 1e-6, every time. Some kills come before the first
checkpoint; after at least half of the kills there must be a checkpoint to resume from. If the run
had already saved its outcome when it was killed, the kill does not count, and the run is repeated
with an earlier kill. A run that fails by itself fails the measurement. With --depth, the rows of
that many batches are got ahead.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import measure
from figures import Figure
from measure import Measured
from tqdm import tqdm

KILLS, KILLS_QUICK = 20, 3
DIFFERENCE_MAX = 1e-6
ATTEMPTS_MAX = 8
"""Most draws of a moment for one kill, because a run may be faster than the undisturbed one."""
CHECKPOINTS = 16
"""Least number of checkpoints in a run. The steps between two checkpoints are rounded down to whole
sampling intervals."""
READY = "ready"
VARIANT = "Embank"


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--kills", type=int, help=f"default {KILLS}, quick {KILLS_QUICK}")
    options.add_argument("--depth", type=int, default=0, help="default %(default)s")
    options.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child is not None:
        return train(given)
    kills = given.kills or (KILLS_QUICK if given.quick else KILLS)
    folder = measure.SCRATCH / "kills"
    shutil.rmtree(folder, ignore_errors=True)
    undisturbed = start(given, folder / "undisturbed")
    started = time.perf_counter()
    expected = finish(undisturbed)
    seconds = time.perf_counter() - started
    moments = random.Random(given.seed)
    differences: list[float] = []
    resumed: list[float] = []
    for number in tqdm(range(kills), desc="kills", disable=None):
        outcome = killed_and_resumed(given, folder / str(number), moments, seconds)
        differences.append(abs(outcome["auc"] - expected["auc"]))
        resumed.append(outcome["resumed_from"])
    shutil.rmtree(folder)
    same = sum(difference <= DIFFERENCE_MAX for difference in differences)
    from_checkpoint = sum(step > 0 for step in resumed)
    rows = [
        Measured(Figure("auc, undisturbed", expected["auc"], "")),
        Measured(Figure("undisturbed run", seconds, "s")),
        Measured(Figure("kills with the same auc", same, "", "kills", kills),
                 passed=same == kills),
        Measured(Figure("resumed from a checkpoint", from_checkpoint, "", "kills", kills),
                 passed=from_checkpoint >= kills // 2),
        Measured(Figure("auc, largest difference", max(differences), ""),
                 passed=max(differences) <= DIFFERENCE_MAX),
    ]
    return measure.report(rows, given)


def killed_and_resumed(
    given: argparse.Namespace, folder: Path, moments: random.Random, seconds: float
) -> dict[str, float]:
    """Kills a run at a random moment, resumes it, and returns the figures of the resumed run.

    Raises RuntimeError if the run fails before its kill.
    """
    latest = seconds
    for _ in range(ATTEMPTS_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        moment = moments.uniform(0.0, latest)
        child = start(given, folder)
        try:
            child.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            child.kill()
        child.communicate()
        if child.returncode == -signal.SIGKILL and not outcome_file(folder).exists():
            outcome = finish(start(given, folder))
            tqdm.write(f"killed after {moment:.2f} s of {seconds:.2f}, resumed from step "
                       f"{outcome['resumed_from']}: AUC {outcome['auc']:.9f}")
            shutil.rmtree(folder)
            return outcome
        if child.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(
                f"the training process failed with status {child.returncode} before its kill"
            )
        # The run ended before its kill, so the machine is now faster than in the undisturbed run.
        # The next attempt kills earlier.
        latest = moment
    raise RuntimeError(f"{ATTEMPTS_MAX} runs in a row ended before their kill")


def outcome_file(folder: Path) -> Path:
    """The file in which `run_variant` saves the outcome at the end of the run."""
    return folder / f"{VARIANT}.json"


def start(given: argparse.Namespace, folder: Path) -> subprocess.Popen[str]:
    """Starts a run in `folder`, or resumes the run there, and waits until it has loaded its data.

    From then on a kill can hit any later step: the warm-up of torch, the opening and recovery of
    the bank, training, a checkpoint, or the last evaluation. """
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", str(folder), "--threads", str(given.threads),
         "--device", given.device, "--depth", str(given.depth)],
        stdout=subprocess.PIPE, text=True,
    )
    assert child.stdout is not None
    if child.stdout.readline().strip() != READY:
        raise RuntimeError(f"the training process failed with status {child.wait()}")
    return child


def finish(child: subprocess.Popen[str]) -> dict[str, float]:
    """Waits for the run's end and returns its figures."""
    output, _ = child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"the training process failed with status {child.returncode}")
    outcome: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return outcome


def train(given: argparse.Namespace) -> int:
    """The program of the process that is killed: trains in `given.child`, from the checkpoint there
    if there is one. """
    import torch
    from experiments import movielens_experiment, quarter_budget, whole_intervals
    from variant import Variant, run_variant

    torch.set_num_threads(given.threads)
    experiment = movielens_experiment(measure.DATA, batch_size=256, seed=0, device=given.device)
    interval = experiment.train.sample_every
    every = whole_intervals(experiment.order.steps // CHECKPOINTS, interval)
    options = replace(experiment.train, checkpoint_every=every, depth=given.depth)
    experiment = replace(experiment, train=options)
    print(READY, flush=True)
    variant = Variant(VARIANT, quarter_budget(experiment), lookahead=4)
    outcome = run_variant(experiment, variant, given.child, resume=True)
    print(json.dumps({"auc": outcome.auc, "resumed_from": outcome.resumed_from}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
