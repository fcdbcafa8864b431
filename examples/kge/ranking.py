"""Filtered ranking: how high does the true tail stand among all entities but the known ones?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from model import DistMult
from triples import Ints, KnownTails

ENTITY_CHUNK = 8192
QUERY_CHUNK = 1024
TIE = 1e-5
"""Scores this near to the true one's, as a share of it or of 1, whichever is more, are equal to it:
the same dot product differs by rounding from one matrix product to another."""


@dataclass(frozen=True)
class Ranking:
    """Mean reciprocal rank, and the share of queries with the true tail in the first 1, 3, 10."""

    mrr: float
    hits_1: float
    hits_3: float
    hits_10: float


@torch.no_grad()
def rank(model: DistMult, queries: Ints, known: KnownTails, entities: int) -> Ranking:
    """Ranks the tail of each of `queries` (n, 3) among all entities.

    Rows are peeked, a chunk of entities at a time, so the whole table never needs to be in memory. Of
    scores equal to the true one's (see `TIE`), half count as better, so a model that gives every
    entity the same score ranks it in the middle.

    Raises `FloatingPointError` if a score is not finite: the model has diverged and has no ranking.
    """
    model.eval()
    head, relation, tail = (torch.from_numpy(column.copy()) for column in queries.T)
    query = model.query(model.entities(head), model.relations(relation))
    true_score = finite((query * model.entities(tail)).sum(1, keepdim=True))
    tie = TIE * true_score.abs().clamp(min=1.0)
    which, taken = known.of(queries)
    better = torch.zeros(len(queries))
    for begin in range(0, entities, ENTITY_CHUNK):
        end = min(begin + ENTITY_CHUNK, entities)
        rows = model.entities(torch.arange(begin, end))
        here = (taken >= begin) & (taken < end)
        for first in range(0, len(queries), QUERY_CHUNK):
            last = min(first + QUERY_CHUNK, len(queries))
            scores = finite(query[first:last] @ rows.T)
            masked = here & (which >= first) & (which < last)
            scores[which[masked] - first, taken[masked] - begin] = -torch.inf
            lead, near = scores - true_score[first:last], tie[first:last]
            better[first:last] += (lead > near).sum(1) + 0.5 * (lead.abs() <= near).sum(1)
    ranks = 1.0 + better.double()
    hits = [float((ranks <= most).double().mean()) for most in (1, 3, 10)]
    model.train()
    return Ranking(float((1.0 / ranks).mean()), *hits)


def finite(scores: torch.Tensor) -> torch.Tensor:
    """The scores, if none is NaN or infinite: nothing is greater than NaN, so it would rank first."""
    if not bool(torch.isfinite(scores).all()):
        raise FloatingPointError(
            "the model gives scores that are not finite: its training has diverged; lower --lr"
        )
    return scores
