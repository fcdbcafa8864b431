"""Measures whether the arrays of a feed reuse memory, in Python.

The loop lets each batch go when the next one comes, as a training loop does. After 20 batches, the
page faults of the process are at most 1% of the pages of the batches. The larger batches are of 40
MiB: glibc recycles arrays of up to 32 MiB itself, and returns larger ones to the system.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import time
from pathlib import Path

import measure
import numpy as np
from figures import Figure
from generate import GeneratorOptions, generate
from measure import Measured, median_and_spread

from embank.pipeline import Pipeline, criteo

BATCH_ROWS = (4096, 262_144)
WARM_BATCHES = 20
BATCHES_MIN = 120
"""Fewest batches of a loop. A shorter input is read several times: the run of a feed needs new
memory for its chunks, up to a fixed number of them, which is a large part of few batches."""
FAULTS_MAX = 0.01
MODULUS = 5000
ROWS_QUICK = 200_000


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--rows", type=int, default=1_000_000, help="default %(default)s")
    options.add_argument("--count", type=int, default=5, help="rounds (default %(default)s)")
    given = options.parse_args()
    if given.quick:
        given.rows, given.count = min(given.rows, ROWS_QUICK), 1
    made = GeneratorOptions(given.rows, seed=given.seed)
    text = generate(measure.DATA / "criteo" / made.name, made).read_bytes()
    rows = []
    sizes = measure.sized(BATCH_ROWS, (16, 64))
    passes = -(-BATCHES_MIN * max(sizes) // given.rows)
    for batch_rows in sizes:
        rates, faults = zip(*(fed([text] * passes, batch_rows) for _ in range(given.count)))
        rate, spread = median_and_spread(rates)
        rows.append(Measured(Figure(f"batches of {batch_rows}", rate, "rows/s"), spread))
        share, spread = median_and_spread(faults)
        asked = None if measure.SMOKE else share <= FAULTS_MAX
        figure = Figure(f"batches of {batch_rows}: faults", share, "of the pages")
        rows.append(Measured(figure, spread, asked))
    same = alike(text)
    rows.append(Measured(Figure("answers alike", float(same), ""), None, same))
    return measure.report(rows, given, {"rows": given.rows, "modulus": MODULUS})


def fed(inputs: list[bytes], batch_rows: int) -> tuple[float, float]:
    """Returns the rows/s of a feed, and its page faults for each page of the later batches."""
    begun = time.perf_counter()
    rows = warm_bytes = used = warm_faults = 0
    for number, batch in enumerate(Pipeline(criteo(MODULUS)).feed(inputs, batch_rows=batch_rows)):
        rows += len(batch["label"])
        used += sum(array.nbytes for array in batch.values())
        if number + 1 == WARM_BATCHES:
            warm_bytes, warm_faults = used, page_faults()
    pages = (used - warm_bytes) / resource.getpagesize()
    faults = (page_faults() - warm_faults) / pages
    return rows / (time.perf_counter() - begun), faults


def alike(text: bytes) -> bool:
    """Whether a loop that lets its batches go sees the values of one that keeps all batches."""
    kept = list(Pipeline(criteo(MODULUS)).feed(text))
    let_go = Pipeline(criteo(MODULUS)).feed(text)
    pairs = zip(kept, let_go)
    return all(
        np.array_equal(array, again[name]) for batch, again in pairs for name, array in batch.items()
    ) and let_go.position == sum(len(batch["label"]) for batch in kept)


def page_faults() -> int:
    """Minor page faults of all threads of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    sys.exit(main())
