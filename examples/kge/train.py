"""Trains DistMult or ComplEx on a knowledge graph, with its embeddings in a bank on disk.

    python examples/kge/train.py --model complex                 # a quarter of the table in memory
    python examples/kge/train.py --model complex --in-memory     # the same with torch.nn.Embedding
    python examples/kge/train.py --graph wikikg2 --data DIR --rank-triples 1000

The data are three files of triples with names, as WN18RR has them, or with `--graph` the files of
Freebase (86 million entities) or of ogbl-wikikg2. The program reports the filtered mean
reciprocal rank and Hits@1, 3 and 10 over both directions.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

import openmp  # noqa: E402, F401  (before torch)
import numpy as np  # noqa: E402
import torch  # noqa: E402

import embank  # noqa: E402
import embank.torch  # noqa: E402
import rows  # noqa: E402
from freebase import load_freebase  # noqa: E402
from meter import RowTimer  # noqa: E402
from model import MODELS, DistMult  # noqa: E402
from ranking import rank  # noqa: E402
from triples import Batch, KnowledgeGraph, names_budget, sample  # noqa: E402
from wikikg2 import load_wikikg2  # noqa: E402

NUMBERED = {"freebase": load_freebase, "wikikg2": load_wikikg2}
"""Readers of data sets whose entities and relations are numbered already."""


def main() -> int:
    given = parser().parse_args()
    torch.set_num_threads(given.threads)
    folder = rows.scratch_folder("kge", given.scratch)
    try:
        data = given.data or rows.data_folder("wn18rr" if given.graph == "names" else given.graph)
        if given.graph in NUMBERED:
            graph = NUMBERED[given.graph](data)
        else:
            graph = load(data, folder / "names", given.device)
        outcome = train(graph, folder, given)
    except (OSError, ValueError, FloatingPointError, embank.EmbankError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder)
    print(json.dumps(outcome["test"]))
    if given.json is not None:
        given.json.write_text(json.dumps(outcome) + "\n")
    return 0


def load(
    data: Path, bank: Path, device: Literal["auto", "io_uring", "threads"]
) -> KnowledgeGraph:
    """Reads the files in `data`. A separate bank, at the path `bank`, numbers the names.

    The model's bank cannot number the names. Its budget is a share of the bytes of the tables, and
    their size is known only after the names are numbered.
    """
    with embank.Bank(bank, memory_budget=names_budget(data), device=device) as names:
        return KnowledgeGraph.load(data, names)


@dataclass
class Training:
    """A model, the tables that hold its rows, and the optimizer of rows in memory."""

    model: DistMult
    tables: list[embank.Table]
    optimizer: torch.optim.Optimizer | None

    def steps(
        self, batches: Iterable[Batch], lookahead: int | Literal["auto"], depth: int = 0
    ) -> Iterator[torch.Tensor]:
        """Trains on each batch and yields its loss. The rows of `depth` batches are got ahead."""
        if self.optimizer is None:
            entities, _ = self.tables

            def keys(batch: Batch) -> dict[embank.Table, torch.Tensor]:
                return {entities: batch.entities}

            announced = embank.torch.LookaheadLoader(batches, keys, depth=lookahead)
            batches = embank.torch.Pipelined(announced, keys, depth)
        for batch in batches:
            loss = self.model(batch)
            if self.optimizer is not None:
                self.optimizer.zero_grad()
            loss.backward()             # the tables' own optimizer steps here
            if self.optimizer is not None:
                self.optimizer.step()
            yield loss.detach()


def build(graph: KnowledgeGraph, bank: embank.Bank, given: argparse.Namespace) -> Training:
    """Makes the model, with its rows in the bank or in memory. The initial values are the same."""
    tables = [
        bank.table(name, dim=given.dim, optimizer=embank.Adagrad(lr=given.lr),
                   initializer=embank.Normal(mean=0.0, std=1e-2), seed=given.seed)
        for name in ("entity", "relation")
    ]
    optimizer = None
    if given.in_memory:
        counts = (graph.entities, graph.relations)
        embeddings = [rows.twin(table, count) for table, count in zip(tables, counts)]
        optimizer = rows.twin_optimizer(embeddings, given.lr)
    else:
        embeddings = [embank.torch.Embedding(table) for table in tables]
    return Training(MODELS[given.model](*embeddings, given.regularization), tables, optimizer)


def train(graph: KnowledgeGraph, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Trains with a new bank in `folder`. The outcome includes how the bank reads its drive."""
    shape = [(graph.entities, given.dim), (graph.relations, given.dim)]
    budget = rows.budget(rows.table_bytes(*shape), given.budget_share)
    with embank.Bank(folder / "bank", memory_budget=budget, device=given.device) as bank:
        return rows.device_of(bank) | train_in(bank, graph, given)


def train_in(
    bank: embank.Bank, graph: KnowledgeGraph, given: argparse.Namespace
) -> dict[str, Any]:
    """Trains to the end. Returns the ranking of the test triples and the history."""
    training = build(graph, bank, given)
    valids, tests = (sample(part, given.rank_triples, given.seed)
                     for part in (graph.valid, graph.test))
    known = graph.known_tails(np.concatenate([valids, tests]))
    row_timer = RowTimer([training.model.entities, training.model.relations])
    history, seconds, row_seconds = [], 0.0, 0.0
    for epoch in range(1, given.epochs + 1):
        batches = graph.batches(given.batch_size, given.negatives, given.seed, epoch)
        started = time.perf_counter()
        losses = list(training.steps(batches, given.lookahead, given.depth))
        seconds += time.perf_counter() - started
        row_seconds += row_timer.take()
        if epoch % given.evaluate_every == 0 or epoch == given.epochs:
            valid = rank(training.model, valids, known, graph.entities)
            loss = float(torch.stack(losses).mean())
            share = row_seconds / seconds
            print(f"epoch {epoch}: loss {loss:.4f}, valid MRR {valid.mrr:.4f}, {seconds:.1f} s, "
                  f"{share:.0%} waiting for rows", flush=True)
            history.append({"epoch": epoch, "loss": loss, "seconds": seconds, "row_share": share,
                            "metric": valid.mrr})
    test = rank(training.model, tests, known, graph.entities)
    return {"test": asdict(test), "metric": test.mrr, "history": history,
            "samples_per_second": given.epochs * len(graph.train) / seconds,
            "row_share": row_seconds / seconds}


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--model", choices=tuple(MODELS), default="distmult")
    add("--graph", choices=("names", *NUMBERED), default="names",
        help="kind of files: triples of names, or numbered as in Freebase or ogbl-wikikg2 "
        "(default %(default)s)")
    add("--data", type=Path, metavar="DIR", help="folder of the files (default: wn18rr, freebase "
        "or wikikg2 in $EMBANK_DATA)")
    add("--in-memory", action="store_true", help="torch.nn.Embedding in place of the bank")
    add("--budget-share", type=float, default=0.25, metavar="X",
        help="memory budget as a share of the tables' bytes (default %(default)s)")
    add("--lookahead", type=rows.lookahead, default="auto", metavar="N",
        help="batches announced ahead, or auto, the default: as reading and computing take")
    add("--depth", type=int, default=0, metavar="N",
        help="batches whose rows are got ahead (default %(default)s)")
    add("--dim", type=int, default=128, help="floats a row (default %(default)s)")
    add("--epochs", type=int, default=6)
    add("--batch-size", type=int, default=1000)
    add("--negatives", type=int, default=2000, help="shared by a batch (default %(default)s)")
    add("--lr", type=float, default=0.1, help="of Adagrad (default %(default)s)")
    add("--regularization", type=float, default=0.05, help="weight of N3 (default %(default)s)")
    add("--evaluate-every", type=int, default=2, metavar="EPOCHS")
    add("--rank-triples", type=int, metavar="N", help="of valid and of test that are ranked, drawn "
        "by --seed (default: all)")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    add("--device", choices=("auto", "io_uring", "threads"), default="auto")
    add("--scratch", type=Path, default=None, metavar="DIR",
        help="where the bank is made and removed (default: target/examples)")
    add("--json", type=Path, metavar="FILE", help="write the outcome to this file")
    return options


if __name__ == "__main__":
    sys.exit(main())
