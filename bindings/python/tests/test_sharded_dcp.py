"""Tests a run that `torch.distributed.checkpoint` (DCP) saves and resumes: on the ranks that saved
it, on more ranks, and on more ranks after `embank reshard`.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.checkpoint.state_dict")

import ranks  # noqa: E402
import sharded_models as models  # noqa: E402
from sharded_banks import error_of, opened  # noqa: E402
from test_serve import command  # noqa: E402

import embank  # noqa: E402
from embank.torch.distributed import SetName, ShardedBank, set_of  # noqa: E402

SAVED_AT = 10
STEPS = 50
"""Steps after the save."""
KEYS = np.arange(40)
"""All keys of the batches."""

Tensors = dict[str, NDArray[np.float32]]


class Run:
    """A model on one rank, with the dense part as DCP saves it."""

    def __init__(self, bank: ShardedBank, seed: int) -> None:
        torch.manual_seed(seed)
        self.bank = bank
        self.inner: Any = models.Dlrm(bank, embank.Adagrad(lr=0.1))
        self.model = torch.nn.parallel.DistributedDataParallel(self.inner)
        self.dense = models.dense_optimizer(self.inner)

    def state_dict(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, dense = get_state_dict(self.model, self.dense)
        return {"model": model, "dense": dense}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.model, self.dense, model_state_dict=state["model"], optim_state_dict=state["dense"]
        )

    def save(self, directory: Path) -> None:
        import torch.distributed.checkpoint as dcp

        self.bank.checkpoint()
        dcp.save({"bank": self.bank, "run": self}, checkpoint_id=directory)

    def load(self, directory: Path) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.load({"bank": self.bank, "run": self}, checkpoint_id=directory)

    def step(self, batch: models.Batch) -> float:
        loss = self.model(batch)
        self.dense.zero_grad()
        loss.backward()
        self.dense.step()
        found: float = loss.item()
        return found

    def tensors(self) -> Tensors:
        """The dense part, the state of its optimizer, and all rows."""
        found = {name: of.detach().numpy().copy() for name, of in self.inner.named_parameters()}
        for name, parameter in self.inner.named_parameters():
            for part, of in self.dense.state.get(parameter, {}).items():
                found[f"{part} of {name}"] = of.numpy().copy()
        tables = {table.name: table for table in self.inner.bags.features.values()}
        return {**found, **{name: of.peek(KEYS) for name, of in tables.items()}}

    def close(self) -> None:
        self.bank.close()
        del self.model
        gc.collect()


def named_set(directory: Path) -> SetName:
    """The set that a DCP checkpoint names."""
    import torch.distributed.checkpoint as dcp

    state = {"bank": {"reference": torch.zeros(512, dtype=torch.uint8)}}
    dcp.load(state, checkpoint_id=directory)
    return set_of(state["bank"])


def train(
    rank: int, directory: Path, begin: int, end: int, dies: bool = False, goes_back: bool = False
) -> tuple[list[float], Tensors, models.Export]:
    """Trains from step `begin`, where it loads, to step `end`. Saves at step 10."""
    # Other weights at first: the loaded ones count.
    number = named_set(directory / "dcp") if goes_back else None
    run = Run(opened(directory / "fleet", set=number), seed=begin)
    if begin > 0:
        run.load(directory / "dcp")
    losses = []
    batches = list(models.batches(end, 2, rank))
    for step in range(begin, end):
        losses.append(run.step(batches[step]))
        if step + 1 == SAVED_AT:
            run.save(directory / "dcp")
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    tensors = run.tensors()
    folder = directory / f"export-{rank}"
    folder.mkdir()
    export = models.exported(run.bank, folder)
    run.close()
    return losses, tensors, export


def assert_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, of in found.items() if not np.array_equal(of, expected[name])] == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a fleet of two shards and a DCP checkpoint of step 10. Both ranks have died
    at step 13."""
    directory = tmp_path_factory.mktemp("saved")
    found = ranks.run(2, directory, train, directory, 0, SAVED_AT + 3, True)
    assert found == [None, None]
    return directory


@pytest.fixture
def crashed(saved: Path, tmp_path: Path) -> Path:
    """A copy of `saved`."""
    return Path(shutil.copytree(saved, tmp_path / "crashed"))


def test_a_dcp_checkpoint_continues_bit_for_bit(crashed: Path, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    end = SAVED_AT + STEPS
    whole = ranks.run(2, tmp_path, train, tmp_path / "whole", 0, end)
    resumed = ranks.run(2, tmp_path, train, crashed, SAVED_AT, end)
    for (losses, tensors, export), (later, found, exported) in zip(whole, resumed):
        assert len(later) == STEPS and later == losses[SAVED_AT:]
        assert_equal(found, tensors)
        assert models.differences(exported, export) == []


def take_a_set_alone(rank: int, directory: Path) -> None:
    """Trains three steps, and ends after the set and before the DCP file."""
    run = Run(opened(directory / "fleet"), seed=3)
    run.load(directory / "dcp")
    for batch in list(models.batches(SAVED_AT + 3, 2, rank))[SAVED_AT:]:
        run.step(batch)
    run.bank.checkpoint()
    os.kill(os.getpid(), signal.SIGKILL)


def load_newer(rank: int, directory: Path) -> str:
    run = Run(opened(directory / "fleet"), seed=3)
    error = error_of(lambda: run.load(directory / "dcp"))
    run.close()
    return error


def test_a_fleet_goes_back_to_the_set_of_a_dcp_checkpoint(
    saved: Path, crashed: Path, tmp_path: Path
) -> None:
    expected = Path(shutil.copytree(saved, tmp_path / "expected"))
    assert ranks.run(2, tmp_path, take_a_set_alone, crashed) == [None, None]
    for text in ranks.run(2, tmp_path, load_newer, crashed):
        assert "refers to set 1, and the bank is at set 2" in text and "set=1" in text
    end = SAVED_AT + 10
    straight = ranks.run(2, tmp_path, train, expected, SAVED_AT, end)
    again = ranks.run(2, tmp_path, train, crashed, SAVED_AT, end, False, True)
    for (losses, tensors, export), (later, found, exported) in zip(straight, again):
        assert len(later) == 10 and later == losses
        assert_equal(found, tensors)
        assert models.differences(exported, export) == []


def state_at_save(rank: int, directory: Path) -> tuple[Tensors, models.Export]:
    """Loads the DCP checkpoint, and returns what the ranks then have."""
    run = Run(opened(directory / "fleet"), seed=3)
    run.load(directory / "dcp")
    tensors = run.tensors()
    folder = directory / f"saved-{rank}"
    folder.mkdir()
    export = models.exported(run.bank, folder)
    # The ranks train on.
    batch = next(models.batches(1, 3, rank))
    assert np.isfinite(run.step(batch))
    run.close()
    return tensors, export


def errors(rank: int, directory: Path) -> list[str]:
    """The errors of the fleet of two shards, and of its DCP checkpoint over a fleet of three."""
    opening = error_of(lambda: opened(directory / "fleet"))
    run = Run(opened(directory / "three"), seed=3)
    run.bank.checkpoint()
    before = run.tensors()
    loading = error_of(lambda: run.load(directory / "dcp"))
    rows = {name: of for name, of in run.tensors().items() if name in run.bank.tables()}
    assert_equal(rows, {name: before[name] for name in rows})
    run.close()
    return [opening, loading]


def test_another_number_of_ranks_needs_a_reshard(crashed: Path, tmp_path: Path) -> None:
    for of_rank in ranks.run(3, tmp_path, errors, crashed):
        for text in of_rank:
            assert text.startswith("ShardMismatch: ") and "2 shards" in text
            assert "embank reshard" in text and "--shards 3" in text

    resharded = tmp_path / "resharded"
    resharded.mkdir()
    shutil.copytree(crashed / "dcp", resharded / "dcp")
    paths = [str(directory / "fleet") for directory in (crashed, resharded)]
    reshard = [command(), "reshard", *paths, "--shards", "3"]
    done = subprocess.run(reshard, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    two = ranks.run(2, tmp_path, state_at_save, crashed)
    three = ranks.run(3, tmp_path, state_at_save, resharded)
    for tensors, _ in three:
        assert_equal(tensors, two[0][0])
    before, after = (models.joined([export for _, export in found]) for found in (two, three))
    assert models.differences(after, before) == []
    # Each of the three shards has a part of the rows.
    assert all(len(export[name][0]) > 0 for _, export in three for name in export)
