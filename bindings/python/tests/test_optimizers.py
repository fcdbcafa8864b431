"""Tests optimizers in the store beside torch.optim. bench/python/training/optimizers.py is the
long version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import embank

STEPS = 200
DIM = 19


def trained(path: Path, optimizer: Any, start: Any, gradients: Any) -> Any:
    with embank.Bank(path, memory_budget="16MiB") as bank:
        table = bank.table("t", DIM, optimizer=optimizer)
        table.put([5], start)
        for gradient in gradients:
            table.apply_gradients([5], gradient.reshape(1, DIM))
            # Rows 6 and 7 take steps too. Their steps must not count as steps of row 5.
            table.apply_gradients([6, 7], np.ones((2, DIM), np.float32))
        return table.peek([5])[0]


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "AdamW"])
def test_learning_rates_default_to_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    peer = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(1))])
    assert getattr(embank, name)().lr == peer.defaults["lr"]


def test_learning_rates_without_a_peer_in_torch_have_a_default() -> None:
    assert embank.RowWiseAdagrad().lr == 0.01  # FBGEMM's learning_rate
    assert embank.FTRL().lr == 0.001  # tf.keras.optimizers.Ftrl's learning_rate


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "adamw"])
def test_a_row_goes_where_torch_takes_a_parameter(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    optimizers: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "sgd": (
            embank.SGD(0.01, weight_decay=0.1),
            lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1),
        ),
        "momentum": (
            embank.SGD(0.01, momentum=0.9, nesterov=True),
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
        ),
        "adagrad": (
            embank.Adagrad(0.1, lr_decay=0.01),
            lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01),
        ),
        "adam": (
            embank.Adam(0.01, weight_decay=0.1),
            lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
        ),
        "adamw": (
            embank.AdamW(0.01),
            lambda p: torch.optim.AdamW(p, lr=0.01),
        ),
    }
    optimizer, make = optimizers[name]
    random = np.random.default_rng(1)
    start = random.normal(size=(1, DIM)).astype(np.float32)
    gradients = random.normal(size=(STEPS, DIM)).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(start[0].copy()))
    peer = make([parameter])
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        peer.step()
    found = trained(tmp_path, optimizer, start, gradients)
    expected = parameter.detach().numpy()
    assert np.max(np.abs(found - expected)) <= 1e-6 * np.max(np.abs(expected))


def test_optimizers_are_values(tmp_path: Path) -> None:
    made = [
        embank.SGD(0.1, momentum=0.9),
        embank.Adagrad(0.1, weight_decay=0.2),
        embank.RowWiseAdagrad(0.1),
        embank.Adam(0.1, betas=(0.5, 0.6)),
        embank.AdamW(0.1),
        embank.FTRL(0.1, l1=0.2),
    ]
    with embank.Bank(tmp_path, memory_budget="16MiB") as bank:
        for number, optimizer in enumerate(made):
            table = bank.table(f"t{number}", 4, optimizer=optimizer)
            assert table.optimizer == optimizer
            assert eval(repr(optimizer), vars(embank)) == optimizer
        with pytest.raises(embank.TableMismatch, match="AdamW"):
            table.optimizer = embank.AdamW(0.1)
        with pytest.raises(ValueError, match="beta"):
            bank.table("t9", 4, optimizer=embank.Adam(0.1, betas=(0.5, 1.0)))
        assert bank.table("plain", 4).optimizer is None


def test_gradients_are_clipped_by_row(tmp_path: Path) -> None:
    with embank.Bank(tmp_path, memory_budget="16MiB") as bank:
        table = bank.table(
            "t", 2, optimizer=embank.SGD(1.0), initializer=embank.Zeros(), clip_row_norm=5.0
        )
        table.apply_gradients([1, 2], [[30.0, 40.0], [0.3, 0.4]])
        np.testing.assert_allclose(table.peek([1, 2]), [[-3.0, -4.0], [-0.3, -0.4]])
        table.clip_row_norm = None
        assert table.clip_row_norm is None


@pytest.mark.parametrize(
    "initializer",
    [
        embank.TruncatedNormal(std=0.5),
        embank.XavierUniform(fan_out=100),
        embank.XavierNormal(fan_out=100, fan_in=10, gain=2.0),
    ],
)
def test_initializers_fill_new_rows(tmp_path: Path, initializer: Any) -> None:
    with embank.Bank(tmp_path, memory_budget="16MiB") as bank:
        rows = bank.table("t", 50, initializer=initializer).initial(np.arange(200))
    assert 0.05 < rows.std() < 0.6
    assert abs(rows.mean()) < 0.02
