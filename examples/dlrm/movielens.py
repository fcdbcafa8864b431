"""MovieLens-100K as click data: a rating of 4 or 5 is a click.

The data have 943 users, 1,682 films, and 100,000 ratings over seven months of 1997-98. The columns
are the plain features and crosses of them (this user with that genre, this film with that age,
...). Each feature has few categories, but all columns together have well over 100,000 rows. Most
rows are rare, as in a real click log.

The ratings come inside the Python package `recbole`. `download` fetches and unpacks the package,
but does not install it.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import ClickData, Column, Keys
from lines import Line, lines

PACKAGE = "recbole==1.2.1"
FOLDER_IN_PACKAGE = "recbole/dataset_example/ml-100k"
FILES = ("ml-100k.inter", "ml-100k.user", "ml-100k.item")
CLICK_RATING = 4.0


def download(folder: Path) -> Path:
    """Downloads the three files into `folder` unless they are there, and returns `folder`.

    Needs the network the first time. Raises RuntimeError with pip's message if the download fails.
    """
    if all((folder / name).exists() for name in FILES):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--disable-pip-version-check", "--dest", scratch, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise RuntimeError(
                f"cannot download MovieLens-100K ({PACKAGE}): {done.stderr.strip()}\n"
                f"Put {', '.join(FILES)} into {folder} by hand, or try again when online."
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in FILES:
                part = Path(scratch) / name
                part.write_bytes(wheel.read(f"{FOLDER_IN_PACKAGE}/{name}"))
                part.replace(folder / name)
    return folder


def load(folder: Path) -> ClickData:
    """Reads the three files into click data, ordered by time.

    Raises ValueError with file and line for a line that is not of the format, for a user or a film
    that has two lines, and for a rating whose user or film has no line.
    """
    rated, by, of = (read_table(folder / name, COLUMNS[name]) for name in FILES)
    ratings = rated.columns
    order = np.argsort(ratings["timestamp"], kind="stable")
    users = Index(by, "user_id", rated, order)
    items = Index(of, "item_id", rated, order)

    user, item = ratings["user_id"][order], ratings["item_id"][order]
    age = users.column("age")
    gender = hashed(users.column("gender"))
    occupation = hashed(users.column("occupation"))
    zip_code = hashed(users.column("zip_code"))
    genres, starts = words(items.column("class"))
    per_word = np.repeat(np.arange(user.size), np.diff(starts))

    columns = [
        Column("user", user),
        Column("item", item),
        Column("age", age),
        Column("gender", gender),
        Column("occupation", occupation),
        Column("zip_code", zip_code),
        Column("genre", genres, starts),
        Column("user_genre", crossed(user[per_word], genres), starts),
        Column("age_genre", crossed(age[per_word], genres), starts),
        Column("item_age", crossed(item, age)),
        Column("item_gender", crossed(item, gender)),
        Column("item_occupation", crossed(item, occupation)),
        Column("user_item_hash", crossed(user, mixed(item) % 128)),
    ]
    dense = np.stack(
        [age / 50.0, (items.column("release_year") - 1990.0) / 10.0,
         np.log1p(seen_before(user)) / 5.0, np.log1p(seen_before(item)) / 5.0],
        axis=1,
    ).astype(np.float32)
    clicks = ratings["rating"][order] >= CLICK_RATING
    return ClickData(clicks.astype(np.uint8), dense, columns)


def whole(line: Line, name: str, text: str) -> int:
    """Reads a whole number."""
    return line.whole_number(name, text)


def rating(line: Line, name: str, text: str) -> float:
    """Reads a number of stars."""
    try:
        stars = float(text)
    except ValueError:
        stars = float("nan")
    if not 1.0 <= stars <= 5.0:
        raise line.error(f"{name} must be a number from 1 to 5, found {text[:50]!r}")
    return stars


def plain(line: Line, name: str, text: str) -> str:
    """Returns the text unchanged."""
    return text


def year(line: Line, name: str, text: str) -> float:
    """Reads the year of release. A film without a year (there are two) gets 1990."""
    if any(character.isdigit() for character in text):
        return float(line.whole_number(name, text, largest=9999))
    return 1990.0


Reader = Callable[[Line, str, str], Any]
COLUMNS: dict[str, dict[str, Reader]] = {
    FILES[0]: {"user_id": whole, "item_id": whole, "rating": rating, "timestamp": whole},
    FILES[1]: {"user_id": whole, "age": whole, "gender": plain, "occupation": plain,
               "zip_code": plain},
    FILES[2]: {"item_id": whole, "release_year": year, "class": plain},
}
"""The columns to read from each file, and the reader of each column. A file may have more columns.
"""


@dataclass(frozen=True)
class Table:
    """Columns of a file. Row r is line r + 2, because the header is line 1 and each further line is
    a row."""

    path: Path
    columns: dict[str, NDArray[Any]]

    def error(self, row: int, why: str) -> ValueError:
        """Makes the error that names the file and the row's line, for the caller to raise."""
        return ValueError(f"{self.path}:{row + 2}: {why}")


def read_table(path: Path, wanted: Mapping[str, Reader]) -> Table:
    """Reads the `wanted` columns of a tab-separated file whose header says `name:type` for each.

    Raises ValueError with file and line if a column is missing or occurs twice, if a line has
    another number of fields than the header, and if a reader refuses a value. Raises ValueError
    with the file if it has no row.
    """
    source = lines(path)
    header = next(source)
    names = [head.split(":")[0] for head in header.text.split("\t")]
    for name in wanted:
        if names.count(name) != 1:
            raise header.error(f"the header must name {name} once, found {', '.join(names)[:200]}")
    cells: dict[str, list[Any]] = {name: [] for name in wanted}
    for line in source:
        row = dict(zip(names, line.fields(*names)))
        for name, read in wanted.items():
            cells[name].append(read(line, name, row[name]))
    columns = {
        # An array of strings is as wide as its longest string, so text stays in an array of
        # objects.
        name: np.array(cells[name], dtype=object if read is plain else None)
        for name, read in wanted.items()
    }
    if not all(column.size for column in columns.values()):
        raise ValueError(f"{path}: no rows after the header")
    return Table(path, columns)


class Index:
    """Looks up the attributes of the user or film of each rating. `order` is the order of the
    ratings."""

    def __init__(self, table: Table, key: str, ratings: Table, order: Keys) -> None:
        ids, wanted = table.columns[key], ratings.columns[key]
        by_id = np.argsort(ids, kind="stable")
        ordered = ids[by_id]
        again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
        if again.size:
            row = int(by_id[again].min())
            raise table.error(row, f"{key} {ids[row]} has an earlier line; keep one")
        place = np.minimum(np.searchsorted(ordered, wanted), ids.size - 1)
        unknown = np.flatnonzero(ordered[place] != wanted)
        if unknown.size:
            row = int(unknown[0])
            raise ratings.error(row, f"{key} {wanted[row]} is not in {table.path}; add it there")
        self.rows = by_id[place][order]
        self.table = table

    def column(self, name: str) -> NDArray[Any]:
        """Returns this attribute for each rating."""
        attribute: NDArray[Any] = self.table.columns[name][self.rows]
        return attribute


def hashed(texts: NDArray[np.object_]) -> Keys:
    """Returns a 64-bit key for each text. The key is the same on every machine, so no vocabulary is
    needed."""
    distinct, inverse = np.unique(texts, return_inverse=True)
    digests = b"".join(
        hashlib.blake2b(text.encode(), digest_size=8).digest() for text in distinct.tolist()
    )
    return np.frombuffer(digests, dtype="<i8")[inverse]


def mixed(keys: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: a bijection that spreads nearby keys."""
    bits = keys.astype(np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def crossed(left: NDArray[np.integer[Any]], right: NDArray[np.integer[Any]]) -> Keys:
    """Returns one key for each pair of keys."""
    pair = mixed(left.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + right.astype(np.uint64)
    return mixed(pair).astype(np.int64)


def words(texts: NDArray[np.object_]) -> tuple[Keys, Keys]:
    """Returns the keys of the blank-separated words of all texts, and the place where each text's
    words begin."""
    split = [text.split() or ["unknown"] for text in texts.tolist()]
    starts = np.concatenate([[0], np.cumsum([len(part) for part in split])]).astype(np.int64)
    every = [word for part in split for word in part]
    return hashed(np.array(every, dtype=object)), starts


def seen_before(keys: Keys) -> Keys:
    """Returns how often each row's key occurs in earlier rows. So the feature contains nothing of
    the future."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    start = np.maximum.accumulate(np.where(first, np.arange(keys.size), 0))
    counts = np.empty(keys.size, dtype=np.int64)
    counts[order] = np.arange(keys.size) - start
    return counts
