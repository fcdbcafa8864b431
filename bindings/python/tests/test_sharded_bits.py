"""Tests that ranks over shards train bit for bit as one process that takes their batches in turn.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import ranks  # noqa: E402
import sharded_models as models  # noqa: E402

STEPS = 100


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("model", ["dlrm", "distmult"])
def test_two_ranks_train_as_one_process_that_takes_the_halves_in_turn(
    model: str, optimizer: str, tmp_path: Path
) -> None:
    compare(model, optimizer, 2, tmp_path)


def test_four_ranks_train_as_one_process_that_takes_the_quarters_in_turn(tmp_path: Path) -> None:
    compare("dlrm", "adagrad", 4, tmp_path)


def test_a_missing_division_is_seen(tmp_path: Path) -> None:
    losses, export, reference = both("dlrm", "sgd", 2, 20, tmp_path, gradients="sum")
    assert models.differences(export, reference[1])
    assert losses != reference[0]


def test_two_ranks_train_as_one_process_on_whole_batches(tmp_path: Path) -> None:
    found = ranks.run(2, tmp_path, models.train_on_rank, tmp_path, "dlrm", "sgd", 12)
    (alone,) = ranks.run(1, tmp_path, models.train_in_turn, tmp_path, "dlrm", "sgd", 12, 1, 2)
    for of_ranks, whole in zip(zip(*(losses for losses, _ in found)), alone[0][0]):
        assert sum(of_ranks) / 2 == pytest.approx(whole, abs=1e-4)


def compare(model: str, optimizer: str, count: int, directory: Path) -> None:
    losses, export, reference = both(model, optimizer, count, STEPS, directory)
    assert losses == reference[0]
    assert models.differences(export, reference[1]) == []
    # The test would say nothing if one shard had all rows.
    assert all(len(keys) for keys, _, _ in export.values())


def both(
    model: str, optimizer: str, count: int, steps: int, directory: Path, **options: object
) -> tuple[list[list[float]], models.Export, tuple[list[list[float]], models.Export]]:
    """Returns losses and rows of the ranks, and those of one process."""
    found = ranks.run(
        count, directory, models.train_on_rank, directory, model, optimizer, steps, options
    )
    (alone,) = ranks.run(
        1, directory, models.train_in_turn, directory, model, optimizer, steps, count
    )
    return [losses for losses, _ in found], models.joined([of for _, of in found]), alone
