"""What a module's `state_dict` says about rows that are not in it.

A state dict of the dense part alone would load into a model whose tables stand somewhere else, and
nobody would notice but the metrics. So a module's extra state names the checkpoint that
holds its rows: number and random id, which copies of a bank share and no other checkpoint has. Loading
it compares the two with where the bank is, and raises with the way there if it is elsewhere.

A state dict that goes into a checkpoint's own blob is older than the checkpoint and can't know it. It
belongs to it all the same if no row changed in between. So each extra state has the bank's `state_id`, and `save`
puts the `state_id` that the bank has right before the checkpoint into the blob, as `taken_at` makes letters of it
(pickle and `torch.save` compress nothing). Where the two are equal, rows and dense part are of one moment. A state
dict that is kept in a blob for other reasons (the best so far) has another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import embank

if TYPE_CHECKING:
    from embank import Bank, Table

_FORMAT = 2


def reference(tables: Sequence[Table]) -> dict[str, Any]:
    """Which tables, and at which checkpoint of which bank. Numbers, strings and lists alone."""
    return {
        "embank": _FORMAT,
        "tables": [
            {"name": table.name, "dim": table.dim, **_position(table.bank)} for table in tables
        ],
    }


def _position(bank: Bank) -> dict[str, Union[str, int, bool, None]]:
    number = bank.last_checkpoint
    return {
        "bank": str(bank.path),
        "state_id": bank.state_id,
        "checkpoint": number,
        "id": None if number is None else _kept(bank).get(number),
        "changed": bank.changed_since_checkpoint,
    }


def taken_at(state_id: str) -> str:
    """What the blob of a checkpoint holds, in letters, that was taken when the bank was in that state."""
    return f"embank.torch.save at {state_id};"


def check_reference(tables: Sequence[Table], state: Any) -> None:
    """Returns if each table's bank is at the checkpoint that `state` refers to.

    Raises `ValueError` with what to do otherwise.
    """
    if not isinstance(state, dict) or state.get("embank") != _FORMAT:
        raise ValueError("this state dict was not made by this version of embank.torch")
    saved = [(of["name"], of["dim"]) for of in state["tables"]]
    actual = [(table.name, table.dim) for table in tables]
    if saved != actual:
        raise ValueError(
            f"the state dict is of tables {saved} (name and dim), the module's are {actual}: make the "
            "module over those"
        )
    for table, of in zip(tables, state["tables"]):
        problem = _problem(table.bank, of)
        if problem is not None:
            raise ValueError(f"table {table.name!r} is not where this state dict left it: {problem}")


def _problem(bank: Bank, of: dict[str, Any]) -> Optional[str]:
    number, identity, kept, at = of["checkpoint"], of["id"], _kept(bank), bank.last_checkpoint
    recovered = bank.recovered
    if recovered is not None and taken_at(of["state_id"]).encode() in recovered.blob:
        number, identity = recovered.checkpoint, kept.get(recovered.checkpoint)
    elif number is None or of["changed"]:
        return (
            f"it was made when rows of {of['bank']} had changed since the last checkpoint, and the checkpoint that the "
            "bank was opened at was not taken with it; save with embank.torch.save(bank, ...), or call "
            "bank.checkpoint() before model.state_dict()"
        )
    if identity is None or kept.get(number) != identity:
        return (
            f"it refers to checkpoint {number} of {of['bank']}, which {bank.path} does not hold (it keeps "
            f"{sorted(kept)}); it is another bank, or checkpoints_kept is too small"
        )
    if at != number:
        return (
            f"it refers to checkpoint {number}, and {bank.path} is at checkpoint {at}; close the bank and "
            f"call embank.roll_back({str(bank.path)!r}, {number}), which gives the newer ones up, or open it with "
            f"read_only=True, checkpoint={number}"
        )
    if bank.changed_since_checkpoint:
        return (
            f"rows have changed since checkpoint {number}; close {bank.path} without another checkpoint, open "
            "it again, and load then"
        )
    return None


def _kept(bank: Bank) -> dict[int, int]:
    """The id of each kept checkpoint, by its number."""
    return {of["number"]: of["id"] for of in embank.list_checkpoints(bank.path)}
