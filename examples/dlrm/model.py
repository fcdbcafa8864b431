"""Click models: DLRM, DCN-v2, DCN-v1 and FFNN.

    dense features --> bottom MLP ----------------+--> interaction --> top MLP --> logit
    categories     --> one embedding bag a column-+

They differ in the interaction. DLRM (Naumov et al., 2019) takes the dot products of all pairs of
vectors. DCN-v2 (Wang et al., "DCN V2", 2021) and DCN-v1 (Wang et al., "Deep & Cross Network", 2017)
multiply all features with each other in cross layers. FFNN, a feed-forward network, joins the
dense features and the vectors without a product, and has no bottom MLP.

The embedding bags come from outside. `embank.torch.EmbeddingBag` and `torch.nn.EmbeddingBag` have
one interface, so the model does not know where its rows live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from data import Batch


ModelName = Literal["dlrm", "dcn", "dcnv1", "ffnn"]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the dense part. `bottom` and `top` are the hidden layers of the two MLPs.

    FFNN has no bottom MLP and ignores `bottom`. `cross_layers` is the number of cross layers of the
    two DCNs.
    """

    dense_features: int
    columns: int
    dim: int
    bottom: tuple[int, ...] = (64,)
    top: tuple[int, ...] = (64,)
    model: ModelName = "dlrm"
    cross_layers: int = 2


class ClickModel(nn.Module):
    """Scores a batch: `forward` returns the logits (B,) of a click.

    The initial dense weights depend only on `seed`, so two models with different kinds of bags
    start with equal weights.
    """

    def __init__(self, shape: ModelShape, bags: Sequence[nn.Module], seed: int) -> None:
        super().__init__()
        if len(bags) != shape.columns:
            raise ValueError(f"{shape.columns} columns need as many bags, not {len(bags)}")
        torch.manual_seed(seed)
        self.bottom: nn.Module = nn.Identity()
        if shape.model != "ffnn":
            self.bottom = mlp([shape.dense_features, *shape.bottom, shape.dim], last_relu=True)
        self.interaction = INTERACTIONS[shape.model](shape)
        self.top = mlp([self.interaction.width, *shape.top, 1], last_relu=False)
        self.bags = nn.ModuleList(bags)

    def forward(self, batch: Batch) -> torch.Tensor:
        vectors = [bag(b.keys, b.offsets) for bag, b in zip(self.bags, batch.bags, strict=True)]
        return self.scores(batch.dense, vectors)

    def scores(self, dense: torch.Tensor, vectors: list[torch.Tensor]) -> torch.Tensor:
        """Returns the logits (B,) from dense features (B, features) and each column's vectors
        (B, dim)."""
        logits: torch.Tensor = self.top(self.interaction([self.bottom(dense), *vectors]))
        return logits.squeeze(1)

    def dense_parameters(self) -> Iterator[nn.Parameter]:
        """All weights except the rows of the bags: the dense optimizer trains them."""
        for part in self.dense_parts().values():
            yield from part.parameters()

    def dense_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """The weights of `dense_parameters`, for a checkpoint."""
        return {name: part.state_dict() for name, part in self.dense_parts().items()}

    def load_dense_state(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        """Loads the weights that `dense_state` returned."""
        for name, part in self.dense_parts().items():
            part.load_state_dict(state[name])

    def dense_parts(self) -> dict[str, nn.Module]:
        return {"bottom": self.bottom, "interaction": self.interaction, "top": self.top}


class DotProducts(nn.Module):
    """DLRM: the dense vector, and the dot product of every pair of vectors: (B, dim + pairs)."""

    pairs: torch.Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        vectors = shape.columns + 1
        self.width = shape.dim + vectors * (vectors - 1) // 2
        first, second = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", first * vectors + second, persistent=False)

    def forward(self, vectors: list[torch.Tensor]) -> torch.Tensor:
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return torch.cat([vectors[0], products.flatten(1).index_select(1, self.pairs)], dim=1)


class CrossLayers(nn.Module):
    """DCN-v2: each layer turns x into x0 * (W x + b) + x. The vector x0 is all vectors one after
    the other."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.width = (shape.columns + 1) * shape.dim
        self.layers = nn.ModuleList(
            nn.Linear(self.width, self.width) for _ in range(shape.cross_layers)
        )

    def forward(self, vectors: list[torch.Tensor]) -> torch.Tensor:
        first = x = torch.cat(vectors, dim=1)
        for layer in self.layers:
            x = first * layer(x) + x
        return x


class VectorCrossLayers(nn.Module):
    """DCN-v1: each layer turns x into x0 * (x . w) + b + x, with a vector w in place of the matrix
    of DCN-v2.

    The top MLP follows the cross layers, as in DCN-v2's stacked form. The paper of DCN-v1 has them
    side by side.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.width = (shape.columns + 1) * shape.dim
        self.weights = nn.ModuleList(
            nn.Linear(self.width, 1, bias=False) for _ in range(shape.cross_layers)
        )
        self.biases = nn.Parameter(torch.zeros(shape.cross_layers, self.width))

    def forward(self, vectors: list[torch.Tensor]) -> torch.Tensor:
        first = x = torch.cat(vectors, dim=1)
        for weight, bias in zip(self.weights, self.biases):
            x = first * weight(x) + bias + x
        return x


class Concatenation(nn.Module):
    """FFNN: the dense features and all vectors one after the other."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.width = shape.dense_features + shape.columns * shape.dim

    def forward(self, vectors: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(vectors, dim=1)


INTERACTIONS = {
    "dlrm": DotProducts, "dcn": CrossLayers, "dcnv1": VectorCrossLayers, "ffnn": Concatenation,
}


def mlp(sizes: Sequence[int], last_relu: bool) -> nn.Sequential:
    """Linear layers of these sizes with a ReLU between them. With `last_relu`, a ReLU follows the
    last layer too."""
    layers: list[nn.Module] = []
    for index, (size_in, size_out) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(size_in, size_out))
        if last_relu or index < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)
