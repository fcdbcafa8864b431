"""Makes the modules of this example, and those that all examples share, importable. They are not
packages."""

import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(EXAMPLE), str(EXAMPLE.parent / "common")]

import openmp  # noqa: E402, F401  (before torch)
