"""Runs a small `soak/odd_columns.py`: odd Parquet and Arrow files, read beside DuckDB."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

SOAK = Path(__file__).parents[1] / "soak"
sys.path.insert(0, str(SOAK))

import odd_columns  # noqa: E402
import parquet_bytes  # noqa: E402

import embank  # noqa: E402


def test_rows_are_those_of_duckdb(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression test: a column chunk with fewer or more values than its row group has rows gave
    the labels of other rows, and large floats became one id."""
    assert odd_columns.main(["--files", "120", "--seed", "1"]) == 0, capsys.readouterr().out
    counts = {result: int(count) for count, result in re.findall(r"(\d+)  (.+)", capsys.readouterr().out)}
    assert counts["equal"] >= 10 and counts["refused by both"] >= 10, counts


def test_other_rows_are_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Shows that the soak finds a planted fault: a reader that gives a column to other rows."""
    read = odd_columns.of_pipeline

    def shifted(case: odd_columns.Case) -> odd_columns.Rows:
        rows = read(case)
        first = [row[0] for row in rows]
        return [(other, *row[1:]) for other, row in zip(first[1:] + first[:1], rows)]

    monkeypatch.setattr(odd_columns, "of_pipeline", shifted)
    assert odd_columns.main(["--files", "60", "--seed", "1"]) == 1
    assert "is wrong" in capsys.readouterr().out


def test_a_file_that_says_another_number_of_rows(tmp_path: Path) -> None:
    chunk = parquet_bytes.Chunk([parquet_bytes.data_page(2, parquet_bytes.plain(parquet_bytes.INT64, [7, 8]))], 2)
    path = tmp_path / "t.parquet"
    for rows in (None, 1, 3):
        parquet_bytes.write(path, [parquet_bytes.Column("c0", parquet_bytes.INT64)], [(2, [chunk])], rows)
        case = odd_columns.Case([path], ["c0"], "")
        if rows is None:
            assert odd_columns.of_pipeline(case) == [(7,), (8,)]
            continue
        with pytest.raises(embank.PipelineError, match=rf"says that it has {rows} rows, and its 1 row groups have 2"):
            odd_columns.of_pipeline(case)
