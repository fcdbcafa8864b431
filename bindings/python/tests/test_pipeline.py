"""Tests pipelines: batches from the background, their arrays, specs, errors, and ending a feed
early.
"""

from __future__ import annotations

import _thread
import gc
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank
from embank.pipeline import (
    Batch,
    Column,
    Field,
    Output,
    Pipeline,
    Spec,
    bucketize,
    clip,
    criteo,
    cross,
    fill_missing,
    float_,
    hash_,
    hex2int,
    logarithm,
    modulus,
    neg2zero,
    vocabulary,
)


def numbers(bad_rows: Any = "fail", m: int = 1 << 20) -> Spec:
    return Spec(
        fields=[Field("n", "int32", required=True), Field("c", "hex32", required=True)],
        columns=[Column("n"), Column("c", modulus(m), vocabulary("c"))],
        outputs=[
            Output("f", ["n"], "f32"),
            Output("i", ["n", "n"], "i32"),
            Output("w", ["c", "n"], "i64"),
            Output("b", ["n"], "bits32"),
        ],
        bad_rows=bad_rows,
    )


def text(rows: int) -> bytes:
    return "".join(f"{row}\t{row % 91:x}\n" for row in range(rows)).encode()


def values(batches: Any) -> list[int]:
    return [int(n) for batch in batches for n in batch["i"][:, 0]]


def test_batches_are_dicts_of_arrays_that_own_their_memory() -> None:
    batch = next(Pipeline(numbers()).feed(text(10), batch_rows=4))
    assert isinstance(batch, Batch) and isinstance(batch, dict)
    kinds = {name: (array.dtype, array.shape) for name, array in batch.items()}
    assert kinds == {
        "f": (np.dtype("float32"), (4, 1)),
        "i": (np.dtype("int32"), (4, 2)),
        "w": (np.dtype("int64"), (4, 2)),
        "b": (np.dtype("uint32"), (4, 1)),
    }
    assert batch["w"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    gc.collect()
    for array in batch.values():
        assert array.flags.writeable and array.flags.c_contiguous
        array += 1
    assert batch["f"].ravel().tolist() == [1.0, 2.0, 3.0, 4.0]


def test_tensors_share_the_memory() -> None:
    torch = pytest.importorskip("torch")
    batch = next(Pipeline(criteo(100)).feed(b"1" + b"\t7" * 39 + b"\n"))
    tensors = batch.torch()
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        "label": torch.float32, "dense": torch.float32, "sparse": torch.int64,
    }
    tensors["sparse"][0, 0] = 77
    assert batch["sparse"][0, 0] == 77


def test_files_bytes_and_several_of_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_bytes(text(5))
    pipeline = Pipeline(numbers())
    assert values(pipeline.feed(file)) == list(range(5))
    assert values(pipeline.feed(str(file))) == list(range(5))
    assert values(pipeline.feed([file, text(3), str(file)])) == [*range(5), *range(3), *range(5)]
    with pytest.raises(embank.PipelineError, match="there are no inputs"):
        values(pipeline.feed([]))
    for wrong in (5, [5], None):
        with pytest.raises(TypeError, match="input is a path"):
            pipeline.feed(wrong)  # type: ignore[arg-type]


def test_batches_are_the_same_with_any_number_of_threads() -> None:
    def all_of(threads: int, **options: Any) -> list[list[list[int]]]:
        pipeline = Pipeline(numbers(), chunk_bytes=200)
        feed = pipeline.feed(text(2000), threads=threads, batch_rows=64, **options)
        return [batch["w"].tolist() for batch in feed]

    for options in ({}, {"shuffle_rows": 100, "seed": 5}):
        assert all_of(1, **options) == all_of(3, **options)
    shuffled = all_of(2, shuffle_rows=100, seed=5)
    assert shuffled != all_of(2, shuffle_rows=100, seed=6)
    assert sorted(row for batch in shuffled for row in batch) == sorted(
        row for batch in all_of(2) for row in batch
    )


def test_a_feed_goes_on_where_another_stopped() -> None:
    def begin(skip_rows: int) -> embank.pipeline.Feed:
        return Pipeline(numbers(), chunk_bytes=200).feed(
            text(1000), batch_rows=64, shuffle_rows=300, seed=2, skip_rows=skip_rows
        )

    whole = [batch["w"].tolist() for batch in begin(0)]
    for taken in (0, 3, len(whole)):
        with begin(0) as feed:
            for _ in range(taken):
                next(feed)
        assert feed.position == min(taken * 64, 1000)
        assert [batch["w"].tolist() for batch in begin(feed.position)] == whole[taken:]


def test_a_feed_reports_its_end_and_gives_the_pipeline_back() -> None:
    pipeline = Pipeline(numbers(m=50))
    with pipeline.feed(text(100), batch_rows=30, drop_last=True) as feed:
        assert [len(batch["f"]) for batch in feed] == [30, 30, 30]
        report = feed.report
        assert report is not None
        assert (report.rows, report.bad_rows, report.bytes) == (100, 0, len(text(100)))
        assert report.seconds > 0 and feed.position == 90
    assert next(feed, None) is None
    assert pipeline.vocabularies()["c"].tolist() == list(range(50))
    assert values(pipeline.feed(text(10))) == list(range(10))


def test_one_run_at_a_time() -> None:
    pipeline = Pipeline(numbers())
    feed = pipeline.feed(text(10_000), batch_rows=2)
    for call in (lambda: pipeline.feed(b""), lambda: pipeline.run(b""), pipeline.vocabularies):
        with pytest.raises(RuntimeError, match="close"):
            call()
    next(feed)
    feed.close()
    feed.close()
    assert feed.report is None and next(feed, None) is None
    for _ in pipeline.feed(text(10_000), batch_rows=2):
        break  # dropping the iterator ends its run
    assert pipeline.run(text(3)).rows == 3


def test_run_counts_and_numbers() -> None:
    pipeline = Pipeline(numbers(bad_rows="skip"))
    report = pipeline.run([text(20), b"x\t1\n1\n"])
    assert (report.rows, report.bad_rows) == (20, 2)
    assert report.first_bad_rows[0].startswith('bytes:1:1: field "n"')
    assert repr(report) == "<embank.pipeline.RunReport, 20 rows, 2 bad ones>"
    assert len(pipeline.vocabularies()["c"]) == 20


def test_errors_are_those_of_the_package(tmp_path: Path) -> None:
    pipeline = Pipeline(numbers())
    feed = pipeline.feed(text(10) + b"4\tzz\n")
    with pytest.raises(embank.BadRow, match='bad_rows="skip"') as bad:
        list(feed)
    assert (bad.value.input, bad.value.line, bad.value.column) == ("bytes", 11, 3)
    assert next(feed, None) is None
    with pytest.raises(embank.BadRow):
        pipeline.run(b"1\n")
    missing = tmp_path / "missing.tsv"
    for call in (lambda: list(pipeline.feed(missing)), lambda: pipeline.run(missing)):
        with pytest.raises(embank.StoreIOError) as absent:
            call()
        assert absent.value.filename == str(missing) and absent.value.errno == 2
    assert issubclass(embank.BadRow, embank.PipelineError)


def test_specs_that_make_no_sense() -> None:
    spec = Spec([Field("n", "int32")], [Column("n", logarithm())], [Output("n", ["n"], "f32")])
    with pytest.raises(embank.SpecError, match="put fill_missing before logarithm"):
        Pipeline(spec)
    with pytest.raises(embank.SpecError, match="unknown field"):
        Pipeline({"fields": [], "columns": [], "outputs": [], "more": 1})
    with pytest.raises(TypeError, match="a dict or JSON"):
        Pipeline(5)  # type: ignore[arg-type]


def test_a_spec_is_the_same_as_dict_and_as_json() -> None:
    spec = criteo(500)
    row = b"1" + b"\t7" * 39 + b"\n"
    found = [
        next(Pipeline(form).feed(row))["sparse"].tolist()
        for form in (spec, spec.to_dict(), spec.to_json())
    ]
    assert found == [[[0] * 26]] * 3
    assert json.loads(spec.to_json()) == spec.to_dict()


def test_every_operator_has_its_function() -> None:
    spec = Spec(
        fields=[
            Field("n", "int32"), Field("t", "bytes"), Field("x", "float32"), Field("h", "bytes"),
            Field("unused", "skip"),
        ],
        columns=[
            Column("log", fill_missing(0), neg2zero(), logarithm(), field="n"),
            Column("bucket", fill_missing(0), bucketize([0, 10, 20]), field="n"),
            Column("clipped", fill_missing(1.5), clip(0.5, 2.5), field="x"),
            Column("float", fill_missing(0), float_(), field="n"),
            Column("t", fill_missing("none"), hash_(1), modulus(1000)),
            Column("h", fill_missing("f"), hex2int(), modulus(10)),
            cross("both", "t", "h", modulus(100), vocabulary("both"), seed=3),
        ],
        outputs=[
            Output("f", ["log", "clipped", "float"], "f32"),
            Output("i", ["bucket", "t", "h", "both"], "i64"),
        ],
    )
    batch = next(Pipeline(spec, format="csv").feed(b"n,t,x,h,u\n15,a,9.5,1f,?\n-3,a,0.25,,?\n"))
    assert np.allclose(batch["f"], [[np.log1p(15), 2.5, 15.0], [0.0, 0.5, -3.0]])
    assert batch["i"][:, [0, 2, 3]].tolist() == [[2, 1, 0], [0, 5, 1]]
    assert batch["i"][0, 1] == batch["i"][1, 1]


def test_formats() -> None:
    semicolons = Pipeline(numbers(), format="csv", separator=";", header=False)
    assert values(semicolons.feed(b"5;1\n")) == [5]
    quoted = Pipeline(numbers(), format="csv")
    assert values(quoted.feed(b'n,c\n"5",1\n')) == [5]
    with pytest.raises(embank.BadRow):
        list(Pipeline(numbers(), format="csv", quote="").feed(b'n,c\n"5",1\n'))
    packed = Pipeline(numbers(), format="packed")
    assert values(packed.feed(np.array([[5, 1], [6, 2]], dtype="<u4").tobytes())) == [5, 6]
    for wrong in ({"format": "json"}, {"separator": "a\n"}, {"format": "packed", "header": True}, {"header": "no"}):
        with pytest.raises(ValueError):
            Pipeline(numbers(), **wrong)  # type: ignore[arg-type]


def test_arguments_out_of_range() -> None:
    pipeline = Pipeline(numbers())
    wrong: Any
    for wrong in (
        {"batch_rows": 0}, {"batch_rows": -1}, {"threads": 0}, {"skip_rows": -1}, {"batches_ahead": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            pipeline.feed(text(5), **wrong)
    with pytest.raises(TypeError):
        pipeline.feed(text(5), batch_rows=2.5)  # type: ignore[arg-type]
    assert pipeline.run(text(5)).rows == 5


def test_threads_share_a_feed() -> None:
    feed = Pipeline(numbers()).feed(text(5000), batch_rows=10)
    found: list[list[int]] = [[], [], []]

    def take(into: list[int]) -> None:
        into.extend(values(feed))

    threads = [threading.Thread(target=take, args=(into,)) for into in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sum(found, [])) == list(range(5000))


def test_what_a_path_raises_comes_through() -> None:
    class Interrupted:
        def __fspath__(self) -> str:
            raise KeyboardInterrupt

    inputs: Any = [Interrupted()]
    with pytest.raises(KeyboardInterrupt):
        Pipeline(numbers()).run(inputs)
    inputs = [1]
    with pytest.raises(TypeError, match="an input is a path"):
        Pipeline(numbers()).run(inputs)


def test_an_interrupt_ends_a_long_run() -> None:
    # A run gets 20 times these rows, more than it reads before it sees the interrupt.
    rows = text(200_000)
    pipeline = Pipeline(numbers(), threads=1)
    with pytest.raises(KeyboardInterrupt):
        # Repeated, because the interrupt may come between two runs, or when Python ignores it.
        while True:
            timer = threading.Timer(0.05, _thread.interrupt_main)
            timer.start()
            pipeline.run([rows] * 20)
            timer.join()
    timer.join()
    assert pipeline.run(text(3)).rows == 3


@pytest.fixture
def silent_pipe() -> Iterator[str]:
    reader, writer = os.pipe()
    os.write(writer, b"1")
    yield f"/dev/fd/{reader}"
    os.close(reader)
    os.close(writer)


def test_an_interrupt_ends_the_wait_for_a_pipe(silent_pipe: str) -> None:
    pipeline = Pipeline(numbers())
    timer = threading.Timer(0.05, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        pipeline.run(silent_pipe)
    timer.join()
    assert pipeline.run(text(3)).rows == 3


def test_a_feed_of_a_silent_pipe_can_be_closed_and_dropped(silent_pipe: str) -> None:
    """Shows that a run that waits for a named pipe does not hold the GIL, which the pipe's writer
    needs."""
    pipeline = Pipeline(numbers())
    feed = pipeline.feed(silent_pipe)
    feed.close()
    assert next(feed, None) is None
    feed = pipeline.feed(silent_pipe)
    del feed
    assert pipeline.run(text(3)).rows == 3


def test_an_interrupt_in_a_stream_of_arrow_arrives(silent_pipe: str) -> None:
    """Shows that Ctrl-C in a stream of Arrow raises `KeyboardInterrupt`, and not only the stream's
    error."""
    pyarrow = pytest.importorskip("pyarrow")
    stream = pyarrow.RecordBatchReader.from_stream(Pipeline(numbers()).feed(silent_pipe))
    timer = threading.Timer(0.05, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        try:
            stream.read_next_batch()
        except (pyarrow.ArrowException, OSError):
            timer.join()
        pytest.fail("the stream has failed, and there was no interrupt")
    timer.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_kept_off() -> None:
    pipeline = Pipeline(numbers())
    feed = pipeline.feed(text(10_000), batch_rows=2)
    child = os.fork()
    if child == 0:
        refused = 0
        # Regression test: the last two calls waited for ever in the child, if another thread of the
        # parent held the feed's lock at the fork.
        for call in (lambda: next(feed), lambda: pipeline.feed(b""), feed.close,
                     lambda: feed.position, lambda: feed.report):
            try:
                call()
            except RuntimeError as error:
                refused += "fork" in str(error)
        shown = "another process" in repr(feed)
        del feed  # and does not wait for threads that do not exist in the child
        os._exit(0 if refused == 5 and shown else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert next(feed)["f"].tolist() == [[0.0], [1.0]]


def test_commas_read_as_tabs_name_the_format() -> None:
    """Shows that the error names the format. An earlier error advised to skip bad rows; the run
    then ended without a batch and without an error."""
    commas = b"".join(b"%d,%x\n" % (row, row) for row in range(6000))
    with pytest.raises(embank.BadRow, match=r'has 1 field, .*separator "\\t".*format="csv"'):
        Pipeline(numbers()).run(commas)
    with pytest.raises(embank.BadRow, match='6000 of the first 6000.*format="csv".*bad_rows_max=1 '):
        list(Pipeline(numbers("skip")).feed(commas))
    rows = list(Pipeline(numbers("skip"), format="csv", header="none").feed(commas))
    assert sum(len(batch["f"]) for batch in rows) == 6000
    with pytest.raises(embank.BadRow, match="that the field.s setting whole_floats=True reads;"):
        Pipeline(numbers()).run(b"1.0\tff\n")


def test_specs_are_refused_in_names_of_python() -> None:
    wrong: Any = "str"
    with pytest.raises(embank.SpecError, match='kind of field "site" must be one of "int32".*\'str\''):
        Field("site", wrong)
    with pytest.raises(embank.SpecError, match='time_unit of field "t" must be one of "s", "ms"'):
        Field("t", "int64", time_unit=wrong)
    with pytest.raises(embank.SpecError, match='dtype of output "o" must be one of "f32"'):
        Output("o", ["a"], wrong)
    with pytest.raises(embank.SpecError, match='bad_rows must be one of "fail", "skip"'):
        numbers(bad_rows="drop")
    operator: Any = fill_missing
    with pytest.raises(TypeError, match=r'operator of column "n" is .*: call it, fill_missing\(\.\.\.\)'):
        Column("n", operator)

    def refused(kind: Any, *operators: Any) -> str:
        column = Column("Clip", *operators, field="Float")
        spec = Spec([Field("Float", kind)], [column], [Output("o", ["Clip"], "f32")])
        with pytest.raises(embank.SpecError) as error:
            Pipeline(spec)
        return str(error.value)

    # The message translates Rust names to Python names, but not the user's names in quotes.
    negative = refused("float32", fill_missing(0), logarithm())
    assert '"Clip" may be negative: put neg2zero, or clip from 0 on, before logarithm' in negative
    assert '"Clip": fill_missing has 0, and the values are text' in refused("bytes", fill_missing(0))


def test_an_open_file_is_no_input() -> None:
    """Shows that an open file is refused. Earlier versions took each of its lines as an input."""
    file: Any = io.BytesIO(text(3))
    with pytest.raises(TypeError, match="an open file: pass its path, or what its read"):
        Pipeline(numbers()).feed(file)
