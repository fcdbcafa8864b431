"""Tests that a bank keeps the directory that it opened, whatever happens to the working directory,
to links, or to the directory's name."""

import subprocess
import sys

import numpy as np
import pytest

import embank

KEYS = np.arange(200, dtype=np.uint64)


def make(path, value):
    with embank.Bank(path, memory_budget="8MiB") as bank:
        bank.table("t", dim=4).put(KEYS, np.full((200, 4), value, np.float32))
        bank.checkpoint()


def holds(path, value):
    with embank.Bank(path, read_only=True) as bank:
        rows = bank.open_table("t").peek(KEYS, missing="error")
        return bool((rows == value).all())


def test_chdir_takes_a_bank_nowhere(tmp_path):
    """Shows that a bank ignores `chdir`. The test runs in a separate process, because the working
    directory belongs to the process."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    make(tmp_path / "there/clicks.bank", 7.0)
    program = """
import os, numpy as np, embank
keys = np.arange(200, dtype=np.uint64)
bank = embank.Bank("clicks.bank", memory_budget="8MiB")
table = bank.table("t", dim=4)
for step in range(1, 6):
    table.put(keys, np.full((200, 4), step, np.float32))
    bank.compact()
    assert bank.checkpoint() == step
    os.chdir("../there")
table.export("out.npy", format="npy", dense=True)
bank.close()
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "here", check=True)
    assert holds(tmp_path / "here/clicks.bank", 5.0)
    assert holds(tmp_path / "there/clicks.bank", 7.0)


def test_a_directory_that_was_exchanged_is_an_error(tmp_path):
    make(tmp_path / "other", 7.0)
    bank = embank.Bank(tmp_path / "clicks", memory_budget="8MiB")
    table = bank.table("t", dim=4)
    table.put(KEYS, np.ones((200, 4), np.float32))
    bank.checkpoint()
    (tmp_path / "clicks").rename(tmp_path / "aside")
    with pytest.raises(embank.DirectoryMoved) as moved:
        bank.checkpoint()
    assert moved.value.path == str(tmp_path / "clicks") and not moved.value.replaced
    (tmp_path / "other").rename(tmp_path / "clicks")
    with pytest.raises(embank.DirectoryMoved, match="replaced by another directory") as moved:
        bank.checkpoint()
    assert moved.value.replaced
    assert holds(tmp_path / "clicks", 7.0)
    (tmp_path / "clicks").rename(tmp_path / "other")
    (tmp_path / "aside").rename(tmp_path / "clicks")
    table.put(KEYS, np.full((200, 4), 2.0, np.float32))
    bank.checkpoint()
    bank.close()
    assert holds(tmp_path / "clicks", 2.0) and holds(tmp_path / "other", 7.0)


def test_a_bank_is_no_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("notes")
    for options in ({}, {"read_only": True}):
        with pytest.raises(ValueError, match="is a file; a bank is a directory"):
            embank.Bank(path, **options)


def test_a_link_that_is_switched_changes_nothing(tmp_path):
    make(tmp_path / "v2", 7.0)
    (tmp_path / "v1").mkdir()
    link = tmp_path / "current"
    link.symlink_to("v1")
    bank = embank.Bank(link, memory_budget="8MiB")
    bank.table("t", dim=4).put(KEYS, np.ones((200, 4), np.float32))
    link.unlink()
    link.symlink_to("v2")
    bank.checkpoint()
    bank.close()
    assert holds(tmp_path / "v1", 1.0) and holds(tmp_path / "v2", 7.0)
