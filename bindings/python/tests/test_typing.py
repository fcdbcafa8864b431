"""The type stubs say what the classes are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import embank
from embank import _embank

HERE = Path(__file__).parent
STUB = HERE.parent / "python" / "embank" / "_embank.pyi"


def test_strict_mypy_accepts_a_program_that_uses_everything(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, str(HERE / "typed_usage.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"MYPYPATH": str(STUB.parents[1])},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stub_names_every_class_and_member() -> None:
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    declared = {
        node.name: {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    actual = {
        name: {member for member in vars(value) if not member.startswith("__")}
        for name, value in vars(_embank).items()
        if isinstance(value, type)
    }
    assert declared.keys() == actual.keys()
    for name, members in actual.items():
        public = {member for member in declared[name] if not member.startswith("__")}
        assert public == members, name


def test_stats_have_the_keys_that_the_stub_declares(
    bank: embank.Bank, table: embank.Table
) -> None:
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    declared = {
        node.name: {
            field.target.id
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    stats = bank.stats()
    assert set(stats) == declared["_BankStats"]
    assert set(stats["memory"]) == declared["_MemoryStats"]
    assert set(stats["hits"]) == declared["_HitStats"]
    assert set(stats["log"]) == declared["_LogStats"]
    assert set(stats["disk"]) == declared["_DiskStats"]
    assert set(stats["operations"]) == declared["_OperationStats"]
    assert set(stats["stalls"]) == declared["_StallStats"]
    assert set(stats["space"]) == declared["_SpaceStats"]
    assert set(stats["compaction"]) == declared["_CompactionStats"]
    assert set(bank.compact()) == declared["_Compacted"]
    assert set(stats["lookahead"]) == declared["_LookaheadStats"]
    assert set(table.stats()) == declared["_TableStats"]


def test_everything_public_has_a_docstring() -> None:
    for name in embank.__all__:
        value = getattr(embank, name)
        if name in {"__version__", "UNKNOWN_ID"}:
            continue
        assert value.__doc__, name
        for member, attribute in vars(value).items() if isinstance(value, type) else ():
            if not member.startswith("_") and name not in {"SGD", "Adagrad"} and callable(attribute):
                assert attribute.__doc__, f"{name}.{member}"
