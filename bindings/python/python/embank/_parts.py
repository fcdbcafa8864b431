"""Parts of files for Ray and Spark: vocabularies that workers make part by part.

`_merge` merges the vocabularies, and `_frozen` makes batches of parts. Everything that an engine
carries from process to process is Arrow data or can be pickled. No function keeps anything between
two parts, so an engine may repeat a part, lose it, or give parts in any order.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

import numpy as np
from numpy.typing import NDArray

from ._embank import PartPipeline, split_files
from ._ray_hang import first_part, watch
from .errors import PipelineError, SpecError

if TYPE_CHECKING:
    from .pipeline import Spec

_Path = Union[str, "os.PathLike[str]"]
SpecLike = Union["Spec", str, dict[str, Any]]
PartRow = tuple[int, str, int, int, int, int]
"""Number, path, begin and end of a part, and bytes and time of change of its file."""
Values = tuple[
    str,
    Optional[NDArray[np.uint64]],
    Optional[NDArray[np.uint64]],
    Optional[NDArray[np.uint8]],
    Optional[NDArray[np.uint64]],
]
"""A vocabulary: name, numbers, or offsets and bytes of texts, and counts."""

_RUN_ROWS = 1 << 20
"""Rows of a frame that one run reads."""
_PIECE_VALUES_MAX = 1 << 16
"""Values of a vocabulary in one row of partial vocabularies."""
_PIECE_BYTES_MAX = 64 << 20
"""Bytes of texts in one row, except for a single text. Arrow's lists of bytes hold 2 GiB."""


def load_pyarrow() -> Any:
    """The module pyarrow, which only parts of files and `connect` need."""
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise ImportError(
            f"parts of files are Arrow tables, which need pyarrow ({error}): pip install pyarrow"
        ) from error


def split_parts(
    spec: SpecLike,
    files: Union[_Path, Iterable[_Path]],
    *,
    part_bytes: Union[int, str] = "64MiB",
    format: Optional[Literal["tsv", "csv", "packed", "columns"]] = None,
    separator: Optional[str] = None,
    header: Optional[Union[Literal["names", "skip", "none"], bool]] = None,
    quote: Optional[str] = None,
) -> Any:
    """Divides files into parts that workers of Ray or Spark read. Needs pyarrow.

    A part has the rows that one run over all files would read there. Parts of a text end at the
    end of a row, also if rows have line ends in quotes; such a text is read as a whole here. A part
    of a Parquet file is some of its row groups. A text that is compressed by gzip or zstd, and an
    Arrow file, are one part. Each file has a part, also an empty file.

    Args:
        spec: The spec of the pipeline. It says how long packed rows are, which columns a header
            must have, and which columns of Parquet files must agree.
        files: A path, or several, as for `Pipeline.feed`; no bytes and no pipes. Workers open the
            absolute paths, so all machines must have the files there.
        part_bytes: The least bytes of a part, or of the row groups of a part: a number, or text
            such as `"64MiB"`. The last part of a file may be smaller.
        format: See `Pipeline`. The names of all files together decide by default.
        separator: See `Pipeline`.
        header: See `Pipeline`.
        quote: See `Pipeline`.

    Returns:
        A `pyarrow.Table` with a row for each part: `part` (int64, numbers from 0 in the order of
        the files), `path` (string), `begin` and `end` (int64, bytes, or row groups of Parquet),
        `file_bytes` and `modified_ns` (int64, the length of the file and its time of change, which
        a worker compares), and `split` (string, the same in all rows: the format, the number of
        parts, and digests of the spec and of all parts).

    Raises:
        SpecError: The spec can't be run, its vocabularies can't be merged, the files do not go
            together, or an input is no file.
        PipelineError: The beginning of a file can't be read, or its header does not fit.
        OSError: A file can't be opened.

    >>> from pathlib import Path
    >>> from embank.pipeline import criteo, split_parts
    >>> _ = Path("rows.tsv").write_bytes((b"1" + b"\\t7" * 39 + b"\\n") * 10)
    >>> parts = split_parts(criteo(5000), "rows.tsv", part_bytes=300)
    >>> parts.select(["part", "begin", "end"]).to_pylist()[:2]
    [{'part': 0, 'begin': 0, 'end': 320}, {'part': 1, 'begin': 320, 'end': 640}]
    """
    pyarrow = load_pyarrow()
    pipeline_of(spec)
    split, rows = split_files(spec, files, part_bytes, format, separator, header, quote)
    numbers, paths, begins, ends, bytes_, times = zip(*rows)
    return pyarrow.table(
        {
            "part": pyarrow.array(numbers, pyarrow.int64()),
            "path": pyarrow.array(paths, pyarrow.string()),
            "begin": pyarrow.array(begins, pyarrow.int64()),
            "end": pyarrow.array(ends, pyarrow.int64()),
            "file_bytes": pyarrow.array(bytes_, pyarrow.int64()),
            "modified_ns": pyarrow.array(times, pyarrow.int64()),
            "split": pyarrow.array([split] * len(rows), pyarrow.string()),
        }
    )


def pipeline_of(spec: SpecLike) -> PartPipeline:
    """A pipeline without values. Fails if the spec can't be run over parts."""
    pipeline = PartPipeline(spec)
    for name, _, _ in pipeline.outputs:
        if name in ("part", "row"):
            raise SpecError(
                f'output "{name}" has the name of a column that encoded parts have: give it another'
            )
    return pipeline


def parts_in(batch: Any) -> Iterator[tuple[str, PartRow]]:
    """The split and the row of each part in an Arrow table or record batch."""
    names = ["part", "path", "begin", "end", "file_bytes", "modified_ns", "split"]
    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise PipelineError(
            f"a batch of parts has no column {missing[0]!r}: it must come from split_parts(), and have "
            f"its columns; this one has {', '.join(batch.schema.names)}"
        )
    first_part.set()
    columns = [batch.column(name).to_pylist() for name in names]
    for part, path, begin, end, file_bytes, modified_ns, split in zip(*columns):
        yield split, (part, path, begin, end, file_bytes, modified_ns)


def partial_schema() -> Any:
    """The Arrow schema of partial vocabularies. A row has values of one vocabulary of a part, or
    the part's summary.
    """
    pyarrow = load_pyarrow()
    return pyarrow.schema(
        [
            ("part", pyarrow.int64()),
            ("split", pyarrow.string()),
            ("vocabulary", pyarrow.string()),
            ("first", pyarrow.int64()),
            ("numbers", pyarrow.list_(pyarrow.int64())),
            ("texts", pyarrow.list_(pyarrow.binary())),
            ("counts", pyarrow.list_(pyarrow.int64())),
            ("summary", pyarrow.string()),
        ]
    )


class PartialVocabularies:
    """Makes the vocabularies of parts. Made by `partial_vocabularies`. Can be pickled.

    A call takes a `pyarrow.Table` or `RecordBatch` of parts, and returns a `pyarrow.Table`, for
    `map_batches` of Ray Data with `batch_format="pyarrow"`. For each part it has one row with a
    summary, and rows with the values of each vocabulary. `merge_parts` takes them in any order.
    """

    spark_schema = (
        "part BIGINT, split STRING, vocabulary STRING, first BIGINT, numbers ARRAY<BIGINT>, "
        "texts ARRAY<BINARY>, counts ARRAY<BIGINT>, summary STRING"
    )
    """The schema of `iterator`, for `DataFrame.mapInArrow`."""

    def __init__(self, spec: SpecLike) -> None:
        self._spec = pipeline_of(spec).spec

    def __call__(self, parts: Any) -> Any:
        batches = list(self.iterator([parts]))
        return load_pyarrow().Table.from_batches(batches, schema=partial_schema())

    def iterator(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The rows of all parts in record batches of parts, for `DataFrame.mapInArrow` of Spark."""
        for batch in batches:
            for split, row in parts_in(batch):
                yield from self._of_part(split, row)

    def rows_iterator(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The vocabularies of a Spark frame's own rows, for `DataFrame.mapInArrow`. Ids are those
        of one run over the rows in the order of the frame's column `row`.

        The column has whole numbers, a different one for each row. A partition must have
        consecutive rows in ascending order:
        `frame.repartitionByRange(count, "row").sortWithinPartitions("row")`. `merge_parts` refuses
        partitions that overlap. It can't notice that rows are missing, because numbers may have
        gaps: compare `FrozenPipeline.report.rows` with the rows of the frame.
        """
        pipeline = PartPipeline(self._spec)
        reports = []
        begin = end = None
        # A run adds its counts to all values so far, so one run for each small batch of Spark
        # would take a time that grows with the square of the rows.
        for batch in _joined(batches):
            first, end = _ascending_rows(batch, end)
            begin = first if begin is None else begin
            reports.append(pipeline.generate_rows(stream_of(batch, self._spec)))
        if begin is not None:
            summary = {"path": "rows", "begin": begin, "end": end, "reports": reports}
            yield from _vocabularies_of(pipeline, begin, frame_split(self._spec), summary)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        watch()

    def _of_part(self, split: str, row: PartRow) -> Iterator[Any]:
        # A pipeline for each part, which has seen no other part.
        pipeline = PartPipeline(self._spec)
        number, path, begin, end = row[:4]
        reports = [pipeline.generate(split, row)]
        summary = {"path": path, "begin": begin, "end": end, "reports": reports}
        yield from _vocabularies_of(pipeline, number, split, summary)


def partial_vocabularies(spec: SpecLike) -> PartialVocabularies:
    """Returns a function that makes the vocabularies of parts, for Ray's `map_batches` and, by its
    method `iterator`, for Spark's `mapInArrow`. Needs pyarrow.

    Args:
        spec: The spec that the files were split for.

    Raises:
        SpecError: The spec can't be run, or its vocabularies can't be merged with the ids of one
            run. The text names them.

    >>> from pathlib import Path
    >>> from embank.pipeline import criteo, merge_parts, partial_vocabularies, split_parts
    >>> _ = Path("rows.tsv").write_bytes((b"1" + b"\\t7" * 39 + b"\\n") * 10)
    >>> parts = split_parts(criteo(5000), "rows.tsv", part_bytes=300)
    >>> first = [partial_vocabularies(criteo(5000))(parts.slice(i, 1)) for i in (2, 0, 1, 3, 4)]
    >>> pipeline = merge_parts(criteo(5000), first)
    >>> pipeline.report.rows
    10
    """
    return PartialVocabularies(spec)


def frame_split(spec: str) -> str:
    """What stands in place of a split for rows of a frame."""
    return json.dumps({"frame of spec": hashlib.blake2b(spec.encode(), digest_size=8).hexdigest()})


def _joined(batches: Iterable[Any]) -> Iterator[Any]:
    """The rows of record batches in longer ones. Leaves empty ones out."""
    waiting: list[Any] = []
    rows = 0
    for batch in itertools.chain(batches, [None]):
        if batch is not None and batch.num_rows > 0:
            waiting.append(batch)
            rows += batch.num_rows
        if waiting and (batch is None or rows >= _RUN_ROWS):
            yield from load_pyarrow().Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows = [], 0


def _ascending_rows(batch: Any, before: Optional[int]) -> tuple[int, int]:
    """The first number in the column `row` of a batch, and the number after the last. Fails unless
    the numbers ascend from `before` on.
    """
    if "row" not in batch.schema.names:
        raise PipelineError(
            'the frame has no column "row", whose numbers decide the order of the rows: add one'
        )
    column = batch.column("row")
    pyarrow = load_pyarrow()
    if column.null_count > 0 or not pyarrow.types.is_integer(column.type):
        raise PipelineError('the frame\'s column "row" must have a whole number in each row')
    numbers = column.cast(pyarrow.int64()).to_numpy()
    if not (np.diff(numbers) > 0).all() or (before is not None and numbers[0] < before):
        raise PipelineError(
            'the rows of a partition must ascend by the frame\'s column "row": '
            'frame.repartitionByRange(count, "row").sortWithinPartitions("row")'
        )
    return int(numbers[0]), int(numbers[-1]) + 1


def stream_of(batch: Any, spec: str) -> bytes:
    """The columns of the spec's fields as an Arrow stream."""
    pyarrow = load_pyarrow()
    fields = [field["name"] for field in json.loads(spec)["fields"]]
    read = batch.select([name for name in fields if name in batch.schema.names])
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, read.schema) as writer:
        writer.write(read)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _vocabularies_of(
    pipeline: PartPipeline, part: int, split: str, summary: dict[str, Any]
) -> Iterator[Any]:
    lengths = {}
    for values in pipeline.values():
        lengths[values[0]] = length_of(values)
        for first, end in _cuts(values):
            yield _piece(part, split, values, first, end)
    row = {"part": part, "split": split, "summary": json.dumps({**summary, "lengths": lengths})}
    yield load_pyarrow().RecordBatch.from_pylist([row], schema=partial_schema())


def length_of(values: Values) -> int:
    """The number of values."""
    _, numbers, offsets, _, _ = values
    if numbers is not None:
        return len(numbers)
    assert offsets is not None
    return len(offsets) - 1


def _cuts(values: Values) -> Iterator[tuple[int, int]]:
    """Divides the values into pieces, each with its first place and its end."""
    offsets = values[2]
    first, length = 0, length_of(values)
    while first < length:
        end = min(first + _PIECE_VALUES_MAX, length)
        if offsets is not None:
            within = np.searchsorted(offsets, offsets[first] + np.uint64(_PIECE_BYTES_MAX), "right")
            end = max(first + 1, min(end, int(within) - 1))
        yield first, end
        first = end


def _list_of(values: Any) -> Any:
    """An Arrow array with one list."""
    pyarrow = load_pyarrow()
    return pyarrow.ListArray.from_arrays(pyarrow.array([0, len(values)], pyarrow.int32()), values)


def _signed(numbers: NDArray[np.uint64]) -> Any:
    return load_pyarrow().array(numbers.view(np.int64), load_pyarrow().int64())


def _piece(part: int, split: str, values: Values, first: int, end: int) -> Any:
    pyarrow = load_pyarrow()
    name, numbers, offsets, bytes_, counts = values
    schema = partial_schema()
    null = {name: pyarrow.nulls(1, schema.field(name).type) for name in ("numbers", "texts", "counts")}
    if numbers is not None:
        null["numbers"] = _list_of(_signed(numbers[first:end]))
    elif offsets is not None and bytes_ is not None:
        begin = offsets[first]
        places = (offsets[first : end + 1] - begin).astype(np.int32)
        texts = bytes_[int(begin) : int(offsets[end])]
        buffers = [None, pyarrow.py_buffer(places), pyarrow.py_buffer(texts)]
        null["texts"] = _list_of(
            pyarrow.BinaryArray.from_buffers(pyarrow.binary(), end - first, buffers)
        )
    if counts is not None:
        null["counts"] = _list_of(_signed(counts[first:end]))
    columns = {
        "part": pyarrow.array([part], pyarrow.int64()),
        "split": pyarrow.array([split], pyarrow.string()),
        "vocabulary": pyarrow.array([name], pyarrow.string()),
        "first": pyarrow.array([first], pyarrow.int64()),
        **null,
        "summary": pyarrow.nulls(1, pyarrow.string()),
    }
    return pyarrow.record_batch([columns[field.name] for field in schema], schema=schema)
