"""Runs each script, and again with a crash in the middle: both runs must end with equal digests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")
pytest.importorskip("torch")

SCRIPTS = Path(__file__).resolve().parents[1]


def run(script: str, *arguments: str, code: int = 0) -> list[str]:
    """Runs a script and returns the lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_with_workers_resumes_to_the_same_bits(tmp_path: Path, workers: str) -> None:
    whole, crashed = str(tmp_path / "whole.bank"), str(tmp_path / "crashed.bank")
    begin, end = run("workers.py", whole, "--workers", workers)
    assert begin == "begins at step 0" and end.startswith("ends at step 96 ")
    # Step 50 is in the second of three epochs of 32 steps, ten steps after a save.
    run("workers.py", crashed, "--workers", workers, "--crash-at", "50", code=1)
    begin, resumed = run("workers.py", crashed, "--workers", workers)
    assert begin == "begins at step 40"
    assert resumed == end


def test_epochs_of_a_feed_resume_to_the_same_bits(tmp_path: Path) -> None:
    text = str(tmp_path / "clicks.tsv")
    whole, crashed = str(tmp_path / "whole.bank"), str(tmp_path / "crashed.bank")
    begin, end = run("feed_epochs.py", whole, text)
    assert begin == "begins at step 0, in epoch 0 behind row 0"
    assert end.startswith("ends at step 96 with 500 sites: ")
    run("feed_epochs.py", crashed, text, "--crash-at", "50", code=1)
    # Step 40 is the eighth step of the second epoch.
    begin, resumed = run("feed_epochs.py", crashed, text)
    assert begin == "begins at step 40, in epoch 1 behind row 1024"
    assert resumed == end


def test_pictures_and_titles_resume_to_the_same_bits(tmp_path: Path) -> None:
    folder = str(tmp_path / "shop")
    whole, crashed = str(tmp_path / "whole.bank"), str(tmp_path / "crashed.bank")
    begin, *epochs, end = run("pictures.py", whole, folder)
    assert begin == "begins at step 0, in epoch 0" and end.startswith("ends at step 128: ")
    # The second epoch has all arrays from memory, and the model has learned what users like.
    assert "0 arrays made" in epochs[1] and " from memory" in epochs[1]
    assert int(epochs[-1].split()[2].rstrip("%")) >= 90, epochs
    run("pictures.py", crashed, folder, "--crash-at", "50", code=1)
    begin, *_, resumed = run("pictures.py", crashed, folder)
    assert begin == "begins at step 40, in epoch 1"
    assert resumed == end
