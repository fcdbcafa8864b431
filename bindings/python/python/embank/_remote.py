"""The client of `embank serve`: batches of a pipeline that runs elsewhere."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Optional, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ._batch import Batch
from .errors import BadRow, PipelineError

if TYPE_CHECKING:
    from typing_extensions import Self

_Made = TypeVar("_Made")

_REPORT_SECONDS_MAX = 10.0
"""Seconds to wait for the report of a server that has stopped, when all its rows have come."""


def connect(
    address: str,
    *,
    skip_rows: Optional[int] = None,
    seed: Optional[int] = None,
    learn: Optional[bool] = None,
) -> RemoteFeed:
    """Begins an epoch of a pipeline that runs elsewhere, as `embank serve`: a feed of its batches.

    Args:
        address: As the server prints it: `"grpc://host:port"`.
        skip_rows: Rows at the beginning that are not handed out: `feed.position` of an earlier feed,
            of this server or another one with the same inputs and options, to go on where it stopped.
        seed: Of the shuffle. Default: the server's.
        learn: Whether new values get ids at the server, as of `Pipeline.feed`. Default: True, unless the server looks
            values up in a bank.

    One client at a time takes an epoch. While another one does, this waits (10 s, or as the server
    says), and then raises `RuntimeError`. Nothing is encrypted, and nobody is asked who they are.

    Raises:
        ImportError: pyarrow is not installed.
        ConnectionError: Nobody serves at the address.
        RuntimeError: Another client is taking an epoch.
    """
    try:
        flight: Any = import_module("pyarrow.flight")
    except ImportError as error:
        raise ImportError(
            f"embank.pipeline.connect needs pyarrow with Arrow Flight ({error}): pip install pyarrow"
        ) from error
    ticket = {"skip_rows": skip_rows, "seed": seed, "learn": learn}
    asked = json.dumps({name: value for name, value in ticket.items() if value is not None})
    client = flight.connect(address)
    try:
        reader = client.do_get(flight.Ticket(asked.encode()))
        return RemoteFeed(client, reader, 0 if skip_rows is None else skip_rows)
    except BaseException as error:
        client.close()
        _raise(error)


@dataclass(frozen=True)
class RemoteReport:
    """What came of a run elsewhere."""

    rows: int
    """Rows that came out."""
    bad_rows: int
    """Rows that were left out as bad ones."""
    first_bad_rows: list[str]
    """The first ten of those: file, line, column and what is wrong."""
    bytes: int
    """Bytes of input."""
    seconds: float
    """How long it took."""


def _keep_forever(
    something: Any, increment: Any = ctypes.pythonapi.Py_IncRef, reference: Any = ctypes.py_object
) -> None:
    """Nothing destroys it any more, not even the end of the program."""
    increment(reference(something))


class RemoteFeed:
    """Batches of a pipeline that runs elsewhere. Made by `connect`; used as a `Feed` is.

    The arrays of a batch are in the memory of the message that brought it: they are yours to change
    and keep. Thread safe. Ctrl-C takes effect when the next batch has come, and ends the epoch: the
    feed then raises `RuntimeError`, which says how to go on. Like a `Feed`, it does not survive a fork.
    """

    def __init__(self, client: Any, reader: Any, position: int) -> None:
        self._process = os.getpid()
        self._interrupted = False
        self._client = client
        self._reader: Any = reader
        self._position = position
        self._report: Optional[RemoteReport] = None
        self._reading = threading.RLock()
        """Held while a message is awaited; a signal's handler may close the feed meanwhile."""
        self._schema: Any = reader.schema

    @property
    def position(self) -> int:
        """Rows that were handed out, and those that were skipped before them: `skip_rows` of another
        feed that is to go on from here."""
        return self._position

    @property
    def report(self) -> Optional[RemoteReport]:
        """What came of the run once the feed has come to its end; None before, and if it didn't. None
        also if the server was gone by then: the rows had all come."""
        return self._report

    def close(self) -> None:
        """Ends the epoch, here and at the server. A second call does nothing, nor does one in a forked
        child: the epoch is its parent's."""
        if self._process != os.getpid():
            return
        reader, self._reader = self._reader, None
        if reader is not None:
            # Whoever waits for a message in another thread gets a failure, and ends.
            reader.cancel()
            with self._reading:
                self._client.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self._next(_batch_of)

    def _next(self, make: Callable[[Any], _Made]) -> _Made:
        """What is made of the next batch, which comes as pyarrow's. Until that is there, it counts as not handed out."""
        self._check_process()
        with self._reading:
            reader = self._reader
            if self._interrupted:
                raise RuntimeError(
                    f"this feed was interrupted at row {self._position}, before its end: "
                    f"connect(..., skip_rows={self._position}) goes on from there"
                )
            if reader is None:
                raise StopIteration
            position = self._position
            try:
                chunk = reader.read_chunk()
                made = make(chunk.data)
                self._position = json.loads(bytes(chunk.app_metadata))["next_row"]
                return made
            except StopIteration:
                self._report = self._ended()
                raise
            except BaseException as error:
                failed = _is_of_arrow(error)
                if self._reader is None and failed:  # closed meanwhile, by another thread
                    raise StopIteration from None
                if not failed:
                    # A chunk may have come that nobody got.
                    self._interrupted, self._position = True, position
                self._reader = None
                # The server has the epoch until it is told: closing the client does not end a call.
                with suppress(Exception):
                    reader.cancel()
                with suppress(Exception):
                    self._client.close()
                _raise(error)

    def _ended(self) -> Optional[RemoteReport]:
        """What the server says of the run. The rows are all here, so it is no failure if it says nothing."""
        self._reader = None
        try:
            options = import_module("pyarrow.flight").FlightCallOptions(timeout=_REPORT_SECONDS_MAX)
            answer = next(iter(self._client.do_action("report", options=options)))
            told = json.loads(bytes(answer.body))
            # A later server may say more.
            return RemoteReport(**{one.name: told[one.name] for one in fields(RemoteReport)})
        except Exception:
            return None
        finally:
            with suppress(Exception):
                self._client.close()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(
                f"this feed was made in process {self._process} and does not survive the fork into process "
                f"{os.getpid()}: connect after forking, or start processes with the \"spawn\" method"
            )

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Optional[object] = None) -> object:
        """The batches that are left, for libraries of Arrow, without a copy."""
        self._check_process()
        pyarrow: Any = import_module("pyarrow")

        def batches() -> Iterator[Any]:
            while True:
                try:
                    yield self._next(lambda data: data)
                except StopIteration:
                    return

        return pyarrow.RecordBatchReader.from_batches(
            self._schema, batches()
        ).__arrow_c_stream__(requested_schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: Optional[type[BaseException]] = None,
        exception: Optional[BaseException] = None,
        traceback: Optional[TracebackType] = None,
        /,
    ) -> None:
        self.close()

    # Defaults, since at a program's end the module's names may be gone before its feeds.
    def __del__(
        self, getpid: Callable[[], int] = os.getpid, keep: Callable[[Any], None] = _keep_forever
    ) -> None:
        if self._process == getpid():
            self.close()
            return
        # Their destructors would end the parent's call, or wait for threads that are not in this process.
        keep(self._reader)
        keep(self._client)

    def __repr__(self) -> str:
        return f"<embank.pipeline.RemoteFeed at row {self._position}>"


class _Memory:
    """A buffer of pyarrow's as NumPy sees memory, which keeps it.

    pyarrow calls what came over the network read-only; nobody else has it, so here it is not.
    """

    def __init__(self, buffer: Any, begin: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "version": 3, "data": (buffer.address + begin, False), "shape": shape, "typestr": dtype.str,
        }


def _batch_of(data: Any) -> Batch:
    """A batch of pyarrow's as ours."""
    columns = zip(data.schema.names, data.columns)
    return Batch({name: _matrix(column) for name, column in columns})


def _matrix(column: Any) -> NDArray[Any]:
    """A column of lists as a matrix; a copy only where the message lies askew in memory."""
    values = column.flatten()
    dtype = np.dtype(values.type.to_pandas_dtype())
    shape = (len(column), column.type.list_size)
    if len(values) == 0:
        return np.empty(shape, dtype)
    memory = _Memory(values.buffers()[1], values.offset * dtype.itemsize, shape, dtype)
    return np.require(np.asarray(memory), requirements="A")


def _is_of_arrow(error: BaseException) -> bool:
    """Whether the server or the connection failed; else a signal's handler has raised, as Ctrl-C does."""
    pyarrow: Any = import_module("pyarrow")
    flight: Any = import_module("pyarrow.flight")
    return isinstance(error, (pyarrow.ArrowException, flight.FlightError))


def _raise(error: BaseException) -> NoReturn:
    """Raises what the server failed at as a feed in this process would."""
    flight: Any = import_module("pyarrow.flight")
    if not _is_of_arrow(error):
        raise error
    text, failure = str(error), cast(Any, error)
    try:
        details = json.loads(failure.extra_info)
    except (AttributeError, ValueError):
        details = {}
    if "line" in details:
        bad = BadRow(text)
        bad.input, bad.line, bad.column = details["input"], details["line"], details["column"]
        bad.lines = details.get("lines", 1)
        raise bad from error
    if details.get("busy"):
        raise RuntimeError(text) from error
    if isinstance(error, flight.FlightUnavailableError):
        raise ConnectionError(text) from error
    raise PipelineError(text) from error
