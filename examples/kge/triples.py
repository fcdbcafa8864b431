"""A knowledge graph as numbered triples, its batches, and its known tails.

Two vocabularies of a bank number the names, so no name is kept in memory. `freebase.py` and
`wikikg2.py` read data sets whose triples are numbered already.

Every triple (h, r, t) is in the graph a second time as (t, r', h), with the reciprocal relation r'.
So a model only answers the question "which tail?" (Lacroix et al., 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import embank
from lines import Line, lines

Ints = NDArray[np.int64]
Triples = NDArray[np.int32]
PARTS = ("train", "valid", "test")
NAME_BYTES_MAX = 16 << 10
"""Longest name of an entity or relation, in bytes of UTF-8. A vocabulary's record of two such names
fits a page of a bank of `NAMES_BUDGET_MIN`."""
NAMES_BUDGET_MIN = 8 << 20
TEXT_BYTES_PER_BUDGET_BYTE = 8
"""The index of a bank takes about 16 bytes of memory for each name. A name stands in several
triples, each of some dozens of bytes. So an eighth of the text's bytes is enough for the index."""
CHUNK_LINES = 8192
CHUNK_TRIPLES = 1 << 24
ID_MAX = (1 << 31) - 1
"""Largest id of an entity or relation. Triples are kept as int32, because the large data sets have
hundreds of millions of them."""


@dataclass(frozen=True)
class Batch:
    """Positions are into `entities` (m,), the distinct entities that the batch needs.

    `heads` and `tails` (B,) are positions. `candidates` (c,) are the positions of all tails and
    negatives. `targets` (B,) says for each tail where it stands among the candidates.
    """

    entities: torch.Tensor
    relations: torch.Tensor
    heads: torch.Tensor
    tails: torch.Tensor
    candidates: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class KnowledgeGraph:
    """The triples of a graph. `train`, `valid` and `test` have the shape (n, 3), with the columns
    head, relation and tail. Each triple of a file is there twice: unchanged, and reversed (head and
    tail exchanged) with the reciprocal relation. `relations` counts both kinds of relations. A
    triple of a file takes 24 bytes of memory, and 16 more while an epoch trains.
    """

    entities: int
    relations: int
    train: Triples
    valid: Triples
    test: Triples

    @staticmethod
    def of(entities: int, relations: int, parts: Sequence[Triples]) -> KnowledgeGraph:
        """Makes a graph of the triples (n, 3) of train, valid and test, each in one direction.

        Raises `ValueError` if there are more entities, or relations of both kinds, than int32 can
        number.
        """
        if max(entities, 2 * relations) > ID_MAX + 1:
            raise ValueError(
                f"the graph has {entities} entities and {relations} relations; this example takes "
                f"{ID_MAX + 1} entities and half as many relations at most"
            )
        return KnowledgeGraph(
            entities, 2 * relations, *(both_directions(part, relations) for part in parts)
        )

    @staticmethod
    def load(folder: Path, names: embank.Bank) -> KnowledgeGraph:
        """Reads train.tsv, valid.tsv and test.tsv: head, relation and tail a line, tabs between.
        The names may end in .txt, as DGL-KE has them.

        The vocabularies `entity` and `relation` of the bank `names` number the names, in order of
        first appearance. Names are equal if their bytes are equal. `common/lines.py` has the rule
        for the text.

        Raises `FileNotFoundError` if a file is missing. Raises `ValueError` for a folder whose
        files have both endings, and for one with Freebase's ids. Raises `ValueError` with file and
        line for a line without exactly three fields, a name that is empty or longer than
        `NAME_BYTES_MAX`, text that breaks the rule, and a file without triples.
        """
        paths = part_paths(folder)
        entities, relations = (
            names.vocabulary(kind, "bytes", value_bytes_max=NAME_BYTES_MAX)
            for kind in ("entity", "relation")
        )
        parts = [numbered(path, entities, relations) for path in paths]
        return KnowledgeGraph.of(len(entities), len(relations), parts)

    def known_tails(self, queries: Triples | None = None) -> KnownTails:
        """The tails, in any part, of every (head, relation) of `queries` (n, 3). None asks for the
        tails of every (head, relation) of the graph."""
        parts = [self.train, self.valid, self.test]
        if queries is not None:
            asked = np.unique(pairs(queries, self.relations))
            parts = [piece[np.isin(pairs(piece, self.relations), asked)] for part in parts
                     for piece in np.array_split(part, 1 + len(part) // CHUNK_TRIPLES)]
        return KnownTails(np.concatenate(parts), self.relations)

    def batches(
        self, batch_size: int, negatives: int, seed: int, epoch: int
    ) -> Iterator[Batch]:
        """Yields the batches of one epoch, in shuffled order. All triples of a batch share its
        random negatives."""
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(self.train))
        for begin in range(0, len(order), batch_size):
            drawn = self.train[order[begin : begin + batch_size]]
            head, relation, tail = drawn.astype(np.int64).T
            others = rng.integers(0, self.entities, negatives)
            candidates, targets = np.unique(np.concatenate([tail, others]), return_inverse=True)
            entities, positions = np.unique(
                np.concatenate([head, candidates]), return_inverse=True
            )
            place = torch.from_numpy(positions)
            target = torch.from_numpy(targets[: tail.size])
            yield Batch(
                entities=torch.from_numpy(entities),
                relations=torch.from_numpy(relation.copy()),
                heads=place[: head.size],
                tails=place[head.size :][target],
                candidates=place[head.size :],
                targets=target,
            )


def sample(triples: Triples, count: int | None, seed: int) -> Triples:
    """Returns `count` of the triples, drawn without replacement. None returns all of them.

    Raises `ValueError` for a `count` below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"a sample of {count} triples has no ranks; take 1 or more")
    if count is None or count >= len(triples):
        return triples
    drawn = np.random.default_rng(seed).choice(len(triples), count, replace=False)
    return triples[np.sort(drawn)]


def part_paths(folder: Path) -> list[Path]:
    """Returns the files of `PARTS`, which end in .tsv or in .txt.

    Raises `FileNotFoundError` if one is missing. Raises `ValueError` if the folder has a part with
    both endings, and if its triples are those of Freebase: they have another order.
    """
    if (folder / "entity2id.txt").exists():
        raise ValueError(
            f"{folder} has entity2id.txt, so its triples are ids in the order head, tail, "
            "relation: read them with --graph freebase"
        )
    text = [folder / f"{part}.txt" for part in PARTS]
    paths = [folder / f"{part}.tsv" for part in PARTS]
    if any(path.exists() for path in text):
        for one, other in zip(text, paths):
            if other.exists():
                raise ValueError(f"{folder} has {one.name} or another .txt part, and {other.name}; "
                                 "keep the parts of one data set")
        paths = text
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is missing: put the three files of a data set such as WN18RR there, or "
                "name their folder with --data"
            )
    return paths


def names_budget(folder: Path) -> int:
    """Memory budget, in bytes, for the bank that numbers the names of a data set."""
    text_bytes = sum(path.stat().st_size for path in part_paths(folder))
    return max(NAMES_BUDGET_MIN, text_bytes // TEXT_BYTES_PER_BUDGET_BYTE)


def numbered(path: Path, entities: embank.Vocabulary, relations: embank.Vocabulary) -> Triples:
    """Returns the triples of a file (n, 3) as ids. New names get the next ids."""
    chunks, source = [], lines(path)
    while chunk := [triple(line) for line in islice(source, CHUNK_LINES)]:
        ends = entities.ids_or_insert([name for head, _, tail in chunk for name in (head, tail)])
        between = relations.ids_or_insert([relation for _, relation, _ in chunk])
        chunks.append(np.stack([ends[::2], between, ends[1::2]], axis=1).astype(np.int32))
    return np.concatenate(chunks)


def triple(line: Line) -> list[str]:
    """Returns head, relation and tail of a line."""
    parts = ("head", "relation", "tail")
    names = line.fields(*parts)
    for part, name in zip(parts, names):
        if not name:
            raise line.error(f"the {part} has no name")
        length = len(name.encode())
        if length > NAME_BYTES_MAX:
            raise line.error(
                f"the {part} has a name of {length} bytes, more than {NAME_BYTES_MAX}; shorten it"
            )
    return names


def both_directions(triples: Triples, relations: int) -> Triples:
    """Returns the triples, and each triple reversed with its reciprocal relation."""
    both = np.concatenate([triples, triples[:, ::-1]])
    both[len(triples) :, 1] += np.int32(relations)
    return both


def pairs(triples: NDArray[np.integer], relations: int) -> Ints:
    """Returns a number (n,) for the head and relation of each triple."""
    return triples[:, 0].astype(np.int64) * relations + triples[:, 1]


class KnownTails:
    """Looks up the known tails of queries (head, relation)."""

    def __init__(self, triples: NDArray[np.integer], relations: int) -> None:
        self._relations = relations
        keys = pairs(triples, relations)
        order = np.argsort(keys, kind="stable")
        self._keys, self._tails = keys[order], triples[order, 2]

    def of(self, queries: NDArray[np.integer]) -> tuple[Ints, NDArray[np.integer]]:
        """Returns two arrays: for each known tail of a query, the query's number and the tail."""
        keys = pairs(queries, self._relations)
        begin = np.searchsorted(self._keys, keys, "left")
        count = np.searchsorted(self._keys, keys, "right") - begin
        which = np.repeat(np.arange(len(queries)), count)
        within = np.arange(which.size) - np.repeat(np.cumsum(count) - count, count)
        return which, self._tails[begin[which] + within]
