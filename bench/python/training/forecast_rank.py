"""A rank of the measurement `forecast`: one of `distributed` that also takes the times which the
simulator needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from distributed_rank import Outcome, Place, Training
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from workloads import Clicks

import embank
from embeddings import batch_keys

CALLS = 50
PIECE_FLOATS = 1 << 18
REPEATS = 4
STEPS_KEPT = 100


@dataclass(frozen=True)
class Watched(Outcome):
    """Counts and times of a rank. Times are seconds, as in `fleet_simulator.Parts`."""

    get_at: float = 0.0
    buckets: tuple[tuple[int, float], ...] = ()
    gradients_at: float = 0.0
    message: float = 0.0
    message_byte: float = 0.0
    ring_round: float = 0.0
    repeated: float = 0.0


class WatchedTraining(Training):
    """The run of one rank. Notes where in the computing of a step the exchanges begin."""

    def __init__(self, work: Clicks, place: Place, seed: int) -> None:
        super().__init__(work, place, seed)
        self.events: list[tuple[str, int, float]] = []
        """What has begun since the step's begin: its name, its bytes, and the time."""
        self.of_steps: list[tuple[tuple[str, int, float], ...]] = []
        """For each step its events, as shares of its computing."""
        if place.ranks > 1:
            self.bank.get_many = self.noted("get", self.bank.get_many)
            self.bank.apply_many = self.noted("gradients", self.bank.apply_many)
            model: Any = self.model
            # PyTorch refuses a hook whose annotations are text.
            model.register_comm_hook(None, lambda _, bucket: self.sum_bucket(bucket))

    def train(self) -> Iterator[torch.Tensor]:
        begin = self.clock.outside()
        for loss in super().train():
            end = self.clock.outside()
            self.of_steps.append(tuple(
                (name, count, (at - begin) / (end - begin)) for name, count, at in self.events
            ))
            self.events.clear()
            yield loss
            begin = self.clock.outside()

    def noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            self.note(name, 0)
            return call(*arguments, **named)

        return noted

    def note(self, name: str, count: int) -> None:
        self.events.append((name, count, self.clock.outside()))

    def sum_bucket(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self.note("bucket", bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def outcome(self) -> Outcome:
        if self.place.ranks == 1:
            return super().outcome()
        message = self.message_seconds(0)
        byte = (self.message_seconds(PIECE_FLOATS) - message) / (4 * PIECE_FLOATS * (self.place.ranks - 1))
        watched: dict[str, Any] = {
            **self.shares(), "message": message, "message_byte": byte,
            "ring_round": self.ring_round_seconds(), "repeated": self.repeated_seconds(),
        }
        return Watched(**{**asdict(super().outcome()), **watched})

    def shares(self) -> dict[str, Any]:
        """Returns the shares of a step's computing before its events: medians of the last steps."""
        names = [event[0] for event in self.of_steps[-1]]
        # DistributedDataParallel forms its buckets again after its first step.
        steps = [
            step for step in self.of_steps[-STEPS_KEPT:] if [event[0] for event in step] == names
        ]
        shares = [median(event[2] for event in events) for events in zip(*steps)]
        found = list(zip(names, (event[1] for event in steps[-1]), shares))
        by_name = {name: share for name, _, share in found}
        buckets = tuple((count, share) for name, count, share in found if name == "bucket")
        return {"get_at": by_name["get"], "buckets": buckets, "gradients_at": by_name["gradients"]}

    def message_seconds(self, floats: int) -> float:
        """The time of a message to all ranks with `floats` to each of the others."""
        exchange = self.bank.rounds.exchange
        lengths = [0 if rank == exchange.rank else floats for rank in range(exchange.size)]
        pieces = [np.zeros(length, np.float32) for length in lengths]
        return seconds_of(lambda: exchange.pieces(pieces, lengths))

    def ring_round_seconds(self) -> float:
        one = torch.zeros(1)
        return seconds_of(lambda: dist.all_reduce(one)) / (2 * (self.place.ranks - 1))

    def repeated_seconds(self) -> float:
        """The time of the own shard for a key that a get repeats: a get of keys that are all there
        `REPEATS` times, less one of the same keys once."""
        keys: dict[Any, Any] = {}
        of_batch: dict[Any, Any] = batch_keys(self.tables, self.data.batch(self.rows(0)))
        for table, asked in of_batch.items():
            of = table.request(asked)
            keys[table.local] = of.keys[of.of_rank[self.place.rank]]
        count = sum(map(len, keys.values()))

        def get(repeats: int) -> None:
            for lease in embank.get_many([(table, np.tile(of, repeats)) for table, of in keys.items()]):
                lease.release()

        return max(0.0, seconds_of(lambda: get(REPEATS)) - seconds_of(lambda: get(1))) / (
            (REPEATS - 1) * count
        )


def seconds_of(call: Callable[[], Any]) -> float:
    """Returns the median time of `CALLS` calls, after one that warms up."""
    call()
    taken = []
    for _ in range(CALLS):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return median(taken)
