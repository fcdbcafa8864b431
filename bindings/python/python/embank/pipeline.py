"""Preprocessing: raw rows of text to batches of numbers, in one pass.

A `Pipeline` is made of a `Spec`, which says what the fields of a row are, which operators change
them, and which matrices come out. `Pipeline.feed` hands out batches, which it makes in the
background:

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

`Spec.to_json` turns a spec into the JSON that Rust and the command line read. `connect` takes the
batches of a pipeline that runs in another process (`embank serve`). `split_parts`,
`partial_vocabularies` and `merge_parts` run a pipeline on Ray and Spark.

This module needs only NumPy. `Batch.torch` needs PyTorch. `connect` and the functions for Ray and
Spark need pyarrow.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Callable, Literal, Optional, Union, get_args

from . import _decode as _decode
from ._batch import Batch
from ._embank import ArrowBatch, Feed, Pipeline, RunReport
from ._frozen import FrozenPipeline
from ._merge import merge_parts
from ._parts import PartialVocabularies, partial_vocabularies, split_parts
from ._remote import RemoteFeed, RemoteReport, connect
from .errors import SpecError

__all__ = [
    "ArrowBatch",
    "Batch",
    "Column",
    "Feed",
    "Field",
    "FrozenPipeline",
    "Operator",
    "Output",
    "PartialVocabularies",
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
    "decode",
    "fill_missing",
    "float_",
    "hash_",
    "hex2int",
    "image",
    "logarithm",
    "merge_parts",
    "modulus",
    "neg2zero",
    "partial_vocabularies",
    "split_parts",
    "vocabulary",
]

Kind = Literal["int32", "int64", "uint64", "hex32", "float32", "bytes", "blob", "file", "skip"]
TimeUnit = Literal["s", "ms", "us", "ns"]
Dtype = Literal["f32", "i32", "i64", "bits32", "u8"]


def _one_of(what: str, value: object, names: Any) -> None:
    """Raises `SpecError` unless `value` is one of the `Literal` `names`."""
    if value not in get_args(names):
        allowed = ", ".join(f'"{name}"' for name in get_args(names))
        raise SpecError(f"{what} must be one of {allowed}, not {value!r}")


@dataclass(frozen=True)
class Operator:
    """One operator of a column. Made by the functions of this module."""

    json: Union[str, dict[str, Any]]
    """The operator in a spec's JSON."""
    callable: Optional[Callable[[bytes], Any]] = field(default=None, compare=False)
    """What `decode` calls. It is not in the JSON."""


def fill_missing(value: Union[int, float, str]) -> Operator:
    """Replaces missing values by `value`. Other operators refuse a column that may have missing
    values.
    """
    return Operator({"fill_missing": value})


def hex2int() -> Operator:
    """Reads hexadecimal text of up to eight digits as a number. A field of kind `"hex32"` does
    not need it.
    """
    return Operator("hex2_int")


def modulus(m: int) -> Operator:
    """The remainder modulo `m`, from 0 to `m - 1`, also for negative values. `m` is from 1 to
    2**31.
    """
    return Operator({"modulus": m})


def hash_(seed: int = 0) -> Operator:
    """A 64-bit hash of a whole number or text. It is equal on every machine."""
    return Operator({"hash": {"seed": seed}})


def vocabulary(name: str) -> Operator:
    """The value's id in the vocabulary of this name. Ids are given in order of first appearance.

    Columns that name one vocabulary share it. Without a bank the values' range must be known, by
    `modulus`. With `Pipeline(spec, bank=bank)` the bank's vocabulary takes whole numbers and text
    of any range.
    """
    return Operator({"vocabulary": name})


def neg2zero() -> Operator:
    """Replaces negative numbers by 0."""
    return Operator("neg2_zero")


def logarithm() -> Operator:
    """log(x + 1) as float32. The column must not have negative numbers: use `neg2zero` before
    it.
    """
    return Operator("logarithm")


def clip(low: float, high: float) -> Operator:
    """Replaces values below `low` by `low`, and values above `high` by `high`."""
    return Operator({"clip": {"low": low, "high": high}})


def bucketize(boundaries: Sequence[float]) -> Operator:
    """The number of boundaries that are at most the value. `boundaries` must be ascending."""
    return Operator({"bucketize": [float(boundary) for boundary in boundaries]})


def float_() -> Operator:
    """The number as float32."""
    return Operator("float")


def image(
    height: int,
    width: int,
    *,
    resize: Optional[int] = None,
    crop: Optional[Literal["center"]] = None,
) -> Operator:
    """A JPEG or PNG as an array `(height, width, 3)` of uint8: red, green and blue.

    It must be the only operator of a column of a required field of kind `"blob"` or `"file"`, and
    an output of dtype `"u8"` with this column alone shows it. The picture is turned as its Exif
    orientation says, and resized by Pillow's filter `BILINEAR`. A picture that cannot be decoded
    makes its row bad.

    Args:
        height: Rows of pixels of the array.
        width: Pixels of a row.
        resize: The length in pixels of the picture's shorter side before the crop, at least
            `height` and `width`. Default: None.
        crop: `"center"` keeps the middle of the picture: with `resize`, `height` x `width` pixels,
            as `Resize` and `CenterCrop` of torchvision do; without, the largest part that has the
            array's proportions. Default: None, which stretches the picture. `resize` needs a crop.

    >>> spec = Spec(
    ...     fields=[Field("jpg", "blob", required=True), Field("cls", "int32", required=True)],
    ...     columns=[Column("jpg", image(224, 224, resize=256, crop="center")), Column("cls")],
    ...     outputs=[Output("picture", ["jpg"], "u8"), Output("label", ["cls"], "i64")],
    ... )
    >>> Pipeline(spec).outputs
    {'picture': ['jpg'], 'label': ['cls']}
    """
    given: dict[str, Any] = {"height": height, "width": width}
    if resize is not None:
        given["resize"] = resize
    if crop is not None:
        given["crop"] = crop
    return Operator({"image": given})


def decode(
    callable: Callable[[bytes], Any],
    *,
    shape: Sequence[int],
    dtype: Dtype,
    version: str = "",
) -> Operator:
    """The array that `callable` makes of the value's bytes: a tokenizer, an audio decoder, or any
    other function.

    It must be the only operator of a column of a field of kind `"bytes"`, `"blob"` or `"file"`. An
    output with this column alone and the same dtype shows the arrays, `(rows, *shape)`. If the
    callable raises an exception, or returns another shape or numbers that the dtype does not hold,
    the row is bad. A missing value is `b""`.

    The threads of the pipeline call it, one at a time, because of the GIL. So it gains from cores
    only where it releases the GIL. It must not wait for the thread that uses the feed.

    Args:
        callable: Takes the bytes of a value. Returns an array or nested lists.
        shape: The shape of an array: 1 to 8 numbers.
        dtype: `"u8"`, `"i32"`, `"i64"` or `"f32"`.
        version: Tells this callable from others of its name. Change it if the callable makes
            other arrays of the same bytes. A `spool` needs it unless the callable is a function of
            a module: lambdas, methods, objects and `functools.partial` share names. Default: "".

    >>> def tokens(text: bytes):
    ...     ids = list(text[:4])  # one byte, one token
    ...     return ids + [0] * (4 - len(ids))
    >>> spec = Spec(
    ...     fields=[Field("title", "bytes"), Field("label", "int32", required=True)],
    ...     columns=[Column("title", decode(tokens, shape=[4], dtype="i64")), Column("label")],
    ...     outputs=[Output("tokens", ["title"], "i64"), Output("label", ["label"], "i64")],
    ... )
    >>> next(Pipeline(spec).feed(b"ab\\t1\\n\\t0\\n"))["tokens"].tolist()
    [[97, 98, 0, 0], [0, 0, 0, 0]]
    """
    if not hasattr(callable, "__call__"):
        raise TypeError(f"decode takes a callable, not {callable!r}")
    of: Any = callable
    while isinstance(of, functools.partial):
        of = of.func
    if not hasattr(of, "__qualname__"):
        of = type(of)
    given: dict[str, Any] = {
        "decoder": f"{of.__module__}.{of.__qualname__}",
        "shape": [int(side) for side in shape],
        "dtype": dtype,
    }
    if version:
        given["version"] = version
    return Operator({"decode": given}, callable)


@dataclass(frozen=True)
class Field:
    """A field of the input's rows.

    Args:
        name: The name that columns refer to.
        kind: How its values are written.
        required: Whether a row with a missing value is a bad row. Default: False.
        time_unit: The unit in which timestamps, times and durations of Parquet and Arrow are
            counted, independent of the file's unit. Dates are days since 1970-01-01. Default: "us".
        missing: Spellings of a missing value in addition to the empty field, such as `["NA",
            "NULL"]`. They are compared byte by byte. NaN in float columns of Parquet and Arrow is
            always missing. A spelling that is also a value of the kind, such as `"-1"`, makes
            reading the field slower.
        whole_floats: Whether text may write a whole number as a float, `5.0`, as pandas does for a
            column with missing values. Whole doubles of Parquet are always read. Default: False.
        words: Words that stand for whole numbers in text, such as `{"true": 1, "false": 0}`. They
            are compared byte by byte. Default: none.

    >>> field = Field("age", "int32", missing=["NA", "nan"], whole_floats=True)
    >>> spec = Spec([field], [Column("age", fill_missing(0))], [Output("age", ["age"], "i32")])
    >>> next(Pipeline(spec).feed(b"5.0\\nNA\\n7\\n"))["age"].ravel().tolist()
    [5, 0, 7]
    >>> label = Field("label", "int32", words={"yes": 1, "no": 0})
    >>> spec = Spec([label], [Column("label", fill_missing(0))], [Output("label", ["label"], "i32")])
    >>> next(Pipeline(spec).feed(b"yes\\n1\\nno\\n"))["label"].ravel().tolist()
    [1, 1, 0]
    """

    name: str
    kind: Kind
    required: bool = False
    time_unit: TimeUnit = "us"
    missing: Sequence[str] = ()
    whole_floats: bool = False
    words: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _one_of(f'kind of field "{self.name}"', self.kind, Kind)
        _one_of(f'time_unit of field "{self.name}"', self.time_unit, TimeUnit)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data."""
        if isinstance(self.missing, str):
            raise TypeError(f"missing is a list of spellings, not {self.missing!r}")
        return {**vars(self), "missing": list(self.missing), "words": dict(self.words)}


@dataclass(frozen=True, init=False)
class Column:
    """A column: the values of a field, and the operators that change them.

    Args:
        name: The name that outputs refer to.
        operators: The operators, in the order in which they are applied.
        field: The name of the field. Default: the column's name.
    """

    name: str
    source: dict[str, Any]
    operators: tuple[Operator, ...]

    def __init__(self, name: str, *operators: Operator, field: Optional[str] = None) -> None:
        self._set(name, {"field": name if field is None else field}, operators)

    def _set(self, name: str, source: dict[str, Any], operators: tuple[Operator, ...]) -> None:
        for operator in operators:
            if not isinstance(operator, Operator):
                called = getattr(operator, "__name__", None)
                cure = f": call it, {called}(...)" if callable(operator) and called else ""
                raise TypeError(f'an operator of column "{name}" is {operator!r}{cure}')
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "operators", operators)


def cross(name: str, first: str, second: str, *operators: Operator, seed: int = 0) -> Column:
    """A column that is a hash of the final values of two earlier columns.

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

    def __post_init__(self) -> None:
        _one_of(f'dtype of output "{self.name}"', self.dtype, Dtype)


@dataclass(frozen=True)
class VocabularySpec:
    """The settings of a vocabulary. A vocabulary without a `VocabularySpec` has the defaults, or
    keeps its settings if the bank has it.

    Args:
        name: The name that `vocabulary(name)` uses.
        min_count: Values that occur less often than this get `unknown_id`, which must then be set.
            A run then reads its inputs twice. After the first time, which counts the values, it
            renumbers and freezes the vocabulary. `feed` returns before the counting ends, so make
            tables of the vocabulary after a `Pipeline.run`. Default: 0, every value gets an id.
        unknown_id: The id of values that the vocabulary does not have, if it is frozen or the run
            has `learn=False`; below `first_id`. Default: None, such a value ends the run. Neither
            `unknown_id` nor `first_id` can be changed after the vocabulary is made, so begin with
            `first_id=1, unknown_id=0`. Training batches contain this id only if the vocabulary has
            a `min_count` or is frozen. Otherwise the row of this id keeps its initial values unless
            you put a row.
        first_id: The first value's id. Default: 0.
        counts: Whether `Pipeline.generate` counts how often each value occurs. With a `min_count`
            it always does. Default: False.
        value_bytes_max: The largest length of a value in bytes. A longer value makes its row bad.
            To a frozen vocabulary and to an evaluation, it is an unknown value. Default: that of
            the bank's vocabulary, or 1,024 for a new one.

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
        """The settings as plain data, without settings that are None."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Spec:
    """The description of a pipeline: fields, columns and outputs.

    Args:
        fields: The fields of a row, in the order of the input.
        columns: The columns. Each is made of a field, or of two columns before it (`cross`).
        outputs: The matrices of a batch.
        bad_rows: `"fail"`: the first row that can't be used ends the run. `"skip"`: such rows are
            left out and counted, and the report has the first ten. Default: `"fail"`.
        bad_rows_max: With `"skip"`, the largest share of bad rows, from 0 to 1. A run with a larger
            share ends with `BadRow`. The run checks the share from 10,000 rows on, and at its end
            if every row is bad. A bad row counts as the number of lines that it spans. 1 means no
            limit. Default: 0.01.
        vocabularies: The settings of vocabularies that differ from the defaults.

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

    def __post_init__(self) -> None:
        _one_of("bad_rows", self.bad_rows, Literal["fail", "skip"])

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

    def decoders(self) -> dict[str, Callable[[bytes], Any]]:
        """The callables of `decode` by their names in the JSON: module and qualified name.

        Raises:
            SpecError: Two different callables have one name.
        """
        found: dict[str, Callable[[bytes], Any]] = {}
        for operator in (operator for column in self.columns for operator in column.operators):
            if operator.callable is None or not isinstance(operator.json, dict):
                continue
            name = operator.json["decode"]["decoder"]
            if found.setdefault(name, operator.callable) != operator.callable:
                raise SpecError(
                    f'two decoders have the name "{name}": make them functions with names of '
                    "their own"
                )
        return found

    def _check_spool(self) -> None:
        """Raises `SpecError` if a callable's arrays could be taken for those of another one."""
        for operator in (operator for column in self.columns for operator in column.operators):
            of = operator.callable
            if of is None or not isinstance(operator.json, dict):
                continue
            is_function = isinstance(of, FunctionType) and of.__name__ == of.__qualname__
            if operator.json["decode"].get("version") or (is_function and of.__name__ != "<lambda>"):
                continue
            raise SpecError(
                f'decoder "{operator.json["decode"]["decoder"]}" needs a version for the spool: '
                "other callables have the same name, and their arrays would be taken for its own"
            )

    def to_json(self) -> str:
        """The spec as JSON, which `Pipeline` and Rust read."""
        return json.dumps(self.to_dict(), indent=2)


def criteo(modulus: int, bad_rows: Literal["fail", "skip"] = "fail") -> Spec:
    """The spec of the PIPER paper's evaluation, over rows of the Criteo Kaggle set.

    A label, 13 integers (missing to 0, negative to 0, log(x + 1)) and 26 categories (missing to 0,
    modulo `modulus`, each with a vocabulary of its own). Outputs: `label` float32 `(n, 1)`, `dense`
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


# The names under which these classes are documented and pickled.
for _public in (
    Batch,
    FrozenPipeline,
    PartialVocabularies,
    RemoteFeed,
    RemoteReport,
    connect,
    merge_parts,
    partial_vocabularies,
    split_parts,
):
    _public.__module__ = __name__
