"""Fixtures of the tests on Ray and Spark. They run in `target/venv-cluster`."""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The files and specs that these tests share with those without an engine.
TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

JAVA_MIN = 17
# An engine that waits for ever must not hold up the tests.
faulthandler.dump_traceback_later(900, exit=True)


def left_out(why: str) -> None:
    """Skips the test. In continuous integration, fails."""
    if os.environ.get("CI"):
        pytest.fail(f"{why}, and CI is set")
    pytest.skip(why)


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    # No reports to Ray's makers, and no worker that is killed because the machine is full.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    # A cluster of its own, also if the machine has another.
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


def java_version() -> int:
    """The major version of the Java that Spark would start. 0 if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin/java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return 0
    told = subprocess.run([java, "-version"], capture_output=True, text=True)
    found = re.search(r'version "(\d+)', told.stderr)
    return int(found.group(1)) if found else 0


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if java_version() < JAVA_MIN:
        left_out(f"Spark needs Java {JAVA_MIN}: apt-get install openjdk-17-jre-headless")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    # Four attempts at each task: with `local[2]`, a lost worker ends the job.
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
