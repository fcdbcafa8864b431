"""Measures how long training waits for data, from raw text on disk to trained batches.

Runs `examples/dlrm/stream.py` on generated rows of the Criteo format, each time on a new bank: with
the pipeline in the training process, and with `embank serve` in another process. The text is not in
the page cache. Targets, for the median over the runs: the pipeline in the process makes training
wait for at most 5% of the time, and the served one for at most 10%. Both must give equal AUC and
rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
from figures import Figure
from generate import GeneratorOptions, generate
from measure import Measured, median_and_spread
from stream import VOCABULARIES

from embank.pipeline import criteo

EXAMPLE = measure.REPOSITORY / "examples" / "dlrm" / "stream.py"
WAITED_MAX = {"in the process": 0.05, "served": 0.10}
ROWS_QUICK = 60_000
MODULUS = 1_000_000


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--rows", type=int, default=600_000, help="default %(default)s")
    options.add_argument("--count", type=int, default=3, help="runs of each (default %(default)s)")
    options.add_argument("--batch-size", type=int, default=2048, help="default %(default)s")
    options.add_argument("--budget", default="64MiB", help="of the bank (default %(default)s)")
    given = options.parse_args()
    if given.quick:
        given.rows, given.count = min(given.rows, ROWS_QUICK), 1
    given.server = measure.program("embank-cli", "embank")
    made = GeneratorOptions(given.rows, seed=given.seed)
    text = generate(measure.DATA / "criteo" / made.name, made)
    scratch = measure.SCRATCH / "pipeline-feed"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    spec = replace(criteo(MODULUS), vocabularies=VOCABULARIES)
    (scratch / "criteo.json").write_text(spec.to_json())
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in WAITED_MAX}
    for _ in range(given.count):
        here = [str(text), "--modulus", str(MODULUS)]
        seen["in the process"].append(trained(given, scratch, text, here))
        with served(given, scratch, text) as address:
            seen["served"].append(trained(given, scratch, text, ["--connect", address]))
    shutil.rmtree(scratch)
    rows = []
    for name, outcomes in seen.items():
        waited, spread = median_and_spread([one["waited"] for one in outcomes])
        asked = None if given.quick else waited <= WAITED_MAX[name]
        rows.append(Measured(Figure(f"waiting, {name}", waited, "of the time"), spread, asked))
        rate, spread = median_and_spread([one["samples_per_second"] for one in outcomes])
        rows.append(Measured(Figure(f"training, {name}", rate, "samples/s"), spread))
    answers = {(one["rows"], one["auc"]) for each in seen.values() for one in each}
    same = len(answers) == 1 and answers.pop()[0] == given.rows
    rows.append(Measured(Figure("answers alike", float(same), ""), None, same))
    return measure.report(rows, given, {"rows": given.rows, "budget": given.budget})


def trained(
    given: argparse.Namespace, scratch: Path, text: Path, arguments: list[str]
) -> dict[str, Any]:
    """Runs the example once and returns its figures."""
    forget(text)
    out, bank = scratch / "outcome.json", scratch / "clicks.bank"
    shutil.rmtree(bank, ignore_errors=True)
    subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments, "--bank", str(bank), "--budget", given.budget,
         "--batch-size", str(given.batch_size), "--threads", str(given.threads),
         "--seed", str(given.seed), "--json", str(out)],
        check=True,
    )
    outcome: dict[str, Any] = json.loads(out.read_text())
    return outcome


@contextmanager
def served(given: argparse.Namespace, scratch: Path, text: Path) -> Iterator[str]:
    """Starts `embank serve` over the text, and yields its address."""
    server = subprocess.Popen(
        [str(given.server), "serve", str(scratch / "criteo.json"), str(text), "--batch-rows",
         str(given.batch_size), "--threads", "1"],
        stdout=subprocess.PIPE, text=True,
    )
    try:
        assert server.stdout is not None
        words = server.stdout.readline().split()
        if not words:
            sys.exit("`embank serve` has ended; its error stands above")
        yield words[-1]
    finally:
        server.terminate()
        server.wait()


def forget(text: Path) -> None:
    """Removes a file from the page cache."""
    with open(text, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    sys.exit(main())
