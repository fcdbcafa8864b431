"""Measures training: a `Sample` of what each interval did and used, and the time without rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

import embank

HITS = ("mutable", "read_only", "disk", "missing")
LOOKAHEAD = ("on_time", "late", "wasted", "dropped")


@dataclass(frozen=True)
class Sample:
    """One interval of training. `step` and `samples` count from the beginning of the run;
    `seconds`, the time spent on training, `row_seconds`, the part of it that waited for rows
    (`RowTimer`), and all other counts are of this interval.

    `resident_bytes` is the memory of the process at the end of the interval, and `used_bytes` that
    of the store.
    """

    step: int
    samples: int
    seconds: float
    row_seconds: float
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


class RowTimer:
    """Adds up the seconds in which training waits for its rows.

    Times the forward passes of `modules`, the modules that give a model its rows. The time of a
    pass has everything until the rows are in a tensor: finding them, reading the disk, waiting at a
    staleness bound, and copying them. If the bags of a module are pooled, it has the pooling too.
    Updates are part of the backward pass and do not count. Evaluation does not count: the model is
    not in training mode then. Modules in memory are timed in the same way.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._seconds, self._begun = 0.0, 0.0
        for module in modules:
            module.register_forward_pre_hook(self._begin)
            module.register_forward_hook(self._end)

    def _begin(self, module: nn.Module, _: Any) -> None:
        self._begun = time.perf_counter()

    def _end(self, module: nn.Module, _: Any, __: Any) -> None:
        if module.training:
            self._seconds += time.perf_counter() - self._begun

    def take(self) -> float:
        """Returns the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class Meter:
    """Reads a bank's counters and reports their increase since the last sample."""

    def __init__(self, bank: embank.Bank | None, row_timer: RowTimer) -> None:
        self.bank, self.row_timer = bank, row_timer
        self.before = self.counters()
        row_timer.take()

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
        row_seconds, resident = self.row_timer.take(), resident_bytes()
        if self.bank is None:
            return Sample(step, samples, seconds, row_seconds, loss, resident)
        now = self.counters()
        grown = {
            group: {name: count - self.before[group][name] for name, count in counts.items()}
            for group, counts in now.items()
        }
        self.before = now
        memory = self.bank.stats()["memory"]
        return Sample(
            step, samples, seconds, row_seconds, loss, resident,
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
