"""Measures what the order of the rows at rest costs: reads of the drive for each lookup.

Training reads rows that were used together. A log in order of use keeps them together, so one read
brings several of them. A design orders rows at rest by hash instead, which needs no index entry for
each row, and loses that. This program replays the keys of models in the order of training. A step
gets the rows of a batch, and then updates them:

- on the store in one tier: a bank whose budget is a share of the tables' bytes
- in a simulator (`layouts.py`) of the same layout and the same memory. Its reads are checked
  against the store's where the index has an entry for each row (else chains cost further reads)
- in the simulator with rows at rest in hash order, and the memory that this leaves the log
- in the simulator with rows at rest in order of use, and with that same memory: the difference
  between the last two is the order alone

A lookup is a distinct row of a table in a batch. Hash order is simulated with several lengths of
the hot log (over the length of frames and read cache), and with a part of the memory as read cache,
which training does not use. A variant of hash order gives one hash to 64 keys with neighbouring
numbers: rows have numbers in the order of their first use, as a vocabulary gives them.

Models whose data are equal have equal keys: DCN has those of DLRM, ComplEx those of DistMult, GAT
those of GraphSAGE. Two lines have more locality than the other data, which are drawn at random:
"second pass" repeats its batches in the order of the first pass, and "communities" is a graph most
of whose edges stay within groups of 100 nodes. "Reads of random records" are those that order of
use would make if it brought nothing: the rest is joined because the rows are dense.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import layouts
import measure
import numpy as np
from figures import Figure
from layouts import Cold, Counts, Ints, Log, Store, Tiers
from measure import Measured
from tqdm import tqdm
from workloads import Triples, family

import embank

SHARES, SHARES_QUICK = (1 / 4, 1 / 16, 1 / 64), (1 / 4,)
HOT, HOT_MORE = 1.25, (1.5, 2.0, 3.0)
CACHE_SHARES = (0.25, 0.5)
GROUP = 64
"""Rows with neighbouring numbers that have one hash, in the variant of hash order."""
INDEX_SHARES = (0.1, 0.2, 0.4)
"""Parts of the memory that the index may take in a bank of one tier."""
TWIN_ERROR_MAX = 0.05
"""How far the simulator's reads may be from the store's, as a share."""
BUDGET_BYTES_MIN = 512 << 10
FILL_ROWS = 65_536
COMMUNITY, COMMUNITY_DEGREE, COMMUNITY_SHARE = 100, 10, 0.9
"""The nodes of a community, the edges of a node, and the share of them that stay in it."""
Step = list[tuple[int, Ints]]


@dataclass(frozen=True)
class Replay:
    """The keys of a model. A step has the distinct rows of a batch, table by table.

    The batches after the first `warm` are measured."""

    sizes: tuple[int, ...]
    dim: int
    batches: list[Step]
    warm: int

    @property
    def value_bytes(self) -> int:
        return self.dim * 8

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    def budget_bytes(self, share: float) -> int:
        return max(BUDGET_BYTES_MIN, int(self.rows * self.value_bytes * share))

    def by_first_use(self) -> Ints:
        """Numbers the rows of each table in the order in which the batches use them."""
        first = np.cumsum([0, *self.sizes])
        number: Ints = np.full(self.rows, layouts.NOWHERE)
        given = [0] * len(self.sizes)
        unused = list(enumerate(np.arange(size) for size in self.sizes))
        for table, rows in itertools.chain(*self.batches, unused):
            new = first[table] + rows
            new = new[number[new] == layouts.NOWHERE]
            number[new] = given[table] + np.arange(new.size)
            given[table] += new.size
        return number

    def filling(self) -> Iterator[tuple[int, Ints]]:
        """All rows in random order, as pieces of a table each."""
        owner = layouts.table_numbers(self.sizes)
        first = np.cumsum([0, *self.sizes])
        order = np.random.default_rng(0).permutation(self.rows)
        for begin in range(0, self.rows, FILL_ROWS):
            chosen = order[begin : begin + FILL_ROWS]
            for table in range(len(self.sizes)):
                rows = chosen[owner[chosen] == table]
                if rows.size:
                    yield table, rows - first[table]


def clicks(batch_rows: int, rows: int, passes: int, steps: tuple[int, int]) -> Replay:
    """Rows of the Criteo format in order of time."""
    family("dlrm")
    from experiments import CriteoOptions, criteo_data

    options = measure.criteo(CriteoOptions(rows=rows, batch_size=batch_rows))
    data = criteo_data(None, measure.DATA, options).numbered()
    keys = [np.asarray(column.values) for column in data.columns]
    used = len(data) * 8 // 10
    begins = [begin for _ in range(passes) for begin in range(0, used, options.batch_size)]
    warm, measured = steps
    begins = begins[: warm + measured]
    return Replay(
        tuple(int(column.max()) + 1 for column in keys), options.dim,
        [[(table, np.unique(column[begin : min(begin + options.batch_size, used)]))
          for table, column in enumerate(keys)] for begin in begins],
        len(begins) - min(measured, len(begins) // 2),
    )


def triples(batch_size: int, steps: tuple[int, int]) -> Replay:
    """Triples of a knowledge graph in random order, with random negatives."""
    given = argparse.Namespace(device="auto")
    work = Triples(given, "distmult", batch_size < 1000)
    graph, warm = work.graph, steps[0]
    batches = itertools.chain.from_iterable(
        graph.batches(work.batch, work.given.negatives, 0, epoch) for epoch in itertools.count()
    )
    return Replay(
        (graph.entities, graph.relations), work.DIM,
        [[(0, batch.entities.numpy()), (1, np.unique(batch.relations.numpy()))]
         for batch in itertools.islice(batches, sum(steps))],
        warm,
    )


def neighbours(kind: str, nodes: int, batch_size: int, steps: tuple[int, int]) -> Replay:
    """Sampled neighbours of random nodes of a generated graph."""
    family("gnn")
    from bipartite import bipartite
    from graph import power_law
    from sampling import NeighbourSampler

    dim = 64
    graph = {
        "payments": lambda: bipartite(nodes, seed=0),
        "communities": lambda: communities(nodes),
        "power law": lambda: power_law(measure.DATA / f"powerlaw-{nodes}", nodes, seed=0),
    }[kind]()
    sampler, rng = NeighbourSampler(graph, (10, 10)), np.random.default_rng(0)
    batches = itertools.chain.from_iterable(
        sampler.batches(graph.train, batch_size, rng, shuffle=True) for _ in itertools.count()
    )
    return Replay((graph.nodes,), dim, [
        [(0, batch.nodes.numpy())] for batch in itertools.islice(batches, sum(steps))
    ], steps[0])


def communities(nodes: int) -> Any:
    """A graph of communities: most edges of a node lead to nodes of its community, as in citations
    and purchases. The numbers of the nodes do not show it."""
    from graph import Graph

    rng = np.random.default_rng(0)
    place = np.repeat(np.arange(nodes), COMMUNITY_DEGREE)
    near = place // COMMUNITY * COMMUNITY + rng.integers(0, COMMUNITY, place.size)
    far = rng.integers(0, nodes, place.size)
    ends = np.where((rng.random(place.size) < COMMUNITY_SHARE) & (near < nodes), near, far)
    number = rng.permutation(nodes)
    neighbours = np.empty((nodes, COMMUNITY_DEGREE), np.int64)
    neighbours[number] = number[ends].reshape(nodes, COMMUNITY_DEGREE)
    starts = np.arange(nodes + 1) * COMMUNITY_DEGREE
    train, none = rng.permutation(nodes), np.zeros(0, np.int64)
    return Graph(starts, neighbours.ravel(), np.zeros(nodes, np.int8), 1, None, train, none, none)


MODELS: dict[str, Callable[[], Replay]] = {
    "dlrm": lambda: clicks(2048, 600_000, 1, (154, 80)),
    "ffnn, second pass": lambda: clicks(256, 150_000, 2, (529, 200)),
    "distmult": lambda: triples(4000, (100, 40)),
    "complex, small batches": lambda: triples(500, (300, 120)),
    "graphsage": lambda: neighbours(
        "power law", *measure.sized((500_000, 512), (3000, 32)), (50, 20)
    ),
    "graphsage, communities": lambda: neighbours(
        "communities", *measure.sized((500_000, 256), (3000, 16)), (80, 30)
    ),
    "graphsage, payments": lambda: neighbours(
        "payments", *measure.sized((500_000, 256), (3000, 16)), (80, 30)
    ),
}


@dataclass(frozen=True)
class Stored:
    """What the store counted over the measured steps, and its memory after them."""

    counts: Counts
    index_bytes: int
    cache_bytes: int
    frames_bytes: int
    whole_index: bool


def main() -> int:
    options = measure.parser(__doc__)
    add = options.add_argument
    add("--model", choices=tuple(MODELS), nargs="+", help="default: all; with --quick, the last")
    add("--share", type=lambda text: 1 / int(text), nargs="+", metavar="N",
        help="budgets of 1/N of the tables' bytes (default: 4 16 64; quick: 4)")
    given = options.parse_args()
    names = list(MODELS)
    models = given.model or (names[-1:] if given.quick else names)
    if len(models) > 1:
        return measure.each_alone(__file__, models, given)
    name = models[0]
    replay = MODELS[name]()
    rows: list[Measured] = []
    for share in given.share or (SHARES_QUICK if given.quick else SHARES):
        rows += measured(name, replay, share, given)
    return measure.report(rows, given)


def measured(name: str, replay: Replay, share: float, given: argparse.Namespace) -> list[Measured]:
    """The lines of one model and one budget."""
    place = f"{name}, 1/{round(1 / share)}"
    budget = replay.budget_bytes(share)
    store = Store(budget, replay.value_bytes)
    stored = on_store(replay, budget, given)
    frames = store.frames_beside(stored.index_bytes + stored.cache_bytes)
    twin = simulated(replay, store, frames, None, f"{place}: twin")
    hash_order = {
        (hot, cache): Tiers(store, replay.rows, hot, cache)
        for hot, cache in [(HOT, 0.0), *((hot, 0.0) for hot in HOT_MORE),
                           *((HOT, cache) for cache in CACHE_SHARES)]
    }
    first = hash_order[HOT, 0.0]
    in_order = simulated(replay, store, first.frames, None, f"{place}: order of use")
    counts = {
        key: simulated(replay, store, tiers.frames, tiers, f"{place}: hash order {key}")
        for key, tiers in hash_order.items()
    }
    rank = layouts.grouped(layouts.table_numbers(replay.sizes), replay.by_first_use(), GROUP)
    groups = simulated(replay, store, first.frames, first, f"{place}: groups", rank)
    judged = stored.whole_index and measure.SMOKE is None
    lookups = {found.lookups for found in (twin, in_order, groups, *counts.values())}
    rows = [
        one(f"{place}: lookups", twin.lookups, "", passed=lookups == {stored.counts.lookups}),
        *lines(f"{place}: store", stored.counts),
        *lines(f"{place}: its simulator", twin),
        one(f"{place}: simulated reads over the store's", ratio(twin.reads, stored.counts.reads),
            "x", passed=near(twin, stored) if judged else None),
        one(f"{place}: part of the store's memory that the index takes",
            stored.index_bytes / store.store_bytes, ""),
        one(f"{place}: store, frames", stored.frames_bytes / store.page_bytes, "pages"),
        *lines(f"{place}: order of use", in_order),
        one(f"{place}: hash order, frames", first.frames, "pages"),
        one(f"{place}: hash order, block", first.block_bytes, "B"),
    ]
    rows += [one(f"{place}: tiers if the index may take {part:g} of the memory",
                 first.tiers(part), "") for part in INDEX_SHARES]
    for (hot, cache), found in counts.items():
        label = f"{place}: hash order, hot log {hot:g}" + (f", cache {cache:g}" if cache else "")
        rows += lines(label, found, (in_order, stored.counts))
    label = f"{place}: hash order of groups of {GROUP}"
    return rows + lines(label, groups, (in_order, stored.counts))


def on_store(replay: Replay, budget: int, given: argparse.Namespace) -> Stored:
    """Replays the keys on a bank."""
    folder = measure.SCRATCH / f"locality-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    bank = embank.Bank(folder, memory_budget=budget, device=given.device, threads=1)
    try:
        tables = [
            bank.table(f"t{number}", replay.dim, optimizer=embank.Adagrad(),
                       initializer=embank.Zeros())
            for number in range(len(replay.sizes))
        ]
        for table, rows in shown(replay.filling(), "filling the bank"):
            tables[table].put(rows, np.zeros((rows.size, replay.dim), np.float32))
        before = Counts()
        for number, step in enumerate(shown(replay.batches, "training on the bank")):
            if number == replay.warm:
                before = counted(bank)
            leases = [tables[table].get_distinct(rows) for table, rows in step]
            for lease, (_, rows) in zip(leases, step):
                lease.apply(np.zeros((rows.size, replay.dim), np.float32))
        stats = bank.stats()
        memory = stats["memory"]
        return Stored(counted(bank).since(before), memory["index_bytes"], memory["cache_bytes"],
                      memory["frames_bytes"], stats["index_entries"] >= replay.rows * 0.999)
    finally:
        bank.close()
        shutil.rmtree(folder, ignore_errors=True)


def counted(bank: Any) -> Counts:
    stats = bank.stats()
    disk = stats["disk"]
    gets = stats["operations"]["get_keys"]
    return Counts(
        lookups=gets, missed=stats["hits"]["disk"], places=disk["reads"] + disk["reads_joined"],
        reads=disk["reads"], bytes=disk["read_bytes"], appended=stats["records_appended"],
        retained=stats["retained"],
    )


def simulated(
    replay: Replay, store: Store, frames: int, tiers: Tiers | None, what: str,
    rank: Ints | None = None,
) -> Counts:
    """Replays the keys in the simulator."""
    table = layouts.table_numbers(replay.sizes)
    first = np.cumsum([0, *replay.sizes])
    log = Log(store, table, frames, None if tiers is None else Cold(tiers, rank))
    for number, rows in replay.filling():
        log.fill(first[number] + rows)
    log.settle()
    before = Counts()
    for number, step in enumerate(shown(replay.batches, what)):
        if number == replay.warm:
            before = Counts(**vars(log.counts))
        for of, rows in step:
            log.get(first[of] + rows)
        for of, rows in step:
            log.update(first[of] + rows)
    return log.counts.since(before)


def lines(label: str, counts: Counts, against: Sequence[Counts] = ()) -> list[Measured]:
    """The reads of a layout for each lookup; `against` has those of the order of use with equal
    memory, and those of the store."""
    each = max(1, counts.lookups)
    reads = (counts.reads + counts.false_reads) / each
    rows = [
        one(f"{label}: reads", reads, "a lookup"),
        one(f"{label}: rows not in memory", counts.missed / each, "a lookup"),
        one(f"{label}: reads without joins", (counts.places + counts.false_reads) / each,
            "a lookup"),
        one(f"{label}: bytes read", counts.bytes / each, "B a lookup"),
    ]
    if counts.scattered:
        rows.append(one(f"{label}: reads of random records", counts.scattered / each, "a lookup"))
    if against:
        rows += [
            one(f"{label}: rows not in the hot log", counts.cold / each, "a lookup"),
            one(f"{label}: rows merged for each row that went cold",
                ratio(counts.merged, counts.spilled), ""),
        ]
        for other, name in zip(against, ("order of use", "store")):
            old = other.reads / max(1, other.lookups)
            rows.append(one(f"{label}: reads over those of {name}", ratio(reads, old), "x"))
            old = other.places / max(1, other.lookups)
            new = (counts.places + counts.false_reads) / each
            rows.append(one(f"{label}: reads without joins over those of {name}",
                            ratio(new, old), "x"))
    return rows


def one(name: str, value: float, unit: str, passed: bool | None = None) -> Measured:
    return Measured(Figure(name, float(value), unit), passed=passed)


def ratio(value: float, other: float) -> float:
    """`value` over `other`; 1 if both are 0."""
    return value / other if other else float(value == other)


def near(twin: Counts, stored: Stored) -> bool:
    return abs(ratio(twin.reads, stored.counts.reads) - 1) <= TWIN_ERROR_MAX


def shown(items: Iterable[Any], what: str) -> Any:
    return tqdm(items, desc=what, leave=False, disable=None)


if __name__ == "__main__":
    sys.exit(main())
