"""Tests of what follows from the headers of all ranks."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from embank import ShardMismatch  # noqa: E402
from embank.torch.distributed.fleet import joined, own  # noqa: E402
from embank.torch.distributed.opening import View, assign  # noqa: E402
from embank.torch.distributed.protocol import (  # noqa: E402
    END, FAILED, LENGTH, Decision, Header, Kind, decide,
)  # fmt: skip

GET = Header(Kind.GET, 4, 1, 0, 10, 0b000, 0b000)
GIVES = GET._replace(kind=Kind.GRADIENTS, digest=2)


def test_a_header_reads_as_it_was_written() -> None:
    words = np.zeros(LENGTH, dtype=np.int64)
    header = Header(Kind.GRADIENTS, 4, -(2**63), 3, 10, 1 << 1023 | 1, 1 << 63)
    header.write(words)
    assert Header.read(words) == header


@pytest.mark.parametrize(
    "headers, decision",
    [
        ([GET, GET], Decision(False, False, False, [])),
        # Both release lease 11, and one of them lease 12.
        ([GET._replace(offers=0b110), GET._replace(offers=0b010)], Decision(False, False, False, [11])),
        ([GET, GET._replace(flags=FAILED)], Decision(False, True, False, [])),
        ([GET, GET._replace(digest=3)], Decision(True, False, False, [])),
        ([GET, GET._replace(number=5)], Decision(True, False, False, [])),
        ([GET, GET._replace(oldest=11)], Decision(True, False, False, [])),
        ([GET, GET._replace(kind=Kind.PEEK)], Decision(True, False, False, [])),
        # A rank without a further batch does not know the tables of the others.
        ([GET, GET._replace(digest=3, flags=END)], Decision(False, False, False, [])),
        ([GIVES._replace(gives=0b1)] * 2, Decision(False, False, True, [10])),
        # One rank releases what the other gives, in an exchange of gradients or before a get.
        ([GIVES._replace(gives=0b11), GIVES._replace(gives=0b01, offers=0b10)], Decision(False, False, True, [10, 11])),
        ([GIVES._replace(gives=0b1), GET._replace(offers=0b1)], Decision(False, False, True, [10])),
        # A lease that waits on one rank is not answered.
        ([GIVES._replace(gives=0b01), GIVES._replace(gives=0b01, offers=0b10)], Decision(False, False, True, [10])),
        ([GIVES._replace(gives=0b11), GIVES._replace(gives=0b01)], Decision(True, False, True, [10])),
        ([GIVES._replace(gives=0b1), GET], Decision(True, False, True, [])),
    ],
)  # fmt: skip
def test_all_ranks_decide_alike(headers: list[Header], decision: Decision) -> None:
    assert decide(headers) == decision
    assert decide(headers[::-1]) == decision


def view(machine: str, found: list[int], unfinished: list[int] = []) -> View:  # noqa: B006
    return View("fleet", machine, [(shard, 4, "ab") for shard in found], unfinished, {}, None)


@pytest.mark.parametrize(
    "views, shard_of_rank",
    [
        # One machine: each rank finds all shards.
        ([view("a", [0, 1, 2, 3])] * 4, [0, 1, 2, 3]),
        # Two machines, which have changed places.
        ([view("b", [2, 3])] * 2 + [view("a", [0, 1])] * 2, [2, 3, 0, 1]),
        # Rank 0 must leave shard 0 to rank 1, which finds no other.
        ([view("a", [0, 1]), view("a", [0]), view("b", [2, 3]), view("b", [2, 3])], [1, 0, 2, 3]),
        # The first opening was interrupted before shard 3 got its identity.
        ([view("a", [0, 1])] * 2 + [view("b", [2], [3])] * 2, [0, 1, 2, 3]),
    ],
)
def test_each_rank_serves_a_shard_that_it_finds(views: list[View], shard_of_rank: list[int]) -> None:
    found = assign(views)
    assert found.shard_of_rank == shard_of_rank and not found.is_new


def test_a_rank_without_a_shard_of_its_own_is_named() -> None:
    with pytest.raises(ShardMismatch, match=r"rank 2 finds shards \[0, 1\] in fleet"):
        assign([view("a", [0, 1])] * 3 + [view("b", [2, 3])])
    assert assign([view("a", [])] * 3) == ([0, 1, 2], True)


def test_a_set_has_the_bytes_of_each_rank() -> None:
    blobs = [b"one", b"", b"one", b"three"]
    content = joined(blobs)
    assert [own(content, rank) for rank in range(4)] == blobs
    assert content.count(b"one") == 1
    assert own(content, 7) == b"one"
    assert own(joined([b"", b""]), 1) == b""
