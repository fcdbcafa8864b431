r"""Trains GraphSAGE or GAT by neighbour sampling, with embeddings and features in a bank on disk.

    python examples/gnn/train.py --model gat              # Cora, a quarter of the tables in memory
    python examples/gnn/train.py --model gat --in-memory  # the same with torch.nn.Embedding
    python examples/gnn/train.py --graph powerlaw --nodes 10_000_000 --epochs 1 --steps 500 \
        --batch-size 512 --embedding-lr 0.05 --spread 0.1 --dropout 0
    python examples/gnn/train.py --graph papers100m --data papers100M-bin --batch-size 1024
    python examples/gnn/train.py --graph bipartite --nodes 100_000 --epochs 1 --batch-size 512 \
        --embedding-lr 0.05 --spread 0.1 --dropout 0

It reports the accuracy on the test nodes, at the epoch that was best on the validation nodes, and
for the bipartite graph the AUC in place of the accuracy. The defaults are for Cora. The generated
graphs have no features and need the options of their commands.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

import openmp  # noqa: E402, F401  (before torch)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import embank  # noqa: E402
import embank.torch  # noqa: E402
import rows  # noqa: E402
from auc import auc  # noqa: E402
from bipartite import bipartite  # noqa: E402
from cora import load_cora  # noqa: E402
from fixed import FixedRows  # noqa: E402
from graph import Graph, Ints, power_law  # noqa: E402
from meter import RowTimer  # noqa: E402
from model import GNN, LAYERS  # noqa: E402
from papers100m import load_papers100m  # noqa: E402
from sampling import Batch, NeighbourSampler  # noqa: E402

EVALUATION_NODES = 512
FILL_ROWS = 65_536


def main() -> int:
    given = parser().parse_args()
    torch.set_num_threads(given.threads)
    try:
        graph = open_graph(given)
    except (OSError, ValueError, embank.EmbankError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    folder = rows.scratch_folder("gnn", given.scratch)
    budget = rows.budget(table_bytes(graph, given.dim), given.budget_share)
    try:
        with embank.Bank(folder / "bank", memory_budget=budget, device=given.device) as bank:
            device = rows.device_of(bank)
            training = build(graph, bank, given)
            # The bank has the features now, so the matrix can leave memory.
            graph = replace(graph, features=None)
            outcome = device | train(training, graph, given)
    except (OSError, ValueError, FloatingPointError, embank.EmbankError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder)
    print(f"test {graph.metric} {outcome['metric']:.4f}")
    if given.json is not None:
        given.json.write_text(json.dumps(outcome) + "\n")
    return 0


def open_graph(given: argparse.Namespace) -> Graph:
    if given.graph == "cora":
        return load_cora(given.data or rows.data_folder("cora"))
    made = rows.REPOSITORY / "target" / "data"
    if given.graph == "papers100m":
        folder = given.data or rows.data_folder("papers100m")
        return load_papers100m(folder, given.packed or made / "papers100m")
    if given.graph == "bipartite":
        return bipartite(given.nodes, seed=0)
    return power_law(given.data or made / f"powerlaw-{given.nodes}", given.nodes, seed=0)


def table_bytes(graph: Graph, dim: int) -> int:
    """Bytes of embeddings and features in memory."""
    features = 0 if graph.features is None else graph.features.size * 4
    return rows.table_bytes((graph.nodes, dim)) + features


@dataclass
class Training:
    """A model, the tables that hold its trained rows, and the other optimizers.

    `features` reads the features if they are in the bank.
    """

    model: GNN
    tables: list[embank.Table]
    features: FixedRows | None
    dense_optimizer: torch.optim.Optimizer
    row_optimizer: torch.optim.Optimizer | None

    def steps(
        self, batches: Iterable[Batch], lookahead: int | Literal["auto"], depth: int = 0
    ) -> Iterator[torch.Tensor]:
        """Trains on each batch and yields its loss. The rows of `depth` batches are got ahead."""
        if self.row_optimizer is None:

            def keys(batch: Batch) -> dict[embank.Table, torch.Tensor]:
                return {table: batch.nodes for table in self.tables}

            announced = embank.torch.LookaheadLoader(batches, keys, depth=lookahead)
            batches = embank.torch.Pipelined(announced, keys, depth)
            if self.features is not None:
                batches = self.features.ahead(batches)
        for batch in batches:
            loss = nn.functional.cross_entropy(self.model(batch), batch.labels)
            self.dense_optimizer.zero_grad()
            if self.row_optimizer is not None:
                self.row_optimizer.zero_grad()
            loss.backward()         # the table's own optimizer steps here
            self.dense_optimizer.step()
            if self.row_optimizer is not None:
                self.row_optimizer.step()
            yield loss.detach()


def build(graph: Graph, bank: embank.Bank, given: argparse.Namespace) -> Training:
    """Makes the model, with its rows in the bank or in memory. The initial values are the same."""
    nodes = bank.table("node", dim=given.dim, optimizer=embank.Adagrad(lr=given.embedding_lr),
                       initializer=embank.Normal(mean=0.0, std=given.spread), seed=given.seed)
    embeddings, features, fixed, row_optimizer = embank.torch.Embedding(nodes), None, None, None
    width = 0 if graph.features is None else graph.features.shape[1]
    if given.in_memory:
        embeddings = rows.twin(nodes, graph.nodes)
        row_optimizer = rows.twin_optimizer([embeddings], given.embedding_lr)
        if graph.features is not None:
            whole = np.array(graph.features, np.float32)
            features = nn.Embedding.from_pretrained(torch.from_numpy(whole))
    elif graph.features is not None:
        table = bank.table("feature", dim=width, optimizer=None)
        for begin in range(0, graph.nodes, FILL_ROWS):
            some = np.asarray(graph.features[begin : begin + FILL_ROWS], np.float32)
            table.put(np.arange(begin, begin + len(some)), some)
        features = fixed = FixedRows(table)
    model = GNN(given.model, embeddings, features, width, given.dim, given.hidden,
                graph.classes, given.dropout, given.seed)
    dense_optimizer = torch.optim.Adam(model.dense_parameters(), lr=given.lr,
                                       weight_decay=given.weight_decay)
    return Training(model, [nodes], fixed, dense_optimizer, row_optimizer)


def train(training: Training, graph: Graph, given: argparse.Namespace) -> dict[str, Any]:
    """Trains to the end. Returns the graph's metric on the test nodes, and the history."""
    sampler = NeighbourSampler(graph, given.fanouts)
    row_timer = RowTimer(training.model.row_modules())
    best, test, history, samples = -1.0, 0.0, [], 0
    seconds, row_seconds = 0.0, 0.0
    for epoch in range(1, given.epochs + 1):
        rng = np.random.default_rng([given.seed, epoch])
        batches = sampler.batches(graph.train, given.batch_size, rng, shuffle=True)
        started = time.perf_counter()
        some = itertools.islice(batches, given.steps)
        losses = list(training.steps(some, given.lookahead, given.depth))
        seconds += time.perf_counter() - started
        row_seconds += row_timer.take()
        samples += min(len(losses) * given.batch_size, len(graph.train))
        if epoch % given.evaluate_every == 0 or epoch == given.epochs:
            valid = quality(training.model, graph, graph.valid)
            if valid > best:
                best, test = valid, quality(training.model, graph, graph.test)
            loss = float(torch.stack(losses).mean())
            share = row_seconds / seconds
            print(f"epoch {epoch}: loss {loss:.4f}, valid {graph.metric} {valid:.4f}, "
                  f"{seconds:.1f} s, {share:.0%} waiting for rows", flush=True)
            history.append({"epoch": epoch, "loss": loss, "seconds": seconds, "row_share": share,
                            "metric": valid})
    return {"metric": test, "history": history, "samples_per_second": samples / seconds,
            "row_share": row_seconds / seconds}


@torch.no_grad()
def quality(model: GNN, graph: Graph, nodes: Ints) -> float:
    """Returns the graph's metric on `nodes`, from up to 50 neighbours of a node. Peeks the rows.

    Raises `FloatingPointError` if the metric is AUC and a score is NaN.
    """
    model.eval()
    batches = NeighbourSampler(graph, [50, 50]).batches(
        nodes, EVALUATION_NODES, np.random.default_rng(0), shuffle=False
    )
    scores = torch.cat([model(batch) for batch in batches]).numpy()
    model.train()
    labels = graph.labels[nodes]
    if graph.metric == "AUC":
        return auc(labels, scores[:, 1] - scores[:, 0])
    return float((scores.argmax(1) == labels).mean())


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--model", choices=tuple(LAYERS), default="graphsage")
    add("--graph", choices=("cora", "powerlaw", "papers100m", "bipartite"), default="cora",
        help="default %(default)s; powerlaw and bipartite are generated")
    add("--nodes", type=int, default=1_000_000, metavar="N",
        help="of a generated graph (default %(default)s)")
    add("--data", type=Path, metavar="DIR", help="files of Cora or ogbn-papers100M, or where to "
        "make the power-law graph")
    add("--packed", type=Path, metavar="DIR", help="where ogbn-papers100M's edges are sorted and "
        "kept (default: target/data/papers100m)")
    add("--in-memory", action="store_true", help="torch.nn.Embedding in place of the bank")
    add("--budget-share", type=float, default=0.25, metavar="X",
        help="memory budget as a share of the tables' bytes (default %(default)s)")
    add("--lookahead", type=rows.lookahead, default="auto", metavar="N",
        help="batches announced ahead, or auto, the default: as reading and computing take")
    add("--depth", type=int, default=0, metavar="N",
        help="batches whose rows are got ahead (default %(default)s)")
    add("--dim", type=int, default=64, help="floats of an embedding (default %(default)s)")
    add("--hidden", type=int, default=64)
    add("--fanouts", type=int, nargs=2, default=(10, 10), metavar="N")
    add("--epochs", type=int, default=40)
    add("--steps", type=int, metavar="N", help="of an epoch at most (default: all)")
    add("--batch-size", type=int, default=32)
    add("--lr", type=float, default=0.01, help="of the dense part's Adam (default %(default)s)")
    add("--embedding-lr", type=float, default=0.002, help="of Adagrad (default %(default)s)")
    add("--spread", type=float, default=0.001,
        help="standard deviation of the first embeddings (default %(default)s)")
    add("--weight-decay", type=float, default=5e-4, help="of the dense part")
    add("--dropout", type=float, default=0.5)
    add("--evaluate-every", type=int, default=2, metavar="EPOCHS")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    add("--device", choices=("auto", "io_uring", "threads"), default="auto")
    add("--scratch", type=Path, default=None, metavar="DIR",
        help="where the bank is made and removed (default: target/examples)")
    add("--json", type=Path, metavar="FILE", help="write the outcome to this file")
    return options


if __name__ == "__main__":
    sys.exit(main())
