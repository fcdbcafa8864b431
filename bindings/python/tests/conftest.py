"""Fixtures of the tests: a bank in a fresh directory, and a table."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import embank

BUDGET = "16MiB"

# A shell starts background programs with SIGINT ignored. Then an interrupt would not end a call.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[embank.Bank]:
    with embank.Bank(tmp_path / "bank", memory_budget=BUDGET, wait_timeout=20.0) as bank:
        yield bank


@pytest.fixture
def table(bank: embank.Bank) -> embank.Table:
    """A table of four columns, whose rows begin as ones: SGD with a rate of 0.5, no staleness
    bound."""
    return bank.table(
        "item", dim=4, optimizer=embank.SGD(lr=0.5), initializer=embank.Constant(1.0)
    )
