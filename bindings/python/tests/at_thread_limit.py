"""The process that test_thread_limit.py starts. The system refuses to start another thread for it.

It prints "passed", or "no other user". The superuser has no limit of threads, so the process
becomes another user first.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, modulus, vocabulary

ROWS = 40_000
"""Several times what fits into the budget."""


def become_another_user() -> bool:
    """Returns False if the system does not let the superuser become another user."""
    if os.geteuid() == 0:
        # The new user has no other process on this machine, so only this process's threads count
        # towards the limit.
        user = 100_000 + os.getpid()
        try:
            os.setresuid(user, user, user)
        except PermissionError:
            return False
    return True


def allow_threads(more: int | None) -> None:
    """Sets the limit of threads to their present number plus `more`, but not above the system's
    limit."""
    now = len(os.listdir("/proc/self/task"))
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard if more is None else now + more, hard))


def threads_named(begin: str) -> int:
    count = 0
    for name in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # The thread has ended since it was listed.
            count += name.read_text().startswith(begin)
    return count


def await_no_thread_named(begin: str) -> None:
    """Waits until no thread has this name. The system may list a thread for a moment after its
    join."""
    deadline = time.monotonic() + 60
    while threads_named(begin) > 0:
        assert time.monotonic() < deadline, begin
        time.sleep(0.001)


def check_refused(text: str, *parts: str) -> None:
    for part in (*parts, "pids", "ulimit -u"):
        assert part in text, (part, text)


def main(folder: Path, is_alone: bool) -> None:
    bank = embank.Bank(folder / "open", memory_budget="1MiB", device="threads")
    table = bank.table("item", dim=16)
    keys = np.arange(ROWS, dtype=np.uint64)
    rows = np.repeat(keys.astype(np.float32), 16).reshape(ROWS, 16)
    for at in range(0, ROWS, 1000):
        table.put(keys[at : at + 1000], rows[at : at + 1000])
    bank.close(checkpoint=b"")
    await_no_thread_named("embank-")
    bank = embank.Bank(folder / "open", memory_budget="1MiB", device="threads")
    table = bank.open_table("item")
    spec = Spec(
        fields=[Field("site", "int32", required=True)],
        columns=[Column("site", modulus(100), vocabulary("site"))],
        outputs=[Output("ids", ["site"], "i64")],
    )
    pipeline = Pipeline(spec, threads=4, chunk_bytes=64)
    lines = b"".join(b"%d\n" % (number % 50) for number in range(10_000))

    allow_threads(0)
    # An open bank that can't start threads reads with the calling thread.
    assert (table.peek(keys[::7]) == rows[::7]).all()
    assert threads_named("embank-read-") == 0
    try:
        embank.Bank(folder / "new" / "bank")
        raise AssertionError("there was a thread")
    except embank.StoreIOError as error:
        check_refused(str(error), "writer thread", f'"{folder / "new" / "bank"}"')
    assert not (folder / "new").exists()
    try:
        table.lookahead(keys[:1000])
        raise AssertionError("there was a thread")
    except embank.StoreIOError as error:
        check_refused(str(error), "lookahead thread", "open")
    try:
        pipeline.run(lines)
        raise AssertionError("there was a thread")
    except OSError as error:
        check_refused(str(error), "thread of the run")

    if is_alone:
        # The user has no other process, so the limit leaves exactly one thread: for the run, not
        # for its workers.
        allow_threads(1)
        assert pipeline.run(lines).rows == 10_000
    allow_threads(None)
    assert pipeline.run(lines).rows == 10_000
    table.lookahead(keys[:1000])
    embank.Bank(folder / "new" / "bank").close()
    bank.close()


if __name__ == "__main__":
    is_alone = os.geteuid() == 0
    if become_another_user():
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary), is_alone)
        print("passed")
    else:
        print("no other user")
