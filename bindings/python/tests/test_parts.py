"""Tests parts of files without an engine: vocabularies and rows that are made part by part, in any
order, equal those of one run.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import embank
import part_files
from embank import _frozen, _parts, _ray_hang
from embank.pipeline import (
    Column,
    Field,
    FrozenPipeline,
    Output,
    PartialVocabularies,
    Pipeline,
    Spec,
    VocabularySpec,
    criteo,
    fill_missing,
    merge_parts,
    partial_vocabularies,
    split_parts,
    vocabulary,
)
from part_files import check_equal, in_order


def one_by_one(parts: pa.Table, call: Callable[[Any], Any], seed: int = 1) -> list[Any]:
    """Calls `call` on each part by itself, in a random order."""
    places = list(range(parts.num_rows))
    random.Random(seed).shuffle(places)
    return [call(parts.slice(place, 1)) for place in places]


def encoded(pipeline: FrozenPipeline, parts: pa.Table) -> dict[str, Any]:
    tables = one_by_one(parts, lambda part: pa.concat_tables(pipeline.files(part)), seed=2)
    return in_order(tables)


@pytest.mark.parametrize("part_bytes", [300, 4000, "64MiB"])
@pytest.mark.parametrize("min_count", [0, 3])
def test_shuffled_parts_are_as_one_run(tmp_path: Path, min_count: int, part_bytes: Any) -> None:
    files = part_files.write_files(tmp_path)
    spec = part_files.spec(min_count)
    wanted, values = part_files.one_run(tmp_path, spec, files)
    parts = split_parts(spec, files, part_bytes=part_bytes)
    assert parts["part"].to_pylist() == list(range(parts.num_rows))
    assert parts.num_rows == len(files) or part_bytes != "64MiB"
    pipeline = merge_parts(spec, one_by_one(parts, partial_vocabularies(spec)))
    check_equal(encoded(pipeline, parts), wanted)
    check_equal(encoded(pickle.loads(pickle.dumps(pipeline)), parts), wanted)
    assert pipeline.report.rows == len(wanted["ids"])
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        pipeline.save(bank)
        assert part_files.vocabularies(bank) == values
        bank.checkpoint()
        trained = list(Pipeline(spec, bank=bank).feed(files, batch_rows=500))
        check_equal({"ids": np.concatenate([one["ids"] for one in trained])}, {"ids": wanted["ids"]})


def test_the_criteo_pipeline_on_text_and_parquet(tmp_path: Path) -> None:
    def line(n: int) -> str:
        integers = [str(n * i % 50 - 3) if n % (i + 2) else "" for i in range(1, 14)]
        return "\t".join([str(n % 2), *integers, *(f"{n * n * i % 997:x}" for i in range(1, 27))])

    lines = [line(n) for n in range(3000)]
    (tmp_path / "day_0.tsv").write_text("\n".join(lines[:500]))
    (tmp_path / "day_1.tsv").write_text("\n".join(lines[500:]) + "\n")
    spec = criteo(499)
    files = [tmp_path / "day_0.tsv", tmp_path / "day_1.tsv"]
    wanted = part_files.one_run(tmp_path, spec, files)[0]
    parts = split_parts(spec, files, part_bytes="10KiB")
    assert parts.num_rows > 20
    pipeline = merge_parts(spec, one_by_one(parts, partial_vocabularies(spec)))
    check_equal(encoded(pipeline, parts), wanted)
    # The same rows as Parquet, in row groups.
    names = [field.name for field in spec.fields]
    columns = zip(*(line.split("\t") for line in lines))
    table = pa.table({name: pa.array(column) for name, column in zip(names, columns)})
    pa.parquet.write_table(table, tmp_path / "days.parquet", row_group_size=700)
    parts = split_parts(spec, tmp_path / "days.parquet", part_bytes=1)
    assert parts["end"].to_pylist() == [1, 2, 3, 4, 5]
    assert merge_parts(spec, partial_vocabularies(spec)(parts)).report.rows == 3000
    check_equal(encoded(pipeline, parts), wanted)


def test_a_part_that_is_missing_doubled_or_of_another_split_is_named(tmp_path: Path) -> None:
    files = part_files.write_files(tmp_path)
    spec = part_files.spec()
    parts = split_parts(spec, files, part_bytes=300)
    partial = partial_vocabularies(spec)
    made = [partial(parts.slice(place, 1)) for place in range(parts.num_rows)]
    count = len(made)

    def raises(batches: Any, text: str, of: Any = spec) -> None:
        with pytest.raises(embank.PipelineError, match=text):
            merge_parts(of, batches)

    raises([*made[:4], *made[5:]], f"of {count} parts, these are missing: 4;")
    raises(made[:2], f"missing: 2, 3, 4, 5, 6 and {count - 7} more")
    raises([], "no part came")
    raises([*made, made[6]], "part 6, .*csv from .* came twice")
    values = made[6].filter(pa.compute.is_valid(made[6]["vocabulary"]))
    raises([*made, values], "part 6, .* came twice: vocabulary 'small' has value 0")
    incomplete = made[6].filter(pa.compute.not_equal(made[6]["vocabulary"], "large").fill_null(True))
    raises([*made[:6], incomplete, *made[7:]], "part 6, .* came incomplete: .* 'large'")
    summary = made[6].filter(pa.compute.is_valid(made[6]["summary"]))
    raises([*made[:6], summary, *made[7:]], "part 6, .* came incomplete")
    raises([*made[:6], values, *made[7:]], "part 6 came without its summary")
    other = partial(split_parts(spec, files, part_bytes=301).slice(6, 1))
    raises([*made[:6], other, *made[7:]], "part 6 comes from another split than part 0")
    raises(made, "another spec", part_files.spec(2))
    raises([parts], "'vocabulary': it must come from partial_vocabularies")
    with pytest.raises(embank.PipelineError, match="'split': it must come from split_parts"):
        partial(parts.drop_columns("split"))
    with pytest.raises(embank.SpecError, match="another spec"):
        partial_vocabularies(part_files.spec(2))(parts)


def test_specs_and_files_that_cannot_be_split_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,m,v,w\n1,2,a,b\n")
    (tmp_path / "b.csv").write_text("n,m,w\n1,2,a\n")
    spec = part_files.spec()
    with pytest.raises(embank.SpecError, match="it is no file"):
        split_parts(spec, b"1,2,a,b\n")
    with pytest.raises(embank.PipelineError, match='b.csv:1: the header .* no column "v"'):
        split_parts(spec, [tmp_path / "a.csv", tmp_path / "b.csv"])
    with pytest.raises(ValueError, match="part_bytes"):
        split_parts(spec, tmp_path / "a.csv", part_bytes=0)
    with pytest.raises(embank.SpecError, match="no inputs"):
        split_parts(spec, [])
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(embank.SpecError, match="pipe.csv: it is no file"):
        split_parts(spec, tmp_path / "pipe.csv")
    mixed = part_files.spec(bad_rows="skip").to_dict()
    mixed["vocabularies"] = [{"name": "texts", "min_count": 2, "first_id": 1, "unknown_id": 0}]
    for call in (partial_vocabularies, lambda spec: split_parts(spec, tmp_path / "a.csv")):
        with pytest.raises(embank.SpecError, match='"texts" and "small" can\'t be merged'):
            call(mixed)
    named = Spec([Field("part", "int32", required=True)], [Column("part")], [Output("part", ["part"], "i32")])
    with pytest.raises(embank.SpecError, match='output "part" has the name'):
        partial_vocabularies(named)


def test_a_file_that_changes_between_the_passes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,m,v,w\n1,2,a,b\n3,4,c,d\n")
    spec = part_files.spec()
    parts = split_parts(spec, path, part_bytes=8)
    pipeline = merge_parts(spec, partial_vocabularies(spec)(parts))
    # All values are known, and the length is the same.
    modified = path.stat().st_mtime_ns
    path.write_text("n,m,v,w\n3,4,c,d\n1,2,a,b\n")
    os.utime(path, ns=(modified, modified + 1_000_000))
    with pytest.raises(embank.PipelineError, match="time of change is another than when it was"):
        list(pipeline.files(parts))
    path.write_text("n,m,v,w\n1,2,a,b\n3,4,X,d\n")
    os.utime(path, ns=(modified, modified))
    with pytest.raises(embank.PipelineError, match='a.csv from byte .* value "X", which the pass'):
        list(pipeline.files(parts))
    path.write_text("n,m,v,w\n1,2,a,b\n")
    with pytest.raises(embank.PipelineError, match="had 24 bytes when it was split and has 16"):
        list(pipeline.files(parts))


def test_other_files_are_read_as_an_evaluation_reads_them(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("n,m,v,w\n1,2,a,b\n3,4,c,d\n")
    (tmp_path / "eval.csv").write_text("n,m,v,w\n3,9,new,b\n")
    spec = part_files.spec()
    pipeline = merge_parts(spec, partial_vocabularies(spec)(split_parts(spec, tmp_path / "train.csv")))
    rows = encoded(pipeline, split_parts(spec, tmp_path / "eval.csv"))
    assert rows["ids"].tolist() == [[2, 0, 0, 2]]
    strict = Spec(spec.fields, [Column("v", fill_missing(""), vocabulary("v"))], [Output("v", ["v"], "i64")])
    pipeline = merge_parts(strict, partial_vocabularies(strict)(split_parts(strict, tmp_path / "train.csv")))
    with pytest.raises(embank.UnknownValue, match='"new"'):
        list(pipeline.files(split_parts(strict, tmp_path / "eval.csv")))


def test_relative_paths_are_those_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("n,m,v,w\n1,2,a,b\n")
    spec = part_files.spec()
    monkeypatch.chdir(tmp_path)
    parts = split_parts(spec, "a.csv")
    monkeypatch.chdir("/")
    assert merge_parts(spec, partial_vocabularies(spec)(parts)).report.rows == 1


def test_bad_rows_count_over_all_parts(tmp_path: Path) -> None:
    spec = part_files.spec(bad_rows="skip")
    good, bad = "1\t2\ta\tb\n" * 60, "bad\n" * 40
    (tmp_path / "a.tsv").write_text(bad + good)
    parts = split_parts(spec, tmp_path / "a.tsv", part_bytes=100)
    pipeline = merge_parts(spec, one_by_one(parts, partial_vocabularies(spec)))
    assert (pipeline.report.rows, pipeline.report.bad_rows) == (60, 40)
    assert pipeline.report.first_bad_rows[0].startswith(f"{tmp_path}/a.tsv:1: has 1 field")
    assert pipeline.report.bytes == (tmp_path / "a.tsv").stat().st_size
    assert encoded(pipeline, parts)["dense"].shape == (60, 1)
    (tmp_path / "b.tsv").write_text(bad)
    parts = split_parts(spec, tmp_path / "b.tsv", part_bytes=100)
    with pytest.raises(embank.BadRow, match="40 of the first 40 lines"):
        merge_parts(spec, partial_vocabularies(spec)(parts))
    fail = part_files.spec()
    with pytest.raises(embank.BadRow, match=r"b.tsv from byte 40:1: "):
        partial_vocabularies(fail)(split_parts(fail, tmp_path / "b.tsv", part_bytes=37).slice(1, 1))


def test_no_rows_keep_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,m,v,w\n")
    spec = part_files.spec()
    parts = split_parts(spec, tmp_path / "a.csv")
    pipeline = merge_parts(spec, partial_vocabularies(spec)(parts))
    (nothing,) = pipeline.files(parts)
    (tmp_path / "b.csv").write_text("n,m,v,w\n1,2,,\n")
    (rows,) = pipeline.files(split_parts(spec, tmp_path / "b.csv"))
    assert nothing.num_rows == 0 and nothing.schema.names == rows.schema.names
    assert nothing.schema.types == rows.schema.types


def test_large_vocabularies_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parts, "_PIECE_VALUES_MAX", 7)
    monkeypatch.setattr(_parts, "_PIECE_BYTES_MAX", 20)
    files = part_files.write_files(tmp_path)
    spec = part_files.spec(2)
    wanted, _ = part_files.one_run(tmp_path, spec, files)
    parts = split_parts(spec, files, part_bytes=5000)
    partial = pa.concat_tables(one_by_one(parts, partial_vocabularies(spec)))
    texts = partial["texts"].drop_null()
    bytes_ = [sum(map(len, one.as_py())) for one in texts]
    assert max(bytes_) <= 20 and max(len(one) for one in texts) == 7
    places = list(range(partial.num_rows))
    random.Random(5).shuffle(places)
    check_equal(encoded(merge_parts(spec, partial.take(places)), parts), wanted)


def frame(first: int = 0, end: int = 100) -> pa.Table:
    return pa.table(
        {
            "w": [f"w{n * 31 % 77}" for n in range(first, end)],
            "id": [f"user {n}" for n in range(first, end)],
            "n": pa.array([n * 7919 % 83 for n in range(first, end)], pa.int32()),
            "m": pa.array([None if n % 9 == 0 else n for n in range(first, end)], pa.int64()),
            "v": pa.array([b"plain", None][n % 2] for n in range(first, end)),
        }
    )


def test_rows_of_a_frame(tmp_path: Path) -> None:
    spec = part_files.spec()
    pa.parquet.write_table(frame(), tmp_path / "a.parquet")
    wanted, _ = part_files.one_run(tmp_path, spec, [tmp_path / "a.parquet"])
    pipeline = merge_parts(spec, partial_vocabularies(spec)(split_parts(spec, tmp_path / "a.parquet")))
    batches = frame().to_batches(max_chunksize=30)
    rows = pa.Table.from_batches(list(pipeline.rows_iterator([*batches, batches[0].slice(0, 0)])))
    assert rows["part"].to_pylist() == [0] * 100 and rows["row"].to_pylist() == list(range(100))
    check_equal(in_order(rows), wanted)
    # Numbers of the frame are copied.
    numbered = frame(0, 3).append_column("row", pa.array([7, 5, 6], pa.int32()))
    (rows,) = pipeline.rows_iterator(numbered.to_batches())
    assert rows.column("row").to_pylist() == [7, 5, 6] and rows.schema.types[1] == pa.int64()
    check_equal(in_order(pa.Table.from_batches([rows])), {k: v[[1, 2, 0]] for k, v in wanted.items()})
    text = frame(0, 1).append_column("row", pa.array(["first"]))
    with pytest.raises(embank.PipelineError, match='column "row" of the frame .* another name'):
        list(pipeline.rows_iterator(text.to_batches()))
    with pytest.raises(embank.PipelineError, match='no column "v"'):
        list(pipeline.rows_iterator(frame(0, 1).drop_columns("v").to_batches()))
    skips = part_files.spec(bad_rows="skip")
    pipeline = merge_parts(skips, partial_vocabularies(skips)(split_parts(skips, tmp_path / "a.parquet")))
    bad = frame(0, 3).set_column(2, "n", pa.array(["1", "x", "2"]))
    with pytest.raises(embank.PipelineError, match='one row comes out for each .*rows:2.* "x"'):
        list(pipeline.rows_iterator(bad.to_batches()))


def test_the_vocabularies_of_a_numbered_frame(tmp_path: Path) -> None:
    rows = frame(0, 300)
    pa.parquet.write_table(rows, tmp_path / "a.parquet")
    numbers = [number * 10 - 500 for number in range(300)]
    rows = rows.append_column("row", pa.array(numbers, pa.int64()))
    cuts = [0, 70, 70, 71, 200, 300]
    partitions = [rows.slice(begin, end - begin) for begin, end in zip(cuts, cuts[1:])]
    for min_count in (0, 4):
        spec = part_files.spec(min_count)
        partial = partial_vocabularies(spec)
        wanted, values = part_files.one_run(tmp_path / str(min_count), spec, [tmp_path / "a.parquet"])
        made = [
            list(partial.rows_iterator(one.to_batches(max_chunksize=30))) for one in partitions
        ]
        assert made[1] == []  # a partition without rows
        random.Random(3).shuffle(made)
        pipeline = merge_parts(spec, sum(made, []))
        assert pipeline.report.rows == 300
        found = pa.Table.from_batches(list(pipeline.rows_iterator(rows.to_batches())))
        check_equal(in_order(found), wanted)
        with embank.Bank(tmp_path / f"bank {min_count}", memory_budget="16MiB") as bank:
            pipeline.save(bank)
            assert part_files.vocabularies(bank) == values
            bank.checkpoint()
        with pytest.raises(embank.SpecError, match="another spec"):
            merge_parts(part_files.spec(9), sum(made, []))
        with pytest.raises(embank.PipelineError, match="rows from -500 to 191, came twice"):
            merge_parts(spec, sum([*made, *made], []))

    def partition(begin: int, end: int) -> list[Any]:
        return list(partial.rows_iterator(rows.slice(begin, end - begin).to_batches()))

    with pytest.raises(embank.PipelineError, match="rows from -500 to 191 and .* overlap"):
        merge_parts(spec, [*partition(0, 70), *partition(69, 300)])
    for order in ([1, 0], [0, 0]):
        with pytest.raises(embank.PipelineError, match=r"sortWithinPartitions"):
            list(partial.rows_iterator(rows.take(order).to_batches()))
    with pytest.raises(embank.PipelineError, match='no column "row"'):
        list(partial.rows_iterator(frame().to_batches()))
    with pytest.raises(embank.PipelineError, match="a whole number in each row"):
        list(partial.rows_iterator(frame(0, 2).append_column("row", pa.array([1, None])).to_batches()))


def test_a_process_makes_the_tables_of_a_pipeline_once(tmp_path: Path) -> None:
    files = part_files.write_files(tmp_path)
    pipelines = []
    for min_count in range(4):
        spec = part_files.spec(min_count)
        parts = split_parts(spec, files)
        pipelines.append(merge_parts(spec, partial_vocabularies(spec)(parts)))
    assert len({pipeline.fingerprint for pipeline in pipelines}) == 4
    assert len(_frozen._kept) == _frozen._KEPT_MAX
    kept = pipelines[0]._pipeline()
    copies = [pickle.loads(pickle.dumps(pipelines[0], protocol)) for protocol in (2, 5)]
    assert all(copy._pipeline() is kept for copy in copies)
    assert all(copy.fingerprint == pipelines[0].fingerprint for copy in copies)
    again = merge_parts(part_files.spec(0), partial_vocabularies(part_files.spec(0))(split_parts(part_files.spec(0), files)))
    assert again.report.rows == pipelines[0].report.rows


def test_another_process_makes_the_same_rows(tmp_path: Path) -> None:
    """A fresh process has only the pickle, as a worker of an engine."""
    files = part_files.write_files(tmp_path)
    spec = part_files.spec(2)
    wanted, _ = part_files.one_run(tmp_path, spec, files)
    parts = split_parts(spec, files, part_bytes=3000)
    pipeline = merge_parts(spec, one_by_one(parts, partial_vocabularies(spec)))
    (tmp_path / "work").write_bytes(pickle.dumps((pipeline.files, parts, partial_vocabularies(spec))))
    program = (
        "import pickle, pyarrow; call, parts, partial = pickle.load(open('work', 'rb'));"
        "table = pyarrow.concat_tables(call(parts));"
        "pickle.dump((table, partial(parts)), open('done', 'wb'))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    table, partial = pickle.loads((tmp_path / "done").read_bytes())
    check_equal(in_order(table), wanted)
    assert merge_parts(spec, partial).fingerprint == pipeline.fingerprint


def test_a_forked_child_makes_its_own_tables(tmp_path: Path) -> None:
    files = part_files.write_files(tmp_path)
    spec = part_files.spec()
    parts = split_parts(spec, files)
    pipeline = merge_parts(spec, partial_vocabularies(spec)(parts))
    wanted = encoded(pipeline, parts)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check_equal(encoded(pipeline, parts), wanted)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def ray_with(actor: Any, free: float) -> Any:
    context = SimpleNamespace(get_actor_id=lambda: actor)
    return SimpleNamespace(
        is_initialized=lambda: True,
        get_runtime_context=lambda: context,
        available_resources=lambda: {"CPU": free} if free else {},
    )


def test_an_actor_without_a_part_names_the_hang_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ray_hang, "first_part", threading.Event())
    monkeypatch.setattr(_ray_hang, "_WAIT_SECONDS", 0.0)
    found: list[Any] = []
    monkeypatch.setattr(_ray_hang, "warn_if_full", found.append)

    def watched(actor: Any) -> int:
        monkeypatch.setitem(sys.modules, "ray", ray_with(actor, 0.0))
        partial = pickle.loads(pickle.dumps(partial_vocabularies(part_files.spec())))
        assert isinstance(partial, PartialVocabularies)
        for thread in threading.enumerate():
            if thread.name == "embank-ray-hang":
                thread.join()
        return len(found)

    assert watched(None) == 0  # a task, which is called at once
    assert watched("an actor") == 1
    _ray_hang.first_part.set()
    assert watched("an actor") == 1


def test_the_hang_of_ray_is_named_only_without_a_free_processor() -> None:
    for free in (0.0, 0.5):
        with pytest.warns(RuntimeWarning, match="as many actors as processors.*ray#44687"):
            _ray_hang.warn_if_full(ray_with("an actor", free))
    _ray_hang.warn_if_full(ray_with("an actor", 1.0))


def test_counts_reach_the_bank(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("7\n8\n7\n9\n7\n8\n")
    spec = Spec(
        [Field("n", "int32", required=True)],
        [Column("n", vocabulary("n"))],
        [Output("n", ["n"], "i64")],
        vocabularies=[VocabularySpec("n", counts=True)],
    )
    parts = split_parts(spec, tmp_path / "a.tsv", part_bytes=3)
    pipeline = merge_parts(spec, one_by_one(parts, partial_vocabularies(spec)))
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        pickle.loads(pickle.dumps(pipeline)).save(bank)
        assert bank.open_vocabulary("n").counts([0, 1, 2]).tolist() == [3, 2, 1]
        pipeline.save(bank)  # the bank has the values, so nothing changes
        assert bank.open_vocabulary("n").counts([0, 1, 2]).tolist() == [3, 2, 1]
        bank.checkpoint()
    with embank.Bank(tmp_path / "other", memory_budget="16MiB") as bank:
        Pipeline(spec, bank=bank).run(b"5\n")
        with pytest.raises(embank.SpecError, match='"n" of the bank has 1 values already'):
            pipeline.save(bank)
        bank.checkpoint()


def test_a_report_is_that_of_its_own_merge() -> None:
    """Two merges with equal values once shared the report of the first."""
    spec = part_files.spec()
    make = partial_vocabularies(spec).rows_iterator
    for rows in (3, 2):
        frame = pa.record_batch(
            {"row": list(range(rows)), "n": [1] * rows, "m": [2] * rows, "v": ["a"] * rows, "w": ["b"] * rows}
        )
        pipeline = merge_parts(spec, make([frame]))
        assert pipeline.report.rows == rows
        assert pickle.loads(pickle.dumps(pipeline)).report.rows == rows
