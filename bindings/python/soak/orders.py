"""The samplers and streams that `resumes.py` stops and resumes.

Each entry of `KINDS` makes a loader whose batches are lists of sample numbers. Their order comes
from one source of random numbers. `Kind.repeats` says whether docs/python.md promises that a
resumed pass repeats the order. A resumed pass of any other kind may be refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

SHUFFLING_BUFFER = 12
"""Samples that a shuffled stream holds."""

Made = tuple[Iterable[Any], Optional[torch.Generator]]


@dataclasses.dataclass(frozen=True)
class Shape:
    """The numbers that a case passes to its loader."""

    samples: int
    batch_size: int
    workers: int
    """Worker processes, for the kinds that have some."""


@dataclasses.dataclass(frozen=True)
class Kind:
    make: Callable[[Shape], Made]
    """Returns a new loader, and the generator that `ResumableLoader` gets."""
    repeats: bool = True
    """Whether a resumed pass must repeat the order. If not, it may be refused."""
    draws: frozenset[str] = frozenset()
    """The global generators that the loader draws from during a pass. If the training loop draws
    from one of them too, a resumed pass may be refused."""
    once: bool = True
    """Whether an unbroken pass has each sample exactly once. If not, it has the samples that the
    sampler draws.
    """
    ordered: bool = True
    """Whether two unbroken runs have the same order. If not, only the number of times of each
    sample is checked.
    """
    passes: int = 2
    workers: bool = False
    changing_workers: bool = False
    """Whether each part of a case may have another number of workers."""
    same_object: bool = True
    """Whether the loader that was stopped can be resumed itself. If not, that may be refused."""
    same_process: bool = True
    """Whether another process draws the same order. If not, it may refuse to resume."""
    first_stop: int = 1
    """The least number of batches before a stop. Fewer may agree by chance between two orders."""


class Shuffled:
    """A sampler that shuffles the whole order at the begin of a pass."""

    def __init__(self, samples: int, shuffled: Callable[[list[int]], Any]) -> None:
        self.samples, self.shuffled = samples, shuffled

    def __iter__(self) -> Iterator[Any]:
        return iter(self.shuffled(list(range(self.samples))))

    def __len__(self) -> int:
        return self.samples


class Batches(Shuffled):
    """A batch sampler that shuffles the whole order at the begin of a pass."""

    def __init__(self, shape: Shape, shuffled: Callable[[list[int]], Any]) -> None:
        super().__init__(shape.samples, shuffled)
        self.batch_size = shape.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        order = [int(at) for at in super().__iter__()]
        for begin in range(0, len(order), self.batch_size):
            yield order[begin : begin + self.batch_size]

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)


class Drawn:
    """A sampler that draws each index when the loader asks for it."""

    def __init__(self, samples: int, below: Callable[[int], int]) -> None:
        self.samples, self.below = samples, below

    def __iter__(self) -> Iterator[int]:
        left = list(range(self.samples))
        while left:
            yield left.pop(self.below(len(left)))

    def __len__(self) -> int:
        return self.samples


def streamed(samples: Iterable[int], below: Callable[[int], int]) -> Iterator[int]:
    """Yields the samples through a shuffling buffer, with one draw for each sample."""
    buffer: list[int] = []
    for sample in samples:
        buffer.append(sample)
        if len(buffer) == SHUFFLING_BUFFER:
            yield buffer.pop(below(len(buffer)))
    while buffer:
        yield buffer.pop(below(len(buffer)))


def batched(samples: Iterable[int], batch_size: int) -> Iterator[list[int]]:
    batch = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


class Stream:
    """A plain iterable: batches of a shuffled stream."""

    def __init__(self, shape: Shape, below: Callable[[int], int]) -> None:
        self.shape, self.below = shape, below

    def __iter__(self) -> Iterator[list[int]]:
        return batched(streamed(range(self.shape.samples), self.below), self.shape.batch_size)


class Chunks:
    """A plain iterable that reads chunks of three batches and shuffles each chunk with Python's
    `random`.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __iter__(self) -> Iterator[list[int]]:
        of_chunk = 3 * self.shape.batch_size
        for begin in range(0, self.shape.samples, of_chunk):
            chunk = list(range(begin, min(begin + of_chunk, self.shape.samples)))
            random.shuffle(chunk)
            yield from batched(chunk, self.shape.batch_size)


class Words:
    """A plain iterable over a set of texts, whose order changes with the process's hash seed."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __iter__(self) -> Iterator[list[str]]:
        words = list({f"word {sample}" for sample in range(self.shape.samples)})
        for begin in range(0, len(words), self.shape.batch_size):
            yield words[begin : begin + self.shape.batch_size]


class StreamDataset(IterableDataset[int]):
    """A stream that shuffles with a global generator, in this process or in a worker's."""

    def __init__(self, samples: int, below: Callable[[int], int]) -> None:
        self.samples, self.below = samples, below

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return streamed(range(first, self.samples, step), self.below)


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __getitem__(self, at: Any) -> Any:
        return at

    def __len__(self) -> int:
        return self.samples


class Augmented(Numbers):
    """Sample i is i. Reading a sample draws a number by Python's `random` in the worker that reads
    it."""

    def __getitem__(self, at: Any) -> Any:
        random.random()
        return at


class Slow(Numbers):
    """Sample i is i, after up to two milliseconds, so that workers overtake each other."""

    def __getitem__(self, at: Any) -> Any:
        time.sleep(random.SystemRandom().random() * 2e-3)
        return at


class PassOrder(Shuffled):
    """A sampler whose order follows from the number of the pass, like a `DistributedSampler`."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples, self._of_pass)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _of_pass(self, order: list[int]) -> Any:
        return np.random.default_rng(self.epoch).permutation(order).tolist()


def by_python(order: list[int]) -> list[int]:
    random.shuffle(order)
    return order


def by_numpy(order: list[int]) -> Any:
    return np.random.permutation(order).tolist()


def by_system(order: list[int]) -> list[int]:
    random.SystemRandom().shuffle(order)
    return order


def below_by_numpy(count: int) -> int:
    return int(np.random.randint(count))


def below_by_torch(count: int) -> int:
    return int(torch.randint(count, (1,)))


def generator(seed: int = 5) -> torch.Generator:
    """A generator with a fixed seed, like the one of a training script."""
    return torch.Generator().manual_seed(seed)


def loader_of(shape: Shape, **options: Any) -> DataLoader[int]:
    return DataLoader(Numbers(shape.samples), batch_size=shape.batch_size, **options)


def named(make: Callable[[Shape, torch.Generator], Iterable[Any]]) -> Callable[[Shape], Made]:
    """A loader with a generator of its own, which `ResumableLoader` gets too."""

    def made(shape: Shape) -> Made:
        own = generator()
        return make(shape, own), own

    return made


def plain(make: Callable[[Shape], Iterable[Any]]) -> Callable[[Shape], Made]:
    """A loader without a generator."""
    return lambda shape: (make(shape), None)


def _weights(samples: int) -> list[float]:
    return [1.0 + at % 7 for at in range(samples)]


def _unnamed(shape: Shape, **options: Any) -> DataLoader[int]:
    """Makes a loader whose order comes from a generator that `ResumableLoader` finds at its
    sampler.
    """
    return loader_of(
        shape, sampler=RandomSampler(range(shape.samples), generator=generator()), **options
    )


def _iterated_before(shape: Shape) -> DataLoader[int]:
    """Makes a loader whose workers have made a pass before `ResumableLoader` gets it."""
    loader = _unnamed(shape, num_workers=shape.workers, persistent_workers=True)
    for _ in loader:
        pass
    return loader


def _own_stream(shape: Shape, own: torch.Generator) -> Iterable[Any]:
    return Stream(shape, lambda count: int(torch.randint(count, (1,), generator=own)))


_PYTHON, _NUMPY, _TORCH = frozenset({"python"}), frozenset({"numpy"}), frozenset({"torch"})

KINDS: dict[str, Kind] = {
    "shuffle=True": Kind(plain(lambda shape: loader_of(shape, shuffle=True))),
    "shuffle=True, generator named": Kind(
        named(lambda shape, own: loader_of(shape, shuffle=True, generator=own))
    ),
    "RandomSampler, generator named": Kind(
        named(
            lambda shape, own: loader_of(
                shape, sampler=RandomSampler(range(shape.samples), generator=own)
            )
        )
    ),
    "RandomSampler, generator not named": Kind(plain(_unnamed)),
    "RandomSampler with replacement": Kind(
        plain(
            lambda shape: loader_of(
                shape,
                sampler=RandomSampler(
                    range(shape.samples), replacement=True, num_samples=shape.samples
                ),
            )
        ),
        once=False,
    ),
    "WeightedRandomSampler": Kind(
        plain(
            lambda shape: loader_of(
                shape, sampler=WeightedRandomSampler(_weights(shape.samples), shape.samples)
            )
        ),
        once=False,
    ),
    "WeightedRandomSampler without replacement": Kind(
        plain(
            lambda shape: loader_of(
                shape,
                sampler=WeightedRandomSampler(
                    _weights(shape.samples), shape.samples, replacement=False
                ),
            )
        ),
    ),
    "SubsetRandomSampler": Kind(
        plain(lambda shape: loader_of(shape, sampler=SubsetRandomSampler(range(shape.samples))))
    ),
    "sampler by Python": Kind(
        plain(lambda shape: loader_of(shape, sampler=Shuffled(shape.samples, by_python)))
    ),
    "sampler by NumPy": Kind(
        plain(lambda shape: loader_of(shape, sampler=Shuffled(shape.samples, by_numpy)))
    ),
    "sampler by default_rng": Kind(
        plain(
            lambda shape: loader_of(
                shape, sampler=Shuffled(shape.samples, np.random.default_rng(5).permutation)
            )
        ),
        repeats=False,
    ),
    "sampler by SystemRandom": Kind(
        plain(lambda shape: loader_of(shape, sampler=Shuffled(shape.samples, by_system))),
        repeats=False,
    ),
    "sampler by the number of the pass": Kind(
        plain(lambda shape: loader_of(shape, sampler=PassOrder(shape.samples)))
    ),
    "sampler that draws each index by Python": Kind(
        plain(lambda shape: loader_of(shape, sampler=Drawn(shape.samples, random.randrange))),
        draws=_PYTHON,
    ),
    "sampler that draws each index by torch": Kind(
        plain(lambda shape: loader_of(shape, sampler=Drawn(shape.samples, below_by_torch))),
        draws=_TORCH,
    ),
    "data set and sampler that draw by Python": Kind(
        plain(
            lambda shape: DataLoader(
                Augmented(shape.samples),
                batch_size=shape.batch_size,
                sampler=Drawn(shape.samples, random.randrange),
            )
        ),
        draws=_PYTHON,
    ),
    "batch_sampler by NumPy": Kind(
        plain(
            lambda shape: DataLoader(
                Numbers(shape.samples), batch_sampler=Batches(shape, by_numpy)
            )
        )
    ),
    "batch_size=None": Kind(
        plain(
            lambda shape: DataLoader(
                Numbers(shape.samples), batch_size=None, sampler=Batches(shape, by_python)
            )
        )
    ),
    "IterableDataset by Python": Kind(
        plain(
            lambda shape: DataLoader(
                StreamDataset(shape.samples, random.randrange), batch_size=shape.batch_size
            )
        ),
        draws=_PYTHON,
    ),
    "IterableDataset by NumPy": Kind(
        plain(
            lambda shape: DataLoader(
                StreamDataset(shape.samples, below_by_numpy), batch_size=shape.batch_size
            )
        ),
        draws=_NUMPY,
    ),
    "stream by Python": Kind(plain(lambda shape: Stream(shape, random.randrange)), draws=_PYTHON),
    "stream by torch": Kind(plain(lambda shape: Stream(shape, below_by_torch)), draws=_TORCH),
    "stream, generator named": Kind(named(_own_stream)),
    "stream, generator not named": Kind(
        plain(lambda shape: _own_stream(shape, generator())), repeats=False, first_stop=3
    ),
    "chunks by Python": Kind(plain(Chunks), draws=_PYTHON),
    "texts in the order of a set": Kind(plain(Words), same_process=False),
    "generator function": Kind(
        # Called here, because the result of a generator function can be iterated once only.
        plain(
            lambda shape: batched(
                streamed(range(shape.samples), random.randrange), shape.batch_size
            )
        ),
        draws=_PYTHON,
        passes=1,
        same_object=False,
    ),
    "workers, shuffle=True": Kind(
        plain(lambda shape: loader_of(shape, shuffle=True, num_workers=shape.workers)),
        workers=True,
        changing_workers=True,
    ),
    "workers, RandomSampler, generator not named": Kind(
        plain(lambda shape: _unnamed(shape, num_workers=shape.workers)),
        workers=True,
    ),
    "workers, sampler that draws each index by Python": Kind(
        plain(
            lambda shape: loader_of(
                shape, sampler=Drawn(shape.samples, random.randrange), num_workers=shape.workers
            )
        ),
        draws=_PYTHON,
        workers=True,
    ),
    "workers, IterableDataset by Python": Kind(
        plain(
            lambda shape: DataLoader(
                StreamDataset(shape.samples, random.randrange),
                batch_size=shape.batch_size,
                num_workers=shape.workers,
            )
        ),
        workers=True,
    ),
    "workers that stay, shuffle=True": Kind(
        plain(
            lambda shape: loader_of(
                shape, shuffle=True, num_workers=shape.workers, persistent_workers=True
            )
        ),
        workers=True,
        passes=3,
    ),
    "workers that stay, generator named": Kind(
        named(
            lambda shape, own: loader_of(
                shape,
                shuffle=True,
                generator=own,
                num_workers=shape.workers,
                persistent_workers=True,
            )
        ),
        workers=True,
        passes=3,
    ),
    "workers that stay, RandomSampler, generator named": Kind(
        named(
            lambda shape, own: loader_of(
                shape,
                sampler=RandomSampler(range(shape.samples), generator=own),
                num_workers=shape.workers,
                persistent_workers=True,
            )
        ),
        workers=True,
        passes=3,
    ),
    "workers that stay, iterated before": Kind(
        plain(_iterated_before), repeats=False, workers=True
    ),
    "workers that stay, IterableDataset by Python": Kind(
        plain(
            lambda shape: DataLoader(
                StreamDataset(shape.samples, random.randrange),
                batch_size=shape.batch_size,
                num_workers=shape.workers,
                persistent_workers=True,
            )
        ),
        workers=True,
        passes=3,
    ),
}

# torch 2.6 and newer.
if "in_order" in inspect.signature(DataLoader.__init__).parameters:
    KINDS["workers that overtake each other"] = Kind(
        plain(
            lambda shape: DataLoader(
                Slow(shape.samples),
                batch_size=shape.batch_size,
                shuffle=True,
                num_workers=shape.workers + 1,
                in_order=False,
            )
        ),
        repeats=False,
        ordered=False,
        workers=True,
    )
