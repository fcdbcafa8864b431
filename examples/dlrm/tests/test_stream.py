"""Tests training on a stream of raw text: in one run, and interrupted and resumed."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

import embank
from generate import GeneratorOptions, generate
from stream import main

ROWS, BATCH = 4000, 128


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return generate(tmp_path / "rows.tsv", GeneratorOptions(ROWS, scale=0.001, seed=3))


def run(text: Path, bank: Path, *more: str) -> dict[str, Any]:
    out = bank.parent / "outcome.json"
    arguments = [str(text), "--bank", str(bank), "--budget", "16MiB", "--batch-size", str(BATCH),
                 "--dim", "8", "--bottom", "16", "--top", "16", "--threads", "1",
                 "--checkpoint-every", "10", "--json", str(out)]
    assert main([*arguments, *more]) == 0
    outcome: dict[str, Any] = json.loads(out.read_text())
    return outcome


def tables(bank: Path) -> dict[str, tuple[int, float]]:
    """Returns for each table the number of its rows and the sum of their values."""
    with embank.Bank(bank, memory_budget="16MiB", read_only=True) as opened:
        found = {}
        for name in opened.tables():
            parts = list(opened.open_table(name).scan())
            found[name] = (sum(len(keys) for keys, _ in parts),
                           sum(float(rows.sum()) for _, rows in parts))
        return found


def test_an_interrupted_run_ends_as_the_undisturbed_one(text: Path, tmp_path: Path) -> None:
    whole = run(text, tmp_path / "whole.bank")
    assert whole["rows"] == ROWS
    assert 0.0 <= whole["waited"] <= 1.0
    assert 0.0 < whole["row_share"] < 1.0
    parts = tmp_path / "parts.bank"
    first = run(text, parts, "--steps", "13")
    rest = run(text, parts, "--resume")
    assert first["rows"] == 13 * BATCH and first["rows"] + rest["rows"] == ROWS
    assert rest["auc"] == pytest.approx(whole["auc"], abs=1e-6)
    undisturbed, resumed = tables(tmp_path / "whole.bank"), tables(parts)
    assert undisturbed.keys() == resumed.keys()
    for name, (rows, total) in undisturbed.items():
        assert resumed[name][0] == rows
        assert resumed[name][1] == pytest.approx(total, abs=1e-4)


def test_a_bank_that_is_there_is_not_trained_on_by_accident(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = tmp_path / "clicks.bank"
    run(text, bank, "--steps", "1")
    assert main([str(text), "--bank", str(bank)]) == 1
    assert "--resume continues it" in capsys.readouterr().err


def test_a_bad_row_ends_training_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "bad.tsv"
    text.write_text("1\t2\n")
    assert main([str(text), "--bank", str(tmp_path / "clicks.bank")]) == 1
    assert f"{text}:1" in capsys.readouterr().err


@pytest.mark.parametrize("label", ["2", "-1"])
def test_a_label_that_is_no_label_ends_training_with_its_place(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], label: str
) -> None:
    # Regression test: training accepted a label of 2, so the loss had no lower bound, and the AUC
    # took the label for a click.
    lines = text.read_text().splitlines(keepends=True)
    lines[2 * BATCH + 5] = label + lines[2 * BATCH + 5][1:]
    text.write_text("".join(lines))
    bank = tmp_path / "clicks.bank"
    run(text, bank, "--steps", "2", "--lookahead", "0")
    arguments = [str(text), "--bank", str(bank), "--budget", "16MiB", "--batch-size", str(BATCH),
                 "--dim", "8", "--bottom", "16", "--top", "16", "--threads", "1", "--resume"]
    assert main(arguments) == 1
    expected = f"error: {text}:{2 * BATCH + 6}: a label is 0 or 1, found {label}"
    assert expected in capsys.readouterr().err
