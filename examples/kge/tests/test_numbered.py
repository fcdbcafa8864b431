"""Tests the readers of Freebase and of ogbl-wikikg2, on small files of their formats: the triples
that they return, and their errors for files that are not of the format."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

from freebase import load_freebase
from triples import KnowledgeGraph, sample
from wikikg2 import load_wikikg2, read_part

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
ENTITIES, RELATIONS = 60, 3
PARTS = {"train": 300, "valid": 20, "test": 20}


def triples(part: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Triples (n, 3): head, relation, and the tail that the relation leads to."""
    rng = np.random.default_rng(list(PARTS).index(part))
    head, relation = rng.integers(0, ENTITIES, PARTS[part]), rng.integers(0, RELATIONS, PARTS[part])
    # The first triple has the largest relation, which tells the reader how many there are.
    relation[0] = RELATIONS - 1
    return np.stack([head, relation, (head + relation + 1) % ENTITIES], axis=1)


def freebase(folder: Path, **files: bytes) -> Path:
    """Writes the five files; `files` takes the place of some, by their names without .txt."""
    text = {
        "entity2id": b"%d\n/m/02mjmr\t0\n/m/0d05w3\t1\n" % ENTITIES,
        "relation2id": b"%d\nPeople.Person.Place_of_birth\t0\n" % RELATIONS,
    } | {part: rows(triples(part)) for part in PARTS} | files
    for name, written in text.items():
        (folder / f"{name}.txt").write_bytes(written)
    return folder


def rows(given: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    """The lines of Freebase's triples: head, tail, relation."""
    return b"".join(
        b"%d\t%d\t%d\n" % (head, tail, relation) for head, relation, tail in given.tolist()
    )


def wikikg2(folder: Path, counts: bytes = b"%d\n" % ENTITIES, **parts: Any) -> Path:
    """Writes the files of ogbl-wikikg2; `parts` takes the place of some dicts."""
    (folder / "raw").mkdir()
    (folder / "raw" / "num-node-list.csv.gz").write_bytes(gzip.compress(counts))
    (folder / "split" / "time").mkdir(parents=True)
    for part in PARTS:
        torch.save(parts.get(part, dictionary(part)), folder / "split" / "time" / f"{part}.pt")
    return folder


def dictionary(part: str, **changed: Any) -> dict[str, Any]:
    head, relation, tail = triples(part).T.copy()
    found: dict[str, Any] = {"head": head, "relation": relation, "tail": tail}
    if part != "train":
        found |= {name: np.zeros((head.size, 5), np.int64) for name in ("head_neg", "tail_neg")}
    return {name: value for name, value in (found | changed).items() if value is not None}


def check(graph: KnowledgeGraph) -> None:
    assert (graph.entities, graph.relations) == (ENTITIES, 2 * RELATIONS)
    for part, read in (("train", graph.train), ("valid", graph.valid), ("test", graph.test)):
        wanted = triples(part)
        assert read[: len(wanted)].tolist() == wanted.tolist()
        reverse = wanted[:, ::-1] + [0, RELATIONS, 0]
        assert read[len(wanted) :].tolist() == reverse.tolist()


def test_freebase_has_the_tail_before_the_relation(tmp_path: Path) -> None:
    check(load_freebase(freebase(tmp_path)))


def test_wikikg2_is_read_from_its_dicts_of_arrays(tmp_path: Path) -> None:
    check(load_wikikg2(wikikg2(tmp_path)))


def test_wikikg2_may_hold_tensors(tmp_path: Path) -> None:
    parts: dict[str, Any] = {
        part: {name: torch.from_numpy(value) for name, value in dictionary(part).items()}
        for part in PARTS
    }
    check(load_wikikg2(wikikg2(tmp_path, **parts)))


BAD_LINES = {
    "two fields": (b"1\t2\n", ":2: has 2 fields"),
    "four fields": (b"1\t2\t0\t4\n", ":2: has 4 fields"),
    "a letter": (b"1\t2x\t0\n", ':2:3: field "tail", "2x"'),
    "no relation": (b"1\t2\t\n", ':2:5: field "relation", ""'),
    "a name": (b"/m/02mjmr\t2\t0\n", ':2:1: field "head"'),
    "a head out of range": (b"60\t2\t0\n", ", row 2: the head is 60, but must be from 0 to 59 by "
                            "entity2id.txt; take all files from one copy of the data set"),
    "a negative tail": (b"1\t-2\t0\n", ", row 2: the tail is -2, but must be from 0 to 59"),
    "a relation out of range": (b"1\t2\t3\n", ", row 2: the relation is 3, but must be from 0 to "
                                "2 by relation2id.txt"),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_bad_triple_is_an_error_that_names_file_place_and_cause(
    tmp_path: Path, part: str, kind: str
) -> None:
    bad, cause = BAD_LINES[kind]
    with pytest.raises(ValueError) as caught:
        load_freebase(freebase(tmp_path, **{part: b"1\t2\t0\n" + bad + b"3\t4\t0\n"}))
    assert str(caught.value).startswith(f"{tmp_path / part}.txt{cause}")


@pytest.mark.parametrize("name", ["entity2id", "relation2id"])
@pytest.mark.parametrize(
    ("text", "cause"),
    [(b"/m/02mjmr\t0\n", ":1: the first line, the number of names, must be a whole number"),
     (b"0\n", ":1: the first line counts no names"),
     (b"99999999999\n", ":1: the first line, the number of names, must be at most 2147483647"),
     (b"", ": the file has no lines")],
)
def test_a_bad_count_of_names_is_an_error(
    tmp_path: Path, name: str, text: bytes, cause: str
) -> None:
    with pytest.raises(ValueError) as caught:
        load_freebase(freebase(tmp_path, **{name: text}))
    assert str(caught.value).startswith(f"{tmp_path / name}.txt{cause}")


def test_an_empty_part_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="valid.txt: the file has no rows"):
        load_freebase(freebase(tmp_path, valid=b""))


def test_more_relations_than_the_triples_can_number_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="half as many relations at most"):
        load_freebase(freebase(tmp_path, relation2id=b"2147483647\n"))


@pytest.mark.parametrize("name", ["entity2id.txt", "relation2id.txt", "train.txt", "test.txt"])
def test_a_missing_file_of_freebase_is_named(tmp_path: Path, name: str) -> None:
    (freebase(tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing: unpack the data set"):
        load_freebase(tmp_path)


BAD_DICTS = {
    "a list": ([1, 2], "expected a dict of arrays, found list"),
    "no tail": (dictionary("valid", tail=None), "the dict has no tail, only"),
    "floats": (dictionary("valid", head=np.zeros(20)), r"head must be whole numbers .* float64"),
    "a matrix": (dictionary("valid", head=np.zeros((20, 2), np.int64)), r"found int64 \(20, 2\)"),
    "a short array": (dictionary("valid", relation=np.zeros(7, np.int64)), r"\[20, 7, 20\]"),
    "no triples": (dict.fromkeys(("head", "relation", "tail"), torch.zeros(0, dtype=torch.int64)),
                   r"n above 0, found int64 \(0,\)"),
    "text": (dictionary("valid", head=["Q1"] * 20), "head must be whole numbers"),
    "a head out of range": (dictionary("valid", head=np.full(20, ENTITIES)),
                            "row 1: the head is 60, but must be from 0 to 59 by raw/num-node"),
    "a relation that train lacks": (dictionary("valid", relation=np.arange(20) % 4),
                                    "row 4: the relation is 3, but must be from 0 to 2 by train"),
    "code": (dictionary("valid", head=Path("x")), "torch.load can't read it as a dict of arrays"),
}


@pytest.mark.parametrize("kind", BAD_DICTS)
def test_a_bad_dict_is_an_error_that_names_file_and_cause(tmp_path: Path, kind: str) -> None:
    bad, cause = BAD_DICTS[kind]
    with pytest.raises(ValueError, match=cause) as caught:
        load_wikikg2(wikikg2(tmp_path, valid=bad))
    assert str(caught.value).startswith(f"{tmp_path}/split/time/valid.pt")


@pytest.mark.parametrize("kept", [0, 3, 700])
def test_a_cut_dict_is_an_error_that_names_its_file(tmp_path: Path, kept: int) -> None:
    path = wikikg2(tmp_path) / "split" / "time" / "test.pt"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="test.pt: torch.load can't read it"):
        load_wikikg2(tmp_path)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_flipped_bit_is_no_other_error(tmp_path: Path, zipped: bool, tensors: bool) -> None:
    # Regression test: damage escaped as TypeError, KeyError, AttributeError and others, and in a
    # zip archive as other triples. The older form has no checksum to find the latter.
    path = tmp_path / "part.pt"
    part = dictionary("train")
    if tensors:
        part = {name: torch.from_numpy(value) for name, value in part.items()}
    torch.save(part, path, _use_new_zipfile_serialization=zipped)
    whole, wanted = path.read_bytes(), read_part(path).tolist()
    rng = np.random.default_rng(7)
    refused = 0
    for place, bit in zip(rng.integers(0, len(whole), 150), rng.integers(0, 8, 150)):
        damaged = bytearray(whole)
        # Half of the flips are near the pickle's and the archive's beginning, the others anywhere.
        damaged[place if bit % 2 else place % 600] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            found = read_part(path).tolist()
        except ValueError as error:
            assert str(error).startswith(f"{path}: ") and "take the file of ogbl" in str(error)
            refused += 1
        else:
            assert not zipped or found == wanted, f"the flip of bit {bit} of byte {place}"
    assert refused > 20


@pytest.mark.parametrize(
    ("counts", "cause"),
    [(b"60\n7\n", "expected one number of entities above 0, found .60, 7."),
     (b"0\n", "expected one number of entities above 0"),
     (b"many\n", ':1:1: field "count", "many"'),
     (b"", "the file has no rows")],
)
def test_a_bad_number_of_entities_is_an_error(tmp_path: Path, counts: bytes, cause: str) -> None:
    with pytest.raises(ValueError, match=cause) as caught:
        load_wikikg2(wikikg2(tmp_path, counts))
    assert str(caught.value).startswith(f"{tmp_path}/raw/num-node-list.csv.gz")


def run(graph: str, data: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TRAIN), "--graph", graph, "--data", str(data), "--dim", "8",
         "--epochs", "6", "--batch-size", "50", "--negatives", "20", "--threads", "1",
         "--scratch", str(data), *more],
        capture_output=True, text=True, check=False, timeout=300,
    )


def test_a_cut_gzip_file_is_one_clear_line(tmp_path: Path) -> None:
    path = wikikg2(tmp_path) / "raw" / "num-node-list.csv.gz"
    path.write_bytes(path.read_bytes()[:-10])
    done = run("wikikg2", tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"error: {path}: it can't be decompressed, so it is cut short")


@pytest.mark.parametrize(("name", "write"), [("freebase", freebase), ("wikikg2", wikikg2)])
def test_the_program_trains_on_it(tmp_path: Path, name: str, write: Any) -> None:
    out = tmp_path / "outcome.json"
    done = run(name, write(tmp_path), "--json", str(out), "--rank-triples", "30")
    assert done.returncode == 0, done.stderr
    history = json.loads(out.read_text())["history"]
    assert history[-1]["loss"] < history[0]["loss"]


def test_freebase_is_not_read_as_names(tmp_path: Path) -> None:
    done = run("names", freebase(tmp_path))
    assert done.returncode == 1 and "read them with --graph freebase" in done.stderr


def test_a_sample_of_queries_has_the_known_tails_of_all(tmp_path: Path) -> None:
    graph = load_freebase(freebase(tmp_path))
    some = sample(graph.test, 7, seed=1)
    assert len(some) == 7
    assert set(map(tuple, some.tolist())) <= set(map(tuple, graph.test.tolist()))
    of_all, of_some = graph.known_tails().of(some), graph.known_tails(some).of(some)
    assert [part.tolist() for part in of_some] == [part.tolist() for part in of_all]
    assert sample(graph.test, None, seed=1) is graph.test
    with pytest.raises(ValueError, match="a sample of 0 triples has no ranks"):
        sample(graph.test, 0, seed=1)
