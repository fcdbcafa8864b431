"""Leases of a sharded bank: on the rank that got rows, and on the ranks that own them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

import embank

from .exchange import pieces

if TYPE_CHECKING:
    from embank import Lease, Pending

    from .bank import ShardedBank
    from .table import ShardedTable


class Request(NamedTuple):
    """The keys of one table in a call, each once, and the ranks that own their rows."""

    table: ShardedTable
    keys: NDArray[np.int64]
    """The distinct keys `(u,)`, in the order of their first places in the call, as
    `Table.get_distinct` has them. Sums of gradients can depend on this order.
    """
    inverse: NDArray[np.int64]
    """For each key of the call its place in `keys`."""
    order: NDArray[np.int64]
    """The places in `keys`, sorted by the ranks that own the keys. Places of one rank ascend."""
    counts: list[int]
    """For each rank the number of keys that it owns."""

    @property
    def of_rank(self) -> list[NDArray[np.int64]]:
        """For each rank the places in `keys` of the keys that it owns."""
        return pieces(self.order, self.counts)


class Held(NamedTuple):
    """A lease without an answer yet, as this rank has it."""

    request: Request
    """The rows that this rank got."""
    of_owner: Union[Lease, Pending]
    """The one lease on the rows of all ranks that this rank owns."""
    counts: list[int]
    """The number of keys of each rank. The lease was taken for all of them, one rank after the
    other, so its `inverse` has their places in this order."""

    def end(self) -> None:
        """Ends the lease without a step."""
        if isinstance(self.of_owner, embank.Lease):
            self.of_owner.release()
        else:
            self.of_owner.cancel()

    def places(self) -> list[NDArray[np.int64]]:
        """For each rank the places of its keys in the rows of the lease."""
        lease: Any = self.of_owner
        return pieces(lease.inverse, self.counts)

    def keys_of(self, rank: int) -> NDArray[np.uint64]:
        """The keys of a rank that this rank owns, in the order in which the rank sent them."""
        lease: Any = self.of_owner
        keys: NDArray[np.uint64] = lease.keys[self.places()[rank]]
        return keys


class ShardedLease:
    """The rows of one table that a rank got, until its answer.

    Dropping the object answers with a release, which the next exchange tells the owners. The owners
    change a row only after every rank has answered.
    """

    per: Literal["distinct"] = "distinct"

    def __init__(
        self, bank: ShardedBank, number: int, request: Request, rows: NDArray[np.float32]
    ) -> None:
        self._bank = bank
        self.number = number
        """The number of the lease, the same on all ranks."""
        self.request = request
        self.rows = rows
        """float32 `(u, dim)`, one row for each distinct key. The array is the caller's."""

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The distinct keys, in the order of `rows`."""
        return self.request.keys.view(np.uint64)

    @property
    def inverse(self) -> NDArray[np.int64]:
        """For each key of the call its place in `rows`."""
        return self.request.inverse

    @property
    def state(self) -> Literal["held", "ended", "closed"]:
        if self._bank.closed:
            return "closed"
        return "held" if self._bank.awaits(self.number) else "ended"

    @property
    def held(self) -> bool:
        """Whether this rank has still to answer."""
        return self.state == "held"

    def check(self) -> None:
        """Raises `ValueError` if the lease has ended."""
        self._bank.check_open()
        if not self.held:
            raise ValueError("lease has ended")

    def sum_gradients(self, grads: ArrayLike) -> NDArray[np.float32]:
        """Returns `grads`: there is one row for each distinct key."""
        return np.asarray(grads, dtype=np.float32)

    def apply(self, grads: ArrayLike) -> None:
        """Answers with gradients, float32 `(u, dim)`. A collective call."""
        self.check()
        table = self.request.table
        self._bank.apply_many([(table, [self], None, np.asarray(grads, dtype=np.float32))])

    def release(self) -> None:
        """Answers with a release. The next exchange of this rank tells the owners."""
        self._bank.release(self.number)

    def hand_over(self) -> None:
        """Does nothing: the owners hold the rows."""

    def put(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raises `ValueError`."""
        raise ValueError(
            "a lease of a sharded table takes gradients alone: write rows with ShardedTable.put, on all ranks"
        )

    rewrite = put

    def __len__(self) -> int:
        return len(self.request.inverse)

    def __enter__(self) -> ShardedLease:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __del__(self) -> None:
        # Missing if the constructor has failed.
        bank = self.__dict__.get("_bank")
        if bank is not None:
            bank.release(self.number)

    def __repr__(self) -> str:
        return f"<ShardedLease on table {self.request.table.name!r}, rows {self.rows.shape}, {self.state}>"
