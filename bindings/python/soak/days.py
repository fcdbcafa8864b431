"""The stream and the settings that the trainer and the model of `thirty_days.py` share."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

import embank

DIM = 8
LEARNING_RATE = 0.125
"""A power of two: the product with a gradient is exact, so a step rounds once, fused or not."""
MAX_NORM = 0.17
"""Some initial rows are longer: what shortens them must not admit their keys."""
ADMIT_AFTER_GETS = 3
ADMIT_PROBABILITY = 0.3
TABLE_SEED = 7
GROWTH = 1.05
"""Keys of a day over those of the day before."""
SIGNS = np.array([1.0, 0.5, -1.0, 2.0, -0.5, 0.25, 1.5, -2.0], np.float32)
"""The gradient of a row is a multiple of this; multiples of 1/64 add up without rounding."""
CHECKPOINT_STEPS = 7
FEATURE_DAY = 10
KILL_DAY = 20
EVICT_EVERY_DAYS = 3


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings that the supervisor passes to each day's process."""

    seed: int
    bank: str
    keys: int
    steps: int
    batch_size: int
    max_norm: bool
    """Whether the module over `user` has a `max_norm`."""
    shared: bool
    """Whether two modules over `user` have keys in common in one loss."""
    late_time: bool
    """Whether some days set the time only in the middle of the day."""
    feature_day: int
    kill_day: int
    evict_every_days: int

    def encoded(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def decoded(cls, text: str) -> Settings:
        return cls(**json.loads(text))

    def tables(self, day: int) -> list[str]:
        """Returns the tables that are trained on a day, in the order of their forward passes."""
        return ["user", "item", "word"] + (["tag"] if day >= self.feature_day else [])

    def time_step(self, day: int) -> int:
        """Returns the step before which the day sets the time."""
        return self.steps // 2 if self.late_time and day % 4 == 3 else 0


class Eviction(NamedTuple):
    unused_for: Optional[int]
    used_fewer_than: Optional[int]

    def options(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


PROBES = [
    Eviction(1, None), Eviction(3, None), Eviction(6, None),
    Eviction(None, 1), Eviction(None, 2), Eviction(None, 4), Eviction(None, 16), Eviction(2, 3),
]  # fmt: skip
"""Dry runs at the end of each day, which show the last use and the number of uses of each row."""


def evictions(settings: Settings, day: int) -> list[Eviction]:
    """Returns the evictions at the end of a day, for each table."""
    if day % settings.evict_every_days != 0:
        return []
    return [Eviction(2 * settings.evict_every_days, None), Eviction(1, 2)]


def table_options(name: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "optimizer": embank.SGD(lr=LEARNING_RATE),
        "initializer": embank.Uniform(-0.1, 0.1),
        "seed": TABLE_SEED,
        "tracking": "set_time",
    }
    if name == "user":
        options["admit_after_gets"] = ADMIT_AFTER_GETS
    if name == "item":
        options["admit_probability"] = ADMIT_PROBABILITY
    return options


def open_table(bank: embank.Bank, name: str) -> embank.Table:
    return bank.table(name, DIM, **table_options(name))


def pool(settings: Settings, day: int) -> int:
    """Returns the number of keys that have appeared by the end of a day, in each table."""
    return int(settings.keys * GROWTH ** (day - 1))


def keys_of(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Spreads ids over 64 bits as hashes are spread. Distinct ids get distinct keys."""
    return (ids.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)).view(np.int64)


COLUMNS = {"user": 2, "again": 2, "item": 2, "word": 3, "tag": 1}
"""Keys of a sample; `again` is what the second module over `user` gets."""


def day_of(settings: Settings, day: int) -> dict[str, NDArray[Any]]:
    """Draws the samples of a day: keys `(samples, columns)`, and the gradient's factor for each
    key.

    A twentieth of the day's keys are new; each comes one to four times. The others are old, by
    Zipf's law over fixed ranks, so most old keys are rare.
    """
    rng = np.random.default_rng([settings.seed, day])
    samples = settings.steps * settings.batch_size
    found: dict[str, NDArray[Any]] = {"sample": np.arange(samples)}
    known, before = pool(settings, day), pool(settings, day - 1) if day > 1 else 0
    # Ranks come from a hash, so that new keys get any rank.
    ranked = np.argsort(keys_of(np.arange(known)), kind="stable")
    for name, columns in COLUMNS.items():
        places = samples * columns
        ids = ranked[(known ** rng.random(places)).astype(np.int64) - 1]
        new = np.arange(before, known) if day > 1 else np.empty(0, np.int64)
        new = np.repeat(new, np.minimum(rng.geometric(0.6, len(new)), 4))
        new = rng.permutation(new)[: places // 2]
        at = rng.choice(places, len(new), replace=False)
        ids[at] = new
        found[name] = keys_of(ids).reshape(samples, columns)
        parts = rng.integers(1, 33, (samples, columns)) * rng.choice([-1, 1], (samples, columns))
        found[f"{name} parts"] = (parts / 64).astype(np.float32)
    if settings.shared:
        # Half of the second module's keys are keys of the first module.
        found["again"][:, 0] = found["user"][:, 0]
    else:
        # The second module gets other keys than the first, so no key is in both modules in the loss
        # of a step.
        found["again"] = found["again"] ^ np.int64(1 << 40)
    return found
