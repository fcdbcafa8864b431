"""Tests that the default budget follows the memory limit of the control group, and that a larger
budget warns.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import embank

MIB = 1 << 20


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder that looks like a control group with a limit of 64 MiB."""
    files = {
        "proc/self/cgroup": "0::/box\n",
        "proc/self/mountinfo": "35 24 0:30 / /groups rw - cgroup2 cgroup2 rw\n",
        "groups/box/memory.max": f"{64 * MIB}\n",
    }
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("EMBANK_SYSTEM_ROOT", str(tmp_path / "root"))
    return tmp_path


def test_the_default_is_a_quarter_of_the_limit(limited: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with embank.Bank(limited / "bank") as bank:
            stats = bank.stats()
            assert stats["memory"]["budget_bytes"] == 16 * MIB
            assert stats["memory_budget_warning"] is None
        embank.Bank(limited / "bank", memory_budget="64MiB").close()


def test_a_budget_above_the_limit_is_warned_of(limited: Path) -> None:
    numbers = f"{65 * MIB} bytes.*{64 * MIB} bytes"
    with pytest.warns(UserWarning, match=numbers) as told:
        bank = embank.Bank(limited / "bank", memory_budget="65MiB")
    assert len(told) == 1 and told[0].filename == __file__
    assert bank.stats()["memory_budget_warning"] == str(told[0].message)
    bank.close()


def test_a_program_that_takes_warnings_for_errors_makes_no_bank(limited: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="memory limit"):
            embank.Bank(limited / "bank", memory_budget="65MiB")
    assert not (limited / "bank").exists()
