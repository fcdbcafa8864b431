"""Tests that `bench training rank-kills` knows the newest complete set, and finds shards that were
opened at another one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PYTHON / "ground"), str(PYTHON / "training")]
import rank_kills  # noqa: E402

SET = ["take begins", "take ends", "commit begins", "commit ends"]


def started(run: rank_kills.Run, *of_ranks: list[str]) -> None:
    """Follows a start in which the ranks have written these lines."""
    run.diary.mkdir(exist_ok=True)
    for rank, lines in enumerate(of_ranks):
        (run.diary / f"calls-{rank}").write_text("".join(f"{line}\n" for line in lines))
    run.follow_sets()


@pytest.mark.parametrize(
    ("later", "newest"),
    [
        ([[], []], [1]),
        ([["take begins"], ["take begins", "take ends"]], [1]),
        ([SET[:3], SET[:2]], [1, 2]),
        ([SET, SET[:3]], [2]),
        ([[*SET, *SET[:3]], SET], [2, 3]),
    ],
)
def test_the_newest_set_is_known(later: list[list[str]], newest: list[int], tmp_path: Path) -> None:
    run = rank_kills.Run(tmp_path, "run", ranks=2)
    # Set 0 is that of a new fleet.
    started(run, *(["opened -1", *SET, *SET, *more] for more in later))
    assert run.right and list(run.newest) == newest
    for opened in range(4):
        again = rank_kills.Run(tmp_path, "run", ranks=2)
        again.newest = run.newest
        started(again, *[[f"opened {opened}"]] * 2)
        assert again.right == (opened in newest)
        # A start that opened at a set is killed before it took another one.
        started(again, *[[f"opened {opened}"]] * 2)
        assert list(again.newest) == [opened]


def test_shards_at_different_sets_are_found(tmp_path: Path) -> None:
    run = rank_kills.Run(tmp_path, "run", ranks=2)
    started(run, *[["opened -1", *SET, *SET[:3]]] * 2)
    assert run.right and list(run.newest) == [0, 1]
    started(run, ["opened 1"], ["opened 0"])
    assert not run.right
