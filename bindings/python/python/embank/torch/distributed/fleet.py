"""The identity of a shard, and the shard of each key."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"EMBSHARD"
_MASK = (1 << 64) - 1


class ShardIdentity(NamedTuple):
    fleet: bytes
    shard: int
    shards: int


def shard_path(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:05d}"


def list_shards(directory: Path) -> list[tuple[int, Optional[ShardIdentity]]]:
    """Returns the shards in a directory, each with its identity; None for one without it."""
    found = []
    for path in sorted(directory.glob("shard-*")) if directory.is_dir() else []:
        number = re.fullmatch(r"shard-(\d{5})", path.name)
        if number is not None:
            found.append((int(number[1]), _read(path / "SHARD")))
    return found


def _read(path: Path) -> Optional[ShardIdentity]:
    if not path.exists():
        return None
    content = path.read_bytes()
    shard, shards = (int.from_bytes(content[at : at + 4], "little") for at in (24, 28))
    return ShardIdentity(content[8:24], shard, shards)


def write_identity(path: Path, of: ShardIdentity) -> None:
    content = _MAGIC + of.fleet + of.shard.to_bytes(4, "little") + of.shards.to_bytes(4, "little")
    new = path / "SHARD.new"
    new.write_bytes(content)
    os.rename(new, path / "SHARD")


def route_keys(
    table: str, keys: NDArray[np.int64], shards: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the places of `keys` sorted by shard, and the number of keys of each shard."""
    hashed = 0xCBF29CE484222325
    for byte in table.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 & _MASK
    mixed = keys.view(np.uint64) + np.uint64(hashed)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    shard = ((mixed >> np.uint64(52)) * np.uint64(shards) >> np.uint64(12)).astype(np.int64)
    return np.argsort(shard, kind="stable"), np.bincount(shard, minlength=shards)
