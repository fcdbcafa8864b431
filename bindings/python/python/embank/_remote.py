"""The client of `embank serve`: batches of a pipeline that runs in another process."""

from __future__ import annotations

import collections
import ctypes
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Optional, TypeVar, Union, cast

import numpy as np
from numpy.typing import NDArray

from ._batch import Batch
from .errors import BadRow, PipelineError

if TYPE_CHECKING:
    from typing_extensions import Self

_Made = TypeVar("_Made")

_REPORT_SECONDS_MAX = 10.0
"""The longest time that a feed waits for the server's report after the last row. A server that has
stopped sends no report.
"""


ROUNDS_KEPT = 256
"""Number of rounds whose ends a part keeps, for `RemoteFeed.state_dict`."""


def connect(
    address: str,
    *,
    skip_rows: Union[int, dict[str, Any], None] = None,
    seed: Optional[int] = None,
    learn: Optional[bool] = None,
    part: Optional[int] = None,
    of: Optional[int] = None,
) -> RemoteFeed:
    """Begins an epoch of a pipeline that another process serves with `embank serve`. Returns a feed
    of its batches.

    Args:
        address: The address that the server prints: `"grpc://host:port"`.
        skip_rows: The rows at the beginning that are not handed out. To go on where an earlier feed
            stopped, pass the earlier feed's `state_dict()`; the server must still have the options
            of that feed. The feed raises `PipelineError` if the server's inputs do not begin with
            those of the state. A number of rows skips without this check. Default: 0.
        seed: The seed of the shuffle. Default: that of a state in `skip_rows`, or the server's.
        learn: Whether new values get ids at the server, as in `Pipeline.feed`. Default: True, but
            False if the server's pipeline only looks values up.
        part: The part of the epoch for this client, from 0 to below `of`: the rank of a trainer of
            data-parallel training. Batch k of the epoch goes to part k modulo `of`. Default: None,
            the whole epoch.
        of: The number of parts of the epoch. Default: None, the epoch is not divided.

    There is one epoch at a time. While other clients take one, this call waits (10 s, or the
    server's `--wait`), and then raises `RuntimeError`. The connection is not encrypted, and the
    server accepts every client.

    The first client of a divided epoch begins it, and the others join it with equal arguments. If a
    part has no client after the server's `--wait`, the feeds of the others raise `PipelineError`.
    All parts must be used: the slowest holds the others back. Closing a feed early frees the others
    from it; its batches are discarded. `position` and `state_dict` of a part are the place after
    the rounds that the part has finished, as for a part of `Feed.split`. With the server's
    `--message-bytes`, they stay before a batch until its last message.

    Raises:
        ImportError: pyarrow is not installed.
        ConnectionError: No server answers at the address.
        RuntimeError: Other clients are taking an epoch, or another client has this part.
        PipelineError: The epoch under way waits for this part, and began with other arguments.
    """
    _check_part(part, of)
    try:
        flight: Any = import_module("pyarrow.flight")
    except ImportError as error:
        raise ImportError(
            f"embank.pipeline.connect needs pyarrow with Arrow Flight ({error}): pip install pyarrow"
        ) from error
    inputs: list[list[Any]] = []
    place: Optional[dict[str, Any]] = None
    if isinstance(skip_rows, dict):
        inputs = skip_rows["inputs"]
        place = skip_rows.get("place")
        seed = skip_rows["seed"] if seed is None else seed
        skip_rows = int(skip_rows["rows"])
    ticket = {
        "skip_rows": skip_rows, "seed": seed, "learn": learn, "inputs": inputs or None, "place": place,
        "part": part, "of": of,
    }
    asked = json.dumps({name: value for name, value in ticket.items() if value is not None})
    client = flight.connect(address)
    try:
        reader = client.do_get(flight.Ticket(asked.encode()))
        rows = 0 if skip_rows is None else skip_rows
        return RemoteFeed(client, reader, rows, seed, inputs, place, of or 1)
    except BaseException as error:
        client.close()
        _raise(error)


def _check_part(part: Optional[int], of: Optional[int]) -> None:
    if (part is None) != (of is None):
        raise ValueError(f"part is {part} and of is {of}: give both, or neither for a whole epoch")
    if part is not None and of is not None and not 0 <= part < of:
        raise ValueError(f"part must be from 0 to below of, and of at least 1: part is {part} and of is {of}")


@dataclass(frozen=True)
class RemoteReport:
    """The result of a run in another process."""

    rows: int
    """Rows that the run made."""
    bad_rows: int
    """Bad rows, which were left out."""
    first_bad_rows: list[str]
    """The first ten bad rows: file, line, column and the problem."""
    bytes: int
    """Bytes of input."""
    seconds: float
    """Duration of the run."""
    discarded_rows: int = 0
    """Rows that no client got, so far: those of parts that were closed early."""


def _keep_forever(
    something: Any, increment: Any = ctypes.pythonapi.Py_IncRef, reference: Any = ctypes.py_object
) -> None:
    """Makes sure that the object is never destroyed, not even at the end of the program."""
    increment(reference(something))


class RemoteFeed:
    """Batches of a pipeline that runs in another process. Made by `connect`, and used like a
    `Feed`.

    The arrays of a batch are in the memory of the message that brought it. The caller may change
    and keep them. Threads may share the feed. Ctrl-C takes effect when the next batch arrives, and
    ends the epoch: the feed then raises `RuntimeError`, whose text says how to go on. The feed does
    not survive a fork.
    """

    def __init__(
        self,
        client: Any,
        reader: Any,
        position: int,
        seed: Optional[int],
        inputs: list[list[Any]],
        place: Optional[dict[str, Any]],
        parts: int,
    ) -> None:
        self._process = os.getpid()
        self._interrupted = False
        self._client = client
        self._reader: Any = reader
        self._position = position
        self._seed = seed
        self._inputs = inputs
        """Name and bytes of each input that the rows so far came from. Those of the caller before
        the first message, which then names the inputs itself.
        """
        self._place = place
        """Where another feed may begin to read, as a message of the server said last."""
        self._parts = parts
        self._rounds: collections.deque[int] = collections.deque([position], maxlen=ROUNDS_KEPT)
        """The positions of a part after its last rounds."""
        self._named = False
        self._report: Optional[RemoteReport] = None
        self._reading = threading.RLock()
        """Held while a thread waits for a message. Reentrant, because a signal handler in that
        thread may close the feed.
        """
        self._schema: Any = reader.schema

    @property
    def position(self) -> int:
        """The number of rows that were skipped or handed out. `connect(...,
        skip_rows=position)` continues with the next row, if the server has the same inputs.
        """
        return self._position

    def state_dict(self, rows: Optional[int] = None) -> dict[str, Any]:
        """The place after the rows that were skipped or handed out, with the inputs that they came
        from. `connect(..., skip_rows=state)` continues there.

        Args:
            rows: The number of rows that the loop has used, for a loop that takes batches from the
                feed ahead of their use. Default: `position`. For a part, the rows of all parts: n
                batches of each part are `n * of * batch_rows` rows.

        Raises:
            ValueError: `rows` is not the end of one of the last 256 rounds of this part.
        """
        with self._reading:
            if rows is not None and self._parts > 1 and rows not in self._rounds:
                raise ValueError(
                    f"row {rows} is not the end of one of the last {ROUNDS_KEPT} rounds of this part, "
                    f"whose position is {self._position}: count the rows of all parts"
                )
            inputs = [list(one) for one in self._inputs]
            rows = self._position if rows is None else rows
            state: dict[str, Any] = {"rows": rows, "seed": self._seed, "inputs": inputs}
            # A server ignores a place that is too late.
            if self._place is not None:
                state["place"] = self._place
            return state

    @property
    def report(self) -> Optional[RemoteReport]:
        """The report of the run after its last batch. None before that, and if the feed was
        closed earlier. Also None if the server was gone when the last row had arrived.
        """
        return self._report

    def close(self) -> None:
        """Ends the epoch, here and at the server. A second call does nothing. A call in a forked
        child does nothing either: the epoch belongs to the parent.
        """
        if self._process != os.getpid():
            return
        reader, self._reader = self._reader, None
        if reader is not None:
            # If a thread waits for a message, the cancellation raises an error there, and the
            # thread ends its call.
            reader.cancel()
            with self._reading:
                self._client.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self._next(_batch_of)

    def _next(self, make: Callable[[Any], _Made]) -> _Made:
        """Returns what `make` makes of the next batch. The batch counts as handed out after
        `make` has returned.
        """
        self._check_process()
        with self._reading:
            reader = self._reader
            if self._interrupted:
                raise RuntimeError(
                    f"this feed was interrupted at row {self._position}, before its end: "
                    f"connect(..., skip_rows={self._position}) goes on from there"
                    + (", with `part` and `of`, when all parts connect" if self._parts > 1 else "")
                )
            if reader is None:
                raise StopIteration
            position = self._position
            try:
                # The loop ends: only the last message of a part has no rows.
                while True:
                    chunk = reader.read_chunk()
                    made = make(chunk.data)
                    told = json.loads(bytes(chunk.app_metadata))
                    self._position = told["next_row"]
                    if self._position != self._rounds[-1]:
                        self._rounds.append(self._position)
                    self._inputs = (self._inputs if self._named else []) + told.get("inputs", [])
                    self._place = told.get("place", self._place)
                    self._named = True
                    if chunk.data.num_rows > 0:
                        return made
            except StopIteration:
                self._report = self._ended()
                raise
            except BaseException as error:
                failed = _is_of_arrow(error)
                if self._reader is None and failed:  # another thread has closed the feed
                    raise StopIteration from None
                if not failed:
                    # A batch may have arrived and not reached a caller.
                    self._interrupted, self._position = True, position
                self._reader = None
                # Cancels the call: the server keeps the epoch until the call is cancelled, and
                # closing the client does not cancel it.
                with suppress(Exception):
                    reader.cancel()
                with suppress(Exception):
                    self._client.close()
                _raise(error)

    def _ended(self) -> Optional[RemoteReport]:
        """The server's report of the run. None if the server does not send one, which is no
        failure: all rows have arrived.
        """
        self._reader = None
        try:
            options = import_module("pyarrow.flight").FlightCallOptions(timeout=_REPORT_SECONDS_MAX)
            answer = next(iter(self._client.do_action("report", options=options)))
            told = json.loads(bytes(answer.body))
            # Ignores other fields: a later version of the server may send more.
            names = {one.name for one in fields(RemoteReport)}
            return RemoteReport(**{name: value for name, value in told.items() if name in names})
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
        """The remaining batches for libraries of Arrow, without a copy."""
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

    # These are default arguments, because Python may remove the module's names at the end of the
    # program before it destroys the feeds.
    def __del__(
        self, getpid: Callable[[], int] = os.getpid, keep: Callable[[Any], None] = _keep_forever
    ) -> None:
        if self._process == getpid():
            self.close()
            return
        # In a forked child the destructors of these objects would end the parent's call, or wait
        # for threads that do not exist here.
        keep(self._reader)
        keep(self._client)

    def __repr__(self) -> str:
        return f"<embank.pipeline.RemoteFeed at row {self._position}>"


class _Memory:
    """Shows a buffer of pyarrow to NumPy as memory, and keeps the buffer alive.

    pyarrow marks a message as read-only. Only this feed has the message, so this class shows its
    memory as writable.
    """

    def __init__(self, buffer: Any, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "version": 3, "data": (buffer.address + begin, False), "shape": shape, "typestr": dtype.str,
        }


def _batch_of(data: Any) -> Batch:
    """Returns a batch of pyarrow as a `Batch`."""
    columns = zip(data.schema.names, data.columns)
    return Batch({name: _matrix(column) for name, column in columns})


def _matrix(column: Any) -> NDArray[Any]:
    """Returns a column of lists as a matrix, or a column of tensors as an array. It is copied only
    if the message is not aligned in memory."""
    pyarrow: Any = import_module("pyarrow")
    tensors = isinstance(column, pyarrow.ExtensionArray)
    row = tuple(column.type.shape) if tensors else (column.type.list_size,)
    values = (column.storage if tensors else column).flatten()
    dtype = np.dtype(values.type.to_pandas_dtype())
    shape = (len(column), *row)
    if len(values) == 0:
        return np.empty(shape, dtype)
    memory = _Memory(values.buffers()[1], values.offset * dtype.itemsize, shape, dtype)
    return np.require(np.asarray(memory), requirements="A")


def _is_of_arrow(error: BaseException) -> bool:
    """True if the server or the connection failed. False if a signal handler raised the error, for
    example for Ctrl-C."""
    pyarrow: Any = import_module("pyarrow")
    flight: Any = import_module("pyarrow.flight")
    return isinstance(error, (pyarrow.ArrowException, flight.FlightError))


def _raise(error: BaseException) -> NoReturn:
    """Raises, for an error of the server, the exception that a feed of this process would raise."""
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
