"""Tests the way back to the rows of a state dict, such as the best ones of a run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch import nn  # noqa: E402

KEYS = torch.tensor([1, 2])


@pytest.fixture
def dense_and_rows(tmp_path: Path) -> Iterator[tuple[embank.Bank, Any]]:
    with embank.Bank(tmp_path / "best", memory_budget="16MiB", checkpoints_kept=1) as bank:
        table = bank.table("t", dim=2, optimizer=embank.Adagrad(lr=0.5))
        yield bank, nn.Sequential(embank.torch.Embedding(table), nn.Linear(2, 1))
        bank.checkpoint()


@pytest.mark.parametrize("before", [True, False])
def test_the_best_model_is_loaded_again(dense_and_rows: Any, before: bool) -> None:
    """Shows the way back to the best rows inside of the process. The error of `load_state_dict`
    once said that the bank must be closed."""
    bank, model = dense_and_rows
    table = model[0].table

    def epoch() -> None:
        model(KEYS).sum().backward()

    epoch()
    rows = table.peek([1, 2])
    with embank.torch.reference.taking_checkpoint():
        if before:
            bank.pin(bank.checkpoint())
        best = copy.deepcopy(model.state_dict())
        if not before:
            bank.pin(bank.checkpoint())
    assert embank.torch.roll_back(bank, best) == [], "the bank has these rows"
    for _ in range(3):
        epoch()
        with pytest.raises(ValueError, match=r"embank\.torch\.roll_back\(bank, state_dict\).*bank\.roll_back\(1\)"):
            model.load_state_dict(best)
        bank.checkpoint()
    with pytest.raises(ValueError, match=r"bank\.roll_back\(1\).*bank\.pin\(1\)"):
        model.load_state_dict(best)
    assert not np.array_equal(table.peek([1, 2]), rows)
    assert embank.torch.roll_back(bank, best) == [4]
    model.load_state_dict(best)
    assert np.array_equal(table.peek([1, 2]), rows)
    epoch()
    assert embank.torch.roll_back(bank, best) == [], "rows without a checkpoint are dropped"
    model.load_state_dict(best)
    assert np.array_equal(table.peek([1, 2]), rows)


def test_rows_that_no_checkpoint_has_do_not_come_back(dense_and_rows: Any, bank: embank.Bank) -> None:
    own, model = dense_and_rows
    own.checkpoint()
    state = model.state_dict()
    model(KEYS).sum().backward()
    own.checkpoint()
    with pytest.raises(ValueError, match=r"does not hold \(it keeps \[2\]\).*bank\.pin\(number\)"):
        embank.torch.roll_back(own, state)
    with pytest.raises(ValueError, match="another bank"):
        embank.torch.roll_back(bank, state)
    with pytest.raises(ValueError, match=r"no tables of embank\.torch: .*model\.state_dict\(\)"):
        embank.torch.roll_back(own, nn.Linear(1, 1).state_dict())
