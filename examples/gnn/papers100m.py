"""ogbn-papers100M (Hu et al., "Open Graph Benchmark", 2020) from its own files, without the package
ogb.

raw/data.npz has `edge_index` (2, edges) and `node_feat` (nodes, width), raw/node-label.npz has
`node_label` (nodes, 1), which is NaN for a paper without a label, and split/time has a list of
nodes for each part. The graph has 111 million nodes and 57 GB of features, so its arrays are
mapped. A citation is an edge in both directions.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from durable import publish, sync
from graph import Graph, Ints
from ids import Ids, check_range, id_rows, required
from npz import mapped

DATA, LABELS = "raw/data.npz", "raw/node-label.npz"
PARTS = ("train", "valid", "test")
CLASS_MAX = (1 << 15) - 1
"""Limit of a class's number. The model has an output for each number up to the largest."""
NODES_MAX = 1 << 31
"""Limit of the number of nodes. Neighbours are kept as int32."""
PIECE_EDGES = 1 << 24
PACKED_FORMAT = 1
"""Version of the packed files. Files of another version are written again."""
CURE = "take the files of ogbn-papers100M"


def load_papers100m(folder: Path, packed: Path) -> Graph:
    """Maps the graph. The first call writes its edges to `packed`, sorted by node; later calls use
    them if `DATA` and `LABELS` (path, size, time) are the same. `packed` needs 8 bytes for each
    edge of the file and for each node, and the size of the arrays if they are compressed. If
    another process packs in the same folder, the call waits until that process has its graph. A
    graph that is mapped stays whole if a later call packs other files there.

    Read whole: the labels, the parts and, while edges are sorted, 24 bytes a node. Mapped: edges
    and features. A feature that is not finite is found when the bank stores it.

    Raises `FileNotFoundError` if a file is missing. Raises `ValueError` (or `embank.BadRow`, or
    `embank.errors.PipelineError`) with file and row for a part that is no list of nodes, a node
    that is out of range, in two parts, or without a label; with file and edge for an edge of nodes
    that are out of range; with file and array for another shape or dtype; and with the packed file
    if it does not have the size of the graph.
    """
    packed.mkdir(parents=True, exist_ok=True)
    with only_process(packed):
        return map_graph(folder, packed)


@contextlib.contextmanager
def only_process(packed: Path) -> Iterator[None]:
    """Holds the lock of the folder `packed`. The kernel releases it when the process ends."""
    with open(packed / "lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{packed}: another process packs a graph here; waiting for it", file=sys.stderr,
                  flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def map_graph(folder: Path, packed: Path) -> Graph:
    """Packs the graph unless that is done, and maps it. The caller holds the lock of `packed`."""
    data, labels_file, *lists = required(
        folder, DATA, LABELS, *(f"split/time/{part}.csv.gz" for part in PARTS)
    )
    unpacked = prepared(packed, data, labels_file)
    features = checked(data, "node_feat", unpacked, "f", 2)
    nodes = len(features)
    if not 0 < nodes < NODES_MAX:
        raise ValueError(f"{data}: node_feat has {nodes} rows, and must have 1 to {NODES_MAX - 1}")
    labels = read_labels(labels_file, nodes, unpacked)
    parts = read_parts(lists, nodes, labels, labels_file)
    pack(data, unpacked, packed, nodes)
    starts = packed_map(packed / "starts.i64", np.int64, nodes + 1)
    neighbours = packed_map(packed / "neighbours.i32", np.int32, int(starts[-1]))
    return Graph(starts, neighbours, labels, int(labels.max()) + 1, features, *parts)


def packed_map(path: Path, dtype: type[np.integer[Any]], count: int) -> NDArray[Any]:
    """Maps a packed file of `count` numbers.

    Raises `ValueError` with the file and the cure if it is missing or has another size.
    """
    wanted = count * np.dtype(dtype).itemsize
    found = path.stat().st_size if path.exists() else 0
    if found != wanted:
        raise ValueError(f"{path}: the graph takes {wanted} bytes here, found {found}; remove "
                         f"{path.parent}, and the next run packs the graph again")
    return np.memmap(path, dtype, "r", shape=(count,))


def prepared(packed: Path, *files: Path) -> Path:
    """Removes what is packed of other files. Returns the folder of unpacked arrays.

    What is packed under a source.json that is cut short is of unknown files, so it is removed too.
    """
    source = json.dumps({"format": PACKED_FORMAT, "files": [
        [str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files
    ]}).encode()
    noted, unpacked = packed / "source.json", packed / "unpacked"
    if not noted.exists() or noted.read_bytes() != source:
        noted.unlink(missing_ok=True)
        (packed / "starts.i64").unlink(missing_ok=True)
        if unpacked.exists():
            shutil.rmtree(unpacked)
        # The old files must be gone on the disk before a source.json says that they are new.
        sync(packed)
        partial = packed / "source.json.partial"
        partial.write_bytes(source)
        publish(partial, noted)
    return unpacked


def checked(path: Path, name: str, unpacked: Path, kind: str, dimensions: int) -> NDArray[Any]:
    """Maps an array and checks the kind of its dtype and its number of dimensions."""
    array = mapped(path, name, unpacked)
    if array.dtype.kind != kind or array.ndim != dimensions:
        wanted = {"f": "floats", "i": "whole numbers"}[kind]
        raise ValueError(f"{path}: {name} must be {wanted} in {dimensions} dimensions, found "
                         f"{array.dtype} {array.shape}; {CURE}")
    return array


def read_labels(path: Path, nodes: int, unpacked: Path) -> NDArray[np.int16]:
    """Returns the class (nodes,) of each node, -1 for a node without a label."""
    array = checked(path, "node_label", unpacked, "f", 2)
    if array.shape != (nodes, 1):
        raise ValueError(f"{path}: node_label must have the shape ({nodes}, 1), as node_feat of "
                         f"{DATA} has {nodes} rows, found {array.shape}; {CURE}")
    values = np.array(array[:, 0])
    labelled = np.flatnonzero(~np.isnan(values))
    given = values[labelled]
    wrong = np.flatnonzero(~((given >= 0) & (given <= CLASS_MAX) & (np.trunc(given) == given)))
    if wrong.size:
        raise ValueError(
            f"{path}: node_label of node {labelled[wrong[0]]} is {given[wrong[0]]:g}, and must be "
            f"a whole number from 0 to {CLASS_MAX}, or NaN for a node without a label; {CURE}"
        )
    labels = np.full(nodes, -1, np.int16)
    labels[labelled] = given.astype(np.int16)
    return labels


def read_parts(
    paths: list[Path], nodes: int, labels: NDArray[np.int16], labels_file: Path
) -> list[Ints]:
    """Returns the nodes of train, valid and test."""
    parts: list[Ints] = []
    part_of = np.zeros(nodes, np.int8)
    for number, path in enumerate(paths, 1):
        part = np.concatenate(list(id_rows(path, Ids("node", nodes, DATA))))[:, 0]
        for wrong, why in (
            (part_of[part] != 0, "is in another part already"),
            (labels[part] < 0, f"has no label in {labels_file.name}"),
            (again(part), "is in an earlier row already"),
        ):
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise ValueError(f"{path}, row {row + 1}: node {part[row]} {why}; {CURE}")
        part_of[part] = number
        parts.append(part)
    return parts


def again(part: Ints) -> NDArray[np.bool_]:
    """True for each entry (n,) whose value an earlier entry has."""
    repeated = np.ones(part.size, np.bool_)
    repeated[np.unique(part, return_index=True)[1]] = False
    return repeated


def pack(data: Path, unpacked: Path, packed: Path, nodes: int) -> None:
    """Writes neighbours.i32, the neighbours of each node, and starts.i64, where they begin.

    starts.i64 is written last, so its presence says that both are whole, also after a crash of the
    machine. The unpacked edges, if the file has them compressed, are removed.
    """
    if (packed / "starts.i64").exists():
        return
    edges = checked(data, "edge_index", unpacked, "i", 2)
    if edges.shape[0] != 2 or edges.shape[1] == 0:
        raise ValueError(f"{data}: edge_index must have the shape (2, edges), edges above 0, "
                         f"found {edges.shape}; {CURE}")
    starts = np.zeros(nodes + 1, np.int64)
    end = Ids("node", nodes, "node_feat")
    for begin, piece in pieces(edges):
        check_range(f"{data}, edge_index, edge ", begin, piece.T, (end, end))
        starts[1:] += np.bincount(piece.ravel(), minlength=nodes)
    np.cumsum(starts, out=starts)
    place = starts[:-1].copy()
    # A new file, because another process may have mapped the neighbours of other files.
    partial = packed / "neighbours.i32.partial"
    neighbours = np.memmap(partial, np.int32, "w+", shape=(2 * edges.shape[1],))
    for _, piece in pieces(edges):
        # One sort of both ends in one number takes less than half the time of an argsort.
        ends = piece.ravel() << 32 | piece[::-1].ravel()
        ends.sort()
        source, target = ends >> 32, ends & (NODES_MAX - 1)
        first = np.flatnonzero(np.diff(source, prepend=-1))
        node, count = source[first], np.diff(first, append=source.size)
        within = np.arange(source.size) - np.repeat(first, count)
        neighbours[np.repeat(place[node], count) + within] = target
        place[node] += count
    neighbours.flush()
    publish(partial, packed / "neighbours.i32")
    partial = packed / "starts.i64.partial"
    starts.tofile(partial)
    publish(partial, packed / "starts.i64")
    (unpacked / "edge_index.npy").unlink(missing_ok=True)


def pieces(edges: NDArray[np.integer]) -> Iterator[tuple[int, Ints]]:
    """Yields the edges in pieces (2, n) of at most `PIECE_EDGES`, and the number of edges before
    each piece."""
    for begin in range(0, edges.shape[1], PIECE_EDGES):
        yield begin, np.asarray(edges[:, begin : begin + PIECE_EDGES], np.int64)
