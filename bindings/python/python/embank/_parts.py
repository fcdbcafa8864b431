"""Parts of files for Ray and Spark: vocabularies and batches that workers make part by part.

Everything that an engine carries from process to process is Arrow data or can be pickled. No
function here keeps anything between two parts, so an engine may repeat a part, lose it, or give
parts in any order.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

import numpy as np
from numpy.typing import NDArray

from ._embank import Bank, Feed, PartPipeline, RunReport, split_files
from .errors import PipelineError, SpecError

if TYPE_CHECKING:
    from .pipeline import Spec

_Path = Union[str, "os.PathLike[str]"]
_Spec = Union["Spec", str, dict[str, Any]]
_PartRow = tuple[int, str, int, int, int]
"""Number, path, begin, end and bytes of the file of a part."""
_Values = tuple[
    str,
    Optional[NDArray[np.uint64]],
    Optional[NDArray[np.uint64]],
    Optional[NDArray[np.uint8]],
    Optional[NDArray[np.uint64]],
]
"""A vocabulary: name, numbers, or offsets and bytes of texts, and counts."""

_PIECE_VALUES_MAX = 1 << 16
"""Values of a vocabulary in one row of partial vocabularies."""
_PIECE_BYTES_MAX = 64 << 20
"""Bytes of texts in one row, except for a single text. Arrow's lists of bytes hold 2 GiB."""
_BATCH_ROWS = 1 << 16
"""Rows of a batch that `files` makes."""
_NAMED_MAX = 5
"""Missing parts that an error names."""
_KEPT_MAX = 2
"""Frozen pipelines that a process keeps. Two are one for training files and one for others."""


def _pyarrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise ImportError(
            f"parts of files are Arrow tables, which need pyarrow ({error}): pip install pyarrow"
        ) from error


def split_parts(
    spec: _Spec,
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
        `file_bytes` (int64, the length of the file), and `split` (string, the same in all rows:
        the format, the number of parts, and digests of the spec and of all parts).

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
    pyarrow = _pyarrow()
    _pipeline_of(spec)
    split, rows = split_files(spec, files, part_bytes, format, separator, header, quote)
    numbers, paths, begins, ends, bytes_ = zip(*rows)
    return pyarrow.table(
        {
            "part": pyarrow.array(numbers, pyarrow.int64()),
            "path": pyarrow.array(paths, pyarrow.string()),
            "begin": pyarrow.array(begins, pyarrow.int64()),
            "end": pyarrow.array(ends, pyarrow.int64()),
            "file_bytes": pyarrow.array(bytes_, pyarrow.int64()),
            "split": pyarrow.array([split] * len(rows), pyarrow.string()),
        }
    )


def _pipeline_of(spec: _Spec) -> PartPipeline:
    """A pipeline without values. Fails if the spec can't be run over parts."""
    pipeline = PartPipeline(spec)
    for name, _, _ in pipeline.outputs:
        if name in ("part", "row"):
            raise SpecError(
                f'output "{name}" has the name of a column that encoded parts have: give it another'
            )
    return pipeline


def _parts_in(batch: Any) -> Iterator[tuple[str, _PartRow]]:
    """The split and the row of each part in an Arrow table or record batch."""
    names = ["part", "path", "begin", "end", "file_bytes", "split"]
    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise PipelineError(
            f"a batch of parts has no column {missing[0]!r}: it must come from split_parts(), and have "
            f"its columns; this one has {', '.join(batch.schema.names)}"
        )
    columns = [batch.column(name).to_pylist() for name in names]
    for part, path, begin, end, file_bytes, split in zip(*columns):
        yield split, (part, path, begin, end, file_bytes)


def _partial_schema() -> Any:
    pyarrow = _pyarrow()
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

    def __init__(self, spec: _Spec) -> None:
        self._spec = _pipeline_of(spec).spec

    def __call__(self, parts: Any) -> Any:
        batches = list(self.iterator([parts]))
        return _pyarrow().Table.from_batches(batches, schema=_partial_schema())

    def iterator(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The rows of all parts in record batches of parts, for `DataFrame.mapInArrow` of Spark."""
        for batch in batches:
            for split, row in _parts_in(batch):
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
        for batch in batches:
            if batch.num_rows > 0:
                first, end = _ascending_rows(batch, end)
                begin = first if begin is None else begin
                reports.append(pipeline.generate_rows(_stream_of(batch, self._spec)))
        if begin is not None:
            summary = {"path": "rows", "begin": begin, "end": end, "reports": reports}
            yield from _vocabularies_of(pipeline, begin, _frame_split(self._spec), summary)

    def _of_part(self, split: str, row: _PartRow) -> Iterator[Any]:
        # A pipeline for each part, which has seen no other part.
        pipeline = PartPipeline(self._spec)
        number, path, begin, end, _ = row
        reports = [pipeline.generate(split, row)]
        summary = {"path": path, "begin": begin, "end": end, "reports": reports}
        yield from _vocabularies_of(pipeline, number, split, summary)


def partial_vocabularies(spec: _Spec) -> PartialVocabularies:
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


def _frame_split(spec: str) -> str:
    """What stands in place of a split for rows of a frame."""
    return json.dumps({"frame of spec": hashlib.blake2b(spec.encode(), digest_size=8).hexdigest()})


def _ascending_rows(batch: Any, before: Optional[int]) -> tuple[int, int]:
    """The first number in the column `row` of a batch, and the number after the last. Fails unless
    the numbers ascend from `before` on.
    """
    if "row" not in batch.schema.names:
        raise PipelineError(
            'the frame has no column "row", whose numbers decide the order of the rows: add one'
        )
    column = batch.column("row")
    pyarrow = _pyarrow()
    if column.null_count > 0 or not pyarrow.types.is_integer(column.type):
        raise PipelineError('the frame\'s column "row" must have a whole number in each row')
    numbers = column.cast(pyarrow.int64()).to_numpy()
    if not (np.diff(numbers) > 0).all() or (before is not None and numbers[0] < before):
        raise PipelineError(
            'the rows of a partition must ascend by the frame\'s column "row": '
            'frame.repartitionByRange(count, "row").sortWithinPartitions("row")'
        )
    return int(numbers[0]), int(numbers[-1]) + 1


def _stream_of(batch: Any, spec: str) -> bytes:
    """The columns of the spec's fields as an Arrow stream."""
    pyarrow = _pyarrow()
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
        lengths[values[0]] = _length(values)
        for first, end in _cuts(values):
            yield _piece(part, split, values, first, end)
    row = {"part": part, "split": split, "summary": json.dumps({**summary, "lengths": lengths})}
    yield _pyarrow().RecordBatch.from_pylist([row], schema=_partial_schema())


def _length(values: _Values) -> int:
    _, numbers, offsets, _, _ = values
    if numbers is not None:
        return len(numbers)
    assert offsets is not None
    return len(offsets) - 1


def _cuts(values: _Values) -> Iterator[tuple[int, int]]:
    """Divides the values into pieces, each with its first place and its end."""
    offsets = values[2]
    first, length = 0, _length(values)
    while first < length:
        end = min(first + _PIECE_VALUES_MAX, length)
        if offsets is not None:
            within = np.searchsorted(offsets, offsets[first] + np.uint64(_PIECE_BYTES_MAX), "right")
            end = max(first + 1, min(end, int(within) - 1))
        yield first, end
        first = end


def _list_of(values: Any) -> Any:
    """An Arrow array with one list."""
    pyarrow = _pyarrow()
    return pyarrow.ListArray.from_arrays(pyarrow.array([0, len(values)], pyarrow.int32()), values)


def _signed(numbers: NDArray[np.uint64]) -> Any:
    return _pyarrow().array(numbers.view(np.int64), _pyarrow().int64())


def _piece(part: int, split: str, values: _Values, first: int, end: int) -> Any:
    pyarrow = _pyarrow()
    name, numbers, offsets, bytes_, counts = values
    schema = _partial_schema()
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


def merge_parts(spec: _Spec, batches: Any) -> FrozenPipeline:
    """Merges the vocabularies of all parts. Ids are those that one run over the files, in the order
    of `split_parts`, would give, whatever order the batches have. Needs pyarrow.

    With a `min_count`, the counts of all parts together decide which values are frequent. The share
    of bad rows (`bad_rows_max`) counts over all parts too.

    Args:
        spec: The spec that the files were split for.
        batches: What `partial_vocabularies` made: a `pyarrow.Table`, or an iterable of tables and
            record batches.

    Raises:
        PipelineError: A part is missing, came twice or incomplete, or comes from another split.
            The text names the part.
        BadRow: More rows are bad than the spec allows.
        SpecError: The parts were split for another spec.

    Examples: see `partial_vocabularies`.
    """
    pyarrow = _pyarrow()
    pipeline = _pipeline_of(spec)
    if isinstance(batches, (pyarrow.Table, pyarrow.RecordBatch)):
        batches = [batches]
    found = _Found()
    for batch in batches:
        found.add(batch)
    split, parts = found.complete()
    if found.is_of_a_frame():
        if split != _frame_split(pipeline.spec):
            raise SpecError("the rows of the frame were read by another spec: merge with that")
    else:
        pipeline.check_split(split)
    for part in parts:
        for report in part.summary["reports"]:
            pipeline.add_report(report)
        for name in part.summary["lengths"]:
            for _, piece in sorted(part.pieces.get(name, []), key=lambda piece: piece[0]):
                pipeline.absorb(*piece)
    pipeline.finish_merge()
    frozen = FrozenPipeline(pipeline.spec, split, pipeline.report_json(), pipeline.values())
    _keep(frozen._fingerprint, pipeline)
    return frozen


class _FoundPart:
    """What came of one part."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] = {}
        self.pieces: dict[str, list[tuple[int, _Values]]] = {}
        """For each vocabulary, the pieces of its values, each with its first place."""


class _Found:
    """What came of all parts."""

    def __init__(self) -> None:
        self.split: Optional[str] = None
        self.first = 0
        """The part that `split` came with."""
        self.parts: dict[int, _FoundPart] = {}

    def add(self, batch: Any) -> None:
        missing = [name for name in _partial_schema().names if name not in batch.schema.names]
        if missing:
            raise PipelineError(
                f"a batch to merge has no column {missing[0]!r}: it must come from partial_vocabularies()"
            )
        columns = [batch.column(name) for name in _partial_schema().names]
        for row in range(batch.num_rows):
            self._add_row(*(column[row] for column in columns))

    def _add_row(
        self,
        number: Any,
        split: Any,
        vocabulary: Any,
        first: Any,
        numbers: Any,
        texts: Any,
        counts: Any,
        summary: Any,
    ) -> None:
        part_number = number.as_py()
        if self.split is None:
            self.split, self.first = split.as_py(), part_number
        elif self.split != split.as_py():
            raise PipelineError(
                f"part {part_number} comes from another split than part {self.first}: merge only what came of "
                "one call of split_parts()"
            )
        part = self.parts.setdefault(part_number, _FoundPart())
        if summary.is_valid:
            if part.summary:
                raise PipelineError(
                    f"part {part_number}, {_place(part)}, came twice: give each part once"
                )
            part.summary = json.loads(summary.as_py())
            return
        values: _Values = (
            vocabulary.as_py(),
            _unsigned(numbers.values) if numbers.is_valid else None,
            *(_texts(texts.values) if texts.is_valid else (None, None)),
            _unsigned(counts.values) if counts.is_valid else None,
        )
        part.pieces.setdefault(values[0], []).append((first.as_py(), values))

    def complete(self) -> tuple[str, list[_FoundPart]]:
        """The split, and its parts in their order. Fails unless each part came once."""
        if self.split is None:
            raise PipelineError(
                "no part came: give merge_parts() what partial_vocabularies() made of all parts"
            )
        for number, part in self.parts.items():
            _check_complete(number, part)
        if self.is_of_a_frame():
            parts = [part for _, part in sorted(self.parts.items())]
            for one, other in zip(parts, parts[1:]):
                if one.summary["end"] > other.summary["begin"]:
                    raise PipelineError(
                        f"{_place(one)} and {_place(other)} overlap: a partition must have consecutive rows, "
                        'frame.repartitionByRange(count, "row").sortWithinPartitions("row")'
                    )
            return self.split, parts
        count = json.loads(self.split)["parts"]
        missing = [number for number in range(count) if number not in self.parts]
        if missing:
            named = ", ".join(str(number) for number in missing[:_NAMED_MAX])
            more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
            raise PipelineError(
                f"of {count} parts, these are missing: {named}{more}; give each part of the split once"
            )
        return self.split, [self.parts[number] for number in range(count)]

    def is_of_a_frame(self) -> bool:
        return self.split is not None and "frame of spec" in json.loads(self.split)


def _place(part: _FoundPart) -> str:
    summary = part.summary
    return f"{summary['path']} from {summary['begin']} to {summary['end']}"


def _check_complete(number: int, part: _FoundPart) -> None:
    """Fails unless all values of a part came once."""
    if not part.summary:
        raise PipelineError(f"part {number} came without its summary: keep all rows of a part")
    for name, length in part.summary["lengths"].items():
        pieces = [(first, _length(values)) for first, values in part.pieces.get(name, [])]
        end = 0
        for first, values in sorted(pieces):
            if first < end:
                raise PipelineError(
                    f"part {number}, {_place(part)}, came twice: vocabulary {name!r} has value {first} of it "
                    "again"
                )
            if first > end:
                break
            end = first + values
        if end != length:
            raise PipelineError(
                f"part {number}, {_place(part)}, came incomplete: of {length} values of vocabulary {name!r}, "
                f"those from {end} on are missing"
            )


def _unsigned(array: Any) -> NDArray[np.uint64]:
    numbers: NDArray[np.int64] = array.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers, dtype=np.int64).view(np.uint64)


def _texts(array: Any) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    pyarrow = _pyarrow()
    array = array.cast(pyarrow.large_binary())
    _, places, bytes_ = array.buffers()
    offsets = np.frombuffer(places, np.int64)[array.offset : array.offset + len(array) + 1]
    if bytes_ is None:
        return offsets.view(np.uint64), np.empty(0, np.uint8)
    return offsets.view(np.uint64), np.frombuffer(bytes_, np.uint8)


class FrozenPipeline:
    """A pipeline whose vocabularies are complete, for workers of Ray and Spark. Made by
    `merge_parts`.

    It can be pickled: a pickle has the spec and all values. A process makes the tables of ids when
    it first uses them, with one thread for the work, and keeps the last two frozen pipelines. So
    the many pickles that an engine sends cost a worker the tables once.

    Parts of the split that made the vocabularies give the rows of one run over the files, bit for
    bit. Other parts, of a `split_parts` with the same spec, are read as `Pipeline.feed` does with
    `learn=False`: a value without an id gets the `unknown_id`, or raises `UnknownValue`.
    """

    def __init__(self, spec: str, split: str, report: str, values: list[_Values]) -> None:
        self._spec = spec
        self._split = split
        self._report = report
        self._values = values
        digest = hashlib.blake2b(f"{spec}\n{split}\n".encode(), digest_size=16)
        for name, *arrays in values:
            digest.update(name.encode())
            for array in arrays:
                digest.update(b"\0" if array is None else len(array).to_bytes(8, "little"))
                if array is not None:
                    digest.update(array.data)
        self._fingerprint = digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return _frozen, (self._spec, self._split, self._report, self._values, self._fingerprint)

    def __repr__(self) -> str:
        lengths = ", ".join(f"{values[0]} {_length(values)}" for values in self._values)
        return f"<embank.pipeline.FrozenPipeline, vocabularies {lengths}>"

    @property
    def fingerprint(self) -> str:
        """A digest of the spec, the split and all values."""
        return self._fingerprint

    @property
    def report(self) -> RunReport:
        """The sum of the reports of all parts; `seconds` is the time of all workers together."""
        return self._pipeline().report()

    def _pipeline(self) -> PartPipeline:
        with _kept_lock:
            kept = _kept.get((os.getpid(), self._fingerprint))
        if kept is not None:
            return kept
        pipeline = PartPipeline(self._spec)
        for values in self._values:
            pipeline.absorb(*values)
        pipeline.add_report(self._report)
        pipeline.finish_copy()
        return _keep(self._fingerprint, pipeline)

    def files(self, parts: Any) -> Iterator[Any]:
        """The encoded rows of parts, for `map_batches` of Ray Data with `batch_format="pyarrow"`.

        Args:
            parts: A `pyarrow.Table` or `RecordBatch` of parts.

        Returns:
            An iterator of `pyarrow.Table`, each of up to 65,536 rows of one part: `part` (int64,
            the part's number), `row` (int64, the row's number in the part, from 0, without bad
            rows), and each output as a column of fixed-size lists. Sorted by `part` and `row`,
            the rows are those of one run over the files.

        Raises:
            PipelineError: A file is another one than that of the first pass, or can't be read.
            UnknownValue: A part of another split has a value that a vocabulary lacks, and the
                vocabulary has no `unknown_id`.
            BadRow: A row is bad and the spec does not skip bad rows.

        >>> from pathlib import Path
        >>> from embank.pipeline import criteo, merge_parts, partial_vocabularies, split_parts
        >>> _ = Path("rows.tsv").write_bytes((b"1" + b"\\t7" * 39 + b"\\n") * 3)
        >>> parts = split_parts(criteo(5000), "rows.tsv")
        >>> pipeline = merge_parts(criteo(5000), partial_vocabularies(criteo(5000))(parts))
        >>> [(rows.num_rows, rows.column_names) for rows in pipeline.files(parts)]
        [(3, ['part', 'row', 'label', 'dense', 'sparse'])]
        """
        pyarrow = _pyarrow()
        none = True
        for split, row in _parts_in(parts):
            for batch in self._of_part(split, row):
                none = False
                yield pyarrow.Table.from_batches([batch])
        if none:
            # An engine learns the columns also if there are no rows.
            yield self._schema().empty_table()

    def files_iterator(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The encoded rows of record batches of parts, for `DataFrame.mapInArrow` of Spark with
        the schema `spark_schema`. The rows are those of `files`; outputs are lists, and an output
        of dtype `"bits32"` has 64-bit numbers, because Spark has no unsigned ones.
        """
        for batch in batches:
            for split, row in _parts_in(batch):
                for rows in self._of_part(split, row):
                    yield self._for_spark(rows)

    @property
    def spark_schema(self) -> str:
        """The schema of `files_iterator` and `rows_iterator`, for `DataFrame.mapInArrow`."""
        types = {"f32": "FLOAT", "i32": "INT", "i64": "BIGINT", "bits32": "BIGINT"}
        outputs = [
            f"`{name.replace('`', '``')}` ARRAY<{types[dtype]}>"
            for name, _, dtype in self._pipeline().outputs
        ]
        return ", ".join(["part BIGINT", "row BIGINT", *outputs])

    def rows_iterator(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The rows of a Spark frame, encoded, for `DataFrame.mapInArrow` with the schema
        `spark_schema`. One row comes out for each that goes in, in the same order.

        The columns of the frame are found by the names of the spec's fields, as in a Parquet file.
        Other columns are not read. `part` and `row` are copied from the frame's columns of these
        names, such as numbers by which to sort or join. A frame without them gets the partition's
        number and the row's number in it.

        Raises:
            BadRow: A row is bad, also if the spec skips bad rows.
            UnknownValue: A vocabulary lacks a value and has no `unknown_id`.
        """
        partition = _spark_partition()
        first = 0
        for batch in batches:
            yield self._for_spark(self._of_rows(batch, partition, first))
            first += batch.num_rows

    def save(self, bank: Bank) -> None:
        """Writes the vocabularies, with counts, into a bank. `Pipeline(spec, bank=bank)` and
        `bank.open_vocabulary` then open them. They are durable with the bank's next checkpoint. A
        vocabulary that the bank has with exactly these values stays as it is.

        Raises:
            SpecError: The bank has a vocabulary of one of the names with other values.
            VocabularyMismatch: The bank has one with other settings.
        """
        self._pipeline().write(bank)

    def _of_part(self, split: str, row: _PartRow) -> Iterator[Any]:
        replay = split == self._split
        with self._pipeline().feed(split, row, replay, _BATCH_ROWS) as feed:
            first = 0
            for batch in feed:
                encoded = _pyarrow().record_batch(batch.arrow())
                rows = encoded.num_rows
                yield self._numbered(encoded, np.full(rows, row[0]), np.arange(first, first + rows))
                first += rows

    def _of_rows(self, batch: Any, partition: int, first: int) -> Any:
        pyarrow = _pyarrow()
        rows: int = batch.num_rows
        if rows == 0:
            return self._nothing()
        names = batch.schema.names
        with self._pipeline().feed_rows(_stream_of(batch, self._spec), rows) as feed:
            encoded = [pyarrow.record_batch(one.arrow()) for one in feed]
            if sum(one.num_rows for one in encoded) != rows:
                raise _bad_rows(feed)
        part = batch.column("part") if "part" in names else np.full(rows, partition)
        row = batch.column("row") if "row" in names else np.arange(first, first + rows)
        return self._numbered(encoded[0], part, row)

    def _nothing(self) -> Any:
        return _pyarrow().RecordBatch.from_pylist([], schema=self._schema())

    def _numbered(self, encoded: Any, part: Any, row: Any) -> Any:
        """Encoded rows with the columns `part` and `row` before them."""
        pyarrow = _pyarrow()
        columns = []
        for name, column in (("part", part), ("row", row)):
            if isinstance(column, np.ndarray):
                column = pyarrow.array(column)
            try:
                columns.append(column.cast(pyarrow.int64()))
            except pyarrow.ArrowInvalid as error:
                raise PipelineError(
                    f'column "{name}" of the frame is copied as a number to sort by, and is none ({error}): '
                    "give it another name"
                ) from error
        columns += encoded.columns
        return pyarrow.RecordBatch.from_arrays(columns, schema=self._schema())

    def _schema(self) -> Any:
        pyarrow = _pyarrow()
        types = {"f32": "float32", "i32": "int32", "i64": "int64", "bits32": "uint32"}
        fields = [("part", pyarrow.int64()), ("row", pyarrow.int64())]
        for name, columns, dtype in self._pipeline().outputs:
            item = pyarrow.field("item", getattr(pyarrow, types[dtype])(), nullable=False)
            fields.append(pyarrow.field(name, pyarrow.list_(item, columns), nullable=False))
        return pyarrow.schema(fields)

    def _for_spark(self, rows: Any) -> Any:
        """The rows with lists of any length in place of fixed-size lists."""
        pyarrow = _pyarrow()
        columns = [rows.column(0), rows.column(1)]
        for name, width, dtype in self._pipeline().outputs:
            values = rows.column(name).flatten()
            if dtype == "bits32":
                values = values.cast(pyarrow.int64())
            places = np.arange(rows.num_rows + 1, dtype=np.int32) * np.int32(width)
            columns.append(pyarrow.ListArray.from_arrays(pyarrow.array(places), values))
        return pyarrow.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _bad_rows(feed: Feed) -> PipelineError:
    report = feed.report
    first = "; ".join(report.first_bad_rows) if report is not None else ""
    return PipelineError(
        f"rows of the frame are bad, and one row comes out for each that goes in: {first}; filter such rows "
        "before"
    )


def _spark_partition() -> int:
    """The number of the partition of the Spark task that runs here; 0 elsewhere."""
    spark = sys.modules.get("pyspark")
    context = None if spark is None else spark.TaskContext.get()
    return 0 if context is None else int(context.partitionId())


_kept: dict[tuple[int, str], PartPipeline] = {}
"""The frozen pipelines that were used last, by process and fingerprint. A forked child makes its
own, because it does not have the threads of its parent.
"""
_kept_lock = threading.Lock()


def _keep(fingerprint: str, pipeline: PartPipeline) -> PartPipeline:
    """Keeps a pipeline for this process. Returns the one that is kept: another thread may have
    made it too.
    """
    with _kept_lock:
        pipeline = _kept.setdefault((os.getpid(), fingerprint), pipeline)
        while len(_kept) > _KEPT_MAX:
            del _kept[next(iter(_kept))]
        return pipeline


def _renew_lock() -> None:
    """Another thread of the parent may have held the lock at the fork."""
    global _kept_lock
    _kept_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _frozen(
    spec: str, split: str, report: str, values: list[_Values], fingerprint: str
) -> FrozenPipeline:
    """Makes a frozen pipeline of a pickle, without computing its fingerprint again."""
    pipeline = FrozenPipeline.__new__(FrozenPipeline)
    pipeline._spec = spec
    pipeline._split = split
    pipeline._report = report
    pipeline._values = values
    pipeline._fingerprint = fingerprint
    return pipeline

