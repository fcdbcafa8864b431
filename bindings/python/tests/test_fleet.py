"""Tests of a fleet's files and routing, without processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embank import Damaged
from embank._embank import list_shards, route_keys, shard_path


def test_keys_are_sorted_by_shard() -> None:
    keys = np.array([0, 1, 7, 2**40, -1], dtype=np.int64)
    # The buckets of these keys in a table "user" are 4089, 3033, 507, 295 and 579 of 4,096: they
    # are part of the format.
    order, counts = route_keys("user", keys, 4)
    assert order.dtype == counts.dtype == np.int64
    assert order.tolist() == [2, 3, 4, 1, 0]
    assert counts.tolist() == [3, 0, 1, 1]
    unsigned = route_keys("user", keys.view(np.uint64), 4)
    assert unsigned[0].tolist() == order.tolist()
    empty, none = route_keys("user", np.empty(0, dtype=np.int64), 3)
    assert empty.tolist() == [] and none.tolist() == [0, 0, 0]


def test_a_number_of_shards_out_of_range_is_refused() -> None:
    for shards in (0, 4097):
        with pytest.raises(ValueError, match="shards must be from 1 to 4096"):
            route_keys("user", [1], shards)
    with pytest.raises(TypeError, match="integers"):
        route_keys("user", [0.5], 2)


def test_shards_are_found_by_the_names_of_their_directories(tmp_path: Path) -> None:
    assert list_shards(tmp_path / "none") == []
    for name in ("shard-00002", "shard-00000", "shard-2"):
        (tmp_path / name).mkdir()
    assert list_shards(tmp_path) == [(0, None), (2, None)]
    assert shard_path(tmp_path, 2) == tmp_path / "shard-00002"
    (tmp_path / "shard-00002" / "SHARD").write_bytes(b"no identity")
    with pytest.raises(Damaged, match="restore the file"):
        list_shards(tmp_path)
