"""Preprocessing: raw rows of text to batches of numbers, in one pass.

A `Pipeline` is made of a `Spec`, which says what the fields of a row are, what becomes of them, and
what comes out. `Pipeline.feed` hands out batches that are made in the background:

>>> spec = Spec(
...     fields=[Field("clicked", "int32", required=True), Field("age", "int32"), Field("site", "hex32")],
...     columns=[
...         Column("clicked"),
...         Column("age", fill_missing(0), neg2zero(), logarithm()),
...         Column("site", fill_missing(0), modulus(5000), vocabulary("site")),
...     ],
...     outputs=[
...         Output("label", ["clicked"], "f32"),
...         Output("dense", ["age"], "f32"),
...         Output("sparse", ["site"], "i64"),
...     ],
... )
>>> pipeline = Pipeline(spec)
>>> for batch in pipeline.feed(b"1\\t0\\t7f\\n0\\t\\t3\\n0\\t-5\\t7f\\n", batch_rows=2):
...     print(batch["label"].tolist(), batch["dense"].tolist(), batch["sparse"].tolist())
[[1.0], [0.0]] [[0.0], [0.0]] [[0], [1]]
[[0.0]] [[0.0]] [[0]]

The specs that are made here are JSON in the end, the same as in Rust and for the command line:
`Spec.to_json`. `connect` takes the batches of a pipeline that runs elsewhere (`embank serve`).

This module needs NumPy alone; `Batch.torch` needs PyTorch, and `connect` pyarrow.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Optional, TypeVar, Union, cast

import numpy as np
from numpy.typing import NDArray

from ._embank import ArrowBatch, Feed, Pipeline, RunReport
from .errors import BadRow, PipelineError

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    _Base = dict[str, NDArray[Any]]
else:
    _Base = dict

_Made = TypeVar("_Made")

_REPORT_SECONDS_MAX = 10.0
"""A server that has stopped without a word is waited for so long, where all its rows have come."""

__all__ = [
    "ArrowBatch",
    "Batch",
    "Column",
    "Feed",
    "Field",
    "Operator",
    "Output",
    "Pipeline",
    "RemoteFeed",
    "RemoteReport",
    "RunReport",
    "Spec",
    "VocabularySpec",
    "bucketize",
    "clip",
    "connect",
    "criteo",
    "cross",
    "fill_missing",
    "float_",
    "hash_",
    "hex2int",
    "logarithm",
    "modulus",
    "neg2zero",
    "vocabulary",
]

Kind = Literal["int32", "int64", "uint64", "hex32", "float32", "bytes", "skip"]
TimeUnit = Literal["s", "ms", "us", "ns"]
Dtype = Literal["f32", "i32", "i64", "bits32"]


class Batch(_Base):
    """Some rows: a dict of arrays `(rows, columns)` by output name.

    The arrays own the memory that the pipeline wrote: nothing was copied, and they are yours to
    change and keep. `"f32"` is float32, `"i32"` int32, `"i64"` int64, `"bits32"` uint32.

    >>> batch = next(Pipeline(criteo(100)).feed(b"1" + b"\\t7" * 39 + b"\\n"))
    >>> {name: (array.dtype.name, array.shape) for name, array in batch.items()}
    {'label': ('float32', (1, 1)), 'dense': ('float32', (1, 13)), 'sparse': ('int64', (1, 26))}
    """

    __slots__ = ()

    def torch(self) -> dict[str, torch.Tensor]:
        """The same as tensors, which share the arrays' memory. Needs PyTorch."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self.items()}

    def arrow(self) -> ArrowBatch:
        """The same for libraries of Arrow, in the arrays' memory: `pyarrow.record_batch(batch.arrow())`.

        A column for each output: lists of as many values as the matrix has columns.
        """
        return ArrowBatch(
            {name: np.require(array, requirements=["C", "A"]) for name, array in self.items()}
        )

    def __arrow_c_schema__(self) -> object:
        return self.arrow().__arrow_c_schema__()

    def __arrow_c_array__(
        self, requested_schema: Optional[object] = None
    ) -> tuple[object, object]:
        return self.arrow().__arrow_c_array__(requested_schema)


@dataclass(frozen=True)
class Operator:
    """One step of a column's way; made by the functions of this module."""

    json: Union[str, dict[str, Any]]
    """As a spec has it."""


def fill_missing(value: Union[int, float, str]) -> Operator:
    """A value for empty fields. Without it, other operators refuse a column that may have some."""
    return Operator({"fill_missing": value})


def hex2int() -> Operator:
    """Hexadecimal text of up to eight digits to a number; a field of kind `"hex32"` needs it not."""
    return Operator("hex2_int")


def modulus(m: int) -> Operator:
    """The remainder from 0 to below `m`, for negative values too. From 1 to 2**31."""
    return Operator({"modulus": m})


def hash_(seed: int = 0) -> Operator:
    """A 64-bit hash of a whole number or text, the same on every machine."""
    return Operator({"hash": {"seed": seed}})


def vocabulary(name: str) -> Operator:
    """The value's number in the vocabulary of that name, in order of first appearance, from 0.

    Columns that name the same vocabulary share it. The values' range must be known, by `modulus`;
    with `Pipeline(spec, bank=bank)` whole numbers and text of any range have ids, in the bank.
    """
    return Operator({"vocabulary": name})


def neg2zero() -> Operator:
    """Negative numbers become 0."""
    return Operator("neg2_zero")


def logarithm() -> Operator:
    """log(x + 1) as float32, of numbers that can't be negative."""
    return Operator("logarithm")


def clip(low: float, high: float) -> Operator:
    """Values below `low` become that, above `high` that."""
    return Operator({"clip": {"low": low, "high": high}})


def bucketize(boundaries: Sequence[float]) -> Operator:
    """How many of the ascending boundaries are at most the value."""
    return Operator({"bucketize": [float(boundary) for boundary in boundaries]})


def float_() -> Operator:
    """The number as float32."""
    return Operator("float")


@dataclass(frozen=True)
class Field:
    """A field of the input's rows.

    Args:
        name: By which columns refer to it.
        kind: How it is written.
        required: Whether a missing value makes its row a bad row.
        time_unit: What timestamps, times and durations of Parquet and Arrow are counted in, whatever
            a file's unit is. Dates are days since 1970-01-01.
        missing: Spellings that mean missing, beside an empty field, byte by byte: `["NA", "NULL"]`.
            NaN in float columns of Parquet and Arrow is missing in any case. A spelling that is a value
            of the kind itself, such as `"-1"`, makes reading the field slower.
        whole_floats: Whether whole numbers may be written as floats in text, as pandas writes a
            column with missing values: `5.0`. Whole doubles of Parquet are read in any case.

    >>> field = Field("age", "int32", missing=["NA", "nan"], whole_floats=True)
    >>> spec = Spec([field], [Column("age", fill_missing(0))], [Output("age", ["age"], "i32")])
    >>> next(Pipeline(spec).feed(b"5.0\\nNA\\n7\\n"))["age"].ravel().tolist()
    [5, 0, 7]
    """

    name: str
    kind: Kind
    required: bool = False
    time_unit: TimeUnit = "us"
    missing: Sequence[str] = ()
    whole_floats: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data."""
        if isinstance(self.missing, str):
            raise TypeError(f"missing is a list of spellings, not {self.missing!r}")
        return {**vars(self), "missing": list(self.missing)}


@dataclass(frozen=True, init=False)
class Column:
    """A column: a field's values, and what is done to them, in order.

    Args:
        name: By which outputs refer to it.
        operators: In order.
        field: The field it is made of. Default: the one of the column's name.
    """

    name: str
    source: dict[str, Any]
    operators: tuple[Operator, ...]

    def __init__(self, name: str, *operators: Operator, field: Optional[str] = None) -> None:
        self._set(name, {"field": name if field is None else field}, operators)

    def _set(self, name: str, source: dict[str, Any], operators: tuple[Operator, ...]) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "operators", operators)


def cross(name: str, first: str, second: str, *operators: Operator, seed: int = 0) -> Column:
    """A column that is a hash of two earlier columns together, each as it is at its end.

    >>> both = cross("site_and_ad", "site", "ad", modulus(100_000), vocabulary("both"))
    >>> both.source["cross"]["first"]
    'site'
    """
    column = Column.__new__(Column)
    column._set(name, {"cross": {"first": first, "second": second, "seed": seed}}, operators)
    return column


@dataclass(frozen=True)
class Output:
    """A matrix of columns side by side."""

    name: str
    columns: Sequence[str]
    dtype: Dtype


@dataclass(frozen=True)
class VocabularySpec:
    """How a vocabulary numbers. One without has the defaults, or, in a bank, is as it is there.

    Args:
        name: As `vocabulary(name)` has it.
        min_count: Values that come less often get `out_of_vocabulary`, which must be set then. A
            run goes over its inputs twice: it counts first, and freezes the vocabulary.
        out_of_vocabulary: The id of values that the vocabulary lacks when it is frozen or a run is
            not to learn; below `first_id`. None: they end the run. Like `first_id`, it can't be
            changed once the vocabulary is made: begin with `first_id=1, out_of_vocabulary=0`.
        first_id: The first value's id.
        counts: Whether `Pipeline.generate` counts how often values come; with a `min_count` it does.
        value_bytes_max: The longest byte string. None: 1,024, or what the bank has.

    >>> spec = Spec(
    ...     fields=[Field("word", "int32", required=True)],
    ...     columns=[Column("word", modulus(100), vocabulary("word"))],
    ...     outputs=[Output("ids", ["word"], "i64")],
    ...     vocabularies=[VocabularySpec("word", min_count=2, out_of_vocabulary=0, first_id=1)],
    ... )
    >>> next(Pipeline(spec).feed(b"7\\n8\\n7\\n"))["ids"].ravel().tolist()
    [1, 0, 1]
    """

    name: str
    min_count: int = 0
    out_of_vocabulary: Optional[int] = None
    first_id: int = 0
    counts: bool = False
    value_bytes_max: Optional[int] = None

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data, those that are None left out."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Spec:
    """What a pipeline does.

    Args:
        fields: The fields of a row, in the order in which they stand in it.
        columns: What is made of them, each of what comes before it.
        outputs: What comes out.
        bad_rows: `"fail"`: the first row that can't be used ends the run; `"skip"`: such rows are
            left out, counted, and the first ten reported.
        bad_rows_max: With `"skip"`, the share of bad rows with which a run ends all the same
            (`BadRow`), once it has met 10,000 rows; a bad row counts as the lines that it spans.
            1: no limit.
        vocabularies: Settings of vocabularies that are not to have the defaults.

    >>> spec = Spec([Field("n", "int32")], [Column("n", fill_missing(0))], [Output("n", ["n"], "i32")])
    >>> [batch["n"].tolist() for batch in Pipeline(spec).feed(b"5\\n\\n")]
    [[[5], [0]]]
    """

    fields: Sequence[Field]
    columns: Sequence[Column]
    outputs: Sequence[Output]
    bad_rows: Literal["fail", "skip"] = field(default="fail")
    vocabularies: Sequence[VocabularySpec] = ()
    bad_rows_max: float = 0.01

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain data."""
        return {
            "fields": [one.to_dict() for one in self.fields],
            "columns": [
                {
                    "name": column.name,
                    "from": column.source,
                    "operators": [operator.json for operator in column.operators],
                }
                for column in self.columns
            ],
            "outputs": [
                {"name": one.name, "columns": list(one.columns), "dtype": one.dtype}
                for one in self.outputs
            ],
            "bad_rows": self.bad_rows,
            "bad_rows_max": self.bad_rows_max,
            "vocabularies": [one.to_dict() for one in self.vocabularies],
        }

    def to_json(self) -> str:
        """The spec as JSON, as `Pipeline` takes it and as Rust reads it."""
        return json.dumps(self.to_dict(), indent=2)


def criteo(modulus: int, bad_rows: Literal["fail", "skip"] = "fail") -> Spec:
    """The pipeline of the PIPER paper's evaluation, over rows of the Criteo Kaggle set.

    A label, 13 integers (missing to 0, negative to 0, log(x + 1)) and 26 categories (missing to 0,
    modulo `modulus`, numbered by a vocabulary each). Outputs: `label` float32 `(n, 1)`, `dense`
    float32 `(n, 13)`, `sparse` int64 `(n, 26)`.

    >>> Pipeline(criteo(5000)).outputs["dense"][:3]
    ['I1', 'I2', 'I3']
    """
    integers = [f"I{i}" for i in range(1, 14)]
    categories = [f"C{i}" for i in range(1, 27)]
    remainder = Operator({"modulus": modulus})
    return Spec(
        fields=[
            Field("label", "int32", required=True),
            *(Field(name, "int32") for name in integers),
            *(Field(name, "hex32") for name in categories),
        ],
        columns=[
            Column("label"),
            *(Column(name, fill_missing(0), neg2zero(), logarithm()) for name in integers),
            *(Column(name, fill_missing(0), remainder, vocabulary(name)) for name in categories),
        ],
        outputs=[
            Output("label", ["label"], "f32"),
            Output("dense", integers, "f32"),
            Output("sparse", categories, "i64"),
        ],
        bad_rows=bad_rows,
    )


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
