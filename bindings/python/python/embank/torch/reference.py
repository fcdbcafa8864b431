"""What a module's `state_dict` records about the rows, which it does not contain.

Without this record, a state dict of the dense part would load into a model whose tables are at
another checkpoint, and only the metrics would show the fault. So a module's extra state names the
checkpoint that holds its rows, by number and random id. Copies of a bank share the id, and no other
checkpoint has it. Loading compares both with the bank's checkpoint. If they differ, it raises an
error that names the cure.

A state dict that is made before its checkpoint can't name it: a state dict in the checkpoint's own
blob, or in a file of a framework. It still belongs to the checkpoint if no row changed in between.
So each extra state has the bank's `state_id`, and `embank.checkpoint_id` computes from it the id of
a checkpoint that holds this state. While the bank is open, an equal `state_id` proves that no row
has changed, also without a checkpoint.

`save` also writes the bank's `state_id` from right before the checkpoint into the blob, as letters
(`taken_at`), because pickle and `torch.save` do not compress. `embank evict` and `embank compact`
take checkpoints with the blob of the checkpoint before. The letters show that state dicts with this
`state_id`, in the blob or in files, belong to the new checkpoint too.

The extra state is a tensor of bytes that holds JSON, so that safetensors accepts the state dict.

Tables are compared by name, because the state does not depend on the order of a model's tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

import embank

from .caller import warn_caller
from .many import is_sharded

if TYPE_CHECKING:
    from embank import Bank

    from .many import AnyTable as Table

# The version of the JSON in a state dict. Older versions stored a dictionary in place of a tensor.
# This version reads the dictionary too.
_FORMAT = 2

# More than the JSON of a table has without its name.
_POSITION_BYTES_MAX = 512

# The last part of the key under which a state dict has a module's extra state.
EXTRA_STATE = "_extra_state"

_taking_checkpoint: ContextVar[bool] = ContextVar("_taking_checkpoint", default=False)


@contextmanager
def taking_checkpoint() -> Iterator[None]:
    """State dicts that the block makes are for a checkpoint's blob, so they do not warn that no
    checkpoint holds their rows.
    """
    before = _taking_checkpoint.set(True)
    try:
        yield
    finally:
        _taking_checkpoint.reset(before)


def reference(tables: Sequence[Table], features: Optional[Mapping[str, str]] = None) -> Tensor:
    """Returns the tables, the checkpoint and bank of each, and the table of each feature, as JSON:
    uint8 `(n,)`.

    Warns if no checkpoint of a bank holds the present rows.
    """
    positions = [
        _position(table.bank) if isinstance(table.bank, embank.Bank) else table.bank.position()
        for table in tables
    ]
    state: dict[str, Any] = {
        "embank": _FORMAT,
        "tables": [
            {"name": table.name, "dim": table.dim, **at} for table, at in zip(tables, positions)
        ],
    }
    if features is not None:
        state["features"] = dict(features)
    unsaved = [table for table, at in zip(tables, positions) if at["changed"] or at["id"] is None]
    if unsaved and not _taking_checkpoint.get():
        names = ", ".join(repr(table.name) for table in unsaved)
        warn_caller(
            f"no checkpoint of {unsaved[0].bank.path} holds the rows of table {names} that this state dict refers to, so "
            "another process can't load it: call bank.checkpoint() before state_dict(), or after it and before a row "
            "changes"
        )
    content = json.dumps(state).encode()
    if any(is_sharded(table) for table in tables):
        # `torch.distributed.checkpoint` loads into a tensor of the same length, so the length
        # depends on the names alone.
        names = json.dumps([[table.name for table in tables], state.get("features")])
        content = content.ljust(len(names) + _POSITION_BYTES_MAX * (len(tables) + 1))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def decoded(state: Any) -> Optional[dict[str, Any]]:
    """Returns what `reference` has put into a state. None if `reference` did not make the state."""
    if isinstance(state, Tensor):
        try:
            state = json.loads(bytes(state.detach().reshape(-1).to("cpu", torch.uint8).tolist()))
        except ValueError:
            return None
    return state if isinstance(state, dict) and state.get("embank") == _FORMAT else None


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
    """Returns the letters that `save` puts into the blob of a checkpoint that it takes in this
    state of the bank.
    """
    return f"embank.torch.save at {state_id};"


class Differences(NamedTuple):
    """The differences between the tables and features of a module and of a state, as keys of a
    state dict: `tables.NAME` and `features.NAME`. A feature that has another table now is in both
    lists.
    """

    missing: list[str]
    """The keys that the module has and the state lacks."""
    unexpected: list[str]
    """The keys that the state has and the module lacks."""


def differences(tables: Sequence[Table], features: Optional[Mapping[str, str]], state: Any) -> Differences:
    """Compares tables and features by name."""
    found = Differences([], [])
    of = decoded(state)
    if of is None:
        return found
    pairs = _pairs(tables, of["tables"])
    paired = [id(table) for table, _ in pairs], [id(saved) for _, saved in pairs]
    found.missing.extend(f"tables.{table.name}" for table in tables if id(table) not in paired[0])
    found.unexpected.extend(f"tables.{each['name']}" for each in of["tables"] if id(each) not in paired[1])
    # States of older versions have no entry for features.
    saved = of.get("features")
    if saved is not None and features is not None:
        found.missing.extend(f"features.{name}" for name, at in features.items() if saved.get(name) != at)
        found.unexpected.extend(f"features.{name}" for name, at in saved.items() if features.get(name) != at)
    return found


def _pairs(
    tables: Sequence[Table], saved: Sequence[dict[str, Any]]
) -> list[tuple[Table, dict[str, Any]]]:
    """Pairs each table with the entry of its name. If tables of two banks have one name, the entry
    with the table's path is preferred.
    """
    found = []
    left, entries = list(tables), list(saved)
    for any_path in (False, True):
        for table in list(left):
            for of in entries:
                if of["name"] == table.name and (any_path or of["bank"] == str(table.bank.path)):
                    found.append((table, of))
                    left.remove(table)
                    entries.remove(of)
                    break
    return found


def check_reference(tables: Sequence[Table], state: Any) -> None:
    """Checks that the bank of each table in `state` is at the checkpoint that the state refers to.

    If not, raises `ValueError` with the cure.
    """
    of = decoded(state)
    if of is None:
        raise ValueError("this state dict was not made by this version of embank.torch")
    for table, saved in _pairs(tables, of["tables"]):
        if table.dim != saved["dim"]:
            raise ValueError(
                f"table {table.name!r} has rows of {table.dim} columns, and in the state dict {saved['dim']}: make the "
                f"module over a table of {saved['dim']} columns"
            )
        bank = table.bank
        problem = _problem(bank, saved) if isinstance(bank, embank.Bank) else bank.problem(saved)
        if problem is not None:
            raise ValueError(f"table {table.name!r} is not where this state dict left it: {problem}")


def roll_back(bank: Bank, state_dict: Mapping[str, Any]) -> list[int]:
    """Takes the open bank back to the checkpoint that a model's state dict refers to.

    Rows and optimizer state are then those of that moment, so `load_state_dict` accepts the state
    dict. If the bank has these rows already, the call does nothing. Otherwise it calls
    `Bank.roll_back`: newer checkpoints are given up, and leases, scans and feeds end.

    Keep the checkpoint until then with `Bank.pin`, or with a larger `checkpoints_kept`.

    Args:
        bank: The bank, open for writing.
        state_dict: The result of `state_dict()` of a model with tables of the bank, or of its
            module.

    Returns:
        The numbers of the checkpoints that were given up.

    Raises:
        ValueError: The state dict has no tables, or the bank keeps no checkpoint with their rows.
        embank.EmbankError: The errors of `Bank.roll_back`.

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("best.bank", memory_budget="16MiB")
    >>> words = bank.table("word", dim=2, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros())
    >>> model = embank.torch.Embedding(words)
    >>> bank.pin(bank.checkpoint())
    >>> best = model.state_dict()
    >>> model(torch.tensor([7])).sum().backward()
    >>> embank.torch.roll_back(bank, best)
    []
    >>> model.load_state_dict(best)
    <All keys matched successfully>
    >>> words.peek([7]).tolist()
    [[0.0, 0.0]]
    >>> bank.close()
    """
    states = [decoded(state) for key, state in state_dict.items() if key.endswith(EXTRA_STATE)]
    entries = [entry for state in states if state is not None for entry in state["tables"]]
    # The state dict may be of a model with tables of another bank too.
    own = [entry for entry in entries if entry["bank"] == str(bank.path)] or entries
    if not own:
        raise ValueError(
            "this state dict has no tables of embank.torch: give roll_back the result of model.state_dict()"
        )
    if all(_has_rows(bank, entry) for entry in own):
        return []
    return bank.roll_back(max(_checkpoint(bank, entry, _kept(bank)) for entry in own))


def _problem(bank: Bank, of: dict[str, Any]) -> Optional[str]:
    """Returns why the bank does not have the rows of a table's entry. None if it has them."""
    if _has_rows(bank, of):
        return None
    try:
        number = _checkpoint(bank, of, _kept(bank))
    except ValueError as error:
        return str(error)
    at = bank.last_checkpoint
    cure = (
        f"call embank.torch.roll_back(bank, state_dict), or bank.roll_back({number}), which gives up all later changes and "
        "checkpoints"
    )
    if at != number:
        return (
            f"it refers to checkpoint {number}, and {bank.path} is at checkpoint {at}; {cure} (until then, keep the "
            f"checkpoint with bank.pin({number})), or open the bank with read_only=True, checkpoint={number}"
        )
    return f"rows have changed since checkpoint {number}; {cure}" if bank.changed_since_checkpoint else None


def _has_rows(bank: Bank, of: dict[str, Any]) -> bool:
    """Whether no row has changed since the state dict was made: the bank still has its `state_id`.
    """
    number, at, recovered = of["checkpoint"], bank.last_checkpoint, bank.recovered
    # There is one exception: `refresh` moves a bank that is open for reading to a newer checkpoint
    # (`recovered`), and its `state_id` stays.
    moved = number != at and recovered is not None and recovered.checkpoint == at
    return bool(of["state_id"] == bank.state_id) and not moved


def _checkpoint(bank: Bank, of: dict[str, Any], kept: Mapping[int, int]) -> int:
    """Returns the number of the checkpoint that has the rows of a table's entry.

    Raises:
        ValueError: The bank keeps no such checkpoint.
    """
    number, identity = of["checkpoint"], of["id"]
    at, recovered = bank.last_checkpoint, bank.recovered
    held_by = [each for each, found in kept.items() if found == embank.checkpoint_id(of["state_id"], each)]
    if recovered is not None and taken_at(of["state_id"]).encode() in recovered.blob:
        number, identity = recovered.checkpoint, kept.get(recovered.checkpoint)
    elif held_by:
        number = at if at in held_by else max(held_by)
        identity = kept[number]
    elif number is None or of["changed"]:
        raise ValueError(
            f"it was made when rows of {of['bank']} had changed since the last checkpoint, and no checkpoint that {bank.path} "
            "keeps has the rows of that moment; save with embank.torch.save(bank, ...), or call bank.checkpoint() right "
            "before or after model.state_dict()"
        )
    if identity is None or kept.get(number) != identity:
        raise ValueError(
            f"it refers to checkpoint {number} of {of['bank']}, which {bank.path} does not hold (it keeps "
            f"{sorted(kept)}); it is another bank, or the checkpoint was not kept: call bank.pin(number) after "
            "bank.checkpoint(), or open the bank with a larger checkpoints_kept"
        )
    return int(number)


def _kept(bank: Bank) -> dict[int, int]:
    """The id of each kept checkpoint, by its number."""
    return {of["number"]: of["id"] for of in embank.list_checkpoints(bank.path)}
