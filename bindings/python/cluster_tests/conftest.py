"""Fixtures of the tests on Ray and Spark. They run in `target/venv-cluster`."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engines
import pytest

# The files and specs that these tests share with those without an engine.
TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """Ends the tests if one of them waits for ever for an engine."""
    faulthandler.dump_traceback_later(900, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def left_out(why: str) -> None:
    """Skips the test. In continuous integration, fails."""
    if os.environ.get("CI"):
        pytest.fail(f"{why}, and CI is set")
    pytest.skip(why)


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    ray = engines.start_ray(processors=2)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if engines.java_version() < engines.JAVA_MIN:
        left_out(engines.NO_JAVA)
    session = engines.start_spark(workers=2)
    yield session
    session.stop()
