"""Tests the share of the time that waits for rows, with a clock that only the modules move."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

import meter
from meter import RowTimer
from test_demo import experiment
from variant import Variant, run_variant, steady_row_share


class Clock:
    """Replaces the module `time`."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Source(nn.Module):
    """Gives rows and takes some seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        self.clock.now += self.seconds
        if len(keys) == 0:
            raise ValueError("no keys")
        return keys


def test_only_training_passes_count_and_a_failed_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, keys = Clock(), torch.zeros(1)
    monkeypatch.setattr(meter, "time", clock)
    first, second = Source(clock, 2.0), Source(clock, 0.5)
    timer = RowTimer([first, second])
    first(keys)
    clock.now += 50.0
    second(keys)
    assert timer.take() == 2.5
    first.eval()
    first(keys)
    assert timer.take() == 0.0
    with pytest.raises(ValueError, match="no keys"):
        second(keys[:0])
    second(keys)
    assert timer.take() == 0.5


def test_the_share_leaves_out_the_first_fifth() -> None:
    history = [{"seconds": 10.0, "row_seconds": 9.0}] * 2
    history += [{"seconds": 2.0, "row_seconds": 0.5}] * 8
    assert steady_row_share(history) == 0.25
    assert steady_row_share(history[:1]) == 0.9
    assert steady_row_share([]) == 0.0


def test_every_interval_has_a_share_on_a_bank_and_in_memory(tmp_path: Path) -> None:
    for variant in (Variant("memory", None), Variant("bank", 1 << 20, lookahead=3)):
        outcome = run_variant(experiment(), variant, tmp_path, resume=False)
        assert outcome.history
        assert all(0.0 < sample["row_seconds"] < sample["seconds"] for sample in outcome.history)
        assert 0.0 < outcome.row_share < 1.0
