"""Compares features in tables with PyTorch Geometric's own feature store in memory."""

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
from embank.torch.geometric import FeatureStore  # noqa: E402

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
    listed = again.get_all_tensor_attrs() + again.get_all_edge_tensor_attrs()
    assert {attr.group_name for attr in listed} == set(groups) and len(listed) == 3
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
        store["paper", "x", 4]  # keys between the ones that were put
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
    """Shows that an index outside of the attribute changes nothing. The index -1 once wrote the row
    of key 2^64 - 1."""
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
    """Shows that a put without an index removes the rows after the new tensor's last row."""
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
    """Shows that `add_embedding` with an unchanged size changes nothing before `resume`."""
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
    """Shows that the store answers the call that PyTorch Geometric's node loaders make for the
    nodes that they sampled."""
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


EDGES: list[Any] = [
    (WRITES, "edge_attr"),
    (("paper", "cites", "paper"), "x"),
    ((None, None), "weight"),
    (None, "edge_attr"),
    (None, "edge_weight"),
]


@pytest.mark.parametrize(("group", "name"), EDGES, ids=str)
def test_batches_have_no_edge_attributes_of_nodes(store: FeatureStore, group: Any, name: str) -> None:
    """Shows that a batch of a homogeneous graph has no edge attribute with the rows of its
    nodes."""
    x, edges = torch.randn(6, 3), torch.randn(8, 2)
    store[None, "x", None] = x
    store[group, name, None] = edges
    nodes, row, col = torch.tensor([4, 0, 5]), torch.tensor([1, 2]), torch.tensor([0, 0])
    data = filter_custom_store(store, None, nodes, row, col, torch.tensor([7, 2]))
    assert torch.equal(data.x, x[nodes]) and data.num_nodes == 3
    assert sorted(data.keys()) == ["edge_index", "num_nodes", "x"]
    # The attribute that a loader adds, and the transform that uses it.
    data.e_id = torch.tensor([7, 2])
    for attr in store.get_all_edge_tensor_attrs():
        data[f"{attr.attr_name} of edges"] = store[attr.group_name, attr.attr_name, data.e_id]
    assert torch.equal(data[f"{name} of edges"], edges[[7, 2]])


def test_nodes_of_a_type_have_any_name(store: FeatureStore) -> None:
    store["paper", "edge_count", None] = torch.ones(3, 1)
    store[None, "edges", None] = torch.ones(3, 1)
    assert len(store.get_all_tensor_attrs()) == 2 and store.get_all_edge_tensor_attrs() == []


def test_views_work_as_in_the_base_class(store: FeatureStore) -> None:
    store["paper", "x", None] = torch.arange(6.0).view(3, 2)
    assert store["paper"]["x"][torch.tensor([1])].tolist() == [[2.0, 3.0]]
    assert store.view("paper").x[:].shape == (3, 2)
    assert TensorAttr("paper", "x").group_name == "paper"
