"""Finds the demo's modules, which lie beside this folder and are no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import openmp  # noqa: E402, F401  (before torch)
