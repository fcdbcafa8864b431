"""Trains for thirty simulated days, a process a day, and compares the bank with a model each day.

Each day a new process opens the bank, resumes, and trains on a stream. A twentieth of the stream's
keys are new; old keys come by Zipf's law. There is a table with admission by count, which two
modules share and one of them shortens by `max_norm`. There is a table with admission by
probability, one that admits every key, and from day 10 on a fourth. The tables track uses by
`set_time(day)`. Every three days the process evicts rows that are old or rarely used. On day 20 the
process is killed at a random moment, and the day continues from its last checkpoint.

The model is dictionaries in plain Python, and is never interrupted. At the end of each day it must
agree with the bank on five things: which keys have a row; each row (bit for bit, or within one unit
in the last place); the output of each module in each step; the rows that evictions deleted and dry
runs named; and the dense part. The program ends with 0 if they agree, with 1 at the first
difference, and with 2 for wrong arguments.

Seconds, rows and the size of the bank are printed for each day and summed up at the end. They have
no limit.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import torch

import day_trainer
import days
import embank
from day_model import Model, TableModel

LEVEL_RATIO = 1.25
"""A quantity stays level if its mean over the last third of the days is at most this multiple of
that before.
"""
FIRST_KEYS_SHOWN = 5


class Difference(Exception):
    """The bank differs from the model."""


class DayCost(NamedTuple):
    seconds: float
    live_rows: int
    """The counts of keys before admission are rows too."""
    live_bytes: int
    held_bytes: int
    """Bytes of the log that only kept checkpoints need."""
    bank_bytes: int


def run_day(settings: days.Settings, day: int, report: Path, kill: Optional[random.Random]) -> bool:
    """Runs the process of a day. With `kill`, kills it at a random moment.

    Returns True if the process ended by itself.
    """
    command = [sys.executable, day_trainer.__file__, settings.encoded(), str(day), str(report)]
    last_step = None if kill is None else kill.randrange(1, settings.steps + 1)
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if kill is not None and line.strip() == f"step {last_step}":
                    time.sleep(kill.random() * 0.05)
                    child.kill()
        errors.seek(0)
        said = errors.read()[-3000:]
    if child.returncode == 0:
        return True
    if kill is not None and child.returncode == -signal.SIGKILL:
        print(f"day {day}: killed after step {last_step}", flush=True)
        return False
    raise Difference(f"day {day}: its process ended with {child.returncode}:\n{said}")


def compare(model: Model, day: int, report: Path) -> dict[str, Any]:
    """Raises `Difference` if the report of a day differs from the model. Returns the report."""
    found: dict[str, Any] = json.loads(report.read_text())
    for step, crcs in found["crcs"].items():
        for name, crc in crcs.items():
            if crc != model.crcs[int(step)][name]:
                raise Difference(f"day {day}, step {step}: module {name!r} gave other rows")
    _compare_evictions(model, day, found["evicted"])
    with np.load(report.with_suffix(".npz")) as arrays:
        for name in model.settings.tables(day):
            table = model.tables[name]
            _compare_rows(f"day {day}, table {name!r}", table, arrays[f"{name} keys"], arrays[f"{name} rows"])
            for probe, (keys, counts) in zip(days.PROBES, found["probes"][name]):
                where = f"day {day}, table {name!r}, dry run of {probe.options()}"
                _compare_keys(where, table.lets_go(probe), keys)
                _compare_counts(where, len(table.old_counts(probe)), counts)
    dense = [of.tolist() for of in model.top.parameters()]
    if dense != found["dense"]:
        raise Difference(f"day {day}: the dense part is {found['dense']}, and must be {dense}")
    return found


def _compare_evictions(model: Model, day: int, found: list[dict[str, Any]]) -> None:
    # A process that was killed after the evictions has written no report of them.
    for (name, (keys, counts)), of in zip(model.evicted, found):
        where = f"day {day}, eviction from table {name!r}"
        _compare_keys(f"{where}, dry run", keys, of["dry"])
        _compare_keys(where, keys, of["keys"])
        if (of["table"], of["rows"], of["leased"]) != (name, len(keys), 0):
            raise Difference(f"{where}: reports {of['rows']} rows and {of['leased']} leased ones")
        _compare_counts(where, counts, of["counts"])
        _compare_counts(f"{where}, dry run", counts, of["dry counts"])


def _compare_counts(where: str, wanted: int, found: int) -> None:
    if wanted != found:
        raise Difference(f"{where}: forgets {found} counts before admission, and must forget {wanted}")


def _compare_keys(where: str, wanted: list[int], found: list[int]) -> None:
    missing, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or more or len(found) != len(wanted):
        raise Difference(
            f"{where}: {len(found)} keys, and must be {len(wanted)}; {len(missing)} are missing, such as "
            f"{missing[:FIRST_KEYS_SHOWN]}; {len(more)} are too many, such as {more[:FIRST_KEYS_SHOWN]}"
        )


def _compare_rows(where: str, table: TableModel, keys: Any, rows: Any) -> None:
    _compare_keys(where, sorted(table.rows), keys.tolist())
    if not table.rows:
        return
    wanted = np.stack([table.rows[key] for key in keys.tolist()])
    off = np.abs(_ordered(rows) - _ordered(wanted))
    if off.max() > 1:
        at, column = np.unravel_index(off.argmax(), off.shape)
        raise Difference(
            f"{where}: the row of key {keys[at]} is {rows[at].tolist()}, and must be {wanted[at].tolist()}: "
            f"{off[at, column]} units in the last place"
        )


def _ordered(values: Any) -> Any:
    """Maps floats to integers in their order, so that neighbouring floats are neighbouring
    integers.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFF_FFFF), bits)


def disk_bytes(path: Path) -> int:
    return sum(of.stat().st_blocks * 512 for of in path.rglob("*") if of.is_file())


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def say_whether_level(costs: list[DayCost]) -> None:
    third = len(costs) // 3
    if third == 0:
        print("too few days to say whether seconds and size stay level")
        return
    for name in DayCost._fields:
        middle = float(np.mean([getattr(cost, name) for cost in costs[third : 2 * third]]))
        last = float(np.mean([getattr(cost, name) for cost in costs[-third:]]))
        level = "level" if last <= LEVEL_RATIO * middle else "NOT LEVEL"
        print(
            f"{name:11} middle third {middle:14,.1f}   last third {last:14,.1f}   "
            f"x {last / middle:.2f}   {level}"
        )


def run(settings: days.Settings, day_count: int, directory: Path) -> None:
    bank = Path(settings.bank)
    kill = random.Random(settings.seed)
    costs = []
    with embank.Bank(directory / "scratch", memory_budget="16MiB") as scratch:
        for name in days.COLUMNS:
            days.open_table(scratch, name)
        model = Model(settings, scratch)
        for day in range(1, day_count + 1):
            report = directory / f"day {day}.json"
            if day != settings.kill_day or not run_day(settings, day, report, kill):
                run_day(settings, day, report, None)
            model.train_day(day)
            found = compare(model, day, report)
            costs.append(
                DayCost(
                    found["seconds"], found["live_rows"], found["live_bytes"], found["held_bytes"],
                    disk_bytes(bank),
                )  # fmt: skip
            )
            rows = {name: len(model.tables[name].rows) for name in settings.tables(day)}
            evicted = sum(len(gone.keys) for _, gone in model.evicted)
            print(
                f"day {day:2}: {costs[-1].seconds:5.1f} s, bank {_mib(costs[-1].bank_bytes)} "
                f"(live {_mib(costs[-1].live_bytes)}, held {_mib(costs[-1].held_bytes)}), "
                f"rows {rows}, counts {len(model.tables['user'].counts)}, evicted {evicted}",
                flush=True,
            )
            for old in directory.glob(f"day {day - 1}.*"):
                old.unlink()
    say_whether_level(costs)


def arguments(given: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=30, help="days (30)")
    parser.add_argument("--seed", type=int, help="of the run; drawn and printed by default")
    parser.add_argument("--keys", type=int, default=20_000, help="keys of the first day (20,000)")
    parser.add_argument("--steps", type=int, default=40, help="steps of a day (40)")
    parser.add_argument("--batch-size", type=int, default=128, help="samples of a step (128)")
    parser.add_argument(
        "--feature-day", type=int, default=days.FEATURE_DAY, help="when a feature is added (10)"
    )
    parser.add_argument(
        "--kill-day", type=int, default=days.KILL_DAY, help="when the process is killed (20)"
    )
    parser.add_argument(
        "--evict-every", type=int, default=days.EVICT_EVERY_DAYS, help="days between evictions (3)"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=("max_norm", "shared", "late_time"),
        help="leaves out: max_norm; keys that two modules share in one loss; days that set the time only in their "
        "middle",
    )
    parser.add_argument("--directory", type=Path, help="for the bank; a temporary one by default")
    return parser.parse_args(given)


def main(given: Optional[list[str]] = None) -> int:
    options = arguments(given)
    torch.set_num_threads(1)
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    print(f"seed {seed}, torch {torch.__version__}, embank {embank.__version__}", flush=True)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="thirty_days_"))
    directory.mkdir(parents=True, exist_ok=True)
    settings = days.Settings(
        seed, str(directory / "bank"), options.keys, options.steps, options.batch_size,
        "max_norm" not in options.without, "shared" not in options.without,
        "late_time" not in options.without, options.feature_day, options.kill_day,
        options.evict_every,
    )  # fmt: skip
    try:
        run(settings, options.days, directory)
    except Difference as difference:
        print(f"FAILED with seed {seed}: {difference}\nthe bank stays in {directory}")
        return 1
    if options.directory is None:
        shutil.rmtree(directory)
    print(f"all {options.days} days as the model says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
