"""The expected output of the Criteo pipeline, made field by field, without any package.

    python3 reference.py text|packed MODULUS INPUT OUTPUT

compares `OUTPUT` with the rows of `INPUT`. `OUTPUT` has rows of forty little-endian numbers of 32
bits, as `Spec::criteo(MODULUS)` makes them. `cargo xtask bench pipeline utf8` and `binary` run this
program on their first rows. It exits with status 1 if a row differs, and prints the row.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Union

Row = list[Union[int, float]]
"""The label, 13 logarithms, 26 ids."""

RELATIVE_ERROR = 2.5e-7
"""Largest relative error of a logarithm in f32: two units in its last place."""


def text_fields(text: bytes) -> Iterator[list[int]]:
    """Yields the forty numbers of each line. A missing number is 0."""
    for line in text.decode("ascii").splitlines():
        fields = line.split("\t")
        assert len(fields) == 40, f"{len(fields)} fields: {line!r}"
        integers = [0 if field == "" else int(field) for field in fields[:14]]
        categories = [0 if field == "" else int(field, 16) for field in fields[14:]]
        yield integers + categories


def packed_fields(packed: bytes) -> Iterator[list[int]]:
    """Yields the forty numbers of each row of 160 bytes. Only label and integers are signed."""
    assert len(packed) % 160 == 0, f"{len(packed)} bytes are no whole rows"
    for row in struct.iter_unpack("<14i26I", packed):
        yield list(row)


def expected(rows: Iterator[list[int]], modulus: int) -> Iterator[Row]:
    """Yields the expected rows, one by one."""
    ids: list[dict[int, int]] = [{} for _ in range(26)]
    for fields in rows:
        row: Row = [fields[0]]
        for value in fields[1:14]:
            if value < 0:
                value = 0
            row.append(math.log1p(value))
        for column, value in enumerate(fields[14:]):
            value = value % modulus
            if value not in ids[column]:
                ids[column][value] = len(ids[column])
            row.append(ids[column][value])
        yield row


def difference(wanted: Row, got: Row) -> str:
    """Describes the first field that differs. Returns an empty string if the rows are equal."""
    for field in range(40):
        if 1 <= field <= 13:
            same = abs(got[field] - wanted[field]) <= RELATIVE_ERROR * wanted[field]
        else:
            same = got[field] == wanted[field]
        if not same:
            return f"field {field} is {got[field]} instead of {wanted[field]}"
    return ""


def main() -> int:
    if len(sys.argv) != 5 or sys.argv[1] not in ("text", "packed"):
        print(__doc__, file=sys.stderr)
        return 2
    form, modulus, source, made = sys.argv[1], int(sys.argv[2]), *map(Path, sys.argv[3:])
    fields = (text_fields if form == "text" else packed_fields)(source.read_bytes())
    got = struct.iter_unpack("<i13f26I", made.read_bytes())
    checked = 0
    for wanted in expected(fields, modulus):
        row = next(got, None)
        wrong = "missing" if row is None else difference(wanted, list(row))
        if wrong:
            print(f"row {checked}: {wrong}", file=sys.stderr)
            return 1
        checked += 1
    if checked == 0 or next(got, None) is not None:
        print(f"{checked} rows came in, others came out", file=sys.stderr)
        return 1
    print(checked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
