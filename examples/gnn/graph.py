"""Graphs as compressed sparse rows, and a generated one of any size on disk.

`starts` (nodes + 1,) and `neighbours` (edges,) say that node v's neighbours are
`neighbours[starts[v]:starts[v + 1]]`. For the generated graph, both are memory maps.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

DEGREE_MIN, DEGREE_MAX = 3, 1000
DEGREE_EXPONENT = 2.5
"""Exponent of the out-degrees: the share of nodes with degree d is proportional to d to the power
of minus this."""
POPULARITY = 4.0
"""An edge leads to the node at the share u^4 of the nodes of a class, for a uniform u. So the first
1 % of nodes take a third of all edges."""
SAME_CLASS = 0.8
GENERATED_CLASSES = 16
GENERATED_TEST = 10_000
CHUNK_NODES = 1 << 18


@dataclass(frozen=True)
class Graph:
    """A graph. `labels` (nodes,) are 0..classes-1; a node in no part may have another number.
    `features` are floats (nodes, width), or None.

    `train`, `valid` and `test` are the nodes of the three parts. `metric` says how a model is
    judged: by accuracy, or, with labels 0 and 1, by the area under the ROC curve.
    """

    starts: Ints
    neighbours: NDArray[np.integer]
    labels: NDArray[np.integer]
    classes: int
    features: NDArray[np.floating] | None
    train: Ints
    valid: Ints
    test: Ints
    metric: Literal["accuracy", "AUC"] = "accuracy"

    @property
    def nodes(self) -> int:
        return self.starts.size - 1


def power_law(folder: Path, nodes: int, seed: int) -> Graph:
    """Returns a graph of `nodes` nodes with planted classes. Makes it in `folder` unless it is
    there.

    In-degrees and out-degrees follow power laws. A node's class is its number modulo 16. Four of
    five edges stay within the class, so a node's neighbours show its class. The function takes
    constant memory: it makes a chunk of nodes at a time.
    """
    about = folder / "graph.json"
    wanted = {"nodes": nodes, "seed": seed, "format": 2}
    if not about.exists() or json.loads(about.read_text()) != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        about.unlink(missing_ok=True)
        generate(folder, nodes, seed)
        partial = about.with_suffix(".partial")
        partial.write_text(json.dumps(wanted))
        os.replace(partial, about)
    starts = np.memmap(folder / "starts.i64", np.int64, "r")
    neighbours = np.memmap(folder / "neighbours.i32", np.int32, "r")
    order = np.random.default_rng([seed, 1]).permutation(nodes)
    test = min(GENERATED_TEST, nodes // 10)
    labels = (np.arange(nodes) % GENERATED_CLASSES).astype(np.int8)
    return Graph(
        starts, neighbours, labels, GENERATED_CLASSES, None,
        train=order[2 * test :], valid=order[test : 2 * test], test=order[:test],
    )


def generate(folder: Path, nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with open(folder / "starts.i64", "wb") as starts, \
            open(folder / "neighbours.i32", "wb") as neighbours:
        edges = 0
        np.zeros(1, np.int64).tofile(starts)
        for begin in range(0, nodes, CHUNK_NODES):
            node = np.arange(begin, min(begin + CHUNK_NODES, nodes))
            tail = (1.0 - rng.random(node.size)) ** (-1.0 / (DEGREE_EXPONENT - 1.0))
            degree = np.minimum(DEGREE_MIN * tail, DEGREE_MAX).astype(np.int64)
            ends = edges + np.cumsum(degree)
            ends.tofile(starts)
            edges = int(ends[-1])
            label = np.repeat(node % GENERATED_CLASSES, degree)
            stray = rng.random(label.size) >= SAME_CLASS
            label[stray] = rng.integers(0, GENERATED_CLASSES, int(stray.sum()))
            rank = (nodes // GENERATED_CLASSES * rng.random(label.size) ** POPULARITY)
            (rank.astype(np.int64) * GENERATED_CLASSES + label).astype(np.int32).tofile(neighbours)
