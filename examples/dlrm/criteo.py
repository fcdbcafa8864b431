"""Reads click logs in the format of two Criteo sets: Kaggle display advertising, and Terabyte,
which has a file for each of 24 days.

A line has 40 tab-separated fields: a label 0 or 1, 13 integers (may be empty or negative) and 26
categories of up to eight hexadecimal digits (may be empty). Lines end in LF or CRLF; there is no
header.

`embank.pipeline` reads the text; `SPEC` says how it converts the fields. Training compares several
stores on the same rows. So `pack` runs the pipeline once, and writes binary files that training
then maps. `stream.py` trains directly on the pipeline's batches.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from data import ClickData, Column
from embank import pipeline
from embank.pipeline import fill_missing, logarithm, neg2zero, vocabulary

DENSE = 13
CATEGORIES = 26
MISSING = 0
"""The key of an empty category, as in DLRM's own preprocessing."""
BLOCK_ROWS = 65_536
PACKED_FORMAT = 2
"""Version of the packed files. Files of another version are written again."""

INTEGERS = [f"I{number}" for number in range(1, DENSE + 1)]
NAMES = [f"C{number}" for number in range(1, CATEGORIES + 1)]
FIELDS = [
    pipeline.Field("label", "int32", required=True),
    *(pipeline.Field(name, "int64") for name in INTEGERS),
    *(pipeline.Field(name, "hex32") for name in NAMES),
]


def columns(numbered: bool = False) -> list[pipeline.Column]:
    """Returns the label, log(1 + x) of each integer, and the categories. A negative or missing
    integer counts as 0, a missing category as `MISSING`. If `numbered`, each column of categories
    has a vocabulary that numbers them."""
    categories = [
        pipeline.Column(name, fill_missing(MISSING), *([vocabulary(name)] if numbered else []))
        for name in NAMES
    ]
    return [
        pipeline.Column("label"),
        *(pipeline.Column(name, fill_missing(0), neg2zero(), logarithm()) for name in INTEGERS),
        *categories,
    ]


SPEC = pipeline.Spec(
    fields=FIELDS,
    columns=columns(),
    outputs=[
        pipeline.Output("label", ["label"], "i32"),
        pipeline.Output("dense", INTEGERS, "f32"),
        pipeline.Output("keys", NAMES, "i64"),
    ],
)
"""The categories are keys and are not numbered, because a table of Embank takes any 64-bit key."""


def pack(path: Path, folder: Path, rows_max: int | None) -> ClickData:
    """Returns the first `rows_max` rows of a text file, packed in `folder`. None takes all rows.

    Uses the packed files of an earlier call if its `rows_max` and its text file (path, size, time)
    were the same.
    """
    source = path.stat()
    wanted = {"format": PACKED_FORMAT, "path": str(path.resolve()), "bytes": source.st_size,
              "modified_ns": source.st_mtime_ns, "rows_max": rows_max}
    about = folder / "packed.json"
    if not about.exists() or json.loads(about.read_text())["source"] != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        about.unlink(missing_ok=True)
        rows = write_packed(path, folder, rows_max)
        partial = folder / "packed.json.partial"
        partial.write_text(json.dumps({"source": wanted, "rows": rows}))
        os.replace(partial, about)
    return open_packed(folder)


def write_packed(path: Path, folder: Path, rows_max: int | None) -> int:
    """Streams the text into three binary files and returns how many rows it had.

    Raises `embank.BadRow`, which names file, line and column, at the first row that is not of the
    format. Raises ValueError for a label that is not 0 or 1, with file and row (empty lines are no
    rows), and for a file without a row.
    """
    rows = 0
    with (
        open(folder / "labels.u8", "wb") as labels,
        open(folder / "dense.f32", "wb") as dense,
        open(folder / "keys.i64", "wb") as keys,
        pipeline.Pipeline(SPEC).feed(path, batch_rows=BLOCK_ROWS) as feed,
        tqdm(desc=f"reading {path.name}", unit=" rows", unit_scale=True, disable=None) as bar,
    ):
        for batch in feed:
            label = batch["label"][:, 0]
            check_labels(label, lambda row: row_of([path], row), rows)
            count = len(label) if rows_max is None else min(len(label), rows_max - rows)
            label[:count].astype(np.uint8).tofile(labels)
            batch["dense"][:count].tofile(dense)
            batch["keys"][:count].tofile(keys)
            rows += count
            bar.update(count)
            if rows == rows_max:
                break
    if rows == 0:
        raise ValueError(f"{path}: no rows")
    return rows


def check_labels(
    labels: NDArray[np.generic], place: Callable[[int], str], rows_before: int
) -> None:
    """Checks the labels (n,) of the rows after the first `rows_before` of a source.

    Raises ValueError for a label that is not 0 or 1. The error begins with `place` of the row's
    number, from 1.
    """
    wrong = np.flatnonzero((labels != 0) & (labels != 1))
    if wrong.size:
        where = place(rows_before + int(wrong[0]) + 1)
        raise ValueError(f"{where}: a label is 0 or 1, found {labels[wrong[0]]:g}")


def row_of(paths: Sequence[Path], row: int) -> str:
    """Returns the file and, in it, the number of a row, which is counted from 1 over all files.
    Empty lines are no rows, so it is not the number of a line.

    For errors only: it reads each file before the row's file, after a line to stderr.
    """
    counter = pipeline.Pipeline(pipeline.Spec(
        FIELDS, [pipeline.Column("label")], [pipeline.Output("label", ["label"], "i32")]
    ))
    for path in paths[:-1]:
        print(f"counting the rows of {path}, to say which file has row {row}", file=sys.stderr,
              flush=True)
        rows = counter.run(path).rows
        if row <= rows:
            return f"{path}, row {row}"
        row -= rows
    return f"{paths[-1]}, row {row}"


def open_packed(folder: Path) -> ClickData:
    """Maps the files that `pack` wrote. Rows are loaded when a batch reads them."""
    rows = json.loads((folder / "packed.json").read_text())["rows"]
    labels = np.memmap(folder / "labels.u8", np.uint8, "r", shape=(rows,))
    dense = np.memmap(folder / "dense.f32", np.float32, "r", shape=(rows, DENSE))
    keys = np.memmap(folder / "keys.i64", np.int64, "r", shape=(rows, CATEGORIES))
    columns = [Column(name, keys[:, number]) for number, name in enumerate(NAMES)]
    return ClickData(labels, dense, columns)
