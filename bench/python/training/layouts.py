"""Counts the reads of the drive that training makes with two layouts of the rows at rest.

Both layouts append used rows to a log whose newest pages are in memory (`Log`). They differ in
where a row lies that has left memory:

- **Log order**: the row stays in the log, beside the rows that were used at the same time.
- **Hash order** (`Cold`, a design): the log has a limited length. The rows at its begin go to a
  *run*, sorted by hash. Runs of a level are joined into one of the next. A cursor merges the runs
  into the *base*, part by *part*. A read brings the whole block in which the row lies.

`Log` follows the store: pages, the mutable and the read-only region, retention with aged counts of
uses (`kv/src/engine/retention`), streams of at most 4,096 rows, and joined reads
(`kv/src/engine/batch/reads.rs`). All records have one length, so the number of a record gives its
address.

**What it leaves out.** The index has an entry for each row, so there are no chains. The log's
writer is as fast as the batches. Reads end in order of address. No rows are missing or deleted, no
other thread reads, and nothing is announced. Compaction of the log in log order does not run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

HEADER_BYTES = 32
PAGE_HEADER_BYTES = 64
CHUNK_KEYS, STREAM_KEYS_MAX = 1024, 4096
SECTOR_BYTES = 512
BRIDGED_BYTES_MAX, JOINED_BYTES_MAX = 16 << 10, 64 << 10
FREE_FRAMES, LAST_CALL_PAGES = 2, 2
FRAMES_MIN = 7
CACHE_PART_MIN = 32
"""The read cache keeps one part in this number of the memory that it shares with the frames."""
INDEX_BYTES_PER_ROW = 15
USES_MAX, USES_MIN, RETAINED_SHARE, JUDGED_ROWS, FORGOTTEN_SHARE, ROW = 255, 3, 4, 1024, 8, 64
HALF_LIFE_ROUNDS = 16
DISPERSION_MIN = 5 / 4
INSPECTED_PER_APPENDED, INSPECTED_MIN, INSPECTED_BEFORE_TURN_MAX = 4, 64, 16 * 1024
COLD_ROW_HEADER_BYTES, BLOCK_HEADER_BYTES = 16, 32
BLOCK_BYTES = (4 << 10, 8 << 10, 16 << 10)
BLOCK_LOSS_MAX = 0.05
FAN_OUT = 16
RUN_SHARE, RUN_SHARE_MIN = 0.2, 0.05
"""Bytes of the runs over those of the base, at most; and the least that a short memory gives."""
FENCE_BYTES, RUN_FILTER_BYTES, BASE_FILTER_BYTES = 2.125, 1.26, 0.56
"""Memory for a block, for a row of a run, and for a row of the base."""
FALSE_READS = 1 / 512
"""Probability that a run's filter admits a key that the run does not have."""
PART_SORT_BUFFERS = 8
"""The length of a part of the base, in sort buffers."""
PLACES_PER_PART = 1 << 34
NOWHERE = -1


def page_bytes_for(store_bytes: int) -> int:
    """The length of a page of the log, as `Budget::page_bytes_for` has it."""
    wanted = max(store_bytes // 128, min(store_bytes // 64, 128 << 10))
    return 1 << (min(max(wanted, 8 << 10), 4 << 20).bit_length() - 1)


def read_buffers_for(store_bytes: int) -> int:
    """The bytes of all read buffers, as `Budget::read_buffer_bytes_for` has them."""
    wanted = min(max(store_bytes // 32, min(store_bytes // 16, 1 << 20)), 8 << 20)
    return -(-wanted // 4096) * 4096


@dataclass(frozen=True)
class Store:
    """What a budget of `budget_bytes` gives a store whose values have `value_bytes`."""

    budget_bytes: int
    value_bytes: int

    @cached_property
    def record_bytes(self) -> int:
        return HEADER_BYTES + -(-self.value_bytes // 8) * 8

    @cached_property
    def store_bytes(self) -> int:
        """The budget without the Lookahead queue."""
        return self.budget_bytes - min(self.budget_bytes // 32, 40 << 20)

    @cached_property
    def page_bytes(self) -> int:
        return page_bytes_for(self.store_bytes)

    @cached_property
    def records_per_page(self) -> int:
        return (self.page_bytes - PAGE_HEADER_BYTES) // self.record_bytes

    @cached_property
    def buffer_bytes(self) -> int:
        """Buffers of reads, of the writer, of compaction, and of checkpoints."""
        pages = 2 * self.page_bytes + self.page_bytes // 2
        return read_buffers_for(self.store_bytes) + pages + 4096

    @cached_property
    def frames_max(self) -> int:
        return (self.store_bytes - self.buffer_bytes - self.page_bytes) // self.page_bytes

    @cached_property
    def joined_bytes_max(self) -> int:
        """The longest read of several records: a quarter of one read buffer at most."""
        total = read_buffers_for(self.store_bytes)
        count = 4 if total >= 1 << 20 else 2 if total >= 1 << 16 else 1
        count = max(1, min(count, total // (self.page_bytes + 2 * 4096)))
        return min(JOINED_BYTES_MAX, total // count // 4096 * 4096 // 4)

    @cached_property
    def half_life_bytes(self) -> int:
        return self.frames_max * self.page_bytes * HALF_LIFE_ROUNDS

    def frames_beside(self, taken_bytes: float) -> int:
        """The frames that remain if index, cache and cold tier take `taken_bytes`."""
        return int((self.store_bytes - self.buffer_bytes - self.page_bytes - taken_bytes)
                   // self.page_bytes)


@dataclass(frozen=True)
class Tiers:
    """How a bank in two tiers divides its memory among `rows` rows.

    `hot` is the length of the hot log over that of frames and read cache. `cache_share` is the part
    of both that the read cache has.
    """

    store: Store
    rows: int
    hot: float
    cache_share: float = 0.0

    @cached_property
    def cold_row_bytes(self) -> int:
        return COLD_ROW_HEADER_BYTES + self.store.value_bytes

    @cached_property
    def block_bytes(self) -> int:
        for size in BLOCK_BYTES:
            if size - self.rows_in(size) * self.cold_row_bytes <= BLOCK_LOSS_MAX * size:
                return size
        return BLOCK_BYTES[-1]

    def rows_in(self, block_bytes: int) -> int:
        return max(1, (block_bytes - BLOCK_HEADER_BYTES) // self.cold_row_bytes)

    @cached_property
    def block_rows(self) -> int:
        return self.rows_in(self.block_bytes)

    @cached_property
    def sort_rows(self) -> int:
        """The rows of the sort buffer, which is also the length of a run of level 0."""
        return max(1, int(self.sort_bytes // self.cold_row_bytes))

    @cached_property
    def sort_bytes(self) -> float:
        store = self.store
        return max(store.store_bytes / 32, 1.25 * store.page_bytes, 36 * self.block_bytes)

    @cached_property
    def fence_bytes(self) -> float:
        return FENCE_BYTES / self.block_rows

    def filtered_bytes(self, run_share: float) -> float:
        """The memory of fences and run filters."""
        return self.rows * (self.fence_bytes * (1 + run_share) + RUN_FILTER_BYTES * run_share)

    @cached_property
    def run_share(self) -> float:
        """The bytes of runs over those of the base. Run filters must fit half of the memory."""
        excess = self.store.store_bytes / 2 - self.rows * self.fence_bytes
        share = excess / self.rows / (self.fence_bytes + RUN_FILTER_BYTES)
        return min(RUN_SHARE, max(RUN_SHARE_MIN, share))

    @cached_property
    def has_base_filter(self) -> bool:
        whole = self.filtered_bytes(self.run_share) + BASE_FILTER_BYTES * self.rows
        return whole < self.store.store_bytes / 4

    @cached_property
    def cold_bytes(self) -> float:
        """The memory of the cold tier."""
        base = BASE_FILTER_BYTES * self.rows if self.has_base_filter else 0.0
        return self.filtered_bytes(self.run_share) + base

    @cached_property
    def shared_bytes(self) -> float:
        """The memory of frames and read cache, beside the hot rows' index."""
        store = self.store
        left = (store.store_bytes - store.buffer_bytes - store.page_bytes - self.sort_bytes
                - self.cold_bytes)
        return left / (1 + INDEX_BYTES_PER_ROW * self.hot / store.record_bytes)

    @cached_property
    def cache_bytes(self) -> float:
        return max(self.cache_share, 1 / CACHE_PART_MIN) * self.shared_bytes

    @cached_property
    def frames(self) -> int:
        return max(FRAMES_MIN, int((self.shared_bytes - self.cache_bytes) // self.store.page_bytes))

    @cached_property
    def hot_pages(self) -> int:
        """The longest hot log, in pages."""
        return math.ceil(self.hot * max(self.shared_bytes / self.store.page_bytes, self.frames))

    def tiers(self, index_share: float = 0.1) -> int:
        """2 if the index of all rows takes more than `index_share` of the memory, else 1."""
        store = self.store
        whole = self.rows * store.record_bytes
        alone = (store.store_bytes < 1 << 20 or whole <= store.frames_max * store.page_bytes
                 or self.rows * INDEX_BYTES_PER_ROW <= index_share * store.store_bytes)
        return 1 if alone else 2


@dataclass
class Counts:
    """What lookups cost, with their updates. `missed` rows were not in memory, and `cold` of them
    not in the hot log.
    `places` are their distinct places: a record of the log, or a block of the cold tier. `reads`
    are the reads after joining, and `bytes` the bytes that they bring. `scattered` are the reads if
    the places were random records of the log. `false_reads` are those that filters cause."""

    lookups: int = 0
    missed: int = 0
    cold: int = 0
    places: int = 0
    reads: int = 0
    bytes: int = 0
    scattered: int = 0
    false_reads: float = 0.0
    appended: int = 0
    retained: int = 0
    spilled: int = 0
    merged: int = 0

    def since(self, before: Counts) -> Counts:
        return Counts(**{name: value - getattr(before, name) for name, value in vars(self).items()})


def joined(starts: Ints, ends: Ints, groups: Ints, longest: int) -> tuple[int, int]:
    """Returns the number and the bytes of the reads that bring the ranges from `starts` to `ends`,
    which are sorted. Ranges of one group are joined across gaps of `BRIDGED_BYTES_MAX`, into reads
    of at most `longest` bytes."""
    if starts.size == 0:
        return 0, 0
    apart = (starts[1:] > ends[:-1] + BRIDGED_BYTES_MAX) | (groups[1:] != groups[:-1])
    first = np.concatenate([[0], np.flatnonzero(apart) + 1])
    last = np.concatenate([first[1:], [starts.size]]) - 1
    lengths = ends[last] - starts[first]
    reads, size = int(first.size), int(lengths.sum())
    for at in np.flatnonzero(lengths > longest):
        size -= int(lengths[at])
        begin, end = 0, 0
        for start, stop in zip(starts[first[at] : last[at] + 1].tolist(),
                               ends[first[at] : last[at] + 1].tolist()):
            if end and max(stop, end) - begin <= longest:
                end = max(stop, end)
                continue
            reads += 1 if end else 0
            size += end - begin
            begin, end = start, stop
        size += end - begin
    return reads, size


class Uses:
    """Which rows retention keeps: `Uses` of `kv/src/engine/retention/uses.rs`."""

    def __init__(self) -> None:
        self.rows = np.zeros(USES_MAX + 1, np.int64)
        self.noted, self.credit = 0, 0
        self.at_least: int | None = None

    def note(self, uses: Ints) -> NDArray[np.bool_]:
        """Records the counts of rows that are evicted next, and says which of them stay."""
        stays = np.zeros(uses.size, bool)
        at = 0
        while at < uses.size:
            some = uses[at : at + JUDGED_ROWS - self.noted]
            full = self.noted + some.size == JUDGED_ROWS
            self.rows += ROW * np.bincount(some, minlength=USES_MAX + 1)
            self.noted += some.size
            judged = some.size - 1 if full else some.size
            self._keep(some[:judged], stays[at : at + judged])
            if full:
                self.at_least = self.judge()
                self.rows -= self.rows // FORGOTTEN_SHARE
                self.noted = 0
                self._keep(some[judged:], stays[at + judged : at + some.size])
            at += some.size
        return stays

    def _keep(self, uses: Ints, stays: NDArray[np.bool_]) -> None:
        if self.at_least is None:
            self.credit = min(JUDGED_ROWS, self.credit + uses.size)
            return
        seen = 0
        for at in np.flatnonzero(uses >= self.at_least).tolist():
            self.credit = min(JUDGED_ROWS, self.credit + at + 1 - seen)
            seen = at + 1
            if self.credit >= RETAINED_SHARE:
                self.credit -= RETAINED_SHARE
                stays[at] = True
        self.credit = min(JUDGED_ROWS, self.credit + uses.size - seen)

    def judge(self) -> int | None:
        """Returns the fewest uses of a row that stays. None if no row stays."""
        counts = np.arange(USES_MAX + 1)
        rows, uses = int(self.rows.sum()), int((self.rows * counts).sum())
        squares = int((self.rows * counts * counts).sum())
        if squares * rows - uses * uses < uses * rows * DISPERSION_MIN:
            return None
        stay = np.cumsum(self.rows[::-1])[::-1]
        fits = np.flatnonzero(stay[USES_MIN:] * RETAINED_SHARE <= rows)
        return USES_MIN + int(fits[0]) if fits.size else USES_MAX + 1


@dataclass
class Run:
    """A sorted run. `rows` are its rows by hash. `newest` is the last run that it holds rows of.
    `left` is the number of rows that the base has not merged."""

    rows: Ints
    level: int
    newest: int
    left: int


class Cold:
    """The cold tier: runs over a base, in hash order. The base has all rows at first."""

    def __init__(self, tiers: Tiers, rank: Ints | None = None) -> None:
        """`rank` is the place of each row among all rows: random unless it is given."""
        self.tiers = tiers
        self.rank = np.random.default_rng(0).permutation(tiers.rows) if rank is None else rank
        self.run = np.full(tiers.rows, NOWHERE)
        """The run that has a row's newest cold version. `NOWHERE` if the base has it."""
        self.place = np.zeros(tiers.rows, np.int64)
        """The place of a row in its run."""
        blocks = max(1, PART_SORT_BUFFERS * tiers.sort_rows // tiers.block_rows)
        self.part_rows = blocks * tiers.block_rows
        self.through = np.full(-(-tiers.rows // self.part_rows), NOWHERE)
        """For each part of the base, the newest run that it has merged."""
        self.cursor = 0
        self.runs: dict[int, Run] = {}
        self.next = 0

    def ranges(self, rows: Ints) -> tuple[Ints, Ints, Ints, float]:
        """Returns the sorted starts, ends and parts of the distinct blocks of rows, and the number
        of reads that filters cause."""
        tiers = self.tiers
        run, rank = self.run[rows], self.rank[rows]
        in_base = run == NOWHERE
        part = np.where(in_base, rank // self.part_rows, self.through.size + run)
        within = np.where(in_base, rank % self.part_rows, self.place[rows])
        starts = part * PLACES_PER_PART + within // tiers.block_rows * tiers.block_bytes
        starts = np.unique(starts)
        # The search probes the runs that are newer than the row's version.
        newest = np.full(self.next + 1, NOWHERE)
        for number, of in self.runs.items():
            newest[number] = of.newest
        version = np.maximum(newest[run], self.through[rank // self.part_rows])
        probed = newest.size - np.searchsorted(np.sort(newest), version, "right")
        return (starts, starts + tiers.block_bytes, starts // PLACES_PER_PART,
                float(probed.sum()) * FALSE_READS)

    def spill(self, rows: Ints) -> None:
        """Makes a run of rows of the hot log."""
        rows = rows[np.argsort(self.rank[rows])]
        self.runs[self.next] = Run(rows, 0, self.next, rows.size)
        self.run[rows] = self.next
        self.place[rows] = np.arange(rows.size)
        self.next += 1

    def merge(self) -> int:
        """Merges until no level has too many runs, and all runs together are short enough. Returns
        the number of rows that it wrote."""
        written = 0
        # The loop ends: each round has fewer runs.
        while (group := self._crowded()) is not None:
            written += self._consolidate(group)
        limit = self.tiers.run_share * max(self.tiers.rows, FAN_OUT * self.tiers.sort_rows)
        # The loop ends: the cursor visits each part once in a round, and a round empties the runs.
        while sum(run.left for run in self.runs.values()) > limit:
            written += self._merge_part()
        return written

    def _left(self, run: Run) -> Ints:
        """The rows of a run that the base has not merged."""
        return run.rows[self.through[self.rank[run.rows] // self.part_rows] < run.newest]

    def _crowded(self) -> list[int] | None:
        for level in {run.level for run in self.runs.values()}:
            group = [number for number, run in self.runs.items() if run.level == level]
            if len(group) >= FAN_OUT:
                return group
        return None

    def _consolidate(self, group: list[int]) -> int:
        runs = [self.runs.pop(number) for number in group]
        rows = np.unique(np.concatenate([self._left(run) for run in runs]))
        rows = rows[np.argsort(self.rank[rows])]
        number = self.next
        self.next += 1
        newest = max(run.newest for run in runs)
        self.runs[number] = Run(rows, runs[0].level + 1, newest, rows.size)
        place = np.arange(rows.size)
        moved = np.isin(self.run[rows], group)
        self.run[rows[moved]], self.place[rows[moved]] = number, place[moved]
        return int(rows.size)

    def _merge_part(self) -> int:
        first = self.cursor * self.part_rows
        for run in self.runs.values():
            ranks = self.rank[run.rows]
            begin, end = np.searchsorted(ranks, [first, first + self.part_rows])
            self.run[run.rows[begin:end]] = NOWHERE
            if self.through[self.cursor] < run.newest:
                run.left -= int(end - begin)
        self.through[self.cursor] = self.next - 1
        self.cursor = (self.cursor + 1) % self.through.size
        self.runs = {number: run for number, run in self.runs.items() if run.left}
        return min(self.part_rows, self.tiers.rows - first)


@dataclass
class Log:
    """A log of `rows` rows with `frames` frames. Without `cold`, all rows stay in it.

    `table` gives the table of each row.
    """

    store: Store
    table: NDArray[np.integer]
    frames: int
    cold: Cold | None = None
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        rows = self.table.size
        self.newest = np.full(rows, NOWHERE, np.int64)
        """The number of each row's newest record in the log."""
        self.uses = np.zeros(rows, np.int64)
        self.owner: Ints = np.zeros(2 * rows, np.int64)
        """The row of each record."""
        self.tail, self.pages, self.begin, self.inspected = 0, 1, 0, 0
        self.per_page = self.store.records_per_page
        self.mutable_pages = self.frames - max(
            self.frames // 8, min(FREE_FRAMES + 2 * LAST_CALL_PAGES, self.frames // 4), FREE_FRAMES
        )
        self.uses_seen = Uses()
        self.retaining = False
        self.draw = np.random.default_rng(0)

    @property
    def head(self) -> int:
        """The first record in memory."""
        return max(0, self.pages + FREE_FRAMES - self.frames) * self.per_page

    @property
    def read_only(self) -> int:
        """The first record that changes in place."""
        return min(self.pages - 1, max(0, self.pages - self.mutable_pages)) * self.per_page

    def address(self, records: Ints) -> Ints:
        page, within = np.divmod(records, self.per_page)
        places: Ints = page * self.store.page_bytes + within * self.store.record_bytes
        return places + PAGE_HEADER_BYTES

    def fill(self, rows: Ints) -> None:
        """Writes new rows."""
        for begin in range(0, rows.size, CHUNK_KEYS):
            self._append(rows[begin : begin + CHUNK_KEYS], 0)

    def settle(self) -> None:
        """Makes the cold tier's base hold all rows that the hot log has no room for."""
        if self.cold is not None:
            self.begin = max(0, self.pages - self.cold.tiers.hot_pages) * self.per_page

    def get(self, rows: Ints) -> None:
        """Gets distinct rows of one table, which become mutable."""
        self.counts.lookups += rows.size
        self._use(rows, 1)

    def update(self, rows: Ints) -> None:
        """Updates rows that a get has counted. A row that has left memory since is read again."""
        if rows.size and self.newest[rows].min() < self.read_only:
            self._use(rows, 0)

    def _use(self, rows: Ints, used: int) -> None:
        pending: list[Ints] = []
        for begin in range(0, rows.size, CHUNK_KEYS):
            chunk = rows[begin : begin + CHUNK_KEYS]
            at, appended = self.newest[chunk], self.counts.appended
            mutable = at >= self.read_only
            in_memory = at >= self.head
            self.uses[chunk[mutable]] += used
            pending.append(chunk[~in_memory])
            self._append(chunk[in_memory & ~mutable], used)
            self._retain_for(appended)
            if begin + CHUNK_KEYS >= rows.size or sum(map(len, pending)) >= STREAM_KEYS_MAX:
                self._read(np.concatenate(pending), used)
                pending = []

    def _read(self, rows: Ints, used: int) -> None:
        at = self.newest[rows]
        order = np.argsort(at)
        rows, at = rows[order], at[order]
        is_cold = at < self.begin
        starts, ends, groups = self._records(at[~is_cold])
        counts, appended = self.counts, self.counts.appended
        counts.missed += rows.size
        longest = self.store.joined_bytes_max
        if self.cold is not None and is_cold.any():
            cold = rows[is_cold]
            blocks, block_ends, parts, false_reads = self.cold.ranges(cold)
            counts.cold += cold.size
            counts.false_reads += false_reads
            counts.places += blocks.size
            longest = max(longest, self.cold.tiers.block_bytes)
            self._count(blocks, block_ends, parts, longest)
            by_hash = np.argsort(self.cold.rank[cold])
            rows = np.concatenate([rows[~is_cold], cold[by_hash]])
        if self.cold is None and rows.size:
            random = self.draw.choice(self.head, rows.size, replace=False, shuffle=False)
            counts.scattered += joined(*self._records(np.sort(random)), longest)[0]
        counts.places += starts.size
        self._count(starts, ends, groups, longest)
        self._append(rows, used)
        self._retain_for(appended)
        self._spill()

    def _records(self, records: Ints) -> tuple[Ints, Ints, Ints]:
        addresses = self.address(records)
        ends = addresses + self.store.record_bytes
        page_ends = (records // self.per_page + 1) * self.store.page_bytes
        ends = np.minimum(-(-ends // SECTOR_BYTES) * SECTOR_BYTES, page_ends)
        return addresses // SECTOR_BYTES * SECTOR_BYTES, ends, records // self.per_page

    def _count(self, starts: Ints, ends: Ints, groups: Ints, longest: int) -> None:
        reads, size = joined(starts, ends, groups, longest)
        self.counts.reads += reads
        self.counts.bytes += size

    def _append(self, rows: Ints, used: int) -> None:
        """Writes records of the rows at the tail. Each row was used `used` times now."""
        # The loop ends: a turn makes room for a page, and each round fills the page or ends.
        while rows.size:
            if self.pages * self.per_page == self.tail and not self.retaining:
                self._retain(INSPECTED_BEFORE_TURN_MAX)
            if self.pages * self.per_page == self.tail:
                self.pages += 1
            room = self.pages * self.per_page - self.tail
            self._place(rows[:room], used)
            rows = rows[room:]

    def _place(self, rows: Ints, used: int) -> None:
        to: Ints = np.arange(self.tail, self.tail + rows.size)
        if to[-1] >= self.owner.size:
            self.owner = np.concatenate([self.owner, np.zeros(self.owner.size, np.int64)])
        old = self.newest[rows]
        places = self.address(to)
        grown = places - self.address(np.maximum(old, 0))
        self.uses[rows] = self._aged(self.uses[rows], grown, places) + used
        self.newest[rows] = to
        self.owner[to] = rows
        self.tail += rows.size
        self.counts.appended += rows.size

    def _aged(self, uses: Ints, grown: Ints | int, places: Ints) -> Ints:
        """The uses that count after the log has grown, rounded by the bits of an address."""
        weight = np.exp2(-np.asarray(grown) / self.store.half_life_bytes)
        bits = places.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15) >> np.uint64(48)
        exact: Floats = np.minimum(uses, USES_MAX) * weight + bits / 65536
        return exact.astype(np.int64)

    def _retain_for(self, appended_before: int) -> None:
        appended = self.counts.appended - appended_before
        if appended:
            self._retain(max(INSPECTED_MIN, INSPECTED_PER_APPENDED * appended))

    def _retain(self, records: int) -> None:
        """Inspects records that are evicted next, and copies the most used rows to the tail."""
        last = max(0, self.pages + FREE_FRAMES + LAST_CALL_PAGES - self.frames) * self.per_page
        end = min(last, self.read_only)
        # The loop ends: each round inspects records before `end`.
        while records > 0:
            start = max(self.inspected, self.head, self.begin)
            count = min(end - start, records, CHUNK_KEYS)
            if count <= 0:
                return
            seen: Ints = np.arange(start, start + count)
            rows = self.owner[seen]
            current = self.newest[rows] == seen
            seen, rows = seen[current], rows[current]
            grown = int(self.address(np.array([self.tail]))[0] - self.address(np.array([start]))[0])
            places = self.address(seen)
            stays = rows[self.uses_seen.note(self._aged(self.uses[rows], grown, places))]
            self.inspected = start + count
            records -= count
            stays = stays[np.argsort(self.table[stays], kind="stable")]
            self.counts.retained += stays.size
            self.retaining = True
            self._append(stays, 0)
            self.retaining = False

    def _spill(self) -> None:
        """Moves the rows at the log's begin to runs while the log is longer than its limit."""
        if self.cold is None:
            return
        limit, full = self.cold.tiers.hot_pages, self.cold.tiers.sort_rows
        # The loop ends: each round moves the begin by one page at least.
        while self.pages - self.begin // self.per_page > limit:
            taken: list[Ints] = []
            while self.begin < self.head and sum(map(len, taken)) < full:
                seen = np.arange(self.begin, self.begin + self.per_page)
                rows = self.owner[seen]
                taken.append(rows[self.newest[rows] == seen])
                self.begin += self.per_page
            if not taken:
                return
            rows = np.concatenate(taken)
            if rows.size:
                self.cold.spill(rows)
                self.counts.spilled += rows.size
                self.counts.merged += self.cold.merge()


def grouped(table: NDArray[np.integer], number: Ints, group: int) -> Ints:
    """Returns the place of each row among all rows if `group` rows of a table with neighbouring
    numbers have one hash. Rows of one hash are ordered by number."""
    name = (table.astype(np.int64) << 48) + number // group
    _, which = np.unique(name, return_inverse=True)
    hashes = np.random.default_rng(0).permutation(which.max() + 1)
    place: Ints = np.empty(number.size, np.int64)
    place[np.lexsort((number, hashes[which]))] = np.arange(number.size)
    return place


def table_numbers(sizes: Sequence[int]) -> NDArray[np.int16]:
    """The table of each row, for tables of these sizes."""
    return np.repeat(np.arange(len(sizes), dtype=np.int16), sizes)
