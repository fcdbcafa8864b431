"""Tests the memory of a batch's arrays: a feed reuses it after the last array that shows it is
gone, and never before.
"""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embank.pipeline import (
    Batch, Column, Feed, Field, Output, Pipeline, Spec, image, modulus, vocabulary
)

ROWS = 20_000
BATCH_ROWS = 128
TEXT = "".join(f"{row}\t{row % 91:x}\n" for row in range(ROWS)).encode()


def feed(**options: Any) -> Feed:
    spec = Spec(
        fields=[Field("n", "int32", required=True), Field("c", "hex32", required=True)],
        columns=[Column("n"), Column("c", modulus(1 << 20), vocabulary("c"))],
        outputs=[
            Output("f", ["n"], "f32"),
            Output("i", ["n", "n"], "i32"),
            Output("w", ["c", "n"], "i64"),
            Output("b", ["n"], "bits32"),
        ],
    )
    return Pipeline(spec, chunk_bytes=2000, threads=2).feed(TEXT, **{"batch_rows": BATCH_ROWS, **options})


def is_batch(number: int, batch: Any) -> bool:
    """Whether the arrays have the values of this batch of a feed without a shuffle."""
    rows = np.arange(number * BATCH_ROWS, min((number + 1) * BATCH_ROWS, ROWS))
    expected = {
        "f": rows[:, None], "i": np.stack([rows, rows], 1), "w": np.stack([rows % 91, rows], 1),
        "b": rows[:, None],
    }
    return all(np.array_equal(batch[name], expected[name]) for name in batch)


def rest_of(feed: Feed) -> None:
    """Takes all other batches, and writes into them before they are gone."""
    for batch in feed:
        for array in batch.values():
            array[:] = 77


def test_a_loop_needs_the_memory_of_a_few_batches() -> None:
    places = set()
    batches = 0
    for batch in feed():
        places.add(batch["w"].ctypes.data)
        batches += 1
    assert batches == -(-ROWS // BATCH_ROWS)
    # Two batches are ready, two are on their way, and the loop has two while it asks for the next.
    assert len(places) <= 6


@pytest.mark.parametrize("shuffle_rows", [0, 1000])
def test_held_batches_keep_their_values(shuffle_rows: int) -> None:
    options = {"shuffle_rows": shuffle_rows, "seed": 5}
    expected = [{name: array.copy() for name, array in batch.items()} for batch in feed(**options)]
    held: list[tuple[int, Batch]] = []
    for number, batch in enumerate(feed(**options)):
        if number % 3 == 0:
            held.append((number, batch))
        else:
            for array in batch.values():
                array[:] = 77
    for number, batch in held:
        for name, array in batch.items():
            assert np.array_equal(array, expected[number][name])
    assert shuffle_rows or all(is_batch(number, batch) for number, batch in held)


def test_a_feed_goes_on_when_every_batch_is_kept() -> None:
    kept = list(feed())
    assert all(is_batch(number, batch) for number, batch in enumerate(kept))
    assert len({batch["w"].ctypes.data for batch in kept}) == len(kept)


def test_one_array_may_be_kept_longer_than_its_batch() -> None:
    kept = [batch["w"] for batch in feed()]
    assert all(is_batch(number, {"w": array}) for number, array in enumerate(kept))


@pytest.mark.parametrize("drop_last", [False, True])
def test_arrays_outlive_the_feed(drop_last: bool) -> None:
    for closed in (False, True):
        begun = feed(drop_last=drop_last)
        first, second = next(begun), next(begun)
        if closed:
            begun.close()
        else:
            rest_of(begun)
        del begun
        gc.collect()
        assert is_batch(0, first) and is_batch(1, second)
        second["f"][:] = 5
        assert is_batch(0, first) and set(second["f"].ravel()) == {5}


def test_a_slice_keeps_its_memory() -> None:
    begun = feed()
    batch = next(begun)
    slices = [batch["w"][2:5, 1], batch["i"].ravel()[3::7], batch["f"].T, batch["b"].view(np.int32)]
    expected = [part.copy() for part in slices]
    del batch
    rest_of(begun)
    for part, whole in zip(slices, expected):
        assert np.array_equal(part, whole)
        assert not part.flags.owndata and part.flags.writeable


def test_copies_and_pickles_have_memory_of_their_own() -> None:
    begun = feed()
    batch = next(begun)
    copies = [
        copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)),
        {name: copy.copy(array) for name, array in batch.items()},
        pickle.loads(pickle.dumps(dict(batch), protocol=5)),
    ]
    del batch
    rest_of(begun)
    assert all(is_batch(0, each) for each in copies)


def test_buffers_and_dlpack_keep_the_memory() -> None:
    begun = feed()
    batch = next(begun)
    w = batch["w"]
    pickled_apart: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(w, protocol=5, buffer_callback=pickled_apart.append)
    shares = [
        memoryview(w), np.frombuffer(w.data, np.int64), np.from_dlpack(w), np.asarray(w)[::-1][::-1],
        np.lib.stride_tricks.as_strided(w[1:], w.shape, w.strides)[:-1],
        pickle.loads(pickled, buffers=pickled_apart),
    ]
    expected = [np.array(share) for share in shares]
    del batch, w, pickled_apart
    rest_of(begun)
    for share, values in zip(shares, expected):
        assert np.array_equal(np.asarray(share), values)


def test_the_owner_of_the_memory_is_the_base_of_the_array() -> None:
    begun = feed()
    batch = next(begun)
    owner = batch["w"].base
    assert type(owner).__name__ == "ArrayMemory"
    # A view refers to the array or to the owner. Both keep the owner.
    view = batch["w"].view(np.uint64)[5:, :1]
    assert view.base is batch["w"] or view.base is owner
    place = batch["w"].ctypes.data
    with pytest.raises(TypeError):
        type(owner)()
    with pytest.raises(ValueError, match="own"):
        batch["w"].resize((1, 1))
    # The owner alone also keeps the memory: no later batch is at its place.
    del batch, view
    assert all(later["w"].ctypes.data != place for later in begun)
    del owner


def test_tensors_keep_the_memory() -> None:
    torch = pytest.importorskip("torch")
    begun = feed()
    first, second = next(begun).torch(), torch.from_numpy(next(begun)["w"])
    part = second[3:, 0]
    del second
    rest_of(begun)
    assert is_batch(0, {name: tensor.numpy() for name, tensor in first.items()})
    assert part.tolist() == [row % 91 for row in range(BATCH_ROWS + 3, 2 * BATCH_ROWS)]


def test_arrow_arrays_keep_the_memory() -> None:
    pyarrow = pytest.importorskip("pyarrow")

    def matrices(arrow: Any) -> dict[str, Any]:
        columns = zip(arrow.schema.names, arrow.columns)
        return {
            name: column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), -1)
            for name, column in columns
        }

    begun = feed()
    first = pyarrow.record_batch(next(begun).arrow())
    rest_of(begun)
    assert is_batch(0, matrices(first))
    # A feed that is a stream of Arrow reuses memory too.
    held = [
        (number, arrow)
        for number, arrow in enumerate(pyarrow.RecordBatchReader.from_stream(feed()))
        if number % 3 == 0
    ]
    gc.collect()
    assert all(is_batch(number, matrices(arrow)) for number, arrow in held)


def test_arrays_may_be_dropped_on_any_thread() -> None:
    begun = feed()
    found: list[int] = []
    wrong: list[int] = []

    def take() -> None:
        for batch in begun:
            number = int(batch["b"][0, 0]) // BATCH_ROWS
            found.append(number)
            if not is_batch(number, batch):
                wrong.append(number)
            batch["w"][:] = 77

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and sorted(found) == list(range(-(-ROWS // BATCH_ROWS)))


FORKED = """
import os, sys
sys.path.insert(0, {tests!r})
from test_batch_memory import feed, is_batch
begun = feed()
batch = next(begun)
for number in range(1, 100):
    child = os.fork()
    if child == 0:
        # The pool's lock may be held by a thread that the child does not have.
        right = is_batch(0, batch)
        del batch
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_batch(number, next(begun))
assert is_batch(0, batch)
"""


def test_a_feed_reuses_the_memory_of_pictures(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    rows, batch_rows = 300, 4
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for row in range(rows):
            file = io.BytesIO()
            pillow.new("RGB", (3, 2), (row % 256, 7, 9)).save(file, "PNG")
            member = tarfile.TarInfo(f"{row:04}.png")
            member.size = file.tell()
            file.seek(0)
            archive.addfile(member, file)
    spec = Spec(
        fields=[Field("png", "blob", required=True)],
        columns=[Column("png", image(2, 3))],
        outputs=[Output("picture", ["png"], "u8")],
    )
    places = set()
    held: list[tuple[int, Any]] = []
    begun = Pipeline(spec, threads=1).feed(tmp_path, batch_rows=batch_rows)
    for number, batch in enumerate(begun):
        picture = batch["picture"]
        assert picture.shape == (batch_rows, 2, 3, 3) and picture.dtype == np.uint8
        places.add(picture.ctypes.data)
        if number % 10 == 0:
            held.append((number, picture[2:, 0]))
        else:
            picture[:] = 77
    for number, part in held:
        reds = [(batch_rows * number + row) % 256 for row in (2, 3)]
        assert part.tolist() == [[[red, 7, 9]] * 3 for red in reds]
    # The other batches take turns in the memory of a few.
    assert len(held) < len(places) <= len(held) + 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_may_drop_arrays() -> None:
    script = FORKED.format(tests=os.path.dirname(__file__))
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)
