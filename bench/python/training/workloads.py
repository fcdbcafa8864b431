"""The three families at sizes for speed measurements: their tables, and a run on some store.

A run is an iterator of training steps, so that several runs can take turns on the same batches. The
steps are those of the examples; only the store of the rows differs. All tables are filled before a
run. Otherwise a table would begin small and grow during the run.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import measure
import numpy as np
import rows as example_rows
import torch

import embank

Kind = Literal["torch", "embank", "rocksdb"]
MEBI = 1 << 20
ROOMY = 4
"""A budget of this many times the tables holds every row, its header and the index."""
BUDGET_BYTES_MIN = 4 * MEBI


@dataclass(frozen=True)
class Rows:
    """Where a run keeps its rows: in tensors, or in a store with a budget. `lookahead` is a number
    of batches, or "auto". The rows of `depth` batches are got ahead. `bound` is the staleness bound
    of the tables whose rows are announced."""

    name: str
    kind: Kind
    budget_bytes: int = 0
    lookahead: int | Literal["auto"] = 0
    depth: int = 0
    bound: int | None = None


@dataclass
class Run:
    """A run of one model. `steps` trains: it yields the loss of each batch after training on it."""

    rows: Rows
    steps: Iterator[torch.Tensor]
    bank: Any

    @property
    def notes(self) -> list[str]:
        """Returns the reasons why the store does not use io_uring or direct I/O. Empty for other
        stores."""
        return list(self.bank.stats()["device_notes"]) if self.rows.kind == "embank" else []

    @property
    def drive(self) -> list[str]:
        """Returns in words how the store reads its drive."""
        if self.rows.kind != "embank":
            return []
        return [f"device {self.bank.stats()['device']}", *self.notes]

    def settle(self) -> None:
        """Waits until the announced rows are read, so that no read continues during the turn of
        another run."""
        if self.rows.kind == "embank" and not self.bank.wait_lookahead():
            raise TimeoutError("what was announced has not come in within a minute")

    def rest(self) -> None:
        """Waits until the store's background work has ended. A turn's time does not include this
        wait."""
        if self.rows.kind == "rocksdb":
            self.bank.settle()

    def warm(self) -> None:
        """Makes RocksDB read every row into its cache. Called for a run with room for every row."""
        if self.rows.kind == "rocksdb":
            self.bank.warm()

    def take_shim_seconds(self) -> float:
        """Returns the seconds that Python's code around RocksDB took since the last call."""
        if self.rows.kind != "rocksdb":
            return 0.0
        seconds, self.bank.shim_seconds = float(self.bank.shim_seconds), 0.0
        return seconds


class Workload:
    """A model of a family on generated data.

    `batch` is the samples of a step, `table_bytes` the bytes of all rows in memory, `steps_max` the
    steps for which there are data.
    """

    batch: int
    table_bytes: int
    steps_max: int = sys.maxsize

    def __init__(self, given: Any) -> None:
        self.device = given.device

    def budget_bytes(self, share: float) -> int:
        """Returns a share of the tables' bytes as a budget: at least `BUDGET_BYTES_MIN`."""
        return max(BUDGET_BYTES_MIN, int(self.table_bytes * share))

    def start(self, rows: Rows, folder: Path, seed: int) -> Run:
        """Opens the store, fills it, and returns the run at its first step."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if rows.kind == "rocksdb":
            from rocks import RocksBank

            bank: Any = RocksBank(folder, rows.budget_bytes)
        else:
            budget = rows.budget_bytes or 16 * MEBI
            bank = embank.Bank(folder, memory_budget=budget, device=self.device)
        return Run(rows, self.steps(rows, bank, seed), bank)

    def steps(self, rows: Rows, bank: Any, seed: int) -> Iterator[torch.Tensor]:
        raise NotImplementedError


def read_first(
    rows: Rows, bank: Any, batches: Iterable[Any], keys: Callable[[Any], dict[Any, Any]]
) -> Iterator[Any]:
    """Yields the batches. For RocksDB it first reads all rows of a step at once (see `rocks`)."""
    return bank.read_first(batches, keys) if rows.kind == "rocksdb" else iter(batches)


def fill(table: Any, count: int) -> None:
    """Writes the initial value of every row, in random order."""
    order = np.random.default_rng(0).permutation(count)
    for begin in range(0, count, example_rows.CHUNK_ROWS):
        keys = order[begin : begin + example_rows.CHUNK_ROWS]
        table.put(keys, table.initial(keys))


class Clicks(Workload):
    """The click model on Criteo-format rows. `disk` is a small model with small batches."""

    EPOCHS = 8

    def __init__(self, given: Any, model: str, disk: bool) -> None:
        super().__init__(given)
        family("dlrm")
        from experiments import CriteoOptions, criteo_data, criteo_experiment

        options = CriteoOptions(model=model)
        if disk:
            options = CriteoOptions(
                rows=300_000, batch_size=256, bottom=(64,), top=(64,), model=model
            )
        options = measure.criteo(options)
        self.data = criteo_data(None, measure.DATA, options)
        experiment = criteo_experiment(self.data, options, given.device)
        self.experiment = replace(experiment, epochs=self.EPOCHS)
        self.batch, self.table_bytes = options.batch_size, self.experiment.table_bytes
        self.steps_max = self.experiment.order.steps

    @cached_property
    def numbered(self) -> Any:
        """The data with positions in place of keys, for the run in memory."""
        return self.data.numbered()

    def steps(self, rows: Rows, bank: Any, seed: int) -> Iterator[torch.Tensor]:
        from embeddings import batch_keys, embank_bags, torch_bags, torch_optimizer
        from embeddings import fill as fill_tables
        from model import ClickModel
        from train import TrainOptions, Trainer

        in_memory = rows.kind == "torch"
        options = replace(self.experiment.tables, seed=seed, staleness_bound=rows.bound)
        experiment = replace(self.experiment, seed=seed, tables=options)
        tables = experiment.tables.open(bank, self.data)
        optimizer = None
        if in_memory:
            bags = torch_bags(tables, self.data)
            optimizer = torch_optimizer(bags, experiment.tables)
        else:
            bags = embank_bags(tables, self.data)
            fill_tables(tables, self.data)
        trainer = Trainer(
            ClickModel(experiment.shape, bags, experiment.seed),
            self.numbered if in_memory else self.data, experiment.order,
            TrainOptions(lookahead=rows.lookahead, depth=rows.depth), rows.name, None if in_memory else bank,
            [] if in_memory else tables, optimizer,
        )
        batches = read_first(rows, bank, trainer.batches(),
                             lambda batch: batch_keys(tables, batch))
        return map(trainer.train_step, batches)


class Triples(Workload):
    """Knowledge graph embeddings over 300,000 entities, some far more frequent than others.

    For each triple of a batch, the tails of the other triples are its negatives. So the work grows
    with the square of the batch's length, and the reads grow only in proportion to it. `disk` has
    small batches, in which the reads outweigh the work. """

    ENTITIES, RELATIONS, TRIPLES, DIM = measure.sized(
        (300_000, 20, 1_000_000, 128), (3000, 5, 9000, 8)
    )

    def __init__(self, given: Any, model: str, disk: bool) -> None:
        super().__init__(given)
        self.train = family("kge")
        from triples import KnowledgeGraph

        rng = np.random.default_rng(1)
        ends = (self.ENTITIES * rng.random((self.TRIPLES, 2)) ** 3).astype(np.int64)
        relation = rng.integers(0, self.RELATIONS, (self.TRIPLES, 1))
        triples = np.concatenate([ends[:, :1], relation, ends[:, 1:]], axis=1)
        none = triples[:0]
        self.graph = KnowledgeGraph(self.ENTITIES, self.RELATIONS, triples, none, none)
        self.given = self.train.parser().parse_args(
            ["--model", model, "--dim", str(self.DIM), "--negatives", "1000",
             "--batch-size", "500" if disk else "4000"]
        )
        self.batch = self.given.batch_size
        self.table_bytes = example_rows.table_bytes(
            (self.ENTITIES, self.DIM), (self.RELATIONS, self.DIM)
        )

    def steps(self, rows: Rows, bank: Any, seed: int) -> Iterator[torch.Tensor]:
        self.given.in_memory, self.given.seed = rows.kind == "torch", seed
        training = self.train.build(self.graph, bank, self.given)
        if rows.kind != "torch":
            fill(training.tables[0], self.ENTITIES)
            fill(training.tables[1], self.RELATIONS)
        batches = itertools.chain.from_iterable(
            self.graph.batches(self.batch, self.given.negatives, seed, epoch)
            for epoch in itertools.count()
        )
        entities, relations = training.tables
        entities.staleness_bound = rows.bound
        batches = read_first(rows, bank, batches, lambda batch: {
            entities: batch.entities, relations: batch.relations
        })
        steps: Iterator[torch.Tensor] = training.steps(batches, rows.lookahead, rows.depth)
        return steps


class Neighbours(Workload):
    """A graph neural network on a power-law graph, by neighbour sampling.

    `disk` has a narrow network and small batches.
    """

    def __init__(self, given: Any, model: str, disk: bool) -> None:
        super().__init__(given)
        self.train = family("gnn")
        self.given = self.train.parser().parse_args([
            "--model", model, "--graph", "powerlaw", "--nodes", str(given.nodes),
            "--data", str(measure.DATA / f"powerlaw-{given.nodes}"), "--dim", str(given.dim),
            "--dropout", "0", "--embedding-lr", "0.05", "--spread", "0.1",
            *("--batch-size 256 --hidden 64 --fanouts 10 5" if disk
              else "--batch-size 512 --hidden 512 --fanouts 10 10").split(),
        ])
        self.graph = self.train.open_graph(self.given)
        self.batch = self.given.batch_size
        self.table_bytes = self.train.table_bytes(self.graph, given.dim)

    def steps(self, rows: Rows, bank: Any, seed: int) -> Iterator[torch.Tensor]:
        self.given.in_memory, self.given.seed = rows.kind == "torch", seed
        training = self.train.build(self.graph, bank, self.given)
        if rows.kind != "torch":
            fill(training.tables[0], self.graph.nodes)
        sampler = self.train.NeighbourSampler(self.graph, self.given.fanouts)
        rng = np.random.default_rng(seed)
        batches = itertools.chain.from_iterable(
            sampler.batches(self.graph.train, self.batch, rng, shuffle=True)
            for _ in itertools.count()
        )
        (nodes,) = training.tables
        nodes.staleness_bound = rows.bound
        batches = read_first(rows, bank, batches, lambda batch: {nodes: batch.nodes})
        steps: Iterator[torch.Tensor] = training.steps(batches, rows.lookahead, rows.depth)
        return steps


def add_options(options: argparse.ArgumentParser) -> None:
    """Adds the option for the size of the power-law graph."""
    options.add_argument("--nodes", type=int, default=500_000, help="of the power-law graph")
    options.add_argument("--dim", type=int, default=64, help="floats a node of that graph")


def family(name: str) -> Any:
    """Returns the example's module `train`. The modules of the families have the same names, so a
    process can use only one family. """
    sys.path.insert(0, str(measure.REPOSITORY / "examples" / name))
    return importlib.import_module("train")


FAMILY = {"dlrm": "dlrm", "dcn": "dlrm", "dcnv1": "dlrm", "ffnn": "dlrm",
          "distmult": "kge", "complex": "kge",
          "graphsage": "gnn", "gat": "gnn"}
NAMES = tuple(model + size for model in FAMILY for size in ("", "-disk"))


def workload(name: str, given: Any) -> Workload:
    """Returns the workload of a model. A name that ends in "-disk" means little computing for each
    row that is read."""
    model, _, disk = name.partition("-")
    makers: dict[str, Callable[[], Workload]] = {
        "dlrm": lambda: Clicks(given, model, bool(disk)),
        "kge": lambda: Triples(given, model, bool(disk)),
        "gnn": lambda: Neighbours(given, model, bool(disk)),
    }
    return makers[FAMILY[model]]()
