"""Tests resuming a run with a model whose features came, went or changed places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

RATES = {"user": 0.5, "item": 0.25, "shop": 0.125, "time": 0.0625}


class Model(nn.Module):
    """Features, each with its own tower of dense layers. The towers have one shape, so a mix-up
    raises no error."""

    def __init__(self, bank: embank.Bank, names: str) -> None:
        super().__init__()
        torch.manual_seed(len(names))
        tables = {
            name: bank.table(name, dim=2, optimizer=embank.SGD(lr=RATES[name]))
            for name in names.split()
        }
        self.rows = embank.torch.EmbeddingCollection(tables)
        self.towers = nn.ModuleDict({name: nn.Linear(2, 1) for name in tables})

    def forward(self, keys: Any) -> Any:
        rows = self.rows(dict.fromkeys(self.towers, keys))
        # Sums in a fixed order, because a sum of floats depends on the order.
        return sum((self.towers[name](rows[name]) * len(name)).sum() for name in sorted(rows))


class Run:
    def __init__(self, bank: embank.Bank, names: str, schedule: Any = None, model: Any = None) -> None:
        self.model = Model(bank, names) if model is None else model
        self.tables = embank.torch.SparseOptimizer(self.model)
        self.dense = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = (schedule or (lambda of: lr_scheduler.StepLR(of, 2, 0.5)))(self.tables)
        self.parts = {
            "model": self.model, "tables": self.tables, "dense": self.dense, "schedule": self.schedule,
        }  # fmt: skip

    def train(self, steps: int = 3) -> None:
        for step in range(steps):
            self.dense.zero_grad()
            loss = self.model(torch.tensor([step, step + 1]))
            (loss * loss).backward()
            self.tables.step()
            self.dense.step()
            if isinstance(self.schedule, lr_scheduler.ReduceLROnPlateau):
                self.schedule.step(1.0)
            else:
                self.schedule.step()

    def momenta(self) -> dict[str, Any]:
        return {
            name: self.dense.state[of]["exp_avg"].clone()
            for name, of in self.model.named_parameters()
            if self.dense.state.get(of) and not name.endswith("_stand_in")
        }

    def rates(self) -> dict[str, float]:
        return {group["table"]: float(group["lr"]) for group in self.tables.param_groups}

    def end(self) -> dict[str, Any]:
        """Returns everything that training has changed in the model."""
        found = {name: of.tolist() for name, of in sorted(self.model.state_dict().items()) if "extra" not in name}
        for table in sorted(self.model.rows.tables(), key=lambda table: table.name):
            found[table.name] = table.peek([0, 1, 2, 3]).tolist()
        return {**found, **self.rates()}


@contextmanager
def opened(path: Path) -> Iterator[embank.Bank]:
    with embank.Bank(path, memory_budget="16MiB") as bank:
        yield bank


def saved_run(path: Path, names: str, schedule: Any = None) -> tuple[dict[str, Any], dict[str, float]]:
    """Trains and saves a run, and returns the momenta and the learning rates at the time of the
    save."""
    with opened(path) as bank:
        run = Run(bank, names, schedule)
        run.train()
        embank.torch.save(bank, step=3, **run.parts)
        return run.momenta(), run.rates()


def rest(bank: embank.Bank, names: str, schedule: Any = None) -> dict[str, Any]:
    """Resumes, trains on, and returns the final state."""
    run = Run(bank, names, schedule)
    assert embank.torch.resume(bank, **run.parts) == {"step": 3}
    run.train(4)
    bank.checkpoint()
    return run.end()


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "steps": lambda of: lr_scheduler.StepLR(of, 2, 0.5),
    "exponential": lambda of: lr_scheduler.ExponentialLR(of, 0.9),
    "lambda": lambda of: lr_scheduler.LambdaLR(of, lambda step: 1 / (step + 1)),
    "cosine": lambda of: lr_scheduler.CosineAnnealingLR(of, 20),
    "restarts": lambda of: lr_scheduler.CosineAnnealingWarmRestarts(of, 2),
    "one cycle": lambda of: lr_scheduler.OneCycleLR(of, 1.0, total_steps=20, cycle_momentum=False),
    "cyclic": lambda of: lr_scheduler.CyclicLR(
        of, [rate["lr"] for rate in of.param_groups], [rate["lr"] * 2 for rate in of.param_groups], 3, cycle_momentum=False
    ),
    "plateau": lambda of: lr_scheduler.ReduceLROnPlateau(
        of, patience=0, min_lr=[rate["lr"] / 3 for rate in of.param_groups]
    ),
    "sequence": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.ConstantLR(of, 0.5, 2), lr_scheduler.LambdaLR(of, lambda step: 0.9**step)], [4]
    ),
    "chain": lambda of: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(of, 0.9), lr_scheduler.LinearLR(of, 0.5, total_iters=6)]
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_reordered_model_goes_on_as_it_was(tmp_path: Path, schedule: Any) -> None:
    """Shows that `resume` gives each tower its own momentum and each table its own learning rate
    after the features changed places."""
    ends = []
    for at, names in enumerate(("user item shop", "shop user item", "item shop user")):
        path = tmp_path / str(at)
        saved_run(path, "user item shop", schedule)
        with opened(path) as bank:
            ends.append(rest(bank, names, schedule))
    assert ends[0] == ends[1] == ends[2]


def test_only_the_order_of_parameters_may_have_changed(tmp_path: Path) -> None:
    """Shows that parameters in another order keep their own momenta and learning rates."""
    with opened(tmp_path / "bank") as bank:
        model = nn.ModuleDict({name: nn.Linear(2, 1) for name in "ab"})
        dense = torch.optim.Adam([{"params": model["a"].parameters(), "lr": 0.5}, {"params": model["b"].parameters()}])
        (model["a"](torch.ones(2)) + 3 * model["b"](torch.ones(2))).sum().backward()
        dense.step()
        embank.torch.save(bank, model=model, dense=dense)
    with opened(tmp_path / "bank") as bank:
        model = nn.ModuleDict({name: nn.Linear(2, 1) for name in "ba"})
        dense = torch.optim.Adam([{"params": model[name].parameters()} for name in "ba"])
        embank.torch.resume(bank, model=model, dense=dense)
        assert [group["lr"] for group in dense.param_groups] == [0.001, 0.5]
        momenta = {name: dense.state[model[name].weight]["exp_avg"] for name in "ab"}
        assert torch.equal(momenta["b"], 3 * momenta["a"])


def test_another_model_is_refused_with_the_way_out(tmp_path: Path) -> None:
    saved_run(tmp_path / "bank", "user item")
    for names, told in (
        ("user item shop", r"added: \['tables.tables.shop', 'dense.model.towers.shop.weight'.*strict=False"),
        ("user", r"removed: \['tables.tables.item', 'dense.model.towers.item.weight'.*strict=False"),
    ):
        with opened(tmp_path / "bank") as bank:
            run = Run(bank, names)
            weight = run.model.towers["user"].weight.clone()
            with pytest.raises(ValueError, match=told):
                embank.torch.resume(bank, **run.parts)
            assert torch.equal(run.model.towers["user"].weight, weight), "nothing was loaded"
    with opened(tmp_path / "bank") as bank:
        model = Model(bank, "user item shop")
        with pytest.raises(ValueError, match=r"states of \['dense'.*strict=False"):
            embank.torch.resume(bank, model=model)


@pytest.mark.parametrize("names", ["user item shop", "shop user", "item", "time shop", "shop item user time"])
def test_features_that_both_have_are_resumed(tmp_path: Path, names: str) -> None:
    momenta, rates = saved_run(tmp_path / "bank", "user item")
    before, now = {"user", "item"}, set(names.split())
    with opened(tmp_path / "bank") as bank:
        run = Run(bank, names)
        found = embank.torch.resume(bank, strict=False, **run.parts)
        assert found == {"step": 3}
        for told, differing in ((found.added, now - before), (found.removed, before - now)):
            expected = set()
            for name in differing:
                expected |= {f"model.rows.{kind}.{name}" for kind in ("tables", "features")} | {f"tables.tables.{name}"}
                for of in ("weight", "bias"):
                    expected |= {f"model.towers.{name}.{of}", f"dense.model.towers.{name}.{of}"}
            assert set(told) == expected and len(told) == len(expected)
        assert found.changed == []
        again = run.momenta()
        assert set(again) == {key for key in momenta if key.split(".")[1] in now}
        assert all(torch.equal(momenta[key], again[key]) for key in again)
        assert run.rates() == {name: rates.get(name, RATES[name]) for name in names.split()}
        run.train(4)
        assert all(rate < RATES[name] for name, rate in run.rates().items()), "the schedule goes on for all"
        bank.checkpoint()
        assert set(bank.tables()) == before | now, "removed features keep their rows"


def test_a_parameter_of_another_shape_begins_anew(tmp_path: Path) -> None:
    """Shows that a parameter with a new shape begins without state, such as the layer behind the
    features after a feature was added."""

    class Top(nn.Module):
        def __init__(self, bank: embank.Bank, names: str) -> None:
            super().__init__()
            self.rows = embank.torch.EmbeddingBagCollection(
                {name: bank.table(name, dim=2, optimizer=embank.SGD(lr=1.0)) for name in names.split()}
            )
            self.top = nn.Sequential(nn.Linear(2 * len(names.split()), 3), nn.Linear(3, 1))

        def forward(self, keys: Any) -> Any:
            rows = self.rows({name: keys.unsqueeze(1) for name in self.rows.features})
            return self.top(torch.cat(list(rows.values()), dim=1)).sum()

    with opened(tmp_path / "bank") as bank:
        run = Run(bank, "", model=Top(bank, "user item"))
        run.train()
        kept = run.momenta()
        embank.torch.save(bank, **run.parts)
    with opened(tmp_path / "bank") as bank:
        run = Run(bank, "", model=Top(bank, "user item shop"))
        with pytest.raises((ValueError, RuntimeError)):
            embank.torch.resume(bank, **run.parts)
        found = embank.torch.resume(bank, strict=False, **run.parts)
        assert found is not None
        assert found.changed == ["model.top.0.weight"]
        assert set(run.momenta()) == set(kept) - {"top.0.weight"}
        run.train()
        bank.checkpoint()


def test_a_part_may_be_resumed_alone(tmp_path: Path) -> None:
    """Shows that the model can be resumed without the other saved parts, for example to evaluate
    it."""
    saved_run(tmp_path / "bank", "user item")
    with opened(tmp_path / "bank") as bank:
        model = Model(bank, "item user")
        found = embank.torch.resume(bank, strict=False, model=model, ema=nn.Linear(1, 1))
        assert found is not None and found["step"] == 3
        assert (found.added, found.removed, found.changed) == (["ema"], ["tables", "dense", "schedule"], [])


def test_a_feature_of_another_table_is_told(tmp_path: Path) -> None:
    """Shows that `resume` refuses two features that have exchanged their tables."""

    def collection(bank: embank.Bank, a: str, b: str) -> Any:
        tables = {name: bank.table(name, dim=2, optimizer=embank.SGD(lr=1.0)) for name in (a, b)}
        return nn.Sequential(embank.torch.EmbeddingCollection({"a": tables[a], "b": tables[b]}))

    with opened(tmp_path / "bank") as bank:
        embank.torch.save(bank, model=collection(bank, "one", "two"))
    with opened(tmp_path / "bank") as bank:
        with pytest.raises(RuntimeError, match='"0.features.a", "0.features.b"'):
            embank.torch.resume(bank, model=collection(bank, "two", "one"))
        found = embank.torch.resume(bank, strict=False, model=collection(bank, "two", "one"))
        assert found is not None
        assert (found.added, found.removed) == ([], [])
        assert found.changed == ["model.0.features.a", "model.0.features.b"]


def test_modules_of_tables_that_come_and_go_are_named_by_their_tables(tmp_path: Path) -> None:
    def model_of(bank: embank.Bank, names: str) -> Any:
        return nn.ModuleDict({of: embank.torch.EmbeddingBag(bank.table(of, dim=2)) for of in names.split()})

    with opened(tmp_path / "bank") as bank:
        embank.torch.save(bank, model=model_of(bank, "user item"))
    with opened(tmp_path / "bank") as bank:
        found = embank.torch.resume(bank, strict=False, model=model_of(bank, "shop user"))
        assert found is not None
        assert (found.added, found.removed) == (["model.shop.tables.shop"], ["model.item.tables.item"])


def test_a_checkpoint_without_names_is_resumed_by_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that a checkpoint of a version that stored no names of parameters is resumed by their
    numbers."""
    monkeypatch.setattr(embank.torch.training_state, "parameter_names", lambda parts: {})
    momenta, _ = saved_run(tmp_path / "bank", "user item")
    with opened(tmp_path / "bank") as bank:
        run = Run(bank, "user item")
        assert embank.torch.resume(bank, **run.parts) == {"step": 3}
        assert all(torch.equal(momenta[key], of) for key, of in run.momenta().items())
    with opened(tmp_path / "bank") as bank:
        run = Run(bank, "user item shop")
        found = embank.torch.resume(bank, strict=False, **run.parts)
        assert found is not None
        assert found.changed == ["dense"]
        run.train()
        bank.checkpoint()


def test_rates_are_loaded_by_the_names_of_tables(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        model = Model(bank, "user item")
        tables = embank.torch.SparseOptimizer(model)
        for group in tables.param_groups:
            group["lr"] *= 2
        state = tables.state_dict()
        tables.detach()
        other = embank.torch.SparseOptimizer(Model(bank, "item user"))
        other.load_state_dict(state)
        assert {of["table"]: of["lr"] for of in other.param_groups} == {"item": 0.5, "user": 1.0}
        other.detach()
        more = embank.torch.SparseOptimizer(Model(bank, "shop user"))
        with pytest.raises(ValueError, match="is of tables"):
            more.load_state_dict(state)
        more.load_state_dict(state, strict=False)
        assert {of["table"]: of["lr"] for of in more.param_groups} == {"shop": 0.125, "user": 1.0}
        more.detach()
