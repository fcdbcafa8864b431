"""Makes a `Sample` of each interval of training: what the run did and used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import embank

HITS = ("mutable", "read_only", "disk", "missing")
LOOKAHEAD = ("on_time", "late", "wasted", "dropped")


@dataclass(frozen=True)
class Sample:
    """One interval of training. `step` and `samples` count from the beginning of the run;
    `seconds`, the time spent on training, and all other counts are of this interval.

    `resident_bytes` is the memory of the process at the end of the interval, and `used_bytes` that
    of the store.
    """

    step: int
    samples: int
    seconds: float
    loss: float
    resident_bytes: int
    budget_bytes: int = 0
    used_bytes: int = 0
    hits: dict[str, int] | None = None
    lookahead: dict[str, int] | None = None
    disk_reads: int = 0

    def plain(self) -> dict[str, object]:
        """Returns only numbers and dicts, for a checkpoint or JSON."""
        return asdict(self)


class Meter:
    """Reads a bank's counters and reports their increase since the last sample."""

    def __init__(self, bank: embank.Bank | None) -> None:
        self.bank = bank
        self.before = self.counters()

    def counters(self) -> dict[str, dict[str, int]]:
        if self.bank is None:
            return {}
        stats: Any = self.bank.stats()
        return {
            "hits": {name: stats["hits"][name] for name in HITS},
            "lookahead": {name: stats["lookahead"][name] for name in LOOKAHEAD},
            "disk": {"reads": stats["disk"]["reads"]},
        }

    def sample(self, step: int, samples: int, seconds: float, loss: float) -> Sample:
        """Closes an interval and opens the next one."""
        resident = resident_bytes()
        if self.bank is None:
            return Sample(step, samples, seconds, loss, resident)
        now = self.counters()
        grown = {
            group: {name: count - self.before[group][name] for name, count in counts.items()}
            for group, counts in now.items()
        }
        self.before = now
        memory = self.bank.stats()["memory"]
        return Sample(
            step, samples, seconds, loss, resident,
            budget_bytes=memory["budget_bytes"], used_bytes=memory["used_bytes"],
            hits=grown["hits"], lookahead=grown["lookahead"], disk_reads=grown["disk"]["reads"],
        )


def resident_bytes() -> int:
    """Returns the bytes of this process that no file backs: RssAnon and RssShmem of Linux.

    The click data are mapped files. They do not count, because the kernel can drop their pages.
    Returns 0 on a system without /proc.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    wanted = ("RssAnon:", "RssShmem:")
    lines = [line.split() for line in status.read_text().splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line and line[0] in wanted)
