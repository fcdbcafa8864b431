"""Tests that the type stubs describe the classes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Optional, cast

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


def _classes(stub: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(stub).body if isinstance(node, ast.ClassDef)}


def _with_body(stub: str, node: ast.ClassDef, body: list[str]) -> str:
    lines = stub.splitlines(keepends=True)
    lines[node.lineno : node.end_lineno] = body
    return "".join(lines)


def _with_keys(stub: str, name: str, found: Mapping[str, object]) -> str:
    """Returns the stub with the keys of a dictionary in the `TypedDict` of this name. Keys that are
    in the stub already keep their position and type. New keys come at the end, with the type of
    their value."""
    node = _classes(stub)[name]
    fields = {
        field.target.id: ast.unparse(field.annotation)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    kept = {key: annotation for key, annotation in fields.items() if key in found}
    new = {key: type(value).__name__ for key, value in found.items() if key not in fields}
    return _with_body(
        stub, node, [f"    {key}: {annotation}\n" for key, annotation in {**kept, **new}.items()]
    )


def _with_statistics(stub: str, stats: Mapping[str, object], table: Mapping[str, object]) -> str:
    """Returns the stub with all numbers of the statistics."""
    groups = {
        field.target.id: field.annotation.id
        for field in _classes(stub)["_BankStats"].body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(field.annotation, ast.Name)
        and field.annotation.id.startswith("_")
    }
    stub = _with_keys(stub, "_BankStats", stats)
    for group, name in groups.items():
        stub = _with_keys(stub, name, cast("Mapping[str, object]", stats[group]))
    return _with_keys(stub, "_TableStats", table)


def _with_alias(stub: str, name: str, value: str) -> str:
    made, count = re.subn(f"^{name} = .*$", f"{name} = {value}", stub, flags=re.MULTILINE)
    assert count == 1, name
    return made


def _optimizer_body(cls: type) -> list[str]:
    """Returns the stub's lines for an optimizer, made from its class's signature and an object's
    settings."""
    source = f"def new{cls.__text_signature__}: ..."
    signature = ast.parse(source).body[0]
    assert isinstance(signature, ast.FunctionDef)
    names = [argument.arg for argument in signature.args.args]
    defaults = dict(zip(reversed(names), reversed(signature.args.defaults)))
    made = cls(lr=1.0)
    kinds = {bool: "bool", float: "float", tuple: "tuple[float, float]"}
    settings: dict[str, tuple[str, Optional[str]]] = {}
    for name in names:
        value = getattr(made, name)
        default = ast.get_source_segment(source, defaults[name]) if name in defaults else None
        # A text signature shows a tuple as "...".
        settings[name] = (kinds[type(value)], repr(value) if default == "..." else default)
    lines = ["    def __new__(\n", "        cls,\n"]
    for name, (kind, default) in settings.items():
        lines.append(f"        {name}: {kind}{'' if default is None else f' = {default}'},\n")
    lines.append("    ) -> Self: ...\n")
    for name, (kind, _) in settings.items():
        lines += ["    @property\n", f"    def {name}(self) -> {kind}: ...\n"]
    return lines


def _with_optimizers(stub: str) -> str:
    """Returns the stub with the optimizers: the classes whose first argument is a learning rate."""
    optimizers = {
        name: value
        for name, value in vars(_embank).items()
        if isinstance(value, type) and (value.__text_signature__ or "").startswith("(lr=")
    }
    assert "SGD" in optimizers
    assert optimizers.keys() <= set(embank.__all__)
    for name, cls in optimizers.items():
        if name not in _classes(stub):
            after = _classes(stub)["FTRL"].end_lineno
            lines = stub.splitlines(keepends=True)
            lines[after:after] = ["\n", "@final\n", f"class {name}:\n", "    ...\n"]
            stub = "".join(lines)
        stub = _with_body(stub, _classes(stub)[name], _optimizer_body(cls))
    return _with_alias(stub, "_Optimizer", f"Union[{', '.join(optimizers)}]")


def _with_dtypes(stub: str, bank: embank.Bank) -> str:
    """Returns the stub with the dtypes, which the error for an unknown name lists."""
    with pytest.raises(ValueError) as refusal:
        bank.table("of no dtype", dim=1, dtype="none")
    names = re.findall('"[^"]+"', str(refusal.value))
    assert '"float32"' in names
    return _with_alias(stub, "_DtypeName", f"Literal[{', '.join(names)}]")


def test_the_stub_has_the_numbers_optimizers_and_dtypes_of_the_library(
    bank: embank.Bank, table: embank.Table
) -> None:
    found = STUB.read_text(encoding="utf-8")
    made = _with_optimizers(_with_statistics(found, bank.stats(), table.stats()))
    made = _with_keys(made, "_Compacted", bank.compact())
    made = _with_dtypes(made, bank)
    if "EMBANK_BLESS" in os.environ:
        STUB.write_text(made, encoding="utf-8")
    assert STUB.read_text(encoding="utf-8") == made, (
        "EMBANK_BLESS=1 python -m pytest bindings/python/tests/test_typing.py makes _embank.pyi again; then look at the "
        "difference"
    )


def test_everything_public_has_a_docstring() -> None:
    for name in embank.__all__:
        value = getattr(embank, name)
        if name in {"__version__", "UNKNOWN_ID"}:
            continue
        assert value.__doc__, name
        for member, attribute in vars(value).items() if isinstance(value, type) else ():
            if not member.startswith("_") and name not in {"SGD", "Adagrad"} and callable(attribute):
                assert attribute.__doc__, f"{name}.{member}"
