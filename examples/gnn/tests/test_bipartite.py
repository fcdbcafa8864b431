"""Tests the bipartite graph: its edges and labels, and that a model learns the hidden risks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

from auc import auc
from bipartite import BIAS, KINDS, NODES_MIN, SLOPE, bipartite, payments
from test_gnn import train

NODES = 10_000


def test_edges_join_transactions_with_an_entity_of_each_kind_both_ways() -> None:
    graph, made = bipartite(NODES, seed=3), payments(NODES, seed=3)
    transactions, each = len(made.bad), (NODES - len(made.bad)) // KINDS
    assert (graph.nodes, transactions) == (NODES, 9000)
    owner = np.repeat(np.arange(NODES), np.diff(graph.starts))
    edges = set(zip(owner.tolist(), graph.neighbours.tolist()))
    assert len(edges) == 2 * KINDS * transactions
    assert edges == {(b, a) for a, b in edges}
    assert all((a < transactions) != (b < transactions) for a, b in edges)
    kinds = (graph.neighbours[: KINDS * transactions].reshape(-1, KINDS) - transactions) // each
    assert (kinds == np.arange(KINDS)).all()


def test_parts_have_transactions_only_and_share_none() -> None:
    graph = bipartite(NODES, seed=3)
    parts = np.concatenate([graph.train, graph.valid, graph.test])
    assert np.array_equal(np.sort(parts), np.arange(9000))
    assert graph.metric == "AUC" and not graph.labels[9000:].any()


def test_the_planted_log_odds_tell_bad_from_good() -> None:
    made = payments(200_000, seed=0)
    assert made.log_odds.mean() == pytest.approx(BIAS, abs=0.2)
    assert made.log_odds.std() == pytest.approx(SLOPE, abs=0.2)
    assert auc(made.bad.astype(np.int8), made.log_odds) == pytest.approx(0.88, abs=0.02)
    again, other = payments(NODES, seed=4), payments(NODES, seed=5)
    assert np.array_equal(again.bad, payments(NODES, seed=4).bad)
    assert not np.array_equal(again.bad, other.bad)


@pytest.mark.parametrize("nodes", [-5, 0, 1, 20, NODES_MIN - 1])
def test_too_few_nodes_are_an_error_that_says_how_many_are_needed(nodes: int) -> None:
    # Regression test: 20 nodes raised an IndexError, and -5 an error of numpy.
    with pytest.raises(ValueError, match=f"^{nodes} nodes are too few .* --nodes {NODES_MIN}$"):
        bipartite(nodes, seed=0)


def test_the_least_nodes_have_an_entity_of_each_kind_and_two_transactions_in_each_part() -> None:
    made = payments(NODES_MIN, seed=0)
    assert len(made.bad) // 10 == 2
    assert made.entities.tolist() == [[20, 21, 22]] * len(made.bad)


def test_a_part_without_bad_transactions_is_an_error() -> None:
    with pytest.raises(ValueError, match="all good or all bad.*give more --nodes"):
        bipartite(30, seed=0)


def test_a_bank_learns_the_risks_as_memory_does(tmp_path: Path) -> None:
    few = ["--graph", "bipartite", "--nodes", str(NODES), "--epochs", "1", "--dim", "16",
           "--hidden", "16", "--batch-size", "64", "--embedding-lr", "0.05", "--spread", "0.1",
           "--dropout", "0"]
    memory = train(tmp_path / "memory.json", *few, "--in-memory")
    bank = train(tmp_path / "bank.json", *few)
    assert 0.7 < memory["metric"] < 0.9
    assert bank["metric"] == pytest.approx(memory["metric"], abs=0.01)
