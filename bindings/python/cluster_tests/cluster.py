"""What the tests on Ray and on Spark share: a split of unequal files with the result of one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import embank
import part_files
import pyarrow as pa
from embank.pipeline import FrozenPipeline, Spec, split_parts


@dataclass
class Job:
    spec: Spec
    parts: pa.Table
    rows: dict[str, Any]
    """The outputs of one run over the files."""
    vocabularies: dict[str, Any]

    def check_vocabularies(self, pipeline: FrozenPipeline, folder: Path) -> None:
        with embank.Bank(folder / "merged", memory_budget="16MiB") as bank:
            pipeline.save(bank)
            assert part_files.vocabularies(bank) == self.vocabularies
            bank.checkpoint()

    def check_rows(self, table: pa.Table) -> None:
        part_files.check_equal(part_files.in_order(table), self.rows)


def job(folder: Path, min_count: int) -> Job:
    """Some ten parts, some of which are empty. The files are given in another order than that of
    their sizes and names.
    """
    files = part_files.write_files(folder)
    files = [files[place] for place in (4, 0, 3, 6, 1, 5, 2)]
    spec = part_files.spec(min_count)
    rows, vocabularies = part_files.one_run(folder, spec, files)
    return Job(spec, split_parts(spec, files, part_bytes="6KiB"), rows, vocabularies)


def dying_once(call: Callable[[Any], Any], mark: Path) -> Callable[[Any], Any]:
    """`call`, but the first worker that calls it is killed. `mark` is the file that it leaves."""
    name = str(mark)

    # Without globals of this module, which workers do not have.
    def of_parts(parts: Any) -> Any:
        import os
        import signal

        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return call(parts)
        os.kill(os.getpid(), signal.SIGKILL)

    return of_parts
