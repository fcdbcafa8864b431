"""Tests feature stores that are pickled for other processes, and copied."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

import embank

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch.utils.data import DataLoader  # noqa: E402

from embank.torch.geometric import FeatureStore  # noqa: E402

VALUES = torch.arange(12.0).view(6, 2)


@pytest.fixture
def store(bank: embank.Bank) -> FeatureStore:
    return FeatureStore(bank)


def pickled(store: FeatureStore) -> FeatureStore:
    copied = pickle.loads(pickle.dumps(store))
    assert isinstance(copied, FeatureStore)
    return copied


def fetch(store: FeatureStore, nodes: list[int]) -> Any:
    """Does the work of a loader's workers. The function is at module level, because workers import
    it."""
    return store.get_tensor("paper", "x", torch.tensor(nodes))


@pytest.mark.parametrize(("method", "read_only"), [("spawn", False), ("forkserver", True)])
def test_workers_of_loaders_fetch_features(tmp_path: Path, method: str, read_only: bool) -> None:
    """Shows that a loader's workers get a copy of the store. Earlier versions could not pickle the
    store's bank."""
    with embank.Bank(tmp_path / "own", memory_budget="16MiB") as bank:
        FeatureStore(bank, "own features")["paper", "x", None] = VALUES
        bank.checkpoint()
        reader = embank.Bank(tmp_path / "own", memory_budget="16MiB", read_only=True)
        store = FeatureStore(reader if read_only else bank, "own features")
        loader: Any = DataLoader(
            range(6),  # type: ignore[arg-type]
            batch_size=3,
            num_workers=1,
            multiprocessing_context=method,
            collate_fn=functools.partial(fetch, store),
        )
        assert torch.equal(torch.cat(list(loader)), VALUES)


def test_a_copy_reads_as_its_store(bank: embank.Bank, store: FeatureStore) -> None:
    store["paper", "x", None] = VALUES
    store[None, "w", 3:] = torch.ones(2)
    store.add_embedding("paper", "z", 5, 2, initializer=embank.Constant(1.0))
    bank.checkpoint()
    for copied in (pickled(store), pickled(pickled(store)), pickled(copy.copy(pickled(store)))):
        assert copied.get_all_tensor_attrs() == store.get_all_tensor_attrs()
        for group, name in (("paper", "x"), (None, "w"), ("paper", "z")):
            assert copied.get_tensor_size(group, name) == store.get_tensor_size(group, name)
        assert torch.equal(copied["paper", "x", torch.tensor([5, 0])], VALUES[[5, 0]])
        assert (copied["paper", "z", None] == 1).all()
        again = pickled(copied)
        assert torch.equal(again["paper", "x", None], VALUES)


def test_a_copy_opens_its_bank_at_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with embank.Bank("own", memory_budget="17MiB") as bank:
        store = FeatureStore(bank)
        copied = pickled(store)
        assert repr(copied) == f"FeatureStore('features' of {tmp_path / 'own'}, not opened yet)"
        store["paper", "x", None] = VALUES
        bank.checkpoint()
    monkeypatch.chdir("/")
    # The bank need not be open: the process that had it open may have ended.
    assert torch.equal(copied["paper", "x", None], VALUES)
    assert copied._bank.stats()["memory"]["budget_bytes"] == 17 << 20
    assert "1 attributes" in repr(copied)


def test_threads_open_one_bank(
    bank: embank.Bank, store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store["paper", "x", None] = VALUES
    bank.checkpoint()
    copied = pickled(store)
    begun, found = threading.Barrier(4), []

    def read() -> None:
        begun.wait()
        found.append((copied["paper", "x", None], copied._bank))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(opened) for _, opened in found}) == 1 and len(found) == 4
    assert all(torch.equal(values, VALUES) for values, _ in found)


def put_more(store: FeatureStore) -> None:
    store["paper", "x", 6] = torch.ones(2)


def put_again(store: FeatureStore) -> None:
    store["paper", "x", None] = VALUES + 1


def put_less(store: FeatureStore) -> None:
    store["paper", "x", None] = VALUES[:2]


def put_another(store: FeatureStore) -> None:
    store["author", "x", None] = VALUES


def embed(store: FeatureStore) -> None:
    store.add_embedding("author", "z", 3, 2)


def remove(store: FeatureStore) -> None:
    del store["paper", "x"]


def remove_row(store: FeatureStore) -> None:
    store.remove_tensor("paper", "x", 1)


def put_in_another_store(store: FeatureStore) -> None:
    FeatureStore(store._bank)["paper", "x", 0] = torch.ones(2)


CHANGES = [put_more, put_again, put_less, put_another, embed, remove, remove_row, put_in_another_store]


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_refuses_what_no_checkpoint_has(
    bank: embank.Bank, store: FeatureStore, change: Callable[[FeatureStore], None]
) -> None:
    """Shows that a copy raises an error for features that no checkpoint holds. A worker would
    otherwise train with older features."""
    store["paper", "x", None] = VALUES
    bank.checkpoint()
    change(store)
    copied = pickled(store)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"'features' of .*in no checkpoint.*bank\.checkpoint\(\)"):
            copied.get_tensor("paper", "x", None)
    with pytest.raises(RuntimeError, match="in no checkpoint"):
        pickled(copied).get_all_tensor_attrs()
    bank.checkpoint()
    for later in (copied, pickled(store)):
        assert later.get_all_tensor_attrs() == store.get_all_tensor_attrs()
        got, wanted = later.get_tensor("paper", "x", [0]), store.get_tensor("paper", "x", [0])
        assert got is wanted or torch.equal(got, wanted)


def test_a_store_without_a_checkpoint_is_named(bank: embank.Bank, store: FeatureStore) -> None:
    store["paper", "x", None] = VALUES
    with pytest.raises(RuntimeError, match=r"bank\.checkpoint\(\)"):
        pickled(store)["paper", "x", None]
    bank.checkpoint()
    with pytest.raises(KeyError, match=r"checkpoint 1 of .* has no feature store 'other'"):
        pickled(FeatureStore(bank, "other")).get_all_tensor_attrs()


def test_training_does_not_keep_copies_from_opening(bank: embank.Bank, store: FeatureStore) -> None:
    store["paper", "x", None] = VALUES
    module = store.add_embedding(
        "paper", "z", 6, 2, optimizer=embank.SGD(lr=1.0), initializer=embank.Constant(1.0)
    )
    FeatureStore(bank, "other")["paper", "x", None] = VALUES
    bank.checkpoint()
    module(torch.tensor([3])).sum().backward()
    FeatureStore(bank, "other")["paper", "x", None] = VALUES
    copied = pickled(store)
    assert torch.equal(copied["paper", "x", None], VALUES)
    assert copied["paper", "z", 3].tolist() == [1.0, 1.0], "as of the checkpoint"
    assert store["paper", "z", 3].tolist() == [0.0, 0.0]


@pytest.fixture
def numbered(tmp_path: Path) -> Iterator[tuple[embank.Bank, FeatureStore]]:
    """Makes a bank whose checkpoint n holds n in every row."""
    with embank.Bank(tmp_path / "own", memory_budget="16MiB", checkpoints_kept=3) as bank:
        store = FeatureStore(bank)
        for number in (1, 2):
            store["paper", "x", None] = torch.full((2, 2), float(number))
            assert bank.checkpoint() == number
        yield bank, store


def test_a_copy_shows_the_checkpoint_of_its_store(
    numbered: tuple[embank.Bank, FeatureStore], tmp_path: Path
) -> None:
    bank, store = numbered
    with embank.Bank(tmp_path / "own", memory_budget="16MiB", read_only=True, checkpoint=1) as old:
        of_reader, of_writer = pickled(FeatureStore(old)), pickled(store)
        for number in (3, 4, 5):
            store["paper", "x", None] = torch.full((2, 2), float(number))
            bank.checkpoint()
            if number == 3:
                kept = pickled(of_writer)
                assert (kept["paper", "x", None] == 2).all()
        assert (of_reader["paper", "x", None] == 1).all()
    del kept
    bank.checkpoint()
    bank.checkpoint()
    assert (of_writer["paper", "x", None] == 5).all(), "checkpoint 2 is gone"


def test_copies_for_other_processes_write_nothing(bank: embank.Bank, store: FeatureStore) -> None:
    store["paper", "x", None] = VALUES
    bank.checkpoint()
    copied = pickled(store)
    writes: list[Callable[[FeatureStore], Any]] = [
        put_more,
        put_again,
        put_less,
        put_another,
        embed,
        remove,
        remove_row,
    ]
    for write in writes:
        with pytest.raises(embank.ReadOnly):
            write(copied)
        assert torch.equal(copied["paper", "x", None], VALUES)
    assert torch.equal(pickled(copied)["paper", "x", None], VALUES)


@pytest.mark.parametrize("copies", [copy.copy, copy.deepcopy])
def test_copies_in_a_process_share_the_bank(
    store: FeatureStore, copies: Callable[[FeatureStore], FeatureStore]
) -> None:
    store["paper", "x", None] = VALUES
    copied = copies(store)
    copied["paper", "x", 0] = torch.ones(2)
    assert store["paper", "x", 0].tolist() == [1.0, 1.0]
    assert type(copied) is FeatureStore and copied is not store
