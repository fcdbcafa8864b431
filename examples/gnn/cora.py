"""Cora (Sen et al., 2008) from two text files: its papers, their words and their citations."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from graph import Graph, Ints
from lines import Line, lines

PARTS = ("train", "valid", "test")
UNUSED = "none"
"""The split of a node that has no label to learn from or to be judged by."""
CLASS_MAX = (1 << 16) - 1
"""Limit of a class's number. The model has an output for each number up to the largest."""
WORD_MAX = (1 << 16) - 1
"""Limit of a word's number. The features are a dense matrix of float32, so each number up to the
largest costs 4 bytes a node."""


class Node(NamedTuple):
    """A line of nodes.tsv."""

    line: Line
    id: int
    label: int
    split: str
    words: list[int]


def load_cora(folder: Path) -> Graph:
    """Reads nodes.tsv (node, class, split, words) and edges.tsv (two nodes, each edge once).

    Node ids are whole numbers in digits. Nodes of the graph are in the order of their ids, so the
    order of the lines in nodes.tsv changes nothing. A split is train, valid, test or none. Words
    are distinct whole numbers with commas between. A paper's features have an equal value for each
    of its words, and a Euclidean length of 1.

    Raises `FileNotFoundError` if a file is missing. Raises `ValueError` with file and line for a
    line that is not of the format, a node that is there twice, an edge that is there twice or joins
    a node with itself, and an edge of a node that nodes.tsv lacks. Raises `ValueError` with the
    file if a split is empty.
    """
    for name in ("nodes.tsv", "edges.tsv"):
        if not (folder / name).exists():
            raise FileNotFoundError(
                f"{folder / name} is missing: put Cora's nodes.tsv and edges.tsv there, or name "
                "their folder with --data"
            )
    nodes = read_nodes(folder / "nodes.tsv")
    edges = read_edges(folder / "edges.tsv", {node.id: at for at, node in enumerate(nodes)})
    both = np.concatenate([edges, edges[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    starts = np.zeros(len(nodes) + 1, np.int64)
    np.cumsum(np.bincount(both[:, 0], minlength=len(nodes)), out=starts[1:])
    width = 1 + max(max(node.words, default=0) for node in nodes)
    features = np.zeros((len(nodes), width), np.float32)
    for at, node in enumerate(nodes):
        features[at, node.words] = max(1, len(node.words)) ** -0.5
    labels = np.array([node.label for node in nodes])
    splits = np.array([node.split for node in nodes])
    parts = [np.flatnonzero(splits == part) for part in PARTS]
    return Graph(starts, both[:, 1].copy(), labels, int(labels.max()) + 1, features, *parts)


def read_nodes(path: Path) -> list[Node]:
    """Reads the nodes, in the order of their ids."""
    found: dict[int, Node] = {}
    for line in lines(path):
        node = parsed(line)
        other = found.setdefault(node.id, node)
        if other is not node:
            raise line.error(f"node {node.id} is in line {other.line.number} already; keep one")
    nodes = [found[id] for id in sorted(found)]
    for part in PARTS:
        if not any(node.split == part for node in nodes):
            raise ValueError(f"{path}: no node has the split {part}; a graph needs {list(PARTS)}")
    return nodes


def parsed(line: Line) -> Node:
    """Parses a line of nodes.tsv."""
    id, label, split, text = line.fields("node", "class", "split", "words")
    if split not in (*PARTS, UNUSED):
        raise line.error(f"the split must be one of {[*PARTS, UNUSED]}, found {split[:50]!r}")
    words = [line.whole_number("a word", word, WORD_MAX) for word in text.split(",") if text]
    if len(set(words)) < len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise line.error(f"word {twice} is there twice; a node has each word once")
    return Node(line, line.whole_number("node", id),
                line.whole_number("class", label, CLASS_MAX), split, words)


def read_edges(path: Path, positions: dict[int, int]) -> Ints:
    """Reads the edges (n, 2) as positions of nodes. `positions` has the position of each node by
    its id."""
    found: dict[tuple[int, int], int] = {}
    edges: list[list[int]] = []
    for line in lines(path):
        ends = [line.whole_number("node", text) for text in line.fields("node", "node")]
        for id in ends:
            if id not in positions:
                raise line.error(f"node {id} is not in nodes.tsv; add it there or remove the edge")
        low, high = sorted(ends)
        if low == high:
            raise line.error(f"the edge joins node {low} with itself; remove it")
        first = found.setdefault((low, high), line.number)
        if first != line.number:
            raise line.error(f"the edge of {low} and {high} is in line {first} already; keep one")
        edges.append([positions[id] for id in ends])
    return np.array(edges, np.int64)
