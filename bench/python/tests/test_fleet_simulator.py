"""Tests the simulator of fleets on cases whose answers are known."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

PYTHON = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PYTHON / "ground"), str(PYTHON / "training")]
import fleet_simulator as fleet  # noqa: E402
from fleet_simulator import FRAME, Keys, Links, Network, Parts  # noqa: E402

ONE_HOT = Keys(rows=100, sizes=(1,), skew=1.05, missing=0.0)
MANY = Keys(rows=500, sizes=(40, 30_000), skew=1.05, missing=0.03)
INFINITE = Network(math.inf)
NOTHING = Parts(
    keys=ONE_HOT, dim=4, alone=(0.5,), alone_bank=0.25, computing=(0.0,), get_at=0.0, buckets=(),
    gradients_at=1.0, exchange=0.0, peer=0.0, header_bytes=0.0, message=0.0, message_byte=0.0,
    ring_round=0.0, repeated=0.0, distinct=0.0, disk_read=0.0, in_memory=1 << 40,
)
"""Parts of which nothing takes time on two ranks or more."""


def counts(keys: Keys, ranks: int, hottest: int = 0, seed: int = 1) -> fleet.Counts:
    return fleet.draw(keys, ranks, hottest, seed)


def bytes_per_second(count: float) -> Network:
    """A network that carries `count` bytes of payload in a second."""
    return Network(8 * count * FRAME)


def test_one_rank_computes_and_uses_its_bank() -> None:
    assert fleet.step_seconds(NOTHING, 1, INFINITE) == pytest.approx(0.75)


def test_without_limits_the_parts_add_up() -> None:
    parts = replace(
        NOTHING, computing=(1.0,), get_at=0.2, buckets=((1000, 0.5), (500, 0.9)), gradients_at=0.9,
        exchange=0.3, peer=0.05, header_bytes=80.0, distinct=0.4,
    )
    # One of the ranks owns the only key, and the others wait for it. Rank 3 and 4 are further ones.
    assert fleet.step_seconds(parts, 4, INFINITE, steps=3) == pytest.approx(
        1.0 + 0.3 + 2 * 0.05 + 0.4
    )
    # Five messages: headers, keys, rows, headers, gradients.
    assert fleet.step_seconds(
        replace(parts, message=0.01), 4, INFINITE, steps=3
    ) == pytest.approx(1.8 + 5 * 0.01)


def test_a_step_waits_for_the_slowest_rank() -> None:
    parts = replace(NOTHING, computing=(1.0, 3.0))
    # All of 64 ranks draw 1.0 in a share of 2 ** -64 of the steps.
    assert fleet.step_seconds(parts, 64, INFINITE, steps=10) == pytest.approx(3.0)
    assert 2.0 < fleet.step_seconds(parts, 2, INFINITE, steps=400) < 3.0


def test_every_rank_asks_the_owner_of_one_hot_key_once() -> None:
    of = counts(ONE_HOT, 8, hottest=2)
    owner = int(of.asked[0].argmax())
    expected = np.zeros((8, 8), dtype=np.int64)
    expected[:, owner] = 1
    assert np.array_equal(of.asked, expected)
    assert of.distinct.sum() == of.distinct[owner] == 1
    assert of.cold.sum() == 0 and np.array_equal(of.hot, np.ones(8))
    # The owner reads the row once, and is asked for it seven times more.
    parts = replace(NOTHING, distinct=1.0, repeated=0.1)
    assert parts.own_shard(of)[owner] == pytest.approx(1.7)
    assert parts.own_shard(of).sum() == pytest.approx(1.7)


def test_two_ranks_by_hand() -> None:
    of = counts(ONE_HOT, 2)
    assert of.asked.sum() == 2
    # To the owner: a key of 8 bytes, and a gradient of 4 floats. From it: a row. Rows and gradients
    # take 16 s each, and a header 32 s in both directions at once.
    parts = replace(NOTHING, header_bytes=32.0)
    own_links = bytes_per_second(1.0)
    assert fleet.step_seconds(parts, 2, own_links, steps=4) == pytest.approx(2 * 32 + 8 + 16 + 16)
    one_bucket = replace(own_links, shared=True)
    assert fleet.step_seconds(parts, 2, one_bucket, steps=4) == pytest.approx(4 * 32 + 8 + 16 + 16)
    # Each message has a word that its receiver has begun, and then its bytes.
    far = replace(INFINITE, latency=0.5)
    assert fleet.step_seconds(parts, 2, far, steps=4) == pytest.approx(5 * 2 * 0.5)


def test_gradients_are_summed_beside_the_backward_pass() -> None:
    # A ring of two ranks sends each byte once. The sum begins after half of the computing.
    no_keys = replace(
        NOTHING, keys=replace(ONE_HOT, rows=0), computing=(10.0,), buckets=((6, 0.5),)
    )
    assert fleet.step_seconds(no_keys, 2, bytes_per_second(2.0), steps=4) == pytest.approx(10.0)
    network = bytes_per_second(1.0)
    assert fleet.step_seconds(no_keys, 2, network, steps=4) == pytest.approx(11.0)
    # Four ranks: each sends 2 * 3 / 4 of the bytes, in six rounds.
    assert fleet.step_seconds(
        replace(no_keys, ring_round=0.1), 4, network, steps=4
    ) == pytest.approx(5 + 9 + 0.6)
    # One bucket carries the bytes of all four.
    shared = replace(network, shared=True)
    assert fleet.step_seconds(no_keys, 4, shared, steps=4) == pytest.approx(5 + 36)


def test_a_message_waits_for_the_last_of_a_link() -> None:
    links = Links(bytes_per_second(1.0), 3)
    now = np.array([0.0, 1.0, 5.0])
    sent = np.array([[0.0, 2.0, 2.0], [0.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    # Rank 2 begins at 5. It sends 4 bytes to rank 1, whose link had time for those of rank 0.
    assert links.all_to_all(now, sent).tolist() == [9.0, 9.0, 9.0]
    # The links are busy until then: rank 2 has still to send.
    again = np.zeros((3, 3))
    again[2, 0] = 1.0
    assert links.all_to_all(now, again)[0] == 10.0


def test_an_idle_bucket_passes_a_burst() -> None:
    links = Links(replace(bytes_per_second(1.0), shared=True, burst_bytes=3 * FRAME), 2)
    sent = np.array([[0.0, 5.0], [0.0, 0.0]])
    ready = np.full(2, 10.0)
    assert links.all_to_all(ready, sent).tolist() == [12.0, 12.0]
    # The bucket was empty at 12, and has two tokens at 14.
    assert links.all_to_all(np.full(2, 14.0), sent).tolist() == [17.0, 17.0]
    assert links.all_to_all(np.full(2, 30.0), sent / 5).tolist() == [30.0, 30.0]


def test_ranks_share_a_core_equally() -> None:
    begin, work = np.array([0.0, 1.0, 0.0]), np.array([3.0, 1.0, 4.0])
    assert fleet.worked(begin, work, None).tolist() == [3.0, 2.0, 4.0]
    # Rank 0 works alone until 1, both until rank 1 has had its second, and rank 0 ends alone.
    assert fleet.worked(begin, work, [0, 0, 1]).tolist() == [4.0, 3.0, 4.0]
    assert fleet.worked(begin, np.zeros(3), [0, 0, 0]).tolist() == [0.0, 1.0, 0.0]
    parts = replace(NOTHING, computing=(1.0,))
    assert fleet.step_seconds(parts, 4, INFINITE, cores=[0, 1, 0, 1], steps=3) == pytest.approx(2.0)


def test_a_draw_counts_each_key_of_a_rank_once() -> None:
    of, hottest = counts(MANY, 6, hottest=50), MANY.hottest(50)
    assert sum(hottest) == 50 and hottest[0] > 10
    rng = np.random.default_rng(1)
    ranks: list[set[tuple[int, int]]] = [set() for _ in range(6)]
    for table in range(2):
        for mine, keys in zip(ranks, MANY.drawn(table, 6, rng)):
            mine.update((table, int(key)) for key in keys)
    everyone = set().union(*ranks)
    assert of.asked.sum(axis=1).tolist() == [len(mine) for mine in ranks]
    assert of.distinct.sum() == len(everyone) < of.asked.sum()
    assert of.cold.sum() == sum(key >= hottest[table] for table, key in everyone)
    assert of.hot.tolist() == [sum(key < hottest[table] for table, key in mine) for mine in ranks]
    # The hash gives each rank a fair part of the keys.
    assert of.distinct.max() < 1.3 * of.distinct.mean()


def test_keys_follow_their_law() -> None:
    keys = Keys(rows=200_000, sizes=(1000,), skew=1.05, missing=0.1)
    drawn = np.bincount(keys.drawn(0, 1, np.random.default_rng(2))[0], minlength=1001) / 200_000
    assert drawn[0] == pytest.approx(0.1, rel=0.05)
    # Of the density 1 / x ** 1.05 on 1..1001, the part from 1 to 2.
    whole, first = 1 - 1001**-0.05, 1 - 2**-0.05
    assert drawn[1] == pytest.approx(0.9 * first / whole, rel=0.05)
    assert drawn[1:11].tolist() == sorted(drawn[1:11], reverse=True)


def test_rows_beyond_the_memory_come_from_disk() -> None:
    parts = replace(NOTHING, keys=MANY, in_memory=50, disk_read=1.0)
    of = counts(MANY, 3, hottest=50)
    assert parts.own_shard(of).tolist() == of.cold.tolist()
    in_memory = replace(parts, in_memory=1 << 40)
    assert fleet.step_seconds(in_memory, 3, INFINITE, steps=2) == 0.0
    slowest = [counts(MANY, 3, hottest=50, seed=seed).cold.max() for seed in (0, 1)]
    # Steps take turns with two draws, and begin with the first.
    assert fleet.step_seconds(parts, 3, INFINITE, steps=2) == pytest.approx(sum(slowest) / 2)


def test_reads_determine_the_rows_in_memory() -> None:
    for rows in (7, 500, 10_000):
        reads = float(counts(MANY, 2, hottest=rows, seed=0).cold.mean())
        found = fleet.rows_in_memory(MANY, 2, reads)
        assert counts(MANY, 2, hottest=found, seed=0).cold.mean() == reads
    assert fleet.rows_in_memory(MANY, 2, 0.0) <= sum(MANY.sizes) + 2


def test_a_seed_determines_the_steps() -> None:
    parts = replace(NOTHING, keys=MANY, computing=(1.0, 2.0, 4.0), distinct=0.001)
    network = bytes_per_second(1e5)
    first, again, other = (
        fleet.step_seconds(parts, 5, network, steps=10, seed=seed) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_parts_come_back_from_json() -> None:
    parts = replace(NOTHING, computing=(1.0, 2.0), buckets=((1000, 0.5), (500, 0.9)))
    assert Parts.of(json.loads(json.dumps(parts.plain()))) == parts
