"""Reads the lines and fields of a text file. Errors name the file and the line.

All examples follow one rule. Text is UTF-8. A byte-order mark at the beginning of a file is no part
of the text. Lines end in LF or CRLF; the last line needs no end. Tabs divide a line into fields.
Comments do not exist, and blanks at the ends of a field belong to the field. Two names are equal if
their bytes are equal.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """A line of a file without its end. `number` counts the lines of the file from 1."""

    path: Path
    number: int
    text: str

    def fields(self, *names: str) -> list[str]:
        """Splits the line at its tabs into as many fields as there are `names`.

        Raises `ValueError` if the line has another number of fields.
        """
        found = self.text.split("\t")
        if len(found) != len(names):
            raise self.error(
                f"expected {len(names)} fields with tabs between them ({', '.join(names)}), "
                f"found {len(found)}"
            )
        return found

    def whole_number(self, name: str, text: str, largest: int = (1 << 63) - 1) -> int:
        """Returns the number that the field `name` has as its `text`, in decimal digits only.

        Raises `ValueError` for other characters, including signs, and for a number over `largest`.
        """
        # int() would also accept "-1", " 1", "1_000" and the digits of other scripts.
        if not (text.isascii() and text.isdigit()):
            raise self.error(f"{name} must be a whole number in digits, found {text[:50]!r}")
        digits = text.lstrip("0") or "0"
        if len(digits) > len(str(largest)) or int(digits) > largest:
            raise self.error(f"{name} must be at most {largest}, found {text[:50]}")
        return int(digits)

    def error(self, why: str) -> ValueError:
        """Makes the error that names the file and the line, for the caller to raise."""
        return ValueError(f"{self.path}:{self.number}: {why}")


def lines(path: Path) -> Iterator[Line]:
    """Yields the lines of a file in order; holds one at a time.

    Raises `ValueError` with file and line for an empty line, a NUL, a CR that no LF follows, and
    bytes that are not UTF-8; and for a file without lines.
    """
    number = 0
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            yield decoded(path, number, raw.removesuffix(b"\n").removesuffix(b"\r"))
    if number == 0:
        raise ValueError(f"{path}: the file has no lines")


def decoded(path: Path, number: int, raw: bytes) -> Line:
    """Makes a line from its bytes, without the line's end."""
    line = Line(path, number, raw.decode("utf-8", "replace"))
    if not raw:
        raise line.error("the line is empty; remove it")
    if b"\0" in raw:
        raise line.error("the line has a NUL; write the file as UTF-8 text")
    if b"\r" in raw:
        raise line.error("the line has a CR without an LF; end lines with LF or CRLF")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise line.error(f"{error}; write the file as UTF-8 text") from None
    return line
