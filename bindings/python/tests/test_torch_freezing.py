"""Tests that rows stop and start learning with the parameters of a model, as programs freeze them.

Rows were once outside of all parameters. So `requires_grad_(False)` and Lightning's freezing did
nothing to them, and they went on learning without a word.
"""

from __future__ import annotations

import os
from typing import Any, Callable

import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch import nn  # noqa: E402

KEYS = torch.tensor([[1], [2]])

MODULES: dict[str, Callable[[Any], Any]] = {
    "Embedding": embank.torch.Embedding,
    "Embedding with padding": lambda table: embank.torch.Embedding(table, padding_idx=0),
    "EmbeddingBag": embank.torch.EmbeddingBag,
    "EmbeddingBag, max": lambda table: embank.torch.EmbeddingBag(table, mode="max"),
    "EmbeddingCollection": lambda table: embank.torch.EmbeddingCollection({"a": table}),
    "EmbeddingBagCollection": lambda table: embank.torch.EmbeddingBagCollection({"a": table}),
}


class Model(nn.Module):
    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows, self.top = rows, nn.Linear(4, 1)

    def forward(self, keys: Any) -> Any:
        rows = self.rows({"a": keys})["a"] if hasattr(self.rows, "features") else self.rows(keys)
        return self.top(rows)


def loop(model: Any, learn: bool) -> None:
    for parameter in model.parameters():
        parameter.requires_grad = learn


def lightning(model: Any, learn: bool) -> None:
    finetuning = pytest.importorskip("lightning.pytorch.callbacks").BaseFinetuning
    (finetuning.make_trainable if learn else finetuning.freeze)(model)


FREEZERS: dict[str, Callable[[Any, bool], object]] = {
    "the module": lambda model, learn: model.rows.requires_grad_(learn),
    "the model": lambda model, learn: model.requires_grad_(learn),
    "every parameter": loop,
    "Lightning": lightning,
    "freeze": lambda model, learn: model.rows.freeze(not learn),
}


def learns(model: Any) -> bool:
    """Trains one step, and returns whether a row has changed."""
    table = model.rows.tables()[0]
    before = table.peek([1, 2])
    loss = model(KEYS).sum()
    if loss.requires_grad:
        loss.backward()
    return bool((table.peek([1, 2]) != before).any())


@pytest.mark.parametrize("freeze", FREEZERS.values(), ids=FREEZERS)
@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_frozen_rows_do_not_learn(
    bank: embank.Bank, table: embank.Table, module: Any, freeze: Any
) -> None:
    model = Model(module(table))
    assert learns(model) and not model.rows.frozen
    freeze(model, False)
    assert not learns(model) and model.rows.frozen
    assert not bank.outstanding_leases(), "a frozen module peeks"
    assert not any(of.requires_grad for of in model.rows.parameters())
    freeze(model, True)
    assert learns(model)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_frozen_between_two_steps(table: embank.Table, sparse: bool) -> None:
    """Shows that the dense part goes on learning behind frozen rows, also with a
    `SparseOptimizer`."""
    model = Model(embank.torch.EmbeddingBag(table))
    tables = embank.torch.SparseOptimizer(model) if sparse else None
    dense = torch.optim.Adam(model.parameters(), lr=0.1)
    for frozen in (False, True, False, True):
        model.rows.requires_grad_(not frozen)
        rows, weight = table.peek([1, 2]), model.top.weight.detach().clone()
        dense.zero_grad()
        model(KEYS).sum().backward()
        dense.step()
        if tables is not None:
            tables.step()
        assert (table.peek([1, 2]) == rows).all() == frozen
        assert not torch.equal(model.top.weight, weight)
        assert model.rows._stand_in.item() == 0.0


def test_pretrained_rows_are_frozen_as_in_torch(bank: embank.Bank) -> None:
    table = bank.table("pretrained", dim=4, optimizer=embank.SGD(lr=0.5))
    ours = embank.torch.Embedding.from_pretrained(torch.ones(3, 4), table)
    theirs = nn.Embedding.from_pretrained(torch.ones(3, 4))
    for module in (ours, theirs):
        assert not any(of.requires_grad for of in module.parameters())
        module.requires_grad_(True)
        assert module(KEYS).requires_grad
    model = Model(ours)
    assert learns(model)


def test_the_stand_in_is_in_state_dicts_and_need_not_be(bank: embank.Bank, table: embank.Table) -> None:
    """Shows that a state dict of a version without stand-ins loads."""
    model = Model(embank.torch.Embedding(table))
    bank.checkpoint()
    state = model.state_dict()
    assert state["rows._stand_in"].tolist() == [0.0]
    model.requires_grad_(False)
    model.load_state_dict(state)
    assert model.rows.frozen, "as in torch, a state dict does not thaw"
    del state["rows._stand_in"]
    model.load_state_dict(state)


def test_a_resumed_optimizer_may_lack_the_stand_in(bank: embank.Bank, table: embank.Table) -> None:
    """Shows that a run resumes whose optimizer had the dense parameters alone, and the other way
    round."""

    def parts(every: bool) -> Any:
        model = Model(embank.torch.Embedding(bank.open_table("item")))
        return {"model": model, "dense": torch.optim.Adam((model if every else model.top).parameters())}

    for every in (False, True):
        run = parts(every)
        run["model"](KEYS).sum().backward()
        run["dense"].step()
        number = embank.torch.save(bank, **run)
        bank.roll_back(number)
        again = parts(not every)
        embank.torch.resume(bank, **again)
        momenta = [of["dense"].state[of["model"].top.weight]["exp_avg"] for of in (run, again)]
        assert torch.equal(*momenta)


# torch.compile looks for a gradient at tensors that have none, and hides the warning of it.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_data_parallel_training_waits_for_no_gradient(
    bank: embank.Bank, table: embank.Table, compiled: bool, tmp_path: Any
) -> None:
    """Shows that `DistributedDataParallel` trains a model with tables. It waits for each parameter
    that requires a gradient, so a stand-in outside of the graph would make its second pass fail."""
    if not torch.distributed.is_available():
        pytest.skip("this build of PyTorch has no distributed package")
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.fspath(tmp_path / 'meeting')}", rank=0, world_size=1
    )
    try:
        for module in MODULES.values():
            model = Model(module(table))
            parallel: Any = DistributedDataParallel(model)
            if compiled:
                parallel = torch.compile(parallel, backend="eager")
            for _ in range(3):
                before = table.peek([1, 2])
                parallel(KEYS).sum().backward()
                assert (table.peek([1, 2]) != before).all()
            model.requires_grad_(False)
            model.top.requires_grad_(True)
            parallel = DistributedDataParallel(model)
            for _ in range(2):
                parallel(KEYS).sum().backward()
            assert not learns(model)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_the_stand_in_is_like_other_parameters(table: embank.Table, module: Any) -> None:
    """Shows that functions over all parameters of a model work: gradients without a backward pass,
    every kind of clipping, and weight decay."""
    model = Model(module(table))
    loss = model(KEYS).sum()
    before = table.peek([1, 2])
    found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    assert [of.shape for of in found] == [of.shape for of in model.parameters()]
    assert (table.peek([1, 2]) == before).all(), "only backward() trains rows"
    loss.backward()
    assert (table.peek([1, 2]) != before).any()
    dense = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    for norm in (1.0, 2.0, float("inf")):
        model(KEYS).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=norm)
        dense.step()
    assert all(of.grad is not None and of.isfinite().all() for of in model.parameters())
    assert model.rows._stand_in.item() == 0.0
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()), model.parameters())
    nn.init.normal_(model.rows._stand_in)
    assert learns(model), "its value has no effect"
