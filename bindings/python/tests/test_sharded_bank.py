"""Tests of opening a bank over ranks, and of its tables."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import ranks  # noqa: E402
from sharded_banks import error_of, items, opened  # noqa: E402

import embank  # noqa: E402
from embank.torch.distributed import ShardedBank  # noqa: E402

KEYS = np.arange(40)


def fill(rank: int, directory: Path, apart: bool) -> tuple[int, int]:
    with opened(directory / str(rank) if apart else directory) as bank:
        table = items(bank)
        table.put(KEYS, np.repeat(KEYS[:, None], 2, axis=1).astype(np.float32))
        bank.checkpoint()
        return bank.shard, len(table.local)


def read(rank: int, directory: Path, of_rank: list[int]) -> tuple[int, bool]:
    with opened(directory / str(of_rank[rank])) as bank:
        rows = items(bank).peek(KEYS[::-1])
        return bank.shard, bool((rows[:, 0] == KEYS[::-1]).all())


def test_ranks_may_be_swapped_between_restarts(tmp_path: Path) -> None:
    filled = ranks.run(2, tmp_path, fill, tmp_path, True)
    assert [shard for shard, _ in filled] == [0, 1]
    assert sum(rows for _, rows in filled) == len(KEYS)
    assert min(rows for _, rows in filled) > len(KEYS) // 4
    assert ranks.run(2, tmp_path, read, tmp_path, [1, 0]) == [(1, True), (0, True)]
    assert ranks.run(2, tmp_path, read, tmp_path, [0, 1]) == [(0, True), (1, True)]


def error_of_opening(rank: int, directories: list[Path], options: list[dict[str, Any]]) -> str:
    return error_of(lambda: opened(directories[rank], **options[rank]).close())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards with rows in one directory. Tests copy it."""
    directory = tmp_path_factory.mktemp("fleet")
    ranks.run(2, directory, fill, directory / "fleet", False)
    return directory / "fleet"


def refused(directories: list[Path], *options: dict[str, Any]) -> str:
    """The error that all ranks raise when they open these directories."""
    given = list(options) or [{}] * len(directories)
    count = len(directories)
    texts = ranks.run(count, directories[0].parent, error_of_opening, directories, given)
    # Each text names the rank or the shard that has the problem, so all ranks have the same one.
    assert len({text.split(": ", 1)[0] for text in texts}) == 1, texts
    return str(texts[0])


def test_another_number_of_ranks_is_refused(fleet: Path) -> None:
    error = refused([fleet] * 3)
    assert error.startswith("ShardMismatch") and "2 shards" in error and "3 ranks" in error
    assert "embank reshard" in error and "--shards 3" in error
    error = refused([fleet] * 2, {"shards": 3}, {})
    assert error.startswith("ShardMismatch") and "shards=3" in error and "embank reshard" in error


def test_a_missing_shard_is_named(fleet: Path, tmp_path: Path) -> None:
    shutil.copytree(fleet, tmp_path / "fleet")
    shutil.rmtree(tmp_path / "fleet" / "shard-00001")
    error = refused([tmp_path / "fleet"] * 2)
    assert error.startswith("ShardMismatch") and "no rank finds shard 1" in error


def test_shards_of_two_fleets_are_refused(fleet: Path, tmp_path: Path) -> None:
    ranks.run(2, tmp_path, fill, tmp_path / "other", False)
    shutil.rmtree(tmp_path / "other" / "shard-00001")
    shutil.copytree(fleet / "shard-00001", tmp_path / "other" / "shard-00001")
    error = refused([tmp_path / "other"] * 2)
    assert error.startswith("ShardMismatch") and "not made together" in error


def test_a_copy_of_a_shard_is_refused(fleet: Path, tmp_path: Path) -> None:
    shutil.copytree(fleet, tmp_path / "copy")
    error = refused([fleet, tmp_path / "copy"])
    assert error.startswith("ShardMismatch") and "in two places" in error


def test_options_must_be_the_same(fleet: Path) -> None:
    error = refused([fleet] * 2, {"gradients": "sum"}, {})
    assert error.startswith("ValueError") and "gradients must be the same" in error
    error = refused([fleet] * 2, {}, {"memory_budget": "1KiB"})
    assert error.startswith("BudgetTooSmall")
    error = refused([fleet] * 2, {"lease_timeout": 5.0}, {})
    assert "lease_timeout" in error and "timeout=" in error
    error = refused([fleet] * 2, {"wait_timeout": 60.0}, {})
    assert "wait_timeout is 60.0 and timeout 60.0" in error


def open_twice(rank: int, directory: Path) -> tuple[str, float]:
    with opened(directory) as bank:
        error = error_of(lambda: opened(directory))
        return error, float(items(bank).peek([7])[0, 0])


def test_two_programs_on_one_directory(fleet: Path, tmp_path: Path) -> None:
    shutil.copytree(fleet, tmp_path / "fleet")
    found = ranks.run(2, tmp_path, open_twice, tmp_path / "fleet")
    assert all(error.startswith("Locked") and value == 7.0 for error, value in found), found


def ends(rank: int, code: int) -> None:
    if rank == 1:
        os._exit(code)


def test_a_rank_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ranks.Failed, match="rank 1 has ended with exit code 3"):
        ranks.run(2, tmp_path, ends, 3)


def arguments_of_numpy(rank: int, directory: Path) -> list[Any]:
    with opened(directory) as bank:
        table = bank.table("item", dim=np.int64(4))
        rows = np.ones((1, 4), dtype=np.float32)
        table.put(np.array([7], dtype=np.uint64), rows)
        errors = [error_of(lambda: table.put([7.5], rows)), error_of(lambda: table.put([[7]], rows))]
        return [table.dim, *errors, bank.closed]


def test_arguments_of_numpy(tmp_path: Path) -> None:
    for found in ranks.run(2, tmp_path, arguments_of_numpy, tmp_path / "fleet"):
        assert found[0] == 4 and found[3] is False
        assert found[1].startswith("TypeError") and "integers" in found[1]
        assert found[2].startswith("ValueError") and "1-D" in found[2]


def open_tables(rank: int, directory: Path) -> list[str]:
    with opened(directory) as bank:
        bank.local.vocabulary("growing")
        for name in ("same", "other"):
            words = bank.local.vocabulary(name)
            words.ids_or_insert(np.array([3, 4 + (rank if name == "other" else 0)]))
            words.frozen = True
        with_optimizer = {"optimizer": embank.SGD(lr=1.0 + rank)}
        errors = [
            error_of(lambda: bank.table("a", dim=2 + rank)),
            error_of(lambda: bank.table("a", dim=2, **with_optimizer)),
            error_of(lambda: bank.table("a", dim=2, **({"staleness_bound": 1} if rank else {}))),
            error_of(lambda: bank.table("a" if rank else "b", dim=2)),
            error_of(lambda: bank.table("a", dim=2, vocabulary="growing")),
            error_of(lambda: bank.table("a", dim=2, vocabulary="other")),
            error_of(lambda: bank.table("a", dim=2, vocabulary="same")),
            error_of(lambda: bank.table("a", dim=3)),
        ]
        assert bank.tables() == ["a"]
        return errors


def test_ranks_must_open_the_same_tables(tmp_path: Path) -> None:
    first, second = ranks.run(2, tmp_path, open_tables, tmp_path / "fleet")
    assert "dim must be the same on all ranks; rank 0 has 2, rank 1 3" in first[0]
    assert "optimizer must be the same" in first[1] and "SGD(lr=2.0" in first[1]
    assert "staleness_bound must be the same" in first[2] and "the default, rank 1 1" in first[2]
    assert "name must be the same" in first[3]
    assert "'growing'" in first[4] and "frozen = True" in first[4]
    assert "fingerprint of the vocabulary must be the same" in first[5]
    assert first[6] == "no error"
    assert first[7].startswith("TableMismatch")
    assert [one.split(":")[0] for one in first] == [other.split(":")[0] for other in second]


def place_a_table(rank: int, directory: Path, swapped: bool) -> tuple[int, list[int], float, str]:
    with opened(directory / str(1 - rank if swapped else rank)) as bank:
        table = items(bank, shard=1)
        if not swapped:
            table.put(KEYS, np.repeat(KEYS[:, None], 2, axis=1).astype(np.float32))
            bank.checkpoint()
        error = error_of(lambda: items(bank, shard=0))
        return bank.shard, [len(table.local)], float(table.peek([7])[0, 0]), error


def test_a_table_may_be_on_one_shard(tmp_path: Path) -> None:
    for swapped in (False, True):
        for shard, rows, value, error in ranks.run(2, tmp_path, place_a_table, tmp_path, swapped):
            assert (rows, value) == ([len(KEYS) if shard == 1 else 0], 7.0)
            assert error.startswith("TableMismatch"), error


def refusals(rank: int, directory: Path) -> dict[str, str]:
    with opened(directory) as bank:
        table = items(bank)
        keys = np.array([1])
        errors = {
            name: error_of(lambda name=name: getattr(table, name)(keys))  # type: ignore[misc]
            for name in (
                "get", "get_bags", "peek_bags", "apply_gradients", "lookahead", "prefetch", "delete",
            )
        }  # fmt: skip
        with table.get_distinct(keys) as lease:
            errors["lease put"] = error_of(lambda: lease.put(np.ones((1, 2))))
            errors["shape"] = error_of(lambda: lease.apply(np.ones((2, 2))))
        errors["stats"] = error_of(lambda: bank.stats())
        errors["roll back"] = error_of(lambda: bank.roll_back(1))
        errors["unknown"] = error_of(lambda: bank.unknown)
        errors["keys"] = error_of(lambda: table.peek(np.ones(3)))
    errors["closed"] = error_of(lambda: table.peek(keys))
    errors["lease closed"] = error_of(lease.check)
    return errors


def test_what_a_sharded_table_lacks_is_named(tmp_path: Path) -> None:
    errors = ranks.run(2, tmp_path, refusals, tmp_path / "fleet")[0]
    assert "get_distinct" in errors["get"] and "EmbeddingBag pools" in errors["get_bags"]
    assert "EmbeddingBag pools" in errors["peek_bags"] and "lease" in errors["apply_gradients"]
    assert "Pipelined" in errors["lookahead"] and "peek" in errors["prefetch"]
    assert "evict" in errors["delete"] and "ShardedTable.put" in errors["lease put"]
    assert "must be (1, 2)" in errors["shape"] and "float64" in errors["keys"]
    assert "bank.local.stats" in errors["stats"] and "set=" in errors["roll back"]
    assert errors["unknown"] == "AttributeError: a ShardedBank has no unknown"
    assert errors["closed"] == "ValueError: the sharded bank is closed: close() was called"
    assert errors["lease closed"] == errors["closed"]


def test_a_process_group_is_needed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        ShardedBank(tmp_path / "fleet")
