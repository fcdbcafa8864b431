"""A DLRM-style click model (Naumov et al., "Deep Learning Recommendation Model", 2019).

    dense features --> bottom MLP ----------------+--> pairwise dot --> top MLP --> logit
    categories     --> one embedding bag a column-+    products

The embedding bags come from outside: `embank.torch.EmbeddingBag` and `torch.nn.EmbeddingBag`
are called alike, so the model does not know where its rows live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from data import Batch


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the dense part. `bottom` and `top` are the hidden layers of the two MLPs."""

    dense_features: int
    columns: int
    dim: int
    bottom: tuple[int, ...] = (64,)
    top: tuple[int, ...] = (64,)


class DLRM(nn.Module):
    """Scores a batch: `forward` returns the logits (B,) of a click.

    The dense weights start from `seed` alone, whatever the bags are, so that two models with
    different kinds of bags start alike.
    """

    pairs: torch.Tensor

    def __init__(self, shape: ModelShape, bags: Sequence[nn.Module], seed: int) -> None:
        super().__init__()
        if len(bags) != shape.columns:
            raise ValueError(f"{shape.columns} columns need as many bags, not {len(bags)}")
        torch.manual_seed(seed)
        self.bottom = mlp([shape.dense_features, *shape.bottom, shape.dim], last_relu=True)
        vectors = shape.columns + 1
        pairs = vectors * (vectors - 1) // 2
        self.top = mlp([shape.dim + pairs, *shape.top, 1], last_relu=False)
        self.bags = nn.ModuleList(bags)
        first, second = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", first * vectors + second, persistent=False)

    def forward(self, batch: Batch) -> torch.Tensor:
        dense = self.bottom(batch.dense)
        vectors = [bag(b.keys, b.offsets) for bag, b in zip(self.bags, batch.bags, strict=True)]
        features = torch.cat([dense, self.interact([dense, *vectors])], dim=1)
        logits: torch.Tensor = self.top(features)
        return logits.squeeze(1)

    def interact(self, vectors: list[torch.Tensor]) -> torch.Tensor:
        """The dot product of every pair of the (B, dim) vectors: (B, pairs)."""
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return products.flatten(1).index_select(1, self.pairs)

    def dense_parameters(self) -> Iterator[nn.Parameter]:
        """The weights of both MLPs: what the dense optimizer trains."""
        yield from self.bottom.parameters()
        yield from self.top.parameters()

    def dense_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """The weights of both MLPs, for a checkpoint."""
        return {"bottom": self.bottom.state_dict(), "top": self.top.state_dict()}

    def load_dense_state(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        """Takes back what `dense_state` gave."""
        self.bottom.load_state_dict(state["bottom"])
        self.top.load_state_dict(state["top"])


def mlp(sizes: Sequence[int], last_relu: bool) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them, and after the last one if asked."""
    layers: list[nn.Module] = []
    for index, (size_in, size_out) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(size_in, size_out))
        if last_relu or index < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)
