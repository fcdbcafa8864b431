"""Simulates training on several ranks, step by step, from the measured parts of a step.

A rank's step over a sharded bank, after `docs/distributed.md`:

    batch | distinct keys | headers, keys | own shard: get | rows | forward, backward
          | headers, gradients | own shard: apply | rest of the step

Three kinds of things take time.

- **Work** keeps the rank's core busy. Ranks that share a core share it equally. The computing of
  each rank and step is drawn from the measured ones.
- **Messages** to all ranks end for a rank when all have sent it theirs, so a step waits for the
  slowest rank. Messages pass links: one for each rank and direction, or the loopback, which all
  ranks of a machine share.
- **The sum of the dense gradients** is a ring (Patarasuk and Yuan, 2009): a rank sends
  `2 (W - 1) / W` times their bytes. It begins when the last rank has them, and runs beside the rest
  of the backward pass.

The numbers of keys are drawn, not computed by a formula: every rank draws a batch, and a hash finds
the owner of each distinct key. An owner has less work for the keys that several ranks ask for, than
for as many different keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FRAME = 1514 / 1448
"""The bytes of a full Ethernet frame with headers of TCP and IPv4, and those of its payload."""
KEY_BYTES, FLOAT_BYTES = 8, 4
DRAWN_BATCHES = 2
"""The number of batches that are drawn for each rank. Their counts of keys are about equal."""
WARM_UP_STEPS = 5
STEPS = 200


@dataclass(frozen=True)
class Keys:
    """The keys of a batch: `rows` samples with one key of each table, as `examples/dlrm` generates
    them.

    Table t has `sizes[t]` keys, whose frequency falls with their rank by Zipf's law with the
    exponent `skew`. A share `missing` of the samples has one more key, which stands for no value.
    """

    rows: int
    sizes: tuple[int, ...]
    skew: float
    missing: float

    def hottest(self, count: int) -> list[int]:
        """Returns for each table how many of the `count` most frequent keys of all tables it has.
        Key 0 stands for no value. The other keys follow in the order of their frequency."""
        of_tables, ordered = frequencies(self)
        if count == 0:
            return [0] * len(self.sizes)
        least = ordered[-min(count, len(ordered))]
        return [int(np.count_nonzero(of >= least)) for of in of_tables]

    def drawn(self, table: int, ranks: int, rng: np.random.Generator) -> Integers:
        """Returns keys of one table for a batch of each rank, `(ranks, rows)`."""
        shape = (ranks, self.rows)
        power, size = 1 - self.skew, self.sizes[table]
        top = (size + 1.0) ** power
        uniform = (1 + rng.random(shape) * (top - 1)) ** (1 / power)
        keys: Integers = np.minimum(uniform, size).astype(np.int64)
        keys[rng.random(shape) < self.missing] = 0
        return keys


@lru_cache(maxsize=2)
def frequencies(keys: Keys) -> tuple[list[Floats], Floats]:
    """Returns for each table the expected share of the samples that have each key, and the shares
    of all tables in ascending order."""
    found = []
    for size in keys.sizes:
        bounds = np.arange(1, size + 2, dtype=np.float64) ** (1 - keys.skew)
        shares = (bounds[:-1] - bounds[1:]) / (bounds[0] - bounds[-1])
        found.append(np.concatenate([[keys.missing], (1 - keys.missing) * shares]))
    return found, np.sort(np.concatenate(found))


@dataclass(frozen=True)
class Counts:
    """The distinct keys of one step, summed over the tables.

    `asked[i, j]` are those of rank i that rank j owns. Of all ranks together, rank j owns
    `distinct[j]` keys, and `cold[j]` of them are not among the hottest. Rank i asks for `hot[i]` of
    the hottest.
    """

    asked: Integers
    distinct: Integers
    cold: Integers
    hot: Integers


def owners(table: int, keys: Integers, ranks: int) -> Integers:
    """Returns the rank that owns each key, by a hash that is as good as uniform (the finalizer of
    SplitMix64)."""
    bits = keys.astype(np.uint64) + np.uint64((table + 1) << 40)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    found: Integers = ((bits ^ (bits >> np.uint64(31))) % np.uint64(ranks)).astype(np.int64)
    return found


@lru_cache(maxsize=64)
def draw(keys: Keys, ranks: int, hottest: int, seed: int) -> Counts:
    """Draws a batch for each rank, and counts. `hottest` is the number of the hottest keys. The
    arrays of the result must not be changed."""
    rng = np.random.default_rng(seed)
    asked = np.zeros((ranks, ranks), dtype=np.int64)
    distinct, cold, hot = (np.zeros(ranks, dtype=np.int64) for _ in range(3))
    for table, of_hot in enumerate(keys.hottest(hottest)):
        found = keys.drawn(table, ranks, rng)
        size = keys.sizes[table] + 1
        of_ranks = np.unique(found + size * np.arange(ranks)[:, None])
        rank, key = of_ranks // size, of_ranks % size
        pairs = rank * ranks + owners(table, key, ranks)
        asked += np.bincount(pairs, minlength=ranks * ranks).reshape(ranks, ranks)
        hot += np.bincount(rank[key < of_hot], minlength=ranks)
        every = np.unique(key)
        owner = owners(table, every, ranks)
        distinct += np.bincount(owner, minlength=ranks)
        cold += np.bincount(owner[every >= of_hot], minlength=ranks)
    return Counts(asked, distinct, cold, hot)


def rows_in_memory(keys: Keys, ranks: int, reads: float) -> int:
    """Returns the number of hottest rows beside which a rank of `ranks` reads `reads` rows a step
    from disk."""
    low, high = 0, sum(keys.sizes) + len(keys.sizes)
    # Ends, because each turn halves the range.
    while low < high:
        middle = (low + high) // 2
        if draw(keys, ranks, middle, 0).cold.mean() > reads:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Parts:
    """The measured parts of a step. Times are seconds of one core.

    Attributes:
        keys: The keys of a rank's batch.
        dim: Floats of a row.
        alone: Each step of one rank, without its bank.
        alone_bank: The bank of one rank, a step.
        computing: Each step of a rank of two, without the exchange, the own shard, and the
            processor time of the sum of the dense gradients.
        get_at: The share of the computing before the rows are asked for.
        buckets: The sums of dense gradients, in the order of the backward pass: bytes, and the
            share of the computing before.
        gradients_at: The share of the computing before the gradients go to their owners.
        exchange: Keys, copies and sums of the exchange of a rank of two, a step.
        peer: What each rank beyond the second adds to the step of every rank.
        header_bytes: A header to one rank, as two ranks have it.
        message: A message to all ranks without content.
        message_byte: A byte that a rank sends and gets, in memory and kernel.
        ring_round: A round of the ring without content.
        repeated: The own shard for a key that it was asked for before in the step.
        distinct: The own shard for a key in memory: its get and its step.
        disk_read: The own shard for a row that it reads from disk, beyond `distinct`.
        in_memory: The number of the hottest rows that the budgets of all ranks together keep in
            memory. Every other row comes from disk.
    """

    keys: Keys
    dim: int
    alone: tuple[float, ...]
    alone_bank: float
    computing: tuple[float, ...]
    get_at: float
    buckets: tuple[tuple[int, float], ...]
    gradients_at: float
    exchange: float
    peer: float
    header_bytes: float
    message: float
    message_byte: float
    ring_round: float
    repeated: float
    distinct: float
    disk_read: float
    in_memory: int

    def own_shard(self, counts: Counts) -> Floats:
        """Returns the seconds of each rank's own shard."""
        repeats = counts.asked.sum(axis=0) - counts.distinct
        found: Floats = (
            self.repeated * repeats + self.distinct * counts.distinct
            + self.disk_read * counts.cold
        )
        return found

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Parts:
        """Makes parts of what `plain` returned, also after a way through JSON."""
        keys = Keys(**{**plain["keys"], "sizes": tuple(plain["keys"]["sizes"])})
        tuples = {name: tuple(plain[name]) for name in ("alone", "computing")}
        buckets = tuple((int(count), float(share)) for count, share in plain["buckets"])
        return cls(**{**plain, **tuples, "keys": keys, "buckets": buckets})


@dataclass(frozen=True)
class Network:
    """`latency` is that of one way, in seconds. If `shared`, all ranks send through one token
    bucket, which holds `burst_bytes`, as the loopback of one machine under `tc ... tbf`. Otherwise
    each rank has a link of its own that carries both directions at once."""

    bits_per_second: float
    latency: float = 0.0
    shared: bool = False
    burst_bytes: float = 0.0


class Links:
    """The links of a network, over the time of a simulation."""

    def __init__(self, network: Network, ranks: int) -> None:
        self.network, self.ranks = network, ranks
        self.byte_seconds = 8 * FRAME / network.bits_per_second
        lines = 1 if network.shared else ranks
        # For each link and direction the time at which it has carried everything.
        self._out: Floats = np.zeros(lines)
        self._into: Floats = np.zeros(lines)

    def all_to_all(self, posted: Floats, sent: Floats) -> Floats:
        """Sends `sent[i, j]` bytes from rank i to rank j. Rank i begins at `posted[i]`. Returns for
        each rank the time at which it has sent and got everything.

        gloo sends bytes after both ranks have begun.
        """
        # In the order of their begins, the messages of each rank begin in the order of its columns.
        order = np.argsort(posted, kind="stable")
        begin = np.maximum.outer(posted[order], posted[order]) + self.network.latency
        taken = sent[np.ix_(order, order)] * self.byte_seconds
        np.fill_diagonal(taken, 0.0)
        if self.network.shared:
            of_all = np.argsort(begin.reshape(-1), kind="stable")
            lines = (begin.reshape(1, -1)[:, of_all], taken.reshape(1, -1)[:, of_all])
            self._out = self._carried(self._out, *lines)
            arrived = np.maximum(begin.max(axis=1), self._out)
        else:
            out = self._carried(self._out[order], begin, taken)
            into = self._carried(self._into[order], begin, taken.T)
            self._out[order], self._into[order] = out, into
            # The bytes of a sender to all ranks share its link, and so end together.
            arrived = np.maximum(into, max(begin.max(), out.max()))
        found = np.empty(self.ranks)
        found[order] = arrived + self.network.latency
        return found

    def all_reduce(self, posted: Floats, count: float, round_seconds: float) -> float:
        """Sums `count` bytes of all ranks in a ring. Returns the time at which all have the sum."""
        rounds = 2 * (self.ranks - 1)
        each = rounds * count / self.ranks * (self.ranks if self.network.shared else 1)
        begin, taken = posted.max(), each * self.byte_seconds
        lines = (len(self._out), 1)
        self._out = self._carried(self._out, np.full(lines, begin), np.full(lines, taken))
        self._into = np.maximum(self._into, self._out)
        last = max(begin, self._out.max())
        return float(last + rounds * (round_seconds + self.network.latency))

    def _carried(self, free: Floats, begin: Floats, taken: Floats) -> Floats:
        """Returns the time at which each link has carried its messages. Those of link i begin at
        `begin[i]`, in ascending order. A link rests only while it has no message. A token bucket
        works off up to a burst before the messages come."""
        begin = begin - self.network.burst_bytes * 8 / self.network.bits_per_second
        # A link has no rest after one of its messages has begun, or from `free` on.
        after = np.cumsum(taken[:, ::-1], axis=1)[:, ::-1]
        ends: Floats = np.maximum((begin + after).max(axis=1), free + after[:, 0])
        return ends


def worked(begin: Floats, work: Floats, cores: Sequence[int] | None) -> Floats:
    """Returns the time at which each rank has done its work. `cores` has the core of each rank;
    None gives each rank its own. Ranks with work on one core at one time share it equally."""
    if cores is None:
        return begin + work
    ends = begin + work
    for core in set(cores):
        ranks = np.flatnonzero(np.asarray(cores) == core)
        left, now = work[ranks].copy(), 0.0
        # Ends, because each turn ends the work of a rank, or reaches the beginning of another.
        while (left > 0).any():
            active = (left > 0) & (begin[ranks] <= now)
            later = begin[ranks][(left > 0) & (begin[ranks] > now)]
            if not active.any():
                now = later.min()
                continue
            share = left[active].min()
            until = now + share * active.sum()
            if later.size and later.min() < until:
                share, until = (later.min() - now) / active.sum(), later.min()
            left[active] -= share
            left[left < 1e-12] = 0.0
            now = until
            ends[ranks[active & (left == 0)]] = now
    return ends


def step_seconds(
    parts: Parts, ranks: int, network: Network, *, cores: Sequence[int] | None = None,
    steps: int = STEPS, seed: int = 0,
) -> float:
    """Returns the mean seconds of a step of `ranks` ranks. `cores` as for `worked`."""
    rng = np.random.default_rng(seed)
    if ranks == 1:
        return float(rng.choice(parts.alone, steps).mean()) + parts.alone_bank
    drawn = [draw(parts.keys, ranks, parts.in_memory, seed + of) for of in range(DRAWN_BATCHES)]
    step = Step(parts, Links(network, ranks), cores)
    times: list[Floats] = [np.zeros(ranks)]
    for number in range(WARM_UP_STEPS + steps):
        computing = rng.choice(parts.computing, ranks)
        times.append(step.taken(times[-1], computing, drawn[number % DRAWN_BATCHES]))
    return float(times[-1].max() - times[WARM_UP_STEPS].max()) / steps


@dataclass
class Step:
    """A step of all ranks. Its methods take and return a time for each rank."""

    parts: Parts
    links: Links
    cores: Sequence[int] | None

    def taken(self, now: Floats, computing: Floats, counts: Counts) -> Floats:
        """Returns the ends of a step that begins at `now`."""
        parts, ranks = self.parts, self.links.ranks
        # A get and its gradients are alike: each has half of what is measured as one.
        calls = np.full(ranks, (parts.exchange + parts.peer * (ranks - 2)) / 2)
        shard = parts.own_shard(counts) / 2
        keys: Floats = KEY_BYTES * counts.asked.astype(np.float64)
        rows: Floats = FLOAT_BYTES * parts.dim * counts.asked.astype(np.float64)
        headers = np.full((ranks, ranks), parts.header_bytes)

        now = self.work(now, computing * parts.get_at + calls)
        now = self.message(now, headers)
        now = self.message(now, keys)
        now = self.message(self.work(now, shard), rows.T)
        done, summed = parts.get_at, 0.0
        for count, at in parts.buckets:
            now = self.work(now, computing * (at - done) + self.ring_work(count))
            summed = self.links.all_reduce(now, count, parts.ring_round)
            done = at
        now = self.work(now, computing * (parts.gradients_at - done) + calls)
        now = self.message(self.message(now, headers), rows)
        now = np.maximum(self.work(now, shard), summed)
        return self.work(now, computing * (1 - parts.gradients_at))

    def work(self, now: Floats, seconds: Floats) -> Floats:
        return worked(now, seconds, self.cores)

    def message(self, now: Floats, sent: Floats) -> Floats:
        """Sends a message to all ranks."""
        both = (sent.sum(axis=0) + sent.sum(axis=1)) / 2 - np.diag(sent)
        now = self.work(now, both * self.parts.message_byte)
        return self.links.all_to_all(now, sent) + self.parts.message

    def ring_work(self, count: int) -> float:
        """The processor time of a sum of `count` bytes."""
        ranks = self.links.ranks
        return 2 * (ranks - 1) / ranks * count * self.parts.message_byte
