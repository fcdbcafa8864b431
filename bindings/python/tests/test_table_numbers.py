"""Tests that numbers of dropped tables are used again, and that objects of dropped tables never
show new tables.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank


@pytest.mark.parametrize("seed", range(2))
def test_many_names_are_made_and_dropped_in_any_order(tmp_path: Path, seed: int) -> None:
    """Shows that a bank with many tables and vocabularies has the right names after each part of a
    random history, and after it is opened again."""
    choose = random.Random(seed)
    path, tables, vocabularies = tmp_path / "bank", set[str](), set[str]()
    for _ in range(3):
        with embank.Bank(path, memory_budget="8MiB", compaction=False) as bank:
            assert bank.tables() == sorted(tables) and bank.vocabularies() == sorted(vocabularies)
            for _ in range(1000):
                name = f"{choose.randrange(1000)}"
                if name in tables:
                    bank.drop_table(name)
                    with pytest.raises(embank.NoSuchTable):
                        bank.open_table(name)
                    if choose.random() < 0.5:
                        tables.remove(name)
                        continue
                bank.table(name, dim=1)
                tables.add(name)
            for _ in range(300):
                name = f"{choose.randrange(300)}"
                if name in vocabularies:
                    bank.drop_vocabulary(name)
                    vocabularies.remove(name)
                else:
                    bank.vocabulary(name, choose.choice(["u64", "bytes"]))
                    vocabularies.add(name)
            assert bank.tables() == sorted(tables) and bank.vocabularies() == sorted(vocabularies)
            bank.checkpoint()


def test_many_tables_keep_their_own_rows(tmp_path: Path) -> None:
    """Shows that each of many tables has its own rows after most of its neighbours were dropped."""
    path, names = tmp_path / "bank", [f"{number * 7919 % 2000}" for number in range(2000)]
    with embank.Bank(path, memory_budget="8MiB") as bank:
        for name in names:
            bank.table(name, dim=1).put([1], [[float(name)]])
        for name in names:
            if int(name) % 10:
                bank.drop_table(name)
        for name in names[::3]:
            if int(name) % 10:
                bank.table(name, dim=1).put([1], [[float(name) + 0.5]])
        bank.checkpoint()
    with embank.Bank(path, memory_budget="8MiB") as bank:
        expected = {name: float(name) for name in names if int(name) % 10 == 0}
        expected |= {name: float(name) + 0.5 for name in names[::3] if int(name) % 10}
        assert bank.tables() == sorted(expected)
        for name, value in expected.items():
            assert bank.open_table(name).peek([1], missing="error").tolist() == [[value]]


def test_objects_of_dropped_tables_stay_refused_when_their_number_is_used_again(
    tmp_path: Path,
) -> None:
    with embank.Bank(
        tmp_path / "bank", memory_budget="8MiB", checkpoints_kept=1, compaction=False
    ) as bank:
        settings: dict[str, Any] = {
            "dim": 4,
            "tracking": "set_time",
            "optimizer": embank.SGD(lr=1.0),
        }
        old = bank.table("tmp", **settings)
        old.set_time(9)
        one = np.ones((1, 4), np.float32)
        old.put([1], one)
        lease = old.get([1])
        bank.table("other", dim=4).put([1], one)
        bank.drop_table("tmp")
        bank.checkpoint()
        bank.compact()
        bank.checkpoint()
        # Regression test: a bank could make only 65,535 tables in its life, even if it had dropped
        # most of them.
        for _ in range(65_530):
            bank.table("tmp", dim=4)
            bank.drop_table("tmp")
        # After two fresh numbers, "tmp" gets the number of `old`.
        new = [
            bank.table(name, **settings)
            for name in ("first", "second", "tmp", "third", "fourth")
        ]
        for place, table in enumerate(new):
            table.put([1, 2], np.full((2, 4), place + 5, np.float32))
        held = [table.get([1]) for table in new]
        uses: list[Callable[[], object]] = [
            lambda: old.get([1]),
            lambda: old.peek([1]),
            lambda: old.put([1], one),
            lambda: old.contains([1]),
            lambda: old.delete([1]),
            lambda: old.lookahead([1]),
            lambda: old.outstanding(1),
            lambda: old.set_time(10),
            lambda: old.scan(),
            lambda: old.evict(unused_for=0),
            lambda: old.export(tmp_path / "rows.safetensors"),
            lambda: embank.get_many([(new[2], [1]), (old, [1])]),
            lambda: lease.apply(one),
        ]

        def all_is_as_it_was() -> None:
            for use in uses:
                with pytest.raises(embank.NoSuchTable):
                    use()
            for place, table in enumerate(new):
                assert (table.peek([1, 2], missing="error") == place + 5).all()

        all_is_as_it_was()
        assert [table.outstanding(1) for table in new] == [1] * 5
        for of in held:
            of.release()
        with pytest.raises(ValueError, match="comes twice"):
            embank.get_many([(new[0], [1]), (new[0], [2])])
        uses.pop()
        # After a roll back, the objects of tables that the checkpoint holds work again. Objects of
        # other tables do not.
        checkpoint = bank.checkpoint()
        new[0].put([1], one)
        assert bank.roll_back(checkpoint) == []
        all_is_as_it_was()
        again = bank.table("tmp", **settings)
        with pytest.raises(ValueError, match="comes twice"):
            embank.get_many([(new[2], [1]), (again, [2])])
        (of_again,) = embank.get_many([(again, [1])])
        of_again.release()
