"""Tests `embank serve --bank`: as a reader of a bank, and as its writer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, VocabularySpec, connect, vocabulary
from test_serve import command

SOAK = Path(__file__).parents[1] / "soak"
sys.path.insert(0, str(SOAK))

import served_kills  # noqa: E402

WORDS = Spec(
    fields=[Field("word", "bytes", required=True)],
    columns=[Column("word", vocabulary("word"))],
    outputs=[Output("ids", ["word"], "i64")],
    vocabularies=[VocabularySpec("word", first_id=1, unknown_id=0)],
)


@contextmanager
def serving(folder: Path, rows: bytes, *options: str, batch_rows: int = 2) -> Iterator[str]:
    (folder / "spec.json").write_text(WORDS.to_json())
    (folder / "rows.tsv").write_bytes(rows)
    size = ["--batch-rows", str(batch_rows)]
    arguments = [command(), "serve", "spec.json", "rows.tsv", *size, *options]
    server = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("serving at grpc://"), line
        yield line.split()[-1]
    finally:
        server.kill()
        server.communicate()


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["ids"].ravel().tolist()]


def values(path: Path) -> Any:
    with embank.Bank(path, read_only=True, memory_budget="256MiB") as bank:
        words = bank.open_vocabulary("word")
        return words.values(list(range(1, words.next_id)))


def test_a_server_looks_values_up_in_a_bank_and_inserts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "words.bank"
    with embank.Bank(path, memory_budget="256MiB") as bank:
        assert ids(Pipeline(WORDS, bank=bank).feed(b"red\ngreen\n")) == [1, 2]
        bank.checkpoint(b"trained")
    with serving(tmp_path, b"green\nblue\nred\n", "--bank", "words.bank") as address:
        assert ids(connect(address)) == ids(connect(address)) == [2, 0, 1]
        # The bank is free for a writer beside the server.
        with embank.Bank(path, memory_budget="256MiB") as bank:
            assert bank.recovered is not None and bank.recovered.blob == b"trained"
        with pytest.raises(embank.PipelineError, match="looks values up and inserts nothing"):
            connect(address, learn=True)
    assert values(path) == [b"red", b"green"]


def test_an_evaluation_gets_no_id_that_a_checkpoint_lacks(tmp_path: Path) -> None:
    """The run numbers values ahead of the batches that a client takes. A client that leaves early
    leaves them in the bank, and an evaluation gives their ids."""
    path = tmp_path / "words.bank"
    words = b"".join(b"word %d\n" % number for number in range(100_000))
    with serving(tmp_path, words, "--bank", "words.bank", "--learn", batch_rows=1000) as address:
        with connect(address) as feed:
            next(feed)
        seen = 0
        with connect(address, learn=False) as feed:
            for batch in feed:
                seen = max(seen, int(batch["ids"].max()))
    assert seen > 0
    assert values(path)[:seen] == words.splitlines()[:seen]


def test_a_client_gets_no_id_that_a_checkpoint_lacks(tmp_path: Path) -> None:
    path = tmp_path / "words.bank"
    with serving(tmp_path, b"red\ngreen\nred\nblue\n", "--bank", "words.bank", "--learn") as address:
        with connect(address) as feed:
            assert ids([next(feed)]) == [1, 2]
            # The server may have made the next batch, too.
            assert values(path)[:2] == [b"red", b"green"]
            with pytest.raises(embank.Locked):
                embank.Bank(path, memory_budget="256MiB")
            assert ids(feed) == [1, 3]
        assert ids(connect(address, learn=False)) == [1, 2, 1, 3]
    # The server was killed.
    assert values(path) == [b"red", b"green", b"blue"]
    # Another input does not get the ids of the first.
    with serving(tmp_path, b"black\nblue\n", "--bank", "words.bank", "--learn") as address:
        assert ids(connect(address)) == [4, 3]


def test_a_writers_checkpoints_keep_the_blob(tmp_path: Path) -> None:
    path = tmp_path / "words.bank"
    with embank.Bank(path, memory_budget="256MiB") as bank:
        bank.checkpoint(b"step 7")
    with serving(tmp_path, b"red\n", "--bank", "words.bank", "--learn") as address:
        assert ids(connect(address)) == [1]
    with embank.Bank(path, memory_budget="256MiB") as bank:
        assert bank.recovered is not None and bank.recovered.blob == b"step 7"
        assert bank.recovered.checkpoint > 1


def test_learning_needs_a_bank(tmp_path: Path) -> None:
    arguments = [command(), "serve", "spec.json", "rows.tsv", "--learn"]
    ran = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 2 and "--bank" in ran.stderr


def test_a_killed_server_gives_the_ids_of_an_unbroken_run() -> None:
    assert served_kills.main(["--kills", "4", "--rows", "6000"]) == 0


def test_a_bank_that_lacks_an_id_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shows that the soak finds a planted fault: a server whose bank gets no checkpoint."""

    class Forgetful(served_kills.Server):
        def __init__(self, folder: Path, bank: str) -> None:
            super().__init__(folder, bank)
            self.bank = folder / bank

        def kill(self) -> None:
            super().kill()
            if self.bank.name == "killed.bank":
                shutil.rmtree(self.bank)
                with embank.Bank(self.bank, memory_budget="256MiB") as bank:
                    bank.vocabulary("word", "bytes")
                    bank.vocabulary("number")
                    bank.checkpoint()

    monkeypatch.setattr(served_kills, "Server", Forgetful)
    assert served_kills.main(["--kills", "3", "--rows", "3000"]) == 1
    assert "the bank lacks values" in capsys.readouterr().out
