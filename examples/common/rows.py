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
"""Smallest memory budget, in bytes, that an example gives a bank. Smaller ones train slowly."""
ADAGRAD_BYTES_PER_FLOAT = 8
"""Bytes of a float32 weight and of its sum of squares."""
CHUNK_ROWS = 65_536
REPOSITORY = Path(__file__).resolve().parents[2]


def data_folder(name: str) -> Path:
    """Returns the default folder of a data set: in `$EMBANK_DATA`, or in `shared/data` beside the
    clone."""
    shared = os.environ.get("EMBANK_DATA", REPOSITORY.parent / "shared" / "data")
    return Path(shared) / name


def scratch_folder(name: str, given: Path | None) -> Path:
    """Makes a new folder for a bank, in `given` or under `target`.

    The system's temporary folder is in memory on many machines, so a bank there would not be on
    disk.
    """
    parent = given or REPOSITORY / "target" / "examples"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))


def device_of(bank: embank.Bank) -> dict[str, Any]:
    """Prints and returns how the bank reads its drive: `device` and `device_notes`."""
    stats = bank.stats()
    print("; ".join([f"device {stats['device']}", *stats["device_notes"]]), flush=True)
    return {"device": stats["device"], "device_notes": list(stats["device_notes"])}


def lookahead(text: str) -> int | Literal["auto"]:
    """The value of `--lookahead`: a number of batches, or auto."""
    return "auto" if text == "auto" else int(text)


def table_bytes(*shapes: tuple[int, int]) -> int:
    """Returns the bytes of tables of (rows, dim) in memory, with Adagrad's state."""
    return sum(rows * dim for rows, dim in shapes) * ADAGRAD_BYTES_PER_FLOAT


def budget(bytes_of_tables: int, share: float) -> int:
    """Returns `share` of the tables' bytes as a memory budget: whole MiB, at least two."""
    return max(BUDGET_BYTES_MIN, int(bytes_of_tables * share) // MEBI * MEBI)


def twin(table: Any, rows: int) -> nn.Embedding:
    """Makes a `torch.nn.Embedding` for the keys 0..rows, with the table's initial values."""
    weight = torch.empty(rows, table.dim)
    for begin in range(0, rows, CHUNK_ROWS):
        keys = np.arange(begin, min(begin + CHUNK_ROWS, rows))
        weight[begin : begin + CHUNK_ROWS] = torch.from_numpy(table.initial(keys))
    return nn.Embedding(rows, table.dim, _weight=weight, sparse=True)


def twin_optimizer(embeddings: Sequence[nn.Embedding], lr: float) -> torch.optim.Optimizer:
    """Makes an Adagrad of torch that takes the same steps as the tables' Adagrad."""
    # The checks are off by default, but torch warns unless the program sets them.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    return torch.optim.Adagrad([embedding.weight for embedding in embeddings], lr=lr)
