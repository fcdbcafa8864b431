"""Runs the example on two ranks, and again with a crash in the middle: both runs end alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")
pytest.importorskip("torch")

SCRIPT = Path(__file__).resolve().parents[1] / "distributed.py"
ARGUMENTS = "--rows 3000 --batch-size 32 --save-every 8 --budget 16MiB".split()


def run(directory: Path, *arguments: str, fails: bool = False) -> list[str]:
    """Runs the script under torchrun, and returns the lines that it prints."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    data = ["--data", str(directory.parent / "data")]
    done = subprocess.run(
        [*launch, str(SCRIPT), str(directory), *data, *ARGUMENTS, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_run_on_two_ranks_resumes_after_a_crash(tmp_path: Path) -> None:
    begin, end = run(tmp_path / "whole")
    assert begin == "begins at step 0" and end.startswith("ends at step 37 with ")
    run(tmp_path / "crashed", "--crash-at", "20", fails=True)
    begin, resumed = run(tmp_path / "crashed")
    assert begin == "begins at step 16"
    assert resumed == end
