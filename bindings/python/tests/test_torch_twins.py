"""Compares random modules, calls and gradients with their twins in `torch.nn` and `torch.optim`.

Each seed draws a module with its options and trains both for some steps. The outputs, the gradients
of weights of single keys, and the final rows must agree.
"""

from __future__ import annotations

import random
from typing import Any, Callable

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402

ROWS = 40
STEPS = 6
Optimizers = tuple[Any, Callable[..., Any]]


def optimizers(random: random.Random) -> Optimizers:
    lr = random.choice([0.01, 0.1, 0.5])
    if random.random() < 0.4:
        return embank.SGD(lr=lr), lambda p: torch.optim.SGD(p, lr=lr)
    begin = random.choice([0.0, 0.1])
    return (
        embank.Adagrad(lr=lr, initial_accumulator_value=begin),
        lambda p: torch.optim.Adagrad(p, lr=lr, initial_accumulator_value=begin),
    )


def common_options(random: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if random.random() < 0.5:
        options["padding_idx"] = random.randrange(ROWS)
    if random.random() < 0.3:
        options["max_norm"] = random.choice([0.05, 0.1, 0.3])
        options["norm_type"] = random.choice([1.0, 2.0, 3.0])
    return options


def twins(
    bank: embank.Bank, random: random.Random, ours: Any, theirs: Any, options: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """Makes a table's module, torch's own with equal weights, and torch's optimizer."""
    dim = random.choice([1, 3, 8])
    optimizer, torch_optimizer = optimizers(random)
    table = bank.table("twin", dim=dim, optimizer=optimizer, seed=random.randrange(1000))
    twin = theirs(ROWS, dim, **options)
    weights = torch.from_numpy(table.initial(np.arange(ROWS)))
    if "padding_idx" in options:
        weights[options["padding_idx"]] = 0.0
    twin.weight.data = weights
    module = ours(table, **options)
    return module, twin, torch_optimizer(twin.parameters())


def assert_rows_agree(table: embank.Table, twin: Any, options: dict[str, Any]) -> None:
    kept = np.delete(np.arange(ROWS), options.get("padding_idx", []))
    rows = torch.from_numpy(table.peek(kept))
    torch.testing.assert_close(rows, twin.weight.detach()[kept], rtol=1e-5, atol=1e-6)
    if "padding_idx" in options:
        assert not table.contains([options["padding_idx"]]).any()
    assert not any(table.outstanding(key) for key in range(ROWS))


def some_keys(random: random.Random, shape: tuple[int, ...]) -> Any:
    dtype = random.choice([torch.int64, torch.int64, torch.int32])
    return torch.from_numpy(
        np.array([random.randrange(ROWS) for _ in range(int(np.prod(shape)))]).reshape(shape)
    ).to(dtype)


def loss(output: Any, scale: Any) -> Any:
    return (output * scale).sum() + 0.1 * (output**2).sum()


@pytest.mark.parametrize("seed", range(25))
def test_an_embedding(bank: embank.Bank, seed: int) -> None:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    options = common_options(choose)
    options["scale_grad_by_freq"] = choose.random() < 0.3
    module, twin, optimizer = twins(
        bank, choose, embank.torch.Embedding, torch.nn.Embedding, options
    )
    for _ in range(STEPS):
        shape = tuple(choose.randrange(5) for _ in range(choose.randrange(4)))
        keys = some_keys(choose, shape)
        got, wanted = module(keys), twin(keys)
        assert got.shape == wanted.shape, (seed, shape)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
        scale = torch.randn(got.shape)
        optimizer.zero_grad()
        loss(wanted, scale).backward()
        loss(got, scale).backward()
        optimizer.step()
    assert_rows_agree(module.table, twin, options)
    keys = some_keys(choose, (7,))
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(keys), twin.eval()(keys), rtol=1e-5, atol=1e-6)


def call(choose: random.Random, mode: str, include_last_offset: bool) -> tuple[Any, Any, bool]:
    """Draws keys, offsets or None, and whether there are weights."""
    weighted = mode == "sum" and choose.random() < 0.5
    if choose.random() < 0.4 and not include_last_offset:
        return some_keys(choose, (choose.randrange(6), choose.randrange(1, 5))), None, weighted
    keys = some_keys(choose, (choose.randrange(20),))
    # Cuts can repeat, so there can be empty bags at both ends and between.
    cuts = sorted(choose.randrange(len(keys) + 1) for _ in range(choose.randrange(6)))
    offsets = torch.tensor([0, *cuts, *([len(keys)] if include_last_offset else [])])
    return keys, offsets.to(keys.dtype), weighted


@pytest.mark.parametrize("seed", range(60))
def test_a_bag(bank: embank.Bank, seed: int) -> None:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    mode = ["sum", "mean", "max"][seed % 3]
    options = common_options(choose)
    options |= {"mode": mode, "include_last_offset": choose.random() < 0.4}
    module, twin, optimizer = twins(
        bank, choose, embank.torch.EmbeddingBag, torch.nn.EmbeddingBag, options
    )
    if mode != "max":
        module.scale_grad_by_freq = choose.random() < 0.3
    for _ in range(STEPS):
        keys, offsets, weighted = call(choose, mode, options["include_last_offset"])
        weights = torch.randn(keys.shape)
        ours = weights.clone().requires_grad_() if weighted else None
        theirs = weights.clone().requires_grad_() if weighted else None
        got, wanted = module(keys, offsets, ours), twin(keys, offsets, theirs)
        assert got.shape == wanted.shape, (seed, keys.shape)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
        scale = torch.randn(got.shape)
        optimizer.zero_grad()
        loss(wanted, scale).backward()
        loss(got, scale).backward()
        if module.scale_grad_by_freq:
            # torch's `scale_grad_by_freq` is not used: on the CPU, the bags of torch 2.11 divide a
            # gradient by the count of another key.
            counts = torch.bincount(keys.reshape(-1).long(), minlength=ROWS).clamp(min=1)
            twin.weight.grad /= counts.unsqueeze(1)
        optimizer.step()
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    assert_rows_agree(module.table, twin, options)


@pytest.mark.parametrize("seed", range(15))
def test_a_collection_of_bags(bank: embank.Bank, seed: int) -> None:
    """Shows that features that share a table take one step of it, with the sum of their
    gradients."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    optimizer, torch_optimizer = optimizers(choose)
    tables = [bank.table(f"t{at}", dim=2 + at, optimizer=optimizer) for at in range(3)]
    weights = [
        torch.nn.Parameter(torch.from_numpy(table.initial(np.arange(ROWS)))) for table in tables
    ]
    table_of = {name: choose.randrange(3) for name in "abcde"}
    modes: dict[str, Any] = {name: choose.choice(["sum", "mean", "max"]) for name in table_of}
    module = embank.torch.EmbeddingBagCollection(
        {name: tables[at] for name, at in table_of.items()}, mode=modes
    )
    dense = torch_optimizer(weights)
    for _ in range(STEPS):
        features: dict[str, Any] = {}
        wanted = {}
        for name, at in table_of.items():
            keys, offsets, weighted = call(choose, modes[name], False)
            single = torch.randn(keys.shape) if weighted and offsets is not None else None
            features[name] = keys if offsets is None else (keys, offsets)
            if single is not None:
                features[name] = (keys, offsets, single)
            wanted[name] = torch.nn.functional.embedding_bag(
                keys, weights[at], offsets, mode=modes[name], per_sample_weights=single
            )
        got = module(features)
        assert list(got) == list(wanted)
        for name in got:
            torch.testing.assert_close(got[name], wanted[name], rtol=1e-5, atol=1e-6)
        dense.zero_grad()
        scales = {name: torch.randn(of.shape) for name, of in got.items()}
        sum(loss(of, scales[name]) for name, of in got.items()).backward()
        sum(loss(of, scales[name]) for name, of in wanted.items()).backward()
        dense.step()
    for table, weight in zip(tables, weights):
        rows = torch.from_numpy(table.peek(np.arange(ROWS)))
        torch.testing.assert_close(rows, weight.detach(), rtol=1e-5, atol=1e-6)
        assert not any(table.outstanding(key) for key in range(ROWS))
