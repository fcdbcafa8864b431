"""Trains small modules over the tables of `rocks`, which stand beside Embank in `bench training
speed`. RocksDB itself is replaced by a dictionary, because the test is about the methods that
training calls."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

PYTHON = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PYTHON / "ground"), str(PYTHON / "training")]
import torch  # noqa: E402
import workloads  # noqa: E402

import embank  # noqa: E402
import embank.torch  # noqa: E402

ROWS, STEPS = 50, 6


class Database(dict[bytes, bytes]):
    """Replaces `rocksdict.Rdict`."""

    def __init__(self, path: str, options: object) -> None:
        super().__init__()

    def get(self, names: Any, default: Any = None) -> Any:
        return [super(Database, self).get(name) for name in names]

    def write(self, batch: Batch) -> None:
        self.update(batch.values)

    def property_int_value(self, name: str) -> int:
        return 0

    def set_write_options(self, options: object) -> None:
        pass

    def close(self) -> None:
        pass


class Batch:
    """Replaces `rocksdict.WriteBatch`."""

    def __init__(self, raw_mode: bool) -> None:
        self.values: dict[bytes, bytes] = {}

    def put(self, name: bytes, value: bytes) -> None:
        self.values[name] = value


class Tiny(workloads.Workload):
    """A bag and a row for each sample, out of two tables."""

    batch, table_bytes = 8, 0

    def steps(self, rows: workloads.Rows, bank: Any, seed: int) -> Iterator[torch.Tensor]:
        words, users = tables = [
            bank.table(name, dim=4, optimizer=embank.Adagrad(lr=0.1),
                       initializer=embank.Uniform(-1, 1))
            for name in ("word", "user")
        ]
        bags, singles = embank.torch.EmbeddingBag(words, mode="mean"), embank.torch.Embedding(users)
        for table in tables:
            workloads.fill(table, ROWS)
        rng = np.random.default_rng(seed)
        shape = (self.batch, 4)
        batches = (torch.from_numpy(rng.integers(0, ROWS, shape)) for _ in itertools.count())
        batches = workloads.read_first(rows, bank, batches, lambda batch: {
            words: batch[:, :3].reshape(-1).numpy(), users: batch[:, 3].numpy()
        })
        for batch in batches:
            loss = (bags(batch[:, :3]) * singles(batch[:, 3])).square().mean()
            loss.backward()
            yield loss.detach()


def test_rocksdb_takes_the_steps_of_embank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: the modules need tables with `peek`, and steps of one lease have no keys.
    `bench training speed` failed at its first step over RocksDB."""
    monkeypatch.setitem(
        sys.modules, "rocksdict", mock.MagicMock(Rdict=Database, WriteBatch=Batch)
    )
    monkeypatch.delitem(sys.modules, "rocks", raising=False)
    # `rocks` replaces these functions; the test gives them back.
    monkeypatch.setattr(embank, "get_many", embank.get_many)
    monkeypatch.setattr(embank, "apply_many", embank.apply_many)
    work = Tiny(argparse.Namespace(device="auto"))
    losses = {}
    for kind in ("embank", "rocksdb"):
        run = work.start(workloads.Rows(kind, kind, 16 << 20), tmp_path / kind, seed=1)
        run.warm()
        losses[kind] = torch.stack([next(run.steps) for _ in range(STEPS)])
        run.settle()
        run.rest()
        assert (run.take_shim_seconds() > 0) == (kind == "rocksdb")
        run.bank.close()
    torch.testing.assert_close(losses["rocksdb"], losses["embank"], rtol=1e-4, atol=1e-6)
    assert losses["embank"][-1] < losses["embank"][0]
