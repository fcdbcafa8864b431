"""Features of graphs for PyTorch Geometric, in tables.

`FeatureStore` is a `torch_geometric.data.FeatureStore`: loaders of PyTorch Geometric fetch the features of
sampled nodes from it as they would from memory. Each tensor of a group and an attribute is a table whose key
is the node's (or edge's) number. Reading peeks: no leases, no waiting, nothing made.

The tables are named after group and attribute, and the shapes are in a table of their own, so a bank that is
opened again has its features, as of its checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

try:
    import torch_geometric.data as geometric  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError(
        "embank.torch.geometric needs PyTorch Geometric, which is not installed here: "
        "pip install 'embank[geometric]'"
    ) from error

from .leaf import as_keys
from .modules import Embedding

if TYPE_CHECKING:
    from embank import Bank, Table

Group = Optional[Union[str, tuple[str, str, str]]]

# Rows that are copied at a time where all are asked for.
_BATCH_ROWS = 1 << 16
# Sizes are kept in float32, which holds whole numbers up to 2^24.
_SIZE_DIGIT = 1 << 22


class FeatureStore(geometric.FeatureStore):  # type: ignore[misc, unused-ignore]
    """Features of nodes and edges, in tables of a bank.

    Tensors are float32, `(n, dim)` or `(n,)`; row i is key i of the table. An index may be None (all rows), a tensor
    of integers or bools, a slice or an integer. Reading gives CPU tensors, one row for each
    number of the index, in its order.

    An open bank does not survive `fork`: let loaders fetch features in the main process
    (`filter_per_worker=False`), or use no workers.

    Args:
        bank: Where the tables are. Those of an earlier store of this name are found again.
        name: Tells several stores of a bank apart; the tables' names begin with it.

    >>> import embank, torch
    >>> from embank.torch.geometric import FeatureStore
    >>> bank = embank.Bank("graph.bank", memory_budget="16MiB")
    >>> store = FeatureStore(bank)
    >>> store["paper", "x", None] = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    >>> store["paper", "x", torch.tensor([2, 0])].tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    >>> store.get_tensor_size(group_name="paper", attr_name="x")
    (3, 2)
    >>> bank.close()
    """

    def __init__(self, bank: Bank, name: str = "features") -> None:
        super().__init__()
        # The base class gives attributes a meaning of its own.
        self.__dict__["_bank"] = bank
        self.__dict__["_name"] = name
        self.__dict__["_sizes"] = bank.table(f"{name} sizes", dim=3)
        self.__dict__["_tables"] = {
            table: bank.open_table(table)
            for table in bank.tables()
            if table.startswith(f"{name}[")
        }

    def table(self, group_name: Group, attr_name: str) -> Table:
        """The table of an attribute.

        Raises:
            KeyError: There is none.
        """
        found: Optional[Table] = self._tables.get(self._table_name(group_name, attr_name))
        if found is None:
            raise KeyError(f"there is no attribute {attr_name!r} of {group_name!r} in this store")
        return found

    def add_embedding(
        self, group_name: Group, attr_name: str, num_rows: int, dim: int, **options: Any
    ) -> Embedding:
        """Makes a trainable attribute, such as a node embedding: what loaders fetch under this name is the
        rows as training left them.

        Args:
            group_name: The type of the nodes.
            attr_name: The attribute's name.
            num_rows: How many nodes there are.
            dim: Columns.
            options: As for `embank.Bank.table`: `optimizer` above all. Where the attribute is there already they
                must be those that it has.

        Returns:
            A module over the table, for the training loop.
        """
        name = self._table_name(group_name, attr_name)
        table = self._bank.table(name, dim=dim, **options)
        self._tables[name] = table
        self._set_size(name, num_rows, 2)
        return Embedding(table)

    def get_all_tensor_attrs(self) -> list[geometric.TensorAttr]:
        """Every attribute, without an index."""
        found = []
        for name in self._tables:
            group, attribute = json.loads(name[len(self._name) :])
            group = tuple(group) if isinstance(group, list) else group
            found.append(self._tensor_attr_cls(group_name=group, attr_name=attribute))
        return found

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Writes over what is there; rows that the index does not name stay."""
        return bool(self.put_tensor(tensor, *args, **kwargs))

    def _put_tensor(self, tensor: Any, attr: geometric.TensorAttr) -> bool:
        values = torch.as_tensor(tensor).detach().cpu()
        if values.dtype != torch.float32:
            raise TypeError(
                f"attribute {attr.attr_name!r} must be float32, not {values.dtype}: use tensor.float(), and "
                "keep labels and masks beside the store"
            )
        name = self._table_name(attr.group_name, attr.attr_name)
        size = self._size(name)
        if isinstance(attr.index, int):
            values = values.unsqueeze(0)
        dimensions = values.dim()
        if dimensions == 1:
            values = values.unsqueeze(1)
        if values.dim() != 2:
            raise ValueError(
                f"attribute {attr.attr_name!r} must have shape (n, dim) or (n,), not {tuple(values.shape)}"
            )
        rows_before = 0 if size is None else size[0]
        keys = _keys(attr.index, len(values) if attr.index is None else rows_before)
        if len(keys) != len(values):
            raise ValueError(
                f"the index of attribute {attr.attr_name!r} names {len(keys)} rows, the tensor has {len(values)}"
            )
        if size is not None and (size[1] != dimensions or self._tables[name].dim != values.shape[1]):
            raise ValueError(
                f"attribute {attr.attr_name!r} has rows of {self._tables[name].dim}: remove it before it is put with "
                f"rows of shape {tuple(values.shape[1:])}"
            )
        if size is None:
            self._tables[name] = self._bank.table(name, dim=values.shape[1])
        for begin in range(0, len(keys), _BATCH_ROWS):
            some = slice(begin, begin + _BATCH_ROWS)
            self._tables[name].put(keys[some], values[some].numpy())
        rows = max(rows_before, int(keys.max()) + 1 if len(keys) else 0)
        self._set_size(name, rows, dimensions)
        return True

    def _get_tensor(self, attr: geometric.TensorAttr) -> Optional[Tensor]:
        name = self._table_name(attr.group_name, attr.attr_name)
        size = self._size(name)
        if size is None:
            return None
        table, (rows, dimensions) = self._tables[name], size
        keys = _keys(attr.index, rows)
        outside = (keys < 0) | (keys >= rows)
        if outside.any():
            raise IndexError(
                f"attribute {attr.attr_name!r} of {attr.group_name!r} has {rows} rows; there is no row "
                f"{keys[outside][0]}"
            )
        found = torch.empty(len(keys), table.dim)
        out = found.numpy()
        # A row that was removed is missing; one that was never trained has its initial value.
        missing: Any = "error" if table.learning_rate is None else "initial"
        for begin in range(0, len(keys), _BATCH_ROWS):
            some = slice(begin, begin + _BATCH_ROWS)
            table.peek(keys[some], missing=missing, out=out[some])
        if dimensions == 1:
            found = found.squeeze(1)
        return found[0] if isinstance(attr.index, int) else found

    def _remove_tensor(self, attr: geometric.TensorAttr) -> bool:
        name = self._table_name(attr.group_name, attr.attr_name)
        size = self._size(name)
        if size is None:
            return False
        if attr.index is not None:
            return bool(self._tables[name].delete(_keys(attr.index, size[0])) > 0)
        self._bank.drop_table(name)
        self._sizes.delete([_digest(name)])
        del self._tables[name]
        return True

    def _get_tensor_size(self, attr: geometric.TensorAttr) -> Optional[tuple[int, ...]]:
        name = self._table_name(attr.group_name, attr.attr_name)
        size = self._size(name)
        if size is None:
            return None
        rows, dimensions = size
        return (rows,) if dimensions == 1 else (rows, self._tables[name].dim)

    def _table_name(self, group_name: Group, attr_name: str) -> str:
        return f"{self._name}{json.dumps([group_name, attr_name])}"

    def _size(self, name: str) -> Optional[tuple[int, int]]:
        """Rows and dimensions of an attribute, if it is there."""
        if name not in self._tables:
            return None
        high, low, dimensions = (int(digit) for digit in self._sizes.peek([_digest(name)])[0])
        return high * _SIZE_DIGIT + low, dimensions

    def _set_size(self, name: str, rows: int, dimensions: int) -> None:
        digits = [float(rows // _SIZE_DIGIT), float(rows % _SIZE_DIGIT), float(dimensions)]
        self._sizes.put([_digest(name)], [digits])

    def __repr__(self) -> str:
        return f"FeatureStore({self._name!r} of {self._bank!r}, {len(self._tables)} attributes)"


def _keys(index: Any, rows: int) -> NDArray[np.int64]:
    """The rows that an index of PyTorch Geometric names."""
    if index is None:
        return np.arange(rows)
    if isinstance(index, slice):
        return np.arange(*index.indices(rows))
    if isinstance(index, (int, np.integer)):
        return np.array([int(index)])
    tensor = torch.as_tensor(index)
    if tensor.dtype == torch.bool:
        tensor = tensor.nonzero()
    return as_keys(tensor)


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
