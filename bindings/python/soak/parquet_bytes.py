"""Writes Parquet files byte by byte, also files whose numbers do not fit together.

A library writes only files that are right. This module writes the pages, the counts and the offsets
that it is told to write. It needs nothing but the standard library.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Optional

# Physical types.
INT32, INT64, INT96, FLOAT, DOUBLE, BYTES = 1, 2, 3, 4, 5, 6
# Encodings.
PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 3, 5, 8
# Converted types.
UTF8, DATE, TIMESTAMP_MILLIS, TIMESTAMP_MICROS, UINT_32, INT_8 = 0, 6, 9, 10, 13, 15


def varint(number: int) -> bytes:
    out = bytearray()
    while True:
        number, byte = number >> 7, number & 0x7F
        if not number:
            return bytes([*out, byte])
        out.append(byte | 0x80)


def zigzag(number: int) -> bytes:
    return varint(((number << 1) ^ (number >> 63)) & ((1 << 64) - 1))


class Struct:
    """A struct of Thrift's compact protocol. Its fields are added in the order of their ids."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.last = 0

    def _header(self, field: int, kind: int) -> None:
        self.bytes.append((field - self.last) << 4 | kind)
        self.last = field

    def int32(self, field: int, number: int) -> Struct:
        self._header(field, 5)
        self.bytes += zigzag(number)
        return self

    def int64(self, field: int, number: int) -> Struct:
        self._header(field, 6)
        self.bytes += zigzag(number)
        return self

    def boolean(self, field: int, value: bool) -> Struct:
        self._header(field, 1 if value else 2)
        return self

    def text(self, field: int, text: str) -> Struct:
        self._header(field, 8)
        self.bytes += varint(len(text)) + text.encode()
        return self

    def struct(self, field: int, inner: Struct) -> Struct:
        self._header(field, 12)
        self.bytes += inner.end()
        return self

    def list(self, field: int, kind: int, items: list[bytes]) -> Struct:
        self._header(field, 9)
        size = len(items)
        self.bytes += bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
        self.bytes += b"".join(items)
        return self

    def end(self) -> bytes:
        return bytes(self.bytes) + b"\0"


def plain(kind: int, values: list[object]) -> bytes:
    """Encodes values without nulls."""
    if kind == BYTES:
        return b"".join(struct.pack("<i", len(value)) + value for value in values)  # type: ignore[arg-type, operator]
    form = {INT32: "<i", INT64: "<q", FLOAT: "<f", DOUBLE: "<d"}[kind]
    return b"".join(struct.pack(form, value) for value in values)


def levels(present: list[bool]) -> bytes:
    """Encodes definition levels of 0 and 1, a run for each level."""
    return b"".join(varint(1 << 1) + bytes([is_there]) for is_there in present)


def indices(places: list[int]) -> bytes:
    """Encodes places in a dictionary, in bytes of a run for each."""
    return b"\x08" + b"".join(varint(1 << 1) + bytes([place]) for place in places)


def data_page(count: int, values: bytes, encoding: int = PLAIN, present: Optional[list[bool]] = None) -> bytes:
    """A data page of version 1 that says that it has `count` values."""
    run = b"" if present is None else levels(present)
    body = values if present is None else struct.pack("<i", len(run)) + run + values
    header = Struct().int32(1, count).int32(2, encoding).int32(3, RLE).int32(4, RLE)
    return Struct().int32(1, 0).int32(2, len(body)).int32(3, len(body)).struct(5, header).end() + body


def data_page_v2(
    count: int, values: bytes, encoding: int = PLAIN, present: Optional[list[bool]] = None,
    rows: Optional[int] = None, nulls: Optional[int] = None,
) -> bytes:
    """A data page of version 2. It says the right numbers of rows and nulls, unless they are
    given."""
    run = b"" if present is None else levels(present)
    absent = 0 if present is None else present.count(False)
    header = Struct().int32(1, count).int32(2, absent if nulls is None else nulls)
    header.int32(3, count if rows is None else rows).int32(4, encoding).int32(5, len(run)).int32(6, 0)
    header.boolean(7, False)
    size = len(run) + len(values)
    return Struct().int32(1, 3).int32(2, size).int32(3, size).struct(8, header).end() + run + values


def dictionary_page(count: int, values: bytes) -> bytes:
    header = Struct().int32(1, count).int32(2, PLAIN)
    return Struct().int32(1, 2).int32(2, len(values)).int32(3, len(values)).struct(7, header).end() + values


@dataclasses.dataclass
class Chunk:
    """The column chunk of a row group."""

    pages: list[bytes]
    # What the file's metadata say.
    values: int
    has_dictionary: bool = False
    # Bytes that the metadata give beyond the pages.
    more_bytes: int = 0


@dataclasses.dataclass
class Column:
    name: str
    kind: int
    optional: bool = False
    converted: Optional[int] = None


def write(path: Path, columns: list[Column], groups: list[tuple[int, list[Chunk]]], rows: Optional[int] = None) -> None:
    """Writes a file. Each group says its number of rows and has a chunk for each column. The file
    says that it has the rows of its groups, unless `rows` is given."""
    out = bytearray(b"PAR1")
    of_groups = []
    for group_rows, chunks in groups:
        of_chunks = []
        for column, chunk in zip(columns, chunks):
            begin = len(out)
            for page in chunk.pages:
                out += page
            size = len(out) - begin + chunk.more_bytes
            path_in_schema = varint(len(column.name)) + column.name.encode()
            encodings = [zigzag(one) for one in (PLAIN, RLE, RLE_DICTIONARY)]
            metadata = Struct().int32(1, column.kind).list(2, 5, encodings).list(3, 8, [path_in_schema]).int32(4, 0)
            metadata.int64(5, chunk.values).int64(6, size).int64(7, size)
            if chunk.has_dictionary and len(chunk.pages) > 1:
                metadata.int64(9, begin + len(chunk.pages[0])).int64(11, begin)
            else:
                metadata.int64(9, begin)
            of_chunks.append(Struct().int64(2, begin).struct(3, metadata).end())
        of_groups.append(Struct().list(1, 12, of_chunks).int64(2, len(out)).int64(3, group_rows).end())
    schema = [Struct().text(4, "schema").int32(5, len(columns)).end()]
    for column in columns:
        element = Struct().int32(1, column.kind).int32(3, int(column.optional)).text(4, column.name)
        if column.converted is not None:
            element.int32(6, column.converted)
        schema.append(element.end())
    total = sum(group_rows for group_rows, _ in groups) if rows is None else rows
    footer = Struct().int32(1, 2).list(2, 12, schema).int64(3, total).list(4, 12, of_groups).text(6, "bytes").end()
    path.write_bytes(out + footer + struct.pack("<I", len(footer)) + b"PAR1")
