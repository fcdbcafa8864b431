"""The errors of sharded banks."""

from __future__ import annotations

import json
from typing import Any, Optional

import embank
from embank.errors import EmbankError


class PeerLost(EmbankError):
    """A rank has ended, or has not answered within the bank's `timeout`.

    The sharded bank is closed: its locks and leases are free, and the changes after the last
    checkpoint are lost. Start all ranks again.
    """

    step: int
    """The number of exchanges before the one that failed."""
    words: str
    """What the process group said."""

    def __init__(self, step: int, doing: str, words: str) -> None:
        super().__init__(
            f"exchange {step} with the other ranks failed ({doing}): {words}; a rank has ended, or has not answered within "
            "the bank's timeout; the bank is closed: start all ranks again"
        )
        self.step = step
        self.words = words


class ProtocolMismatch(EmbankError):
    """The ranks called different things: another number of forward passes, of batches, or other
    tables. The text names what each rank did.

    The sharded bank is closed on all ranks.
    """


class ForAll(Exception):
    """Wraps an error that every rank raises at this place, so the exchange goes on afterwards."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def packed(error: BaseException) -> str:
    """Returns an error as text for the other ranks."""
    plain = {
        name: value
        for name, value in vars(error).items()
        if isinstance(value, (str, int, float, bool)) or value is None
    }
    return json.dumps({"class": type(error).__name__, "text": str(error), "attributes": plain})


def unpacked(text: str, source: str) -> Exception:
    """Returns the error of another rank, as an exception of its class.

    Args:
        text: What `packed` returned there.
        source: The name of the shard, for the message.
    """
    of: dict[str, Any] = json.loads(text)
    kind = _class(of["class"])
    message = f"{source}: {of['text']}"
    if kind is None:
        return RuntimeError(f"{source}: {of['class']}: {of['text']}")
    error = kind.__new__(kind)
    error.args = (message,)
    for name, value in of["attributes"].items():
        setattr(error, name, value)
    return error


def _class(name: str) -> Optional[type[Exception]]:
    of: Any = getattr(embank, name, None) or _BUILT_IN.get(name)
    return of if isinstance(of, type) and issubclass(of, Exception) else None


_BUILT_IN: dict[str, type[Exception]] = {
    of.__name__: of for of in (ValueError, TypeError, RuntimeError, MemoryError)
}
