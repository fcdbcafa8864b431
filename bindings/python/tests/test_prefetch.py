"""Tests prefetches, which read rows into a buffer in the background."""

from __future__ import annotations

import time

import numpy as np
import pytest

import embank


def test_rows_are_what_a_peek_gives(table: embank.Table) -> None:
    keys = np.arange(50)
    table.put(keys, np.arange(200, dtype=np.float32).reshape(50, 4))
    asked = [3, 60, 3, 49]
    prefetch = table.prefetch(asked)
    assert len(prefetch) == 4
    rows = prefetch.rows()
    np.testing.assert_array_equal(rows, table.peek(asked))
    assert prefetch.rows() is rows and prefetch.ready
    assert table.outstanding(3) == 0
    assert table.contains([60]).tolist() == [False]


def test_a_missing_row_can_be_an_error(table: embank.Table) -> None:
    prefetch = table.prefetch([1, 2], missing="error")
    with pytest.raises(embank.MissingRow):
        prefetch.rows()
    with pytest.raises(ValueError, match="failed"):
        prefetch.rows()
    with pytest.raises(ValueError, match="missing"):
        table.prefetch([1], missing="zeros")  # type: ignore[arg-type]


def test_it_is_cancelled_by_hand_by_a_block_and_with_its_bank(
    bank: embank.Bank, table: embank.Table
) -> None:
    prefetch = table.prefetch([1])
    prefetch.cancel()
    with pytest.raises(ValueError, match="cancelled"):
        prefetch.rows()
    with table.prefetch([1]) as prefetch:
        kept = prefetch.rows()
    assert prefetch.rows() is kept
    last = table.prefetch([1])
    bank.close()
    with pytest.raises(ValueError, match="closed"):
        last.rows()
    assert not last.ready


def test_it_becomes_ready_by_itself(table: embank.Table) -> None:
    prefetch = table.prefetch(range(1000))
    deadline = time.monotonic() + 20
    while not prefetch.ready:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert prefetch.rows().shape == (1000, 4)


def test_what_is_prefetched_is_bounded_by_the_budget(bank: embank.Bank) -> None:
    wide = bank.table("wide", dim=1024)
    held = []
    with pytest.raises(embank.BudgetTooSmall, match="prefetch"):
        for first in range(0, 100_000, 100):
            held.append(wide.prefetch(range(first, first + 100)))
    assert 0 < len(held) < 41, "a buffer takes 400 KiB of 16 MiB"
    for prefetch in held:
        prefetch.cancel()
