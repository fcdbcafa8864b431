"""Starts Ray and Spark on this machine alone, for the tests and for `bench pipeline cluster`."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

JAVA_MIN = 17
NO_JAVA = f"Spark needs Java {JAVA_MIN}: apt-get install openjdk-17-jre-headless"


def start_ray(processors: int) -> Any:
    """Starts a cluster with this number of processors, and returns the module. `ray.shutdown()`
    ends it."""
    # No reports to Ray's makers, and no worker that is killed because the machine is full.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    # A cluster of its own, also if the machine has another.
    ray.init(
        address="local", num_cpus=processors, include_dashboard=False, log_to_driver=False
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    return ray


def java_version() -> int:
    """The major version of the Java that Spark would start. 0 if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin/java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return 0
    told = subprocess.run([java, "-version"], capture_output=True, text=True)
    found = re.search(r'version "(\d+)', told.stderr)
    return int(found.group(1)) if found else 0


def start_spark(workers: int) -> Any:
    """Returns a session with this number of workers. Its `stop()` ends it. Needs Java 17."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    # Four attempts at each task: with `local[2]`, a lost worker ends the job.
    session = (
        SparkSession.builder.master(f"local[{workers},4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session
