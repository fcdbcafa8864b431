"""Tests bags that the store pools: `get_bags`, `peek_bags`, `get_bags_many`, and the torch modules
that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank


def table_of(bank: embank.Bank, name: str = "t", **settings: Any) -> embank.Table:
    options = {"dim": 2, "optimizer": embank.SGD(lr=1.0), "initializer": embank.Constant(1.0)}
    return bank.table(name, **{**options, **settings})


@pytest.mark.parametrize("integers", [np.int32, np.int64, np.uint64])
def test_keys_and_offsets_of_any_integers(bank: embank.Bank, integers: Any) -> None:
    table = table_of(bank)
    table.put([5, 6], [[1.0, 2.0], [3.0, 4.0]])
    keys, offsets = np.array([5, 6, 5], integers), np.array([0, 2, 2, 3], integers)
    lease = table.get_bags(keys, offsets)
    assert lease.rows.tolist() == [[4.0, 6.0], [0.0, 0.0], [1.0, 2.0]]
    assert (len(lease), lease.keys.tolist(), lease.held) == (3, [5, 6], True)
    assert lease.sum_gradients([[1, 0], [9, 9], [2, 1]]).tolist() == [[3.0, 1.0], [1.0, 0.0]]
    lease.apply([[1, 0], [9, 9], [2, 1]])
    assert (lease.held, lease.state) == (False, "ended")
    assert table.peek([5, 6]).tolist() == [[-2.0, 1.0], [2.0, 4.0]]
    assert table.peek_bags(keys, offsets).tolist() == [[0.0, 5.0], [0.0, 0.0], [-2.0, 1.0]]


@pytest.mark.parametrize("seed", range(4))
def test_random_bags_equal_their_definition(bank: embank.Bank, seed: int) -> None:
    """Draws integers of all dtypes, and offsets that do not fit. Values have sums without rounding.
    """
    random = np.random.default_rng(seed)
    table = table_of(bank, staleness_bound=0)
    keys_all = np.arange(100)
    dtypes = [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, ">i4"]
    refused = 0
    for _ in range(80):
        rows = random.integers(-20, 20, (100, 2)).astype(np.float32)
        table.put(keys_all, rows)
        count = int(random.integers(0, 12))
        keys = random.integers(0, 100, count).astype(random.choice(np.array(dtypes, object)))
        cuts = np.sort(random.integers(0, count + 1, random.integers(0, 6)))
        offsets = np.array([0, *cuts, count])
        weights = None
        if random.random() < 0.4:
            weights = random.integers(-2, 3, count).astype(np.float32)
        if random.random() < 0.3:
            at = random.integers(0, len(offsets))
            offsets[at] += random.choice([-(2**62), -13, 13, 2**62])
        else:
            offsets = offsets.astype(random.choice(np.array(dtypes, object)))
        ends = (int(offsets[0]), int(offsets[-1]))
        if ends != (0, count) or (np.diff(offsets.astype(np.int64)) < 0).any():
            refused += 1
            for call in (table.get_bags, table.peek_bags):
                with pytest.raises(ValueError, match="offsets must (begin with 0|not be negative)"):
                    call(keys, offsets, weights=weights)
            assert table.outstanding_leases() == []
            continue
        factors = np.ones(count, np.float32) if weights is None else weights
        bags = [slice(*ends) for ends in zip(offsets.tolist(), offsets.tolist()[1:])]
        places = keys.astype(np.int64)
        wanted = [(rows[places[bag]] * factors[bag, None]).sum(0) for bag in bags]
        assert table.peek_bags(keys, offsets, weights=weights).tolist() == np.array(wanted).tolist()
        lease = table.get_bags(keys, offsets, weights=weights)
        assert lease.rows.tolist() == np.array(wanted).tolist()
        grads = random.integers(-3, 4, lease.rows.shape).astype(np.float32)
        lease.apply(grads)
        for bag, grad in zip(bags, grads):
            np.subtract.at(rows, places[bag], factors[bag, None] * grad)
        assert np.array_equal(table.peek(keys_all), rows)
    assert refused > 10


def test_mean_weights_and_out(bank: embank.Bank) -> None:
    table = table_of(bank, dim=1)
    table.put([1, 2], [[3.0], [5.0]])
    assert table.peek_bags([1, 2], [0, 2], pooling="mean").tolist() == [[4.0]]
    out = np.full((1, 1), 7, np.float32)
    weights = np.array([2.0, -1.0], np.float32)
    with table.get_bags([1, 2], [0, 2], weights=weights, out=out) as lease:
        assert lease.rows is out
        weights[:] = 0  # the lease has a copy of the weights
        lease.apply([[1.0]])
    assert out.tolist() == [[1.0]]
    assert table.peek([1, 2]).tolist() == [[1.0], [6.0]]
    assert table.outstanding(1) == 0


def test_wrong_arguments_hold_nothing(bank: embank.Bank) -> None:
    table = table_of(bank)
    for error, match, given in [
        (ValueError, "end with the number of keys, 2", {"offsets": [0, 1]}),
        (ValueError, "never fall", {"offsets": [0, 2, 1, 2]}),
        (ValueError, "begin with 0", {"offsets": [1, 2]}),
        (TypeError, "offsets must be integers", {"offsets": [0.0, 2.0]}),
        (ValueError, 'pooling must be "sum" or "mean"', {"offsets": [0, 2], "pooling": "max"}),
        (TypeError, "weights must be float32", {"offsets": [0, 2], "weights": np.ones(2)}),
        (ValueError, r"weights must have shape \(2,\)", {"offsets": [0, 2], "weights": [1.0]}),
        (
            ValueError,
            "weights go with",
            {"offsets": [0, 2], "weights": [1.0, 2.0], "pooling": "mean"},
        ),
    ]:
        for call in (table.get_bags, table.peek_bags):
            with pytest.raises(error, match=match):
                call([1, 2], **given)
    assert table.outstanding(1) in (0, None)
    with table.get_bags([1, 2], [0, 2]) as lease:
        with pytest.raises(ValueError, match="grads must have shape"):
            lease.apply([[1.0, 1.0], [1.0, 1.0]])
        assert lease.held
    assert table.outstanding(1) == 0


def test_tables_in_one_call(bank: embank.Bank, tmp_path: Path) -> None:
    a, b = table_of(bank, "a"), table_of(bank, "b", dim=3)
    of_b, of_a = embank.get_bags_many(
        [(b, [1, 2], [0, 2], "mean", None), (a, [7, 7], [0, 1, 2], "sum", [2.0, 3.0])]
    )
    assert (of_a.rows.tolist(), of_b.rows.tolist()) == ([[2, 2], [3, 3]], [[1, 1, 1]])
    embank.apply_many([(a, [of_a], None, of_a.rows), (b, [of_b], None, of_b.rows)])
    assert a.peek([7]).tolist() == [[-12.0, -12.0]]
    assert b.peek([1]).tolist() == [[0.5, 0.5, 0.5]]
    with pytest.raises(ValueError, match="comes twice"):
        embank.get_bags_many([(a, [1], [0, 1], "sum", None)] * 2)
    with embank.Bank(tmp_path / "other", memory_budget="16MiB") as other:
        with pytest.raises(ValueError, match="two banks"):
            embank.get_bags_many(
                [(a, [1], [0, 1], "sum", None), (table_of(other), [1], [0, 1], "sum", None)]
            )
    assert embank.get_bags_many([]) == []
    assert a.outstanding(1) in (0, None)


def test_leases_of_all_kinds_take_one_step(bank: embank.Bank) -> None:
    table = table_of(bank, dim=1, optimizer=embank.Adagrad(lr=1.0), initializer=embank.Zeros())
    leases = [table.get_distinct([7, 8]), table.get([7, 7]), table.get_bags([8, 9], [0, 2])]
    keys = np.concatenate([lease.keys for lease in leases])
    sums = [np.ones((2, 1), np.float32), *(of.sum_gradients(of.rows + 1) for of in leases[1:])]
    table.apply_leases(leases, keys, np.concatenate(sums))
    # One step of Adagrad has length 1, whatever the gradient.
    assert np.allclose(table.peek([7, 8, 9]), -1.0)
    assert [table.outstanding(key) for key in (7, 8, 9)] == [0, 0, 0]
    of_many = [table.get_bags([7], [0, 1]), table.get_bags([8], [0, 1])]
    with pytest.raises(ValueError, match="several leases"):
        embank.apply_many([(table, of_many, None, [[1.0]])])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_a_bit(tmp_path: Path, threads: int) -> None:
    rows = []
    for given in (1, threads):
        path = tmp_path / f"bank{given}-{len(rows)}"
        with embank.Bank(path, memory_budget="64MiB", threads=given) as bank:
            table = table_of(bank, dim=8, optimizer=embank.RowWiseAdagrad(lr=0.1))
            random = np.random.default_rng(1)
            for _ in range(3):
                keys = random.integers(0, 5000, 9000)
                grads = random.standard_normal((300, 8)).astype(np.float32)
                table.get_bags(keys, np.arange(301) * 30, pooling="mean").apply(grads)
            rows.append(table.peek(np.arange(5000)))
    assert np.array_equal(*rows)
    with pytest.raises(ValueError, match="threads must be 1 or more"):
        embank.Bank(tmp_path / "none", threads=0)


def modules(bank: embank.Bank, **settings: Any) -> Any:
    pytest.importorskip("torch")
    import embank.torch

    table = table_of(bank, **settings)
    return table, embank.torch.Embedding(table), embank.torch.EmbeddingBag(table, mode="sum")


def test_two_forward_passes_of_one_loss_take_one_step(bank: embank.Bank) -> None:
    table, embedding, bag = modules(bank, dim=1, initializer=embank.Zeros())
    import torch

    loss = embedding(torch.tensor([[7], [8]])).sum() + bag(torch.tensor([[7, 9]])).sum()
    (loss + embedding(torch.tensor([7])).sum()).backward()
    assert table.peek([7, 8, 9]).tolist() == [[-3.0], [-1.0], [-1.0]]
    assert [table.outstanding(key) for key in (7, 8, 9)] == [0, 0, 0]


def test_a_dropped_graph_gives_its_lease_back(bank: embank.Bank) -> None:
    table, embedding, bag = modules(bank)
    import torch

    out = bag(torch.tensor([[7, 8]])), embedding(torch.tensor([7]))
    assert table.outstanding(7) == 2
    del out
    assert table.outstanding(7) == 0


def test_a_second_backward_pass_through_a_retained_graph_is_an_error(bank: embank.Bank) -> None:
    table, embedding, bag = modules(bank, initializer=embank.Zeros())
    import torch

    for out in (bag(torch.tensor([[7, 8]])), embedding(torch.tensor([7]))):
        out.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="already applied"):
            out.sum().backward()
    assert table.peek([7, 8]).tolist() == [[-2.0, -2.0], [-1.0, -1.0]]


def test_an_optimizer_that_is_made_after_the_forward_pass_takes_the_step(
    bank: embank.Bank,
) -> None:
    table, embedding, bag = modules(bank, initializer=embank.Zeros())
    import torch

    from embank.torch import SparseOptimizer

    out = bag(torch.tensor([[7, 8]])).sum() + embedding(torch.tensor([7])).sum()
    optimizer = SparseOptimizer([embedding, bag])
    out.backward()
    assert table.peek([7]).tolist() == [[0.0, 0.0]]
    (rows,) = optimizer.parameters()
    assert rows.grad.tolist() == [[2.0, 2.0], [1.0, 1.0]]
    optimizer.step()
    assert table.peek([7, 8]).tolist() == [[-2.0, -2.0], [-1.0, -1.0]]
    assert table.outstanding(7) == 0


def test_weights_learn_beside_the_rows(bank: embank.Bank) -> None:
    table, _, bag = modules(bank)
    import torch

    weights = torch.tensor([[2.0, 3.0]], requires_grad=True)
    bag(torch.tensor([[7, 8]]), per_sample_weights=weights).sum().backward()
    assert weights.grad is not None and weights.grad.tolist() == [[2.0, 2.0]]
    assert table.peek([7, 8]).tolist() == [[-1.0, -1.0], [-2.0, -2.0]]


def test_features_of_a_table_share_a_batch(bank: embank.Bank) -> None:
    pytest.importorskip("torch")
    import torch

    from embank.torch import EmbeddingBagCollection

    shared, own = table_of(bank, "shared", dim=1), table_of(bank, "own", dim=1)
    bags = EmbeddingBagCollection({"a": shared, "b": own, "c": shared})
    batch = {
        "a": torch.tensor([[7, 8]]),
        "b": (torch.tensor([1, 2, 3]), torch.tensor([0, 1])),
        "c": (torch.tensor([7]), torch.tensor([0, 1])),
    }
    out = bags(batch)
    assert {name: of.tolist() for name, of in out.items()} == {
        "a": [[2.0]],
        "b": [[1.0], [2.0]],
        "c": [[1.0], [0.0]],
    }
    assert shared.outstanding(7) == 1
    sum(of.sum() for of in out.values()).backward()
    assert shared.peek([7, 8]).tolist() == [[-1.0], [0.0]]
    assert shared.stats()["applies"] == 1
    with torch.no_grad():
        assert bags.eval()(batch)["a"].tolist() == [[-1.0]]
