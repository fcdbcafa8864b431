"""Tests `LookaheadLoader`: the batches keep the loader's order, and their keys are announced
early.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

from embank.torch import LookaheadLoader  # noqa: E402


class Announcements:
    """Takes the place of a table, and records the announced keys."""

    def __init__(self) -> None:
        self.keys: list[list[int]] = []
        self.cancelled: list[int] = []
        self.bank = SimpleNamespace(closed=False)

    def lookahead(self, keys: Any) -> int:
        assert keys.ndim == 1
        self.keys.append(keys.tolist())
        return len(keys)

    def cancel_lookahead(self, keys: Any) -> int:
        self.cancelled += keys.tolist()
        return len(keys)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_batch_alone_is_announced_alone(depth: int) -> None:
    table: Any = Announcements()
    loader: Any = LookaheadLoader(list(range(10)), lambda at: {table: np.array([at])}, depth)
    for _ in range(2):
        table.keys.clear()
        for at, batch in enumerate(loader):
            assert batch == at
            last = min(at + depth, 9)
            assert table.keys == [[n] for n in range(1, last + 1)] if depth else not table.keys
        assert at == 9


@pytest.mark.parametrize("depth", [2, 3, 8, 50])
def test_batches_come_in_order_and_the_next_are_announced_by_threes(depth: int) -> None:
    table: Any = Announcements()
    drawn: list[int] = []

    class Source:
        def __iter__(self) -> Iterator[int]:
            for at in range(9):
                drawn.append(at)
                yield at

    loader: Any = LookaheadLoader(Source(), lambda at: {table: np.array([at])}, depth)
    for _ in range(2):
        table.keys.clear()
        drawn.clear()
        for at, batch in enumerate(loader):
            assert batch == at
            calls = math.ceil((at + depth) / 3)
            assert table.keys == [[1, 2, 3], [4, 5, 6], [7, 8]][:calls]
            # Before the loader hands out a batch, it draws until it holds `depth` + 3 batches.
            assert drawn == list(range(min(at + depth + 3, 9)))
        assert at == 8


def test_tables_are_announced_on_their_own_and_types_of_keys_too() -> None:
    one, other = Announcements(), Announcements()

    def keys(at: int) -> dict[Any, Any]:
        of_other = {other: np.array([at], np.int64 if at % 2 else np.uint64)}
        return of_other if at == 2 else {one: np.array([[at, at]]), **of_other}

    loader: Any = LookaheadLoader(list(range(5)), keys, depth=2)
    assert list(loader) == list(range(5))
    assert one.keys == [[1, 1, 3, 3], [4, 4]]
    assert other.keys == [[1, 3], [2], [4]]


def test_what_was_announced_is_cancelled_if_the_rest_cannot_be() -> None:
    one, other = Announcements(), Announcements()

    def fails(keys: Any) -> int:
        raise OSError("the disk is gone")

    # `other` fails to announce keys and to cancel them.
    setattr(other, "lookahead", fails)
    setattr(other, "cancel_lookahead", fails)
    loader: Any = LookaheadLoader(
        list(range(5)), lambda at: {one: np.array([at]), other: np.array([at])}, depth=2
    )
    with pytest.raises(OSError, match="the disk is gone") as failed:
        next(iter(loader))
    assert failed.value.__context__ is None, "not that of cancelling"
    gc.collect()
    assert (one.keys, one.cancelled) == ([[1, 2, 3]], [1, 2, 3])


def test_no_batch_is_drawn_before_its_turn() -> None:
    drawn = []

    def draw() -> Iterator[int]:
        for at in range(10):
            drawn.append(at)
            yield at

    table: Any = Announcements()
    loader: Any = LookaheadLoader(draw(), lambda at: {table: np.array([at])}, depth=2)
    batches = iter(loader)
    assert drawn == []
    assert next(batches) == 0
    assert drawn == [0, 1, 2, 3, 4]
    assert next(batches) == 1
    assert drawn == [0, 1, 2, 3, 4, 5]


def test_length_is_the_loaders() -> None:
    loader: Any = LookaheadLoader([1, 2, 3], lambda batch: {})
    assert (len(loader), loader.depth) == (3, "auto")
    with pytest.raises(TypeError, match="generator"):
        len(LookaheadLoader((n for n in range(3)), lambda batch: {}))
    assert list(LookaheadLoader([], lambda batch: {})) == []


def test_depth_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="-1"):
        LookaheadLoader([1], lambda batch: {}, depth=-1)
    wrong: Any = "four"
    with pytest.raises(ValueError, match="four"):
        LookaheadLoader([1], lambda batch: {}, depth=wrong)


def test_keys_of_every_form_and_table_are_counted(bank: embank.Bank) -> None:
    users, items = bank.table("user", dim=2), bank.table("item", dim=2)

    def keys(batch: Any) -> dict[embank.Table, Any]:
        return {users: batch, items: batch.numpy()[:, :1]}

    batches = [torch.arange(6).view(2, 3) + step for step in range(5)]
    seen = list(LookaheadLoader(batches, keys, depth=2))
    assert all(got is made for got, made in zip(seen, batches))
    # The loader announces three batches together, and a key that several of them have counts once.
    # The first three announced batches have the users 1 to 8, and the last batch has 4 to 9.
    assert bank.stats()["lookahead"]["requested"] == (8 + 6) + (6 + 2)


def test_errors_of_the_loader_and_of_keys_come_through(table: embank.Table) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("the file ends here")

    with pytest.raises(OSError, match="the file ends here"):
        list(LookaheadLoader(broken(), lambda batch: {}))
    with pytest.raises(TypeError, match="integers"):
        list(LookaheadLoader([1, 2], lambda batch: {table: np.array([0.5])}))


@pytest.mark.parametrize("failing", ["loader", "keys"])
def test_batches_before_a_failure_are_announced_and_handed_out(failing: str) -> None:
    table: Any = Announcements()

    def source() -> Iterator[int]:
        yield from range(6)
        raise OSError("the loader")

    def keys(at: int) -> dict[Any, Any]:
        if at == 5 and failing == "keys":
            raise OSError("the keys")
        return {table: np.array([at])}

    seen = []
    with pytest.raises(OSError, match=f"the {failing}"):
        for at in LookaheadLoader(source(), keys, depth=3):
            seen.append(at)
    rest = [4, 5] if failing == "loader" else [4]
    assert (seen, table.keys) == ([0, 1, 2, 3, *rest], [[1, 2, 3], rest])
    assert table.cancelled == []


def test_keys_may_use_the_same_memory_for_each_batch() -> None:
    table: Any = Announcements()
    reused = np.empty(1, np.int64)

    def keys(at: int) -> dict[Any, Any]:
        reused[0] = at
        return {table: reused}

    assert list(LookaheadLoader(range(6), keys, depth=2)) == list(range(6))
    assert table.keys == [[1, 2, 3], [4, 5]]


def test_a_depth_that_changes_leaves_no_batch_unannounced(monkeypatch: Any) -> None:
    table: Any = Announcements()
    depths = iter([1, 3, 3, 1, 1, 1, 1, 2, 9, 9, *[1] * 9])
    loader: Any = LookaheadLoader(list(range(16)), lambda at: {table: np.array([at])}, depth=1)
    monkeypatch.setattr(loader, "_next_depth", lambda: next(depths))
    for at, depth in zip(loader, [1, 3, 3, 1, 1, 1, 1, 2, 9, 9, *[1] * 6]):
        announced = sum(table.keys, [])
        assert announced == list(range(1, len(announced) + 1)), "in order, and once"
        assert len(announced) >= min(at + depth, 15)
    assert at == 15


def test_a_data_loader_with_workers(bank: embank.Bank, table: embank.Table) -> None:
    """Shows that workers can be forked while the bank is open. They make keys and never touch the
    bank."""
    data = torch.utils.data.TensorDataset(torch.arange(40))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
    ahead = LookaheadLoader(loader, lambda batch: {table: batch[0]}, depth=3)
    assert len(ahead) == 10
    assert torch.cat([batch[0] for batch in ahead]).tolist() == list(range(40))
    assert bank.stats()["lookahead"]["requested"] == 36


@pytest.mark.parametrize("stop", ["break", "exception", "end"])
def test_what_was_announced_and_not_handed_out_is_cancelled(stop: str) -> None:
    table: Any = Announcements()
    loader: Any = LookaheadLoader(list(range(10)), lambda at: {table: np.array([at])}, depth=3)

    def run() -> None:
        for at in loader:
            if at == 2 and stop == "break":
                break
            if at == 2 and stop == "exception":
                raise KeyError("of ours")

    if stop == "exception":
        with pytest.raises(KeyError):
            run()
    else:
        run()
    gc.collect()
    assert table.cancelled == ([] if stop == "end" else [3, 4, 5, 6])


def test_a_pass_that_is_given_up_frees_its_source_at_once() -> None:
    """Shows that a pass that ends early frees its source, although the pass had stored a failure
    whose frames refer to the source."""

    class Source:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            drawn.append(len(drawn))
            if len(drawn) == 3:
                raise OSError("the file ends here")
            return drawn[-1]

    drawn: list[int] = []
    source = Source()
    freed = weakref.ref(source)
    gc.disable()
    try:
        batches: Any = iter(LookaheadLoader(source, lambda at: {}, depth=2))
        del source
        assert (next(batches), len(drawn)) == (0, 3), "it has failed, and nobody knows yet"
        batches.close()
        del batches
        assert freed() is None
    finally:
        gc.enable()


def test_a_loader_that_is_given_up_leaves_nothing_in_the_queue(bank: embank.Bank) -> None:
    items = bank.table("item", dim=64)
    count = 200_000
    for first in range(0, count, 10_000):
        items.put(np.arange(first, first + 10_000), np.ones((10_000, 64), np.float32))
    batches = [np.arange(first, first + 3000) for first in range(0, count, 3000)]
    for batch in LookaheadLoader(batches, lambda batch: {items: batch}, depth=4):
        items.get(batch).release()
        break
    assert bank.wait_lookahead()
    stats = bank.stats()["lookahead"]
    assert stats["pending"] == 0
    assert stats["queued"] == (
        stats["moved"] + stats["late"] + stats["missing"] + stats["cancelled"] + stats["failed"]
    )


def test_the_depth_is_chosen_and_shown(bank: embank.Bank, table: embank.Table) -> None:
    batches = [torch.arange(50) + step for step in range(40)]
    for batch in LookaheadLoader(batches, lambda batch: {table: batch}):
        table.get(batch).release()
    assert bank.stats()["lookahead"]["depth"] == 4


def test_batches_come_together_by_one_at_least(bank: embank.Bank) -> None:
    auto = embank.AutoDepth(bank, together=3)
    for _ in range(100):
        assert auto.step() == 4
        auto.begin_pass()
    with pytest.raises(ValueError, match="together must be at least 1 batch"):
        embank.AutoDepth(bank, together=0)


def test_the_depth_is_told_where_a_pass_begins(
    table: embank.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []

    class Watched:
        def __init__(self, bank: embank.Bank, together: int) -> None:
            self.step = embank.AutoDepth(bank, together=together).step

        def begin_pass(self) -> None:
            passes.append(len(passes))

    monkeypatch.setattr(embank.torch.lookahead, "AutoDepth", Watched)
    loader = LookaheadLoader([torch.arange(5)] * 3, lambda batch: {table: batch})
    for before in range(3):
        assert len(list(loader)) == 3
        assert len(passes) == before, "the first has nobody to tell"


def test_a_loader_goes_on_with_a_bank_that_was_opened_anew(tmp_path: Path) -> None:
    tables: list[embank.Table] = []
    loader: Any = LookaheadLoader(list(range(8)), lambda at: {tables[-1]: np.array([at])})
    for _ in range(2):
        with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
            tables.append(bank.table("item", dim=4))
            for at in loader:
                tables[-1].get([at]).release()
            assert bank.stats()["lookahead"]["depth"] > 0


def test_pinned_batches_come_through_as_they_are() -> None:
    table: Any = Announcements()
    data = torch.utils.data.TensorDataset(torch.arange(8))
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, pin_memory=torch.cuda.is_available()
    )
    for batch in LookaheadLoader(loader, lambda batch: {table: batch[0]}, depth=1):
        assert batch[0].is_pinned() == torch.cuda.is_available()
    assert table.keys == [[4, 5, 6, 7]]
