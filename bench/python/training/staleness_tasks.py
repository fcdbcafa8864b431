"""What `staleness` trains: a knowledge graph or clicks, with rows that a trainer got itself."""

from __future__ import annotations

import argparse
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import measure
import rows as example_rows
import torch
from torch import Tensor
from workloads import family

import embank

GRAPH_MODELS = ("distmult", "complex")
CLICK_MODELS = ("dlrm", "dcn", "dcnv1", "ffnn")


class Task:
    """A model and its data. `open` begins a run on a bank; the other methods are of that run.

    `ahead` is the default number of batches that a trainer gets early: enough for a bound of 80 to
    be met. `difference_max` is the loss of quality up to which a bound counts as good.
    """

    metric: str
    data_name: str
    difference_max: float
    trainers: int
    ahead: int
    epochs: int
    epoch_steps: int
    budget_bytes: int

    def open(self, bank: embank.Bank, bound: int | None, seed: int) -> None:
        """Makes the tables with this staleness bound, and the model."""
        raise NotImplementedError

    def batches(self, seed: int) -> Iterator[Any]:
        """Yields the batches of all epochs."""
        raise NotImplementedError

    def keys(self, batch: Any) -> list[tuple[Any, Any]]:
        """Returns the tables and the keys that a batch needs of each."""
        raise NotImplementedError

    def learn(self, batch: Any, parts: list[Tensor], places: list[Tensor]) -> None:
        """Sets the gradients of `parts`, the distinct rows of each table. `places` has the row of
        each key. Steps the dense weights, if there are any."""
        raise NotImplementedError

    def quality(self) -> float:
        """Returns the metric on the validation samples."""
        raise NotImplementedError


class KnowledgeGraphs(Task):
    """DistMult or ComplEx on WN18RR. It has no dense weights."""

    metric, data_name, difference_max = "MRR", "WN18RR", 0.005
    trainers, ahead, epochs = 2, 40, 4

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.train, self.dim = given, family("kge"), given.dim or 128
        names = measure.SCRATCH / "staleness-names"
        shutil.rmtree(names, ignore_errors=True)
        self.graph = self.train.load(example_rows.data_folder("wn18rr"), names, given.device)
        shutil.rmtree(names)
        self.epoch_steps = -(-len(self.graph.train) // given.batch_size)
        self.budget_bytes = example_rows.budget(example_rows.table_bytes(
            (self.graph.entities, self.dim), (self.graph.relations, self.dim)), 0.25)

    def open(self, bank: embank.Bank, bound: int | None, seed: int) -> None:
        options = self.train.parser().parse_args(
            ["--model", self.given.model, "--dim", str(self.dim), "--seed", str(seed)]
        )
        self.training = self.train.build(self.graph, bank, options)
        entities, relations = self.training.tables
        entities.staleness_bound = bound
        relations.staleness_bound = bound if self.given.bound_relations else None

    def batches(self, seed: int) -> Iterator[Any]:
        return itertools.chain.from_iterable(
            self.graph.batches(self.given.batch_size, self.given.negatives, seed, epoch)
            for epoch in itertools.count(1)
        )

    def keys(self, batch: Any) -> list[tuple[Any, Any]]:
        entities, relations = self.training.tables
        return [(entities, batch.entities.numpy()), (relations, batch.relations.numpy())]

    def learn(self, batch: Any, parts: list[Tensor], places: list[Tensor]) -> None:
        entities, relations = (part[place] for part, place in zip(parts, places))
        self.training.model.loss(entities, relations, batch).backward()

    def quality(self) -> float:
        graph = self.graph
        known = graph.known_tails(graph.valid)
        ranking = self.train.rank(self.training.model, graph.valid, known, graph.entities)
        return float(ranking.mrr)


class Clicks(Task):
    """A click model with small MLPs on generated rows of the Criteo format. All tables are filled
    before the training."""

    metric, data_name, difference_max = "AUC", "Criteo-format rows", 0.002
    trainers, ahead, epochs = 1, 96, 1
    ROWS = 300_000

    def __init__(self, given: argparse.Namespace) -> None:
        family("dlrm")
        from experiments import CriteoOptions, criteo_data, criteo_experiment, quarter_budget

        options = CriteoOptions(
            rows=self.ROWS, batch_size=given.batch_size, dim=given.dim or CriteoOptions.dim,
            bottom=(64,), top=(64,), model=given.model,
        )
        options = measure.criteo(options)
        self.data = criteo_data(None, measure.DATA, options)
        self.experiment = criteo_experiment(self.data, options, given.device)
        self.epoch_steps = self.experiment.order.steps
        self.budget_bytes = quarter_budget(self.experiment)

    def open(self, bank: embank.Bank, bound: int | None, seed: int) -> None:
        from embeddings import embank_bags, fill
        from model import ClickModel
        from train import TrainOptions, Trainer

        tables = replace(self.experiment.tables, seed=seed, staleness_bound=bound)
        self.tables = tables.open(bank, self.data)
        fill(self.tables, self.data)
        self.model = ClickModel(self.experiment.shape, embank_bags(self.tables, self.data), seed)
        self.trainer = Trainer(self.model, self.data, self.experiment.order, TrainOptions(), "",
                               bank, self.tables)

    def batches(self, seed: int) -> Iterator[Any]:
        """Yields the batches in order of time, whatever the seed."""
        order = self.experiment.order
        return (self.data.batch(rows) for _ in itertools.count() for rows in order.from_step(0))

    def keys(self, batch: Any) -> list[tuple[Any, Any]]:
        from embeddings import batch_keys

        return list(batch_keys(self.tables, batch).items())

    def learn(self, batch: Any, parts: list[Tensor], places: list[Tensor]) -> None:
        vectors = [part[place] for part, place in zip(parts, places)]
        self.trainer.dense_optimizer.zero_grad(set_to_none=True)
        loss = self.trainer.loss(self.model.scores(batch.dense, vectors), batch.labels)
        loss.backward()
        self.trainer.dense_optimizer.step()

    def quality(self) -> float:
        split = self.experiment.split
        return float(self.trainer.evaluate(range(split.train, split.valid)))


def task_of(given: argparse.Namespace) -> Task:
    """Returns the task of the model `given.model`."""
    return KnowledgeGraphs(given) if given.model in GRAPH_MODELS else Clicks(given)
