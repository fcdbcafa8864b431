"""The features of PyTorch Geometric in tables, beside its own in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric")

from torch_geometric.data import FeatureStore as Base  # noqa: E402
from torch_geometric.data import HeteroData, TensorAttr  # noqa: E402
from torch_geometric.loader.utils import (  # noqa: E402
    filter_custom_hetero_store,
    filter_custom_store,
)

import embank.torch  # noqa: E402
from embank.torch.geometric import FeatureStore, _digest, _Shape  # noqa: E402

WRITES = ("author", "writes", "paper")


@pytest.fixture
def store(bank: embank.Bank) -> FeatureStore:
    return FeatureStore(bank)


@pytest.mark.parametrize(
    "index",
    [
        None,
        torch.tensor([3, 0, 3]),
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([True, False, True, False, False]),
        slice(1, 4),
        slice(None, None, 2),
        slice(-2, None),
        2,
        torch.empty(0, dtype=torch.int64),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(5, 3), (5,)])
def test_every_index_reads_as_in_memory(store: FeatureStore, index: Any, shape: Any) -> None:
    values = torch.randn(shape)
    memory: Any = HeteroData()
    for of in (store, memory):
        assert of.put_tensor(values, group_name="paper", attr_name="x", index=None)
    wanted = values if index is None else values[index]
    got = store.get_tensor("paper", "x", index)
    assert torch.equal(got, wanted)
    assert torch.equal(got, memory.get_tensor("paper", "x", index))
    assert store.get_tensor_size("paper", "x") == shape


def test_groups_are_node_types_edge_types_or_none(bank: embank.Bank, store: FeatureStore) -> None:
    groups: list[Any] = [None, "paper", WRITES]
    for at, group in enumerate(groups):
        store[group, "x", None] = torch.full((2, 2), float(at))
    again = FeatureStore(bank)
    assert {attr.group_name for attr in again.get_all_tensor_attrs()} == set(groups)
    for at, group in enumerate(groups):
        assert (again[group, "x", None] == at).all()
    assert isinstance(store, Base) and "3 attributes" in repr(store)


def test_two_stores_of_a_bank_do_not_meet(bank: embank.Bank) -> None:
    one, two = FeatureStore(bank), FeatureStore(bank, "other")
    one["paper", "x", None] = torch.ones(2, 2)
    assert two.get_tensor_size("paper", "x") is None
    assert two.get_tensor("paper", "x", None) is None
    assert not two.remove_tensor("paper", "x", None)


def test_features_survive_with_the_checkpoint(tmp_path: Path) -> None:
    values = torch.randn(100_000, 2)
    with embank.Bank(tmp_path / "own", memory_budget="16MiB") as bank:
        FeatureStore(bank)["paper", "x", None] = values
        bank.checkpoint()
    with embank.Bank(tmp_path / "own", memory_budget="16MiB") as bank:
        store = FeatureStore(bank)
        assert store.get_tensor_size("paper", "x") == (100_000, 2)
        assert torch.equal(store["paper", "x", None], values)


def test_parts_are_written_removed_and_updated(store: FeatureStore) -> None:
    store["paper", "x", None] = torch.zeros(4, 2)
    store["paper", "x", torch.tensor([1, 5])] = torch.ones(2, 2)
    assert store.get_tensor_size("paper", "x") == (6, 2)
    with pytest.raises(embank.MissingRow):
        store["paper", "x", 4]  # between those that were put
    assert store.update_tensor(torch.full((1, 2), 3.0), "paper", "x", slice(0, 1))
    assert store["paper", "x", torch.tensor([0, 1, 2, 5])][:, 0].tolist() == [3.0, 1.0, 0.0, 1.0]
    assert store.remove_tensor("paper", "x", torch.tensor([1]))
    with pytest.raises(embank.MissingRow):
        store["paper", "x", 1]
    del store["paper", "x"]
    assert store.get_all_tensor_attrs() == []
    store["paper", "x", None] = torch.zeros(3, 7)
    assert store.get_tensor_size("paper", "x") == (3, 7)


def test_embeddings_are_trained_and_fetched(store: FeatureStore) -> None:
    embedding = store.add_embedding(
        "paper", "z", 10, 2, optimizer=embank.SGD(lr=1.0), initializer=embank.Constant(1.0)
    )
    assert store["paper", "z", None].shape == (10, 2), "initial values"
    embedding(torch.tensor([3])).sum().backward()
    assert store["paper", "z", torch.tensor([3, 4])][:, 0].tolist() == [0.0, 1.0]
    table = store.table("paper", "z")
    assert table.stats()["gets"] == 1, "the fetches were peeks"
    with pytest.raises(KeyError, match="no attribute 'y'"):
        store.table("paper", "y")


@pytest.mark.parametrize("number", [np.int64(2), torch.tensor(2), np.array(2)], ids=repr)
def test_one_row_comes_without_a_dimension(store: FeatureStore, number: Any) -> None:
    values = torch.randn(5, 3)
    store["paper", "x", None] = values
    assert torch.equal(store.get_tensor("paper", "x", number), values[2])
    store["paper", "x", number] = torch.ones(3)
    assert torch.equal(store.get_tensor("paper", "x", 2), torch.ones(3))


def test_an_index_outside_writes_and_removes_nothing(store: FeatureStore) -> None:
    """-1 wrote the row of key 2^64 - 1."""
    store["paper", "x", None] = torch.zeros(4, 2)
    for index in (-1, torch.tensor([0, -3])):
        rows = torch.ones(2) if isinstance(index, int) else torch.ones(2, 2)
        with pytest.raises(IndexError, match="4 rows; there is no row -"):
            store["paper", "x", index] = rows
        with pytest.raises(IndexError, match="there is no row -"):
            store.remove_tensor("paper", "x", index)
    for mask in (torch.ones(3, dtype=torch.bool), torch.ones(5, dtype=torch.bool)):
        with pytest.raises(IndexError, match=r"mask must have shape \(4,\)"):
            store.get_tensor("paper", "x", mask)
        with pytest.raises(IndexError, match=r"mask must have shape \(4,\)"):
            store["paper", "x", mask] = torch.ones(len(mask), 2)
    assert (store["paper", "x", None] == 0).all()
    assert not store.table("paper", "x").contains([-1]).any()


def test_putting_all_replaces_all(store: FeatureStore) -> None:
    """Rows behind those of the new tensor stayed, and the old size."""
    store["paper", "x", None] = torch.zeros(5, 2)
    store["paper", "x", None] = torch.ones(3, 2)
    assert store.get_tensor_size("paper", "x") == (3, 2)
    assert torch.equal(store["paper", "x", None], torch.ones(3, 2))
    assert not store.table("paper", "x").contains([3, 4]).any()


def test_stores_of_one_name_see_each_other(bank: embank.Bank) -> None:
    one, two = FeatureStore(bank), FeatureStore(bank)
    one["paper", "x", None] = torch.zeros(5, 2)
    two["paper", "x", torch.tensor([1])] = torch.ones(1, 2)
    for store in (one, two):
        assert store.get_tensor_size("paper", "x") == (5, 2)
        assert store["paper", "x", None][:, 0].tolist() == [0, 1, 0, 0, 0]
    assert two.remove_tensor("paper", "x", None)
    assert one.get_tensor("paper", "x", None) is None and one.get_all_tensor_attrs() == []
    one["paper", "x", None] = torch.zeros(2, 7)
    assert two.get_tensor_size("paper", "x") == (2, 7)


def test_embeddings_without_an_optimizer_read_as_initial(store: FeatureStore) -> None:
    store.add_embedding("paper", "z", 3, 2, initializer=embank.Constant(1.0))
    assert (store["paper", "z", None] == 1.0).all()


def test_a_run_with_embeddings_is_resumed(tmp_path: Path) -> None:
    """The size was written anew, which is a change that nobody may make before `resume`."""
    for run in range(2):
        with embank.Bank(tmp_path / "own", memory_budget="16MiB") as bank:
            module = FeatureStore(bank).add_embedding(
                "paper", "z", 3, 2, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros()
            )
            values = embank.torch.resume(bank, model=module)
            assert values == (None if run == 0 else {"step": 1})
            if run == 1:
                assert module(torch.tensor([1])).tolist() == [[-1.0, -1.0]]
            module(torch.tensor([1])).sum().backward()
            embank.torch.save(bank, model=module, step=1)


def test_what_does_not_fit_is_named(store: FeatureStore) -> None:
    store["paper", "x", None] = torch.zeros(4, 2)
    with pytest.raises(IndexError, match="4 rows; there is no row 4"):
        store["paper", "x", torch.tensor([1, 4])]
    with pytest.raises(IndexError, match="no row -1"):
        store["paper", "x", torch.tensor([-1])]
    with pytest.raises(TypeError, match=r"'y' must be float32.*tensor\.float\(\)"):
        store["paper", "y", None] = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="names 2 rows, the tensor has 3"):
        store["paper", "x", torch.tensor([0, 1])] = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="has rows of 2"):
        store["paper", "x", None] = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"shape \(n, dim\)"):
        store["paper", "w", None] = torch.zeros(4, 3, 2)
    with pytest.raises(TypeError, match="integer"):
        store["paper", "x", torch.tensor([0.5])]


def test_loaders_build_batches_from_it(store: FeatureStore) -> None:
    """What PyTorch Geometric's node loaders call with the nodes that they sampled."""
    x, z = torch.randn(6, 3), torch.randn(6, 2)
    store[None, "x", None] = x
    store[None, "z", None] = z
    nodes, row, col = torch.tensor([4, 0, 5]), torch.tensor([1, 2]), torch.tensor([0, 0])
    data = filter_custom_store(store, None, nodes, row, col, None)
    assert torch.equal(data.x, x[nodes]) and torch.equal(data.z, z[nodes])
    assert data.num_nodes == 3 and data.edge_index.tolist() == [[1, 2], [0, 0]]


def test_heterogeneous_loaders_build_batches_from_it(bank: embank.Bank) -> None:
    store = FeatureStore(bank)
    papers, authors = torch.randn(6, 3), torch.randn(4, 2)
    store["paper", "x", None] = papers
    store["author", "x", None] = authors
    nodes = {"paper": torch.tensor([5, 1]), "author": torch.tensor([0, 3])}
    data = filter_custom_hetero_store(store, HeteroData(), nodes, {}, {}, {})
    assert torch.equal(data["paper"].x, papers[[5, 1]])
    assert torch.equal(data["author"].x, authors[[0, 3]])


# An index, the rows that it names where four rows are put into none, and the size afterwards.
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
    (torch.tensor([2**63, 1, 2**64 - 1, 2], dtype=torch.uint64), [2**63, 1, 2**64 - 1, 2], 2**64),
]


@pytest.mark.parametrize(("index", "rows", "size"), NEW, ids=lambda value: str(value)[:60])
def test_a_new_attribute_takes_every_index(
    store: FeatureStore, index: Any, rows: list[int], size: int
) -> None:
    """A slice failed, and a mask with False at its end gave a smaller size than its length."""
    values = torch.arange(8.0).view(4, 2)
    store["paper", "x", index] = values
    assert store.get_tensor_size("paper", "x") == (size, 2)
    for row, value in zip(rows, values):
        assert torch.equal(store["paper", "x", row], value)
    with pytest.raises(IndexError, match=f"has {size} rows; there is no row {size}"):
        store["paper", "x", size]


# The same for six rows that are there.
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
    """Slices were cut to the size, so `slice(4, 8)` wrote two rows, and the size stayed."""
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
    """2.7 read row 2, and True row 1."""
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
    unsigned = torch.tensor([2**64 - 1], dtype=torch.uint64)
    assert store["paper", "x", unsigned].tolist() == [[1.0, 1.0]]


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
    """Sizes above 2^46 were rounded to float32: the last row was outside of its own attribute."""
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
    """A size had two digits, and its fourth number was 0 or 1."""
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
    """Rows were read into a tensor of the default dtype, which a table does not fill."""
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


def test_views_work_as_in_the_base_class(store: FeatureStore) -> None:
    store["paper", "x", None] = torch.arange(6.0).view(3, 2)
    assert store["paper"]["x"][torch.tensor([1])].tolist() == [[2.0, 3.0]]
    assert store.view("paper").x[:].shape == (3, 2)
    assert TensorAttr("paper", "x").group_name == "paper"
