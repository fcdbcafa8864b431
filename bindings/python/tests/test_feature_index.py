"""Tests which rows an index of a feature store names, and the size of the attribute afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from embank.torch.geometric import FeatureStore, _digest, _Shape  # noqa: E402


@pytest.fixture
def store(bank: embank.Bank) -> FeatureStore:
    return FeatureStore(bank)


# For a put of four rows into a new attribute: an index, the rows that it names, and the size of the
# attribute afterwards.
NEW = [
    (slice(0, 4), [0, 1, 2, 3], 4),
    (slice(None), [0, 1, 2, 3], 4),
    (slice(2, 6), [2, 3, 4, 5], 6),
    (slice(2, None), [2, 3, 4, 5], 6),
    (slice(1, 9, 2), [1, 3, 5, 7], 8),
    (slice(None, None, 3), [0, 3, 6, 9], 10),
    (slice(5, 1, -1), [5, 4, 3, 2], 6),
    (slice(None, None, -1), [3, 2, 1, 0], 4),
    (slice(None, 1, -2), [8, 6, 4, 2], 9),
    (slice(10**15, 10**15 + 4), [10**15 + at for at in range(4)], 10**15 + 4),
    (torch.tensor([True, False, True, True, True, False]), [0, 2, 3, 4], 6),
    (torch.tensor([False, True, True, True, True, False, False]), [1, 2, 3, 4], 7),
    ([True, True, True, True, False], [0, 1, 2, 3], 5),
    (torch.tensor([7, 1, 0, 2]), [7, 1, 0, 2], 8),
    ([3, 2, 1, 9], [3, 2, 1, 9], 10),
]


@pytest.mark.parametrize(("index", "rows", "size"), NEW, ids=lambda value: str(value)[:60])
def test_a_new_attribute_takes_every_index(
    store: FeatureStore, index: Any, rows: list[int], size: int
) -> None:
    """Shows that a new attribute takes every kind of index. A slice once failed, and a mask with
    False at its end made the size smaller than its length."""
    values = torch.arange(8.0).view(4, 2)
    store["paper", "x", index] = values
    assert store.get_tensor_size("paper", "x") == (size, 2)
    for row, value in zip(rows, values):
        assert torch.equal(store["paper", "x", row], value)
    with pytest.raises(IndexError, match=f"has {size} rows; there is no row {size}"):
        store["paper", "x", size]


# For a put of four rows into an attribute of six rows: an index, the rows that it names, and the
# size afterwards.
LONGER = [
    (slice(4, 8), [4, 5, 6, 7], 8),
    (slice(6, None), [6, 7, 8, 9], 10),
    (slice(9, 13), [9, 10, 11, 12], 13),
    (slice(-1, None), [5, 6, 7, 8], 9),
    (slice(-2, 8), [4, 5, 6, 7], 8),
    (slice(0, 8, 2), [0, 2, 4, 6], 7),
    (slice(7, 3, -1), [7, 6, 5, 4], 8),
    (slice(6, -4, -1), [6, 5, 4, 3], 7),
    (slice(2, 6), [2, 3, 4, 5], 6),
    (slice(-4, None), [2, 3, 4, 5], 6),
    (slice(-9, 4), [0, 1, 2, 3], 6),
    (slice(3, None, -1), [3, 2, 1, 0], 6),
]


@pytest.mark.parametrize(("index", "rows", "size"), LONGER, ids=str)
def test_a_slice_writes_the_rows_that_it_names(
    store: FeatureStore, index: slice, rows: list[int], size: int
) -> None:
    """Shows that a slice may reach beyond the size. Earlier versions cut `slice(4, 8)` to two rows
    and kept the size."""
    store["paper", "x", None] = torch.full((6, 2), -1.0)
    values = torch.arange(8.0).view(4, 2)
    store["paper", "x", index] = values
    assert store.get_tensor_size("paper", "x") == (size, 2)
    assert torch.equal(store["paper", "x", rows], values)
    others = [row for row in range(6) if row not in rows]
    assert (store["paper", "x", others] == -1).all()


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (slice(2, 6), ValueError, "names 4 rows, the tensor has 2"),
        (slice(0, None), ValueError, "names 4 rows, the tensor has 2"),
        (slice(3, 4), ValueError, "names 1 rows, the tensor has 2"),
        (slice(0, 2**62), ValueError, "rows, the tensor has 2"),
        (slice(2**63, 2**63 + 2), IndexError, "uint64 tensor"),
        (slice(0, 2, 0), ValueError, "zero"),
        ([0, -1], IndexError, "there is no row -1: a put takes numbers from 0 to"),
        (torch.tensor([0.0, 1.0]), TypeError, "'x' of 'paper' must be of integers or bools"),
        ([0.0, 1.0], TypeError, "must be of integers or bools, not float64"),
        (["0", "1"], TypeError, "must be of integers or bools"),
        (torch.ones(4, 4, dtype=torch.bool), IndexError, "mask must have shape"),
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_writes_nothing(
    store: FeatureStore, index: Any, error: type[Exception], text: str
) -> None:
    store["paper", "x", None] = torch.zeros(4, 2)
    with pytest.raises(error, match=text):
        store["paper", "x", index] = torch.ones(2, 2)
    assert (store["paper", "x", None] == 0).all()
    assert store.get_tensor_size("paper", "x") == (4, 2)


@pytest.mark.parametrize("index", [slice(-2, None), slice(0, -1), slice(None, -3, -1)], ids=str)
def test_nothing_counts_from_the_end_of_a_new_attribute(store: FeatureStore, index: slice) -> None:
    with pytest.raises(IndexError, match="'x' of 'paper' is not there yet.*counts"):
        store["paper", "x", index] = torch.ones(2, 2)
    with pytest.raises(IndexError, match="mask must have shape"):
        store["paper", "x", torch.ones(2, 2, dtype=torch.bool)] = torch.ones(4, 2)
    assert store.get_all_tensor_attrs() == []


@pytest.mark.parametrize(
    "index", [True, torch.tensor(True), torch.tensor(2.7), np.array(2.7), np.float32(1)], ids=repr
)
def test_a_bool_or_float_names_no_row(store: FeatureStore, index: Any) -> None:
    """Shows that a float or bool is refused as an index. Earlier versions read row 2 for 2.7 and
    row 1 for True."""
    store["paper", "x", None] = torch.zeros(4, 2)
    with pytest.raises((IndexError, TypeError), match="of attribute 'x' of 'paper'"):
        store["paper", "x", index]
    with pytest.raises((IndexError, TypeError), match="of attribute 'x' of 'paper'"):
        store["paper", "x", index] = torch.ones(2)


def test_keys_end_before_two_to_the_64(store: FeatureStore) -> None:
    store["paper", "x", 2**64 - 1] = torch.ones(2)
    assert store["paper", "x", 2**64 - 1].tolist() == [1.0, 1.0]
    with pytest.raises(IndexError, match=f"no row {2**64}: a put takes numbers from 0 to"):
        store["paper", "x", 2**64] = torch.ones(2)
    with pytest.raises(IndexError, match=f"no row {2**64}"):
        store["paper", "x", 2**64]


@pytest.mark.skipif(not hasattr(torch, "uint64"), reason="needs a newer torch")
def test_unsigned_numbers_reach_every_key(store: FeatureStore) -> None:
    rows = torch.tensor([2**63, 1, 2**64 - 1], dtype=torch.uint64)
    values = torch.arange(6.0).view(3, 2)
    store["paper", "x", rows] = values
    assert store.get_tensor_size("paper", "x") == (2**64, 2)
    assert torch.equal(store["paper", "x", rows], values)


def test_a_mask_without_a_row_gives_the_size(store: FeatureStore) -> None:
    store["paper", "x", torch.zeros(5, dtype=torch.bool)] = torch.empty(0, 2)
    assert store.get_tensor_size("paper", "x") == (5, 2)
    with pytest.raises(embank.MissingRow):
        store["paper", "x", 4]
    assert store["paper", "x", []].shape == (0, 2)
    store["paper", "x", torch.tensor([False, True, False, False, False])] = torch.ones(1, 2)
    assert store["paper", "x", 1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("rows", [torch.ones(3), np.ones(3, np.float32), [1.0, 1.0, 1.0]], ids=type)
def test_slices_of_numbers_and_lists(store: FeatureStore, rows: Any) -> None:
    store["paper", "w", 1:] = rows
    assert store.get_tensor_size("paper", "w") == (4,)
    assert store.update_tensor(rows, "paper", "w", slice(3, 6))
    assert store["paper", "w", 1:].tolist() == [1.0] * 5


SMALL_SIZES = [1, 2**22, 2**24 + 1, 2**46 - 1, 2**46]
LARGE_SIZES = [2**46 + 2**22 + 1, 10**14 + 1, 10**15 + 7, 10**18 + 3, 2**63 - 2]


@pytest.mark.parametrize("rows", [0, *SMALL_SIZES, *LARGE_SIZES, 2**64 - 1, 2**64])
@pytest.mark.parametrize("trained", [False, True])
def test_a_size_is_packed_exactly(rows: int, trained: bool) -> None:
    shape = _Shape(rows, 2, trained)
    assert _Shape.unpacked(np.array(shape.packed(), np.float32)) == shape


@pytest.mark.parametrize("rows", [*SMALL_SIZES, *LARGE_SIZES])
def test_an_attribute_of_large_ids_is_read(store: FeatureStore, rows: int) -> None:
    """Shows that sizes above 2^46 are exact. Earlier versions rounded them to float32, so the last
    row was outside of its attribute."""
    store["paper", "x", torch.tensor([0, rows - 1])] = torch.ones(2, 2)
    assert store.get_tensor_size("paper", "x") == (rows, 2)
    assert store["paper", "x", torch.tensor([rows - 1])].tolist() == [[1.0, 1.0]]
    assert store["paper", "x", rows - 1].tolist() == [1.0, 1.0]
    store["paper", "x", rows] = torch.zeros(2)
    assert store.get_tensor_size("paper", "x") == (rows + 1, 2)
    with pytest.raises(IndexError, match=f"no row {rows + 1}"):
        store["paper", "x", rows + 1]


def test_embeddings_may_have_large_ids(store: FeatureStore) -> None:
    store.add_embedding("paper", "z", 10**18 + 1, 2, initializer=embank.Constant(1.0))
    assert store.get_tensor_size("paper", "z") == (10**18 + 1, 2)
    assert store["paper", "z", torch.tensor([10**18])].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        ([0.0, 5.0, 2.0, 0.0], (5, 2)),
        ([3.0, 7.0, 1.0, 1.0], (3 * 2**22 + 7,)),
        ([2.0**24 - 1, 2.0**22 - 1, 2.0, 1.0], (2**46 - 1, 2)),
        ([2.0**28, 3.0, 2.0, 0.0], (2**50 + 3, 2)),
    ],
)
def test_sizes_of_older_versions_are_read(
    bank: embank.Bank, store: FeatureStore, row: list[float], shape: Any
) -> None:
    """Shows that sizes of an older version are read. They had two digits, and their fourth number
    was 0 or 1."""
    store["paper", "x", None] = torch.zeros(1, 2)
    name = store.table("paper", "x").name
    bank.open_table("features sizes").put([_digest(name)], [row])
    assert store.get_tensor_size("paper", "x") == shape


def test_sizes_that_older_versions_read_are_written_as_they_did(
    bank: embank.Bank, store: FeatureStore
) -> None:
    store["paper", "x", 2**40] = torch.zeros(2)
    name = store.table("paper", "x").name
    row = bank.open_table("features sizes").peek([_digest(name)])[0]
    assert row.tolist() == [2.0**18, 1.0, 2.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_default_dtype_changes_nothing(store: FeatureStore, dtype: Any) -> None:
    """Shows that rows are float32 whatever torch's default dtype is."""
    values = torch.randn(5, 3, dtype=torch.float32)
    torch.set_default_dtype(dtype)
    try:
        store["paper", "x", None] = values
        store["paper", "x", 5] = values[0]
        store.add_embedding("paper", "z", 5, 3, initializer=embank.Constant(1.0))
        store["paper", "w", None] = [0.5, 1.5]
        assert store["paper", "w", None].tolist() == [0.5, 1.5] and store["paper", "w", []].shape == (0,)
        for index in (torch.tensor([0, 4]), slice(1, 3), 2):
            assert torch.equal(store["paper", "x", index], values[index])
        assert store["paper", "x", None].dtype == torch.float32
        assert store["paper", "z", None].dtype == torch.float32
        assert store.get_tensor_size("paper", "x") == (6, 3)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_device_changes_nothing(store: FeatureStore) -> None:
    values = torch.randn(4, 2)
    with torch.device("meta"):
        store["paper", "x", None] = values
        store["paper", "y", None] = values.numpy()
        for name, index in (("x", [2, 0]), ("y", [2, 0]), ("x", slice(2, None, -2))):
            assert store["paper", name, index].device.type == "cpu"
            assert torch.equal(store["paper", name, index], values[[2, 0]])
