"""Compares Embank with Polars and Meta's DLRM script: Criteo rows from text to numbers.

All ways read the same generated rows of the Criteo format, from a file in the page cache or from
memory (`--memory`), on the same cores, and run all operators of `embank.pipeline.criteo(modulus)`:

- Embank: `Pipeline.feed`, batches of 4,096 rows.
- Polars: `scan_csv` and expressions for everything but the ids. Ids come from look-up tables in
  NumPy that continue from batch to batch (`collect_batches`, the streaming engine), from tables
  over whole columns, or from joins with the unique values in order of appearance.
- Meta's script: the user's own clone of facebookresearch/dlrm (`--dlrm`), see `dlrm_script.py`. It
  runs on fewer rows, because its time for a row does not depend on their number.

Ways that make batches give each batch back, or keep all batches ("all kept"). Ways that make whole
columns keep all columns. Polars and the script may leave their ids in columns.

A first round compares every row of each way with Embank's: ids and labels must be equal, logarithms
equal within 4e-7 of their value. Meta's ids are in order of first appearance too, so they can be
compared directly. Targets for Embank's rows/s: 8 times the best form of Polars; 8 times the best
form of Polars that keeps all rows, if Embank keeps them too; 200 times the best of Meta's. Rows for
each second of processor time are shown too, because other programs on the machine change this rate
less.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Union

import measure
import numpy as np
from figures import Figure
from measure import Measured, median_and_spread
from numpy.typing import NDArray

import embank.pipeline

INTEGERS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]
AT_LEAST_POLARS, AT_LEAST_META = 8, 200
BATCH_ROWS = 4096
POLARS_BATCH_ROWS = 65_536
"""Rows of a batch of Polars: of the powers of four, the fastest."""
ROUNDING = 4e-7
"""Largest relative difference of two logarithms: two units in the last place of one, and a rounding
of the other."""

Rows = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]
"""Rows: labels, logarithms `(rows, 13)` and ids `(rows, 26)`."""
Source = Union[Path, bytes]


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--rows", type=int, default=10_000_000, help="for all but Meta's script")
    options.add_argument("--modulus", type=int, default=5000)
    options.add_argument("--count", type=int, default=3, help="rounds; the median counts")
    options.add_argument(
        "--no-check", dest="check", action="store_false", help="do not compare the rows of the ways"
    )
    options.add_argument("--memory", action="store_true", help="read from memory, not from a file")
    options.add_argument("--dlrm", type=Path, help="a clone of facebookresearch/dlrm")
    options.add_argument("--dlrm-rows", type=int, default=100_000)
    given = options.parse_args()
    if given.quick:
        given.rows, given.count = min(given.rows, 200_000), 1
        given.dlrm_rows = min(given.dlrm_rows, 20_000)
    given.dlrm_rows = min(given.rows, given.dlrm_rows)
    if given.dlrm is None:
        print("Meta's script is left out: --dlrm names a clone of github.com/facebookresearch/dlrm")
    os.environ["POLARS_MAX_THREADS"] = str(given.threads)

    measure.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=measure.SCRATCH) as folder:
        ways = Ways(given, Path(folder))
        wrong = ways.compared() if given.check else set()
        rates: dict[str, list[float]] = {name: [] for name in ways.named}
        busy: dict[str, list[float]] = {name: [] for name in ways.named}
        for _ in range(given.count):
            for name in ways.named:
                ways.warm()
                before = processor_seconds()
                rates[name].append(ways.rate(name))
                rows = given.dlrm_rows if "Meta" in name else given.rows
                busy[name].append(rows / (processor_seconds() - before))
    measured = judged(rates, wrong, given.quick)
    measured += judged(busy, wrong, quick=True, unit="rows/cpu s")
    return measure.report(measured, given, {
        "rows": given.rows, "rows for Meta's script": given.dlrm_rows if given.dlrm else None,
        "modulus": given.modulus, "rounds": given.count,
        "checked": given.check, "threads": given.threads,
        "input": "memory" if given.memory else "a file in the page cache",
        "polars": polars_version(), "numpy": np.__version__, "dlrm": clone_commit(given.dlrm),
    })


class Ways:
    """The ways to measure. Each way yields its rows in order, all at once or in several pieces."""

    def __init__(self, given: Any, folder: Path) -> None:
        text = generated(given.rows, folder / "rows.tsv")
        self.source: Source = text.read_bytes() if given.memory else text
        self.rows = given.rows
        self.modulus = given.modulus
        self.threads = given.threads
        self.named: dict[str, Callable[[], Iterator[Rows]]] = {
            "Embank": self.by_embank,
            "Embank, all kept": self.by_embank,
            "Polars, NumPy tables": self.by_tables,
            "Polars, NumPy tables, all kept": self.by_whole_tables,
            "Polars, joins, all kept": self.by_joins,
        }
        if given.dlrm is not None:
            self.dlrm = Dlrm(given, generated(given.dlrm_rows, folder / "head.tsv"))
            self.named["Meta's script, 1 process"] = lambda: self.dlrm.by_processes(1)
            self.named["Meta's script, 7 processes"] = lambda: self.dlrm.by_processes(7)

    def compared(self) -> set[str]:
        """Compares all rows with Embank's. Prints and returns the ways that have a different
        row."""
        expected: Rows = (
            np.empty((self.rows, 1), np.float32), np.empty((self.rows, 13), np.float32),
            np.empty((self.rows, 26), np.int64),
        )
        first = 0
        for rows in self.by_embank():
            for whole, part in zip(expected, rows, strict=True):
                whole[first : first + len(part)] = part
            first += len(rows[0])
        assert first == self.rows, f"{first} rows came out of {self.rows}"
        return {name for name in self.named if not self.same(name, expected)}

    def same(self, name: str, expected: Rows) -> bool:
        first = 0
        for labels, logarithms, ids in pieces(self.named[name]()):
            wanted = tuple(whole[first : first + len(ids)] for whole in expected)
            near = np.isclose(logarithms, wanted[1], rtol=ROUNDING, atol=0)
            for what, good in (
                ("labels", labels == wanted[0]), ("logarithms", near), ("ids", ids == wanted[2])
            ):
                if not good.all():
                    row = first + int(np.argmin(good.all(axis=1)))
                    print(f"{name}: the {what} of row {row} are not Embank's")
                    return False
            first += len(ids)
        count = self.dlrm.rows if "Meta" in name else self.rows
        if first != count:
            print(f"{name}: {first} rows came out of {count}")
        else:
            print(f"{name}: {count} rows are equal")
        return first == count

    def rate(self, name: str) -> float:
        """Returns the rows/s of one run."""
        if "Meta" in name:
            for _ in self.named[name]():
                return self.dlrm.rows / self.dlrm.seconds
        started = time.perf_counter()
        kept = []
        count = 0
        for rows in self.named[name]():
            count += len(rows[0])
            if "kept" in name:
                kept.append(rows)
        seconds = time.perf_counter() - started
        assert count == self.rows, f"{count} rows came out of {self.rows}"
        return count / seconds

    def warm(self) -> None:
        """Reads the file, so that it is in the page cache."""
        if isinstance(self.source, Path):
            with self.source.open("rb", buffering=0) as file:
                while file.read(16 << 20):
                    pass

    def by_embank(self) -> Iterator[Rows]:
        spec = embank.pipeline.criteo(self.modulus)
        pipeline = embank.pipeline.Pipeline(spec, threads=self.threads)
        with pipeline.feed(self.source, batch_rows=BATCH_ROWS) as feed:
            for batch in feed:
                yield batch["label"], batch["dense"], batch["sparse"]

    def scanned(self) -> Any:
        """Returns a lazy query of the labels, the logarithms, and the categories modulo
        `modulus`."""
        import polars as pl

        schema = {
            "label": pl.Int32, **dict.fromkeys(INTEGERS, pl.Int32),
            **dict.fromkeys(CATEGORIES, pl.String),
        }
        frame = pl.scan_csv(
            self.source, separator="\t", has_header=False, schema=schema, quote_char=None
        )
        return frame.select(
            pl.col("label").cast(pl.Float32),
            *(pl.col(name).fill_null(0).clip(0).cast(pl.Float32).log1p() for name in INTEGERS),
            *(
                pl.col(name).str.to_integer(base=16, dtype=pl.UInt32).fill_null(0) % self.modulus
                for name in CATEGORIES
            ),
        )

    def by_tables(self) -> Iterator[Rows]:
        """Makes ids with an array for each column. The array has `modulus` places, one for each
        value; -1 means that the value has no id yet."""
        tables = [np.full(self.modulus, -1, dtype=np.int64) for _ in CATEGORIES]
        given_out = [0] * len(CATEGORIES)
        batches = self.scanned().collect_batches(
            chunk_size=POLARS_BATCH_ROWS, maintain_order=True, engine="streaming"
        )
        for batch in batches:
            ids = np.empty((len(CATEGORIES), len(batch)), dtype=np.int64)
            for column, name in enumerate(CATEGORIES):
                values = batch[name].to_numpy()
                # With the mode "clip", `take` needs no copy. No value is out of range, so none is
                # clipped.
                np.take(tables[column], values, out=ids[column], mode="clip")
                unknown = np.flatnonzero(ids[column] < 0)
                if len(unknown):
                    fresh, first = np.unique(values[unknown], return_index=True)
                    fresh = fresh[np.argsort(first)]
                    end = given_out[column] + len(fresh)
                    tables[column][fresh] = np.arange(given_out[column], end)
                    given_out[column] = end
                    ids[column, unknown] = tables[column][values[unknown]]
            yield labels_of(batch), batch.select(INTEGERS).to_numpy(), ids.T

    def by_whole_tables(self) -> Iterator[Rows]:
        """Makes ids as `by_tables` does, but over whole columns, with a thread for each core.
        NumPy's `take` runs without the GIL."""
        done = self.scanned().collect(engine="streaming")
        ids = np.empty((len(CATEGORIES), len(done)), dtype=np.int64)

        def number(column: int) -> None:
            values = done[CATEGORIES[column]]
            in_order = values.unique(maintain_order=True).to_numpy()
            table = np.empty(self.modulus, dtype=np.int64)
            table[in_order] = np.arange(len(in_order))
            np.take(table, values.to_numpy(), out=ids[column], mode="clip")

        with ThreadPoolExecutor(self.threads) as threads:
            list(threads.map(number, range(len(CATEGORIES))))
        yield labels_of(done), done.select(INTEGERS).to_numpy(), ids.T

    def by_joins(self) -> Iterator[Rows]:
        """Numbers each column's unique values in order of appearance and joins them with the
        column.

        The joins run in the in-memory engine, which is faster here than the streaming engine.
        """
        import polars as pl

        # Collects the query once. Otherwise each join would read the file again for its values.
        rows = self.scanned().collect(engine="streaming").lazy()
        joined = rows
        for name in CATEGORIES:
            ids = rows.select(pl.col(name).unique(maintain_order=True)).with_row_index(f"{name} id")
            joined = joined.join(ids, on=name, how="left", maintain_order="left")
        numbered = [pl.col(f"{name} id").cast(pl.Int64).alias(name) for name in CATEGORIES]
        done = joined.select("label", *INTEGERS, *numbered).collect(engine="in-memory")
        yield labels_of(done), done.select(INTEGERS).to_numpy(), done.select(CATEGORIES).to_numpy()


class Dlrm:
    """Meta's script. It runs in a separate process, on fewer rows than the other ways."""

    def __init__(self, given: Any, text: Path) -> None:
        self.clone = given.dlrm
        self.text = text
        self.rows: int = given.dlrm_rows
        self.modulus = given.modulus
        self.seconds = 0.0

    def by_processes(self, processes: int) -> Iterator[Rows]:
        """Yields all rows in one piece. Sets `seconds` to the time that the script took."""
        output = self.text.with_suffix(".npz")
        script = Path(__file__).with_name("dlrm_script.py")
        done = subprocess.run(
            [
                sys.executable, script, self.clone, self.text, str(self.modulus), str(processes),
                output,
            ],
            check=True, stdout=subprocess.PIPE, text=True,
        )
        self.seconds = float(done.stdout)
        with np.load(output) as found:
            yield found["label"].reshape(-1, 1), found["dense"], found["sparse"]


def pieces(all_rows: Iterator[Rows]) -> Iterator[Rows]:
    """Yields the rows in smaller pieces, so that a comparison takes little memory."""
    for labels, logarithms, ids in all_rows:
        for first in range(0, len(ids), POLARS_BATCH_ROWS):
            part = slice(first, first + POLARS_BATCH_ROWS)
            yield labels[part], logarithms[part], ids[part]


def labels_of(frame: Any) -> NDArray[np.float32]:
    labels: NDArray[np.float32] = frame["label"].to_numpy().reshape(-1, 1)
    return labels


def processor_seconds() -> float:
    """Returns the processor time of this process and of its child processes that have ended."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    usages = [resource.getrusage(who) for who in whose]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def judged(
    rates: dict[str, list[float]], wrong: set[str], quick: bool, unit: str = "rows/s"
) -> list[Measured]:
    """Makes the figures: the rate of each way, and its ratio to the best peer of its kind.

    A quick run has too few rows to judge the targets, so only wrong rows make it fail. """
    medians = {name: median_and_spread(values)[0] for name, values in rates.items()}

    def best(*words: str) -> str | None:
        names = [name for name in medians if all(word in name for word in words)]
        return max(names, key=lambda name: medians[name], default=None)

    measured = []

    def add(name: str, against: str | None, at_least: float | None) -> None:
        peer = None if against is None else medians[against]
        passed = None
        if at_least is not None and peer is not None and not quick:
            passed = medians[name] >= at_least * peer
        figure = Figure(name, medians[name], unit, against, peer)
        spread = median_and_spread(rates[name])[1]
        measured.append(Measured(figure, spread, False if name in wrong else passed))

    add("Embank", best("Polars"), AT_LEAST_POLARS)
    if best("Meta") is not None:
        add("Embank", best("Meta"), AT_LEAST_META)
    add("Embank, all kept", best("Polars", "kept"), AT_LEAST_POLARS)
    for name in rates:
        if "Embank" not in name:
            add(name, None, None)
    return measured


def generated(rows: int, file: Path) -> Path:
    """Makes a file of generated rows, in the page cache. A longer file begins with the rows of a
    shorter one."""
    subprocess.run(
        [
            measure.program("embank-bench", "embank-bench"), "pipeline", "generate",
            "--rows", str(rows), str(file),
        ],
        check=True,
    )
    # Writes the file to the drive now, so that nothing is written during the measurement.
    with file.open("rb") as written:
        os.fsync(written.fileno())
    return file


def clone_commit(clone: Path | None) -> str | None:
    if clone is None:
        return None
    shown = subprocess.run(
        ["git", "-C", str(clone), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or "unknown"


def polars_version() -> str:
    import polars

    return str(polars.__version__)


if __name__ == "__main__":
    sys.exit(main())
