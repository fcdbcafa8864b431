"""Saves the whole state of a training run in one checkpoint, and resumes it.

A checkpoint holds the rows and the optimizer state of the tables. The rest of the run's state goes
into the checkpoint's blob: the dense part, its optimizer, schedules, the place in the data, and the
states of the random generators. Blob and rows become durable together or not at all, so they always
agree.
"""

from __future__ import annotations

import io
import itertools
import random
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sized
from types import GeneratorType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Optional,
    Protocol,
    TypeVar,
    runtime_checkable,
)

import numpy as np
import torch
from torch import Tensor

import embank

from . import in_hand
from .caller import warn_caller
from .fills import change, training
from .lookahead import LookaheadLoader
from .matching import load, parameter_names
from .modules import TableModule
from .order import (
    Order,
    RecordedSampler,
    check_sizes,
    loader_sizes,
    own_generator,
    recorded_sampler,
)
from .pipelined import Pipelined
from .reference import taken_at, taking_checkpoint
from .workers import begin, check_repeatable

if TYPE_CHECKING:
    from embank import Bank

    from .many import AnyBank

_FORMAT = 1
Batch = TypeVar("Batch")


@runtime_checkable
class Stateful(Protocol):
    """An object whose state `save` stores and `resume` restores."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


def save(bank: AnyBank, *, random_state: bool = True, **parts: Any) -> int:
    """Takes a checkpoint of the bank that holds the rest of the run's state too.

    When it returns, everything is on stable storage. Call it between training steps: leases, and
    gradients that wait for a step, are not saved.

    Args:
        bank: The bank. Over a `ShardedBank` the call is collective, and each rank saves its parts.
        random_state: Whether to save the states of the random generators of torch (also on CUDA
            devices), NumPy (the global one) and Python.
        parts: The parts by name: objects with `state_dict` (models, optimizers, schedules, a
            `ResumableLoader`, a `GradScaler`), or values that `torch.load(weights_only=True)`
            accepts: numbers (NumPy's become Python's), text, tensors, lists, tuples and
            dictionaries.

    Returns:
        The checkpoint's number.

    Raises:
        TypeError: `resume` could not read a value back.
        ValueError: A part has tables of another bank, or rows changed while the states were
            collected.
        embank.ShardMismatch: `bank` is one shard of a fleet: pass the `ShardedBank`.
        embank.StoreIOError: Writing failed. The last checkpoint is intact.

    >>> import embank, embank.torch, torch
    >>> with embank.Bank("saved.bank", memory_budget="16MiB") as bank:
    ...     model = torch.nn.Sequential(
    ...         embank.torch.Embedding(bank.table("word", dim=4)), torch.nn.Linear(4, 1)
    ...     )
    ...     number = embank.torch.save(bank, model=model, step=7)
    >>> with embank.Bank("saved.bank", memory_budget="16MiB") as bank:
    ...     model = torch.nn.Sequential(
    ...         embank.torch.Embedding(bank.table("word", dim=4)), torch.nn.Linear(4, 1)
    ...     )
    ...     embank.torch.resume(bank, model=model)
    {'step': 7}
    """
    for name, part in parts.items():
        _check_bank(bank, name, part)
        _check_loader(name, part)
    _warn_unread(bank)
    for each in in_hand.passes():
        # Gets ahead may make rows while the states are collected.
        each.withdraw()
    state_id = bank.state_id
    states = {}
    values = {}
    for name, part in parts.items():
        if isinstance(part, Stateful):
            with taking_checkpoint():
                states[name] = _plain(part.state_dict())
        else:
            values[name] = _plain(part)
    state = {
        "embank.torch": _FORMAT,
        "at": taken_at(state_id),
        "states": states,
        "values": values,
        "parameters": parameter_names(parts),
        "random": _random_state() if random_state else None,
    }
    try:
        content = _encoded(state)
    except Exception as error:
        raise TypeError(
            f"{_unreadable({**states, **values})} can't be read back by torch.load(weights_only=True); save numbers, text, tensors, lists and "
            f"dictionaries of them, or an object whose state_dict() is made of them: {error}"
        ) from None
    if bank.state_id != state_id:
        raise ValueError(
            "rows changed while the parts were asked for their states: save where no other thread trains"
        )
    return bank.checkpoint(content)


_read: set[tuple[int, int]] = set()
"""Number and checksum of each checkpoint that `resume` has restored."""


def _mark(recovered: Any) -> tuple[int, int]:
    return recovered.checkpoint, zlib.crc32(recovered.blob)


def _warn_unread(bank: AnyBank) -> None:
    """Warns if the first `save` after the opening follows a saved run that no `resume` has read.

    The bank keeps few checkpoints. After some saves, the dense part of the earlier run would be
    gone without a word.
    """
    recovered = bank.recovered
    if recovered is None or bank.last_checkpoint != recovered.checkpoint:
        return
    if _mark(recovered) in _read:
        return
    try:
        _decoded(recovered.blob)
    except Exception:
        return  # not made by `save`
    warn_caller(
        f"checkpoint {recovered.checkpoint} of {bank.path} was made by embank.torch.save, and this process saves "
        "without having resumed it: the rows go on from there, and the rest begins again. Call embank.torch.resume after "
        "opening, or embank.torch.resume(bank, strict=False, random_state=False) if that is meant"
    )


def _encoded(state: dict[str, Any]) -> bytes:
    """Returns the blob of a state. Raises an error if `_decoded` could not read it back."""
    blob = io.BytesIO()
    torch.save(state, blob)
    content = blob.getvalue()
    _decoded(content)
    return content


def _unreadable(parts: Mapping[str, Any]) -> str:
    """Returns the name of the first part that can't be read back, for an error message."""
    for name, part in parts.items():
        try:
            _encoded({"embank.torch": _FORMAT, name: part})
        except Exception:
            return f"part {name!r}"
    return "a part"


def _check_loader(name: str, part: Any) -> None:
    """Raises `TypeError` for a loader that does not record its place."""
    loaders = (torch.utils.data.DataLoader, LookaheadLoader, Pipelined)
    if isinstance(part, loaders) and not isinstance(part, Stateful):
        raise TypeError(
            f"part {name!r} is a {type(part).__name__}, which has no state: iterate over a ResumableLoader that wraps "
            "it, and save that, ResumableLoader(loader) or ResumableLoader(LookaheadLoader(loader, keys))"
        )


def _plain(value: Any) -> Any:
    """Returns `value` with Python's numbers in place of NumPy's, which
    `torch.load(weights_only=True)` refuses.

    Returns `value` itself if it holds no number of NumPy, so that a state dict keeps the attributes
    that torch gave it.
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        items = [_plain(item) for item in value]
        same = all(new is old for new, old in zip(items, value))
        return value if same else type(value)(items)
    if type(value) in (dict, OrderedDict):
        pairs = [(_plain(key), _plain(item)) for key, item in value.items()]
        old = value.items()
        same = all(key is k and item is i for (key, item), (k, i) in zip(pairs, old))
        return value if same else type(value)(pairs)
    return value


def _check_bank(bank: AnyBank, name: str, part: Any) -> None:
    """Raises `ValueError` if `part` has tables of another bank: one checkpoint can't hold them."""
    if not isinstance(part, torch.nn.Module):
        return
    for module in part.modules():
        for table in module.tables() if isinstance(module, TableModule) else []:
            if table.bank is not bank:
                raise ValueError(
                    f"part {name!r} has table {table.name!r} of the bank {table.bank.path}, and this is a checkpoint "
                    f"of {bank.path}: put the tables of one model into one bank"
                )


class Resumed(dict[str, Any]):
    """The values of a checkpoint by name. With `strict=False` also the names of what was not
    restored.

    A name stands for a part or for something in it: `model.top.weight` (a parameter),
    `model.bags.tables.user`, `model.bags.features.user`, `dense.model.top.weight` (the state of the
    optimizer `dense` for that parameter).
    """

    def __init__(
        self, values: Mapping[str, Any], added: list[str], removed: list[str], changed: list[str]
    ) -> None:
        super().__init__(values)
        self.added = added
        """Names that the caller passed to `resume` and the checkpoint lacks. These things are
        unchanged.
        """
        self.removed = removed
        """Names that the checkpoint has and the caller did not pass to `resume`. Rows of such
        tables stay in the bank.
        """
        self.changed = changed
        """Names that both have, but whose states do not fit, such as a parameter of another shape.
        These things are unchanged.
        """


def resume(
    bank: AnyBank, *, random_state: bool = True, strict: bool = True, **parts: Stateful
) -> Optional[Resumed]:
    """Restores what `save` put into the checkpoint that the bank was opened at.

    Call it after all objects are made and before training. Reading rows before it does no harm. It
    may be called again. It works on a bank that was opened with `read_only` too.

    Args:
        bank: The bank. Over a `ShardedBank` each rank gets what the rank of its number has saved.
            No row may have changed since it was opened. In a bank without a checkpoint,
            rows that `from_pretrained` and `FeatureStore` have put, and values of vocabularies, do
            not count as changes.
        random_state: Whether to restore the random generators, if their states were saved.
        strict: Whether the parts must be the saved ones, with equal parameters, tables and
            features. Their order is free, because everything goes by name. If False, everything
            that both sides have is restored, and the result names the rest.
        parts: The objects to restore, under the names that were passed to `save`.

    Returns:
        A `Resumed`, which has the other values by name. None for a bank without a checkpoint and
        without changed rows: a new run begins.

    Raises:
        ValueError: Rows have changed since the bank was opened, this `Bank` has taken a checkpoint,
            or `save` did not make the checkpoint. With `strict` also: the checkpoint lacks a name,
            `parts` lacks a saved object, or an optimizer has other parameters or tables.
        RuntimeError: With `strict`, a module has other parameters, shapes, tables or features.
        TypeError: A part is not an object with `state_dict` and `load_state_dict`.

    See `save` for an example.
    """
    for name, part in parts.items():
        if not isinstance(part, Stateful):
            raise TypeError(
                f"{name}: resume restores objects with load_state_dict, and this is {type(part).__name__}; a saved "
                f"value comes back in the result, resume(...)[{name!r}]"
            )
    _check_unchanged(bank)
    recovered = bank.recovered
    if recovered is None:
        return None
    try:
        state = _decoded(recovered.blob)
    except ValueError as error:
        way_back = "bank.roll_back(number), or with a bank that is closed, embank.roll_back(path, number)"
        if not isinstance(bank, embank.Bank):
            way_back = "close the bank, and open it with ShardedBank(..., set=number)"
        raise ValueError(
            f"checkpoint {recovered.checkpoint} of {bank.path} was not made by embank.torch.save: {error}; read "
            f"bank.recovered.blob yourself, or go back to a checkpoint that save made: {way_back}"
        ) from None
    states, values, generators = state["states"], state["values"], state["random"]
    if strict and parts.keys() != states.keys():
        raise ValueError(
            f"checkpoint {recovered.checkpoint} has states of {sorted(states)}, and resume was asked for "
            f"{sorted(parts)}: name the same, or give strict=False to restore those that both name"
        )
    # Checkpoints of older versions have no names of parameters.
    found = load(parts, states, state.get("parameters", {}), strict)
    found.added.extend(name for name in parts if name not in states)
    found.removed.extend(name for name in states if name not in parts)
    if random_state and generators is not None:
        _set_random_state(generators)
    _read.add(_mark(recovered))
    return Resumed(values, *found)


def _check_unchanged(bank: AnyBank) -> None:
    """Raises `ValueError` unless the bank is unchanged since it was opened. A bank without a
    checkpoint may have been prepared for a new run.
    """
    recovered = bank.recovered
    cure = "close it, open it anew, and resume before anything is trained"
    # A rank can't take its shard of a fleet back alone.
    rolls_back = isinstance(bank, embank.Bank)
    if bank.last_checkpoint != (None if recovered is None else recovered.checkpoint):
        what = f"this process has taken checkpoint {bank.last_checkpoint} since it opened the bank"
        if rolls_back:
            cure = f"call bank.roll_back({bank.last_checkpoint}), which drops later changes, and then resume; or {cure}"
    elif not bank.changed_since_checkpoint:
        return
    elif recovered is None:
        found = training(_rows(bank))
        if found is None:
            return
        what = (
            f"rows of table {found.table!r} have changed since it was opened, and there is no checkpoint of them: "
            f"{found.cause}"
        )
        cure += "; in a new run, fill tables after resume has returned None"
    else:
        found = change(_rows(bank))
        what = f"rows have changed since it was opened at checkpoint {recovered.checkpoint}"
        if rolls_back:
            cure = f"call bank.roll_back({recovered.checkpoint}), which drops these changes, and then resume; or {cure}"
        if found is not None:
            what += f", those of table {found.table!r} among them: {found.cause}"
    raise ValueError(f"{bank.path} can't be resumed: {what}; {cure}")


def _rows(bank: AnyBank) -> Bank:
    """The bank in this process that has rows."""
    return bank if isinstance(bank, embank.Bank) else bank.local


# The first bytes of an archive of torch.save, which is a zip file.
_ARCHIVE = b"PK\x03\x04"
_SHOWN_BYTES = 16


def _decoded(blob: bytes) -> dict[str, Any]:
    """Returns the state that `save` has put into a blob.

    Raises:
        ValueError: The blob has no such state, or it can't be read. The text is the reason, as the
            end of a sentence.
    """
    if not blob:
        raise ValueError("its blob is empty, as that of bank.checkpoint()")
    if not blob.startswith(_ARCHIVE):
        raise ValueError(
            f"its blob, {len(blob)} bytes that begin with {blob[:_SHOWN_BYTES]!r}, was not written by torch.save"
        )
    try:
        state = torch.load(io.BytesIO(blob), weights_only=True, map_location="cpu")
    except Exception as error:
        # Keeps only the first line: torch's next lines give advice that would run code from the
        # blob.
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ValueError(f"its blob can't be read: {reason}") from error
    if not isinstance(state, dict):
        raise ValueError(f"its blob holds a {type(state).__name__}")
    if "embank.torch" not in state:
        names = ", ".join(repr(name) for name in state)
        raise ValueError(f"its blob has {names}, and nothing of embank.torch.save")
    if state["embank.torch"] != _FORMAT:
        raise ValueError(f"its format is {state['embank.torch']}, and this version reads {_FORMAT}")
    return state


def _random_state() -> dict[str, Any]:
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "python": random.getstate(),
    }


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


def _recorded(sampler: RecordedSampler, order: Order, batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the batches of a subclass of `DataLoader` whose `__iter__` is a generator. Such a
    loader asks its sampler only when its first batch is drawn, so the order is recorded from there
    on.
    """
    sampler.order = order
    try:
        first = next(batches)
    except StopIteration:
        return
    finally:
        sampler.order = None
    yield first
    yield from batches


class ResumableLoader(Generic[Batch]):
    """Iterates over `loader` and records its place, so that a resumed run gets the remaining
    batches.

    The state has the number of passes, the number of batches that this pass has handed out, the
    random states of Python, NumPy and torch at the beginning of the pass, and a digest of the
    batches drawn. After `load_state_dict` the next pass repeats the saved pass. It begins with the
    random states of the saved pass, so a loader that shuffles draws the same order. It draws and
    drops the batches that were handed out before. Then it sets the generators of Python, NumPy and
    torch back to their states before the repetition.

    Within a pass, a resumed run needs the data set and the batch size of the saved run;
    `num_workers` may change. It loads all earlier batches of the pass again, which takes as long as
    the first time.

    A resumed pass raises `ValueError` if it draws another order. This happens if a sampler has a
    generator that is not passed here, or if a stream draws from a generator that the model uses
    too. The digest covers the indices of a `DataLoader` over a data set with indices. For other
    loaders it covers the first 64 KiB of each tensor of a batch.

    A loop that `break` or an exception leaves early has ended its pass. The next pass is a new one,
    also in a run that is resumed from a state that was taken in between. So call `save` inside the
    loop.

    Wrap everything that reads ahead: `ResumableLoader(LookaheadLoader(DataLoader(...)))`, and
    `ResumableLoader(Pipelined(...))`. If the loader draws random numbers for the content of batches
    in this process, give it a generator of its own. Its batches are then repeated exactly, at any
    read-ahead.

    With `persistent_workers=True`, each pass seeds the workers as torch seeds new ones, so a pass
    of any number can be repeated. A resumed run starts new workers: what the data set or
    `worker_init_fn` keeps in a worker from one pass to the next, such as a generator of its own, is
    not restored.

    Args:
        loader: Any iterable of batches. Each pass iterates over it again. The sampler of a
            `DataLoader` is wrapped to record its indices.
        generator: The loader's own generator, from which the training loop must not draw. Default:
            that of the sampler of a `DataLoader`, or of the loader. If they have none, the order
            comes from the global generators.

    Raises:
        ValueError: A pass over the loader can't be repeated: it has `in_order=False`, or an
            `IterDataPipe` with persistent workers.

    >>> import torch, embank.torch
    >>> data = torch.utils.data.DataLoader(range(8), batch_size=2, shuffle=True)
    >>> loader = embank.torch.ResumableLoader(data)
    >>> batches = iter(loader)
    >>> seen = [next(batches), next(batches)]
    >>> state, left = loader.state_dict(), list(batches)
    >>> again = embank.torch.ResumableLoader(data)
    >>> again.load_state_dict(state)
    >>> [batch.tolist() for batch in again] == [batch.tolist() for batch in left]
    True
    """

    counts_batches = True
    """Tells a `LookaheadLoader` that it must not draw ahead from this loader."""

    def __init__(
        self, loader: Iterable[Batch], generator: Optional[torch.Generator] = None
    ) -> None:
        self.loader = loader
        check_repeatable(self._innermost())
        self.generator = own_generator(self._innermost()) if generator is None else generator
        self.epoch = 0
        """Passes that have ended, also those that were left early."""
        # Identifies the running pass. If an earlier pass is closed only now, it finds another
        # object here and does not end the running pass.
        self._pass: Optional[object] = None
        self._handed_out = 0
        # Batches that the loader has yielded, including those that a LookaheadLoader holds.
        self._drawn = 0
        self._order = Order()
        self._began_with: Optional[dict[str, Any]] = None
        self._resuming: Optional[_Repeated] = None

    def __iter__(self) -> Iterator[Batch]:
        this_pass = self._pass = object()
        repeated, self._resuming = self._resuming, None
        if repeated is None:
            self._handed_out = 0
            self._began_with = self._generators()
            batches = self._announced(self._source(Order()))
        else:
            batches = self._fast_forward(repeated)
        order = self._order
        try:
            for batch in batches:
                if self._pass is this_pass:
                    self._handed_out += 1
                    order.hand_out()
                yield batch
        finally:
            # Runs too when the loop is left early, which closes this generator.
            if self._pass is this_pass:
                self.epoch += 1
                self._handed_out = 0
                self._began_with = None
                self._pass = None

    def __len__(self) -> int:
        """The number of batches of a whole pass. `TypeError` if the loader does not know it."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no len()")
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """The place of the pass. The batch that the caller has now counts as done."""
        if self._resuming is not None:
            # A state was loaded, and no pass has begun since.
            drawn, expected = self._resuming.drawn, self._resuming.expected
        else:
            drawn, expected = self._drawn, self._order.state()
        return {
            "epoch": self.epoch,
            "handed_out": self._handed_out,
            "drawn": drawn,
            "order": expected,
            "began_with": self._began_with,
            "sizes": loader_sizes(self._innermost()),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next pass continue at the place of that state.

        Raises:
            ValueError: The state lies within a pass, and the loader has another batch size or
                another number of samples.
        """
        if state["began_with"] is not None:
            check_sizes(loader_sizes(self._innermost()), state.get("sizes", {}))
        self.epoch = int(state["epoch"])
        self._handed_out = int(state["handed_out"])
        began_with = state["began_with"]
        if isinstance(began_with, Tensor):
            # A state of an older version, with one generator and no order.
            began_with = {"torch" if state["generator"] is None else "own": began_with}
        self._began_with = began_with
        self._resuming = None
        if began_with is not None:
            drawn = int(state.get("drawn", self._handed_out))
            expected = {int(count): int(digest) for count, digest in state.get("order", {}).items()}
            self._resuming = _Repeated(drawn, expected)
        self._pass = None
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"])

    def _fast_forward(self, repeated: _Repeated) -> Iterator[Batch]:
        """Repeats the pass up to its place, and then restores the random states from before this
        call.

        It also draws the batches that the saved pass had drawn ahead: a loader that draws its order
        batch by batch had used the generators for them.
        """
        now = self._generators()
        assert self._began_with is not None, "resuming begins with what began the pass"
        self._set_generators(self._began_with)
        source = self._source(Order(repeated.expected))
        ahead: list[Batch] = []
        drawn = max(self._handed_out, repeated.drawn)
        for at in range(drawn):
            try:
                batch = next(source)
            except StopIteration:
                raise ValueError(
                    f"the loader has {at} batches, but {drawn} were drawn when its state was taken: "
                    "it is not the same loader"
                ) from None
            if at < self._handed_out:
                self._order.hand_out()
            else:
                ahead.append(batch)
        # The global generators, which the model draws from, are restored. The loader's own
        # generator stays where its batches have moved it.
        now.pop("own", None)
        self._set_generators(now)
        # The repeated batches were dropped, so their keys are not announced.
        return self._announced(itertools.chain(ahead, source))

    def _source(self, order: Order) -> Iterator[Batch]:
        """An iteration of the loader itself, which records the batches that it draws."""
        self._order, self._drawn = order, 0
        loader = self._innermost()
        sampler = recorded_sampler(loader)
        if sampler is None:
            return self._counted(begin(loader), order)
        sampler.order = order
        try:
            batches = begin(loader)
        finally:
            # An iteration outside of a pass records nothing.
            sampler.order = None
        if isinstance(batches, GeneratorType):
            batches = _recorded(sampler, order, batches)
        return self._counted(batches, None)

    def _innermost(self) -> Iterable[Batch]:
        """The loader that draws the batches."""
        loader = self.loader
        while isinstance(loader, (LookaheadLoader, Pipelined)):
            loader = loader.loader
        return loader

    def _counted(self, batches: Iterator[Batch], order: Optional[Order]) -> Iterator[Batch]:
        this_order = self._order
        for batch in batches:
            if order is not None:
                order.note(batch)
            if self._order is this_order:
                self._drawn += 1
            yield batch

    def _announced(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        layers = []
        loader = self.loader
        while isinstance(loader, (LookaheadLoader, Pipelined)):
            layers.append(loader)
            loader = loader.loader
        for layer in reversed(layers):
            batches = layer.announcing(batches)
        return batches

    def _generators(self) -> dict[str, Any]:
        state = _random_state()
        if self.generator is not None:
            state["own"] = self.generator.get_state()
        return state

    def _set_generators(self, state: dict[str, Any]) -> None:
        if "numpy" in state:
            _set_random_state(state)
        elif "torch" in state:
            torch.set_rng_state(state["torch"])
        if self.generator is not None and "own" in state:
            self.generator.set_state(state["own"])


class _Repeated(NamedTuple):
    """The batches that the pass of a loaded state had drawn."""

    drawn: int
    expected: dict[int, int]
