"""The model of `thirty_days.py`: tables as dictionaries that follow the rules of docs/life.md, one
get after the other.

It shares the settings and the stream with the trainer, and the initial values with the store. It
computes everything else itself: which keys get a row, their uses, the rows, the rows that an
eviction deletes, the order of the samples, the dense part.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import days
from day_trainer import dense_loss

Row = NDArray[np.float32]
_64_BITS = (1 << 64) - 1


class Evicted(NamedTuple):
    """The rows that an eviction deletes from a table."""

    keys: list[int]
    counts: int
    """Counts before admission that it forgets."""


class TableModel:
    """One table."""

    def __init__(
        self, after_gets: Optional[int] = None, probability: Optional[float] = None
    ) -> None:
        self.after_gets = after_gets
        self.probability = None if probability is None else float(np.float32(probability))
        self.rows: dict[int, Row] = {}
        self.uses: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        """Gets of keys without rows, with admission by count."""
        self.counted: dict[int, int] = {}
        """The time of the last of these Gets."""
        self.gets = 0
        """Gets that had to decide on a key, with admission by chance."""
        self.time = 0
        self.initial: dict[int, Row] = {}

    def get(self, keys: list[int], earlier: Iterable[int] = ()) -> None:
        """Gets rows for training. `earlier` has the keys that this loss has got before."""
        decided = set(earlier)
        open_keys = [key for key in keys if key not in self.rows and key not in decided]
        if open_keys:
            number, self.gets = self.gets, self.gets + 1
            for key in open_keys:
                if self._admits(key, number):
                    self.rows[key] = self.initial[key].copy()
                    self.uses[key] = 0
                    self.last[key] = self.time
                    self._forget([key])

    def _admits(self, key: int, number: int) -> bool:
        if self.after_gets is not None:
            self.counts[key] = self.counts.get(key, 0) + 1
            self.counted[key] = max(self.counted.get(key, 0), self.time)
            return self.counts[key] >= self.after_gets
        return self.probability is None or _draw(days.TABLE_SEED, key, number) < self.probability

    def row(self, key: int) -> Row:
        """Returns the row that a read of this key returns."""
        return self.rows.get(key, self.initial[key])

    def shorten(self, keys: list[int]) -> dict[int, Row]:
        """Returns the rows of a forward pass with `max_norm`. It shortens existing rows, which does
        not count as a use."""
        shown = torch.from_numpy(np.stack([self.row(key) for key in keys]))
        norms = torch.linalg.vector_norm(shown, 2.0, dim=1)
        long = norms > days.MAX_NORM
        shown[long] *= (days.MAX_NORM / (norms[long] + 1e-7)).unsqueeze(1)
        found = dict(zip(keys, shown.numpy()))
        for key in keys:
            if key in self.rows:
                self.rows[key] = found[key].copy()
        return found

    def apply(self, gradients: dict[int, Row]) -> None:
        """Takes a step of SGD. The gradient of a key without a row is dropped."""
        for key, gradient in gradients.items():
            if key in self.rows:
                self.rows[key] = self.rows[key] - np.float32(days.LEARNING_RATE) * gradient
                self.uses[key] += 1
                self.last[key] = max(self.last[key], self.time)

    def lets_go(self, eviction: days.Eviction) -> list[int]:
        return sorted(
            key
            for key in self.rows
            if (
                eviction.unused_for is None
                or max(0, self.time - self.last[key]) >= eviction.unused_for
            )
            and (
                eviction.used_fewer_than is None or self.uses[key] < eviction.used_fewer_than
            )
        )

    def old_counts(self, eviction: days.Eviction) -> list[int]:
        """Returns the keys without rows whose counts of gets an eviction forgets because of their
        age."""
        if eviction.unused_for is None:
            return []
        return [key for key, at in self.counted.items() if self.time - at >= eviction.unused_for]

    def evict(self, eviction: days.Eviction) -> Evicted:
        gone = Evicted(self.lets_go(eviction), len(self.old_counts(eviction)))
        self._forget(self.old_counts(eviction))
        for key in gone.keys:
            del self.rows[key], self.uses[key], self.last[key]
        return gone

    def _forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.counts.pop(key, None)
            self.counted.pop(key, None)


def _draw(seed: int, key: int, number: int) -> float:
    """Returns the number from 0 to 1 that decides admission by probability
    (embedding/src/table/admission.rs)."""
    mixed = seed
    for word in (key, number):
        mixed = ((mixed ^ word) + 0x9E37_79B9_7F4A_7C15) & _64_BITS
        mixed = ((mixed ^ mixed >> 30) * 0xBF58_476D_1CE4_E5B9) & _64_BITS
        mixed = ((mixed ^ mixed >> 27) * 0x94D0_49BB_1331_11EB) & _64_BITS
        mixed ^= mixed >> 31
    return (mixed >> 11) / (1 << 53)


class Model:
    """The whole run without interruptions. It draws from torch's global generator, as the run
    does."""

    def __init__(self, settings: days.Settings, scratch: Any) -> None:
        self.settings = settings
        self._scratch = scratch
        self.tables = {
            "user": TableModel(after_gets=days.ADMIT_AFTER_GETS),
            "item": TableModel(probability=days.ADMIT_PROBABILITY),
            "word": TableModel(),
            "tag": TableModel(),
        }
        torch.manual_seed(settings.seed)
        self.top = torch.nn.Linear(days.DIM, 1)
        self.dense = torch.optim.Adam(self.top.parameters(), lr=0.01)
        self.crcs: list[dict[str, int]] = []
        """Of the day: for each step, the checksum of what each module gives."""
        self.evicted: list[tuple[str, Evicted]] = []

    def train_day(self, day: int) -> None:
        data = days.day_of(self.settings, day)
        names = self.settings.tables(day)
        self._learn_initial_values(names, data)
        time_step = self.settings.time_step(day)
        samples: Any = range(len(data["sample"]))
        self.crcs = []
        loader = DataLoader(samples, batch_size=self.settings.batch_size, shuffle=True)
        for step, batch in enumerate(loader):
            if step == time_step:
                for name in names:
                    self.tables[name].time = day
            self._step(names, data, batch.numpy())
        self.evicted = []
        for eviction in days.evictions(self.settings, day):
            for name in names:
                self.evicted.append((name, self.tables[name].evict(eviction)))

    def _learn_initial_values(self, names: list[str], data: dict[str, Any]) -> None:
        for name in names:
            keys = np.unique(data[name])
            if name == "user":
                keys = np.unique(np.concatenate([keys, data["again"].reshape(-1)]))
            rows = self._scratch.open_table(name).initial(keys)
            self.tables[name].initial.update(zip(keys.view(np.uint64).tolist(), rows))

    def _step(self, names: list[str], data: dict[str, Any], at: Any) -> None:
        crcs = {}
        gradients: dict[str, dict[int, Row]] = {name: {} for name in names}
        user_rows = None
        for name in names:
            modules = ("user", "again") if name == "user" else (name,)
            earlier: list[int] = []
            for module in modules:
                keys = data[module][at].view(np.uint64)
                distinct = np.unique(keys).tolist()
                table = self.tables[name]
                table.get(distinct, earlier)
                earlier = distinct
                if module == "user" and self.settings.max_norm:
                    shown = table.shorten(distinct)
                else:
                    shown = {key: table.row(key) for key in distinct}
                output = np.stack([shown[key] for key in keys.reshape(-1).tolist()])
                output = output.reshape(*keys.shape, days.DIM)
                parts = data[f"{module} parts"][at]
                if module == "word":
                    parts = np.broadcast_to(parts[:, :1], keys.shape)
                    # Added in the order in which the bag adds them.
                    output = (output[:, 0] + output[:, 1]) + output[:, 2]
                if module == "user":
                    user_rows = torch.from_numpy(output[:, 0].copy())
                crcs[module] = zlib.crc32(output.tobytes())
                _add_gradients(gradients[name], keys, parts)
        for name in names:
            self.tables[name].apply(gradients[name])
        self.crcs.append(crcs)
        assert user_rows is not None
        self.dense.zero_grad()
        dense = dense_loss(self.top, user_rows, data, at)
        dense.backward()  # type: ignore[no-untyped-call]
        self.dense.step()


def _add_gradients(gradients: dict[int, Row], keys: Any, parts: Any) -> None:
    """Adds the gradient of each place to the gradient of its key. All sums are exact."""
    sums: dict[int, float] = {}
    for key, part in zip(keys.reshape(-1).tolist(), parts.reshape(-1).tolist()):
        sums[key] = sums.get(key, 0.0) + part
    for key, total in sums.items():
        more = np.float32(total) * days.SIGNS
        gradients[key] = gradients[key] + more if key in gradients else more
