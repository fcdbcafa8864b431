"""Runs `bench pipeline cluster` on tiny data: it must end, and its answers must be right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import engines
from conftest import left_out

BENCH = Path(__file__).parents[3] / "bench/python"


def test_the_measurement_ends_with_right_answers(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(BENCH / "pipeline/cluster.py"), "--threads", "1", "--json", str(out)],
        env={**os.environ, "EMBANK_SMOKE": str(tmp_path), "PYTHONPATH": str(BENCH / "ground")},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(out.read_text())}
    assert rows["Ray: jobs with right rows"]["passed"]
    assert rows["Ray: jobs with right rows"]["value"] == 2
    if engines.java_version() < engines.JAVA_MIN:
        left_out(engines.NO_JAVA)
    assert rows["Spark: jobs with right rows"]["passed"]
    assert rows["Spark: jobs with right rows"]["value"] == 2
