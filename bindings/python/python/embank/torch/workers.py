"""Persistent workers of a `DataLoader` that begin each pass from the loader's random numbers.

With `persistent_workers=True`, torch seeds a worker once, at its start, and draws the base seed of
all workers only then. So a later pass depends on the passes before it, and the new workers of a
resumed run can't repeat it. `begin` removes this dependency: workers start without work, and each
pass seeds them as torch seeds new workers, from a base seed that it draws as torch does.

A worker process still keeps what the data set or `worker_init_fn` stored in it in earlier passes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import GeneratorType
from typing import Any, Callable

import numpy as np
import torch
from torch.utils.data import DataLoader, IterDataPipe, get_worker_info


def check_repeatable(loader: object) -> None:
    """Raises `ValueError` for a loader whose pass no second run can repeat."""
    if not isinstance(loader, DataLoader) or loader.num_workers == 0:
        return
    if not getattr(loader, "in_order", True):
        raise ValueError(
            "a pass over a DataLoader with in_order=False can't be resumed: its batches come as its workers are done "
            "with them, and which ones were handed out before can't be told. Make it with in_order=True"
        )
    if loader.persistent_workers and isinstance(loader.dataset, IterDataPipe):
        raise ValueError(
            "a pass over a DataLoader with persistent_workers=True over an IterDataPipe can't be resumed: its workers "
            "keep the random state of earlier passes. Make it with persistent_workers=False"
        )


def begin(loader: Any) -> Iterator[Any]:
    """Returns `iter(loader)`, with seeded workers if the loader keeps them."""
    if not (isinstance(loader, DataLoader) and loader.persistent_workers and loader.num_workers):
        return iter(loader)
    if loader._iterator is None:
        _start_workers(loader)
    # A loader of PyTorch Geometric wraps the iterator of torch in its own.
    kept: Any = loader._iterator
    while not hasattr(kept, "_shared_seed") and hasattr(kept, "iterator"):
        kept = kept.iterator
    if not hasattr(kept, "_shared_seed"):
        raise ValueError(
            f"a pass over a {type(loader).__name__} with persistent_workers=True can't be resumed: its iterator, a "
            f"{type(kept).__name__}, can't seed its workers. Make it with persistent_workers=False"
        )
    base_seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
    seed = _WorkerSeed(int(base_seed))
    # `iter` sends `_shared_seed` to each worker before the pass. torch uses it only for an
    # `IterDataPipe`, which `check_repeatable` has refused.
    kept._shared_seed = seed
    try:
        batches = iter(loader)
    finally:
        kept._shared_seed = None
    if not isinstance(batches, GeneratorType):
        return batches
    return _seeded(kept, seed, batches)


def _seeded(kept: Any, seed: _WorkerSeed, batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the batches of a subclass whose `__iter__` is a generator. The pass of such a loader
    begins when its first batch is drawn, so the seed is set then.
    """
    kept._shared_seed = seed
    try:
        first = next(batches)
    except StopIteration:
        return
    finally:
        kept._shared_seed = None
    yield first
    yield from batches


def _start_workers(loader: DataLoader[Any]) -> None:
    """Starts the workers without an index to fetch, and without a lasting random draw.

    Otherwise a resumed run, which starts its workers in a later pass, would draw more random
    numbers than the saved run drew in that pass.
    """
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = loader.__dict__[name]
    generator = torch.default_generator if loader.generator is None else loader.generator
    state = generator.get_state()
    # Written to `__dict__`, because a `DataLoader` forbids the assignment.
    loader.__dict__[name] = ()
    try:
        loader._iterator = started = loader._get_iterator()
    finally:
        loader.__dict__[name] = sampler
        generator.set_state(state)
    set_index_sampler(started, sampler)


def set_index_sampler(iteration: Any, sampler: Any) -> None:
    """Replaces the sampler from which an iteration takes the indices of later passes."""
    while not hasattr(iteration, "_index_sampler") and hasattr(iteration, "iterator"):
        iteration = iteration.iterator
    if hasattr(iteration, "_index_sampler"):
        iteration._index_sampler = sampler


class _WorkerSeed:
    """A base seed that seeds the worker process which unpickles it."""

    def __init__(self, base_seed: int) -> None:
        self.base_seed = base_seed

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return _seed_worker, (self.base_seed,)


def _seed_worker(base_seed: int) -> None:
    """Seeds this worker process as torch seeds a new one. Does nothing in another process."""
    worker = get_worker_info()
    if worker is None:
        return
    from torch.utils.data._utils.worker import _generate_state

    seed = base_seed + worker.id
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(_generate_state(base_seed, worker.id))  # type: ignore[no-untyped-call]
    # Written to `__dict__`, because `WorkerInfo` forbids the assignment. Data sets shuffle by this
    # seed.
    worker.__dict__["seed"] = seed
