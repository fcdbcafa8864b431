"""Checks the simulator of fleets against ranks of this machine, and measures the parts that
`docs/forecast.md` is made from.

The parts of a step are measured on one rank, and on two ranks of one core each whose messages pass
the loopback without a limit. From these, `fleet_simulator` predicts the step of

- one rank, and two ranks without a limit: the simulator only puts the measured parts together;
- two ranks at 1 Gbit/s and at 200 Mbit/s: the loopback passes a token bucket, in a network
  namespace of this program's own (skipped with a message where that is not allowed);
- four ranks on two cores.

Model and runs are those of `distributed`. The runs train by turns of some steps; figures are
medians over all turns but the first fifth, with the distance between their quartiles. All figures
are invalid if a rank waited for its core for more than 5% of the time because of other programs.

The processor time that a further rank costs is measured with small batches, on eight ranks and two.

Targets: a predicted step is within 15% of the measured one, and within 25% for four ranks on two
cores. --page also writes the parts to `bench/forecast.json`, and makes `docs/forecast.md` of them.
It writes nothing of a model whose figures are invalid.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median

import forecast_page
import limited_loopback
import measure
import numpy as np
from distributed_rank import Outcome, Place
from figures import Figure, mebibytes
from fleet_simulator import Keys, Network, Parts, draw, rows_in_memory, step_seconds
from forecast_rank import Watched, WatchedTraining
from measure import Measured, median_and_quartiles
from rank_run import DISTURBED_SHARE_MAX, Run, two_cores
from speed import FIRST_STEPS, WARM_UP_SHARE
from workloads import MEBI, ROOMY, Clicks

from experiments import CriteoOptions
from generate import MISSING_CATEGORY, GeneratorOptions

NAMES = ("dlrm", "dlrm-disk")
RATES = (10**9, 200 * 10**6)
APART_MAX, APART_SHARED_MAX = 0.15, 0.25
TURNS, TURNS_QUICK = 15, measure.sized(5, 2)
TURN_SECONDS = measure.sized(2.0, 0.0)
TURN_STEPS_MIN = 5
PEERS, PEER_ROWS = measure.sized(8, 3), 64
COMPUTING_KEPT = 200
"""The number of measured steps that the parts keep."""


def main() -> int:
    options = measure.parser(__doc__)
    options.set_defaults(threads=1)
    add = options.add_argument
    add("--model", choices=NAMES, nargs="+", help=f"default: {' '.join(NAMES)}; quick dlrm")
    add("--turns", type=int, help=f"of each run (default {TURNS}, quick {TURNS_QUICK})")
    add("--page", action="store_true", help="writes bench/forecast.json and docs/forecast.md")
    given = options.parse_args()
    limited = limited_loopback.enter()
    # The processes of gloo meet on the loopback, whatever the name of the machine stands for.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    models = given.model or (NAMES[:1] if given.quick else NAMES)
    if len(models) > 1:
        return measure.each_alone(__file__, models, given)
    return measure.report(checked(models[0], given, limited), given)


@dataclass
class Case:
    """A run on some network. `cores` has the core of each rank, None if each has its own."""

    name: str
    run: Run
    network: Network
    cores: list[int] | None = None
    steps: int = FIRST_STEPS
    """The steps of the next turn."""

    def take(self, limited: bool) -> None:
        rate = self.network.bits_per_second
        if limited:
            limited_loopback.set_rate(None if rate == math.inf else int(rate))
        self.run.take(self.steps)

    def part(self, name: str) -> float:
        """The seconds of a part in a step: the median of the turns."""
        return median(self.run.part_seconds(name))

    def computing(self) -> list[float]:
        """The seconds of each step outside of the parts, rank by rank, in the half of the turns
        that other programs have disturbed least. One long disturbance would be drawn in many steps.
        """
        turns = sorted(
            self.run.steady(), key=lambda turn: max(one.disturbed / one.seconds for one in turn)
        )
        half = turns[: -(-len(turns) // 2)]
        return [seconds for turn in half for one in turn for seconds in one.computing]

    @property
    def disturbed(self) -> bool:
        # Ranks that share a core wait for it because of each other.
        return self.cores is None and median(self.run.disturbed_share()) > DISTURBED_SHARE_MAX


def checked(name: str, given: argparse.Namespace, limited: bool) -> list[Measured]:
    """Measures the parts and the runs, and compares them with their predictions."""
    model, _, disk = name.partition("-")
    # Makes the files of the data, which the ranks read.
    work = Clicks(given, model, bool(disk))
    budget = work.budget_bytes(1 / 4)
    room = max(64 * MEBI, ROOMY * work.table_bytes)
    print(f"{name}: tables {mebibytes(work.table_bytes)}, budget {mebibytes(budget)}", flush=True)
    folder = measure.SCRATCH / "forecast" / name
    cores = two_cores()

    def run(what: str, ranks: int, bytes_of_all: int, rows: int = work.batch) -> Run:
        place = Place(0, ranks, rows, bytes_of_all // ranks, 0, folder / what)
        return Run(name, given, (cores * ranks)[:ranks], place, WatchedTraining)

    peer = further_rank_seconds([
        run(f"few-{ranks}", ranks, room, PEER_ROWS) for ranks in (2, PEERS)
    ])
    free = loopback(math.inf)
    one = Case("one rank", run("one", 1, budget), free)
    two = Case("two ranks", run("two", 2, budget), free)
    roomy = Case("two ranks, room for all rows", run("roomy", 2, room), free)
    four = Case("four ranks on two cores", run("four", 4, budget), free, cores * 2)
    slow = [
        Case(f"two ranks at {rate // 10**6:,} Mbit/s", two.run.again(), loopback(rate))
        for rate in RATES
    ] if limited else []
    cases = [one, two, roomy, *slow, four]
    for case in cases:
        case.take(limited)
        seconds = max(of.seconds for of in case.run.turns[0]) / FIRST_STEPS
        case.steps = max(TURN_STEPS_MIN, round(TURN_SECONDS / seconds))
    for turn in range(given.turns or (TURNS_QUICK if given.quick else TURNS)):
        for case in cases if turn % 2 == 0 else cases[::-1]:
            case.take(limited)
    if limited:
        limited_loopback.set_rate(None)
    outcomes = [case.run.end() for case in (one, two, roomy, four)]
    shutil.rmtree(folder)
    watched = [of for of in outcomes[1] if isinstance(of, Watched)]
    parts = parts_of(keys_of(work, model), one, two, roomy, watched, peer)
    # All predictions are made of the same parts.
    invalid = any(case.disturbed for case in cases)
    checks = [Check.of(case, parts, invalid) for case in cases if case is not roomy]
    if given.page and invalid:
        print(f"{name}: the page keeps its older numbers, because these are invalid")
    elif given.page:
        add_parts(name, parts, checks)
        forecast_page.write()
    return [
        *(row for check in checks for row in check.rows(name)),
        *counts(name, parts, [outcomes[1], outcomes[3]]),
        *(computed(f"{name}: {case.name}", case.run) for case in cases),
        *times(name, parts),
    ]


def loopback(bits_per_second: float) -> Network:
    return Network(bits_per_second, shared=True, burst_bytes=limited_loopback.BURST_BYTES)


def keys_of(work: Clicks, model: str) -> Keys:
    options = measure.criteo(CriteoOptions(model=model))  # type: ignore[arg-type]
    made = GeneratorOptions(options.rows, options.scale, options.skew, options.seed)
    return Keys(work.batch, tuple(made.cardinalities()), options.skew, MISSING_CATEGORY)


def further_rank_seconds(runs: Sequence[Run]) -> float:
    """The processor time of a step that each rank costs every other one: of few rows, on two and
    on `PEERS` ranks."""
    for _ in range(1 + TURNS_QUICK):
        for run in runs:
            run.take(FIRST_STEPS)
    for run in runs:
        run.end()
    fewer, more = (median(run.computed_seconds()) for run in runs)
    return max(0.0, more - fewer) / (PEERS - 2)


def parts_of(
    keys: Keys, one: Case, two: Case, roomy: Case, watched: Sequence[Watched], peer: float
) -> Parts:
    """Returns the parts of the steps of one rank, and of two without a limit. `watched` are the
    outcomes of `two`."""
    reads = fmean(of.disk_reads / of.steps for of in watched)
    in_memory = rows_in_memory(keys, 2, reads)
    drawn = draw(keys, 2, in_memory, 0)
    repeats = float((drawn.asked.sum(axis=0) - drawn.distinct).mean())
    distinct = float(drawn.distinct.mean())

    def mean(field: str) -> float:
        return fmean(getattr(of, field) for of in watched)

    repeated, message_byte = mean("repeated"), mean("message_byte")
    from_disk = max(0.0, two.part("store") - roomy.part("store"))
    buckets = tuple(
        (count, fmean(of.buckets[at][1] for of in watched))
        for at, (count, _) in enumerate(watched[0].buckets)
    )
    ring_work = sum(count for count, _ in buckets) * message_byte
    return Parts(
        keys=keys,
        dim=(watched[0].key_bytes - 8) // 8,
        alone=thinned(one.computing()),
        alone_bank=one.part("store"),
        computing=tuple(max(0.0, each - ring_work) for each in thinned(two.computing())),
        get_at=mean("get_at"),
        buckets=buckets,
        gradients_at=mean("gradients_at"),
        exchange=two.part("bank"),
        peer=peer,
        header_bytes=fmean(of.header_bytes / of.steps for of in watched) / 2,
        message=mean("message"),
        message_byte=message_byte,
        ring_round=mean("ring_round"),
        repeated=repeated,
        distinct=max(0.0, roomy.part("store") - repeated * repeats) / distinct,
        disk_read=from_disk / reads if reads > 0 else 0.0,
        in_memory=in_memory,
    )


def thinned(seconds: Sequence[float]) -> tuple[float, ...]:
    """Returns at most `COMPUTING_KEPT` values, spread evenly over the sorted ones."""
    ordered = np.sort(seconds)
    at = np.linspace(0, len(ordered) - 1, min(COMPUTING_KEPT, len(ordered)))
    return tuple(float(each) for each in ordered[np.round(at).astype(int)])


@dataclass(frozen=True)
class Check:
    """A measured step and its prediction, in ms."""

    run: str
    measured_ms: float
    spread_ms: float
    predicted_ms: float
    apart_max: float
    invalid: bool

    @classmethod
    def of(cls, case: Case, parts: Parts, invalid: bool) -> Check:
        measured, spread = median_and_quartiles([1e3 * each for each in case.run.step_seconds()])
        predicted = step_seconds(parts, case.run.ranks, case.network, cores=case.cores)
        return cls(
            case.name, measured, spread, 1e3 * predicted,
            APART_MAX if case.cores is None else APART_SHARED_MAX, invalid,
        )

    def rows(self, name: str) -> list[Measured]:
        apart = self.predicted_ms / self.measured_ms - 1
        asked = measure.SMOKE is None and not self.invalid
        step = Figure(f"{name}: {self.run}, a step", self.measured_ms, "ms", "predicted",
                      self.predicted_ms)
        return [
            Measured(step, self.spread_ms, invalid=self.invalid),
            Measured(Figure(f"{name}: {self.run}, prediction apart", apart, ""),
                     passed=abs(apart) <= self.apart_max if asked else None, invalid=self.invalid),
        ]


def counts(name: str, parts: Parts, fleets: Sequence[Sequence[Outcome]]) -> list[Measured]:
    """The counts of a rank's step, beside the drawn ones."""
    rows = []
    for outcomes in fleets:
        ranks = len(outcomes)
        drawn = draw(parts.keys, ranks, parts.in_memory, 0)
        remote = float(drawn.asked.sum() - np.trace(drawn.asked)) / ranks
        for what, of_rank, expected in (
            ("distinct keys of other ranks", [of.remote_keys / of.steps for of in outcomes], remote),
            ("rows from disk", [of.disk_reads / of.steps for of in outcomes], drawn.cold.mean()),
        ):
            figure = Figure(f"{name}: {ranks} ranks, {what} a step", fmean(of_rank), "", "drawn",
                            float(expected))
            rows.append(Measured(figure))
    return rows


def computed(name: str, run: Run) -> Measured:
    middle, spread = median_and_quartiles([1e3 * each for each in run.computed_seconds()])
    return Measured(Figure(f"{name}, processor time of a rank's step", middle, "ms"), spread)


def times(name: str, parts: Parts) -> list[Measured]:
    shard = parts.own_shard(draw(parts.keys, 2, parts.in_memory, 0)).mean()
    of_step = {
        "computing of two ranks": np.mean(parts.computing), "exchange": parts.exchange,
        "own shard of two ranks": shard, "message without content": parts.message,
        "round of a ring": parts.ring_round, "further rank": parts.peer,
    }
    of_one = {
        "byte of a message": parts.message_byte, "key again in the own shard": parts.repeated,
        "distinct key in the own shard": parts.distinct, "row from disk": parts.disk_read,
    }
    return [
        Measured(Figure(f"{name}: {what}", scale * float(seconds), unit))
        for of, scale, unit in ((of_step, 1e3, "ms"), (of_one, 1e6, "us"))
        for what, seconds in of.items()
    ]


def add_parts(name: str, parts: Parts, checks: Sequence[Check]) -> None:
    """Writes the results of one model to the file of the page. Keeps those of the other models."""
    file = forecast_page.FILE
    models = json.loads(file.read_text()) if file.exists() else {}
    models[name] = {
        "commit": measure.COMMIT, "machine": measure.machine(), "parts": parts.plain(),
        "checks": [asdict(check) for check in checks],
    }
    file.write_text(json.dumps(models, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
