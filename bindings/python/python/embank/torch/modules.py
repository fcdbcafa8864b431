"""`Embedding` and `EmbeddingBag` over a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from . import in_hand
from .bags import BagOptions, Bags, Mode, check_mode, is_compiling
from .fills import filling
from .keys import as_integers, as_keys, padding_key
from .leaf import (
    Norm, Rows, got, leased_bags, leased_output, leased_rows, peeked_rows,
    refuse_recording,
)  # fmt: skip
from .many import is_sharded
from .reference import check_reference, differences, reference
from .sinks import sink_of
from .stand_in import StandInModule

if TYPE_CHECKING:
    from .many import AnyTable as Table


class TableModule(StandInModule):
    """A module whose weights are tables: the base of `Embedding`, `EmbeddingBag` and the
    collections.

    Its part of `state_dict()` holds no rows. A few bytes name the checkpoint of the bank that holds
    them. `state_dict()` warns if there is no such checkpoint. `load_state_dict` raises `ValueError`
    unless the bank is at that checkpoint. Tables and features that differ by name are missing and
    unexpected keys: they raise `RuntimeError`, or with `strict=False` are part of the result.

    The output is float32, or of the dtype that `half()`, `bfloat16()`, `double()` or `to(dtype)`
    sets. Rows stay in the table's dtype.

    `requires_grad_(False)` of the module, or of a model around it, freezes the rows as `freeze()`
    does.
    """

    @property
    def trains(self) -> bool:
        """Whether a forward pass leases rows. Otherwise it peeks."""
        return self.training and torch.is_grad_enabled() and not self.frozen

    def _looked_up(
        self, requests: Sequence[tuple[Table, Tensor]], norm: Optional[Norm] = None
    ) -> list[Rows]:
        """Returns the rows of each request in the module's dtype. Gradients come back as float32.
        """
        if self.trains:
            found = leased_rows(requests, norm)
        else:
            graph = torch.is_grad_enabled() and not self.frozen
            found = peeked_rows(requests, norm, requires_grad=graph)
        return [Rows(self._linked(rows), places) for rows, places in found]

    def _is_direct(self, table: Table, keys: Tensor) -> bool:
        """Whether the output can be the rows of a lease, without a tensor of distinct rows.

        It can't in these cases. A `SparseOptimizer`, a sharded table and a table with admission
        need the distinct rows. Rows in another dtype or on another device are computed from the
        distinct rows. `torch.compile` can't look into the node of the graph.
        """
        return (
            keys.device.type == "cpu"
            and self._stand_in.dtype == torch.float32
            and not is_sharded(table)
            and table.admits_all
            and sink_of(table) is None
            and not is_compiling()
        )

    def table_of_feature(self) -> Optional[dict[str, str]]:
        """The name of each feature's table; None if the module has no features."""
        return None

    def get_extra_state(self) -> Tensor:
        return reference(self.tables(), self.table_of_feature())

    def set_extra_state(self, state: Any) -> None:
        check_reference(self.tables(), state)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        state = state_dict.get(f"{prefix}_extra_state")
        found = differences(self.tables(), self.table_of_feature(), state)
        missing_keys.extend(prefix + key for key in found.missing)
        unexpected_keys.extend(prefix + key for key in found.unexpected)


class _OneTable(TableModule):
    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **options: Any) -> Self:
            """Raises `TypeError` for numbers, the first arguments of the modules of `torch.nn`."""
            if args and not hasattr(args[0], "peek"):
                raise TypeError(
                    f"{cls.__name__} takes a table in place of num_embeddings and embedding_dim, not {args[0]!r}: "
                    f"{cls.__name__}(bank.table(name, dim=16))"
                )
            return super().__new__(cls)

    def __init__(self, table: Table, max_norm: Optional[float], norm_type: float) -> None:
        super().__init__()
        self.table = table
        if max_norm is not None and not max_norm >= 0:
            raise ValueError(f"max_norm must be 0 or more, not {max_norm}")
        self.max_norm = max_norm
        self.norm_type = norm_type

    def tables(self) -> list[Table]:
        return [self.table]

    def _rows(self, keys: Tensor) -> Rows:
        norm = None if self.max_norm is None else Norm(self.max_norm, self.norm_type)
        return self._looked_up([(self.table, keys)], norm)[0]

    @property
    def embedding_dim(self) -> int:
        """The number of columns of a row, as in torch's modules."""
        return self.table.dim

    def __getattr__(self, name: str) -> Any:
        """Raises `AttributeError` for attributes of torch's modules that a table lacks. The message
        says what to use instead.
        """
        instead = _INSTEAD.get(name)
        # If the constructor has failed, `table` itself is missing.
        if instead is None or "table" not in self.__dict__:
            return super().__getattr__(name)
        kind, table = type(self).__name__, self.table.name
        raise AttributeError(f"{kind} over table {table!r} has no {name}: {instead}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse(name)
        super().__setattr__(name, value)

    def register_parameter(self, name: str, param: Optional[nn.Parameter]) -> None:
        """As in torch. `AttributeError` for `weight`: the module would ignore it."""
        self._refuse(name)
        super().register_parameter(name, param)

    def _refuse(self, name: str) -> None:
        """Raises `AttributeError` for an attribute of torch's modules that a table lacks."""
        if name in _INSTEAD:
            getattr(self, name)

    def _fill(
        self, embeddings: Tensor, padding_idx: Optional[int], freeze: bool, fill: bool
    ) -> Self:
        check_rows(self.table, embeddings)
        if fill:
            put_rows(self.table, embeddings, padding_idx)
        return self.freeze(freeze)


class Embedding(_OneTable):
    """`torch.nn.Embedding` with a table as its weight.

    Args:
        table: The table of the rows. Its optimizer applies the gradients.
        padding_idx: A key that stands for no row: it reads as zeros, gets no gradient, and is never
            looked up. Any key is allowed, also -1.
        max_norm: The largest norm of a row. A longer row is shortened before its use, and in
            training also in the table. Shortening overwrites changes that other threads have made
            since the get.
        norm_type: The p of the p-norm of `max_norm`.
        scale_grad_by_freq: Whether a row's gradient is divided by the number of its key's places in
            the batch.

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("embedding.bank", memory_budget="16MiB")
    >>> words = bank.table("word", dim=8, optimizer=embank.Adagrad(lr=0.1))
    >>> embedding = embank.torch.Embedding(words)
    >>> embedding(torch.tensor([[1, 2, 3], [3, 3, 1]])).shape
    torch.Size([2, 3, 8])
    >>> bank.close()
    """

    def __init__(
        self,
        table: Table,
        *,
        padding_idx: Optional[int] = None,
        max_norm: Optional[float] = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
    ) -> None:
        super().__init__(table, max_norm, norm_type)
        padding_key(padding_idx)  # called for its error alone
        self.padding_idx = padding_idx
        self.scale_grad_by_freq = scale_grad_by_freq

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        table: Table,
        *,
        freeze: bool = True,
        fill: bool = True,
        padding_idx: Optional[int] = None,
        max_norm: Optional[float] = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
    ) -> Self:
        """Puts row i of `embeddings` under key i of `table`, and makes a module over the table.

        Args:
            embeddings: float32 `(n, dim)`. An existing row keeps its optimizer state.
            table: The table that gets the rows.
            freeze: Whether forward passes always peek, so that the rows never learn. Default: True,
                as in torch.
            fill: Whether to put the rows. In a resumed run the table has them already, as training
                left them. So pass `fill=bank.recovered is None`.
            padding_idx: As in the constructor. The row of this key is not put.
            max_norm: As in the constructor.
            norm_type: As in the constructor.
            scale_grad_by_freq: As in the constructor.

        >>> import embank, embank.torch, torch
        >>> bank = embank.Bank("pretrained.bank", memory_budget="16MiB")
        >>> matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> words = embank.torch.Embedding.from_pretrained(matrix, bank.table("word", dim=2))
        >>> words(torch.tensor([1, 0])).tolist()
        [[3.0, 4.0], [1.0, 2.0]]
        >>> bank.close()
        """
        module = cls(
            table,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
        )
        return module._fill(embeddings, padding_idx, freeze, fill)

    def forward(self, input: Tensor) -> Tensor:
        """The rows of `input` (integers of any shape): float32 `(*input.shape, dim)`."""
        refuse_recording(self.tables(), [input])
        input = as_integers("keys", input)
        if (
            self._is_plain
            and self.trains
            and self._is_direct(self.table, input)
            and not in_hand.has(self.table)
        ):
            lease = got(self.table.get, as_keys(input))
            output = leased_output(self._stand_in, self.table, lease)
            return output.view(*input.shape, self.table.dim)
        padding = padding_key(self.padding_idx)
        if padding is None:
            rows, places = self._rows(input)
            padding_place = None
        else:
            rows, places, padding_place = self._padded(input, padding)
        return F.embedding(
            places, rows, padding_idx=padding_place, scale_grad_by_freq=self.scale_grad_by_freq
        )

    @property
    def _is_plain(self) -> bool:
        return self.padding_idx is None and self.max_norm is None and not self.scale_grad_by_freq

    def _padded(self, input: Tensor, padding: int) -> tuple[Tensor, Tensor, int]:
        """Adds a row of zeros behind the rows. All places of padding refer to it."""
        kept = input != padding
        rows, kept_places = self._rows(input[kept])
        places = torch.full(input.shape, len(rows), dtype=torch.int64, device=input.device)
        places[kept] = kept_places
        return torch.cat([rows, rows.new_zeros(1, self.table.dim)]), places, len(rows)

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}" + _shown(
            padding_idx=self.padding_idx, max_norm=self.max_norm
        )


class EmbeddingBag(_OneTable):
    """`torch.nn.EmbeddingBag` with a table as its weight.

    Args:
        table: The table of the rows. Its optimizer applies the gradients.
        mode: How the rows of a bag are reduced to one: "mean", "sum" or "max". Default: "mean", as
            in torch.
        include_last_offset: Whether `offsets` has one more entry, the end of the last bag.
        padding_idx: A key that stands for no row: it adds nothing to its bag, does not count in its
            mean, and is never looked up. Any key is allowed, also -1.
        max_norm: As for `Embedding`.
        norm_type: As for `Embedding`.
        scale_grad_by_freq: As for `Embedding`. Not allowed with mode "max".

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
        max_norm: Optional[float] = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
    ) -> None:
        super().__init__(table, max_norm, norm_type)
        check_mode(mode)
        padding_key(padding_idx)  # called for its error alone
        if mode == "max" and scale_grad_by_freq:
            raise ValueError('scale_grad_by_freq goes with mode "sum" or "mean", not "max"')
        self.mode: Mode = mode
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx
        self.scale_grad_by_freq = scale_grad_by_freq

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        table: Table,
        mode: Mode = "mean",
        *,
        freeze: bool = True,
        fill: bool = True,
        include_last_offset: bool = False,
        padding_idx: Optional[int] = None,
        max_norm: Optional[float] = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
    ) -> Self:
        """Works as `Embedding.from_pretrained`."""
        module = cls(
            table,
            mode,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
        )
        return module._fill(embeddings, padding_idx, freeze, fill)

    def forward(
        self,
        input: Tensor,
        offsets: Optional[Tensor] = None,
        per_sample_weights: Optional[Tensor] = None,
    ) -> Tensor:
        """Looks up the bags and reduces each to a row: float32 `(bags, dim)`.

        Args:
            input: Integers: 1-D with `offsets`, or 2-D `(bags, keys per bag)` without `offsets`.
            offsets: Integers, 1-D: the place in a 1-D `input` at which each bag begins. An empty
                bag gives zeros. Keys behind the last offset of `include_last_offset` are in no bag,
                so they are not looked up.
            per_sample_weights: In the shape of `input` and the dtype of the output; only for mode
                "sum". Gradients flow to the weights.

        Raises:
            ValueError: The shapes or devices do not fit each other, or offsets do not begin with 0,
                fall, or end behind the last key.
            TypeError: `input` or `offsets` does not hold integers, or `per_sample_weights` has
                another dtype than the output.
            embank.StalenessTimeout: A row stayed at the table's staleness bound.
        """
        refuse_recording(self.tables(), [input])
        options = BagOptions(
            self.mode, self.include_last_offset, self.padding_idx, self._stand_in.dtype
        )
        bags = Bags.of(input, offsets, per_sample_weights, options)
        if self.max_norm is None and not self.scale_grad_by_freq:
            pooled = self._pooled(bags)
            if pooled is not None:
                return pooled
        rows, places = self._rows(bags.keys)
        if self.scale_grad_by_freq and rows.requires_grad:
            # torch's `scale_grad_by_freq` is not used: on the CPU, the bags of torch 2.11 divide a
            # gradient by the count of another key.
            counts = torch.bincount(places, minlength=len(rows)).clamp(min=1).unsqueeze(1)
            on_gradient: Callable[[Callable[[Tensor], Tensor]], object] = rows.register_hook
            on_gradient(lambda gradient: gradient / counts)
        return bags.reduced(rows, places)

    def _pooled(self, bags: Bags) -> Optional[Tensor]:
        """Returns the bags that the table pools. None if it can't pool them."""
        if not self._is_direct(self.table, bags.keys):
            return None
        request = bags.request()
        if request is None:
            return None
        if self.trains:
            lease = leased_bags(self.table, request)
            return None if lease is None else leased_output(self._stand_in, self.table, lease)
        if torch.is_grad_enabled() and not self.frozen:
            # torch pools instead, so that the graph begins at the rows.
            return None
        keys, offsets, pooling, weights = request
        peek = self.table.peek_bags
        return torch.from_numpy(peek(keys, offsets, pooling=pooling, weights=weights))

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}, mode={self.mode!r}" + _shown(
            padding_idx=self.padding_idx, max_norm=self.max_norm
        )


def check_rows(table: Table, embeddings: Tensor) -> None:
    if embeddings.dim() != 2 or embeddings.shape[1] != table.dim:
        raise ValueError(
            f"embeddings must have shape (n, {table.dim}), the rows of table {table.name!r}; "
            f"found {tuple(embeddings.shape)}"
        )


def put_rows(table: Table, embeddings: Tensor, padding_idx: Optional[int]) -> None:
    """Puts row i of `embeddings` under key i, in several calls. Leaves out the row of the padding.
    """
    padding = padding_key(padding_idx)
    with filling(table):
        for begin in range(0, len(embeddings), _PUT_ROWS):
            rows = embeddings[begin : begin + _PUT_ROWS].detach().cpu()
            keys = torch.arange(begin, begin + len(rows), device="cpu")
            if padding is not None:
                kept = keys != padding
                keys, rows = keys[kept], rows[kept]
            table.put(keys.numpy(), rows.numpy())


_PUT_ROWS = 1 << 16

# Attributes of torch's modules that a table can't have, and what to use instead.
_INSTEAD = {
    "weight": "its rows are in the table; read them with table.peek(keys) or table.scan(), and write them with "
    "table.put(keys, rows) or from_pretrained(matrix, table)",
    "num_embeddings": "a table takes any int64 key and grows with them; if a vocabulary of the bank numbers the keys, "
    "bank.open_vocabulary(name).next_id is one more than its largest id",
    "sparse": "the table takes the gradient of the rows of a batch alone",
    "reset_parameters": "a row begins with what the table's initializer gives its key; drop the table and make it "
    "anew to begin again",
}


def _shown(**options: object) -> str:
    return "".join(f", {name}={value}" for name, value in options.items() if value is not None)

