"""Tests feeds and runs that look values up without inserting them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Optional

import pytest

import embank
from embank.pipeline import (
    Column,
    Field,
    Output,
    Pipeline,
    Spec,
    VocabularySpec,
    modulus,
    vocabulary,
)

TRAIN = b"".join(b"%d\tw%d\n" % (value % 50, value % 50) for value in range(500))
EVAL = b"".join(b"%d\tw%d\n" % (value, value) for value in range(40, 60))


def spec(first_id: int = 1, unknown: Optional[int] = 0) -> Spec:
    settings: dict[str, Any] = {"first_id": first_id, "unknown_id": unknown}
    return Spec(
        fields=[Field("site", "int32", required=True), Field("word", "bytes", required=True)],
        columns=[
            Column("site", modulus(100), vocabulary("site")),
            Column("word", vocabulary("word")),
        ],
        outputs=[Output("ids", ["site", "word"], "i64")],
        vocabularies=[VocabularySpec("site", **settings), VocabularySpec("word", **settings)],
    )


def ids(feed: Any) -> list[list[int]]:
    return [row for batch in feed for row in batch["ids"].tolist()]


EXPECTED = [[value + 1] * 2 if value < 50 else [0, 0] for value in range(40, 60)]


def test_evaluation_teaches_the_vocabulary_nothing(bank: embank.Bank) -> None:
    """Shows that an evaluation inserts no value. In an earlier version, an evaluation made a
    vocabulary of 502 values grow to 590."""
    pipeline = Pipeline(spec(), bank=bank)
    pipeline.run(TRAIN)
    state = bank.state_id
    for threads in (1, 4):
        assert ids(pipeline.feed(EVAL, learn=False, batch_rows=3, threads=threads)) == EXPECTED
    report = pipeline.run(EVAL, learn=False)
    assert report.rows == 20
    assert bank.state_id == state, "no row of the bank has changed"
    assert len(bank.open_vocabulary("word")) == len(pipeline.vocabularies()["site"]) == 50
    assert ids(pipeline.feed(EVAL, batch_rows=3))[-1] == [60, 60], "by default it learns"


def test_feeds_that_learn_and_do_not_go_on_side_by_side(bank: embank.Bank) -> None:
    pipeline = Pipeline(spec(), bank=bank)
    pipeline.run(TRAIN)
    new = b"".join(b"%d\tw%d\n" % (value, value) for value in range(50, 60))
    with pipeline.feed(EVAL, batch_rows=1, learn=False) as one:
        with pipeline.feed(new, batch_rows=1) as learning:
            assert next(learning)["ids"].tolist() == [[51, 51]]
            assert next(one)["ids"].tolist() == EXPECTED[:1]
            two = pipeline.feed(EVAL, batch_rows=20, learn=False)
            pipeline.run(EVAL, learn=False)
            with pytest.raises(RuntimeError, match="has a run under way"):
                pipeline.feed(EVAL)
            with pytest.raises(RuntimeError, match="has a run under way"):
                pipeline.run(EVAL)
            assert ids(learning) == [[value + 1] * 2 for value in range(51, 60)]
            # A feed that is made later knows the values that were learnt before it.
            assert ids(one) == EXPECTED[1:]
            assert len(ids(two)) == 20
    assert ids(pipeline.feed(EVAL, learn=False)) == [[value + 1] * 2 for value in range(40, 60)]
    pipeline.checkpoint()


def test_feeds_in_threads_beside_one_that_learns(bank: embank.Bank) -> None:
    pipeline = Pipeline(spec(), bank=bank)
    pipeline.run(TRAIN)
    failures: list[BaseException] = []

    def evaluate() -> None:
        try:
            for _ in range(5):
                for row in ids(pipeline.feed(EVAL, batch_rows=3, learn=False, threads=2)):
                    assert 0 <= row[0] <= 99
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=evaluate) for _ in range(3)]
    for thread in threads:
        thread.start()
    rows = b"".join(b"%d\tw%d\n" % (value % 99, value) for value in range(3000))
    assert sum(len(batch["ids"]) for batch in pipeline.feed(rows, batch_rows=100)) == 3000
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("learn", [None, False])
def test_a_bank_to_read_is_only_looked_up_in(tmp_path: Path, learn: Optional[bool]) -> None:
    """Shows that feeds and runs on a read-only bank look values up by default, and raise `ReadOnly`
    with `learn=True`."""
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        pipeline = Pipeline(spec(), bank=bank)
        pipeline.run(TRAIN)
        pipeline.checkpoint()
        with embank.Bank(tmp_path / "bank", memory_budget="16MiB", read_only=True) as reading:
            serving = Pipeline(spec(), bank=reading)
            assert ids(serving.feed(EVAL, batch_rows=3, learn=learn)) == EXPECTED
            assert serving.run(EVAL, learn=learn).rows == 20
            with serving.feed(EVAL, learn=learn), serving.feed(EVAL, learn=learn):
                pass
            for call in (serving.feed, serving.run):
                with pytest.raises(embank.ReadOnly, match="leave learn out"):
                    call(EVAL, learn=True)
            with pytest.raises(ValueError, match="open to read only"):
                serving.generate(EVAL)


@pytest.mark.parametrize("read_only", [False, True])
def test_an_unknown_value_names_value_column_and_cure(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "bank"
    with embank.Bank(path, memory_budget="16MiB") as bank:
        pipeline = Pipeline(spec(0, None), bank=bank)
        pipeline.run(TRAIN)
        pipeline.checkpoint()
        if read_only:
            bank.close()
            bank = embank.Bank(path, memory_budget="16MiB", read_only=True)
            pipeline = Pipeline(spec(0, None), bank=bank)
        for rows, column, value in ((EVAL, "site", "50"), (b"3\tnew\n", "word", '"new"')):
            with pytest.raises(embank.UnknownValue, match=f"column \"{column}\" has value {value} in row") as raised:
                ids(pipeline.feed(rows, learn=None if read_only else False))
            assert "first_id=1, unknown_id=0" in str(raised.value)
            assert str(path) not in str(raised.value)
        bank.close()


def test_closing_the_bank_ends_feeds_that_learn_nothing(tmp_path: Path) -> None:
    bank = embank.Bank(tmp_path / "bank", memory_budget="16MiB")
    pipeline = Pipeline(spec(), bank=bank)
    pipeline.run(TRAIN)
    feed = pipeline.feed(TRAIN * 50, batch_rows=1, learn=False)
    next(feed)
    bank.close()
    with pytest.raises(ValueError, match="bank is closed"):
        next(feed)
    with pytest.raises(ValueError, match="bank is closed"):
        pipeline.feed(EVAL, learn=False)
    # No handle of the bank is left, so it can be opened again.
    embank.Bank(tmp_path / "bank", memory_budget="16MiB").close()


def test_a_pipeline_without_a_bank_evaluates_too() -> None:
    site = Spec(
        [Field("site", "int32", required=True)],
        [Column("site", modulus(100), vocabulary("site"))],
        [Output("ids", ["site"], "i64")],
        vocabularies=[VocabularySpec("site", first_id=1, unknown_id=0)],
    )
    pipeline = Pipeline(site)
    pipeline.run(b"7\n9\n")
    learning = pipeline.feed(b"8\n5\n", batch_rows=1)
    assert ids(pipeline.feed(b"9\n6\n", learn=False)) == [[2], [0]]
    assert ids(learning) == [[3], [4]]
    assert pipeline.vocabularies()["site"].tolist() == [7, 9, 8, 5]
