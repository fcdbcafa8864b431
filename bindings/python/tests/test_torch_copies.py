"""Tests copies of models, which share the rows of their tables, and what to use instead: averages
of rows, and the way back to the best rows.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch import nn  # noqa: E402

KEYS = torch.tensor([1, 2])
SHARES = r"shares the rows .* table 'item' .*bank\.pin.*roll_back.*second table"


@pytest.fixture
def model(table: embank.Table) -> Any:
    more = table.bank.table("more", dim=4, optimizer=embank.SGD(lr=0.5))
    rows = embank.torch.EmbeddingCollection({"a": table, "b": more})
    return nn.ModuleDict({"one": embank.torch.Embedding(table), "rows": rows, "top": nn.Linear(4, 1)})


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "in a list": lambda model: copy.deepcopy([model]),
    "AveragedModel": torch.optim.swa_utils.AveragedModel,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_model_says_that_it_shares_rows(model: Any, copied: Any) -> None:
    """Shows that one warning says that the copy shares rows. An average of weights (EMA, SWA) and a
    target network once trained the live rows without a word."""
    with pytest.warns(embank.torch.SharedRowsWarning, match=SHARES) as told:
        copied(model)
    assert len(told) == 1 and told[0].filename == __file__


def test_a_copy_has_its_own_dense_part_and_its_own_freezing(model: Any, table: embank.Table) -> None:
    with pytest.warns(embank.torch.SharedRowsWarning):
        target = copy.deepcopy(model)
    target.requires_grad_(False)
    assert target["one"].frozen and not model["one"].frozen
    assert target["one"].table is table and target["top"].weight is not model["top"].weight
    model["one"](KEYS).sum().backward()
    assert target["one"](KEYS).tolist() == [[0.5] * 4] * 2
    assert repr(target) == repr(model)


def test_copies_that_no_training_tells_apart_say_nothing(bank: embank.Bank, model: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.copy(model)
        copy.deepcopy(embank.torch.Embedding(bank.table("constant", dim=2)))
        frozen = embank.torch.Embedding(bank.open_table("item")).freeze()
        assert copy.deepcopy(frozen).frozen


@pytest.mark.parametrize("make", ["bank", "vocabulary", "pipeline", "pipeline of a bank", "table"])
def test_a_copy_shares_what_is_in_the_bank(bank: embank.Bank, table: embank.Table, make: str) -> None:
    """Shows that a model with a bank as an attribute can be copied. The copy once failed with
    "cannot pickle 'embank.Bank' object", which named no cure."""
    from embank.pipeline import Column, Field, Output, Pipeline, Spec, fill_missing

    spec = Spec([Field("a", "int64")], [Column("a", fill_missing(0))], [Output("a", ["a"], "i64")])
    made: Any = {
        "bank": lambda: bank,
        "vocabulary": lambda: bank.vocabulary("word", "bytes"),
        "pipeline": lambda: Pipeline(spec),
        "pipeline of a bank": lambda: Pipeline(spec, bank=bank),
        "table": lambda: table,
    }[make]()
    model = nn.Linear(1, 1)
    model.kept = made
    assert copy.deepcopy(model).kept is made and copy.copy(made) is made
    with pytest.raises(TypeError, match=rf"{make}.* can't be pickled: .*process"):
        pickle.dumps(model)
    with pytest.raises(TypeError, match=rf"{make}.* can't be pickled"):
        torch.save(model, io.BytesIO())


@pytest.mark.parametrize(
    "kind", ["Embedding", "EmbeddingBag", "EmbeddingCollection", "EmbeddingBagCollection"]
)
@pytest.mark.parametrize("state", ["trains", "frozen", "in a container"])
def test_a_module_with_a_bank_as_an_attribute_is_copied(
    bank: embank.Bank, table: embank.Table, kind: str, state: str
) -> None:
    """Regression test: `module.bank = bank` made the copy of the module fail."""
    made: Any = getattr(embank.torch, kind)({"f": table} if "Collection" in kind else table)
    words = bank.vocabulary("word", "bytes")
    made.bank = bank
    made.kept = {"banks": [bank], "others": (table, words)}
    if state == "frozen":
        made.freeze()
    model = nn.ModuleDict({"rows": made}) if state == "in a container" else made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embank.torch.SharedRowsWarning)
        copied = copy.deepcopy(model)
    rows = copied["rows"] if state == "in a container" else copied
    assert rows is not made and rows.bank is bank
    assert rows.kept is not made.kept and rows.kept["banks"][0] is bank
    assert rows.kept["others"][0] is table and rows.kept["others"][1] is words
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="can't be pickled: .*process"):
            pickle.dumps(model, protocol)


@pytest.mark.parametrize("state", ["read-only", "closed"])
def test_a_bank_that_does_not_train_is_shared_by_copies(tmp_path: Path, state: str) -> None:
    with embank.Bank(tmp_path / "own", memory_budget="16MiB") as bank:
        table = bank.table("t", dim=2)
        bank.checkpoint()
    if state == "read-only":
        bank = embank.Bank(tmp_path / "own", memory_budget="16MiB", read_only=True)
        table = bank.open_table("t")
    for of, text in ((bank, "the bank .*own can't be pickled"), (table, '"t" can\'t be pickled')):
        assert copy.deepcopy({"kept": [of]})["kept"][0] is of and copy.copy(of) is of
        with pytest.raises(TypeError, match=text):
            pickle.dumps({"kept": [of]})
    bank.close()


def test_an_average_of_rows_is_a_table(bank: embank.Bank, table: embank.Table) -> None:
    """Runs the example of docs/python.md for an average of rows."""
    items, decay, model = table, 0.75, embank.torch.Embedding(table)
    average = bank.table("item.average", dim=items.dim, initializer=embank.Zeros())

    def follow(keys: Any) -> None:
        keys = np.unique(keys.numpy())
        rows = items.peek(keys)
        known = average.contains(keys)[:, None]
        average.put(keys, np.where(known, decay * average.peek(keys) + (1 - decay) * rows, rows))

    expected = None
    for _ in range(4):
        model(KEYS).sum().backward()
        follow(KEYS)
        row = items.peek([1])[0, 0]
        expected = row if expected is None else decay * expected + (1 - decay) * row
    averaged = embank.torch.Embedding(average)
    assert averaged(KEYS)[0, 0].item() == pytest.approx(expected)
    assert items.peek([1])[0, 0] != averaged(KEYS)[0, 0].item()


def test_an_averaged_model_averages_the_dense_part(table: embank.Table) -> None:
    """Shows that `AveragedModel` works on a model with tables, and takes another module for the
    rows."""
    model = nn.Sequential(embank.torch.Embedding(table), nn.Linear(4, 1))
    with pytest.warns(embank.torch.SharedRowsWarning):
        averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.module[0] = embank.torch.Embedding(table.bank.table("item.average", dim=4))
    weights = []
    for at in range(3):
        with torch.no_grad():
            model[1].weight.fill_(at)
        averaged.update_parameters(model)
        weights.append(averaged.module[1].weight[0, 0].item())
    assert weights == pytest.approx([0.0, 0.5, 1.0])


@pytest.fixture
def dense_and_rows(tmp_path: Path) -> Iterator[tuple[embank.Bank, Any]]:
    with embank.Bank(tmp_path / "best", memory_budget="16MiB", checkpoints_kept=1) as bank:
        table = bank.table("t", dim=2, optimizer=embank.Adagrad(lr=0.5))
        yield bank, nn.Sequential(embank.torch.Embedding(table), nn.Linear(2, 1))
        bank.checkpoint()


@pytest.mark.parametrize("before", [True, False])
def test_the_best_model_is_loaded_again(dense_and_rows: Any, before: bool) -> None:
    """Shows the way back to the best rows inside of the process. The error of `load_state_dict`
    once said that the bank must be closed."""
    bank, model = dense_and_rows
    table = model[0].table

    def epoch() -> None:
        model(KEYS).sum().backward()

    epoch()
    rows = table.peek([1, 2])
    with embank.torch.reference.taking_checkpoint():
        if before:
            bank.pin(bank.checkpoint())
        best = copy.deepcopy(model.state_dict())
        if not before:
            bank.pin(bank.checkpoint())
    assert embank.torch.roll_back(bank, best) == [], "the bank has these rows"
    for _ in range(3):
        epoch()
        with pytest.raises(ValueError, match=r"embank\.torch\.roll_back\(bank, state_dict\).*bank\.roll_back\(1\)"):
            model.load_state_dict(best)
        bank.checkpoint()
    with pytest.raises(ValueError, match=r"bank\.roll_back\(1\).*bank\.pin\(1\)"):
        model.load_state_dict(best)
    assert not np.array_equal(table.peek([1, 2]), rows)
    assert embank.torch.roll_back(bank, best) == [4]
    model.load_state_dict(best)
    assert np.array_equal(table.peek([1, 2]), rows)
    epoch()
    assert embank.torch.roll_back(bank, best) == [], "rows without a checkpoint are dropped"
    model.load_state_dict(best)
    assert np.array_equal(table.peek([1, 2]), rows)


def test_rows_that_no_checkpoint_has_do_not_come_back(dense_and_rows: Any, bank: embank.Bank) -> None:
    own, model = dense_and_rows
    own.checkpoint()
    state = model.state_dict()
    model(KEYS).sum().backward()
    own.checkpoint()
    with pytest.raises(ValueError, match=r"does not hold \(it keeps \[2\]\).*bank\.pin\(number\)"):
        embank.torch.roll_back(own, state)
    with pytest.raises(ValueError, match="another bank"):
        embank.torch.roll_back(bank, state)
    with pytest.raises(ValueError, match=r"no tables of embank\.torch: .*model\.state_dict\(\)"):
        embank.torch.roll_back(own, nn.Linear(1, 1).state_dict())
