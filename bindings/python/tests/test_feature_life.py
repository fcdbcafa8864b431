"""Tests attributes of a feature store that are replaced, shortened, trained and lengthened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from embank.torch.fills import training  # noqa: E402
from embank.torch.geometric import FeatureStore  # noqa: E402


@pytest.fixture
def store(bank: embank.Bank) -> FeatureStore:
    return FeatureStore(bank)


class Watched:
    """A table that counts the keys that the store asks it to delete."""

    deleted = 0

    def __init__(self, table: embank.Table) -> None:
        self._table = table

    def delete(self, keys: Any) -> int:
        Watched.deleted += len(keys)
        if Watched.deleted > 2**24:
            raise AssertionError("the table is told to delete key after key")
        return self._table.delete(keys)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(Watched, "deleted", 0)
    open_table = FeatureStore._table
    monkeypatch.setattr(FeatureStore, "_table", lambda self, name: Watched(open_table(self, name)))
    return Watched


@pytest.mark.parametrize("largest", [3, 10**5, 10**9, 10**15, 2**64 - 1])
def test_putting_all_takes_no_time_for_numbers_that_are_gone(
    store: FeatureStore, watched: type[Watched], largest: int
) -> None:
    """Shows that a put deletes only existing rows. Earlier versions deleted each number up to the
    largest, which took minutes for 10^9."""
    store["paper", "x", largest] = torch.zeros(2)
    store["paper", "x", 1] = torch.zeros(2)
    for rows in (2, 3):
        store["paper", "x", None] = torch.ones(rows, 2)
        assert store.get_tensor_size("paper", "x") == (rows, 2)
        assert (store["paper", "x", None] == 1).all()
    assert watched.deleted <= 2**16
    store["paper", "x", largest] = torch.zeros(2)
    between = largest - 1 if largest > 3 else largest
    assert store.table("paper", "x").contains(np.array([between], np.uint64)).any() == (largest == 3)


def test_a_table_that_was_made_anew_is_there_after_the_checkpoint(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "own", memory_budget="16MiB") as bank:
        store = FeatureStore(bank)
        store["paper", "x", 10**12] = torch.zeros(2)
        bank.checkpoint()
        store["paper", "x", None] = torch.ones(3, 2)
        assert training(bank) is None, "features are no training"
        bank.checkpoint()
    with embank.Bank(tmp_path / "own", memory_budget="16MiB") as bank:
        assert (FeatureStore(bank)["paper", "x", None] == torch.ones(3, 2)).all()
        assert not FeatureStore(bank).table("paper", "x").contains([10**12]).any()


def test_a_trained_attribute_is_not_shortened_key_by_key(store: FeatureStore) -> None:
    store.add_embedding("paper", "z", 2**40, 2, initializer=embank.Constant(1.0))
    store["paper", "z", 7] = torch.zeros(2)
    with pytest.raises(ValueError, match="'z' of 'paper' is trained and has .* call add_embedding with 3"):
        store["paper", "z", None] = torch.zeros(3, 2)
    assert store["paper", "z", torch.tensor([0, 7])][:, 0].tolist() == [1.0, 0.0]
    del store["paper", "z"]
    store.add_embedding("paper", "z", 100_000, 2, initializer=embank.Constant(1.0))
    store["paper", "z", 90_000] = torch.zeros(2)
    store["paper", "z", None] = torch.zeros(3, 2)
    assert store.get_tensor_size("paper", "z") == (3, 2)
    assert not store.table("paper", "z").contains([90_000]).any()


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_embeddings_do_not_shrink(store: FeatureStore, rows: int) -> None:
    """Shows that `add_embedding` refuses fewer rows than the attribute has. Earlier versions made
    the last rows unreadable."""
    store.add_embedding("paper", "z", 10, 2, initializer=embank.Constant(1.0))
    with pytest.raises(ValueError, match=f"'z' of 'paper' has 10 rows.*num_rows={rows}.*10 or more"):
        store.add_embedding("paper", "z", rows, 2, initializer=embank.Constant(1.0))
    assert store.get_tensor_size("paper", "z") == (10, 2)
    store.add_embedding("paper", "z", 12, 2, initializer=embank.Constant(1.0))
    assert store["paper", "z", 11].tolist() == [1.0, 1.0]
    store["paper", "z", 15] = torch.zeros(2)
    with pytest.raises(ValueError, match="has 16 rows"):
        store.add_embedding("paper", "z", 12, 2, initializer=embank.Constant(1.0))


@pytest.mark.parametrize(
    "index", [None, torch.tensor([0, 3]), torch.tensor([True, False, True]), slice(2, 4)], ids=str
)
def test_embeddings_do_not_take_over_features(store: FeatureStore, index: Any) -> None:
    """Shows that `add_embedding` does not turn an attribute of features into embeddings. Rows that
    the attribute lacks would read as initial values."""
    store["paper", "x", index] = torch.ones(2, 2)
    size = store.get_tensor_size("paper", "x")
    with pytest.raises(ValueError, match="'x' of 'paper' holds features that were put.*remove it"):
        store.add_embedding("paper", "x", 9, 2)
    assert store.get_tensor_size("paper", "x") == size
    if index is not None:
        with pytest.raises(embank.MissingRow):
            store["paper", "x", 1]
    del store["paper", "x"]
    store.add_embedding("paper", "x", 9, 2)


@pytest.mark.parametrize("rows", [-1, 2**64 + 1, 2.0, "3"], ids=repr)
def test_embeddings_have_a_number_of_rows(store: FeatureStore, rows: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="num_rows must be|as an integer"):
        store.add_embedding("paper", "z", rows, 2)
    assert store.get_all_tensor_attrs() == []
