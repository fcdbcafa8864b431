"""A knowledge graph as numbered triples, its batches, and what a ranking must leave out.

Every triple (h, r, t) is there a second time as (t, r', h) with the reciprocal relation r', so a
model only ever answers "which tail?" (Lacroix et al., 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Batch:
    """Positions are into `entities` (m,), the distinct entities that the batch needs.

    `heads` and `tails` (B,) are positions; `candidates` (c,) are the positions of all tails and
    negatives, and `targets` (B,) says where among them each tail stands.
    """

    entities: torch.Tensor
    relations: torch.Tensor
    heads: torch.Tensor
    tails: torch.Tensor
    candidates: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class KnowledgeGraph:
    """Each part is (n, 3): head, relation, tail; both directions."""

    entities: int
    relations: int
    train: Ints
    valid: Ints
    test: Ints

    @staticmethod
    def load(folder: Path) -> KnowledgeGraph:
        """Reads train.tsv, valid.tsv and test.tsv: head, relation and tail a line."""
        for part in PARTS:
            if not (folder / f"{part}.tsv").exists():
                raise FileNotFoundError(
                    f"{folder / part}.tsv is missing: put the three files of a data set such as "
                    "WN18RR there, or name their folder with --data"
                )
        texts = {
            part: np.loadtxt(folder / f"{part}.tsv", dtype=str, delimiter="\t", ndmin=2)
            for part in PARTS
        }
        everything = np.concatenate(list(texts.values()))
        entities = np.unique(everything[:, [0, 2]])
        relations = np.unique(everything[:, 1])

        def numbered(text: NDArray[np.str_]) -> Ints:
            head, tail = (np.searchsorted(entities, text[:, column]) for column in (0, 2))
            relation = np.searchsorted(relations, text[:, 1])
            return both_directions(np.stack([head, relation, tail], axis=1), relations.size)

        return KnowledgeGraph(
            entities.size, 2 * relations.size, *(numbered(texts[part]) for part in PARTS)
        )

    def known_tails(self) -> KnownTails:
        """The tails of every (head, relation) in any part."""
        return KnownTails(np.concatenate([self.train, self.valid, self.test]), self.relations)

    def batches(
        self, batch_size: int, negatives: int, seed: int, epoch: int
    ) -> Iterator[Batch]:
        """One epoch in shuffled order; each batch shares its random negatives."""
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


def both_directions(triples: Ints, relations: int) -> Ints:
    """The triples, and each reversed with its relation's reciprocal."""
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
        """For queries (n, 2+): which query, and which tail of it, in pairs."""
        keys = queries[:, 0] * self._relations + queries[:, 1]
        begin = np.searchsorted(self._keys, keys, "left")
        count = np.searchsorted(self._keys, keys, "right") - begin
        which = np.repeat(np.arange(len(queries)), count)
        within = np.arange(which.size) - np.repeat(np.cumsum(count) - count, count)
        return which, self._tails[begin[which] + within]
