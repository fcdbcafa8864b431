"""Integer tensors that callers pass: keys, offsets, and the key of padding.

Every comparison of keys is made in int64, in which each key of a table has one value. In the dtype
of the caller's tensor, a number that does not fit would be cut to another key.
"""

from __future__ import annotations

import operator
from typing import Optional

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# PyTorch has these types from 2.3 on. Vocabularies return ids as uint64.
_UNSIGNED = tuple(
    getattr(torch, name) for name in ("uint64", "uint32", "uint16") if hasattr(torch, name)
)
_INTEGERS = _SIGNED + _UNSIGNED


def as_integers(what: str, values: Tensor) -> Tensor:
    """Returns `values` as int64 in their shape and on their device. Errors call them `what`.

    A uint64 number keeps its 64 bits, so a number from 2^63 on becomes negative, as a key does.

    Raises:
        TypeError: `values` is not a tensor, not of integers, or sparse or nested.
        ValueError: `values` is on the device "meta", so it has no numbers.
    """
    if not isinstance(values, Tensor):
        raise TypeError(
            f"{what} must be an integer tensor, not {type(values).__name__}: use torch.as_tensor({what})"
        )
    if values.dtype not in _INTEGERS:
        raise TypeError(f"{what} must be an integer tensor, not {values.dtype}: use {what}.long()")
    if values.is_nested or values.layout != torch.strided:
        raise TypeError(
            f"{what} must be a dense tensor, not a nested or sparse one: pass a nested tensor's values() as keys "
            "and its offsets() as offsets, with include_last_offset=True"
        )
    if values.device.type == "meta":
        raise ValueError(f'{what} are on the device "meta" and have no numbers: move them to "cpu"')
    return values.to(torch.int64)


def as_keys(keys: Tensor) -> NDArray[np.int64]:
    """Returns the keys as a 1-D NumPy array. It shares the memory of an int64 tensor in host
    memory.

    Raises the errors of `as_integers`.
    """
    array: NDArray[np.int64] = as_integers("keys", keys).reshape(-1).cpu().numpy()
    return array


def padding_key(padding_idx: Optional[int]) -> Optional[int]:
    """Returns the value of `padding_idx` in a tensor of `as_integers`. None for None.

    Raises:
        TypeError: `padding_idx` is not an integer.
        ValueError: `padding_idx` is not a key.
    """
    if padding_idx is None:
        return None
    if isinstance(padding_idx, bool):
        raise TypeError("padding_idx must be an integer, not a bool")
    key = operator.index(padding_idx)
    if not -(1 << 63) <= key < 1 << 64:
        raise ValueError(f"padding_idx must be a key, from -2^63 to 2^64 - 1, not {key}")
    return key - (1 << 64) if key >= 1 << 63 else key
