"""Tests gets ahead, which a thread of the bank makes while the program computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import embank


@pytest.fixture
def bounded(bank: embank.Bank) -> embank.Table:
    return bank.table(
        "bounded",
        dim=1,
        optimizer=embank.SGD(lr=1.0),
        initializer=embank.Zeros(),
        staleness_bound=1,
    )


@pytest.fixture
def queue(bank: embank.Bank) -> Iterator[embank.AheadQueue]:
    with bank.ahead_queue() as queue:
        yield queue


def test_it_returns_what_a_get_returns(table: embank.Table, queue: embank.AheadQueue) -> None:
    keys = np.array([5, 3, 5, 9, 3])
    with table.get_ahead(keys, queue).wait() as lease, table.get(keys) as other:
        np.testing.assert_array_equal(lease.rows, other.rows)
        assert lease.per == "key" and lease.keys.tolist() == [5, 3, 9]
    pending = table.get_ahead(keys, queue, distinct=True, earlier=[5])
    assert len(pending) == 3 and bool(pending)
    with pending.wait() as lease, table.get_distinct(keys) as other:
        np.testing.assert_array_equal(lease.rows, other.rows)
        assert lease.per == "distinct" and lease.inverse.tolist() == [0, 1, 0, 2, 1]
    offsets, weights = [0, 2, 2, 5], np.arange(5, dtype=np.float32)
    pending = table.get_ahead(keys, queue, offsets=offsets, weights=weights)
    with pending.wait() as lease, table.get_bags(keys, offsets, weights=weights) as other:
        np.testing.assert_array_equal(lease.rows, other.rows)
        assert lease.per == "bag" and len(lease) == 3
    with pytest.raises(ValueError, match="waited for before"):
        pending.wait()
    assert "rows (3, 4)" in repr(pending)


def test_bags_may_be_given_with_the_wait(
    bank: embank.Bank, table: embank.Table, queue: embank.AheadQueue
) -> None:
    keys, offsets = np.array([5, 3, 5, 9, 3]), [0, 2, 2, 5]
    for asked in ({}, {"distinct": True}, {"offsets": [0, 5]}):
        pending = table.get_ahead(keys, queue, **asked)  # type: ignore[arg-type]
        given: Any = {"offsets": offsets, "weights": np.arange(5, dtype=np.float32)}
        with pending.wait(**given) as lease, table.get_bags(keys, **given) as other:
            np.testing.assert_array_equal(lease.rows, other.rows)
            assert lease.per == "bag" and len(lease) == 3
            gradients = np.ones((3, 4), np.float32)
            np.testing.assert_array_equal(
                lease.sum_gradients(gradients), other.sum_gradients(gradients)
            )
    for match, wrong in [
        ("end with the number of keys", {"offsets": [0, 4]}),
        ("go with offsets", {"weights": [1.0]}),
    ]:
        with pytest.raises(ValueError, match=match):
            table.get_ahead(keys, queue).wait(**wrong)  # type: ignore[arg-type]
    assert bank.outstanding_leases() == []


def test_rows_go_into_a_given_array(table: embank.Table, queue: embank.AheadQueue) -> None:
    out = np.full((4, 4), np.nan, np.float32)
    with table.get_ahead([1, 2, 1], queue, distinct=True).wait(out=out) as lease:
        np.testing.assert_array_equal(out[:2], table.peek([1, 2]))
        assert np.shares_memory(lease.rows, out) and np.isnan(out[2:]).all()
    pending = table.get_ahead([1, 2], queue)
    with pytest.raises(ValueError, match="out"):
        pending.wait(out=out)
    with pending.wait(out=out[2:]) as lease:
        np.testing.assert_array_equal(out[2:], table.peek([1, 2]))


def test_a_loop_gets_one_batch_ahead(bounded: embank.Table, queue: embank.AheadQueue) -> None:
    batches = [[i % 5, i % 3 + 10] for i in range(30)]
    pending = bounded.get_ahead(batches[0], queue)
    for i in range(len(batches)):
        lease = pending.wait()
        if i + 1 < len(batches):
            pending = bounded.get_ahead(batches[i + 1], queue)
        lease.apply(np.full((2, 1), -1, np.float32))
    assert bounded.peek(range(5)).ravel().tolist() == [6.0] * 5
    assert bounded.peek(range(10, 13)).ravel().tolist() == [10.0] * 3
    assert bounded.outstanding_leases() == []
    assert max(bounded.stats()["staleness"]) <= 1


def test_a_lease_that_another_thread_applies(
    bounded: embank.Table, queue: embank.AheadQueue
) -> None:
    bounded.staleness_bound = 0
    lease = bounded.get([7])
    lease.hand_over()
    pending = bounded.get_ahead([7], queue)
    applies = threading.Thread(target=lambda: lease.apply([[-2.0]]))
    applies.start()
    with pending.wait() as later:
        assert later.rows.tolist() == [[2.0]]
        with pytest.raises(embank.SelfBlocked):
            bounded.get([7])
    applies.join()


def test_a_thread_that_would_wait_for_itself_is_told(
    bounded: embank.Table, queue: embank.AheadQueue
) -> None:
    bounded.staleness_bound = 0
    with bounded.get([7]):
        pending = bounded.get_ahead([7], queue)
        with pytest.raises(embank.SelfBlocked):
            pending.wait()
        with pytest.raises(ValueError, match="waited for before"):
            pending.wait()


def test_it_is_cancelled_by_hand_by_a_block_and_with_its_queue(
    bank: embank.Bank, bounded: embank.Table
) -> None:
    bounded.staleness_bound = 0
    queue = bank.ahead_queue()
    with bounded.get([7]):
        first = bounded.get_ahead([1], queue)
        first.cancel()
        with bounded.get_ahead([7], queue), bounded.get_ahead([2], queue) as last:
            pass
        for ended in first, last:
            assert not ended.ready
            with pytest.raises(ValueError, match="cancelled"):
                ended.wait()
        ends = bounded.get_ahead([7, 3], queue)
        queue.close()
        with pytest.raises(embank.EmbankError, match="ended before"):
            ends.wait()
    with pytest.raises(ValueError, match="closed"):
        bounded.get_ahead([1], queue)
    assert bank.outstanding_leases() == []


def test_it_ends_with_its_bank(bank: embank.Bank, bounded: embank.Table) -> None:
    bounded.staleness_bound = 0
    queue = bank.ahead_queue()
    held = bounded.get([7])
    held.hand_over()
    blocked = bounded.get_ahead([7], queue)
    errors: list[BaseException] = []

    def waits() -> None:
        try:
            blocked.wait()
        except (ValueError, embank.EmbankError) as error:
            errors.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    bank.close()
    thread.join(timeout=60)
    assert len(errors) == 1 and not thread.is_alive()
    with pytest.raises(ValueError, match="closed"):
        bounded.get_ahead([1], queue)
    with pytest.raises(ValueError, match="closed"):
        bank.ahead_queue()


def test_bad_arguments_are_refused(
    bank: embank.Bank, table: embank.Table, queue: embank.AheadQueue, tmp_path: object
) -> None:
    for match, arguments in [
        ("not both", {"distinct": True, "offsets": [0, 1]}),
        ("go with offsets", {"weights": [1.0]}),
        ("offsets", {"offsets": [0, 9]}),
        ("pooling", {"offsets": [0, 1], "pooling": "max"}),
        ("timeout", {"timeout": -1.0}),
    ]:
        with pytest.raises(ValueError, match=match):
            table.get_ahead([1], queue, **arguments)  # type: ignore[arg-type]
    with embank.Bank(f"{tmp_path}/other", memory_budget="16MiB") as other:
        with pytest.raises(ValueError, match="queue of the table's bank"):
            table.get_ahead([1], other.ahead_queue())
    assert bank.outstanding_leases() == []
