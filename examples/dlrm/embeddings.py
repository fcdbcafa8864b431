"""The embedding part of the model, as rows in a bank on disk or as tensors in memory.

Both start from the same numbers. The initial value of a row is a pure function of (seed, table,
key), so the tensor in a table's place is `table.initial(vocabulary)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

import embank
import embank.torch
from data import Batch, ClickData, Keys

FILL_ROWS = 65_536


@dataclass(frozen=True)
class TableOptions:
    """Options that all tables of a run share: Adagrad rows of `dim` float32, and the spread of
    their initial values."""

    dim: int
    learning_rate: float
    seed: int
    spread: float = 0.05
    staleness_bound: int | None = None
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32"

    @property
    def torch_bytes_per_row(self) -> int:
        """Bytes that one row costs in memory: `dim` weights and `dim` Adagrad sums."""
        return self.dim * 4 * 2

    def open(self, bank: embank.Bank, data: ClickData) -> list[embank.Table]:
        """Opens or creates a table for each column."""
        return [
            bank.table(
                column.name,
                dim=self.dim,
                optimizer=embank.Adagrad(lr=self.learning_rate),
                initializer=embank.Uniform(-self.spread, self.spread),
                seed=self.seed,
                staleness_bound=self.staleness_bound,
                dtype=self.dtype,
            )
            for column in data.columns
        ]


def embank_bags(tables: list[embank.Table], data: ClickData) -> list[nn.Module]:
    """Makes a bag for each column. Its rows live in the bank, and the bank's optimizer trains them.
    """
    return [
        embank.torch.EmbeddingBag(table, mode=column.pooling)
        for table, column in zip(tables, data.columns, strict=True)
    ]


def torch_bags(tables: list[embank.Table], data: ClickData) -> list[nn.Module]:
    """Makes a `torch.nn.EmbeddingBag` in memory for each column, with the table's initial values.
    """
    bags: list[nn.Module] = []
    for table, column in zip(tables, data.columns, strict=True):
        weight = torch.from_numpy(np.array(initial_values(table, column.vocabulary())))
        bags.append(
            nn.EmbeddingBag(
                weight.shape[0], weight.shape[1], mode=column.pooling, sparse=True, _weight=weight
            )
        )
    return bags


def torch_optimizer(bags: list[nn.Module], options: TableOptions) -> torch.optim.Optimizer:
    """Makes an Adagrad of torch that takes the same steps as the tables' Adagrad."""
    # The checks are off by default, but torch warns unless the program sets them.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    parameters = [parameter for bag in bags for parameter in bag.parameters()]
    return torch.optim.Adagrad(parameters, lr=options.learning_rate)


def batch_keys(tables: list[embank.Table], batch: Batch) -> dict[embank.Table, NDArray[np.int64]]:
    """Returns the keys that training on this batch gets from each table, for Lookahead to announce.
    """
    return {
        table: bag.keys.reshape(-1).numpy() for table, bag in zip(tables, batch.bags, strict=True)
    }


def row_count(data: ClickData) -> int:
    """Returns the number of rows of all tables together after training has got every key of the
    data."""
    return sum(column.vocabulary().size for column in data.columns)


def initial_values(table: embank.Table, keys: Keys) -> NDArray[np.float32]:
    """Returns `table.initial(keys)`, computed in pieces, so that a large vocabulary needs no second
    copy of the rows."""
    rows = np.empty((keys.size, table.dim), dtype=np.float32)
    for begin in range(0, keys.size, FILL_ROWS):
        rows[begin : begin + FILL_ROWS] = table.initial(keys[begin : begin + FILL_ROWS])
    return rows


def fill(tables: list[embank.Table], data: ClickData) -> None:
    """Writes the initial value of every row, in random order.

    Training creates rows with their first get and does not need this. The speed runs fill the
    tables first, so that the tables are several times the budget from the first step on.
    """
    vocabularies = [column.vocabulary() for column in data.columns]
    owner = np.repeat(np.arange(len(tables)), [v.size for v in vocabularies])
    keys = np.concatenate(vocabularies)
    order = np.random.default_rng(0).permutation(keys.size)
    for begin in tqdm(
        range(0, keys.size, FILL_ROWS), desc="filling tables", unit="block", leave=False,
        disable=None,
    ):
        chosen = order[begin : begin + FILL_ROWS]
        for index, table in enumerate(tables):
            part = keys[chosen[owner[chosen] == index]]
            if part.size:
                table.put(part, table.initial(part))
