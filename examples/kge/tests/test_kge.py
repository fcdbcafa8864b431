"""Tests the knowledge-graph example: filtered ranking, and learning equal to the run in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

import embank
import rows
from model import ComplEx, DistMult
from ranking import rank
from triples import KnowledgeGraph, KnownTails, names_budget

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
WN18RR = rows.data_folder("wn18rr")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ring of 400 entities: `next` leads to the next entity, `skip` to the one after it, and
    `same` from n to n + 200."""
    triples = [(n, name, (n + step) % 400) for name, step in
               (("next", 1), ("skip", 2), ("same", 200)) for n in range(400)]
    order = np.random.default_rng(5).permutation(len(triples))
    for part, begin, end in (("train", 0, 1000), ("valid", 1000, 1100), ("test", 1100, 1200)):
        lines = ["\t".join(map(str, triples[at])) for at in order[begin:end]]
        (tmp_path / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def graph(folder: Path) -> KnowledgeGraph:
    return load(folder)


def load(folder: Path) -> KnowledgeGraph:
    with embank.Bank(folder / "names", memory_budget=names_budget(folder)) as names:
        return KnowledgeGraph.load(folder, names)


def train(data: Path, out: Path, *arguments: str) -> dict[str, float]:
    subprocess.run(
        [sys.executable, str(TRAIN), "--data", str(data), "--json", str(out), "--threads", "1",
         "--scratch", str(out.parent), *arguments],
        check=True, timeout=300, stdout=subprocess.DEVNULL,
    )
    outcome: dict[str, float] = json.loads(out.read_text())
    return outcome


@pytest.mark.parametrize("model", ["distmult", "complex"])
def test_a_bank_learns_what_memory_learns(folder: Path, tmp_path: Path, model: str) -> None:
    small = ["--model", model, "--dim", "64", "--epochs", "12", "--batch-size", "100",
             "--negatives", "100", "--seed", "3"]
    memory = train(folder, tmp_path / "memory.json", *small, "--in-memory")
    bank = train(folder, tmp_path / "bank.json", *small)
    assert bank["metric"] == pytest.approx(memory["metric"], abs=2e-3)
    assert 0.0 < bank["row_share"] < 1.0 and 0.0 < memory["row_share"] < 1.0
    losses = [[entry["loss"] for entry in run["history"]] for run in (memory, bank)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[0][-1] < 0.7 * losses[0][0]


def test_a_batch_holds_its_triples(graph: KnowledgeGraph) -> None:
    assert (graph.entities, graph.relations, len(graph.train)) == (400, 6, 2000)
    seen = []
    for batch in graph.batches(batch_size=300, negatives=50, seed=1, epoch=2):
        entities = batch.entities
        assert torch.equal(entities[batch.candidates][batch.targets], entities[batch.tails])
        assert len(torch.unique(entities)) == len(entities)
        seen.append(torch.stack([entities[batch.heads], batch.relations, entities[batch.tails]]))
    assert sorted(torch.cat(seen, 1).T.tolist()) == sorted(graph.train.tolist())


@pytest.mark.parametrize("kind", [DistMult, ComplEx])
def test_ranks_are_those_of_the_definition(graph: KnowledgeGraph, kind: type[DistMult]) -> None:
    torch.manual_seed(7)
    model = kind(torch.nn.Embedding(graph.entities, 8), torch.nn.Embedding(graph.relations, 8), 0.0)
    everything = np.concatenate([graph.train, graph.valid, graph.test]).tolist()
    known = {tuple(triple) for triple in everything}
    reciprocals = []
    with torch.no_grad():
        weight = model.entities.weight
        for head, relation, tail in graph.test[:60].tolist():
            relation_row = model.relations(torch.tensor([relation]))
            scores = (model.query(weight[head : head + 1], relation_row) @ weight.T)[0]
            better = [other for other in range(graph.entities) if scores[other] > scores[tail]
                      and (head, relation, other) not in known]
            reciprocals.append(1.0 / (1 + len(better)))
    found = rank(model, graph.test[:60], graph.known_tails(), graph.entities)
    assert found.mrr == pytest.approx(np.mean(reciprocals), abs=1e-6)
    assert found.hits_10 == pytest.approx(np.mean(np.array(reciprocals) >= 0.1), abs=1e-6)


@pytest.mark.parametrize("kind", [DistMult, ComplEx])
@pytest.mark.parametrize("dim", [6, 128, 200])
def test_a_collapsed_model_ranks_in_the_middle(
    graph: KnowledgeGraph, kind: type[DistMult], dim: int
) -> None:
    torch.manual_seed(dim)
    model = kind(
        torch.nn.Embedding(graph.entities, dim), torch.nn.Embedding(graph.relations, dim), 0.0
    )
    with torch.no_grad():
        model.entities.weight[:] = torch.randn(dim)
    known = KnownTails(graph.test, graph.relations)     # a query's own tail, or few more
    found = rank(model, graph.test, known, graph.entities)
    assert found.hits_10 == 0.0
    assert found.mrr == pytest.approx(2 / graph.entities, rel=0.05)


SCALES = [1e-11, 1e-4, 0.01, 1.0, 100.0, 1e6, 1e10]
"""Scales of all rows. Scores grow with the cube of the scale. At both ends, the squares of a query
leave float32's range."""


def perfect(scale: float) -> tuple[DistMult, np.ndarray]:
    """Returns a model whose query (e, r) scores highest with entity e, and a query for each entity.

    Rows are unit vectors times `scale`, so the dot product of a row is highest with the row itself.
    """
    torch.manual_seed(11)
    model = DistMult(torch.nn.Embedding(50, 16), torch.nn.Embedding(1, 16), 0.0)
    with torch.no_grad():
        rows = torch.nn.functional.normalize(torch.randn(50, 16))
        model.entities.weight[:] = scale * rows
        model.relations.weight[:] = scale
    each = np.arange(50)
    return model, np.stack([each, np.zeros_like(each), each], axis=1)


@pytest.mark.parametrize("scale", SCALES)
def test_a_perfect_model_is_perfect_at_any_scale(scale: float) -> None:
    # Regression test: `rank` had a fixed tolerance of 1e-5, so different scores of small rows
    # counted as equal.
    model, queries = perfect(scale)
    found = rank(model, queries, KnownTails(queries, 1), 50)
    assert (found.mrr, found.hits_1) == (1.0, 1.0)


def twins(rows: torch.Tensor) -> None:
    rows[25:] = rows[:25].clone()


def alike(rows: torch.Tensor) -> None:
    rows[:] = rows[0].clone()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("tied", "ties"), [(twins, 1), (torch.Tensor.zero_, 49), (alike, 49)]
)
def test_real_ties_stay_ties_at_any_scale(
    tied: Callable[[torch.Tensor], object], ties: int, scale: float
) -> None:
    model, queries = perfect(scale)
    with torch.no_grad():
        tied(model.entities.weight)
    found = rank(model, queries, KnownTails(queries, 1), 50)
    assert found.mrr == pytest.approx(1 / (1 + 0.5 * ties), rel=1e-9)


@pytest.mark.parametrize("scale", SCALES)
def test_scores_that_cancel_are_ties_whatever_rounding_leaves(scale: float) -> None:
    # In exact arithmetic each score is 0; half of the rows have terms a thousand times larger.
    model, queries = perfect(1.0)
    half = torch.randn(50, 8)
    half[25:] *= 1e3
    with torch.no_grad():
        model.entities.weight[:] = scale * torch.cat([half, half], dim=1)
        model.relations.weight[:] = scale * torch.tensor([1.0, -1.0]).repeat_interleave(8)
    found = rank(model, queries, KnownTails(queries, 1), 50)
    assert found.mrr == pytest.approx(1 / (1 + 0.5 * 49), rel=1e-9)


def test_a_tie_beyond_the_range_of_lengths_is_no_lead() -> None:
    model, queries = perfect(1.0)
    with torch.no_grad():
        model.entities.weight[:] = 0.0
        model.entities.weight[25:] = 3e38       # their length is infinite in float32
    queries[:, 0] = 0                           # a query of zeros: every score is 0
    found = rank(model, queries, KnownTails(queries[:1], 1), 50)
    assert found.mrr <= 1 / (1 + 0.5 * 49)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["entities", "relations"])
def test_a_model_that_diverged_has_no_ranking(
    graph: KnowledgeGraph, part: str, wrong: float
) -> None:
    entities, relations = (torch.nn.Embedding(n, 8) for n in (graph.entities, graph.relations))
    model = DistMult(entities, relations, 0.0)
    with torch.no_grad():
        getattr(model, part).weight[2, 3] = wrong
    with pytest.raises(FloatingPointError, match="not finite"):
        rank(model, graph.test, graph.known_tails(), graph.entities)


def test_missing_data_are_one_clear_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(TRAIN), "--data", str(tmp_path)],
                          capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "train.tsv is missing" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not WN18RR.exists(), reason=f"no WN18RR at {WN18RR}")
def test_wn18rr_has_the_counts_that_are_published(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "names", memory_budget=names_budget(WN18RR)) as names:
        graph = KnowledgeGraph.load(WN18RR, names)
    assert (graph.entities, graph.relations) == (40_943, 22)
    assert [len(part) for part in (graph.train, graph.valid, graph.test)] == [173_670, 6068, 6268]
