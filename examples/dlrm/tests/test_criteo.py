"""The reader of the Criteo format: what it reads, and what it says of bad lines."""

from pathlib import Path

import numpy as np
import pytest

from criteo import CriteoFormatError, MISSING, pack, read_blocks

GOOD = ["1", "5", "-2", "", *["0"] * 10, "68fd1e64", "", "FFFFFFFF", *["00000001"] * 23]


def write(path: Path, *lines: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join("\t".join(line) + end for line in lines).encode())
    return path


def changed(place: int, text: str) -> list[str]:
    return [*GOOD[:place], text, *GOOD[place + 1 :]]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_reads_fields_of_every_kind(tmp_path: Path, end: str, block_bytes: int) -> None:
    path = write(tmp_path / "rows.tsv", GOOD, changed(0, "0"), changed(39, ""), end=end)
    blocks = list(read_blocks(path, block_bytes))
    keys = np.concatenate([block.keys for block in blocks])
    dense = np.concatenate([block.dense for block in blocks])
    assert np.concatenate([block.labels for block in blocks]).tolist() == [1, 0, 1]
    assert dense[0, :3].tolist() == pytest.approx([np.log(6.0), 0.0, 0.0])
    assert keys[0, :4].tolist() == [0x68FD1E64, MISSING, 0xFFFFFFFF, 1]
    assert keys[:, 25].tolist() == [1, 1, MISSING]


def test_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("\t".join(GOOD) + "\n" + "\t".join(GOOD))
    assert sum(len(block.labels) for block in read_blocks(path)) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD[:-1], "expected 40 tab-separated fields"),
        ([*GOOD, "1"], "found 41"),
        ([""], "found 1"),
        (changed(0, "2"), "field 1: a label is 0 or 1, found '2'"),
        (changed(0, ""), "field 1: a label"),
        (changed(3, "1.5"), "field 4: an integer or nothing is expected, found '1.5'"),
        (changed(3, "-"), "field 4"),
        (changed(3, "9" * 19), "field 4"),
        (changed(14, "68fd1e6"), "field 15: 8 hexadecimal digits"),
        (changed(39, "68fd1e6g"), "field 40: 8 hexadecimal digits or nothing"),
    ],
)
def test_a_bad_line_is_an_error_that_names_file_line_and_cause(
    tmp_path: Path, line: list[str], message: str
) -> None:
    path = write(tmp_path / "rows.tsv", GOOD, GOOD, line, GOOD)
    with pytest.raises(CriteoFormatError) as caught:
        list(read_blocks(path, 256))
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)


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
    with pytest.raises(CriteoFormatError, match="no rows"):
        pack(path, tmp_path / "packed", None)
