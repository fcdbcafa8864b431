"""Runs a small `soak/resumes.py`: random resumes over many kinds of samplers and streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SOAK = Path(__file__).parents[1] / "soak"
sys.path.insert(0, str(SOAK))

import resumes  # noqa: E402
from embank.torch.order import Order  # noqa: E402
from orders import KINDS  # noqa: E402


def run(resumes: int, kinds: list[str]) -> None:
    named = [argument for kind in kinds for argument in ("--kind", kind)]
    done = subprocess.run(
        [sys.executable, "resumes.py", "--seed", "1", "--resumes", str(resumes), *named],
        cwd=SOAK,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_random_resumes_repeat_the_order_or_are_refused() -> None:
    run(200, list(KINDS))


def test_an_order_that_is_not_compared_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shows that the soak finds a planted fault: the resumed pass does not compare its order with
    the saved digest."""
    note = Order.note

    def unchecked(order: Order, drawn: object) -> None:
        order._expected.clear()
        note(order, drawn)

    monkeypatch.setattr(Order, "note", unchecked)
    kind = "sampler by default_rng"
    assert resumes.main(["--seed", "1", "--resumes", "20", "--kind", kind]) == 1
    assert "samples twice" in capsys.readouterr().out


def test_a_wrong_argument_ends_with_2() -> None:
    done = subprocess.run(
        [sys.executable, "resumes.py", "--kind", "no such kind"], cwd=SOAK, capture_output=True
    )
    assert done.returncode == 2
