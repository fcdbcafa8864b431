"""Files and specs for the tests of parts: those without an engine, and those of Ray and Spark."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa

import embank
from embank.pipeline import (
    Column,
    Field,
    Output,
    Pipeline,
    Spec,
    VocabularySpec,
    fill_missing,
    float_,
    modulus,
    vocabulary,
)


def spec(min_count: int = 0, bad_rows: Any = "fail") -> Spec:
    """A spec with a vocabulary of each kind: a known range, numbers of any range, and texts that
    two columns share.
    """
    return Spec(
        fields=[
            Field("n", "int32"),
            Field("m", "int64"),
            Field("v", "bytes"),
            Field("w", "bytes"),
        ],
        columns=[
            Column("small", fill_missing(3), modulus(50), vocabulary("small"), field="n"),
            Column("large", fill_missing(0), vocabulary("large"), field="m"),
            Column("v", fill_missing("none"), vocabulary("texts")),
            Column("w", fill_missing("none"), vocabulary("texts")),
            Column("dense", fill_missing(0), float_(), field="n"),
            Column("bits", fill_missing(7), modulus(1 << 20), field="m"),
        ],
        outputs=[
            Output("ids", ["small", "large", "v", "w"], "i64"),
            Output("dense", ["dense"], "f32"),
            Output("both bits", ["bits", "small"], "bits32"),
        ],
        bad_rows=bad_rows,
        bad_rows_max=0.5,
        vocabularies=[
            VocabularySpec(name, min_count=min_count, first_id=1, unknown_id=0)
            for name in ("small", "large", "texts")
        ],
    )


def rows(first: int, end: int) -> list[str]:
    """Rows of comma-separated text, with separators, quotes and line ends in quotes."""
    quoted = ["plain", '"two\nlines"', '"a ""quote"""', '"comma, and\r\n\n"', ""]
    return [
        f"{n * 7919 % 83},{n * n % 1009 - 300},{quoted[n % 5]},w{n * 31 % 77}"
        for n in range(first, end)
    ]


def write_files(folder: Path) -> list[Path]:
    """Files of unequal size: CRLF, a header in another order, no last line end, empty, compressed,
    and a large one.
    """
    header = "n,m,v,w\n"
    other = "\r\n".join(["w,unused,n,v,m", "x,1,2,y,3", 'x,"\n",5,"\nz",3', "last,,,,"])
    texts = {
        "a.csv": header + "\n".join(rows(0, 40)),
        "b.csv": other,
        "c.csv": header,
        "d.csv": "",
        "e.csv": header + "\n".join(rows(20, 2500)) + "\n",
        "f.csv": "\ufeff" + header + "\r\n".join(rows(2400, 2700)),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    with gzip.open(folder / "g.csv.gz", "wb") as file:
        file.write((header + "\n".join(rows(2600, 2900)) + "\n").encode())
    return [folder / name for name in (*texts, "g.csv.gz")]


def one_run(
    folder: Path, of: Spec, files: list[Path], **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outputs and vocabularies of one run over the files, in a bank."""
    with embank.Bank(folder / "one run", memory_budget="16MiB") as bank:
        pipeline = Pipeline(of, bank=bank, **options)
        batches = list(pipeline.feed(files, batch_rows=1000))
        pipeline.save()
        return (
            {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]},
            vocabularies(bank),
        )


def vocabularies(bank: embank.Bank) -> dict[str, Any]:
    """Fingerprint, length, next id, and whether it is frozen, of each vocabulary of a bank."""
    found = {}
    for name in bank.vocabularies():
        one = bank.open_vocabulary(name)
        found[name] = (one.fingerprint, len(one), one.next_id, one.frozen)
    return found


def in_order(tables: Any, schema: Optional[pa.Schema] = None) -> dict[str, Any]:
    """The outputs of encoded rows, sorted by part and row."""
    table = tables if isinstance(tables, pa.Table) else pa.concat_tables(tables)
    table = table.sort_by([("part", "ascending"), ("row", "ascending")]).combine_chunks()
    outputs = {}
    for name in table.column_names:
        if name not in ("part", "row"):
            column = table.column(name).combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = column.chunk(0)
            outputs[name] = column.flatten().to_numpy().reshape(len(column), -1)
    return outputs


def check_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compares outputs bit for bit. Engines may have other integer types of the same values."""
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        if array.dtype == np.float32:
            assert found[name].dtype == np.float32
            np.testing.assert_array_equal(found[name].view(np.uint32), array.view(np.uint32))
        else:
            np.testing.assert_array_equal(found[name], array)
