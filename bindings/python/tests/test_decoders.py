"""Tests decoders that are callables: arrays, bad rows, names, and the end of the interpreter."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embank.errors import BadRow, PipelineError, SpecError
from embank.pipeline import Column, Dtype, Field, Operator, Output, Pipeline, Spec, decode


def tokens(text: bytes) -> list[int]:
    return (list(text[:3]) + [0] * 3)[:3]


def spec(operator: Operator, dtype: Dtype = "i64", **settings: Any) -> Spec:
    return Spec(
        fields=[Field("label", "int32", required=True), Field("text", "bytes")],
        columns=[Column("label"), Column("text", operator)],
        outputs=[Output("label", ["label"], "i64"), Output("text", ["text"], dtype)],
        bad_rows_max=1.0,
        **settings,
    )


def made(of: Spec, text: bytes, **how: Any) -> Any:
    return next(Pipeline(of, **how).feed(text))["text"]


ROWS = b"1\tab\n2\t\n3\tabcd\n"


@pytest.mark.parametrize(
    ("dtype", "numpy"), [("u8", np.uint8), ("i32", np.int32), ("i64", np.int64), ("f32", np.float32)]
)
def test_arrays_of_every_dtype_and_of_what_numpy_reads(dtype: Dtype, numpy: Any) -> None:
    expected = np.array([[97, 98, 0], [0, 0, 0], [97, 98, 99]], numpy)
    for convert in (list, tuple, np.array, lambda ids: np.array(ids, numpy)):
        operator = decode(lambda text, c=convert: c(tokens(text)), shape=[3], dtype=dtype)  # type: ignore[misc]
        found = made(spec(operator, dtype), ROWS, threads=2, chunk_bytes=1)
        assert found.dtype == numpy
        np.testing.assert_array_equal(found, expected)


def test_arrays_that_are_not_contiguous_and_of_several_dimensions() -> None:
    operator = decode(
        lambda text: np.arange(6, dtype=np.float32).reshape(3, 2).T * len(text),
        shape=[2, 3],
        dtype="f32",
    )
    found = made(spec(operator, "f32"), ROWS)
    assert found.shape == (3, 2, 3)
    np.testing.assert_array_equal(found[0], [[0, 4, 8], [2, 6, 10]])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda text: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda text: [1, 2], r"returned shape \(2,\), and the column has \(3,\)"),
        (lambda text: [1.5, 2, 3], "returned float64, and the column has int32"),
        (lambda text: [2**31, 0, 0], "numbers that int32 does not hold"),
        (lambda text: None, r"returned shape \(\)"),
    ],
)
def test_a_wrong_answer_makes_the_row_bad(wrong: Any, told: str) -> None:
    def fails_for_two(text: bytes) -> Any:
        return tokens(text) if text else wrong(text)

    operator = decode(fails_for_two, shape=[3], dtype="i32")
    with pytest.raises(BadRow, match=f'field "text" can\'t be decoded: .*{told}') as raised:
        made(spec(operator, "i32"), ROWS)
    assert raised.value.line == 2
    feed = Pipeline(spec(operator, "i32", bad_rows="skip")).feed(ROWS)
    assert [batch["label"].tolist() for batch in feed] == [[[1], [3]]]
    report = feed.report
    assert report is not None and report.bad_rows == 1


def test_an_exit_in_a_decoder_ends_the_run() -> None:
    def leaves(text: bytes) -> list[int]:
        raise SystemExit(3)

    operator = decode(leaves, shape=[3], dtype="i64")
    with pytest.raises(PipelineError, match='column "text": its decoder failed: SystemExit: 3'):
        made(spec(operator, bad_rows="skip"), ROWS)


def test_names_and_json() -> None:
    of = spec(decode(tokens, shape=[3], dtype="i64", version="2"))
    [name] = of.decoders()
    assert name == f"{__name__}.tokens"
    operator = json.loads(of.to_json())["columns"][1]["operators"][0]["decode"]
    assert operator == {"decoder": name, "shape": [3], "dtype": "i64", "version": "2"}
    found = made(of.to_json(), ROWS, decoders={name: tokens})  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, made(of, ROWS))
    with pytest.raises(SpecError, match="given no decoder of this name"):
        Pipeline(of.to_json())
    with pytest.raises(SpecError, match="which no column names"):
        Pipeline(of, decoders={"other": tokens})
    with pytest.raises(SpecError, match="has a decoder .* already"):
        Pipeline(of, decoders={name: tokens})
    with pytest.raises(TypeError, match="not callable"):
        Pipeline(of.to_json(), decoders={name: 3})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="takes a callable"):
        decode("tokens", shape=[3], dtype="i64")  # type: ignore[arg-type]
    two = Spec(
        fields=[Field("text", "bytes")],
        columns=[
            Column(name, decode(lambda text, n=n: [n], shape=[1], dtype="i64"), field="text")  # type: ignore[misc]
            for n, name in enumerate(["one", "two"])
        ],
        outputs=[Output(name, [name], "i64") for name in ("one", "two")],
    )
    with pytest.raises(SpecError, match="two decoders have the name"):
        Pipeline(two)


def test_a_float_that_the_dtype_does_not_hold_makes_the_row_bad() -> None:
    operator = decode(lambda text: [1e39, np.inf, 0.0], shape=[3], dtype="f32")
    with pytest.raises(BadRow, match="numbers that float32 does not hold"):
        made(spec(operator, "f32"), ROWS)
    operator = decode(lambda text: [np.inf, -np.inf, 1e-50], shape=[3], dtype="f32")
    assert made(spec(operator, "f32"), ROWS)[0].tolist() == [np.inf, -np.inf, 0]


class Words:
    def ids(self, text: bytes) -> list[int]:
        return tokens(text)


def test_one_method_in_two_columns_and_a_version_for_the_spool(tmp_path: Path) -> None:
    words = Words()
    columns = [
        Column(name, decode(words.ids, shape=[3], dtype="i64"), field="text")
        for name in ("one", "two")
    ]
    outputs = [Output(name, [name], "i64") for name in ("one", "two")]
    of = Spec([Field("text", "bytes")], columns, outputs)
    assert next(Pipeline(of).feed(b"ab\n"))["two"].tolist() == [[97, 98, 0]]
    partial = functools.partial(tokens)
    for callable in (words.ids, partial, lambda text: tokens(text)):
        unversioned = spec(decode(callable, shape=[3], dtype="i64"))
        with pytest.raises(SpecError, match="needs a version for the spool"):
            Pipeline(unversioned, spool=tmp_path / "spool")
        versioned = spec(decode(callable, shape=[3], dtype="i64", version="1"))
        Pipeline(versioned, spool=tmp_path / "spool").run(ROWS)
    [name] = spec(decode(partial, shape=[3], dtype="i64")).decoders()
    assert name == f"{__name__}.tokens"


def test_a_decoder_collects_its_own_feed_as_garbage() -> None:
    """The collector may drop a feed in a thread of its run, which must not wait for itself. A
    process with such a feed would not end.
    """
    program = f"""
import gc, sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_decoders import ROWS, Pipeline, decode, spec, tokens
is_garbage, collected = threading.Event(), threading.Event()

def decoder(text):
    is_garbage.wait()
    if not collected.is_set():
        gc.collect()
        collected.set()
    return tokens(text)

gc.disable()  # only the decoder collects
pipeline = Pipeline(spec(decode(decoder, shape=[3], dtype="i64")), threads=2, chunk_bytes=1)
cycle = [pipeline.feed(ROWS * 10_000, batch_rows=2)]
cycle.append(cycle)
del cycle
is_garbage.set()
collected.wait()
print("collected")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "collected\n", "")


def test_a_decoder_with_a_state_of_its_own() -> None:
    class Tokenizer:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, text: bytes) -> list[int]:
            self.calls += 1
            return tokens(text)

    tokenizer = Tokenizer()
    assert made(spec(decode(tokenizer, shape=[3], dtype="i64")), ROWS).shape == (3, 3)
    assert tokenizer.calls == 3


def test_a_feed_that_is_dropped_or_closed_while_its_decoder_runs() -> None:
    """The thread that closes the feed must not hold the GIL while the decoder waits for it."""
    begun = threading.Event()

    def calls_back(text: bytes) -> list[int]:
        begun.set()
        return tokens(text)

    of = spec(decode(calls_back, shape=[3], dtype="i64"))
    for ends in ("close", "drop"):
        begun.clear()
        feed = Pipeline(of, threads=2, chunk_bytes=1).feed(ROWS * 10_000, batch_rows=2)
        assert begun.wait(60)
        if ends == "close":
            feed.close()
        del feed


def test_pipes_of_the_training_thread_and_run() -> None:
    def rows() -> Iterator[int]:
        of = spec(decode(tokens, shape=[3], dtype="i64"))
        for batch in Pipeline(of, threads=3, chunk_bytes=1).feed(ROWS * 500, batch_rows=7):
            yield from batch["label"].ravel().tolist()

    assert list(rows()) == [1, 2, 3] * 500
    report = Pipeline(spec(decode(tokens, shape=[3], dtype="i64"))).run(ROWS)
    assert report.rows == 3


def test_the_interpreter_ends_while_a_feed_is_open() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_decoders import ROWS, Pipeline, decode, spec, tokens
feed = Pipeline(spec(decode(tokens, shape=[3], dtype="i64")), chunk_bytes=1).feed(ROWS * 10_000, batch_rows=2)
print(len(next(feed)["label"]))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "2\n", "")


def test_later_epochs_come_from_memory_and_later_pipelines_from_the_spool(tmp_path: Path) -> None:
    calls = []

    def counted(text: bytes) -> list[int]:
        calls.append(text)
        return tokens(text)

    of = spec(decode(counted, shape=[3], dtype="i64", version="1"))
    pipeline = Pipeline(of, cache="1MiB", spool=tmp_path / "spool", spool_bytes="1MiB")
    epochs = [[batch["text"].tolist() for batch in pipeline.feed(ROWS)] for _ in range(2)]
    assert epochs[0] == epochs[1] and sorted(calls) == [b"", b"ab", b"abcd"]
    feed = Pipeline(of, spool=tmp_path / "spool").feed(ROWS)
    assert [batch["text"].tolist() for batch in feed] == epochs[0]
    report = feed.report
    assert report is not None
    assert (report.made_arrays, report.cached_arrays, report.spooled_arrays) == (0, 0, 3)
    other = spec(decode(counted, shape=[3], dtype="i64", version="2"))
    assert Pipeline(other, spool=tmp_path / "spool").run(ROWS).made_arrays == 3
    with pytest.raises(ValueError, match="spool_bytes needs a spool"):
        Pipeline(of, spool_bytes="1MiB")


def test_a_spool_that_fails_warns_once(tmp_path: Path) -> None:
    of = spec(decode(tokens, shape=[3], dtype="i64"))
    for runs in (lambda pipeline: list(pipeline.feed(ROWS)), lambda pipeline: pipeline.run(ROWS)):
        pipeline = Pipeline(of, spool=tmp_path / "spool")
        (tmp_path / "spool").rmdir()
        with pytest.warns(RuntimeWarning, match="not spooled any more"):
            runs(pipeline)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runs(pipeline)
