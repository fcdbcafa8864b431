"""The rows that an index of PyTorch Geometric stands for.

An index is None (all rows), a tensor or list of integers or bools, a slice, or one integer. For a
reader, an index works as it does for a tensor with as many rows as the attribute. A writer's index
may have rows after the attribute's last one, which make the attribute longer. So the bounds of a
writer's slice are not cut to the attribute's size.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Keys = Union[NDArray[np.int64], NDArray[np.uint64]]

# All keys of a table are less than this number.
KEYS_END = 1 << 64
# All rows of a slice are less than this number, because rows are counted in int64.
_SLICES_END = 1 << 63


class Written(NamedTuple):
    """The rows that a put writes, and the size of the attribute after it."""

    keys: Keys
    size: int


def is_number(index: Any) -> bool:
    """True if the index is one integer. The result then has no dimension for the index."""
    if isinstance(index, (int, np.integer)):
        return True
    return isinstance(index, (Tensor, np.ndarray)) and index.ndim == 0


def read_rows(index: Any, size: int, attribute: str) -> Keys:
    """Returns the rows of a reader's index, `(n,)`, in the order of the index.

    Args:
        index: Any index. A slice is cut to the size, and its negative bounds count from the end.
        size: The number of rows of the attribute.
        attribute: The name of the attribute in errors.

    Raises:
        IndexError: The attribute lacks a row that the index names, or a mask has another length.
        TypeError: The index is not of integers or bools.
    """
    if index is None:
        return np.arange(size)
    if isinstance(index, slice):
        return np.arange(*index.indices(size))
    array = _as_array(index, attribute)
    if array.dtype == np.bool_:
        return _rows_of_mask(array, size, attribute)
    keys: Keys = array
    outside = (keys < 0) | (keys >= size)
    if outside.any():
        raise IndexError(_no_row(attribute, size, keys[outside][0]))
    return keys


def written_rows(index: Any, size: int, new: bool, count: int, attribute: str) -> Written:
    """Returns the rows that a put of `count` rows writes.

    Args:
        index: Any index. None stands for rows 0 to `count` - 1, and deletes the attribute's other
            rows. A slice without an end reaches to the last row, or further if the tensor has more
            rows.
        size: The number of rows of the attribute before the put; 0 for a new attribute.
        new: Whether the put makes the attribute. If so, the length of a mask is its size.
        count: The number of rows of the tensor.
        attribute: The name of the attribute in errors.

    Raises:
        IndexError: A number is negative or above 2^64 - 1, a slice counts from the end of a new
            attribute or reaches beyond 2^63, or a mask has another length than the attribute.
        TypeError: The index is not of integers or bools.
        ValueError: The index names another number of rows than the tensor has.
    """
    if index is None:
        return Written(np.arange(count), count)
    if isinstance(index, slice):
        keys: Keys = _rows_of_slice(index, size, new, count, attribute)
    else:
        array = _as_array(index, attribute)
        if array.dtype == np.bool_ and new and array.ndim == 1:
            size = len(array)
        keys = _rows_of_mask(array, size, attribute) if array.dtype == np.bool_ else array
        outside = (keys < 0) | (keys >= KEYS_END)
        if outside.any():
            message = _no_row(attribute, size, keys[outside][0])
            raise IndexError(f"{message}: a put takes numbers from 0 to 2^64 - 1")
        _check_count(len(keys), count, attribute)
    return Written(keys, max(size, int(keys.max()) + 1) if len(keys) else size)


def _as_array(index: Any, attribute: str) -> Any:
    """Returns the index as an array of int64 or uint64 `(n,)`, or of bools of any shape."""
    if isinstance(index, Tensor) and not (index.is_floating_point() or index.is_complex()):
        index = index.detach().cpu().numpy()
    array = index if isinstance(index, Tensor) else np.asarray(index)
    if isinstance(index, (list, tuple)) and len(index) == 0:
        return np.empty(0, np.int64)
    if isinstance(array, Tensor) or not (array.dtype.kind in "iub" or isinstance(index, int)):
        raise TypeError(f"the index of {attribute} must be of integers or bools, not {array.dtype}")
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "i" or array.dtype.itemsize < 8:
        array = array.astype(np.int64, copy=False)
    return array.reshape(-1)


def _rows_of_mask(mask: NDArray[np.bool_], size: int, attribute: str) -> NDArray[np.int64]:
    if mask.shape != (size,):
        raise IndexError(
            f"a mask must have shape ({size},), one bool for each row of {attribute}, not {tuple(mask.shape)}"
        )
    return np.flatnonzero(mask)


def _rows_of_slice(
    index: slice, size: int, new: bool, count: int, attribute: str
) -> NDArray[np.int64]:
    for bound in (index.start, index.stop):
        if new and bound is not None and bound < 0:
            raise IndexError(
                f"{attribute} is not there yet, so there is no end from which {bound} in {index} counts: name its "
                "rows by numbers from 0 on"
            )
    size_after = max(size, _reach(index, size, count))
    if size_after > _SLICES_END:
        raise IndexError(
            f"{index} reaches beyond row 2^63 of {attribute}: name such rows by a uint64 tensor"
        )
    # A negative bound of the index counts from the attribute's end before the put. `slice.indices`
    # counts it from the end after the put. So the attribute's growth is subtracted from the bound
    # first.
    longer = size_after - size
    start, stop = (
        bound - longer if bound is not None and bound < 0 else bound
        for bound in (index.start, index.stop)
    )
    first, end, step = slice(start, stop, index.step).indices(size_after)
    named = max(0, (end - first + step - (1 if step > 0 else -1)) // step)
    # Called for its error: it refuses a slice of a wrong length before the slice's rows fill the
    # memory.
    _check_count(named, count, attribute)
    return first + step * np.arange(named)


def _reach(index: slice, size: int, count: int) -> int:
    """Returns the largest row of a slice to which `count` rows are put, plus one."""
    step = 1 if index.step is None else index.step
    forward = step > 0
    largest, smallest = (index.stop, index.start) if forward else (index.start, index.stop)
    if largest is not None:
        return int(largest) if forward else int(largest) + 1
    if smallest is None:
        first = 0
    else:
        first = max(smallest + size if smallest < 0 else smallest, 0 if forward else -1)
        first += 0 if forward else 1
    return int(first + (count - 1) * abs(step) + 1) if count else 0


def _check_count(named: int, count: int, attribute: str) -> None:
    if named != count:
        raise ValueError(f"the index of {attribute} names {named} rows, the tensor has {count}")


def _no_row(attribute: str, size: int, key: Any) -> str:
    return f"{attribute} has {size} rows; there is no row {key}"
