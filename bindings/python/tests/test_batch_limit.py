"""Tests that a batch of 2^32 keys is refused, whatever is done with it."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

import embank

TOO_MANY = 1 << 32


def repeated(value: Any, count: int = TOO_MANY) -> Any:
    """An array of `count` entries that takes the memory of one."""
    return np.lib.stride_tricks.as_strided(np.array([value]), (count,), (0,))


KEYS = repeated(np.int64(7))
ROWS = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (TOO_MANY, 4), (0, 0))
TWO = [0, TOO_MANY]


def calls(
    bank: embank.Bank, table: embank.Table, vocabulary: embank.Vocabulary
) -> dict[str, Callable[[], object]]:
    lease = table.get_distinct([1])
    return {
        "get": lambda: table.get(KEYS),
        "try_get": lambda: table.try_get(KEYS),
        "get_distinct": lambda: table.get_distinct(KEYS),
        "get_many": lambda: embank.get_many([(table, KEYS)]),
        "get_bags": lambda: table.get_bags(KEYS, TWO),
        "get_bags, offsets": lambda: table.get_bags([], repeated(np.int64(0), TOO_MANY + 2)),
        "peek_bags": lambda: table.peek_bags(KEYS, TWO),
        "peek": lambda: table.peek(KEYS),
        "contains": lambda: table.contains(KEYS),
        "initial": lambda: table.initial(KEYS),
        "put": lambda: table.put(KEYS, ROWS),
        "apply_gradients": lambda: table.apply_gradients(KEYS, ROWS),
        "apply_leases": lambda: table.apply_leases([lease], KEYS, ROWS),
        "apply_many": lambda: embank.apply_many([(table, [lease], KEYS, ROWS)]),
        "delete": lambda: table.delete(KEYS),
        "lookahead": lambda: table.lookahead(KEYS),
        "cancel_lookahead": lambda: table.cancel_lookahead(KEYS),
        "prefetch": lambda: table.prefetch(KEYS),
        "vocabulary.ids": lambda: vocabulary.ids(KEYS),
        "vocabulary.lookup": lambda: vocabulary.lookup(KEYS),
        "vocabulary.ids_or_insert": lambda: vocabulary.ids_or_insert(KEYS),
        "vocabulary.values": lambda: vocabulary.values(KEYS),
        "vocabulary.count": lambda: vocabulary.count(KEYS),
    }


def test_every_call_refuses_a_batch_of_too_many_keys(
    bank: embank.Bank, table: embank.Table
) -> None:
    """Regression test: such a batch ended in a PanicException, after a copy of 32 GiB."""
    vocabulary = bank.vocabulary("v", counts=True)
    for name, call in calls(bank, table, vocabulary).items():
        with pytest.raises(ValueError, match="at most 4,294,967,295 keys") as refused:
            call()
        assert str(TOO_MANY)[:7] in str(refused.value), name
    assert len(table) == 1 and len(vocabulary) == 0
