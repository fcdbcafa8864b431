"""Tests `bench training in-memory` on small tables: it makes figures, and it detects a wrong
answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PYTHON / "ground"), str(PYTHON / "training")]
import in_memory  # noqa: E402
import torch  # noqa: E402

ARGUMENTS = ["--rows", "4000", "--rounds", "2", "--quick", "--threads", "1"]


def test_every_case_has_its_figures_and_right_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["in_memory.py", *ARGUMENTS, "--json", str(out)])
    threads = torch.get_num_threads()
    try:
        assert in_memory.main() == 0
    finally:
        torch.set_num_threads(threads)
    rows = json.loads(out.read_text())
    assert len({row["name"] for row in rows}) == len(rows)
    cases = in_memory.cases(options())
    figures = Counter(row["name"].split(":")[0] for row in rows)
    assert set(figures) == {case.name for case in cases} and len(figures) == 8
    assert len(set(figures.values())) == 1
    assert all(row["value"] > 0 for row in rows if row["unit"] in ("keys/s", "x"))
    assert Counter(row["passed"] for row in rows)[True] >= 2 * len(cases)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_step_that_is_left_out_is_found(pooled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in in_memory.cases(options()) if case.pooled == pooled)
    step = in_memory.TorchTable.update
    steps = iter(range(10**9))

    def forgetful(table: in_memory.TorchTable) -> None:
        if next(steps) == in_memory.WARM_UP_STEPS:
            table.optimizer.zero_grad(set_to_none=True)
        else:
            step(table)

    monkeypatch.setattr(in_memory.TorchTable, "update", forgetful)
    rows = in_memory.of_case(case, 2, options(), with_fbgemm=False)
    failed = [row.figure.name for row in rows if row.passed is False]
    assert failed == [f"{case.name}: difference of {in_memory.ADAGRAD} and {in_memory.TORCH}"]


def options() -> argparse.Namespace:
    return in_memory.parser().parse_args(ARGUMENTS)
