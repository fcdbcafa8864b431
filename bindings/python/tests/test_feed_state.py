"""Tests that a feed resumes over the inputs of its state, and over no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, decode, fill_missing, vocabulary

SPEC = Spec([Field("n", "int64")], [Column("n", fill_missing(0))], [Output("n", ["n"], "i64")])


def write(folder: Path, name: str, first: int) -> None:
    (folder / name).write_text("".join(f"{n}\n" for n in range(first, first + 5)))


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].ravel().tolist()]


def stopped(folder: Path, **options: Any) -> tuple[list[int], dict[str, Any]]:
    write(folder, "b.tsv", 10)
    write(folder, "c.tsv", 20)
    with Pipeline(SPEC).feed(folder, batch_rows=4, **options) as feed:
        taken = numbers([next(feed), next(feed)])
        state = feed.state_dict()
    assert feed.state_dict() == state
    return taken, state


@pytest.mark.parametrize("options", [{}, {"shuffle_rows": 3, "seed": 5}])
def test_a_state_goes_through_json_and_goes_on(tmp_path: Path, options: dict[str, Any]) -> None:
    taken, state = stopped(tmp_path, **options)
    assert state["rows"] == 8
    assert [Path(name).name for name, _ in state["inputs"]] == ["b.tsv", "c.tsv"]
    saved = json.loads(json.dumps(state))
    rest = Pipeline(SPEC).feed(tmp_path, batch_rows=4, skip_rows=saved, **options)
    assert sorted(taken + numbers(rest)) == [*range(10, 15), *range(20, 25)]


def test_other_inputs_are_an_error_that_names_the_first_difference(tmp_path: Path) -> None:
    """Regression test: a file that sorts before the others appeared between stop and resume. Five
    rows came twice, and five never."""
    _, state = stopped(tmp_path)
    write(tmp_path, "a.tsv", 0)
    with pytest.raises(embank.SpecError, match=r"8 rows to skip.*input 1 was .*b.tsv.*a.tsv"):
        list(Pipeline(SPEC).feed(tmp_path, skip_rows=state))
    (tmp_path / "a.tsv").unlink()
    (tmp_path / "b.tsv").write_text("1\n")
    with pytest.raises(embank.SpecError, match=r"of 15 bytes, and is .*b.tsv. of 2 bytes"):
        list(Pipeline(SPEC).feed(tmp_path, skip_rows=state))
    # A number of rows is not checked.
    assert len(numbers(Pipeline(SPEC).feed(tmp_path, skip_rows=1))) == 5


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    _, state = stopped(tmp_path, shuffle_rows=3)
    with pytest.raises(ValueError, match="shuffle_rows 3 and seed 0"):
        Pipeline(SPEC).feed(tmp_path, skip_rows=state)
    with pytest.raises(ValueError, match="without 'inputs'|without \"inputs\""):
        Pipeline(SPEC).feed(tmp_path, skip_rows={"rows": 4})
    with pytest.raises(TypeError, match="skip_rows"):
        Pipeline(SPEC).feed(tmp_path, skip_rows="4")  # type: ignore[arg-type]


def test_a_loop_that_draws_ahead_names_its_own_rows(tmp_path: Path) -> None:
    write(tmp_path, "b.tsv", 10)
    with Pipeline(SPEC).feed(tmp_path, batch_rows=2) as feed:
        next(feed), next(feed)
        state = feed.state_dict(2)
        with pytest.raises(ValueError, match="rows must be from 0 to 4"):
            feed.state_dict(5)
    assert numbers(Pipeline(SPEC).feed(tmp_path, skip_rows=state)) == [12, 13, 14]


WORDS = Spec(
    [Field("n", "int64", required=True), Field("w", "bytes")],
    [Column("n"), Column("w", fill_missing(""), vocabulary("w"))],
    [Output("x", ["n", "w"], "i64")],
)


def write_words(path: Path) -> None:
    path.write_text("".join(f"{n}\tword {n * n % 30_011}\n" for n in range(100_000)))


def test_a_feed_that_resumes_does_not_read_what_its_bank_has(tmp_path: Path) -> None:
    """The rows before the state are read again only for the values of a bank without them."""
    text = tmp_path / "rows.tsv"
    write_words(text)
    with embank.Bank(tmp_path / "bank", memory_budget="32MiB") as bank:
        with Pipeline(WORDS, bank=bank).feed(text, batch_rows=1000) as feed:
            batches = [next(feed) for _ in range(90)]
            state = feed.state_dict()
            ahead = feed.state_dict(88_000)
            bank.checkpoint(json.dumps(state).encode())
            rest = list(feed)
    state = json.loads(json.dumps(state))
    assert state["place"]["rows"] <= 90_000
    assert ahead["place"]["rows"] <= 88_000
    with embank.Bank(tmp_path / "bank", memory_budget="32MiB") as bank:
        assert bank.recovered is not None
        assert json.loads(bank.recovered.blob) == state
        feed = Pipeline(WORDS, bank=bank).feed(text, batch_rows=1000, skip_rows=state)
        for found, expected in zip(feed, rest):
            assert (found["x"] == expected["x"]).all()
        assert feed.report is not None
        assert (feed.report.rows, feed.report.passed_rows) == (100_000, state["place"]["rows"])
        assert feed.report.passed_rows > 50_000
        # A loop that draws ahead.
        feed = Pipeline(WORDS, bank=bank).feed(text, batch_rows=1000, skip_rows=ahead)
        assert (next(feed)["x"] == batches[88]["x"]).all()
    with embank.Bank(tmp_path / "fresh", memory_budget="32MiB") as bank:
        feed = Pipeline(WORDS, bank=bank).feed(text, batch_rows=1000, skip_rows=state)
        for found, expected in zip(feed, rest):
            assert (found["x"] == expected["x"]).all()
        assert feed.report is not None
        assert feed.report.passed_rows == 0


def test_a_shuffled_feed_that_resumes_decodes_only_the_rows_of_its_buffer(tmp_path: Path) -> None:
    text = tmp_path / "rows.tsv"
    text.write_text("".join(f"{n}\n" for n in range(20_000)))
    calls = []

    def number(value: bytes) -> list[int]:
        calls.append(1)
        return [int(value)]

    spec = Spec(
        fields=[Field("n", "bytes", required=True)],
        columns=[Column("n", decode(number, shape=[1], dtype="i64"))],
        outputs=[Output("n", ["n"], "i64")],
    )

    def feed(state: Any = 0) -> Any:
        pipeline = Pipeline(spec, chunk_bytes=1000)
        return pipeline.feed(text, batch_rows=100, shuffle_rows=500, seed=1, skip_rows=state)

    whole = feed()
    for _ in range(180):
        next(whole)
    state = json.loads(json.dumps(whole.state_dict()))
    rest = [batch["n"] for batch in whole]
    assert len(calls) == 20_000
    calls.clear()
    resumed = feed(state)
    found = [batch["n"] for batch in resumed]
    assert all((a == b).all() for a, b in zip(found, rest)) and len(found) == len(rest) == 20
    # The rows of the buffer, those from the place on, and none before.
    passed = state["place"]["rows"] - 500
    assert resumed.report.passed_rows == passed and len(calls) == 20_000 - passed
    # A file in which a row of the buffer is bad now.
    text.write_text(text.read_text().replace("1", "x"))
    with pytest.raises(embank.PipelineError, match="are bad now, and were not when the feed read them"):
        list(feed(state))


def test_a_state_with_a_place_that_no_feed_made_is_refused(tmp_path: Path) -> None:
    _, state = stopped(tmp_path)
    state["place"] = {"input": 0}
    with pytest.raises(ValueError, match="no place of a feed"):
        Pipeline(SPEC).feed(tmp_path, skip_rows=state)
    # A state of an earlier version.
    del state["place"]
    assert numbers(Pipeline(SPEC).feed(tmp_path, skip_rows=state)) == [23, 24]


def test_words_are_numbers() -> None:
    label = Field("label", "int32", words={"true": 1, "false": 0, "maybe": -1})
    spec = Spec([label], [Column("label", fill_missing(9))], [Output("l", ["label"], "i32")])
    found = next(Pipeline(spec).feed(b"true\nfalse\n+5\n\nmaybe\n"))["l"]
    assert found.ravel().tolist() == [1, 0, 5, 9, -1]
    with pytest.raises(embank.BadRow, match="words"):
        list(Pipeline(Spec(
            [Field("label", "int32")], [Column("label", fill_missing(9))], [Output("l", ["label"], "i32")]
        )).feed(b"true\n"))
    with pytest.raises(embank.SpecError, match="words"):
        Pipeline(Spec(
            [Field("label", "bytes", words={"a": 1}, required=True)], [Column("label")], []
        ))
