"""Mini-batches by neighbour sampling (Hamilton et al., "GraphSAGE", 2017), in NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from graph import Graph, Ints


@dataclass(frozen=True)
class Block:
    """The edges of one layer: from `sources` (e,) to `targets` (e,).

    A layer reads the vectors of some nodes and makes the vectors of fewer nodes. `targets` are
    positions among the nodes that it makes, and `sources` among the nodes that it reads. `own` (t,)
    are the positions of the made nodes among the nodes that it reads.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    own: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """`nodes` (n,) are the distinct nodes whose vectors the first block reads. The last block makes
    the vectors of the seeds."""

    nodes: torch.Tensor
    blocks: list[Block]
    labels: torch.Tensor


class NeighbourSampler:
    """Draws at most `fanouts[i]` neighbours of a node for layer i. None takes all neighbours."""

    def __init__(self, graph: Graph, fanouts: Sequence[int | None]) -> None:
        self.graph, self.fanouts = graph, fanouts

    def batches(
        self, seeds: Ints, batch_size: int, rng: np.random.Generator, shuffle: bool
    ) -> Iterator[Batch]:
        """Yields batches that contain each seed once."""
        order = rng.permutation(seeds) if shuffle else seeds
        for begin in range(0, len(order), batch_size):
            yield self.sample(order[begin : begin + batch_size], rng)

    def sample(self, seeds: Ints, rng: np.random.Generator) -> Batch:
        blocks: list[Block] = []
        nodes = seeds
        for fanout in reversed(self.fanouts):
            neighbours, targets = self.neighbours(nodes, fanout, rng)
            read, positions = np.unique(
                np.concatenate([nodes, neighbours]), return_inverse=True
            )
            place = torch.from_numpy(positions)
            blocks.insert(
                0, Block(place[nodes.size :], torch.from_numpy(targets), place[: nodes.size])
            )
            nodes = read
        labels = self.graph.labels[seeds].astype(np.int64)
        return Batch(torch.from_numpy(nodes), blocks, torch.from_numpy(labels))

    def neighbours(
        self, nodes: Ints, fanout: int | None, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Returns neighbours of `nodes`. Returns for each neighbour also the position in `nodes` of
        the node that it belongs to.

        For a node with more neighbours than `fanout`, it draws `fanout` of them, with replacement.
        """
        begin = self.graph.starts[nodes]
        degree = self.graph.starts[nodes + 1] - begin
        count = degree if fanout is None else np.minimum(degree, fanout)
        target = np.repeat(np.arange(nodes.size), count)
        within = np.arange(target.size) - np.repeat(np.cumsum(count) - count, count)
        if fanout is not None:
            drawn = (rng.random(target.size) * degree[target]).astype(np.int64)
            within = np.where(degree[target] > fanout, drawn, within)
        return self.graph.neighbours[begin[target] + within].astype(np.int64), target
