"""Compares the AUC with its definition, also with ties."""

import numpy as np
import pytest

from auc import auc


def by_definition(labels: np.ndarray, scores: np.ndarray) -> float:
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean())


@pytest.mark.parametrize("distinct", [2, 10, 10_000])
def test_equals_the_share_of_pairs_in_order(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    labels = rng.integers(0, 2, 500)
    scores = rng.integers(0, distinct, 500) / distinct
    assert auc(labels, scores) == pytest.approx(by_definition(labels, scores), abs=1e-12)


def test_one_class_alone_has_no_auc() -> None:
    assert np.isnan(auc(np.ones(3), np.arange(3.0)))


@pytest.mark.parametrize("wrong", [[0, 2], [3, 3], [0, 1], [1, 3]])
def test_a_score_that_is_no_number_has_no_rank(wrong: list[int]) -> None:
    # Regression test: `auc` ranked NaN above all numbers, so a model that had diverged on the
    # clicks had an AUC of 1.0.
    scores = np.array([0.1, 0.2, 0.3, 0.4])
    scores[wrong] = np.nan
    with pytest.raises(FloatingPointError, match="has diverged"):
        auc(np.array([1, 0, 1, 0]), scores)


def test_an_infinite_score_has_a_rank() -> None:
    assert auc(np.array([1, 0, 0]), np.array([np.inf, 0.0, -np.inf])) == 1.0


@pytest.mark.parametrize("wrong", [2.0, -1.0, 0.5, np.nan])
def test_a_label_is_0_or_1(wrong: float) -> None:
    with pytest.raises(ValueError, match="a label is not 0 or 1"):
        auc(np.array([1.0, 0.0, wrong]), np.array([0.3, 0.2, 0.1]))
