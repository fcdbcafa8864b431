"""Tests steps of several tables: all or none apply, rows stay finite, and two modules may share
keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

from embank.torch import (  # noqa: E402
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingCollection,
    SparseOptimizer,
)


def tables(bank: embank.Bank, **settings: Any) -> dict[str, embank.Table]:
    options = {"dim": 2, "optimizer": embank.SGD(lr=1.0), "initializer": embank.Zeros(), **settings}
    return {name: bank.table(name, **options) for name in "abc"}


def nothing_moved(of: dict[str, embank.Table]) -> None:
    for table in of.values():
        assert table.peek([1, 2]).tolist() == [[0, 0], [0, 0]], table.name
        assert table.outstanding(1) in (0, None), table.name


def bad_loss(parts: list[Any]) -> Any:
    """Makes a loss whose gradient is NaN for the second part: the square root of zero."""
    first, second, third = parts
    return first.sum() + second.pow(2).sum().sqrt() + third.sum()


@pytest.mark.parametrize("kind", [EmbeddingCollection, EmbeddingBagCollection])
def test_a_nan_of_one_feature_changes_no_table_of_a_collection(
    bank: embank.Bank, kind: Any
) -> None:
    of = tables(bank)
    module = kind(of)
    out = module({name: torch.tensor([[1, 2]]) for name in of})
    with pytest.raises(ValueError, match="no row"):
        bad_loss([out[name] for name in of]).backward()
    nothing_moved(of)


def test_a_nan_of_one_module_changes_no_other_module_of_the_pass(bank: embank.Bank) -> None:
    of = tables(bank)
    modules = [Embedding(of["a"]), EmbeddingBag(of["b"]), Embedding(of["c"])]
    with pytest.raises(ValueError, match='"b"'):
        bad_loss([module(torch.tensor([[1, 2]])) for module in modules]).backward()
    nothing_moved(of)


def test_a_nan_of_one_table_changes_no_table_of_another_bank(
    bank: embank.Bank, tmp_path: Path
) -> None:
    with embank.Bank(tmp_path / "other", memory_budget="8MiB") as other:
        of = tables(bank)
        of["b"] = tables(other)["b"]
        modules = [Embedding(table) for table in of.values()]
        with pytest.raises(ValueError, match="in no bank"):
            bad_loss([module(torch.tensor([1, 2])) for module in modules]).backward()
        nothing_moved(of)


def test_a_nan_of_one_table_changes_no_table_of_a_sparse_optimizer(bank: embank.Bank) -> None:
    of = tables(bank)
    modules = torch.nn.ModuleList(Embedding(table) for table in of.values())
    optimizer = SparseOptimizer(modules)
    bad_loss([module(torch.tensor([1, 2])) for module in modules]).backward()
    with pytest.raises(ValueError, match='"b"'):
        optimizer.step()
    nothing_moved(of)
    # The gradients were dropped, so the next step is an ordinary one.
    sum(module(torch.tensor([1])).sum() for module in modules).backward()
    optimizer.step()
    assert [table.peek([1]).tolist() for table in of.values()] == [[[-1, -1]]] * 3


def test_a_nan_in_two_towers_over_one_table_changes_nothing(bank: embank.Bank) -> None:
    of = tables(bank)
    first, second, third = Embedding(of["a"]), Embedding(of["a"]), Embedding(of["c"])
    with pytest.raises(ValueError, match='"a"'):
        bad_loss([first(torch.tensor([1])), second(torch.tensor([1, 2])), third(torch.tensor([2]))]).backward()
    nothing_moved({name: of[name] for name in "ac"})


def test_apply_many_refuses_what_does_not_belong_together(
    bank: embank.Bank, tmp_path: Path
) -> None:
    of = tables(bank)
    a, b = embank.get_many([(of["a"], [1]), (of["b"], [1])])
    one = np.ones((1, 2), np.float32)
    with pytest.raises(ValueError):
        embank.apply_many([(of["a"], [b], [1], one)])
    with pytest.raises(ValueError, match="without a lease"):
        embank.apply_many([(of["a"], [a], [1], one), (of["b"], [], [1], one)])
    with pytest.raises(ValueError, match="shape"):
        embank.apply_many([(of["a"], [a], [1], one), (of["b"], [b], [1], one[:, :1])])
    assert a.held and b.held
    with embank.Bank(tmp_path / "other", memory_budget="8MiB") as other:
        foreign = other.table("a", dim=2, optimizer=embank.SGD(lr=1.0))
        with pytest.raises(ValueError, match="two banks"):
            embank.apply_many(
                [(of["a"], [a], [1], one), (foreign, [foreign.get_distinct([1])], [1], one)]
            )
    assert a.held and b.held
    embank.apply_many([(of["a"], [a], [1], one), (of["b"], [b], [1], one)])
    assert not a.held and of["b"].peek([1]).tolist() == [[-1, -1]]


def test_a_row_that_would_overflow_is_named_and_the_others_move(bank: embank.Bank) -> None:
    table = bank.table("t", dim=1, dtype="float16", optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros())
    table.put([1], [[6e4]])
    lease = table.get([1, 2])
    with pytest.raises(ValueError, match=r"key 1.*float16.*all other rows took their step"):
        lease.apply([[-6e4], [1.0]])
    assert table.peek([1, 2]).tolist() == [[6e4], [-1.0]]


def test_16_bit_state_saturates(bank: embank.Bank) -> None:
    table = bank.table(
        "t", dim=1, optimizer=embank.Adagrad(lr=0.1), initializer=embank.Zeros(), state_dtype="float16"
    )
    table.apply_gradients([0], [[9000.0]])
    before = table.peek([0])[0, 0]
    table.apply_gradients([0], [[-9000.0]])
    assert table.peek([0])[0, 0] > before
    assert table.stats()["saturated_rows"] == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_put_refuses_rows_that_are_not_finite(bank: embank.Bank, value: float) -> None:
    table = bank.table("t", dim=2)
    with pytest.raises(ValueError, match="key 8, column 1|key 8: column 1"):
        table.put([7, 8], [[1, 2], [3, value]])
    assert not table.contains([7]).any()


# Tests of admission.


def gated(bank: embank.Bank, **settings: Any) -> embank.Table:
    return bank.table(
        "g", dim=4, optimizer=embank.SGD(lr=0.1), initializer=embank.Constant(1.0), **settings
    )


@pytest.mark.parametrize("module", [Embedding, EmbeddingBag])
def test_max_norm_admits_no_key_and_counts_one_get(bank: embank.Bank, module: Any) -> None:
    table = gated(bank, admit_after_gets=3)
    short = module(table, max_norm=1.0)
    keys = torch.tensor([[5, 6]])
    for admitted in (False, False, True):
        short(keys).sum().backward()
        assert table.contains([5, 6]).tolist() == [admitted] * 2
    # The row that the last pass made was shortened to a norm of 1 before its step.
    assert np.allclose(table.peek([5]), 0.5 - 0.1 * (1 if module is Embedding else 0.5), atol=1e-6)


def test_max_norm_uses_a_row_once(bank: embank.Bank) -> None:
    table = gated(bank, tracking="set_time")
    short = Embedding(table, max_norm=1.0)
    for _ in range(3):
        short(torch.tensor([5])).sum().backward()
    bank.checkpoint()
    evicted = [
        table.evict(used_fewer_than=uses, dry_run=True, keys=True)["keys"].tolist() for uses in (6, 7, 8)
    ]
    plain = bank.table("plain", dim=4, optimizer=embank.SGD(lr=0.1), tracking="set_time")
    for _ in range(3):
        Embedding(plain)(torch.tensor([5])).sum().backward()
    bank.checkpoint()
    assert evicted == [
        plain.evict(used_fewer_than=uses, dry_run=True, keys=True)["keys"].tolist() for uses in (6, 7, 8)
    ]


def test_max_norm_leaves_a_row_alone_that_was_deleted_meanwhile(bank: embank.Bank) -> None:
    table = gated(bank)
    lease = table.get_distinct([5, 6])
    table.delete([5])
    lease.rewrite([0, 1], np.full((2, 4), 0.5, np.float32))
    assert table.contains([5, 6]).tolist() == [False, True]
    assert table.peek([6]).tolist() == [[0.5] * 4] and lease.held
    with pytest.raises(ValueError, match="beyond"):
        lease.rewrite([2], np.zeros((1, 4), np.float32))
    lease.release()
    with pytest.raises(ValueError):
        lease.rewrite([0], np.zeros((1, 4), np.float32))


def test_a_key_of_two_modules_of_one_loss_counts_once(bank: embank.Bank) -> None:
    table = gated(bank, admit_after_gets=3)
    left, right = Embedding(table), EmbeddingBag(table)
    for admitted in (False, False, True):
        loss = left(torch.tensor([5, 6])).sum() + right(torch.tensor([[6, 7]])).sum()
        loss.backward()
        assert table.contains([5, 6, 7]).tolist() == [admitted] * 3


def test_a_key_counts_once_in_each_accumulated_pass(bank: embank.Bank) -> None:
    table = gated(bank, admit_after_gets=4)
    left, right = Embedding(table), Embedding(table)
    optimizer = SparseOptimizer([left, right])
    for step in range(2):
        for _ in range(2):
            (left(torch.tensor([5])).sum() + right(torch.tensor([5])).sum()).backward()
        optimizer.step()
        assert table.contains([5]).tolist() == [step == 1]


def test_a_loss_that_was_dropped_is_no_earlier_get(bank: embank.Bank) -> None:
    table = gated(bank, admit_after_gets=2)
    module = Embedding(table)
    module(torch.tensor([5]))
    module(torch.tensor([5])).sum().backward()
    assert table.contains([5]).tolist() == [True]


def test_two_modules_of_one_loss_draw_once(bank: embank.Bank) -> None:
    table = gated(bank, admit_probability=0.5)
    left, right = Embedding(table), Embedding(table)
    keys = torch.arange(4000)
    loss = left(keys).sum() + right(keys).sum()
    loss.backward()
    assert 1800 < table.contains(keys.numpy()).sum() < 2200
