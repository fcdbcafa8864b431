"""Rows that are only read: features, from a table without an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

import embank
from sampling import Batch


class FixedRows(nn.Module):
    """Gives the rows of nodes, without a lease or a gradient.

    While a step computes, the next batch's rows are read in the background, if its batches come from
    `ahead`. They are prefetched, not announced to Lookahead: that keeps rows in memory for a coming
    change by copying them to the end of the log, which for rows that never change is wasted writing.
    """

    def __init__(self, table: embank.Table) -> None:
        super().__init__()
        self.table = table
        self.following: torch.Tensor | None = None
        self.prefetched: tuple[torch.Tensor, embank.Prefetch] | None = None

    def ahead(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches, each while the one after it is known."""
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
        # Only now, so that no more than one batch is in the bank's memory at a time.
        del prefetched
        following, self.following = self.following, None
        if following is not None:
            try:
                self.prefetched = following, self.table.prefetch(following.numpy())
            except embank.BudgetTooSmall:
                pass        # A batch's rows do not fit into the budget: they are peeked at.
        return torch.from_numpy(rows)
