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

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Optional, Union

from ._batch import Batch
from ._embank import ArrowBatch, Feed, Pipeline, RunReport
from ._remote import RemoteFeed, RemoteReport, connect

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
        min_count: Values that come less often get `unknown_id`, which must be set then. A
            run goes over its inputs twice: it counts first, and freezes the vocabulary.
        unknown_id: The id of values that the vocabulary lacks when it is frozen or a run is
            not to learn; below `first_id`. None: they end the run. Like `first_id`, it can't be
            changed once the vocabulary is made: begin with `first_id=1, unknown_id=0`.
        first_id: The first value's id.
        counts: Whether `Pipeline.generate` counts how often values come; with a `min_count` it does.
        value_bytes_max: The longest byte string. None: 1,024, or what the bank has.

    >>> spec = Spec(
    ...     fields=[Field("word", "int32", required=True)],
    ...     columns=[Column("word", modulus(100), vocabulary("word"))],
    ...     outputs=[Output("ids", ["word"], "i64")],
    ...     vocabularies=[VocabularySpec("word", min_count=2, unknown_id=0, first_id=1)],
    ... )
    >>> next(Pipeline(spec).feed(b"7\\n8\\n7\\n"))["ids"].ravel().tolist()
    [1, 0, 1]
    """

    name: str
    min_count: int = 0
    unknown_id: Optional[int] = None
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


# Their public names, by which they are documented and pickled.
for _public in (Batch, RemoteFeed, RemoteReport, connect):
    _public.__module__ = __name__
