"""Filtered ranking: how high does the true tail stand among all entities but the known ones?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from model import DistMult
from triples import Ints, KnownTails

ENTITY_CHUNK = 8192
QUERY_CHUNK = 1024


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
    equal scores, half count as better.
    """
    model.eval()
    head, relation, tail = (torch.from_numpy(column.copy()) for column in queries.T)
    query = model.query(model.entities(head), model.relations(relation))
    true_score = (query * model.entities(tail)).sum(1, keepdim=True)
    which, taken = known.of(queries)
    better = torch.zeros(len(queries))
    for begin in range(0, entities, ENTITY_CHUNK):
        end = min(begin + ENTITY_CHUNK, entities)
        rows = model.entities(torch.arange(begin, end))
        here = (taken >= begin) & (taken < end)
        for first in range(0, len(queries), QUERY_CHUNK):
            last = min(first + QUERY_CHUNK, len(queries))
            scores = query[first:last] @ rows.T
            masked = here & (which >= first) & (which < last)
            scores[which[masked] - first, taken[masked] - begin] = -torch.inf
            truth = true_score[first:last]
            better[first:last] += (scores > truth).sum(1) + 0.5 * (scores == truth).sum(1)
    ranks = 1.0 + better.double()
    hits = [float((ranks <= most).double().mean()) for most in (1, 3, 10)]
    model.train()
    return Ranking(float((1.0 / ranks).mean()), *hits)
