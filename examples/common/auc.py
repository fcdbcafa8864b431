"""Area under the ROC curve, exactly, from ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auc(labels: NDArray[np.generic], scores: NDArray[np.floating]) -> float:
    """The chance that a random click scores above a random non-click; ties count one half.

    `labels` is (n,) of 0 and 1, `scores` is (n,) in any scale. This is the Mann-Whitney
    statistic: the sum of the clicks' ranks minus the least possible sum.
    Returns NaN if one of the two classes is absent, because there is no pair to rank.

    Raises `ValueError` for a label that is not 0 or 1, and `FloatingPointError` for a score that is
    NaN: it would rank above all others.
    """
    given = np.asarray(labels)
    if not ((given == 0) | (given == 1)).all():
        raise ValueError("a label is not 0 or 1, so it says neither click nor no click")
    if np.isnan(scores).any():
        raise FloatingPointError(
            "the model gives scores of NaN: its training has diverged; lower the learning rate"
        )
    clicked = given.astype(bool)
    clicks = int(clicked.sum())
    others = clicked.size - clicks
    if clicks == 0 or others == 0:
        return float("nan")
    _, group, sizes = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
    last_rank = np.cumsum(sizes)
    mean_rank = last_rank - (sizes - 1) / 2.0
    rank_sum = float(mean_rank[group][clicked].sum())
    return (rank_sum - clicks * (clicks + 1) / 2.0) / (clicks * others)
