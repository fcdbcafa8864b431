"""Tests of a fleet's files and routing, without processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embank
from embank import Damaged, ShardMismatch, TableMismatch
from embank._embank import (
    FleetPlan,
    FleetSet,
    Shard,
    list_shards,
    place_rows,
    plan_fleet,
    route_keys,
    shard_path,
    sum_rows,
    take_rows,
)


def test_keys_are_sorted_by_the_ranks_that_own_them() -> None:
    keys = np.array([0, 1, 7, 2**40, 7, -1, 0], dtype=np.int64)
    # The buckets of these keys in a table "user" are 4089, 3033, 507, 295 and 579 of 4,096: they
    # are part of the format.
    (found,) = route_keys([("user", keys, None)], [0, 1, 2, 3])
    distinct, inverse, order, counts = found
    assert distinct.dtype == inverse.dtype == order.dtype == np.int64
    assert distinct.tolist() == [0, 1, 7, 2**40, -1]
    assert inverse.tolist() == [0, 1, 2, 3, 2, 4, 0]
    assert order.tolist() == [2, 3, 4, 1, 0]
    assert counts == [3, 0, 1, 1]
    (unsigned,) = route_keys([("user", keys.view(np.uint64), None)], [0, 1, 2, 3])
    assert [each.tolist() for each in unsigned[:3]] == [each.tolist() for each in found[:3]]
    # The rank that serves a shard can change.
    swapped, whole, none = route_keys(
        [("user", keys, None), ("user", keys, 2), ("user", [], None)], [3, 2, 0, 1]
    )
    assert (swapped[2].tolist(), swapped[3]) == ([0, 1, 2, 3, 4], [1, 1, 3, 0])
    assert (whole[2].tolist(), whole[3]) == ([0, 1, 2, 3, 4], [0, 5, 0, 0])
    assert (none[0].tolist(), none[2].tolist(), none[3]) == ([], [], [0, 0, 0, 0])


def test_wrong_arguments_of_routes_are_refused() -> None:
    with pytest.raises(ValueError, match="shards must be from 1 to 4096"):
        route_keys([("user", [1], None)], [])
    with pytest.raises(ValueError, match="shards must be from 1 to 4096"):
        route_keys([("user", [1], None)], range(4097))
    for ranks in ([0, 0], [0, 2]):
        with pytest.raises(ValueError, match="each of the shards 0 to 1 once"):
            route_keys([("user", [1], None)], ranks)
    with pytest.raises(ValueError, match="shard"):
        route_keys([("user", [1], 2)], [0, 1])
    with pytest.raises(TypeError, match="integers"):
        route_keys([("user", [0.5], None)], [0, 1])


def test_rows_are_taken_and_placed() -> None:
    one, two = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((2, 1), dtype=np.float32)
    parts = [(one, np.array([2, 0, 2])), (two, np.array([1])), (one, np.array([], dtype=np.int64))]
    out = np.zeros(10, dtype=np.float32)
    take_rows(parts, out)
    assert out.tolist() == [6, 7, 8, 0, 1, 2, 6, 7, 8, 1]
    to, place = np.zeros((3, 3), dtype=np.float32), np.array([2, 0])
    place_rows([(to, place), (two, np.array([0]))], np.array([1, 2, 3, 4, 5, 6, 7], np.float32))
    assert to.tolist() == [[4, 5, 6], [0, 0, 0], [1, 2, 3]]
    assert two.tolist() == [[7], [1]]
    for wrong in (np.array([4]), np.array([-1])):
        with pytest.raises(ValueError, match="out of range"):
            take_rows([(one, wrong)], out[:3])
        with pytest.raises(ValueError, match="out of range"):
            place_rows([(one, wrong)], out[:3])
    for length in (2, 4):
        with pytest.raises(ValueError, match="another length"):
            take_rows([(one, np.array([1]))], out[:length])
        with pytest.raises(ValueError, match="another length"):
            place_rows([(one, np.array([1]))], out[:length])


def test_rows_are_added_in_the_order_of_the_ranks() -> None:
    # Float32 addition of these depends on the order.
    big, small = np.full((1, 1), 2**24, np.float32), np.full((1, 1), 1, np.float32)
    first, second = np.array([0]), np.array([1])
    sums = sum_rows(3, 1, [(big, first), (small, first), (small, first), (small, second)], 2)
    assert sums.dtype == np.float32
    assert sums.tolist() == [[2**23], [0.5], [0]]
    sums = sum_rows(1, 1, [(small, first), (small, first), (big, first)], 1)
    assert sums.tolist() == [[2**24 + 2]]
    for wrong in (np.array([3]), np.array([-1]), np.array([0, 1])):
        with pytest.raises(ValueError, match="out of range"):
            sum_rows(3, 1, [(big, wrong)], 1)


def test_rows_in_the_order_of_fortran_are_refused() -> None:
    places = np.array([0, 1])
    rows = np.asfortranarray(np.ones((2, 3), dtype=np.float32))
    values = np.zeros(6, dtype=np.float32)
    for call in (
        lambda: take_rows([(rows, places)], values),
        lambda: place_rows([(rows, places)], values),
        lambda: sum_rows(2, 3, [(rows, places)], 1),
    ):
        with pytest.raises(ValueError, match="C-contiguous"):
            call()


def test_shards_are_found_by_the_names_of_their_directories(tmp_path: Path) -> None:
    assert list_shards(tmp_path / "none") == []
    for name in ("shard-00002", "shard-00000", "shard-2"):
        (tmp_path / name).mkdir()
    assert list_shards(tmp_path) == [(0, None), (2, None)]
    assert shard_path(tmp_path, 2) == tmp_path / "shard-00002"
    (tmp_path / "shard-00002" / "SHARD").write_bytes(b"no identity")
    with pytest.raises(Damaged, match="restore the file"):
        list_shards(tmp_path)


def look(directory: Path, shards: int = 2) -> list[tuple[embank.Bank, Shard]]:
    """Opens all shards of a fleet in this process, and looks at them."""
    found = []
    for number in range(shards):
        path = shard_path(directory, number)
        bank = embank.Bank(path, memory_budget="16MiB", checkpoints_kept=1)
        found.append((bank, Shard(bank, number, shards)))
    return found


def settle(fleet: list[tuple[embank.Bank, Shard]]) -> FleetPlan:
    """Settles all shards as their processes do. Takes set 0 of a new fleet."""
    plan = plan_fleet([shard.view() for _, shard in fleet])
    record = None
    if plan.lacking:
        assert plan.holder is not None and plan.set is not None
        record = fleet[plan.holder][1].record(plan.set)
    for _, shard in fleet:
        shard.settle(plan, record)
    if plan.set is None:
        checkpoint(fleet)
    return plan


def checkpoint(fleet: list[tuple[embank.Bank, Shard]], blob: bytes = b"") -> FleetSet:
    taken = [shard.take() for _, shard in fleet]
    return [shard.commit(taken, blob) for _, shard in fleet][0]


def close(fleet: list[tuple[embank.Bank, Shard]]) -> None:
    for bank, _ in fleet:
        bank.close()


def test_a_fleet_opens_at_its_newest_complete_set(tmp_path: Path) -> None:
    fleet = look(tmp_path)
    assert settle(fleet).set is None
    assert all(shard.recovered is None and shard.newest_set == 0 for _, shard in fleet)
    tables = [bank.table("user", dim=1) for bank, _ in fleet]
    for table in tables:
        table.put([1], [[1.0]])
    done = checkpoint(fleet, b"step 1")
    assert (done.number, done.blob, len(done.checkpoints)) == (1, b"step 1", 2)
    assert not any(bank.changed_since_checkpoint for bank, _ in fleet)
    # A set whose record reached only the second shard.
    for table in tables:
        table.put([1], [[2.0]])
    taken = [shard.take() for _, shard in fleet]
    fleet[1][1].commit(taken, b"step 2")
    close(fleet)
    fleet = look(tmp_path)
    plan = settle(fleet)
    assert (plan.set, plan.holder, plan.lacking, plan.passed_over) == (2, 1, [0], [])
    # The first shard gets ahead of the set.
    bank, shard = fleet[0]
    bank.open_table("user").put([1], [[3.0]])
    shard.take()
    close(fleet)
    fleet = look(tmp_path)
    plan = settle(fleet)
    assert (plan.set, plan.holder, plan.lacking, plan.passed_over) == (2, 0, [], [])
    for bank, shard in fleet:
        assert shard.recovered is not None and shard.recovered.blob == b"step 2"
        assert bank.recovered is not None
        assert bank.recovered.checkpoint == shard.recovered.checkpoints[shard.shard]
        assert bank.open_table("user").peek([1]) == [[2.0]]
        assert [found.number for found in shard.sets()] == [1, 2]
        assert shard.identity is not None and shard.identity.fleet == plan.fleet
    assert list_shards(tmp_path) == [(n, shard.identity) for n, (_, shard) in enumerate(fleet)]
    close(fleet)


def test_an_abandoned_set_leaves_the_one_before(tmp_path: Path) -> None:
    fleet = look(tmp_path)
    settle(fleet)
    fleet[0][1].take()
    with pytest.raises(ValueError, match="out of order"):
        fleet[0][1].take()
    for _, shard in fleet:
        shard.abandon()
    assert checkpoint(fleet).number == 1
    with pytest.raises(ValueError, match="out of order"):
        fleet[0][1].commit([], b"")
    close(fleet)


def test_a_shard_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    fleet = look(tmp_path)
    settle(fleet)
    with pytest.raises(ValueError, match="version of Embank"):
        plan_fleet([fleet[0][1].view(), b"no view"])
    with pytest.raises(ShardMismatch, match="shard-00001: found no process"):
        plan_fleet([fleet[0][1].view()])
    with pytest.raises(ShardMismatch, match="embank reshard DIR NEW --shards 3") as raised:
        Shard(fleet[0][0], 0, 3)
    assert raised.value.path == str(tmp_path / "shard-00000")
    assert (raised.value.found, raised.value.expected) == ("shard 0 of 2", "shard 0 of 3")
    close(fleet)


def test_a_table_keeps_its_shard(bank: embank.Bank) -> None:
    table = bank.table("placed", dim=1, shard=3)
    assert table.shard == 3
    assert bank.table("other", dim=1).shard is None
    with pytest.raises(TableMismatch, match="all rows on shard 3"):
        bank.table("placed", dim=1)
    with pytest.raises(ValueError, match="shard must be below 4096"):
        bank.table("third", dim=1, shard=4096)
