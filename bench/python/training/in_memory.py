"""How fast is the training step of one table in memory, beside torch and FBGEMM?

A step looks up the keys of a batch, passes a given gradient of the output backward, and updates
the rows. The figure is keys a second over whole steps. Four contenders take equal steps:

  Embank row-wise Adagrad  embank.torch.Embedding or EmbeddingBag; the table applies the gradients
  Embank Adagrad           these modules over a table with the optimizer of torch.optim.Adagrad
  torch sparse Adagrad     torch.nn.Embedding or EmbeddingBag, sparse=True, and torch.optim.Adagrad
  FBGEMM row-wise Adagrad  table-batched embeddings on the CPU, EXACT_ROWWISE_ADAGRAD

FBGEMM takes part where it is installed. `cargo xtask` installs it in target/venv. Elsewhere:
python -m pip install --no-deps fbgemm-gpu-cpu==1.6.0 (its own dependencies are not needed)

The cases: 4,096 and 32,768 ids of 16 columns, 4,096 ids of 128 columns, 2,048 bags of 20 keys of
64 columns (sums); each with uniform keys and with keys by Zipf's law (exponent 1.05). In a round
each contender trains for one turn, in random order, on batches that no earlier round had. Values
are medians over the rounds, with the distance between the quartiles. A ratio compares turns of the
same round. --threads is the number of threads of torch, on which FBGEMM runs too, and of Embank's
banks.

Asked: every value that Embank holds after the last step is within a thousandth of the learning
rate of the peer's value (FBGEMM's, torch's, and for a part of the rows that of the formula in
float64). A lookup then returns rows within that distance. A run that reads the disk is refused.
--quick takes 100,000 rows, 3 rounds and a fifth of the steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import measure
import numpy as np
import torch
from figures import Figure
from measure import Measured, median_and_quartiles
from optimizers import RowWiseAdagradRows

import embank
import embank.torch

LEARNING_RATE = 0.05
DIFFERENCE_MAX = 0.001
"""Largest difference of a value, as a part of the learning rate. A row's first step moves a value
by about the learning rate, and its 600th step by about a 25th of it, so a missing step shows.
Rounding errors add up to 0.00002 in 700 steps."""
INITIAL_SUM = 0.1
"""Initial sum of Adagrad's squares. With 0 the first step would be the gradient's sign, and
rounding may change that sign if the gradients of a repeated key nearly cancel."""
ROW_WISE_EPS = 1e-8
ZIPF_EXPONENT = 1.05
ROWS, ROWS_QUICK = 1_000_000, 100_000
ROUNDS, ROUNDS_QUICK = 7, 3
QUICK_STEPS_SHARE = 5
"""With --quick, a turn has the usual number of steps divided by this number."""
WARM_UP_STEPS = 5
CHUNK_ROWS = 1 << 16
"""Rows of a put, and of a comparison."""
SAMPLE_SHARE = 64
"""The formula computes only the first rows: the number of rows divided by this number."""
RECORD_EXTRA_BYTES = 48
"""Most bytes of a row in memory besides its values and state: its header and its entry in the
index."""

ROW_WISE, ADAGRAD = "Embank row-wise Adagrad", "Embank Adagrad"
TORCH, FBGEMM = "torch sparse Adagrad", "FBGEMM row-wise Adagrad"
FORMULA = "the formula"


@dataclass(frozen=True)
class Case:
    """Shape of the batches: `outputs` rows, each the sum of `bag` rows of the table."""

    popularity: str
    outputs: int
    bag: int
    dim: int
    steps: int
    rows: int

    @property
    def name(self) -> str:
        what = f"{self.outputs:,} bags of {self.bag}" if self.pooled else f"{self.outputs:,} ids"
        return f"{what}, dim {self.dim}, {self.popularity}"

    @property
    def pooled(self) -> bool:
        return self.bag > 1

    @property
    def keys(self) -> int:
        return self.outputs * self.bag


@dataclass(frozen=True)
class Batch:
    """The keys, and for each output the index of its first key. The last offset is the number of
    keys. """

    keys: torch.Tensor
    offsets: torch.Tensor


class Contender(Protocol):
    """A table with its optimizer."""

    name: str

    def lookup(self, batch: Batch) -> torch.Tensor:
        """Looks up a batch and returns the outputs, through which autograd can go backward."""

    def update(self) -> None:
        """Applies the gradients of the backward pass, unless the backward pass has applied them."""

    def rows(self, first: int, end: int) -> torch.Tensor:
        """Returns the rows of the keys from `first` to `end - 1`."""


class EmbankTable:
    """A table of Embank. The backward pass hands the gradients to the store, which runs the
    optimizer."""

    def __init__(self, name: str, case: Case, start: torch.Tensor, optimizer: Any, folder: Path,
                 given: argparse.Namespace) -> None:
        self.name = name
        # The budget is one and a half times the memory of the values, of a state of equal length,
        # and of the records' headers. The unused part is not resident.
        budget = case.rows * (8 * case.dim + RECORD_EXTRA_BYTES) * 3 // 2 + (64 << 20)
        self.bank = embank.Bank(folder, memory_budget=budget, device=given.device,
                                threads=given.threads)
        self.table = self.bank.table("rows", dim=case.dim, optimizer=optimizer)
        for first in range(0, case.rows, CHUNK_ROWS):
            values = start[first : first + CHUNK_ROWS].numpy()
            self.table.put(np.arange(first, first + len(values)), values)
        self.module: torch.nn.Module = (
            embank.torch.EmbeddingBag(self.table, mode="sum", include_last_offset=True)
            if case.pooled else embank.torch.Embedding(self.table)
        )
        self.pooled = case.pooled

    def lookup(self, batch: Batch) -> torch.Tensor:
        return looked_up(self.module, batch, self.pooled)

    def update(self) -> None:
        """Does nothing, because the backward pass has applied the gradients."""

    def rows(self, first: int, end: int) -> torch.Tensor:
        return torch.from_numpy(self.table.peek(np.arange(first, end)))

    def close(self) -> None:
        """Closes the bank. Fails the run if rows were read from the disk."""
        reads = self.bank.stats()["disk"]["reads"]
        self.bank.close()
        if reads:
            raise SystemExit(f"{self.name} read the disk {reads} times: its budget does not hold "
                             "the table, so this is no measurement in memory")


class TorchTable:
    """torch's module with sparse gradients, and torch's Adagrad."""

    def __init__(self, case: Case, start: torch.Tensor) -> None:
        self.name = TORCH
        weight = start.clone()
        self.module: Any = (
            torch.nn.EmbeddingBag.from_pretrained(
                weight, freeze=False, mode="sum", sparse=True, include_last_offset=True)
            if case.pooled else
            torch.nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
        )
        self.pooled = case.pooled
        self.optimizer = torch.optim.Adagrad(
            self.module.parameters(), lr=LEARNING_RATE, initial_accumulator_value=INITIAL_SUM)

    def lookup(self, batch: Batch) -> torch.Tensor:
        return looked_up(self.module, batch, self.pooled)

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def rows(self, first: int, end: int) -> torch.Tensor:
        return self.module.weight.detach()[first:end]


def looked_up(module: Any, batch: Batch, pooled: bool) -> torch.Tensor:
    """Calls a module of torch, or the module of Embank that replaces it."""
    return module(batch.keys, batch.offsets) if pooled else module(batch.keys)


class FbgemmTable:
    """FBGEMM's table-batched embeddings with one table; its backward pass updates the rows."""

    def __init__(self, case: Case, start: torch.Tensor) -> None:
        self.name = FBGEMM
        # The package warns during its import that it does not know this version of torch. The
        # comparison of the rows shows whether the two work together.
        logging.disable(logging.WARNING)
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
        from fbgemm_gpu.split_embedding_configs import EmbOptimType

        logging.disable(logging.NOTSET)
        place = training.EmbeddingLocation.HOST
        pooling = training.PoolingMode.SUM if case.pooled else training.PoolingMode.NONE
        self.tables = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(case.rows, case.dim, place, training.ComputeDevice.CPU)],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=LEARNING_RATE,
            eps=ROW_WISE_EPS, pooling_mode=pooling)
        self.weight = self.tables.split_embedding_weights()[0]
        self.weight.copy_(start)

    def lookup(self, batch: Batch) -> torch.Tensor:
        return self.tables(batch.keys, batch.offsets)

    def update(self) -> None:
        """Does nothing, because the backward pass has applied the gradients."""

    def rows(self, first: int, end: int) -> torch.Tensor:
        return self.weight.detach()[first:end]


class Formula:
    """Row-wise Adagrad in float64, for the first rows only. It is not timed."""

    def __init__(self, case: Case, start: torch.Tensor) -> None:
        self.count = max(1, case.rows // SAMPLE_SHARE)
        self._dim = case.dim
        self._output_of_key = torch.arange(case.keys) // case.bag
        followed = start[: self.count].numpy()
        self._rows = RowWiseAdagradRows(followed, LEARNING_RATE, ROW_WISE_EPS, 0.0)

    def step(self, batch: Batch, gradient: torch.Tensor) -> None:
        followed = batch.keys < self.count
        keys, places = batch.keys[followed].unique(return_inverse=True)
        sums = torch.zeros(len(keys), self._dim, dtype=torch.float64)
        sums.index_add_(0, places, gradient[self._output_of_key[followed]].double())
        self._rows.step(keys.numpy(), sums.numpy())

    def rows(self) -> torch.Tensor:
        return torch.from_numpy(self._rows.rows())


class Keys:
    """Draws the keys of batches. Popular keys lie anywhere in the table."""

    def __init__(self, case: Case, seed: int) -> None:
        self._case = case
        self._random = np.random.default_rng(seed)
        self._offsets = torch.arange(0, case.keys + 1, case.bag)
        self._shares: Any = None
        if case.popularity == "Zipf":
            weights = np.arange(1, case.rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT
            self._shares = np.cumsum(weights) / weights.sum()
            self._scattered = self._random.permutation(case.rows)

    def batches(self, count: int) -> list[Batch]:
        return [Batch(torch.from_numpy(self._draw()), self._offsets) for _ in range(count)]

    def _draw(self) -> Any:
        if self._shares is None:
            return self._random.integers(0, self._case.rows, self._case.keys)
        ranks = np.searchsorted(self._shares, self._random.random(self._case.keys))
        # The last cumulative share may be slightly below 1, because the sums were rounded.
        return self._scattered[np.minimum(ranks, self._case.rows - 1)]


def main() -> int:
    given = parser().parse_args()
    if given.rounds is not None and given.rounds < 2:
        raise SystemExit("--rounds must be at least 2: a spread needs two turns")
    torch.set_num_threads(given.threads)
    # torch's own Adagrad makes sparse tensors, and torch warns about the way in which it does so.
    warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
    with_fbgemm = importlib.util.find_spec("fbgemm_gpu") is not None
    if not with_fbgemm:
        print("FBGEMM is not installed and does not take part; --help says how to install it",
              flush=True)
    rounds = given.rounds or (ROUNDS_QUICK if given.quick else ROUNDS)
    chosen = [case for case in cases(given) if given.only is None or given.only in case.name]
    if not chosen:
        names = "; ".join(case.name for case in cases(given))
        raise SystemExit(f"no case has {given.only!r} in its name: {names}")
    measured = [row for case in chosen for row in of_case(case, rounds, given, with_fbgemm)]
    fbgemm = sys.modules["fbgemm_gpu"].__version__ if with_fbgemm else "not installed"
    return measure.report(measured, given, {
        "rows": chosen[0].rows, "rounds": rounds, "threads": torch.get_num_threads(),
        "torch": torch.__version__, "FBGEMM": fbgemm, "spread": "between the quartiles",
    })


def parser() -> argparse.ArgumentParser:
    options = measure.parser(__doc__ or "")
    add = options.add_argument
    add("--rows", type=int, help=f"of the table (default {ROWS:,}, quick {ROWS_QUICK:,})")
    add("--rounds", type=int,
        help=f"turns of each, at least 2 (default {ROUNDS}, quick {ROUNDS_QUICK})")
    add("--only", metavar="TEXT",
        help="only the cases with this text in their names, as in 'dim 16, Zipf'")
    return options


def cases(given: argparse.Namespace) -> list[Case]:
    rows = given.rows or (ROWS_QUICK if given.quick else ROWS)
    share = QUICK_STEPS_SHARE if given.quick else 1
    return [
        Case(popularity, outputs, bag, dim, steps // share, rows)
        for popularity in ("uniform", "Zipf")
        for outputs, bag, dim, steps in (
            (4096, 1, 16, 100), (32_768, 1, 16, 25), (4096, 1, 128, 50), (2048, 20, 64, 20))
    ]


def of_case(
    case: Case, rounds: int, given: argparse.Namespace, with_fbgemm: bool
) -> list[Measured]:
    """Lets the contenders train by turns, and compares their rows."""
    seeded = torch.Generator().manual_seed(given.seed)
    start = 0.1 * torch.randn(case.rows, case.dim, generator=seeded)
    measure.SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=measure.SCRATCH) as folder:
        row_wise, adagrad = (
            EmbankTable(name, case, start, optimizer, Path(folder) / name, given)
            for name, optimizer in (
                (ROW_WISE, embank.RowWiseAdagrad(lr=LEARNING_RATE, eps=ROW_WISE_EPS)),
                (ADAGRAD, embank.Adagrad(lr=LEARNING_RATE, initial_accumulator_value=INITIAL_SUM)),
            )
        )
        peer = TorchTable(case, start)
        fbgemm = FbgemmTable(case, start) if with_fbgemm else None
        contenders: list[Contender] = [row_wise, adagrad, peer]
        pairs: list[tuple[Contender, Contender]] = [(adagrad, peer)]
        if fbgemm is not None:
            contenders.append(fbgemm)
            pairs.append((row_wise, fbgemm))
        formula = Formula(case, start)
        rates = in_turns(case, contenders, formula, rounds, given.seed)
        batch = Keys(case, given.seed + 1).batches(1)[0]
        apart = {
            f"{one.name} and {other.name}": max(
                rows_apart(one, other, case.rows), outputs_apart(one, other, batch) / case.bag)
            for one, other in pairs
        }
        apart[f"{ROW_WISE} and {FORMULA}"] = float(
            (row_wise.rows(0, formula.count) - formula.rows()).abs().max())
        row_wise.close()
        adagrad.close()
    shown = ", ".join(f"{name} {median(found) / 1e6:.2f}" for name, found in rates.items())
    print(f"{case.name}, million keys/s: {shown}", flush=True)
    return judged(case.name, rates, apart)


def in_turns(
    case: Case, contenders: Sequence[Contender], formula: Formula, rounds: int, seed: int
) -> dict[str, list[float]]:
    """Returns the keys a second of each contender's turns, after an unmeasured warm-up."""
    keys = Keys(case, seed)
    order = random.Random(seed)
    seeded = torch.Generator().manual_seed(seed + 1)
    gradient = torch.randn(case.outputs, case.dim, generator=seeded)
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for turn in range(rounds + 1):
        batches = keys.batches(WARM_UP_STEPS if turn == 0 else case.steps)
        for contender in order.sample(contenders, len(contenders)):
            seconds = seconds_of(contender, batches, gradient)
            if turn > 0:
                rates[contender.name].append(len(batches) * case.keys / seconds)
        for batch in batches:
            formula.step(batch, gradient)
    return rates


def seconds_of(contender: Contender, batches: Sequence[Batch], gradient: torch.Tensor) -> float:
    """Trains for one turn and returns its seconds."""
    started = time.perf_counter()
    for batch in batches:
        contender.lookup(batch).backward(gradient)
        contender.update()
    return time.perf_counter() - started


def rows_apart(one: Contender, other: Contender, rows: int) -> float:
    """Returns the largest difference of a value in any row."""
    ends = range(0, rows, CHUNK_ROWS)
    return max(
        float((one.rows(first, end) - other.rows(first, end)).abs().max())
        for first, end in ((first, min(rows, first + CHUNK_ROWS)) for first in ends)
    )


def outputs_apart(one: Contender, other: Contender, batch: Batch) -> float:
    """Returns the largest difference of a value that a lookup returns."""
    return float((one.lookup(batch) - other.lookup(batch)).detach().abs().max())


def judged(case: str, rates: dict[str, list[float]], apart: dict[str, float]) -> list[Measured]:
    """Makes the figures of a case: rates, ratios of the turns, and the largest differences of the
    answers."""
    measured = []
    for name, found in rates.items():
        rate, spread = median_and_quartiles(found)
        measured.append(Measured(Figure(f"{case}: {name}", rate, "keys/s"), spread))
    for one, other in ((ROW_WISE, FBGEMM), (ROW_WISE, TORCH), (ADAGRAD, TORCH)):
        if other in rates:
            ratio, spread = median_and_quartiles([a / b for a, b in zip(rates[one], rates[other])])
            measured.append(Measured(Figure(f"{case}: {one} over {other}", ratio, "x"), spread))
    for pair, difference in apart.items():
        share = difference / LEARNING_RATE
        measured.append(Measured(
            Figure(f"{case}: difference of {pair}", share, "learning rates"),
            passed=share <= DIFFERENCE_MAX,
        ))
    return measured


if __name__ == "__main__":
    sys.exit(main())
