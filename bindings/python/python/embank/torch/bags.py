"""The bags of a call, in one form for the store and for torch.

A call gives bags as 2-D keys, or as 1-D keys with offsets, with or without the end of the last bag.
`Bags.of` checks all arguments before a row is looked up, because torch's kernels read foreign
memory for some wrong arguments. It then removes each key that no bag holds: padding, and the keys
behind the end of the last bag. So each remaining key is in exactly one bag. Only a key in a bag is
looked up, counted in a mean, and trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Literal, NamedTuple, Optional

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from embank._embank import sum_rows

from .keys import as_integers, padding_key

Mode = Literal["sum", "mean", "max"]
MODES = ("sum", "mean", "max")


class BagRequest(NamedTuple):
    """The arguments of `Table.get_bags`. The offsets include the end of the last bag."""

    keys: NDArray[np.int64]
    offsets: NDArray[np.int64]
    pooling: Literal["sum", "mean"]
    weights: Optional[NDArray[np.float32]]


class BagOptions(NamedTuple):
    """The options of a module that determine the bags of a call."""

    mode: Mode
    include_last_offset: bool
    padding_idx: Optional[int]
    dtype: torch.dtype
    """The dtype of the module's output and of weights of single keys."""


class Bags:
    """The keys of one feature, and how the rows of a bag are reduced to one."""

    def __init__(
        self, keys: Tensor, bounds: Tensor, weights: Optional[Tensor], mode: Mode, is_row: bool
    ) -> None:
        self.keys = keys
        """int64 `(n,)`; each key is in one bag."""
        self._bounds = bounds
        self._weights = weights
        self._mode = mode
        # Whether each bag is known to have one key, without a weight.
        self._is_row = is_row

    @classmethod
    def of(
        cls,
        input: Tensor,
        offsets: Optional[Tensor],
        weights: Optional[Tensor],
        options: BagOptions,
    ) -> Bags:
        """Checks the arguments of a call and converts them to one form.

        Raises:
            TypeError: Keys or offsets are not integers, or weights have another dtype than the
                module.
            ValueError: The shapes or devices do not fit each other, or offsets fall or end behind
                the keys.
        """
        input = as_integers("keys", input)
        bounds, end = _bounds(input, offsets, options.include_last_offset)
        if weights is not None:
            _check_weights(weights, input, options)
            weights = weights.reshape(-1)[:end]
        keys = input.reshape(-1)[:end]
        padding = padding_key(options.padding_idx)
        if padding is not None:
            kept = keys != padding
            skipped_before = F.pad((~kept).cumsum(0), (1, 0))
            keys, bounds = keys[kept], bounds - skipped_before[bounds]
            weights = None if weights is None else weights[kept]
        is_row = input.dim() == 2 and input.shape[1] == 1 and padding is None and weights is None
        return cls(keys, bounds, weights, options.mode, is_row)

    @property
    def count(self) -> int:
        """The number of bags."""
        return self._bounds.numel() - 1

    def request(self) -> Optional[BagRequest]:
        """Returns the arguments for the store. None if the store can't pool these bags.

        Must be called only for keys in host memory of a module whose dtype is float32.
        """
        if self._weights is not None and self._weights.requires_grad:
            return None
        pooling: Literal["sum", "mean"] = "sum"
        # Without keys, every pooling gives zeros.
        if self.keys.numel() > 0:
            if self._mode == "max":
                return None
            pooling = self._mode
        weights = None if self._weights is None else self._weights.detach().numpy()
        return BagRequest(self.keys.numpy(), self._bounds.numpy(), pooling, weights)

    def reduced(self, rows: Tensor, places: Tensor) -> Tensor:
        """Returns one row for each bag, from the places of its keys in `rows`."""
        if self._is_row and _sums_rows(rows):
            apply: Callable[..., Tensor] = _RowsOfKeys.apply
            return apply(rows, places)
        # torch does not get the end of the last bag, because its kernels differ in what they do
        # with it. All keys lie before it.
        return F.embedding_bag(
            places, rows, self._bounds[:-1], mode=self._mode, per_sample_weights=self._weights
        )


class _RowsOfKeys(torch.autograd.Function):
    """The rows of keys: what each mode gives for bags of one key.

    The backward pass of `embedding_bag` sorts the keys, which takes several times as long as the
    sums. This one adds the gradients of equal keys in their order.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        parts = [(gradient.resolve_neg().contiguous().numpy(), places.numpy())]
        return torch.from_numpy(sum_rows(ctx.count, gradient.shape[1], parts, 1)), None


def _sums_rows(rows: Tensor) -> bool:
    """Whether `_RowsOfKeys` takes these rows."""
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and not is_compiling()


# Only newer versions of torch have `is_compiling`.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)


def joined_request(requests: Sequence[BagRequest]) -> Optional[BagRequest]:
    """Joins the bags of several features of one table to one batch. None if features with keys
    differ in pooling, or if only some of them have weights.
    """
    if len(requests) == 1:
        return requests[0]
    with_keys = [of for of in requests if len(of.keys) > 0] or requests[:1]
    if len({(of.pooling, of.weights is None) for of in with_keys}) > 1:
        return None
    all_offsets = [requests[0].offsets]
    end = len(requests[0].keys)
    for more in requests[1:]:
        all_offsets.append(more.offsets[1:] + end)
        end += len(more.keys)
    all_weights = [of.weights for of in with_keys if of.weights is not None]
    return BagRequest(
        np.concatenate([of.keys for of in requests]),
        np.concatenate(all_offsets),
        with_keys[0].pooling,
        np.concatenate(all_weights) if all_weights else None,
    )


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f'mode must be "sum", "mean" or "max", not {mode!r}')


def _bounds(
    keys: Tensor, offsets: Optional[Tensor], include_last_offset: bool
) -> tuple[Tensor, int]:
    """Returns where each bag begins in the flat keys, followed by the end of the last bag: int64
    `(bags + 1,)`. Returns this end also as a number.
    """
    if keys.dim() == 2:
        if offsets is not None:
            raise ValueError("a 2-D input has one bag a row: leave offsets out")
        bags, length = keys.shape
        return torch.arange(bags + 1, device=keys.device) * length, keys.numel()
    if keys.dim() != 1:
        raise ValueError(f"input must be 1-D or 2-D, not {keys.dim()}-D")
    if offsets is None:
        raise ValueError("a 1-D input needs offsets: where each bag begins")
    offsets = as_integers("offsets", offsets)
    if offsets.dim() != 1:
        raise ValueError(f"offsets must be 1-D, not {offsets.dim()}-D")
    _check_device("offsets", offsets, keys)
    if len(offsets) == 0:
        if include_last_offset:
            raise ValueError("offsets with include_last_offset must have one entry at least")
        return offsets.new_zeros(1), 0
    if offsets[0] != 0 or offsets[-1] > len(keys) or (offsets.diff() < 0).any():
        raise ValueError(
            f"offsets must begin with 0, never fall, and end within the input, which has {len(keys)} keys; "
            f"found {int(offsets[0])} to {int(offsets[-1])}"
        )
    if not include_last_offset:
        offsets = torch.cat([offsets, offsets.new_tensor([len(keys)])])
    elif offsets[-1] < len(keys):
        return offsets, int(offsets[-1])
    return offsets, len(keys)


def _check_weights(weights: Tensor, input: Tensor, options: BagOptions) -> None:
    if options.mode != "sum":
        raise ValueError(f'per_sample_weights go with mode "sum", not {options.mode!r}')
    if not isinstance(weights, Tensor) or weights.dtype != options.dtype:
        found = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(
            f"per_sample_weights must be a tensor of {options.dtype}, the dtype of this module's output, not {found}"
        )
    if weights.shape != input.shape:
        raise ValueError(
            f"per_sample_weights has shape {tuple(weights.shape)}, "
            f"input has {tuple(input.shape)}: they must be the same"
        )
    _check_device("per_sample_weights", weights, input)


def _check_device(what: str, values: Tensor, input: Tensor) -> None:
    if values.device != input.device:
        raise ValueError(
            f"{what} are on {values.device}, and input is on {input.device}: move them to one device"
        )
