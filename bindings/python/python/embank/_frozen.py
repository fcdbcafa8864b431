"""A pipeline with complete vocabularies, which engines send to their workers."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ._embank import Bank, Feed, PartPipeline, RunReport
from ._parts import PartRow, Values, length_of, load_pyarrow, parts_in, stream_of
from ._ray_hang import watch
from .errors import PipelineError

_BATCH_ROWS = 1 << 16
"""Most rows of a batch that `files` makes."""
_BATCH_BYTES = 64 << 20
"""Bytes of such a batch, if a row has fewer."""
_KEPT_MAX = 2
"""Frozen pipelines that a process keeps. Two are one for training files and one for others."""


class FrozenPipeline:
    """A pipeline whose vocabularies are complete, for workers of Ray and Spark. Made by
    `merge_parts`.

    It can be pickled: a pickle has the spec and all values. A process makes the tables of ids when
    it first uses them, with one thread for the work, and keeps the last two frozen pipelines. So
    the many pickles that an engine sends cost a worker the tables once.

    Parts of the split that made the vocabularies give the rows of one run over the files, bit for
    bit. Other parts, of a `split_parts` with the same spec, are read as `Pipeline.feed` does with
    `learn=False`: a value without an id gets the `unknown_id`, or raises `UnknownValue`. If the
    spec skips bad rows, `bad_rows_max` counts in each of these parts alone.
    """

    def __init__(self, spec: str, split: str, report: str, values: list[Values]) -> None:
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
        lengths = ", ".join(f"{values[0]} {length_of(values)}" for values in self._values)
        return f"<embank.pipeline.FrozenPipeline, vocabularies {lengths}>"

    @property
    def fingerprint(self) -> str:
        """A digest of the spec, the split and all values."""
        return self._fingerprint

    @property
    def report(self) -> RunReport:
        """The sum of the reports of all parts; `seconds` is the time of all workers together."""
        pipeline = PartPipeline(self._spec)
        pipeline.add_report(self._report)
        return pipeline.report()

    def _pipeline(self) -> PartPipeline:
        with _kept_lock:
            kept = _kept.pop((os.getpid(), self._fingerprint), None)
            if kept is not None:
                # The one that was used last is the last to go.
                _kept[os.getpid(), self._fingerprint] = kept
        if kept is not None:
            return kept
        pipeline = PartPipeline(self._spec)
        for values in self._values:
            pipeline.absorb(*values)
        pipeline.add_report(self._report)
        pipeline.finish_copy()
        return keep(self._fingerprint, pipeline)

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
            PipelineError: A file has another length or time of change than when it was split, or
                can't be read. A copy on another machine must keep the time (`rsync -t`).
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
        pyarrow = load_pyarrow()
        none = True
        for split, row in parts_in(parts):
            for batch in self._of_part(split, row):
                none = False
                yield pyarrow.Table.from_batches([batch])
        if none:
            # An engine learns the columns also if there are no rows.
            yield self._schema().empty_table()

    def files_iterator(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The encoded rows of record batches of parts, for `DataFrame.mapInArrow` of Spark with
        the schema `spark_schema`. The rows are those of `files`; outputs are lists, and an output
        of dtype `"bits32"` has 64-bit numbers, because Spark has no unsigned ones. A picture is
        binary: its bytes, row by row.
        """
        for batch in batches:
            for split, row in parts_in(batch):
                for rows in self._of_part(split, row):
                    yield self._for_spark(rows)

    @property
    def spark_schema(self) -> str:
        """The schema of `files_iterator` and `rows_iterator`, for `DataFrame.mapInArrow`."""
        types = {
            "f32": "ARRAY<FLOAT>", "i32": "ARRAY<INT>", "i64": "ARRAY<BIGINT>",
            "bits32": "ARRAY<BIGINT>", "u8": "BINARY",
        }
        outputs = [
            f"`{name.replace('`', '``')}` {types[dtype]}"
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
            BadRow: A row is bad, and the spec does not skip bad rows.
            PipelineError: A row is bad, and the spec skips bad rows.
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

    def _batch_rows(self) -> int:
        values = sum(math.prod(shape) for _, shape, _ in self._pipeline().outputs)
        return min(max(_BATCH_BYTES // max(8 * values, 1), 1), _BATCH_ROWS)

    def _of_part(self, split: str, row: PartRow) -> Iterator[Any]:
        replay = split == self._split
        with self._pipeline().feed(split, row, replay, self._batch_rows()) as feed:
            first = 0
            for batch in feed:
                encoded = load_pyarrow().record_batch(batch.arrow())
                rows = encoded.num_rows
                yield self._numbered(encoded, np.full(rows, row[0]), np.arange(first, first + rows))
                first += rows

    def _of_rows(self, batch: Any, partition: int, first: int) -> Any:
        pyarrow = load_pyarrow()
        rows: int = batch.num_rows
        if rows == 0:
            return self._nothing()
        names = batch.schema.names
        with self._pipeline().feed_rows(stream_of(batch, self._spec), rows) as feed:
            encoded = [pyarrow.record_batch(one.arrow()) for one in feed]
            if sum(one.num_rows for one in encoded) != rows:
                raise _bad_rows(feed)
        part = batch.column("part") if "part" in names else np.full(rows, partition)
        row = batch.column("row") if "row" in names else np.arange(first, first + rows)
        return self._numbered(encoded[0], part, row)

    def _nothing(self) -> Any:
        return load_pyarrow().RecordBatch.from_pylist([], schema=self._schema())

    def _numbered(self, encoded: Any, part: Any, row: Any) -> Any:
        """Encoded rows with the columns `part` and `row` before them."""
        pyarrow = load_pyarrow()
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
        pyarrow = load_pyarrow()
        types = {
            "f32": "float32", "i32": "int32", "i64": "int64", "bits32": "uint32", "u8": "uint8"
        }
        fields = [("part", pyarrow.int64()), ("row", pyarrow.int64())]
        for name, shape, dtype in self._pipeline().outputs:
            value = getattr(pyarrow, types[dtype])()
            if len(shape) > 1:
                fields.append(pyarrow.field(name, pyarrow.fixed_shape_tensor(value, shape), nullable=False))
                continue
            item = pyarrow.field("item", value, nullable=False)
            fields.append(pyarrow.field(name, pyarrow.list_(item, *shape), nullable=False))
        return pyarrow.schema(fields)

    def _for_spark(self, rows: Any) -> Any:
        """The rows with lists of any length in place of fixed-size lists."""
        pyarrow = load_pyarrow()
        columns = [rows.column(0), rows.column(1)]
        for name, shape, dtype in self._pipeline().outputs:
            width = math.prod(shape)
            column = rows.column(name)
            values = (column.storage if len(shape) > 1 else column).flatten()
            if dtype == "bits32":
                values = values.cast(pyarrow.int64())
            if rows.num_rows * width > np.iinfo(np.int32).max:
                raise PipelineError(
                    f"a batch of {rows.num_rows} rows has more bytes than Spark takes at once: set "
                    "spark.sql.execution.arrow.maxRecordsPerBatch lower"
                )
            places = np.arange(rows.num_rows + 1, dtype=np.int32) * np.int32(width)
            if dtype == "u8":
                bytes_ = values.buffers()[1].slice(values.offset, len(values))
                buffers = [None, pyarrow.py_buffer(places), bytes_]
                columns.append(pyarrow.BinaryArray.from_buffers(pyarrow.binary(), rows.num_rows, buffers))
                continue
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


def keep(fingerprint: str, pipeline: PartPipeline) -> PartPipeline:
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
    spec: str, split: str, report: str, values: list[Values], fingerprint: str
) -> FrozenPipeline:
    """Makes a frozen pipeline of a pickle, without computing its fingerprint again."""
    watch()
    pipeline = FrozenPipeline.__new__(FrozenPipeline)
    pipeline._spec = spec
    pipeline._split = split
    pipeline._report = report
    pipeline._values = values
    pipeline._fingerprint = fingerprint
    return pipeline
