"""Where the rows of an example's model live: in a bank on disk, or in tensors in memory.

Both start from the same numbers. The initial value of a row is a pure function of (seed, table,
key), so the tensor that stands in for a table is `table.initial(keys)`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

import embank

MEBI = 1 << 20
BUDGET_BYTES_MIN = 2 * MEBI
"""The least that a bank of some tables trains well in."""
ADAGRAD_BYTES_PER_FLOAT = 8
"""A weight and its sum of squares."""
CHUNK_ROWS = 65_536
REPOSITORY = Path(__file__).resolve().parents[2]


def data_folder(name: str) -> Path:
    """Where a data set lies unless the command line says so: `$EMBANK_DATA`, or beside the clone."""
    shared = os.environ.get("EMBANK_DATA", REPOSITORY.parent / "shared" / "data")
    return Path(shared) / name


def scratch_folder(name: str, given: Path | None) -> Path:
    """A new folder for a bank: in the one that was given, or under `target`.

    Not the system's folder for such things: that is memory on many machines, and then nothing would be
    out of core.
    """
    parent = given or REPOSITORY / "target" / "examples"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))


def device_of(bank: embank.Bank) -> dict[str, Any]:
    """What the bank reads its drive with, printed and for the outcome: `device`, `device_notes`."""
    stats = bank.stats()
    print("; ".join([f"device {stats['device']}", *stats["device_notes"]]), flush=True)
    return {"device": stats["device"], "device_notes": list(stats["device_notes"])}


def lookahead(text: str) -> int | Literal["auto"]:
    """The value of `--lookahead`: a number of batches, or auto."""
    return "auto" if text == "auto" else int(text)


def table_bytes(*shapes: tuple[int, int]) -> int:
    """What tables of (rows, dim) weigh in memory, with Adagrad's state."""
    return sum(rows * dim for rows, dim in shapes) * ADAGRAD_BYTES_PER_FLOAT


def budget(bytes_of_tables: int, share: float) -> int:
    """A memory budget that is a share of the tables, in whole MiB, of at least two."""
    return max(BUDGET_BYTES_MIN, int(bytes_of_tables * share) // MEBI * MEBI)


def twin(table: Any, rows: int) -> nn.Embedding:
    """`torch.nn.Embedding` for keys 0..rows, in memory, with the values that the table starts with."""
    weight = torch.empty(rows, table.dim)
    for begin in range(0, rows, CHUNK_ROWS):
        keys = np.arange(begin, min(begin + CHUNK_ROWS, rows))
        weight[begin : begin + CHUNK_ROWS] = torch.from_numpy(table.initial(keys))
    return nn.Embedding(rows, table.dim, _weight=weight, sparse=True)


def twin_optimizer(embeddings: Sequence[nn.Embedding], lr: float) -> torch.optim.Optimizer:
    """The twin of the tables' own Adagrad."""
    # As by default, but without the warning that it is so.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    return torch.optim.Adagrad([embedding.weight for embedding in embeddings], lr=lr)
