"""A generated bipartite graph for the risk of payments: transactions, and the entities behind them.

The MLKV paper (arXiv 2504.01506) evaluates graphs of this kind, which are not public. Here a
transaction joins one entity of each kind, such as a buyer, a card and an address. Each entity has a
hidden risk. The sum of the risks of its entities gives the log-odds that a transaction is bad. So a
model has to learn risks from the transactions of the training part; nothing else shows them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graph import Graph, Ints

KINDS = 3
TRANSACTIONS_SHARE = 0.9
"""Share of transactions among the nodes. An entity has 27 transactions on average."""
NODES_MIN = 23
"""Limit of the number of nodes: an entity of each kind, and two transactions in each part. Each
part needs a bad and a good transaction."""
POPULARITY = 2.0
"""A transaction joins the entity at the share u^2 of the entities of a kind, for a uniform u. So
the first 1 % of entities take a tenth of all edges."""
BIAS, SLOPE = -2.0, 2.0
"""Mean of the log-odds, and their standard deviation over transactions of random entities."""


@dataclass(frozen=True)
class Payments:
    """`entities` (t, KINDS) are the nodes that each transaction joins, `log_odds` (t,) its planted
    log-odds of being bad, and `bad` (t,) its label. Nodes below t are transactions."""

    entities: Ints
    log_odds: NDArray[np.float64]
    bad: NDArray[np.bool_]


def payments(nodes: int, seed: int) -> Payments:
    """Draws the transactions of a graph of `nodes` nodes. A seed always gives the same ones.

    Raises `ValueError` if there are fewer than `NODES_MIN` nodes.
    """
    if nodes < NODES_MIN:
        raise ValueError(f"{nodes} nodes are too few for an entity of each of {KINDS} kinds and "
                         f"two transactions in each part; give at least --nodes {NODES_MIN}")
    rng = np.random.default_rng([seed, 2])
    transactions = int(nodes * TRANSACTIONS_SHARE)
    each = (nodes - transactions) // KINDS
    risk = rng.normal(size=(KINDS, each))
    rank = (each * rng.random((transactions, KINDS)) ** POPULARITY).astype(np.int64)
    kind = np.arange(KINDS)
    log_odds = BIAS + SLOPE * risk[kind, rank].sum(1) / np.sqrt(KINDS)
    bad = rng.random(transactions) < 1.0 / (1.0 + np.exp(-log_odds))
    return Payments(transactions + kind * each + rank, log_odds, bad)


def bipartite(nodes: int, seed: int) -> Graph:
    """Returns the graph, with edges in both directions. Takes about 100 bytes a node.

    Labels are 1 for bad transactions. Entities have the label 0 and are in no part. Of the
    transactions, random 80 % are for training, and 10 % each for validation and the test.

    Raises `ValueError` if there are fewer than `NODES_MIN` nodes, or a part lacks bad or good
    transactions, because it then has no AUC.
    """
    made = payments(nodes, seed)
    transactions = len(made.bad)
    flat = made.entities.ravel()
    owners = np.argsort(flat, kind="stable") // KINDS
    degrees = np.bincount(flat, minlength=nodes)
    degrees[:transactions] = KINDS
    starts = np.concatenate([[0], np.cumsum(degrees)])
    labels = np.zeros(nodes, np.int8)
    labels[:transactions] = made.bad
    order = np.random.default_rng([seed, 1]).permutation(transactions)
    test = transactions // 10
    parts = {"train": order[2 * test :], "valid": order[test : 2 * test], "test": order[:test]}
    for name, part in parts.items():
        if np.unique(labels[part]).size < 2:
            raise ValueError(f"the {name} transactions of {nodes} nodes are all good or all bad, "
                             "so they have no AUC; give more --nodes")
    neighbours = np.concatenate([flat, owners]).astype(np.int32)
    return Graph(starts, neighbours, labels, 2, None, **parts, metric="AUC")
