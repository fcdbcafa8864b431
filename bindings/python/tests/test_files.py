"""Tests export and import: other programs open the files, and find the rows that `peek` returns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank

FORMATS = ["safetensors", "npy", "parquet"]


def filled(bank: embank.Bank) -> tuple[embank.Table, Any]:
    table = bank.table("item", dim=6, optimizer=embank.Adagrad(lr=0.5))
    keys = (np.arange(5000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    rng = np.random.default_rng(4)
    for _ in range(2):
        table.apply_gradients(keys, rng.standard_normal((5000, 6)).astype(np.float32))
    bank.checkpoint()
    return table, keys


def opened(suffix: str, path: Path) -> tuple[Any, Any]:
    """Reads the keys and rows of an export without Embank."""
    if suffix == "safetensors":
        from safetensors.numpy import load_file

        tensors = load_file(path)
        return tensors["keys"], tensors["rows"]
    if suffix == "npy":
        rows = np.load(path.with_suffix(".rows.npy"), mmap_mode="r")
        return np.load(path.with_suffix(".keys.npy")), rows
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(path)
    assert frame.schema["vector"] == polars.Array(polars.Float32, 6)
    return frame["key"].to_numpy(), frame["vector"].to_numpy()


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_export_opens_elsewhere_and_equals_peek(tmp_path: Path, suffix: str) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table, keys = filled(bank)
        path = tmp_path / f"item.{suffix}"
        told: list[tuple[int, int]] = []
        report = table.export(path, progress=lambda done, total: told.append((done, total)))
        assert report["rows"] == 5000 and told[-1] == (5000, 5000)
        assert report["bytes"] == sum(file.stat().st_size for file in map(Path, report["files"]))
        found, rows = opened(suffix, path)
        assert sorted(found.tolist()) == sorted(keys.tolist())
        np.testing.assert_array_equal(rows, table.peek(found, missing="error"))


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_table_is_made_as_the_file_says(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"item.{suffix}"
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table("item", dim=3, dtype="float16", optimizer=embank.Adam(lr=0.25), seed=8)
        table.apply_gradients([4, 5], np.ones((2, 3), np.float32))
        bank.checkpoint()
        table.export(path, state=True)
        rows = table.peek([5, 4, 6])
    with embank.Bank(tmp_path / "other", memory_budget="4MiB") as bank:
        copy = bank.table_as_exported("item", path)
        assert (copy.dim, copy.dtype, copy.optimizer) == (3, "float16", embank.Adam(lr=0.25))
        assert len(copy) == 0
        assert copy.import_from(path) == {"rows": 2, "with_state": True}
        np.testing.assert_array_equal(copy.peek([5, 4, 6]), rows)  # key 6 has its initial row
        with pytest.raises(embank.TableMismatch):
            bank.table("other", dim=2)
            bank.table_as_exported("other", path)


def test_a_table_is_made_of_a_file_without_its_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "word.safetensors"
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        bank.vocabulary("word", "bytes").ids_or_insert(["red"])
        table = bank.table("word", dim=1, vocabulary="word")
        table.put([0], [[2.0]])
        bank.checkpoint()
        table.export(path)
    with embank.Bank(tmp_path / "other", memory_budget="4MiB") as bank:
        with pytest.raises(embank.TableMismatch, match="vocabulary"):
            bank.table_as_exported("word", path)
        table = bank.table_as_exported("word", path, vocabulary=False)
        assert table.import_from(path)["rows"] == 1


def test_a_readable_file_that_does_not_fit_is_a_mismatch(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table, _ = filled(bank)
        path = tmp_path / "item.safetensors"
        table.export(path, state=True)
        with pytest.raises(embank.FileMismatch, match="import into a table of dim 6") as caught:
            bank.table("narrow", dim=5).import_from(path)
        assert caught.value.path == str(path)
        with pytest.raises(embank.FileMismatch, match="the state of Adagrad, and .* SGD") as caught:
            bank.table("sgd", dim=6, optimizer=embank.SGD(momentum=0.9)).import_from(path)
        assert "::" not in str(caught.value) and "{" not in str(caught.value)
        np.save(tmp_path / "plain.npy", np.ones((2, 3), np.float32))
        with pytest.raises(embank.FileMismatch, match="does not tell the settings"):
            bank.table_as_exported("plain", tmp_path / "plain.npy")
        assert "plain" not in bank.tables()


def test_parquets_settings_are_in_the_metadata_that_pyarrow_shows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table, _ = filled(bank)
        path = tmp_path / "item.parquet"
        table.export(path)
        metadata = parquet.read_table(path).schema.metadata
        assert metadata[b"embank.table"] == b"item"
        assert metadata[b"embank.dim"] == b"6"
        # The file's own metadata, which parquet-tools and DuckDB show.
        assert parquet.ParquetFile(path).metadata.metadata[b"embank.dim"] == b"6"
        assert bank.table_as_exported("copy", path).dim == 6


def test_a_dense_export_is_an_embeddings_weight(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table("item", dim=3)
        table.get(np.arange(0, 100, 2)).release()
        bank.checkpoint()
        with pytest.raises(ValueError, match="49 of the keys 0 to 98"):
            table.export(tmp_path / "w.npy", dense=True)
        table.export(tmp_path / "w.npy", dense=True, rows=100, fill_missing=True)
        table.export(tmp_path / "w.safetensors", dense=True, fill_missing=True)
        every = table.peek(np.arange(100))
        np.testing.assert_array_equal(np.load(tmp_path / "w.npy"), every)
        weight = load_file(tmp_path / "w.safetensors")
        assert list(weight) == ["rows"]
        np.testing.assert_array_equal(weight["rows"], every[:99])
        with pytest.raises(ValueError, match="dense=True"):
            table.export(tmp_path / "w.npy", fill_missing=True)


@pytest.mark.parametrize("suffix", FORMATS)
def test_training_goes_on_from_an_import_as_it_would_have(tmp_path: Path, suffix: str) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table, keys = filled(bank)
        table.export(tmp_path / f"item.{suffix}", state=True)
        other = bank.table("other", dim=6, optimizer=embank.Adagrad(lr=0.5))
        report = other.import_from(tmp_path / f"item.{suffix}")
        assert report == {"rows": 5000, "with_state": True}
        for each in (table, other):
            each.apply_gradients(keys, np.ones((5000, 6), np.float32))
        np.testing.assert_array_equal(other.peek(keys), table.peek(keys))


def test_files_of_others_come_in(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(5)
    weight = rng.standard_normal((300, 8)).astype(np.float32)
    ids = rng.permutation(10**6)[:300]
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table("item", dim=8)
        np.save(tmp_path / "weight.npy", weight.astype(np.float64))
        np.save(tmp_path / "ids.npy", ids)
        table.import_from(tmp_path / "weight.npy", keys=str(tmp_path / "ids.npy"))
        np.testing.assert_array_equal(table.peek(ids, missing="error"), weight)
        save_file({"emb.weight": weight.astype(np.float16)}, tmp_path / "model.safetensors")
        table.import_from(tmp_path / "model.safetensors")
        expected = weight.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(table.peek(np.arange(300), missing="error"), expected)
        np.save(tmp_path / "fortran.npy", np.asfortranarray(weight))
        table.import_from(tmp_path / "fortran.npy")
        np.testing.assert_array_equal(table.peek(np.arange(300), missing="error"), weight)

        polars = pytest.importorskip("polars")
        frame = polars.DataFrame({"id": ids, "embedding": (weight * 2).tolist(), "name": ["x"] * 300})
        frame.write_parquet(tmp_path / "others.parquet", compression="zstd")
        table.import_from(tmp_path / "others.parquet", keys="id")
        np.testing.assert_array_equal(table.peek(ids, missing="error"), weight * 2)


def test_what_the_progress_raises_ends_it(tmp_path: Path) -> None:
    def enough(done: int, total: int) -> None:
        raise RuntimeError(f"{done} of {total} are enough")

    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table, keys = filled(bank)
        with pytest.raises(RuntimeError, match="are enough"):
            table.export(tmp_path / "item.npy", progress=enough)
        assert [path.name for path in tmp_path.iterdir()] == ["bank"]
        table.export(tmp_path / "item.npy")
        with pytest.raises(RuntimeError, match="5000 of 5000"):
            bank.table("other", dim=6).import_from(tmp_path / "item.npy", progress=enough)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table = bank.table("item", dim=6)
        with pytest.raises(ValueError, match="suffix"):
            table.export(tmp_path / "item.csv")
        with pytest.raises(ValueError, match="format"):
            table.export(tmp_path / "item", format="csv")  # type: ignore[arg-type]
        with pytest.raises(embank.StoreIOError, match="none.safetensors"):
            table.import_from(tmp_path / "none.safetensors")
        rows = np.zeros((3, 6), np.float32)
        rows[1, 4] = np.inf
        np.save(tmp_path / "bad.npy", rows)
        with pytest.raises(embank.UnreadableFile, match="row 1 .*column 4 .*inf") as caught:
            table.import_from(tmp_path / "bad.npy")
        assert caught.value.path == str(tmp_path / "bad.npy")


def taken(bank: embank.Bank, path: Any, **options: Any) -> dict[int, list[float]]:
    """Imports a file into an empty table of dim 3, and returns its rows for keys below 1,000."""
    bank.drop_table("t") if "t" in bank.tables() else None
    table = bank.table("t", dim=3)
    table.import_from(path, **options)
    keys = np.flatnonzero(table.contains(np.arange(1000)))
    return dict(zip(keys.tolist(), table.peek(keys).tolist()))


KEYS = np.array([70, 11, 52, 33, 94])
VALUES = (KEYS[:, None] * np.ones((1, 3))).astype("f4")
RIGHT = {int(key): [float(key)] * 3 for key in KEYS}


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_small_integers_are_keys(tmp_path: Path, kind: str) -> None:
    """Shows that keys of 16 bits are read as keys. Earlier versions ignored them and gave key 0 the
    row of key 70."""
    from safetensors.numpy import save_file

    save_file({"keys": KEYS.astype(kind), "rows": VALUES}, tmp_path / "x.safetensors")
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        assert taken(bank, tmp_path / "x.safetensors") == RIGHT


def test_frames_of_pandas_come_in_by_their_keys_or_not_at_all(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"

    def frame(keys: Any, name: str = "key") -> None:
        pd.DataFrame({name: keys, "vector": list(VALUES)}).to_parquet(path)

    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        for whole in (KEYS, KEYS.astype("i1"), pd.array(KEYS, dtype="Int16")):
            frame(whole)
            assert taken(bank, path) == RIGHT
        null = pd.Series([*KEYS[:4], None])
        for odd in (
            [str(key) for key in KEYS],
            null,
            pd.Categorical(KEYS),
            pd.Categorical([str(key) for key in KEYS]),
            pd.to_datetime(KEYS, unit="s"),
            KEYS > 50,
        ):
            for name in ("key", "keys", "item_id"):
                frame(odd, name)
                with pytest.raises(embank.UnreadableFile, match=f"x.parquet.*{name}.*first_key"):
                    taken(bank, path)
            assert list(taken(bank, path, first_key=7)) == [7, 8, 9, 10, 11]


def test_arrays_in_fortran_order_lists_and_directories_come_in(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    parts = tmp_path / "parts"
    parts.mkdir()
    for place, rows in enumerate((slice(0, 2), slice(2, 5))):
        name = f"part-{place}.safetensors"
        save_file({"keys": KEYS[rows], "rows": np.ascontiguousarray(VALUES[rows])}, parts / name)
    (parts / "_SUCCESS").write_bytes(b"")
    np.save(tmp_path / "f.npy", np.asfortranarray(VALUES))
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        assert taken(bank, parts) == RIGHT
        files = sorted(parts.glob("part-*"))
        assert taken(bank, files) == taken(bank, tuple(map(str, files))) == RIGHT
        positions = taken(bank, tmp_path / "f.npy", first_key=100)
        assert positions == {100 + i: row.tolist() for i, row in enumerate(VALUES)}
        with pytest.raises(ValueError, match="leave one of them out"):
            taken(bank, files, keys="keys", first_key=0)
        with pytest.raises(ValueError, match="empty"):
            taken(bank, [])
        with pytest.raises((TypeError, ValueError, OverflowError)):
            taken(bank, files, first_key=1.5)


ENDED = """
import os, signal, sys
import numpy as np
import embank

bank = embank.Bank(sys.argv[1], memory_budget="4MiB")
table = bank.table("t", dim=8)
table.put(np.arange(20000), np.ones((20000, 8), np.float32))
bank.checkpoint()
table.export(sys.argv[2], progress=lambda done, total: os.kill(os.getpid(), int(sys.argv[3])))
"""


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_export_that_a_signal_ends_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    """Shows that an interrupted export removes its hidden files."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        out = tmp_path / f"out-{number}"
        out.mkdir()
        words = [sys.executable, "-c", ENDED, tmp_path / f"b{number}", out / f"t.{suffix}"]
        ended = subprocess.run([*map(str, words), str(int(number))], capture_output=True)
        assert ended.returncode != 0
        assert list(out.iterdir()) == []


def test_an_export_replaces_files_and_nothing_else(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="4MiB") as bank:
        table, _ = filled(bank)
        os.mkfifo(tmp_path / "pipe.parquet")
        (tmp_path / "device.safetensors").symlink_to("/dev/full")
        for name in ("pipe.parquet", "device.safetensors"):
            with pytest.raises(ValueError, match=f"{name}.* is a (pipe|device)"):
                table.export(tmp_path / name)
        assert (tmp_path / "pipe.parquet").is_fifo()

        (tmp_path / "v1.safetensors").write_bytes(b"old")
        (tmp_path / "v1.safetensors").chmod(0o600)
        (tmp_path / "latest.safetensors").symlink_to("v1.safetensors")
        table.export(tmp_path / "latest.safetensors")
        assert (tmp_path / "latest.safetensors").is_symlink()
        assert (tmp_path / "v1.safetensors").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "v1.safetensors").stat().st_size > 5000 * 24

        for length in (240, 255):
            path = tmp_path / ("n" * (length - 12) + ".safetensors")
            assert table.export(path)["rows"] == 5000 and path.exists()
