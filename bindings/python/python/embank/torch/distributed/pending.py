"""Rows of coming batches: `Pipelined` over a sharded bank.

The keys of a batch go to their owners when the batch is drawn, a fixed number of batches ahead and
on all ranks alike. Each owner then takes its lease with a get ahead, so its bank reads the rows
from disk while the ranks compute. The rows go back when the batch begins, in one exchange for all
of its tables. So they have the updates of all earlier batches, and every depth gives the results of
depth 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import ArrayLike, NDArray

import embank

from .lease import Held, Request, ShardedLease
from .protocol import END, Kind
from .rounds import Found
from .table import as_int64

if TYPE_CHECKING:
    from embank import AheadQueue

    from .bank import ShardedBank
    from .table import ShardedTable


class ShardedQueue:
    """The gets ahead of one training loop. `ShardedBank.ahead_queue` makes it."""

    def __init__(self, bank: ShardedBank) -> None:
        self.bank = bank
        self._queue: AheadQueue = bank.local.ahead_queue()
        self._batch = _BatchAhead(bank)

    def add(self, table: ShardedTable, keys: ArrayLike) -> ShardedPending:
        """Adds keys to the batch that `send` announces. The array must not change before."""
        self._batch.asked.append((table, as_int64(keys)))
        return ShardedPending(self._batch, len(self._batch.asked) - 1)

    def send(self) -> bool:
        """Announces the batch to the owners of its rows. A collective call, if a key was added.

        Returns:
            False if another rank has no further batch. Then no rank gets this batch.
        """
        batch = self._batch
        if not batch.asked:
            return True
        self._batch = _BatchAhead(self.bank)
        return batch.announce(self._queue)

    def end(self) -> None:
        """Tells the other ranks that this rank has no further batch, in place of `send`."""
        if not self.bank.closed:
            _BatchAhead(self.bank).announce(None)

    def close(self) -> None:
        self._queue.close()


class _BatchAhead:
    """The rows of one batch: its leases and, after the first wait, its rows."""

    def __init__(self, bank: ShardedBank) -> None:
        self.bank = bank
        self.asked: list[tuple[ShardedTable, NDArray[np.int64]]] = []
        self.requests: list[Request] = []
        """Those of `asked`, from `announce` on."""
        self.numbers: list[int] = []
        self._rows: Optional[Sequence[NDArray[np.float32]]] = None
        self._failure: Optional[Exception] = None

    def announce(self, queue: Optional[AheadQueue]) -> bool:
        """Sends the keys, and takes the leases of this rank's rows. Without a queue, says that
        there is no batch. Returns whether all ranks have one.
        """
        self.bank.check_open()
        rounds = self.bank.rounds
        self.requests = self.bank.requests(self.asked)
        with rounds.round("draws the next batch of Pipelined"):
            # A rank without a batch does not know the tables of the others.
            headers, counts = rounds.agree(
                Kind.GET_AHEAD, self.requests, flags=0 if queue is not None else END
            )
            if queue is None or any(of.flags & END for of in headers):
                return False
            rounds.check_room(len(self.requests))
            rounds.change()
            keys = rounds.keys(self.requests, counts)
            pending = [
                of.table.local.get_ahead(each.keys, queue, distinct=True)
                for of, each in zip(self.requests, keys)
            ]
            self.numbers = rounds.take(
                [Held(*of) for of in zip(self.requests, pending, [each.counts for each in keys])]
            )
        return True

    def rows(self) -> Sequence[NDArray[np.float32]]:
        """Waits for the leases and the rows of the batch. The first call is collective. After an
        error the leases are released, and every call raises it.
        """
        if self._failure is not None:
            raise self._failure
        if self._rows is None:
            try:
                self._rows = self._got()
            except Exception as error:
                self._failure = error
                for number in self.numbers:
                    self.bank.release(number)
                raise
        return self._rows

    def _got(self) -> list[NDArray[np.float32]]:
        self.bank.check_open()
        rounds = self.bank.rounds
        with rounds.round("takes the rows of a batch of Pipelined"):
            rounds.agree(Kind.ROWS, self.requests, what=str(self.numbers).encode())
            held = [rounds.held(number) for number in self.numbers]
            return rounds.rows(
                self.requests, [of.counts for of in held], lambda: self._read(held)
            )

    def _read(self, held: Sequence[Held]) -> list[Found]:
        found = []
        for number, of in zip(self.numbers, held):
            lease: Any = of.of_owner
            if not isinstance(lease, embank.Lease):
                lease = lease.wait()
                self.bank.rounds.replace(number, of._replace(of_owner=lease))
            found.append(Found(lease.rows, lease.inverse))
        return found


class ShardedPending:
    """The rows of one table that a coming batch needs."""

    def __init__(self, batch: _BatchAhead, at: int) -> None:
        self._batch = batch
        self._at = at

    def wait(self, *, out: Optional[NDArray[np.float32]] = None) -> ShardedLease:
        """Waits for the rows, and returns their lease. The first wait of a batch is collective: it
        brings the rows of all its tables.

        Args:
            out: A C-contiguous float32 array `(u, dim)` for the rows.
        """
        batch, at = self._batch, self._at
        rows = batch.rows()[at]
        if out is not None:
            out[:] = rows
            rows = out
        return ShardedLease(batch.bank, batch.numbers[at], batch.requests[at], rows)

    def cancel(self) -> None:
        """Answers with a release."""
        if self._batch.numbers:
            self._batch.bank.release(self._batch.numbers[self._at])

    def __len__(self) -> int:
        return len(self._batch.requests[self._at].keys)

    def __bool__(self) -> bool:
        return True
