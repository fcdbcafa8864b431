"""One rank of the measurement `distributed`, in a process of its own: trains when it is asked to.

A run with one rank has a bank and no process group. A run with several has a `ShardedBank`, and
`DistributedDataParallel` for the dense part. Both train one model in one loop.

A clock takes the time of calls. It replaces the functions that it times: the calls of the store on
several tables, the messages of the exchange, and the calls of the sharded bank.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workloads import Clicks, family

import embank
import embank.torch
from embank.torch.distributed import ShardedBank

family("dlrm")

from data import Batch  # noqa: E402
from embeddings import batch_keys, fill  # noqa: E402
from model import ClickModel, ModelShape  # noqa: E402

LEARNING_RATE = 1e-3
ALL_REDUCES = 20
"""The number of sums of gradients whose time is taken alone."""
PARTS = ("waits", "messages", "store", "bank")
"""The parts of a step that the clock tells apart, each without the others. A rank *waits* in the
first message of an exchange, whose length does not depend on the keys, until the others have come
to it. *Messages* carry keys, rows and gradients. *Store* is the time in the rank's own shard;
with a depth above 0 the clock counts it as *bank*. *Bank* is the rest of the calls of the sharded
bank: finding distinct keys and their owners, copying rows, and adding gradients."""


@dataclass(frozen=True)
class Place:
    """What one rank trains: `rows` rows of each batch, over a bank in `folder` with `budget_bytes`.
    `depth` is that of `Pipelined`."""

    rank: int
    ranks: int
    rows: int
    budget_bytes: int
    depth: int
    folder: Path

    @property
    def meeting(self) -> Path:
        """The file in which the ranks meet."""
        return self.folder.with_name(f"{self.folder.name}-meeting")


@dataclass(frozen=True)
class Turn:
    """Some steps of one rank: their seconds and losses, and the seconds of `PARTS`.

    `computing` has for each step its seconds without those of `PARTS`. `computed` is the processor
    time of all threads, and `disturbed` the time that the training thread waited for its core while
    a thread of another program had it.
    """

    seconds: float
    computed: float
    disturbed: float
    losses: list[float]
    parts: dict[str, float]
    computing: list[float]


@dataclass(frozen=True)
class Outcome:
    """The counts of one rank since its first step.

    `remote_keys` are the distinct keys of each batch that another rank owns, and `key_bytes` the
    bytes that each costs, `8 + 2 * 4 * dim`. `bytes_sent` are those of keys, rows and gradients to
    other ranks, as the bank counts them, and `header_bytes` those of the other messages.
    `disk_reads` are the rows that its shard has read from disk.
    """

    steps: int
    disk_reads: int
    remote_keys: int = 0
    key_bytes: int = 0
    bytes_sent: int = 0
    header_bytes: int = 0
    all_reduce_seconds: float = 0.0


@dataclass
class Clock:
    """The seconds of each part, without the time of the parts inside of it."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    header_bytes: int = 0
    _inside: list[float] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        self._inside.append(0.0)
        try:
            yield
        finally:
            taken = time.perf_counter() - started
            self.seconds[name] += taken - self._inside.pop()
            if self._inside:
                self._inside[-1] += taken

    def outside(self) -> float:
        """A time in seconds that rests inside of the parts. Must be called outside of them."""
        return time.perf_counter() - sum(self.seconds.values())

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return call(*arguments, **named)

        return timed

    def watch_store(self) -> None:
        """Times the calls of this process on several tables of the store from now on."""
        store: Any = embank
        for name in ("get_many", "get_bags_many", "apply_many"):
            setattr(store, name, self.timed("store", getattr(store, name)))

    def watch(self, bank: ShardedBank) -> None:
        """Times the calls of this process on `bank` from now on."""
        exchange: Any = bank.rounds.exchange
        one_header = exchange.headers

        def headers(to_each: NDArray[np.int64]) -> NDArray[np.int64]:
            self.header_bytes += to_each.nbytes * (bank.shards - 1) // bank.shards
            with self.part("waits"):
                found: NDArray[np.int64] = one_header(to_each)
            return found

        exchange.headers = headers
        exchange.pieces = self.timed("messages", exchange.pieces)
        rounds, one_round = bank.rounds, bank.rounds.round

        @contextmanager
        def timed_round(doing: str) -> Iterator[None]:
            with self.part("bank"), one_round(doing):
                yield

        for at, name, call in (
            (rounds, "round", timed_round),
            (bank, "get_many", self.timed("bank", bank.get_many)),
            (bank, "apply_many", self.timed("bank", bank.apply_many)),
            (bank, "requests", self.timed("bank", bank.requests)),
        ):
            setattr(at, name, call)


def times() -> tuple[float, float, float, float]:
    """Returns in seconds the time, the processor time of the process and of this thread, and the
    time that this thread was ready to run and had no core (`proc(5)`, `schedstat`)."""
    waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return time.perf_counter(), time.process_time(), time.thread_time(), waited


class Model(nn.Module):
    """A click model over a collection of all tables: one exchange a batch."""

    def __init__(self, tables: list[Any], shape: ModelShape, seed: int) -> None:
        super().__init__()
        self.rows = embank.torch.EmbeddingBagCollection({table.name: table for table in tables})
        self.dense = ClickModel(shape, [nn.Identity() for _ in tables], seed)

    def forward(self, batch: Batch) -> torch.Tensor:
        keys = {name: bag.keys for name, bag in zip(self.rows.features, batch.bags, strict=True)}
        return self.dense.scores(batch.dense, list(self.rows(keys).values()))


class Training:
    """The run of one rank, at its first step."""

    def __init__(self, work: Clicks, place: Place, seed: int) -> None:
        self.place, self.data, self.clock = place, work.data, Clock()
        options: dict[str, Any] = {"memory_budget": place.budget_bytes, "device": work.device}
        self.bank: Any
        if place.ranks == 1:
            self.bank = self.local = embank.Bank(place.folder, **options)
        else:
            self.bank = ShardedBank(place.folder, **options)
            self.local = self.bank.local
        experiment = work.experiment
        self.tables = replace(experiment.tables, seed=seed).open(self.bank, work.data)
        fill(self.tables, work.data)
        self.inner = Model(self.tables, experiment.shape, seed)
        self.model: nn.Module = self.inner
        self.clock.watch_store()
        self.bytes_before = 0
        if place.ranks > 1:
            self.model = DistributedDataParallel(self.inner)
            self.clock.watch(self.bank)
            self.bytes_before = self.bank.bytes_sent
        self.optimizer = torch.optim.Adam(self.inner.parameters(), lr=LEARNING_RATE)
        self.per_epoch = experiment.split.train // (place.rows * place.ranks)
        self.taken = 0
        self.reads_before = self.disk_reads()
        self.steps = self.train()

    def rows(self, step: int) -> NDArray[np.int64]:
        """The rows of this rank in a step: `rank`, `rank + ranks`, ... of those of all ranks."""
        place = self.place
        begin = step % self.per_epoch * place.rows * place.ranks
        return np.arange(begin + place.rank, begin + place.rows * place.ranks, place.ranks)

    def train(self) -> Iterator[torch.Tensor]:
        batches = (self.data.batch(self.rows(step)) for step in itertools.count())
        loss_of = nn.BCEWithLogitsLoss()

        def keys(batch: Batch) -> dict[Any, Any]:
            return batch_keys(self.tables, batch)

        for batch in embank.torch.Pipelined(batches, keys, self.place.depth):
            self.optimizer.zero_grad(set_to_none=True)
            loss = loss_of(self.model(batch), batch.labels)
            loss.backward()
            self.optimizer.step()
            yield loss.detach()

    def take(self, steps: int) -> Turn:
        before = dict(self.clock.seconds)
        begin = times()
        losses, ends = [], [self.clock.outside()]
        for _ in range(steps):
            losses.append(next(self.steps))
            ends.append(self.clock.outside())
        seconds, computed, of_thread, waited = (b - a for a, b in zip(begin, times()))
        # While this thread waits for its core, either other threads of the process compute, or
        # other programs.
        disturbed = max(0.0, waited - (computed - of_thread))
        self.taken += steps
        parts = {name: of - before[name] for name, of in self.clock.seconds.items()}
        computing = [end - begin for begin, end in itertools.pairwise(ends)]
        losses_of = [float(loss) for loss in losses]
        return Turn(seconds, computed, disturbed, losses_of, parts, computing)

    def disk_reads(self) -> int:
        return sum(self.local.open_table(table.name).stats()["disk_reads"] for table in self.tables)

    def outcome(self) -> Outcome:
        """Counts, and closes the bank. The last call."""
        disk_reads = self.disk_reads() - self.reads_before
        found = Outcome(self.taken, disk_reads)
        if self.place.ranks > 1:
            found = replace(
                found,
                bytes_sent=self.bank.bytes_sent - self.bytes_before,
                header_bytes=self.clock.header_bytes,
                remote_keys=self.remote_keys(),
                key_bytes=8 + 2 * 4 * self.tables[0].dim,
                all_reduce_seconds=self.all_reduce_seconds(),
            )
        self.steps.close()  # type: ignore[attr-defined]
        self.bank.close()
        return found

    def remote_keys(self) -> int:
        """Counts the distinct keys of other ranks in all batches, batch by batch and table by
        table."""
        count = 0
        for step in range(self.taken):
            of_batch = batch_keys(self.tables, self.data.batch(self.rows(step)))
            for table, keys in of_batch.items():
                counts = table.request(keys).counts
                count += sum(counts) - counts[self.place.rank]
        return count

    def all_reduce_seconds(self) -> float:
        """Returns the median time of a sum of all dense gradients over the ranks, without other
        work."""
        count = sum(parameter.numel() for parameter in self.inner.parameters())
        gradients, taken = torch.zeros(count), []
        for _ in range(ALL_REDUCES):
            dist.barrier()
            started = time.perf_counter()
            dist.all_reduce(gradients)
            taken.append(time.perf_counter() - started)
        return float(np.median(taken))


def serve(
    pipe: Connection, given: argparse.Namespace, name: str, place: Place,
    training_of: type[Training] = Training,
) -> None:
    """Trains as many steps as `pipe` says and answers with a `Turn`, until it says 0. The last
    answer is an `Outcome`. After an error, the answer is the error's text."""
    try:
        torch.set_num_threads(given.threads)
        if place.ranks > 1:
            store = dist.FileStore(str(place.meeting), place.ranks)
            dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.ranks)
        model, _, disk = name.partition("-")
        training = training_of(Clicks(given, model, bool(disk)), place, given.seed)
        pipe.send(None)
        while steps := pipe.recv():
            pipe.send(training.take(steps))
        pipe.send(training.outcome())
        # A model in DistributedDataParallel must not outlive the process group.
        del training
        gc.collect()
        if place.ranks > 1:
            dist.destroy_process_group()
    except BaseException:
        pipe.send(traceback.format_exc())
        raise
