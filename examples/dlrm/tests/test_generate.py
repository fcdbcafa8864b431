"""Tests generated rows: the reader reads them, a seed gives the same rows, and they follow Zipf's
law."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

from criteo import MISSING, pack
from generate import GeneratorOptions, generate


def test_rows_are_of_the_format_and_repeat_from_the_seed(tmp_path: Path) -> None:
    options = GeneratorOptions(rows=3000, scale=0.001, seed=7)
    first = generate(tmp_path / "first.tsv", options)
    second = generate(tmp_path / "second.tsv", options)
    assert first.read_bytes() == second.read_bytes()
    assert b"-1\t" in first.read_bytes()
    data = pack(first, tmp_path / "packed", None)
    assert len(data) == 3000
    assert 0.1 < float(data.labels.mean()) < 0.5
    assert any(bool((column.values == MISSING).any()) for column in data.columns)


def test_a_few_categories_take_most_rows(tmp_path: Path) -> None:
    path = generate(tmp_path / "rows.tsv", GeneratorOptions(rows=20_000, scale=0.01, seed=1))
    column = pack(path, tmp_path / "packed", None).columns[2]
    counts = np.sort(np.unique(column.values, return_counts=True)[1])[::-1]
    assert counts.size > 2000
    assert counts[:200].sum() > 0.4 * counts.sum()


def test_the_program_writes_the_rows_of_its_options(tmp_path: Path) -> None:
    path = tmp_path / "program.tsv"
    script = Path(__file__).resolve().parents[1] / "generate.py"
    options = ["--rows", "300", "--scale", "0.001", "--seed", "7"]
    subprocess.run([sys.executable, str(script), str(path), *options], check=True)
    same = generate(tmp_path / "same.tsv", GeneratorOptions(rows=300, scale=0.001, seed=7))
    assert path.read_bytes() == same.read_bytes()
