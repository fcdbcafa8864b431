"""Code that the measurements share: the demo's modules, the figures and the report's lines."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "examples" / name) for name in ("dlrm", "common")]

import openmp  # noqa: E402, F401  (before torch)
from figures import Figure, text_table, write_json  # noqa: E402

GROUND = Path(__file__).resolve().parent.relative_to(REPOSITORY)
SMOKE = os.environ.get("EMBANK_SMOKE")
"""A folder. If the variable is set, the program makes a smoke run in this folder: a quick run on
tiny data, which judges answers only. `bench/python/tests/test_smoke.py` makes these runs."""
ROOT = REPOSITORY / "target" if SMOKE is None else Path(SMOKE)
DATA = ROOT / "data"
SCRATCH = ROOT / "bench"

Value = TypeVar("Value")


def sized(usual: Value, smoke: Value) -> Value:
    """Returns `usual`, or `smoke` in a smoke run."""
    return usual if SMOKE is None else smoke


def criteo(options: Any) -> Any:
    """Returns the `CriteoOptions`, or those of a tiny model on few rows in a smoke run."""
    tiny = replace(options, rows=2000, batch_size=64, dim=8, bottom=(16,), top=(16,), scale=1e-4)
    return sized(options, tiny)


def program(package: str, name: str) -> Path:
    """Builds a Rust program of the workspace if it is not up to date, and returns its path.

    A smoke run builds nothing and takes the program of a debug build.
    """
    if SMOKE is not None:
        found = debug_program(name)
        if not found.exists():
            sys.exit(f"{found} is not there: `cargo build --package {package}` makes it")
        return found
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--release", "--package", package]
    done = subprocess.run(
        [*cargo, "--message-format=json"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"building {package} failed")
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == name:
            return Path(message["executable"])
    sys.exit(f"cargo did not say where {name} is")


def debug_program(name: str) -> Path:
    """The path of a program of a debug build, beside `$EMBANK_COMMAND` if that is set."""
    command = os.environ.get("EMBANK_COMMAND", REPOSITORY / "target" / "debug" / "embank")
    return Path(command).with_name(name)


@dataclass(frozen=True)
class Measured:
    """A figure and the spread of its runs: the largest value minus the smallest, in the figure's
    unit.

    `passed` is True if the figure meets its target, and None if it has no target. `invalid` marks a
    figure that means nothing, because a condition of its measurement did not hold. """

    figure: Figure
    spread: float | None = None
    passed: bool | None = None
    invalid: bool = False


def parser(about: str, thread_counts: Sequence[int] = ()) -> argparse.ArgumentParser:
    """Makes a parser with the options that every measurement has. If `thread_counts` is given,
    `--threads` takes several numbers and has `thread_counts` as its default."""
    options = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", default=SMOKE is not None,
                         help="a rough answer within a minute")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    options.add_argument("--device", choices=("auto", "io_uring", "threads"), default="auto")
    if thread_counts:
        options.add_argument("--threads", type=int, nargs="+", default=list(thread_counts),
                             help="of torch; each variant counts with those that it is fastest with "
                             "(default: one a core, and one fewer)")
    else:
        options.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch")
    options.add_argument("--seed", type=int, default=0)
    return options


def report(
    measured: Sequence[Measured], given: argparse.Namespace, more: dict[str, Any] | None = None
) -> int:
    """Prints the table, writes the JSON, and returns the exit status: 1 if anything failed.

    `more` holds further conditions of the run. The JSON has them beside command, commit and
    machine.
    """
    circumstances = {
        "command": command(), "commit": COMMIT, "machine": machine(), **(more or {})
    }
    print()
    print(text_table(
        ("", "value", "spread", "against", "ratio", ""), [cells(row) for row in measured]
    ))
    print("\n" + "\n".join(f"{name}: {value}" for name, value in circumstances.items()))
    if given.json is not None:
        write_json([plain(row, circumstances) for row in measured], given.json)
    return 1 if any(row.passed is False for row in measured) else 0


def each_alone(script: str, models: Sequence[str], given: argparse.Namespace) -> int:
    """Runs the program for each model in its own process, and writes the rows of all models to the
    JSON.

    The models have separate processes for two reasons: the examples' modules have the same names,
    and memory that one run leaves would slow the next. """
    taken = [argument for argument in without(sys.argv[1:], "--model", "--json")]
    rows: list[dict[str, Any]] = []
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            out = Path(folder) / f"{model}.json"
            done = subprocess.run(
                [sys.executable, script, *taken, "--model", model, "--json", str(out)], check=False
            )
            status = max(status, abs(done.returncode))
            if out.exists():
                rows += json.loads(out.read_text())
    if given.json is not None:
        write_json(rows, given.json)
    return min(status, 1)


def without(arguments: Sequence[str], *options: str) -> list[str]:
    """Returns `arguments` without the named options and their values."""
    kept: list[str] = []
    skipping = False
    for argument in arguments:
        if argument.startswith("--"):
            skipping = argument.split("=")[0] in options
        if not skipping:
            kept.append(argument)
    return kept


def plain(row: Measured, circumstances: dict[str, Any]) -> dict[str, Any]:
    return {
        **row.figure.plain(), "spread": row.spread, "passed": row.passed,
        "invalid": row.invalid, **circumstances,
    }


def cells(row: Measured) -> tuple[str, ...]:
    figure = row.figure
    against = ""
    if figure.against_value is not None:
        against = f"{figure.against} {number(figure.against_value)}"
    return (
        figure.name,
        f"{number(figure.value)} {figure.unit}".strip(),
        "" if row.spread is None else number(row.spread),
        against,
        "" if figure.ratio is None else f"{figure.ratio:.3f}",
        "INVALID" if row.invalid else {None: "", True: "ok", False: "FAILED"}[row.passed],
    )


def number(value: float) -> str:
    """Returns the value as text: with six decimals if it is small, as an AUC is, and without
    decimals if it is large."""
    return f"{value:,.6f}" if abs(value) < 10 else f"{value:,.0f}"


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median, and the largest value minus the smallest."""
    return statistics.median(values), max(values) - min(values)


def median_and_quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median, and the distance between the quartiles."""
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return middle, third - first


def command() -> str:
    """The command line that runs the program again from the repository's root."""
    script = os.path.relpath(sys.argv[0], REPOSITORY)
    return " ".join([f"PYTHONPATH={GROUND}", "python", script, *sys.argv[1:]])


def commit() -> str:
    """Returns the commit of the working tree, with a plus sign if the tree has changes."""
    shown = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )
    return shown.stdout.strip() or "unknown"


COMMIT = commit()
"""The commit at the start of the program, because the checkout may change during a measurement."""


def machine() -> str:
    """Processor, number of cores, memory and kernel."""
    model = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        names = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.release()}"
