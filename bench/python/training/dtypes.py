"""Measures what rows below f32 save, and what they cost.

Bytes: a table of each dtype, without an optimizer and with row-wise Adagrad, is checkpointed and
read in random order under a budget that holds little of it. Bytes on disk are the bytes of a row's
record, with its header of 32 bytes and the count of stochastic rounding; the table also shows the
bytes of the vector alone. Bytes of a read are the bytes requested from the drive. With direct I/O
no read is shorter than a block, and a row that lies in two blocks takes both.

Quality: MovieLens-100K through examples/dlrm out of core, each dtype against f32 with the same
seeds. It has no target; the reader decides.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import replace
from typing import Any, Literal, get_args

import measure
import numpy as np
import torch
from experiments import movielens_experiment, quarter_budget
from figures import Figure
from measure import Measured
from variant import Variant, run_variant

import embank

Dtype = Literal["float32", "float16", "bfloat16", "int8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
VALUE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
HEADER_BYTES = 32
DIMS = (16, 64, 128)
BUDGET_BYTES = 4 << 20
SEEDS = 3


def expected_bytes(dtype: str, dim: int, row_wise: bool) -> int:
    """Returns the bytes of a record, rounded up to a multiple of 8. A record has a header, the
    vector, and, if the dtype or the optimizer needs them, a scale, a sum and a count. """
    vector = -(-dim * VALUE_BYTES[dtype] // 4) * 4
    extra = (8 if dtype == "int8" else 0) + (4 if row_wise else 0)
    return HEADER_BYTES + -(-(vector + extra) // 8) * 8


def measured_bytes(dtype: Dtype, dim: int, row_wise: bool, rows: int, given: Any) -> tuple[float, float]:
    """Returns the bytes of a row on disk, and the bytes of a read."""
    random = np.random.default_rng(given.seed)
    measure.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=measure.SCRATCH) as folder:
        options: dict[str, Any] = {"memory_budget": BUDGET_BYTES, "device": given.device}
        with embank.Bank(folder, **options) as bank:
            optimizer = embank.RowWiseAdagrad(lr=0.1) if row_wise else None
            table = bank.table("rows", dim, dtype=dtype, optimizer=optimizer)
            for first in range(0, rows, 4096):
                keys = np.arange(first, min(rows, first + 4096))
                table.put(keys, random.normal(size=(len(keys), dim)).astype(np.float32))
            bank.checkpoint()
            space = bank.stats()["space"]
            on_disk = space["live_bytes"] / space["live_rows"]
        with embank.Bank(folder, **options) as bank:
            table = bank.open_table("rows")
            # Peeks at 4 rows at a time. Two rows of a call then rarely lie near enough for the
            # store to join their reads.
            for _ in range(1280):
                table.peek(random.integers(0, rows, 4))
            disk = bank.stats()["disk"]
            return on_disk, disk["read_bytes"] / max(1, disk["reads"])


def bytes_rows(given: Any) -> list[Measured]:
    rows: list[Measured] = []
    for dim in DIMS if not given.quick else (64, 128):
        for row_wise in (False, True):
            name = f"dim {dim}{', row-wise Adagrad' if row_wise else ''}"
            # The f32 rows take 2 or 8 times the budget, so reads go to the drive.
            count = (2 if given.quick else 8) * BUDGET_BYTES // (dim * 4)
            base = (0.0, 0.0)
            for dtype in DTYPES:
                found = measured_bytes(dtype, dim, row_wise, count, given)
                base = found if dtype == "float32" else base
                asked = expected_bytes(dtype, dim, row_wise)
                for what, value, against, kept in (
                    ("a row on disk", found[0], base[0], abs(found[0] - asked) < 0.5),
                    ("a read", found[1], base[1], None),
                ):
                    figure = Figure(f"{name}: {dtype}, {what}", value, "bytes", "float32", against)
                    rows.append(Measured(figure, passed=kept))
    return rows


def auc(dtype: Dtype, seed: int, given: Any) -> float:
    experiment = movielens_experiment(
        measure.DATA, batch_size=256 if given.quick else 128, seed=seed, device=given.device
    )
    budget = quarter_budget(experiment)
    experiment = replace(experiment, tables=replace(experiment.tables, dtype=dtype))
    folder = measure.SCRATCH / "dtypes" / dtype / str(seed)
    return run_variant(experiment, Variant(dtype, budget, lookahead=4), folder, False).auc


def quality_rows(given: Any) -> list[Measured]:
    seeds = range(given.seed, given.seed + (given.seeds or (1 if given.quick else SEEDS)))
    dtypes: tuple[Dtype, ...] = ("float32", "int8") if given.quick else DTYPES
    found = {dtype: [auc(dtype, seed, given) for seed in seeds] for dtype in dtypes}
    rows: list[Measured] = []
    for dtype, aucs in found.items():
        mean = statistics.fmean(aucs)
        exact = statistics.fmean(found["float32"])
        figure = Figure(f"MovieLens-100K AUC, {dtype}", mean, "", "float32", exact)
        rows.append(Measured(figure, max(aucs) - min(aucs)))
        if dtype != "float32":
            rows.append(Measured(Figure(f"MovieLens-100K AUC lost, {dtype}", exact - mean, "")))
    return rows


def main() -> int:
    options = measure.parser(__doc__ or "")
    options.add_argument("--seeds", type=int, help=f"of the quality (default {SEEDS}, quick 1)")
    options.add_argument("--only", choices=("bytes", "quality"))
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    rows: list[Measured] = []
    if given.only != "quality":
        rows += bytes_rows(given)
    if given.only != "bytes":
        rows += quality_rows(given)
    return measure.report(rows, given)


if __name__ == "__main__":
    sys.exit(main())
