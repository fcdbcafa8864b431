"""Tests pipelines whose vocabularies lie in a bank: checkpoints in the loop, thresholds, and how
they end with the bank.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any, Callable

import pyarrow
import pytest

import embank
from embank.pipeline import (
    Column,
    Field,
    Output,
    Pipeline,
    Spec,
    VocabularySpec,
    fill_missing,
    modulus,
    vocabulary,
)

BUDGET = "16MiB"


def spec(**settings: Any) -> Spec:
    """Makes a spec with a number of known range, a number of any range, and text."""
    return Spec(
        fields=[Field("n", "int32", required=True), Field("w", "bytes", required=True)],
        columns=[
            Column("small", modulus(1 << 16), vocabulary("small"), field="n"),
            Column("large", vocabulary("large"), field="n"),
            Column("word", vocabulary("word"), field="w"),
        ],
        outputs=[Output("ids", ["small", "large", "word"], "i64")],
        vocabularies=[VocabularySpec(name, **settings) for name in ("small", "large", "word")]
        if settings
        else [],
    )


def text(rows: int) -> bytes:
    """Makes rows, each with a value that no earlier row has."""
    return "".join(f"{n * 7 % 65536}\tw{n}\n" for n in range(rows)).encode()


def open_bank(path: Path) -> embank.Bank:
    return embank.Bank(path, memory_budget=BUDGET)


def ids(feed: Any) -> list[list[int]]:
    return [row for batch in feed for row in batch["ids"].tolist()]


def test_it_numbers_in_the_banks_vocabularies(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as bank:
        pipeline = Pipeline(spec(), bank=bank)
        assert pipeline.run(text(10)).rows == 10
        assert sorted(bank.vocabularies()) == ["large", "small", "word"]
        assert [len(bank.open_vocabulary(name)) for name in bank.vocabularies()] == [10] * 3
        assert pipeline.checkpoint(b"ten") == bank.last_checkpoint == 1
        assert list(pipeline.vocabularies()) == ["small"]
    with open_bank(tmp_path / "bank") as bank:
        assert bank.recovered is not None and bank.recovered.blob == b"ten"
        pipeline = Pipeline(spec(), bank=bank)
        assert ids(pipeline.feed(b"7\tw1\n1\tnew\n")) == [[1, 1, 1], [10, 10, 10]]
        assert bank.open_vocabulary("word").values([1, 10]) == [b"w1", b"new"]
        other = Pipeline(spec().to_dict() | {"vocabularies": [{"name": "word"}]}, bank=bank)
        assert other.run(b"1\tnew\n").rows == 1
        with pytest.raises(embank.VocabularyMismatch):
            Pipeline(spec(first_id=1), bank=bank)


def test_without_a_bank_it_says_so() -> None:
    with pytest.raises(embank.SpecError, match="bank"):
        Pipeline(spec())
    small = Spec([Field("n", "int32")], [Column("n", fill_missing(0))], [Output("n", ["n"], "i32")])
    with pytest.raises(ValueError, match="bank=bank"):
        Pipeline(small).checkpoint()
    Pipeline(small).save()  # nothing to do
    with pytest.raises(TypeError):
        Pipeline(small, bank="bank")  # type: ignore[arg-type]


def train(path: Path, rows: bytes, steps: int, taken: list[list[int]]) -> bool:
    """Trains for some steps, takes a checkpoint after each second step, and ends as a crash does.
    Returns True if it reached the end of the input.
    """
    with open_bank(path) as bank:
        done = int(bank.recovered.blob) if bank.recovered else 0
        del taken[done:]
        pipeline = Pipeline(spec(), bank=bank, chunk_bytes=300)
        with pipeline.feed(rows, batch_rows=16, skip_rows=done, batches_ahead=1) as feed:
            for step, batch in enumerate(feed):
                if step == steps:
                    return False
                taken.extend(batch["ids"].tolist())
                if step % 2 == 0:
                    bank.checkpoint(str(feed.position).encode())
                    for i, name in enumerate(("small", "large", "word")):
                        assert len(bank.open_vocabulary(name)) > max(row[i] for row in taken)
        return True


def test_checkpoints_of_the_bank_in_the_loop_have_what_was_handed_out(tmp_path: Path) -> None:
    rows = text(500)
    taken: list[list[int]] = []
    deaths = 0
    while not train(tmp_path / "bank", rows, 4, taken):
        deaths += 1
    assert deaths > 3
    # The result equals that of an unbroken run.
    assert taken == [[n, n, n] for n in range(500)]


def test_checkpoints_of_the_pipeline_beside_a_feed(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as bank:
        pipeline = Pipeline(spec(), bank=bank, chunk_bytes=100)
        with pipeline.feed(text(1000), batch_rows=10) as feed:
            next(feed)
            assert pipeline.checkpoint(b"10") == 1
            pipeline.save()
        with pipeline.feed(text(2000), batch_rows=10, save_each_batch=False) as feed:
            next(feed)
            for call in (pipeline.checkpoint, pipeline.save):
                with pytest.raises(RuntimeError, match="save_each_batch=True"):
                    call()
        pipeline.checkpoint(b"all")
        assert len(bank.open_vocabulary("small")) == len(pipeline.vocabularies()["small"])


@pytest.mark.parametrize("with_bank", [False, True])
def test_thresholds(tmp_path: Path, with_bank: bool) -> None:
    parts = [b"1\n2\n1\n", b"3\n2\n1\n"]
    one = Spec(
        fields=[Field("n", "int32", required=True)],
        columns=[Column("n", modulus(10), vocabulary("n"))],
        outputs=[Output("ids", ["n"], "i64")],
        vocabularies=[VocabularySpec("n", counts=True, first_id=1, unknown_id=0)],
    )
    with open_bank(tmp_path / "bank") as bank:
        pipeline = Pipeline(one, bank=bank if with_bank else None)
        assert [pipeline.generate(part).rows for part in parts] == [3, 3]
        assert pipeline.keep_frequent(2) == [("n", 2, 1)]
        assert pipeline.keep_frequent(2) == []  # the vocabulary is frozen
        assert ids(pipeline.feed(parts)) == [[1], [2], [1], [0], [2], [1]]
        with pytest.raises(ValueError, match="min_count"):
            pipeline.keep_frequent(-1)
        if with_bank:
            assert bank.open_vocabulary("n").frozen
            assert bank.open_vocabulary("n").counts([1, 2]).tolist() == [3, 2]
        # With a `min_count`, a feed itself counts the values and keeps the frequent ones.
        own = one.to_dict() | {"vocabularies": [VocabularySpec("m", 2, 0, 1).to_dict()]}
        own["columns"] = [Column("n", modulus(10), vocabulary("m"), field="n")]
        own["columns"] = Spec([], own["columns"], []).to_dict()["columns"]
        pipeline = Pipeline(own, bank=bank if with_bank else None)
        assert ids(pipeline.feed(parts)) == [[1], [2], [1], [0], [2], [1]]


def is_closed(call: Callable[[], object]) -> bool:
    with pytest.raises(ValueError, match="bank is closed"):
        call()
    return True


def test_closing_the_bank_closes_its_files_though_pipelines_are_around(tmp_path: Path) -> None:
    for taken in (None, 0, 3):
        bank = open_bank(tmp_path / "bank")
        pipeline = Pipeline(spec(), bank=bank, chunk_bytes=100)
        idle = Pipeline(spec().to_dict(), bank=bank)
        feed = None
        if taken is not None:
            feed = pipeline.feed(text(5000), batch_rows=2)
            for _ in range(taken):
                next(feed)
        bank.close()
        # The lock is free, so no handle is left.
        again = open_bank(tmp_path / "bank")
        calls: list[Callable[[], object]] = [
            lambda: pipeline.feed(b""), lambda: pipeline.run(b""), lambda: pipeline.generate(b""),
            lambda: pipeline.keep_frequent(1), pipeline.save, pipeline.checkpoint,
            pipeline.vocabularies, lambda: idle.run(b""), lambda: Pipeline(spec(), bank=bank),
        ]
        assert all(is_closed(call) for call in calls)
        if feed is not None:
            assert is_closed(lambda: next(feed)) and is_closed(lambda: next(feed))
            assert feed.position == 2 * (taken or 0) and feed.report is None
            feed.close()
        assert list(pipeline.outputs) == ["ids"]
        bank.close()
        again.close()


def test_a_feed_that_had_ended_before_stays_so(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as bank:
        ended, closed = Pipeline(spec(), bank=bank).feed(text(3)), None
        assert len(ids(ended)) == 3
        closed = Pipeline(spec(), bank=bank).feed(text(3))
        closed.close()
    assert next(ended, None) is None and next(closed, None) is None
    assert ended.report is not None and ended.report.rows == 3


def test_what_is_let_go_closes_with_the_last_object(tmp_path: Path) -> None:
    feed = Pipeline(spec(), bank=open_bank(tmp_path / "bank")).feed(text(1000), batch_rows=1)
    assert next(feed)["ids"].tolist() == [[0, 0, 0]]
    del feed
    open_bank(tmp_path / "bank").close()


def test_closing_is_a_failure_of_a_stream_and_no_end(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank")
    feed = Pipeline(spec(), bank=bank).feed(text(1000), batch_rows=1)
    stream = pyarrow.RecordBatchReader.from_stream(feed)
    assert stream.read_next_batch().num_rows == 1
    bank.close()
    with pytest.raises(Exception, match="bank of this feed was closed"):
        stream.read_all()
    with pytest.raises(ValueError, match="bank is closed"):
        next(feed)


def test_closing_beside_a_silent_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    bank = open_bank(tmp_path / "bank")
    feed = Pipeline(spec(), bank=bank).feed(f"/dev/fd/{reader}")
    bank.close()
    with pytest.raises(ValueError, match="bank is closed"):
        next(feed)
    os.close(reader)
    os.close(writer)


def test_closing_beside_a_thread_that_waits_for_a_batch(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank")
    # More rows than the run counts before the end of this test.
    slow = spec(min_count=2, first_id=1, unknown_id=0)
    pipeline = Pipeline(slow, bank=bank, threads=1, chunk_bytes=1000)
    feed = pipeline.feed([text(20_000)] * 500, batch_rows=1)
    waiting = threading.Event()
    outcome: list[str] = []

    def take() -> None:
        waiting.set()
        try:
            next(feed)
        except ValueError as error:
            outcome.append(str(error))

    taker = threading.Thread(target=take)
    taker.start()
    waiting.wait()
    closers = [threading.Thread(target=bank.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    for thread in (*closers, taker):
        thread.join(60)
        assert not thread.is_alive()
    assert outcome == ["bank is closed"]
    open_bank(tmp_path / "bank").close()


@pytest.mark.parametrize("what", ["run", "generate"])
def test_closing_ends_a_long_run(tmp_path: Path, what: str) -> None:
    bank = open_bank(tmp_path / "bank")
    pipeline = Pipeline(spec(), bank=bank, threads=1, chunk_bytes=1000)
    rows = text(20_000)
    began = threading.Event()
    outcome: list[str] = []

    def call() -> None:
        began.set()
        try:
            while True:  # the bank closes in one of these calls, or between two of them
                getattr(pipeline, what)([rows] * 50)
        except ValueError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    began.wait()
    bank.close()
    thread.join(60)
    assert outcome == ["bank is closed"]
    open_bank(tmp_path / "bank").close()


def test_a_signal_handler_that_closes_the_bank_in_a_run_is_refused(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank")
    pipeline = Pipeline(spec(), bank=bank, threads=1, chunk_bytes=1000)
    rows = text(20_000)
    before = signal.signal(signal.SIGUSR1, lambda *_: bank.close())
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        # `close` is refused during a run, and works between two runs.
        with pytest.raises((RuntimeError, ValueError), match="inside another call|bank is closed"):
            while True:
                pipeline.run([rows] * 50)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    bank.close()
    open_bank(tmp_path / "bank").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_kept_off(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank")
    pipeline = Pipeline(spec(), bank=bank)
    words = bank.open_vocabulary("word")
    feed = Pipeline(spec(), bank=bank).feed(text(1000), batch_rows=2)
    child = os.fork()
    if child == 0:
        refused = 0
        calls = (
            lambda: next(feed), lambda: pipeline.run(b""), pipeline.save, pipeline.checkpoint,
            pipeline.vocabularies, lambda: words.ids(["a"]), feed.close,
            lambda: Pipeline(spec(), bank=bank),
        )
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                refused += "fork" in str(error)
        del feed, pipeline, words, bank, calls, call  # and no call waits or writes
        os._exit(0 if refused == 8 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert next(feed)["ids"].tolist() == [[0, 0, 0], [1, 1, 1]]
    bank.checkpoint()
    bank.close()
    open_bank(tmp_path / "bank").close()
