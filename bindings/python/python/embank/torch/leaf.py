"""Rows under a lease as an autograd leaf.

A `torch.nn.Module` would keep its weight in a parameter, and an optimizer would read `.grad` later.
Here the weight of a batch lives as long as the batch's graph does, so the update rides on the graph
itself: the leased rows are a leaf tensor, and a hook on that leaf runs once autograd has
accumulated its whole gradient, however many times the leaf was used. The hook hands the gradient to
the `_Backward` that is going on, or to the `Sink` that has the table and keeps it for longer.

Ownership: the graph's accumulation node owns the leaf, the leaf owns the hook, and the hook owns
the lease. The lease has no reference to the three. So freeing the graph frees the lease, which
gives its counts back at once, without the cyclic collector. For the same reason a sink keeps no
leaf.

**One backward pass, one step.** A loss may stand on several forward passes over one table (two
towers, a triplet), and a parameter would have one gradient then: their sum. So gradients are
gathered while the backward pass runs, and a callback that autograd calls at its end applies them,
those of one table in one call. What follows:

- *Errors.* Autograd calls no callback after an error, so no table has changed then. It owns the
  callback, the callback owns what was gathered, and everybody else knows it weakly: it goes with
  the pass, whatever ends that. Errors of the callback come out of `backward()`. A NaN in one
  table's gradient changes no table (`apply_step`).
- *Retained graphs.* The leases end with the first pass; in a second one the hook raises, and the
  pass with it.
- *Threads.* A pass is told from others by autograd's number for it, so those of several threads do
  not mix. Hooks of one pass run in a thread a device, hence the lock; the callback runs after all
  of them, and on streams that autograd has ordered behind theirs.
- *A backward pass inside another*, as reentrant checkpointing makes, has a number and an end of its
  own, and is a step of its own.

**Other devices.** The store reads and writes host memory. The leaf is made on the keys' device, so
that its gradient is accumulated, scaled and clipped there; it crosses to the host once, when it is
applied. Rows go to a CUDA device through page-locked memory and on the current stream, without
waiting: the copy is ordered before the kernels that the same stream gets next, and torch's
allocator of page-locked memory reuses a block only when the copies that read it are done. The way
back must wait, for the store reads the gradient in this process: autograd runs hooks and callbacks
with the stream set behind the one that wrote the gradient, so a copy on the current stream followed
by waiting for that stream sees the whole gradient.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

import embank

from .caller import warn_caller
from .sinks import Identity, identity, sink_of

if TYPE_CHECKING:
    from embank import BagLease, DistinctLease, Lease, Table


AnyLease = Union["DistinctLease", "Lease", "BagLease"]
# A table, leases of it, their keys `(n,)`, and gradients `(n, dim)`; or one lease, None, and
# gradients of its rows' shape.
Part = tuple["Table", Sequence[AnyLease], Optional[NDArray[np.uint64]], NDArray[np.float32]]


class Norm(NamedTuple):
    """The largest norm that a row may have, and which norm."""

    largest: float
    order: float


class Rows(NamedTuple):
    """Rows for a module to compute with, float32 `(u, dim)`, and for each key its place in them."""

    rows: Tensor
    places: Tensor


class OnGradient:
    """Sees to the leaf's gradient; once the lease is gone, that is an error.

    It asks for the table's sink in the backward pass: an optimizer may be made or detached after
    the forward pass.
    """

    def __init__(self, table: Table, lease: DistinctLease) -> None:
        self._table = table
        self.lease = lease
        # Whether the backward pass of these rows is still to come.
        self.waits = True

    def __call__(self, leaf: Tensor) -> None:
        self.waits = False
        gradient = leaf.grad
        # The leaf is used once: its gradient needs no second copy, nor a sum with a later one.
        leaf.grad = None
        if gradient is None:
            return
        raise_unless_held(self.lease)
        sink = sink_of(self._table)
        if sink is None:
            _Backward.current().gather(self._table, self.lease, gradient.detach())
        else:
            sink.collect(self._table, self.lease, leaf.detach(), gradient.detach())


class _Earlier:
    """The leases of this thread that wait for their backward pass, of tables that do not admit
    every key.

    Several modules over one table may serve one loss. A key that they share is one use of it, so
    the later Gets tell the table which keys the earlier ones counted. Leases are known weakly: a
    graph that is dropped is no earlier Get.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def note(self, table: Table, on_gradient: OnGradient) -> None:
        if not table.admits_all:
            of_table = self._of_thread().setdefault(identity(table), weakref.WeakSet())
            of_table.add(on_gradient)

    def keys(self, table: Table) -> Optional[NDArray[np.uint64]]:
        """The keys of those leases, or None if there are none."""
        if table.admits_all:
            return None
        of_table = self._of_thread().get(identity(table), ())
        waiting = [of.lease for of in of_table if of.waits and of.lease.held]
        return np.concatenate([lease.keys for lease in waiting]) if waiting else None

    def _of_thread(self) -> dict[Identity, weakref.WeakSet[OnGradient]]:
        found: Optional[dict[Identity, weakref.WeakSet[OnGradient]]]
        found = getattr(self._local, "of_table", None)
        if found is None:
            found = self._local.of_table = {}
        return found


_earlier = _Earlier()


class _OnUnusedGradient:
    """Drops the gradient of rows that were read in evaluation mode, and warns that they take no
    step.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __call__(self, leaf: Tensor) -> None:
        leaf.grad = None
        if self._table.learning_rate is None:
            # A table without an optimizer learns in no mode.
            return
        warn_caller(
            f"rows of table {self._table.name!r} were read in evaluation mode, and this backward pass does not train "
            "them: call train() of the module over the table if they are to learn; freeze() it if they are not; for "
            "the gradient at its output alone, call torch.autograd.grad"
        )


class _Gathered(NamedTuple):
    """What a backward pass found for a table."""

    table: Table
    leases: list[AnyLease]
    gradients: list[Tensor]

    def part(self) -> Part:
        """Its part of the step."""
        arrays = [to_host(gradient) for gradient in self.gradients]
        if len(self.leases) == 1:
            return self.table, self.leases, None, arrays[0]
        keys = np.concatenate([lease.keys for lease in self.leases])
        sums = [
            gradient if isinstance(lease, embank.DistinctLease) else lease.sum_gradients(gradient)
            for lease, gradient in zip(self.leases, arrays)
        ]
        return self.table, self.leases, keys, np.concatenate(sums)


class _Backward:
    """Gathers the gradients of a backward pass, and applies them when it ends: it is autograd's
    callback.
    """

    _running: weakref.WeakValueDictionary[int, _Backward] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._of_table: dict[Identity, _Gathered] = {}

    @classmethod
    def current(cls) -> _Backward:
        """That of the pass whose hook this is called in."""
        number = torch._C._current_graph_task_id()
        with cls._lock:
            running = cls._running.get(number)
            if running is None:
                running = cls._running[number] = cls()
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(running)
        return running

    def gather(self, table: Table, lease: AnyLease, gradient: Tensor) -> None:
        with self._lock:
            found = self._of_table.setdefault(identity(table), _Gathered(table, [], []))
            found.leases.append(lease)
            found.gradients.append(gradient)

    def __call__(self) -> None:
        try:
            apply_step([gathered.part() for gathered in self._of_table.values()])
        except BaseException:
            # The hooks own the leases too, and so does a retained graph.
            for _, leases, _ in self._of_table.values():
                for lease in leases:
                    lease.release()
            raise
        finally:
            # Autograd may keep its callbacks while the program keeps the graph.
            self._of_table.clear()


def apply_step(parts: Sequence[Part]) -> None:
    """Applies the gradients of all tables of a step, after all of them were checked.

    Raises:
        ValueError: A gradient is NaN or infinite, or a table has no optimizer: no row of any table
            has changed.
        embank.EmbankError: As `embank.apply_many`.
    """
    of_bank: dict[int, list[Part]] = {}
    for part in parts:
        of_bank.setdefault(id(part[0].bank), []).append(part)
    if len(of_bank) > 1:
        # Each bank checks its own tables alone.
        for table, leases, keys, gradients in parts:
            _check_finite(table, leases[0], keys, gradients)
    for of_one in of_bank.values():
        embank.apply_many(of_one)


def _check_finite(
    table: Table,
    lease: AnyLease,
    keys: Optional[NDArray[np.uint64]],
    gradients: NDArray[np.float32],
) -> None:
    if np.isfinite(gradients).all():
        return
    if keys is None:
        keys = lease.keys
        if not isinstance(lease, embank.DistinctLease):
            gradients = lease.sum_gradients(gradients)
    bad = np.argwhere(~np.isfinite(gradients))
    if len(bad) == 0:
        return  # only the gradients of empty bags were not finite
    row, column = bad[0]
    raise ValueError(
        f"table {table.name!r} of {table.bank.path}, key {keys[row]}: the gradient of column {column} is "
        f"{gradients[row, column]}; no row of this step was changed, in no bank; lower the learning rate, clip or "
        "unscale the gradients, or skip the batch"
    )


def leased_rows(
    requests: Sequence[tuple[Table, Tensor]], norm: Optional[Norm] = None
) -> list[Rows]:
    """Leases the rows of each table's keys (any shape) for one backward pass.

    Returns for each request the rows of its distinct keys, on the device of the keys, and places in
    the shape of the keys. The tables must be of one bank and differ.
    """
    wanted = [(table, as_keys(keys)) for table, keys in requests]
    sinks = [sink_of(table) for table, _ in wanted]
    for sink, (table, keys_of_table) in zip(sinks, wanted):
        if sink is not None:
            sink.check_bound(table, keys_of_table)
    if len(wanted) == 1:
        ((table, keys_of_table),) = wanted
        leases = [table.get_distinct(keys_of_table, earlier=_earlier.keys(table))]
    else:
        leases = embank.get_many(wanted, earlier=[_earlier.keys(table) for table, _ in wanted])
    found = []
    for (table, keys), lease, sink in zip(requests, leases, sinks):
        rows = torch.from_numpy(lease.rows)
        if norm is not None:
            too_long = shorten(rows, norm).nonzero().flatten().numpy()
            if len(too_long) > 0:
                # As torch, which shortens the weight itself: what the step starts from.
                lease.rewrite(too_long, lease.rows[too_long])
        leaf = to_device(rows, keys.device).requires_grad_()
        on_gradient = OnGradient(table, lease)
        _earlier.note(table, on_gradient)
        register: Callable[[OnGradient], object] = leaf.register_post_accumulate_grad_hook
        register(on_gradient)
        if sink is not None:
            sink.leased(table, on_gradient)
        places = to_device(torch.from_numpy(lease.inverse), keys.device).view(keys.shape)
        found.append(Rows(leaf, places))
    return found


class LeasedOutput(torch.autograd.Function):
    """Puts the `rows` of a lease into the graph, for a module whose output is these rows.

    The node of the graph owns the lease. Its gradients together have the shape of the rows, so no
    tensor of distinct rows exists. `anchor` is a leaf without values: it makes the outputs require
    a gradient. Each output has the next of `counts` rows. The outputs share no version counter, so
    a model may change one of them in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        table: Table,
        lease: Union[Lease, BagLease],
        counts: Sequence[int],
    ) -> tuple[Tensor, ...]:
        ctx.table, ctx.lease = table, lease
        return tuple(tensors_of(lease.rows, counts))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, None]:
        table, lease = ctx.table, ctx.lease
        gradient = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        gradient = gradient.detach()
        raise_unless_held(lease)
        sink = sink_of(table)
        if sink is None:
            _Backward.current().gather(table, lease, gradient)
        else:
            # Made after the forward pass: it takes one row for each distinct key.
            rows = torch.from_numpy(table.peek(lease.keys))
            sums = torch.from_numpy(lease.sum_gradients(to_host(gradient)))
            sink.collect(table, lease, rows, sums)
        return None, None, None, None


def leased_outputs(
    table: Table, lease: Union[Lease, BagLease], counts: Sequence[int]
) -> tuple[Tensor, ...]:
    """The rows of a lease in the graph: for each of `counts`, float32 of that many rows."""
    anchor = torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=True)
    apply: Callable[..., tuple[Tensor, ...]] = LeasedOutput.apply
    return apply(anchor, table, lease, counts)


def leased_output(table: Table, lease: Union[Lease, BagLease]) -> Tensor:
    """The rows of a lease in the graph: float32 of the shape of `lease.rows`."""
    (output,) = leased_outputs(table, lease, [len(lease.rows)])
    return output


def tensors_of(rows: NDArray[np.float32], counts: Sequence[int]) -> Iterator[Tensor]:
    """For each of `counts`, a tensor of the next rows, which shares their memory."""
    start = 0
    for count in counts:
        yield torch.from_numpy(rows[start : start + count])
        start += count


def peeked_rows(
    requests: Sequence[tuple[Table, Tensor]],
    norm: Optional[Norm] = None,
    *,
    requires_grad: bool = False,
) -> list[Rows]:
    """Reads the rows of each table's keys without a lease; missing ones as their initial values.

    With `requires_grad` a graph begins at the rows, as at a parameter; the rows themselves don't
    learn.

    Returns for each request one row a key, on the device of the keys, and places in their shape.
    """
    found = []
    for table, keys in requests:
        rows = torch.from_numpy(table.peek(as_keys(keys)))
        if norm is not None:
            shorten(rows, norm)
        leaf = to_device(rows, keys.device)
        if requires_grad:
            leaf.requires_grad_()
            register: Callable[[_OnUnusedGradient], object] = leaf.register_post_accumulate_grad_hook
            register(_OnUnusedGradient(table))
        places = torch.arange(keys.numel(), device=keys.device).view(keys.shape)
        found.append(Rows(leaf, places))
    return found


def refuse_recording(tables: Sequence[Table], keys: Iterable[Tensor]) -> None:
    """Raises `RuntimeError` while a call is recorded to be repeated with other keys.

    A recording sees tensors alone: the rows of the example's keys would become constants of it.
    """
    recorder = None
    if torch._C._get_tracing_state() is not None:
        recorder = "torch.jit.trace (and torch.onnx.export, which uses it)"
    elif _is_exporting():
        recorder = "torch.export"
    elif get_proxy_mode() is not None:
        recorder = "make_fx"
    else:
        for of in keys:
            if isinstance(of, torch.fx.Proxy):
                recorder = "torch.fx.symbolic_trace"
            elif of.is_cuda and torch.cuda.is_current_stream_capturing():
                recorder = "a CUDA graph"
    if recorder is not None:
        names = ", ".join(repr(table.name) for table in tables)
        raise RuntimeError(
            f"{recorder} would keep rows of table {names} as constants and answer with them for any "
            "keys: record the part of the model behind the tables, with the rows that the modules "
            "of embank.torch give as its inputs"
        )


def shorten(rows: Tensor, norm: Norm) -> Tensor:
    """Scales those of `rows` that are too long, in place, as `torch.nn.functional.embedding` does.

    Returns which they are: bool `(n,)`.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, norm.order, dim=1)
    too_long: Tensor = norms > norm.largest
    rows[too_long] *= (norm.largest / (norms[too_long] + 1e-7)).unsqueeze(1)
    return too_long


def raise_unless_held(lease: AnyLease) -> None:
    """Raises `RuntimeError` for a lease that was ended, `embank.LeaseExpired` for one that expired,
    `ValueError` for one whose bank is closed."""
    if lease.held:
        return
    if lease.state == "ended":
        raise RuntimeError(
            "the gradient of these rows was already applied, or their lease was released: "
            "run forward again instead of a second backward through a retained graph"
        )
    lease.check()


def as_keys(keys: Tensor) -> NDArray[np.int64]:
    """The keys as a 1-D NumPy array, sharing memory where the tensor is int64 in host memory.

    Raises `TypeError` for a tensor that does not hold integers.
    """
    if keys.dtype not in _INTEGERS:
        raise TypeError(f"keys must be an integer tensor, not {keys.dtype}: use keys.long()")
    array: NDArray[np.int64] = keys.detach().reshape(-1).to("cpu", torch.int64).numpy()
    return array


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """`values`, which lie in host memory, on `device`: themselves on the CPU, else a copy on the
    current stream that the caller need not wait for."""
    if device.type == "cpu":
        return values
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def to_host(values: Tensor) -> NDArray[np.float32]:
    """`values` as an array; from a CUDA device by way of page-locked memory."""
    values = values.detach()
    if values.device.type == "cuda":
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        torch.cuda.current_stream(values.device).synchronize()
        values = host
    array: NDArray[np.float32] = values.cpu().contiguous().numpy()
    return array


# Of newer versions of torch. Older ones export through the modes that are looked at beside it.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)

# Of newer versions of torch.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
