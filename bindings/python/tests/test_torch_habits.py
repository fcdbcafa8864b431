"""Tests that the modules behave like torch's when a training loop casts, copies, records and
sets defaults.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[embank.Bank]:
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        yield bank
        bank.checkpoint()


def table(bank: embank.Bank, name: str = "t") -> embank.Table:
    return bank.table(
        name, dim=4, optimizer=embank.SGD(lr=1.0), initializer=embank.Normal(0.0, 1.0)
    )


KEYS = torch.tensor([[1, 2], [3, 1]])


def modules(bank: embank.Bank) -> list[tuple[Any, Any]]:
    """Makes a module of each kind, and its argument."""
    rows = table(bank)
    return [
        (embank.torch.Embedding(rows), KEYS),
        (embank.torch.Embedding(rows, padding_idx=2), KEYS),
        (embank.torch.EmbeddingBag(rows), KEYS),
        (embank.torch.EmbeddingCollection({"a": rows}), {"a": KEYS}),
        (embank.torch.EmbeddingBagCollection({"a": rows}), {"a": KEYS}),
    ]


class Alone(nn.Module):
    """A model whose argument is one tensor, which recorders such as `torch.jit.trace` need."""

    def __init__(self, module: Any, argument: Any) -> None:
        super().__init__()
        self.module, self.named = module, isinstance(argument, dict)

    def forward(self, keys: Any) -> Any:
        return self.module({"a": keys})["a"] if self.named else self.module(keys)


def make_fx(model: Any, keys: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(model)(keys)


RECORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "trace": lambda model, keys: torch.jit.trace(model, keys),
    "trace, no check": lambda model, keys: torch.jit.trace(model, keys, check_trace=False),
    "make_fx": make_fx,
    "symbolic_trace": lambda model, keys: torch.fx.symbolic_trace(model),
    "export": lambda model, keys: torch.export.export(model, (keys,)),
    "export, not strict": lambda model, keys: torch.export.export(model, (keys,), strict=False),
    "export, strict": lambda model, keys: torch.export.export(model, (keys,), strict=True),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("record", RECORDERS.values(), ids=RECORDERS)
def test_what_records_a_call_is_refused(bank: embank.Bank, record: Any, train: bool) -> None:
    """Shows that tracing is refused. A traced model would return the rows of its example for any
    keys."""
    for module, argument in modules(bank):
        model = Alone(module, argument).train(train)
        with pytest.raises(Exception, match="record the part of the model behind the tables"):
            record(model, KEYS)
    assert not bank.outstanding_leases(), "a refused call holds nothing"


def test_a_compiled_model_still_trains(bank: embank.Bank) -> None:
    """Shows that `torch.compile` records no rows: it leaves the lookup to Python."""
    rows = table(bank)
    model = torch.compile(Alone(embank.torch.Embedding(rows), KEYS), backend="eager")
    for keys in (KEYS, KEYS + 10):
        assert model(keys).detach().numpy() == pytest.approx(rows.peek(keys.numpy().reshape(-1)).reshape(2, 2, 4))
    before = rows.peek([1])
    model(KEYS).sum().backward()
    assert not np.array_equal(rows.peek([1]), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_cast_module_gives_that_dtype(bank: embank.Bank, dtype: Any) -> None:
    """Shows that `half()` and the other casts change the dtype of the output, so the next layer
    accepts it."""
    for module, argument in modules(bank):
        model = Alone(module, argument)
        assert model(KEYS).dtype == torch.float32
        before = module.tables()[0].peek([1])
        out = model.to(dtype)(KEYS)
        assert out.dtype == dtype
        out.sum().backward()
        assert not np.array_equal(module.tables()[0].peek([1]), before), "rows learn"
        assert model.eval()(KEYS).dtype == dtype
        assert model.float()(KEYS).dtype == torch.float32
        bank.checkpoint()
        # A module has no values, so its dtype is the program's, whatever a state dict has.
        state = model.half().state_dict()
        model.float().load_state_dict(state)
        assert model(KEYS).dtype == torch.float32


def test_defaults_of_torch_change_nothing(bank: embank.Bank) -> None:
    """Shows that pretrained rows are put and read correctly whatever torch's default device and
    dtype are."""
    matrix = torch.arange(8.0).reshape(2, 4)
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        module = embank.torch.Embedding.from_pretrained(matrix, table(bank), padding_idx=1)
        bags = embank.torch.EmbeddingBag.from_pretrained(matrix, table(bank, "bags"))
        keys = torch.tensor([[0]], device="cpu")
        assert module(keys).tolist() == [[[0.0, 1.0, 2.0, 3.0]]]
        assert bags(keys).tolist() == [[0.0, 1.0, 2.0, 3.0]]
        assert module(keys).dtype == torch.float32
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_a_module_tells_its_dim(bank: embank.Bank) -> None:
    rows = table(bank)
    assert embank.torch.Embedding(rows).embedding_dim == 4
    assert embank.torch.EmbeddingBag(rows).embedding_dim == 4


def test_an_optimizer_of_tables_is_not_copied(bank: embank.Bank) -> None:
    """Shows that a copy of the optimizer is refused. A copy would share the tables and fail at its
    first step."""
    optimizer = embank.torch.SparseOptimizer(embank.torch.Embedding(table(bank)))
    with pytest.raises(TypeError, match=r"can't be copied.*state_dict\(\)"):
        copy.deepcopy(optimizer)
    with pytest.raises(TypeError, match="can't be copied"):
        copy.deepcopy({"optimizers": [optimizer]})


def test_numbers_of_numpy_are_saved(tmp_path: Path) -> None:
    class Schedule:
        def state_dict(self) -> Any:
            return OrderedDict(best=np.float64(0.5), steps=[np.int64(3)], of={"a": (np.bool_(True),)})

        def load_state_dict(self, state: Any) -> None:
            self.state = state

    path = tmp_path / "bank"
    with embank.Bank(path, memory_budget="16MiB") as bank:
        embank.torch.save(bank, schedule=Schedule(), step=np.int64(7), loss=np.float32(0.25))
    with embank.Bank(path, memory_budget="16MiB") as bank:
        schedule = Schedule()
        values = embank.torch.resume(bank, schedule=schedule)
    assert values == {"step": 7, "loss": 0.25}
    assert schedule.state == {"best": 0.5, "steps": [3], "of": {"a": (True,)}}
