"""Compares `SparseOptimizer` with `torch.optim` over parameters: accumulation, clipping, schedules,
scaling."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402

ROWS = 30


def rows_of(out: Any) -> Any:
    """Sums a module's output, which is a tensor or the tensors of a collection."""
    return sum(each.sum() for each in out.values()) if isinstance(out, dict) else out.sum()


MODULES: dict[str, Any] = {
    "Embedding": embank.torch.Embedding,
    "EmbeddingBag": lambda table: embank.torch.EmbeddingBag(table, mode="sum"),
    "EmbeddingCollection": lambda table: embank.torch.EmbeddingCollection({"f": table}),
    "EmbeddingBagCollection": lambda table: embank.torch.EmbeddingBagCollection({"f": table}),
}


def output_of(module: Any, keys: Any) -> Any:
    """Calls the module with `keys` in the form that the module takes, and returns the tensor."""
    batch = torch.as_tensor(keys)
    return module({"f": batch})["f"] if hasattr(module, "features") else module(batch)


def looked_up(module: Any, keys: list[list[int]]) -> Any:
    """Calls the module as `output_of` does, and sums the output."""
    return output_of(module, keys).sum()


class Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Two modules, one of which looks up twice, and a dense part."""

    def __init__(self, words: Any, tags: Any) -> None:
        super().__init__()
        self.words, self.tags = words, tags
        self.top = torch.nn.Linear(7, 1)

    def forward(self, words: Any, tags: Any) -> Any:
        parts = [self.words(words), self.tags(tags) + self.tags(tags.flip(1))]
        return self.top(torch.cat(parts, dim=1).tanh())


def twins(bank: embank.Bank, kind: str, lr: float) -> tuple[Any, Any, Any, Any, Any]:
    """Makes two models with equal weights, the optimizers of the tables and the dense part, and
    torch's optimizer."""
    optimizer = {"SGD": embank.SGD(lr=lr), "Adagrad": embank.Adagrad(lr=lr)}[kind]
    torch_optimizer = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}[kind]
    tables = [bank.table(name, dim=dim, optimizer=optimizer) for name, dim in (("w", 4), ("t", 3))]
    ours = Model(*(embank.torch.EmbeddingBag(table, mode="sum") for table in tables))
    theirs = Model(*(torch.nn.EmbeddingBag(ROWS, table.dim, mode="sum") for table in tables))
    for module, table in zip((theirs.words, theirs.tags), tables):
        module.weight.data = torch.from_numpy(table.initial(np.arange(ROWS)))
    ours.top.load_state_dict(theirs.top.state_dict())
    return (
        ours,
        theirs,
        embank.torch.SparseOptimizer(ours),
        torch_optimizer(ours.top.parameters(), lr=lr),
        torch_optimizer(theirs.parameters(), lr=lr),
    )


def assert_models_agree(ours: Any, theirs: Any) -> None:
    for mine, twin in ((ours.words, theirs.words), (ours.tags, theirs.tags)):
        rows = torch.from_numpy(mine.table.peek(np.arange(ROWS)))
        torch.testing.assert_close(rows, twin.weight.detach(), rtol=1e-5, atol=1e-6)
        assert not any(mine.table.outstanding(key) for key in range(ROWS))
    torch.testing.assert_close(ours.top.weight, theirs.top.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["SGD", "Adagrad"])
@pytest.mark.parametrize("seed", range(6))
def test_accumulated_clipped_and_scheduled_steps_equal_torch(
    bank: embank.Bank, kind: str, seed: int
) -> None:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    ours, theirs, tables, dense, all_of_theirs = twins(bank, kind, lr=0.1)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(of, lambda step: 1.0 / (1 + step))
        for of in (tables, dense, all_of_theirs)
    ]
    for _ in range(8):
        for of in (tables, dense, all_of_theirs):
            of.zero_grad()
        for _ in range(choose.randrange(1, 4)):
            size = choose.randrange(1, 5)
            words, tags = torch.randint(0, ROWS, (size, 3)), torch.randint(0, 6, (size, 2))
            got, wanted = ours(words, tags), theirs(words, tags)
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
            (10 * got.square().sum() + got.sum()).backward()
            (10 * wanted.square().sum() + wanted.sum()).backward()
        norms = [
            torch.nn.utils.clip_grad_norm_([*ours.parameters(), *tables.parameters()], 0.5),
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5),
        ]
        torch.testing.assert_close(*norms, rtol=1e-5, atol=1e-6)
        for of in (tables, dense, all_of_theirs, *schedules):
            of.step()
    assert tables.param_groups[0]["lr"] == pytest.approx(0.1 / 9)
    assert_models_agree(ours, theirs)


def test_gradients_are_unscaled_and_infinite_ones_skipped(bank: embank.Bank) -> None:
    torch.manual_seed(1)
    ours, theirs, tables, dense, all_of_theirs = twins(bank, "Adagrad", lr=0.1)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**14) for _ in range(2)]
    for step in range(5):
        words, tags = torch.randint(0, ROWS, (4, 3)), torch.randint(0, 6, (4, 2))
        too_much = float("inf") if step == 2 else 1.0
        for of in (tables, dense, all_of_theirs):
            of.zero_grad()
        for scaler, model, optimizers in zip(
            scalers, (ours, theirs), ([tables, dense], [all_of_theirs])
        ):
            scaler.scale(model(words, tags).square().sum() * too_much).backward()
            for of in optimizers:
                scaler.unscale_(of)
                scaler.step(of)
            scaler.update()
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0**13
    assert_models_agree(ours, theirs)


@pytest.fixture
def module(table: embank.Table) -> Any:
    return embank.torch.Embedding(table)


def test_backward_waits_for_step(module: Any) -> None:
    tables = embank.torch.SparseOptimizer(module)
    module(torch.tensor([1, 2])).sum().backward()
    assert (module.table.peek([1, 2]) == 1.0).all()
    assert module.table.outstanding(1) == 1
    assert [rows.grad.shape for rows in tables.parameters()] == [(2, 4)]
    tables.step()
    assert (module.table.peek([1, 2]) == 0.5).all()
    assert module.table.outstanding(1) == 0
    assert tables.parameters() == []
    tables.step()
    assert (module.table.peek([1, 2]) == 0.5).all(), "nothing waits"


@pytest.mark.parametrize("norm", [2.0, float("inf")])
def test_a_table_without_keys_is_no_parameter(bank: embank.Bank, norm: float) -> None:
    """Shows that a batch may lack the keys of a table. Its gradient without values once made
    clipping by the infinite norm fail for all tables."""
    options: Any = {"optimizer": embank.SGD(lr=1.0), "initializer": embank.Zeros()}
    tables = [bank.table(name, dim=2, **options) for name in ("user", "coupon")]
    model = embank.torch.EmbeddingBagCollection(dict(zip(("user", "coupon"), tables)))
    optimizer = embank.torch.SparseOptimizer(model)
    no_keys = (torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
    for users in (torch.tensor([[1], [2]]), no_keys):
        rows_of(model({"user": users, "coupon": no_keys})).mul(4.0).backward()
    for group in optimizer.param_groups:
        assert len(group["params"]) == (1 if group["table"] == "user" else 0)
    (gradient,) = [rows.grad for rows in optimizer.parameters()]
    before = torch.linalg.vector_norm(gradient, norm)
    found = torch.nn.utils.clip_grad_norm_(optimizer.parameters(), 1.0, norm_type=norm)
    assert found == before
    optimizer.step()
    assert torch.linalg.vector_norm(torch.from_numpy(tables[0].peek([1, 2])), norm) == pytest.approx(
        1.0, abs=1e-3
    )
    assert [table.outstanding_leases() for table in tables] == [[], []]


NO_KEYS = {
    "no row": torch.empty(0, 3, dtype=torch.int64),
    "no column": torch.empty(2, 0, dtype=torch.int32),
}


@pytest.mark.parametrize("kind", list(MODULES))
@pytest.mark.parametrize("no_keys", NO_KEYS.values(), ids=NO_KEYS)
@pytest.mark.parametrize(
    ("norm", "length"), [(float("inf"), 4.0), (float("-inf"), 4.0), (1.0, 16.0)]
)
def test_a_module_without_keys_has_no_parameter(
    bank: embank.Bank, kind: str, no_keys: Any, norm: float, length: float
) -> None:
    """Regression test: clipping failed for all modules if one of them had no keys."""
    options: Any = {"optimizer": embank.SGD(lr=1.0), "initializer": embank.Zeros()}
    tables = [bank.table(name, dim=2, **options) for name in ("user", "coupon")]
    user, coupon = modules = [MODULES[kind](table) for table in tables]
    optimizer = embank.torch.SparseOptimizer(modules)
    (output_of(user, [[1], [2]]).sum() + output_of(coupon, no_keys).sum()).mul(4.0).backward()
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 0]
    found = torch.nn.utils.clip_grad_norm_(optimizer.parameters(), 1.0, norm_type=norm)
    assert found == length
    optimizer.step()
    np.testing.assert_allclose(tables[0].peek([1, 2]), np.full((2, 2), -4.0 / length), rtol=1e-4)
    assert len(tables[1]) == 0
    assert not bank.outstanding_leases()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_table_whose_keys_are_all_padding_is_no_parameter(bank: embank.Bank, mode: Any) -> None:
    options: Any = {"optimizer": embank.SGD(lr=1.0), "initializer": embank.Zeros()}
    tables = [bank.table(name, dim=2, **options) for name in ("user", "coupon")]
    user, coupon = modules = [
        embank.torch.EmbeddingBag(table, mode=mode, padding_idx=0) for table in tables
    ]
    optimizer = embank.torch.SparseOptimizer(modules)
    (user(torch.tensor([[1, 0]])).sum() + coupon(torch.tensor([[0, 0]])).sum()).backward()
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 0]
    torch.nn.utils.clip_grad_norm_(optimizer.parameters(), 0.5, norm_type=float("inf"))
    optimizer.step()
    np.testing.assert_allclose(tables[0].peek([1]), [[-0.5, -0.5]], rtol=1e-4)
    assert len(tables[1]) == 0
    assert not bank.outstanding_leases()


def test_zero_grad_and_detach_give_leases_back(module: Any) -> None:
    tables = embank.torch.SparseOptimizer(module, lr=0.25)
    module(torch.tensor([1])).sum().backward()
    tables.zero_grad()
    assert module.table.outstanding(1) == 0
    module(torch.tensor([1])).sum().backward()
    tables.detach()
    assert module.table.outstanding(1) == 0
    assert (module.table.peek([1]) == 1.0).all()
    module(torch.tensor([1])).sum().backward()
    assert (module.table.peek([1]) == 0.5).all(), "applied at once, at the table's own rate"


def test_what_waits_goes_with_the_optimizer(module: Any) -> None:
    gc.disable()
    try:
        tables = embank.torch.SparseOptimizer(module)
        module(torch.tensor([1])).sum().backward()
        waiting = tables.parameters()
        assert waiting[0].grad is not None
    finally:
        gc.enable()
    del tables, waiting
    gc.collect()
    assert module.table.outstanding(1) == 0
    module(torch.tensor([1])).sum().backward()
    assert (module.table.peek([1]) == 0.5).all(), "a discarded optimizer gives its tables back"


def test_the_rate_is_handed_to_the_table(module: Any) -> None:
    tables = embank.torch.SparseOptimizer(module, lr=0.25)
    module(torch.tensor([1])).sum().backward()
    tables.step()
    assert (module.table.peek([1]) == 0.75).all()
    assert module.table.learning_rate == 0.25
    tables.param_groups[0]["lr"] = 1.0
    module(torch.tensor([1])).sum().backward()
    tables.step(lambda: 0.0)
    assert (module.table.peek([1]) == -0.25).all()


def test_a_retained_graph_adds_up(module: Any) -> None:
    tables = embank.torch.SparseOptimizer(module)
    loss = (module(torch.tensor([9, 1])) * torch.tensor([[1.0], [2.0]])).sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    tables.step()
    assert module.table.peek([9, 1])[:, 0].tolist() == [0.0, -1.0]
    with pytest.raises(RuntimeError, match="already applied"):
        loss.backward()


@pytest.mark.parametrize("kind", list(MODULES))
@pytest.mark.parametrize("cure", ["sum", "both at once", "SparseOptimizer"])
def test_two_losses_over_one_output_are_one_step(bank: embank.Bank, kind: str, cure: str) -> None:
    """Shows that a second backward pass is refused in each module, and that each cure of the error
    is one step. Adagrad can tell one step from two."""
    table = bank.table(
        "adagrad", dim=2, optimizer=embank.Adagrad(lr=1.0), initializer=embank.Zeros()
    )
    module = MODULES[kind](table)

    def losses(keys: list[list[int]]) -> tuple[Any, Any]:
        out = output_of(module, keys)
        return out[0].sum(), out.sum()

    first, second = losses([[8], [9]])
    first.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass, .* sum of the losses, .*SparseOpt"):
        second.backward()
    assert table.peek([8, 9])[:, 0].tolist() == [-1.0, 0.0], "the second pass changed nothing"
    first, second = losses([[1], [2]])
    if cure == "sum":
        (first + second).backward()
    elif cure == "both at once":
        torch.autograd.backward([first, second])
    else:
        optimizer = embank.torch.SparseOptimizer(module)
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
    np.testing.assert_allclose(table.peek([1, 2]), [[-1.0, -1.0], [-1.0, -1.0]], rtol=1e-5)
    assert not bank.outstanding_leases()


def test_leases_count_for_the_bound_until_the_step(module: Any) -> None:
    tables = embank.torch.SparseOptimizer(module)
    module.table.staleness_bound = 1
    for _ in range(2):
        module(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"'item' wait for step\(\) after 2 forward passes.* is 1"):
        module(torch.tensor([2, 3]))
    module(torch.tensor([3])).sum().backward()
    tables.step()
    assert module.table.peek([1, 2, 3])[:, 0].tolist() == [0.0, 0.0, 0.5]
    module(torch.tensor([2, 3]))


def test_forwards_before_the_first_backward_count_for_the_bound(module: Any) -> None:
    """Shows that a forward pass blocked by an earlier one without a backward pass fails at once. It
    once waited until its timeout."""
    tables = embank.torch.SparseOptimizer(module)
    module.table.staleness_bound = 0
    loss = module(torch.tensor([1, 2])).sum()
    with pytest.raises(RuntimeError, match="after 1 forward passes"):
        module(torch.tensor([2, 3]))
    assert loss.requires_grad
    del loss
    module(torch.tensor([2, 3])).sum().backward()  # a dropped graph does not count any more
    tables.detach()


def test_a_row_deleted_before_a_merged_step_stays_deleted(module: Any) -> None:
    """Shows that a step that merges several leases does not make a deleted row again. The step of
    one lease does not either."""
    tables = embank.torch.SparseOptimizer(module)
    for _ in range(2):
        module(torch.tensor([1, 2])).sum().backward()
    module.table.delete([1])
    tables.step()
    assert module.table.contains([1, 2]).tolist() == [False, True]
    assert module.table.peek([2])[0, 0] == 0.0
    assert module.table.outstanding(2) == 0


def test_frozen_tables_need_no_optimizer(bank: embank.Bank, module: Any) -> None:
    plain = embank.torch.Embedding.from_pretrained(torch.ones(3, 2), bank.table("plain", dim=2))
    model = torch.nn.ModuleList([module, plain])
    tables = embank.torch.SparseOptimizer(model)
    assert [group["table"] for group in tables.param_groups] == ["item"]
    (module(torch.tensor([1])).sum() + plain(torch.tensor([1])).sum()).backward()
    tables.step()
    with pytest.raises(ValueError, match="'plain' has no optimizer"):
        plain.freeze(False)(torch.tensor([1]))
    tables.detach()
    plain.freeze()
    with pytest.raises(ValueError, match="frozen"):
        embank.torch.SparseOptimizer(plain)


def test_a_nan_changes_nothing_and_gives_the_lease_back(module: Any) -> None:
    tables = embank.torch.SparseOptimizer(module)
    for passes in (1, 2):
        for _ in range(passes):
            (module(torch.tensor([1])).sum() * float("nan")).backward()
        with pytest.raises(ValueError, match="NaN|finite"):
            tables.step()
        assert module.table.outstanding(1) == 0
        assert (module.table.peek([1]) == 1.0).all()


@pytest.mark.parametrize("passes", [1, 2])
def test_expired_leases_are_told(tmp_path: Path, passes: int) -> None:
    with embank.Bank(tmp_path / "own", memory_budget="16MiB", lease_timeout=0.001) as bank:
        table = bank.table("t", dim=1, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros())
        table.staleness_bound = passes - 1
        module = embank.torch.Embedding(table)
        tables = embank.torch.SparseOptimizer(module)
        for _ in range(passes):
            module(torch.tensor([1])).sum().backward()
        table.get([1]).release()  # waits until a lease has expired
        with pytest.raises(embank.LeaseExpired):
            tables.step()
        assert (table.peek([1]) == 0.0).all()
        assert table.outstanding(1) == 0


def test_state_dicts_carry_the_rates(bank: embank.Bank, module: Any) -> None:
    tables = embank.torch.SparseOptimizer(module)
    schedule = torch.optim.lr_scheduler.ExponentialLR(tables, gamma=0.5)
    module(torch.tensor([1])).sum().backward()
    state = tables.state_dict()
    assert state["param_groups"][0]["params"] == [], "what waits is no state"
    tables.step()
    schedule.step()
    state = tables.state_dict()
    tables.detach()
    again = embank.torch.SparseOptimizer(module)
    again.load_state_dict(state)
    assert again.param_groups[0]["lr"] == 0.25
    other = embank.torch.Embedding(bank.table("other", dim=1, optimizer=embank.SGD(lr=1.0)))
    with pytest.raises(ValueError, match=r"tables \['item'\], this optimizer of \['other'\]"):
        embank.torch.SparseOptimizer(other).load_state_dict(state)


def test_what_cannot_be_optimized_is_refused(bank: embank.Bank, module: Any) -> None:
    with pytest.raises(ValueError, match=r"no module of embank\.torch"):
        embank.torch.SparseOptimizer(torch.nn.Linear(1, 1))
    plain = embank.torch.Embedding(bank.table("plain", dim=1))
    with pytest.raises(ValueError, match="'plain' has no optimizer"):
        embank.torch.SparseOptimizer([module, plain])
    tables = embank.torch.SparseOptimizer([module])
    with pytest.raises(ValueError, match=r"detach\(\)"):
        embank.torch.SparseOptimizer(module)
    tables.detach()


def test_a_gradient_that_was_taken_away_is_told(module: Any) -> None:
    tables = embank.torch.SparseOptimizer(module)
    module(torch.tensor([1])).sum().backward()
    tables.parameters()[0].grad = None
    with pytest.raises(RuntimeError, match="set to None"):
        tables.step()


@pytest.mark.parametrize("kind", list(MODULES))
@pytest.mark.parametrize("handle", ["same", "table again", "open_table"])
@pytest.mark.parametrize("later", [False, True], ids=["made before", "made later"])
def test_every_module_over_a_table_waits_for_its_optimizer(
    bank: embank.Bank, module: Any, kind: str, handle: str, later: bool
) -> None:
    """Shows that all modules over a table wait for the table's optimizer, also modules that the
    optimizer was not made for. So rows take one step."""
    table = {
        "same": lambda: module.table,
        "table again": lambda: bank.table(
            "item", dim=4, optimizer=embank.SGD(lr=0.5), initializer=embank.Constant(1.0)
        ),
        "open_table": lambda: bank.open_table("item"),
    }[handle]()
    other = None if later else MODULES[kind](table)
    tables = embank.torch.SparseOptimizer(module)
    other = MODULES[kind](table) if later else other
    (module(torch.tensor([1])).sum() + looked_up(other, [[1]])).backward()
    looked_up(other, [[2]]).backward()
    assert (table.peek([1, 2]) == 1.0).all(), "nothing moves before the step"
    tables.step()
    assert table.peek([1, 2])[:, 0].tolist() == [0.0, 0.5], "one step, of the summed gradient"
    assert not table.outstanding(1) and not table.outstanding(2)


def test_a_collection_has_tables_of_an_optimizer_and_others(bank: embank.Bank, module: Any) -> None:
    other = bank.table("other", dim=4, optimizer=embank.SGD(lr=0.5), initializer=embank.Constant(1.0))
    both = embank.torch.EmbeddingCollection({"item": module.table, "other": other})
    tables = embank.torch.SparseOptimizer(module)
    keys = torch.tensor([1])
    rows_of(both({"item": keys, "other": keys})).backward()
    assert module.table.peek([1])[0, 0] == 1.0
    assert other.peek([1])[0, 0] == 0.5
    tables.step()
    assert module.table.peek([1])[0, 0] == 0.5


def test_a_feature_store_that_trains_is_taken_over(bank: embank.Bank) -> None:
    pytest.importorskip("torch_geometric")
    from embank.torch.geometric import FeatureStore

    options: Any = {"optimizer": embank.SGD(lr=0.5), "initializer": embank.Constant(1.0)}
    store = FeatureStore(bank)
    embedding = store.add_embedding("user", "x", 3, 4, **options)
    tables = embank.torch.SparseOptimizer(embedding)
    again = FeatureStore(bank).add_embedding("user", "x", 3, 4, **options)
    again(torch.tensor([1])).sum().backward()
    assert store["user", "x", [1]][0, 0] == 1.0
    tables.step()
    assert store["user", "x", [1]][0, 0] == 0.5


def test_a_second_optimizer_over_a_table_is_refused(bank: embank.Bank, module: Any) -> None:
    """Shows that a second optimizer over a table is refused. With two optimizers, each step would
    give the table the learning rate of its own optimizer."""
    free = bank.table("free", dim=1, optimizer=embank.SGD(lr=1.0))
    tables = embank.torch.SparseOptimizer(module, lr=0.25)
    other = torch.nn.ModuleList(
        [
            embank.torch.Embedding(free),
            embank.torch.EmbeddingBagCollection({"f": bank.open_table("item")}),
        ]
    )
    with pytest.raises(ValueError, match=r"table 'item' of .* has a SparseOptimizer .*detach\(\)"):
        embank.torch.SparseOptimizer(other, lr=2.0)
    # A refused optimizer has taken no table.
    other[0](torch.tensor([1])).sum().backward()
    embank.torch.SparseOptimizer(other[0]).detach()
    tables.detach()
    embank.torch.SparseOptimizer(other).detach()


def test_a_discarded_optimizer_with_a_schedule_makes_room(module: Any) -> None:
    """Shows that a table is free after its optimizer is dropped. A schedule and its optimizer refer
    to each other, so only the garbage collector frees them."""
    gc.disable()
    try:
        tables: Any = embank.torch.SparseOptimizer(module, lr=0.25)
        schedule: Any = torch.optim.lr_scheduler.StepLR(tables, step_size=1)
        del tables, schedule
        again = embank.torch.SparseOptimizer(module, lr=1.0)
    finally:
        gc.enable()
    module(torch.tensor([1])).sum().backward()
    again.step()
    assert module.table.peek([1])[0, 0] == 0.0


def test_the_optimizer_of_the_backward_pass_gets_the_gradient(module: Any) -> None:
    """Shows that the gradient goes to the optimizer that exists at the backward pass. It once went
    to the optimizer of the forward pass."""
    before = module(torch.tensor([1])).sum()
    tables = embank.torch.SparseOptimizer(module)
    before.backward()
    assert module.table.peek([1])[0, 0] == 1.0
    tables.step()
    assert module.table.peek([1])[0, 0] == 0.5
    before = module(torch.tensor([1])).sum()
    tables.detach()
    before.backward()
    assert module.table.peek([1])[0, 0] == 0.0


def test_tables_of_one_name_in_two_banks_are_two(tmp_path: Path, module: Any) -> None:
    with embank.Bank(tmp_path / "second", memory_budget="16MiB") as second:
        table = second.table(
            "item", dim=4, optimizer=embank.SGD(lr=0.5), initializer=embank.Constant(1.0)
        )
        other = embank.torch.Embedding(table)
        tables = embank.torch.SparseOptimizer(module)
        other(torch.tensor([1])).sum().backward()
        assert table.peek([1])[0, 0] == 0.5
        both = embank.torch.SparseOptimizer(other)
        assert tables.param_groups[0]["table"] == both.param_groups[0]["table"] == "item"
