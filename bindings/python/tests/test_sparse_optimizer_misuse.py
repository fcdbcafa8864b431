"""Tests that a `SparseOptimizer` refuses what its steps would ignore, and runs torch's hooks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any, Callable

import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch import nn  # noqa: E402

KEYS = torch.tensor([1, 2])


@pytest.fixture
def module(table: embank.Table) -> Any:
    return embank.torch.Embedding(table)


@pytest.fixture
def tables(module: Any) -> Iterator[Any]:
    tables = embank.torch.SparseOptimizer(module)
    yield tables
    tables.detach()


def group_of(top: Any) -> Any:
    return {"params": [top], "lr": 1.0}


ADDERS: dict[str, Callable[[Any, Any], object]] = {
    "a parameter": lambda tables, top: tables.add_param_group(group_of(top)),
    "an empty group": lambda tables, top: tables.add_param_group({"params": [], "lr": 1.0}),
    "a group": lambda tables, top: tables.param_groups.append(group_of(top)),
    "a group of nothing": lambda tables, top: tables.param_groups.append({"params": [], "lr": 1.0}),
    "new groups": lambda tables, top: setattr(tables, "param_groups", [{**tables.param_groups[0], "lr": 1.0}]),
    "no groups": lambda tables, top: tables.param_groups.clear(),
    "in a group": lambda tables, top: tables.param_groups[0]["params"].append(top),
    "weight_decay": lambda tables, top: tables.param_groups[0].update(weight_decay=0.1),
    "momentum": lambda tables, top: tables.param_groups[0].update(momentum=0.9),
}


@pytest.mark.parametrize("add", ADDERS.values(), ids=ADDERS)
def test_what_no_step_would_use_is_refused(module: Any, tables: Any, add: Any) -> None:
    """Shows that a parameter that would never be stepped, and an option that would have no effect,
    raise an error. Both were once accepted without a word."""
    top = nn.Parameter(torch.ones(4))
    cure = r"torch\.optim beside it|table\.optimizer = embank\.SGD|change its groups in place"
    with pytest.raises((TypeError, ValueError), match=cure):
        add(tables, top)
        for _ in range(2):
            tables.zero_grad()
            (module(KEYS) * top).sum().backward()
            tables.step()
    assert (module.table.peek([1, 2]) == 1.0).all() and not module.table.outstanding(1)


def test_a_table_has_its_own_weight_decay(module: Any, tables: Any) -> None:
    """Runs the cure of the error for `weight_decay`."""
    module.table.optimizer = embank.SGD(lr=0.5, weight_decay=1.0)
    module(KEYS).sum().backward()
    tables.step()
    assert (module.table.peek([1, 2]) == 0.0).all()


def test_schedules_may_keep_numbers_in_the_groups(module: Any, tables: Any) -> None:
    torch.optim.lr_scheduler.OneCycleLR(tables, 1.0, total_steps=5, cycle_momentum=False)
    averaging = torch.optim.swa_utils.SWALR(tables, swa_lr=0.1, anneal_epochs=1)
    for _ in range(3):
        module(KEYS).sum().backward()
        tables.step()
        averaging.step()
    assert tables.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_optimizer_is_neither_copied_nor_pickled(tables: Any, copied: Any) -> None:
    """Shows that a copy is refused when it is made. A shallow or pickled copy once failed at its
    first step, with an error that named an attribute of this package."""
    with pytest.raises(TypeError, match=r"can't be copied or pickled.*state_dict\(\)"):
        copied(tables)


@pytest.mark.skipif(
    not hasattr(torch.optim.Optimizer, "register_load_state_dict_pre_hook"), reason="PyTorch 2.1 has no such hooks"
)
def test_the_hooks_of_torch_run(module: Any, tables: Any) -> None:
    """Shows that hooks for state dicts run. They were once accepted and never called."""
    ran = []

    def rename(optimizer: Any, state: Any) -> Any:
        ran.append("before load")
        groups = [{**group, "table": group["table"].replace("old", "item")} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    tables.register_step_pre_hook(lambda *_: ran.append("before step"))
    tables.register_step_post_hook(lambda *_: ran.append("after step"))
    tables.register_state_dict_pre_hook(lambda *_: ran.append("before state"))
    tables.register_state_dict_post_hook(lambda *_: ran.append("after state"))
    tables.register_load_state_dict_pre_hook(rename)
    tables.register_load_state_dict_post_hook(lambda *_: ran.append("after load"))
    module(KEYS).sum().backward()
    tables.step()
    state = tables.state_dict()
    state["param_groups"][0].update(table="old", lr=0.125)
    tables.load_state_dict(state)
    assert tables.param_groups[0]["lr"] == 0.125
    assert ran == ["before step", "after step", "before state", "after state", "before load", "after load"]


def test_the_state_of_another_optimizer_is_refused(tables: Any) -> None:
    """Shows that the state of an optimizer of torch is named as such. It once raised a
    `KeyError`."""
    other = torch.optim.Adam([nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match=r"another optimizer.*SparseOptimizer\.state_dict\(\)"):
        tables.load_state_dict(other.state_dict())


@pytest.mark.parametrize("alone", [True, False])
def test_a_distributed_state_dict_is_refused_when_it_is_made(module: Any, tables: Any, alone: bool) -> None:
    """Shows that `get_state_dict` refuses a `SparseOptimizer`, and that its cure works. It once
    saved a state that `set_state_dict` could not load."""
    of = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = nn.Sequential(module, nn.Linear(4, 1))
    dense = torch.optim.Adam(model.parameters())
    module.table.bank.checkpoint()
    optimizers = [tables] if alone else [dense, tables]
    with pytest.raises(RuntimeError, match=r"'tables': tables\.state_dict\(\)"):
        of.get_state_dict(model, optimizers)
    with pytest.raises(RuntimeError, match=r"'tables': tables\.state_dict\(\)"):
        of.get_optimizer_state_dict(model, optimizers)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_distributed_checkpoint_has_the_optimizer_by_its_name(
    module: Any, tables: Any, tmp_path: Any
) -> None:
    """Runs the cure of the error of `get_state_dict`."""
    of = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    import torch.distributed.checkpoint as dcp

    model = nn.Sequential(module, nn.Linear(4, 1))
    dense = torch.optim.Adam(model.parameters())
    module.table.bank.checkpoint()
    weight = model[1].weight.detach().clone()
    tables.param_groups[0]["lr"] = 0.125
    parts, optimizers = of.get_state_dict(model, dense)
    saved = {"model": parts, "dense": optimizers, "tables": tables.state_dict()}
    dcp.save(saved, checkpoint_id=str(tmp_path / "saved"))
    tables.param_groups[0]["lr"] = 1.0
    nn.init.zeros_(model[1].weight)
    parts, optimizers = of.get_state_dict(model, dense)
    found = {"model": parts, "dense": optimizers, "tables": tables.state_dict()}
    dcp.load(found, checkpoint_id=str(tmp_path / "saved"))
    of.set_state_dict(model, dense, model_state_dict=found["model"], optim_state_dict=found["dense"])
    tables.load_state_dict(found["tables"])
    assert tables.param_groups[0]["lr"] == 0.125
    assert torch.equal(model[1].weight, weight)
