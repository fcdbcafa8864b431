"""What the ranks tell each other before each exchange, and what follows from it.

Every call on a sharded bank is collective. A call first sends a *header* to all ranks: what the
rank does, over which tables with which settings, and what it answers. All ranks see the same
headers, so `decide` comes to the same result on all of them.

**Answers.** A get gives each of its tables a number, the same on all ranks: a *lease*. The owners
hold the rows of a lease until every rank has answered it once: with gradients, or with a release. A
rank releases a lease when its program drops the graph of the forward pass. It does not know what
the others do, so a header has two sets of leases: those that the rank answers with gradients now
(`gives`), and those that it can release (`offers`).

- A lease that every rank gives or offers is answered by this exchange.
- If a rank gives gradients, the others must have answers for the same leases. A rank that began
  something else meanwhile, because it skipped its backward pass, first takes part in the exchange
  of gradients. Then all ranks begin again.
- A rank without an answer has made another number of forward passes. That is a mismatch, and so is
  another kind of call, or other tables.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Kind(enum.IntEnum):
    """What a rank does."""

    OPEN_TABLE = 1
    GET = 2
    PEEK = 3
    GRADIENTS = 4
    PUT = 5
    TOGETHER = 6
    GET_AHEAD = 7
    ROWS = 8
    CHECKPOINT = 9
    CLOSE = 10


DOING = {
    Kind.OPEN_TABLE: "opens a table",
    Kind.GET: "gets rows for training",
    Kind.PEEK: "reads rows for evaluation",
    Kind.GRADIENTS: "hands over gradients",
    Kind.PUT: "puts rows",
    Kind.TOGETHER: "asks for the next batch of together()",
    Kind.GET_AHEAD: "draws the next batch of Pipelined",
    Kind.ROWS: "takes the rows of a batch of Pipelined",
    Kind.CHECKPOINT: "takes a checkpoint",
    Kind.CLOSE: "closes the bank",
}

OPEN_LEASES_MAX = 1024
"""The most leases from the oldest one that waits for an answer to the newest one: the number of
bits of a set in a header."""

FAILED = 1
"""A flag: this rank has an error that all ranks must raise."""
EXPLICIT = 2
"""A flag: the gradients come with their keys, not in the order of a lease's keys."""
END = 4
"""A flag: this rank has no further batch."""

_WORDS = OPEN_LEASES_MAX // 64
_KIND, _NUMBER, _DIGEST, _FLAGS, _OLDEST = range(5)
_GIVES, _OFFERS = 5, 5 + _WORDS
LENGTH = 5 + 2 * _WORDS
"""The number of words in a header. In a message a count for each table follows."""


class Header(NamedTuple):
    kind: Kind
    number: int
    """The number of exchanges that this rank has begun."""
    digest: int
    """A hash of the tables of the call and of the settings of all tables."""
    flags: int
    oldest: int
    """The oldest lease without an answer. It is bit 0 of both sets."""
    gives: int
    """The leases whose gradients this rank hands over now, as bits."""
    offers: int
    """The leases that this rank can release, as bits."""

    def write(self, words: NDArray[np.int64]) -> None:
        words[:_GIVES] = self[:_GIVES]
        words[_GIVES:_OFFERS] = _as_words(self.gives)
        words[_OFFERS:LENGTH] = _as_words(self.offers)

    @classmethod
    def read(cls, words: NDArray[np.int64]) -> Header:
        kind, number, digest, flags, oldest = (int(word) for word in words[:_GIVES])
        sets = (words[_GIVES:_OFFERS], words[_OFFERS:LENGTH])
        gives, offers = (int.from_bytes(of.tobytes(), "little") for of in sets)
        return cls(Kind(kind), number, digest, flags, oldest, gives, offers)


class Decision(NamedTuple):
    """What all ranks do after they have seen all headers."""

    mismatch: bool
    failed: bool
    gradients: bool
    """Whether gradients are exchanged before anything else."""
    answered: list[int]
    """The leases that this exchange answers."""


def decide(headers: list[Header]) -> Decision:
    """Returns what follows from the headers of all ranks."""
    first = headers[0]
    gives, answered = 0, -1
    for of in headers:
        gives |= of.gives
        answered &= of.gives | of.offers
    handing_over = [of for of in headers if of.kind == Kind.GRADIENTS]
    compared = handing_over or headers
    # A rank without a further batch does not know the tables of the batches of others.
    digests = {of.digest for of in compared if not of.flags & END}
    mismatch = (
        any((of.number, of.oldest) != (first.number, first.oldest) for of in headers)
        or len(digests) > 1
        or any(of.kind != compared[0].kind for of in compared)
        or gives & ~answered != 0
    )
    return Decision(
        mismatch,
        any(of.flags & FAILED for of in headers),
        bool(handing_over),
        [first.oldest + bit for bit in range(answered.bit_length()) if answered >> bit & 1],
    )


def _as_words(bits: int) -> NDArray[np.int64]:
    return np.frombuffer(bits.to_bytes(8 * _WORDS, "little"), dtype=np.int64)
