"""Tests pipelines on Spark: ids and rows are those of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from cluster import dying_once, job

import part_files
from embank.pipeline import merge_parts, partial_vocabularies, split_parts


def frame_of(spark: Any, parts: pa.Table, seed: int) -> Any:
    """A frame of the parts in a random order, some to a partition."""
    order = np.random.default_rng(seed).permutation(parts.num_rows)
    return spark.createDataFrame(parts.take(order)).repartition(4)


@pytest.mark.parametrize("min_count", [0, 3])
def test_shuffled_parts_give_the_ids_of_one_run(spark: Any, tmp_path: Path, min_count: int) -> None:
    of = job(tmp_path, min_count)
    partial = partial_vocabularies(of.spec)
    first = frame_of(spark, of.parts, 1).mapInArrow(partial.iterator, partial.spark_schema)
    pipeline = merge_parts(of.spec, first.toArrow())
    of.check_vocabularies(pipeline, tmp_path)
    by_part = spark.createDataFrame(of.parts).repartitionByRange(of.parts.num_rows, "part")
    for frame in (frame_of(spark, of.parts, 2), by_part):
        of.check_rows(frame.mapInArrow(pipeline.files_iterator, pipeline.spark_schema).toArrow())
    encoded = by_part.mapInArrow(pipeline.files_iterator, pipeline.spark_schema)
    encoded.write.parquet(str(tmp_path / "encoded"))
    of.check_rows(pa.parquet.read_table(tmp_path / "encoded"))


def test_a_killed_worker_changes_no_id(spark: Any, tmp_path: Path) -> None:
    of = job(tmp_path, 2)
    marks = tmp_path / "first", tmp_path / "second"
    partial = partial_vocabularies(of.spec)
    call = dying_once(partial.iterator, marks[0])
    frame = frame_of(spark, of.parts, 3)
    pipeline = merge_parts(of.spec, frame.mapInArrow(call, partial.spark_schema).toArrow())
    of.check_vocabularies(pipeline, tmp_path)
    call = dying_once(pipeline.files_iterator, marks[1])
    of.check_rows(frame.mapInArrow(call, pipeline.spark_schema).toArrow())
    assert all(mark.exists() for mark in marks)


def test_rows_of_a_numbered_frame(spark: Any, tmp_path: Path) -> None:
    rows = pa.table(
        {
            "w": [f"w{n * 31 % 77}" for n in range(3000)],
            "n": pa.array([n * 7919 % 83 for n in range(3000)], pa.int32()),
            "m": pa.array([None if n % 9 == 0 else n for n in range(3000)], pa.int64()),
            "v": [["plain", None][n % 2] for n in range(3000)],
            "row": pa.array(range(3000), pa.int64()),
        }
    )
    pa.parquet.write_table(rows, tmp_path / "a.parquet")
    spec = part_files.spec()
    wanted, _ = part_files.one_run(tmp_path, spec, [tmp_path / "a.parquet"])
    partial = partial_vocabularies(spec)
    frame = spark.createDataFrame(rows).repartition(3)
    numbered = frame.repartitionByRange(4, "row").sortWithinPartitions("row")
    first = numbered.mapInArrow(partial.rows_iterator, partial.spark_schema).toArrow()
    pipeline = merge_parts(spec, first)
    assert pipeline.report.rows == frame.count()
    found = frame.mapInArrow(pipeline.rows_iterator, pipeline.spark_schema).toArrow()
    assert sorted(found["row"].to_pylist()) == list(range(3000))
    assert set(found["part"].to_pylist()) == {0, 1, 2}
    found = found.sort_by("row").set_column(0, "part", pa.array([0] * 3000, pa.int64()))
    part_files.check_equal(part_files.in_order(found), wanted)


def test_an_error_keeps_its_text(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,m,v,w\n1,2,a,b\nx,2,a,b\n")
    spec = part_files.spec()
    frame = spark.createDataFrame(split_parts(spec, tmp_path / "a.csv"))
    partial = partial_vocabularies(spec)
    with pytest.raises(Exception, match='a.csv:3:1: field "n", "x"'):
        frame.mapInArrow(partial.iterator, partial.spark_schema).toArrow()
