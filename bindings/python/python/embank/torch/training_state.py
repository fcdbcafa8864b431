"""Everything that a training run is, in one checkpoint.

Rows and optimizer state of the tables are in a checkpoint anyway. What else a run needs to go on as
if nothing had happened goes into the checkpoint's blob: the dense part, its optimizer, schedules,
the place in the data, and the states of the random generators. Blob and rows become durable
together or not at all, so they never disagree.
"""

from __future__ import annotations

import io
import itertools
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sized
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

from .fills import change, training
from .lookahead import LookaheadLoader
from .matching import load, parameter_names
from .modules import TableModule
from .order import Order, check_repeatable, recorded_sampler
from .reference import taken_at, taking_checkpoint

if TYPE_CHECKING:
    from embank import Bank

_FORMAT = 1
Batch = TypeVar("Batch")


@runtime_checkable
class Stateful(Protocol):
    """What `save` asks for its state and `resume` gives it back to."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


def save(bank: Bank, *, random_state: bool = True, **parts: Any) -> int:
    """Takes a checkpoint of the bank with everything else that the run needs, in one.

    When it returns, all of it is on stable storage. Call it where no backward pass is half done:
    gradients that wait for a step, and leases, are not saved.

    Args:
        bank: The bank.
        random_state: Whether the states of the random generators of torch (those of CUDA devices
            too), NumPy (the global one) and Python go with it.
        parts: By name, whatever has `state_dict` (models, optimizers, schedules, a
            `ResumableLoader`, a `GradScaler`); other values as they are, if
            `torch.load(weights_only=True)` takes them: numbers (those of NumPy become Python's),
            text, tensors, lists, tuples and dictionaries.

    Returns:
        The checkpoint's number.

    Raises:
        TypeError: A value could not be read back.
        ValueError: A part has tables of another bank; rows changed while the parts were asked for
            their states.
        embank.StoreIOError: Writing failed; the last checkpoint is good.

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
    state_id = bank.state_id
    states = {}
    values = {}
    for name, part in parts.items():
        if isinstance(part, Stateful):
            with taking_checkpoint():
                states[name] = _plain(part.state_dict())
        else:
            values[name] = _plain(part)
    blob = io.BytesIO()
    torch.save(
        {
            "embank.torch": _FORMAT,
            "at": taken_at(state_id),
            "states": states,
            "values": values,
            "parameters": parameter_names(parts),
            "random": _random_state() if random_state else None,
        },
        blob,
    )
    content = blob.getvalue()
    try:
        _decoded(content)
    except Exception as error:
        raise TypeError(
            "a part can't be read back by torch.load(weights_only=True); save numbers, text, tensors, lists and "
            f"dictionaries of them, or an object whose state_dict() is made of them: {error}"
        ) from None
    if bank.state_id != state_id:
        raise ValueError(
            "rows changed while the parts were asked for their states: save where no other thread trains"
        )
    return bank.checkpoint(content)


def _plain(value: Any) -> Any:
    """Returns `value` with NumPy's numbers as Python's: `torch.load(weights_only=True)` refuses
    NumPy's.

    Returns `value` itself if it holds none, so that a state dict keeps the attributes torch gave
    it.
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


def _check_bank(bank: Bank, name: str, part: Any) -> None:
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
    """The values of a checkpoint by name, and with `strict=False` what was not restored as it was
    saved.

    A name is that of a part, or of something in it: `model.top.weight` (a parameter),
    `model.bags.tables.user`, `model.bags.features.user`, `dense.model.top.weight` (what the
    optimizer `dense` keeps beside the parameter).
    """

    def __init__(
        self, values: Mapping[str, Any], added: list[str], removed: list[str], changed: list[str]
    ) -> None:
        super().__init__(values)
        self.added = added
        """What resume was asked for and the checkpoint lacks: it is as it was made."""
        self.removed = removed
        """What the checkpoint has and resume was not asked for. Rows of such tables stay in the
        bank.
        """
        self.changed = changed
        """What both have and does not fit, such as a parameter of another shape: it is as it was
        made.
        """


def resume(
    bank: Bank, *, random_state: bool = True, strict: bool = True, **parts: Stateful
) -> Optional[Resumed]:
    """Restores what `save` put into the checkpoint that the bank was opened at.

    Call it after everything is made and before anything is trained. Reading, and calling it again,
    changes nothing. Works on a bank that was opened with `read_only` too.

    Args:
        bank: The bank, as it was opened: no row may have changed since. In a bank without a
            checkpoint, rows that `from_pretrained` and `FeatureStore` have put, and values of
            vocabularies, do not count.
        random_state: Whether the random generators go back to where they were, if they were saved.
        strict: Whether the parts must be those that were saved, with the same parameters, tables
            and features in them. Their order is free: everything goes by name. If not, what both
            have is restored, and the result names the rest.
        parts: Objects to restore, under the names that `save` got them by.

    Returns:
        The other values by name, a `Resumed`, or None for a bank without a checkpoint and without
        changed rows: a new run begins.

    Raises:
        ValueError: Rows have changed since the bank was opened, or this object has taken a
            checkpoint; the checkpoint was not made by `save`. With `strict`: a name is not in it,
            an object in it is not asked for, or an optimizer has other parameters or tables.
        RuntimeError: With `strict`, a module has other parameters, shapes, tables or features.

    See `save` for an example.
    """
    _check_unchanged(bank)
    recovered = bank.recovered
    if recovered is None:
        return None
    try:
        state = _decoded(recovered.blob)
    except ValueError as error:
        raise ValueError(
            f"checkpoint {recovered.checkpoint} of {bank.path} was not made by embank.torch.save: {error}; read "
            "bank.recovered.blob yourself, or close the bank and go back with embank.roll_back to a checkpoint that "
            "save made"
        ) from None
    states, values, generators = state["states"], state["values"], state["random"]
    if strict and parts.keys() != states.keys():
        raise ValueError(
            f"checkpoint {recovered.checkpoint} has states of {sorted(states)}, and resume was asked for "
            f"{sorted(parts)}: name the same, or give strict=False to restore those that both name"
        )
    # Checkpoints of versions before they noted the names of parameters have none.
    found = load(parts, states, state.get("parameters", {}), strict)
    found.added.extend(name for name in parts if name not in states)
    found.removed.extend(name for name in states if name not in parts)
    if random_state and generators is not None:
        _set_random_state(generators)
    return Resumed(values, *found)


def _check_unchanged(bank: Bank) -> None:
    """Raises `ValueError` unless the bank is as it was opened, or, without a checkpoint, prepared
    for a new run.
    """
    recovered = bank.recovered
    cure = "close it, open it anew, and resume before anything is trained"
    if bank.last_checkpoint != (None if recovered is None else recovered.checkpoint):
        what = f"this process has taken checkpoint {bank.last_checkpoint} since it opened the bank"
    elif not bank.changed_since_checkpoint:
        return
    elif recovered is None:
        found = training(bank)
        if found is None:
            return
        what = (
            f"rows of table {found.table!r} have changed since it was opened, and there is no checkpoint of them: "
            f"{found.cause}"
        )
        cure += "; in a new run, fill tables after resume has returned None"
    else:
        found = change(bank)
        what = f"rows have changed since it was opened at checkpoint {recovered.checkpoint}"
        if found is not None:
            what += f", those of table {found.table!r} among them: {found.cause}"
    raise ValueError(f"{bank.path} can't be resumed: {what}; {cure}")


# What an archive of torch.save begins with: that of a zip file.
_ARCHIVE = b"PK\x03\x04"
_SHOWN_BYTES = 16


def _decoded(blob: bytes) -> dict[str, Any]:
    """The state that `save` has put into a blob.

    Raises:
        ValueError: It has put nothing there, or it can't be read; the reason, as the end of a
            sentence.
    """
    if not blob:
        raise ValueError("its blob is empty")
    if not blob.startswith(_ARCHIVE):
        raise ValueError(
            f"its blob, {len(blob)} bytes that begin with {blob[:_SHOWN_BYTES]!r}, was not written by torch.save"
        )
    try:
        state = torch.load(io.BytesIO(blob), weights_only=True, map_location="cpu")
    except Exception as error:
        # The first line: torch goes on with advice that would run code out of the blob.
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


class ResumableLoader(Generic[Batch]):
    """Iterates over `loader` and remembers where it is, so that a resumed run sees the batches that
    are left.

    The state is the number of passes, the batches of this one that were handed out, the random
    states of Python, NumPy and torch that the pass began with, and a digest of what it has drawn.
    After `load_state_dict` the next pass is that one: it begins with the same random states, so a
    loader that shuffles draws the same order, and the batches that were handed out before are drawn
    and dropped. Then the generators of Python, NumPy and torch go back to where they were.

    A resumed pass raises `ValueError` if it draws another order. A sampler with a generator of its
    own that is not given here has such an order, and so has a stream that draws from a generator
    that the model draws from too. The digest covers the indices of a `DataLoader` over a data set
    with indices, and the first 64 KiB of each tensor of any other loader's batches.

    A loop that is left early (`break`, an exception) has ended its pass: the next one is a new
    pass, here and in a run that is resumed from a state that was taken in between. So save within
    the loop.

    It goes around everything that reads ahead: `ResumableLoader(LookaheadLoader(DataLoader(...)))`.
    Batches in which the loader draws random numbers in this process, other than for the order, are
    repeated exactly if it has a generator of its own, however far it is read ahead.

    Args:
        loader: Any iterable of batches; iterated again on every pass. The sampler of a `DataLoader`
            is wrapped in one that notes its indices.
        generator: The loader's own generator, if it has one. Without, the order comes from the
            global ones.

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

    def __init__(
        self, loader: Iterable[Batch], generator: Optional[torch.Generator] = None
    ) -> None:
        self.loader = loader
        self.generator = generator
        self.epoch = 0
        """Passes that have ended, also those that were left early."""
        # The pass that is going on: one that is closed later, when another has begun, ends nothing.
        self._pass: Optional[object] = None
        self._handed_out = 0
        # Batches that the loader has given, those that a LookaheadLoader holds among them.
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
            # Also when the loop is left early, which closes this generator.
            if self._pass is this_pass:
                self.epoch += 1
                self._handed_out = 0
                self._began_with = None
                self._pass = None

    def __len__(self) -> int:
        """Batches in a whole pass; `TypeError` where the loader does not know."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no len()")
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Where the pass is; the batch in the caller's hands counts as done."""
        if self._resuming is not None:
            # Loaded, and no pass has begun.
            drawn, expected = self._resuming.drawn, self._resuming.expected
        else:
            drawn, expected = self._drawn, self._order.state()
        return {
            "epoch": self.epoch,
            "handed_out": self._handed_out,
            "drawn": drawn,
            "order": expected,
            "began_with": self._began_with,
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass goes on where that state was taken."""
        self.epoch = int(state["epoch"])
        self._handed_out = int(state["handed_out"])
        began_with = state["began_with"]
        if isinstance(began_with, Tensor):
            # Of a version that remembered one generator and no order.
            began_with = {"torch" if self.generator is None else "own": began_with}
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
        """The pass with what was handed out before left behind, and the random states as they are
        now.

        The batches that the saved pass had drawn ahead are drawn too before the generators go back:
        a loader that draws its order batch by batch had used the generators for them.
        """
        loader = self.loader.loader if isinstance(self.loader, LookaheadLoader) else self.loader
        check_repeatable(loader)
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
        # The model draws from the global ones. The loader's own stays where its batches have
        # brought it.
        now.pop("own", None)
        self._set_generators(now)
        # What was dropped is not announced.
        return self._announced(itertools.chain(ahead, source))

    def _source(self, order: Order) -> Iterator[Batch]:
        """An iteration of the loader itself, which notes what it draws."""
        self._order, self._drawn = order, 0
        loader = self.loader.loader if isinstance(self.loader, LookaheadLoader) else self.loader
        sampler = recorded_sampler(loader)
        if sampler is None:
            return self._counted(iter(loader), order)
        sampler.order = order
        try:
            batches = iter(loader)
        finally:
            # An iteration outside of a pass notes nothing.
            sampler.order = None
        return self._counted(batches, None)

    def _counted(self, batches: Iterator[Batch], order: Optional[Order]) -> Iterator[Batch]:
        this_order = self._order
        for batch in batches:
            if order is not None:
                order.note(batch)
            if self._order is this_order:
                self._drawn += 1
            yield batch

    def _announced(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        loader = self.loader
        return loader.announcing(batches) if isinstance(loader, LookaheadLoader) else batches

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
    """What the pass of a loaded state had drawn."""

    drawn: int
    expected: dict[int, int]
