"""A table whose rows are spread over the ranks' shards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Optional

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from .lease import Request, ShardedLease

if TYPE_CHECKING:
    from embank import Table

    from .bank import ShardedBank
    from .pending import ShardedPending, ShardedQueue


class ShardedTable:
    """A table of a `ShardedBank`. `ShardedBank.table` makes it.

    Each row is in the bank of one rank, its owner. Calls that read or change rows are collective:
    every rank calls them, in the same order, each with its own keys. The modules of `embank.torch`
    work over it.

    A learning rate and the other settings must be set to the same value on all ranks: the next
    exchange compares them.
    """

    is_sharded: Literal[True] = True
    """By this the modules know that calls are collective."""

    def __init__(self, bank: ShardedBank, local: Table, index: int) -> None:
        self.bank = bank
        """The `ShardedBank`."""
        self.local = local
        """The table of this rank's shard, for `stats`, `export`, `scan` and `evict`. Its rows must
        not be changed directly."""
        self.index = index
        """The number of the table in its bank, the same on all ranks."""
        self.dim = local.dim
        self.name = local.name
        self._time: Optional[int] = None

    # What makes the rows of one shard take other steps than those of another. `ShardedBank` hashes
    # it into each header.
    def settings(self, with_rate: bool = True) -> str:
        """The settings that can change, as text."""
        of = self.local
        found: dict[str, Any] = {
            "optimizer": of.optimizer, "clip_row_norm": of.clip_row_norm,
            "staleness_bound": of.staleness_bound, "set_time": self._time,
        }  # fmt: skip
        if not with_rate:
            found["optimizer"] = re.sub(r"\blr=[^,)]*", "lr", str(of.optimizer))
        return f"table {self.name!r} with " + ", ".join(f"{name}={value}" for name, value in found.items())

    @property
    def admits_all(self) -> bool:
        """Whether every key gets a row at once."""
        return self.local.admits_all

    @property
    def dtype(self) -> str:
        """The type of stored values."""
        return self.local.dtype

    @property
    def learning_rate(self) -> Optional[float]:
        """The learning rate; None for a table without an optimizer."""
        return self.local.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.local.learning_rate = value
        self.bank.settings_changed()

    @property
    def optimizer(self) -> Any:
        """The optimizer; None for a table without one."""
        return self.local.optimizer

    @optimizer.setter
    def optimizer(self, value: Any) -> None:
        self.local.optimizer = value
        self.bank.settings_changed()

    @property
    def clip_row_norm(self) -> Optional[float]:
        """The largest norm of a row's gradient, after the gradients of all ranks are summed."""
        return self.local.clip_row_norm

    @clip_row_norm.setter
    def clip_row_norm(self, value: Optional[float]) -> None:
        self.local.clip_row_norm = value
        self.bank.settings_changed()

    @property
    def staleness_bound(self) -> Optional[int]:
        """The staleness bound, in global steps: with bound k, at most k + 1 of them hold a row."""
        return self.local.staleness_bound

    @staleness_bound.setter
    def staleness_bound(self, value: Optional[int]) -> None:
        self.local.staleness_bound = value
        self.bank.settings_changed()

    def set_time(self, time: int) -> None:
        """Sets the time of a table with `tracking="set_time"`, on all ranks to the same value."""
        self.local.set_time(time)
        self._time = time
        self.bank.settings_changed()

    def get_distinct(
        self, keys: ArrayLike, *, earlier: Optional[object] = None
    ) -> ShardedLease:
        """Leases the rows of this rank's keys, one row for each distinct key. A collective call.

        Args:
            keys: Integers, 1-D.
            earlier: Ignored: the owners know which gets wait for their answers.
        """
        (lease,) = self.bank.get_many([(self, keys)])
        return lease

    def get_ahead(
        self, keys: ArrayLike, queue: ShardedQueue, *, distinct: bool = True
    ) -> ShardedPending:
        """Adds keys to the batch that `queue.send()` announces."""
        if not distinct:
            raise ValueError("a sharded table gets distinct rows: pass distinct=True")
        return queue.add(self, keys)

    def peek(self, keys: ArrayLike) -> NDArray[np.float32]:
        """Reads the rows of this rank's keys without a lease: float32 `(n, dim)`. A collective
        call. A key without a row reads as its initial value.
        """
        (rows,) = self.bank.peek_many([(self, keys)])
        return rows

    def initial(self, keys: ArrayLike) -> NDArray[np.float32]:
        """The initial values of rows. Needs no other rank."""
        return self.local.initial(keys)

    def put(self, keys: ArrayLike, rows: ArrayLike) -> None:
        """Writes rows. A collective call: all ranks pass the same keys `(n,)` and rows `(n, dim)`,
        and each writes the rows that it owns.

        Raises:
            ProtocolMismatch: The ranks pass different rows.
        """
        self.bank.put(self, keys, rows)

    def stats(self) -> Any:
        """The counters of this rank's shard, as `Table.stats`."""
        return self.local.stats()

    def request(self, keys: ArrayLike) -> Request:
        """Removes repeated keys, and finds the ranks that own their rows."""
        (request,) = self.bank.requests([(self, keys)])
        return request

    def get(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raises `ValueError`: use `get_distinct`."""
        raise self._refusal("get", "get_distinct gives one row for each distinct key")

    def get_bags(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raises `ValueError`: the modules pool bags of the rows that `get_distinct` gives."""
        raise self._refusal("get_bags", "an EmbeddingBag pools the rows on the rank that asks for them")

    def peek_bags(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raises `ValueError`: the modules pool bags of the rows that `peek` gives."""
        raise self._refusal("peek_bags", "an EmbeddingBag pools the rows on the rank that asks for them")

    def apply_gradients(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raises `ValueError`: gradients need a lease."""
        raise self._refusal("apply_gradients", "get rows with get_distinct, and apply gradients to the lease")

    def lookahead(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raises `ValueError`: a depth that each rank chooses by itself can't steer collective
        calls."""
        raise self._refusal(
            "lookahead, so no LookaheadLoader works over it",
            "Pipelined(loader, keys, depth) sends keys a fixed number of batches ahead, and the owners read their rows",
        )

    def prefetch(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raises `ValueError`: use `peek`."""
        raise self._refusal("prefetch", "peek reads rows, on all ranks together")

    def delete(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raises `ValueError`: each rank evicts rows of its own shard."""
        raise self._refusal("delete", "table.local.evict removes old and rare rows of this rank's shard")

    def _refusal(self, what: str, cure: str) -> ValueError:
        return ValueError(f"sharded table {self.name!r} has no {what}: {cure}")

    def __copy__(self) -> Self:
        """Returns the table itself: copies of a model share its rows."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        """Raises `TypeError`: the table is open in this process."""
        raise TypeError(
            f"sharded table {self.name!r} can't be pickled, because it is open in this process: open it in the other process, "
            "or pass keys and rows"
        )

    def __repr__(self) -> str:
        return f"<ShardedTable {self.name!r}, dim={self.dim}, shard {self.bank.shard} of {self.bank.shards}>"


def as_int64(keys: ArrayLike) -> NDArray[np.int64]:
    """Returns keys `(n,)`. Raises `ValueError` or `TypeError` for other arrays."""
    array = np.asarray(keys)
    if array.ndim != 1:
        raise ValueError(f"keys must be 1-D, not {array.ndim}-D")
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"keys must be integers, not {array.dtype}")
    return array.astype(np.int64, copy=False)
