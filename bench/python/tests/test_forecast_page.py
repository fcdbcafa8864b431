"""`docs/forecast.md` is what `forecast_page.py` makes of `bench/forecast.json`."""

from __future__ import annotations

import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PYTHON / "ground"), str(PYTHON / "training")]
import forecast_page  # noqa: E402


def test_the_page_is_what_the_results_say() -> None:
    found = forecast_page.models()
    assert [model.name for model in found] == ["dlrm", "dlrm-disk"]
    rates = {model.name: forecast_page.rates_of(model) for model in found}
    assert forecast_page.PAGE.read_text() == forecast_page.page(found, rates)
