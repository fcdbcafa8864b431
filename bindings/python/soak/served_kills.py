"""Kills `embank serve --bank DIR --learn` with SIGKILL at random batches, and starts it again.

    python bindings/python/soak/served_kills.py --kills 50 --seed 1

A server gives ids to words of any length and to numbers of a known range. Each life of the server
has one to three clients, which share an epoch. Each takes some batches before the kill, and then
what still arrives. The next life goes on at the place of the slowest client.

Every row must have the ids that it has in a run without kills. After each kill, the bank's newest
checkpoint must have every id that a client got, with its value. Needs embank, pyarrow and the
program `embank`, which the variable EMBANK_COMMAND names.

The program ends with 0 if everything was right, and with 1 if not.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

import embank
from embank.pipeline import Column, Field, Output, RemoteFeed, Spec, connect, modulus, vocabulary

ROOT = Path(__file__).parents[3]
BATCH_ROWS = 64
RANGE = 5003
"""Numbers are below this."""
CLIENTS_MAX = 3
ROUNDS_MAX = 20
"""The largest number of batches that each client takes before a kill."""


def command() -> str:
    return os.environ.get("EMBANK_COMMAND", str(ROOT / "target/debug/embank"))


def spec() -> Spec:
    return Spec(
        fields=[
            Field("row", "int64", required=True),
            Field("word", "bytes", required=True),
            Field("number", "int64", required=True),
        ],
        columns=[
            Column("row"),
            Column("word", vocabulary("word")),
            Column("number", modulus(RANGE), vocabulary("number")),
        ],
        outputs=[Output("all", ["row", "word", "number"], "i64")],
    )


def word(row: int) -> bytes:
    return b"word %d" % (row * 7919 % 20_011)


def write_inputs(folder: Path, rows: int) -> None:
    (folder / "spec.json").write_text(spec().to_json())
    lines = (b"%d\t%s\t%d\n" % (row, word(row), row * 31 % RANGE) for row in range(rows))
    (folder / "rows.tsv").write_bytes(b"".join(lines))


class Server:
    """A server that numbers in the bank `bank`."""

    def __init__(self, folder: Path, bank: str) -> None:
        options = ["--batch-rows", str(BATCH_ROWS), "--bank", bank, "--learn", "--wait", "600"]
        self.process = subprocess.Popen(
            [command(), "serve", "spec.json", "rows.tsv", *options],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serving at grpc://"), line
        self.address = line.split()[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def unbroken(folder: Path) -> NDArray[np.int64]:
    """The rows of an epoch without kills."""
    server = Server(folder, "unbroken.bank")
    try:
        return np.concatenate([batch["all"] for batch in connect(server.address)])
    finally:
        server.kill()


def took(feed: RemoteFeed, expected: NDArray[np.int64], seen: list[int]) -> bool:
    """Takes a batch, compares it, and notes its largest ids. False at the end of the feed."""
    batch = next(feed, None)
    if batch is None:
        return False
    rows = batch["all"]
    assert np.array_equal(rows, expected[rows[:, 0]]), f"other ids in rows from {rows[0, 0]} on"
    for column in (1, 2):
        seen[column] = max(seen[column], int(rows[:, column].max()) + 1)
    return True


def check_bank(path: Path, expected: NDArray[np.int64], seen: list[int]) -> None:
    """Checks that the bank's newest checkpoint has the ids up to those that were seen."""
    if max(seen) == 0:
        return
    with embank.Bank(path, read_only=True, memory_budget="256MiB") as bank:
        for name, column in (("word", 1), ("number", 2)):
            known = bank.open_vocabulary(name)
            assert known.next_id >= seen[column], f"the bank lacks values of {name} that a client got"
            ids = np.arange(seen[column], dtype=np.uint64)
            found: Any = known.values(ids)
            _, first = np.unique(expected[:, column], return_index=True)
            rows = [int(row) for row in first[: len(ids)]]
            wanted = [word(row) if name == "word" else row * 31 % RANGE for row in rows]
            assert list(found) == wanted, f"the bank has other values of {name} than a client got"


def life(
    folder: Path, expected: NDArray[np.int64], state: Optional[dict[str, Any]], seed: int, seen: list[int]
) -> Optional[dict[str, Any]]:
    """Starts a server, takes some batches and kills it. Returns the place of the slowest client,
    or None if the epoch has ended."""
    draws = random.Random(seed)
    of = draws.randint(1, CLIENTS_MAX)
    server = Server(folder, "killed.bank")
    try:
        feeds = [connect(server.address, skip_rows=state, part=part, of=of) for part in range(of)]
        for _ in range(draws.randint(0, ROUNDS_MAX)):
            if not all([took(feed, expected, seen) for feed in feeds]):
                return None
    finally:
        server.kill()
    for feed in feeds:
        # Ends with the failure of the connection at the latest.
        try:
            while took(feed, expected, seen):
                pass
        except (ConnectionError, embank.PipelineError):
            pass
    slowest = min(feeds, key=lambda feed: feed.position)
    return slowest.state_dict()


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, given.rows)
        expected = unbroken(folder)
        assert expected[:, 0].tolist() == list(range(given.rows))
        state: Optional[dict[str, Any]] = None
        seen = [0, 0, 0]
        for kill in range(given.kills):
            try:
                state = life(folder, expected, state, given.seed * 1_000_003 + kill, seen)
                check_bank(folder / "killed.bank", expected, seen)
            except AssertionError as error:
                print(f"kill {kill} of --seed {given.seed}: {error}")
                return 1
    print(f"{given.kills} kills: every row has the ids of the run without kills; {seen[1]} words were seen")
    return 0


if __name__ == "__main__":
    sys.exit(main())
