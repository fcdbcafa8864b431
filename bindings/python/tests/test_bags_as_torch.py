"""Compares lookups of random arguments, right and wrong, with `torch.nn.functional`.

Each call draws keys, offsets and weights of all forms that programs pass. A plain definition gives
the right bags: torch operations on one bag at a time, which read no memory outside their arguments.
The output and the rows after one step of SGD must equal the definition's and torch's, or both
libraries must refuse the call. A refused call changes no row and keeps no lease.

What Embank refuses and torch does not:
- bool keys and offsets: torch takes `True` as key 1. A mask is not a list of keys.
- offsets that fall: torch refuses them or answers, depending on the dtype.
- arguments on the device "meta": torch reads foreign memory.
- infinite and NaN gradients, in the backward pass: torch trains them into the rows.

What Embank answers and torch does not, or not always with the same result:
- keys of every integer dtype, and offsets of another one.
- 2-D keys without columns: the bags are empty.
- no offsets at all: torch reads foreign memory if there are keys.
- keys behind the end of the last bag: torch adds them to the last bag, or not, depending on the
  mode and the dtype, and may train foreign memory into their rows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

# Pairs of these numbers are equal in a dtype that is narrower than int64.
NUMBERS = [0, 1, 5, 127, 255, 65535, 2**31 - 1, 2**32 - 1, 2**32 + 5, 2**63 - 1, -1, -128, -(2**63)]
# PyTorch 2.3 brought these dtypes.
UNSIGNED = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
DTYPES = [torch.int64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, *UNSIGNED]
CASTS = [torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16]
MODES = ["sum", "mean", "max"]
DIM = 3


@dataclass
class Options:
    """The options of a module, and how it steps."""

    mode: str
    cast: Any
    padding: Optional[int]
    last: bool
    """The value of `include_last_offset`."""
    pooled_by_torch: bool
    """Whether a `SparseOptimizer` takes the step. The table then does not pool."""


@dataclass
class Call:
    """The arguments of one lookup."""

    keys: Any
    places: Any
    """The place of each key in `NUMBERS`: int64 in the shape of `keys`."""
    offsets: Any = None
    weights: Any = None
    bags: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end of each bag in the flat keys, if the call is right."""
    wrong: list[str] = field(default_factory=list)
    """What Embank refuses in this call."""
    only_here: list[str] = field(default_factory=list)
    """Why torch is not asked: it answers wrongly, reads foreign memory, or refuses."""


def fitting(dtype: Any) -> list[int]:
    """The places of the numbers that `dtype` holds. A uint64 number stands for the int64 number
    with the same bits."""
    if dtype == getattr(torch, "uint64", None):
        return list(range(len(NUMBERS)))
    limits = torch.iinfo(dtype)
    return [at for at, of in enumerate(NUMBERS) if limits.min <= of <= limits.max]


def in_other_order(values: Any, choose: random.Random) -> Any:
    """Returns equal values, in memory with gaps."""
    if choose.random() < 0.7:
        return values
    return torch.stack([values, values], dim=-1)[..., 0]


def draw_keys(choose: random.Random, shape: tuple[int, ...]) -> Call:
    dtype = choose.choice(DTYPES)
    can = fitting(dtype)
    count = int(np.prod(shape))
    places = torch.tensor([choose.choice(can) for _ in range(count)], dtype=torch.int64)
    numbers = np.array([NUMBERS[int(at)] for at in places], np.int64)
    keys = torch.from_numpy(numbers).to(dtype).reshape(shape)
    call = Call(in_other_order(keys, choose), places.reshape(shape))
    kind = choose.random()
    if kind < 0.03:
        call.keys = call.keys.to(torch.float32)
        call.wrong.append("keys of floats")
    elif kind < 0.05:
        call.keys = call.keys.to(torch.bool)
        call.wrong.append("bool keys")
        call.only_here.append("bool keys")
    elif kind < 0.07:
        call.keys = call.keys.to("meta")
        call.wrong.append("keys without numbers")
        call.only_here.append("torch reads foreign memory")
    return call


def draw_offsets(choose: random.Random, call: Call, last: bool) -> None:
    """Draws offsets for 1-D keys."""
    count = call.keys.numel()
    cuts = sorted(choose.randrange(count + 1) for _ in range(choose.randrange(5)))
    end = choose.choice([cuts[-1] if cuts else 0, count]) if last else count
    offsets = [0, *(of for of in cuts if of <= end), *([end] if last else [])]
    ends = [*offsets[1:], *([] if last else [end])]
    call.bags = list(zip(offsets, ends))
    if end < count:
        call.only_here.append("torch differs on keys behind the last bag")
    kind = choose.random()
    if kind < 0.05:
        call.wrong.append("no offsets")
        return
    if kind < 0.12:
        offsets, call.bags = [], []
        if last:
            call.wrong.append("no end of the last bag")
        elif count > 0:
            call.only_here.append("torch reads foreign memory")
    elif kind < 0.15:
        offsets = [of + 1 for of in offsets]
        call.wrong.append("offsets that do not begin with 0")
    elif kind < 0.18:
        offsets = [*offsets, count + 1]
        call.wrong.append("offsets that end behind the keys")
    elif kind < 0.22:
        offsets = [0, choose.choice([-1, count + 1, 2**40, -(2**63)]), 0]
        call.wrong.append("offsets that fall")
        call.only_here.append("torch reads foreign memory")
    dtype = choose.choice(DTYPES)
    wide = min(offsets, default=0) < 0 or max(offsets, default=0) > 127
    given = torch.tensor(offsets, dtype=torch.int64)
    call.offsets = in_other_order(given if wide else given.to(dtype), choose)
    kind = choose.random()
    if kind < 0.03:
        call.offsets = call.offsets.to(torch.float32) + 0.9
        call.wrong.append("offsets of floats")
    elif kind < 0.05:
        call.offsets = call.offsets.to(torch.bool)
        call.wrong.append("bool offsets")
        call.only_here.append("bool offsets")
    elif kind < 0.07:
        call.offsets = call.offsets.unsqueeze(0)
        call.wrong.append("2-D offsets")
    elif kind < 0.09:
        call.offsets = call.offsets.to("meta")
        call.wrong.append("offsets without numbers")
        call.only_here.append("torch reads foreign memory")


def draw_weights(choose: random.Random, call: Call, options: Options) -> None:
    if options.mode != "sum" and choose.random() < 0.93:
        return
    if choose.random() < 0.4:
        return
    shape = call.keys.shape
    call.weights = torch.tensor([choose.choice([0.5, 1.0, 2.0, -1.0]) for _ in range(shape.numel())])
    call.weights = in_other_order(call.weights.reshape(shape).to(options.cast), choose)
    if options.mode != "sum":
        call.wrong.append("weights with another mode")
    kind = choose.random()
    if kind < 0.06:
        others = {torch.float32, torch.float64, torch.float16, torch.int64} - {options.cast}
        call.weights = call.weights.to(choose.choice(sorted(others, key=str)))
        call.wrong.append("weights of another dtype")
    elif kind < 0.12:
        call.weights = torch.cat([call.weights.reshape(-1), torch.ones(1, dtype=options.cast)])
        call.wrong.append("weights of another shape")
    elif kind < 0.16:
        call.weights = call.weights.to("meta")
        call.wrong.append("weights without numbers")
        call.only_here.append("torch reads foreign memory")
    elif kind < 0.5:
        call.weights = call.weights.detach().requires_grad_()


def draw_bags(choose: random.Random, options: Options) -> Call:
    dims = choose.choices([0, 1, 2, 3], [1, 60, 36, 3])[0]
    call = draw_keys(choose, tuple(choose.randrange(6) for _ in range(dims)))
    if dims == 1:
        draw_offsets(choose, call, options.last)
    elif dims == 2:
        rows, length = call.keys.shape
        call.bags = [(row * length, (row + 1) * length) for row in range(rows)]
        if length == 0:
            call.only_here.append("torch refuses rows without columns")
        if choose.random() < 0.06:
            call.offsets = torch.tensor([0])
            call.wrong.append("2-D keys with offsets")
    else:
        call.offsets = torch.tensor([0])
        call.wrong.append("keys of 0 or 3 dimensions")
    draw_weights(choose, call, options)
    return call


def draw_options(choose: random.Random) -> Options:
    padding = choose.choice([None, choose.choice(NUMBERS), 2**40 + 5])
    if padding is not None and padding < 0 and choose.random() < 0.5:
        padding += 2**64  # the same key
    return Options(
        choose.choice(MODES),
        choose.choice(CASTS),
        padding,
        choose.random() < 0.5,
        choose.random() < 0.3,
    )


def padding_place(padding: Optional[int]) -> Optional[int]:
    signed = padding if padding is None or padding < 2**63 else padding - 2**64
    return NUMBERS.index(signed) if signed in NUMBERS else None


def by_definition(call: Call, options: Options, weight: Any, weights: Any) -> Any:
    """The bags, one at a time."""
    pad = padding_place(options.padding)
    places = call.places.reshape(-1)
    flat = None if weights is None else weights.reshape(-1)
    found = [weight[:0]]
    for begin, end in call.bags:
        kept = [at for at in range(begin, end) if int(places[at]) != pad]
        rows = weight[places[kept]]
        if flat is not None:
            rows = rows * flat[kept].unsqueeze(1)
        if not kept:
            found.append(weight.new_zeros(1, DIM))
        elif options.mode == "max":
            found.append(rows.max(dim=0, keepdim=True).values)
        else:
            total = rows.sum(dim=0, keepdim=True)
            found.append(total if options.mode == "sum" else total / len(kept))
    return torch.cat(found)


def as_torch_takes_it(values: Any) -> Any:
    """torch takes keys and offsets of two dtypes only."""
    if values is None or values.is_floating_point() or values.dtype in (torch.int64, torch.int32):
        return values
    return values.long()


def by_torch(call: Call, options: Options, weight: Any, weights: Any) -> Any:
    keys = call.places.to(call.keys.dtype) if call.keys.is_floating_point() else call.places
    return F.embedding_bag(
        keys.to(torch.int32) if call.keys.dtype == torch.int32 else keys,
        weight,
        as_torch_takes_it(call.offsets),
        mode=options.mode,
        per_sample_weights=weights,
        include_last_offset=options.last,
        padding_idx=padding_place(options.padding),
    )


def fresh_rows() -> Any:
    """Rows whose values differ in each column, so that a maximum has one place."""
    columns = [np.random.default_rng(at).permutation(len(NUMBERS)) - 4 for at in range(DIM)]
    return torch.from_numpy(np.stack(columns, 1).astype(np.float32))


def leaf_of(rows: Any, padding: Optional[int]) -> Any:
    rows = rows.clone()
    pad = padding_place(padding)
    if pad is not None:
        rows[pad] = 0.0
    return rows.requires_grad_()


def tolerance(cast: Any) -> dict[str, float]:
    if cast in (torch.float16, torch.bfloat16):
        return {"rtol": 3e-2, "atol": 3e-2}
    return {"rtol": 1e-5, "atol": 1e-5}


def close(got: Any, wanted: Any, cast: Any, told: Any) -> None:
    assert got.shape == wanted.shape, told
    assert got.dtype == wanted.dtype, told
    found = torch.allclose(got.double(), wanted.double(), **tolerance(cast))
    assert found, (told, got, wanted)


class Bench:
    """A table with a row for each of `NUMBERS`."""

    def __init__(self, bank: embank.Bank, name: str = "t") -> None:
        self.table = bank.table(
            name, dim=DIM, optimizer=embank.SGD(lr=1.0), staleness_bound=1, seed=1
        )

    def reset(self) -> None:
        self.table.put(np.array(NUMBERS), fresh_rows().numpy())

    def rows(self) -> Any:
        assert self.table.outstanding_leases() == []
        return torch.from_numpy(self.table.peek(np.array(NUMBERS)))


def expect_rows(bench: Bench, weight: Any, options: Options, told: Any) -> None:
    """The rows after a step of SGD with a learning rate of 1, without the row of padding."""
    kept = [at for at in range(len(NUMBERS)) if at != padding_place(options.padding)]
    gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
    close(bench.rows()[kept], (weight.detach() - gradient)[kept], options.cast, told)


def torch_refuses(call: Call, options: Options) -> None:
    weight = fresh_rows().to(options.cast)
    with pytest.raises((RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)):
        by_torch(call, options, weight, call.weights)


def twin_of(values: Any) -> Any:
    return None if values is None else values.detach().clone().requires_grad_(values.requires_grad)


@pytest.mark.parametrize("seed", range(8))
def test_a_bag_equals_torchs_or_both_refuse(bank: embank.Bank, seed: int) -> None:
    """Finds four bugs that modules had. Mode "max" without offsets ended the process. Keys behind
    the last offset were counted in a mean and a maximum, and memory garbage was trained into their
    rows. Offsets of 2.9 were cut to 2. A padding key was compared in the dtype of the keys."""
    choose = random.Random(seed)
    bench = Bench(bank)
    refused = answered = 0
    for _ in range(130):
        options = draw_options(choose)
        call = draw_bags(choose, options)
        bench.reset()
        module = embank.torch.EmbeddingBag(
            bench.table, options.mode, include_last_offset=options.last, padding_idx=options.padding
        ).to(options.cast)
        steps = embank.torch.SparseOptimizer(module) if options.pooled_by_torch else None
        how = choose.choice(["train", "train", "eval", "no_grad", "freeze"])
        module.train(how != "eval").freeze(how == "freeze")
        told = (seed, options, call, how)
        if call.wrong:
            refused += 1
            with pytest.raises((ValueError, TypeError)):
                module(call.keys, call.offsets, call.weights)
            close(bench.rows(), fresh_rows(), torch.float32, told)
            if not call.only_here:
                torch_refuses(call, options)
        else:
            answered += 1
            check_an_answer(bench, module, call, options, how, told)
        if steps is not None:
            steps.detach()
    assert refused > 15 and answered > 60


def check_an_answer(
    bench: Bench, module: Any, call: Call, options: Options, how: str, told: Any
) -> None:
    leaf, own_weights = leaf_of(fresh_rows(), options.padding), twin_of(call.weights)
    wanted = by_definition(call, options, leaf.to(options.cast), own_weights)
    with torch.set_grad_enabled(how != "no_grad"):
        got = module(call.keys, call.offsets, call.weights)
    close(got, wanted, options.cast, told)
    assert not torch.isnan(got).any()
    if how != "train":
        close(bench.rows(), fresh_rows(), torch.float32, told)
        return
    scale = torch.arange(1, 1 + got.numel(), dtype=options.cast).reshape(got.shape) % 4
    (got * scale).sum().backward()
    sink = module_sink(module)
    if sink is not None:
        sink.step()
    (wanted * scale).sum().backward()
    expect_rows(bench, leaf, options, told)
    if call.weights is not None and call.weights.requires_grad:
        wanted_grad = torch.zeros_like(own_weights) if own_weights.grad is None else own_weights.grad
        close(call.weights.grad, wanted_grad, options.cast, told)
    if not call.only_here:
        torchs, torch_weights = leaf_of(fresh_rows(), options.padding), twin_of(call.weights)
        output = by_torch(call, options, torchs.to(options.cast), torch_weights)
        close(got, output, options.cast, told)
        (output * scale).sum().backward()
        expect_rows(bench, torchs, options, told)


def module_sink(module: Any) -> Any:
    from embank.torch.sinks import sink_of

    return sink_of(module.table)


@pytest.mark.parametrize("seed", range(6))
def test_an_embedding_equals_torchs_or_both_refuse(bank: embank.Bank, seed: int) -> None:
    """Shows that padding is compared as a key. Key 255 of uint8 keys was once the padding -1."""
    choose = random.Random(seed)
    bench = Bench(bank)
    for _ in range(120):
        options = draw_options(choose)
        call = draw_keys(choose, tuple(choose.randrange(4) for _ in range(choose.randrange(4))))
        bench.reset()
        module = embank.torch.Embedding(bench.table, padding_idx=options.padding).to(options.cast)
        told = (seed, options, call)
        if call.wrong:
            with pytest.raises((ValueError, TypeError)):
                module(call.keys)
            close(bench.rows(), fresh_rows(), torch.float32, told)
            continue
        leaf = leaf_of(fresh_rows(), options.padding)
        wanted = F.embedding(
            call.places, leaf.to(options.cast), padding_idx=padding_place(options.padding)
        )
        got = module(call.keys)
        close(got, wanted, options.cast, told)
        scale = torch.arange(1, 1 + got.numel(), dtype=options.cast).reshape(got.shape) % 4
        (got * scale).sum().backward()
        (wanted * scale).sum().backward()
        expect_rows(bench, leaf, options, told)


@pytest.mark.parametrize("seed", range(8))
def test_a_collection_equals_torchs_or_refuses(bank: embank.Bank, seed: int) -> None:
    """Shows that each feature is as a module of its own, and that a wrong feature takes no lease on
    the tables of the others. Three features share two tables."""
    choose = random.Random(seed)
    benches = {"a": Bench(bank, "first"), "b": Bench(bank, "second")}
    benches["c"] = benches["a"]
    for _ in range(70):
        common = draw_options(choose)
        options = {name: Options(**{**vars(common), "mode": choose.choice(MODES)}) for name in "abc"}
        calls = {name: draw_bags(choose, options[name]) for name in "abc"}
        for bench in benches.values():
            bench.reset()
        module = embank.torch.EmbeddingBagCollection(
            {name: benches[name].table for name in "abc"},
            {name: options[name].mode for name in "abc"},
            include_last_offset=common.last,
            padding_idx=common.padding,
        ).to(common.cast)
        features = {}
        for name, call in calls.items():
            given = (call.keys, call.offsets, call.weights)
            while given[-1] is None:
                given = given[:-1]
            features[name] = given if len(given) > 1 else call.keys
        wrong = sum((call.wrong for call in calls.values()), [])
        if wrong:
            with pytest.raises((ValueError, TypeError), match="feature"):
                module(features)
            for bench in benches.values():
                close(bench.rows(), fresh_rows(), torch.float32, wrong)
            continue
        got = module(features)
        leaves = {id(of): leaf_of(fresh_rows(), common.padding) for of in benches.values()}
        loss = wanted_loss = torch.zeros(1, dtype=common.cast)
        for name, call in calls.items():
            leaf = leaves[id(benches[name])]
            wanted = by_definition(
                call, options[name], leaf.to(common.cast), twin_of(call.weights)
            )
            close(got[name], wanted, common.cast, (seed, name, options, calls))
            loss, wanted_loss = loss + got[name].sum(), wanted_loss + wanted.sum()
        loss.backward()
        wanted_loss.backward()
        for name in "ab":
            expect_rows(benches[name], leaves[id(benches[name])], common, (seed, options, calls))


@pytest.mark.parametrize("mode", MODES)
def test_bags_of_one_key_sum_their_gradients_in_the_order_of_the_batch(
    bank: embank.Bank, mode: str
) -> None:
    table = bank.table("item", dim=DIM, optimizer=embank.SGD(lr=1.0))
    module = embank.torch.EmbeddingBag(table, mode=mode)
    step = embank.torch.SparseOptimizer(module)
    torch.manual_seed(3)
    keys = torch.randint(0, 7, (300, 1))
    distinct = np.array(list(dict.fromkeys(keys.reshape(-1).tolist())))
    places = np.array([distinct.tolist().index(int(key)) for key in keys])
    # A gradient with gaps, as `torch.stack` gives it to its arguments, and one without strides.
    for gradient in (torch.randn(300, 5, DIM)[:, 1], torch.full((1, 1), 0.1).expand(300, DIM)):
        output = module(keys)
        assert np.array_equal(output.detach().numpy(), table.peek(distinct)[places])
        output.backward(gradient)
        sums = np.zeros((len(distinct), DIM), dtype=np.float32)
        np.add.at(sums, places, gradient.numpy())
        (rows,) = step.parameters()
        assert rows.grad is not None and np.array_equal(rows.grad.numpy(), sums)
        step.zero_grad()
        del output


def test_a_second_backward_pass_of_bags_of_one_key_is_refused(bank: embank.Bank) -> None:
    table = bank.table("item", dim=DIM, optimizer=embank.SGD(lr=1.0))
    module = embank.torch.EmbeddingBag(table)
    step = embank.torch.SparseOptimizer(module)
    loss = module(torch.tensor([[1], [2], [1]])).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    step.zero_grad()
