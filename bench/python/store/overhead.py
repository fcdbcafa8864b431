"""Measures what a batch get costs through Python and NumPy, compared with the call in Rust.

Two programs, each with its own table of equal rows in memory, take turns on the same keys. This
program calls the package. `embank-bench batch-get` calls the crate, and writes rows to one buffer
that it keeps. A round has some calls of each. Its figure is the median time of a call, and the
result is the median over the rounds of Python's time over Rust's. Target: the default call, with a
new array for each batch and the release of the lease, takes at most 1.15 times as long. The other
lines show what `out=` saves and what a peek costs.

Estimate, written before measuring: 4,096 uniform rows take about 400 us. Python adds 2 us for the
calls and the lease's entry, and 10 us for a new array of 256 KiB (a page fault for each 4 KiB,
unless malloc keeps the memory): 1.03.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
from figures import Figure

import embank

ROW_COLUMNS = 16
BATCH = 4096
BATCHES = 64
LIMIT = 1.15
BUDGET_BYTES = 512 << 20


def main() -> int:
    options = measure.parser(__doc__ or "")
    options.add_argument("--runs", type=int, help="pairs of programs; 3 by default, 1 with --quick")
    options.add_argument("--seeds", type=int, help="another name of --runs: each run has keys of its own")
    options.add_argument("--rounds", type=int, help="turns of each; 30 by default, 10 with --quick")
    options.add_argument("--calls", type=int, default=40, help="calls in a turn")
    given = options.parse_args()
    runs = given.runs or given.seeds or (1 if given.quick else 3)
    rounds = given.rounds or (10 if given.quick else 30)
    rows = measure.sized(100_000 if given.quick else 1_000_000, 5000)
    binary = measure.program("embank-bench", "embank-bench")
    measure.SCRATCH.mkdir(parents=True, exist_ok=True)
    ratios: dict[str, list[float]] = {}
    times: dict[str, list[tuple[float, float]]] = {}
    for run in range(runs):
        with tempfile.TemporaryDirectory(dir=measure.SCRATCH) as folder:
            for name, pairs in one_run(binary, Path(folder), rows, given.seed + run, rounds, given.calls):
                times.setdefault(name, []).extend(pairs)
                ratios.setdefault(name, []).extend(python / rust for python, rust in pairs)
    measured = []
    for name, found in ratios.items():
        python, rust = (statistics.median(column) for column in zip(*times[name]))
        ratio, _ = measure.median_and_spread(found)
        quartiles = statistics.quantiles(found, n=4)
        figure = Figure(name, python, "us", "the Rust call", python / ratio)
        counts = name == COUNTS and measure.SMOKE is None
        measured.append(
            measure.Measured(figure, quartiles[2] - quartiles[0], ratio <= LIMIT if counts else None)
        )
        print(
            f"{name}: {python:.0f} us, Rust {rust:.0f} us, "
            f"ratio {ratio:.3f} ({quartiles[0]:.3f} to {quartiles[2]:.3f})"
        )
    return measure.report(
        measured, given,
        {"rows": rows, "runs": runs, "rounds": rounds, "limit": f"{LIMIT} for {COUNTS!r}",
         "spread": "of the ratio, between its quartiles"},
    )


COUNTS = "get, a new array"


def one_run(
    binary: Path, folder: Path, rows: int, seed: int, rounds: int, calls: int
) -> list[tuple[str, list[tuple[float, float]]]]:
    """Returns two lists for each way to call: the microseconds of each round in Python, and in
    Rust."""
    command = [
        str(binary), "batch-get", "--rows", str(rows), "--dim", str(ROW_COLUMNS),
        "--batch", str(BATCH), "--batches", str(BATCHES), "--seed", str(seed),
        "--memory-budget-bytes", str(BUDGET_BYTES), "--directory", str(folder / "rust"),
    ]
    rust = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert rust.stdin is not None and rust.stdout is not None, "both are pipes"
    try:
        with embank.Bank(folder / "python", memory_budget=BUDGET_BYTES) as bank:
            table = bank.table("item", dim=ROW_COLUMNS)
            for first in range(0, rows, BATCH):
                table.get(np.arange(first, min(first + BATCH, rows))).release()
            batches = [keys_of(seed, at * BATCH, BATCH, rows) for at in range(BATCHES)]
            np.testing.assert_array_equal(table.peek(batches[0]), table.initial(batches[0]))
            assert rust.stdout.readline() == "ready\n", "the Rust program could not load its table"
            out = np.empty((BATCH, ROW_COLUMNS), np.float32)
            ways: list[tuple[str, str, Callable[[Any], object]]] = [
                (COUNTS, "get", lambda keys: table.get(keys).release()),
                ("get, out=", "get", lambda keys: table.get(keys, out=out).release()),
                ("peek, a new array", "peek", table.peek),
                ("peek, out=", "peek", lambda keys: table.peek(keys, out=out)),
            ]
            found: list[tuple[str, list[tuple[float, float]]]] = [(name, []) for name, _, _ in ways]
            for _ in range(rounds):
                for (_, kind, call), (_, pairs) in zip(ways, found):
                    ours = statistics.median(timed(call, batches, calls))
                    rust.stdin.write(f"{kind} {calls}\n")
                    rust.stdin.flush()
                    theirs = statistics.median(int(ns) for ns in rust.stdout.readline().split())
                    pairs.append((ours / 1000, theirs / 1000))
    finally:
        rust.stdin.close()
        rust.wait()
    return found


def timed(call: Callable[[Any], object], batches: list[Any], calls: int) -> list[int]:
    times = []
    for at in range(calls):
        keys = batches[at % len(batches)]
        started = time.perf_counter_ns()
        call(keys)
        times.append(time.perf_counter_ns() - started)
    return times


def keys_of(seed: int, first: int, count: int, rows: int) -> Any:
    """Uniform keys. `bench/src/measure/store/batch_get.rs` computes the same keys."""
    places = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    mixed = (np.uint64(seed << 32) + places) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) % np.uint64(rows)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
