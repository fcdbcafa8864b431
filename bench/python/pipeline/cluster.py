"""Measures the Criteo pipeline on Ray and on Spark: two workers beside one, on one machine.

A job runs as docs/pipeline.md shows. Workers make the vocabularies of parts of a text in the page
cache, this process merges them, and workers encode the parts and write Parquet files. On Ray the
workers are tasks. A cluster always has two processors, and a job runs one or two tasks at a time.
On Spark a session with one or two workers starts for each job. Starting an engine does not count,
and a job on a few rows goes before each job that counts, so that the workers are there.

The jobs run by turns; medians count. After each job, all rows in the files are compared with those
of one run on one machine: labels, logarithms and ids must be equal bit for bit, and each row must
be there once.

Target: on Ray, two workers do the job at 1.4 times the rate of one. The ratio is invalid if a part
is less than 1 s of work in both passes together: then the engine's time for a task counts too much.
The work of a part is measured in this process, without an engine. Most of it is the writing of
Parquet. --quick takes smaller parts and has no target for the ratio. Spark has no target, and is
left out if there is no Java 17.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import pyarrow
import pyarrow.parquet
from figures import Figure
from measure import Measured, median_and_spread
from numpy.typing import NDArray
from peers import generated

from embank.pipeline import Pipeline, criteo, merge_parts, partial_vocabularies, split_parts

sys.path.append(str(measure.REPOSITORY / "bindings/python/cluster_tests"))

import engines  # noqa: E402

WORKERS = (1, 2)
RATIO_MIN = 1.4
WORK_SECONDS_MIN = 1.0
MODULUS = 5000
ROWS, ROWS_QUICK = 9_000_000, measure.sized(800_000, 2000)
PARTS, PARTS_QUICK = 6, measure.sized(4, 3)
TURNS, TURNS_QUICK = 3, 1
SMALL_ROWS = measure.sized(20_000, 500)
SMALL_PARTS = 4
PROCESSORS_OF_A_TASK = 0.5
"""Of a task on Ray. Less than one, so that Ray's own tasks find a processor beside two workers."""
BATCH_ROWS = 65_536

Encoded = dict[str, NDArray[Any]]
"""The outputs of rows: for each output a matrix (rows, columns)."""


@dataclass(frozen=True)
class Seconds:
    """The times of the parts of a job."""

    vocabularies: float
    merge: float
    files: float

    @property
    def job(self) -> float:
        return self.vocabularies + self.merge + self.files


class Work:
    """A text in parts, with the rows that one run makes of it."""

    def __init__(self, text: Path, parts: int, threads: int) -> None:
        self.spec = criteo(MODULUS)
        self.parts = split_parts(self.spec, text, part_bytes=-(-text.stat().st_size // parts))
        of_parts = [rows_of(text, *range_) for range_ in zip(*self.ranges())]
        self.first_row = np.cumsum([0, *of_parts])
        """The number of the first row of each part, and after them the number of rows."""
        self.rows = int(self.first_row[-1])
        self.expected: Encoded = {}
        first = 0
        for batch in Pipeline(self.spec, threads=threads).feed(text, batch_rows=BATCH_ROWS):
            for name, output in batch.items():
                if name not in self.expected:
                    self.expected[name] = np.empty((self.rows, output.shape[1]), output.dtype)
                self.expected[name][first : first + len(output)] = output
            first += len(output)
        assert first == self.rows, f"{first} rows came out of {self.rows}"

    def ranges(self) -> list[list[int]]:
        return [self.parts[name].to_pylist() for name in ("begin", "end")]

    def wrong(self, folder: Path) -> str:
        """Compares the rows of all Parquet files in a folder. Returns what is wrong with them, or
        an empty text."""
        seen = np.zeros(self.rows, bool)
        count = 0
        for path in sorted(folder.glob("*.parquet")):
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(BATCH_ROWS):
                part, row = (batch.column(name).to_numpy() for name in ("part", "row"))
                at = self.first_row[part] + row
                if (at >= self.first_row[part + 1]).any():
                    return f"{path}: a part has too many rows"
                seen[at] = True
                count += len(at)
                for name, expected in self.expected.items():
                    found = batch.column(name).flatten().to_numpy().reshape(len(at), -1)
                    wanted = expected[at]
                    if found.dtype != wanted.dtype or found.tobytes() != wanted.tobytes():
                        return f"{path}: output {name!r} is not that of one run"
        if not seen.all():
            return f"{folder}: {int((~seen).sum())} rows are missing"
        return "" if count == self.rows else f"{folder}: {count - self.rows} rows are there twice"

    def part_seconds(self, folder: Path) -> tuple[float, float]:
        """The work of one part in this process: its vocabularies, and its encoded file."""
        one = self.parts.slice(0, 1)
        started = time.perf_counter()
        first = partial_vocabularies(self.spec)(one)
        vocabularies = time.perf_counter() - started
        rest = [partial_vocabularies(self.spec)(self.parts.slice(1))]
        pipeline = merge_parts(self.spec, [first, *rest])
        started = time.perf_counter()
        rows = pyarrow.concat_tables(pipeline.files(one))
        pyarrow.parquet.write_table(rows, folder / "part.parquet")
        return vocabularies, time.perf_counter() - started


def rows_of(text: Path, begin: int, end: int) -> int:
    """The rows in a range of a text, each of which ends in a newline."""
    return int(np.count_nonzero(np.memmap(text, np.uint8)[begin:end] == ord("\n")))


def job_on_ray(ray: Any, workers: int, work: Work, out: Path) -> Seconds:
    blocks = ray.data.from_arrow(work.parts).repartition(work.parts.num_rows)
    options = {
        "batch_format": "pyarrow", "batch_size": None, "num_cpus": PROCESSORS_OF_A_TASK,
        "compute": ray.data.TaskPoolStrategy(size=workers),
    }
    started = time.perf_counter()
    first = blocks.map_batches(partial_vocabularies(work.spec), **options)
    found = list(first.iter_batches(batch_format="pyarrow", batch_size=None))
    counted = time.perf_counter()
    pipeline = merge_parts(work.spec, found)
    merged = time.perf_counter()
    # With the same `num_cpus`, Ray runs encoding and writing in one task.
    blocks.map_batches(pipeline.files, **options).write_parquet(
        str(out), concurrency=workers, ray_remote_args={"num_cpus": PROCESSORS_OF_A_TASK}
    )
    return Seconds(counted - started, merged - counted, time.perf_counter() - merged)


def job_on_spark(session: Any, work: Work, out: Path) -> Seconds:
    first = partial_vocabularies(work.spec)
    started = time.perf_counter()
    frame = session.createDataFrame(work.parts).repartitionByRange(work.parts.num_rows, "part")
    found = frame.mapInArrow(first.iterator, first.spark_schema).toArrow()
    counted = time.perf_counter()
    pipeline = merge_parts(work.spec, found)
    merged = time.perf_counter()
    encoded = frame.mapInArrow(pipeline.files_iterator, pipeline.spark_schema)
    encoded.write.parquet(str(out))
    return Seconds(counted - started, merged - counted, time.perf_counter() - merged)


class Jobs:
    """The jobs on one engine, with their times for each number of workers."""

    def __init__(self, name: str, work: Work, small: Work, folder: Path) -> None:
        self.name = name
        self.work, self.small = work, small
        self.folder = folder
        self.seconds: dict[int, list[Seconds]] = {workers: [] for workers in WORKERS}
        self.right = self.jobs = 0
        """The jobs whose rows are those of one run, and all jobs."""

    def run(self, workers: int, job: Callable[[Work, Path], Seconds]) -> None:
        for work in measure.sized((self.small, self.work), (self.work,)):
            out = self.folder / "encoded"
            shutil.rmtree(out, ignore_errors=True)
            seconds = job(work, out)
            wrong = work.wrong(out)
            print(wrong, end="\n" if wrong else "")
            self.right += not wrong
            self.jobs += 1
        self.seconds[workers].append(seconds)
        print(f"{self.name}, workers {workers}: {seconds.job:.2f} s", flush=True)

    def figures(self, invalid: bool, asked: bool) -> list[Measured]:
        one, two = ([each.job for each in self.seconds[workers]] for workers in WORKERS)
        figures = []
        for workers, times in zip(WORKERS, (one, two)):
            rate, spread = median_and_spread([self.work.rows / each for each in times])
            named = f"{self.name}: {workers} worker{'s' if workers > 1 else ''}"
            figures.append(Measured(Figure(named, rate, "rows/s"), spread))
            for part in ("vocabularies", "merge", "files"):
                middle, spread = median_and_spread(
                    [getattr(each, part) for each in self.seconds[workers]]
                )
                figures.append(Measured(Figure(f"{named}, {part}", middle, "s"), spread))
        ratio, spread = median_and_spread([a / b for a, b in zip(one, two)])
        met = ratio >= RATIO_MIN if asked and not invalid else None
        return [
            *figures,
            Measured(Figure(f"{self.name}: two workers, of one", ratio, "x"), spread, met, invalid),
            Measured(
                Figure(f"{self.name}: jobs with right rows", self.right, "", "jobs", self.jobs),
                passed=self.right == self.jobs,
            ),
        ]


def main() -> int:
    options = measure.parser(__doc__)
    add = options.add_argument
    add("--rows", type=int, help=f"default {ROWS:,}, quick {ROWS_QUICK:,}")
    add("--parts", type=int, help=f"at most (default {PARTS}, quick {PARTS_QUICK})")
    add("--turns", type=int, help=f"default {TURNS}, quick {TURNS_QUICK}")
    add("--engine", choices=("ray", "spark"), nargs="+", default=["ray", "spark"])
    given = options.parse_args()
    rows = given.rows or (ROWS_QUICK if given.quick else ROWS)
    parts = given.parts or (PARTS_QUICK if given.quick else PARTS)
    turns = given.turns or (TURNS_QUICK if given.quick else TURNS)
    measure.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=measure.SCRATCH, prefix="cluster-") as name:
        folder = Path(name)
        small = Work(generated(SMALL_ROWS, folder / "small.tsv"), SMALL_PARTS, given.threads)
        work = Work(generated(rows, folder / "rows.tsv"), parts, given.threads)
        measured = all_jobs(given, work, small, folder, turns)
    return measure.report(measured, given, {
        "rows": rows, "parts": work.parts.num_rows, "turns": turns, "modulus": MODULUS,
    })


def all_jobs(
    given: argparse.Namespace, work: Work, small: Work, folder: Path, turns: int
) -> list[Measured]:
    # The first call of a process takes longer.
    small.part_seconds(folder)
    of_part = work.part_seconds(folder)
    invalid = sum(of_part) < WORK_SECONDS_MIN
    measured = [
        Measured(Figure(f"work of a part without an engine, {what}", seconds, "s"))
        for what, seconds in zip(("vocabularies", "files"), of_part)
    ]
    if "ray" in given.engine:
        jobs = Jobs("Ray", work, small, folder)
        ray = engines.start_ray(processors=max(WORKERS))
        for turn in range(turns):
            for workers in in_turn(turn):
                jobs.run(workers, partial(job_on_ray, ray, workers))
        ray.shutdown()
        measured += jobs.figures(invalid, asked=not given.quick)
    if "spark" in given.engine and engines.java_version() < engines.JAVA_MIN:
        print(f"Spark is left out. {engines.NO_JAVA}")
    elif "spark" in given.engine:
        jobs = Jobs("Spark", work, small, folder)
        for turn in range(turns):
            for workers in in_turn(turn):
                session = engines.start_spark(workers)
                jobs.run(workers, partial(job_on_spark, session))
                session.stop()
        measured += jobs.figures(invalid, asked=False)
    return measured


def in_turn(turn: int) -> tuple[int, ...]:
    return WORKERS if turn % 2 == 0 else WORKERS[::-1]


if __name__ == "__main__":
    sys.exit(main())
