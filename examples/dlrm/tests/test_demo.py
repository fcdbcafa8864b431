"""Runs the demo as a user does: on generated and real Criteo rows, and again after a kill."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

from data import ClickData, Column, Split
from embeddings import TableOptions
from figures import write_json
from generate import GeneratorOptions, generate
from model import INTERACTIONS, ModelName, ModelShape
from movielens import FILES
from train import TrainOptions, Trainer
from variant import Experiment, Variant, run_variant

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = REPOSITORY.parent / "shared" / "data" / "criteo_tiny" / "train.tsv"
ROWS = 4000
CHECKPOINT_SECONDS_MAX = 240


def experiment(
    epochs: int = 1, checkpoint_every: int = 0, model: ModelName = "dlrm"
) -> Experiment:
    """Makes a small experiment, whose clicks depend on one column."""
    rng = np.random.default_rng(3)
    user, item = rng.integers(0, 300, ROWS), rng.integers(0, 2000, ROWS)
    clicks = rng.random(ROWS) < np.where(user % 2 == 0, 0.8, 0.2)
    starts = np.arange(0, 2 * ROWS + 1, 2)
    columns = [Column("user", user), Column("item", item),
               Column("tags", rng.integers(0, 50, 2 * ROWS), starts)]
    data = ClickData(clicks.astype(np.uint8), rng.random((ROWS, 2), dtype=np.float32), columns)
    return Experiment(
        name="small", data=data, split=Split.by_time(ROWS), batch_size=64, epochs=epochs,
        shuffle=True, seed=1, shape=ModelShape(2, 3, 8, (16,), (16,), model),
        tables=TableOptions(dim=8, learning_rate=0.1, seed=1),
        train=TrainOptions(sample_every=10, evaluate_every=20, checkpoint_every=checkpoint_every),
    )


@pytest.mark.parametrize("model", tuple(INTERACTIONS))
def test_a_bank_and_memory_learn_the_same(tmp_path: Path, model: ModelName) -> None:
    small = experiment(epochs=3, model=model)
    memory = run_variant(small, Variant("memory", None), tmp_path, resume=False)
    bank = run_variant(small, Variant("bank", 1 << 20, lookahead=3), tmp_path, resume=False)
    assert memory.auc > 0.7
    assert bank.auc == pytest.approx(memory.auc, abs=1e-3)
    assert len(bank.history) == len(memory.history) > 5


def test_an_interrupted_run_ends_as_the_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = experiment(epochs=2, checkpoint_every=15)
    variant = Variant("bank", 1 << 20, lookahead=3)
    undisturbed = run_variant(small, variant, tmp_path / "undisturbed", resume=False)

    whole_step = Trainer.train_step

    def failing_step(trainer: Trainer, batch: object) -> object:
        if trainer.progress.step == 40:
            raise KeyboardInterrupt
        return whole_step(trainer, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "train_step", failing_step)
    with pytest.raises(KeyboardInterrupt):
        run_variant(small, variant, tmp_path / "resumed", resume=False)
    monkeypatch.undo()
    resumed = run_variant(small, variant, tmp_path / "resumed", resume=True)
    assert resumed.auc == pytest.approx(undisturbed.auc, abs=1e-9)
    assert resumed.resumed_from == 30
    assert [s["step"] for s in resumed.history] == [s["step"] for s in undisturbed.history]


def demo(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(REPOSITORY / "examples" / "dlrm" / "demo.py"), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def wait_for_checkpoint(running: subprocess.Popen[str], runs: Path) -> None:
    """Waits until some bank under `runs` has a checkpoint."""
    deadline = time.monotonic() + CHECKPOINT_SECONDS_MAX
    while not any(path.name.isdecimal() for path in runs.glob("*/*/checkpoints/*")):
        assert time.monotonic() < deadline, f"no checkpoint after {CHECKPOINT_SECONDS_MAX} s"
        try:
            status = running.wait(timeout=0.005)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"the demo ended with status {status} before a checkpoint was seen")


def killed_and_resumed(rows: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Runs the demo on these rows, kills it after a checkpoint, and resumes it. Returns the figures
    by name."""
    arguments = ["--only", "criteo", "--criteo", str(rows), "--batch-size", "128",
                 "--out", str(folder / "out"), "--data", str(folder / "data"),
                 "--json", str(folder / "figures.json")]
    killed = demo(*arguments)
    wait_for_checkpoint(killed, folder / "out" / "runs")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    resumed = demo(*arguments, "--resume")
    output, errors = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, errors
    assert f"{rows}, all " in output
    assert (folder / "out" / "report.html").stat().st_size > 10_000
    banks = [path for path in (folder / "out" / "runs" / "criteo").iterdir() if path.is_dir()]
    assert banks == []
    return {row["name"]: row for row in json.loads((folder / "figures.json").read_text())}


def test_generated_rows_train_also_when_killed_in_between(tmp_path: Path) -> None:
    path = generate(tmp_path / "rows.tsv", GeneratorOptions(rows=2000, scale=0.001, seed=5))
    text = path.read_bytes()
    assert b"\t\t" in text
    assert b"\t-1\t" in text
    rows = killed_and_resumed(path, tmp_path)
    assert 0.0 < rows["criteo auc"]["value"] < 1.0
    assert rows["criteo auc"]["ratio"] == pytest.approx(1.0, abs=1e-2)
    assert {"criteo samples/s in memory", "criteo samples/s lookahead", "memory for rows",
            "criteo samples/s no lookahead"} <= set(rows)


def test_ratings_train_in_memory_and_out_of_core(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    folder = tmp_path / "data" / "movielens"
    folder.mkdir(parents=True)
    ratings = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for time_of_rating in range(4000):
        user, item = rng.integers(0, 40), rng.integers(0, 60)
        stars = 5 if rng.random() < (0.9 if (user + item) % 2 else 0.1) else 1
        ratings.append(f"{user}\t{item}\t{stars}\t{time_of_rating}")
    users = ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"]
    users += [f"{user}\t{20 + user}\tF\twriter\t{user % 7}" for user in range(40)]
    items = ["item_id:token\trelease_year:token\tclass:token_seq"]
    items += [f"{item}\t{1940 + item}\tDrama" for item in range(60)]
    for name, lines in zip(FILES, (ratings, users, items)):
        (folder / name).write_text("\n".join(lines) + "\n")
    done = demo("--only", "movielens", "--data", str(folder.parent), "--out", str(tmp_path / "out"),
                "--threads", "1", "--json", str(tmp_path / "figures.json"))
    _, errors = done.communicate(timeout=300)
    assert done.returncode == 0, errors
    rows = {row["name"]: row for row in json.loads((tmp_path / "figures.json").read_text())}
    assert rows["movielens auc"]["value"] > 0.6
    assert rows["movielens auc"]["ratio"] == pytest.approx(1.0, abs=1e-2)


@pytest.mark.skipif(
    not TINY.exists(), reason=f"no real Criteo rows at {TINY}; the same is tested on generated ones"
)
def test_real_criteo_rows_train_also_when_killed_in_between(tmp_path: Path) -> None:
    assert killed_and_resumed(TINY, tmp_path)["criteo auc"]["value"] > 0.5


def test_a_bank_left_after_the_outcome_was_saved_is_cleared_away(tmp_path: Path) -> None:
    small, variant = experiment(), Variant("bank", 1 << 20)
    outcome = run_variant(small, variant, tmp_path, resume=False)
    (tmp_path / "bank" / "log").mkdir(parents=True)
    again = run_variant(small, variant, tmp_path, resume=True)
    assert (again.auc, again.seconds) == (outcome.auc, outcome.seconds)
    assert not (tmp_path / "bank").exists()


def test_a_figure_that_is_no_number_is_null(tmp_path: Path) -> None:
    write_json([{"name": "auc", "value": float("nan"), "ratio": None}], tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text(), parse_constant=pytest.fail)
    assert rows == [{"name": "auc", "value": None, "ratio": None}]


@pytest.mark.parametrize("rows", ["0", "-5", "many"])
def test_rows_are_a_number_above_zero(rows: str) -> None:
    failed = demo("--criteo-rows", rows)
    _, errors = failed.communicate(timeout=120)
    assert failed.returncode == 2
    assert "no whole number above zero" in errors


def test_a_bad_file_is_one_clear_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_text("1\t2\t3\n")
    failed = demo("--only", "criteo", "--criteo", str(bad), "--out", str(tmp_path / "out"),
                  "--data", str(tmp_path / "data"))
    _, errors = failed.communicate(timeout=120)
    assert failed.returncode == 1
    assert errors.strip().splitlines()[-1].startswith(f"error: {bad}:1: has 3 fields")
    assert "Traceback" not in errors


def test_resuming_with_other_options_is_refused(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "options.json").write_text(json.dumps({"seed": "3"}))
    failed = demo("--resume", "--out", str(tmp_path), "--data", str(tmp_path / "data"))
    _, errors = failed.communicate(timeout=120)
    assert failed.returncode == 1
    assert "seed (was 3)" in errors


def test_damaged_options_of_a_run_are_one_clear_line(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "options.json").write_text('{"seed": ')
    failed = demo("--resume", "--out", str(tmp_path), "--data", str(tmp_path / "data"))
    _, errors = failed.communicate(timeout=120)
    assert failed.returncode == 1
    assert "is damaged" in errors and "without --resume" in errors
    assert "Traceback" not in errors
