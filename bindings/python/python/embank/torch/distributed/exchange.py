"""Messages between the ranks, on a gloo group of the bank's own.

Two threads that use one gloo group get each other's messages without an error. So the group belongs
to one bank, and the bank lets one thread at a time exchange. NCCL can't connect two ranks on one
GPU, and the rows are in host memory anyway, so the exchange runs on gloo.

A gloo group does not work any more after an error. `Exchange` turns every error of the group into
`PeerLost`, and the bank then closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Optional

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from .errors import PeerLost


class Exchange:
    """A gloo group with the ranks of `group`. Making it is a collective call.

    Args:
        group: The group whose ranks take part. Default: all ranks.
        timeout: Seconds after which a rank that does not answer counts as lost.
    """

    def __init__(self, group: Optional[dist.ProcessGroup], timeout: float) -> None:
        c10d: Any = dist.distributed_c10d
        of_ranks = group or dist.group.WORLD
        self.rank = dist.get_rank(of_ranks)
        self.size = dist.get_world_size(of_ranks)
        # `dist.new_group` names a group of some ranks by what else the process has made, so the
        # names could differ between the ranks, or be those of an earlier bank. The store of
        # `of_ranks` is known to its ranks alone, which open their banks in the same order.
        store = c10d._get_process_group_store(of_ranks)
        number = store.add(f"embank/{self.rank}", 1)
        self._group: Any = c10d.ProcessGroupGloo(
            c10d.PrefixStore(f"embank/bank/{number}", store),
            self.rank,
            self.size,
            timedelta(seconds=timeout),
        )
        self.steps = 0
        """The number of exchanges that have begun."""
        self.bytes_sent = 0
        """The bytes of keys, rows and gradients that went to other ranks."""
        self.doing = "opening the bank"
        """What this rank does, for errors."""

    def headers(self, to_each: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sends row i of `to_each` to rank i. Returns the rows from all ranks, in their order."""
        self.steps += 1
        received = torch.empty(to_each.shape, dtype=torch.int64)
        sent = torch.from_numpy(to_each)
        self._call(lambda: self._group.alltoall_base(received, sent, [], []))
        array: NDArray[np.int64] = received.numpy()
        return array

    def pieces(
        self, to_each: Sequence[NDArray[Any]], lengths: Sequence[int]
    ) -> list[NDArray[Any]]:
        """Sends a 1-D array to each rank. Returns the arrays from all ranks, in their order.

        Args:
            to_each: For each rank an array; all have one dtype.
            lengths: The length of the array from each rank.
        """
        # This rank's own piece does not go through the group.
        sent_lengths = [len(piece) for piece in to_each]
        received_lengths = list(lengths)
        sent_lengths[self.rank] = received_lengths[self.rank] = 0
        of_others = [piece for rank, piece in enumerate(to_each) if rank != self.rank]
        own = to_each[self.rank]
        sent = torch.from_numpy(joined(of_others, own.dtype))
        self.bytes_sent += sent.nbytes
        received = torch.empty(sum(received_lengths), dtype=sent.dtype)
        self._call(
            lambda: self._group.alltoall_base(received, sent, received_lengths, sent_lengths)
        )
        found = pieces(received.numpy(), received_lengths)
        found[self.rank] = own
        return found

    def contents(self, content: bytes) -> list[bytes]:
        """Sends bytes to all ranks. Returns the bytes of all ranks, in their order."""
        sent = np.frombuffer(bytearray(content), dtype=np.uint8)
        lengths = self.headers(np.full((self.size, 1), len(sent), dtype=np.int64))[:, 0]
        found = self.pieces([sent] * self.size, [int(length) for length in lengths])
        return [piece.tobytes() for piece in found]

    def texts(self, text: str) -> list[str]:
        """Sends a text to all ranks. Returns the texts of all ranks, in their order."""
        return [content.decode() for content in self.contents(text.encode())]

    def close(self) -> None:
        """Ends the group's connections. Calls of other ranks that wait for this one then fail."""
        # The last reference, so this ends the connections.
        self._group = None

    def _call(self, call: Callable[[], Any]) -> None:
        try:
            call().wait()
        except RuntimeError as error:
            raise PeerLost(self.steps - 1, self.doing, str(error).split("\n")[0]) from error


def joined(pieces: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    """Returns arrays of one `dtype` one after the other, and a single array itself."""
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=dtype)


def pieces(array: NDArray[Any], lengths: Iterable[int]) -> list[NDArray[Any]]:
    """Returns views of an array, one behind the other, of these lengths."""
    found, start = [], 0
    for length in lengths:
        found.append(array[start : start + length])
        start += length
    return found
