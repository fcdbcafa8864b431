"""Modules that look up several tables in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Optional, Union

import torch
from torch import Tensor

import embank

from . import in_hand
from .bags import BagOptions, BagRequest, Bags, Mode, check_mode, joined_request
from .keys import as_integers, padding_key
from .leaf import Rows, got, leased_outputs, refuse_recording, tensors_of
from .modules import TableModule
from .sinks import identity

if TYPE_CHECKING:
    from .many import AnyLease as Lease, AnyTable as Table

    from .in_hand import RowsInHand

Jagged = Union[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def _tensors(features: Mapping[str, Jagged]) -> Iterator[Tensor]:
    """Yields the keys of each feature.

    Raises:
        TypeError: `features` is a tensor or has no values.
    """
    if isinstance(features, Tensor) or not hasattr(features, "values"):
        raise TypeError(
            "features must be a dictionary with the keys of each feature, "
            f"not {type(features).__name__}: model({{feature: keys}})"
        )
    for given in features.values():
        yield given[0] if isinstance(given, tuple) and given else given


class _Collection(TableModule):
    """Features by name, each with its table. Several features may share a table."""

    def __init__(self, features: Mapping[str, Table]) -> None:
        super().__init__()
        if not features:
            raise ValueError("a collection needs a feature: {name: table}")
        self.features = dict(features)
        # Two Python objects of one table count as one table.
        self._identity = {name: identity(table) for name, table in self.features.items()}
        self._table = {self._identity[name]: table for name, table in self.features.items()}

    def tables(self) -> list[Table]:
        return list(self._table.values())

    def table_of_feature(self) -> dict[str, str]:
        return {name: table.name for name, table in self.features.items()}

    def _check_names(self, given: Mapping[str, object]) -> None:
        missing = [name for name in self.features if name not in given]
        unknown = [name for name in given if name not in self.features]
        if missing or unknown:
            raise ValueError(
                f"features must be {list(self.features)}; missing: {missing}, unknown: {unknown}"
            )

    def _rows(self, keys: Mapping[str, Tensor]) -> dict[str, Rows]:
        """Looks up the keys of all features: one batch for each table, one call for each bank."""
        of_table: dict[tuple[int, str], list[str]] = {}
        for name in keys:
            of_table.setdefault(self._identity[name], []).append(name)
        of_bank: dict[int, list[tuple[int, str]]] = {}
        for identity in of_table:
            of_bank.setdefault(identity[0], []).append(identity)
        found: dict[str, Rows] = {}
        for identities in of_bank.values():
            requests = [
                (self._table[at], torch.cat([keys[name].reshape(-1) for name in of_table[at]]))
                for at in identities
            ]
            for at, answer in zip(identities, self._looked_up(requests)):
                names = of_table[at]
                places = torch.split(answer.places, [keys[name].numel() for name in names])
                for name, some in zip(names, places):
                    found[name] = Rows(answer.rows, some.view(keys[name].shape))
        return found

    def extra_repr(self) -> str:
        return ", ".join(
            f"{name!r}: {table.name!r} dim={table.dim}" for name, table in self.features.items()
        )


class EmbeddingCollection(_Collection):
    """Rows for several features, out of several tables, in one call.

    A forward pass makes one batch for each table, also if several features share it, and one call
    for all tables of a bank. In the backward pass each table takes one step.

    Args:
        features: The table of each feature. Features may share a table.

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("collection.bank", memory_budget="16MiB")
    >>> users, items = bank.table("user", dim=4), bank.table("item", dim=8)
    >>> model = embank.torch.EmbeddingCollection({"user": users, "seen": items, "next": items})
    >>> batch = {"user": torch.tensor([7, 9]), "seen": torch.zeros(2, 5, dtype=torch.int64),
    ...          "next": torch.tensor([1, 2])}
    >>> {name: tuple(rows.shape) for name, rows in model(batch).items()}
    {'user': (2, 4), 'seen': (2, 5, 8), 'next': (2, 8)}
    >>> bank.close()
    """

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the rows of each feature's keys: float32 `(*keys.shape, dim)`.

        Raises:
            ValueError: A feature is missing or unknown.
            TypeError: Keys are not integers.
        """
        refuse_recording(self.tables(), _tensors(features))
        self._check_names(features)
        # torch joins no int64 keys with uint64 keys.
        keys = {name: as_integers("keys", features[name]) for name in self.features}
        found = self._rows(keys)
        return {
            name: torch.nn.functional.embedding(places, rows)
            for name, (rows, places) in found.items()
        }


class EmbeddingBagCollection(_Collection):
    """Bags of several features, out of several tables, in one call.

    Corresponds to TorchRec's class of this name, with tensors in place of jagged tensors. A forward
    pass makes one batch for each table. In training, one call gets the rows of all tables of a
    bank. In the backward pass each table takes one step.

    Args:
        features: The table of each feature. Features may share a table.
        mode: "sum", "mean" or "max", for all features or by name. Default: "sum", as in TorchRec.
        include_last_offset: Whether `offsets` have one more entry, the end of the last bag.
        padding_idx: A key that stands for no row, in every feature.

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("bags.bank", memory_budget="16MiB")
    >>> users, items = bank.table("user", dim=4), bank.table("item", dim=8)
    >>> model = embank.torch.EmbeddingBagCollection({"user": users, "seen": items, "liked": items})
    >>> bags = model({
    ...     "user": torch.tensor([[7], [9]]),                                # 2-D: a bag a row
    ...     "seen": (torch.tensor([1, 2, 3]), torch.tensor([0, 2])),         # keys and offsets
    ...     "liked": (torch.tensor([1, 3]), torch.tensor([0, 1]), torch.ones(2)),  # and weights
    ... })
    >>> torch.cat(list(bags.values()), dim=1).shape
    torch.Size([2, 20])
    >>> bank.close()
    """

    def __init__(
        self,
        features: Mapping[str, Table],
        mode: Union[Mode, Mapping[str, Mode]] = "sum",
        *,
        include_last_offset: bool = False,
        padding_idx: Optional[int] = None,
    ) -> None:
        super().__init__(features)
        if isinstance(mode, str):
            self.modes: dict[str, Mode] = dict.fromkeys(self.features, mode)
        else:
            self._check_names(mode)
            self.modes = {name: mode[name] for name in self.features}
        for each in self.modes.values():
            check_mode(each)
        padding_key(padding_idx)  # called for its error alone
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx

    def forward(self, features: Mapping[str, Jagged]) -> dict[str, Tensor]:
        """Reduces each bag of each feature to a row: float32 `(bags, dim)`.

        Args:
            features: For each feature its keys as a 2-D tensor `(bags, keys per bag)`, or 1-D as a
                tuple `(keys, offsets)` or `(keys, offsets, per_sample_weights)`.

        Raises:
            ValueError: A feature is missing or unknown, or shapes do not fit each other.
            TypeError: Keys are not integers.
        """
        refuse_recording(self.tables(), _tensors(features))
        self._check_names(features)
        bags = {name: self._bags(name, features[name]) for name in self.features}
        pooled = self._pooled(bags)
        if pooled is not None:
            return pooled
        found = self._rows({name: of.keys for name, of in bags.items()})
        return {name: of.reduced(*found[name]) for name, of in bags.items()}

    def _pooled(self, bags: Mapping[str, Bags]) -> Optional[dict[str, Tensor]]:
        """Returns the bags that the tables pool, in one batch for each table. None if they can't
        pool them.
        """
        if not self.trains and torch.is_grad_enabled() and not self.frozen:
            return None
        of_table: dict[tuple[int, str], list[str]] = {}
        for name, of in bags.items():
            if not self._is_direct(self.features[name], of.keys):
                return None
            of_table.setdefault(self._identity[name], []).append(name)
        joined: dict[tuple[int, str], BagRequest] = {}
        hands: dict[tuple[int, str], RowsInHand] = {}
        for at, names in of_table.items():
            requests = [bags[name].request() for name in names]
            of_all = [each for each in requests if each is not None]
            request = joined_request(of_all) if len(of_all) == len(requests) else None
            if request is None:
                return None
            if self.trains and in_hand.has(self._table[at]):
                hands[at] = in_hand.find(self._table[at], request.keys)
                if not hands[at].pools(request.keys):
                    return None
            joined[at] = request
        found: dict[str, Tensor] = {}
        counts = {at: [bags[name].count for name in names] for at, names in of_table.items()}
        for at, outputs in self._outputs(joined, counts, hands).items():
            found.update(zip(of_table[at], outputs))
        return {name: found[name] for name in bags}

    def _outputs(
        self,
        requests: Mapping[tuple[int, str], BagRequest],
        counts: Mapping[tuple[int, str], Sequence[int]],
        hands: Mapping[tuple[int, str], RowsInHand],
    ) -> dict[tuple[int, str], Sequence[Tensor]]:
        """Returns the bags of each table's features. `counts` has the number of bags of each
        feature, and `hands` the rows that were got ahead.

        In training, one call gets the bags of all tables of a bank.
        """
        outputs: dict[tuple[int, str], Sequence[Tensor]] = {}
        if not self.trains:
            for at, (keys, offsets, pooling, weights) in requests.items():
                peek = self._table[at].peek_bags
                pooled = peek(keys, offsets, pooling=pooling, weights=weights)
                outputs[at] = list(tensors_of(pooled, counts[at]))
            return outputs
        leases: dict[tuple[int, str], Lease] = {}
        of_bank: dict[int, list[tuple[int, str]]] = {}
        for at, request in requests.items():
            if at in hands:
                leases[at] = hands[at].bags(request)
            else:
                of_bank.setdefault(at[0], []).append(at)
        for tables in of_bank.values():
            bags = [(self._table[at], *requests[at]) for at in tables]
            leases.update(zip(tables, got(embank.get_bags_many, bags)))
        for at, lease in leases.items():
            outputs[at] = leased_outputs(self._stand_in, self._table[at], lease, counts[at])
        return outputs

    def _bags(self, name: str, jagged: Jagged) -> Bags:
        given = (jagged, None) if isinstance(jagged, Tensor) else jagged
        if len(given) not in (2, 3):
            raise ValueError(
                f"feature {name!r}: keys come alone, as (keys, offsets), or as (keys, offsets, per_sample_weights); "
                f"found a tuple of {len(given)}"
            )
        keys, offsets, *rest = given
        options = BagOptions(
            self.modes[name], self.include_last_offset, self.padding_idx, self._stand_in.dtype
        )
        try:
            return Bags.of(keys, offsets, rest[0] if rest else None, options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"feature {name!r}: {error}") from None

    def extra_repr(self) -> str:
        modes = ", ".join(f"{name!r}: {mode!r}" for name, mode in self.modes.items())
        return f"{super().extra_repr()}, mode={{{modes}}}"
