"""Rows under a lease as an autograd leaf.

A `torch.nn.Module` would keep its weight in a parameter, and an optimizer would read `.grad` later.
Here the weight of a batch lives as long as the batch's graph does, so the update rides on the graph
itself: the leased rows are a leaf tensor, and a hook on that leaf runs once autograd has
accumulated its whole gradient, however many times the leaf was used.

Who owns what: the graph's accumulation node owns the leaf, the leaf owns the hook, the hook owns the
lease, and the lease knows none of them. So freeing the graph frees the lease, which gives its counts
back, at once and without the cyclic collector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from embank import DistinctLease, Table


class _ApplyOnce:
    """Applies the leaf's gradient through the lease; the second time is an error."""

    def __init__(self, lease: DistinctLease) -> None:
        self._lease = lease

    def __call__(self, leaf: torch.Tensor) -> None:
        gradient = leaf.grad
        # The leaf is used once: its gradient needs no second copy, nor a sum with a later one.
        leaf.grad = None
        if gradient is None:
            return
        if not self._lease.held:
            raise RuntimeError(
                "the gradient of these rows was already applied, or their lease was released: "
                "run forward again instead of a second backward through a retained graph"
            )
        self._lease.apply(gradient.detach().numpy())


def leased_rows(table: Table, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Leases the rows of `keys` (any shape) for one backward pass.

    Returns the rows of the distinct keys, float32 `(u, dim)` on the device of `keys`, and for each
    key its place among them, int64 in the shape of `keys`.
    """
    lease = table.get_distinct(as_keys(keys))
    leaf = torch.from_numpy(lease.rows).requires_grad_()
    on_gradient: Callable[[_ApplyOnce], object] = leaf.register_post_accumulate_grad_hook
    on_gradient(_ApplyOnce(lease))
    inverse = torch.from_numpy(lease.inverse).view(keys.shape)
    return leaf.to(keys.device), inverse.to(keys.device)


def peeked_rows(table: Table, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads the rows of `keys` (any shape) without a lease; missing ones as their initial values.

    Returns one row a key, float32 `(n, dim)` on the device of `keys`, and for each key its place,
    int64 in the shape of `keys`.
    """
    rows = torch.from_numpy(table.peek(as_keys(keys)))
    return rows.to(keys.device), torch.arange(keys.numel(), device=keys.device).view(keys.shape)


def as_keys(keys: torch.Tensor) -> NDArray[np.int64]:
    """The keys as a 1-D NumPy array, sharing memory where the tensor is int64 in host memory.

    Raises `TypeError` for a tensor that does not hold integers.
    """
    if keys.dtype not in _INTEGERS:
        raise TypeError(f"keys must be an integer tensor, not {keys.dtype}: use keys.long()")
    array: NDArray[np.int64] = keys.detach().reshape(-1).to("cpu", torch.int64).numpy()
    return array


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
