"""Runs a small `soak/thirty_days.py`: two days, with a new feature, a kill and evictions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SOAK = Path(__file__).parents[1] / "soak"
sys.path.insert(0, str(SOAK))

import days  # noqa: E402
import thirty_days  # noqa: E402

SMALL = ["--seed", "1", "--keys", "600", "--steps", "12", "--batch-size", "32"]


def test_two_days_end_as_the_model_says() -> None:
    # On a busy machine a day may end before the kill. Then the run with the next seed tries another
    # moment.
    for seed in range(1, 6):
        done = subprocess.run(
            [sys.executable, "thirty_days.py", *SMALL, "--seed", str(seed), "--days", "2"]
            + ["--feature-day", "2", "--kill-day", "2", "--evict-every", "1"],
            cwd=SOAK,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if "day 2: killed" in done.stdout:
            return
    pytest.fail("no day was killed in five runs")


def test_a_wrong_rule_of_admission_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Shows that the soak finds a planted fault: the model admits a key with its second get, the
    table with its third."""
    monkeypatch.setattr(days, "ADMIT_AFTER_GETS", 2)
    assert thirty_days.main([*SMALL, "--days", "1", "--directory", str(tmp_path)]) == 1
    assert "FAILED with seed 1: day 1" in capsys.readouterr().out
