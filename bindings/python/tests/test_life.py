"""Tests a bank's life: opening, checkpoints, closing, reopening, forking."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank
from test_leases import until


def open_bank(path: "str | os.PathLike[str]", **settings: Any) -> embank.Bank:
    return embank.Bank(path, memory_budget="16MiB", **settings)


def ones(n: int) -> Any:
    return np.ones((n, 4), np.float32)


def test_a_checkpoint_brings_rows_state_and_blob_back(tmp_path: Path) -> None:
    adagrad = embank.Adagrad(lr=0.5)
    with open_bank(tmp_path / "bank") as bank:
        assert bank.recovered is None
        table = bank.table("item", dim=4, optimizer=adagrad)
        for _ in range(3):
            table.apply_gradients(np.arange(100), np.ones((100, 4), np.float32))
        rows = table.peek(np.arange(100))
        first = bank.checkpoint(b"one")
        second = bank.checkpoint(b"two \x00 bytes")
        assert second == first + 1
        table.apply_gradients(np.arange(100), np.ones((100, 4), np.float32))
        further = table.peek(np.arange(100))
        table.get([1000])
    with open_bank(tmp_path / "bank") as bank:
        assert bank.recovered is not None
        assert (bank.recovered.checkpoint, bank.recovered.blob) == (second, b"two \x00 bytes")
        assert bank.tables() == ["item"]
        table = bank.table("item", dim=4, optimizer=adagrad)
        np.testing.assert_array_equal(table.peek(np.arange(100), missing="error"), rows)
        assert table.contains([1000]).tolist() == [False]
        assert table.outstanding(5) == 0
        table.apply_gradients(np.arange(100), np.ones((100, 4), np.float32))
        np.testing.assert_array_equal(table.peek(np.arange(100)), further)


def test_a_blob_is_bytes_and_may_be_left_out(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as bank:
        bank.checkpoint()
        with pytest.raises(TypeError):
            bank.checkpoint("step 3")  # type: ignore[arg-type]
    with open_bank(tmp_path / "bank") as bank:
        assert bank.recovered is not None
        assert bank.recovered.blob == b""


def test_a_second_bank_on_the_directory_is_refused(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank"):
        with pytest.raises(embank.Locked, match="bank") as refused:
            open_bank(tmp_path / "bank")
        if sys.platform == "linux":
            assert f"this process ({os.getpid()}) already" in str(refused.value)
        assert "read_only=True" in str(refused.value)
    open_bank(tmp_path / "bank").close()


def test_the_error_of_a_bank_that_is_still_referred_to_names_the_cure(tmp_path: Path) -> None:
    """Regression test: after `del bank`, with a table alive, the error named only the process."""
    bank = open_bank(tmp_path / "bank")
    kept = bank.table("item", dim=2)
    del bank
    with pytest.raises(embank.Locked) as refused:
        open_bank(tmp_path / "bank")
    for holder in ("bank.close()", "table", "module", "lease", "traceback"):
        assert holder in str(refused.value)
    kept.bank.close()
    open_bank(tmp_path / "bank").close()
    # A lease alone holds the bank too.
    lease = open_bank(tmp_path / "bank").table("item", dim=2).get([])
    with pytest.raises(embank.Locked, match=r"bank\.close\(\)"):
        open_bank(tmp_path / "bank")
    del lease
    open_bank(tmp_path / "bank").close()


def traceback_of(bank: embank.Bank) -> Any:
    """Returns an exception whose traceback has a frame with the bank."""
    try:
        bank.open_table("no such table")
    except embank.NoSuchTable as error:
        return error


def pipeline_of(bank: embank.Bank) -> Any:
    from embank.pipeline import Column, Field, Output, Pipeline, Spec, vocabulary

    field, column = Field("w", "bytes", required=True), Column("w", vocabulary("word"))
    return Pipeline(Spec([field], [column], [Output("ids", ["w"], "i64")]), bank=bank)


def module_of(bank: embank.Bank, kind: str = "Embedding") -> Any:
    pytest.importorskip("torch")
    import embank.torch

    table = bank.table("item", dim=2, optimizer=embank.SGD(lr=1.0))
    return getattr(embank.torch, kind)({"f": table} if "Collection" in kind else table)


def optimizer_of(bank: embank.Bank) -> Any:
    pytest.importorskip("torch")
    import embank.torch

    return embank.torch.SparseOptimizer(module_of(bank))


def output_of(bank: embank.Bank) -> Any:
    torch = pytest.importorskip("torch")
    return module_of(bank)(torch.tensor([1]))


HOLDERS: dict[str, Any] = {
    "vocabulary": lambda bank: bank.vocabulary("word", "bytes"),
    "pipeline": pipeline_of,
    "feed": lambda bank: pipeline_of(bank).feed(b"a\nb\n", batch_rows=1),
    "scan": lambda bank: bank.open_table("item").scan(),
    "prefetch": lambda bank: bank.open_table("item").prefetch([1]),
    "method": lambda bank: bank.checkpoint,
    "traceback": traceback_of,
    "module": module_of,
    "collection": lambda bank: module_of(bank, "EmbeddingBagCollection"),
    "optimizer": optimizer_of,
    "output": output_of,
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_each_object_that_holds_a_bank_lets_it_go(tmp_path: Path, holder: Any) -> None:
    """Shows that a bank stays open for each kind of object that refers to it, that the error names
    the cure, and that the bank closes with the object."""
    path = tmp_path / "bank"
    bank = open_bank(path)
    bank.table("item", dim=2, optimizer=embank.SGD(lr=1.0)).put([1], [[1.0, 2.0]])
    bank.checkpoint()
    held = holder(bank)
    del bank
    for use in (lambda: open_bank(path), lambda: embank.roll_back(path, 1)):
        with pytest.raises(embank.Locked, match=r"is not closed.*bank\.close\(\)"):
            use()
    del held
    gc.collect()
    open_bank(path).close()


@pytest.mark.parametrize("how", ["link", "relative", "longer"])
def test_a_held_bank_is_found_by_each_of_its_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("bank")
    path = {"link": tmp_path / "link", "relative": "bank", "longer": tmp_path / "bank/../bank"}[how]
    with open_bank(tmp_path / "bank"):
        with pytest.raises(embank.Locked, match="a Bank object of it is not closed"):
            open_bank(path)
    open_bank(path).close()


def test_closing_gives_leases_back_and_refuses_what_comes_after(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank")
    table = bank.table("item", dim=4, optimizer=embank.SGD(lr=0.5))
    lease = table.get([1])
    distinct = table.get_distinct([1])
    assert not bank.closed
    bank.close()
    bank.close()
    assert bank.closed
    assert not lease.held
    assert lease.rows.shape == (1, 4), "rows are a copy and stay"
    assert (table.name, table.dim) == ("item", 4)
    lease.release()
    uses: list[Any] = [
        lambda: lease.apply(ones(1)),
        lambda: distinct.put(ones(1)),
        lambda: table.get([1]),
        lambda: table.get_distinct([1]),
        lambda: table.peek([1]),
        lambda: table.put([1], ones(1)),
        lambda: table.apply_gradients([1], ones(1)),
        lambda: table.initial([1]),
        lambda: table.contains([1]),
        lambda: table.delete([1]),
        lambda: table.lookahead([1]),
        lambda: table.outstanding(1),
        lambda: table.stats(),
        lambda: table.learning_rate,
        lambda: bank.table("item", dim=4),
        lambda: bank.open_table("item"),
        lambda: bank.tables(),
        lambda: bank.checkpoint(),
        lambda: bank.compact(),
        lambda: bank.drop_table("item"),
        lambda: table.scan(),
        lambda: bank.stats(),
        lambda: bank.prometheus(),
        lambda: bank.__enter__(),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="bank is closed"):
            use()
    repr(bank), repr(table), repr(lease)
    open_bank(tmp_path / "bank").close()


def test_dropping_every_object_closes_the_bank(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank")
    lease = bank.table("item", dim=4).get([1])
    del bank
    with pytest.raises(embank.Locked):
        open_bank(tmp_path / "bank")
    del lease
    open_bank(tmp_path / "bank").close()


def test_closing_wakes_a_get_that_waits(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank", wait_timeout=20.0)
    table = bank.table("item", dim=4, staleness_bound=0)
    lease = table.get([1])
    seen: list[BaseException] = []

    def wait_for_it() -> None:
        try:
            table.get([1])
        except ValueError as error:
            seen.append(error)

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    until(lambda: bank.stats()["waits"] == 1)
    bank.close()
    waiter.join()
    assert [str(error) for error in seen] == ["bank is closed"]
    assert not lease.held
    open_bank(tmp_path / "bank").close()


def test_a_path_that_is_a_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no bank")
    with pytest.raises(ValueError, match="is a file; a bank is a directory") as raised:
        open_bank(tmp_path / "file")
    assert str(tmp_path / "file") in str(raised.value)


def test_paths_of_either_kind(tmp_path: Path) -> None:
    with open_bank(os.fspath(tmp_path / "a b \u00e9")) as bank:
        assert bank.path == tmp_path / "a b \u00e9"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_and_harms_nothing(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank")
    table = bank.table("item", dim=4, optimizer=embank.SGD(lr=0.5))
    lease = table.get([1])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            refused = 0
            for use in (lambda: table.get([1]), lambda: bank.checkpoint(), bank.stats):
                try:
                    use()
                except RuntimeError as error:
                    refused += "fork" in str(error) and "read_only=True" in str(error)
            del lease, table
            bank.close()
            del bank
            status = 0 if refused == 3 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert table.outstanding(1) == 1
    lease.apply(ones(1))
    bank.checkpoint()
    bank.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_trainers_bank_opens_while_its_workers_live(tmp_path: Path) -> None:
    """Shows that a killed process's bank can be opened while its forked workers live."""
    script = (
        "import os, sys, embank\n"
        "bank = embank.Bank(sys.argv[1], memory_budget='16MiB')\n"
        "bank.checkpoint()\n"
        "if os.fork() == 0:\n"
        # The child says so itself: before its fork returns, it still has the bank's lock.
        "    print('forked', flush=True)\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "sys.stdin.read()\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "bank")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdin is not None and trainer.stdout is not None
    try:
        assert trainer.stdout.readline() == "forked\n"
        with pytest.raises(embank.Locked) as refused:
            open_bank(tmp_path / "bank")
        if sys.platform == "linux":
            assert f"process {trainer.pid} (" in str(refused.value)
        trainer.kill()
        trainer.wait()
        open_bank(tmp_path / "bank").close()
    finally:
        trainer.kill()
        # The worker lives until its standard input ends.
        trainer.stdin.close()
        trainer.stdout.close()
        trainer.wait()


def test_the_interpreter_may_end_with_everything_open(tmp_path: Path) -> None:
    script = (
        "import sys, embank\n"
        "bank = embank.Bank(sys.argv[1], memory_budget='16MiB')\n"
        "table = bank.table('item', dim=4)\n"
        "lease = table.get([1, 2])\n"
        "cycle = [lease]\n"
        "cycle.append(cycle)\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "bank")], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_numpy_alone_is_enough() -> None:
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import embank\n"
        "try:\n"
        "    import embank.torch\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip install 'embank[torch]'" in done.stdout


def test_a_reader_beside_the_writer_shows_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    with open_bank(path, checkpoints_kept=1) as training:
        table = training.table("item", dim=4)
        table.put(np.arange(10), ones(10))
        first = training.checkpoint(b"one")
        with pytest.raises(ValueError, match="read_only=True"):
            open_bank(path, checkpoint=first)
        with pytest.raises(ValueError, match="no checkpoint 7"):
            open_bank(path, read_only=True, checkpoint=7)
        with open_bank(path, read_only=True, checkpoint=first) as serving:
            rows = serving.open_table("item")
            table.put(np.arange(10), 2 * ones(10))
            second = training.checkpoint(b"two")
            assert serving.recovered is not None
            assert (serving.recovered.checkpoint, serving.recovered.blob) == (first, b"one")
            np.testing.assert_array_equal(rows.peek(np.arange(10)), ones(10))
            with pytest.raises(embank.ReadOnly, match="open it for writing"):
                rows.put([1], ones(1))
            with pytest.raises(embank.ReadOnly):
                rows.get([1])
            with pytest.raises(embank.ReadOnly):
                serving.checkpoint()
            assert serving.refresh() == second
            assert serving.recovered is not None
            assert (serving.recovered.checkpoint, serving.recovered.blob) == (second, b"two")
            np.testing.assert_array_equal(rows.peek(np.arange(10)), 2 * ones(10))
        with pytest.raises(ValueError, match="open for writing"):
            training.refresh()


def test_checkpoints_are_listed_copied_sent_and_gone_back_to(tmp_path: Path) -> None:
    path, copy, delta = tmp_path / "bank", tmp_path / "copy", tmp_path / "delta"
    with open_bank(path, checkpoints_kept=5) as bank:
        table = bank.table("item", dim=4)
        for step in range(1, 4):
            table.put(np.arange(10), ones(10) * step)
            assert bank.checkpoint(b"%d" % step) == step
            if step == 1:
                assert embank.copy_checkpoint(path, copy) == 1
        listed = embank.list_checkpoints(path)
        assert [of["number"] for of in listed] == [1, 2, 3]
        assert listed[2]["tables"] == {"item": 10} and listed[2]["blob_bytes"] == 1
        assert listed[0]["time"] > 1_700_000_000 and listed[0]["file_bytes"] > 0
        with pytest.raises(embank.Locked):
            embank.roll_back(path, 1)
        assert embank.export_delta(path, delta, since=1, to=2) == 2
        with pytest.raises(ValueError, match="is there already"):
            embank.export_delta(path, delta, since=1)
        assert embank.export_delta(path, tmp_path / "later", since=2) == 3
    with pytest.raises(embank.DeltaMismatch, match="follows checkpoint 2"):
        embank.apply_delta(copy, tmp_path / "later")
    assert embank.apply_delta(copy, delta) == 2
    assert embank.apply_delta(copy, tmp_path / "later", checkpoints_kept=1) == 3
    with open_bank(copy, read_only=True) as bank:
        assert bank.recovered is not None and bank.recovered.blob == b"3"
        np.testing.assert_array_equal(bank.open_table("item").peek(np.arange(10)), ones(10) * 3)
    assert embank.roll_back(path, 1) == [3, 2]
    with open_bank(path) as bank:
        np.testing.assert_array_equal(bank.open_table("item").peek(np.arange(10)), ones(10))
    with pytest.raises(ValueError, match="is not a bank"):
        embank.list_checkpoints(tmp_path)
    for wrong in (-1, 1.5, "1"):
        with pytest.raises((TypeError, ValueError)):
            embank.roll_back(path, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("checkpoint", [None, b""])
@pytest.mark.parametrize("call", ["export", "import", "evict"])
def test_close_in_a_progress_function_raises(
    tmp_path: Path, call: str, checkpoint: bytes | None
) -> None:
    """Shows that `close` inside a call on the bank raises an error at once, and takes no
    checkpoint."""
    bank = open_bank(tmp_path / "bank")
    table = bank.table("t", dim=2)
    table.put([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    bank.checkpoint()
    table.export(tmp_path / "rows.npy")
    told = []

    def close(done: int, total: int) -> None:
        told.append(done)
        bank.close(checkpoint=checkpoint)

    with pytest.raises(RuntimeError, match="inside another call"):
        if call == "export":
            table.export(tmp_path / "again.npy", progress=close)
        elif call == "import":
            table.import_from(tmp_path / "rows.npy", progress=close)
        else:
            table.evict(norm_below=10.0, progress=close)
    assert told and not bank.closed and bank.last_checkpoint == 1
    bank.close()
