"""Reads odd Parquet and Arrow files with a pipeline, and compares the rows with those of DuckDB.

    python bindings/python/soak/odd_columns.py --files 2000 --seed 1

A case draws one to three files of the same columns from its seed. Most have a fault: a column chunk
or a page with fewer or more values than the metadata say, wrong counts of rows, nulls or dictionary
entries, an Arrow batch whose columns have other lengths. Some cases give one column another type in
each file. DuckDB reads each file alone, an Arrow file by way of pyarrow, which checks it whole.

A case passes in two ways. Either the pipeline gives the rows that DuckDB gives of each file, in
which a number means the same thing in all files. Or it raises an error. Other rows fail the case. A
failure prints the case, and the command that runs it again. The program ends with 0 if no case
failed, and with 1 otherwise. It needs embank, duckdb and pyarrow.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import random
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Optional

import duckdb
import parquet_bytes as bytes_of
import pyarrow
from parquet_bytes import Chunk, Column

import embank
from embank.pipeline import Column as PipelineColumn
from embank.pipeline import Field, Output, Pipeline, Spec, fill_missing

FILLED = -77
EPOCH = datetime.datetime(1970, 1, 1)

Rows = list[tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of a column, and how its values are drawn."""

    name: str
    physical: int
    converted: Optional[int]
    arrow: pyarrow.DataType
    draw: Callable[[random.Random], Any]


def small(draw: random.Random) -> int:
    return draw.randrange(100)


def small_or(rounded: int) -> Callable[[random.Random], float]:
    """Draws whole numbers as floats. A few are so large that a float may have been rounded."""
    return lambda draw: float(rounded if draw.random() < 0.01 else small(draw))


KINDS = [
    Kind("int32", bytes_of.INT32, None, pyarrow.int32(), small),
    Kind("int64", bytes_of.INT64, None, pyarrow.int64(), lambda draw: draw.choice((-1, 1)) * draw.getrandbits(50)),
    Kind("uint32", bytes_of.INT32, bytes_of.UINT_32, pyarrow.uint32(), small),
    Kind("int8", bytes_of.INT32, bytes_of.INT_8, pyarrow.int8(), small),
    Kind("float", bytes_of.FLOAT, None, pyarrow.float32(), small_or(1 << 54)),
    Kind("double", bytes_of.DOUBLE, None, pyarrow.float64(), small_or(1 << 60)),
    Kind("text", bytes_of.BYTES, bytes_of.UTF8, pyarrow.string(), lambda draw: str(small(draw)).encode()),
    Kind("date", bytes_of.INT32, bytes_of.DATE, pyarrow.date32(), small),
    Kind("millis", bytes_of.INT64, bytes_of.TIMESTAMP_MILLIS, pyarrow.timestamp("ms", "UTC"), small),
    Kind("micros", bytes_of.INT64, bytes_of.TIMESTAMP_MICROS, pyarrow.timestamp("us", "UTC"), small),
]
# Kinds of one meaning: a number, which text may spell.
NUMBERS = KINDS[:7]

PARQUET_FAULTS = (
    "none", "none", "none", "none", "chunk is short", "chunk is long", "metadata count", "page count", "row group rows", "file rows",
    "empty page", "levels", "version 2 rows", "version 2 nulls", "dictionary count", "dictionary place",
    "chunk bytes", "values of two chunks", "bytes are cut",
)
ARROW_FAULTS = ("none", "length", "length")


def pages_of(draw: random.Random, column: Column, kind: Kind, rows: int, fault: str) -> Chunk:
    """Draws the pages of a column chunk of `rows` rows."""
    values = [None if column.optional and draw.random() < 0.3 else kind.draw(draw) for _ in range(rows)]
    has_dictionary = fault.startswith("dictionary") or draw.random() < 0.3
    words = sorted({value for value in values if value is not None}, key=repr) or [kind.draw(draw)]
    pages = []
    if has_dictionary:
        count = len(words) + (draw.choice((-1, 1)) if fault == "dictionary count" else 0)
        pages.append(bytes_of.dictionary_page(count, bytes_of.plain(kind.physical, list(words))))
    begin = 0
    while begin < rows or not pages:
        size = draw.randint(1, rows) if rows else 0
        part = values[begin : begin + size]
        begin += size
        if fault == "empty page" and draw.random() < 0.6:
            pages.append(page_of(draw, column, kind, [], None, ""))
        pages.append(page_of(draw, column, kind, part, words if has_dictionary else None, fault))
        if not rows:
            break
    if fault == "empty page":
        pages.append(page_of(draw, column, kind, [], None, ""))
    return Chunk(pages, rows, has_dictionary)


def page_of(
    draw: random.Random, column: Column, kind: Kind, part: list[Any], words: Optional[list[Any]], fault: str
) -> bytes:
    present = [value is not None for value in part] if column.optional else None
    there = [value for value in part if value is not None]
    if words is None:
        encoding, body = bytes_of.PLAIN, bytes_of.plain(kind.physical, there)
    else:
        places = [words.index(value) for value in there]
        if fault == "dictionary place" and places:
            places[draw.randrange(len(places))] += draw.choice((1, 100))
        encoding, body = bytes_of.RLE_DICTIONARY, bytes_of.indices(places)
    count = len(part)
    if fault == "page count":
        count = max(0, count + draw.choice((-2, -1, 1, 2)))
    if fault == "bytes are cut":
        body = body[: len(body) // 2]
    if fault == "levels" and present:
        present = present[:-1] if draw.random() < 0.5 else [*present, draw.random() < 0.5]
    if fault.startswith("version 2") or draw.random() < 0.3:
        rows = count + draw.choice((-1, 1)) if fault == "version 2 rows" else None
        nulls = draw.randrange(count + 2) if fault == "version 2 nulls" else None
        return bytes_of.data_page_v2(count, body, encoding, present, rows, nulls)
    return bytes_of.data_page(count, body, encoding, present)


def write_parquet(draw: random.Random, path: Path, kinds: dict[str, Kind], fault: str) -> None:
    columns = [Column(name, kind.physical, draw.random() < 0.5, kind.converted) for name, kind in kinds.items()]
    if fault == "levels":
        columns = [dataclasses.replace(column, optional=True) for column in columns]
    groups = []
    wrong_group, wrong_column = draw.randrange(3), draw.randrange(len(columns))
    group_count = draw.randint(wrong_group + 1, 3)
    for group in range(group_count):
        rows = draw.randint(0 if fault == "none" else 2, 12)
        chunks = []
        for place, column in enumerate(columns):
            is_wrong = (group, place) == (wrong_group, wrong_column)
            of_chunk = fault if is_wrong else ""
            size = rows
            if of_chunk in ("chunk is short", "chunk is long"):
                size += draw.randint(-rows, -1) if of_chunk == "chunk is short" else draw.randint(1, rows)
            chunk = pages_of(draw, column, kinds[column.name], size, of_chunk)
            if of_chunk == "values of two chunks":
                # The chunk begins with a value that belongs to the end of the one before it.
                chunk = pages_of(draw, column, kinds[column.name], rows + 1, "")
            if draw.random() < 0.5:
                # Only the pages tell of the fault.
                chunk.values = rows
            if of_chunk == "metadata count":
                chunk.values += draw.choice((-1, 1))
            if of_chunk == "chunk bytes":
                chunk.more_bytes = draw.choice((-1, 1)) * draw.randint(1, 40)
            chunks.append(chunk)
        if fault == "row group rows" and group == wrong_group:
            rows = max(0, rows + draw.choice((-2, -1, 1, 2)))
        groups.append((rows, chunks))
    all_rows = sum(rows for rows, _ in groups) + draw.choice((-1, 1)) if fault == "file rows" else None
    bytes_of.write(path, columns, groups, all_rows)


def write_arrow(draw: random.Random, path: Path, kinds: dict[str, Kind], fault: str) -> None:
    rows = draw.randint(17, 40)
    arrays = []
    for kind in kinds.values():
        values = [None if draw.random() < 0.2 else kind.draw(draw) for _ in range(rows)]
        values = [value.decode() if isinstance(value, bytes) else value for value in values]
        array = pyarrow.array(values, kind.arrow)
        arrays.append(array.dictionary_encode() if draw.random() < 0.2 else array)
    table = pyarrow.table(arrays, list(kinds))
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=draw.choice((rows, rows // 2)))
    content = path.read_bytes()
    if fault == "length":
        # A length is a number of 64 bits: that of a batch, of a column, or of a dictionary.
        length = draw.choice((rows, rows // 2, rows - rows // 2))
        pattern = struct.pack("<q", length)
        places = [at for at in range(0, len(content) - 8, 8) if content[at : at + 8] == pattern]
        if places:
            at = draw.choice(places)
            wrong = max(0, length + draw.choice((-3, -1, 1, 3)))
            content = content[:at] + struct.pack("<q", wrong) + content[at + 8 :]
    path.write_bytes(content)


@dataclasses.dataclass
class Case:
    paths: list[Path]
    columns: list[str]
    what: str


def make(seed: int, directory: Path) -> Case:
    """Makes the files of a case."""
    draw = random.Random(seed)
    columns = [f"c{place}" for place in range(draw.randint(1, 3))]
    is_parquet = draw.random() < 0.75
    fault = draw.choice(PARQUET_FAULTS if is_parquet else ARROW_FAULTS)
    mixed = draw.choice(("one kind", "one kind", "numbers", "any kinds"))
    fixed = {name: draw.choice(KINDS) for name in columns}
    paths = []
    for number in range(draw.randint(1, 3)):
        others = {"one kind": [], "numbers": NUMBERS, "any kinds": KINDS}[mixed]
        kinds = {name: draw.choice(others) if others else fixed[name] for name in columns}
        path = directory / f"{seed}-{number}.{'parquet' if is_parquet else 'arrow'}"
        write = write_parquet if is_parquet else write_arrow
        write(draw, path, kinds, fault if number == 0 else "none")
        paths.append(path)
    return Case(paths, columns, f"{'Parquet' if is_parquet else 'Arrow'}, {fault}, {mixed}")


def number_of(value: Any) -> Optional[tuple[int, str]]:
    """The number that a pipeline makes of a value of DuckDB, and what the number means. `None` if
    a field of kind int64 can't take the value."""
    if isinstance(value, (bool, int)):
        return int(value), "number"
    if isinstance(value, decimal.Decimal):
        return (int(value), "number") if value == int(value) else None
    if isinstance(value, float):
        return (int(value), "number") if value.is_integer() and abs(value) < 1 << 53 else None
    if isinstance(value, (str, bytes)):
        text = value if isinstance(value, str) else value.decode(errors="replace")
        return (int(text), "number") if text.removeprefix("-").isdigit() else None
    if isinstance(value, datetime.datetime):
        since = value.astimezone(datetime.timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        return (since - EPOCH) // datetime.timedelta(microseconds=1), "UTC" if value.tzinfo else "local time"
    if isinstance(value, datetime.date):
        return (value - EPOCH.date()).days, "days"
    return None


def of_duckdb(case: Case) -> Rows:
    """The rows that DuckDB gives of the files, as numbers. Raises `ValueError` if a value is no
    number, or if the numbers of a column mean different things. Raises other errors of DuckDB and
    pyarrow."""
    rows: Rows = []
    meanings: dict[str, str] = {}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for path in case.paths:
            names = ", ".join(case.columns)
            if path.suffix == ".parquet":
                found = connection.execute(f"SELECT {names} FROM read_parquet('{path}')").fetchall()
            else:
                of_arrow = pyarrow.ipc.open_file(path).read_all()
                of_arrow.validate(full=True)
                found = connection.from_arrow(of_arrow).project(names).fetchall()
            for row in found:
                numbers = []
                for name, value in zip(case.columns, row):
                    if value is None or value != value:
                        numbers.append(FILLED)
                        continue
                    number = number_of(value)
                    if number is None or meanings.setdefault(name, number[1]) != number[1]:
                        raise ValueError(f"{name}: {value!r}")
                    numbers.append(number[0])
                rows.append(tuple(numbers))
    return rows


def of_pipeline(case: Case) -> Rows:
    """The rows that a pipeline gives of the files."""
    spec = Spec(
        [Field(name, "int64") for name in case.columns],
        [PipelineColumn(name, fill_missing(FILLED)) for name in case.columns],
        [Output("x", case.columns, "i64")],
    )
    rows: Rows = []
    for batch in Pipeline(spec, format="columns").feed(case.paths):
        rows.extend(map(tuple, batch["x"].tolist()))
    return rows


def outcome(case: Case) -> str:
    """Compares the two readers. Raises `AssertionError` if the pipeline gives other rows."""
    try:
        expected, refusal = of_duckdb(case), None
    except (duckdb.Error, pyarrow.ArrowException, ValueError, OSError) as error:
        expected, refusal = [], error
    try:
        found = of_pipeline(case)
    except embank.EmbankError:
        return "refused by Embank alone" if refusal is None else "refused by both"
    if isinstance(refusal, ValueError) and not isinstance(refusal, pyarrow.ArrowException):
        raise AssertionError(f"DuckDB reads a value that is no number of one meaning: {refusal}")
    if refusal is not None:
        return "refused by DuckDB alone"
    if found != expected:
        raise AssertionError(f"DuckDB: {expected}\nEmbank: {found}")
    return "equal"


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=2000, help="the least number of files")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first case")
    parser.add_argument("--verbose", action="store_true", help="print a line for each case")
    given = parser.parse_args(arguments)
    counts: collections.Counter[str] = collections.Counter()
    files, seed, failed = 0, given.seed, 0
    with tempfile.TemporaryDirectory() as directory:
        while files < given.files:
            case = make(seed, Path(directory))
            try:
                result = outcome(case)
            except AssertionError as error:
                result = "wrong"
                failed += 1
                print(f"case {seed} ({case.what}) is wrong: {error}")
                print(f"    python odd_columns.py --files 1 --seed {seed}")
            if given.verbose:
                print(seed, case.what, result, sep="\t")
            counts[result] += 1
            files += len(case.paths)
            seed += 1
            for path in case.paths:
                path.unlink()
    for result, count in sorted(counts.items()):
        print(f"{count:6}  {result}")
    print(f"{files} files in {sum(counts.values())} cases")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
