"""Reads files that pandas, Polars, DuckDB and Spark write by default with a pipeline. The values
must equal the writer's, or the error must name the column and a cure.

    python bindings/python/soak/file_kinds.py

Needs embank and pyarrow. It tries those of pandas, Polars, DuckDB and PySpark (with Java) that are
installed. Prints a line for each kind of file. Fails at the first wrong value, and at an error
without column or cure.
"""

from __future__ import annotations

import datetime
import decimal
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

import numpy as np

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, fill_missing, hash_, modulus

ROWS = 1000
MISSING = -99
EPOCH = datetime.datetime(1970, 1, 1)
CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")


def frame() -> dict[str, list[Any]]:
    """Makes a column of each kind, as Python values."""
    at = range(ROWS)
    return {
        "int": [n * 7919 - 500 for n in at],
        "nullable": [None if n % 5 == 4 else n for n in at],
        "float": [None if n % 7 == 6 else n / 8 for n in at],
        "text": [None if n % 9 == 8 else f'word, "{n % 13}"' for n in at],
        "category": [f"c{n % 4}" for n in at],
        "date": [datetime.date(2024, 1, 1) + datetime.timedelta(days=n) for n in at],
        "timestamp": [datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=n, milliseconds=n % 3) for n in at],
        "decimal": [decimal.Decimal(n) for n in at],
        "list": [[n, n + 1] for n in at],
    }


def fields(text: bool) -> dict[str, Field]:
    """Returns the field of each column. Text files write floats as whole numbers, and dates as
    words."""
    when: Any = "bytes" if text else "int64"
    return {
        "int": Field("int", "int64"),
        "nullable": Field("nullable", "int64", whole_floats=text),
        "float": Field("float", "float32"),
        "text": Field("text", "bytes"),
        "category": Field("category", "bytes"),
        "date": Field("date", when),
        "timestamp": Field("timestamp", when),
        "decimal": Field("decimal", "int64", whole_floats=text),
        "list": Field("list", "bytes"),
    }


def read(path: Path, field: Field) -> np.ndarray[Any, Any]:
    """Reads a column of a file as numbers. Text gives the hash of each value."""
    if field.kind == "bytes":
        column, dtype = Column(field.name, fill_missing(""), hash_(), modulus(1 << 30)), "i64"
    elif field.kind == "float32":
        column, dtype = Column(field.name, fill_missing(MISSING)), "f32"
    else:
        column, dtype = Column(field.name, fill_missing(MISSING)), "i64"
    spec = Spec([field], [column], [Output("x", [field.name], dtype)])  # type: ignore[arg-type]
    batches = [batch["x"].ravel() for batch in Pipeline(spec).feed(path)]
    return np.concatenate(batches)


def hashes(words: list[str]) -> np.ndarray[Any, Any]:
    """Returns the values that a pipeline makes of words in plain quoted text."""
    quoted = "".join('"' + word.replace('"', '""') + '",0\n' for word in words)
    column = Column("w", fill_missing(""), hash_(), modulus(1 << 30))
    spec = Spec([Field("w", "bytes"), Field("_", "skip")], [column], [Output("x", ["w"], "i64")])
    pipeline = Pipeline(spec, format="csv", header="none")
    return np.concatenate([batch["x"].ravel() for batch in pipeline.feed(quoted.encode())])


def expected(kind: str, values: list[Any], words: Optional[list[str]]) -> np.ndarray[Any, Any]:
    """Returns the writer's values. For columns that are text in the file, `words` has the file's
    words."""
    if words is not None:
        return hashes(words)
    if kind in ("text", "category"):
        return hashes(["" if value is None else value for value in values])
    if kind == "date":
        return np.array([(value - EPOCH.date()).days for value in values])
    if kind == "timestamp":
        return np.array([round((value - EPOCH) / datetime.timedelta(microseconds=1)) for value in values])
    if kind == "float":
        return np.array([MISSING if value is None else value for value in values], np.float32)
    return np.array([MISSING if value is None else int(value) for value in values])


def csv_words(path: Path) -> dict[str, list[str]]:
    """Reads the words of a CSV file with Python's csv module."""
    import csv

    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    return {name: [row[at] for row in rows[1:]] for at, name in enumerate(rows[0])}


def pandas_files(table: dict[str, list[Any]], folder: Path) -> Iterator[Path]:
    pandas = import_module("pandas")
    data = pandas.DataFrame(table)
    data["category"] = data["category"].astype("category")
    data.to_csv(folder / "pandas.csv")
    yield folder / "pandas.csv"
    for codec in CODECS:
        path = folder / f"pandas.{codec}.parquet"
        data.to_parquet(path, compression=None if codec == "none" else codec)
        yield path
    data["nullable"] = data["nullable"].astype("Int64")
    data.to_feather(folder / "pandas.Int64.feather")
    yield folder / "pandas.Int64.feather"


def polars_files(table: dict[str, list[Any]], folder: Path) -> Iterator[Path]:
    polars = import_module("polars")
    data = polars.DataFrame(table).with_columns(polars.col("category").cast(polars.Categorical))
    data.drop("list").write_csv(folder / "polars.csv")
    yield folder / "polars.csv"
    for codec in ("uncompressed", *CODECS[1:]):
        path = folder / f"polars.{codec}.parquet"
        data.write_parquet(path, compression=codec)
        yield path
    data.write_ipc(folder / "polars.arrow")
    yield folder / "polars.arrow"
    data.write_ipc_stream(folder / "polars.arrows")
    yield folder / "polars.arrows"


def duckdb_files(table: dict[str, list[Any]], folder: Path) -> Iterator[Path]:
    duckdb, pyarrow = import_module("duckdb"), import_module("pyarrow")
    data = pyarrow.table({**table, "category": pyarrow.array(table["category"]).dictionary_encode()})
    connection = duckdb.connect()
    connection.register("data", data)
    connection.execute(f"COPY data TO '{folder / 'duckdb.csv'}'")
    yield folder / "duckdb.csv"
    for codec in ("uncompressed", "snappy", "gzip", "brotli", "lz4_raw", "zstd"):
        path = folder / f"duckdb.{codec}.parquet"
        connection.execute(f"COPY data TO '{path}' (FORMAT parquet, COMPRESSION {codec})")
        yield path
    feather = import_module("pyarrow.feather")
    relation = connection.sql("SELECT * FROM data")
    feather.write_feather(relation.to_arrow_table(), folder / "duckdb.feather")
    yield folder / "duckdb.feather"


def spark_files(table: dict[str, list[Any]], folder: Path) -> Iterator[Path]:
    sql, types = import_module("pyspark.sql"), import_module("pyspark.sql.types")
    spark = (
        sql.SparkSession.builder.master("local[1]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    kinds = {
        "int": types.LongType(), "nullable": types.LongType(), "float": types.FloatType(),
        "text": types.StringType(), "category": types.StringType(), "date": types.DateType(),
        "timestamp": types.TimestampType(), "decimal": types.DecimalType(10, 0),
        "list": types.ArrayType(types.LongType()),
    }
    schema = types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])
    utc = [at.replace(tzinfo=datetime.timezone.utc) for at in table["timestamp"]]
    rows = list(zip(*{**table, "timestamp": utc}.values()))
    data = spark.createDataFrame(rows, schema).coalesce(1)
    for codec in ("none", "snappy", "gzip", "lz4", "zstd"):
        path = folder / f"spark.{codec}.parquet"
        data.write.option("compression", codec).parquet(str(path))
        yield path
    # Spark by default writes no header and escapes quotes with backslashes: see
    # `refuses_spark_defaults`.
    path = folder / "spark.csv"
    data.drop("list").write.option("header", True).option("escape", '"').csv(str(path))
    yield path
    path = folder / "spark-default.csv"
    data.drop("list").write.csv(str(path))
    refuses_spark_defaults(path)
    spark.stop()


def refuses_spark_defaults(path: Path) -> None:
    """Checks that a directory of files without a header raises an error, and does not lose its
    first row."""
    try:
        read(path, fields(True)["int"])
    except (embank.PipelineError, ValueError) as error:
        assert "header" in str(error), error
        return
    raise AssertionError(f"{path.name}: read without a header")


def check(path: Path, name: str, values: list[Any], words: Optional[list[str]]) -> str:
    """Reads a column of a file. Returns `=`, or the error that names column and cure."""
    is_text = words is not None
    field = fields(is_text)[name]
    if is_text and name in ("int", "nullable", "float", "decimal"):
        words = None
    try:
        found = read(path, field)
    except embank.PipelineError as error:
        told = str(error)
        assert f'"{name}"' in told and "lists are not read; write" in told, f"{path.name}: {told}"
        return "error"
    wanted = expected(name, values, words)
    assert len(found) == ROWS, f"{path.name}, {name}: {len(found)} rows"
    differ = np.flatnonzero(found != wanted)
    at = differ[0] if len(differ) else 0
    assert not len(differ), f"{path.name}, {name}, row {at}: {found[at]}, and the writer has {wanted[at]}"
    return "="


def main() -> None:
    table = frame()
    writers: dict[str, Callable[[dict[str, list[Any]], Path], Iterator[Path]]] = {
        "pandas": pandas_files, "polars": polars_files, "duckdb": duckdb_files,
        "pyspark": spark_files,
    }
    print(f'{"file":28}', *(f"{name:9}" for name in table))
    with tempfile.TemporaryDirectory() as folder:
        for module, files in writers.items():
            try:
                print(module, import_module(module).__version__)
            except ImportError as error:
                print(f"{module}: left out ({error})")
                continue
            for path in files(table, Path(folder)):
                part = next(path.glob("part-*")) if path.is_dir() else path
                words = csv_words(part) if path.suffix == ".csv" else {}
                row = [
                    "-" if words and name not in words else check(path, name, values, words.get(name))
                    for name, values in table.items()
                ]
                print(f"{path.name:28}", *(f"{one:9}" for one in row))


if __name__ == "__main__":
    main()
