"""Runs the examples of docs/distributed.md for Lightning and Transformers on two ranks: as a whole,
and again with a crash between two saves. The resumed run has the losses of the whole one, bit for
bit.
"""

from __future__ import annotations

import gc
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
from test_pages import ROOT, examples_of  # noqa: E402

import embank  # noqa: E402
import embank.torch  # noqa: E402
from embank.torch.distributed import ShardedBank  # noqa: E402

ROWS = 64
BATCH = 8
EPOCHS = 2
STEPS = EPOCHS * ROWS // BATCH // 2
"""The steps of a rank."""

MODULES = {"Lightning": "lightning", "Transformers": "transformers"}
SAVED_AT = {"Lightning": STEPS // EPOCHS, "Transformers": 3}
"""The step of the last save before the crash. Lightning saves at the end of an epoch, and the other
trainer within one.
"""


class Clicks(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Samples whose keys repeat."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"seen": torch.tensor([at % 7, at % 11]), "labels": torch.tensor(float(at % 3 == 0))}


class ClickModel(torch.nn.Module):
    """A dense layer over a bag. Notes its losses, and kills the process in step `dies_at`."""

    losses: list[float] = []
    dies_at: int = -1

    def __init__(self, bags: Any) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.bags, self.top = bags, torch.nn.Linear(16, 1)

    def forward(self, seen: Any, labels: Any) -> dict[str, Any]:
        if len(self.losses) == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        scores = self.top(self.bags({"seen": seen})["seen"]).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
        self.losses.append(loss.item())
        return {"loss": loss, "scores": scores}


def train(rank: int, directory: Path, heading: str, dies_at: int) -> list[float]:
    """Runs the example of a heading as `torchrun` does. Returns the losses of this rank."""
    import torch.distributed as dist

    # The example makes its own group.
    dist.destroy_process_group()
    os.chdir(directory)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    os.environ.update({"TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"})
    framework = __import__(MODULES[heading])
    # Each file must name a set.
    warnings.filterwarnings("error", message="no checkpoint of")
    ClickModel.dies_at = dies_at
    names = {
        "dist": dist, "embank": embank, "gc": gc, "torch": torch, "ShardedBank": ShardedBank,
        "ClickModel": ClickModel, "EPOCHS": EPOCHS, "SAVE_STEPS": SAVED_AT[heading], "clicks": Clicks(),
        "loader": torch.utils.data.DataLoader(Clicks(), batch_size=BATCH, shuffle=True),
        MODULES[heading]: framework,
    }  # fmt: skip
    [example] = [
        of for of in examples_of(ROOT / "docs/distributed.md") if of.heading == heading
    ]
    store = f'store=dist.FileStore("ranks-{dies_at}", 2), rank={rank}, world_size=2'
    text = replaced(example.text, 'init_process_group("gloo")', f'init_process_group("gloo", {store})')
    if heading == "Transformers":
        options = f'save_total_limit=2, per_device_train_batch_size={BATCH}, report_to="none"'
        text = replaced(text, "save_total_limit=2", options)
    try:
        exec(compile(text, str(example), "exec"), names)
    except Exception:
        # A rank that has lost the other one dies too.
        if dies_at >= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        raise
    # A live model in DDP would abort the process at its end.
    wrapper = torch.nn.parallel.DistributedDataParallel
    assert [of for of in gc.get_objects() if type(of) is wrapper] == []
    return ClickModel.losses


def replaced(text: str, words: str, others: str) -> str:
    assert words in text, f"the example has no {words!r} to replace"
    return text.replace(words, others)


@pytest.mark.parametrize("heading", MODULES)
def test_a_run_resumes_after_a_crash(heading: str, tmp_path: Path) -> None:
    pytest.importorskip(MODULES[heading])
    if heading == "Transformers":
        pytest.importorskip("accelerate")
    for name in ("whole", "crashed"):
        (tmp_path / name).mkdir()
    whole = ranks.run(2, tmp_path, train, tmp_path / "whole", heading, -1)
    saved = SAVED_AT[heading]
    assert ranks.run(2, tmp_path, train, tmp_path / "crashed", heading, saved + 2) == [None, None]
    resumed = ranks.run(2, tmp_path, train, tmp_path / "crashed", heading, -1)
    for losses, later in zip(whole, resumed):
        assert len(losses) == STEPS and len(set(losses)) == STEPS
        assert later == losses[saved:]
