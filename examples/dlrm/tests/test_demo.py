"""The demo as a user runs it: on real Criteo rows, and again after a kill."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")

from data import ClickData, Column, Split
from embeddings import TableOptions
from model import ModelShape
from train import TrainOptions, Trainer
from variant import Experiment, Variant, run_variant

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = REPOSITORY.parent / "shared" / "data" / "criteo_tiny" / "train.tsv"
ROWS = 4000


def experiment(epochs: int = 1, checkpoint_every: int = 0) -> Experiment:
    """A small one, whose clicks depend on one column."""
    rng = np.random.default_rng(3)
    user, item = rng.integers(0, 300, ROWS), rng.integers(0, 2000, ROWS)
    clicks = rng.random(ROWS) < np.where(user % 2 == 0, 0.8, 0.2)
    starts = np.arange(0, 2 * ROWS + 1, 2)
    columns = [Column("user", user), Column("item", item),
               Column("tags", rng.integers(0, 50, 2 * ROWS), starts)]
    data = ClickData(clicks.astype(np.uint8), rng.random((ROWS, 2), dtype=np.float32), columns)
    return Experiment(
        name="small", data=data, split=Split.by_time(ROWS), batch_size=64, epochs=epochs,
        shuffle=True, seed=1, shape=ModelShape(2, 3, 8, (16,), (16,)),
        tables=TableOptions(dim=8, learning_rate=0.1, seed=1),
        train=TrainOptions(sample_every=10, evaluate_every=20, checkpoint_every=checkpoint_every),
    )


def test_a_bank_and_memory_learn_the_same(tmp_path: Path) -> None:
    small = experiment(epochs=3)
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


@pytest.mark.skipif(not TINY.exists(), reason=f"{TINY} is absent")
def test_real_criteo_rows_train_also_when_killed_in_between(tmp_path: Path) -> None:
    arguments = ["--only", "criteo", "--criteo", str(TINY), "--batch-size", "128",
                 "--out", str(tmp_path / "out"), "--data", str(tmp_path / "data"),
                 "--json", str(tmp_path / "figures.json")]
    killed = demo(*arguments)
    assert killed.stdout is not None
    for line in killed.stdout:
        if "1,999 samples" in line:
            break
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    resumed = demo(*arguments, "--resume")
    _, errors = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, errors
    rows = {row["name"]: row for row in json.loads((tmp_path / "figures.json").read_text())}
    assert rows["criteo auc"]["value"] > 0.5
    assert {"criteo samples/s in memory", "criteo samples/s lookahead", "peak memory",
            "criteo samples/s no lookahead"} <= set(rows)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_a_bad_file_is_one_clear_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_text("1\t2\t3\n")
    failed = demo("--only", "criteo", "--criteo", str(bad), "--out", str(tmp_path / "out"),
                  "--data", str(tmp_path / "data"))
    _, errors = failed.communicate(timeout=120)
    assert failed.returncode == 1
    assert errors.strip().splitlines()[-1].startswith(f"error: {bad}:1: expected 40")
    assert "Traceback" not in errors


def test_resuming_with_other_options_is_refused(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "options.json").write_text(json.dumps({"seed": "3"}))
    failed = demo("--resume", "--out", str(tmp_path), "--data", str(tmp_path / "data"))
    _, errors = failed.communicate(timeout=120)
    assert failed.returncode == 1
    assert "seed (was 3)" in errors
