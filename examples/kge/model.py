"""DistMult (Yang et al., 2015) and ComplEx (Trouillon et al., 2016).

Both score a triple as the product of a query with the tail's row. The query is made from head and
relation. The embeddings come from outside. `embank.torch.Embedding` and `torch.nn.Embedding` have
one interface, so the model does not know where its rows live.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from triples import Batch


class DistMult(nn.Module):
    """score(h, r, t) = sum of h * r * t.

    `forward` returns the loss of a batch: cross entropy of the true tail among the candidates, and
    the N3 norm of the rows in use, with the weight `regularization`.
    """

    def __init__(self, entities: nn.Module, relations: nn.Module, regularization: float) -> None:
        super().__init__()
        self.entities, self.relations = entities, relations
        self.regularization = regularization

    def forward(self, batch: Batch) -> Tensor:
        return self.loss(self.entities(batch.entities), self.relations(batch.relations), batch)

    def loss(self, rows: Tensor, relation: Tensor, batch: Batch) -> Tensor:
        """The loss of a batch, with the rows of `batch.entities` (m, dim) and `batch.relations`
        (B, dim).
        """
        head, tail = rows[batch.heads], rows[batch.tails]
        scores = self.query(head, relation) @ rows[batch.candidates].T
        norm = sum(self.magnitude(part).pow(3).sum() for part in (head, relation, tail))
        loss = functional.cross_entropy(scores, batch.targets)
        return loss + self.regularization / len(head) * norm

    def query(self, head: Tensor, relation: Tensor) -> Tensor:
        """Returns the query (B, dim). Its dot product with a tail's row is the score."""
        return head * relation

    def magnitude(self, rows: Tensor) -> Tensor:
        return rows.abs()


class ComplEx(DistMult):
    """score(h, r, t) = real part of the sum of h * r * conjugate(t).

    The first half of a row is the real part, the second half the imaginary one.
    """

    def query(self, head: Tensor, relation: Tensor) -> Tensor:
        (a, b), (c, d) = head.chunk(2, dim=1), relation.chunk(2, dim=1)
        return torch.cat([a * c - b * d, a * d + b * c], dim=1)

    def magnitude(self, rows: Tensor) -> Tensor:
        real, imaginary = rows.chunk(2, dim=1)
        return (real.square() + imaginary.square() + 1e-12).sqrt()


MODELS = {"distmult": DistMult, "complex": ComplEx}
