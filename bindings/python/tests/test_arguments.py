"""Tests that wrong arguments raise an error with a cure, and change nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import embank
from embank.pipeline import Column, Field, Output, Pipeline, Spec, vocabulary


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (np.array([1.0, 2.0]), TypeError, "keys must be integers.*float64"),
        (np.array([True]), TypeError, "bool"),
        (["one"], TypeError, "integers"),
        ([1.5], TypeError, "float64"),
        ([2**64], TypeError, "object|float64"),
        (None, TypeError, "object"),
        (7, ValueError, "1-D"),
        (np.array([[1, 2]]), ValueError, r"1-D.*\(1, 2\)"),
    ],
)
def test_wrong_keys(
    table: embank.Table, keys: Any, error: type[Exception], message: str
) -> None:
    calls = (table.get, table.get_distinct, table.peek, table.contains, table.delete)
    for call in (*calls, table.lookahead, table.initial):
        with pytest.raises(error, match=message):
            call(keys)
    assert table.outstanding(1) is None


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (ones(2, 5), ValueError, r"shape \(2, 4\).*\(2, 5\)"),
        (ones(3, 4), ValueError, r"shape \(2, 4\).*\(3, 4\)"),
        (ones(8), ValueError, r"shape \(2, 4\).*\(8,\)"),
        (ones(2, 4, 1), ValueError, r"\(2, 4, 1\)"),
        (np.ones((2, 4)), TypeError, r"float32, not float64.*astype"),
        (np.ones((2, 4), np.int64), TypeError, "float32, not int64"),
        (np.ones((2, 4), np.float16), TypeError, "float32, not float16"),
        ([[1, 2, 3, 4]], ValueError, r"\(2, 4\).*\(1, 4\)"),
    ],
)
def test_wrong_rows_and_gradients(
    table: embank.Table, rows: Any, error: type[Exception], message: str
) -> None:
    table.put([1, 2], ones(2, 4) * 3)
    with pytest.raises(error, match=f"rows.*{message}"):
        table.put([1, 2], rows)
    with pytest.raises(error, match=f"grads.*{message}"):
        table.apply_gradients([1, 2], rows)
    with table.get([1, 2]) as lease:
        with pytest.raises(error, match=message):
            lease.apply(rows)
        with pytest.raises(error, match=message):
            lease.put(rows)
        assert lease.held, "a wrong shape must not cost the lease"
        lease.apply(ones(2, 4))
    assert (table.peek([1, 2]) == 2.5).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_changes_no_row(table: embank.Table, bad: float) -> None:
    gradient = ones(2, 4)
    gradient[1, 2] = bad
    with pytest.raises(ValueError, match="NaN|inf|finite"):
        table.apply_gradients([1, 2], gradient)
    lease = table.get([1, 2])
    with pytest.raises(ValueError, match="NaN|inf|finite"):
        lease.apply(gradient)
    assert not lease.held
    assert table.outstanding(1) == 0
    assert (table.peek([1, 2]) == 1.0).all()


def test_a_table_without_an_optimizer_takes_no_gradients(bank: embank.Bank) -> None:
    table = bank.table("plain", dim=2)
    assert table.learning_rate is None
    uses: list[Callable[[], None]] = [
        lambda: table.apply_gradients([1], ones(1, 2)),
        lambda: table.get([1]).apply(ones(1, 2)),
        lambda: setattr(table, "learning_rate", 0.1),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="optimizer"):
            use()


def test_missing_must_be_a_known_word(table: embank.Table) -> None:
    with pytest.raises(ValueError, match='"initial" or "error"'):
        table.peek([1], missing="zeros")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (16 << 20, 16 << 20),
        ("16MiB", 16 << 20),
        (" 16 MiB ", 16 << 20),
        ("0.5GiB", 512 << 20),
        ("20MB", 20_000_000),
        ("20000kB", 20_000_000),
        (str(16 << 20), 16 << 20),
        (np.int64(16 << 20), 16 << 20),
    ],
)
def test_memory_budgets(tmp_path: Path, text: Any, size: int) -> None:
    with embank.Bank(tmp_path / "bank", memory_budget=text) as bank:
        assert bank.stats()["memory"]["budget_bytes"] == size


@pytest.mark.parametrize(
    ("budget", "error"),
    [
        ("lots", ValueError),
        ("", ValueError),
        ("MiB", ValueError),
        ("16 MIB", ValueError),
        ("-1MiB", ValueError),
        ("1e99GiB", ValueError),
        ("99999999999TiB", ValueError),
        (-1, ValueError),
        (2**64, ValueError),
        (1.5, TypeError),
        (True, TypeError),
        (b"16MiB", TypeError),
    ],
)
def test_bad_memory_budgets(tmp_path: Path, budget: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="memory_budget"):
        embank.Bank(tmp_path / "bank", memory_budget=budget)


def test_a_bank_that_must_be_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such directory"):
        embank.Bank(tmp_path / "typo", create=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="the directory is empty"):
        embank.Bank(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []
    embank.Bank(tmp_path / "bank", memory_budget="8MiB").close()
    with embank.Bank(tmp_path / "bank", memory_budget="8MiB", create=False) as bank:
        assert bank.stats()["not_removed"] == []


def test_a_budget_too_small_names_the_one_that_would_do(tmp_path: Path) -> None:
    with pytest.raises(embank.BudgetTooSmall, match="too small") as raised:
        embank.Bank(tmp_path / "bank", memory_budget=1000)
    assert raised.value.budget_bytes == 1000
    assert raised.value.needed_bytes > 1000
    assert isinstance(raised.value, embank.EmbankError)
    with pytest.raises(embank.BudgetTooSmall, match='counts bytes: write "64MiB" for 64 MiB'):
        embank.Bank(tmp_path / "bank", memory_budget=64)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"device": "floppy"}, ValueError),
        ({"wait_timeout": -1.0}, ValueError),
        ({"wait_timeout": float("nan")}, ValueError),
        ({"checkpoints_kept": -1}, ValueError),
        ({"checkpoints_kept": "two"}, TypeError),
        ({"budget": 1}, TypeError),
    ],
)
def test_bad_bank_settings(tmp_path: Path, settings: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        embank.Bank(tmp_path / "bank", **settings)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"dim": 0}, ValueError),
        ({"dim": -4}, ValueError),
        ({"dim": 2**40}, ValueError),
        ({"dim": 4.0}, TypeError),
        ({"dim": True}, TypeError),
        ({"dim": 4, "optimizer": "sgd"}, TypeError),
        ({"dim": 4, "optimizer": embank.SGD}, TypeError),
        ({"dim": 4, "optimizer": embank.SGD(lr=-1.0)}, ValueError),
        ({"dim": 4, "optimizer": embank.Adagrad(lr=float("nan"))}, ValueError),
        ({"dim": 4, "initializer": 0.1}, TypeError),
        ({"dim": 4, "initializer": embank.Uniform(1.0, 0.0)}, ValueError),
        ({"dim": 4, "initializer": embank.Constant(1e300)}, ValueError),
        ({"dim": 4, "seed": -1}, ValueError),
        ({"dim": 4, "staleness_bound": -1}, ValueError),
    ],
)
def test_bad_table_settings(bank: embank.Bank, settings: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        bank.table("bad", **settings)
    assert bank.tables() == []


def test_a_table_keeps_what_makes_it_that_table(bank: embank.Bank) -> None:
    made = bank.table("item", dim=4, optimizer=embank.SGD(lr=0.5), seed=3)
    for other in (
        {"dim": 5, "optimizer": embank.SGD(lr=0.5), "seed": 3},
        {"dim": 4, "optimizer": embank.Adagrad(lr=0.5), "seed": 3},
        {"dim": 4, "optimizer": embank.SGD(lr=0.5), "seed": 4},
    ):
        with pytest.raises(embank.TableMismatch, match="item"):
            bank.table("item", **other)  # type: ignore[arg-type]
    bank.table("item", dim=4, optimizer=embank.SGD(lr=0.25), seed=3, staleness_bound=2)
    assert (made.learning_rate, made.staleness_bound) == (0.25, 2)
    with pytest.raises(embank.NoSuchTable, match="user"):
        bank.open_table("user")


def test_rates_and_bounds_can_be_set(table: embank.Table) -> None:
    assert (table.learning_rate, table.staleness_bound) == (0.5, None)
    table.learning_rate = 0.1
    assert table.learning_rate == 0.1
    with pytest.raises(ValueError, match="learning rate"):
        table.learning_rate = -0.1
    table.staleness_bound = 3
    assert table.staleness_bound == 3
    table.staleness_bound = None
    assert table.staleness_bound is None
    with pytest.raises(ValueError, match="staleness_bound"):
        table.staleness_bound = -1
    assert table.learning_rate == 0.1


def test_settings_print_and_compare() -> None:
    assert repr(embank.SGD(0.1)) == (
        "SGD(lr=0.1, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0)"
    )
    assert embank.SGD(0.1) == embank.SGD(lr=0.1) != embank.SGD(0.2)
    assert embank.Zeros() == embank.Zeros()
    assert embank.Uniform(-1, 1).high == 1.0
    assert embank.Adagrad(0.1).eps == 1e-10


def test_messages_name_what_python_has(tmp_path: Path) -> None:
    """Shows that messages name Python's functions. Earlier versions named Rust's."""
    told = []
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        words = bank.vocabulary("word", "bytes")
        table = bank.table("word", dim=1, vocabulary="word")
        clock = bank.table("clock", dim=1, tracking="minutes")
        words.frozen = True
        calls = [
            lambda: words.keep_frequent(2),
            lambda: words.counts([]),
            lambda: bank.open_vocabulary("none"),
            lambda: clock.set_time(3),
            lambda: clock.peek([7], missing="error"),
        ]
        for call in calls:
            with pytest.raises(Exception) as raised:
                call()
            told.append(str(raised.value))
        words.frozen = False
        bank.drop_vocabulary("word")
        for call in (lambda: bank.open_table("word"), lambda: words.ids(["a"]), lambda: table.peek([0])):
            with pytest.raises(Exception) as raised:
                call()
            told.append(str(raised.value))
    assert not [text for text in told if "::" in text]


def test_messages_of_pipelines_name_what_python_has(tmp_path: Path) -> None:
    spec = Spec(
        fields=[Field("word", "bytes", required=True)],
        columns=[Column("word", vocabulary("word"))],
        outputs=[Output("ids", ["word"], "i64")],
    )
    with pytest.raises(embank.SpecError, match=re.escape("Pipeline(spec, bank=bank)")) as without_bank:
        Pipeline(spec)
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        pipeline = Pipeline(spec, bank=bank)
        pipeline.run(b"red\n")
        bank.open_vocabulary("word").frozen = True
        with pytest.raises(embank.UnknownValue, match="vocabulary.frozen = False") as unknown:
            pipeline.run(b"green\n")
    for raised in (without_bank, unknown):
        assert not re.search(r"::|set_frozen", str(raised.value))


def test_a_number_of_threads_out_of_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads.*from 1 to 1024, not 1025"):
        embank.Bank(tmp_path / "bank", memory_budget="4MiB", threads=1025)


@pytest.mark.parametrize("given", [[None, 1.0], ["1", "2"], [1j, 1.0], [True, False]])
def test_lists_that_are_not_of_numbers(table: embank.Table, given: list[Any]) -> None:
    """Shows that a list is converted number by number. `None` became NaN, text was parsed, and of
    a complex number the imaginary part was lost."""
    with pytest.raises(TypeError, match="weights must be numbers, not"):
        table.peek_bags([1, 2], [0, 2], weights=given)
    rows = [[of] * 4 for of in given]
    with pytest.raises(TypeError, match="rows must be numbers, not"):
        table.put([1, 2], rows)
    assert not table.contains([1, 2]).any()
    lease = table.get([1, 2])
    with pytest.raises(TypeError, match="grads must be numbers, not"):
        lease.apply(rows)
    lease.apply(([1] * 4, [2.0] * 4))
    assert table.peek([1, 2])[:, 0].tolist() == [0.5, 0.0]


@pytest.mark.parametrize("number", [-1, -(2**63)])
def test_numbers_that_are_no_keys_are_not_negative(
    bank: embank.Bank, table: embank.Table, tmp_path: Path, number: int
) -> None:
    """Shows that a negative number of rows, uses or places is refused. As a key it stands for the
    number with the same 64 bits, so a count of -1 once added 2^64 - 1."""
    words = bank.vocabulary("word", "u64", counts=True)
    words.ids_or_insert([7, 8])
    with pytest.raises(ValueError, match=f"counts must not be negative, found {number}"):
        words.count([0, 1], [3, number])
    assert words.counts([0, 1]).tolist() == [0, 0]
    table.put([0], ones(1, 4))
    bank.checkpoint()
    with pytest.raises(ValueError, match=f"rows must be from 0 to .*, not {number}"):
        table.export(tmp_path / "rows.npy", dense=True, rows=number, fill_missing=True)
    assert not (tmp_path / "rows.npy").exists()
    for call in (table.peek_bags, table.get_bags):
        with pytest.raises(ValueError, match=f"offsets must not be negative, found {number}"):
            call([0, 1], [0, number, 2])
    with table.get_distinct([0, 1]) as lease:
        with pytest.raises(ValueError, match=f"places must not be negative, found {number}"):
            lease.rewrite([number], ones(1, 4))


@pytest.mark.parametrize("key", [True, 2**64, -(2**63) - 1, 1.0, "1"])
def test_one_wrong_key(table: embank.Table, key: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"key must be (an integer|from -2\^63 to)"):
        table.outstanding(key)
