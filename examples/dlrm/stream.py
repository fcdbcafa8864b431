"""Trains a click model on raw text: one pass from a TSV file to a trained model.

    text --> pipeline --> feed of batches --> Lookahead --> training

The pipeline decodes, fills, takes logarithms and numbers the categories, in threads of its own. The
feed holds a few batches ready, and Lookahead announces their rows to the store. No file is written
in between. One bank holds the vocabularies and the rows of their ids, and a checkpoint has both. So
`--resume` continues with the row after the last one that was trained on. It refuses files that do
not begin with those of the rows so far, by name and size.

    python examples/dlrm/stream.py train.txt --budget 512MiB
    python examples/dlrm/stream.py                # on generated rows
    python examples/dlrm/stream.py --resume       # after an interruption
    python examples/dlrm/stream.py day_{0..22}.gz --test day_23.gz --budget 8GiB

With `--connect`, the batches come from `embank serve`, in another process or on another machine:

    python -c "from embank.pipeline import criteo; print(criteo(1_000_000).to_json())" > criteo.json
    embank serve criteo.json train.txt --batch-rows 2048 --listen 127.0.0.1:8815
    python examples/dlrm/stream.py --connect grpc://127.0.0.1:8815

With `--test`, the trained model scores the rows of other files and trains on none. A category that
training has not seen has the id 0 there, whose row keeps its initial values. With `--steps`, this
includes categories that only the rows after the last step have.

It prints samples/s, the part of the time in which training waited for data, and the AUC of each
stretch of rows. The model scores the rows before it trains on them.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

import openmp  # noqa: F401, I001  (before torch)
import torch
from torch import nn
from tqdm import tqdm

import embank
import embank.torch
from auc import auc
from criteo import CATEGORIES, DENSE, FIELDS, INTEGERS, NAMES, check_labels, columns, row_of
from data import Bag, Batch
from embank import pipeline
from embeddings import batch_keys
from generate import GeneratorOptions, generate
from meter import RowTimer
from model import INTERACTIONS, ClickModel, ModelShape

TARGET = Path(__file__).resolve().parents[2] / "target"

SPEC = pipeline.Spec(
    fields=FIELDS,
    columns=columns(numbered=True),
    outputs=[
        pipeline.Output("label", ["label"], "f32"),
        pipeline.Output("dense", INTEGERS, "f32"),
        pipeline.Output("sparse", NAMES, "i64"),
    ],
)
"""The operators of PIPER's Table 1, with vocabularies of any size in the bank."""
VOCABULARIES = [pipeline.VocabularySpec(name, unknown_id=0, first_id=1) for name in NAMES]
"""Settings of the vocabularies. Id 0 is for categories that training has not seen."""


@dataclass
class Timed:
    """A source of batches, and the seconds that its reader waited for them.

    `place` names a row in errors, by its number. `rows` is the number of rows read so far.
    """

    source: Iterable[Any]
    place: Callable[[int], str]
    rows: int
    seconds: float = 0.0

    def __iter__(self) -> Iterator[Batch]:
        source = iter(self.source)
        while True:
            started = time.perf_counter()
            raw = next(source, None)
            self.seconds += time.perf_counter() - started
            if raw is None:
                return
            batch = click_batch(raw.torch())
            check_labels(batch.labels.numpy(), self.place, self.rows)
            self.rows += len(batch.labels)
            yield batch


def click_batch(matrices: dict[str, torch.Tensor]) -> Batch:
    """Makes the model's input. A column of categories becomes one bag with one key for each row.

    Raises `ValueError` if the pipeline of a server has other outputs.
    """
    if not {"label", "dense", "sparse"} <= matrices.keys():
        raise ValueError(f"the batches have the outputs {', '.join(matrices)}, and need label, "
                         "dense and sparse; serve the pipeline of embank.pipeline.criteo(...).to_json()")
    categories = matrices["sparse"].t().contiguous()
    bags = [Bag(keys.unsqueeze(1), None) for keys in categories]
    return Batch(matrices["dense"], bags, matrices["label"].squeeze(1))


def ids_of(batch: Batch) -> torch.Tensor:
    """Returns the ids (rows, categories) of a batch of `click_batch`."""
    return torch.cat([bag.keys for bag in batch.bags], dim=1)


@dataclass
class Training:
    """A model, its optimizer, and the number of steps and rows that it was trained on.

    `position` is the feed's place after these rows, with its inputs, for `skip_rows`. `largest_ids`
    (categories,) are the largest ids of these rows.
    """

    model: ClickModel
    tables: list[embank.Table]
    steps: int = 0
    rows: int = 0
    position: dict[str, Any] | None = None
    largest_ids: torch.Tensor = field(
        default_factory=lambda: torch.zeros(CATEGORIES, dtype=torch.int64)
    )
    optimizer: torch.optim.Optimizer = field(init=False)
    loss: nn.Module = field(default_factory=nn.BCEWithLogitsLoss)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.dense_parameters(), lr=1e-3)

    def step(self, batch: Batch) -> torch.Tensor:
        """Trains on a batch and returns the logits that the model gave before the step."""
        self.optimizer.zero_grad(set_to_none=True)
        logits: torch.Tensor = self.model(batch)
        self.loss(logits, batch.labels).backward()
        self.optimizer.step()
        self.steps += 1
        self.rows += len(batch.labels)
        self.largest_ids = torch.maximum(self.largest_ids, ids_of(batch).amax(0))
        return logits.detach()

    def state(self, feed: pipeline.Feed | pipeline.RemoteFeed) -> bytes:
        """Returns the state that is not in the bank, for the checkpoint's blob. `feed` is ahead of
        training, and gives the names and sizes of its files."""
        blob = io.BytesIO()
        torch.save({"steps": self.steps, "rows": self.rows, "largest_ids": self.largest_ids,
                    "position": feed.state_dict(self.rows), "model": self.model.dense_state(),
                    "optimizer": self.optimizer.state_dict()}, blob)
        return blob.getvalue()

    def restore(self, blob: bytes) -> None:
        state = torch.load(io.BytesIO(blob), weights_only=True)
        self.steps, self.rows = state["steps"], state["rows"]
        self.position, self.largest_ids = state["position"], state["largest_ids"]
        self.model.load_dense_state(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


@dataclass(frozen=True)
class Outcome:
    """The result of a run. `auc` is of its last stretch. `waited` is the share of time without
    data, and `row_share` the share that waited for rows (`RowTimer`). `test_auc` is of the rows of
    `--test`, None without that option."""

    rows: int
    samples_per_second: float
    waited: float
    row_share: float
    auc: float
    test_auc: float | None = None


def train(given: argparse.Namespace) -> Outcome:
    with ExitStack() as stack:
        bank = stack.enter_context(embank.Bank(given.bank, memory_budget=given.budget))
        numbering = None
        if given.connect is None:
            spec = SPEC if given.modulus is None else pipeline.criteo(given.modulus)
            spec = replace(spec, vocabularies=VOCABULARIES)
            numbering = pipeline.Pipeline(spec, bank=bank, threads=given.pipeline_threads)
        tables = [
            # The table's keys are ids of this vocabulary. The table does not open with another
            # vocabulary.
            bank.table(name, dim=given.dim, optimizer=embank.Adagrad(lr=0.05),
                       initializer=embank.Uniform(-0.05, 0.05), seed=given.seed,
                       vocabulary=None if numbering is None else name)
            for name in NAMES
        ]
        bags: list[nn.Module] = [embank.torch.EmbeddingBag(table) for table in tables]
        shape = ModelShape(DENSE, CATEGORIES, given.dim, tuple(given.bottom), tuple(given.top),
                           given.model)
        training = Training(ClickModel(shape, bags, given.seed), tables)
        if given.resume and bank.recovered is not None:
            training.restore(bank.recovered.blob)
        skip = training.rows if training.position is None else training.position
        feed: pipeline.Feed | pipeline.RemoteFeed
        if numbering is None:
            feed = pipeline.connect(given.connect, skip_rows=skip)
            place: Callable[[int], str] = f"{given.connect}, row {{}}".format
        else:
            texts = sources(given)
            feed = numbering.feed(texts, batch_rows=given.batch_size, skip_rows=skip)
            place = partial(row_of, texts)
        with feed:
            outcome = run(given, bank, training, feed, Timed(feed, place, training.rows))
        if numbering is not None and given.test:
            outcome = replace(outcome, test_auc=score(given, numbering, training))
        return outcome


@torch.no_grad()
def score(given: argparse.Namespace, numbering: pipeline.Pipeline, training: Training) -> float:
    """Returns the AUC of the rows of `--test`. Their labels and scores, 8 bytes a row, stay in
    memory, and sorting them takes about 40 more.

    The feed of training may have given ids to categories of rows after the last step. Their number
    depends on the threads. So an id above the largest one of the rows of training counts as id 0.
    """
    training.model.eval()
    scored = Stretch()
    with numbering.feed(given.test, batch_rows=given.batch_size, learn=False) as feed:
        for batch in Timed(feed, partial(row_of, given.test), 0):
            ids = ids_of(batch)
            known = ids.where(ids <= training.largest_ids, 0)
            bags = [Bag(column.unsqueeze(1), None) for column in known.t().contiguous()]
            scored.add(batch.labels, training.model(replace(batch, bags=bags)))
    return scored.end()


def run(
    given: argparse.Namespace, bank: embank.Bank, training: Training,
    feed: pipeline.Feed | pipeline.RemoteFeed, batches: Timed,
) -> Outcome:
    ahead = embank.torch.LookaheadLoader(
        batches, lambda batch: batch_keys(training.tables, batch), given.lookahead
    )
    row_timer = RowTimer(training.model.bags)
    first, started, paused = training.rows, time.perf_counter(), 0.0
    stretch = Stretch()
    with tqdm(initial=first, desc="training", unit=" rows", unit_scale=True, disable=None) as bar:
        for done, batch in enumerate(ahead, 1):
            stretch.add(batch.labels, training.step(batch))
            bar.update(len(batch.labels))
            if training.steps % given.report_every == 0:
                bar.set_postfix(auc=f"{stretch.end():.4f}", refresh=False)
            if training.steps % given.checkpoint_every == 0:
                begun = time.perf_counter()
                bank.checkpoint(training.state(feed))
                paused += time.perf_counter() - begun
            if done == given.steps:
                break
    seconds = time.perf_counter() - started - paused
    bank.checkpoint(training.state(feed))
    rows = training.rows - first
    return Outcome(rows, rows / seconds, batches.seconds / seconds, row_timer.take() / seconds,
                   stretch.end())


@dataclass
class Stretch:
    """Labels and scores of the rows of a stretch, and the AUC of the stretch before."""

    labels: list[torch.Tensor] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)
    last: float = float("nan")

    def add(self, labels: torch.Tensor, scores: torch.Tensor) -> None:
        self.labels.append(labels)
        self.scores.append(scores)

    def end(self) -> float:
        """Ends the stretch and returns its AUC. If the stretch has no row, returns the AUC of the
        stretch before."""
        if self.labels:
            self.last = auc(torch.cat(self.labels).numpy(), torch.cat(self.scores).numpy())
            self.labels, self.scores = [], []
        return self.last


def sources(given: argparse.Namespace) -> list[Path]:
    """Returns the files to train on, in order."""
    if given.text:
        return list(given.text)
    made = GeneratorOptions(given.rows, seed=given.seed)
    return [generate(given.data / "criteo" / made.name, made)]


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    torch.set_num_threads(given.threads)
    try:
        given.bank.parent.mkdir(parents=True, exist_ok=True)
        if given.bank.exists() and not given.resume:
            raise ValueError(f"{given.bank} is there: --resume continues it; or remove it")
        if given.connect is not None and (given.text or given.test):
            raise ValueError("with --connect the server reads the files: give no text, no --test")
        for path in (*given.text, *given.test):
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file")
        outcome = train(given)
    except (ValueError, RuntimeError, OSError, FloatingPointError, embank.EmbankError) as error:
        print(f"error: {error or type(error).__name__}", file=sys.stderr)
        return 1
    print(f"{outcome.rows:,} rows, {outcome.samples_per_second:,.0f} samples/s, "
          f"{outcome.waited:.2%} of the time waiting for data, {outcome.row_share:.0%} for rows, "
          f"AUC {outcome.auc:.4f}")
    if outcome.test_auc is not None:
        print(f"test AUC {outcome.test_auc:.4f}")
    if given.json is not None:
        given.json.write_text(json.dumps(vars(outcome)))
    return 0


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="stream", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("text", type=Path, nargs="*", help="files of the Criteo format, compressed or not, in the "
        "order of training (default: generate one)")
    add("--test", type=Path, nargs="+", default=[], metavar="FILE", help="files whose rows the "
        "trained model scores")
    add("--rows", type=int, default=600_000, help="rows to generate (default %(default)s)")
    add("--modulus", type=int, metavar="N", help="take categories modulo N (default: no "
        "modulus)")
    add("--connect", metavar="URI", help="take batches from `embank serve` instead")
    add("--bank", type=Path, default=TARGET / "stream" / "clicks.bank", metavar="DIR",
        help="vocabularies and rows (default target/stream/clicks.bank)")
    add("--budget", default="64MiB", metavar="SIZE",
        help="memory of the bank (default %(default)s)")
    add("--model", choices=tuple(INTERACTIONS), default="dlrm", help="default %(default)s")
    add("--dim", type=int, default=32, help="values of a vector (default %(default)s)")
    add("--bottom", type=int, nargs="*", default=[512, 256, 64], help="layers of the bottom MLP")
    add("--top", type=int, nargs="*", default=[512, 256], help="layers of the top MLP")
    add("--batch-size", type=int, default=2048, help="default %(default)s; with --connect, the "
        "server has it")
    add("--lookahead", type=int, default=3, help="batches announced (default %(default)s)")
    add("--steps", type=int, help="end after this many steps (default: after the last row)")
    add("--checkpoint-every", type=int, default=200, metavar="STEPS", help="default %(default)s")
    add("--report-every", type=int, default=25, metavar="STEPS", help="default %(default)s")
    add("--resume", action="store_true", help="continue from the bank's last checkpoint")
    add("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    add("--pipeline-threads", type=int, default=1, help="threads of the pipeline (default %(default)s)")
    add("--seed", type=int, default=0, help="default %(default)s")
    add("--data", type=Path, default=TARGET / "data", help="generated rows (default target/data)")
    add("--json", type=Path, metavar="FILE", help="write the outcome to this file")
    return options


if __name__ == "__main__":
    sys.exit(main())
