"""The checkpoints of a fleet, which is all shards together: sets.

Each shard takes a checkpoint, and then every shard writes a record that names the checkpoints of
all. `embank._embank.Shard` has the files and their order. This module has what the ranks tell each
other.

A rank has bytes of its own in a set, such as its place in the data. They go with its rank, and the
shard that it serves may be another one after a restart. So the record holds the bytes of all ranks,
equal ones once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from embank._embank import FleetSet, Shard, plan_fleet

from ..reference import EXTRA_STATE, decoded, taken_at
from .errors import ForAll, packed, unpacked
from .exchange import Exchange

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from embank import Bank

REFERENCE_BYTES = 512
"""The length of the tensor in a state dict. `torch.distributed.checkpoint` loads into a tensor of
the same shape, so the length must not depend on what the tensor holds."""
_MAGIC = b"embank.ranks\0"


class RecoveredSet(NamedTuple):
    """The set that a sharded bank was opened at."""

    number: int
    id: int
    """A random number, which copies and `embank reshard` keep."""
    blob: bytes
    """The bytes that this rank gave to `ShardedBank.checkpoint`."""

    @property
    def checkpoint(self) -> int:
        """The number of the set."""
        return self.number


class SetName(NamedTuple):
    """Names one set, for `ShardedBank(set=...)`: see `set_of`."""

    number: int
    id: int
    """A random number. A set that is taken after the fleet went back has another one, also if it
    has the same number."""

    def __repr__(self) -> str:
        return f"SetName(number={self.number}, id=0x{self.id:016x})"


def on_all(exchange: Exchange, make: Callable[[], bytes]) -> list[bytes]:
    """Calls `make`, and returns what it has returned on all ranks.

    Raises:
        ForAll: It has failed on a rank. All ranks raise the error of the first such rank.
    """
    failure: Optional[Exception] = None
    try:
        content = b"+" + make()
    except Exception as error:
        failure, content = error, b"-" + packed(error).encode()
    contents = exchange.contents(content)
    for rank, of in enumerate(contents):
        if of.startswith(b"-"):
            if failure is not None and rank == exchange.rank:
                raise ForAll(failure)
            raise ForAll(unpacked(of[1:].decode(), f"rank {rank}"))
    return [of[1:] for of in contents]


def settle(exchange: Exchange, shard: Shard, at: Union[int, SetName, None]) -> Sequence[str]:
    """Brings all shards to the newest complete set, or to the set `at`. A new fleet takes its first
    set. Returns what is wrong with newer sets that are not complete.
    """
    views = on_all(exchange, shard.view)
    # Depends on the views and on a set that is the same on all ranks, so all raise its error.
    number_at, id_at = at if isinstance(at, SetName) else (at, None)
    plan = plan_fleet(views, number_at, id_at)

    def check() -> bytes:
        shard.check(plan)
        return b""

    # Before any shard settles: a shard that goes back removes its checkpoints of later sets.
    on_all(exchange, check)
    record: Optional[bytes] = None
    if plan.lacking:
        assert plan.set is not None and plan.holder is not None
        number, holder = plan.set, plan.holder
        records = on_all(
            exchange, lambda: shard.record(number) if shard.shard == holder else b""
        )
        record = next(of for of in records if of)

    def make() -> bytes:
        shard.settle(plan, record)
        return b""

    on_all(exchange, make)
    if plan.set is None:
        take(exchange, shard, b"")
    passed_over: Sequence[str] = plan.passed_over
    return passed_over


class Sets:
    """The sets of one bank.

    Args:
        exchange: The ranks.
        shard: This rank's shard, settled.
    """

    def __init__(self, exchange: Exchange, shard: Shard) -> None:
        self._exchange = exchange
        self.shard = shard
        self._changed = False
        # Read once, because the record has the bytes of all ranks.
        # Number 0 is that of a new fleet without another set.
        self._read: Optional[SetName] = None

    def take(self, blob: bytes) -> FleetSet:
        """Takes a set. All ranks raise the error of the first shard that fails."""
        self._read = None
        taken = take(self._exchange, self.shard, blob)
        self._read = SetName(taken.number, taken.id)
        self._changed = False
        return taken

    def change(self) -> None:
        """Records that a shard may have changed. Called on all ranks at the same calls, so they
        agree, also if the rows of one call are all in one shard.
        """
        self._changed = True

    def changed(self, local: Bank) -> bool:
        """Whether rows have changed since the newest set. A change of the shard alone, such as an
        eviction, counts on its rank.
        """
        return self._changed or local.changed_since_checkpoint

    @property
    def recovered(self) -> Optional[RecoveredSet]:
        """The set that the bank was opened at. None for a new fleet."""
        of = self.shard.recovered
        if of is None or of.number == 0:
            return None
        return RecoveredSet(of.number, of.id, own(of.blob, self._exchange.rank))

    @property
    def newest(self) -> Optional[SetName]:
        """The newest set. None for a new fleet."""
        if self._read is None:
            kept = self.shard.sets()
            self._read = SetName(kept[-1].number, kept[-1].id) if kept else SetName(0, 0)
        return self._read if self._read.number > 0 else None

    def position(self, local: Bank) -> dict[str, Any]:
        """What a state dict records of the bank."""
        newest, identity = self.newest, self.shard.identity
        return {
            "bank": "fleet " + ("" if identity is None else identity.fleet.hex()),
            "shards": self.shard.shards,
            "state_id": local.state_id,
            "checkpoint": None if newest is None else newest.number,
            "id": None if newest is None else newest.id,
            "changed": self.changed(local),
        }

    def problem(self, position: Mapping[str, Any], local: Bank) -> Optional[str]:
        """Returns why the rows are not those of a `position`. None if they are."""
        if position["state_id"] == local.state_id:
            return None
        newest, recovered = self.newest, self.recovered
        number, expected = position["checkpoint"], position["id"]
        if recovered is not None and taken_at(position["state_id"]).encode() in recovered.blob:
            # `embank.torch.save` has made the position right before this set.
            number, expected = recovered.number, recovered.id
        elif expected is None or position["changed"]:
            return (
                "it was made when rows had changed since the last set: save with embank.torch.save(bank, ...), or call "
                "bank.checkpoint() before state_dict()"
            )
        if newest is None or newest.id != expected:
            kept = self.shard.sets()
            if any(of.id == expected for of in kept):
                cure = f"close the bank, and go back with ShardedBank(..., set={number}), which gives up all later sets"
            else:
                cure = "open a bank that is at that set"
            other = "another " if newest is not None and newest.number == number else ""
            return (
                f"it refers to set {number}, and the bank is at "
                f"{'no set' if newest is None else f'{other}set {newest.number}'} "
                f"(it keeps {[of.number for of in kept]}); {cure}"
            )
        if self.changed(local):
            return f"rows have changed since set {number}; load it before training"
        return None


def take(exchange: Exchange, shard: Shard, blob: bytes) -> FleetSet:
    """Takes a checkpoint of each shard, and makes them a set.

    Raises:
        ForAll: A shard has failed. All ranks raise the error of the first one. If it has failed to
            take its checkpoint, the last set is the newest. If it has failed to write the record,
            the new set is the newest: the others have the record, and all have the checkpoints.
    """
    blobs = exchange.contents(blob)
    taken = False

    def checkpoint() -> bytes:
        nonlocal taken
        of_shard: bytes = shard.take()
        taken = True
        return of_shard

    try:
        of_all = on_all(exchange, checkpoint)
    except Exception:
        if taken:
            shard.abandon()
        raise
    found: list[FleetSet] = []

    def commit() -> bytes:
        found.append(shard.commit(of_all, joined(blobs)))
        return b""

    on_all(exchange, commit)
    return found[0]


def joined(blobs: Sequence[bytes]) -> bytes:
    """Returns the bytes of all ranks as one, equal ones once. `own` takes them apart."""
    distinct = list(dict.fromkeys(blobs))
    if distinct == [b""]:
        return b""
    head = json.dumps([[distinct.index(of) for of in blobs], [len(of) for of in distinct]]).encode()
    return b"".join([_MAGIC, len(head).to_bytes(8, "little"), head, *distinct])


def own(blob: bytes, rank: int) -> bytes:
    """Returns the bytes of a rank. A rank that the set did not have gets those of rank 0."""
    if not blob.startswith(_MAGIC):
        return blob
    start = len(_MAGIC) + 8
    length = int.from_bytes(blob[len(_MAGIC) : start], "little")
    of_rank, lengths = json.loads(blob[start : start + length])
    at = of_rank[rank if rank < len(of_rank) else 0]
    start += length + sum(lengths[:at])
    return blob[start : start + lengths[at]]


def reference(position: dict[str, Any]) -> Tensor:
    """Returns a position as a tensor of fixed length: uint8 `(512,)`. All ranks have the same."""
    state = {**position, "embank": "fleet", "state_id": None}
    content = json.dumps(state).encode()
    assert len(content) <= REFERENCE_BYTES
    return torch.frombuffer(bytearray(content.ljust(REFERENCE_BYTES)), dtype=torch.uint8)


def is_reference(found: object) -> TypeGuard[Tensor]:
    """Whether this may be a tensor of `reference`."""
    return (
        isinstance(found, Tensor)
        and found.dtype == torch.uint8
        and found.numel() == REFERENCE_BYTES
    )


def read_reference(found: object) -> dict[str, Any]:
    """Returns the position in a tensor of `reference`.

    Raises:
        ValueError: It is another tensor, or none.
    """
    if is_reference(found):
        try:
            state = json.loads(bytes(found.cpu().tolist()))
        except ValueError:
            state = None
        if isinstance(state, dict) and state.get("embank") == "fleet":
            return {**state, "state_id": ""}
    raise ValueError(
        "this state was not made by ShardedBank.state_dict(): load it with the names under which it was saved, such as "
        'dcp.load({"bank": bank, ...})'
    )


def set_of(state_dict: Mapping[str, Any]) -> SetName:
    """Returns the number and the id of the set that a state dict names, for `ShardedBank(set=...)`.

    Needs no open bank. Not collective.

    Args:
        state_dict: The result of `ShardedBank.state_dict()`, or of `state_dict()` of a model over
            sharded tables, such as a file has.

    Raises:
        ValueError: The state dict names no set: it has no sharded tables, or it was made before the
            first set, or rows had changed since the last one. Or it names several sets.
    """
    if is_reference(state_dict.get("reference")):
        found = [read_reference(state_dict["reference"])]
    else:
        states = [decoded(of) for key, of in state_dict.items() if key.endswith(EXTRA_STATE)]
        entries = [of for state in states if state is not None for of in state["tables"]]
        found = [of for of in entries if "shards" in of]
    if not found:
        raise ValueError(
            "this state dict has no sharded tables: give set_of the result of ShardedBank.state_dict() or model.state_dict()"
        )
    for of in found:
        why = "it was made before the first set" if of["checkpoint"] is None else "rows had changed since the last one"
        if of["changed"] or of["checkpoint"] is None:
            raise ValueError(
                f"this state dict names no set: {why}; call bank.checkpoint() right before state_dict()"
            )
    names = {(str(of["bank"]), SetName(of["checkpoint"], of["id"])) for of in found}
    if len(names) > 1:
        texts = sorted(f"{name} of {bank}" for bank, name in names)
        raise ValueError(
            f"this state dict names several sets: {', '.join(texts)}; give each ShardedBank the one of its own fleet"
        )
    return next(iter(names))[1]
