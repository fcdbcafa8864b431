"""Tests feeds of another process, `embank serve` and `embank.pipeline.connect`, and batches for
libraries of Arrow.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow
import pyarrow.flight
import pytest

import embank
from embank.pipeline import (
    ArrowBatch,
    Column,
    Field,
    Output,
    Pipeline,
    Spec,
    connect,
    modulus,
    vocabulary,
)

ROOT = Path(__file__).parents[3]


def command() -> str:
    """The path of the program `embank`, which `cargo xtask test` builds."""
    named = os.environ.get("EMBANK_COMMAND", str(ROOT / "target/debug/embank"))
    if not Path(named).exists():
        pytest.fail(f"{named} is not there: `cargo build --package embank-cli` makes it")
    return named


def numbers(bad_rows: Any = "fail") -> Spec:
    return Spec(
        fields=[Field("n", "int32", required=True), Field("c", "hex32", required=True)],
        columns=[Column("n"), Column("c", modulus(1 << 20), vocabulary("c"))],
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


@contextmanager
def serving(folder: Path, rows: bytes, *options: str, bad_rows: Any = "fail") -> Iterator[str]:
    """Serves these rows, and yields the server's address."""
    (folder / "spec.json").write_text(numbers(bad_rows).to_json())
    (folder / "rows.tsv").write_bytes(rows)
    arguments = [command(), "serve", "spec.json", "rows.tsv", *options]
    server = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("serving at grpc://"), line
        yield line.split()[-1]
    finally:
        server.kill()
        server.communicate()


def lists(batches: Any) -> list[dict[str, Any]]:
    return [{name: array.tolist() for name, array in batch.items()} for batch in batches]


def test_batches_are_those_of_a_feed_in_this_process(tmp_path: Path) -> None:
    options = ("--batch-rows", "64", "--shuffle-rows", "300", "--seed", "5")
    with serving(tmp_path, text(1000), *options) as address:
        for seed in (5, 6):
            local = Pipeline(numbers()).feed(text(1000), batch_rows=64, shuffle_rows=300, seed=seed)
            with connect(address, seed=None if seed == 5 else seed) as feed:
                assert lists(feed) == lists(local)
                assert feed.position == 1000
                report = feed.report
                assert report is not None
                assert (report.rows, report.bad_rows, report.bytes) == (1000, 0, len(text(1000)))
                assert next(feed, None) is None
            feed.close()


def test_an_epoch_teaches_the_servers_vocabulary_only_if_it_may(tmp_path: Path) -> None:
    """Shows that an epoch with `learn=False` inserts nothing. The vocabulary has no `unknown_id`,
    so the epoch fails at a new value and names it."""
    with serving(tmp_path, text(20), "--batch-rows", "5") as address:
        with pytest.raises(embank.PipelineError, match='column "[a-z]+" has value .* learns nothing in this run'):
            list(connect(address, learn=False))
        learnt = lists(connect(address))
        assert lists(connect(address, learn=False)) == learnt == lists(connect(address, learn=True))


def test_a_feed_goes_on_where_another_stopped(tmp_path: Path) -> None:
    options = ("--batch-rows", "64", "--shuffle-rows", "300")
    with serving(tmp_path, text(1000), *options) as address:
        whole = lists(connect(address))
        for taken in (0, 3, len(whole)):
            with connect(address) as feed:
                for _ in range(taken):
                    next(feed)
            assert feed.report is None and feed.position == min(taken * 64, 1000)
            rest = connect(address, skip_rows=feed.position)
            assert rest.position == feed.position
            assert lists(rest) == whole[taken:]


def test_a_state_has_the_place_that_the_server_told(tmp_path: Path) -> None:
    # The first chunk of 512 KiB has some 60,000 rows.
    rows = text(80_000)
    with serving(tmp_path, rows, "--batch-rows", "1000", "--message-bytes", "8kB") as address:
        with connect(address) as feed:
            for _ in range(280):
                next(feed)
            state = feed.state_dict()
            expected = lists([next(feed)])
            ahead = feed.state_dict(1)
        assert 0 < state["place"]["rows"] <= state["rows"] == 280 * 250
        with connect(address, skip_rows=json.loads(json.dumps(state))) as feed:
            assert feed.state_dict() == state
            assert lists([next(feed)]) == expected
        # The server does not use a place that lies after the row.
        assert ahead["place"] == state["place"] and ahead["rows"] == 1
        with connect(address, skip_rows=ahead) as feed:
            assert next(feed)["w"][0, 1] == 1


def test_arrays_are_of_the_feeds_kinds_and_may_be_changed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    # More than gRPC's default limit of 4 MiB, in one message.
    with serving(tmp_path, text(300_000), "--batch-rows", "300000") as address:
        batch = next(connect(address))
    gc.collect()
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "f": ("float32", (300_000, 1)),
        "i": ("int32", (300_000, 2)),
        "w": ("int64", (300_000, 2)),
        "b": ("uint32", (300_000, 1)),
    }
    for array in batch.values():
        assert array.flags.writeable and array.flags.c_contiguous and array.flags.aligned
        array += 1
    assert np.array_equal(batch["w"][:, 1], np.arange(1, 300_001))
    tensors = batch.torch()
    tensors["w"][0, 0] = 77
    assert tensors["f"].dtype == torch.float32 and batch["w"][0, 0] == 77


def test_batches_larger_than_a_limit_come_in_parts(tmp_path: Path) -> None:
    options = ("--batch-rows", "1000", "--message-bytes", "8kB")
    with serving(tmp_path, text(1000), *options) as address:
        with connect(address) as feed:
            first, second = next(feed), next(feed)
        assert (len(first["f"]), len(second["f"]), feed.position) == (250, 250, 500)
        third = next(connect(address, skip_rows=feed.position))
        assert third["i"][:, 0].tolist() == list(range(500, 750))


def test_a_bad_row_is_raised_as_one(tmp_path: Path) -> None:
    with serving(tmp_path, text(1000) + b"4\tzz\n", "--batch-rows", "10") as address:
        for _ in range(2):  # the server keeps running
            feed = connect(address)
            with pytest.raises(embank.BadRow, match=r"^rows\.tsv:1001:3: ") as bad:
                list(feed)
            assert (bad.value.input, bad.value.line, bad.value.column) == ("rows.tsv", 1001, 3)
            assert next(feed, None) is None and feed.report is None
        (tmp_path / "rows.tsv").unlink()
        with pytest.raises(embank.PipelineError, match=r"rows\.tsv: No such file"):
            list(connect(address))


def test_bad_rows_that_are_left_out_are_reported(tmp_path: Path) -> None:
    with serving(tmp_path, text(20) + b"x\t1\n1\n", bad_rows="skip") as address:
        feed = connect(address)
        assert [len(batch["f"]) for batch in feed] == [20]
        assert feed.report is not None and feed.report.bad_rows == 2
        assert feed.report.first_bad_rows[0].startswith("rows.tsv:21:1: ")


def test_one_client_at_a_time(tmp_path: Path) -> None:
    with serving(tmp_path, text(200_000), "--batch-rows", "64", "--wait", "0") as address:
        first = connect(address)
        next(first)
        with pytest.raises(RuntimeError, match="^another client is taking this feed"):
            connect(address)
        assert sum(len(batch["f"]) for batch in first) == 200_000 - 64
        assert len(next(connect(address))["f"]) == 64


def test_a_feed_that_nobody_has_any_more_ends(tmp_path: Path) -> None:
    with serving(tmp_path, text(200_000), "--batch-rows", "64", "--wait", "60") as address:
        for _ in range(3):
            for _ in connect(address):
                break
            with connect(address) as feed:
                next(feed)
            feed.close()
            assert next(feed, None) is None


def test_an_interrupted_feed_is_no_finished_one(tmp_path: Path) -> None:
    """Shows that an interrupted feed raises an error at every further call, and frees the
    server."""
    with serving(tmp_path, text(200_000), "--batch-rows", "64", "--wait", "60") as address:
        feed = connect(address)
        next(feed)
        reader: Any = feed._reader

        class Interrupted:
            """Imitates Ctrl-C during the wait for a batch: raises it when the batch arrives."""

            cancel = reader.cancel

            def read_chunk(self) -> Any:
                reader.read_chunk()
                raise KeyboardInterrupt

        feed._reader = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            next(feed)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"interrupted at row 64.*skip_rows=64"):
                next(feed)
        with pytest.raises(RuntimeError, match="interrupted"):
            list(feed)
        # The server is free although the feed object still exists.
        rest = connect(address, skip_rows=feed.position)
        assert next(rest)["f"][0] == 64 and feed.report is None
        rest.close()


def test_a_batch_that_nobody_got_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that `position` does not count a batch whose arrival was interrupted, so the next feed
    hands it out."""
    with serving(tmp_path, text(200_000), "--batch-rows", "64", "--wait", "60") as address:
        feed = connect(address)
        next(feed)

        def interrupted(column: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr("embank._remote._matrix", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(feed)
        monkeypatch.undo()
        assert feed.position == 64
        with pytest.raises(RuntimeError, match="interrupted at row 64"):
            next(feed)
        assert next(connect(address, skip_rows=64))["f"][0] == 64


def test_a_signals_handler_may_close_a_feed(tmp_path: Path) -> None:
    """Shows that `close` in a signal handler does not wait for a lock that its own thread holds."""
    with serving(tmp_path, text(200_000), "--batch-rows", "64", "--wait", "60") as address:
        feed = connect(address)
        reader: Any = feed._reader

        class Signalled:
            """Imitates a signal during the wait for a batch: runs its handler when the batch
            arrives."""

            cancel = reader.cancel

            def read_chunk(self) -> Any:
                chunk = reader.read_chunk()
                feed.close()
                return chunk

        feed._reader = Signalled()
        assert len(next(feed)["f"]) == 64
        assert next(feed, None) is None


@pytest.mark.parametrize("answer", [None, b"{}", b"no JSON", b"later"])
def test_an_epoch_whose_rows_have_come_does_not_fail_at_its_report(
    tmp_path: Path, answer: Any
) -> None:
    with serving(tmp_path, text(100), "--batch-rows", "60") as address:
        feed = connect(address)
        client: Any = feed._client

        class Report:
            body = answer

        class Other:
            """Imitates a server that has ended, or that is of another version."""

            def do_action(self, action: str, options: Any) -> Any:
                # Such a server never answers, so the call must have a timeout.
                assert options is not None
                if answer is None:
                    raise pyarrow.flight.FlightUnavailableError("gone")
                if answer == b"later":
                    (said,) = client.do_action(action)
                    Report.body = bytes(said.body)[:-1] + b', "more": 1}'
                return iter([Report])

            def close(self) -> None:
                client.close()
                raise pyarrow.ArrowException("not closed")

        feed._client = Other()
        assert [len(batch["f"]) for batch in feed] == [60, 40]
        assert next(feed, None) is None
        if answer == b"later":
            assert feed.report is not None and feed.report.rows == 100
        else:
            assert feed.report is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_kept_off(tmp_path: Path) -> None:
    """Shows that a forked child can't take its parent's batches. A separate program forks, so that
    the child can end normally."""
    script = """
import gc, os, sys
import pyarrow
from embank.pipeline import connect

feed, other = connect(sys.argv[1]), connect(sys.argv[2])
first = next(feed)["f"][:, 0].tolist()
next(other)
child = os.fork()
if child == 0:
    refused = 0
    reader = pyarrow.RecordBatchReader.from_stream
    for call in (next, list, reader, reader):
        try:
            call(feed)
        except RuntimeError as error:
            refused += "fork" in str(error)
    feed.close()
    with other:
        pass
    del other  # and the feed at the program's end
    gc.collect()
    sys.exit(0 if refused == 4 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
rows = first + [row for batch in feed for row in batch["f"][:, 0].tolist()]
assert rows == list(range(20_000)), len(rows)
assert sum(len(batch["f"]) for batch in other) == 20_000 - 64
"""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    options = ("--batch-rows", "64")
    with serving(tmp_path / "one", text(20_000), *options) as one:
        with serving(tmp_path / "two", text(20_000), *options) as two:
            arguments = [sys.executable, "-c", script, one, two]
            ran = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


def test_a_pipe_is_not_served(tmp_path: Path) -> None:
    """Shows that the server refuses a pipe. The first of several clients would get a part of the
    epoch, and the next ones nothing."""
    (tmp_path / "spec.json").write_text(numbers().to_json())
    os.mkfifo(tmp_path / "rows.tsv")
    arguments = [command(), "serve", "spec.json", "rows.tsv"]
    ran = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode != 0 and "write the pipe to a file first" in ran.stderr


def test_nobody_serves(tmp_path: Path) -> None:
    with serving(tmp_path, text(1)) as address:
        pass
    with pytest.raises(ConnectionError):
        connect(address)


def test_without_pyarrow_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.flight", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        connect("grpc://127.0.0.1:1")


def test_any_client_of_flight_gets_matrices_without_a_copy(tmp_path: Path) -> None:
    with serving(tmp_path, text(100), "--batch-rows", "60") as address:
        client = pyarrow.flight.connect(address)
        (info,) = client.list_flights()
        assert info.schema.field("i").metadata == {b"embank.columns": b'["n","n"]'}
        assert info.total_records == -1
        chunks = list(client.do_get(info.endpoints[0].ticket))
        assert [chunk.data.num_rows for chunk in chunks] == [60, 40]
        column = chunks[1].data.column("w")
        matrix = column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), -1)
        assert matrix.shape == (40, 2) and matrix[:, 1].tolist() == list(range(60, 100))
        client.close()


def arrow_addresses(batch: Any) -> dict[str, int]:
    return {name: batch.column(name).flatten().buffers()[1].address for name in batch.schema.names}


def test_a_batch_goes_to_arrow_without_a_copy() -> None:
    batch = next(Pipeline(numbers()).feed(text(10)))
    found = pyarrow.record_batch(batch.arrow())
    assert str(found.schema.field("i").type) == "fixed_size_list<item: int32 not null>[2]"
    assert not found.schema.field("i").nullable
    places = {name: array.ctypes.data for name, array in batch.items()}
    assert arrow_addresses(found) == places
    batch["i"][3, 1] = 77
    expected = lists([batch])[0]
    del batch
    gc.collect()
    assert found.to_pydict() == expected
    found.validate(full=True)
    frame = polars.DataFrame(pyarrow.table(found))
    assert frame["w"].to_list() == expected["w"]


def test_polars_takes_a_batch() -> None:
    batch = next(Pipeline(numbers()).feed(text(5)))
    series = polars.from_arrow(batch)
    assert isinstance(series, polars.Series)
    assert series.struct.field("i").to_list() == batch["i"].tolist()


def test_arrays_of_your_own_go_to_arrow_too() -> None:
    batch = next(Pipeline(numbers()).feed(text(6)))
    batch["i"] = batch["i"][::2].T.copy().T  # neither contiguous
    batch["w"], batch["f"], batch["b"] = batch["w"][::2], batch["f"][::2], batch["b"][::2]
    assert pyarrow.record_batch(batch.arrow()).to_pydict()["i"] == [[0, 0], [2, 2], [4, 4]]
    batch["w"] = batch["w"][:1]
    with pytest.raises(TypeError, match="'w' has 1 rows|\"w\" has 1 rows"):
        batch.arrow()
    batch["w"] = np.zeros((3, 2), np.int64).T
    with pytest.raises(TypeError, match='"w" is not contiguous in memory: np.require'):
        ArrowBatch({"w": batch["w"]})
    batch["w"] = np.zeros((3, 2))
    with pytest.raises(TypeError, match="float32, int32, int64, uint32 or uint8"):
        batch.arrow()


def test_an_array_that_lies_askew_is_refused() -> None:
    """Shows that `ArrowBatch` refuses an unaligned array. Earlier versions panicked."""
    askew = np.zeros(64, np.uint8)[1:49].view(np.int64).reshape(3, 2)
    assert not askew.flags.aligned
    with pytest.raises(TypeError, match='"w" is not aligned in memory: np.require'):
        ArrowBatch({"w": askew})
    assert len(ArrowBatch({"w": np.require(askew, requirements=["C", "A"])})) == 3
    assert len(ArrowBatch({"w": askew[:0]})) == 0


@pytest.mark.parametrize("remote", [False, True])
def test_a_feed_goes_to_arrow_as_a_stream(tmp_path: Path, remote: bool) -> None:
    rows = text(1000)
    expected = lists(Pipeline(numbers()).feed(rows, batch_rows=64))

    def read(feed: Any) -> list[dict[str, Any]]:
        reader = pyarrow.RecordBatchReader.from_stream(feed)
        assert reader.schema.field("w").metadata == {b"embank.columns": b'["c","n"]'}
        return [batch.to_pydict() for batch in reader]

    with serving(tmp_path, rows, "--batch-rows", "64") as address:
        feed: Any = connect(address) if remote else Pipeline(numbers()).feed(rows, batch_rows=64)
        first = next(feed)
        assert lists([first]) + read(feed) == expected
        assert feed.position == 1000 and feed.report.rows == 1000
        assert pyarrow.schema(feed).names == ["f", "i", "w", "b"]


def test_a_bad_row_ends_a_stream() -> None:
    pipeline = Pipeline(numbers())
    reader = pyarrow.RecordBatchReader.from_stream(pipeline.feed(text(5) + b"x\t1\n"))
    with pytest.raises(Exception, match="bytes:6:1: "):
        reader.read_all()
    assert pipeline.run(text(3)).rows == 3  # and the pipeline can run again
