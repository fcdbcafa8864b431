"""Rows that are only read: features, from a table without an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

import embank
from sampling import Batch


class FixedRows(nn.Module):
    """Gives the rows of nodes, without a lease or a gradient.

    If the batches come from `ahead`, the rows of the next batch are prefetched while a step
    computes. They are not announced to Lookahead, because Lookahead copies rows to the end of the
    log, and rows that never change need no copy.
    """

    def __init__(self, table: embank.Table) -> None:
        super().__init__()
        self.table = table
        self.following: torch.Tensor | None = None
        self.prefetched: tuple[torch.Tensor, embank.Prefetch] | None = None

    def ahead(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yields the batches, and remembers the batch after the one that it yields."""
        source = iter(batches)
        batch = next(source, None)
        while batch is not None:
            following = next(source, None)
            self.following = None if following is None else following.nodes
            yield batch
            batch = following

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        prefetched, self.prefetched = self.prefetched, None
        if prefetched is not None and prefetched[0] is nodes:
            rows = prefetched[1].rows()
        else:
            rows = self.table.peek(nodes.numpy())
        # Drops the earlier prefetch before the next one begins, so that the bank's memory holds the
        # rows of one batch.
        del prefetched
        following, self.following = self.following, None
        if following is not None:
            try:
                self.prefetched = following, self.table.prefetch(following.numpy())
            except embank.BudgetTooSmall:
                pass        # The budget has no room for a batch's rows: they are peeked.
        return torch.from_numpy(rows)
