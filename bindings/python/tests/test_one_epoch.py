"""Runs a small `soak/one_epoch.py`: one epoch made in every way has one digest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from test_serve import command  # noqa: E402

SOAK = Path(__file__).parents[1] / "soak"
sys.path.insert(0, str(SOAK))

import one_epoch  # noqa: E402

SMALL = ["--rows", "700", "--kills", "4", "--resume-every", "7", "--seed", "2"]


@pytest.mark.parametrize("shuffle_rows", ["0", "150"])
def test_an_epoch_that_is_made_in_every_way_has_one_digest(
    shuffle_rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBANK_COMMAND", command())
    code = one_epoch.main([*SMALL, "--shuffle-rows", shuffle_rows])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "all equal" in told


def test_an_epoch_that_differs_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shows that the soak finds a planted fault: the resumed feed loses its first batch."""

    def resumed(self: one_epoch.Epochs, batches: int) -> Iterator[str]:
        whole: list[Any] = self.alone(1)
        del whole[batches : batches + 1]
        yield one_epoch.digest(whole)

    monkeypatch.setattr(one_epoch.Epochs, "resumed", resumed)
    for way in ("killed", "cached"):
        monkeypatch.setattr(one_epoch.Epochs, way, lambda self, *given, **options: [])
    for way in ("served", "from_spool"):
        monkeypatch.setattr(
            one_epoch.Epochs, way, lambda self, *given, **options: one_epoch.digest(self.alone(1))
        )
    assert one_epoch.main(SMALL) == 1
    told = capsys.readouterr().out
    assert "resumed, epoch 1" in told and "served to 1, epoch 1" not in told
