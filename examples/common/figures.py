"""Writes the figures of a run as rows {name, value, unit, against, against_value, ratio}, and as
text."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured value, and the value that it is compared with, if there is one."""

    name: str
    value: float
    unit: str
    against: str | None = None
    against_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """`value` over `against_value`."""
        return self.value / self.against_value if self.against_value else None

    def plain(self) -> dict[str, Any]:
        """The row as it is in the JSON file."""
        return {
            "name": self.name, "value": self.value, "unit": self.unit, "against": self.against,
            "against_value": self.against_value, "ratio": self.ratio,
        }


def write_json(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Replaces the file completely, or leaves it unchanged after a failure. A NaN (an AUC of one
    class) becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    known = [{name: finite(value) for name, value in row.items()} for row in rows]
    partial.write_text(json.dumps(known, indent=2, allow_nan=False) + "\n")
    partial.replace(path)


def finite(value: Any) -> Any:
    """Returns None for NaN and infinities, which JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns the rows as text under their heads. The first column is flush left, the others flush
    right."""
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def mebibytes(size: float) -> str:
    """A size in MiB, as text."""
    return f"{size / (1 << 20):,.1f} MiB"
