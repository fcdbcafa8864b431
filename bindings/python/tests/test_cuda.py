"""Tests keys, rows and gradients on a CUDA device: each step equals the step on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: what goes there is not tested here"
)

ROWS, DIM = 200, 32


def table_of(bank: embank.Bank, name: str) -> embank.Table:
    return bank.table(name, dim=DIM, optimizer=embank.Adagrad(lr=0.1), seed=1)


def trained(bank: embank.Bank, name: str, device: str, sparse: bool, streams: bool) -> Any:
    """Returns the rows after some steps of a bag with weights on the given device."""
    torch.manual_seed(3)
    table = table_of(bank, name)
    table.put(np.arange(ROWS), table_of(bank, "common").initial(np.arange(ROWS)))
    bag = embank.torch.EmbeddingBag(table, mode="sum", padding_idx=0)
    tables = embank.torch.SparseOptimizer(bag) if sparse else None
    stream = torch.cuda.Stream() if streams else None
    for _ in range(20):
        keys, weights = torch.randint(0, ROWS, (64, 9)), torch.randn(64, 9)
        scale = torch.randn(64, DIM)
        for _ in range(2 if sparse else 1):
            with torch.cuda.stream(stream):
                out = bag(keys.to(device), per_sample_weights=weights.to(device))
                assert out.device.type == device
                (out * scale.to(device)).sum().backward()
        if tables is not None:
            torch.nn.utils.clip_grad_norm_(tables.parameters(), 1.0)
            assert all(rows.grad.device.type == device for rows in tables.parameters())
            tables.step()
    return table.peek(np.arange(ROWS))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("streams", [False, True])
def test_steps_equal_those_on_the_cpu(bank: embank.Bank, sparse: bool, streams: bool) -> None:
    wanted = trained(bank, "cpu", "cpu", sparse, False)
    got = trained(bank, "cuda", "cuda", sparse, streams)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_collections_and_evaluation(bank: embank.Bank) -> None:
    module = embank.torch.EmbeddingBagCollection({"x": table_of(bank, "a"), "y": table_of(bank, "b")})
    keys = torch.arange(8).view(4, 2)
    for training in (True, False):
        module.train(training)
        wanted = module({"x": keys, "y": keys})
        got = module({"x": keys.cuda(), "y": keys.cuda()})
        for name, bags in got.items():
            assert bags.is_cuda
            torch.testing.assert_close(bags.cpu(), wanted[name])


def test_page_locked_batches(bank: embank.Bank) -> None:
    table = table_of(bank, "pinned")
    data = torch.utils.data.DataLoader(torch.arange(64), batch_size=16, pin_memory=True)
    embedding = embank.torch.Embedding(table)
    for keys in embank.torch.LookaheadLoader(data, lambda batch: {table: batch}, depth=2):
        assert keys.is_pinned()
        embedding(keys.to("cuda", non_blocking=True)).sum().backward()
    assert table.stats()["apply_rows"] == 64


def test_a_scaler_skips_infinite_steps(bank: embank.Bank) -> None:
    embedding = embank.torch.Embedding(table_of(bank, "scaled"))
    tables = embank.torch.SparseOptimizer(embedding)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    before = embedding.table.initial([1])
    scaler.scale(embedding(torch.tensor([1], device="cuda")).sum() * float("inf")).backward()
    scaler.step(tables)
    scaler.update()
    np.testing.assert_array_equal(embedding.table.peek([1]), before)
    assert scaler.get_scale() == 2.0


def test_arrays_of_a_device_are_refused_by_name(bank: embank.Bank) -> None:
    with pytest.raises(TypeError, match=r"(?i)cuda.*cpu|cpu.*cuda"):
        table_of(bank, "plain").peek(torch.tensor([1], device="cuda"))
