"""Limits the rate of the loopback by a token bucket, in a network namespace of this program's own.

All messages between processes of the namespace pass one bucket, in both directions. The namespace
ends with its last process, and other programs keep their loopback.
"""

from __future__ import annotations

import os
import subprocess
import sys

ENTERED = "EMBANK_LIMITED_LOOPBACK"
"""An environment variable that is set inside of the namespace."""
MTU = 1500
BURST_BYTES = 96 << 10
"""The bytes that an idle bucket lets pass at once. The kernel hands TCP's bytes to the loopback in
pieces of up to 64 KiB and the headers of their frames. A bucket that holds no whole piece makes the
kernel cut it into frames, which costs eight times the processor time."""
UP = f"ip link set lo mtu {MTU} up"


def limit(bits_per_second: int) -> str:
    """Returns the command that limits the loopback."""
    return f"tc qdisc replace dev lo root tbf rate {bits_per_second}bit burst {BURST_BYTES} latency 2s"


def enter() -> bool:
    """Starts this program again in a network namespace of its own. Returns True there. Returns
    False with a message if the system does not allow one, or lacks `unshare`, `ip` or `tc`.

    Must be called before the program has an effect.
    """
    if os.environ.get(ENTERED):
        return True
    unshare = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c"]
    try:
        run(*unshare, f"{UP} && {limit(10**9)}")
    except (OSError, RuntimeError) as error:
        print(f"skipped: the runs with a limited rate, because no network namespace can be made: {error}")
        return False
    os.environ[ENTERED] = "1"
    sys.stdout.flush()
    os.execvp(unshare[0], [*unshare, f'{UP} && exec "$@"', "sh", sys.executable, *sys.argv])


def set_rate(bits_per_second: int | None) -> None:
    """Limits the loopback of the namespace from now on. None ends the limit."""
    run("sh", "-c", "tc qdisc del dev lo root 2>/dev/null || true")
    if bits_per_second is not None:
        run("sh", "-c", limit(bits_per_second))


def run(*command: str) -> None:
    """Runs a command. Raises RuntimeError with its message if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[-1]}: {done.stderr.strip()}")
