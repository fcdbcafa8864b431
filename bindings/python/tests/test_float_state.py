"""Tests that all threads of a call compute with the floating-point state of the calling thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

ROWS = 20_000
KEYS = np.arange(ROWS)
OFFSETS = np.arange(0, ROWS + 1, 20)
# Below the smallest normal float32.
TINY = np.float32(1e-39)


@pytest.fixture
def flushing() -> Iterator[None]:
    """Numbers near zero become zero in this thread, as long as the test runs."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor can't flush numbers near zero")
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


def bags(table: embank.Table) -> Any:
    return table.peek_bags(KEYS, OFFSETS)


def steps(table: embank.Table) -> Any:
    """The change of each row by a gradient near zero."""
    before = table.peek(KEYS)
    table.apply_gradients(KEYS, np.full((ROWS, 8), TINY, np.float32))
    return table.peek(KEYS) - before


def halves(table: embank.Table) -> Any:
    return table.peek(KEYS)


@pytest.mark.parametrize(
    ("call", "dtype", "value"),
    [(bags, "float32", TINY), (steps, "float32", 0.0), (halves, "int8", 127 * TINY)],
)
def test_equal_calls_give_equal_results(
    tmp_path: Path, flushing: None, call: Callable[[embank.Table], Any], dtype: Any, value: float
) -> None:
    """The threads of the pool kept the state with which they had been started, so a part of the
    results depended on the thread that computed it."""
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB", threads=4) as bank:
        table = bank.table("t", dim=8, dtype=dtype, optimizer=embank.SGD(lr=1.0))
        table.put(KEYS, np.full((ROWS, 8), value, np.float32))
        call(table)  # starts the threads
        for _ in range(20):
            torch.set_flush_denormal(False)
            plain = call(table)
            torch.set_flush_denormal(True)
            flushed = call(table)
            torch.set_flush_denormal(False)
            assert (plain == plain[:1]).all()
            assert (flushed == flushed[:1]).all()
