"""Tests the first call of a process on each way in: an interrupt there is no other exception."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# `interrupt` stands for Ctrl-C: it raises at the first Python function that the call enters.
PROGRAM = """
import sys
import numpy as np
import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, fill_missing

bank = embank.Bank(sys.argv[1], memory_budget="16MiB")
table = bank.table("t", dim=2, optimizer=embank.SGD(lr=1.0))
spec = Spec([Field("a", "int64")], [Column("a", fill_missing(0))], [Output("a", ["a"], "i64")])
keys = np.array([1])

def interrupt(*_):
    sys.settrace(None)
    raise KeyboardInterrupt

sys.settrace(interrupt)
try:
    {call}
except KeyboardInterrupt:
    pass
sys.settrace(None)
{call}
"""

CALLS = [
    "table.put([1], [[1.0, 1.0]])",
    "table.put(keys, [[1.0, 1.0]])",
    "table.peek([1], missing='initial')",
    "table.get(keys).release()",
    "table.delete([1])",
    "table.peek_bags([1], [0, 1])",
    "bank.vocabulary('v').ids([5])",
    "next(Pipeline(spec).feed(b'1\\n'))",
]


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_in_the_first_call_is_a_keyboard_interrupt(call: str, tmp_path: Path) -> None:
    """NumPy's functions were loaded in the first call, and an interrupt there was a panic."""
    program = PROGRAM.replace("{call}", call)
    arguments = [sys.executable, "-c", program, tmp_path / "bank"]
    ran = subprocess.run(arguments, capture_output=True, text=True)
    assert ran.returncode == 0 and "Panic" not in ran.stderr, ran.stderr
