"""Features of graphs for PyTorch Geometric, in tables.

`FeatureStore` is a `torch_geometric.data.FeatureStore`: loaders of PyTorch Geometric fetch the
features of sampled nodes from it as from memory. Each group and attribute has a table whose keys
are the numbers of the nodes or edges. Reading peeks: it takes no lease, does not wait and makes no
row.

A table's name contains the group and the attribute, and the shapes are in a table of their own. So
a bank that is opened again has its features, as its checkpoint holds them. This class keeps no copy
of features or shapes: two stores of a bank see each other's changes. `feature_index` has the rows
that an index stands for, and `feature_copies` the content of a pickled store.
"""

from __future__ import annotations

import hashlib
import json
import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

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

from embank import MissingRow, ReadOnly

from .feature_copies import Source, note_change, sizes_name
from .feature_index import KEYS_END, is_number, read_rows, written_rows
from .fills import filling
from .modules import Embedding

if TYPE_CHECKING:
    from embank import Bank, Table

Group = Optional[Union[str, tuple[str, str, str]]]

# The number of rows that one call copies or deletes, so that a call needs little memory.
_BATCH_ROWS = 1 << 16
# A put without an index deletes at most this many keys of a trained attribute: a few seconds of
# work.
_TRAINED_DELETES_MAX = 1 << 24
# A size is stored as three digits in float32, which holds whole numbers up to 2^24 exactly. The low
# digit counts single rows. The high digit counts units of `_HIGH_ROWS` rows and is less than 2^24.
# The top digit counts units of `_TOP_ROWS` rows and is at most 2^18.
_HIGH_ROWS = 1 << 22
_TOP_ROWS = 1 << 46


class _Shape(NamedTuple):
    """The size and kind of an attribute.

    It is stored as one float32 row of four numbers: the high digit of the size, its low digit, the
    number of dimensions (1 or 2), and `trained` plus twice the top digit. Older versions wrote no
    top digit; this version reads their rows correctly.
    """

    rows: int
    dimensions: int
    trained: bool
    """Whether `add_embedding` made the attribute. In a trained attribute, a row that is not in the
    table is one that training has not used yet. It reads as its initial value.
    """

    def packed(self) -> list[float]:
        top, rest = divmod(self.rows, _TOP_ROWS)
        high, low = divmod(rest, _HIGH_ROWS)
        return [float(high), float(low), float(self.dimensions), float(self.trained + 2 * top)]

    @classmethod
    def unpacked(cls, row: NDArray[np.float32]) -> _Shape:
        high, low, dimensions, top_and_trained = (int(number) for number in row)
        top, trained = divmod(top_and_trained, 2)
        return cls(top * _TOP_ROWS + high * _HIGH_ROWS + low, dimensions, bool(trained))


class _Opened(NamedTuple):
    """The bank of a store, and the table with the sizes of its attributes."""

    bank: Bank
    sizes: Table


class _Closed(NamedTuple):
    """The bank that a copy opens at first use. One thread opens it."""

    source: Source
    lock: threading.Lock


class FeatureStore(geometric.FeatureStore):  # type: ignore[misc, unused-ignore]
    """Features of nodes and edges, in tables of a bank.

    Tensors are float32, `(n, dim)` or `(n,)`; row i has key i of the table. An index may be None
    (all rows), a tensor or list of integers or bools, a slice or an integer. Reading returns CPU
    tensors with one row for each number of the index, in its order.

    A put without an index replaces the whole attribute. A put with an index whose numbers are after
    the last row makes the attribute longer: `slice(2, 6)` writes rows 2 to 5 of an attribute of any
    size. A slice without an end reaches to the last row, or further if the tensor has more rows. A
    mask has one bool for each row; its length is the size of a new attribute.

    An open bank does not survive `fork`, so forked workers can't use a store. Take a checkpoint
    after the last put, and start the workers of a loader with `multiprocessing_context="spawn"` or
    "forkserver"; or let the loader fetch features in the main process (`filter_per_worker=False`);
    or use no workers.

    A pickled store is a copy that opens the bank with `read_only` at first use, with the memory
    budget of the original. The copy shows the checkpoint that was the newest when the store was
    pickled, or the newest one if that is not kept any more. It raises `RuntimeError` if the store
    had put features that are in no checkpoint, `KeyError` if the checkpoint does not hold the
    store, and `ReadOnly` for calls that write. `copy.copy` and `copy.deepcopy` return a store of
    this bank.

    Args:
        bank: The bank of the tables. The store finds the tables of an earlier store of this name.
        name: The store's name. The tables' names begin with it, so that a bank can have several
            stores.

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
        # Written to `__dict__`, as the base class writes its own attribute.
        self.__dict__["_name"] = name
        self.__dict__["_opened"] = _Opened(bank, bank.table(sizes_name(name), dim=4))

    @property
    def _bank(self) -> Bank:
        return self._open().bank

    @property
    def _sizes(self) -> Table:
        return self._open().sizes

    def _open(self) -> _Opened:
        """The bank, which a copy opens at first use."""
        opened: Union[_Opened, _Closed] = self.__dict__["_opened"]
        if isinstance(opened, _Closed):
            with opened.lock:
                # Another thread may have opened the bank before this thread got the lock.
                if self.__dict__["_opened"] is opened:
                    bank = opened.source.open(self._name)
                    sizes = bank.open_table(sizes_name(self._name))
                    self.__dict__["_opened"] = _Opened(bank, sizes)
                opened = self.__dict__["_opened"]
        assert isinstance(opened, _Opened)
        return opened

    def __reduce__(self) -> tuple[Any, ...]:
        opened: Union[_Opened, _Closed] = self.__dict__["_opened"]
        if isinstance(opened, _Closed):
            return _copy, (type(self), self._name, opened.source)
        return _copy, (type(self), self._name, Source.of(opened.bank, self._name))

    def __copy__(self) -> FeatureStore:
        shared = type(self).__new__(type(self))
        shared.__dict__.update(self.__dict__)
        return shared

    def __deepcopy__(self, memo: dict[int, Any]) -> FeatureStore:
        return self.__copy__()

    def table(self, group_name: Group, attr_name: str) -> Table:
        """Returns the table of an attribute.

        A put without an index that makes the attribute much shorter drops the table and makes it
        again. Calls on an earlier object then raise `NoSuchTable`.

        Raises:
            KeyError: There is no such attribute.
        """
        name = self._table_name(group_name, attr_name)
        if self._shape(name) is None:
            raise KeyError(f"there is no attribute {attr_name!r} of {group_name!r} in this store")
        return self._table(name)

    def add_embedding(
        self, group_name: Group, attr_name: str, num_rows: int, dim: int, **options: Any
    ) -> Embedding:
        """Makes a trainable attribute, such as a node embedding. Loaders fetch its rows as training
        has left them.

        Args:
            group_name: The type of the nodes.
            attr_name: The attribute's name.
            num_rows: The number of nodes, from 0 to 2^64. If the trained attribute exists with
                fewer rows, it becomes longer.
            dim: The number of columns.
            options: As for `embank.Bank.table`, for example `optimizer`. They must agree with those
                of an existing attribute.

        Returns:
            A module over the table, for the training loop.

        Raises:
            ValueError: The attribute holds features that were put, or more than `num_rows` rows, or
                `num_rows` is out of its range. Nothing has changed.
            TableMismatch: The attribute was made with other options.
        """
        num_rows = operator.index(num_rows)
        if not 0 <= num_rows <= KEYS_END:
            raise ValueError(f"num_rows must be from 0 to 2^64, not {num_rows}")
        name = self._table_name(group_name, attr_name)
        shape = self._shape(name)
        attribute = f"attribute {attr_name!r} of {group_name!r}"
        if shape is not None and not shape.trained:
            raise ValueError(
                f"{attribute} holds features that were put, and rows that are missing would read as initial values: "
                "remove it before add_embedding, or take another name"
            )
        if shape is not None and num_rows < shape.rows:
            raise ValueError(
                f"{attribute} has {shape.rows} rows, and add_embedding was called with num_rows={num_rows}: call it "
                f"with {shape.rows} or more, or remove the attribute first"
            )
        table = self._bank.table(name, dim=dim, **options)
        self._set_shape(name, _Shape(num_rows, 2, trained=True))
        return Embedding(table)

    def get_all_tensor_attrs(self) -> list[geometric.TensorAttr]:
        """Lists every attribute of nodes, without an index, as `torch_geometric.data.Data` and
        `HeteroData` do.

        A loader fetches the listed attributes by the numbers of sampled nodes. So the list leaves
        out attributes of edges: attributes of a group that is a tuple (an edge type), and
        attributes of group None whose names begin with "edge_". A transform fetches them by `e_id`;
        `get_all_edge_tensor_attrs` lists them.
        """
        return [attr for attr in self._attrs() if not _is_of_edges(attr)]

    def get_all_edge_tensor_attrs(self) -> list[geometric.TensorAttr]:
        """Lists every attribute of edges, without an index."""
        return [attr for attr in self._attrs() if _is_of_edges(attr)]

    def _attrs(self) -> list[geometric.TensorAttr]:
        found = []
        for name in self._names():
            group, attribute = json.loads(name[len(self._name) :])
            group = tuple(group) if isinstance(group, list) else group
            found.append(self._tensor_attr_cls(group_name=group, attr_name=attribute))
        return found

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Overwrites the rows of the index. Other rows stay."""
        return bool(self.put_tensor(tensor, *args, **kwargs))

    def _put_tensor(self, tensor: Any, attr: geometric.TensorAttr) -> bool:
        attribute = _named(attr)
        values = _as_values(tensor, attr.attr_name)
        name = self._table_name(attr.group_name, attr.attr_name)
        shape = self._shape(name)
        if is_number(attr.index):
            values = values.unsqueeze(0)
        dimensions = values.dim()
        if dimensions == 1:
            values = values.unsqueeze(1)
        if values.dim() != 2:
            raise ValueError(
                f"{attribute} must have shape (n, dim) or (n,), not {tuple(values.shape)}"
            )
        rows_before = 0 if shape is None else shape.rows
        keys, rows = written_rows(attr.index, rows_before, shape is None, len(values), attribute)
        if shape is None:
            table = self._bank.table(name, dim=values.shape[1])
        else:
            table = self._table(name)
            if shape.dimensions != dimensions or table.dim != values.shape[1]:
                raise ValueError(
                    f"{attribute} has rows of {table.dim}: remove it before it is put with "
                    f"rows of shape {tuple(values.shape[1:])}"
                )
        trained = shape is not None and shape.trained
        if rows < rows_before:
            table = self._shortened(table, rows, rows_before, trained, attribute)
        with self._writing(table):
            for begin in range(0, len(keys), _BATCH_ROWS):
                some = slice(begin, begin + _BATCH_ROWS)
                table.put(keys[some], values[some].numpy())
        self._set_shape(name, _Shape(rows, dimensions, trained))
        return True

    def _shortened(
        self, table: Table, rows: int, rows_before: int, trained: bool, attribute: str
    ) -> Table:
        """Returns the attribute's table without the rows from `rows` on. The caller then puts all
        rows before them.

        The time depends on the number of rows that are put, not on the largest row number: if there
        are more keys to delete than rows to put, the table is dropped and made again. A trained
        table is never dropped, because its settings are not known here.
        """
        deletes = rows_before - rows
        if trained and deletes > _TRAINED_DELETES_MAX:
            raise ValueError(
                f"{attribute} is trained and has {rows_before} rows, of which a put of {rows} rows would delete "
                f"{deletes} one by one: remove it and call add_embedding with {rows} rows"
            )
        if not trained and deletes > max(rows, _BATCH_ROWS):
            name, dim = table.name, table.dim
            self._bank.drop_table(name)
            anew: Table = self._bank.table(name, dim=dim)
            return anew
        with self._writing(table):
            for begin in range(rows, rows_before, _BATCH_ROWS):
                table.delete(np.arange(begin, min(begin + _BATCH_ROWS, rows_before)))
        return table

    def _get_tensor(self, attr: geometric.TensorAttr) -> Optional[Tensor]:
        name = self._table_name(attr.group_name, attr.attr_name)
        shape = self._shape(name)
        if shape is None:
            return None
        table = self._table(name)
        keys = read_rows(attr.index, shape.rows, _named(attr))
        found = torch.empty(len(keys), table.dim, dtype=torch.float32, device="cpu")
        out = found.numpy()
        missing: Any = "initial" if shape.trained else "error"
        for begin in range(0, len(keys), _BATCH_ROWS):
            some = slice(begin, begin + _BATCH_ROWS)
            table.peek(keys[some], missing=missing, out=out[some])
        if shape.dimensions == 1:
            found = found.squeeze(1)
        return found[0] if is_number(attr.index) else found

    def _remove_tensor(self, attr: geometric.TensorAttr) -> bool:
        name = self._table_name(attr.group_name, attr.attr_name)
        shape = self._shape(name)
        if shape is None:
            return False
        if attr.index is not None:
            keys = read_rows(attr.index, shape.rows, _named(attr))
            table = self._table(name)
            with self._writing(table):
                return bool(table.delete(keys) > 0)
        with self._writing(self._sizes):
            self._sizes.delete([_digest(name)])
            self._bank.drop_table(name)
        return True

    def _get_tensor_size(self, attr: geometric.TensorAttr) -> Optional[tuple[int, ...]]:
        name = self._table_name(attr.group_name, attr.attr_name)
        shape = self._shape(name)
        if shape is None:
            return None
        return (shape.rows,) if shape.dimensions == 1 else (shape.rows, self._table(name).dim)

    @contextmanager
    def _writing(self, table: Table) -> Iterator[None]:
        """Changes of features in the block do not count as training. They are recorded as changes
        that no checkpoint holds yet.
        """
        try:
            with filling(table):
                yield
        except ReadOnly:
            # The bank is open for reading only, so nothing has changed.
            raise
        except BaseException:
            # An error may have come after some rows had changed.
            note_change(self._bank, self._name)
            raise
        note_change(self._bank, self._name)

    def _table_name(self, group_name: Group, attr_name: str) -> str:
        return f"{self._name}{json.dumps([group_name, attr_name])}"

    def _names(self) -> list[str]:
        """The tables of the attributes."""
        return [
            table
            for table in self._bank.tables()
            if table.startswith(f"{self._name}[") and self._shape(table) is not None
        ]

    def _table(self, name: str) -> Table:
        table: Table = self._bank.open_table(name)
        return table

    def _shape(self, name: str) -> Optional[_Shape]:
        """Returns the table of an attribute. None if there is no such attribute."""
        try:
            (row,) = self._sizes.peek([_digest(name)], missing="error")
        except MissingRow:
            return None
        return _Shape.unpacked(row)

    def _set_shape(self, name: str, shape: _Shape) -> None:
        if shape == self._shape(name):
            # Unchanged sizes are not put again, so that a run can still be resumed.
            return
        with self._writing(self._sizes):
            self._sizes.put([_digest(name)], [shape.packed()])

    def __repr__(self) -> str:
        opened = self.__dict__["_opened"]
        if isinstance(opened, _Closed):
            return f"FeatureStore({self._name!r} of {opened.source.path}, not opened yet)"
        return f"FeatureStore({self._name!r} of {self._bank!r}, {len(self._names())} attributes)"


def _copy(cls: type[FeatureStore], name: str, source: Source) -> FeatureStore:
    """A store that opens its bank at first use. A pickled store holds such an object."""
    store = cls.__new__(cls)
    geometric.FeatureStore.__init__(store)
    store.__dict__["_name"] = name
    store.__dict__["_opened"] = _Closed(source, threading.Lock())
    return store


def _as_values(tensor: Any, name: Any) -> Tensor:
    """Returns `tensor` as a float32 tensor in host memory, for any default dtype and device of
    torch.
    """
    if not isinstance(tensor, (Tensor, np.ndarray)):
        tensor = np.asarray(tensor)
        if tensor.dtype == np.float64:
            # Python floats have no dtype, so torch would use its default dtype.
            tensor = tensor.astype(np.float32)
    values = torch.as_tensor(tensor, device="cpu").detach()
    if values.dtype != torch.float32:
        raise TypeError(
            f"attribute {name!r} must be float32, not {values.dtype}: use tensor.float(), and keep labels and "
            "masks beside the store"
        )
    return values


def _is_of_edges(attr: geometric.TensorAttr) -> bool:
    if attr.group_name is None:
        return bool(attr.attr_name.startswith("edge_"))
    return isinstance(attr.group_name, tuple)


def _named(attr: geometric.TensorAttr) -> str:
    """The name of an attribute in errors."""
    return f"attribute {attr.attr_name!r} of {attr.group_name!r}"


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
