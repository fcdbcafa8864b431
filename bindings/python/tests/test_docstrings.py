"""Tests that the examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import embank


def modules() -> list[ModuleType]:
    found = [embank]
    for info in pkgutil.walk_packages(embank.__path__, "embank.", onerror=lambda name: None):
        # Skips `_embank`: its classes name `embank` as their module, so doctest finds them there.
        if not info.name.endswith("._embank"):
            try:
                found.append(importlib.import_module(info.name))
            except ImportError:
                assert info.name.startswith("embank.torch")
    return found


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_examples(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Runs in a fresh directory, because the examples open banks at relative paths.
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(module).failed == 0


def test_the_compiled_classes_have_examples() -> None:
    with_examples = {
        test.name
        for test in doctest.DocTestFinder().find(embank, "embank")
        if any(example.source for example in test.examples)
    }
    for name in ("Bank", "Table", "Lease", "Scan", "SGD", "Adagrad", "Uniform"):
        assert f"embank.{name}" in with_examples
