"""Tests the click models: the sizes of their parts, and DCN-v1's cross layers against its formula.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from data import Bag, Batch
from model import INTERACTIONS, ClickModel, ModelName, ModelShape, VectorCrossLayers

ROWS, DENSE, COLUMNS, DIM = 5, 3, 2, 4
WIDTHS = {"dlrm": DIM + 3, "dcn": 3 * DIM, "dcnv1": 3 * DIM, "ffnn": DENSE + 2 * DIM}
"""Inputs of the top MLP. DLRM has three pairs of its three vectors."""


def model_and_batch(name: ModelName) -> tuple[ClickModel, Batch]:
    shape = ModelShape(DENSE, COLUMNS, DIM, (6,), (7,), name)
    bags = [nn.EmbeddingBag(10, DIM, mode="sum") for _ in range(COLUMNS)]
    rng = torch.Generator().manual_seed(4)
    batch = Batch(
        torch.rand(ROWS, DENSE, generator=rng),
        [Bag(torch.randint(0, 10, (ROWS, 1), generator=rng), None) for _ in range(COLUMNS)],
        torch.zeros(ROWS),
    )
    return ClickModel(shape, bags, seed=1), batch


@pytest.mark.parametrize("name", tuple(INTERACTIONS))
def test_every_part_of_a_model_has_a_gradient_and_its_size(name: ModelName) -> None:
    model, batch = model_and_batch(name)
    logits = model(batch)
    assert logits.shape == (ROWS,)
    assert next(model.top.parameters()).shape == (7, WIDTHS[name])
    logits.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert all(bag.weight.grad.abs().sum() > 0 for bag in model.bags)


@pytest.mark.parametrize("name", tuple(INTERACTIONS))
def test_a_dense_state_brings_the_scores_back(name: ModelName) -> None:
    model, batch = model_and_batch(name)
    state = {part: {key: value.clone() for key, value in weights.items()}
             for part, weights in model.dense_state().items()}
    before = model(batch)
    with torch.no_grad():
        for weight in model.dense_parameters():
            weight.add_(1.0)
    assert not torch.equal(model(batch), before)
    model.load_dense_state(state)
    assert torch.equal(model(batch), before)


def test_cross_layers_of_dcn_v1_follow_their_formula() -> None:
    layers = VectorCrossLayers(ModelShape(DENSE, COLUMNS, DIM, cross_layers=3))
    rng = np.random.default_rng(2)
    x0 = rng.normal(size=(ROWS, 12))
    weights, biases = rng.normal(size=(3, 12)), rng.normal(size=(3, 12))
    expected = x0
    for w, b in zip(weights, biases):
        expected = x0 * (expected @ w)[:, None] + b + expected
    layers.double()
    with torch.no_grad():
        layers.biases.copy_(torch.from_numpy(biases))
        for layer, w in zip(layers.weights, weights):
            layer.weight.copy_(torch.from_numpy(w))
    vectors = list(torch.from_numpy(x0).split(DIM, dim=1))
    np.testing.assert_allclose(layers(vectors).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_ffnn_takes_the_dense_features_as_they_are() -> None:
    model, batch = model_and_batch("ffnn")
    vectors = [bag(b.keys, b.offsets) for bag, b in zip(model.bags, batch.bags)]
    joined = torch.cat([batch.dense, *vectors], dim=1)
    assert torch.equal(model(batch), model.top(joined).squeeze(1))
