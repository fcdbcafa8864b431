"""Runs of several ranks on this machine, for the measurements `distributed` and `forecast`."""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from statistics import fmean
from typing import Any

import measure
from distributed_rank import Outcome, Place, Training, Turn, serve
from speed import WARM_UP_SHARE

DISTURBED_SHARE_MAX = 0.05
RANKS = 2
CONTEXT = multiprocessing.get_context("spawn")


class Run:
    """Ranks that train together, each in a process whose threads all run on one core."""

    def __init__(
        self, name: str, given: argparse.Namespace, cores: Sequence[int], place: Place,
        training_of: type[Training] = Training,
    ) -> None:
        self.ranks, self.rows = len(cores), place.rows * len(cores)
        self.turns: list[list[Turn]] = []
        """For each turn the answers of all ranks."""
        shutil.rmtree(place.folder, ignore_errors=True)
        place.folder.parent.mkdir(parents=True, exist_ok=True)
        place.meeting.unlink(missing_ok=True)
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        for rank, core in enumerate(cores):
            pipe, others_end = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=serve, daemon=True,
                args=(others_end, given, name, replace(place, rank=rank), training_of),
            )
            with on_core(core):
                process.start()
            others_end.close()
            self._ranks.append((process, pipe))
        self._answers()

    def again(self) -> Run:
        """Returns a run of the same ranks, with turns of its own."""
        other = copy.copy(self)
        other.turns = []
        return other

    def take(self, steps: int) -> None:
        """Trains for some steps."""
        self.turns.append(self._asked(steps))

    def end(self) -> list[Outcome]:
        """Ends the processes, and returns the counts of all ranks."""
        outcomes: list[Outcome] = self._asked(0)
        for process, _ in self._ranks:
            process.join()
        return outcomes

    def _asked(self, steps: int) -> list[Any]:
        for _, pipe in self._ranks:
            pipe.send(steps)
        return self._answers()

    def _answers(self) -> list[Any]:
        """Returns the answers of all ranks. Ends this program after an error of one rank; the other
        ranks end with it."""
        answers: dict[Connection, Any] = {}
        while waiting := [pipe for _, pipe in self._ranks if pipe not in answers]:
            for pipe in wait(waiting):
                assert isinstance(pipe, Connection)
                try:
                    answers[pipe] = pipe.recv()
                except EOFError:
                    raise SystemExit("a rank has ended without an answer") from None
                if isinstance(answers[pipe], str):
                    raise SystemExit(f"a rank has failed: {answers[pipe]}")
        return [answers[pipe] for _, pipe in self._ranks]

    @property
    def first_losses(self) -> list[float]:
        """The mean of all ranks of the losses in the first steps."""
        return [fmean(losses) for losses in zip(*(turn.losses for turn in self.turns[0]))]

    def step_seconds(self) -> list[float]:
        """The seconds of a step in each turn. The slowest rank counts."""
        return [max(one.seconds / len(one.losses) for one in turn) for turn in self.steady()]

    def computed_seconds(self) -> list[float]:
        """The processor time of a step in each turn: the mean of all ranks."""
        return [fmean(one.computed / len(one.losses) for one in turn) for turn in self.steady()]

    def disturbed_share(self) -> list[float]:
        """The share of each turn that a rank waited for its core because of other programs. The
        rank with the larger share counts."""
        return [max(one.disturbed / one.seconds for one in turn) for turn in self.steady()]

    def part_seconds(self, name: str) -> list[float]:
        """The seconds of a part of a step in each turn: the mean of all ranks."""
        return [fmean(one.parts[name] / len(one.losses) for one in turn) for turn in self.steady()]

    def steady(self) -> list[list[Turn]]:
        """All turns but the first steps and the first fifth of the rest."""
        turns = self.turns[1:]
        return turns[int(len(turns) * WARM_UP_SHARE) :]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Lets processes that the block starts run on one core only, with all of their threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def two_cores() -> list[int]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < RANKS and measure.SMOKE is None:
        raise SystemExit(f"this measurement needs {RANKS} cores, and this process has {len(cores)}")
    return (cores * RANKS)[:RANKS]
