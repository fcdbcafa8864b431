"""Reads text files of ids: whole numbers in columns, plain or compressed with gzip.

A pipeline of Embank decodes the text, because data sets such as Freebase have hundreds of millions
of lines. It reads the file once, in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embank import pipeline

Ints = NDArray[np.int64]

PIECE_ROWS = 1 << 20


@dataclass(frozen=True)
class Ids:
    """A column of ids from 0 to `count` - 1. `counted` names the file that says the count, for
    errors."""

    name: str
    count: int
    counted: str


def id_rows(path: Path, *columns: Ids) -> Iterator[Ints]:
    """Yields the rows of a file, in order, in pieces (n, len(columns)) of at most `PIECE_ROWS`.

    A line has an id for each of `columns`, with tabs between them, and there is no header. Empty
    lines between rows of several ids are no rows.

    Raises `embank.BadRow`, a ValueError with file, line and column, for a line with another number
    of fields and a field that is no whole number. Raises `ValueError` with file and row for an id
    out of range, and with the file for a file without rows. Raises `embank.errors.PipelineError`
    with the file if compressed text is damaged or cut short.
    """
    names = [column.name for column in columns]
    spec = pipeline.Spec(
        fields=[pipeline.Field(name, "int64", required=True) for name in names],
        columns=[pipeline.Column(name) for name in names],
        outputs=[pipeline.Output("ids", names, "i64")],
    )
    before = 0
    reader = pipeline.Pipeline(spec, format="tsv", header="none")
    with reader.feed(path, batch_rows=PIECE_ROWS) as feed:
        for batch in feed:
            rows = batch["ids"]
            check_range(f"{path}, row ", before, rows, columns)
            before += len(rows)
            yield rows
    if before == 0:
        raise ValueError(f"{path}: the file has no rows")


def check_range(place: str, before: int, rows: Ints, columns: tuple[Ids, ...]) -> None:
    """Checks that each of `rows` (n, len(columns)) has ids that the columns allow.

    Raises `ValueError` for the first row that has not. The error begins with `place` and the row's
    number from 1, after the `before` rows that come earlier.
    """
    wrong = (rows < 0) | (rows >= [column.count for column in columns])
    if wrong.any():
        row, at = np.argwhere(wrong)[0]
        column = columns[at]
        raise ValueError(
            f"{place}{before + int(row) + 1}: the {column.name} is {rows[row, at]}, but must be "
            f"from 0 to {column.count - 1} by {column.counted}; take all files from one copy of "
            "the data set"
        )


def required(folder: Path, *names: str) -> list[Path]:
    """Returns the paths of these files in `folder`.

    Raises `FileNotFoundError`, with the cure, if one is missing.
    """
    paths = [folder / name for name in names]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: unpack the data set, and name its folder with --data"
            )
    return paths
