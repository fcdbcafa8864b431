"""Gradients: from the ranks to the owners of the rows, and into the rows.

A rank sends the gradients of a lease in the order in which it sent the keys, so the owner knows
their rows. It sends keys with them in two cases: a part of the lease's rows was not used, or one
step answers several leases (`SparseOptimizer`, several forward passes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

import embank
from embank._embank import sum_rows, take_rows

from .exchange import Exchange, joined, pieces
from .lease import Held, Request, ShardedLease
from .protocol import EXPLICIT, Header, Kind

if TYPE_CHECKING:
    from .table import ShardedTable

Rows = NDArray[np.float32]


class Given(NamedTuple):
    """The gradients of one table on this rank."""

    table: ShardedTable
    leases: Sequence[ShardedLease]
    request: Request
    """The keys of the gradients."""
    whole: bool
    """Whether these are all keys of the one lease, in its order."""
    gradients: Rows
    """Float32 `(u, dim)`, a row for each key of the request."""


class Coming(NamedTuple):
    """The gradients that this rank gets from another one for one table."""

    table: ShardedTable
    lease: Optional[int]
    """The lease to which they belong. None if their keys come too."""
    rows: int
    """The number of rows."""


class OfRank(NamedTuple):
    """The gradients that one rank has sent for one table."""

    rank: int
    of: Union[int, NDArray[np.uint64]]
    """The lease to which they belong, or their keys."""
    gradients: Rows


def counts_of(given: Given, oldest: int) -> Union[int, list[int]]:
    """Returns the counts of a table in the message to each rank. A number below 0 stands for a
    lease."""
    if given.whole:
        return oldest - given.leases[0].number - 1
    return given.request.counts


def coming(
    tables: Sequence[ShardedTable],
    headers: Sequence[Header],
    counts: NDArray[np.int64],
    held: Mapping[int, Held],
    oldest: int,
) -> list[list[Coming]]:
    """Returns what each rank sends to this one, by table in the order of their numbers.

    Args:
        tables: The tables of the bank.
        headers: The headers of all ranks.
        counts: For each rank the counts of `counts_of` by table.
        held: The leases by number.
        oldest: The number of the oldest lease.
    """
    found: list[list[Coming]] = [[] for _ in headers]
    for rank, header in enumerate(headers):
        if header.kind != Kind.GRADIENTS:
            # This rank takes part before it begins something else, and has only releases.
            continue
        for table in tables:
            count = int(counts[rank, table.index])
            if count < 0:
                lease = oldest - count - 1
                found[rank].append(Coming(table, lease, held[lease].counts[rank]))
            elif count > 0:
                found[rank].append(Coming(table, None, count))
    return found


def exchanged(
    exchange: Exchange,
    headers: Sequence[Header],
    coming: Sequence[Sequence[Coming]],
    given: Sequence[Given],
) -> dict[int, list[OfRank]]:
    """Sends this rank's gradients to their owners. Returns those of this rank's rows by the number
    of their table, in the order of the ranks.
    """
    given = sorted(given, key=lambda of: of.table.index)
    ranks = range(exchange.size)
    keys: list[NDArray[np.int64]] = [np.zeros(0, np.int64) for _ in ranks]
    if any(of.flags & EXPLICIT for of in headers):
        with_keys = [of for of in given if not of.whole]
        by_rank = [pieces(of.request.keys[of.request.order], of.request.counts) for of in with_keys]
        keys = exchange.pieces(
            [joined([of[rank] for of in by_rank], np.int64) for rank in ranks],
            [sum(of.rows for of in of_rank if of.lease is None) for of_rank in coming],
        )
    places = [of.request.of_rank for of in given]
    to_each = []
    for rank in ranks:
        length = sum(of.request.counts[rank] * of.table.dim for of in given)
        to_each.append(np.empty(length, dtype=np.float32))
        take_rows([(of.gradients, at[rank]) for of, at in zip(given, places)], to_each[rank])
    received = exchange.pieces(
        to_each, [sum(of.rows * of.table.dim for of in of_rank) for of_rank in coming]
    )
    found: dict[int, list[OfRank]] = {}
    for rank, of_rank in enumerate(coming):
        start = key = 0
        for table, lease, count in of_rank:
            end = start + count * table.dim
            gradients = received[rank][start:end].reshape(count, table.dim)
            start = end
            of: Union[int, NDArray[np.uint64]]
            if lease is None:
                of = keys[rank][key : key + count].view(np.uint64)
                key += count
            else:
                of = lease
            found.setdefault(table.index, []).append(OfRank(rank, of, gradients))
    return found


def apply(
    held: Mapping[int, Held], by_table: Mapping[int, list[OfRank]], ranks: int, divisor: int
) -> Optional[Exception]:
    """Applies sums of gradients to this rank's rows, and ends the leases.

    Args:
        held: The leases that end, by number.
        by_table: The gradients of `exchanged`.
        ranks: The number of ranks.
        divisor: The number by which the sums are divided.

    Returns:
        The error of the store.
    """
    parts = []
    for index, of_ranks in by_table.items():
        # A get ahead that no rank has waited for is no lease yet.
        of_table = {
            number: of
            for number, of in held.items()
            if of.request.table.index == index and isinstance(of.of_owner, embank.Lease)
        }
        # `apply_many` refuses a sum that is infinite.
        numbers, keys, sums = _sums(of_table, of_ranks, ranks, divisor)
        leases: list[Any] = [held[number].of_owner for number in numbers]
        parts.append((held[numbers[0]].request.table.local, leases, keys, sums))
    try:
        if parts:
            embank.apply_many(parts)
    except Exception as error:
        return error
    finally:
        # Those without gradients, and after an error all of them.
        for of in held.values():
            of.end()
    return None


def _sums(
    held: Mapping[int, Held], of_ranks: Sequence[OfRank], ranks: int, divisor: int
) -> tuple[list[int], Optional[NDArray[np.uint64]], Rows]:
    """Adds the gradients of one table, of each row in the order of the ranks, and divides the sums.

    Returns the leases that the sums belong to, their keys (None for all keys of one lease), and the
    sums.
    """
    dim = of_ranks[0].gradients.shape[1]
    leases = {of.of if isinstance(of.of, int) else None for of in of_ranks}
    number = leases.pop()
    if number is not None and not leases:
        lease: Any = held[number].of_owner
        places = held[number].places()
        # The keys of one rank are distinct.
        parts = [(of.gradients, places[of.rank]) for of in of_ranks]
        sums = sum_rows(len(lease.keys), dim, parts, divisor)
        if len(of_ranks) == ranks:
            return [number], None, sums
        touched = np.zeros(len(sums), dtype=np.bool_)
        for of in of_ranks:
            touched[places[of.rank]] = True
        return [number], lease.keys[touched], sums[touched]
    of_each = [
        held[of.of].keys_of(of.rank) if isinstance(of.of, int) else of.of for of in of_ranks
    ]
    keys, inverse = np.unique(np.concatenate(of_each), return_inverse=True)
    of_each_rank = pieces(inverse.reshape(-1), [len(of.gradients) for of in of_ranks])
    parts = list(zip([of.gradients for of in of_ranks], of_each_rank))
    sums = sum_rows(len(keys), dim, parts, divisor)
    return list(held), keys, sums
