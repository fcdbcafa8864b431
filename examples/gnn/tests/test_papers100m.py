"""Tests the reader of ogbn-papers100M, on small files of its format: the graph that it returns, and
its errors for files that are not of the format."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

import papers100m
from graph import Graph
from npz import mapped
from papers100m import load_papers100m, only_process

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
NODES, WIDTH = 40, 8
EDGES = np.array([[(n, (n + step) % NODES) for n in range(NODES)] for step in (1, 4)]
                 ).reshape(-1, 2).T.copy()
FEATURES = np.random.default_rng(1).standard_normal((NODES, WIDTH)).astype(np.float32)
LABELS = np.where(np.arange(NODES) % 5 == 4, np.nan, np.arange(NODES) % 4).astype(np.float32)
PARTS = {"train": [n for n in range(28) if n % 5 != 4], "valid": [30, 31, 32],
         "test": [38, 36, 35]}


def write(folder: Path, compressed: bool = False, **changed: Any) -> Path:
    """Writes the five files; `changed` takes the place of arrays (None: leaves one out) and of the
    lines of parts."""
    (folder / "raw").mkdir(exist_ok=True)
    (folder / "split" / "time").mkdir(parents=True, exist_ok=True)
    save: Any = np.savez_compressed if compressed else np.savez
    arrays: dict[str, Any] = {
        "edge_index": EDGES, "node_feat": FEATURES, "node_year": np.full((NODES, 1), 2015),
        "num_nodes_list": np.array([NODES]), "num_edges_list": np.array([EDGES.shape[1]]),
    }
    label = changed.get("node_label", LABELS[:, None])
    save(folder / "raw" / "node-label.npz", **({} if label is None else {"node_label": label}))
    save(folder / "raw" / "data.npz", **{
        name: array for name, array in (arrays | changed).items()
        if name in arrays and array is not None
    })
    for part, nodes in PARTS.items():
        lines = changed.get(part, b"".join(b"%d\n" % node for node in nodes))
        (folder / "split" / "time" / f"{part}.csv.gz").write_bytes(gzip.compress(lines))
    return folder


def load(folder: Path, **changed: Any) -> Graph:
    return load_papers100m(write(folder, **changed), folder / "packed")


def check(graph: Graph, features: np.ndarray[Any, Any] = FEATURES) -> None:
    assert (graph.nodes, graph.classes) == (NODES, 4)
    around = [sorted(part.tolist()) for part in np.split(graph.neighbours, graph.starts[1:-1])]
    assert around == [sorted((n + step) % NODES for step in (1, 4, -1, -4)) for n in range(NODES)]
    assert graph.labels.tolist() == np.nan_to_num(LABELS, nan=-1).astype(int).tolist()
    assert [graph.train.tolist(), graph.valid.tolist(), graph.test.tolist()] == [*PARTS.values()]
    assert graph.features is not None and np.array_equal(graph.features, features)


@pytest.mark.parametrize("compressed", [False, True])
def test_the_arrays_are_mapped(tmp_path: Path, compressed: bool) -> None:
    graph = load(tmp_path, compressed=compressed)
    check(graph)
    assert isinstance(graph.features, np.memmap)
    place = tmp_path / ("packed/unpacked/node_feat.npy" if compressed else "raw/data.npz")
    assert Path(str(graph.features.filename)) == place
    assert not (tmp_path / "packed/unpacked/edge_index.npy").exists()


def test_pieces_of_any_size_give_one_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers100m, "PIECE_EDGES", 7)
    check(load(tmp_path))


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_features_may_have_another_precision(tmp_path: Path, kind: type[Any]) -> None:
    check(load(tmp_path, node_feat=FEATURES.astype(kind)), FEATURES.astype(kind))


def test_arrays_may_have_the_order_of_fortran(tmp_path: Path) -> None:
    columns = np.asfortranarray(FEATURES)
    check(load(tmp_path, edge_index=np.asfortranarray(EDGES), node_feat=columns))


@pytest.mark.parametrize("compressed", [False, True])
def test_edges_are_sorted_once_and_again_when_the_file_changes(
    tmp_path: Path, compressed: bool
) -> None:
    check(load(tmp_path, compressed=compressed))
    written = (tmp_path / "packed" / "starts.i64").stat().st_mtime_ns
    check(load_papers100m(tmp_path, tmp_path / "packed"))
    assert (tmp_path / "packed" / "starts.i64").stat().st_mtime_ns == written
    fewer = load(tmp_path, compressed=compressed, edge_index=EDGES[:, :3], node_feat=2 * FEATURES)
    assert fewer.neighbours.size == 6 and fewer.starts[-1] == 6
    assert np.array_equal(fewer.features, 2 * FEATURES)  # type: ignore[arg-type]


BAD_ARRAYS: dict[str, tuple[str, Any, str]] = {
    "no edges": ("edge_index", None, "data.npz: there is no array edge_index, only node_feat, "),
    "edges in rows": ("edge_index", EDGES.T, r"the shape \(2, edges\).* found \(80, 2\)"),
    "an edge too large": ("edge_index", np.where(EDGES == 7, NODES, EDGES),
                          "edge_index, edge 7: the node is 40, but must be from 0 to 39"),
    "a negative edge": ("edge_index", np.where(EDGES == 39, -1, EDGES),
                        "edge_index, edge 39: the node is -1, but must be from 0 to 39"),
    "edges of floats": ("edge_index", EDGES * 1.0, "whole numbers in 2 dimensions, found float64"),
    "edges of one dimension": ("edge_index", EDGES[0], r"found int64 \(80,\)"),
    "no features": ("node_feat", None, "there is no array node_feat"),
    "features of bytes": ("node_feat", FEATURES.astype(np.int8), "2 dimensions, found int8"),
    "objects": ("node_feat", FEATURES.astype(object), "an array has Python objects"),
    "fewer features": ("node_feat", FEATURES[:30], r"node-label.npz: .* \(30, 1\).* \(40, 1\)"),
    "no nodes": ("node_feat", FEATURES[:0], "node_feat has 0 rows, and must have 1 to"),
    "no labels": ("node_label", None, "node-label.npz: there is no array node_label"),
    "labels in a row": ("node_label", LABELS[None], r"the shape \(40, 1\).* found \(1, 40\)"),
    "half a label": ("node_label", LABELS[:, None] + 0.5, "of node 0 is 0.5, and must be a whole"),
    "a negative label": ("node_label", LABELS[:, None] - 1, "of node 0 is -1"),
    "an endless label": ("node_label", LABELS[:, None] + np.inf, "of node 0 is inf"),
    "a label too large": ("node_label", LABELS[:, None] + 1e6, "of node 0 is 1e[+]06"),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", BAD_ARRAYS)
def test_a_bad_array_is_an_error_that_names_file_and_cause(
    tmp_path: Path, kind: str, compressed: bool
) -> None:
    name, array, cause = BAD_ARRAYS[kind]
    with pytest.raises(ValueError, match=cause) as caught:
        load(tmp_path, compressed=compressed, **{name: array})
    assert str(caught.value).startswith(str(tmp_path))


BAD_PARTS = {
    "a letter": (b"1\n2\n3x\n", ':3:1: field "node", "3x", is not a whole number'),
    "two fields": (b"1\n2\t3\n", ":2: has 2 fields"),
    "an empty line": (b"1\n\n2\n", ':2:1: field "node", "", is empty'),
    "a float": (b"1.0\n", ':1:1: field "node", "1.0"'),
    "a node too large": (b"1\n40\n", ", row 2: the node is 40, but must be from 0 to 39"),
    "a negative node": (b"1\n-1\n", ", row 2: the node is -1"),
    "a node again": (b"1\n2\n1\n", ", row 3: node 1 is in an earlier row already"),
    "a node of another part": (b"36\n35\n30\n", ", row 3: node 30 is in another part already"),
    "a node without a label": (b"1\n4\n", ", row 2: node 4 has no label in node-label.npz"),
    "no nodes": (b"", ": the file has no rows"),
}


@pytest.mark.parametrize("kind", BAD_PARTS)
def test_a_bad_part_is_an_error_that_names_file_place_and_cause(tmp_path: Path, kind: str) -> None:
    bad, cause = BAD_PARTS[kind]
    part = "test" if kind == "a node of another part" else "train"
    with pytest.raises(ValueError) as caught:
        load(tmp_path, **{part: bad})
    assert str(caught.value).startswith(f"{tmp_path}/split/time/{part}.csv.gz{cause}")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kept", [0, 100, -30])
def test_a_cut_archive_is_an_error_that_names_its_file(
    tmp_path: Path, compressed: bool, kept: int
) -> None:
    path = write(tmp_path, compressed=compressed) / "raw" / "data.npz"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="data.npz: the archive is cut short or damaged"):
        load_papers100m(tmp_path, tmp_path / "packed")


def test_damage_of_a_compressed_array_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    np.savez_compressed(path, one=np.random.default_rng(0).random(5000))
    damaged = bytearray(path.read_bytes())
    damaged[20_000] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="one.npz: the archive is cut short or damaged"):
        mapped(path, "one", tmp_path)


HEADER_FLIPS = {
    "more columns": (b"(2, 40)", b"(2, 60)"),
    "fewer columns": (b"(2, 40)", b"(2, 39)"),
    "narrower numbers": (b"'<i8'", b"'<i4'"),
    "negative columns": (b"(2, 40)", b"(2,-40)"),
    "no tuple": (b"(2, 40)", b"(2, 40 "),
    "no key": (b"'descr'", b"'desc '"),
    "a key of a list": (b"'descr'", b"['des']"),
    "no magic": (b"\x93NUMPY\1", b"\x92NUMPY\1"),
    "an open string": (b"'<i8'", b"'<i8 "),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", HEADER_FLIPS)
def test_a_damaged_header_is_an_error_that_names_file_and_array(
    tmp_path: Path, kind: str, compressed: bool
) -> None:
    # Regression test: more columns gave the bytes of the next member as numbers, fewer columns a
    # shifted second row, and narrower numbers wrong ones; other damage was an error without file.
    path, unpacked = tmp_path / "two.npz", tmp_path / "unpacked"
    save: Any = np.savez_compressed if compressed else np.savez
    save(path, one=np.arange(80).reshape(2, 40), two=np.arange(500))
    assert mapped(path, "one", unpacked).tolist() == np.arange(80).reshape(2, 40).tolist()
    damaged = unpacked / "one.npy" if compressed else path
    found, written = HEADER_FLIPS[kind]
    assert found in damaged.read_bytes() and len(found) == len(written)
    damaged.write_bytes(damaged.read_bytes().replace(found, written, 1))
    with pytest.raises(ValueError) as caught:
        mapped(path, "one", unpacked)
    array, cure = ("", f"remove {unpacked}") if compressed else ("one: ", "take the file of the")
    assert str(caught.value).startswith(f"{damaged}: {array}the array is cut short or damaged (")
    assert cure in str(caught.value)


@pytest.mark.parametrize("kept", [0, 50, -8])
def test_a_cut_unpacked_array_is_an_error_with_its_cure(tmp_path: Path, kept: int) -> None:
    path, unpacked = tmp_path / "one.npz", tmp_path / "unpacked"
    np.savez_compressed(path, one=np.arange(80))
    mapped(path, "one", unpacked)
    file = unpacked / "one.npy"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=f"^{file}: the array is cut short .*; remove {unpacked}"):
        mapped(path, "one", unpacked)


def test_a_member_without_its_own_header_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    np.savez(path, one=np.arange(80))
    path.write_bytes(b"PK\3\5" + path.read_bytes()[4:])
    with pytest.raises(ValueError, match="one.npz: the archive is cut short or damaged .one.npy"):
        mapped(path, "one", tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_flipped_bit_of_a_header_or_the_directory_is_no_other_error(
    tmp_path: Path, compressed: bool
) -> None:
    path, unpacked = tmp_path / "one.npz", tmp_path / "unpacked"
    save: Any = np.savez_compressed if compressed else np.savez
    save(path, one=np.arange(80))
    whole = path.read_bytes()
    rng = np.random.default_rng(7)
    refused = 0
    for at, bit in zip(rng.integers(-110, 160, 600), rng.integers(0, 8, 600)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        shutil.rmtree(unpacked, ignore_errors=True)
        try:
            found = mapped(path, "one", unpacked)
        except ValueError as error:
            assert str(error).startswith(str(tmp_path)), f"the flip of bit {bit} of byte {at}"
            refused += 1
        else:
            assert found.nbytes == 640, f"the flip of bit {bit} of byte {at}"
    assert refused > 100


def test_a_mapped_graph_stays_when_other_files_are_packed_in_its_folder(tmp_path: Path) -> None:
    # Regression test: the second call cut the file that the first graph had mapped.
    first = load(tmp_path, compressed=True)
    second = load(tmp_path, compressed=True, edge_index=EDGES[:, :3])
    assert second.neighbours.size == 6
    check(first)


@pytest.mark.parametrize("name", ["starts.i64", "neighbours.i32"])
@pytest.mark.parametrize("kept", [None, 0, 10, -4])
def test_a_packed_file_of_another_size_is_an_error_with_its_cure(
    tmp_path: Path, name: str, kept: int | None
) -> None:
    load(tmp_path)
    path = tmp_path / "packed" / name
    if kept is None and name == "starts.i64":
        path.write_bytes(path.read_bytes() + bytes(8))
    elif kept is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=f"^{path}: the graph takes .*; remove {path.parent}"):
        load_papers100m(tmp_path, tmp_path / "packed")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff"])
def test_a_damaged_source_json_has_the_graph_packed_again(tmp_path: Path, text: bytes) -> None:
    # Regression test: an empty source.json was a JSONDecodeError without a file.
    load(tmp_path)
    (tmp_path / "packed" / "source.json").write_bytes(text)
    (tmp_path / "packed" / "neighbours.i32").unlink()
    check(load_papers100m(tmp_path, tmp_path / "packed"))


def test_a_second_process_waits_for_the_one_that_packs(tmp_path: Path) -> None:
    write(tmp_path)
    packed = tmp_path / "packed"
    script = ("import sys; sys.path[:0] = sys.argv[3:]; from pathlib import Path\n"
              "from papers100m import load_papers100m\n"
              "print(load_papers100m(Path(sys.argv[1]), Path(sys.argv[2])).nodes)")
    packed.mkdir()
    with only_process(packed):
        second = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), str(packed),
             str(TRAIN.parent), str(TRAIN.parents[1] / "common")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        assert second.stderr is not None
        waits = second.stderr.readline()
        assert waits == f"{packed}: another process packs a graph here; waiting for it\n"
        assert not (packed / "source.json").exists()
    out, errors = second.communicate(timeout=300)
    assert (second.returncode, out, errors) == (0, f"{NODES}\n", "")


@pytest.mark.parametrize(
    "name", ["raw/data.npz", "raw/node-label.npz", "split/time/valid.csv.gz"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing: unpack the data set"):
        load_papers100m(tmp_path, tmp_path / "packed")


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TRAIN), "--graph", "papers100m", "--data", str(folder), "--packed",
         str(folder / "packed"), "--epochs", "2", "--dim", "8", "--hidden", "8", "--threads", "1",
         "--scratch", str(folder), *more],
        capture_output=True, text=True, check=False, timeout=300,
    )


@pytest.mark.parametrize("where", [[], ["--in-memory"]])
def test_the_program_trains_on_it(tmp_path: Path, where: list[str]) -> None:
    done = run(write(tmp_path, node_feat=FEATURES.astype(np.float16)), *where)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout


def test_a_cut_gzip_file_is_one_clear_line(tmp_path: Path) -> None:
    path = write(tmp_path) / "split" / "time" / "train.csv.gz"
    path.write_bytes(path.read_bytes()[:-10])
    done = run(tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"error: {path}: it can't be decompressed, so it is cut short")


def test_a_feature_that_is_not_finite_is_one_clear_line(tmp_path: Path) -> None:
    features = FEATURES.copy()
    features[5, 3] = np.nan
    done = run(write(tmp_path, node_feat=features))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert 'table "feature", key 5: column 3' in done.stderr
