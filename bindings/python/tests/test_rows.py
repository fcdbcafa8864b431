"""Tests that rows go in and out of a table as NumPy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank


def ones(n: int, dim: int = 4) -> Any:
    return np.ones((n, dim), np.float32)


def test_get_gives_one_row_a_key_and_inserts_missing_ones(table: embank.Table) -> None:
    with table.get(np.array([5, 7, 5])) as lease:
        assert lease.rows.dtype == np.float32
        assert lease.rows.shape == (3, 4)
        assert len(lease) == 3
        assert (lease.rows == 1.0).all()
    assert table.contains([5, 6, 7]).tolist() == [True, False, True]


def test_put_then_peek_gives_the_rows_back(table: embank.Table) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    table.put([3, 1, 2], rows)
    np.testing.assert_array_equal(table.peek([1, 2, 3]), rows[[1, 2, 0]])


def test_a_blind_put_writes_rows_as_a_put_does(table: embank.Table) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    table.put([3, 1], ones(2))
    table.put([3, 1, 2], rows, blind=True)
    np.testing.assert_array_equal(table.peek([1, 2, 3]), rows[[1, 2, 0]])
    assert len(table) == 3


def test_a_blind_put_refuses_what_it_would_lose(bank: embank.Bank) -> None:
    table = bank.table("state", dim=4, optimizer=embank.Adagrad(lr=0.5))
    with pytest.raises(ValueError, match="without optimizer state"):
        table.put([1], ones(1), blind=True)
    assert len(table) == 0


def test_of_equal_keys_the_last_row_is_kept(table: embank.Table) -> None:
    table.put([3, 3], np.stack([ones(1)[0], 2 * ones(1)[0]]))
    assert (table.peek([3]) == 2.0).all()


def test_gradients_of_equal_keys_are_summed(table: embank.Table) -> None:
    table.apply_gradients([8, 9, 8], ones(3))
    np.testing.assert_array_equal(table.peek([8, 9])[:, 0], [0.0, 0.5])


def test_peek_of_a_missing_row_is_its_initial_value_or_an_error(table: embank.Table) -> None:
    table.put([1], ones(1))
    assert (table.peek([1, 2, 3]) == 1.0).all()
    assert not table.contains([2, 3]).any()
    with pytest.raises(embank.MissingRow) as raised:
        table.peek([1, 2, 3], missing="error")
    assert (raised.value.table, raised.value.key, raised.value.count) == ("item", 2, 2)


def test_initial_values_depend_on_seed_name_and_key_alone(tmp_path: Path) -> None:
    keys = np.arange(100)

    def initial(name: str, seed: int, folder: str) -> Any:
        with embank.Bank(tmp_path / folder, memory_budget="16MiB") as bank:
            table = bank.table(name, dim=8, seed=seed, initializer=embank.Normal(0.0, 0.1))
            with table.get(keys[::-1]) as lease:
                np.testing.assert_array_equal(lease.rows[::-1], table.initial(keys))
            return table.initial(keys)

    first = initial("a", 1, "one")
    np.testing.assert_array_equal(first, initial("a", 1, "two"))
    assert (first != initial("a", 2, "three")).any()
    assert (first != initial("b", 1, "four")).any()
    assert 0.05 < first.std() < 0.2


def test_delete_counts_the_rows_that_were_there(table: embank.Table) -> None:
    table.put([1, 2], ones(2) * 3)
    assert table.delete([1, 5]) == 1
    assert table.contains([1, 2]).tolist() == [False, True]
    assert (table.peek([1]) == 1.0).all()


KEYS = [3, 0, 7, 3]


@pytest.mark.parametrize(
    "keys",
    [
        KEYS,
        tuple(KEYS),
        np.array(KEYS, np.int64),
        np.array(KEYS, np.uint64),
        np.array(KEYS, np.int32),
        np.array(KEYS, np.uint32),
        np.array(KEYS, np.uint8),
        np.array(KEYS, ">i8"),
        np.repeat(KEYS, 2)[::2],
        np.array(KEYS)[::-1][::-1],
        np.frombuffer(b"x" + np.array(KEYS, np.int64).tobytes(), np.int64, offset=1),
    ],
    ids=lambda keys: f"{type(keys).__name__}-{getattr(keys, 'dtype', '')}",
)
def test_keys_of_every_integer_form_name_the_same_rows(table: embank.Table, keys: Any) -> None:
    table.put([0, 3, 7], np.repeat(np.array([0, 3, 7], np.float32), 4).reshape(3, 4))
    np.testing.assert_array_equal(table.peek(keys)[:, 0], KEYS)
    lease = table.get_distinct(keys)
    assert lease.keys.tolist() == [3, 0, 7]
    assert lease.keys.dtype == np.uint64
    assert lease.inverse.tolist() == [0, 1, 2, 0]
    assert lease.inverse.dtype == np.int64
    lease.release()


def test_a_negative_key_stands_for_the_same_64_bits(table: embank.Table) -> None:
    table.put(np.array([-1]), 2 * ones(1))
    assert (table.peek(np.array([2**64 - 1], np.uint64)) == 2.0).all()
    assert table.outstanding(-1) == 0
    assert table.outstanding(2**64 - 1) == 0
    assert table.outstanding(5) is None


def test_strided_rows_and_lists_of_rows_are_converted(table: embank.Table) -> None:
    wide = np.arange(24, dtype=np.float32).reshape(3, 8)
    table.put([1, 2, 3], wide[:, ::2])
    np.testing.assert_array_equal(table.peek([1, 2, 3]), wide[:, ::2])
    table.put([1, 2, 3], np.asfortranarray(wide[:, :4]))
    np.testing.assert_array_equal(table.peek([1, 2, 3]), wide[:, :4])
    table.put([1], [[1, 2, 3, 4]])
    assert table.peek([1]).tolist() == [[1.0, 2.0, 3.0, 4.0]]


@pytest.mark.parametrize("keys", [[], np.array([], np.int64)], ids=["list", "array"])
def test_an_empty_batch_is_a_batch(table: embank.Table, keys: Any) -> None:
    assert table.peek(keys).shape == (0, 4)
    assert table.contains(keys).shape == (0,)
    assert table.delete(keys) == 0
    table.put(keys, np.empty((0, 4), np.float32))
    with table.get(keys) as lease:
        lease.apply(np.empty((0, 4), np.float32))
    distinct = table.get_distinct(keys)
    shapes = distinct.keys.shape, distinct.inverse.shape, distinct.rows.shape
    assert shapes == ((0,), (0,), (0, 4))
    distinct.release()


def test_arrays_that_went_in_are_neither_kept_nor_changed(table: embank.Table) -> None:
    keys = np.arange(4)
    rows = ones(4) * 5
    table.put(keys, rows)
    keys += 100
    rows[:] = 0
    assert (table.peek(np.arange(4)) == 5.0).all()
    out = table.peek([0])
    out[:] = 9
    assert (table.peek([0]) == 5.0).all()


def test_read_only_arrays_are_taken(table: embank.Table) -> None:
    keys, rows = np.arange(3), ones(3)
    keys.flags.writeable = rows.flags.writeable = False
    table.put(keys, rows)
    assert table.contains(keys).all()


def test_lookahead_counts_what_it_was_asked(bank: embank.Bank, table: embank.Table) -> None:
    table.put([1, 2, 3], ones(3))
    assert table.lookahead([1, 2, 3]) == 0, "all are in memory"
    assert bank.wait_lookahead()
    counts = bank.stats()["lookahead"]
    assert (counts["requested"], counts["resident"], counts["pending"]) == (3, 3, 0)
    assert bank.cancel_lookahead() == 0


def test_rows_beyond_the_budget_come_back_with_and_without_lookahead(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((40_000, 32)).astype(np.float32)
    keys = rng.permutation(40_000)
    with embank.Bank(tmp_path / "bank", memory_budget="2MiB") as bank:
        table = bank.table("wide", dim=32)
        for at in range(0, 40_000, 1000):
            table.put(keys[at : at + 1000], rows[at : at + 1000])
        for at in range(0, 40_000, 1000):
            if at % 2000 == 0:
                table.lookahead(keys[at + 1000 : at + 2000])
            with table.get(keys[at : at + 1000]) as lease:
                np.testing.assert_array_equal(lease.rows, rows[at : at + 1000])
        stats = bank.stats()
        assert stats["hits"]["disk"] > 0
        assert stats["memory"]["used_bytes"] <= stats["memory"]["budget_bytes"] == 2 << 20
        assert stats["lookahead"]["requested"] == 20_000


def test_rows_are_stored_in_the_dtype_asked_for(bank: embank.Bank) -> None:
    import numpy

    values = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
    asked = {"float32": "float32", "float16": numpy.float16, "int8": numpy.dtype("int8"),
             "bfloat16": "bfloat16"}
    for name, dtype in asked.items():
        table = bank.table(name, dim=8, dtype=dtype, optimizer=embank.Adam(lr=0.01),
                           state_dtype="bfloat16")
        assert table.dtype == name
        table.put([1], values)
        found = table.peek([1])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, values, atol=0.004)
        table.apply_gradients([1], values)
        assert not np.array_equal(table.peek([1]), found)
    with pytest.raises(ValueError, match="int8"):
        bank.table("other", dim=8, dtype="float64")
    with pytest.raises(ValueError, match="stochastic"):
        bank.table("other", dim=8, dtype="int8", rounding="up")  # type: ignore[arg-type]


def test_len_counts_rows_without_a_scan(bank: embank.Bank, table: embank.Table) -> None:
    assert len(table) == 0
    assert table, "a table without rows is a table"
    table.put([1, 2, 1], np.ones((3, 4), np.float32))
    table.get([2, 3]).release()
    assert len(table) == 3  # needs no checkpoint; a scan does
    table.peek([9])
    table.delete([1, 9])
    assert len(table) == 2
    other = bank.table("other", dim=4)
    assert (len(other), len(table)) == (0, 2)
    bank.drop_table("item")
    with pytest.raises(embank.NoSuchTable):
        len(table)
