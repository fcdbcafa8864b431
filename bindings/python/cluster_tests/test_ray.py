"""Tests pipelines on Ray Data: ids and rows are those of one run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Callable

import pyarrow as pa
import pyarrow.parquet
import pytest
from cluster import Job, dying_once, job

import embank
import part_files
from embank.pipeline import FrozenPipeline, merge_parts, partial_vocabularies, split_parts


def mapped(ray: Any, parts: pa.Table, call: Callable[[Any], Any]) -> Any:
    """The rows that `call` makes of the parts, which come in a random order, one to a block."""
    shuffled = ray.data.from_arrow(parts).random_shuffle(seed=3).repartition(parts.num_rows)
    return shuffled.map_batches(call, batch_format="pyarrow", batch_size=None, num_cpus=0.5)


def merged(ray: Any, of: Job, call: Callable[[Any], Any]) -> FrozenPipeline:
    first = mapped(ray, of.parts, call)
    return merge_parts(of.spec, first.iter_batches(batch_format="pyarrow", batch_size=None))


def collected(ray: Any, rows: Any) -> pa.Table:
    tables = ray.get(rows.to_arrow_refs())
    return pa.concat_tables(table for table in tables if table.num_rows > 0)


@pytest.mark.parametrize("min_count", [0, 3])
def test_shuffled_parts_give_the_ids_of_one_run(ray: Any, tmp_path: Path, min_count: int) -> None:
    of = job(tmp_path, min_count)
    assert of.parts.num_rows >= 10
    pipeline = merged(ray, of, partial_vocabularies(of.spec))
    of.check_vocabularies(pipeline, tmp_path)
    encoded = mapped(ray, of.parts, pipeline.files)
    of.check_rows(collected(ray, encoded))
    encoded.write_parquet(str(tmp_path / "encoded"))
    of.check_rows(pa.parquet.read_table(tmp_path / "encoded"))


def test_a_killed_worker_changes_no_id(ray: Any, tmp_path: Path) -> None:
    of = job(tmp_path, 2)
    marks = tmp_path / "first", tmp_path / "second"
    pipeline = merged(ray, of, dying_once(partial_vocabularies(of.spec), marks[0]))
    of.check_vocabularies(pipeline, tmp_path)
    of.check_rows(collected(ray, mapped(ray, of.parts, dying_once(pipeline.files, marks[1]))))
    assert all(mark.exists() for mark in marks)


def test_actors_with_a_free_processor(ray: Any, tmp_path: Path) -> None:
    of = job(tmp_path, 0)
    pipeline = merged(ray, of, partial_vocabularies(of.spec))

    class Encoder:
        def __init__(self, pipeline: FrozenPipeline) -> None:
            self.pipeline = pipeline

        def __call__(self, parts: pa.Table) -> Any:
            yield from self.pipeline.files(parts)

    blocks = ray.data.from_arrow(of.parts).repartition(of.parts.num_rows)
    encoded = blocks.map_batches(
        Encoder,
        fn_constructor_args=(pipeline,),
        batch_format="pyarrow",
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    of.check_rows(collected(ray, encoded))


def test_an_error_keeps_its_text(ray: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,m,v,w\n1,2,a,b\nx,2,a,b\n")
    spec = part_files.spec()
    parts = split_parts(spec, tmp_path / "a.csv")
    with pytest.raises(Exception, match='a.csv:3:1: field "n", "x"'):
        mapped(ray, parts, partial_vocabularies(spec)).materialize()


def test_errors_of_rows_can_be_pickled(tmp_path: Path) -> None:
    """An engine sends an exception from a worker as a pickle."""
    (tmp_path / "a.csv").write_text("n,m,v,w\nx,2,a,b\n")
    spec = part_files.spec()
    with pytest.raises(embank.BadRow) as raised:
        partial_vocabularies(spec)(split_parts(spec, tmp_path / "a.csv"))
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
