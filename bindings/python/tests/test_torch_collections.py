"""Tests modules over several tables: one call gets all rows, and each table takes one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402


@pytest.fixture
def tables(bank: embank.Bank) -> list[embank.Table]:
    """Tables "a" of 2 columns and "b" of 3. All rows begin as ones, and SGD has a rate of 0.5."""
    options: Any = {"optimizer": embank.SGD(lr=0.5), "initializer": embank.Constant(1.0)}
    return [bank.table("a", dim=2, **options), bank.table("b", dim=3, **options)]


def test_many_gets_equal_single_ones(tables: list[embank.Table]) -> None:
    a, b = tables
    a.put([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    leases = embank.get_many([(b, [5, 5, 6]), (a, torch.tensor([2, 1, 2]))])
    assert [lease.rows.shape for lease in leases] == [(2, 3), (2, 2)]
    assert leases[1].rows.tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert leases[1].inverse.tolist() == [0, 1, 0]
    assert (a.outstanding(2), b.outstanding(5)) == (1, 1)
    leases[0].apply(np.ones((2, 3), np.float32))
    leases[1].release()
    assert b.peek([5])[0, 0] == 0.5
    assert (a.outstanding(2), b.outstanding(5)) == (0, 0)
    assert embank.get_many([]) == []


def test_many_gets_take_all_leases_or_none(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "own", memory_budget="16MiB", wait_timeout=0.1) as bank:
        first = bank.table("first", dim=1, staleness_bound=0)
        second = bank.table("second", dim=1, staleness_bound=0)
        held = second.get([7])
        with pytest.raises(embank.SelfBlocked, match="second"):
            embank.get_many([(first, [1]), (second, [7])])
        assert first.outstanding(1) == 0
        held.hand_over()
        with pytest.raises(embank.StalenessTimeout):
            embank.get_many([(first, [1]), (second, [7])])
        assert first.outstanding(1) == 0
        held.release()
        for lease in embank.get_many([(second, [7]), (first, [1])]):
            lease.release()


def test_many_gets_of_one_table_or_two_banks_are_refused(
    tmp_path: Path, tables: list[embank.Table]
) -> None:
    a, b = tables
    with pytest.raises(ValueError, match='"a" comes twice'):
        embank.get_many([(a, [1]), (b, [1]), (a.bank.open_table("a"), [2])])
    with embank.Bank(tmp_path / "other", memory_budget="16MiB") as other:
        with pytest.raises(ValueError, match="two banks"):
            embank.get_many([(a, [1]), (other.table("a", dim=2), [1])])
    with pytest.raises(TypeError, match="integers"):
        embank.get_many([(a, [1]), (b, [0.5])])
    assert a.outstanding(1) is None, "nothing was made"


def test_a_shared_table_takes_one_step(tables: list[embank.Table]) -> None:
    a, b = tables
    module = embank.torch.EmbeddingCollection({"x": a, "y": b, "z": a})
    out = module({"x": torch.tensor([1, 2]), "y": torch.tensor([[1]]), "z": torch.tensor([[2]])})
    assert a.outstanding(2) == 1, "one lease for both features"
    assert {name: tuple(rows.shape) for name, rows in out.items()} == {
        "x": (2, 2), "y": (1, 1, 3), "z": (1, 1, 2),
    }
    sum(rows.sum() for rows in out.values()).backward()
    assert a.peek([1, 2])[:, 0].tolist() == [0.5, 0.0]
    assert b.peek([1])[:, 0].tolist() == [0.5]
    assert a.stats()["applies"] == 1


def test_two_objects_of_one_table_are_one(bank: embank.Bank, tables: list[embank.Table]) -> None:
    module = embank.torch.EmbeddingCollection({"x": tables[0], "z": bank.open_table("a")})
    assert len(module.tables()) == 1
    sum(rows.sum() for rows in module({"x": torch.tensor([1]), "z": torch.tensor([1])}).values()).backward()
    assert tables[0].peek([1])[0, 0] == 0.0


def test_tables_of_two_banks_in_one_module(tmp_path: Path, tables: list[embank.Table]) -> None:
    with embank.Bank(tmp_path / "other", memory_budget="16MiB") as bank:
        other = bank.table("a", dim=2, optimizer=embank.SGD(lr=0.5), initializer=embank.Zeros())
        module = embank.torch.EmbeddingCollection({"x": tables[0], "y": other})
        keys = torch.tensor([1])
        out = module({"x": keys, "y": keys})
        (out["x"] + out["y"]).sum().backward()
        assert tables[0].peek([1])[0, 0] == 0.5
        assert other.peek([1])[0, 0] == -0.5


def test_evaluation_peeks(tables: list[embank.Table]) -> None:
    module = embank.torch.EmbeddingBagCollection({"x": tables[0], "y": tables[1]}, padding_idx=-1)
    with torch.no_grad():
        out = module({"x": torch.tensor([[1, -1]]), "y": (torch.tensor([3]), torch.tensor([0, 1]))})
    assert out["x"].tolist() == [[1.0, 1.0]]
    assert out["y"].tolist() == [[1.0] * 3, [0.0] * 3]
    assert not tables[0].contains([1, -1]).any()


def test_wrong_features_are_named(tables: list[embank.Table]) -> None:
    module = embank.torch.EmbeddingBagCollection({"x": tables[0], "y": tables[1]})
    with pytest.raises(ValueError, match=r"missing: \['y'\], unknown: \['z'\]"):
        module({"x": torch.tensor([[1]]), "z": torch.tensor([[1]])})
    with pytest.raises(ValueError, match="feature 'x': a 1-D input needs offsets"):
        module({"x": torch.tensor([1]), "y": torch.tensor([[1]])})
    with pytest.raises(ValueError, match="needs a feature"):
        embank.torch.EmbeddingCollection({})
    with pytest.raises(ValueError, match="mode must be"):
        embank.torch.EmbeddingBagCollection({"x": tables[0]}, mode="min")  # type: ignore[arg-type]
    assert "'x': 'a' dim=2" in repr(module)


def test_outputs_change_in_place_as_torchs_do(tables: list[embank.Table]) -> None:
    """Shows that an output may be changed in place. Autograd refused it while outputs were views of
    one tensor."""
    a, b = tables
    model = embank.torch.EmbeddingBagCollection({"one": a, "two": a, "b": b})
    keys = {"one": torch.tensor([[1, 2]]), "two": torch.tensor([[3]]), "b": torch.tensor([[4]])}
    bags = model(keys)
    kept = bags["two"] * bags["two"]  # the graph needs this output as it is
    bags["one"].mul_(3.0)
    torch.relu_(bags["b"])
    (bags["one"].sum() + kept.sum() + bags["b"].sum()).backward()
    assert a.peek([1, 2, 3]).tolist() == [[-0.5, -0.5], [-0.5, -0.5], [0.0, 0.0]]
    assert b.peek([4]).tolist() == [[0.5, 0.5, 0.5]]
    output = embank.torch.EmbeddingBag(a, mode="sum")(torch.tensor([[1]]))
    output.mul_(2.0).sum().backward()
    rows = embank.torch.Embedding(a)(torch.tensor([[2], [3]]))
    rows.mul_(2.0).sum().backward()
    assert a.peek([1, 2, 3]).tolist() == [[-1.5, -1.5], [-1.5, -1.5], [-1.0, -1.0]]


def test_a_feature_that_the_loss_leaves_out_learns_nothing(tables: list[embank.Table]) -> None:
    a, _ = tables
    model = embank.torch.EmbeddingBagCollection({"one": a, "two": a})
    bags = model({"one": torch.tensor([[1, 2]]), "two": torch.tensor([[3]])})
    bags["one"].sum().backward()
    assert a.peek([1, 2, 3]).tolist() == [[0.5, 0.5], [0.5, 0.5], [1.0, 1.0]]
    assert a.outstanding_leases() == []


def test_a_bad_gradient_of_an_empty_bag_is_dropped_in_several_banks(
    tmp_path: Path, tables: list[embank.Table]
) -> None:
    """Shows that a NaN gradient of an empty bag stops no step, because it reaches no row."""
    a, _ = tables
    with embank.Bank(tmp_path / "other", memory_budget="16MiB") as bank:
        other = bank.table("a", dim=2, optimizer=embank.SGD(lr=0.5),
                           initializer=embank.Constant(1.0))
        model = embank.torch.EmbeddingBagCollection({"here": a, "there": other})
        bags = (torch.tensor([1, 2]), torch.tensor([0, 1, 1]))
        found = model({"here": bags, "there": bags})
        bad = torch.tensor([[1.0, 1.0], [float("nan"), 0.0], [1.0, 1.0]])
        (found["here"] * bad).sum().add(found["there"].sum()).backward()
        assert a.peek([1, 2]).tolist() == [[0.5, 0.5], [0.5, 0.5]]
        assert other.peek([1, 2]).tolist() == [[0.5, 0.5], [0.5, 0.5]]
        found = model({"here": bags, "there": bags})
        bad = torch.tensor([[1.0, float("nan")], [0.0, 0.0], [1.0, 1.0]])
        with pytest.raises(ValueError, match="key 1: the gradient of column 1 is nan"):
            (found["here"] * bad).sum().add(found["there"].sum()).backward()
        assert other.peek([1, 2]).tolist() == [[0.5, 0.5], [0.5, 0.5]]


EMPTY = (torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ("mode", "weights"), [("sum", False), ("sum", True), ("mean", False), ("max", False)]
)
def test_a_feature_without_keys_leaves_pooling_to_the_store(
    tables: list[embank.Table], mode: str, weights: bool
) -> None:
    """Shows that the store pools a batch in which a feature has no keys, whatever the mode of this
    feature. torch once pooled all features of such a batch, which takes more than twice the time.
    """
    a, b = tables
    modes: Any = {"full": "sum", "empty": mode, "alone": mode}
    model = embank.torch.EmbeddingBagCollection({"empty": a, "full": a, "alone": b}, modes)
    ones = torch.ones(2) if weights else None
    full = (torch.tensor([1, 2]), torch.tensor([0, 1]), *([] if ones is None else [ones]))
    out = model({"full": full, "empty": EMPTY, "alone": torch.empty(3, 0, dtype=torch.int64)})
    assert {name: of.tolist() for name, of in out.items()} == {
        "empty": [[0.0, 0.0]] * 2,
        "full": [[1.0, 1.0]] * 2,
        "alone": [[0.0, 0.0, 0.0]] * 3,
    }
    assert all(is_pooled_by_the_store(of.grad_fn) for of in out.values())
    sum(of.sum() for of in out.values()).backward()
    assert a.peek([1, 2]).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert (a.stats()["applies"], a.outstanding_leases(), b.outstanding_leases()) == (1, [], [])
    with torch.no_grad():
        assert model({"full": full, "empty": EMPTY, "alone": EMPTY})["alone"].shape == (2, 3)


def is_pooled_by_the_store(node: Any) -> bool:
    """Whether the node of the module's stand-in lies on the node of a lease."""
    (below, _), *_ = node.next_functions
    return type(below).__name__ == "LeasedOutputBackward"


def test_a_module_without_keys_does_not_need_torch(tables: list[embank.Table]) -> None:
    a, _ = tables
    bags = embank.torch.EmbeddingBag(a, mode="max")(*EMPTY)
    rows = embank.torch.Embedding(a)(torch.empty(0, 4, dtype=torch.int64))
    assert (bags.tolist(), rows.shape) == ([[0.0, 0.0]] * 2, (0, 4, 2))
    (of_rows, _), *_ = rows.grad_fn.next_functions  # the rows are a view
    assert is_pooled_by_the_store(bags.grad_fn) and is_pooled_by_the_store(of_rows)
    (bags.sum() + rows.sum()).backward()
    assert a.outstanding_leases() == []


@pytest.mark.parametrize("kind", ["EmbeddingCollection", "EmbeddingBagCollection"])
def test_losses_of_two_features_are_one_backward_pass(
    tables: list[embank.Table], kind: str
) -> None:
    """Shows that a second backward pass through one forward pass names its cures, which work. The
    error spoke only of retained graphs, and two losses over two features need none."""
    a, _ = tables
    model = getattr(embank.torch, kind)({"one": a, "two": a})
    batch = {"one": torch.tensor([[1]]), "two": torch.tensor([[2]])}
    out = model(batch)
    out["one"].sum().backward()
    with pytest.raises(RuntimeError, match="one backward pass, .* sum of the losses, .*SparseOpt"):
        out["two"].sum().backward()
    assert a.peek([1, 2]).tolist() == [[0.5, 0.5], [1.0, 1.0]]
    assert a.outstanding_leases() == []
    out = model(batch)
    (out["one"].sum() + out["two"].sum()).backward()
    assert a.peek([1, 2]).tolist() == [[0.0, 0.0], [0.5, 0.5]]
    steps = embank.torch.SparseOptimizer(model)
    out = model(batch)
    out["one"].sum().backward()
    out["two"].sum().backward()
    steps.step()
    assert a.peek([1, 2]).tolist() == [[-0.5, -0.5], [0.0, 0.0]]


@pytest.mark.parametrize("kind", ["EmbeddingCollection", "EmbeddingBagCollection"])
def test_losses_of_features_of_two_tables_need_no_sum(
    tables: list[embank.Table], kind: str
) -> None:
    """Shows that each table takes one step if two backward passes reach different tables. A second
    pass to one of them is refused, and changes neither."""
    a, b = tables
    model = getattr(embank.torch, kind)({"one": a, "two": b})
    out = model({"one": torch.tensor([[1]]), "two": torch.tensor([[2]])})
    out["one"].sum().backward(retain_graph=True)
    assert (a.peek([1])[0, 0], b.peek([2])[0, 0]) == (0.5, 1.0)
    out["two"].sum().backward(retain_graph=True)
    assert (a.peek([1])[0, 0], b.peek([2])[0, 0]) == (0.5, 0.5)
    assert a.bank.outstanding_leases() == []
    with pytest.raises(RuntimeError, match="one backward pass, .* sum of the losses, .*SparseOpt"):
        (out["one"].sum() + out["two"].sum()).backward()
    assert (a.peek([1])[0, 0], b.peek([2])[0, 0]) == (0.5, 0.5)


@pytest.mark.skipif(not hasattr(torch, "uint64"), reason="this torch has no uint64")
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_features_of_one_table_may_have_keys_of_different_types(
    tables: list[embank.Table], mode: Any
) -> None:
    """Regression test: torch joins no int64 keys with uint64 keys, and the store joins the keys of
    features whose bags it does not pool, as in mode "max"."""
    a, _ = tables
    a.put([1, 2, -1], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    largest = torch.tensor([[1, 2**64 - 1]], dtype=torch.uint64)
    features = {"i": torch.tensor([[1, 2]]), "u": largest, "b": torch.tensor([[2]]).byte()}
    module = embank.torch.EmbeddingBagCollection(dict.fromkeys(features, a), mode=mode)
    reduced = {"sum": ([4.0, 6.0], [6.0, 8.0]), "mean": ([2.0, 3.0], [3.0, 4.0])}
    of_i, of_u = reduced.get(mode, ([3.0, 4.0], [5.0, 6.0]))
    out = module(features)
    assert {name: rows.tolist() for name, rows in out.items()} == {
        "i": [of_i], "u": [of_u], "b": [[3.0, 4.0]]
    }
    sum(rows.sum() for rows in out.values()).backward()
    assert a.stats()["apply_rows"] == 3
    rows = embank.torch.EmbeddingCollection(dict.fromkeys(features, a)).eval()(features)
    assert torch.equal(rows["i"][0, 0], rows["u"][0, 0])
    assert rows["u"][0].tolist() == a.peek([1, -1]).tolist()


def test_keys_that_are_no_integers_are_refused_in_every_mode(tables: list[embank.Table]) -> None:
    a, _ = tables
    features = {"i": torch.tensor([[1, 2]]), "f": torch.tensor([[1.0]])}
    for mode in ("sum", "max"):
        module = embank.torch.EmbeddingBagCollection(dict.fromkeys(features, a), mode=mode)
        with pytest.raises(TypeError, match="integer"):
            module(features)
    with pytest.raises(TypeError, match="integer"):
        embank.torch.EmbeddingCollection(dict.fromkeys(features, a))(features)
