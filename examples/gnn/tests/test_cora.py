"""Tests the reader of Cora: labels belong to the nodes of the first column, and errors name file
and line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

from cora import load_cora
from graph import Graph

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
NODES = [b"31336\t2\ttrain\t0,4", b"7\t0\tvalid\t", b"1061127\t1\ttest\t3", b"42\t2\tnone\t4"]
EDGES = [b"7\t31336", b"1061127\t7", b"42\t31336"]


def load(
    folder: Path, nodes: list[bytes] = NODES, edges: list[bytes] = EDGES, end: bytes = b"\n"
) -> Graph:
    folder.mkdir(exist_ok=True)
    for name, text in (("nodes", nodes), ("edges", edges)):
        (folder / f"{name}.tsv").write_bytes(b"".join(line + end for line in text))
    return load_cora(folder)


def parts(graph: Graph) -> list[list[object]]:
    arrays = (graph.starts, graph.neighbours, graph.labels, graph.features, graph.train,
              graph.valid, graph.test)
    return [np.asarray(array).tolist() for array in arrays]


def test_a_line_is_of_the_node_that_it_names(tmp_path: Path) -> None:
    # Regression test: the reader took the n-th line for node n, so labels and features went to
    # other nodes.
    graph = load(tmp_path)
    assert graph.labels.tolist() == [0, 2, 2, 1]        # of 7, 42, 31336 and 1061127
    assert [graph.train.tolist(), graph.valid.tolist(), graph.test.tolist()] == [[2], [0], [3]]
    around = [sorted(part.tolist()) for part in np.split(graph.neighbours, graph.starts[1:-1])]
    assert around == [[2, 3], [2], [0, 1], [0]]
    assert graph.features is not None and graph.features.shape == (4, 5)
    assert np.flatnonzero(graph.features[2]).tolist() == [0, 4]
    assert np.linalg.norm(graph.features, axis=1).tolist() == pytest.approx([0, 1, 1, 1])


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]])
def test_the_order_of_the_nodes_lines_changes_nothing(tmp_path: Path, order: list[int]) -> None:
    shuffled = load(tmp_path / "shuffled", nodes=[NODES[at] for at in order])
    assert parts(shuffled) == parts(load(tmp_path / "plain"))


def test_lines_end_in_crlf_too_and_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    marked = load(tmp_path / "marked", [b"\xef\xbb\xbf" + NODES[0], *NODES[1:]],
                  [b"\xef\xbb\xbf" + EDGES[0], *EDGES[1:]], end=b"\r\n")
    assert parts(marked) == parts(load(tmp_path / "plain"))


def test_a_graph_may_have_one_edge(tmp_path: Path) -> None:
    assert load(tmp_path, edges=EDGES[:1]).neighbours.size == 2


BAD_NODES = {
    "three fields": (b"8\t0\ttrain", "expected 4 fields .* found 3"),
    "five fields": (b"8\t0\ttrain\t1\t2", "expected 4 fields .* found 5"),
    "a node again": (b"42\t0\ttrain\t1", "node 42 is in line 4 already"),
    "a node again in other digits": (b"042\t0\ttrain\t1", "node 42 is in line 4 already"),
    "a negative node": (b"-8\t0\ttrain\t1", "node must be a whole number"),
    "a node with a blank": (b" 8\t0\ttrain\t1", "node must be a whole number"),
    "a node beyond 63 bits": (b"9223372036854775808\t0\ttrain\t1", "at most 9223372036854775807"),
    "a class of text": (b"8\tTheory\ttrain\t1", "class must be a whole number"),
    "a negative class": (b"8\t-1\ttrain\t1", "class must be a whole number"),
    "a class too large": (b"8\t99999999999\ttrain\t1", "class must be at most 65535"),
    "another split": (b"8\t0\tval\t1", "split must be one of .* found 'val'"),
    "a split with a capital": (b"8\t0\tTrain\t1", "split must be one of"),
    "a negative word": (b"8\t0\ttrain\t-1", "a word must be a whole number"),
    "a word too large": (b"8\t0\ttrain\t99999999999", "a word must be at most 65535"),
    "a word twice": (b"8\t0\ttrain\t4,5,4", "word 4 is there twice"),
    "an empty word": (b"8\t0\ttrain\t4,,5", "a word must be a whole number"),
    "a comment": (b"# papers", "expected 4 fields"),
    "an empty line": (b"", "the line is empty"),
    "a NUL": (b"8\t0\ttrain\t1\0", "NUL"),
}
BAD_EDGES = {
    "an unknown node": (b"7\t8", "node 8 is not in nodes.tsv"),
    "a node's place": (b"0\t1", "node 0 is not in nodes.tsv"),
    "one field": (b"7", "expected 2 fields .* found 1"),
    "three fields": (b"7\t42\t1", "expected 2 fields .* found 3"),
    "a comment": (b"# edges", "expected 2 fields"),
    "a comment at the end": (b"7\t42 # new", "node must be a whole number"),
    "a fraction": (b"7\t42.0", "node must be a whole number"),
    "the edge again": (b"7\t31336", "edge of 7 and 31336 is in line 1 already"),
    "the edge again, reversed": (b"31336\t7", "edge of 7 and 31336 is in line 1 already"),
    "a loop": (b"7\t7", "joins node 7 with itself"),
    "an empty line": (b"", "the line is empty"),
}


@pytest.mark.parametrize("kind", BAD_NODES)
def test_a_bad_node_is_an_error_that_names_file_line_and_cause(tmp_path: Path, kind: str) -> None:
    bad, cause = BAD_NODES[kind]
    with pytest.raises(ValueError, match=cause) as caught:
        load(tmp_path, nodes=[*NODES, bad, b"9\t0\ttrain\t1"])
    assert str(caught.value).startswith(f"{tmp_path}/nodes.tsv:5: ")


@pytest.mark.parametrize("kind", BAD_EDGES)
def test_a_bad_edge_is_an_error_that_names_file_line_and_cause(tmp_path: Path, kind: str) -> None:
    bad, cause = BAD_EDGES[kind]
    with pytest.raises(ValueError, match=cause) as caught:
        load(tmp_path, edges=[*EDGES, bad, b"7\t42"])
    assert str(caught.value).startswith(f"{tmp_path}/edges.tsv:4: ")


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_an_empty_split_is_an_error(tmp_path: Path, part: str) -> None:
    nodes = [line.replace(part.encode(), b"none") for line in NODES]
    with pytest.raises(ValueError, match=f"nodes.tsv: no node has the split {part}"):
        load(tmp_path, nodes=nodes)


@pytest.mark.parametrize("name", ["nodes", "edges"])
def test_an_empty_file_is_an_error(tmp_path: Path, name: str) -> None:
    empty: dict[str, list[bytes]] = {name: []}
    with pytest.raises(ValueError, match=f"{name}.tsv: the file has no lines"):
        load(tmp_path, **empty)


def test_the_program_reports_bad_data_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not in nodes.tsv"):
        load(tmp_path, edges=[*EDGES, b"7\t8"])
    done = subprocess.run([sys.executable, str(TRAIN), "--data", str(tmp_path)],
                          capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"error: {tmp_path / 'edges.tsv'}:4: node 8 is not in nodes.tsv")
