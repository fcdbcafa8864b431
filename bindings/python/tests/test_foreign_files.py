"""Tests that pipelines read files of other programs: headers, formats by name, encodings, settings
of fields."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, fill_missing, modulus


def spec(*fields: Field, **settings: Any) -> Spec:
    """Makes a spec with columns of whole numbers, whose missing values are filled with 0."""
    names = [one.name for one in fields]
    wide = [one.kind == "uint64" for one in fields]
    columns = [
        Column(name, fill_missing(0), *([modulus(1 << 30)] if is_wide else []))
        for name, is_wide in zip(names, wide)
    ]
    return Spec(fields, columns, [Output("x", names, "i64")], **settings)


def pairs() -> Spec:
    return spec(Field("user", "int32"), Field("item", "int32"))


def rows(pipeline: Pipeline, inputs: Any, **how: Any) -> list[list[int]]:
    return list(itertools.chain(*(batch["x"].tolist() for batch in pipeline.feed(inputs, **how))))


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    """Shows that columns are found by the names in each file's header, in any order."""
    files = {"a.csv": "user,item\n1,100\n", "b.csv": "item,user\n300,3\n", "c.csv": "5,500\n6,600\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = [tmp_path / name for name in files]
    for format in ("csv", None):
        pipeline = Pipeline(pairs(), format=format)  # type: ignore[arg-type]
        assert rows(pipeline, paths[:2]) == [[1, 100], [3, 300]]
        with pytest.raises(embank.PipelineError, match=r'c\.csv:1: .*expected "user", "item", found "5", "500"'):
            rows(pipeline, paths)
    assert rows(Pipeline(pairs(), header="none"), paths[2]) == [[5, 500], [6, 600]]
    assert rows(Pipeline(pairs(), header="skip"), paths[:2]) == [[1, 100], [300, 3]]


def test_formats_by_name(tmp_path: Path) -> None:
    text = b"item,user\n\"7\",1\n"
    (tmp_path / "n.CSV").write_bytes(text)
    (tmp_path / "n.csv.gzip").write_bytes(gzip.compress(text))
    (tmp_path / "n.tsv").write_bytes(b"2\t8\n")
    (tmp_path / "plain").write_bytes(b"3\t9\n")
    pipeline = Pipeline(pairs())
    assert rows(pipeline, [tmp_path / "n.CSV", tmp_path / "n.csv.gzip"]) == [[1, 7], [1, 7]]
    assert rows(pipeline, [tmp_path / "n.tsv", tmp_path / "plain", b"4\t5\n"]) == [[2, 8], [3, 9], [4, 5]]
    with pytest.raises(embank.PipelineError, match="different|by their names"):
        rows(pipeline, [tmp_path / "n.CSV", tmp_path / "n.tsv"])
    with pytest.raises(embank.PipelineError, match="by their names"):
        pipeline.run(tmp_path)
    with pytest.raises(embank.PipelineError, match="there are no inputs"):
        rows(pipeline, [])
    (tmp_path / "n.tsv").unlink()
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / "plain").unlink()
    assert rows(pipeline, str(tmp_path)) == [[1, 7], [1, 7]]
    assert rows(Pipeline(pairs(), separator="::"), b"1::2\n3::4\n") == [[1, 2], [3, 4]]


def test_columns_of_parquet_and_arrow(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    feather = pytest.importorskip("pyarrow.feather")
    table = pyarrow.table({
        "item": pyarrow.array([1.0, None, float("nan")]),
        "user": pyarrow.array([7, 8, 7], pyarrow.int64()).dictionary_encode(),
        "tags": [["a"], [], None],
    })
    feather.write_feather(table, tmp_path / "t.feather")
    for codec in ("gzip", "brotli", "lz4", "snappy", "zstd", "none"):
        parquet.write_table(table, tmp_path / "t.parquet", compression=codec)
        for format in (None, "columns"):
            pipeline = Pipeline(pairs(), format=format)  # type: ignore[arg-type]
            for name in ("t.parquet", "t.feather"):
                assert rows(pipeline, tmp_path / name) == [[7, 1], [8, 0], [7, 0]]
    lists = spec(Field("tags", "int64"))
    with pytest.raises(embank.PipelineError, match='column "tags".*lists are not read'):
        rows(Pipeline(lists), tmp_path / "t.parquet")
    times = pyarrow.table({"t": pyarrow.array([1_500_000_000], pyarrow.timestamp("ns"))})
    parquet.write_table(times, tmp_path / "s.parquet")
    for unit, expected in (("s", 1), ("ms", 1500), ("us", 1_500_000), ("ns", 1_500_000_000)):
        field = Field("t", "int64", time_unit=unit)  # type: ignore[arg-type]
        assert rows(Pipeline(spec(field)), tmp_path / "s.parquet") == [[expected]]
    # A file that was written before the column existed.
    parquet.write_table(table.drop_columns("item"), tmp_path / "old.parquet")
    pipeline = Pipeline(pairs())
    report = pipeline.run([tmp_path / "t.parquet", tmp_path / "old.parquet"])
    assert (report.rows, report.missing_columns) == (6, 1)
    assert report.first_missing_columns == [f'{tmp_path / "old.parquet"}: "item"']


def test_settings_of_fields() -> None:
    field = Field("n", "int32", missing=["NA", "-1"], whole_floats=True)
    assert rows(Pipeline(spec(field)), b"5.0\nNA\n-1\n-2\n") == [[5], [0], [0], [-2]]
    ids = Field("n", "uint64")
    assert rows(Pipeline(spec(ids)), b"18446744073709551615\n") == [[(2**64 - 1) % (1 << 30)]]
    with pytest.raises(TypeError, match="list of spellings"):
        Pipeline(spec(Field("n", "int32", missing="NA")))
    with pytest.raises(embank.SpecError, match="whole_floats"):
        Pipeline(spec(Field("n", "hex32", whole_floats=True)))


def test_a_share_of_bad_rows() -> None:
    text = b"5.0\n6\n" * 10_000
    with pytest.raises(embank.BadRow, match="bad_rows_max") as raised:
        Pipeline(spec(Field("n", "int32"), bad_rows="skip")).run(text)
    assert (raised.value.line, raised.value.lines) == (1, 1)
    report = Pipeline(spec(Field("n", "int32"), bad_rows="skip", bad_rows_max=0.6)).run(text)
    assert (report.rows, report.bad_rows, report.bad_lines) == (10_000, 10_000, 10_000)
    open_quote = b"n,m\n1,2\n\"3,4\n" + b"5,6\n" * 998
    pipeline = Pipeline(spec(Field("n", "int32"), bad_rows="skip"), format="csv")
    report = pipeline.run(open_quote)
    assert (report.rows, report.bad_rows, report.bad_lines) == (1, 1, 999)
    assert "spans 999 lines" in report.first_bad_rows[0]


def test_encodings() -> None:
    words = "user,item\n1,2\n"
    pipeline = Pipeline(pairs(), format="csv")
    assert rows(pipeline, words.encode("utf-8-sig")) == [[1, 2]]
    for encoding, name in (("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"), ("utf-32", "UTF-32")):
        with pytest.raises(embank.PipelineError, match=name):
            rows(pipeline, words.encode(encoding))
    with pytest.raises(embank.PipelineError, match="CR alone"):
        rows(pipeline, words.replace("\n", "\r").encode())
    assert rows(pipeline, words.replace("\n", "\r\n").encode()) == [[1, 2]]


def test_float_columns_with_missing_values() -> None:
    field = Field("x", "float32", missing=["nan"])
    wanted = Spec([field], [Column("x", fill_missing(0.5))], [Output("x", ["x"], "f32")])
    batch = next(Pipeline(wanted).feed(b"nan\n1.5\n\n"))
    assert np.array_equal(batch["x"].ravel(), np.float32([0.5, 1.5, 0.5]))


def test_times_of_spark_do_not_wrap(tmp_path: Path) -> None:
    """Shows that Spark's timestamps of 96 bits keep late dates, such as the last day of the year
    9999 for "never"."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    days = ["1500-01-01", "1969-12-31", "2026-11-25", "9999-12-31"]
    times = np.array(days, "datetime64[us]")
    path = tmp_path / "spark.parquet"
    pq.write_table(pa.table({"at": pa.array(times)}), path, use_deprecated_int96_timestamps=True)
    units: tuple[Any, ...] = ("us", "ms", "s")
    for unit in units:
        made = spec(Field("at", "int64", time_unit=unit))
        expected = times.astype(f"datetime64[{unit}]").astype(np.int64)
        assert [row[0] for row in rows(Pipeline(made), path)] == expected.tolist(), unit


def test_a_column_of_json_is_text(tmp_path: Path) -> None:
    """Regression test: a thread of the pipeline panicked at columns that DuckDB writes as JSON."""
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "j.parquet"
    duckdb.sql(f"COPY (SELECT '17'::JSON AS n UNION ALL SELECT NULL) TO '{path}' (FORMAT parquet)")
    assert sorted(rows(Pipeline(spec(Field("n", "int32"))), path)) == [[0], [17]]
