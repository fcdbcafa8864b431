"""One day of `thirty_days.py`: opens the bank, resumes, trains on the day's stream, evicts, and
writes a report.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import days
import embank
import embank.torch

STRICT_IS_KNOWN = "strict" in inspect.signature(embank.torch.resume).parameters


class Trainer:
    """The tables, the modules and the dense part of a day."""

    def __init__(self, settings: days.Settings, day: int) -> None:
        self.settings, self.day = settings, day
        torch.manual_seed(settings.seed)
        # The budget is small, so that many rows lie on disk.
        self.bank = embank.Bank(settings.bank, memory_budget="4MiB", compaction=True)
        self.tables: dict[str, embank.Table] = {}
        self.model = torch.nn.ModuleDict()
        new_feature = day >= settings.feature_day and "tag" not in self.bank.tables()
        for name in settings.tables(day):
            if name != "tag" or STRICT_IS_KNOWN or not new_feature:
                self._add(name)
        self.top = torch.nn.Linear(days.DIM, 1)
        self.dense = torch.optim.Adam(self.top.parameters(), lr=0.01)
        self.data = days.day_of(settings, day)
        samples: Any = range(len(self.data["sample"]))
        self.loader: embank.torch.ResumableLoader[Any] = embank.torch.ResumableLoader(
            embank.torch.LookaheadLoader(
                DataLoader(samples, batch_size=settings.batch_size, shuffle=True),
                self._keys,
                depth=2,
            )
        )
        self.parts: dict[str, Any] = {
            "model": self.model, "top": self.top, "dense": self.dense, "loader": self.loader
        }  # fmt: skip
        values = self._resume(new_feature)
        if new_feature and not STRICT_IS_KNOWN:
            self._add("tag")
        self.step, self.phase = 0, "training"
        if values is not None and values["day"] == day:
            self.step, self.phase = values["step"], values["phase"]
        elif values is not None and (values["day"], values["phase"]) != (day - 1, "done"):
            raise RuntimeError(f"day {day} begins after {values}")
        self.report: dict[str, Any] = {"crcs": {}, "evicted": []}

    def _add(self, name: str) -> None:
        table = self.tables[name] = days.open_table(self.bank, name)
        if name == "word":
            self.model[name] = embank.torch.EmbeddingBag(table, mode="sum")
            return
        norm = days.MAX_NORM if name == "user" and self.settings.max_norm else None
        self.model[name] = embank.torch.Embedding(table, max_norm=norm)
        if name == "user":
            self.model["again"] = embank.torch.Embedding(table)

    def _resume(self, new_feature: bool) -> Any:
        if not STRICT_IS_KNOWN:
            return embank.torch.resume(self.bank, **self.parts)
        options: Any = {"strict": not new_feature}
        values: Any = embank.torch.resume(self.bank, **options, **self.parts)
        if values is not None and new_feature and not any("tag" in name for name in values.added):
            raise RuntimeError(f"resume does not name the new feature, but {values.added}")
        return values

    def _keys(self, batch: torch.Tensor) -> dict[embank.Table, Any]:
        at = batch.numpy()
        keys = {self.tables[name]: self.data[name][at].reshape(-1) for name in self.tables}
        user = self.tables["user"]
        keys[user] = np.concatenate([keys[user], self.data["again"][at].reshape(-1)])
        return keys

    def save(self, phase: str) -> None:
        self.phase = phase
        embank.torch.save(self.bank, day=self.day, step=self.step, phase=phase, **self.parts)

    def train(self) -> None:
        time_step = self.settings.time_step(self.day)
        if not self.settings.late_time:
            self.set_time()
        if self.loader.epoch < self.day:
            for batch in self.loader:
                if self.step == time_step:
                    self.set_time()
                self._train_step(batch.numpy())
                self.step += 1
                if self.step % days.CHECKPOINT_STEPS == 0:
                    self.save("training")
                print(f"step {self.step}", flush=True)

    def set_time(self) -> None:
        for table in self.tables.values():
            table.set_time(self.day)

    def _train_step(self, at: Any) -> None:
        outputs = {
            name: module(torch.from_numpy(self.data[name][at]))
            for name, module in self.model.items()
        }
        self.report["crcs"][str(self.step)] = {
            name: zlib.crc32(output.detach().numpy().tobytes()) for name, output in outputs.items()
        }
        loss = torch.zeros(())
        for name, output in outputs.items():
            parts = torch.from_numpy(self.data[f"{name} parts"][at])
            if name == "word":
                parts = parts[:, 0]
            loss = loss + (output * (parts.unsqueeze(-1) * torch.from_numpy(days.SIGNS))).sum()
        dense = dense_loss(self.top, outputs["user"].detach()[:, 0], self.data, at)
        self.dense.zero_grad()
        (loss + dense).backward()  # type: ignore[no-untyped-call]
        self.dense.step()

    def evict(self) -> None:
        for eviction in days.evictions(self.settings, self.day):
            for name, table in self.tables.items():
                dry = table.evict(**eviction.options(), dry_run=True, keys=True)
                real = table.evict(**eviction.options(), keys=True)
                self.report["evicted"].append(
                    {"table": name, "dry": numbers(dry["keys"]), "keys": numbers(real["keys"]),
                     "rows": real["rows"], "leased": real["leased"], "counts": real["counts"],
                     "dry counts": dry["counts"]}
                )  # fmt: skip

    def write_report(self, path: Path, seconds: float) -> None:
        arrays: dict[str, Any] = {}
        self.report["probes"] = {}
        for name, table in self.tables.items():
            with table.scan() as scan:
                batches = list(scan)
            arrays[f"{name} keys"] = np.concatenate([np.empty(0, np.uint64), *(k for k, _ in batches)])
            arrays[f"{name} rows"] = np.concatenate(
                [np.empty((0, days.DIM), np.float32), *(rows for _, rows in batches)]
            )
            probes = [
                table.evict(**probe.options(), dry_run=True, keys=True) for probe in days.PROBES
            ]
            self.report["probes"][name] = [(numbers(of["keys"]), of["counts"]) for of in probes]
        space = self.bank.stats()["space"]
        self.report.update(
            seconds=seconds, live_rows=space["live_rows"], live_bytes=space["live_bytes"],
            held_bytes=space["log_held_bytes"],
            dense=[of.tolist() for of in self.top.parameters()],
        )  # fmt: skip
        self.bank.close()
        np.savez(path.with_suffix(".npz"), **arrays)
        path.with_suffix(".new").write_text(json.dumps(self.report))
        os.replace(path.with_suffix(".new"), path)


def dense_loss(
    top: torch.nn.Linear, rows: torch.Tensor, data: dict[str, Any], at: Any
) -> torch.Tensor:
    """Computes the loss of the dense part. Its target is made from rows that get no gradient from
    it."""
    target = torch.from_numpy(data["user parts"][at][:, :1])
    loss: torch.Tensor = (top(rows) - target).square().mean()
    return loss


def numbers(keys: Any) -> list[int]:
    return sorted(int(key) for key in keys)


def main(settings: days.Settings, day: int, report: Path) -> None:
    torch.set_num_threads(1)
    began = time.monotonic()
    trainer = Trainer(settings, day)
    if trainer.phase == "training":
        trainer.train()
        trainer.save("trained")
    if trainer.phase == "trained":
        trainer.evict()
        trainer.save("done")
    trainer.write_report(report, time.monotonic() - began)


if __name__ == "__main__":
    main(days.Settings.decoded(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
