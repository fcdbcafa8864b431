"""Tests the reader of triples: which names are equal, and its errors for data that are not triples.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

import embank
from triples import NAME_BYTES_MAX, KnowledgeGraph, names_budget

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
GOOD = b"a\tr\tb\nb\tr\tc\n"


def load(folder: Path, **parts: bytes) -> tuple[KnowledgeGraph, list[bytes]]:
    """Loads a graph of these parts; a part that is not given is `GOOD`. Returns the graph and the
    names of its entities in the order of their ids."""
    folder.mkdir(exist_ok=True)
    for part in ("train", "valid", "test"):
        (folder / f"{part}.tsv").write_bytes(parts.get(part, GOOD))
    with embank.Bank(folder / "names", memory_budget=names_budget(folder)) as names:
        graph = KnowledgeGraph.load(folder, names)
        entities = names.open_vocabulary("entity").values(np.arange(graph.entities))
    return graph, list(entities)


def test_a_number_sign_begins_no_comment(tmp_path: Path) -> None:
    # Regression test: the reader cut every tail at its "#", so all tails were one entity, and the
    # MRR was 1.0.
    uri = b"http://example.org/ns"
    lines = [b"%s#a%d\t%s#r\t%s#b%d\n" % (uri, n, uri, uri, n) for n in range(9)]
    graph, entities = load(tmp_path, train=b"".join(lines), valid=lines[0], test=lines[1])
    assert graph.entities == 18
    assert len(set(graph.train[:9, 2].tolist())) == 9
    assert entities[:2] == [uri + b"#a0", uri + b"#b0"]


@pytest.mark.parametrize(
    "name",
    [b"#", b"%", b'"', b"'", b"\\", b",", b" ", b"a ", b" a", b"A", b"nan", b"\xc3\xa9",
     b"e\xcc\x81", b"\xe2\x80\xa8", b"\x1c", b"\xc2\x85", b"\x0c", b"\xef\xbb\xbfa", b"01", b"1"],
)
def test_names_are_equal_if_their_bytes_are(tmp_path: Path, name: bytes) -> None:
    graph, entities = load(tmp_path, train=b"a\tr\t" + name + b"\n" + name + b"\tr\tb\n")
    assert entities == [b"a", name, b"b", b"c"]
    assert graph.train[:2].tolist() == [[0, 0, 1], [1, 0, 2]]


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path, part: str) -> None:
    graph, entities = load(tmp_path, **{part: b"\xef\xbb\xbf" + GOOD})
    assert entities == [b"a", b"b", b"c"]
    assert graph.train.tolist() == graph.valid.tolist() == graph.test.tolist()


@pytest.mark.parametrize("text", [GOOD.replace(b"\n", b"\r\n"), GOOD.rstrip()])
def test_lines_end_in_lf_or_crlf_and_the_last_in_nothing(tmp_path: Path, text: bytes) -> None:
    graph, entities = load(tmp_path, valid=text)
    assert entities == [b"a", b"b", b"c"] and graph.valid.tolist() == graph.train.tolist()


BAD = {
    "a fourth column": (b"a\tr\tb\tx\n", "expected 3 fields .* found 4"),
    "an empty fourth column": (b"a\tr\tb\t\n", "expected 3 fields .* found 4"),
    "two columns": (b"a\tr\n", "expected 3 fields .* found 2"),
    "blanks in place of tabs": (b"a r b\n", "expected 3 fields .* found 1"),
    "an empty line": (b"\n", "the line is empty"),
    "no head": (b"\tr\tb\n", "the head has no name"),
    "no relation": (b"a\t\tb\n", "the relation has no name"),
    "no tail": (b"a\tr\t\n", "the tail has no name"),
    "a NUL": (b"a\tr\tb\0\n", "NUL"),
    "a lone CR": (b"a\tr\tb\rc\tr\td\n", "CR without an LF"),
    "Latin-1": (b"a\tr\tcaf\xe9\n", "utf-8.*write the file as UTF-8"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "NUL"),
    "a name that is too long": (b"a\tr\t" + b"x" * (NAME_BYTES_MAX + 1) + b"\n", "shorten it"),
}


@pytest.mark.parametrize("part", ["train", "valid", "test"])
@pytest.mark.parametrize("kind", BAD)
def test_an_error_names_file_line_and_cause(tmp_path: Path, part: str, kind: str) -> None:
    bad, cause = BAD[kind]
    with pytest.raises(ValueError, match=cause) as caught:
        load(tmp_path, **{part: GOOD + bad + GOOD})
    assert str(caught.value).startswith(f"{tmp_path / part}.tsv:3: ")


@pytest.mark.parametrize("part", ["train", "valid", "test"])
@pytest.mark.parametrize("text", [b"", b"\xef\xbb\xbf"])
def test_an_empty_part_is_an_error_that_names_its_file(
    tmp_path: Path, part: str, text: bytes
) -> None:
    with pytest.raises(ValueError, match=f"{part}.tsv.*(no lines|is empty)"):
        load(tmp_path, **{part: text})


def test_one_long_name_does_not_make_the_others_long(tmp_path: Path) -> None:
    # Regression test: the reader kept the names in an array of strings, which is as wide as its
    # longest string. So 40,000 names took 2 GB beside one name of 16 KiB.
    longest = b"x" * NAME_BYTES_MAX
    lines = [b"a%d\tr\tb%d\n" % (n, n) for n in range(20_000)]
    tracemalloc.start()
    try:
        graph, entities = load(tmp_path, train=b"".join(lines), test=b"a0\tr\t" + longest + b"\n")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert graph.entities == 40_001 + 3 and entities[-1] == longest
    assert peak < 100 << 20


def test_the_program_reports_bad_data_in_one_line(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.tsv").write_bytes(GOOD + b"a\tr\n")
    done = subprocess.run(
        [sys.executable, str(TRAIN), "--data", str(tmp_path), "--scratch", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=120,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"error: {tmp_path / 'train.tsv'}:3: expected 3 fields")
    assert not list(tmp_path.glob("kge-*")), "the scratch folder is removed"


def test_the_parts_may_end_in_txt(tmp_path: Path) -> None:
    graph, entities = load(tmp_path)
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.tsv").rename(tmp_path / f"{part}.txt")
    with embank.Bank(tmp_path / "again", memory_budget=names_budget(tmp_path)) as names:
        assert KnowledgeGraph.load(tmp_path, names).train.tolist() == graph.train.tolist()


def test_parts_with_both_endings_are_an_error(tmp_path: Path) -> None:
    load(tmp_path)
    (tmp_path / "test.txt").write_bytes(GOOD)
    with pytest.raises(ValueError, match="keep the parts of one data set"):
        names_budget(tmp_path)
