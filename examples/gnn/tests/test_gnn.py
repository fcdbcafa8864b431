"""Tests the graph example: sampling, layers against dense matrices, and learning equal to the run
in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

embank = pytest.importorskip("embank", reason="the wheel of Embank is not installed")

import rows
from cora import load_cora
from fixed import FixedRows
from graph import Graph, power_law
from model import GatLayer, SageLayer
from sampling import Batch, NeighbourSampler

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
CORA = rows.data_folder("cora")


def train(out: Path, *arguments: str) -> dict[str, float]:
    subprocess.run(
        [sys.executable, str(TRAIN), "--json", str(out), "--threads", "1",
         "--scratch", str(out.parent), *arguments],
        check=True, timeout=300, stdout=subprocess.DEVNULL,
    )
    outcome: dict[str, float] = json.loads(out.read_text())
    return outcome


@pytest.mark.skipif(not CORA.exists(), reason=f"no Cora at {CORA}")
@pytest.mark.parametrize("model", ["graphsage", "gat"])
def test_a_bank_learns_cora_as_memory_does(tmp_path: Path, model: str) -> None:
    few = ["--model", model, "--epochs", "12", "--seed", "2"]
    memory = train(tmp_path / "memory.json", *few, "--in-memory")
    bank = train(tmp_path / "bank.json", *few)
    assert memory["metric"] > 0.7
    assert bank["metric"] == pytest.approx(memory["metric"], abs=0.005)


def test_a_bank_learns_a_power_law_graph_as_memory_does(tmp_path: Path) -> None:
    few = ["--graph", "powerlaw", "--nodes", "4000", "--data", str(tmp_path / "graph"),
           "--epochs", "3", "--dim", "16", "--hidden", "16", "--embedding-lr", "0.05",
           "--spread", "0.1", "--dropout", "0"]
    memory = train(tmp_path / "memory.json", *few, "--in-memory")
    bank = train(tmp_path / "bank.json", *few)
    assert memory["metric"] > 0.5  # of 16 classes
    assert bank["metric"] == pytest.approx(memory["metric"], abs=0.01)
    assert 0.0 < bank["row_share"] < 1.0 and 0.0 < memory["row_share"] < 1.0


def test_a_power_law_graph_is_made_once_and_keeps_its_classes(tmp_path: Path) -> None:
    graph = power_law(tmp_path, 20_000, seed=4)
    made = (tmp_path / "neighbours.i32").stat().st_mtime_ns
    assert power_law(tmp_path, 20_000, seed=4).nodes == graph.nodes == 20_000
    assert (tmp_path / "neighbours.i32").stat().st_mtime_ns == made
    assert graph.starts[-1] == graph.neighbours.size
    owner = np.repeat(np.arange(graph.nodes), np.diff(graph.starts))
    same = float((graph.labels[owner] == graph.labels[graph.neighbours]).mean())
    assert same == pytest.approx(0.8 + 0.2 / 16, abs=0.01)
    popularity = np.sort(np.bincount(graph.neighbours, minlength=graph.nodes))[::-1]
    assert popularity[:200].sum() > 0.15 * graph.neighbours.size
    assert not set(graph.train) & set(graph.test)


def test_features_are_read_ahead_and_not_announced(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    values = rng.random((600, 5), dtype=np.float32)
    batches = [Batch(torch.from_numpy(rng.permutation(600)[:200]), [], torch.empty(0))
               for _ in range(8)]
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        table = bank.table("feature", dim=5, optimizer=None)
        table.put(np.arange(600), values)
        features, prefetched = FixedRows(table), 0
        for batch in features.ahead(batches):
            prefetched += features.prefetched is not None
            assert np.array_equal(features(batch.nodes).numpy(), values[batch.nodes])
        assert prefetched == len(batches) - 1       # all but the first
        stats = bank.stats()
        assert stats["lookahead"]["requested"] == 0
        # A step that asks for other rows, or for more rows than fit, still gets its rows.
        for batch in features.ahead(batches):
            assert np.array_equal(features(torch.arange(7)).numpy(), values[:7])
    with embank.Bank(tmp_path / "small", memory_budget="1MiB") as bank:
        table = bank.table("feature", dim=500, optimizer=None)
        table.put(np.arange(600), np.repeat(values, 100, axis=1))
        features = FixedRows(table)
        for batch in features.ahead(batches):
            assert features.prefetched is None
            assert np.array_equal(features(batch.nodes)[:, ::100].numpy(), values[batch.nodes])


def small_graph() -> Graph:
    rng = np.random.default_rng(1)
    matrix = rng.random((30, 30)) < 0.2
    starts = np.concatenate([[0], np.cumsum(matrix.sum(1))])
    none = np.array([], dtype=np.int64)
    return Graph(starts, np.nonzero(matrix)[1], np.zeros(30, np.int64), 1, None, none, none, none)


def test_sampled_edges_are_edges_and_at_most_the_fanout() -> None:
    graph = small_graph()
    sampler = NeighbourSampler(graph, [3, 2])
    batch = sampler.sample(np.array([4, 9, 17]), np.random.default_rng(0))
    read = batch.nodes.numpy()
    for block, fanout in zip(batch.blocks, (3, 2)):
        made = read[block.own.numpy()]
        source, target = read[block.sources.numpy()], made[block.targets.numpy()]
        for a, b in zip(target.tolist(), source.tolist()):
            assert b in graph.neighbours[graph.starts[a] : graph.starts[a + 1]]
        degrees = np.diff(graph.starts)[made]
        counts = np.bincount(block.targets.numpy(), minlength=made.size)
        assert counts.tolist() == np.minimum(degrees, fanout).tolist()
        read = made
    assert read.tolist() == [4, 9, 17]


def test_layers_equal_dense_matrices() -> None:
    graph = small_graph()
    batch = NeighbourSampler(graph, [None]).sample(np.arange(30), np.random.default_rng(0))
    matrix = torch.zeros(30, 30)
    for node in range(30):
        matrix[node, graph.neighbours[graph.starts[node] : graph.starts[node + 1]]] = 1.0
    torch.manual_seed(0)
    x = torch.randn(30, 8)
    sage = SageLayer(8, 5, last=True)
    mean = matrix @ x / matrix.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(sage(x, batch.blocks[0]), sage.own(x) + sage.around(mean))

    gat = GatLayer(8, 6, last=True, heads=2).eval()
    h = gat.matrix(x).view(30, 2, 6)
    scores = (h * gat.from_target).sum(-1)[:, None] + (h * gat.from_source).sum(-1)[None]
    scores = torch.nn.functional.leaky_relu(scores, 0.2)
    # A node that is its own neighbour counts twice: as the node itself, and for the edge to itself.
    weight = scores.exp() * (matrix + torch.eye(30))[:, :, None]
    share = weight / weight.sum(1, keepdim=True)
    expected = torch.einsum("tsh,shw->thw", share, h).mean(1) + gat.bias
    torch.testing.assert_close(gat(x, batch.blocks[0]), expected)


@pytest.mark.skipif(not CORA.exists(), reason=f"no Cora at {CORA}")
def test_cora_has_the_counts_that_are_published() -> None:
    graph = load_cora(CORA)
    assert (graph.nodes, graph.classes, graph.neighbours.size) == (2708, 7, 2 * 5278)
    assert [part.size for part in (graph.train, graph.valid, graph.test)] == [140, 500, 1000]
