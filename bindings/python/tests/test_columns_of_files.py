"""Tests that a value of a Parquet or Arrow file means the same in all files of a run, and that
types of other programs are read or refused by name."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, fill_missing

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write_arrow(table: Any, path: Path) -> None:
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def rows(paths: Any, kind: Any = "int64", **settings: Any) -> list[Any]:
    dtype: Any = "f32" if kind == "float32" else "i64"
    spec = Spec([Field("a", kind, **settings)], [Column("a", fill_missing(0))], [Output("x", ["a"], dtype)])
    batches = [batch["x"].ravel() for batch in Pipeline(spec, format="columns").feed(paths)]
    return list(np.concatenate(batches).tolist()) if batches else []


Writer = Callable[[Any, Path], None]
WRITERS = [pytest.param(parquet.write_table, id="Parquet"), pytest.param(write_arrow, id="Arrow")]


def files(write: Writer, directory: Path, *columns: Any) -> list[Path]:
    """Writes a file for each column."""
    paths = [directory / f"{number}.file" for number in range(len(columns))]
    for path, column in zip(paths, columns):
        write(column if isinstance(column, pyarrow.Table) else pyarrow.table({"a": column}), path)
    return paths


DAY = datetime.date(2024, 1, 2)
TIME = datetime.datetime(2024, 1, 2)


def of(kind: Any, *values: Any) -> Any:
    return pyarrow.array(values, kind)


@pytest.mark.parametrize("write", WRITERS)
def test_a_value_means_the_same_in_all_files(tmp_path: Path, write: Writer) -> None:
    """Regression test: days of one file and microseconds of another came into one column, and so
    did hexadecimal text and numbers."""
    micros, berlin = pyarrow.timestamp("us"), pyarrow.timestamp("us", "Europe/Berlin")
    for kind, first, second, parts in [
        ("int64", of(None, DAY), of(None, TIME), ["Date32", "days", "Timestamp", "without a time zone"]),
        ("int64", of(micros, 1), of(berlin, 1), ["without a time zone", "a time in UTC"]),
        ("int64", of(None, 1704153600), of(micros, 1), ["a number", "without a time zone"]),
        ("int64", of(None, "1704153600"), of(None, DAY), ["a number", "days"]),
        ("int64", of(pyarrow.time64("us"), 1), of(pyarrow.duration("us"), 1), ["a time of day", "a duration"]),
        ("hex32", of(None, "00000016"), of(None, 16), ["hexadecimal digits", "a number"]),
        ("hex32", of(None, "16", "16").dictionary_encode(), of(None, 16.0), ["hexadecimal digits", "a number"]),
    ]:
        for one, other in ((first, second), (second, first)):
            paths = files(write, tmp_path, one, other)
            with pytest.raises(embank.PipelineError) as raised:
                rows(paths, kind)
            for part in [*map(str, paths), 'column "a"', *parts, "with one type in all files"]:
                assert part in str(raised.value)
            assert len(rows(paths[:1], kind)) and len(rows(paths[1:], kind))


@pytest.mark.parametrize("write", WRITERS)
def test_types_of_one_meaning_are_read_together(tmp_path: Path, write: Writer) -> None:
    dollars = of(pyarrow.decimal128(9, 2), decimal.Decimal("1.50"))
    thousandths = of(pyarrow.decimal128(9, 3), decimal.Decimal("2.250"))
    for kind, columns, expected in [
        ("int64", [of(pyarrow.int8(), 1), of(pyarrow.uint64(), 2), of(None, 3.0), of(None, "4"), of(None, True)],
         [1, 2, 3, 4, 1]),
        ("int64", [of(pyarrow.timestamp("ms"), 1), of(pyarrow.timestamp("ns"), 2000)], [1000, 2]),
        ("int64", [of(pyarrow.timestamp("ms", "UTC"), 1), of(pyarrow.timestamp("us", "Europe/Berlin"), 2)], [1000, 2]),
        ("int64", [of(pyarrow.date32(), 1), of(pyarrow.date64(), 2 * 86_400_000)], [1, 2]),
        ("hex32", [of(pyarrow.string(), "ff"), of(pyarrow.large_string(), "10"), of(pyarrow.binary(), b"1")],
         [255, 16, 1]),
        ("hex32", [of(None, "ff").dictionary_encode(), of(None, "10")], [255, 16]),
        ("float32", [dollars, thousandths, of(None, 3.5), of(None, 4)], [1.5, 2.25, 3.5, 4.0]),
        ("int64", [of(None, None), of(None, DAY), of(None, None)], [0, 19724, 0]),
    ]:
        assert rows(files(write, tmp_path, *columns), kind) == expected


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_without_rows_is_read_whatever_its_columns_are(tmp_path: Path, write: Writer) -> None:
    """Regression test: a file of no rows whose column has another type, as pandas writes it for an
    empty frame, refused the run."""
    numbers = of(None, 1, 2)
    for empty in [
        of(pyarrow.date32()), of(pyarrow.string()), of(pyarrow.list_(pyarrow.int64())), pyarrow.table({}),
        pyarrow.table({"b": of(pyarrow.int64())}),
    ]:
        for columns in ([empty, numbers], [numbers, empty]):
            assert rows(files(write, tmp_path, *columns), required=True) == [1, 2]
        assert rows(files(write, tmp_path, empty)) == []
    with pytest.raises(embank.PipelineError, match='column "a".*lists are not read'):
        rows(files(write, tmp_path, numbers, of(None, [1])))


def test_times_of_96_bits_in_nanoseconds(tmp_path: Path) -> None:
    """Regression test: 96-bit times, which Spark writes, were cut to microseconds although the
    field asked for nanoseconds."""
    path = tmp_path / "t.parquet"

    def write(unit: str, values: list[Any], dictionary: bool) -> None:
        table = pyarrow.table({"a": pyarrow.array(values, pyarrow.timestamp(unit))})
        parquet.write_table(table, path, use_deprecated_int96_timestamps=True, use_dictionary=dictionary)

    for dictionary in (True, False):
        write("ns", [1234567890123456789, None, -1], dictionary)
        for unit, expected in (
            ("ns", [1234567890123456789, 0, -1]), ("us", [1234567890123456, 0, -1]), ("s", [1234567890, 0, -1]),
        ):
            assert rows(path, time_unit=unit) == expected
        write("s", [10**10], dictionary)
        assert rows(path, time_unit="us") == [10**16]
        with pytest.raises(embank.PipelineError, match='column "a".*after 2262.*microseconds'):
            rows(path, time_unit="ns")


@pytest.mark.parametrize(
    "settings",
    [
        {"use_deprecated_int96_timestamps": True, "row_group_size": 2},
        {"use_deprecated_int96_timestamps": True, "flavor": "spark", "store_schema": False},
        {"use_deprecated_int96_timestamps": True, "data_page_version": "2.0"},
        {"version": "2.6"},
        {"version": "2.6", "use_dictionary": False, "row_group_size": 3, "store_schema": False},
    ],
    ids=lambda settings: " ".join(settings),
)
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_each_way_to_write_nanoseconds_keeps_them(
    tmp_path: Path, settings: dict[str, Any], zone: Any
) -> None:
    largest = 2**63 - 1
    times = of(pyarrow.timestamp("ns", zone), 1234567890123456789, None, -1, largest, -largest - 1)
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"b": range(5), "a": times}), path, **settings)
    assert rows(path, time_unit="ns") == [1234567890123456789, 0, -1, largest, -largest - 1]
    if zone is None:
        # The other file counts microseconds.
        other = files(parquet.write_table, tmp_path, of(pyarrow.timestamp("us"), 7, None))
        assert rows([path, *other], time_unit="ns")[-3:] == [-largest - 1, 7000, 0]


@pytest.mark.parametrize("write", WRITERS)
def test_times_of_day_and_durations_in_nanoseconds(tmp_path: Path, write: Writer) -> None:
    for kind in (pyarrow.time64("ns"), pyarrow.duration("ns"), pyarrow.timestamp("ns")):
        paths = files(write, tmp_path, of(kind, 123456789, None, 1))
        assert rows(paths, time_unit="ns") == [123456789, 0, 1]
        assert rows(paths, time_unit="us") == [123456, 0, 0]


def test_each_field_of_96_bit_times_has_its_unit(tmp_path: Path) -> None:
    times = of(pyarrow.timestamp("ns"), 1234567890123456789)
    parquet.write_table(
        pyarrow.table({name: times for name in "abc"}),
        tmp_path / "t.parquet",
        use_deprecated_int96_timestamps=True,
    )
    units: Any = {"b": "ms", "a": "ns", "c": "us"}
    spec = Spec(
        [Field(name, "int64", time_unit=unit) for name, unit in units.items()],
        [Column(name, fill_missing(0)) for name in units],
        [Output("x", list(units), "i64")],
    )
    (batch,) = Pipeline(spec).feed(tmp_path / "t.parquet")
    assert batch["x"].tolist() == [[1234567890123, 1234567890123456789, 1234567890123456]]


def write_with_stored_schema(table: Any, path: Path, text: str, **settings: Any) -> None:
    """Writes a Parquet file that has `text` as its Arrow schema."""
    with parquet.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table, **settings)
        writer.add_key_value_metadata({"ARROW:schema": text})


def test_a_stored_arrow_schema_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    """Regression test: a program that changes columns and keeps the text `ARROW:schema` made files
    that were refused as incompatible."""
    table = pyarrow.table({"a": of(pyarrow.int32(), 1, 2), "b": of(None, "x", "y")})
    for fields in ([("a", pyarrow.string()), ("z", pyarrow.int64())], [("b", pyarrow.string())], None):
        text = "no schema" if fields is None else base64.b64encode(pyarrow.schema(fields).serialize()).decode()
        write_with_stored_schema(table, tmp_path / "t.parquet", text)
        assert rows(tmp_path / "t.parquet") == [1, 2]


COLUMNS = {
    "numbers": pyarrow.array([1, 2]),
    "digits": pyarrow.array(["1", "2"]),
    "floats": pyarrow.array([1.0, 2.0]),
    "days": pyarrow.array([1, 2], pyarrow.date32()),
    "times": pyarrow.array([1, 2], pyarrow.timestamp("us")),
    "decimals": pyarrow.array([1, 2]).cast(pyarrow.decimal128(19)),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_stored_arrow_schema_of_other_types_changes_no_value(tmp_path: Path, column: Any) -> None:
    """Shows that columns of each kind are read by their own types if the text that another program
    left in the file has a type that does not fit."""
    table = pyarrow.table({"b": pyarrow.array([True, False]), "a": column})
    path = tmp_path / "t.parquet"
    for kind in (
        pyarrow.string(), pyarrow.large_binary(), pyarrow.bool_(), pyarrow.null(),
        pyarrow.list_(pyarrow.int64()), pyarrow.struct([("x", pyarrow.int64())]),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), pyarrow.decimal128(10, 2),
    ):
        schema = pyarrow.schema([("b", pyarrow.bool_()), ("a", kind)])
        text = base64.b64encode(schema.serialize()).decode()
        write_with_stored_schema(table, path, text, row_group_size=1)
        assert rows(path) == [1, 2]
        # The files of a run may have texts of different types, or no text.
        parquet.write_table(table, tmp_path / "other.parquet", store_schema=False)
        assert rows([path, tmp_path / "other.parquet"]) == [1, 2, 1, 2]


CONVERTIBLE: list[tuple[Any, list[Any]]] = [
    (
        pyarrow.array([300, 2**40 + 1]),
        [pyarrow.timestamp("ns"), pyarrow.timestamp("us"), pyarrow.timestamp("ms"), pyarrow.time64("ns")],
    ),
    (
        pyarrow.array([300, 86_399], pyarrow.int32()),
        [pyarrow.timestamp("ms"), pyarrow.time32("ms"), pyarrow.date32()],
    ),
    (
        of(pyarrow.timestamp("ns"), 3000, 7001),
        [pyarrow.timestamp("ms"), pyarrow.timestamp("s"), pyarrow.int64()],
    ),
]


@pytest.mark.parametrize(("column", "kinds"), CONVERTIBLE, ids=["int64", "int32", "ns"])
def test_a_stored_arrow_schema_of_a_related_type_changes_no_value(
    tmp_path: Path, column: Any, kinds: list[Any]
) -> None:
    """Regression test: int64 numbers became other numbers if a program had left a text that says
    nanoseconds."""
    table = pyarrow.table({"a": column})
    parquet.write_table(table, tmp_path / "plain.parquet", store_schema=False)
    expected = rows(tmp_path / "plain.parquet")
    for kind in kinds:
        text = base64.b64encode(pyarrow.schema([("a", kind)]).serialize()).decode()
        write_with_stored_schema(table, tmp_path / "t.parquet", text)
        assert rows(tmp_path / "t.parquet") == expected, kind


def test_an_import_passes_over_a_stored_arrow_schema_that_does_not_fit(tmp_path: Path) -> None:
    vectors = pyarrow.array([[1.0, 2.0]], pyarrow.list_(pyarrow.float32(), 2))
    table = pyarrow.table({"key": pyarrow.array([1], pyarrow.uint64()), "vector": vectors})
    fields = [("key", pyarrow.uint64()), ("vector", pyarrow.string())]
    for text in (base64.b64encode(pyarrow.schema(fields).serialize()).decode(), "no schema"):
        write_with_stored_schema(table, tmp_path / "t.parquet", text)
        with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
            items = bank.table("item", dim=2)
            items.import_from(tmp_path / "t.parquet")
            assert items.peek([1]).tolist() == [[1.0, 2.0]]
            bank.checkpoint()


def test_a_stored_arrow_schema_that_is_cut_is_passed_over(tmp_path: Path) -> None:
    table = pyarrow.table({"a": pyarrow.array([1, 2])})
    whole = base64.b64encode(table.schema.serialize()).decode()
    for text in (whole[: len(whole) // 2], whole[4:], "AAAA", "", whole + "=", whole):
        write_with_stored_schema(table, tmp_path / "t.parquet", text)
        assert rows(tmp_path / "t.parquet") == [1, 2]


def test_an_error_of_a_decoder_names_the_column(tmp_path: Path) -> None:
    """Regression test: DuckDB writes differences of 33 bits for 32-bit numbers, which other readers
    refuse. The error named no column."""
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "t.parquet"
    # Far numbers that never repeat, after a row group of near numbers.
    far = "((hash(i) % 4294967296)::BIGINT - 2147483648)::INT"
    duckdb.sql(
        f"COPY (SELECT i::INT AS first, CASE WHEN i < 20480 THEN i::INT ELSE {far} END AS a FROM range(300000) t(i))"
        f" TO '{path}' (FORMAT parquet, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480)"
    )
    spec = Spec(
        [Field("first", "int32"), Field("a", "int32")],
        [Column("first", fill_missing(0)), Column("a", fill_missing(0))],
        [Output("x", ["first", "a"], "i32")],
    )
    with pytest.raises(embank.PipelineError, match=r'its column "a": .*write it anew'):
        for _ in Pipeline(spec).feed(path):
            pass


def test_floats_that_may_have_been_rounded(tmp_path: Path) -> None:
    """Regression test: a column of ids with a missing id becomes floats in pandas, and 100 ids
    became one."""
    ids = [4873214862074861312 + number for number in range(100)]
    column = pyarrow.array([*ids, None]).cast("float64", safe=False)
    parquet.write_table(pyarrow.table({"a": column}), tmp_path / "t.parquet")
    with pytest.raises(embank.BadRow, match=r'field "a", "48732148620748[0-9]+", is a float of 2\^53 or more'):
        rows(tmp_path / "t.parquet")


def test_skipping_more_rows_than_there_are() -> None:
    """Regression test: such a feed gave no batch and no error."""
    spec = Spec([Field("a", "int64")], [Column("a", fill_missing(0))], [Output("a", ["a"], "i64")])
    pipeline = Pipeline(spec)
    assert list(pipeline.feed(b"1\n2\n3\n", skip_rows=3)) == []
    for shuffle_rows in (0, 10):
        feed = pipeline.feed(b"1\n2\n3\n", skip_rows=1000, shuffle_rows=shuffle_rows)
        with pytest.raises(embank.PipelineError, match="skip_rows.* is 1000, and the inputs have 3 rows"):
            next(feed)
