"""Compares the SHA-256 of one epoch that is made in every way the project has.

    python bindings/python/soak/one_epoch.py --rows 4000 --kills 100 --seed 1

The rows have a picture, a word and a number. The words get ids of a vocabulary that grows in a
bank, and the rows are shuffled. The epoch is made

- alone, on 1 and 3 threads;
- with a cache in memory, and with a cache that holds a part of the pictures;
- with a spool on disk, and by another pipeline from that spool;
- by a server, for 1, 2 and 4 clients together;
- in two halves, resumed after each number of batches: by the same pipeline, and by a new one;
- by a process that is killed with SIGKILL at random batches, and continues from its last
  checkpoint.

Needs embank, pyarrow and the program `embank`, which the variable EMBANK_COMMAND names. The program
ends with 0 if all digests are equal, and with 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, connect, image, vocabulary

ROOT = Path(__file__).parents[3]
BATCH_ROWS = 32
SHUFFLE_ROWS = 200
PICTURES = 40
SIDE = 12
SAVE_EVERY_BATCHES = 3
"""Batches from one checkpoint to the next, of the process that is killed."""
BATCHES_PER_LIFE = 8
"""The largest number of batches of a life of that process."""
NAMES = ("row", "word", "picture")
MEMORY = "256MiB"
SPOOL_BYTES = "256MiB"


def command() -> str:
    return os.environ.get("EMBANK_COMMAND", str(ROOT / "target/debug/embank"))


def spec() -> Spec:
    return Spec(
        fields=[
            Field("row", "int64", required=True),
            Field("word", "bytes", required=True),
            Field("picture", "file", required=True),
        ],
        columns=[Column("row"), Column("word", vocabulary("word")), Column("picture", image(8, 8))],
        outputs=[
            Output("row", ["row"], "i64"),
            Output("word", ["word"], "i64"),
            Output("picture", ["picture"], "u8"),
        ],
    )


def png(pixels: bytes) -> bytes:
    """A PNG of SIDE x SIDE pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    lines = b"".join(b"\0" + pixels[line * SIDE * 3 : (line + 1) * SIDE * 3] for line in range(SIDE))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


def write_inputs(folder: Path, rows: int, seed: int) -> None:
    draws = random.Random(seed)
    (folder / "spec.json").write_text(spec().to_json())
    for number in range(PICTURES):
        (folder / f"{number}.png").write_bytes(png(draws.randbytes(SIDE * SIDE * 3)))
    lines = [
        f"{row}\tword {draws.randrange(rows)}\t{draws.randrange(PICTURES)}.png\n" for row in range(rows)
    ]
    # Two files: a position names both.
    (folder / "0.tsv").write_text("".join(lines[: rows // 3]))
    (folder / "1.tsv").write_text("".join(lines[rows // 3 :]))


def inputs(folder: Path) -> list[str]:
    return [str(folder / "0.tsv"), str(folder / "1.tsv")]


def content(batch: Any) -> bytes:
    return b"".join(batch[name].tobytes() for name in NAMES)


def digest(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


class Epochs:
    """Makes the epoch over the files of a folder."""

    def __init__(self, folder: Path, shuffle_rows: int) -> None:
        self.folder = folder
        self.shuffle_rows = shuffle_rows
        self.banks = itertools.count()

    @contextlib.contextmanager
    def pipeline(self, **options: Any) -> Iterator[Pipeline]:
        """A pipeline on a new bank."""
        path = self.folder / f"bank {next(self.banks)}"
        with embank.Bank(path, memory_budget=MEMORY) as bank:
            yield Pipeline(spec(), bank=bank, root=self.folder, **options)

    def feed(self, pipeline: Pipeline, state: Any = 0) -> Any:
        return pipeline.feed(
            inputs(self.folder), batch_rows=BATCH_ROWS, shuffle_rows=self.shuffle_rows, seed=5, skip_rows=state
        )

    def whole(self, pipeline: Pipeline) -> list[bytes]:
        return [content(batch) for batch in self.feed(pipeline)]

    def alone(self, threads: int) -> list[bytes]:
        with self.pipeline(threads=threads) as pipeline:
            return self.whole(pipeline)

    def cached(self, **options: Any) -> Iterator[str]:
        """Two epochs of one pipeline. The second has arrays of the first."""
        with self.pipeline(**options) as pipeline:
            yield digest(self.whole(pipeline))
            yield digest(self.whole(pipeline))
            assert self.kept(pipeline) > 0, "no array was kept"

    def from_spool(self, **options: Any) -> str:
        """An epoch of a new pipeline, which makes no array itself."""
        with self.pipeline(**options) as pipeline:
            feed = self.feed(pipeline)
            found = digest(content(batch) for batch in feed)
            report = feed.report
            assert report is not None
            assert (report.made_arrays, report.spooled_arrays > 0) == (0, True), report
            return found

    def kept(self, pipeline: Pipeline) -> int:
        """The number of arrays that an epoch takes from memory and from disk."""
        feed = self.feed(pipeline)
        for _ in feed:
            pass
        report = feed.report
        assert report is not None
        return int(report.cached_arrays + report.spooled_arrays)

    def served(self, clients: int) -> str:
        options = ["--batch-rows", str(BATCH_ROWS), "--shuffle-rows", str(self.shuffle_rows), "--seed", "5"]
        options += ["--bank", f"bank {next(self.banks)}", "--learn", "--root", ".", "--wait", "600"]
        server = subprocess.Popen(
            [command(), "serve", "spec.json", "0.tsv", "1.tsv", *options],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("serving at grpc://"), line
            feeds = [connect(line.split()[-1], part=part, of=clients) for part in range(clients)]
            # Batch k comes from client k modulo the number of clients.
            found: list[bytes] = []
            for feed in itertools.cycle(feeds):
                batch = next(feed, None)
                if batch is None:
                    return digest(found)
                found.append(content(batch))
            raise AssertionError("there are clients")
        finally:
            server.kill()
            server.communicate()

    def resumed(self, batches: int) -> Iterator[str]:
        """The first batches by one feed and the rest by two others: of the same pipeline, and of a
        pipeline on a new bank."""
        with self.pipeline() as pipeline:
            with self.feed(pipeline) as feed:
                first = [content(batch) for batch in itertools.islice(feed, batches)]
                state = json.loads(json.dumps(feed.state_dict()))
            yield digest(first + [content(batch) for batch in self.feed(pipeline, state)])
        with self.pipeline() as pipeline:
            yield digest(first + [content(batch) for batch in self.feed(pipeline, state)])

    def killed(self, kills: int, draws: random.Random) -> Iterator[str]:
        """Epochs of a process that is killed. Ends with an epoch, after at least `kills` kills."""
        done = 0
        while done < kills:
            place = self.folder / f"killed {next(self.banks)}"
            place.mkdir()
            ended = False
            while not ended:
                lives = [sys.executable, __file__, "--trains", str(place), "--folder", str(self.folder)]
                lives += ["--shuffle-rows", str(self.shuffle_rows)]
                trainer = subprocess.Popen(lives, stdout=subprocess.PIPE, text=True)
                assert trainer.stdout is not None
                # After enough kills, the last life goes on to the end.
                left = draws.randint(0, BATCHES_PER_LIFE) if done < kills else sys.maxsize
                for _ in range(left):
                    line = trainer.stdout.readline()
                    assert line, "the trainer failed"
                    if line == "end\n":
                        ended = True
                        break
                trainer.kill()
                trainer.communicate()
                done += not ended
            yield digest([(place / "batches").read_bytes()])


def train(place: Path, folder: Path, shuffle_rows: int) -> None:
    """Writes the batches of the epoch to a file, and continues at the bank's newest checkpoint."""
    epochs = Epochs(folder, shuffle_rows)
    with embank.Bank(place / "bank", memory_budget=MEMORY) as bank:
        saved: dict[str, Any] = {"state": 0, "bytes": 0}
        if bank.recovered is not None and bank.recovered.blob:
            saved = json.loads(bank.recovered.blob)
        spool: dict[str, Any] = {"spool": place / "spool", "spool_bytes": SPOOL_BYTES}
        pipeline = Pipeline(spec(), bank=bank, root=folder, cache="1MiB", **spool)
        with open(place / "batches", "ab") as out:
            out.truncate(saved["bytes"])
            with epochs.feed(pipeline, saved["state"]) as feed:
                for number, batch in enumerate(feed, start=1):
                    out.write(content(batch))
                    if number % SAVE_EVERY_BATCHES == 0:
                        out.flush()
                        state = {"state": feed.state_dict(), "bytes": out.tell()}
                        bank.checkpoint(json.dumps(state).encode())
                    print("batch", flush=True)
    print("end", flush=True)


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume-every", type=int, default=1, metavar="BATCHES")
    parser.add_argument("--shuffle-rows", type=int, default=SHUFFLE_ROWS)
    parser.add_argument("--trains", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.trains is not None:
        train(given.trains, given.folder, given.shuffle_rows)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, given.rows, given.seed)
        epochs = Epochs(folder, given.shuffle_rows)
        batches = epochs.alone(1)
        expected = digest(batches)
        assert len(batches) == -(-given.rows // BATCH_ROWS)
        wrong = 0

        def check(way: str, found: Iterable[str]) -> None:
            nonlocal wrong
            count = 0
            for count, one in enumerate(found, start=1):
                if one != expected:
                    wrong += 1
                    print(f"{way}, epoch {count}: {one}, and not {expected}")
            print(f"{way}: {count} epochs")

        spool = {"spool": folder / "spool", "spool_bytes": SPOOL_BYTES}
        check("on 3 threads", [digest(epochs.alone(3))])
        check("cached", epochs.cached(cache="64MiB"))
        check("cached in part", epochs.cached(cache="4KiB"))
        check("spooled", epochs.cached(**spool))
        check("from the spool of another pipeline", [epochs.from_spool(**spool)])
        for clients in (1, 2, 4):
            check(f"served to {clients}", [epochs.served(clients)])
        starts = range(0, len(batches) + 1, given.resume_every)
        check("resumed", itertools.chain.from_iterable(epochs.resumed(start) for start in starts))
        check(f"killed {given.kills} times", epochs.killed(given.kills, random.Random(given.seed)))
    print(f"sha256 {expected}: {'all equal' if wrong == 0 else f'{wrong} epochs differ'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
