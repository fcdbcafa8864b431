"""Tests the parts of a feed, in this process and of `embank serve`: one preprocessing for several
trainers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, connect, modulus, vocabulary
from test_serve import lists, numbers, serving, text

ROWS = text(1000)


def feed(**options: Any) -> Any:
    return Pipeline(numbers()).feed(ROWS, batch_rows=64, shuffle_rows=100, seed=3, **options)


def together(parts: list[Any]) -> list[dict[str, Any]]:
    """Takes one batch of each part in turn, until all are at their ends."""
    found: list[Any] = []
    open_parts = list(parts)
    while open_parts:
        batches = [(part, next(part, None)) for part in open_parts]
        found += lists([batch for _, batch in batches if batch is not None])
        open_parts = [part for part, batch in batches if batch is not None]
    return found


@pytest.mark.parametrize("parts", [1, 2, 3, 20])
def test_parts_together_hand_out_the_batches_of_the_feed(parts: int) -> None:
    whole = lists(feed())
    assert together(feed().split(parts)) == whole
    with ThreadPoolExecutor(parts) as trainers:
        found = list(trainers.map(lists, feed().split(parts)))
    assert found == [whole[number::parts] for number in range(parts)]


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_go_on_at_the_state_of_one(parts: int) -> None:
    whole = lists(feed())
    for rounds in (0, 2, 4):
        first = feed().split(parts)
        for _ in range(rounds):
            for part in first:
                next(part)
        states = [json.dumps(part.state_dict()) for part in first]
        assert len(set(states)) == 1 and first[0].position == min(rounds * parts * 64, 1000)
        for part in first:
            part.close()
        assert [json.dumps(part.state_dict()) for part in first] == states
        rest = feed(skip_rows=json.loads(states[0])).split(parts)
        assert together(rest) == whole[rounds * parts :]
        assert all(part.position == 1000 for part in rest)


def test_a_part_that_is_closed_is_discarded() -> None:
    pipeline = Pipeline(numbers())
    first, second = pipeline.feed(ROWS, batch_rows=10).split(2)
    with second:
        assert len(next(second)["f"]) == 10
    assert next(second, None) is None
    assert sum(len(batch["f"]) for batch in first) == 500
    assert first.report is not None and first.report.rows == 1000
    assert first.discarded_rows == 490 and second.report is None
    # All parts are done, so the pipeline can run again.
    assert pipeline.run(ROWS).rows == 1000
    assert pipeline.feed(ROWS).discarded_rows == 0


def test_the_pipeline_is_in_use_until_each_part_is_done() -> None:
    pipeline = Pipeline(numbers())
    parts = pipeline.feed(ROWS).split(3)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="each part of it"):
            pipeline.run(ROWS)
        del parts[0]
    assert pipeline.run(ROWS).rows == 1000


def test_a_feed_that_was_split_hands_out_nothing() -> None:
    whole = feed()
    next(whole)
    parts = whole.split(2)
    with pytest.raises(RuntimeError, match="take the batches of its parts"):
        next(whole)
    with pytest.raises(Exception, match="take the batches of its parts"):
        pyarrow.RecordBatchReader.from_stream(whole).read_all()
    with whole:
        pass
    assert (whole.position, whole.report, whole.discarded_rows) == (64, None, 0)
    assert [next(part)["f"].shape[0] for part in parts] == [64, 64]
    for wrong in (whole, parts[0]):
        with pytest.raises(RuntimeError, match="can be split, once"):
            wrong.split(2)
    ended = feed()
    ended.close()
    with pytest.raises(RuntimeError, match="has not ended"):
        ended.split(2)


def test_wrong_numbers_of_parts_are_refused() -> None:
    whole = feed()
    for parts in (0, -1, 4097):
        with pytest.raises(ValueError, match="parts must be from"):
            whole.split(parts)
    with pytest.raises(TypeError, match="parts"):
        whole.split(1.5)
    assert len(whole.split(4096)) == 4096  # the refused calls changed nothing


def test_each_part_raises_the_error() -> None:
    pipeline = Pipeline(numbers(), chunk_bytes=100)
    parts = pipeline.feed(ROWS + b"x\t1\n", batch_rows=100).split(2)
    for _ in range(4):
        assert [len(next(part)["f"]) for part in parts] == [100, 100]
    errors = []
    for part in parts:
        with pytest.raises(embank.BadRow, match="bytes:1001:1: ") as bad:
            list(part)
        errors.append(bad.value.line)
        assert next(part, None) is None
    assert errors == [1001, 1001] and pipeline.run(ROWS).rows == 1000


def test_closing_the_bank_ends_the_parts(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        pipeline = Pipeline(numbers(), bank=bank)
        whole = pipeline.feed(ROWS, batch_rows=10)
        parts = whole.split(3)
        next(parts[0])
        parts[1].close()
    for gone in (parts[0], parts[2]):
        with pytest.raises(ValueError, match="closed"):
            next(gone)
    assert next(parts[1], None) is None
    with pytest.raises(ValueError, match="closed"):
        pipeline.run(ROWS)


def test_a_part_goes_to_arrow_and_torch() -> None:
    torch = pytest.importorskip("torch")
    first, second = feed().split(2)
    tensors = next(second).torch()
    assert tensors["f"].dtype == torch.float32 and len(tensors["f"]) == 64
    second.close()
    table = pyarrow.RecordBatchReader.from_stream(first).read_all()
    assert table.num_rows == 8 * 64


def served(address: str, of: int, **options: Any) -> list[Any]:
    return [connect(address, part=part, of=of, **options) for part in range(of)]


@pytest.mark.parametrize("of", [1, 2, 3])
def test_clients_together_get_the_epoch(tmp_path: Path, of: int) -> None:
    options = ("--batch-rows", "64", "--shuffle-rows", "100", "--wait", "600")
    with serving(tmp_path, ROWS, *options) as address:
        for seed in (3, 4):
            whole = lists(connect(address, seed=seed))
            parts = served(address, of, seed=seed)
            assert together(parts) == whole
            for part in parts:
                assert part.position == 1000
                assert part.report.rows == 1000 and part.report.discarded_rows == 0
            stopped = served(address, of, seed=seed)
            for part in stopped:
                next(part), next(part) if of == 1 else None
            (state, *others) = [part.state_dict() for part in stopped]
            assert all(other == state for other in others)
            for part in stopped:
                part.close()
            taken = 2 if of == 1 else of
            assert together(served(address, of, skip_rows=state)) == whole[taken:]


def test_a_client_that_leaves_is_counted(tmp_path: Path) -> None:
    with serving(tmp_path, text(200_000), "--batch-rows", "1000", "--wait", "600") as address:
        first, second = served(address, 2)
        next(second)
        second.close()
        assert sum(len(batch["f"]) for batch in first) == 100_000
        # Batches that the server had sent and nothing has read are not counted.
        assert 0 < first.report.discarded_rows < 100_000


def test_a_client_that_is_killed_frees_the_others(tmp_path: Path) -> None:
    script = """
import sys
from embank.pipeline import connect
feed = connect(sys.argv[1], part=1, of=2)
print(len(next(feed)["f"]), flush=True)
sys.stdin.read()
"""
    with serving(tmp_path, text(200_000), "--batch-rows", "1000", "--wait", "600") as address:
        first = connect(address, part=0, of=2)
        client = subprocess.Popen(
            [sys.executable, "-c", script, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert client.stdout is not None
        assert client.stdout.readline() == b"1000\n"
        client.kill()
        client.communicate()
        assert sum(len(batch["f"]) for batch in first) == 100_000
        assert len(next(connect(address))["f"]) == 1000


def test_clients_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for part, of in ((2, 2), (0, 0), (-1, 3)):
        with pytest.raises(ValueError, match=f"part is {part} and of is {of}"):
            connect("grpc://127.0.0.1:1", part=part, of=of)
    with pytest.raises(ValueError, match="give both"):
        connect("grpc://127.0.0.1:1", part=1)
    with serving(tmp_path, ROWS, "--batch-rows", "10", "--wait", "600") as address:
        first = connect(address, part=0, of=2, seed=5)
        with pytest.raises(RuntimeError, match="another client is taking part 0 of 2"):
            connect(address, part=0, of=2, seed=5)
        with pytest.raises(embank.PipelineError, match="`seed` is 5 there and 6 here"):
            connect(address, part=1, of=2, seed=6)
        with pytest.raises(embank.PipelineError, match="`of` is 2 there and 4 here"):
            connect(address, part=3, of=4, seed=5)
        first.close()


def test_an_epoch_whose_clients_do_not_all_come_fails(tmp_path: Path) -> None:
    with serving(tmp_path, ROWS, "--batch-rows", "10", "--wait", "0") as address:
        with pytest.raises(embank.PipelineError, match="no client has come for part 0, 2 within"):
            list(connect(address, part=1, of=3))


def test_a_server_that_is_stopped_fails_for_each_part(tmp_path: Path) -> None:
    with serving(tmp_path, text(200_000), "--batch-rows", "1000", "--wait", "600") as address:
        parts = served(address, 2)
        for part in parts:
            next(part)
    for part in parts:
        with pytest.raises((ConnectionError, embank.PipelineError)):
            list(part)


def test_ids_are_given_once_for_all_parts() -> None:
    spec = Spec(
        fields=[Field("c", "int32", required=True)],
        columns=[Column("c", modulus(1000), vocabulary("c"))],
        outputs=[Output("c", ["c"], "i64")],
    )
    values = np.random.default_rng(1).integers(0, 1000, 5000)
    rows = b"".join(b"%d\n" % value for value in values)
    pipeline = Pipeline(spec)
    parts = pipeline.feed(rows, batch_rows=50).split(4)
    with ThreadPoolExecutor(4) as trainers:
        found = list(trainers.map(lambda part: [batch["c"] for batch in part], parts))
    ids = np.concatenate([batch for turn in zip(*found) for batch in turn]).ravel()
    assert np.array_equal(pipeline.vocabularies()["c"][ids], values)
