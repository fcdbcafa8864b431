"""What the callables of `decode` return, as arrays of a column's shape and dtype."""

from __future__ import annotations

import atexit
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._embank import end_feeds_with_callables

# A thread of a feed can't call Python once the interpreter is ending.
atexit.register(end_feeds_with_callables)


def array_of(made: Any, shape: list[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns `made` as a C-contiguous array of `shape` and `dtype`.

    Raises:
        ValueError: It has another shape, or values that `dtype` does not hold.
    """
    found = np.asarray(made)
    if found.shape != tuple(shape):
        raise ValueError(
            f"the decoder returned shape {found.shape}, and the column has {tuple(shape)}"
        )
    whole = found.dtype.kind in "biu"
    if not (whole and dtype.kind in "iu") and not np.can_cast(found.dtype, dtype, "same_kind"):
        raise ValueError(f"the decoder returned {found.dtype}, and the column has {dtype}")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(found, dtype=dtype)
    if found.dtype.kind == "f":
        is_lost = bool((np.isinf(array) & ~np.isinf(found)).any())
    else:
        is_lost = whole and not np.array_equal(array, found)
    if is_lost:
        raise ValueError(f"the decoder returned numbers that {dtype} does not hold")
    return array
