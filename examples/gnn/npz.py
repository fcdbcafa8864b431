"""Arrays of an npz file as memory maps.

An npz file is a zip archive of npy files. `numpy.savez` stores them as they are, so a map of the
archive is a map of the array. `numpy.savez_compressed` compresses them; such an array is unpacked
into a file first.
"""

from __future__ import annotations

import errno
import math
import shutil
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from durable import publish

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""The local header of a zip member: its signature, and the lengths of the name and of the extra
field that follow."""
LOCAL_SIGNATURE = b"PK\3\4"
RETAKE = "take the file of the data set again"
DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, RuntimeError)
"""What `zipfile` raises for a damaged archive. `RuntimeError` is for flags that say encrypted or an
unknown compression. A seek to a place before the file is an `OSError` with the number EINVAL."""
DAMAGED_HEADER = (ValueError, TypeError, SyntaxError, tokenize.TokenError, OverflowError)
"""What numpy raises for a damaged header, which it parses as a Python literal, and for a map that
the file is too short for."""


def mapped(path: Path, name: str, unpacked: Path) -> NDArray[Any]:
    """Returns the array `name` of an npz file as a read-only map.

    A compressed array is unpacked to the file `NAME.npy` in the folder `unpacked`, unless that file
    is there. The sizes of header and data must fill the member of the archive. The checksum of an
    array that is stored is not verified, because that would read it whole: damage of its numbers
    is not found.

    Raises `ValueError` with the file and the cure if it is no whole archive, has no such array, or
    the array's header or compressed bytes are damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            member = members.get(f"{name}.npy")
            stored = member is not None and member.compress_type == zipfile.ZIP_STORED
            if member is not None and not stored and not (unpacked / member.filename).exists():
                unpack(archive, member, unpacked)
        begin = data_begin(path, member) if member is not None and stored else 0
    except (*DAMAGED_ZIP, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ValueError(f"{path}: the archive is cut short or damaged ({error}); {RETAKE}"
                         ) from error
    if member is None:
        found = ", ".join(other.removesuffix(".npy") for other in members)
        raise ValueError(f"{path}: there is no array {name}, only {found}; {RETAKE}")
    if stored:
        return npy_map(path, begin, member.file_size, f"{name}: ", RETAKE)
    return npy_map(unpacked / member.filename, 0, member.file_size, "", f"remove {unpacked}, and "
                   f"if that does not help, {RETAKE}")


def unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    """Unpacks a member into a folder, and verifies its checksum. A crash leaves no part of the
    file under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{member.filename}.partial"
    with archive.open(member) as source, open(partial, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 24)
    publish(partial, folder / member.filename)


def data_begin(path: Path, member: zipfile.ZipInfo) -> int:
    """Returns where the bytes of a stored member begin in the archive.

    Raises `zipfile.BadZipFile` if the member's own header is not where the archive says.
    """
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        signature, *lengths = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != LOCAL_SIGNATURE:
        raise zipfile.BadZipFile(f"{member.filename} has no header at {member.header_offset}")
    return member.header_offset + LOCAL_HEADER.size + sum(lengths)


def npy_map(path: Path, begin: int, size: int, name: str, cure: str) -> NDArray[Any]:
    """Maps the npy file of `size` bytes that begins at the byte `begin` of a file.

    Raises `ValueError` with the file, `name` and `cure` if its header is damaged or its header and
    numbers have another size.
    """
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0}.get(version)
            if read is not None:
                shape, columns_first, dtype = read(file)
                data = file.tell()
        if read is not None and not dtype.hasobject:
            wanted = data - begin + math.prod(shape) * dtype.itemsize
            if wanted != size:
                raise ValueError(f"the header says {dtype} {shape}, which takes {wanted} bytes, "
                                 f"found {size}")
            return np.memmap(path, dtype, "r", data, shape, "F" if columns_first else "C")
    except DAMAGED_HEADER as error:
        raise ValueError(f"{path}: {name}the array is cut short or damaged ({error}); {cure}"
                         ) from error
    if read is None:
        raise ValueError(f"{path}: {name}arrays of npy version {version} are not read; save them "
                         "with numpy.save")
    raise ValueError(f"{path}: {name}an array has Python objects; numbers are needed")
