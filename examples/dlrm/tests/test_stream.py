"""Tests training on a stream of raw text: in one run, and interrupted and resumed."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

import embank
from generate import GeneratorOptions, generate
from stream import click_batch, main

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
    expected = f"error: {text}, row {2 * BATCH + 6}: a label is 0 or 1, found {label}"
    assert expected in capsys.readouterr().err


def split(text: Path, folder: Path, days: int, ending: str) -> list[Path]:
    """Writes the lines of `text` as `days` files of about equal size, as Criteo Terabyte has
    them."""
    lines = text.read_bytes().splitlines(keepends=True)
    paths = []
    for day in range(days):
        path = folder / f"day_{day}{ending}"
        part = b"".join(lines[day * len(lines) // days : (day + 1) * len(lines) // days])
        path.write_bytes(gzip.compress(part) if ending else part)
        paths.append(path)
    return paths


def arguments(files: list[Path], bank: Path, *more: str) -> list[str]:
    return [*map(str, files), "--bank", str(bank), "--budget", "16MiB", "--batch-size", str(BATCH),
            "--dim", "8", "--bottom", "16", "--top", "16", "--threads", "1", *more]


@pytest.mark.parametrize(("ending", "modulus"), [("", []), (".gz", ["--modulus", "1000"])])
def test_several_days_train_as_one_file_and_another_day_is_scored(
    text: Path, tmp_path: Path, ending: str, modulus: list[str]
) -> None:
    *days, last = split(text, tmp_path, 4, ending)
    whole = tmp_path / "whole.tsv"
    whole.write_bytes(b"".join(text.read_bytes().splitlines(keepends=True)[: 3 * ROWS // 4]))
    outcomes = []
    for name, files, test in (("one", [whole], []), ("days", days, ["--test", str(last)])):
        out = tmp_path / f"{name}.json"
        more = ["--json", str(out), *modulus, *test]
        assert main(arguments(files, tmp_path / f"{name}.bank", *more)) == 0
        outcomes.append(json.loads(out.read_text()))
    one, several = outcomes
    assert several["rows"] == one["rows"] == 3 * ROWS // 4
    assert several["auc"] == one["auc"]
    assert one["test_auc"] is None and several["test_auc"] > 0.55
    # The test trains on no row and makes no row. A sum depends on the order of the scan.
    trained, tested = (tables(tmp_path / f"{name}.bank") for name in ("one", "days"))
    assert tested.keys() == trained.keys()
    for name, (rows, total) in trained.items():
        assert tested[name][0] == rows
        assert tested[name][1] == pytest.approx(total, abs=1e-4)


def test_a_run_over_days_resumes_in_any_of_them(text: Path, tmp_path: Path) -> None:
    days = split(text, tmp_path, 3, ".gz")
    out, bank = tmp_path / "out.json", tmp_path / "days.bank"
    assert main(arguments(days, bank, "--steps", "13", "--json", str(out))) == 0
    more = ["--resume", "--test", str(days[2]), "--json", str(out)]
    assert main(arguments(days, bank, *more)) == 0
    assert json.loads(out.read_text())["rows"] == ROWS - 13 * BATCH


def test_the_test_knows_the_categories_of_the_steps_alone(text: Path, tmp_path: Path) -> None:
    # Regression test: categories that the feed had decoded after the last step had ids of their
    # own in the test, so its AUC depended on the threads.
    *_, last = split(text, tmp_path, 4, "")
    short = tmp_path / "short.tsv"
    short.write_bytes(b"".join(text.read_bytes().splitlines(keepends=True)[: 5 * BATCH]))
    outcomes = []
    for name, source, steps in (("short", short, 3), ("long", text, 3), ("resumed", text, 2)):
        outcome = run(source, tmp_path / f"{name}.bank", "--steps", str(steps))
        outcome = run(source, tmp_path / f"{name}.bank", "--steps", str(5 - steps), "--resume",
                      "--test", str(last))
        outcomes.append(outcome["test_auc"])
    assert outcomes[0] is not None and outcomes == [outcomes[0]] * 3


@pytest.mark.parametrize("steps", [3, 13])
def test_a_resumed_run_refuses_other_files_by_name(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int
) -> None:
    # Regression test: the run skipped as many rows of the other files, and said nothing.
    days, bank = split(text, tmp_path, 3, ""), tmp_path / "days.bank"
    assert main(arguments(days[:2], bank, "--steps", str(steps))) == 0
    for wrong in (days[1:], [text]):
        assert main(arguments(wrong, bank, "--resume")) == 1
        assert str(wrong[0]) in capsys.readouterr().err
    whole = days[0].read_bytes()
    days[0].write_bytes(whole[whole.index(b"\n") + 1 :])
    assert main(arguments(days, bank, "--resume")) == 1
    assert str(days[0]) in capsys.readouterr().err
    days[0].write_bytes(whole)
    assert main(arguments(days, bank, "--resume", "--steps", "1")) == 0


BAD_ROWS = {
    "a label": (0, b"2", "a label is 0 or 1, found 2"),
    "a letter in a number": (5, b"1x", 'field "I5", "1x"'),
    "an unknown hexadecimal digit": (20, b"68fd1e6g", 'field "C7", "68fd1e6g"'),
    "nine hexadecimal digits": (20, b"68fd1e640", 'field "C7", "68fd1e640"'),
    "a short line": (39, None, "has 39 fields"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
@pytest.mark.parametrize(("where", "ending"), [("train", ""), ("test", ".gz")])
def test_a_bad_row_of_a_day_is_named_by_file_and_line(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, ending: str,
    where: str,
) -> None:
    place, found, cause = BAD_ROWS[kind]
    days = split(text, tmp_path, 3, ending)
    lines = gzip.decompress(days[1].read_bytes()) if ending else days[1].read_bytes()
    rows = [line.split(b"\t") for line in lines.splitlines()]
    rows[700][place : place + 1] = [] if found is None else [found]
    text_of = b"".join(b"\t".join(row) + b"\n" for row in rows)
    days[1].write_bytes(gzip.compress(text_of) if ending else text_of)
    files = days if where == "train" else [days[0], "--test", *days[1:]]  # type: ignore[list-item]
    given = arguments(files, tmp_path / "clicks.bank", "--lookahead", "0")
    assert main(given) == 1
    error = capsys.readouterr().err
    row = ", row " if kind == "a label" else ":"
    assert f"error: {days[1]}{row}701" in error and cause in error


@pytest.mark.parametrize("where", ["train", "test"])
def test_a_cut_day_is_an_error_that_names_it(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    days = split(text, tmp_path, 2, ".gz")
    days[1].write_bytes(days[1].read_bytes()[:-2000])
    files = days if where == "train" else [days[0], "--test", days[1]]  # type: ignore[list-item]
    assert main(arguments(files, tmp_path / "clicks.bank")) == 1
    expected = f"error: {days[1]}: it can't be decompressed, so it is cut short or damaged"
    assert expected in capsys.readouterr().err


def test_a_missing_day_is_an_error_before_training(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "day_23"
    bank = tmp_path / "clicks.bank"
    assert main(arguments([text], bank, "--test", str(missing))) == 1
    assert f"error: {missing}: no such file" in capsys.readouterr().err
    assert not bank.exists()


def test_a_served_pipeline_of_other_outputs_is_an_error_with_its_cure() -> None:
    with pytest.raises(ValueError, match="outputs row, and need label, dense and sparse; serve"):
        click_batch({"row": torch.zeros(3, 40)})


def test_a_served_pipeline_takes_no_files(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments([text], tmp_path / "clicks.bank", "--connect", "grpc://127.0.0.1:9")
    assert main(given) == 1
    assert "with --connect the server reads the files" in capsys.readouterr().err
