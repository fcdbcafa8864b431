"""Checks that the optimizers in the store compute what torch.optim computes.

Each optimizer takes 10,000 steps in f32. A step has gradients for a random subset of the rows. The
peer holds each row as a parameter of its own, which takes a step only when it has a gradient. A
table in the store does this too, and torch does it with `foreach=False`. torch has no row-wise
Adagrad and no FTRL; their peer is the formula in NumPy, in float64.

The difference of a value is |found - peer| / scale. The scale is the largest magnitude that the
peer's value has had so far, because a value that passes through zero has no relative error of its
own. The figure is the largest difference of all values, taken 100 times during the run and at the
end. It must stay within 1e-5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import measure
import numpy as np
import torch
from figures import Figure
from measure import Measured
from numpy.typing import NDArray

import embank

DIFFERENCE_MAX = 1e-5
ROWS = 16
DIM = 19
LOOKS = 100

Rows = NDArray[np.float64]


class TorchRows:
    """The peer of most optimizers. Each row is a parameter, and torch's optimizer updates it."""

    def __init__(self, start: NDArray[np.float32],
                 make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]) -> None:
        self._rows = [torch.nn.Parameter(torch.from_numpy(row.copy())) for row in start]
        self._optimizer = make(self._rows)

    def step(self, at: NDArray[np.int64], gradients: NDArray[np.float32]) -> None:
        for row in self._rows:
            row.grad = None
        for number, gradient in zip(at, gradients, strict=True):
            self._rows[number].grad = torch.from_numpy(gradient)
        self._optimizer.step()

    def rows(self) -> Rows:
        return np.stack([row.detach().numpy() for row in self._rows]).astype(np.float64)


class RowWiseAdagradRows:
    """The formula of FBGEMM's EXACT_ROWWISE_ADAGRAD, in NumPy."""

    def __init__(self, start: NDArray[np.float32], lr: float, eps: float, decay: float) -> None:
        self._values = start.astype(np.float64)
        self._sums = np.zeros((len(start), 1))
        self._lr, self._eps, self._decay = lr, eps, decay

    def step(self, at: NDArray[np.int64], gradients: NDArray[np.float32]) -> None:
        g = gradients + self._decay * self._values[at]
        self._sums[at] += np.mean(g * g, axis=1, keepdims=True)
        self._values[at] -= self._lr * g / (np.sqrt(self._sums[at]) + self._eps)

    def rows(self) -> Rows:
        return self._values.copy()


class FtrlRows:
    """FTRL-proximal in NumPy: algorithm 1 of McMahan et al., 2013."""

    def __init__(self, start: NDArray[np.float32], alpha: float, beta: float, l1: float,
                 l2: float) -> None:
        self._values = start.astype(np.float64)
        # The initial sum, rounded to f32 as in the store.
        self._squares = np.full(start.shape, float(np.float32(0.1)))
        self._z = np.zeros(start.shape)
        self._alpha, self._beta, self._l1, self._l2 = alpha, beta, l1, l2

    def step(self, at: NDArray[np.int64], gradients: NDArray[np.float32]) -> None:
        g = gradients.astype(np.float64)
        before = np.sqrt(self._squares[at])
        self._squares[at] += g * g
        after = np.sqrt(self._squares[at])
        self._z[at] += g - (after - before) / self._alpha * self._values[at]
        z = self._z[at]
        shrunk = np.where(np.abs(z) <= self._l1, 0.0, z - np.sign(z) * self._l1)
        self._values[at] = -shrunk / ((self._beta + after) / self._alpha + self._l2)

    def rows(self) -> Rows:
        return self._values.copy()


@dataclass(frozen=True)
class Case:
    """An optimizer of the store and its peer."""

    optimizer: Any
    against: str
    peer: Callable[[NDArray[np.float32]], Any]


def torch_case(optimizer: Any, kind: Any, **settings: Any) -> Case:
    return Case(optimizer, "torch.optim", lambda start: TorchRows(
        start, lambda rows: kind(rows, foreach=False, **settings)))


def cases() -> dict[str, Case]:
    optim = torch.optim
    return {
        "sgd": torch_case(
            embank.SGD(0.01, weight_decay=0.01), optim.SGD, lr=0.01, weight_decay=0.01),
        "momentum": torch_case(
            embank.SGD(0.01, momentum=0.9, dampening=0.1, weight_decay=0.01),
            optim.SGD, lr=0.01, momentum=0.9, dampening=0.1, weight_decay=0.01),
        "nesterov": torch_case(
            embank.SGD(0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
            optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
        "adagrad": torch_case(
            embank.Adagrad(0.05, weight_decay=0.01), optim.Adagrad, lr=0.05, weight_decay=0.01),
        "adagrad-decay": torch_case(
            embank.Adagrad(0.05, lr_decay=0.01, initial_accumulator_value=0.5),
            optim.Adagrad, lr=0.05, lr_decay=0.01, initial_accumulator_value=0.5),
        "adam": torch_case(embank.Adam(0.001), optim.Adam, lr=0.001),
        "adam-decay": torch_case(
            embank.Adam(0.001, betas=(0.8, 0.99), weight_decay=0.01),
            optim.Adam, lr=0.001, betas=(0.8, 0.99), weight_decay=0.01),
        "adamw": torch_case(
            embank.AdamW(0.001, weight_decay=0.1), optim.AdamW, lr=0.001, weight_decay=0.1),
        "row-wise-adagrad": Case(
            embank.RowWiseAdagrad(0.05, weight_decay=0.01), "NumPy float64",
            lambda start: RowWiseAdagradRows(start, 0.05, 1e-8, 0.01)),
        "ftrl": Case(
            embank.FTRL(0.1, beta=1.0, l1=0.5, l2=0.1), "NumPy float64",
            lambda start: FtrlRows(start, 0.1, 1.0, 0.5, 0.1)),
    }


def largest_difference(case: Case, steps: int, seed: int, device: str) -> float:
    """Trains a table and the peer side by side."""
    random = np.random.default_rng(seed)
    start = random.normal(size=(ROWS, DIM)).astype(np.float32)
    keys = random.integers(0, 2**63, ROWS)
    # The slope is drawn once and used for both, so the store and the peer get equal gradients.
    slope = random.normal(size=(ROWS, DIM)).astype(np.float32)
    peer = case.peer(start)
    scale = np.abs(start.astype(np.float64))
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder, embank.Bank(
        folder, memory_budget="16MiB", device=device  # type: ignore[arg-type]
    ) as bank:
        table = bank.table("parity", DIM, optimizer=case.optimizer)
        table.put(keys, start)
        for step in range(steps):
            at = np.flatnonzero(random.random(ROWS) < random.uniform(0.1, 0.9))
            noise = random.normal(size=(len(at), DIM))
            gradients = (0.3 * slope[at] + noise).astype(np.float32)
            table.apply_gradients(keys[at], gradients)
            peer.step(at, gradients)
            if step % max(1, steps // LOOKS) == 0 or step == steps - 1:
                expected = peer.rows()
                scale = np.maximum(scale, np.abs(expected))
                worst = max(worst, float(np.max(np.abs(table.peek(keys) - expected) / scale)))
    return worst


def parser() -> argparse.ArgumentParser:
    options = measure.parser(__doc__ or "")
    options.add_argument("--model", nargs="+", choices=tuple(cases()), metavar="OPTIMIZER",
                         help=f"only these of {', '.join(cases())}")
    options.add_argument("--seeds", type=int, help="runs of each, from --seed on (default 3, quick 1)")
    options.add_argument("--steps", type=int, help="default 10000, quick 1000")
    return options


def main() -> int:
    given = parser().parse_args()
    torch.set_num_threads(1)
    steps = given.steps or (1000 if given.quick else 10_000)
    seeds = given.seeds or (1 if given.quick else 3)
    rows: list[Measured] = []
    for name, case in cases().items():
        if given.model is not None and name not in given.model:
            continue
        found = [
            largest_difference(case, steps, seed, given.device)
            for seed in range(given.seed, given.seed + seeds)
        ]
        # The report has six decimals, so the differences are given in units of 1e-9.
        figure = Figure(f"{name}, largest difference", max(found) * 1e9, "e-9", case.against)
        spread = (max(found) - min(found)) * 1e9
        rows.append(Measured(figure, spread, max(found) <= DIFFERENCE_MAX))
        print(f"{name}: {max(found):.3g} after {steps:,} steps, {seeds} seeds", flush=True)
    more = {"steps": steps, "seeds": seeds, "rows": ROWS, "dim": DIM}
    return measure.report(rows, given, more)


if __name__ == "__main__":
    sys.exit(main())
