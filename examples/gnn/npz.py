"""Arrays of an npz file as memory maps.

An npz file is a zip archive of npy files. `numpy.savez` stores them as they are, so a map of the
archive is a map of the array. `numpy.savez_compressed` compresses them; such an array is unpacked
into a file first.
"""

from __future__ import annotations

import os
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOCAL_HEADER = struct.Struct("<26xHH")
"""The local header of a zip member: the lengths of the name and of the extra field that follow."""


def mapped(path: Path, name: str, unpacked: Path) -> NDArray[Any]:
    """Returns the array `name` of an npz file as a read-only map.

    A compressed array is unpacked to the file `NAME.npy` in the folder `unpacked`, unless that file
    is there. The checksum of an array that is stored is not verified, because that would read it
    whole.

    Raises `ValueError` with the file if it is no whole archive, has no such array, or the array's
    header or compressed bytes are damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if f"{name}.npy" not in archive.namelist():
                found = ", ".join(member.removesuffix(".npy") for member in archive.namelist())
                raise ValueError(f"{path}: there is no array {name}, only {found}; take the file "
                                 "of the data set again")
            member = archive.getinfo(f"{name}.npy")
            if member.compress_type != zipfile.ZIP_STORED:
                if not (unpacked / member.filename).exists():
                    unpack(archive, member, unpacked)
                return npy_map(unpacked / member.filename, 0)
        return npy_map(path, data_begin(path, member))
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error) as error:
        raise ValueError(f"{path}: the archive is cut short or damaged ({error}); take the file "
                         "of the data set again") from error


def unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    """Unpacks a member into a folder, and verifies its checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{member.filename}.partial"
    with archive.open(member) as source, open(partial, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 24)
    os.replace(partial, folder / member.filename)


def data_begin(path: Path, member: zipfile.ZipInfo) -> int:
    """Returns where the bytes of a stored member begin in the archive."""
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        lengths = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    return member.header_offset + LOCAL_HEADER.size + sum(lengths)


def npy_map(path: Path, begin: int) -> NDArray[Any]:
    """Maps the npy file that begins at this byte of a file."""
    with open(path, "rb") as file:
        file.seek(begin)
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"{path}: arrays of npy version {version} are not read; save them "
                             "with numpy.save")
        shape, columns_first, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"{path}: an array has Python objects; numbers are needed")
        order = "F" if columns_first else "C"
        return np.memmap(path, dtype, "r", file.tell(), shape, order)
