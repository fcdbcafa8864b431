"""Tests that an open bank works at a limit of threads, and that a call that needs a thread names
the limit to raise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_a_process_that_gets_no_thread() -> None:
    program = Path(__file__).parent / "at_thread_limit.py"
    words = [sys.executable, str(program)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if ended.stdout == "no other user\n":
        pytest.skip("the superuser has no limit of threads, and can't become another user here")
    assert (ended.returncode, ended.stdout) == (0, "passed\n"), ended.stderr
