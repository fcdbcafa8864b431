"""Files that are whole after a crash: written under another name, synced, then renamed."""

from __future__ import annotations

import os
from pathlib import Path


def publish(partial: Path, path: Path) -> None:
    """Renames the file `partial` to `path`, in one folder. Both the bytes and the name survive a
    crash of the machine. A process that has `path` open or mapped keeps the file of before."""
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's bytes, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
