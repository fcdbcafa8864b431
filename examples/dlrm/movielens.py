"""MovieLens-100K as click data: a rating of 4 or 5 is a click.

943 users, 1,682 films, 100,000 ratings over seven months of 1997-98. Beside the plain features
there are crosses of them (this user with that genre, this film with that age, ...): few
categories apart, but well over 100,000 rows together, most of them rare, as in a real click log.

The ratings come inside the Python package `recbole`, which is downloaded and unpacked, not
installed.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import ClickData, Column, Keys

PACKAGE = "recbole==1.2.1"
FOLDER_IN_PACKAGE = "recbole/dataset_example/ml-100k"
FILES = ("ml-100k.inter", "ml-100k.user", "ml-100k.item")
CLICK_RATING = 4.0


def download(folder: Path) -> Path:
    """Brings the three files into `folder` unless they are there, and returns `folder`.

    Needs the network the first time. Raises RuntimeError with pip's own words if that fails.
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
    """Reads the three files into click data, ordered by time."""
    ratings = read_table(folder / FILES[0])
    order = np.argsort(ratings["timestamp"].astype(np.int64), kind="stable")
    users = Index(read_table(folder / FILES[1]), "user_id", ratings["user_id"][order])
    items = Index(read_table(folder / FILES[2]), "item_id", ratings["item_id"][order])

    user = ratings["user_id"][order].astype(np.int64)
    item = ratings["item_id"][order].astype(np.int64)
    age = users.column("age").astype(np.int64)
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
    year = release_year(items.column("release_year"))
    dense = np.stack(
        [age / 50.0, (year - 1990.0) / 10.0, np.log1p(seen_before(user)) / 5.0,
         np.log1p(seen_before(item)) / 5.0],
        axis=1,
    ).astype(np.float32)
    clicks = ratings["rating"][order].astype(np.float64) >= CLICK_RATING
    return ClickData(clicks.astype(np.uint8), dense, columns)


def read_table(path: Path) -> dict[str, NDArray[np.str_]]:
    """A tab-separated file whose header says `name:type` for every column."""
    lines = io.StringIO(path.read_text(encoding="utf-8")).read().splitlines()
    names = [head.split(":")[0] for head in lines[0].split("\t")]
    cells = [line.split("\t") for line in lines[1:] if line]
    for number, row in enumerate(cells, start=2):
        if len(row) != len(names):
            raise ValueError(f"{path}:{number}: expected {len(names)} fields, found {len(row)}")
    return {name: np.array([row[at] for row in cells]) for at, name in enumerate(names)}


class Index:
    """Looks up the attributes of users or films for every rating."""

    def __init__(
        self, table: dict[str, NDArray[np.str_]], key: str, wanted: NDArray[np.str_]
    ) -> None:
        ids, of_rating = np.unique(wanted, return_inverse=True)
        place = {name: at for at, name in enumerate(table[key])}
        self.rows = np.array([place[name] for name in ids])[of_rating]
        self.table = table

    def column(self, name: str) -> NDArray[np.str_]:
        """This attribute, one a rating."""
        attribute: NDArray[np.str_] = self.table[name][self.rows]
        return attribute


def hashed(texts: NDArray[np.str_]) -> Keys:
    """A 64-bit key for every text, the same on every machine: no vocabulary is needed."""
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
    """One key for the pair of two keys."""
    pair = mixed(left.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + right.astype(np.uint64)
    return mixed(pair).astype(np.int64)


def words(texts: NDArray[np.str_]) -> tuple[Keys, Keys]:
    """Keys of the blank-separated words of every text, and where each text's words start."""
    split = [text.split() or ["unknown"] for text in texts.tolist()]
    starts = np.concatenate([[0], np.cumsum([len(part) for part in split])]).astype(np.int64)
    return hashed(np.array([word for part in split for word in part])), starts


def release_year(texts: NDArray[np.str_]) -> NDArray[np.float64]:
    """The year of release; a film without one gets 1990."""
    return np.array([float(text) if text.isdigit() else 1990.0 for text in texts.tolist()])


def seen_before(keys: Keys) -> Keys:
    """How often each row's key has occurred in earlier rows: a feature that leaks no future."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    start = np.maximum.accumulate(np.where(first, np.arange(keys.size), 0))
    counts = np.empty(keys.size, dtype=np.int64)
    counts[order] = np.arange(keys.size) - start
    return counts
