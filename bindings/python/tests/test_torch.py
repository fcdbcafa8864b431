"""Compares `embank.torch` with `torch.nn`: the numbers are equal, with the table in the store."""

from __future__ import annotations

import copy
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402

ROWS, DIM = 50, 6


def twin(bank: embank.Bank, optimizer: Any, mode: Any, **options: Any) -> tuple[Any, Any]:
    """Makes a table's module and torch's own, with equal initial weights."""
    table = bank.table(f"twin {mode}", dim=DIM, optimizer=optimizer, seed=3)
    weights = torch.from_numpy(table.initial(np.arange(ROWS)))
    ours = embank.torch.EmbeddingBag(table, mode=mode, **options)
    theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode=mode, _weight=weights.clone(), **options)
    return ours, theirs


OPTIMIZERS: list[Any] = [
    pytest.param(embank.SGD(lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3), id="SGD"),
    pytest.param(embank.Adagrad(lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1), id="Adagrad"),
    pytest.param(
        embank.Adagrad(lr=0.1, eps=1e-3, initial_accumulator_value=0.5),
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-3, initial_accumulator_value=0.5),
        id="Adagrad with initial accumulator",
    ),
]


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize(("optimizer", "torch_optimizer"), OPTIMIZERS)
def test_a_hundred_steps_equal_torch(
    bank: embank.Bank, optimizer: Any, torch_optimizer: Callable[..., Any], mode: str
) -> None:
    ours, theirs = twin(bank, optimizer, mode)
    dense = torch_optimizer(theirs.parameters())
    random = torch.Generator().manual_seed(5)
    for step in range(100):
        # Few keys, so that bags and batches repeat them, and some empty bags.
        count = int(torch.randint(0, 40, (), generator=random))
        keys = torch.randint(0, 12 if step % 2 else ROWS, (count,), generator=random)
        cuts = torch.randint(0, count + 1, (7,), generator=random).sort().values
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), cuts])
        scale = torch.randn(8, DIM, generator=random)
        got, wanted = ours(keys, offsets), theirs(keys, offsets)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
        dense.zero_grad()
        ((got * scale).sum() + 0.01 * (got**2).sum()).backward()
        ((wanted * scale).sum() + 0.01 * (wanted**2).sum()).backward()
        dense.step()
    rows = torch.from_numpy(ours.table.peek(np.arange(ROWS)))
    torch.testing.assert_close(rows, theirs.weight.detach(), rtol=1e-5, atol=1e-6)
    assert all(not ours.table.outstanding(key) for key in range(ROWS))


FORMS: list[Any] = [
    pytest.param(lambda: (torch.tensor([[1, 2, 2], [0, 5, 1]]),), {}, id="2-D"),
    pytest.param(lambda: (torch.tensor([[1, 2]], dtype=torch.int32),), {}, id="2-D int32"),
    pytest.param(
        lambda: (torch.tensor([1, 2, 2, 7]), torch.tensor([0, 1])), {}, id="1-D and offsets"
    ),
    pytest.param(
        lambda: (torch.tensor([1, 2, 2, 7]), torch.tensor([0, 1, 4])),
        {"include_last_offset": True},
        id="last offset",
    ),
    pytest.param(
        lambda: (torch.tensor([2, 1, 2, 7, 2, 3]), torch.tensor([0, 1, 4])),
        {"padding_idx": 2},
        id="padding",
    ),
    pytest.param(
        lambda: (torch.tensor([[2, 1, 2], [2, 2, 2], [4, 3, 2]]),),
        {"padding_idx": 2},
        id="2-D padding",
    ),
    pytest.param(
        lambda: (torch.tensor([2, 1, 2, 7]), torch.tensor([0, 0, 3, 4])),
        {"padding_idx": 2, "include_last_offset": True},
        id="padding and last offset",
    ),
]


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize(("arguments", "options"), FORMS)
def test_every_form_of_the_call_equals_torch(
    bank: embank.Bank, arguments: Callable[[], Any], options: Any, mode: str
) -> None:
    ours, theirs = twin(bank, embank.SGD(lr=1.0), mode, **options)
    for module in (ours, theirs):
        module.train()
    got, wanted = ours(*arguments()), theirs(*arguments())
    torch.testing.assert_close(got, wanted)
    (got**2).sum().backward()
    (wanted**2).sum().backward()
    stepped = theirs.weight.detach() - theirs.weight.grad
    torch.testing.assert_close(torch.from_numpy(ours.table.peek(np.arange(ROWS))), stepped)
    ours.eval()
    theirs.weight.data = stepped
    torch.testing.assert_close(ours(*arguments()), theirs(*arguments()).detach())
    if "padding_idx" in options:
        assert ours.table.contains([2]).tolist() == [False]


def test_weights_of_single_keys_equal_torch(bank: embank.Bank) -> None:
    ours, theirs = twin(bank, embank.SGD(lr=1.0), "sum", padding_idx=4)
    keys = torch.tensor([[1, 4, 1], [3, 2, 4]])
    results = []
    for module in (ours, theirs):
        weights = torch.arange(6, dtype=torch.float32).view(2, 3).requires_grad_()
        module(keys, per_sample_weights=weights).square().sum().backward()
        results.append(weights.grad)
    torch.testing.assert_close(*results)
    stepped = theirs.weight.detach() - theirs.weight.grad
    torch.testing.assert_close(torch.from_numpy(ours.table.peek(np.arange(ROWS))), stepped)


def test_an_embedding_equals_torch(bank: embank.Bank) -> None:
    table = bank.table("words", dim=DIM, optimizer=embank.SGD(lr=1.0))
    ours = embank.torch.Embedding(table)
    theirs = torch.nn.Embedding(ROWS, DIM)
    theirs.weight.data = torch.from_numpy(table.initial(np.arange(ROWS)))
    keys = torch.tensor([[[1, 2], [3, 1]]])
    got, wanted = ours(keys), theirs(keys)
    torch.testing.assert_close(got, wanted)
    got.square().sum().backward()
    wanted.square().sum().backward()
    stepped = theirs.weight.detach() - theirs.weight.grad
    torch.testing.assert_close(torch.from_numpy(table.peek(np.arange(ROWS))), stepped)


@pytest.fixture
def bag(table: embank.Table) -> Any:
    """Makes a module that sums rows of a table of ones, whose learning rate is 0.5."""
    return embank.torch.EmbeddingBag(table, mode="sum")


KEYS = [[1, 2], [1, 3]]


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference_mode"])
def test_evaluation_peeks(bag: Any, how: str) -> None:
    if how == "eval":
        out = bag.eval()(torch.tensor(KEYS))
    else:
        with getattr(torch, how)():
            out = bag(torch.tensor(KEYS))
    assert (out == 2.0).all(), "missing rows read as their initial values"
    assert out.requires_grad == (how == "eval"), "as of torch.nn, where gradients are enabled"
    assert not bag.table.contains([1, 2, 3]).any()
    stats = bag.table.stats()
    assert stats["gets"] == 0


def test_a_forward_holds_a_lease_until_the_backward(bag: Any) -> None:
    out = bag(torch.tensor(KEYS))
    assert [bag.table.outstanding(key) for key in (1, 2, 3)] == [1, 1, 1]
    out.sum().backward()
    assert [bag.table.outstanding(key) for key in (1, 2, 3)] == [0, 0, 0]
    assert bag.table.peek([1, 2, 3])[:, 0].tolist() == [0.0, 0.5, 0.5]


def test_a_graph_without_backward_gives_its_lease_back(bag: Any) -> None:
    gc.disable()
    try:
        out = bag(torch.tensor(KEYS))
        assert bag.table.outstanding(1) == 1
        del out
        assert bag.table.outstanding(1) == 0, "without waiting for the cyclic collector"
    finally:
        gc.enable()
    assert (bag.table.peek([1, 2, 3]) == 1.0).all()


def test_several_forwards_before_the_backward(bag: Any) -> None:
    first, second = bag(torch.tensor(KEYS)), bag(torch.tensor([[1, 9]]))
    assert bag.table.outstanding(1) == 2
    (first.sum() + 3 * second.sum()).backward()
    assert bag.table.outstanding(1) == 0
    assert bag.table.peek([1, 9])[:, 0].tolist() == [1.0 - 0.5 * 2 - 0.5 * 3, 1.0 - 0.5 * 3]


def two_towers(left: Any, right: Any) -> Any:
    """Makes a loss over two forward passes of one table, whose keys overlap."""
    first, second = left(torch.tensor([[3, 1], [1, 2]])), right(torch.tensor([[2, 2], [5, 1]]))
    return (first * second).sum() + first.square().sum()


@pytest.mark.parametrize(("optimizer", "torch_optimizer"), OPTIMIZERS)
def test_forwards_of_one_backward_are_one_step(
    bank: embank.Bank, optimizer: Any, torch_optimizer: Callable[..., Any]
) -> None:
    """Shows that forward passes under one backward pass are one step. The test uses several
    optimizers, because SGD alone can't tell one step from two."""
    ours, theirs = twin(bank, optimizer, "sum")
    other = embank.torch.Embedding(ours.table)  # another module over the same table
    dense = torch_optimizer(theirs.parameters())
    for _ in range(5):
        (two_towers(ours, ours) + other(torch.tensor([2, 7])).square().sum()).backward()
        assert not any(ours.table.outstanding(key) for key in range(ROWS))
        dense.zero_grad()
        (two_towers(theirs, theirs) + theirs.weight[[2, 7]].square().sum()).backward()
        dense.step()
    rows = torch.from_numpy(ours.table.peek(np.arange(ROWS)))
    torch.testing.assert_close(rows, theirs.weight.detach(), rtol=1e-5, atol=1e-6)


def test_threads_do_not_share_a_step(bank: embank.Bank) -> None:
    """Shows that each backward pass gathers only its own gradients, also while another one runs."""
    table = bank.table("adagrad", dim=1, optimizer=embank.Adagrad(lr=1.0), initializer=embank.Zeros())
    module = embank.torch.Embedding(table)
    together = threading.Barrier(2)

    def train(key: int) -> None:
        for _ in range(50):
            loss = module(torch.tensor([key])).sum() + module(torch.tensor([key, key])).sum()
            together.wait(timeout=20)
            loss.backward()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(train, key) for key in (1, 2)]:
            done.result()
    expected = -sum(1.0 / np.sqrt(step) for step in range(1, 51))
    np.testing.assert_allclose(table.peek([1, 2]), [[expected], [expected]], rtol=1e-4)


class Fails(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """A function that raises in its backward pass, which runs last."""

    @staticmethod
    def forward(context: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        raise RuntimeError("of ours")


def test_a_backward_that_fails_changes_nothing(bag: Any) -> None:
    """Shows that gradients gathered before an error are dropped."""
    early = Fails.apply(torch.ones(1, requires_grad=True))
    loss = early.sum() + bag(torch.tensor(KEYS)).sum() + bag(torch.tensor([[1]])).sum()
    with pytest.raises(RuntimeError, match="of ours"):
        loss.backward()
    assert (bag.table.peek([1, 2, 3]) == 1.0).all()
    del loss, early
    gc.collect()
    assert bag.table.outstanding(1) == 0
    bag(torch.tensor([[1]])).sum().backward()
    assert bag.table.peek([1])[0, 0] == 0.5


def test_a_nan_of_one_forward_refuses_the_step_of_all(bag: Any) -> None:
    with pytest.raises(ValueError, match="NaN|finite"):
        (bag(torch.tensor([[1]])).sum() * float("nan") + bag(torch.tensor([[1, 2]])).sum()).backward()
    assert (bag.table.peek([1, 2]) == 1.0).all()
    assert (bag.table.outstanding(1), bag.table.outstanding(2)) == (0, 0)


def test_a_backward_inside_another_is_a_step_of_its_own(bank: embank.Bank) -> None:
    """Shows that a nested backward pass is a separate step. Reentrant checkpointing looks rows up
    again inside the backward pass."""
    table = bank.table("adagrad", dim=1, optimizer=embank.Adagrad(lr=1.0), initializer=embank.Zeros())
    module = embank.torch.Embedding(table)
    scale = torch.ones(1, requires_grad=True)

    def part(scale: Any) -> Any:
        return module(torch.tensor([1])).sum() * scale

    inside = torch.utils.checkpoint.checkpoint(part, scale, use_reentrant=True)
    (inside.sum() + module(torch.tensor([1])).sum()).backward()
    np.testing.assert_allclose(table.peek([1]), [[-1.0 - 1.0 / np.sqrt(2.0)]], rtol=1e-6)
    assert table.outstanding(1) == 0


def test_a_row_deleted_before_a_step_of_several_stays_deleted(bag: Any) -> None:
    loss = bag(torch.tensor([[1, 2]])).sum() + bag(torch.tensor([[1]])).sum()
    bag.table.delete([1])
    loss.backward()
    assert bag.table.contains([1, 2]).tolist() == [False, True]
    assert bag.table.peek([2])[0, 0] == 0.5


def test_each_backward_is_a_step_of_its_own(bank: embank.Bank) -> None:
    table = bank.table(
        "steps", dim=1, optimizer=embank.Adagrad(lr=1.0), initializer=embank.Zeros()
    )
    bag = embank.torch.EmbeddingBag(table, mode="sum")
    for _ in range(2):
        bag(torch.tensor([[1]])).sum().backward()
    expected = -1.0 - 1.0 / np.sqrt(2.0)
    np.testing.assert_allclose(table.peek([1]), [[expected]], rtol=1e-6)


def test_a_second_backward_through_a_retained_graph_raises(bag: Any) -> None:
    loss = bag(torch.tensor(KEYS)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="already applied"):
        loss.backward()
    assert bag.table.peek([2])[:, 0].tolist() == [0.5]


def test_what_the_store_refuses_surfaces_in_backward(bag: Any) -> None:
    with pytest.raises(ValueError, match="NaN|finite"):
        (bag(torch.tensor(KEYS)).sum() * float("nan")).backward()
    assert (bag.table.peek([1, 2, 3]) == 1.0).all()
    assert bag.table.outstanding(1) == 0


def test_a_table_without_an_optimizer_fails_in_backward(bank: embank.Bank) -> None:
    bag = embank.torch.EmbeddingBag(bank.table("plain", dim=2))
    out = bag(torch.tensor(KEYS))
    with pytest.raises(ValueError, match="optimizer"):
        out.sum().backward()


def test_a_backward_after_close_raises(bank: embank.Bank, bag: Any) -> None:
    out = bag(torch.tensor(KEYS))
    bank.close()
    with pytest.raises(ValueError, match="bank is closed"):
        out.sum().backward()


def test_a_frozen_module_peeks_until_it_thaws(bag: Any) -> None:
    assert bag.freeze() is bag and bag.frozen
    assert not bag(torch.tensor([[1]])).requires_grad
    assert bag.table.outstanding(1) is None
    bag.freeze(False)(torch.tensor([[1]])).sum().backward()
    assert bag.table.peek([1])[0, 0] == 0.5


def test_a_copied_model_shares_its_tables(bag: Any) -> None:
    """Shows that a deep copy of a model, which averages of weights begin with, shares its
    tables."""
    tables = embank.torch.SparseOptimizer(bag)
    with pytest.warns(embank.torch.SharedRowsWarning):
        copied = copy.deepcopy(torch.nn.Sequential(bag, torch.nn.Linear(4, 1)))
    assert copied[0].table is bag.table and copied[0].mode == "sum"
    copied[0](torch.tensor([[1]])).sum().backward()
    assert bag.table.peek([1])[0, 0] == 1.0, "the table's optimizer has the copy's gradients too"
    tables.step()
    assert bag.table.peek([1])[0, 0] == 0.5


def test_a_dense_part_learns_beside_the_table(bank: embank.Bank) -> None:
    """Shows that a torch parameter and a table both learn. One number stands in for the table's
    rows."""
    torch.manual_seed(1)
    table = bank.table("u", dim=DIM, optimizer=embank.Adagrad(lr=0.1))
    model = torch.nn.Sequential(embank.torch.EmbeddingBag(table), torch.nn.Linear(DIM, 1))
    assert [of.numel() for of in model.parameters()] == [1, DIM, 1]
    bank.checkpoint()
    assert list(model.state_dict()) == ["0._stand_in", "0._extra_state", "1.weight", "1.bias"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keys = torch.randint(0, 20, (64, 3))
    target = (keys.sum(1, keepdim=True) % 2).float()
    losses = []
    for _ in range(200):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(keys), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]


def test_an_empty_batch_goes_through(bag: Any) -> None:
    out = bag(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
    assert out.tolist() == [[0.0] * 4] * 2
    out.sum().backward()
    assert bag(torch.empty((0, 3), dtype=torch.int64)).shape == (0, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.tensor([1, 2]),), ValueError, "offsets"),
        ((torch.tensor([[1, 2]]), torch.tensor([0])), ValueError, "leave offsets out"),
        ((torch.tensor([[[1]]]),), ValueError, "1-D or 2-D, not 3-D"),
        ((torch.tensor([1, 2]), torch.tensor([[0]])), ValueError, "offsets must be 1-D"),
        ((torch.tensor([[1.0]]),), TypeError, r"keys\.long\(\)"),
        ((torch.tensor([[1, 2]]), None, torch.ones(2)), ValueError, "same"),
        ((torch.tensor([1, 2]), torch.tensor([0, 9])), ValueError, "offsets must begin with 0"),
        ((torch.tensor([1, 2]), torch.tensor([1, 2])), ValueError, "found 1 to 2"),
        ((torch.tensor([1, 2]), torch.tensor([0, 2, 1])), ValueError, "never fall"),
    ],
)
def test_wrong_inputs(bag: Any, arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bag(*arguments)
    assert not bag.table.outstanding(1)


@pytest.mark.parametrize("offsets", [[0, 9], [1, 2], [0, 2, 1]])
def test_offsets_are_checked_with_padding_too(table: embank.Table, offsets: list[int]) -> None:
    """Shows that offsets are checked before padding keys are removed. An offset behind a padded
    first key was once accepted."""
    bag = embank.torch.EmbeddingBag(table, padding_idx=7)
    with pytest.raises(ValueError, match="offsets must begin with 0"):
        bag(torch.tensor([7, 2]), torch.tensor(offsets))
    with pytest.raises(ValueError, match="one entry"):
        embank.torch.EmbeddingBag(table, include_last_offset=True)(
            torch.tensor([7]), torch.tensor([], dtype=torch.int64)
        )


def test_modes_are_checked_and_shown(table: embank.Table) -> None:
    with pytest.raises(ValueError, match='"sum", "mean" or "max"'):
        embank.torch.EmbeddingBag(table, mode="min")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max"):
        embank.torch.EmbeddingBag(table, mode="max", scale_grad_by_freq=True)
    with pytest.raises(ValueError, match="max_norm"):
        embank.torch.Embedding(table, max_norm=-1.0)
    assert repr(embank.torch.EmbeddingBag(table)) == "EmbeddingBag('item', dim=4, mode='mean')"
    assert repr(embank.torch.Embedding(table)) == "Embedding('item', dim=4)"


@pytest.mark.skipif(not hasattr(torch, "uint64"), reason="PyTorch has uint64 from 2.3 on")
def test_ids_of_a_vocabulary_are_keys(bank: embank.Bank) -> None:
    """Shows that modules accept ids of a vocabulary, which are uint64. Earlier versions refused
    such tensors."""
    words = bank.vocabulary("word", "bytes", first_id=1, unknown_id=0)
    rows = bank.table("word", dim=4, vocabulary="word")
    ids = torch.from_numpy(words.ids_or_insert(["red", "green", "red"]))
    assert ids.dtype == torch.uint64
    signed = ids.to(torch.int64)
    for padding in (None, 2):
        one = embank.torch.Embedding(rows, padding_idx=padding)
        assert torch.equal(one(ids), one(signed))
        bag = embank.torch.EmbeddingBag(rows, padding_idx=padding)
        offsets = torch.tensor([0, 1])
        assert torch.equal(bag(ids, offsets), bag(signed, offsets))
    # All 64 bits are kept.
    table = bank.table("raw", dim=4)
    large = np.array([2**64 - 2], dtype=np.uint64)
    with torch.no_grad():
        read = embank.torch.Embedding(table)(torch.from_numpy(large))
    assert torch.equal(read, torch.from_numpy(table.peek(large)))
