"""Writes rows in the format of the Criteo Kaggle set, with clicks that can be learned.

Categories follow Zipf's law. The numbers of categories of the columns are those of the real set,
scaled. Each category of a column has a planted weight (a hash of column and rank), and each column
of integers a planted slope. Their sum is the log-odds of a click. So a model that learns reaches a
high AUC, and a model that does not learn stays at 0.5. A seed always gives the same file.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

KAGGLE_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
"""Distinct values of C1..C26 in the Kaggle training file."""
KEPT_CARDINALITY = 1000
"""A column with at most this many categories keeps all of them. Every other column is scaled down,
but not below this number."""
DENSE = 13
MISSING_DENSE = (0.45, 0, 0.2, 0.2, 0.03, 0.2, 0.04, 0.001, 0.04, 0.45, 0.04, 0.75, 0.2)
DENSE_MEDIAN = (1, 3, 7, 5, 1500, 40, 4, 10, 50, 1, 2, 1, 5)
DENSE_SPREAD = 1.3
MISSING_CATEGORY = 0.03
CHUNK_ROWS = 65_536
CATEGORY_WEIGHT = 0.45
DENSE_SLOPE = 0.15
BIAS = -1.9
INTEGER_WIDTH = 8

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class GeneratorOptions:
    """`scale` is the factor for the large numbers of categories. `skew` is Zipf's exponent; it must
    not be exactly 1."""

    rows: int
    scale: float = 0.05
    skew: float = 1.05
    seed: int = 0

    def cardinalities(self) -> list[int]:
        """Returns the number of categories of each column."""
        return [
            size if size <= KEPT_CARDINALITY else max(KEPT_CARDINALITY, int(size * self.scale))
            for size in KAGGLE_CARDINALITIES
        ]

    @property
    def name(self) -> str:
        """A file name that contains every option on which the content depends."""
        return f"criteo-{self.rows}r-{self.scale:g}c-{self.skew:g}z-{self.seed}s.tsv"


def generate(path: Path, options: GeneratorOptions) -> Path:
    """Writes the file completely, or no file after a failure. Does nothing if the file exists.
    Returns `path`."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    rng = np.random.default_rng(options.seed)
    with (
        open(partial, "wb") as file,
        tqdm(total=options.rows, desc="generating rows", unit=" rows", unit_scale=True,
             disable=None) as bar,
    ):
        for begin in range(0, options.rows, CHUNK_ROWS):
            rows = min(CHUNK_ROWS, options.rows - begin)
            file.write(chunk(rows, options, rng))
            bar.update(rows)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    return path


def chunk(rows: int, options: GeneratorOptions, rng: np.random.Generator) -> bytes:
    """Makes the text of some rows.

    Each field is a block of characters (rows, width) and a mask of the characters that belong to
    the text. The blocks stand side by side. The text is the masked characters of each row in order.
    """
    log_odds = np.full(rows, BIAS)
    fields: list[tuple[Bytes, Mask]] = []
    for column in range(DENSE):
        values = np.floor(np.exp(rng.normal(np.log(DENSE_MEDIAN[column]), DENSE_SPREAD, rows)))
        values = np.minimum(values, 10.0 ** (INTEGER_WIDTH - 1) - 1).astype(np.int64)
        if column == 1:
            values -= 2  # the only column with negative integers in the real set
        missing = rng.random(rows) < MISSING_DENSE[column]
        slope = DENSE_SLOPE * (1 if column % 2 else -1)
        centred = np.log1p(np.maximum(values, 0)) - np.log1p(DENSE_MEDIAN[column])
        log_odds += np.where(missing, 0.0, slope * centred)
        fields.append(integer_text(values, missing))
    for column, size in enumerate(options.cardinalities()):
        ranks = zipf_ranks(rng.random(rows), size, options.skew)
        missing = rng.random(rows) < MISSING_CATEGORY
        log_odds += np.where(missing, 0.0, planted_weight(column, ranks))
        fields.append(hex_text(category(column, ranks), missing))
    clicks = rng.random(rows) < 1.0 / (1.0 + np.exp(-log_odds))
    label = (clicks[:, None] + ord("0")).astype(np.uint8)
    return join([(label, np.ones_like(label, dtype=bool)), *fields])


def zipf_ranks(uniform: NDArray[np.float64], size: int, skew: float) -> NDArray[np.uint32]:
    """Returns ranks 0..size-1 with density 1 / (rank + 1)^skew, by inverting the integral of the
    density."""
    power = 1.0 - skew
    top = (size + 1.0) ** power
    ranks = (1.0 + uniform * (top - 1.0)) ** (1.0 / power) - 1.0
    bounded: NDArray[np.uint32] = np.minimum(ranks, size - 1).astype(np.uint32)
    return bounded


def mixed(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The finalizer of MurmurHash3: a bijection of 32 bits."""
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    bits: NDArray[np.uint32] = values ^ (values >> np.uint32(16))
    return bits


def category(column: int, ranks: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The 32 bits that name a category: distinct ranks of a column have distinct names."""
    return mixed(ranks + np.uint32((column + 1) * 0x9E3779B9 & 0xFFFFFFFF))


def planted_weight(column: int, ranks: NDArray[np.uint32]) -> NDArray[np.float64]:
    """The log-odds that a category adds: uniform, with the standard deviation CATEGORY_WEIGHT."""
    noise = mixed(category(column, ranks) ^ np.uint32(0x5BD1E995)) / 2.0**32
    weights: NDArray[np.float64] = CATEGORY_WEIGHT * np.sqrt(12.0) * (noise - 0.5)
    return weights


def integer_text(values: NDArray[np.int64], missing: Mask) -> tuple[Bytes, Mask]:
    """Returns the decimal digits, right-aligned behind a sign, as a block (rows, INTEGER_WIDTH + 1)
    and its mask."""
    size = np.abs(values)
    powers = 10 ** np.arange(INTEGER_WIDTH - 1, -1, -1)
    digits = size[:, None] // powers % 10 + ord("0")
    shown = (size[:, None] >= powers) | (powers == 1)
    sign = np.full((values.size, 1), ord("-"))
    text = np.hstack([sign, digits]).astype(np.uint8)
    return text, np.hstack([values[:, None] < 0, shown]) & ~missing[:, None]


def hex_text(values: NDArray[np.uint32], missing: Mask) -> tuple[Bytes, Mask]:
    """Returns eight lower-case hexadecimal digits of each value, as a block (rows, 8) and its mask.
    """
    letters = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    nibbles = values[:, None] >> np.arange(28, -1, -4, dtype=np.uint32) & np.uint32(15)
    text = letters[nibbles]
    return text, np.repeat(~missing[:, None], text.shape[1], axis=1)


def join(fields: list[tuple[Bytes, Mask]]) -> bytes:
    """Puts tabs between the fields and a newline after the last one."""
    rows = fields[0][0].shape[0]
    always = np.ones((rows, 1), dtype=bool)
    text: list[Bytes] = []
    mask: list[Mask] = []
    for index, (characters, shown) in enumerate(fields):
        separator = ord("\n" if index == len(fields) - 1 else "\t")
        text += [characters, np.full((rows, 1), separator, dtype=np.uint8)]
        mask += [shown, always]
    return np.hstack(text)[np.hstack(mask)].tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the file to write")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--scale", type=float, default=0.05, help="of the large cardinalities")
    parser.add_argument("--skew", type=float, default=1.05, help="Zipf's exponent")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    generate(given.path, GeneratorOptions(given.rows, given.scale, given.skew, given.seed))


if __name__ == "__main__":
    main()
