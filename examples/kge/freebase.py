"""Freebase (86 million entities) from the files that DGL-KE and Marius train on.

The archive Freebase.zip has ids in place of names. entity2id.txt and relation2id.txt begin with a
line that counts the entities or the relations; a line for each name and id follows. train.txt,
valid.txt and test.txt have head, tail and relation in each line, in this order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ids import Ids, id_rows, required
from lines import lines
from triples import ID_MAX, PARTS, KnowledgeGraph

FILES = ("entity2id.txt", "relation2id.txt")


def load_freebase(folder: Path) -> KnowledgeGraph:
    """Reads the five files. Ids stay as they are, because they are dense already.

    The names are not read: of entity2id.txt and relation2id.txt only the first line counts.

    Raises `FileNotFoundError` if a file is missing, `ValueError` (for a bad line: `embank.BadRow`)
    with file and line or row for a line without exactly three ids and for an id that the first
    lines do not count, and `embank.errors.PipelineError` for a compressed file that is damaged.
    """
    entities, relations = (count(path) for path in required(folder, *FILES))
    columns = (Ids("head", entities, FILES[0]), Ids("tail", entities, FILES[0]),
               Ids("relation", relations, FILES[1]))
    parts = [
        np.concatenate([rows[:, [0, 2, 1]].astype(np.int32) for rows in id_rows(path, *columns)])
        for path in required(folder, *(f"{part}.txt" for part in PARTS))
    ]
    return KnowledgeGraph.of(entities, relations, parts)


def count(path: Path) -> int:
    """Returns the number in the first line of a file."""
    first = next(lines(path))
    found = first.whole_number("the first line, the number of names,", first.text, ID_MAX)
    if found == 0:
        raise first.error("the first line counts no names; a graph needs one at least")
    return found
