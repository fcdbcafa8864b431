"""Tests the Criteo pipeline from Python against the plain reference, row by row, for text and
packed rows."""

from __future__ import annotations

import dataclasses
import os
import random
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))
import reference  # noqa: E402

from embank.pipeline import Output, Pipeline, Spec, criteo  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("EMBANK_DATA", REPOSITORY / "shared" / "data"))


def generated(rows: int, seed: int) -> bytes:
    """Makes lines with missing fields, negative and large integers, and rare and frequent
    categories."""
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        fields = [str(draw.randrange(2))]
        for _ in range(13):
            value = int(draw.expovariate(1) * 10 ** draw.randrange(9))
            fields.append(draw.choice(["", str(value), str(value % 50), str(-1 - value % 3)]))
        for column in range(26):
            rank = int(draw.paretovariate(0.6)) % (10 << column % 16)
            value = (rank * 40 + column) * 2_654_435_761 % 2**32
            fields.append("" if draw.random() < 0.03 else f"{value:08x}")
        lines.append("\t".join(fields) + "\n")
    return "".join(lines).encode()


def packed(text: bytes) -> bytes:
    rows = reference.text_fields(text)
    return b"".join(struct.pack("<14i26I", *fields) for fields in rows)


def side_by_side(modulus: int) -> Spec:
    """Makes the specification of `Spec::criteo` in Rust: rows of forty values of 32 bits."""
    spec = criteo(modulus)
    names = [column.name for column in spec.columns]
    return dataclasses.replace(spec, outputs=[Output("row", names, "bits32")])


def check(text: bytes, modulus: int, threads: int) -> None:
    """Checks text and packed rows, each with both forms of the output."""
    for form, rows in (("tsv", text), ("packed", packed(text))):
        expected = reference.expected(reference.text_fields(text), modulus)
        pipeline = Pipeline(criteo(modulus), format=form, threads=threads)
        raw = Pipeline(side_by_side(modulus), format=form, threads=threads)
        bits = b"".join(batch["row"].tobytes() for batch in raw.feed(rows, batch_rows=1000))
        others = struct.iter_unpack("<i13f26I", bits)
        for batch in pipeline.feed(rows, batch_rows=777):
            # The code below has only Python's own numbers.
            matrices = [batch[name].tolist() for name in ("label", "dense", "sparse")]
            for label, dense, sparse in zip(*matrices):
                wanted = next(expected)
                for got in ([*label, *dense, *sparse], list(next(others))):
                    assert not reference.difference(wanted, got)
        assert next(expected, None) is None and next(others, None) is None


@pytest.mark.parametrize(("modulus", "threads"), [(5000, 2), (1_000_000, 3), (7, 1)])
def test_generated_rows_are_what_the_reference_makes_of_them(modulus: int, threads: int) -> None:
    rows = 20_000 if modulus == 5000 else 3000
    check(generated(rows, seed=modulus), modulus, threads)


def test_real_rows_are_what_the_reference_makes_of_them() -> None:
    path = DATA / "criteo_tiny" / "train.tsv"
    if not path.exists():
        pytest.skip(f"{path} is not there; EMBANK_DATA names another folder")
    check(path.read_bytes(), 5000, 2)


def test_the_reference_tells_rows_apart() -> None:
    text = generated(50, seed=1)
    rows = list(reference.expected(reference.text_fields(text), 100))
    for row in rows:
        assert not reference.difference(row, row)
        for field in range(40):
            other = list(row)
            other[field] = row[field] + 1e-6 * max(1.0, row[field])
            assert reference.difference(row, other).startswith(f"field {field} is")


def test_the_reference_on_rows_worked_out_by_hand() -> None:
    lines = (
        ["1", "", "-5", "1", *["0"] * 10, "0000000b", "", *["2"] * 24],
        ["0", "3", *[""] * 12, "00000001", "0000000a", *["3"] * 24],
    )
    text = "".join("\t".join(line) + "\n" for line in lines).encode()
    first, second = reference.expected(reference.text_fields(text), 10)
    assert first == [1, 0.0, 0.0, pytest.approx(0.6931471805599453), *[0.0] * 10, *[0] * 26]
    # Modulo 10, the values 11 and 1 get the same id, and so do a missing number and 10.
    assert second == [0, pytest.approx(1.3862943611198906), *[0.0] * 12, 0, 0, *[1] * 24]
