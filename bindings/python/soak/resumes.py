"""Stops training passes at random and resumes them, over many kinds of samplers and streams.

A case draws a kind of loader, stops, read-ahead, and the random draws of the training loop from one
seed. It runs the passes once without a stop and once with the stops, and compares them. After each
stop the case acts as another process would: the random generators have another state and the loader
is made again. For some cases the last part runs in a process of its own, which resumes from a bank.
For others, the loader that was stopped is resumed itself.

A case passes in one of two ways. Either the resumed run hands out the batches of the unbroken run
in its order. Or, if docs/python.md does not promise that, `ResumableLoader` or the first batch of
the resumed pass raises `ValueError` and names the cure. Everything else fails: a sample that comes
twice or never, another order, another error, a refusal of a kind that must repeat. A failure prints
its case and the command that runs it again.

The program ends with 0 if all cases passed, with 1 if one failed, and with 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import torch

import embank
import embank.torch
from orders import KINDS, Kind, PassOrder, Shape

CURES = (
    "ResumableLoader(loader, generator)",
    "it is not the same loader",
    "Make it with in_order=True",
)
"""What the message of a refusal must say."""
OTHER_PROCESS_SHARE = 0.2
SAME_OBJECT_SHARE = 0.15
WORKERS_WEIGHT = 0.2
"""How often a kind with workers is drawn, beside 1 for the others: each pass starts processes."""
CASES_A_PROCESS = 25
SEEDS_A_RUN = 1_000_000


@dataclasses.dataclass(frozen=True)
class Case:
    """A case, drawn from `seed`."""

    seed: int
    kind_name: str
    shape: Shape
    draws: tuple[str, ...]
    """The global generators that the training loop draws from after each batch."""
    stops: tuple[tuple[int, int], ...]
    """The pass and the batches of it that were handed out, ascending. A stop may come twice."""
    depths: tuple[Optional[int], ...]
    """Of each part, how far it reads ahead: the depth of its `LookaheadLoader`, or None for a part
    without one.
    """
    place: str
    """Where the last part runs: "here", "the same object" or "another process"."""
    dangling: bool
    """Whether the iteration that was stopped stays open while the next one runs."""

    @property
    def kind(self) -> Kind:
        return KINDS[self.kind_name]

    @property
    def may_be_refused(self) -> bool:
        kind = self.kind
        return (
            not kind.repeats
            or bool(kind.draws & set(self.draws))
            or (self.place == "the same object" and not kind.same_object)
            or (self.place == "another process" and not kind.same_process)
        )

    def __str__(self) -> str:
        return (
            f"{self.kind_name}; {self.shape.samples} samples, batches of {self.shape.batch_size}, "
            f"{self.shape.workers} workers; the loop draws from {list(self.draws)}; "
            f"stops (pass, batches) {list(self.stops)}; depths {list(self.depths)}; resumed in {self.place}; "
            f"old iteration {'open' if self.dangling else 'closed'}"
        )


def case_of(seed: int, names: list[str]) -> Case:
    rng = random.Random(seed)
    weights = [WORKERS_WEIGHT if KINDS[name].workers else 1.0 for name in names]
    name = rng.choices(names, weights)[0]
    kind = KINDS[name]
    shape = Shape(rng.randrange(40, 121), rng.randrange(4, 9), rng.randrange(1, 3))
    draws = tuple(of for of in ("python", "numpy", "torch") if rng.random() < 0.35)
    place = rng.random()
    if place < OTHER_PROCESS_SHARE:
        where = "another process"
    else:
        where = "the same object" if place < OTHER_PROCESS_SHARE + SAME_OBJECT_SHARE else "here"
    case = Case(seed, name, shape, draws, (), (), where, rng.random() < 0.5)
    batches = -(-shape.samples // shape.batch_size)
    # A kind that may be refused has all its stops in one pass. A refusal ends the case, and the
    # order of a later pass may depend on the process that draws it.
    passes = range(kind.passes)
    if case.may_be_refused:
        passes = range(kind.passes)[-1:] if rng.random() < 0.6 else range(1)
    first = kind.first_stop if case.may_be_refused else 0
    stops = sorted(
        (rng.choice(passes), rng.randrange(first, batches + 1))
        for _ in range(rng.choices((1, 2, 3, 4), (5, 3, 1, 1))[0])
    )
    if rng.random() < 0.1:
        stops.append(stops[-1])
    depths = [rng.choice((None, None, 0, 1, 2, 3, 5)) for _ in range(len(stops) + 1)]
    if case.may_be_refused or rng.random() < 0.5 or where == "the same object":
        depths = depths[:1] * len(depths)
    return dataclasses.replace(case, stops=tuple(stops), depths=tuple(depths))


@dataclasses.dataclass
class Record:
    """The batches that a run has handed out, and the numbers drawn after each batch, by pass."""

    batches: list[list[list[int]]]
    drawn: list[list[list[float]]]

    @classmethod
    def empty(cls, passes: int) -> Record:
        return cls([[] for _ in range(passes)], [[] for _ in range(passes)])


class Refused(Exception):
    """`ResumableLoader`, or a resumed pass before its first batch, raised `ValueError`."""


class Failure(Exception):
    """A case that did not pass."""


def refusal(error: ValueError) -> Exception:
    """Returns the `Refused` for an error that names a cure, and a `Failure` for another one."""
    if any(cure in str(error) for cure in CURES):
        return Refused(str(error))
    return Failure(f"a refusal without a cure: {error}")


def begin_process(seed: int) -> None:
    """Seeds the global generators with `seed`, as a new process does."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def loader_of(
    case: Case, part: int, table: Optional[embank.Table] = None
) -> embank.torch.ResumableLoader[Any]:
    shape = case.shape
    if case.kind.changing_workers:
        shape = dataclasses.replace(shape, workers=(shape.workers + part) % 3)
    loader, generator = case.kind.make(shape)
    depth = case.depths[part]
    if depth is not None:

        def keys(batch: Any) -> Any:
            return {} if table is None else {table: np.array(numbers(batch))}

        loader = embank.torch.LookaheadLoader(loader, keys, depth=depth)
    try:
        return embank.torch.ResumableLoader(loader, generator)
    except ValueError as error:
        raise refusal(error) from error


def numbers(batch: Any) -> list[int]:
    """Returns the samples of a batch of any form."""
    items = batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)
    return [int(str(item).rsplit(" ", 1)[-1]) for item in items]


def set_pass(loader: embank.torch.ResumableLoader[Any], number: int) -> None:
    """Calls `set_epoch` with the number of the pass, as loops over a `DistributedSampler` do."""
    of: Any = loader.loader
    of = getattr(of, "loader", of)
    sampler = getattr(of, "sampler", None)
    if isinstance(sampler, PassOrder):
        sampler.set_epoch(number)


def drawn_by_loop(case: Case) -> list[float]:
    draw: dict[str, Callable[[], float]] = {
        "python": random.random,
        "numpy": np.random.random_sample,
        "torch": lambda: torch.rand(1).item(),
    }
    return [draw[of]() for of in case.draws]


def run_part(
    case: Case,
    loader: embank.torch.ResumableLoader[Any],
    record: Record,
    stop: Optional[tuple[int, int]],
    resumed: bool,
) -> Optional[Iterator[Any]]:
    """Trains from the loader's position to `stop`, or to the end.

    Returns the iteration that was stopped, if it had begun.
    """
    for number in range(loader.epoch, case.kind.passes):
        seen = record.batches[number]
        if stop == (number, len(seen)):
            return None
        set_pass(loader, number)
        had = len(seen)
        batches = iter(loader)
        try:
            for batch in batches:
                seen.append(numbers(batch))
                record.drawn[number].append(drawn_by_loop(case))
                if stop == (number, len(seen)):
                    return batches
        except ValueError as error:
            if resumed and len(seen) == had:
                raise refusal(error) from None
            raise Failure(f"ValueError in the middle of a pass: {error}") from error
        resumed = False
    return None


def saved(loader: embank.torch.ResumableLoader[Any]) -> bytes:
    """The loader's state as bytes, as `embank.torch.save` keeps it."""
    blob = io.BytesIO()
    torch.save(loader.state_dict(), blob)
    return blob.getvalue()


def loaded(state: bytes) -> Any:
    return torch.load(io.BytesIO(state), weights_only=True)


def generators() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_generators(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def unbroken(case: Case) -> Record:
    begin_process(case.seed)
    record = Record.empty(case.kind.passes)
    run_part(case, loader_of(case, 0), record, None, False)
    return record


def bank_at(path: Path) -> embank.Bank:
    return embank.Bank(path, memory_budget="16MiB")


def run_broken(case: Case, bank_path: Optional[Path]) -> Record:
    """Runs the case with its stops; with a path, only to the last one, which is saved to a bank
    there.
    """
    record = Record.empty(case.kind.passes)
    with contextlib.ExitStack() as stack:
        table = None
        bank = None
        if bank_path is not None:
            bank = stack.enter_context(bank_at(bank_path))
            table = bank.table("sample", dim=2)
        begin_process(case.seed)
        loader = loader_of(case, 0, table)
        open_iterations = []
        for part, stop in enumerate([*case.stops, None]):
            iteration = run_part(case, loader, record, stop, part > 0)
            if stop is None:
                break
            if bank is not None and part == len(case.stops) - 1:
                embank.torch.save(bank, loader=loader)
                break
            state, states = saved(loader), generators()
            if case.dangling:
                open_iterations.append(iteration)
            elif iteration is not None:
                iteration.close()  # type: ignore[attr-defined]
            del iteration
            begin_process(case.seed + 1000 + part)
            if case.place != "the same object" or part < len(case.stops) - 1:
                loader = loader_of(case, part + 1, table)
            loader.load_state_dict(loaded(state))
            set_generators(states)
    return record


def resume_from_bank(case: Case, bank_path: Path, record: Record) -> None:
    """Runs the last part of a case, in another process."""
    begin_process(case.seed + 999)
    with bank_at(bank_path) as bank:
        table = bank.table("sample", dim=2)
        loader = loader_of(case, len(case.stops), table)
        if embank.torch.resume(bank, loader=loader) is None:
            raise Failure("the bank has no checkpoint")
        run_part(case, loader, record, None, True)


def check(case: Case, wanted: Record, found: Record) -> None:
    """Raises `Failure` unless the run with stops equals the unbroken one."""
    compared = range(case.kind.passes)
    if case.may_be_refused:
        # Compares only the pass of the last stop. The order of a later pass may depend on the
        # process that draws it, and the unbroken run is another process.
        compared = range(case.stops[-1][0], case.stops[-1][0] + 1)
    for number in range(case.kind.passes):
        samples = [sample for batch in found.batches[number] for sample in batch]
        if case.kind.once and sorted(samples) != list(range(case.shape.samples)):
            counts = Counter(samples)
            twice = sorted(sample for sample, count in counts.items() if count > 1)
            never = sorted(set(range(case.shape.samples)) - counts.keys())
            raise Failure(f"pass {number}: samples twice {twice}, never {never}")
    for number in compared if case.kind.ordered else []:
        if found.batches[number] != wanted.batches[number]:
            pairs = zip(found.batches[number], wanted.batches[number])
            at = next((at for at, (a, b) in enumerate(pairs) if a != b), len(found.batches[number]))
            raise Failure(f"pass {number}: another order, silently, from batch {at} on")
        if not case.may_be_refused and found.drawn[number] != wanted.drawn[number]:
            raise Failure(f"pass {number}: the training loop draws other numbers")


def run_in_child(cases: Path) -> None:
    """The work of the other process: resumes cases, and prints the result of each case."""
    names = list(KINDS)
    for line in cases.read_text().splitlines():
        given = json.loads(line)
        case = case_of(given["seed"], given.get("names", names))
        record = Record(given["batches"], given["drawn"])
        result: dict[str, Any] = {"seed": case.seed}
        try:
            resume_from_bank(case, Path(given["bank"]), record)
            result.update(batches=record.batches, drawn=record.drawn)
        except Refused as error:
            result["refused"] = str(error)
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(result), flush=True)


class Soak:
    """Runs cases, and counts their results."""

    def __init__(self, names: list[str], directory: Path) -> None:
        self.names = names
        self.directory = directory
        self.exact: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.failures: list[int] = []
        self.resumes = 0
        self._waiting: list[tuple[Case, Record, Record, Path]] = []

    def run(self, seed: int) -> None:
        case = case_of(seed, self.names)
        self.resumes += len(case.stops)
        self.places[case.place] += 1
        try:
            wanted = unbroken(case)
            if case.place == "another process":
                path = self.directory / f"bank {seed}"
                self._waiting.append((case, wanted, run_broken(case, path), path))
            else:
                self._judge(case, wanted, run_broken(case, None))
        except Refused as error:
            self._judge_refusal(case, str(error))
        except Exception as error:
            self._fail(case, error)

    def flush(self) -> None:
        """Resumes the collected cases in another process."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        cases = self.directory / "cases.jsonl"
        with cases.open("w") as file:
            for case, _, record, path in waiting:
                given = {
                    "seed": case.seed, "names": self.names, "bank": str(path),
                    "batches": record.batches, "drawn": record.drawn,
                }  # fmt: skip
                file.write(json.dumps(given) + "\n")
        done = subprocess.run(
            [sys.executable, __file__, "--resume-cases", str(cases)], capture_output=True, text=True
        )
        results = {result["seed"]: result for result in map(json.loads, done.stdout.splitlines())}
        for case, wanted, _, _ in waiting:
            result = results.get(case.seed)
            if result is None:
                self._fail(case, Failure(f"its process ended early: {done.stderr[-2000:]}"))
            elif "refused" in result:
                self._judge_refusal(case, result["refused"])
            elif "error" in result:
                self._fail(case, Failure(result["error"]))
            else:
                self._judge(case, wanted, Record(result["batches"], result["drawn"]))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _judge(self, case: Case, wanted: Record, found: Record) -> None:
        try:
            check(case, wanted, found)
        except Failure as failure:
            self._fail(case, failure)
        else:
            self.exact[case.kind_name] += 1

    def _judge_refusal(self, case: Case, message: str) -> None:
        if case.may_be_refused:
            self.refused[case.kind_name] += 1
        else:
            self._fail(case, Failure(f"refused, though its order can be repeated: {message}"))

    def _fail(self, case: Case, error: BaseException) -> None:
        self.failures.append(case.seed)
        print(f"FAILED case {case.seed}: {case}")
        print(f"  {type(error).__name__}: {error}")
        again = f"--case {case.seed}"
        if self.names != list(KINDS):
            again += "".join(f' --kind "{name}"' for name in self.names)
        print(f"  again with: python {Path(__file__).name} {again}", flush=True)


def arguments(given: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--resumes", type=int, default=1000, help="resumes in all (1000)")
    parser.add_argument("--seed", type=int, help="of the run; drawn and printed by default")
    parser.add_argument("--case", type=int, help="runs the one case that a failure has named")
    of_kind: Any = {"action": "append", "choices": list(KINDS), "metavar": "KIND"}
    parser.add_argument("--kind", **of_kind, help="only this kind; may be given again")
    parser.add_argument("--leave-out", **of_kind, help="all but this kind; may be given again")
    parser.epilog = "The kinds:\n  " + "\n  ".join(KINDS)
    parser.add_argument("--resume-cases", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(given)


def seeds(options: argparse.Namespace, seed: int) -> Iterable[int]:
    if options.case is not None:
        return [options.case]
    return range(seed * SEEDS_A_RUN, (seed + 1) * SEEDS_A_RUN)


def main(given: Optional[list[str]] = None) -> int:
    options = arguments(given)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "bank .* loses", ResourceWarning)
    if options.resume_cases is not None:
        run_in_child(options.resume_cases)
        return 0
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    began = told = time.monotonic()
    print(f"seed {seed}, torch {torch.__version__}, embank {embank.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        left_out = options.leave_out or []
        kinds = [kind for kind in options.kind or KINDS if kind not in left_out]
        soak = Soak(kinds, Path(directory))
        for case_seed in seeds(options, seed):
            soak.run(case_seed)
            if soak.waiting >= CASES_A_PROCESS:
                soak.flush()
            if time.monotonic() - told > 5:
                told = time.monotonic()
                print(
                    f"{soak.resumes} of {options.resumes} resumes, {len(soak.failures)} failures, "
                    f"{told - began:.0f} s",
                    flush=True,
                )
            if soak.resumes >= options.resumes:
                break
        soak.flush()
    print(f"{'kind':58}{'exact':>7}{'refused':>9}")
    for name in soak.names:
        print(f"{name:58}{soak.exact[name]:7}{soak.refused[name]:9}")
    cases = sum(soak.places.values())
    print(
        f"{soak.resumes} resumes in {cases} cases ({dict(soak.places)}): {sum(soak.exact.values())} exact, "
        f"{sum(soak.refused.values())} refused, {len(soak.failures)} failed, {time.monotonic() - began:.0f} s"
    )
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
