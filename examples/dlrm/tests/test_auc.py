"""AUC against its definition, ties included."""

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
