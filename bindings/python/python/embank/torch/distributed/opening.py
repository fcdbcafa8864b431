"""Which rank serves which shard.

Ranks are not stable: after a restart, `torchrun` may give a process another rank. So a directory
belongs to the shard that its file names. At each opening the ranks tell each other which shards
their directories have, and every rank computes the same map.

A rank may find several shards, because the ranks of one machine can share a directory.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import embank
from embank._embank import Shard, list_shards, shard_path
from embank.errors import ShardMismatch

from ..caller import warn_caller
from .exchange import Exchange
from .fleet import SetName, on_all, settle

if TYPE_CHECKING:
    from embank import Bank

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# Options of `embank.Bank` that do not work over shards, and what to do instead.
_REFUSED = {
    "lease_timeout": "the owners end the leases of lost ranks when they close; use timeout=",
    "read_only": "the ranks of a fleet train; open one shard with embank.Bank(path, read_only=True) to read it",
    "checkpoint": "a fleet opens at a set; use set=",
    "checkpoints_kept": "the shards keep the checkpoints of the newest sets; use sets_kept=",
}


class View(NamedTuple):
    """What one rank brings to the opening."""

    directory: str
    place: Optional[str]
    """Machine, device and number of the directory. None if it does not exist."""
    found: list[tuple[int, int, str]]
    """For each shard in the directory: its number, the count of shards, and the fleet."""
    unfinished: list[int]
    """The shards whose directory has no identity."""
    options: dict[str, Any]
    """The options that must be the same on all ranks."""
    shards: Optional[int]
    """The argument `shards`."""

    @classmethod
    def of(cls, directory: Path, options: dict[str, Any], shards: Optional[int]) -> View:
        found = list_shards(directory)
        return cls(
            str(directory),
            _place(directory),
            [(at, of.shards, of.fleet.hex()) for at, of in found if of is not None],
            [at for at, of in found if of is None],
            options,
            shards,
        )

    def encoded(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decoded(cls, content: bytes) -> View:
        directory, place, found, *rest = json.loads(content)
        return cls(directory, place, [tuple(of) for of in found], *rest)

    def sees(self) -> list[int]:
        """The shards that this rank can serve. An interrupted first opening leaves shards without
        an identity."""
        return sorted([*(of[0] for of in self.found), *self.unfinished])


def view_of(
    directory: Path,
    shards: Optional[int],
    gradients: str,
    timeout: float,
    at: Union[int, SetName, None],
    options: Mapping[str, Any],
) -> View:
    """Returns what this rank brings to the opening.

    Raises:
        ValueError: An option can't be used.
    """
    if gradients not in ("mean", "sum"):
        raise ValueError(f'gradients must be "mean" or "sum", not {gradients!r}')
    for name, cure in _REFUSED.items():
        if options.get(name) not in (None, False):
            raise ValueError(f"a ShardedBank has no {name}: {cure}")
    wait_timeout = options.get("wait_timeout")
    if wait_timeout is not None and wait_timeout >= timeout:
        raise ValueError(
            f"wait_timeout is {wait_timeout} and timeout {timeout} seconds: the other ranks would count this rank as lost "
            "while it waits for a row; use a larger timeout"
        )
    number, its_id = at if isinstance(at, SetName) else (at, None)
    if at is not None:
        try:
            number = operator.index(number)  # type: ignore[arg-type]
            its_id = None if its_id is None else operator.index(its_id)
        except TypeError:
            # The `repr` of a name takes only numbers.
            found = tuple(at) if isinstance(at, SetName) else at
            raise TypeError(
                f"set must be the number of a set or the result of set_of, not {found!r}"
            ) from None
    same = {"gradients": gradients, "timeout": timeout, "set": number, "the id of set": its_id}
    return View.of(directory, same, shards)


class Assignment(NamedTuple):
    shard_of_rank: list[int]
    is_new: bool
    """Whether no shard has an identity yet."""


def assign(views: list[View]) -> Assignment:
    """Returns the shard of each rank. Depends on the views of all ranks alone.

    Raises:
        ValueError: The ranks have different options.
        ShardMismatch: The shards do not fit together, or do not fit the number of ranks.
    """
    ranks = len(views)
    for name, value in views[0].options.items():
        for rank, view in enumerate(views):
            if view.options[name] != value:
                raise ValueError(
                    f"{name} must be the same on all ranks: rank 0 has {value!r}, rank {rank} {view.options[name]!r}"
                )
    for rank, view in enumerate(views):
        if view.shards is not None and view.shards != ranks:
            raise mismatch(
                view.directory,
                f"{ranks} ranks",
                f"{view.shards} ranks",
                f"rank {rank} asks for shards={view.shards}, and the group has {ranks} ranks: a rank serves one shard; "
                f"start {view.shards} ranks, or leave shards out; to change the number of shards of a fleet, run "
                f"embank reshard {view.directory} NEW --shards {ranks}"
            )
    found = [(rank, *of) for rank, view in enumerate(views) for of in view.found]
    if not found:
        return Assignment(list(range(ranks)), True)
    _, _, shards, fleet = found[0]
    for rank, shard, other_shards, other_fleet in found:
        if (other_shards, other_fleet) != (shards, fleet):
            raise mismatch(
                views[rank].directory,
                f"fleet {other_fleet} of {other_shards} shards",
                f"fleet {fleet} of {shards} shards",
                f"{views[rank].directory} on rank {rank} has shard {shard} of {other_shards} of fleet {other_fleet}, and "
                f"{views[found[0][0]].directory} on rank {found[0][0]} has shard {found[0][1]} of {shards} of fleet {fleet}: "
                "these shards were not made together; put each fleet into a directory of its own"
            )
    if shards != ranks:
        raise mismatch(
            views[found[0][0]].directory,
            f"{shards} shards",
            f"{ranks} shards",
            f"{views[found[0][0]].directory} has a fleet of {shards} shards, and the group has {ranks} ranks: start "
            f"{shards} ranks, or run embank reshard {views[found[0][0]].directory} NEW --shards {ranks}"
        )
    return Assignment(_matching(views, _places(views)), False)


def mismatch(path: str, found: str, expected: str, text: str) -> ShardMismatch:
    """Makes an error."""
    error = ShardMismatch(text)
    error.path, error.found, error.expected = path, found, expected
    return error


def _places(views: list[View]) -> dict[int, str]:
    """Returns the place of each shard."""
    places: dict[int, str] = {}
    for rank, view in enumerate(views):
        for shard in view.sees():
            place = str(view.place)
            if places.setdefault(shard, place) != place:
                raise mismatch(
                    view.directory,
                    f"shard {shard}",
                    "another shard",
                    f"shard {shard} is in two places, {view.directory} on rank {rank} among them: one is a copy; remove the "
                    "copy, so that the ranks do not mix its rows with those of the others"
                )
    missing = [shard for shard in range(len(views)) if shard not in places]
    if missing:
        raise mismatch(
            views[0].directory,
            f"shards {sorted(places)}",
            f"shards 0 to {len(views) - 1}",
            f"no rank finds shard {missing[0]} of {len(views)}; the ranks look in "
            f"{sorted({view.directory for view in views})}: put its directory back"
        )
    return places


def _matching(views: list[View], places: dict[int, str]) -> list[int]:
    """Returns a shard for each rank that finds it. A rank gets the shard of its own number if that
    is possible. (Augmenting paths; there are few ranks.)"""
    sees = [view.sees() for view in views]
    rank_of: dict[int, int] = {}

    def place(rank: int, tried: set[int]) -> bool:
        for shard in sorted(sees[rank], key=lambda of: (of != rank, of in rank_of, of)):
            if shard not in tried:
                tried.add(shard)
                if shard not in rank_of or place(rank_of[shard], tried):
                    rank_of[shard] = rank
                    return True
        return False

    for rank, view in enumerate(views):
        if not place(rank, set()):
            raise mismatch(
                view.directory,
                f"shards {sees[rank]}",
                "a shard for each rank",
                f"rank {rank} finds shards {sees[rank]} in {view.directory}, which other ranks must serve too: each rank "
                f"needs a shard of its own ({len(places)} shards are in {len(set(places.values()))} places)"
            )
    shard_of = {rank: shard for shard, rank in rank_of.items()}
    return [shard_of[rank] for rank in range(len(views))]


def _place(directory: Path) -> Optional[str]:
    try:
        of = os.stat(directory)
    except FileNotFoundError:
        return None
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    return f"{boot} {of.st_dev} {of.st_ino}"


def open_shard(
    exchange: Exchange,
    directory: Path,
    number: int,
    is_new: bool,
    sets_kept: int,
    at: Union[int, SetName, None],
    options: Mapping[str, Any],
) -> tuple[Bank, Shard]:
    """Opens a shard on each rank, at the newest complete set, or at the set `at`."""
    banks: list[Bank] = []
    shards: list[Shard] = []

    def opened() -> bytes:
        if is_new and not options.get("create", True):
            raise ValueError(f"no rank finds a fleet, {directory} has none, and create is False")
        if is_new and at is not None:
            raise ValueError(
                f"no rank finds a fleet, {directory} has none, so there is no set {at}: give the directory of the "
                "fleet, or leave set out"
            )
        path = shard_path(directory, number)
        path.mkdir(parents=True, exist_ok=True)
        banks.append(embank.Bank(path, checkpoints_kept=1, **{**options, "create": is_new}))
        shards.append(Shard(banks[0], number, exchange.size, sets_kept=sets_kept))
        return b""

    try:
        on_all(exchange, opened)
        passed_over = settle(exchange, shards[0], at)

        def warned() -> bytes:
            if exchange.rank == 0:
                text = "; ".join(passed_over)
                warn_caller(f"{directory}: {text}; the rows are those of set {shards[0].newest_set}")
            return b""

        if passed_over:
            # The program may turn warnings into errors.
            on_all(exchange, warned)
    except BaseException:
        for bank in banks:
            bank.close()
        raise
    return banks[0], shards[0]
