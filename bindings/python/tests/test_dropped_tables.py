"""Tests that a table object, and all that is kept of a table for it, goes with its last reference.

The tests count the handles that the bank holds for table objects."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank
from embank import _embank


def handles(bank: embank.Bank) -> int:
    gc.collect()
    count: int = _embank._table_handles(bank)  # type: ignore[attr-defined]
    return count


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "counted": {"admit_after_gets": 2},
    "admitted by chance": {"admit_probability": 0.5},
    "timed": {"tracking": "set_time"},
    "float16": {"dtype": "float16"},
    "with a vocabulary": {"vocabulary": "word"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_dropped_tables_leave_no_handle(bank: embank.Bank, settings: dict[str, Any]) -> None:
    """Regression test: the bank kept a handle of each dropped table until it was closed."""
    words = bank.vocabulary("word", "bytes", first_id=1)
    words.ids_or_insert(["a", "b"])
    for round in range(3):
        table = bank.table("u", dim=2, optimizer=embank.SGD(lr=1.0), **settings)
        lease = table.get([1, 2])
        bank.drop_table("u")
        # An object of a dropped table still tells what happened.
        with pytest.raises(embank.NoSuchTable, match="was dropped"):
            table.peek([1])
        assert handles(bank) == 1, round
        del table, lease
        assert handles(bank) == 0, round


def test_a_handle_goes_with_its_object(bank: embank.Bank) -> None:
    table = bank.table("u", dim=2, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros())
    again = bank.open_table("u")
    assert handles(bank) == 2
    lease = table.get([1])
    del table
    assert handles(bank) == 1
    # The lease does not need the object of its table.
    lease.apply(np.ones((1, 2), np.float32))
    assert again.peek([1]).tolist() == [[-1.0, -1.0]]
    del again
    assert handles(bank) == 0
    assert bank.open_table("u").contains([1]).tolist() == [True]


def made_of(bank: embank.Bank, kind: str) -> Any:
    """Makes an object of this kind over tables "u" and "v"."""
    torch = pytest.importorskip("torch")
    import embank.torch

    u, v = (bank.table(name, dim=2, optimizer=embank.SGD(lr=1.0)) for name in "uv")
    if "Collection" in kind:
        return getattr(embank.torch, kind)({"u": u, "v": v, "again": bank.open_table("u")})
    modules = torch.nn.ModuleList([embank.torch.Embedding(u), embank.torch.EmbeddingBag(v)])
    if kind == "copy":
        with pytest.warns(embank.torch.SharedRowsWarning):
            return copy.deepcopy(modules)
    if kind == "optimizer":
        return embank.torch.SparseOptimizer(modules)
    if kind == "output":
        return modules[0](torch.tensor([1])).sum() + modules[1](torch.tensor([[1]])).sum()
    return modules


@pytest.mark.parametrize(
    "kind",
    ["modules", "EmbeddingCollection", "EmbeddingBagCollection", "copy", "optimizer", "output"],
)
def test_a_module_holds_the_handles_of_its_tables(bank: embank.Bank, kind: str) -> None:
    made = made_of(bank, kind)
    bank.drop_table("u")
    bank.drop_table("v")
    assert handles(bank) >= 2
    del made
    assert handles(bank) == 0


@pytest.mark.parametrize("what", ["lease", "leases", "scan", "prefetch"])
def test_what_needs_no_table_object_holds_no_handle(bank: embank.Bank, what: str) -> None:
    bank.table("u", dim=2).put([1], [[1.0, 2.0]])
    bank.table("v", dim=2)
    bank.checkpoint()
    made: Any = {
        "lease": lambda: bank.open_table("u").get([1]),
        "leases": lambda: embank.get_many([(bank.open_table(name), [1]) for name in "uv"]),
        "scan": lambda: bank.open_table("u").scan(),
        "prefetch": lambda: bank.open_table("u").prefetch([1]),
    }[what]()
    assert handles(bank) == 0
    bank.drop_table("u")
    bank.drop_table("v")
    del made
    assert handles(bank) == 0
    assert bank.tables() == [] and bank.outstanding_leases() == []


def test_a_roll_back_keeps_the_handles_of_live_objects(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="8MiB") as bank:
        kept, gone = bank.table("kept", dim=1), bank.table("gone", dim=1)
        kept.put([1], [[1.0]])
        checkpoint = bank.checkpoint()
        del gone
        bank.drop_table("kept")
        bank.roll_back(checkpoint)
        assert kept.peek([1]).tolist() == [[1.0]]
        assert handles(bank) == 1
        del kept
        assert handles(bank) == 0
