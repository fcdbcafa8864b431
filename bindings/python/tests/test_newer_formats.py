"""Tests that a bank of a newer version of Embank is not called damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

import embank


def crc32c(*parts: bytes) -> int:
    """The CRC-32C of the parts together."""
    crc = 0xFFFFFFFF
    for byte in b"".join(parts):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_newer_bank_names_the_file_and_the_versions(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="8MiB") as bank:
        bank.table("t", 4)
        bank.checkpoint()
    path = tmp_path / "bank" / "checkpoints" / "0000000001" / "manifest"
    data = bytearray(path.read_bytes())
    data[8:12] = (1000).to_bytes(4, "little")
    data[12:16] = crc32c(bytes(data[:12]), bytes(data[16:])).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(embank.NewerFormat, match="not damaged: use a newer Embank") as raised:
        embank.Bank(tmp_path / "bank", memory_budget="8MiB")
    assert not isinstance(raised.value, embank.Damaged)
    assert (raised.value.path, raised.value.found) == (str(path), 1000)
    assert raised.value.oldest <= raised.value.newest < 1000
    assert path.read_bytes() == data
