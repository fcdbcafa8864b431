"""Rows under a lease as an autograd leaf.

A `torch.nn.Module` keeps its weight in a parameter, and an optimizer reads `.grad` later. Here the
rows of a batch live as long as the batch's graph, so the graph itself carries the update. The
leased rows are a leaf tensor. A hook on the leaf runs after autograd has summed its whole gradient
over all uses of the leaf. The hook hands the gradient to the `_Backward` of the running pass, or to
the `Sink` of the table, which keeps it until its step.

Ownership: the graph's accumulation node owns the leaf, the leaf owns the hook, and the hook owns
the lease. The lease refers to no other of these objects. So freeing the graph frees the lease,
which gives its counts back at once, without the cyclic collector. For this reason a sink keeps no
leaf.

**One backward pass, one step.** A loss may depend on several forward passes over one table (two
towers, a triplet). A parameter then gets one gradient: their sum. So this module gathers the
gradients during the backward pass. A callback at the end of the pass applies them, with one call
for all tables of a bank. The consequences:

- *Errors.* Autograd calls no callback after an error, so no table has changed then. Autograd owns
  the callback, and the callback owns the gradients. All other references are weak, so the gradients
  are freed with the pass. Autograd may keep a part of the graph until the thread's next backward
  pass (`free_failed_graphs`). `backward()` raises the errors of the callback. A NaN in one table's
  gradient changes no table (`apply_step`).
- *Retained graphs.* The leases end with the first pass. In a second pass the hook raises an error,
  and so does `backward()`.
- *Threads.* Autograd numbers the passes, so passes of several threads do not mix. The hooks of a
  pass run in one thread for each device, so a lock is needed. The callback runs after all hooks, on
  streams that autograd has ordered behind the streams of the hooks.
- *A backward pass inside another one*, as in reentrant checkpointing, has its own number and end.
  It is a separate step.

**Other devices.** The store reads and writes host memory. The leaf is on the keys' device, so its
gradient is summed, scaled and clipped there. It is copied to the host once, when it is applied.
Rows are copied to a CUDA device from page-locked memory on the current stream, without waiting. The
copy comes before the later kernels of that stream. torch's allocator of page-locked memory reuses a
block only after the copies from it are done. The copy of a gradient to the host must wait, because
the store reads it in this process. Autograd runs hooks and callbacks on a stream that is ordered
behind the gradient's writer. So a copy on the current stream, and waiting for that stream, gives
the whole gradient.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.fx.experimental.proxy_tensor import get_proxy_mode

import embank

from . import in_hand
from .bags import BagRequest
from .caller import warn_caller
from .keys import as_keys
from .many import apply_many, get_many, is_sharded, peek_many
from .sinks import Identity, Sink, identity, sink_of
from .stand_in import link_output

if TYPE_CHECKING:
    from .many import AnyLease as Lease, AnyTable as Table


Result = TypeVar("Result")

# A table, leases of it, keys of theirs `(n,)`, and gradients `(n, dim)`. With one lease, the keys
# may be None: the gradients then have the shape of its rows. Rows of the leases whose keys are not
# given take no step.
Part = tuple["Table", Sequence["Lease"], Optional[NDArray[np.uint64]], NDArray[np.float32]]


class Norm(NamedTuple):
    """The largest norm that a row may have, and the p of the p-norm."""

    largest: float
    order: float


class Rows(NamedTuple):
    """Rows for a module to compute with, float32 `(u, dim)`, and for each key its place in them."""

    rows: Tensor
    places: Tensor


class OnGradient:
    """Handles the leaf's gradient. Raises an error if the lease has ended.

    The hook looks the table's sink up in the backward pass, because an optimizer may be made or
    detached after the forward pass.
    """

    def __init__(
        self, table: Table, lease: Lease, looked_up: Optional[NDArray[np.bool_]] = None
    ) -> None:
        self._table = table
        self.lease = lease
        # Whether a forward pass has looked a row of the lease up; None if all were looked up. The
        # rows of a batch in hand are announced before it is known which of them are used.
        self._looked_up = looked_up
        # True until the backward pass of these rows.
        self.waits = True

    def __call__(self, leaf: Tensor) -> None:
        self.waits = False
        gradient = leaf.grad
        # Removes the gradient from the leaf. The leaf takes part in one backward pass, so the
        # gradient need not be copied, and no later gradient must be added to it.
        leaf.grad = None
        if gradient is None:
            return
        raise_unless_held(self.lease)
        sink = sink_of(self._table)
        rows, gradient, keys = leaf.detach(), gradient.detach(), None
        if self._looked_up is not None and not self._looked_up.all():
            # A step with a gradient of zero would move rows that the batch does not use.
            keys = self.lease.keys[self._looked_up]
            used = torch.from_numpy(self._looked_up).to(gradient.device)
            rows, gradient = rows[used], gradient[used]
        elif self.lease.per != "distinct":
            # The lease has pooled bags for another forward pass, and these are its distinct rows.
            keys = self.lease.keys
        if sink is None:
            _Backward.current().gather(self._table, self.lease, gradient, keys)
        else:
            sink.collect(
                self._table, self.lease, self.lease.keys if keys is None else keys, rows, gradient
            )


class _Earlier:
    """The leases of this thread that wait for their backward pass, on tables with admission.

    One loss may use several modules over one table. A key that they share is used once. So later
    gets tell the table which keys earlier gets have counted. The references to leases are weak: the
    lease of a dropped graph does not count as an earlier get.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def note(self, table: Table, on_gradient: OnGradient) -> None:
        if not table.admits_all:
            of_table = self._of_thread().setdefault(identity(table), weakref.WeakSet())
            of_table.add(on_gradient)

    def keys(self, table: Table) -> Optional[NDArray[np.uint64]]:
        """Returns the keys of the waiting leases on the table. None if there are no such leases."""
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
    """Drops the gradient of rows that were read in evaluation mode, and warns that these rows take
    no step.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __call__(self, leaf: Tensor) -> None:
        leaf.grad = None
        if self._table.learning_rate is None:
            # A table without an optimizer learns in no mode, so no warning is needed.
            return
        warn_caller(
            f"rows of table {self._table.name!r} were read in evaluation mode, and this backward pass does not train "
            "them: call train() of the module over the table if they are to learn; freeze() it if they are not; for "
            "the gradient at its output alone, call torch.autograd.grad"
        )


class _Gathered(NamedTuple):
    """The leases and gradients of a table in a backward pass."""

    table: Table
    leases: list[Lease]
    keys: list[Optional[NDArray[np.uint64]]]
    """The keys of each gradient; None for all rows of its lease."""
    gradients: list[Tensor]

    def part(self) -> Part:
        """Returns the table's part of the step."""
        arrays = [to_host(gradient) for gradient in self.gradients]
        if len(self.leases) == 1:
            return self.table, self.leases, self.keys[0], arrays[0]
        of_leases = list(zip(self.leases, self.keys))
        keys = np.concatenate([lease.keys if of is None else of for lease, of in of_leases])
        sums = [
            gradient
            if of is not None or lease.per == "distinct"
            else lease.sum_gradients(gradient)
            for (lease, of), gradient in zip(of_leases, arrays)
        ]
        # Forward passes may share the lease of a batch in hand.
        return self.table, list(dict.fromkeys(self.leases)), keys, np.concatenate(sums)


class _Backward:
    """Gathers the gradients of a backward pass. Autograd calls it at the end of the pass, and it
    applies them.
    """

    _running: weakref.WeakValueDictionary[int, _Backward] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._of_table: dict[Identity, _Gathered] = {}

    @classmethod
    def current(cls) -> _Backward:
        """Returns the object of the backward pass whose hook calls this."""
        number = torch._C._current_graph_task_id()
        with cls._lock:
            running = cls._running.get(number)
            if running is None:
                running = cls._running[number] = cls()
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(running)
        return running

    def gather(
        self,
        table: Table,
        lease: Lease,
        gradient: Tensor,
        keys: Optional[NDArray[np.uint64]] = None,
    ) -> None:
        with self._lock:
            found = self._of_table.setdefault(identity(table), _Gathered(table, [], [], []))
            found.leases.append(lease)
            found.keys.append(keys)
            found.gradients.append(gradient)

    def __call__(self) -> None:
        try:
            apply_step([gathered.part() for gathered in self._of_table.values()])
        except BaseException:
            # Releases the leases here. The hooks and a retained graph own them too, so they would
            # stay held.
            for gathered in self._of_table.values():
                for lease in gathered.leases:
                    lease.release()
            raise
        finally:
            # Frees the gradients here, because autograd may keep its callbacks while the program
            # keeps the graph.
            self._of_table.clear()


def apply_step(parts: Sequence[Part]) -> None:
    """Applies the gradients of all tables of a step. It checks all of them first.

    Raises:
        ValueError: A gradient is NaN or infinite, or a table has no optimizer: no row of any table
            has changed.
        embank.EmbankError: The errors of `embank.apply_many`.
    """
    of_bank: dict[int, list[Part]] = {}
    for part in parts:
        of_bank.setdefault(id(part[0].bank), []).append(part)
    if len(of_bank) > 1:
        # `apply_many` checks only the tables of one bank, so the gradients of all banks are checked
        # first.
        for table, leases, keys, gradients in parts:
            _check_finite(table, leases[0], keys, gradients)
    for of_one in of_bank.values():
        apply_many(of_one)


def _check_finite(
    table: Table,
    lease: Lease,
    keys: Optional[NDArray[np.uint64]],
    gradients: NDArray[np.float32],
) -> None:
    if np.isfinite(gradients).all():
        return
    if keys is None:
        keys = lease.keys
        if lease.per != "distinct":
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

    Returns for each request the rows of its distinct keys on the device of the keys, and the place
    of each key in them, in the shape of the keys. All tables must be of one bank, and no table may
    occur twice.
    """
    ahead = [in_hand.has(table) for table, _ in requests]
    if any(ahead):
        # The others are still got together, in their order.
        plain = [request for request, is_ahead in zip(requests, ahead) if not is_ahead]
        rows_of_plain = iter(leased_rows(plain, norm) if plain else [])
        return [
            rows_in_hand(*request, norm) if is_ahead else next(rows_of_plain)
            for request, is_ahead in zip(requests, ahead)
        ]
    wanted = [(table, as_keys(keys)) for table, keys in requests]
    sinks = [sink_of(table) for table, _ in wanted]
    for sink, (table, keys_of_table) in zip(sinks, wanted):
        if is_sharded(table):
            # The owners see the leases of all ranks, and refuse for all of them.
            _refuse_norm(table, norm)
        elif sink is not None:
            sink.check_bound(table, keys_of_table)
    if len(wanted) == 1:
        ((table, keys_of_table),) = wanted
        get: Callable[..., Lease] = table.get_distinct
        leases = [got(get, keys_of_table, earlier=_earlier.keys(table))]
    else:
        earlier = [_earlier.keys(table) for table, _ in wanted]
        leases = got(get_many, wanted, earlier=earlier)
    found = []
    for (table, keys), lease, sink in zip(requests, leases, sinks):
        rows = torch.from_numpy(lease.rows)
        if norm is not None:
            too_long = shorten(rows, norm).nonzero().flatten().numpy()
            if len(too_long) > 0:
                # The step starts from the shortened rows, because torch's `max_norm` shortens the
                # weight itself.
                lease.rewrite(too_long, lease.rows[too_long])
        leaf = leaf_of(table, lease, lease.rows, keys.device, sink)
        places = to_device(torch.from_numpy(lease.inverse), keys.device).view(keys.shape)
        found.append(Rows(leaf, places))
    return found


def _refuse_norm(table: Table, norm: Optional[Norm]) -> None:
    """Raises `ValueError` for a module with `max_norm` over a sharded table. It would write the
    rows that this rank alone has found too long, and that call would have to be collective.
    """
    if norm is not None:
        raise ValueError(
            f"a module with max_norm can't train sharded table {table.name!r}: give the table clip_row_norm=, which limits "
            "the gradients of its rows, or normalize the module's output"
        )


def leaf_of(
    table: Table,
    lease: Lease,
    rows: NDArray[np.float32],
    device: torch.device,
    sink: Optional[Sink],
    looked_up: Optional[NDArray[np.bool_]] = None,
) -> Tensor:
    """Makes a leaf of the lease's distinct `rows`, on `device`. The leaf's hook owns the lease.
    Only rows that are True in `looked_up` take a step.
    """
    leaf = to_device(torch.from_numpy(rows), device).requires_grad_()
    on_gradient = OnGradient(table, lease, looked_up)
    _earlier.note(table, on_gradient)
    register: Callable[[OnGradient], object] = leaf.register_post_accumulate_grad_hook
    register(on_gradient)
    if sink is not None:
        sink.leased(table, on_gradient)
    return leaf


def leased_bags(table: Table, request: BagRequest) -> Optional[Lease]:
    """Leases bags that the table pools, for one backward pass. None if their rows were got ahead,
    and the table can't pool them: see `RowsInHand.pools`.
    """
    if in_hand.has(table):
        found = in_hand.find(table, request.keys)
        return found.bags(request) if found.pools(request.keys) else None
    keys, offsets, pooling, weights = request
    return got(table.get_bags, keys, offsets, pooling=pooling, weights=weights)


def _rows_in_hand(table: Table, keys: Tensor, norm: Optional[Norm]) -> Rows:
    """Returns rows of a batch in hand, as `leased_rows` does."""
    if norm is not None:
        raise ValueError(
            f"a module with max_norm can't use rows of table {table.name!r} that were got ahead, because other modules "
            "share them: use Pipelined(..., depth=0)"
        )
    flat = as_keys(keys)
    leaf, places = in_hand.find(table, flat).rows(flat, keys.device)
    return Rows(leaf, to_device(torch.from_numpy(places), keys.device).view(keys.shape))


# `torch.compile` does not look into this call, which depends on the batches in hand.
rows_in_hand: Callable[[Table, Tensor, Optional[Norm]], Rows] = _disable_dynamo(_rows_in_hand)


class LeasedOutput(torch.autograd.Function):
    """Puts the `rows` of a lease into the graph, for a module that outputs these rows.

    The node of the graph owns the lease. The gradients of the outputs, one after the other, have
    the shape of `rows`. So the lease sums them, and no tensor of distinct rows is needed. `anchor`
    is an empty leaf that makes the outputs require a gradient. The stand-in must not take its
    place: a caller that asks for the stand-in's gradient alone would then train the rows. Output i
    has the next `counts[i]` rows. The outputs share no version counter, so a model may change one
    of them in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        table: Table,
        lease: Lease,
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
            # The sink was made after the forward pass. It takes one row for each distinct key.
            rows = torch.from_numpy(table.peek(lease.keys))
            sums = torch.from_numpy(lease.sum_gradients(to_host(gradient)))
            sink.collect(table, lease, lease.keys, rows, sums)
        return None, None, None, None


def leased_outputs(
    stand_in: Tensor, table: Table, lease: Lease, counts: Sequence[int]
) -> tuple[Tensor, ...]:
    """Returns the rows of a lease in the graph: for each of `counts` a float32 tensor with this
    number of rows. The stand-in has a node of its own on each of them.
    """
    anchor = torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=True)
    apply: Callable[..., tuple[Tensor, ...]] = LeasedOutput.apply
    return tuple(link_output(rows, stand_in) for rows in apply(anchor, table, lease, counts))


def leased_output(stand_in: Tensor, table: Table, lease: Lease) -> Tensor:
    """Returns the rows of a lease in the graph: float32 in the shape of `lease.rows`."""
    (output,) = leased_outputs(stand_in, table, lease, [len(lease.rows)])
    return output


def tensors_of(rows: NDArray[np.float32], counts: Sequence[int]) -> Iterator[Tensor]:
    """Returns for each of `counts` a tensor of the next rows, which shares their memory."""
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
    """Reads the rows of each table's keys without a lease. A key without a row reads as its initial
    value.

    With `requires_grad` a graph begins at the rows, as at a parameter. The rows themselves do not
    learn.

    Returns for each request one row for each key on the device of the keys, and the place of each
    key in these rows, in the shape of the keys.
    """
    found = []
    arrays = peek_many([(table, as_keys(keys)) for table, keys in requests])
    for (table, keys), array in zip(requests, arrays):
        rows = torch.from_numpy(array)
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
    """Raises `RuntimeError` while torch records a call to repeat it with other keys.

    A recording has only tensors: the rows of the example's keys would become its constants.
    """
    recorder = None
    if torch._C._get_tracing_state() is not None:
        recorder = "torch.jit.trace (and torch.onnx.export, which uses it)"
    elif _is_exporting():
        recorder = "torch.export"
    elif get_proxy_mode() is not None:
        recorder = "make_fx"
    elif _transforms():
        raise RuntimeError(
            "a table can't be read inside of a function that torch.func transforms (grad, vmap, jvp): call the modules "
            "of embank.torch before, and give their output to the function as an argument"
        )
    else:
        for of in keys:
            if isinstance(of, torch.fx.Proxy):
                recorder = "torch.fx.symbolic_trace"
            elif not isinstance(of, Tensor):
                raise TypeError(
                    f"keys must be an integer tensor, not {type(of).__name__}: use torch.as_tensor(keys)"
                )
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
    """Shortens those of `rows` that are too long, in place, as `torch.nn.functional.embedding`
    does.

    Returns which rows were too long: bool `(n,)`.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, norm.order, dim=1)
    too_long: Tensor = norms > norm.largest
    rows[too_long] *= (norm.largest / (norms[too_long] + 1e-7)).unsqueeze(1)
    return too_long


def raise_unless_held(lease: Lease) -> None:
    """Raises `RuntimeError` for a lease that has ended, `embank.LeaseExpired` for one that has
    expired, and `ValueError` for one whose bank is closed.
    """
    if lease.held:
        return
    if lease.state == "ended":
        raise RuntimeError(
            "the lease of these rows has ended: a backward pass through this forward pass was already applied, or the "
            "lease was released; a forward pass takes one backward pass, for all its outputs: call backward() once for "
            "the sum of the losses, make a SparseOptimizer, whose step() takes the sum of several backward passes, or "
            "run forward again"
        )
    lease.check()


# `torch.compile` does not look into this call, because it can't trace calls of the store.
@_disable_dynamo
def got(get: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    """Calls `get` for a forward pass and returns its result. Its errors name their cure."""
    with naming_cure():
        try:
            return get(*arguments, **named)
        except embank.SelfBlocked:
            pass
        # The leases of this thread may belong to a backward pass that failed, or to later batches.
        free_failed_graphs()
        for of in in_hand.passes():
            of.withdraw()
        return get(*arguments, **named)


def free_failed_graphs() -> None:
    """Frees what the failed backward passes of this thread have left of their graphs.

    If a backward pass on the CPU fails, autograd keeps the nodes that the pass had not reached yet
    in the queue of the thread, until the thread's next backward pass drops them. These nodes own
    leases. So this function runs a backward pass of its own.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.zeros((), device="cpu", requires_grad=True)
        torch.autograd.grad(leaf.clone(), leaf)


@contextmanager
def naming_cure() -> Iterator[None]:
    """Adds to errors of a get in the block what a program with modules does about them."""
    try:
        yield
    except embank.StalenessTimeout as error:
        error.args = (
            f"{error}; the graph of a forward pass of a module holds its rows until its backward pass: if a batch is "
            "skipped, drop its graph before the next forward pass (del loss, and what else was computed from its rows)",
        )
        raise
    except embank.ReadOnly as error:
        cure = "to read rows with a module, call model.eval() or use torch.no_grad()"
        raise embank.ReadOnly(f"{error}; {cure}") from None


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Returns `values`, which are in host memory, on `device`. On the CPU returns `values`;
    otherwise a copy on the current stream, for which the caller need not wait.
    """
    if device.type == "cpu":
        return values
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def to_host(values: Tensor) -> NDArray[np.float32]:
    """Returns `values` as an array. The copy from a CUDA device goes through page-locked memory."""
    values = values.detach()
    if values.device.type == "cuda":
        host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        host.copy_(values, non_blocking=True)
        torch.cuda.current_stream(values.device).synchronize()
        values = host
    array: NDArray[np.float32] = values.cpu().contiguous().numpy()
    return array


# Only newer versions of torch have `is_exporting`. Older versions export through modes that this
# module checks too.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)

# Whether torch.func transforms the running function.
_transforms: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", lambda: False
)
