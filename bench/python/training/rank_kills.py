"""Checks that ranks under torchrun that are killed at any moment end as if nothing had happened.

Runs `examples/dlrm/distributed.py` with frequent sets. SIGKILL ends one rank, whereupon torchrun
ends the others, or torchrun and all ranks. A kill comes a random time after the beginning of a
random call on a random rank (from --seed) of one of these phases:

  settle     the opening after a first kill brings a shard to the newest complete set
  take       a set: a shard takes its checkpoint
  commit     a set: a shard writes its record
  step       the optimizer of the dense part takes a step; the rest of the step follows
  evaluate   the last evaluation reads rows

A fresh torchrun then resumes the run. All shards must open at one set, which is the newest that is
complete: the last one of which a rank had written a record, or one whose record a rank was writing.
The run must begin at the step of that set, and end with the AUC and the scores of an undisturbed
run, bit for bit. A kill that came too late to end the run does not count, and is drawn again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import measure
from doomed_rank import Doom
from figures import Figure
from measure import Measured

RANK = Path(__file__).with_name("doomed_rank.py")
COUNT, COUNT_QUICK = 10, 3
ATTEMPTS_MAX = 8
"""Most draws of a moment for one kill."""
DELAYS = {"settle": 0.01, "take": 0.01, "commit": 0.01, "step": 0.03, "evaluate": 0.03}
"""The phases, and the longest time in seconds from the beginning of a call to the kill: about as
long as the call, or for steps as long as the whole step."""
SAVE_EVERY = 4
ARGUMENTS = [
    "--rows", measure.sized("8000", "1500"), "--batch-size", "32", "--save-every", str(SAVE_EVERY),
    "--budget", "16MiB",
]  # fmt: skip
RUN_SECONDS_MAX = 600
END_SECONDS_MAX = 60.0

Calls = list[dict[str, int]]
"""The calls of each phase in an undisturbed run, by rank."""


class Run:
    """A run, which may start several times."""

    def __init__(self, folder: Path, name: str, ranks: int) -> None:
        self.bank = folder / name
        self.diary = folder / f"{name}-diary"
        """What the ranks of the newest start have written."""
        self.data = folder / "data"
        self.ranks = ranks
        self.newest = range(-1, 0)
        """The sets that may be the newest complete one. -1 stands for none."""
        self.right = True
        """Whether every start has opened all shards at the newest complete set."""

    def start(self, doom: Optional[Doom]) -> str:
        """Runs the example under a fresh torchrun, and waits for its end. Returns its output."""
        shutil.rmtree(self.diary, ignore_errors=True)
        self.diary.mkdir()
        doomed = json.dumps({} if doom is None else asdict(doom))
        done = subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", str(self.ranks), str(RANK), str(self.diary), doomed,
                str(self.bank), "--data", str(self.data), *ARGUMENTS,
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=RUN_SECONDS_MAX,
        )  # fmt: skip
        self.wait_for_ranks()
        if (done.returncode != 0) != self.was_killed():
            raise RuntimeError(f"torchrun ended with {done.returncode}, {doom}:\n{done.stdout}")
        self.follow_sets()
        return done.stdout

    def follow_sets(self) -> None:
        """Checks the sets at which the ranks have opened their shards, and counts the sets that
        they took. A set is complete if a rank has written its record. It may be complete if a rank
        was writing its record."""
        opened = self.opened()
        if opened:
            self.right &= len(set(opened)) == 1 and opened[0] in self.newest
            self.newest = range(opened[0], opened[0] + 1)
        begun, ended = (
            max(lines.count(f"commit {what}") for lines in self.lines())
            for what in ("begins", "ends")
        )
        self.newest = range(self.newest[0] + ended, self.newest[-1] + begun + 1)

    def wait_for_ranks(self) -> None:
        """Waits for ranks that outlive torchrun, until they have ended."""
        deadline = time.monotonic() + END_SECONDS_MAX
        for path in self.diary.glob("process-*"):
            process = json.loads(path.read_text())[0]
            while alive(process):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"process {process} of a rank has not ended after its kill")
                time.sleep(0.01)

    def lines(self) -> list[list[str]]:
        """The lines of each rank in the diary."""
        return [
            path.read_text().splitlines() if path.exists() else []
            for path in (self.diary / f"calls-{rank}" for rank in range(self.ranks))
        ]

    def was_killed(self) -> bool:
        return any("killed" in lines for lines in self.lines())

    def outcomes(self) -> list[dict[str, Any]]:
        """What the ranks have reached. Empty if no rank has reached the end."""
        return [json.loads(path.read_text()) for path in sorted(self.diary.glob("outcome-*"))]

    def opened(self) -> list[int]:
        """The set at which each rank has opened its shard, of the ranks that have."""
        return [
            int(line.split()[1])
            for lines in self.lines() for line in lines if line.startswith("opened")
        ]  # fmt: skip

    def remove(self) -> None:
        for path in (self.bank, self.diary):
            shutil.rmtree(path, ignore_errors=True)


def alive(process: int) -> bool:
    """True if a process runs. A zombie has ended: its locks are free."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def killed(given: argparse.Namespace, folder: Path, draw: random.Random, calls: Calls) -> Run:
    """Starts a run that is killed. In the phase "settle" the start that resumes a killed run is
    killed too."""
    for _ in range(ATTEMPTS_MAX):
        run = Run(folder, "killed", given.ranks)
        run.remove()
        phase = draw.choice(list(DELAYS))
        phases = ["step", phase] if phase == "settle" else [phase]
        dooms = [drawn(of, draw, calls) for of in phases]
        for doom in dooms:
            run.start(doom)
            if not run.was_killed() or run.outcomes():
                break
        else:
            print("; ".join(described(doom) for doom in dooms), flush=True)
            return run
    raise RuntimeError(f"{ATTEMPTS_MAX} runs in a row ended before their kill")


def drawn(phase: str, draw: random.Random, calls: Calls) -> Doom:
    rank = draw.randrange(len(calls))
    return Doom(
        phase, draw.randrange(calls[rank][phase]), draw.uniform(0, DELAYS[phase]), rank,
        all=draw.random() < 0.5,
    )  # fmt: skip


def described(doom: Doom) -> str:
    killed = "torchrun and all ranks" if doom.all else "rank"
    moment = f"{1000 * doom.delay:.1f} ms after {doom.phase} {doom.call} of rank {doom.rank}"
    return f"{killed} killed {moment}"


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--ranks", type=int, default=2, help="default %(default)s")
    options.add_argument("--kills", type=int, help=f"default {COUNT}, quick {COUNT_QUICK}")
    given = options.parse_args()
    kills = given.kills or (COUNT_QUICK if given.quick else COUNT)
    measure.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=measure.SCRATCH, prefix="rank-kills-") as folder:
        rows = checked(given, kills, Path(folder))
    return measure.report(rows, given, {"ranks": given.ranks})


def checked(given: argparse.Namespace, kills: int, folder: Path) -> list[Measured]:
    run = Run(folder, "undisturbed", given.ranks)
    run.start(None)
    expected = run.outcomes()
    calls = [of["calls"] for of in expected]
    reached = {(of["auc"], of["scores"]) for of in expected}
    if len(expected) != given.ranks or len(reached) != 1:
        raise RuntimeError(f"the ranks of the undisturbed run do not agree: {expected}")
    value = float.fromhex(expected[0]["auc"])
    print(f"undisturbed: AUC {value!r}, calls {calls[0]}", flush=True)
    draw = random.Random(f"ranks {given.seed}")
    at_newest = same = resumed = 0
    for _ in range(kills):
        run = killed(given, folder, draw, calls)
        newest = list(run.newest)
        output = run.start(None)
        opened = run.opened()
        # Set 0 is that of the new fleet, before the first step. The last set is that of the last.
        step = min(max(0, opened[0]) * SAVE_EVERY, calls[0]["step"])
        begins = re.search(rf"begins at step {step}\b", output) is not None
        well = run.right and begins and len(opened) == given.ranks
        equal = {(of["auc"], of["scores"]) for of in run.outcomes()} == reached
        print(
            f"  opened at sets {opened}, {'right' if well else 'WRONG'}: the newest is one of "
            f"{newest}; begins at step {step}, AUC {'equal' if equal else 'DIFFERENT'}",
            flush=True,
        )
        if not (well and equal):
            print(output)
        at_newest += well
        same += equal
        resumed += step > 0
    return [
        Measured(Figure("auc, undisturbed", value, "")),
        Measured(Figure("kills, then all shards at the newest set", at_newest, "", "kills", kills),
                 passed=at_newest == kills),
        Measured(Figure("kills with the same auc and scores", same, "", "kills", kills),
                 passed=same == kills),
        Measured(Figure("kills, resumed from a later step than 0", resumed, "", "kills", kills)),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
