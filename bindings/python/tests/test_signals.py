"""Tests that Ctrl-C ends a call that waits in Rust, and that an exception of a signal handler
comes out of the call.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank


@pytest.fixture
def table(tmp_path: Path) -> Iterator[embank.Table]:
    """A table with rows that another thread's lease blocks, so that a get waits for ten minutes."""
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB", wait_timeout=600.0) as bank:
        table = bank.table("t", dim=2, optimizer=embank.SGD(lr=1.0), staleness_bound=0)
        held: list[Any] = []
        holder = threading.Thread(target=lambda: held.append(table.get(np.arange(4))))
        holder.start()
        holder.join()
        yield table
        held.pop().release()
        assert bank.outstanding_leases() == []
        bank.checkpoint()


def signalled_once_it_waits(table: embank.Table) -> threading.Thread:
    """Sends SIGINT to this process while a get waits for its rows."""

    waits = table.bank.stats()["waits"]

    def send() -> None:
        while table.bank.stats()["waits"] == waits:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    return sender


def test_ctrl_c_ends_a_wait(table: embank.Table) -> None:
    """Shows that Ctrl-C ends a waiting get at once. In earlier versions it waited for the bank's
    `wait_timeout`."""
    for keys in (np.array([1]), np.arange(100)):
        sender = signalled_once_it_waits(table)
        with pytest.raises(KeyboardInterrupt):
            table.get(keys)
        sender.join()
    assert not table.contains([50]) or table.outstanding(50) == 0, "an ended wait holds nothing"


def test_get_many_is_ended_too(table: embank.Table) -> None:
    sender = signalled_once_it_waits(table)
    with pytest.raises(KeyboardInterrupt):
        embank.get_many([(table, np.array([1]))])
    sender.join()


def test_what_a_handler_raises_comes_out(table: embank.Table) -> None:
    def handler(number: int, frame: Any) -> None:
        raise InterruptedError(f"signal {number}")

    before = signal.signal(signal.SIGINT, handler)
    try:
        sender = signalled_once_it_waits(table)
        with pytest.raises(InterruptedError, match="signal 2"):
            table.get([1])
        sender.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_that_returns_ends_no_wait(table: embank.Table) -> None:
    seen = threading.Event()
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.set())
    try:
        sender = signalled_once_it_waits(table)

        def unblock() -> None:
            seen.wait()
            table.staleness_bound = None

        unblocker = threading.Thread(target=unblock)
        unblocker.start()
        table.get([1]).release()
        sender.join()
        unblocker.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_that_waits_as_the_process_ends_does_no_harm(tmp_path: Path) -> None:
    program = f"""
import embank, threading
bank = embank.Bank({str(tmp_path / "bank")!r}, memory_budget="16MiB", wait_timeout=600.0)
table = bank.table("t", dim=2, optimizer=embank.SGD(lr=1.0), staleness_bound=0)
lease = table.get([1])
waits = bank.stats()["waits"]
threading.Thread(target=lambda: table.get([1]), daemon=True).start()
while bank.stats()["waits"] == waits:
    pass
print("over")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr
