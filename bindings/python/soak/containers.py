"""Trains small banks under the restrictions of containers, and prints a result for each
restriction.

Each line is a process under one restriction. It must train and return every row, or end with a
clear error before training begins. The script needs root, control groups and mount namespaces. It
leaves out restrictions that it can't set up.

    python bindings/python/soak/containers.py
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Optional

ROWS = 60_000
DIM = 16
STEPS = 120
BATCH = 1_000
NOBODY = 65_534

# --------------------------------------------------------------------------------------------------
# The child: trains, checkpoints, and reads every row back.


def train(directory: str, budget: Optional[str], ballast: Optional[str]) -> None:
    """Trains a bank in `directory`. Halfway, the file `ballast` fills the disk and is then
    removed."""
    import numpy as np

    import embank

    options = {} if budget is None else {"memory_budget": budget}
    expected = np.zeros(ROWS, np.float64)
    refused = 0
    with embank.Bank(directory, **options) as bank:
        stats = bank.stats()
        threads = len(os.listdir("/proc/self/task"))
        print(f"device {stats['device']}, {stats['memory']['budget_bytes'] >> 20} MiB, {threads} threads", end="; ")
        table = bank.table("rows", dim=DIM, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros())
        random = np.random.default_rng(1)
        for step in range(STEPS):
            if ballast is not None and step == STEPS // 3:
                fill(ballast)
            if ballast is not None and step == 2 * STEPS // 3:
                os.remove(ballast)
            keys = random.integers(0, ROWS, BATCH).astype(np.uint64)
            try:
                lease = table.get(keys)
            except embank.DiskFull:
                refused += 1
                continue
            lease.apply(np.full((BATCH, DIM), -1, np.float32))
            np.add.at(expected, keys.astype(np.int64), 1)
            if step % 10 == 9:
                try:
                    bank.checkpoint()
                except embank.DiskFull:
                    refused += 1
        bank.checkpoint()
        check(table, expected)
        checkpoints = len(os.listdir(Path(directory) / "checkpoints"))
        threads = len(os.listdir("/proc/self/task"))
        print(f"{threads} threads at the end, {checkpoints} entries of checkpoints", end="; ")
    with embank.Bank(directory, **options) as bank:
        check(bank.open_table("rows"), expected)
    print(f"{refused} calls met a full disk; every row is right" if ballast else "every row is right")


def check(table, expected) -> None:
    """Checks that each row equals the number of its gradients."""
    import numpy as np

    keys = np.flatnonzero(expected).astype(np.uint64)
    for part in np.array_split(keys, 20):
        rows = table.peek(part, missing="error")
        assert (rows == expected[part.astype(np.int64)][:, None]).all(), "a row is wrong"


def fill(path: str) -> None:
    """Writes a file until the disk is full."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"\1" * size)
            except OSError:
                pass


# --------------------------------------------------------------------------------------------------
# Restrictions: each is applied in the child before it trains.


def deny_io_uring() -> None:
    """Installs a seccomp filter that makes io_uring_setup fail with EPERM, as Docker's default
    filter does."""
    setup, allow, refuse = 425, 0x7FFF0000, 0x00050000 | 1

    def instruction(code: int, true: int, false: int, value: int) -> bytes:
        return struct.pack("HBBI", code, true, false, value)

    program = instruction(0x20, 0, 0, 0) + instruction(0x15, 0, 1, setup)
    program += instruction(0x06, 0, 0, refuse) + instruction(0x06, 0, 0, allow)
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def join_group(controller: str, **limits: str) -> Callable[[], None]:
    """Joins a new control group of version 1 with these limits."""
    group = Path("/sys/fs/cgroup") / controller / f"embank-trial-{os.getpid()}"
    group.mkdir(exist_ok=True)
    for name, value in limits.items():
        (group / name.replace("__", ".")).write_text(value)

    def join() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    return join


def limit(which: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(which, (most, most))


def close_standard_streams() -> None:
    """Closes the standard streams. The report is written to another descriptor."""
    os.dup2(1, 9)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    sys.stdout = os.fdopen(9, "w")


def become_nobody() -> None:
    # Imports these first: the user `nobody` may have no access to the folder of the packages.
    import datetime  # noqa: F401

    import numpy as np  # noqa: F401

    import embank  # noqa: F401

    os.setgid(NOBODY)
    os.setuid(NOBODY)


def mount(kind: str, at: str, options: str) -> None:
    subprocess.run(["mount", "-t", kind, "-o", options, "none", at], check=True)


RESTRICTIONS: dict[str, Callable[[], None]] = {
    "deny-io-uring": deny_io_uring,
    "no-standard-streams": close_standard_streams,
    "nobody": become_nobody,
    "nofile-64": limit(resource.RLIMIT_NOFILE, 64),
    "address-space": limit(resource.RLIMIT_AS, 3 << 30),
    "address-space-tight": limit(resource.RLIMIT_AS, 512 << 20),
}

# --------------------------------------------------------------------------------------------------
# The trial.


def run(title: str, directory: Path, restrictions: list[str], **options: Optional[str]) -> bool:
    """Trains in a process with these restrictions. Returns True if it trained, or failed at once
    with a clear error."""
    command = [sys.executable, __file__, "--train", str(directory), "--restrict", ",".join(restrictions)]
    for name, value in options.items():
        command += [] if value is None else [f"--{name}", value]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
    known = ("BudgetTooSmall", "StoreIOError", "OSError", "MemoryError", "embank.errors", "ImportError")
    clear = done.returncode == 0 or lines[-1].startswith(known) and "threads at the end" not in done.stdout
    print(f"{'ok  ' if clear else 'FAIL'} {title}: {lines[-1][:400]} ({time.monotonic() - began:.1f} s)", flush=True)
    if not clear:
        print("\n".join(lines[-30:]))
    return clear


def trial() -> int:
    failures = 0
    own_namespace = ["unshare", "-m", sys.executable, __file__]
    if os.environ.get("EMBANK_TRIAL") is None:
        return subprocess.run(own_namespace, env={**os.environ, "EMBANK_TRIAL": "1"}).returncode
    base = Path(tempfile.mkdtemp(prefix="embank-trial-"))
    base.chmod(0o777)

    def go(title: str, restrictions: list[str], directory: Optional[Path] = None, **options) -> None:
        nonlocal failures
        directory = directory or base / title.replace(" ", "-").replace(",", "")
        failures += not run(title, directory, restrictions, **options)

    try:
        go("no restriction", [])
        go("io_uring denied", ["deny-io-uring"])
        go("pids limit 32", ["pids"])
        go("pids limit 32, io_uring denied", ["pids", "deny-io-uring"])
        go("memory limit 200 MB", ["memory"])
        go("ulimit -n 64", ["nofile-64"])
        go("ulimit -v 3 GiB", ["address-space"])
        go("ulimit -v 512 MiB", ["address-space-tight"])
        go("descriptors 0 to 2 closed", ["no-standard-streams"], budget="8MiB")
        go("all of these", ["pids", "memory", "nofile-64", "address-space", "deny-io-uring", "no-standard-streams"])
        small = base / "tmpfs"
        small.mkdir()
        mount("tmpfs", str(small), "size=64m")
        go("tmpfs", [], small / "bank", budget="4MiB")
        shutil.rmtree(small / "bank", ignore_errors=True)
        go("tmpfs, descriptors 0 to 2 closed", ["no-standard-streams"], small / "bank", budget="4MiB")
        shutil.rmtree(small / "bank", ignore_errors=True)
        go("full disk where room comes back", [], small / "bank", budget="4MiB", ballast=str(small / "ballast"))

        lower, upper, work, merged = (base / name for name in ("lower", "upper", "work", "merged"))
        for folder in (lower, upper, work, merged):
            folder.mkdir()
        go("a bank for the lower layer", [], lower / "bank", budget="8MiB")
        mount("overlay", str(merged), f"lowerdir={lower},upperdir={upper},workdir={work}")
        go("overlay over that bank", [], merged / "bank", budget="8MiB", again="1")

        other = base / "other"
        other.mkdir()
        go("a bank of root", [], other / "bank", budget="8MiB")
        for path in [other, *other.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        oldest = min((other / "bank" / "checkpoints").iterdir())
        for path in [oldest, *oldest.rglob("*")]:
            os.chown(path, 0, 0)
        go("another user's old checkpoint", ["nobody"], other / "bank", budget="8MiB", again="1")
    finally:
        for at in ("tmpfs", "merged"):
            subprocess.run(["umount", str(base / at)], capture_output=True)
        shutil.rmtree(base, ignore_errors=True)
        for controller in ("pids", "memory"):
            group = Path("/sys/fs/cgroup") / controller / f"embank-trial-{os.getpid()}"
            if group.exists():
                group.rmdir()
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", help="a child: where its bank lies")
    parser.add_argument("--restrict", default="", help="a child: its restrictions")
    parser.add_argument("--budget", help="a child: its memory budget; the default one if absent")
    parser.add_argument("--ballast", help="a child: the file that fills the disk")
    parser.add_argument("--again", help="a child: the bank has been trained before")
    args = parser.parse_args()
    if args.train is None:
        return trial()
    for name in filter(None, args.restrict.split(",")):
        if name == "pids":
            join_group("pids", pids__max="32")()
        elif name == "memory":
            join_group("memory", memory__limit_in_bytes=str(200 << 20))()
        else:
            RESTRICTIONS[name]()
    if args.again:
        again(args.train, args.budget)
    else:
        train(args.train, args.budget, args.ballast)
    sys.stdout.flush()
    return 0


def again(directory: str, budget: Optional[str]) -> None:
    """Opens an existing bank and trains it further. Checkpoints are made and removed, and files
    that can't be removed are reported."""
    import numpy as np

    import embank

    with embank.Bank(directory, memory_budget=budget or "8MiB", create=False) as bank:
        table = bank.open_table("rows")
        keys = np.arange(1_000, dtype=np.uint64)
        before = table.peek(keys, missing="initial")
        for _ in range(24):
            table.get(keys).apply(np.full((1_000, DIM), -1, np.float32))
            bank.checkpoint()
        assert (table.peek(keys, missing="error") == before + 24).all(), "a row is wrong"
        left = bank.stats()["not_removed"]
        listed = [name for name in os.listdir(Path(directory) / "checkpoints") if name.isdigit()]
    with embank.Bank(directory, memory_budget=budget or "8MiB", create=False) as bank:
        assert (bank.open_table("rows").peek(keys, missing="error") == before + 24).all(), "a row is wrong"
    print(f"24 checkpoints; {len(listed)} directories of checkpoints, {len(left)} lines of what stays; rows are right")


if __name__ == "__main__":
    sys.exit(main())
