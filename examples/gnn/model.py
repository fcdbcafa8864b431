"""GraphSAGE (Hamilton et al., 2017) and GAT (Velickovic et al., 2018) in plain PyTorch.

The input of a node is its embedding, plus its features times a matrix if the graph has features.
The caller passes the modules that give both. `embank.torch.Embedding` and `torch.nn.Embedding` have
one interface, so the model does not know where its rows are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sampling import Batch, Block


class SageLayer(nn.Module):
    """Adds a node's vector and the mean of its neighbours' vectors, each through its own matrix.

    Ignores `dropout`, which `GatLayer` takes.
    """

    def __init__(self, size_in: int, size_out: int, last: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.own, self.around = nn.Linear(size_in, size_out), nn.Linear(size_in, size_out, False)
        self.last = last

    def forward(self, x: Tensor, block: Block) -> Tensor:
        count = torch.bincount(block.targets, minlength=len(block.own)).clamp(min=1)
        total = x.new_zeros(len(block.own), x.shape[1])
        total = total.index_add(0, block.targets, x[block.sources])
        result = self.own(x[block.own]) + self.around(total / count.unsqueeze(1))
        return result if self.last else functional.relu(result)


class GatLayer(nn.Module):
    """Attention over a node's neighbours and the node itself. The heads stand side by side; the
    last layer averages them.

    `dropout` is the dropout of the attention weights.
    """

    def __init__(
        self, size_in: int, size_out: int, last: bool, dropout: float = 0.0, heads: int = 8
    ) -> None:
        super().__init__()
        self.heads, self.last, self.dropout = heads, last, dropout
        width = size_out if last else size_out // heads
        self.matrix = nn.Linear(size_in, heads * width, bias=False)
        self.from_source = nn.Parameter(torch.empty(heads, width))
        self.from_target = nn.Parameter(torch.empty(heads, width))
        self.bias = nn.Parameter(torch.zeros(size_out))
        nn.init.xavier_uniform_(self.matrix.weight)
        nn.init.xavier_uniform_(self.from_source)
        nn.init.xavier_uniform_(self.from_target)

    def forward(self, x: Tensor, block: Block) -> Tensor:
        made = len(block.own)
        h = self.matrix(x).view(len(x), self.heads, -1)
        source = torch.cat([block.sources, block.own])
        target = torch.cat([block.targets, torch.arange(made)])
        score = (h * self.from_source).sum(-1)[source]
        score = score + (h[block.own] * self.from_target).sum(-1)[target]
        score = functional.leaky_relu(score, 0.2)
        index = target.unsqueeze(1).expand_as(score)
        largest = score.new_full((made, self.heads), -torch.inf)
        largest = largest.scatter_reduce(0, index, score.detach(), "amax")
        weight = (score - largest[target]).exp()
        total = weight.new_zeros(made, self.heads).index_add(0, target, weight)
        share = functional.dropout(weight / total[target], self.dropout, self.training)
        result = h.new_zeros(made, self.heads, h.shape[2])
        result = result.index_add(0, target, h[source] * share.unsqueeze(2))
        if self.last:
            return result.mean(1) + self.bias
        return functional.elu(result.flatten(1) + self.bias)


LAYERS = {"graphsage": SageLayer, "gat": GatLayer}


class GNN(nn.Module):
    """Two layers over the nodes' inputs: `forward` returns logits (seeds, classes).

    A graph without features has None for `features`. The initial dense weights depend only on
    `seed`.
    """

    def __init__(
        self, kind: str, embeddings: nn.Module, features: nn.Module | None, width: int,
        dim: int, hidden: int, classes: int, dropout: float, seed: int,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embeddings, self.features, self.dropout = embeddings, features, dropout
        self.encoder = nn.Linear(width, dim, bias=False) if features is not None else None
        if self.encoder is not None:
            nn.init.xavier_uniform_(self.encoder.weight)
        layer = LAYERS[kind]
        self.layers = nn.ModuleList(
            [layer(dim, hidden, False, dropout), layer(hidden, classes, True, dropout)]
        )

    def forward(self, batch: Batch) -> Tensor:
        x = self.embeddings(batch.nodes)
        if self.features is not None and self.encoder is not None:
            with torch.no_grad():       # fixed: read without a lease
                features = self.features(batch.nodes)
            x = x + self.encoder(functional.dropout(features, self.dropout, self.training))
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            x = layer(functional.dropout(x, self.dropout, self.training), block)
        return x

    def row_modules(self) -> list[nn.Module]:
        """The modules that give the rows of nodes: embeddings, and features if there are any."""
        return [self.embeddings] if self.features is None else [self.embeddings, self.features]

    def dense_parameters(self) -> list[nn.Parameter]:
        """The parameters of the dense optimizer: all but the rows."""
        parts = [self.layers] if self.encoder is None else [self.layers, self.encoder]
        return [parameter for part in parts for parameter in part.parameters()]
