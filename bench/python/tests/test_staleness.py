"""Tests the trainers of `bench training staleness` on a table of a few rows: rows are as stale as
the bound and the pipeline allow, and no update is lost."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PYTHON = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PYTHON / "ground"), str(PYTHON / "training")]
import staleness  # noqa: E402
import torch  # noqa: E402
from staleness_tasks import Task  # noqa: E402

import embank  # noqa: E402

STEPS, AHEAD = 30, 5


class Sums(Task):
    """Adds 1 to row 0 and to a row of its own in each batch, by SGD."""

    def open(self, bank: embank.Bank, bound: int | None, seed: int) -> None:
        self.table = bank.table("sum", dim=1, optimizer=embank.SGD(lr=1.0), staleness_bound=bound,
                                initializer=embank.Constant(0.0))

    def batches(self, seed: int) -> Iterator[Any]:
        return iter(range(1, 1 + STEPS))

    def keys(self, batch: Any) -> list[tuple[Any, Any]]:
        return [(self.table, torch.tensor([0, batch, 0]).numpy())]

    def learn(self, batch: Any, parts: list[torch.Tensor], places: list[torch.Tensor]) -> None:
        assert places[0][0] == places[0][2] != places[0][1]
        parts[0].sum().neg().backward()  # type: ignore[no-untyped-call]


class FullQueue(queue.Queue[Any]):
    """Gives a batch only when it is full, or holds the end."""

    def get(self, *given: Any, **more: Any) -> Any:
        with self.not_empty:
            self.not_empty.wait_for(
                lambda: self._qsize() == self.maxsize or (self.queue and self.queue[-1] is None)
            )
        return super().get(*given, **more)


def trained(folder: Path, bound: int | None, trainers: int) -> list[staleness.Trainer]:
    """Trains on a new bank, and checks that it has every update."""
    task = Sums()
    with embank.Bank(folder / "bank", memory_budget="4MiB") as bank:
        task.open(bank, bound, seed=0)
        work = staleness.train(task, staleness.Batches(task.batches(0), STEPS), trainers, AHEAD)
        sums = task.table.peek(torch.arange(1 + STEPS).numpy())
        assert sums[:, 0].tolist() == [STEPS, *([1] * STEPS)]
    assert sum(len(one.staleness) for one in work) == STEPS
    return work


@pytest.mark.parametrize(("bound", "trainers"), [(0, 1), (2, 1), (0, 2)])
def test_no_batch_is_staler_than_the_bound(tmp_path: Path, bound: int, trainers: int) -> None:
    stale = [one for trainer in trained(tmp_path, bound, trainers) for one in trainer.staleness]
    assert max(stale) <= bound


def test_several_trainers_lose_no_update_at_a_bound(tmp_path: Path) -> None:
    # One trainer's batch may be staler than the bound here: while it computes, the other trainer
    # gets and applies more than one batch.
    trained(tmp_path, bound=2, trainers=2)


def test_without_a_bound_rows_are_as_stale_as_the_pipeline_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "Queue", FullQueue)
    (trainer,) = trained(tmp_path, None, trainers=1)
    assert all(stale >= AHEAD - 1 for stale in trainer.staleness[AHEAD : STEPS - AHEAD])


def test_a_failed_batch_ends_both_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise FloatingPointError("diverged")

    monkeypatch.setattr(Sums, "learn", fail)
    with pytest.raises(FloatingPointError, match="diverged"):
        trained(tmp_path, 0, trainers=2)


def test_a_failed_batch_releases_the_rows_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: the thread that gets rows waited for the rows of a batch that no thread
    would train, until its call timed out. The batch here fails once the next one is in the
    queue."""

    def fail(trainer: staleness.Trainer, leased: staleness.Leased) -> None:
        for lease in leased.leases:
            lease.release()
        trainer.ready.put(trainer.ready.get())
        raise FloatingPointError("diverged")

    monkeypatch.setattr(staleness.Trainer, "learn", fail)
    with pytest.raises(FloatingPointError, match="diverged"):
        trained(tmp_path, 0, trainers=1)
