"""Tests gradients through rows that are read in evaluation mode, and the attributes of torch's
modules that Embank's do not have.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch import nn  # noqa: E402

KEYS = torch.tensor([[1, 2], [3, 1]])


def table(bank: embank.Bank, name: str = "t", **options: Any) -> embank.Table:
    options.setdefault("optimizer", embank.SGD(lr=1.0))
    return bank.table(name, dim=4, initializer=embank.Normal(0.0, 1.0), **options)


def kinds(rows: embank.Table) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Makes a module of each kind, and a call of it that returns one tensor."""

    def alone(module: Any) -> Any:
        return module(KEYS)

    def named(module: Any) -> Any:
        return module({"a": KEYS})["a"]

    return {
        "embedding": (embank.torch.Embedding(rows), alone),
        "padded": (embank.torch.Embedding(rows, padding_idx=2), alone),
        "shortened": (embank.torch.Embedding(rows, max_norm=0.5), alone),
        "bag": (embank.torch.EmbeddingBag(rows), alone),
        "bag by frequency": (embank.torch.EmbeddingBag(rows, scale_grad_by_freq=True), alone),
        "collection": (embank.torch.EmbeddingCollection({"a": rows}), named),
        "bags": (embank.torch.EmbeddingBagCollection({"a": rows}), named),
    }


KINDS = [
    "embedding", "padded", "shortened", "bag", "bag by frequency", "collection", "bags",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_attribution_has_the_gradient_at_the_output(bank: embank.Bank, kind: str) -> None:
    """Shows that `autograd.grad` gives the gradient at the output of a module in eval mode."""
    module, call = kinds(table(bank))[kind]
    module.eval()
    out = call(module)
    (gradient,) = torch.autograd.grad((out * out).sum(), out)
    assert torch.equal(gradient, 2 * out.detach())
    assert not bank.outstanding_leases()
    assert bank.stats()["inserted"] == 0, "rows are only read"


@pytest.mark.parametrize("kind", KINDS)
def test_training_in_eval_mode_is_told(bank: embank.Bank, kind: str) -> None:
    """Shows that a backward pass in eval mode warns, for example of a model with a frozen batch
    norm."""
    rows = table(bank, optimizer=embank.SGD(lr=1.0))
    module, call = kinds(rows)[kind]
    model = nn.Linear(4, 1).eval()
    before = rows.peek([1, 2, 3])
    with pytest.warns(UserWarning, match=r"rows of table 't' were read in evaluation mode.*call train\(\)"):
        model(call(module.eval())).sum().backward()
    assert model.weight.grad is not None, "the dense part has its gradient"
    assert np.array_equal(rows.peek([1, 2, 3]), before)
    call(module.train()).sum().backward()
    assert not np.array_equal(rows.peek([1, 2, 3]), before)


def test_what_is_not_to_learn_has_no_graph(bank: embank.Bank) -> None:
    """Shows that outputs have no graph under no_grad, in inference mode, and of frozen modules, as
    in torch."""
    module = embank.torch.Embedding(table(bank)).eval()
    with torch.no_grad():
        assert not module(KEYS).requires_grad
    with torch.inference_mode():
        assert not module(KEYS).requires_grad
    assert not module.freeze()(KEYS).requires_grad
    assert not module.train()(KEYS).requires_grad
    assert module.eval().freeze(False)(KEYS).requires_grad


def test_a_table_that_can_not_learn_warns_of_nothing(bank: embank.Bank) -> None:
    module = embank.torch.Embedding(table(bank, optimizer=None)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(KEYS).sum().backward()


def test_an_optimizer_of_tables_collects_nothing_in_eval_mode(bank: embank.Bank) -> None:
    module = embank.torch.Embedding(table(bank)).eval()
    tables = embank.torch.SparseOptimizer(module)
    with pytest.warns(UserWarning, match="evaluation mode"):
        module(KEYS).sum().backward()
    assert tables.parameters() == []
    tables.detach()


@pytest.mark.parametrize("name", ["num_embeddings", "weight", "sparse", "reset_parameters"])
def test_what_a_table_has_not_is_said(bank: embank.Bank, name: str) -> None:
    rows = table(bank)
    for module in (embank.torch.Embedding(rows), embank.torch.EmbeddingBag(rows)):
        assert not hasattr(module, name)
        with pytest.raises(AttributeError, match=rf"^Embedding.* over table 't' has no {name}: .+"):
            getattr(module, name)
        with pytest.raises(AttributeError, match="has no attribute 'other'"):
            module.other
        with pytest.warns(embank.torch.SharedRowsWarning):
            assert copy.deepcopy(module).embedding_dim == 4


def test_the_size_of_a_vocabulary_is_where_the_error_says(bank: embank.Bank) -> None:
    words = bank.vocabulary("word", "bytes", first_id=1)
    words.ids_or_insert(["red", "green"])
    module = embank.torch.Embedding(table(bank, vocabulary="word"))
    with pytest.raises(AttributeError, match=r"open_vocabulary\(name\)\.next_id is one more than its largest id"):
        module.num_embeddings
    assert bank.open_vocabulary("word").next_id == 3


CAUSES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "forward": (lambda rows, module: module(KEYS), r"a forward pass in training mode.*eval\(\)"),
    "get": (lambda rows, module: rows.get([9]).release(), r"or Table\.get, made rows"),
    "backward": (lambda rows, module: module(KEYS).sum().backward(), "a backward pass"),
    "apply": (lambda rows, module: rows.apply_gradients([1], np.ones((1, 4), np.float32)), "applies gradients"),
    "fill": (
        lambda rows, module: embank.torch.Embedding.from_pretrained(torch.ones(1, 4), rows),
        "fill=bank.recovered is None",
    ),
    "put": (lambda rows, module: rows.put([1], np.ones((1, 4), np.float32)), r"Table\.put"),
    "delete": (lambda rows, module: rows.delete([77]), "a call deleted some"),
}


@pytest.mark.parametrize("recovered", [False, True])
@pytest.mark.parametrize("how", CAUSES)
def test_what_changed_rows_before_resume_is_named(tmp_path: Path, how: str, recovered: bool) -> None:
    """Shows that `resume` refuses a bank with changed rows and names the call that changed them,
    for example a forward pass in training mode."""
    act, cause = CAUSES[how]
    if not recovered and how in ("fill", "delete"):
        pytest.skip("a fill prepares a new run, and a new bank has nothing to delete")
    if recovered:
        with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
            table(bank).put([77], np.ones((1, 4), np.float32))
            embank.torch.save(bank)
    with embank.Bank(tmp_path / "bank", memory_budget="16MiB") as bank:
        rows = table(bank)
        other = table(bank, "other")
        other.peek([1])
        if recovered:
            rows.get([77]).release()  # a row that is there: this changes nothing
        module = embank.torch.Embedding(rows)
        module.eval()(KEYS)
        assert (embank.torch.resume(bank) is None) != recovered
        act(rows, module.train())
        with pytest.raises(ValueError, match=f"table 't'.*{cause}.*open it anew"):
            embank.torch.resume(bank)
