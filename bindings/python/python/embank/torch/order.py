"""A digest of the batches of a pass over a loader. A resumed pass compares its batches with it."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from .workers import set_index_sampler

_HEAD_BYTES = 64 << 10
"""The number of first bytes of a tensor, an array or a text that its digest covers. Two batches
that agree in these bytes count as equal. The number is small, because the training loop waits for
the digest.
"""


class Order:
    """A digest of the batches that a pass has drawn, in order.

    Args:
        expected: The digest that the pass must have, by the number of batches drawn. It is the
            `state` of the pass that this pass repeats.
    """

    def __init__(self, expected: Optional[Mapping[int, int]] = None) -> None:
        self.drawn = 0
        self.digest = 0
        """The digest of all batches drawn."""
        self.handed_out = 0
        self.digest_handed_out = 0
        self._expected = dict(expected or {})
        self._ahead: deque[int] = deque()

    def note(self, drawn: Any) -> None:
        """Adds a batch, or the indices of its samples.

        Raises:
            ValueError: The repeated pass has drawn another batch here.
        """
        self.drawn += 1
        self.digest = _digest(drawn, self.digest)
        self._ahead.append(self.digest)
        if self._expected.pop(self.drawn, self.digest) != self.digest:
            raise ValueError(
                "the resumed pass can't repeat the order of the saved one: its first "
                f"{self.drawn} batches differ. Either the data set, the sampler or the batch size "
                "has changed, or the order comes from a generator that is neither the loader's nor "
                "a global one of Python, NumPy or torch, or the training loop draws from that "
                "generator too. Give the loader a torch.Generator of its own and name it: "
                "ResumableLoader(loader, generator); or let the order follow from the epoch alone"
            )

    def hand_out(self) -> None:
        """Removes the oldest drawn batch, which the training loop gets."""
        if self._ahead:
            self.handed_out += 1
            self.digest_handed_out = self._ahead.popleft()

    def state(self) -> dict[int, int]:
        """Returns the `expected` of a pass that repeats this one."""
        state = {self.handed_out: self.digest_handed_out, self.drawn: self.digest}
        state.pop(0, None)
        return state


class RecordedSampler:
    """Wraps a sampler and records its indices in the order of a pass."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler_itself = sampler
        self.order: Optional[Order] = None
        """The order in which iterations that begin now record their indices. Set only while a pass
        begins its iteration.

        A `DataLoader` with workers begins two iterations of its sampler and draws from the second.
        """

    def __iter__(self) -> Iterator[Any]:
        return self._noting(iter(self.sampler_itself), self.order)

    @staticmethod
    def _noting(indices: Iterator[Any], order: Optional[Order]) -> Iterator[Any]:
        for at in indices:
            if order is not None:
                order.note(at)
            yield at

    def __len__(self) -> int:
        # Raises an error if the sampler does.
        return len(self.sampler_itself)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "sampler_itself" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.sampler_itself, name)


def recorded_sampler(loader: object) -> Optional[RecordedSampler]:
    """Makes the sampler of a `DataLoader` record its indices, and returns it. None for other
    loaders.

    Indices show the order better than batches, because a data set may draw random numbers for each
    sample.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = getattr(loader, name)
    if not isinstance(sampler, RecordedSampler):
        sampler = RecordedSampler(sampler)
        # Written to `__dict__`, because a `DataLoader` forbids the assignment: its workers would
        # not see the new sampler. They need not, because this process draws the indices.
        loader.__dict__[name] = sampler
        # With `persistent_workers`, an iteration that was made earlier keeps its sampler.
        set_index_sampler(getattr(loader, "_iterator", None), sampler)
    return sampler


def own_generator(loader: object) -> Optional[torch.Generator]:
    """Returns the generator of a `DataLoader` or of its sampler. None for other loaders, and if
    they draw from the global generators.
    """
    if not isinstance(loader, DataLoader):
        return None
    batch_sampler = loader.batch_sampler
    # Looks at the sampler's generator first, because it decides the order. If the sampler has a
    # generator of its own, the loader's decides only the workers' seeds.
    holders = (loader.sampler, getattr(batch_sampler, "sampler", None), batch_sampler, loader)
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator):
            return generator
    return None


_SIZES = {"batch_size": "batches of {}", "samples": "{:,} samples in the data set"}
"""The keys of `loader_sizes`, and how a message names their values."""


def loader_sizes(loader: object) -> dict[str, int]:
    """Returns the batch size of a `DataLoader` and the number of its samples, if they are known."""
    if not isinstance(loader, DataLoader):
        return {}
    batch_size = loader.batch_size
    if batch_size is None:
        batch_size = getattr(loader.batch_sampler, "batch_size", None)
    samples = None
    if not isinstance(loader.dataset, IterableDataset):
        with contextlib.suppress(Exception):
            samples = len(loader.dataset)  # type: ignore[arg-type]
    sizes = {"batch_size": batch_size, "samples": samples}
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def check_sizes(found: Mapping[str, int], saved: Mapping[str, int]) -> None:
    """Raises `ValueError` if a loader has other sizes than the saved loader."""
    changed = [name for name in _SIZES if name in found and found[name] != saved.get(name, found[name])]
    if changed:
        was, now = (
            " and ".join(_SIZES[name].format(of[name]) for name in changed) for of in (saved, found)
        )
        raise ValueError(
            f"the loader was saved within a pass with {was}, and has {now} now: its remaining batches can't be told. "
            "Resume with the saved data set and batch size, or leave the loader out with "
            "resume(..., strict=False), which begins a new pass"
        )


def _digest(value: Any, digest: int) -> int:
    """Continues a digest with the content of a batch."""
    if isinstance(value, torch.Tensor):
        digest = _digest(f"{value.dtype} {tuple(value.shape)}", digest)
        if value.layout != torch.strided or value.is_quantized:
            return digest
        head = value.detach().reshape(-1)[: _HEAD_BYTES // value.element_size()].cpu().contiguous()
        return zlib.crc32(head.view(torch.uint8).numpy().tobytes(), digest)
    if isinstance(value, np.ndarray):
        digest = _digest(f"{value.dtype} {value.shape}", digest)
        first = value.reshape(-1)[: max(1, _HEAD_BYTES // max(1, value.itemsize))]
        if value.dtype.hasobject:
            return _digest(first.tolist(), digest)
        return zlib.crc32(first.tobytes(), digest)
    if isinstance(value, (bytes, bytearray)):
        return zlib.crc32(value[:_HEAD_BYTES], zlib.crc32(b"b%d " % len(value), digest))
    if isinstance(value, str):
        text = value[:_HEAD_BYTES].encode("utf-8", "surrogatepass")
        return zlib.crc32(text, zlib.crc32(b"s%d " % len(value), digest))
    if value is None or isinstance(value, (bool, int, float, complex, np.generic)):
        return zlib.crc32(b"n" + repr(value).encode(), digest)
    if isinstance(value, Mapping):
        digest = zlib.crc32(b"m%d " % len(value), digest)
        for key, item in value.items():
            digest = _digest(item, _digest(key, digest))
        return digest
    if isinstance(value, (list, tuple)):
        digest = zlib.crc32(b"l%d " % len(value), digest)
        for item in value[:_HEAD_BYTES]:
            digest = _digest(item, digest)
        return digest
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return _digest({name: getattr(value, name) for name in names}, digest)
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict) and not isinstance(value, type):
        return _digest(to_dict(), digest)
    # Of any other object only the class name is known to be equal in another process.
    return _digest(type(value).__qualname__, digest)
