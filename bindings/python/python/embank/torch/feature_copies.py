"""Copies of a feature store for other processes.

Only one process can open a bank for writing. So a pickled store holds only the bank's path and the
store's name. The copy opens the bank with `read_only` at its first use, in the process that uses
it, and shows a checkpoint. Features that the store put after that checkpoint would be missing
without a warning. So each store records its changes, and the copy refuses to open if the checkpoint
lacks some. Changes of rows by training are not recorded: the copy shows the rows of its checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional

import embank
from embank import Bank

# For each store that has changed a feature: the number of the newest checkpoint at its last change;
# None without a checkpoint. The key is the id of an open bank and the store's name. Each opening of
# a bank has a random id that is never used again.
_changed_after: dict[tuple[str, str], Optional[int]] = {}


class Source(NamedTuple):
    """Where a copy finds the features of a store."""

    path: Path
    memory_budget: int
    """The memory budget, in bytes, of the bank that the store had."""
    checkpoint: Optional[int]
    """The newest checkpoint when the store was pickled, or the checkpoint at which the store's bank
    was opened.
    """
    unsaved: bool
    """Whether the store had changed features that are not in that checkpoint."""

    @classmethod
    def of(cls, bank: Bank, name: str) -> Source:
        checkpoint = bank.last_checkpoint
        key = _key(bank, name)
        unsaved = key in _changed_after and _changed_after[key] == checkpoint
        return cls(bank.path, bank.stats()["memory"]["budget_bytes"], checkpoint, unsaved)

    def open(self, name: str) -> Bank:
        """Opens the bank for reading at the store's checkpoint, or at the newest one if that
        checkpoint is not kept any more.

        Raises:
            RuntimeError: Features of the store are in no checkpoint yet.
            KeyError: The checkpoint does not hold the store.
        """
        kept = [found["number"] for found in embank.list_checkpoints(self.path)]
        checkpoint = self.checkpoint if self.checkpoint in kept else None
        if self.unsaved:
            if max(kept, default=0) <= (self.checkpoint or 0):
                raise RuntimeError(
                    f"feature store {name!r} of {self.path} was pickled with features that are in no checkpoint, and "
                    "a copy in another process shows a checkpoint: call bank.checkpoint() after the last put and "
                    "before the loader starts its workers"
                )
            checkpoint = None
        bank = Bank(
            self.path, memory_budget=self.memory_budget, read_only=True, checkpoint=checkpoint
        )
        if sizes_name(name) not in bank.tables():
            raise KeyError(
                f"checkpoint {bank.last_checkpoint} of {self.path} has no feature store {name!r}: call "
                "bank.checkpoint() after the store is made and before the loader starts its workers"
            )
        return bank


def note_change(bank: Bank, name: str) -> None:
    """Records a change. Must be called after each change of a feature of the store of this name."""
    _changed_after[_key(bank, name)] = bank.last_checkpoint


def sizes_name(name: str) -> str:
    """The table with the sizes of the attributes of a store."""
    return f"{name} sizes"


def _key(bank: Bank, name: str) -> tuple[str, str]:
    opening, _, _ = bank.state_id.partition("-")
    return opening, name
