"""Tests that `embank.torch` names a caller's mistake and its cure. Each of these errors once showed
an error from inside of the package or of torch.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


@pytest.mark.parametrize("kind", ["EmbeddingCollection", "EmbeddingBagCollection"])
def test_a_collection_takes_a_dictionary_of_tensors(table: embank.Table, kind: str) -> None:
    model: Any = getattr(embank.torch, kind)({"user": table})
    with pytest.raises(TypeError, match=r"not Tensor: model\({feature: keys}\)"):
        model(torch.tensor([[1]]))
    with pytest.raises(TypeError, match="a dictionary .* not list"):
        model([1])
    with pytest.raises(TypeError, match=r"not list: use torch\.as_tensor\(keys\)"):
        model({"user": [1]})


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_a_module_takes_a_table_and_a_tensor(table: embank.Table, kind: str) -> None:
    module: Any = getattr(embank.torch, kind)
    with pytest.raises(TypeError, match=rf"{kind} takes a table in place of .*, not 1000: {kind}\(bank"):
        module(1000, 16)
    with pytest.raises(TypeError, match=r"not list: use torch\.as_tensor\(keys\)"):
        module(table)([1, 2])


@pytest.mark.parametrize(("keys", "told"), [({"item": torch.tensor([1])}, "'item'"), ([1], "list")])
def test_a_lookahead_loader_takes_keys_by_table(keys: Any, told: str) -> None:
    loader: Any = embank.torch.LookaheadLoader([0, 1, 2], lambda batch: keys)
    with pytest.raises(TypeError, match=rf"must return {{table: keys}} or .* not {told}"):
        list(loader)


def test_save_names_the_part_that_it_cannot_save(bank: embank.Bank) -> None:
    data: Any = DataLoader(range(4), batch_size=2)  # type: ignore[arg-type]
    ahead: Any = embank.torch.LookaheadLoader(data, lambda batch: {})
    for loader, kind in ((data, "DataLoader"), (ahead, "LookaheadLoader")):
        with pytest.raises(TypeError, match=f"part 'loader' is a {kind}.*ResumableLoader"):
            embank.torch.save(bank, step=1, loader=loader)
    with pytest.raises(TypeError, match="part 'function' can't be read back"):
        embank.torch.save(bank, step=1, function=lambda: None)
    assert bank.last_checkpoint is None


@pytest.mark.parametrize("module", ["Embedding", "EmbeddingBag", "one feature", "features"])
def test_a_module_that_trains_on_a_bank_to_read_names_eval(
    bank: embank.Bank, table: embank.Table, module: str
) -> None:
    """Shows that the error names `eval()` as the cure. Earlier versions advised to open the bank
    for writing."""
    table.put([1], [[1.0, 2.0, 3.0, 4.0]])
    bank.table("other", dim=2, optimizer=embank.SGD(lr=1.0)).put([1], [[1.0, 2.0]])
    bank.checkpoint()
    keys: Any = torch.tensor([[1]])
    with embank.Bank(bank.path, memory_budget="16MiB", read_only=True) as reading:
        tables = {"item": reading.open_table("item"), "other": reading.open_table("other")}
        if module in ("Embedding", "EmbeddingBag"):
            models = [getattr(embank.torch, module)(tables["item"])]
        else:
            features = {"item": tables["item"]} if module == "one feature" else tables
            keys = dict.fromkeys(features, keys)
            models = [
                embank.torch.EmbeddingCollection(features),
                embank.torch.EmbeddingBagCollection(features),
            ]
        for model in models:
            with pytest.raises(embank.ReadOnly, match=r"model\.eval\(\) or use torch\.no_grad"):
                model(keys)
            model.eval()(keys)


def test_resume_says_where_a_value_is(bank: embank.Bank) -> None:
    step: Any = 0
    with pytest.raises(TypeError, match=r"step: .* this is int; .* in the result, .*\['step'\]"):
        embank.torch.resume(bank, step=step)


def test_a_table_is_not_pickled(bank: embank.Bank) -> None:
    """Shows that the error for a pickled table names the table and the cure. It once named only the
    class."""
    model = embank.torch.Embedding(bank.table("word", dim=2))
    for given in (model.table, model):
        with pytest.raises(TypeError, match=r'table "word" can\'t be pickled.*embank.torch.save'):
            pickle.dumps(given)


def test_a_resumable_loader_does_not_go_into_a_lookahead_loader() -> None:
    """Shows that a `ResumableLoader` inside of a `LookaheadLoader` is refused. Batches that were
    drawn ahead once counted as trained, so a resumed run left them out."""
    data = DataLoader(torch.arange(8), batch_size=2)
    with pytest.raises(TypeError, match=r"ResumableLoader\(LookaheadLoader\(loader, keys\)\)"):
        embank.torch.LookaheadLoader(embank.torch.ResumableLoader(data), lambda batch: {})


KINDS = ["Embedding", "EmbeddingBag", "max", "collection", "bags", "two tables"]


def forward_of(table: embank.Table, kind: str) -> Callable[[], Any]:
    """Returns a function that looks key 1 up in a module over the table, which gets a bound of 0.
    The function returns the sum of the module's outputs."""
    table.staleness_bound = 0
    other = table.bank.table("other", dim=4, optimizer=embank.SGD(lr=0.5))
    keys: Any = torch.tensor([[1]])
    models: dict[str, Any] = {
        "Embedding": lambda: embank.torch.Embedding(table),
        "EmbeddingBag": lambda: embank.torch.EmbeddingBag(table),
        "max": lambda: embank.torch.EmbeddingBag(table, mode="max"),
        "collection": lambda: embank.torch.EmbeddingCollection({"a": table}),
        "bags": lambda: embank.torch.EmbeddingBagCollection({"a": table}),
        "two tables": lambda: embank.torch.EmbeddingBagCollection({"a": table, "b": other}),
    }
    model = models[kind]()
    given: Any = dict.fromkeys(model.features, keys) if hasattr(model, "features") else keys

    def forward() -> Any:
        found = model(given)
        return sum(of.sum() for of in found.values()) if isinstance(found, dict) else found.sum()

    return forward


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_backward_pass_does_not_stand_in_the_way(table: embank.Table, kind: str) -> None:
    """Regression test: autograd keeps the nodes that a failed pass did not reach until the thread's
    next backward pass. Their leases stopped the next forward pass at the bound."""
    forward = forward_of(table, kind)

    def fail(_: object) -> None:
        raise RuntimeError("planned")

    def failing_step() -> None:
        late = forward()
        # Autograd reaches the newest nodes first.
        early = torch.ones((), requires_grad=True).clone()
        early.register_hook(fail)
        (late + early).backward()

    for _ in range(2):
        with pytest.raises(RuntimeError, match="planned"):
            failing_step()
    forward().backward()
    assert table.peek([1]).tolist() == [[0.5] * 4]
    assert table.bank.outstanding_leases() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_batch_names_the_graph_that_holds_its_rows(table: embank.Table, kind: str) -> None:
    """Shows that the error of a get at its bound says `del loss`. It once spoke of leases, which a
    program with modules never sees. A batch with a NaN loss is such a batch."""
    forward = forward_of(table, kind)
    loss = forward()
    with pytest.raises(embank.SelfBlocked, match=r"lease.*graph of a forward pass.*del loss") as told:
        forward()
    assert (told.value.table, told.value.key, told.value.bound) == ("item", 1, 0)
    del loss
    forward().backward()
    assert (table.peek([1]) == 0.5).all()


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_a_module_takes_no_weight(table: embank.Table, kind: str) -> None:
    """Shows that a weight is refused, as of a tied layer or a matrix of pretrained rows. The module
    once took it as an attribute and ignored it."""
    module = getattr(embank.torch, kind)(table)
    weight = torch.nn.Parameter(torch.ones(3, 4))
    cure = r"has no weight: .*table\.put\(keys, rows\) or from_pretrained"
    with pytest.raises(AttributeError, match=cure):
        module.weight = weight
    with pytest.raises(AttributeError, match=cure):
        module.register_parameter("weight", weight)
    with pytest.raises(AttributeError, match="has no num_embeddings"):
        module.num_embeddings = 3
    module.scale = weight
    assert [name for name, _ in module.named_parameters()] == ["_stand_in", "scale"]


@pytest.mark.parametrize("train", [True, False])
def test_a_function_that_torch_transforms_reads_no_table(table: embank.Table, train: bool) -> None:
    """Shows that `torch.func` is refused with a cure. The error once was "Cannot access data
    pointer of Tensor that doesn't have storage"."""
    model = torch.nn.Sequential(embank.torch.Embedding(table), torch.nn.Linear(4, 1)).train(train)
    keys = torch.tensor([1, 2])
    parameters = {name: of.detach() for name, of in model.named_parameters()}

    def loss(parameters: Any) -> Any:
        return torch.func.functional_call(model, parameters, (keys,)).sum()

    for transformed in (lambda: torch.func.grad(loss)(parameters), lambda: torch.func.vmap(model)(keys)):
        with pytest.raises(RuntimeError, match=r"torch\.func transforms.*as an argument"):
            transformed()
    top = dict(model[1].named_parameters())
    rows = model[0](keys).detach()
    found = torch.func.grad(lambda top: torch.func.functional_call(model[1], top, (rows,)).sum())(top)
    assert found["bias"].item() == 2.0
    assert not table.bank.outstanding_leases()
