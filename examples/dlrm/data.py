"""Click data in columns: labels, dense features, and keys of categorical features.

A column holds one key a row, or several (the genres of a film). Keys are 64-bit integers of any
value: Embank takes them as they are. `torch.nn.EmbeddingBag` wants positions 0..n-1 instead, so
`ClickData.numbered` replaces every key by its position in the column's sorted vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

Keys = NDArray[np.int64]


@dataclass(frozen=True)
class Column:
    """One categorical feature.

    `starts` is None if every row has exactly one key. Otherwise row `i` has the keys
    `values[starts[i]:starts[i + 1]]`, and `starts` has one entry more than the data has rows.
    """

    name: str
    values: Keys
    starts: Keys | None = None

    @property
    def pooling(self) -> Literal["sum", "mean"]:
        """How the vectors of the keys of one row become one vector."""
        return "sum" if self.starts is None else "mean"

    def vocabulary(self) -> Keys:
        """The distinct keys, sorted."""
        return np.unique(self.values)

    def numbered(self) -> Column:
        """Returns the column with each key replaced by its position in the vocabulary."""
        vocabulary = self.vocabulary()
        return replace(self, values=np.searchsorted(vocabulary, self.values))

    def take(self, rows: Keys | slice) -> Bag:
        """Returns the keys of these rows, as the input of one embedding bag."""
        if self.starts is None:
            keys = np.ascontiguousarray(self.values[rows])
            return Bag(torch.from_numpy(keys).unsqueeze(1), None)
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.starts.size - 1))
        lengths = self.starts[rows + 1] - self.starts[rows]
        offsets = np.cumsum(lengths) - lengths
        places = np.repeat(self.starts[rows] - offsets, lengths) + np.arange(lengths.sum())
        return Bag(torch.from_numpy(self.values[places]), torch.from_numpy(offsets))


@dataclass(frozen=True)
class Bag:
    """Input of one embedding bag: keys (B, 1) and no offsets, or keys (n,) and offsets (B,)."""

    keys: torch.Tensor
    offsets: torch.Tensor | None


@dataclass(frozen=True)
class Batch:
    """A batch of B rows: `dense` (B, features) float32, a bag for each column, `labels` (B,)
    float32 of 0 and 1."""

    dense: torch.Tensor
    bags: list[Bag]
    labels: torch.Tensor


@dataclass(frozen=True)
class ClickData:
    """Rows of a click log: `labels` (n,) uint8, `dense` (n, features) float32, and columns."""

    labels: NDArray[np.uint8]
    dense: NDArray[np.float32]
    columns: list[Column]

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def numbered(self) -> ClickData:
        """Returns the data with positions in place of keys, as in-memory tables need them."""
        return replace(self, columns=[column.numbered() for column in self.columns])

    def batch(self, rows: Keys | slice) -> Batch:
        """Gathers these rows."""
        return Batch(
            dense=torch.from_numpy(np.array(self.dense[rows])),
            bags=[column.take(rows) for column in self.columns],
            labels=torch.from_numpy(self.labels[rows].astype(np.float32)),
        )


@dataclass(frozen=True)
class Split:
    """Row numbers `[0, train)`, `[train, valid)` and `[valid, test)`, in order of time."""

    train: int
    valid: int
    test: int

    @staticmethod
    def by_time(rows: int) -> Split:
        """Returns a split: the first 80% for training, the next 10% for validation, and the last
        10% for the test."""
        return Split(rows * 8 // 10, rows * 9 // 10, rows)


@dataclass(frozen=True)
class BatchOrder:
    """The rows that each step trains on: a pure function of the step's number.

    A resumed run needs only its step number to continue with the rows that the killed run would
    have taken. `shuffle` draws a new order for every epoch from (seed, epoch).
    """

    rows: int
    batch_size: int
    epochs: int
    shuffle: bool
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.rows // self.batch_size)

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def samples_before(self, step: int) -> int:
        """Returns the number of rows that the steps before `step` have trained on."""
        epoch, within = divmod(step, self.steps_per_epoch)
        return epoch * self.rows + within * self.batch_size

    def from_step(self, first: int) -> Iterator[Keys | slice]:
        """Yields the rows of step `first`, and then those of each later step."""
        for epoch in range(first // self.steps_per_epoch, self.epochs):
            order: Keys | None = None
            if self.shuffle:
                order = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
            skipped = max(0, first - epoch * self.steps_per_epoch)
            for begin in range(skipped * self.batch_size, self.rows, self.batch_size):
                end = min(begin + self.batch_size, self.rows)
                yield slice(begin, end) if order is None else order[begin:end]
