"""Trains a click model out of core, beside the same model in memory.

The demo has two experiments. MovieLens-100K shows that the model learns the same if the memory
budget of its tables is a quarter of their bytes. A click log of the Criteo format shows the speed:
in memory, out of core, and out of core with Lookahead. The report is target/demo/report.html.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

import openmp  # noqa: F401, I001  (before torch)
import torch

import embank
from data import ClickData
from experiments import (
    CriteoOptions,
    criteo_data,
    criteo_experiment,
    criteo_variants,
    movielens_experiment,
    movielens_variants,
    quarter_budget,
    quick,
    shorter,
)
from figures import Figure, mebibytes, text_table, write_json
from model import INTERACTIONS
from report import Chapter, write_report
from variant import Experiment, Outcome, Variant, run_variant

TARGET = Path(__file__).resolve().parents[2] / "target"
UNITS = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    torch.set_num_threads(given.threads)
    started = time.perf_counter()
    chapters: list[Chapter] = []
    figures: list[Figure] = []
    try:
        prepare(given)
        if given.only in (None, "movielens"):
            chapters.append(movielens_chapter(given, figures))
        if given.only in (None, "criteo"):
            chapters.append(criteo_chapter(given, figures))
    except (ValueError, RuntimeError, OSError, FloatingPointError, embank.EmbankError) as error:
        print(f"error: {error or type(error).__name__}", file=sys.stderr)
        return 1
    figures.append(Figure("demo", time.perf_counter() - started, "s"))
    page = write_report(chapters, figures, given.out)
    if given.json is not None:
        write_json([figure.plain() for figure in figures], given.json)
    print(f"\nreport: {page}")
    return 0


def parser() -> argparse.ArgumentParser:
    cpus = torch.get_num_threads()
    options = argparse.ArgumentParser(
        prog="demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    size = options.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller runs: about a minute in all")
    size.add_argument("--full", action="store_true", help="a longer run: up to 15 minutes")
    add("--only", choices=("movielens", "criteo"), help="run one of the two experiments")
    add("--model", choices=tuple(INTERACTIONS), default="dlrm",
        help="DLRM, DCN-v2 (dcn), DCN-v1, or a feed-forward network (default %(default)s)")
    add("--criteo", type=existing_file, metavar="PATH",
        help="train on the first rows of this file of the Criteo Kaggle format (default: "
        "generate one); --criteo-rows says how many")
    add("--criteo-rows", type=count, metavar="N",
        help=f"take or generate this many rows (default {shorter(CriteoOptions()).rows:,}, with "
        f"--quick {quick(CriteoOptions()).rows:,}, with --full {CriteoOptions.rows:,})")
    add("--budget", type=byte_size, metavar="SIZE",
        help="memory budget of the Criteo runs out of core, as 64MiB or in bytes (default: a "
        "quarter of what the tables weigh in memory)")
    add("--movielens-budget", type=byte_size, metavar="SIZE",
        help="memory budget of the MovieLens run, at least 1MiB (default: a quarter)")
    add("--batch-size", type=count, metavar="N",
        help=f"of the Criteo runs (default {CriteoOptions.batch_size:,})")
    add("--lookahead", type=int, metavar="N", default=CriteoOptions.lookahead,
        help="batches whose keys are announced ahead (default %(default)s)")
    add("--seed", type=int, default=0, help="of everything random (default %(default)s)")
    add("--threads", type=count, default=cpus, metavar="N",
        help="torch threads; the same number gives the same result (default %(default)s)")
    add("--device", choices=("auto", "io_uring", "threads"), default="auto",
        help="how the store reads and writes (default %(default)s)")
    add("--resume", action="store_true",
        help="go on after an interruption, with the same options as before")
    add("--out", type=Path, default=TARGET / "demo", metavar="DIR",
        help="report and runs (default target/demo)")
    add("--data", type=Path, default=TARGET / "data", metavar="DIR",
        help="downloaded and generated data (default target/data)")
    add("--json", type=Path, metavar="FILE", help="write every figure to this file")
    return options


def prepare(given: argparse.Namespace) -> None:
    """Makes the folder of the runs. With `--resume`, checks that its options are those of the
    earlier run."""
    runs = given.out / "runs"
    ignored = ("resume", "json", "only")
    options = {name: str(value) for name, value in vars(given).items() if name not in ignored}
    noted = runs / "options.json"
    if given.resume and noted.exists():
        try:
            before = json.loads(noted.read_text())
        except ValueError as error:
            raise RuntimeError(
                f"{noted} is damaged ({error}); start afresh without --resume"
            ) from error
        changed = [name for name in options if before.get(name) != options[name]]
        if changed:
            raise RuntimeError(
                "--resume needs the options of the run that it resumes; changed: "
                + ", ".join(f"{name} (was {before.get(name)})" for name in changed)
            )
        return
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir(parents=True)
    partial = noted.with_suffix(".partial")
    partial.write_text(json.dumps(options))
    partial.replace(noted)


def movielens_chapter(given: argparse.Namespace, figures: list[Figure]) -> Chapter:
    experiment = movielens_experiment(
        given.data, batch_size=256 if given.quick else 128, seed=given.seed, device=given.device,
        model=given.model,
    )
    budget = given.movielens_budget or quarter_budget(experiment)
    about = describe(experiment, budget)
    print(f"\nMovieLens-100K: {about}", flush=True)
    outcomes = run_all(experiment, movielens_variants(budget), given)
    memory, bank = outcomes
    figures += [
        Figure("movielens auc", bank.auc, "", "torch in memory", memory.auc),
        Figure("movielens samples/s", bank.samples_per_second, "samples/s", "torch in memory",
               memory.samples_per_second),
        Figure("movielens budget", budget, "bytes", "tables in memory", bank.table_bytes),
    ]
    print_outcomes(outcomes)
    speed = bank.samples_per_second / memory.samples_per_second
    result = (
        f"MovieLens-100K: with {mebibytes(budget)} of memory for {mebibytes(bank.table_bytes)} of "
        f"tables, Embank trains at {speed:.2f} times the rate of torch with all tables in memory. "
        f"The AUC is {bank.auc:.6f}, and {memory.auc:.6f} for torch."
    )
    print(f"\n{result}")
    return Chapter("MovieLens-100K", about, result, outcomes)


def criteo_chapter(given: argparse.Namespace, figures: list[Figure]) -> Chapter:
    options = CriteoOptions()
    if not given.full:
        options = quick(options) if given.quick else shorter(options)
    options = CriteoOptions(**{
        **vars(options), "seed": given.seed, "rows": given.criteo_rows or options.rows,
        "batch_size": given.batch_size or options.batch_size, "lookahead": given.lookahead,
        "model": given.model,
    })
    data = criteo_data(given.criteo, given.data, options)
    experiment = criteo_experiment(data, options, given.device)
    budget = given.budget or quarter_budget(experiment)
    about = describe(experiment, budget)
    title = "Criteo format" if given.criteo is None else part_of(given.criteo, data, options.rows)
    print(f"\n{title}: {about}", flush=True)
    outcomes = run_all(experiment, criteo_variants(experiment, budget, options.lookahead), given)
    torch_run, in_memory, without, ahead = outcomes
    rate = "samples/s"
    figures += [
        Figure("criteo samples/s torch", torch_run.samples_per_second, rate),
        Figure("criteo samples/s in memory", in_memory.samples_per_second, rate,
               "torch in memory", torch_run.samples_per_second),
        Figure("criteo samples/s lookahead", ahead.samples_per_second, rate,
               "Embank in memory", in_memory.samples_per_second),
        Figure("criteo samples/s no lookahead", without.samples_per_second, rate,
               "Embank in memory", in_memory.samples_per_second),
        Figure("criteo lookahead gain", ahead.samples_per_second, rate,
               "Embank out of core", without.samples_per_second),
        Figure("criteo share of time waiting for rows", without.row_share, ""),
        Figure("criteo share of time waiting for rows, lookahead", ahead.row_share, "",
               "Embank out of core", without.row_share),
        Figure("criteo auc", ahead.auc, "", "torch in memory", torch_run.auc),
        Figure("criteo tables", ahead.table_bytes, "bytes", "budget", budget),
        # This figure is the store's own count. `cargo xtask bench memory` measures the peak memory
        # of the process.
        Figure("memory for rows", ahead.rows_memory_bytes, "bytes", "budget", budget),
    ]
    print_outcomes(outcomes)
    per_second = torch_run.samples_per_second
    result = (
        f"{title}: with {mebibytes(budget)} of memory for {mebibytes(ahead.table_bytes)} of tables, "
        f"Embank trains at {without.samples_per_second / per_second:.2f} times the rate of torch with "
        f"all tables in memory, and with Lookahead at {ahead.samples_per_second / per_second:.2f} "
        f"times. The AUC is {ahead.auc:.4f}, and {torch_run.auc:.4f} for torch."
    )
    print(f"\n{result}")
    return Chapter(title, about, result, outcomes)


def part_of(path: Path, data: ClickData, rows_max: int) -> str:
    """Says which part of a file the model is trained on."""
    if len(data) < rows_max:
        return f"{path}, all {len(data):,} rows"
    return f"{path}, the first {len(data):,} rows (--criteo-rows takes more or fewer)"


def run_all(
    experiment: Experiment, variants: list[Variant], given: argparse.Namespace
) -> list[Outcome]:
    folder = given.out / "runs" / experiment.name
    return [run_variant(experiment, variant, folder, given.resume) for variant in variants]


def describe(experiment: Experiment, budget: int) -> str:
    rows = experiment.table_bytes // experiment.tables.torch_bytes_per_row
    return (
        f"{len(experiment.data):,} samples, {len(experiment.data.columns)} tables, {rows:,} rows "
        f"of {experiment.tables.dim} floats, {mebibytes(experiment.table_bytes)} with their "
        f"optimizer state; budget {mebibytes(budget)}"
    )


def print_outcomes(outcomes: list[Outcome]) -> None:
    rows = [
        (
            outcome.variant,
            mebibytes(outcome.budget_bytes) if outcome.budget_bytes else "-",
            mebibytes(outcome.rows_memory_bytes),
            f"{outcome.samples_per_second:,.0f}",
            f"{outcome.row_share:.0%}",
            f"{outcome.auc:.6f}",
        )
        for outcome in outcomes
    ]
    print(text_table(("", "budget", "memory for rows", "samples/s", "waits for rows", "AUC"), rows))


def byte_size(text: str) -> int:
    """Parses `64MiB`, `1GiB` or a plain number of bytes."""
    shown = text.strip().upper()
    unit = next((name for name in UNITS if shown.endswith(name)), "")
    number = shown.removesuffix(unit).strip()
    try:
        size = int(float(number) * UNITS.get(unit, 1))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; write 64MiB, 1GiB or a number of bytes"
        ) from None
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a budget is above zero")
    return size


def count(text: str) -> int:
    """Parses a whole number above zero."""
    if not text.strip().isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")
    return int(text)


def existing_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text}: no such file")
    return path


if __name__ == "__main__":
    sys.exit(main())
