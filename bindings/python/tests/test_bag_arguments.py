"""Tests which keys of a call are in a bag, which of them are padding, and which arguments are
refused. `test_bags_as_torch` draws random arguments; these tests state single rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402

CASTS = [torch.float32, torch.float64, torch.bfloat16]
NO_KEYS = torch.empty(0, dtype=torch.int64)


def bag_of(table: embank.Table, mode: Any, cast: Any = torch.float32, **options: Any) -> Any:
    return embank.torch.EmbeddingBag(table, mode, **options).to(cast)


def numbered(bank: embank.Bank) -> embank.Table:
    """A table of one column. The rows of keys 1 to 4 have the number of their key."""
    table = bank.table("n", dim=1, optimizer=embank.SGD(lr=1.0), initializer=embank.Constant(50.0))
    table.put([1, 2, 3, 4], [[1.0], [2.0], [3.0], [4.0]])
    return table


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_without_bags_no_key_is_looked_up(
    bank: embank.Bank, mode: str, cast: Any, last: bool
) -> None:
    """Shows that keys without a bag have no row. Mode "max" ended the process with SIGSEGV here,
    because torch's kernel wrote behind the empty output."""
    table = numbered(bank)
    bag = bag_of(table, mode, cast, include_last_offset=last)
    out = bag(torch.tensor([7, 8]), torch.tensor([0]) if last else NO_KEYS)
    assert (out.shape, out.dtype, out.requires_grad) == ((0, 1), cast, True)
    out.sum().backward()
    with torch.no_grad():
        assert bag(torch.tensor([7, 8]), torch.tensor([0]) if last else NO_KEYS).shape == (0, 1)
    assert not table.contains([7, 8]).any()
    assert table.outstanding_leases() == []


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize(("mode", "wanted"), [("sum", 9.0), ("mean", 3.0), ("max", 4.0)])
@pytest.mark.parametrize("optimizer", [False, True])
def test_keys_behind_the_last_bag_are_in_no_bag(
    bank: embank.Bank, mode: str, wanted: float, cast: Any, optimizer: bool
) -> None:
    """Shows that a buffer may be padded behind its last bag. The padding was counted in the mean
    and the maximum of the last bag, and torch trained foreign memory into its row."""
    table = numbered(bank)
    bag = bag_of(table, mode, cast, include_last_offset=True)
    steps = embank.torch.SparseOptimizer(bag) if optimizer else None
    out = bag(torch.tensor([1, 2, 3, 4, 9, 9, 9, 9]), torch.tensor([0, 1, 4]))
    assert out.flatten().tolist() == [1.0, wanted]
    out.sum().backward()
    if steps is not None:
        steps.step()
    gradients = {"sum": [1.0, 1.0, 1.0], "mean": [1 / 3] * 3, "max": [0.0, 0.0, 1.0]}[mode]
    expected = [0.0, *(row - gradient for row, gradient in zip([2.0, 3.0, 4.0], gradients))]
    assert table.peek([1, 2, 3, 4]).flatten().tolist() == pytest.approx(expected, abs=2e-3)
    assert not table.contains([9]).any()


def test_weights_behind_the_last_bag_are_not_used(bank: embank.Bank) -> None:
    table = numbered(bank)
    bag = bag_of(table, "sum", include_last_offset=True)
    for learns in (False, True):
        weights = torch.tensor([1.0, 2.0, float("nan"), float("inf")], requires_grad=learns)
        out = bag(torch.tensor([3, 4, 9, 9]), torch.tensor([0, 2]), weights)
        assert out.tolist() == [[11.0]]
        if learns:
            out.sum().backward()
            assert weights.grad is not None and weights.grad.tolist() == [3.0, 4.0, 0.0, 0.0]
    assert not table.contains([9]).any()


def test_padding_behind_and_between_bags_of_a_collection(bank: embank.Bank) -> None:
    table = numbered(bank)
    bags = embank.torch.EmbeddingBagCollection(
        {"a": table, "b": table}, mode="mean", include_last_offset=True, padding_idx=0
    )
    out = bags(
        {
            "a": (torch.tensor([1, 0, 3, 9, 9]), torch.tensor([0, 3])),
            "b": (torch.tensor([0, 4, 2]), torch.tensor([0, 2])),
        }
    )
    assert {name: of.tolist() for name, of in out.items()} == {"a": [[2.0]], "b": [[4.0]]}
    sum(of.sum() for of in out.values()).backward()
    assert table.peek([1, 2, 3, 4]).flatten().tolist() == [0.5, 2.0, 2.5, 3.0]
    assert not table.contains([0, 9]).any()


@pytest.mark.parametrize(
    ("dtype", "key", "padding"),
    [
        ("uint8", 255, -1),
        ("int8", -1, 255),
        ("int32", 5, 2**32 + 5),
        ("int32", -1, 2**32 - 1),
        ("int64", 5, 2**32 + 5),
    ],
)
def test_a_key_that_a_narrow_dtype_would_make_padding(
    bank: embank.Bank, dtype: str, key: int, padding: int
) -> None:
    """Shows that padding is compared as a key of the table. It was cut to the dtype of the keys, so
    that a real key read as zeros and never learned."""
    table = numbered(bank)
    keys = torch.tensor([[key]], dtype=getattr(torch, dtype))
    for module in (
        embank.torch.Embedding(table, padding_idx=padding),
        embank.torch.EmbeddingBag(table, padding_idx=padding),
        embank.torch.EmbeddingBag(table, "max", padding_idx=padding),
    ):
        out = module(keys)
        assert out.flatten().tolist() == table.peek([key]).flatten().tolist() != [0.0]
        out.sum().backward()
    assert table.peek([key]).tolist() == [[47.0]]
    module = embank.torch.EmbeddingBagCollection({"f": table}, padding_idx=padding)
    assert module({"f": keys})["f"].tolist() == [[47.0]]


def test_a_padding_key_of_64_bits_has_two_names(bank: embank.Bank) -> None:
    """Shows that -1 and 2^64 - 1 are one padding key, as they are one key of a table."""
    table = numbered(bank)
    keys = torch.tensor([[-1, 3]])
    unsigned = getattr(torch, "uint64", None)
    for padding in (-1, np.int64(-1), 2**64 - 1, np.uint64(2**64 - 1)):
        bag: Any = embank.torch.EmbeddingBag(table, padding_idx=padding)
        assert bag(keys).tolist() == [[3.0]]
        if unsigned is not None:
            assert bag(keys.to(unsigned)).tolist() == [[3.0]]
    filled = embank.torch.Embedding.from_pretrained(
        torch.ones(2, 1), bank.table("filled", dim=1), padding_idx=2**64 - 1
    )
    assert filled.table.contains([0, 1]).all()


@pytest.mark.parametrize(
    ("padding", "error", "match"),
    [
        (2**64, ValueError, r"from -2\^63 to 2\^64 - 1, not 18446744073709551616"),
        (-(2**63) - 1, ValueError, "must be a key"),
        (1.0, TypeError, "integer"),
        (True, TypeError, "not a bool"),
        ("1", TypeError, "integer"),
    ],
)
def test_padding_that_is_no_key(
    table: embank.Table, padding: Any, error: type[Exception], match: str
) -> None:
    for make in (
        lambda: embank.torch.Embedding(table, padding_idx=padding),
        lambda: embank.torch.EmbeddingBag(table, padding_idx=padding),
        lambda: embank.torch.EmbeddingBagCollection({"f": table}, padding_idx=padding),
    ):
        with pytest.raises(error, match=match):
            make()


KEYS, OFFSETS = torch.tensor([1, 2, 3]), torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((KEYS, torch.tensor([0.0, 2.9])), TypeError, r"offsets must be an integer tensor, not torch\.float32"),
        ((KEYS, torch.tensor([False, True])), TypeError, r"offsets must be .*, not torch\.bool"),
        ((KEYS, [0, 2]), TypeError, r"offsets must be an integer tensor, not list: use torch\.as_tensor"),
        ((KEYS > 1, OFFSETS), TypeError, r"keys must be an integer tensor, not torch\.bool"),
        ((KEYS.to_sparse(), OFFSETS), TypeError, "keys must be a dense tensor"),
        ((KEYS.to("meta"), OFFSETS), ValueError, 'keys are on the device "meta"'),
        ((KEYS, OFFSETS.to("meta")), ValueError, 'offsets are on the device "meta"'),
        ((KEYS, OFFSETS, torch.ones(3, device="meta")), ValueError, "per_sample_weights are on meta, and"),
        ((KEYS, OFFSETS, torch.ones(3, dtype=torch.float64)), TypeError, r"a tensor of torch\.float32, .*float64"),
        ((KEYS, OFFSETS, KEYS), TypeError, r"not torch\.int64"),
        ((KEYS, OFFSETS, [1.0, 1.0, 1.0]), TypeError, "not list"),
        ((KEYS, torch.tensor([0, 2**40, 0])), ValueError, "never fall"),
        ((KEYS, torch.tensor([0, -1, 2])), ValueError, "never fall"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named_and_hold_nothing(
    bank: embank.Bank, arguments: Any, error: type[Exception], match: str
) -> None:
    """Shows, among others, that offsets of floats are refused. They were cut to integers."""
    table = numbered(bank)
    with pytest.raises(error, match=match):
        bag_of(table, "sum")(*arguments)
    with pytest.raises(error, match=f"feature 'f': .*{match}"):
        embank.torch.EmbeddingBagCollection({"f": table})({"f": arguments})
    assert table.outstanding_leases() == []


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "uint64"])
def test_offsets_of_another_dtype_than_the_keys(bank: embank.Bank, dtype: str) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    table = numbered(bank)
    for mode, wanted in (("sum", [1.0, 5.0, 0.0]), ("max", [1.0, 3.0, 0.0])):
        bag = bag_of(table, mode)
        offsets = torch.tensor([0, 1, 3]).to(getattr(torch, dtype))
        assert bag(torch.tensor([1, 2, 3]), offsets).flatten().tolist() == wanted


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_tuple_of_another_length_is_no_feature(table: embank.Table, count: int) -> None:
    model: Any = embank.torch.EmbeddingBagCollection({"f": table})
    with pytest.raises((TypeError, ValueError), match="keys must be|found a tuple of"):
        model({"f": (KEYS, OFFSETS, torch.ones(3), None)[:count]})


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_reach_no_row(
    bank: embank.Bank, weight: float, learns: bool
) -> None:
    """Shows what differs from torch: its output is the same, but it trains NaN into the rows. The
    store pools weights that do not learn, and torch the others."""
    table = numbered(bank)
    weights = torch.tensor([1.0, weight], requires_grad=learns)
    out = bag_of(table, "sum")(torch.tensor([3, 4]), torch.tensor([0]), weights)
    rows = torch.tensor([[3.0], [4.0]])
    wanted = torch.nn.functional.embedding_bag(
        torch.tensor([0, 1]), rows, torch.tensor([0]), mode="sum", per_sample_weights=weights
    )
    torch.testing.assert_close(out, wanted, equal_nan=True, check_stride=False)
    with pytest.raises(ValueError, match="key 4: the gradient of column 0 is (nan|NaN|inf)"):
        out.sum().backward()
    assert table.peek([3, 4]).tolist() == [[3.0], [4.0]]
    assert table.outstanding_leases() == []
