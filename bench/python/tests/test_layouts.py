"""Tests the simulator of layouts on cases whose answers are known."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest

PYTHON = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PYTHON / "training")]
import layouts  # noqa: E402
from layouts import NOWHERE, Cold, Ints, Log, Store, Tiers, Uses, joined  # noqa: E402

ROWS = 20_000
STORE = Store(2 << 20, 256)
TIERS = Tiers(STORE, ROWS, hot=1.25)


def log(tiers: Tiers | None, frames: int = 40, rows: int = ROWS) -> Log:
    """A log whose rows are written in order."""
    made = Log(STORE, np.zeros(rows, np.int16), frames, None if tiers is None else Cold(tiers))
    made.fill(np.arange(rows))
    made.settle()
    return made


def draws(count: int, size: int, rows: int = ROWS) -> list[Ints]:
    rng = np.random.default_rng(3)
    return [np.unique(rng.integers(0, rows, size)) for _ in range(count)]


def ints(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def test_sizes_follow_from_the_budget_as_in_the_store() -> None:
    assert layouts.page_bytes_for(1 << 20) == 16 << 10
    assert layouts.page_bytes_for(8 << 20) == 128 << 10
    assert layouts.page_bytes_for(64 << 20) == 512 << 10
    assert layouts.page_bytes_for(64 << 30) == 4 << 20
    assert layouts.page_bytes_for(300 << 10) == 8 << 10


@pytest.mark.parametrize(
    ("value_bytes", "block_bytes", "rows"), [(64, 4096, 50), (512, 8192, 15), (1024, 16384, 15)]
)
def test_a_block_loses_few_bytes(value_bytes: int, block_bytes: int, rows: int) -> None:
    tiers = Tiers(Store(64 << 20, value_bytes), 1_000_000, hot=1.25)
    assert (tiers.block_bytes, tiers.block_rows) == (block_bytes, rows)


def test_a_bank_has_two_tiers_once_its_index_is_too_large() -> None:
    store = Store(64 << 20, 256)
    fits = store.store_bytes // 10 // layouts.INDEX_BYTES_PER_ROW
    assert Tiers(store, fits, hot=1.25).tiers() == 1
    assert Tiers(store, fits + 1, hot=1.25).tiers() == 2
    assert Tiers(store, fits + 1, hot=1.25).tiers(index_share=0.2) == 1
    assert Tiers(Store(64 << 20, 8), fits + 1, hot=1.25).tiers() == 1, "memory holds the log"


def test_more_for_the_cold_tier_is_less_for_frames() -> None:
    assert TIERS.frames > replace(TIERS, hot=3).frames > 0
    assert TIERS.frames > replace(TIERS, cache_share=0.5).frames
    assert TIERS.frames > replace(TIERS, rows=10 * ROWS).frames
    assert replace(TIERS, rows=300 * ROWS).run_share < layouts.RUN_SHARE


def test_near_ranges_of_a_group_are_one_read() -> None:
    gap = layouts.BRIDGED_BYTES_MAX
    starts, ends = ints(0, 512 + gap, 3 * gap), ints(512, 1024 + gap, 3 * gap + 512)
    one = np.zeros(3, np.int64)
    assert joined(starts, ends, one, 1 << 16) == (2, 1024 + gap + 512)
    assert joined(starts, ends, ints(0, 1, 1), 1 << 16) == (3, 3 * 512)
    assert joined(one[:0], one[:0], one[:0], 1 << 16) == (0, 0)


def test_a_read_has_a_longest_length() -> None:
    starts = np.arange(100) * 1024
    reads, size = joined(starts, starts + 1024, np.zeros(100, np.int64), 10 * 1024)
    assert (reads, size) == (10, 100 * 1024)
    # A range that is longer than that is one read.
    assert joined(ints(0, 9000), ints(8192, 17192), ints(0, 0), 4096) == (2, 16384)


def staying(uses: list[int]) -> int:
    """Returns how many of 10,240 rows with these uses stay, after the first limit is set."""
    seen = Uses()
    turns = cycle(uses)
    assert not seen.note(np.array(list(islice(turns, layouts.JUDGED_ROWS - 1)))).any()
    rows = np.array(list(islice(turns, 10 * layouts.JUDGED_ROWS)))
    # Rows come in pieces of any size.
    return sum(int(seen.note(rows[at : at + 700]).sum()) for at in range(0, rows.size, 700))


def test_retention_keeps_what_the_store_keeps() -> None:
    """These are the cases of the store's own tests."""
    seen = 10 * layouts.JUDGED_ROWS
    assert abs(staying([40 if n == 3 else n % 3 for n in range(10)]) - seen / 10) < 10
    half_used = staying([20 + n if n < 50 else 1 for n in range(100)])
    assert abs(half_used - seen / layouts.RETAINED_SHARE) < seen / 50
    assert staying([0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4]) == 0
    assert staying([0]) == 0
    assert staying([0, 0, 0, 0, 2]) == 0


def test_rows_in_memory_are_not_read() -> None:
    whole = log(None, frames=ROWS)
    for rows in draws(5, 500):
        whole.get(rows)
        whole.update(rows)
    assert whole.counts.missed == whole.counts.reads == whole.counts.bytes == 0
    assert whole.counts.lookups > 0 and whole.counts.appended == ROWS


def test_a_batch_that_memory_does_not_hold_is_read_again_for_its_update() -> None:
    small = log(None, frames=16)
    some = np.arange(500)
    small.get(some)
    assert small.counts.missed == 500
    small.update(some)
    assert small.counts.missed == 500
    # Memory has 784 records.
    many = np.arange(1000, 3000)
    small.get(many)
    assert small.counts.missed == 2500
    small.update(many)
    assert small.counts.missed >= 2500 + many.size - 784


def test_the_order_of_rows_at_rest_does_not_change_what_is_in_memory() -> None:
    in_order, by_hash = log(None), log(TIERS)
    for rows in draws(60, 600):
        in_order.get(rows)
        by_hash.get(rows)
    assert by_hash.counts.lookups == in_order.counts.lookups
    assert by_hash.counts.missed == pytest.approx(in_order.counts.missed, rel=0.01)
    assert by_hash.counts.spilled > by_hash.counts.cold > 0
    assert in_order.counts.cold == in_order.counts.spilled == 0


def test_rows_that_were_used_together_come_with_one_read_in_order_of_use_only() -> None:
    """Each pass over the rows has the same batches, of random rows."""
    order = np.random.default_rng(1).permutation(ROWS)
    in_order, by_hash = log(None), log(TIERS)
    for layout in (in_order, by_hash):
        for _ in range(3):
            before = replace(layout.counts)
            for begin in range(0, ROWS, 500):
                layout.get(np.sort(order[begin : begin + 500]))
        found = layout.counts.since(before)
        assert found.missed > 0.9 * ROWS
        if layout is in_order:
            assert found.reads < found.missed / 20
        else:
            assert found.places > found.missed * 0.5


def test_each_cold_row_is_where_the_tier_says() -> None:
    tiers = replace(TIERS, rows=10 * ROWS)
    made = log(tiers, rows=tiers.rows)
    cold = made.cold
    assert cold is not None
    levels = set()
    for rows in draws(120, 2000, tiers.rows):
        made.get(rows)
        levels |= {run.level for run in cold.runs.values()}
        at_rest = made.newest < made.begin
        for number in np.unique(cold.run[at_rest]).tolist():
            here = np.flatnonzero(at_rest & (cold.run == number))
            if number != NOWHERE:
                assert (cold.runs[number].rows[cold.place[here]] == here).all()
    for run in cold.runs.values():
        assert run.left == cold._left(run).size
    assert max(levels) > 0
    assert made.counts.merged > 0 and made.begin > 0
    limit = tiers.run_share * max(tiers.rows, layouts.FAN_OUT * tiers.sort_rows)
    assert sum(run.left for run in cold.runs.values()) <= limit


def test_neighbours_of_a_table_have_one_hash_in_groups() -> None:
    table = np.repeat(np.arange(2), 64)
    draw = np.random.default_rng(1)
    number = np.concatenate([draw.permutation(64), draw.permutation(64)])
    place = layouts.grouped(table, number, 16)
    assert (np.sort(place) == np.arange(128)).all()
    for of in range(2):
        for first in range(0, 64, 16):
            rows = np.flatnonzero((table == of) & (number // 16 == first // 16))
            rows = rows[np.argsort(number[rows])]
            assert (np.diff(place[rows]) == 1).all()
    assert (np.diff(layouts.grouped(table, number, 1)) != 1).any()


def test_a_block_is_read_once_a_batch() -> None:
    """The rows of one block of the base are next to each other by hash."""
    made = log(TIERS)
    cold = made.cold
    assert cold is not None
    block = np.flatnonzero(cold.rank // TIERS.block_rows == 0)
    starts, ends, _, false_reads = cold.ranges(block)
    assert block.size == TIERS.block_rows and starts.size == 1
    assert int(ends[0] - starts[0]) == TIERS.block_bytes and false_reads == 0
    cold.spill(np.arange(100))
    *_, false_reads = cold.ranges(np.array([100, 0]))
    assert false_reads == layouts.FALSE_READS, "the run is newer than one of the two rows"
