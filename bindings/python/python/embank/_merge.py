"""Merges the vocabularies of parts."""

from __future__ import annotations

import json
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ._frozen import FrozenPipeline, keep
from ._parts import (
    SpecLike,
    Values,
    frame_split,
    length_of,
    load_pyarrow,
    partial_schema,
    pipeline_of,
)
from .errors import PipelineError, SpecError

_NAMED_MAX = 5
"""Missing parts that an error names."""


def merge_parts(spec: SpecLike, batches: Any) -> FrozenPipeline:
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
    pyarrow = load_pyarrow()
    pipeline = pipeline_of(spec)
    if isinstance(batches, (pyarrow.Table, pyarrow.RecordBatch)):
        batches = [batches]
    found = _Found()
    for batch in batches:
        found.add(batch)
    split, parts = found.complete()
    if found.is_of_a_frame():
        if split != frame_split(pipeline.spec):
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
    keep(frozen._fingerprint, pipeline)
    return frozen


class _FoundPart:
    """What came of one part."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] = {}
        self.pieces: dict[str, list[tuple[int, Values]]] = {}
        """For each vocabulary, the pieces of its values, each with its first place."""


class _Found:
    """What came of all parts."""

    def __init__(self) -> None:
        self.split: Optional[str] = None
        self.first = 0
        """The part that `split` came with."""
        self.parts: dict[int, _FoundPart] = {}

    def add(self, batch: Any) -> None:
        missing = [name for name in partial_schema().names if name not in batch.schema.names]
        if missing:
            raise PipelineError(
                f"a batch to merge has no column {missing[0]!r}: it must come from partial_vocabularies()"
            )
        columns = [batch.column(name) for name in partial_schema().names]
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
        values: Values = (
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
        pieces = [(first, length_of(values)) for first, values in part.pieces.get(name, [])]
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
    pyarrow = load_pyarrow()
    array = array.cast(pyarrow.large_binary())
    _, places, bytes_ = array.buffers()
    offsets = np.frombuffer(places, np.int64)[array.offset : array.offset + len(array) + 1]
    if bytes_ is None:
        return offsets.view(np.uint64), np.empty(0, np.uint8)
    return offsets.view(np.uint64), np.frombuffer(bytes_, np.uint8)
