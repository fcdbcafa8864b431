"""Reads click logs in the format of the Criteo Kaggle display-advertising set.

A line has 40 tab-separated fields: a label 0 or 1, 13 integers (may be empty or negative) and 26
categories of 8 hexadecimal digits (may be empty). Lines end in LF or CRLF; there is no header.

`read_blocks` streams a file of any size in constant memory. `pack` streams it once into plain
binary files beside each other, which training then maps: so the speed that is measured is that
of training, not of parsing text.

Parsing works on whole blocks of bytes with NumPy: find all separators, check that every 40th is
the end of a line, and then read each kind of field for all lines at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from data import ClickData, Column, Keys

DENSE = 13
CATEGORIES = 26
FIELDS = 1 + DENSE + CATEGORIES
HEX_DIGITS = 8
INTEGER_DIGITS_MAX = 18
"""Digits of the longest integer that is sure to fit 64 bits."""
MISSING = np.int64(1 << 32)
"""The key of an empty category: one more than eight hexadecimal digits can say."""
BLOCK_BYTES = 8 << 20
LINE_BYTES_MAX = 1 << 16

TAB, NEWLINE, MINUS, ZERO = 9, 10, 45, 48
NOT_HEX = 255
HEX_VALUE = np.full(256, NOT_HEX, dtype=np.uint8)
for _value, _digit in enumerate("0123456789abcdef"):
    HEX_VALUE[ord(_digit)] = HEX_VALUE[ord(_digit.upper())] = _value


class CriteoFormatError(ValueError):
    """A line that is not of the format; the message says `file:line: what is wrong`."""


@dataclass(frozen=True)
class Block:
    """Some lines: `labels` (n,) uint8, `dense` (n, 13) float32, `keys` (n, 26) int64."""

    labels: NDArray[np.uint8]
    dense: NDArray[np.float32]
    keys: Keys


def read_blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Streams the file, some ten thousand lines at a time.

    Raises CriteoFormatError at the first bad line, once the lines before its block are out.
    """
    line = 1
    carried = b""
    with open(path, "rb") as file:
        while chunk := file.read(block_bytes):
            text = carried + chunk
            end = text.rfind(b"\n") + 1
            text, carried = text[:end], text[end:]
            if len(carried) > LINE_BYTES_MAX:
                start = line + text.count(b"\n")
                raise CriteoFormatError(f"{path}:{start}: a line of over {LINE_BYTES_MAX} bytes")
            if text:
                block = parse(text, path, line)
                line += len(block.labels)
                yield block
    if carried:
        yield parse(carried + b"\n", path, line)


def parse(text: bytes, path: Path, first_line: int) -> Block:
    """Parses whole lines; `path` and `first_line` are for messages."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    data = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero((data == TAB) | (data == NEWLINE))
    is_line_end = data[ends] == NEWLINE
    check_field_counts(is_line_end, path, first_line)
    starts = np.concatenate([[0], ends[:-1] + 1]).reshape(-1, FIELDS)
    lengths = ends.reshape(-1, FIELDS) - starts

    fields = Fields(data, starts, lengths, path, first_line)
    return Block(
        labels=fields.labels(),
        dense=fields.dense(slice(1, 1 + DENSE)),
        keys=fields.categories(slice(1 + DENSE, FIELDS)),
    )


def check_field_counts(is_line_end: NDArray[np.bool_], path: Path, first_line: int) -> None:
    """Every 40th separator must end a line, and no other."""
    line_ends = np.flatnonzero(is_line_end)
    counts = np.diff(line_ends, prepend=-1)
    wrong = np.flatnonzero(counts != FIELDS)
    if wrong.size:
        raise CriteoFormatError(
            f"{path}:{first_line + wrong[0]}: expected {FIELDS} tab-separated fields "
            f"(label, {DENSE} integers, {CATEGORIES} categories), found {counts[wrong[0]]}"
        )


@dataclass(frozen=True)
class Fields:
    """Where the fields of a block of lines lie: `starts` and `lengths` are (n, 40)."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    path: Path
    first_line: int

    def labels(self) -> NDArray[np.uint8]:
        values = self.data[self.starts[:, 0]] - np.uint8(ZERO)
        bad = (self.lengths[:, 0] != 1) | (values > 1)
        self.refuse(bad[:, None], 0, "a label is 0 or 1")
        return values

    def dense(self, columns: slice) -> NDArray[np.float32]:
        """log(1 + x) of every integer; a negative or missing one counts as 0."""
        starts, lengths = self.starts[:, columns], self.lengths[:, columns]
        negative = (lengths > 0) & (self.data[starts] == MINUS)
        starts, digits = starts + negative, lengths - negative
        bad = (negative & (digits == 0)) | (digits > INTEGER_DIGITS_MAX)
        values = np.zeros(starts.shape, dtype=np.int64)
        for place in range(min(int(digits.max(initial=0)), INTEGER_DIGITS_MAX)):
            more = place < digits
            digit = self.data[np.where(more, starts + place, 0)] - np.uint8(ZERO)
            bad |= more & (digit > 9)
            values = np.where(more, values * 10 + digit, values)
        self.refuse(bad, columns.start, "an integer or nothing is expected")
        return np.log1p(np.where(negative, 0, values)).astype(np.float32)

    def categories(self, columns: slice) -> Keys:
        starts, lengths = self.starts[:, columns], self.lengths[:, columns]
        present = lengths == HEX_DIGITS
        bad = ~present & (lengths != 0)
        keys = np.zeros(starts.shape, dtype=np.int64)
        for place in range(HEX_DIGITS):
            digit = HEX_VALUE[self.data[np.where(present, starts + place, 0)]]
            bad |= present & (digit == NOT_HEX)
            keys = (keys << 4) | digit
        self.refuse(bad, columns.start, f"{HEX_DIGITS} hexadecimal digits or nothing are expected")
        return np.where(present, keys, MISSING)

    def refuse(self, bad: NDArray[np.bool_], first_column: int, expected: str) -> None:
        """Raises for the first bad field, showing what stands there."""
        if not bad.any():
            return
        row, column = np.argwhere(bad)[0]
        start = self.starts[row, first_column + column]
        found = self.data[start : start + min(self.lengths[row, first_column + column], 40)]
        raise CriteoFormatError(
            f"{self.path}:{self.first_line + row}: field {first_column + column + 1}: {expected}, "
            f"found {found.tobytes().decode('utf-8', 'replace')!r}"
        )


def pack(path: Path, folder: Path, rows_max: int | None) -> ClickData:
    """The first `rows_max` rows of a TSV file (all of them: None), packed in `folder`.

    What is there from an earlier call with the same file (by size and time) and limit is used.
    """
    source = path.stat()
    wanted = {"path": str(path.resolve()), "bytes": source.st_size,
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
    """Streams the TSV file into three binary files and returns how many rows it had."""
    rows = 0
    with (
        open(folder / "labels.u8", "wb") as labels,
        open(folder / "dense.f32", "wb") as dense,
        open(folder / "keys.i64", "wb") as keys,
        tqdm(desc=f"reading {path.name}", unit=" rows", unit_scale=True, disable=None) as bar,
    ):
        for block in read_blocks(path):
            count = len(block.labels)
            if rows_max is not None:
                count = min(count, rows_max - rows)
            block.labels[:count].tofile(labels)
            block.dense[:count].tofile(dense)
            block.keys[:count].tofile(keys)
            rows += count
            bar.update(count)
            if rows == rows_max:
                break
    if rows == 0:
        raise CriteoFormatError(f"{path}: no rows")
    return rows


def open_packed(folder: Path) -> ClickData:
    """Maps what `pack` wrote; nothing is loaded until a batch asks for it."""
    rows = json.loads((folder / "packed.json").read_text())["rows"]
    labels = np.memmap(folder / "labels.u8", np.uint8, "r", shape=(rows,))
    dense = np.memmap(folder / "dense.f32", np.float32, "r", shape=(rows, DENSE))
    keys = np.memmap(folder / "keys.i64", np.int64, "r", shape=(rows, CATEGORIES))
    columns = [Column(f"C{number + 1}", keys[:, number]) for number in range(CATEGORIES)]
    return ClickData(labels, dense, columns)
