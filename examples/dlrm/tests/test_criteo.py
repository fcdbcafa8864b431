"""Tests the reader of the Criteo format: the rows that it reads, and its errors for bad lines."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

from criteo import MISSING, pack, row_of
from embank.errors import BadRow

GOOD = ["1", "5", "-2", "", *["0"] * 10, "68fd1e64", "", "FFFFFFFF", *["00000001"] * 23]


def write(path: Path, *lines: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join("\t".join(line) + end for line in lines).encode())
    return path


def changed(place: int, text: str) -> list[str]:
    return [*GOOD[:place], text, *GOOD[place + 1 :]]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_reads_fields_of_every_kind(tmp_path: Path, end: str) -> None:
    path = write(tmp_path / "rows.tsv", GOOD, changed(0, "0"), changed(39, ""), end=end)
    data = pack(path, tmp_path / "packed", None)
    assert data.labels.tolist() == [1, 0, 1]
    assert data.dense[0, :3].tolist() == pytest.approx([np.log(6.0), 0.0, 0.0])
    first = [int(column.values[0]) for column in data.columns[:4]]
    assert first == [0x68FD1E64, MISSING, 0xFFFFFFFF, 1]
    assert data.columns[25].values.tolist() == [1, 1, MISSING]


def test_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("\t".join(GOOD) + "\n" + "\t".join(GOOD))
    assert len(pack(path, tmp_path / "packed", None)) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD[:-1], ":3: has 39 fields"),
        ([*GOOD, "1"], ":3: has 41 fields"),
        (changed(0, ""), ':3:1: field "label"'),
        (changed(3, "1.5"), 'field "I3", "1.5"'),
        (changed(39, "68fd1e6g"), 'field "C26", "68fd1e6g"'),
    ],
)
def test_a_bad_line_is_an_error_that_names_file_line_and_cause(
    tmp_path: Path, line: list[str], message: str
) -> None:
    path = write(tmp_path / "rows.tsv", GOOD, GOOD, line, GOOD)
    with pytest.raises(BadRow) as caught:
        pack(path, tmp_path / "packed", None)
    assert str(caught.value).startswith(f"{path}:3")
    assert message in str(caught.value)


@pytest.mark.parametrize("label", ["2", "-1", "100"])
@pytest.mark.parametrize("before", [0, 2, 70_000])      # rows before the bad row: 1 or 2 batches
def test_a_label_that_is_no_label_is_an_error(tmp_path: Path, before: int, label: str) -> None:
    path = write(tmp_path / "rows.tsv", *[GOOD] * before, changed(0, label), GOOD)
    with pytest.raises(ValueError, match="a label is 0 or 1") as caught:
        pack(path, tmp_path / "packed", None)
    assert str(caught.value) == f"{path}, row {before + 1}: a label is 0 or 1, found {label}"


def test_a_bad_label_is_named_by_its_row_because_empty_lines_are_no_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Regression test: the error named the row's number as a line.
    path = tmp_path / "rows.tsv"
    path.write_text("\n\n" + "\n".join("\t".join(row) for row in (GOOD, changed(0, "7"))) + "\n")
    with pytest.raises(ValueError) as caught:
        pack(path, tmp_path / "packed", None)
    assert str(caught.value) == f"{path}, row 2: a label is 0 or 1, found 7"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("row", "file", "within"), [(3, 0, 3), (4, 1, 1), (5, 1, 2), (6, 2, 1)])
def test_a_row_of_several_files_is_named_after_a_line_for_each_file_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: int, file: int, within: int
) -> None:
    paths = [write(tmp_path / f"day_{day}", *[GOOD] * rows) for day, rows in enumerate((3, 2, 4))]
    assert row_of(paths, row) == f"{paths[file]}, row {within}"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == min(file + 1, 2)
    assert all(f"counting the rows of {path}" in line for path, line in zip(paths, said))


def test_packing_is_done_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.tsv", *[GOOD] * 5)
    packed = tmp_path / "packed"
    assert len(pack(path, packed, rows_max=3)) == 3
    written = (packed / "packed.json").stat().st_mtime_ns
    assert len(pack(path, packed, rows_max=3)) == 3
    assert (packed / "packed.json").stat().st_mtime_ns == written
    write(path, *[GOOD] * 2)
    data = pack(path, packed, rows_max=3)
    assert len(data) == 2 and len(data.columns) == 26


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.tsv")
    with pytest.raises(ValueError, match="no rows"):
        pack(path, tmp_path / "packed", None)
