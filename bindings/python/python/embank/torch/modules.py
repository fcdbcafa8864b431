"""`Embedding` and `EmbeddingBag` over a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Optional, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .leaf import leased_rows, peeked_rows

if TYPE_CHECKING:
    from embank import Table

Mode = Literal["sum", "mean"]


class Embedding(nn.Module):
    """`torch.nn.Embedding` with a table for its weight.

    Args:
        table: Where the rows live. Its optimizer applies the gradients.

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("embedding.bank", memory_budget="16MiB")
    >>> words = bank.table("word", dim=8, optimizer=embank.Adagrad(lr=0.1))
    >>> embedding = embank.torch.Embedding(words)
    >>> embedding(torch.tensor([[1, 2, 3], [3, 3, 1]])).shape
    torch.Size([2, 3, 8])
    >>> bank.close()
    """

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table

    def forward(self, input: Tensor) -> Tensor:
        """The rows of `input` (integers of any shape): float32 `(*input.shape, dim)`."""
        rows, places = _rows(self, input)
        return F.embedding(places, rows)

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}"


class EmbeddingBag(nn.Module):
    """`torch.nn.EmbeddingBag` with a table for its weight.

    Args:
        table: Where the rows live. Its optimizer applies the gradients.
        mode: How the rows of a bag become one: "mean" (the default, as in torch) or "sum".
        include_last_offset: `offsets` has one more entry, the length of `input`.
        padding_idx: A key that stands for no row: it adds nothing to its bag, does not count in
            its mean, and is never looked up.

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("bag.bank", memory_budget="16MiB")
    >>> genres = bank.table(
    ...     "genre", dim=4, optimizer=embank.SGD(lr=0.1), initializer=embank.Constant(1.0)
    ... )
    >>> bag = embank.torch.EmbeddingBag(genres, mode="sum")
    >>> bags = bag(torch.tensor([5, 6, 5]), offsets=torch.tensor([0, 2]))
    >>> bags.sum().backward()
    >>> genres.peek([5, 6])[:, 0].tolist()
    [0.800000011920929, 0.8999999761581421]
    >>> bank.close()
    """

    def __init__(
        self,
        table: Table,
        mode: Mode = "mean",
        *,
        include_last_offset: bool = False,
        padding_idx: Optional[int] = None,
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise ValueError(f'mode must be "sum" or "mean", not {mode!r}')
        self.table = table
        self.mode: Mode = mode
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx

    def forward(
        self,
        input: Tensor,
        offsets: Optional[Tensor] = None,
        per_sample_weights: Optional[Tensor] = None,
    ) -> Tensor:
        """Looks up the bags and reduces each to a row: float32 `(bags, dim)`.

        Args:
            input: Integers: 1-D with `offsets`, or 2-D `(bags, keys per bag)` without.
            offsets: 1-D, where each bag begins in a 1-D `input`. An empty bag gives zeros.
            per_sample_weights: float32 in the shape of `input`; for mode "sum" alone.

        Raises:
            ValueError: Shapes that do not fit each other.
            TypeError: `input` does not hold integers.
            embank.StalenessTimeout: A row stayed at the table's staleness bound.
        """
        keys, starts = _flat(input, offsets, self.include_last_offset)
        weights = per_sample_weights
        if weights is not None:
            if weights.shape != input.shape:
                raise ValueError(
                    f"per_sample_weights has shape {tuple(weights.shape)}, "
                    f"input has {tuple(input.shape)}: they must be the same"
                )
            weights = weights.reshape(-1)
        if self.padding_idx is not None:
            kept = keys != self.padding_idx
            skipped_before = F.pad((~kept).cumsum(0), (1, 0))
            keys, starts = keys[kept], starts - skipped_before[starts]
            weights = None if weights is None else weights[kept]
        rows, places = _rows(self, keys)
        return F.embedding_bag(
            places,
            rows,
            starts,
            mode=self.mode,
            per_sample_weights=weights,
            include_last_offset=self.include_last_offset,
        )

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}, mode={self.mode!r}"


def _rows(module: "Union[Embedding, EmbeddingBag]", keys: Tensor) -> tuple[Tensor, Tensor]:
    if module.training and torch.is_grad_enabled():
        return leased_rows(module.table, keys)
    return peeked_rows(module.table, keys)


def _flat(
    input: Tensor, offsets: Optional[Tensor], include_last_offset: bool
) -> tuple[Tensor, Tensor]:
    """A 1-D `input` and the bags' beginnings in it, whatever the form of the call."""
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError("a 2-D input has one bag a row: leave offsets out")
        bags, length = input.shape
        count = bags + 1 if include_last_offset else bags
        starts = torch.arange(count, device=input.device) * length
        return input.reshape(-1), starts
    if input.dim() != 1:
        raise ValueError(f"input must be 1-D or 2-D, not {input.dim()}-D")
    if offsets is None:
        raise ValueError("a 1-D input needs offsets: where each bag begins")
    if offsets.dim() != 1:
        raise ValueError(f"offsets must be 1-D, not {offsets.dim()}-D")
    return input, offsets.to(torch.int64)
