"""Checks that a run that is killed, or that fails, at any moment ends as if nothing had happened.

Trains on MovieLens-100K with frequent checkpoints. The rows of --depth batches are got ahead. Two
kinds of disturbance happen at random (from --seed):

  kills        SIGKILL at a moment of the run: the opening and recovery of the bank, training, a
               checkpoint, or the last evaluation
  exceptions   at a step, the loader, the function that names the keys, the forward pass or the
               backward pass of a table raises. When the exception has left the loop, no lease may
               be left, and after the bank is closed no thread of it.

The disturbed run is resumed at depth 0: after a kill in another process, and after an exception in
the same one. Its AUC on the test rows, and all AUCs on the way there, must equal those of an
undisturbed run at depth 0, bit for bit.

Some disturbances come before the first checkpoint; after at least half of them there must be a
checkpoint to resume from. If the run had already saved its outcome when it was killed, the kill
does not count, and the run is repeated with an earlier kill. A run that fails by itself fails the
measurement.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import multiprocessing
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import measure
import torch
from data import Batch
from embeddings import batch_keys, embank_bags
from experiments import movielens_experiment, quarter_budget, whole_intervals
from figures import Figure
from measure import Measured
from model import ClickModel
from numpy.typing import NDArray
from train import Progress, Trainer
from variant import Experiment

import embank
import embank.torch

COUNT, COUNT_QUICK = 20, 3
ATTEMPTS_MAX = 8
"""Most draws of a moment for one kill, because a run may be faster than the undisturbed one."""
CHECKPOINTS = 12
"""Least number of checkpoints in a run. The steps between two checkpoints are rounded down to whole
sampling intervals."""
LOOKAHEAD = 4
BATCH_SIZE = measure.sized(512, 32)
THREADS_END_SECONDS = 60.0
PLACES = ("loader", "keys", "forward", "backward")

Anything = TypeVar("Anything")
Outcome = dict[str, Any]


class Planned(Exception):
    """The exception that a run raises on purpose."""


@dataclass(frozen=True)
class Failure:
    """Raises `Planned` at a step, counted from 0: in one of `PLACES`. In the forward and backward
    pass, the column `column` fails; other columns may already have taken their part of the step."""

    place: str
    step: int
    column: int


class Disturbed(Trainer):
    """A trainer that fails as planned."""

    failure: Failure | None = None

    def batches(self) -> Iterable[Batch]:
        """Returns the batches from the present step on."""
        first = self.progress.step
        rows = self.order.from_step(first)
        batches = self.failing("loader", first, (self.data.batch(some) for some in rows))
        keys_failures = self.failing("keys", first, itertools.repeat(None))

        def keys(batch: Batch) -> dict[embank.Table, NDArray[Any]]:
            return batch_keys(self.tables, batch)

        def keys_that_fail(batch: Batch) -> dict[embank.Table, NDArray[Any]]:
            next(keys_failures)
            return keys(batch)

        announced = embank.torch.LookaheadLoader(batches, keys, depth=self.options.lookahead)
        return embank.torch.Pipelined(announced, keys_that_fail, self.options.depth)

    def failing(
        self, place: str, first: int, values: Iterable[Anything]
    ) -> Iterator[Anything]:
        """Yields a value for each step from `first` on. Raises at the step of the failure if the
        failure is in this place."""
        for step, value in enumerate(values, first):
            if self.failure is not None and (place, step) == (self.failure.place, self.failure.step):
                raise Planned(place)
            yield value

    def fail_in_model(self, failure: Failure) -> None:
        """Makes the module of the failure's column raise in the forward or backward pass."""

        def planned(*_: object) -> None:
            raise Planned(failure.place)

        def after_forward(bag: torch.nn.Module, _: object, output: torch.Tensor) -> None:
            if self.progress.step != failure.step or not bag.training:
                return
            if failure.place == "forward":
                planned()
            output.register_hook(planned)

        if failure.place in ("forward", "backward"):
            self.model.bags[failure.column].register_forward_hook(after_forward)

    def run(self, watch: range | None = None) -> Progress:
        """Trains. Raises RuntimeError if a planned failure did not happen or has left a lease."""
        if self.failure is None:
            return super().run(watch)
        self.fail_in_model(self.failure)
        try:
            super().run(watch)
        except Planned as error:
            place = str(error)
        else:
            raise RuntimeError(f"{self.failure} has not happened")
        # The exception referred to the frames of the run, which are gone now.
        gc.collect()
        assert self.bank is not None
        leases = self.bank.outstanding_leases()
        if leases:
            raise RuntimeError(f"{self.failure} has left leases: {leases}")
        raise Planned(place)


@dataclass(frozen=True)
class Runs:
    """Makes runs of one experiment, each in its own process."""

    given: argparse.Namespace
    experiment: Experiment
    folder: Path

    def train(self, name: str, depth: int, failure: Failure | None = None) -> Outcome:
        """Trains in the present process, on the bank `name`, from its newest checkpoint if it has
        one. Saves the outcome and returns it."""
        torch.set_num_threads(self.given.threads)
        experiment = self.experiment
        options = replace(experiment.train, depth=depth, lookahead=LOOKAHEAD)
        budget = quarter_budget(experiment)
        with embank.Bank(
            self.folder / name, memory_budget=budget, device=self.given.device
        ) as bank:
            tables = experiment.tables.open(bank, experiment.data)
            model = ClickModel(
                experiment.shape, embank_bags(tables, experiment.data), experiment.seed
            )
            trainer = Disturbed(
                model, experiment.data, experiment.order, options, name, bank, tables
            )
            trainer.failure = failure
            trainer.resume()
            resumed_from = trainer.progress.step
            split = experiment.split
            progress = trainer.run(watch=range(split.train, split.valid))
            auc = trainer.evaluate(range(split.valid, split.test))
        outcome = {"auc": auc, "resumed_from": resumed_from, "aucs": progress.aucs}
        partial = self.outcome_file(name).with_suffix(".partial")
        partial.write_text(json.dumps(outcome))
        partial.replace(self.outcome_file(name))
        return outcome

    def fail_and_resume(self, name: str, failure: Failure) -> None:
        """Trains until the failure, and then to the end, in the present process."""
        try:
            self.train(name, self.given.depth, failure)
        except Planned:
            pass
        gc.collect()
        threads = await_end_of_threads()
        if threads:
            raise RuntimeError(f"{failure} has left the threads {threads}")
        self.train(name, 0)

    def start(self, work: Callable[[], object]) -> Any:
        """Starts a process. It is a fork, so it has the data already."""
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        return process

    def finish(self, name: str, process: Any) -> Outcome:
        """Waits for the end of the run `name` and returns its outcome."""
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"the training process failed with status {process.exitcode}")
        outcome: Outcome = json.loads(self.outcome_file(name).read_text())
        return outcome

    def undisturbed(self) -> Outcome:
        """Trains without a disturbance, at depth 0."""
        return self.finish("undisturbed", self.start(lambda: self.train("undisturbed", 0)))

    def killed(self, name: str, moments: random.Random, seconds: float) -> Outcome:
        """Kills a run at a random moment, resumes it, and returns the outcome of the resumed run.

        Raises RuntimeError if the run fails before its kill.
        """
        latest = seconds
        for _ in range(ATTEMPTS_MAX):
            self.remove(name)
            process = self.start(functools.partial(self.train, name, self.given.depth))
            moment = moments.uniform(0.0, latest)
            process.join(moment)
            process.kill()
            process.join()
            if process.exitcode == -signal.SIGKILL and not self.outcome_file(name).exists():
                outcome = self.finish(name, self.start(functools.partial(self.train, name, 0)))
                show(f"killed after {moment:.2f} s of {seconds:.2f}", outcome)
                return outcome
            if process.exitcode not in (0, -signal.SIGKILL):
                raise RuntimeError(
                    f"the training process failed with status {process.exitcode} before its kill"
                )
            # The run ended before its kill, so the machine is now faster than in the undisturbed
            # run. The next attempt kills earlier.
            latest = moment
        raise RuntimeError(f"{ATTEMPTS_MAX} runs in a row ended before their kill")

    def failed(self, name: str, draw: random.Random) -> Outcome:
        """Lets a run fail at a random step, resumes it in the same process, and returns its
        outcome."""
        failure = Failure(
            draw.choice(PLACES), draw.randrange(self.experiment.order.steps),
            draw.randrange(len(self.experiment.data.columns)),
        )
        work = functools.partial(self.fail_and_resume, name, failure)
        outcome = self.finish(name, self.start(work))
        show(f"{failure.place} failed at step {failure.step}", outcome)
        return outcome

    def outcome_file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        self.outcome_file(name).unlink(missing_ok=True)


def main() -> int:
    options = measure.parser(__doc__)
    add = options.add_argument
    add("--kills", type=int, help=f"default {COUNT}, quick {COUNT_QUICK}")
    add("--exceptions", type=int, help=f"default {COUNT}, quick {COUNT_QUICK}")
    add("--depth", type=int, default=0, help="default %(default)s")
    given = options.parse_args()
    count = COUNT_QUICK if given.quick else COUNT
    kills = count if given.kills is None else given.kills
    exceptions = count if given.exceptions is None else given.exceptions
    if min(kills, exceptions) < 0 or kills + exceptions == 0:
        options.error("--kills and --exceptions must be 0 or more, and one of them above 0")
    experiment = experiment_of(given)
    measure.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=measure.SCRATCH, prefix="kills-") as folder:
        rows = checked(Runs(given, experiment, Path(folder)), kills, exceptions)
    return measure.report(rows, given)


def experiment_of(given: argparse.Namespace) -> Experiment:
    """Returns the experiment, with frequent checkpoints. Its tables have the least bound that the
    depth allows, so gets ahead wait for the batch in hand."""
    experiment = movielens_experiment(measure.DATA, BATCH_SIZE, seed=0, device=given.device)
    every = whole_intervals(experiment.order.steps // CHECKPOINTS, experiment.train.sample_every)
    bound = given.depth - 1 if given.depth > 0 else None
    return replace(
        experiment, train=replace(experiment.train, checkpoint_every=every),
        tables=replace(experiment.tables, staleness_bound=bound),
    )


def checked(runs: Runs, kills: int, exceptions: int) -> list[Measured]:
    """Disturbs runs and compares each with the undisturbed run."""
    started = time.perf_counter()
    expected = runs.undisturbed()
    seconds = time.perf_counter() - started
    rows = [
        Measured(Figure("auc, undisturbed", expected["auc"], "")),
        Measured(Figure("undisturbed run", seconds, "s")),
    ]
    print(f"undisturbed: AUC {expected['auc']!r}", flush=True)
    for kind, count, one in (
        ("kills", kills, lambda name, draw: runs.killed(name, draw, seconds)),
        ("exceptions", exceptions, runs.failed),
    ):
        draw = random.Random(f"{kind} {runs.given.seed}")
        same = resumed = 0
        for number in range(count):
            name = f"{kind}-{number}"
            found = one(name, draw)
            runs.remove(name)
            same += all(found[key] == expected[key] for key in ("auc", "aucs"))
            resumed += found["resumed_from"] > 0
        if count > 0:
            rows += [
                Measured(Figure(f"{kind} with the same auc", same, "", kind, count),
                         passed=same == count),
                Measured(Figure(f"{kind}, resumed from a checkpoint", resumed, "", kind, count),
                         passed=None if measure.SMOKE else resumed >= count // 2),
            ]
    return rows


def show(what: str, outcome: Outcome) -> None:
    print(f"{what}, resumed from step {outcome['resumed_from']}: AUC {outcome['auc']!r}", flush=True)


def await_end_of_threads() -> list[str]:
    """Waits until all threads of banks have ended. Returns the names of threads that have not."""
    deadline = time.monotonic() + THREADS_END_SECONDS
    while (left := bank_threads()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return left


def bank_threads() -> list[str]:
    """The names of this process's threads that belong to a bank."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        try:
            names.append(path.read_text().strip())
        except OSError:
            continue        # The thread has ended meanwhile.
    return [name for name in names if name.startswith("embank-")]


if __name__ == "__main__":
    sys.exit(main())
