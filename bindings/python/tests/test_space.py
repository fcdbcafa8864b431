"""Tests scanning and dropping tables, compaction, the disk quota, and their statistics."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank
from test_leases import until


def rows_of(keys: "np.ndarray[Any, Any]", dim: int = 4) -> Any:
    return np.repeat(keys.astype(np.float32)[:, None], dim, axis=1)


def test_a_scan_yields_the_checkpoint_in_batches(bank: embank.Bank, table: embank.Table) -> None:
    keys = np.arange(10_000, dtype=np.uint64) * 3
    table.put(keys, rows_of(keys))
    number = bank.checkpoint()
    table.put(keys[:10], rows_of(keys[:10]) + 1)
    table.delete(keys[10:])
    for batch_size in (1_000, 3_333, 10**9, None):
        scan = table.scan(batch_size=batch_size)
        assert (scan.checkpoint, len(scan)) == (number, 10_000)
        sizes, found = [], []
        for some, rows in scan:
            assert (some.dtype, rows.dtype, rows.shape) == (np.uint64, np.float32, (len(some), 4))
            assert rows.flags.c_contiguous and rows.flags.writeable
            np.testing.assert_array_equal(rows, rows_of(some))
            sizes.append(len(some))
            found.append(some)
        assert max(sizes) <= min(batch_size or 4096, 10_000)
        assert len(set(sizes[:-1])) <= 1, "only the last batch may be short"
        np.testing.assert_array_equal(np.sort(np.concatenate(found)), keys)
        assert list(scan) == [], "it stays at its end"


def test_a_scan_closes_early_late_and_with_its_bank(
    bank: embank.Bank, table: embank.Table
) -> None:
    table.put(np.arange(100), np.ones((100, 4), np.float32))
    bank.checkpoint()
    with table.scan(batch_size=10) as scan:
        next(scan)
    with pytest.raises(StopIteration):
        next(scan)
    scan.close()
    left_open = table.scan(batch_size=10)
    keys, rows = next(left_open)
    bank.close()
    assert (rows == 1.0).all() and len(keys) == 10
    with pytest.raises(ValueError, match="bank is closed"):
        next(left_open)
    left_open.close()
    repr(left_open)
    embank.Bank(bank.path, memory_budget="16MiB").close()


def test_threads_share_a_scan_without_losing_rows(bank: embank.Bank, table: embank.Table) -> None:
    table.put(np.arange(20_000), rows_of(np.arange(20_000)))
    bank.checkpoint()
    scan = table.scan(batch_size=100)
    found: list[Any] = []

    def take() -> None:
        for keys, rows in scan:
            np.testing.assert_array_equal(rows, rows_of(keys))
            found.append(keys)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(20_000))


def test_what_a_scan_refuses(bank: embank.Bank, table: embank.Table) -> None:
    with pytest.raises(ValueError, match="take one first"):
        table.scan()
    bank.checkpoint()
    assert list(table.scan()) == []
    for bad, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="batch_size"):
            table.scan(batch_size=bad)  # type: ignore[arg-type]
    with pytest.raises(embank.NoSuchTable, match="later.*checkpoint"):
        bank.table("later", dim=2).scan()


def test_a_dropped_table_says_so_and_its_name_is_free(
    bank: embank.Bank, table: embank.Table
) -> None:
    table.put([1], np.ones((1, 4), np.float32))
    lease, other = table.get([1]), table.get([1])
    bank.drop_table("item")
    assert bank.tables() == []
    with pytest.raises(embank.NoSuchTable, match="item"):
        bank.drop_table("item")
    with pytest.raises(embank.NoSuchTable, match="item"):
        bank.open_table("item")
    new = bank.table("item", dim=7)
    one: Any = np.ones((1, 4), np.float32)
    uses: list[Any] = [
        lambda: table.get([1]),
        lambda: table.get_distinct([1]),
        lambda: table.peek([1]),
        lambda: table.put([1], one),
        lambda: table.apply_gradients([1], one),
        lambda: table.contains([1]),
        lambda: table.delete([1]),
        lambda: table.lookahead([1]),
        lambda: table.outstanding(1),
        lambda: table.scan(),
        lambda: lease.apply(one),
    ]
    for use in uses:
        with pytest.raises(embank.NoSuchTable, match='"item" was dropped'):
            use()
    other.release()
    assert not lease.held and not other.held
    assert (table.dim, new.dim, new.contains([1]).tolist()) == (4, 7, [False])
    new.put([1], np.ones((1, 7), np.float32))
    assert new.lookahead([1]) == 0
    assert bank.stats()["release_failures"] == 0


def test_dropping_wakes_a_get_that_waits(bank: embank.Bank) -> None:
    table = bank.table("item", dim=4, staleness_bound=0)
    lease = table.get([1])
    seen: list[BaseException] = []

    def wait_for_it() -> None:
        try:
            table.get([1])
        except embank.NoSuchTable as error:
            seen.append(error)

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    until(lambda: bank.stats()["waits"] == 1)
    bank.drop_table("item")
    waiter.join()
    assert len(seen) == 1
    assert bank.stats()["timeouts"] == 0
    lease.release()


def test_compaction_gives_space_back(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="1MiB", compaction=False) as bank:
        table = bank.table("item", dim=16)
        keys = np.arange(20_000)
        for _ in range(6):
            table.put(keys, rows_of(keys, 16))
        before = bank.stats()
        assert before["space"]["amplification"] > 2.0
        assert before["compaction"]["compacted_bytes"] == 0
        done = bank.compact()
        assert done["scanned_bytes"] > done["copied_bytes"] > 0
        after = bank.stats()
        assert after["space"]["log_disk_bytes"] < before["space"]["log_disk_bytes"] / 2
        assert after["space"]["freed_bytes"] == done["freed_bytes"] > 0
        assert after["space"]["live_rows"] == 20_000
        assert after["compaction"]["stopped"] is None
        assert after["compaction"]["bytes_per_s"] > 0
        np.testing.assert_array_equal(table.peek(keys, missing="error"), rows_of(keys, 16))


def test_a_full_quota_says_how_to_go_on(tmp_path: Path) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget="1MiB", disk_quota="4MiB") as bank:
        table = bank.table("item", dim=16, staleness_bound=0)
        leases: list[embank.Lease] = []
        with pytest.raises(embank.QuotaExceeded, match="raise the quota") as raised:
            for first in range(0, 1_000_000, 500):
                leases.append(table.get(np.arange(first, first + 500)))
        error = raised.value
        assert isinstance(error, embank.EmbankError)
        assert error.quota_bytes == 4 << 20
        assert error.log_bytes >= error.live_bytes > 0 and error.held_bytes == 0
        for lease in leases:
            lease.release()
        assert bank.stats()["release_failures"] == 0
        assert table.outstanding(0) == 0
        bank.drop_table("item")
        bank.compact()
        bank.table("item", dim=16).put(np.arange(500), np.zeros((500, 16), np.float32))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"space_amplification_target": 1.0}, ValueError),
        ({"space_amplification_target": float("nan")}, ValueError),
        ({"space_amplification_target": "low"}, TypeError),
        ({"compaction_throttle": 0}, ValueError),
        ({"compaction_throttle": "fast"}, ValueError),
        ({"compaction_throttle": 1.5}, TypeError),
        ({"disk_quota": 1000}, ValueError),
        ({"disk_quota": -1}, ValueError),
        ({"disk_quota": "much"}, ValueError),
        ({"compaction": "yes"}, TypeError),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, settings: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(settings))):
        embank.Bank(tmp_path / "bank", memory_budget="16MiB", **settings)


def test_good_settings_are_taken(tmp_path: Path) -> None:
    with embank.Bank(
        tmp_path / "bank",
        memory_budget="16MiB",
        compaction=True,
        space_amplification_target=1.2,
        compaction_throttle="20MiB",
        disk_quota="1GiB",
    ) as bank:
        bank.checkpoint()


def test_statistics_count_operations(bank: embank.Bank, table: embank.Table) -> None:
    table.put([1, 2], np.ones((2, 4), np.float32))
    table.peek([1, 2, 3])
    table.get([1]).release()
    table.delete([2])
    stats = bank.stats()
    operations = stats["operations"]
    assert operations["peek_keys"] == 3
    assert operations["get_keys"] == 1
    assert operations["delete_keys"] == operations["deleted"] == 1
    assert operations["changed"] >= 3 and operations["batches"] >= 4
    assert stats["space"]["live_rows"] == 1
    assert stats["stalls"]["checkpoint_pauses_us"] == 0
    bank.checkpoint()
    assert bank.stats()["stalls"]["checkpoint_pauses_us_max"] > 0


def test_prometheus_text_has_the_numbers(bank: embank.Bank, table: embank.Table) -> None:
    table.put([1, 2], np.ones((2, 4), np.float32))
    bank.checkpoint()
    text = bank.prometheus()
    lines = text.splitlines()
    assert lines[-1] == "# EOF"
    samples: dict[str, float] = {}
    for line in lines:
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in samples, name
            samples[name] = float(value)
    assert samples["embank_bank_memory_budget_bytes"] == 16 << 20
    assert samples['embank_lookahead_keys_total{fate="late"}'] == 0.0
    assert any("checkpoint" in name and value == 1.0 for name, value in samples.items())


def test_one_text_has_the_numbers_of_several_banks(tmp_path: Path, bank: embank.Bank) -> None:
    """The texts of two banks could not be joined: both had the same series, and an end."""
    with embank.Bank(tmp_path / "other", memory_budget="32MiB") as other:
        text = embank.prometheus({"b": bank, 'a "\n': other})
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        names = [line.rpartition(" ")[0] for line in lines]
        assert len(set(names)) == len(names)
        own = [line for line in bank.prometheus().splitlines() if not line.startswith("#")]
        assert len(lines) == 2 * len(own)
        assert text.count("# EOF") == 1 and text.endswith("# EOF\n")
        assert text.count("# TYPE embank_keys ") == 1
        assert f'embank_bank_memory_budget_bytes{{bank="b"}} {16 << 20}.0' in lines
        assert f'embank_bank_memory_budget_bytes{{bank="a \\"\\n"}} {32 << 20}.0' in lines
    assert embank.prometheus({}) == "# EOF\n"
    with pytest.raises(ValueError, match="closed"):
        embank.prometheus({"b": bank, "a": other})
    with pytest.raises(TypeError):
        embank.prometheus({"b": bank, "a": None})  # type: ignore[dict-item]


def fill(bank: embank.Bank) -> embank.Table:
    """Returns a table whose index needs three times a quarter of a budget of 2 MiB."""
    table = bank.table("short", dim=2, optimizer=None)
    keys = np.arange(100_000, dtype=np.uint64)
    for some in np.array_split(keys, 100):
        table.put(some, rows_of(some, dim=2))
    return table


def test_a_bank_with_a_large_index_gets_a_second_tier_by_itself(tmp_path: Path) -> None:
    keys = np.arange(100_000, dtype=np.uint64)
    with embank.Bank(tmp_path / "auto", memory_budget="2MiB", cold_tier="auto") as bank:
        table = fill(bank)
        cold = bank.stats()["cold"]
        assert cold["tiers"] == 2 and cold["parts"] > 0 and cold["debt"] > 0, cold
        np.testing.assert_array_equal(table.peek(keys), rows_of(keys, dim=2))
        bank.checkpoint()
        assert sum(len(some) for some, _ in table.scan()) == len(keys)
    with embank.Bank(tmp_path / "auto", memory_budget="64MiB") as bank:
        assert bank.stats()["cold"]["tiers"] == 2, "it keeps its cold tier"
    with embank.Bank(tmp_path / "never", memory_budget="2MiB") as bank:
        fill(bank)
        cold = bank.stats()["cold"]
        assert (cold["tiers"], cold["parts"], cold["debt"]) == (1, 0, 0.0)
    by_hand = embank.Bank(
        tmp_path / "by hand", memory_budget="2MiB", cold_tier="auto", compaction=False
    )
    with by_hand as bank:
        table = fill(bank)
        assert bank.stats()["cold"]["parts"] == 0, "the program wants no thread"
        bank.compact()
        assert bank.stats()["cold"]["parts"] > 0
        np.testing.assert_array_equal(table.peek(keys), rows_of(keys, dim=2))
    with pytest.raises(ValueError, match="cold_tier"):
        embank.Bank(tmp_path / "wrong", cold_tier="always")  # type: ignore[arg-type]
