"""Tests that a pass of any number resumes exactly, also with workers that stay between passes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, Callable, Optional

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    get_worker_info,
)

SAMPLES, BATCH_SIZE, PASSES, STOP = 24, 3, 3, 3


class Augmented(Dataset[Any]):
    """Sample i is i and a random number of each global generator of its process."""

    def __getitem__(self, at: int) -> Any:
        return [float(at), random.random(), np.random.rand(), torch.rand(1).item()]

    def __len__(self) -> int:
        return SAMPLES


class Shuffled(IterableDataset[Any]):
    """A worker's samples, shuffled by Python's generator or by the seed of the worker."""

    def __init__(self, by_seed: bool = False) -> None:
        self.by_seed = by_seed

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        samples = list(range(first, SAMPLES, step))
        seed = random.random() if worker is None or not self.by_seed else worker.seed
        random.Random(seed).shuffle(samples)
        for sample in samples:
            yield [float(sample), np.random.rand()]


def set_numpy_seed(worker: int) -> None:
    np.random.seed(torch.initial_seed() % (1 << 32))


class WrappedIterator:
    """The iterator of torch in another object, as in PyTorch Geometric's loaders."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> WrappedIterator:
        return self

    def __next__(self) -> Any:
        return next(self.iterator)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.iterator._reset(loader, first_iter)


class WrappingLoader(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return WrappedIterator(super()._get_iterator())


class LazyLoader(DataLoader[Any]):
    """A loader whose pass begins with its first batch, as in accelerate."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


Kind = Callable[[torch.Generator, dict[str, Any]], tuple[Any, Optional[torch.Generator]]]

KINDS: dict[str, Kind] = {
    "global generator": lambda own, more: (DataLoader(Augmented(), shuffle=True, **more), None),
    "generator of the loader": lambda own, more: (
        DataLoader(Augmented(), shuffle=True, generator=own, **more),
        own,
    ),
    "generator of the sampler": lambda own, more: (
        DataLoader(Augmented(), sampler=RandomSampler(range(SAMPLES), generator=own), **more),
        own,
    ),
    "worker_init_fn": lambda own, more: (
        DataLoader(Augmented(), shuffle=True, worker_init_fn=set_numpy_seed, **more),
        None,
    ),
    "generator in place of an iterator": lambda own, more: (
        LazyLoader(Augmented(), shuffle=True, **more),
        None,
    ),
    "wrapped iterator": lambda own, more: (
        WrappingLoader(Augmented(), shuffle=True, **more),
        None,
    ),
    "IterableDataset": lambda own, more: (DataLoader(Shuffled(), **more), None),
    "IterableDataset, generator of the loader": lambda own, more: (
        DataLoader(Shuffled(by_seed=True), generator=own, **more),
        own,
    ),
}


def begin_process(seed: int) -> torch.Generator:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def batches_of(loader: Any) -> Iterator[Any]:
    while loader.epoch < PASSES:
        for batch in loader:
            yield torch.stack(batch).tolist(), torch.rand(1).item()  # the model draws too


@pytest.mark.parametrize(("workers", "ahead"), [(0, None), (2, None), (2, 2)])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_pass_resumes_exactly(kind: Kind, workers: int, ahead: Optional[int]) -> None:
    """Shows that a pass of any number can be resumed. Earlier versions could resume only the first
    pass with persistent workers. A later pass drew fewer random numbers than the first pass of new
    workers, and the new workers of a resumed run were seeded again."""
    more = {"batch_size": BATCH_SIZE, "num_workers": workers, "persistent_workers": workers > 0}

    def loader_of(own: torch.Generator) -> Any:
        loader, generator = kind(own, more)
        if ahead is not None:
            loader = embank.torch.LookaheadLoader(loader, lambda batch: {}, depth=ahead)
        return embank.torch.ResumableLoader(loader, generator)

    first = loader_of(begin_process(1))
    states, wanted = {}, []
    for batch in batches_of(first):
        wanted.append(batch)
        if len(wanted) % (SAMPLES // BATCH_SIZE) == STOP:
            generators = random.getstate(), np.random.get_state(), torch.get_rng_state()
            states[first.epoch] = first.state_dict(), generators, len(wanted)
    assert len(wanted) == PASSES * SAMPLES // BATCH_SIZE and len(states) == PASSES
    for epoch, (state, generators, handed_out) in states.items():
        again = loader_of(begin_process(2 + epoch))
        again.load_state_dict(state)
        random.setstate(generators[0])
        np.random.set_state(generators[1])
        torch.set_rng_state(generators[2])
        assert list(batches_of(again)) == wanted[handed_out:], f"stopped in pass {epoch}"


def test_persistent_workers_hand_out_the_order_of_new_workers() -> None:
    """Shows that persistent workers hand out the batches of new workers. So a resumed run may have
    persistent workers if the saved run had none, and the reverse."""

    def passes(persistent: bool) -> Any:
        own = begin_process(1)
        data = DataLoader(
            Augmented(), shuffle=True, generator=own, num_workers=1, persistent_workers=persistent
        )
        loader = embank.torch.ResumableLoader(data, own)
        return [torch.stack(batch).tolist() for _ in range(2) for batch in loader]

    assert passes(True) == passes(False)


def test_persistent_workers_stay() -> None:
    class Process(Dataset[int]):
        def __getitem__(self, at: int) -> int:
            return os.getpid()

        def __len__(self) -> int:
            return 4

    data = DataLoader(Process(), num_workers=1, persistent_workers=True)
    loader = embank.torch.ResumableLoader(data)
    assert len({int(batch) for _ in range(3) for batch in loader}) == 1


class Pipe(IterDataPipe[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_a_loader_that_cannot_be_repeated_is_refused_when_it_is_wrapped() -> None:
    """Shows that a loader whose passes can't be repeated is refused when it is wrapped. It once was
    refused only at the resume, when the run was lost."""
    data = DataLoader(Pipe(), num_workers=1, persistent_workers=True)
    with pytest.raises(ValueError, match="over an IterDataPipe.*persistent_workers=False"):
        embank.torch.ResumableLoader(data)
    embank.torch.ResumableLoader(DataLoader(Pipe(), num_workers=1))

    class Foreign(DataLoader[int]):
        """A loader whose iterator is not torch's."""

        def _get_iterator(self) -> Any:
            return iter(range(3))

    foreign: Any = Foreign(range(8), num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="range_iterator, can't seed.*persistent_workers=False"):
        next(iter(embank.torch.ResumableLoader(foreign)))
