"""One rank of `examples/dlrm/distributed.py` under torchrun. `rank_kills.py` plans its kill.

`doomed_rank.py DIARY DOOM ARGUMENTS` runs the example with the arguments. DOOM is a `Doom` as JSON,
or `{}`. In the folder DIARY each rank writes the number of its process, and what it has reached at
the end. It also writes lines: when a call of a *phase* begins and ends, the set at which its shard
was opened (-1 if there was none), and "killed" before a kill.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "examples" / name) for name in ("dlrm", "common")]

import auc  # noqa: E402  (sets how threads of OpenMP wait, before torch)
import torch  # noqa: E402

import embank._embank  # noqa: E402
from embank.torch.distributed import ShardedBank, opening  # noqa: E402

EXAMPLE = REPOSITORY / "examples" / "dlrm" / "distributed.py"


@dataclass(frozen=True)
class Doom:
    """Kills `delay` seconds after call `call` of a phase on rank `rank` begins, counted from 0. If
    `all` is true, it kills torchrun and all ranks, and otherwise only this rank."""

    phase: str
    call: int
    delay: float
    rank: int
    all: bool


class Rank:
    """What this process writes in the diary, and its doom."""

    def __init__(self, diary: Path, doom: Optional[Doom]) -> None:
        self.number = int(os.environ["RANK"])
        self.diary = diary
        self.doom = doom if doom is not None and doom.rank == self.number else None
        self.calls: Counter[str] = Counter()
        # The lines are whole after a kill, because each is one write.
        self.lines = os.open(
            diary / f"calls-{self.number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )
        self.torchrun = os.getppid()
        self.save("process", [os.getpid(), self.torchrun])

    def save(self, name: str, content: object) -> None:
        path = self.diary / f"{name}-{self.number}"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content))
        partial.replace(path)

    def write(self, *words: object) -> None:
        os.write(self.lines, (" ".join(map(str, words)) + "\n").encode())

    def phase(self, name: str, call: Callable[[], Any]) -> Any:
        """Makes a call of a phase. Its doom may come in the call or after it."""
        self.write(name, "begins")
        doom = self.doom
        if doom is not None and (name, self.calls[name]) == (doom.phase, doom.call):
            threading.Timer(doom.delay, self.kill, [doom]).start()
        self.calls[name] += 1
        result = call()
        self.write(name, "ends")
        return result

    def kill(self, doom: Doom) -> None:
        self.write("killed")
        if doom.all:
            others = [json.loads(path.read_text())[0] for path in self.diary.glob("process-*")]
            # If torchrun did not end first, it would end the other ranks in its own way. A rank
            # that has outlived torchrun has another parent.
            if os.getppid() == self.torchrun:
                os.kill(self.torchrun, signal.SIGKILL)
            for process in others:
                if process != os.getpid():
                    os.kill(process, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def watch(rank: Rank) -> None:
    """Replaces functions whose calls are phases, and the one that makes the outcome."""

    class Shard:
        """A shard whose steps of the set protocol are phases."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.shard_itself = embank._embank.Shard(*arguments, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.shard_itself, name)

        def settle(self, *arguments: Any) -> None:
            rank.phase("settle", lambda: self.shard_itself.settle(*arguments))
            found = self.shard_itself.recovered
            rank.write("opened", -1 if found is None else found.number)

        def take(self) -> Any:
            return rank.phase("take", self.shard_itself.take)

        def commit(self, *arguments: Any) -> Any:
            return rank.phase("commit", lambda: self.shard_itself.commit(*arguments))

    def of_phase(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            return rank.phase(name, lambda: method(*arguments, **options))

        return called

    def with_outcome(labels: Any, scores: Any) -> float:
        value = area(labels, scores)
        digest = hashlib.sha256(labels.tobytes() + scores.tobytes()).hexdigest()
        rank.save("outcome", {"auc": value.hex(), "scores": digest, "calls": rank.calls})
        return value

    area = auc.auc
    auc.auc = with_outcome
    opening.Shard = Shard  # type: ignore[misc, assignment]
    torch.optim.Adam.step = of_phase("step", torch.optim.Adam.step)  # type: ignore[method-assign]
    peek_many = of_phase("evaluate", ShardedBank.peek_many)
    ShardedBank.peek_many = peek_many  # type: ignore[method-assign]


def main() -> None:
    diary, doom = Path(sys.argv[1]), json.loads(sys.argv[2])
    watch(Rank(diary, Doom(**doom) if doom else None))
    sys.argv = [str(EXAMPLE), *sys.argv[3:]]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


if __name__ == "__main__":
    main()
