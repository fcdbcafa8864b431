"""Tests the content of leases, and every way to end a lease."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank


def ones(n: int) -> Any:
    return np.ones((n, 4), np.float32)


def test_apply_steps_once_a_row_and_gives_back(table: embank.Table) -> None:
    lease = table.get([1, 2, 1])
    assert (table.outstanding(1), table.outstanding(2)) == (1, 1)
    lease.apply(ones(3))
    assert not lease.held
    assert (table.outstanding(1), table.outstanding(2)) == (0, 0)
    np.testing.assert_array_equal(table.peek([1, 2])[:, 0], [0.0, 0.5])
    assert (lease.rows == 1.0).all(), "the rows are a copy and stay"


def test_put_replaces_rows(table: embank.Table) -> None:
    with table.get([1, 2]) as lease:
        lease.put(lease.rows * 3)
        assert not lease.held
    assert (table.peek([1, 2]) == 3.0).all()
    assert table.outstanding(1) == 0


def test_distinct_rows_go_back_distinct(table: embank.Table) -> None:
    with table.get_distinct([1, 2, 1]) as lease:
        np.testing.assert_array_equal(lease.rows[lease.inverse], table.peek([1, 2, 1]))
        with pytest.raises(ValueError, match=r"\(2, 4\)"):
            lease.apply(ones(3))
        lease.apply(ones(2))
    assert (table.peek([1, 2]) == 0.5).all()
    with table.get_distinct([2, 1, 2]) as lease:
        assert lease.keys.tolist() == [2, 1]
        lease.put(np.stack([ones(1)[0] * 2, ones(1)[0]]))
    np.testing.assert_array_equal(table.peek([1, 2])[:, 0], [1.0, 2.0])


def test_leaving_the_block_releases(table: embank.Table) -> None:
    with table.get([1]) as lease:
        assert table.outstanding(1) == 1
    assert not lease.held
    assert table.outstanding(1) == 0
    with pytest.raises(RuntimeError, match="of ours"), table.get([1]):
        raise RuntimeError("of ours")
    assert table.outstanding(1) == 0
    assert (table.peek([1]) == 1.0).all()


def test_release_may_be_called_twice(table: embank.Table) -> None:
    first, second = table.get([1]), table.get([1])
    assert table.outstanding(1) == 2
    first.release()
    first.release()
    assert table.outstanding(1) == 1
    second.release()
    assert table.outstanding(1) == 0


def test_a_lease_that_is_dropped_is_released(table: embank.Table) -> None:
    lease = table.get([1])
    rows = lease.rows
    del lease
    gc.collect()
    assert table.outstanding(1) == 0
    assert (rows == 1.0).all()


@pytest.mark.parametrize("give_back", ["apply", "put", "release"])
def test_a_lease_is_consumed_once(table: embank.Table, give_back: str) -> None:
    lease = table.get([1])
    if give_back == "release":
        lease.release()
    else:
        getattr(lease, give_back)(ones(1))
    before = table.peek([1])
    for again in (lease.apply, lease.put):
        with pytest.raises(ValueError, match="already applied, put or released"):
            again(ones(1) * 7)
    np.testing.assert_array_equal(table.peek([1]), before)
    assert table.outstanding(1) == 0


def test_of_many_threads_one_consumes_the_lease(table: embank.Table) -> None:
    for _ in range(20):
        lease = table.get([1])
        start = threading.Barrier(4)

        def apply(lease: embank.Lease = lease, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                lease.apply(ones(1))
            except ValueError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(apply) for _ in range(4)]
            assert sum(future.result() for future in done) == 1
    assert (table.peek([1]) == 1.0 - 20 * 0.5).all()


def test_a_bound_holds_a_get_back_until_the_lease_returns(
    bank: embank.Bank, table: embank.Table
) -> None:
    """Shows that a get waits at the bound without the GIL: this thread runs only because the
    waiting get has released it."""
    table.staleness_bound = 0
    lease = table.get([1, 2])
    steps: list[str] = []

    def wait_for_it() -> None:
        with table.get([2, 3]):
            steps.append("got")

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    until(lambda: bank.stats()["waits"] == 1)
    steps.append("applied")
    lease.apply(ones(2))
    waiter.join()
    assert steps == ["applied", "got"]
    assert table.outstanding(2) == 0


def test_a_get_that_waits_too_long_says_for_what(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB", wait_timeout=0.05) as bank:
        table = bank.table("item", dim=4, staleness_bound=1)
        leases = [table.get([6, 7]), table.get([7])]
        leases[0].hand_over()
        with pytest.raises(embank.StalenessTimeout, match="item") as raised:
            table.get([5, 7])
        error = raised.value
        assert (error.table, error.key, error.outstanding, error.bound) == ("item", 7, 2, 1)
        assert error.waited_seconds >= 0.05
        assert table.outstanding(5) in (None, 0), "nothing is held after a timeout"
        assert bank.stats()["timeouts"] == 1
        leases.pop().release()
        table.get([5, 7]).release()


def test_a_thread_does_not_wait_for_itself(table: embank.Table) -> None:
    """Shows that a get blocked by its own thread's lease fails at once, before the bank's
    `wait_timeout` of 20 s."""
    table.staleness_bound = 0
    for get in (table.get, table.get_distinct):
        lease = get([1, 7])
        with pytest.raises(embank.StalenessTimeout, match="hand_over") as raised:
            get([5, 7])
        error = raised.value
        assert isinstance(error, embank.SelfBlocked)
        assert (error.table, error.key, error.held, error.bound) == ("item", 7, 1, 0)
        assert (error.outstanding, error.waited_seconds) == (1, 0.0)
        assert table.outstanding(5) in (None, 0), "nothing is held"
        lease.release()
        get([5, 7]).release()


def test_a_lease_that_another_thread_ends_is_waited_for(
    bank: embank.Bank, table: embank.Table
) -> None:
    table.staleness_bound = 0

    def end_it_when_waited_for(lease: embank.Lease, waits: int) -> None:
        until(lambda: bank.stats()["waits"] > waits)
        lease.apply(ones(1))

    # A lease that is handed over is waited for. After another thread has ended a lease that was not
    # handed over, gets wait without `hand_over`.
    for hands_over in (True, False):
        lease = table.get([7])
        if hands_over:
            lease.hand_over()
        else:
            with pytest.raises(embank.SelfBlocked):
                table.get([7])
            ends = threading.Thread(target=lease.release)
            ends.start()
            ends.join()
            lease = table.get([7])
        worker = threading.Thread(
            target=end_it_when_waited_for, args=(lease, bank.stats()["waits"])
        )
        worker.start()
        table.get([7]).release()
        worker.join()
        with pytest.raises(ValueError, match="already applied"):
            lease.hand_over()


def test_peeks_and_puts_wait_for_no_bound(table: embank.Table) -> None:
    table.staleness_bound = 0
    with table.get([1]):
        table.put([1], ones(1) * 4)
        assert (table.peek([1]) == 4.0).all()
        table.apply_gradients([1], ones(1))
        assert table.outstanding(1) == 1
    assert (table.peek([1]) == 3.5).all()


def test_a_lease_in_a_dead_workers_hands_expires(tmp_path: Path) -> None:
    with embank.Bank(
        tmp_path / "bank", memory_budget="16MiB", wait_timeout=20.0, lease_timeout=0.02
    ) as bank:
        table = bank.table("item", dim=4, optimizer=embank.SGD(lr=0.5), staleness_bound=0)
        before = table.initial([7])
        hands: list[embank.Lease] = []
        worker = threading.Thread(target=lambda: hands.append(table.get([7, 8, 7])))
        worker.start()
        worker_id = worker.native_id
        worker.join()
        (held,) = bank.outstanding_leases()
        assert (held["table"], held["keys"]) == ("item", 2) and held["age_seconds"] > 0
        assert str(worker_id) in held["thread"]
        assert table.outstanding_leases()[0]["thread"] == held["thread"]
        with table.get([7]) as lease:
            assert table.stats()["leases_expired"] == 1
            assert bank.stats()["leases_expired"] == 1
            late = hands.pop()
            assert lease.held and not late.held
            with pytest.raises(embank.LeaseExpired, match="lease_timeout") as raised:
                late.apply(ones(3))
            assert (raised.value.table, raised.value.keys) == ("item", 2)
            assert raised.value.age_seconds >= 0.02
            late.release()
            assert table.outstanding(7) == 1, "that of the second lease"
        np.testing.assert_array_equal(table.peek([7]), before)
        assert bank.outstanding_leases() == []


def test_a_lease_timeout_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lease_timeout"):
        embank.Bank(tmp_path / "bank", memory_budget="16MiB", lease_timeout=0.0)


def test_the_histogram_counts_rows_by_the_clock_they_had(table: embank.Table) -> None:
    leases = [table.get([1, 2, 1]) for _ in range(3)]
    with table.get([2, 3]):
        assert table.stats()["staleness"] == {0: 3, 1: 2, 2: 2, 3: 1}
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_trainer_threads_share_a_table_within_the_bound(
    bank: embank.Bank, table: embank.Table, bound: int
) -> None:
    """Shows that every update arrives, that no get sees more than `bound` other leases, and that
    threads run at the same time."""
    table.staleness_bound = bound
    threads, rounds = 4, 60
    failures: list[BaseException] = []

    def train(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(rounds):
                keys = random.integers(0, 6, size=4)
                with table.get(keys) as lease:
                    lease.apply(ones(4))
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=train, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    stats = table.stats()
    assert max(stats["staleness"]) <= bound, stats
    assert sum(stats["staleness"].values()) == stats["get_rows"]
    assert all(table.outstanding(key) in (0, None) for key in range(6))
    drawn = [
        np.random.default_rng(seed).integers(0, 6, size=(rounds, 4)) for seed in range(threads)
    ]
    counts = np.bincount(np.concatenate(drawn).reshape(-1), minlength=6)
    np.testing.assert_array_equal(table.peek(range(6))[:, 0], 1.0 - 0.5 * counts)


def until(condition: Any) -> None:
    """Polls until `condition` holds, because no hook tells that another thread waits in the
    store."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.001)


def adagrad(bank: embank.Bank) -> embank.Table:
    return bank.table("a", dim=1, optimizer=embank.Adagrad(lr=1.0), initializer=embank.Zeros())


def test_several_leases_take_one_step(bank: embank.Bank) -> None:
    table = adagrad(bank)
    leases = [table.get_distinct([1, 2]), table.get_distinct([2, 3]), table.get_distinct([4])]
    table.delete([3])
    table.apply_leases(leases, [2, 1, 3, 2, 9], np.ones((5, 1), np.float32))
    assert table.peek([1, 2, 3, 4, 9])[:, 0].tolist() == [-1.0, -1.0, 0.0, 0.0, 0.0]
    assert table.contains([3, 9]).tolist() == [False, False], "deleted, and held by nobody"
    assert [table.outstanding(key) for key in (1, 2, 4)] == [0, 0, 0]
    assert [lease.state for lease in leases] == ["ended"] * 3


def test_several_leases_are_answered_or_none(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "own", memory_budget="16MiB", lease_timeout=0.001) as bank:
        table = adagrad(bank)
        table.staleness_bound = 0
        old = table.get_distinct([1])
        table.get([1]).release()  # waits until `old` has expired
        assert old.state == "expired"
        with pytest.raises(embank.LeaseExpired):
            old.check()
        fresh = table.get_distinct([2])
        with pytest.raises(embank.LeaseExpired):
            table.apply_leases([fresh, old], [1, 2], [[1.0], [1.0]])
        assert table.peek([1, 2])[:, 0].tolist() == [0.0, 0.0]
        assert (table.outstanding(1), table.outstanding(2)) == (0, 0)
        assert (fresh.state, old.state) == ("ended", "ended")


def test_leases_that_do_not_belong_together_are_refused(bank: embank.Bank) -> None:
    table = adagrad(bank)
    lease, gone = table.get_distinct([1]), table.get_distinct([2])
    gone.release()
    other = bank.table("b", dim=1, optimizer=embank.SGD(lr=1.0)).get_distinct([1])
    for wrong, message in ((other, "one of this table"), (gone, "already applied")):
        with pytest.raises(ValueError, match=message):
            table.apply_leases([lease, wrong], [1], [[1.0]])
    with pytest.raises(ValueError, match=r"shape \(1, 1\)"):
        table.apply_leases([lease], [1], [[1.0, 2.0]])
    assert (lease.state, table.outstanding(1)) == ("held", 1)
    with pytest.raises(ValueError, match="NaN|finite"):
        table.apply_leases([lease], [1], [[float("nan")]])
    assert (lease.state, table.outstanding(1)) == ("ended", 0)
    bank.close()
    assert other.state == "closed"
    with pytest.raises(ValueError, match="bank is closed"):
        other.check()


def test_the_shape_is_the_leases_whatever_becomes_of_the_rows(table: embank.Table) -> None:
    """Shows that a lease keeps its shape if the user changes the shape of `rows`. `apply` once
    panicked then, or took gradients of the new shape."""
    for take in (table.get, table.get_distinct):
        for shape in ((8,), (4, 2)):
            lease: Any = take([1, 2])
            lease.rows.shape = shape
            assert "rows (2, 4)" in repr(lease) and len(lease) == 2
            if len(shape) == 2:
                with pytest.raises(ValueError, match=r"\(2, 4\)"):
                    lease.apply(np.ones(shape, np.float32))
            lease.apply(ones(2))


def test_try_get_and_a_timeout_of_one_call(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB", wait_timeout=600.0) as bank:
        table = bank.table("t", dim=2, staleness_bound=0)
        other = bank.table("o", dim=2, staleness_bound=0)
        out = np.zeros((3, 2), np.float32)
        with table.get([2]), ThreadPoolExecutor(1) as thread:
            assert table.try_get([1, 2]) is None
            assert thread.submit(table.try_get, [1, 2]).result() is None
            for get in (table.get, table.get_distinct):
                for timeout in (0, 0.02):
                    with pytest.raises(embank.StalenessTimeout):
                        thread.submit(get, [1, 2], timeout=timeout).result()
            requests = [(other, [1, 2]), (table, [1, 2])]
            with pytest.raises(embank.StalenessTimeout):
                thread.submit(embank.get_many, requests, timeout=0.02).result()
            assert len(bank.outstanding_leases()) == 1
        lease = table.try_get([1, 2, 1], out=out)
        assert lease is not None and lease.rows is out
        lease.release()
        for wrong in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="timeout must be a number of seconds"):
                table.get([1], timeout=wrong)


def test_a_lease_says_what_its_rows_stand_for(table: embank.Table) -> None:
    leases = [table.get([5, 6, 5]), table.get_distinct([5, 6, 5]), table.get_bags([5, 6, 5], [0, 3])]
    assert [lease.per for lease in leases] == ["key", "distinct", "bag"]
    assert [len(lease) for lease in leases] == [3, 2, 1]
    for lease in leases:
        assert lease.keys.tolist() == [5, 6] and lease.inverse.tolist() == [0, 1, 0]
        lease.rewrite([1], np.full((1, table.dim), 7, np.float32))
        assert table.peek([6]).tolist() == [[7.0] * table.dim]
        with pytest.raises(ValueError, match="place 2 is beyond the 2 distinct keys"):
            lease.rewrite([2], np.ones((1, table.dim), np.float32))
        lease.rewrite([1], table.initial([6]))
    with pytest.raises(ValueError, match="a pooled row can't be put"):
        leases[2].put(ones(1))
    assert leases[2].held
    for lease in leases:
        lease.release()
