"""Filtered ranking: the place of the true tail among all entities except the other known tails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from model import DistMult
from triples import KnownTails, Triples

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
def rank(model: DistMult, queries: Triples, known: KnownTails, entities: int) -> Ranking:
    """Ranks the tail of each of `queries` (n, 3) among all entities.

    Rows are peeked, a chunk of entities at a time, so the table need not be in memory. A score that
    differs from the true tail's by no more than `rounding` counts as half better. A model that
    gives every entity one score therefore ranks the true tail in the middle.

    Raises `FloatingPointError` if a score is not finite: the model has diverged and has no ranking.
    """
    model.eval()
    columns = np.ascontiguousarray(queries.T, np.int64)
    head, relation, tail = (torch.from_numpy(column) for column in columns)
    query = model.query(model.entities(head), model.relations(relation))
    truth = model.entities(tail)
    true_score = finite((query * truth).sum(1, keepdim=True))
    query_length, true_length = rounding(query) * length(query)[:, None], length(truth)[:, None]
    which, taken = known.of(queries)
    better = torch.zeros(len(queries), dtype=torch.float64)
    for begin in range(0, entities, ENTITY_CHUNK):
        end = min(begin + ENTITY_CHUNK, entities)
        rows = model.entities(torch.arange(begin, end))
        row_length = length(rows)
        here = (taken >= begin) & (taken < end)
        for first in range(0, len(queries), QUERY_CHUNK):
            part = slice(first, first + QUERY_CHUNK)
            lead = finite(query[part] @ rows.T) - true_score[part]
            near = query_length[part] * (true_length[part] + row_length)
            # A comparison with NaN is false, so a `near` that is infinite or NaN makes a tie.
            above = 0.5 * ((lead > near).float() + (~(lead < -near)).float())
            masked = here & (which >= first) & (which < first + QUERY_CHUNK)
            above[which[masked] - first, taken[masked] - begin] = 0.0
            better[part] += above.sum(1)
    ranks = 1.0 + better
    hits = [float((ranks <= most).double().mean()) for most in (1, 3, 10)]
    model.train()
    return Ranking(float((1.0 / ranks).mean()), *hits)


def rounding(query: torch.Tensor) -> float:
    """Largest rounding error of a score, as a share of its query's length times its row's length.

    A sum of d products, added in any order, is off by at most d units of rounding times the sum of
    the products' magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", 3.1). The
    sum of magnitudes is at most the product of the two lengths. So two scores that are equal in
    exact arithmetic differ by at most the sum of their two errors, whatever the rows' scale.
    """
    return query.shape[1] * torch.finfo(query.dtype).eps / 2


def length(rows: torch.Tensor) -> torch.Tensor:
    """The Euclidean length (n,) of each row.

    Squares are added in float64. The square of a float32 value can leave float32's range although
    the score is within it.
    """
    lengths: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return lengths.to(rows.dtype)


def finite(scores: torch.Tensor) -> torch.Tensor:
    """Returns the scores. Raises `FloatingPointError` if one is NaN or infinite.

    No score is greater than NaN, so NaN would rank first.
    """
    if not bool(torch.isfinite(scores).all()):
        raise FloatingPointError(
            "the model gives scores that are not finite: its training has diverged; lower --lr"
        )
    return scores
