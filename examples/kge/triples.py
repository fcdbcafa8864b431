"""A knowledge graph as numbered triples, its batches, and its known tails.

Two vocabularies of a bank number the names, so no name is kept in memory.

Every triple (h, r, t) is in the graph a second time as (t, r', h), with the reciprocal relation r'.
So a model only answers the question "which tail?" (Lacroix et al., 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import embank
from lines import Line, lines

Ints = NDArray[np.int64]
PARTS = ("train", "valid", "test")
NAME_BYTES_MAX = 16 << 10
"""Longest name of an entity or relation, in bytes of UTF-8. A vocabulary's record of two such names
fits a page of a bank of `NAMES_BUDGET_MIN`."""
NAMES_BUDGET_MIN = 8 << 20
TEXT_BYTES_PER_BUDGET_BYTE = 8
"""The index of a bank takes about 16 bytes of memory for each name. A name stands in several
triples, each of some dozens of bytes. So an eighth of the text's bytes is enough for the index."""
CHUNK_LINES = 8192


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
    tail exchanged) with the reciprocal relation. `relations` counts both kinds of relations.
    """

    entities: int
    relations: int
    train: Ints
    valid: Ints
    test: Ints

    @staticmethod
    def load(folder: Path, names: embank.Bank) -> KnowledgeGraph:
        """Reads train.tsv, valid.tsv and test.tsv: head, relation and tail a line, tabs between.

        The vocabularies `entity` and `relation` of the bank `names` number the names, in order of
        first appearance. Names are equal if their bytes are equal. `common/lines.py` has the rule
        for the text.

        Raises `FileNotFoundError` if a file is missing, and `ValueError` with file and line for a
        line without exactly three fields, a name that is empty or longer than `NAME_BYTES_MAX`,
        text that breaks the rule, and a file without triples.
        """
        paths = part_paths(folder)
        entities, relations = (
            names.vocabulary(kind, "bytes", value_bytes_max=NAME_BYTES_MAX)
            for kind in ("entity", "relation")
        )
        parts = [numbered(path, entities, relations) for path in paths]
        count = len(relations)
        return KnowledgeGraph(
            len(entities), 2 * count, *(both_directions(part, count) for part in parts)
        )

    def known_tails(self) -> KnownTails:
        """The tails of every (head, relation) in any part."""
        return KnownTails(np.concatenate([self.train, self.valid, self.test]), self.relations)

    def batches(
        self, batch_size: int, negatives: int, seed: int, epoch: int
    ) -> Iterator[Batch]:
        """Yields the batches of one epoch, in shuffled order. All triples of a batch share its
        random negatives."""
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(self.train))
        for begin in range(0, len(order), batch_size):
            head, relation, tail = self.train[order[begin : begin + batch_size]].T
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


def part_paths(folder: Path) -> list[Path]:
    """Returns the files of `PARTS`. Raises `FileNotFoundError` if one is missing."""
    paths = [folder / f"{part}.tsv" for part in PARTS]
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


def numbered(path: Path, entities: embank.Vocabulary, relations: embank.Vocabulary) -> Ints:
    """Returns the triples of a file (n, 3) as ids. New names get the next ids."""
    chunks, source = [], lines(path)
    while chunk := [triple(line) for line in islice(source, CHUNK_LINES)]:
        ends = entities.ids_or_insert([name for head, _, tail in chunk for name in (head, tail)])
        between = relations.ids_or_insert([relation for _, relation, _ in chunk])
        chunks.append(np.stack([ends[::2], between, ends[1::2]], axis=1).astype(np.int64))
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


def both_directions(triples: Ints, relations: int) -> Ints:
    """Returns the triples, and each triple reversed with its reciprocal relation."""
    reverse = triples[:, [2, 1, 0]] + np.array([0, relations, 0])
    return np.concatenate([triples, reverse])


class KnownTails:
    """Looks up the known tails of queries (head, relation)."""

    def __init__(self, triples: Ints, relations: int) -> None:
        self._relations = relations
        keys = triples[:, 0] * relations + triples[:, 1]
        order = np.argsort(keys, kind="stable")
        self._keys, self._tails = keys[order], triples[order, 2]

    def of(self, queries: Ints) -> tuple[Ints, Ints]:
        """Returns two arrays: for each known tail of a query, the query's number and the tail."""
        keys = queries[:, 0] * self._relations + queries[:, 1]
        begin = np.searchsorted(self._keys, keys, "left")
        count = np.searchsorted(self._keys, keys, "right") - begin
        which = np.repeat(np.arange(len(queries)), count)
        within = np.arange(which.size) - np.repeat(np.cumsum(count) - count, count)
        return which, self._tails[begin[which] + within]
