"""The evaluation of training, after the figures of the MLKV paper. Each subcommand is a
measurement.

  quality      eight models on real data, out of core and in memory           (its Fig. 6)
  speed        samples/s beside memory and RocksDB, tables of 4x the budget   (its Fig. 7)
  staleness    bounds from 0 to 80 and none: speed and quality                (its Fig. 8)
  lookahead    with and without, over buffer sizes or staleness bounds        (its Fig. 9)
  pipelined    rows that are got ahead, at several depths
  optimizers   equality with torch.optim
  dtypes       rows below f32: bytes on disk and of a read, and the loss of quality
  python       the cost of a call from Python
  in-memory    the training step of one table, beside torch's sparse Adagrad and FBGEMM
  clicks       Criteo-format rows by turns: the cost of training out of core, and Lookahead's gain
  busy         Criteo-format rows beside processes that keep every core busy
  distributed  two ranks on one core each, beside one rank: speed, bytes, and parts of a step
  rank-kills   ranks under torchrun that are killed: the resumed run must end at the same AUC
  forecast     a simulator of several ranks, beside ranks at three rates of the network
  locality     reads of the drive with rows at rest in order of use, or in order of hash

`<subcommand> --help` lists the options. Without a subcommand, `clicks` runs.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

PROGRAMS = {
    "quality": "training/quality.py",
    "speed": "training/speed.py",
    "staleness": "training/staleness.py",
    "lookahead": "training/lookahead.py",
    "pipelined": "training/pipelined.py",
    "optimizers": "training/optimizers.py",
    "dtypes": "training/dtypes.py",
    "python": "store/overhead.py",
    "in-memory": "training/in_memory.py",
    "clicks": "training/clicks.py",
    "busy": "training/busy.py",
    "distributed": "training/distributed.py",
    "rank-kills": "training/rank_kills.py",
    "forecast": "training/forecast.py",
    "locality": "training/locality.py",
}


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] in (["--help"], ["-h"], ["help"]):
        print(__doc__)
        return 0
    name = "clicks"
    if arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
    if name not in PROGRAMS:
        print(f"{name}: no such measurement; there are {', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    program = Path(__file__).resolve().parents[1] / PROGRAMS[name]
    if not program.exists():
        print(f"{name}: {program} is missing", file=sys.stderr)
        return 2
    sys.argv = [str(program), *arguments]
    runpy.run_path(str(program), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
