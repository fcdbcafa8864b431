"""What the tests of sharded banks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import embank
from embank.torch.distributed import ShardedBank, ShardedTable


def opened(directory: Path, **options: Any) -> ShardedBank:
    """Opens a fleet on all ranks."""
    return ShardedBank(directory, **{"memory_budget": "16MiB", "timeout": 60.0, **options})


def items(bank: ShardedBank, name: str = "item", **options: Any) -> ShardedTable:
    """A table of two columns, whose rows begin as zeros: SGD with a rate of 1."""
    given = {"optimizer": embank.SGD(lr=1.0), "initializer": embank.Zeros(), **options}
    return bank.table(name, dim=2, **given)


def error_of(call: Callable[[], object]) -> str:
    """The class and the text of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
