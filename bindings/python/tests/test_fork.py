"""Tests that a child returns from `fork` while the bank's threads work.

More forks: `EMBANK_TEST_FORKS=10000 python -m pytest tests/test_fork.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORKS = os.environ.get("EMBANK_TEST_FORKS", "150")
LOADS = ["lookahead", "get", "apply", "checkpoint", "compaction", "growth", "threads", "pipeline"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs fork and pidfd_open")
@pytest.mark.parametrize("load", LOADS)
def test_no_child_hangs(load: str, tmp_path: Path) -> None:
    forking = Path(__file__).with_name("forking.py")
    subprocess.run([sys.executable, forking, load, FORKS, tmp_path], check=True)
