"""Makes `docs/forecast.md` and its pictures from `bench/forecast.json`.

    PYTHONPATH=bench/python/ground python bench/python/training/forecast_page.py

`forecast.py --page` measures the parts of a step again and then calls `write`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fleet_simulator import FLOAT_BYTES, KEY_BYTES, Keys, Network, Parts, draw, step_seconds

REPOSITORY = Path(__file__).resolve().parents[3]
FILE = REPOSITORY / "bench" / "forecast.json"
PAGE = REPOSITORY / "docs" / "forecast.md"
RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GIGABITS = (1, 10, 25, 100)
LATENCY = 25e-6
STEPS = 40
COPIES = (100, 1000, 10_000, 100_000)
COPY_STEPS = 8
"""Copies are summed after this number of steps, where the staleness bound allows it."""
HOT_RANKS = (2, 16, 256)
ONE_TABLE = Keys(rows=2048 * 26, sizes=(10_000_000,), skew=1.05, missing=0.0)
ABOUT = {
    "dlrm": "the MLPs of DLRM's reference configuration, {rows:,} rows a rank",
    "dlrm-disk": "small MLPs, {rows:,} rows a rank",
}


@dataclass(frozen=True)
class Model:
    """The results of one model."""

    name: str
    parts: Parts
    checks: list[dict[str, Any]]
    commit: str
    machine: str

    def seconds(self, ranks: int, network: Network, parts: Parts | None = None) -> float:
        return step_seconds(parts or self.parts, ranks, network, steps=STEPS)

    def rate(self, ranks: int, gigabits: float) -> float:
        """Samples/s of all ranks."""
        return ranks * self.parts.keys.rows / self.seconds(ranks, ethernet(gigabits))


def ethernet(gigabits: float) -> Network:
    return Network(gigabits * 1e9, LATENCY)


def models(file: Path = FILE) -> list[Model]:
    found = json.loads(file.read_text())
    return [
        Model(name, Parts.of(of["parts"]), of["checks"], of["commit"], of["machine"])
        for name, of in sorted(found.items())
    ]


def write() -> None:
    """Writes the page and the pictures."""
    from plots import sweep

    found = models()
    rates = {model.name: rates_of(model) for model in found}
    PAGE.write_text(page(found, rates))
    print(f"page: {PAGE}")
    for model in found:
        lines: dict[str, Sequence[float]] = {
            f"{gigabits} Gbit/s": [
                100 * rates[model.name][ranks, gigabits] / ranks / rates[model.name][1, gigabits]
                for ranks in RANKS
            ]
            for gigabits in GIGABITS
        }
        sweep(PAGE.parent / "images" / f"forecast-{model.name}.svg",
              f"{model.name}: predicted samples/s of W ranks", "ranks (W)", "% of W times one rank",
              [str(ranks) for ranks in RANKS], lines)


def rates_of(model: Model) -> dict[tuple[int, int], float]:
    """Samples/s by ranks and Gbit/s."""
    return {
        (ranks, gigabits): model.rate(ranks, gigabits) for ranks in RANKS for gigabits in GIGABITS
    }


def page(found: Sequence[Model], rates: dict[str, dict[tuple[int, int], float]]) -> str:
    """Returns the text of the page."""
    dlrm = found[0].parts
    hot = HOT_TEXT.format(
        row_bytes=KEY_BYTES + 2 * FLOAT_BYTES * dlrm.dim, dim=dlrm.dim, rows=dlrm.keys.rows
    )
    return "\n".join([
        INTRODUCTION.format(commit=", ".join(sorted({model.commit for model in found})),
                            machine=found[0].machine),
        "## Samples/s\n",
        SPEED_TEXT,
        *(speeds(model, rates[model.name]) for model in found),
        COSTS_TEXT,
        costs(found),
        "## Hot rows\n",
        hot,
        hot_rows(dlrm),
        STALE_TEXT,
        COPIES_TEXT.format(steps=COPY_STEPS, bound=COPY_STEPS - 1, ranks=16),
        copies(dlrm.keys, dlrm.dim, "the demo's 26 tables"),
        copies(ONE_TABLE, dlrm.dim, "one table of 10,000,000 rows, 53,248 keys a rank"),
        COPIES_END,
        "## What the simulator takes into account\n",
        MODEL_TEXT,
        "## How far to trust it\n",
        CHECK_TEXT,
        checks(found),
        LEFT_OUT_TEXT.format(steps=" or ".join(str(len(of.parts.computing)) for of in found)),
    ])


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(heads), *map(list, rows)]
    lines.insert(1, ["---"] + ["---:"] * (len(lines[0]) - 1))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def number(value: float) -> str:
    """Three digits that count."""
    if value == 0:
        return "0"
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(0, places)}f}"


def speeds(model: Model, rates: dict[tuple[int, int], float]) -> str:
    def cell(ranks: int, gigabits: int) -> str:
        rate = rates[ranks, gigabits]
        share = rate / ranks / rates[1, gigabits]
        return number(rate) if ranks == 1 else f"{number(rate)} ({share:.0%})"

    about = ABOUT[model.name].format(rows=model.parts.keys.rows)
    return f"**{model.name}**: {about}\n\n" + table(
        ("ranks", *(f"{gigabits} Gbit/s" for gigabits in GIGABITS)),
        ((str(ranks), *(cell(ranks, gigabits) for gigabits in GIGABITS)) for ranks in RANKS),
    ) + f"\n![{model.name}](images/forecast-{model.name}.svg)\n"


def costs(found: Sequence[Model]) -> str:
    """A step at 10 Gbit/s, and how much shorter it would be without some of its costs."""
    def row(model: Model, ranks: int) -> list[str]:
        parts, network = model.parts, ethernet(10)
        middle = float(np.median(parts.computing))
        others = (
            (parts, replace(network, bits_per_second=math.inf)),
            (parts, replace(network, latency=0.0)),
            (replace(parts, computing=(middle,)), network),
            (replace(parts, peer=0.0), network),
        )
        step = model.seconds(ranks, network)
        saved = [step - model.seconds(ranks, other, of) for of, other in others]
        return [f"{model.name}, {ranks}", *(number(1e3 * each) for each in (step, *saved))]

    return table(
        ("model, ranks", "step, ms", "bytes", "latency", "slowest rank", "further ranks"),
        (row(model, ranks) for model in found for ranks in HOT_RANKS),
    )


def hot_rows(parts: Parts) -> str:
    """What rows cost that several ranks ask for."""
    def row(ranks: int) -> list[str]:
        of = draw(parts.keys, ranks, 0, 0)
        asked = of.asked.sum(axis=0)
        repeats = float((asked - of.distinct).mean())
        return [
            str(ranks), f"{ranks * (KEY_BYTES + 2 * FLOAT_BYTES * parts.dim):,}",
            f"{of.distinct.sum() / asked.sum():.0%}", number(1e3 * parts.repeated * repeats),
            f"{asked.max() / asked.mean():.2f}", f"{ranks * parts.keys.rows:,}",
        ]

    return table(
        ("ranks", "bytes of a hot row", "distinct, of the keys asked", "repeats, ms",
         "busiest owner, of the mean", "samples a global step"),
        map(row, HOT_RANKS),
    )


def copies(keys: Keys, dim: int, name: str) -> str:
    """What copies of the hottest rows on every rank would save on 16 ranks."""
    ranks, row_bytes = 16, KEY_BYTES + 2 * FLOAT_BYTES * dim
    remote = (ranks - 1) / ranks

    def row(count: int) -> list[str]:
        of = draw(keys, ranks, count, 0)
        hot = float(of.hot.mean())
        now = hot * remote * row_bytes
        ring = 2 * remote * count * FLOAT_BYTES * dim
        return [
            f"{count:,}", f"{hot:,.0f} ({hot / of.asked.sum(axis=1).mean():.0%})", mega(now),
            mega(ring), mega(ring / COPY_STEPS),
        ]

    return f"{name[0].upper()}{name[1:]}:\n\n" + table(
        ("copies", "keys of a rank that they answer", "now", "summed each step",
         f"each {COPY_STEPS} steps"),
        map(row, COPIES),
    )


def mega(count: float) -> str:
    return f"{number(count / 1e6)} MB"


def checks(found: Sequence[Model]) -> str:
    return table(
        ("model, run", "measured, ms", "predicted, ms", "apart"),
        (
            (f"{model.name}, {of['run']}", number(of["measured_ms"]), number(of["predicted_ms"]),
             f"{of['predicted_ms'] / of['measured_ms'] - 1:+.1%}{' (disturbed)' * of['invalid']}")
            for model in found for of in model.checks
        ),
    )


INTRODUCTION = """\
<!-- bench/python/training/forecast_page.py makes this page. -->

# More ranks: a forecast

One machine has few ranks to measure. This page predicts the samples/s of 1 to 256
[ranks](distributed.md) with a simulator, from the measured parts of a step. No number here is a
measurement, except in the [check](#how-far-to-trust-it). The page and the measurement are made
again by

```sh
cargo xtask bench training forecast --page
```

The parts are of commit {commit}. The machine is
{machine}: one core a rank, no GPU.
`bench/forecast.json` has the parts, and `bench/python/training/fleet_simulator.py` is the
simulator. After a change of the simulator alone,
`PYTHONPATH=bench/python/ground python bench/python/training/forecast_page.py` makes the page
without a measurement.
"""
SPEED_TEXT = """\
Each rank trains on a batch of its own, so the samples of a step grow with the ranks. Each rank has
a machine with its own link. The tables stay the same, and all budgets together are a quarter of
their bytes. In parentheses: the share of W times the samples/s of one rank.
"""
COSTS_TEXT = """\
A step at 10 Gbit/s, and by how many ms it would be shorter if bytes, latency, the wait for the
slowest rank, or the processor time for further ranks cost nothing:
"""
HOT_TEXT = """\
A batch asks for each of its distinct keys once. So the owner of a hot row answers each rank once a
step, however often the row is in the batches. An answer costs {row_bytes} bytes with dim {dim}: the
key, the row, and the gradient. The owner reads each distinct key once, and takes one step with the
sum of the gradients. The hash spreads the hot rows of all tables over the ranks. With many ranks,
the number of hot rows that an owner happens to have makes the busiest one.

The table is for dlrm. It has the bytes of a row that all ranks ask for in each step; how many of
the keys that an owner is asked for are distinct; the time that the others take in its own shard;
and the samples between two steps of a hot row.
"""
STALE_TEXT = """\
The staleness bound counts global steps. With bound k, a row lacks the gradients of at most k global
steps, and those have k times the samples of a global step. A hot row learns once a global step,
from the mean of its gradients. So with more ranks and equal batches, it takes fewer steps for the
same samples.
"""
COPIES_TEXT = """\
Copies of the hottest rows on every rank would answer many keys without a message. But every copy
must then take the step of every rank's gradient. With a ring, as for the dense part, this costs
`2 (W - 1) / W * 4 * dim` bytes for each copy and step, whether a rank has asked for it or not. The
tables have the bytes that a rank of {ranks} sends in a step: now, for the keys that copies would
answer; for the sums of copies in each step; and for sums after {steps} steps, which a bound of
{bound} allows.
"""
COPIES_END = """\
So exact copies save at most the bytes of the keys, 3%, while every rank asks for each of these rows
in every step. More copies cost more than they save. Copies that are summed less often
save bytes, but the rows learn later, and each rank spends memory and optimizer steps on all copies.
Embank has no copies.
"""
MODEL_TEXT = """\
- **Keys.** Every rank draws a batch for each table: Zipf's law with exponent 1.05, 3% without a
  value, and the table sizes of `examples/dlrm`. A uniform hash finds the owner of a key. The keys
  that an owner has to send, and the distinct ones among them, are counted.
- **Computing.** Each rank and step draws one of the measured times. A step waits for the slowest
  rank.
- **Own shard.** A time for each distinct key, for each further rank that asks for it, and for each
  row from disk. The hottest rows are in memory, as many as explain the measured reads of two ranks;
  all others come from disk. Ranks that share a core also share a disk.
- **Messages.** Five to all ranks in a step. A message costs a fixed time, processor time for its
  bytes, and a latency of 25 us each way, twice: gloo sends bytes after the receiver is ready.
  Each link carries its bytes one after the other, with headers of TCP, both directions at once.
- **Dense gradients.** A ring for each bucket of DDP, beside the rest of the backward pass.
- **Further ranks.** Processor time that every rank spends for each other one, such as the calls for
  its messages. It is measured as the difference of 8 ranks and 2 on two cores, and taken as
  linear. With many ranks, this is the least certain part.
"""
CHECK_TEXT = """\
The parts come from one rank, and from two ranks without a limit. So the rows without a limit only
show that the parts add up. The others are predictions. The rate is limited by a token bucket on the
loopback, which both ranks and both directions share. Four ranks share two cores. The targets: 15%
apart, and 25% for four ranks.
"""
LEFT_OUT_TEXT = """\
What the simulator leaves out:

- GPUs, NCCL, and several ranks that share the link of a machine.
- A disk for each rank: the two measured ranks share one.
- Switches with less than full bandwidth, lost packets, and many senders to one receiver at once.
- Reading ahead (`Pipelined` with a depth above 0), checkpoints, and the loading of data.
- What the largest delay of hundreds of machines is. The slowest of 256 ranks is the slowest of
  {steps} measured steps, and other programs on the measured machine have delayed some of them.
- The quality of a model that trains with large global batches.
"""

if __name__ == "__main__":
    write()
