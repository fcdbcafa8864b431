"""Tests that `bench pipeline cluster` finds wrong rows in the files that workers have written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from test_pipeline_reference import generated

PYTHON = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PYTHON / "ground"), str(PYTHON / "pipeline")]
import cluster  # noqa: E402

from embank.pipeline import merge_parts, partial_vocabularies  # noqa: E402


def with_another_id(rows: pa.Table) -> pa.Table:
    at = rows.column_names.index("sparse")
    ids = rows.column("sparse").combine_chunks()
    numbers = ids.flatten().to_numpy().copy()
    numbers[-1] += 1
    changed = pa.FixedSizeListArray.from_arrays(pa.array(numbers), type=ids.type)
    return rows.set_column(at, rows.schema.field(at), changed)


def with_later_numbers(rows: pa.Table) -> pa.Table:
    row = pa.array(rows.column("row").to_numpy() + 1)
    return rows.set_column(1, rows.schema.field(1), row)


CHANGES: list[tuple[Callable[[pa.Table], pa.Table], str]] = [
    (lambda rows: rows, ""),
    (with_another_id, "output 'sparse' is not that of one run"),
    (lambda rows: rows.slice(1), "1 rows are missing"),
    (lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]), "1 rows are there twice"),
    (with_later_numbers, "a part has too many rows"),
]


@pytest.mark.parametrize(("change", "wrong"), CHANGES)
def test_wrong_rows_are_found(
    change: Callable[[pa.Table], pa.Table], wrong: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.tsv").write_bytes(generated(300, seed=3))
    work = cluster.Work(tmp_path / "rows.tsv", parts=3, threads=1)
    assert work.parts.num_rows == 3
    pipeline = merge_parts(work.spec, partial_vocabularies(work.spec)(work.parts))
    for part in range(3):
        rows = pa.concat_tables(pipeline.files(work.parts.slice(part, 1)))
        rows = change(rows) if part == 2 else rows
        pa.parquet.write_table(rows, tmp_path / f"{part}.parquet")
    found = work.wrong(tmp_path)
    assert found.endswith(wrong) and (found == "") == (wrong == "")
