"""ogbl-wikikg2 (Hu et al., "Open Graph Benchmark", 2020) from its own files, without the package
ogb."""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ids import Ids, Ints, check_range, id_rows, required
from triples import ID_MAX, PARTS, KnowledgeGraph, Triples

COUNT = "raw/num-node-list.csv.gz"
FIELDS = ("head", "relation", "tail")
DAMAGED = (pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, RuntimeError,
           EOFError, OSError, ImportError, NameError, SystemError,
           ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError,
           MemoryError)
"""What `zipfile` and `torch.load` raise for a damaged file that is open. `torch.load` applies the
file's operations to values that damage has changed. `OSError` is for a seek to a wrong place."""


def load_wikikg2(folder: Path) -> KnowledgeGraph:
    """Reads split/time/{train,valid,test}.pt and the number of entities in `COUNT`.

    Each .pt file is a dict with arrays `head`, `relation` and `tail` (n,), which `torch.save`
    wrote. The valid and test files also have negatives, `head_neg` and `tail_neg` (n, 500). The
    reader takes each file whole into memory, one at a time, and drops the negatives: the example
    ranks among all entities. There are as many relations as the train file has.

    Raises `FileNotFoundError` if a file is missing. Raises `ValueError` with the file for a file
    that is not such a dict, and with file and row for an id out of range. A .pt file that would
    run code is refused.
    """
    counted = id_rows(required(folder, COUNT)[0], Ids("count", ID_MAX + 1, "the limit of int32"))
    counts = np.concatenate(list(counted))
    if counts.size != 1 or counts[0, 0] == 0:
        raise ValueError(
            f"{folder / COUNT}: expected one number of entities above 0, found "
            f"{counts.ravel()[:5].tolist()}; take the file of ogbl-wikikg2"
        )
    entities, relations = int(counts[0, 0]), ID_MAX + 1
    parts: list[Triples] = []
    for path in required(folder, *(f"split/time/{part}.pt" for part in PARTS)):
        triples = read_part(path)
        check_range(f"{path}, row ", 0, triples, (
            Ids("head", entities, COUNT), Ids("relation", relations, "train.pt"),
            Ids("tail", entities, COUNT),
        ))
        if not parts:
            relations = 1 + int(triples[:, 1].max())
        parts.append(triples.astype(np.int32))
    return KnowledgeGraph.of(entities, relations, parts)


def read_part(path: Path) -> Ints:
    """Returns the triples (n, 3) of a .pt file: head, relation, tail."""
    part = load_safely(path)
    if not isinstance(part, dict):
        raise ValueError(f"{path}: expected a dict of arrays, found {type(part).__name__}")
    columns = []
    for field in FIELDS:
        if field not in part:
            raise ValueError(f"{path}: the dict has no {field}, only {sorted(map(str, part))}; "
                             f"take the file of ogbl-wikikg2, with {', '.join(FIELDS)}")
        column = np.asarray(part[field])
        if column.ndim != 1 or column.dtype.kind != "i" or column.size == 0:
            raise ValueError(
                f"{path}: {field} must be whole numbers of the shape (n,), n above 0, found "
                f"{column.dtype} {column.shape}; take the file of ogbl-wikikg2"
            )
        columns.append(column.astype(np.int64))
    sizes = [column.size for column in columns]
    if len(set(sizes)) > 1:
        raise ValueError(f"{path}: head, relation and tail must have one length, found {sizes}; "
                         "take the file of ogbl-wikikg2")
    return np.stack(columns, axis=1)


def load_safely(path: Path) -> Any:
    """Loads tensors and NumPy arrays that `torch.save` wrote, and runs no code of the file.

    `torch.load` verifies no checksum. The files are zip archives since torch 1.6, so `zipfile`
    first verifies the CRC32 of each member, which reads the file once more. The form of older
    versions has no checksum: damage that leaves a dict of arrays is not found there.

    Raises `ValueError` with the file if it is damaged or has other values.
    """
    reconstruct = np.empty(0).__reduce__()[0]
    # Pickles name this function of NumPy by its module, which NumPy 2 has renamed.
    names = [f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")]
    types = [type(np.dtype(kind)) for kind in (np.int64, np.int32, np.float64, np.float32)]
    allowed: list[Any] = [*((reconstruct, name) for name in names), np.ndarray, np.dtype, *types]
    with open(path, "rb") as file:
        try:
            if zipfile.is_zipfile(file):
                verify_members(file)
            file.seek(0)
            with torch.serialization.safe_globals(allowed):
                return torch.load(file, map_location="cpu", weights_only=True)
        except DAMAGED as error:
            raise ValueError(
                f"{path}: torch.load can't read it as a dict of arrays ({type(error).__name__}), "
                "so it is cut short, damaged or has other values; take the file of ogbl-wikikg2 "
                "again"
            ) from error


def verify_members(file: IO[bytes]) -> None:
    """Raises `zipfile.BadZipFile` unless each member of a zip archive has its CRC32."""
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"the CRC32 of {damaged} is wrong")
