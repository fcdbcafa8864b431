"""A `torch.optim` optimizer for tables: gradients wait for `step()`.

Without a `SparseOptimizer`, each backward pass is a step of the table's optimizer. With it, the
gradients of several backward passes are summed row by row. The program can look at them, unscale
and clip them before one step, as with gradients of parameters.

For each table, one tensor holds the rows that were used, and its `.grad` their gradients. The
tensor is in `param_groups` from the backward pass to the step. So torch functions that work on
parameters and their gradients work on it. The leases of the rows are kept until the step, so a
staleness bound counts each of them as outstanding until then.

Invariant: a table's pending keys are distinct. A second gradient for a table is merged into the
first one, so norms are norms of the sums, as for `Parameter.grad`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, Union, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .caller import runs_inside
from .leaf import Part, apply_step, to_host
from .modules import TableModule
from .sinks import Awaited, Identity, give_back, identity, take_over

if TYPE_CHECKING:
    from .many import AnyLease as Lease, AnyTable as Table


class _Pending:
    """The pending update of a table: distinct keys, their rows with `.grad`, and the leases."""

    def __init__(
        self, table: Table, keys: NDArray[np.uint64], rows: Tensor, gradient: Tensor
    ) -> None:
        self.table = table
        self.keys = keys
        self.leases: list[Lease] = []
        self.rows = _with_gradient(rows, gradient)

    @property
    def gradient(self) -> Tensor:
        """Raises `RuntimeError` if the program has removed the gradient."""
        if self.rows.grad is None:
            raise RuntimeError(
                f"the gradient of table {self.table.name!r} was set to None: drop gradients with zero_grad() "
                "of the SparseOptimizer"
            )
        return self.rows.grad

    def parameters(self) -> list[Tensor]:
        """The rows, for functions that work on parameters. Empty without rows: a tensor without
        values has no infinite norm, so clipping would fail for all tables.
        """
        return [self.rows] if len(self.rows) > 0 else []

    def merge(self, keys: NDArray[np.uint64], rows: Tensor, gradient: Tensor) -> None:
        """Adds a gradient. Its new rows go after or between the pending rows."""
        both = np.concatenate([self.keys, keys])
        distinct, first, inverse = np.unique(both, return_index=True, return_inverse=True)
        places = torch.from_numpy(inverse.reshape(-1)).to(gradient.device)
        # A row has at most two summands, so their order does not change the sum, on any device.
        total = gradient.new_zeros(len(distinct), gradient.shape[1])
        total.index_add_(0, places, torch.cat([self.gradient, gradient]))
        at = torch.from_numpy(first).to(rows.device)
        self.keys = distinct
        self.rows = _with_gradient(torch.cat([self.rows.detach(), rows])[at], total)

    def part(self) -> Part:
        """The argument of `apply_step`."""
        return self.table, self.leases, self.keys, to_host(self.gradient)

    def release(self) -> None:
        for lease in self.leases:
            lease.release()


class SparseOptimizer(torch.optim.Optimizer):
    """`step` and `zero_grad` for the tables of a model, with the semantics of `torch.optim`.

    The tables' own optimizers take the steps. This object takes over tables, not modules: after it
    is made, no backward pass through any module over its tables changes a row; `step()` does. This
    includes modules that are made later, and modules of other models. It is for one training
    thread, or for several that step together.

    A table has at most one `SparseOptimizer`. `detach()` gives the tables back at once. If the
    program drops the object, the tables are given back when Python collects it. So keep it while
    the model trains.

    Args:
        modules: A model or several: the object takes over the tables of all `embank.torch` modules
            in them.
        lr: The learning rate of all tables, which every step passes to them. Default: the learning
            rate of each table.

    Raises:
        ValueError: There is no such module, a table has no optimizer, or a table has another
            `SparseOptimizer`.

    >>> import embank, embank.torch, torch
    >>> bank = embank.Bank("sparse.bank", memory_budget="16MiB")
    >>> words = bank.table(
    ...     "word", dim=2, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros()
    ... )
    >>> model = embank.torch.Embedding(words)
    >>> tables = embank.torch.SparseOptimizer(model)
    >>> schedule = torch.optim.lr_scheduler.StepLR(tables, step_size=1, gamma=0.5)
    >>> for step in range(2):
    ...     tables.zero_grad()
    ...     for part in (torch.tensor([7]), torch.tensor([7, 8])):
    ...         model(part).sum().backward()  # gradients add up
    ...     norm = torch.nn.utils.clip_grad_norm_(tables.parameters(), max_norm=100.0)
    ...     tables.step()
    ...     schedule.step()
    >>> words.peek([7, 8])[:, 0].tolist()
    [-3.0, -1.5]
    >>> bank.close()
    """

    def __init__(
        self, modules: Union[nn.Module, Iterable[nn.Module]], lr: Optional[float] = None
    ) -> None:
        given = [modules] if isinstance(modules, nn.Module) else list(modules)
        own = [of for each in given for of in each.modules() if isinstance(of, TableModule)]
        if not own:
            raise ValueError("no module of embank.torch is among these modules")
        # The table of a frozen module needs no optimizer. This object only watches it, because the
        # program may let the module learn again.
        trained = {identity(of) for each in own if not each.frozen for of in each.tables()}
        tables: dict[Identity, Table] = {}
        watched: dict[Identity, Table] = {}
        groups: list[dict[str, Any]] = []
        for table in (of for module in own for of in module.tables()):
            if identity(table) in tables:
                continue
            rate = table.learning_rate
            if rate is not None:
                tables[identity(table)] = table
                groups.append({"params": [], "lr": rate if lr is None else lr, "table": table.name})
            elif identity(table) in trained:
                raise _without_optimizer(table)
            else:
                watched[identity(table)] = table
        if not tables:
            raise ValueError("these modules are frozen, and none of their tables has an optimizer")
        # Until the groups are set, `add_param_group` accepts the groups of this constructor.
        self._group: dict[Identity, dict[str, Any]] = {}
        super().__init__(groups, {"lr": lr})
        self._tables = list(tables.values())
        self._watched = list(watched.values())
        self._leased: dict[Identity, weakref.WeakKeyDictionary[Awaited, int]] = {
            of: weakref.WeakKeyDictionary() for of in tables
        }
        self._group = {of: self.param_groups[at] for at, of in enumerate(tables)}
        self._pending: dict[Identity, _Pending] = {}
        self._lock = threading.Lock()
        # This call comes last: from here on, a backward pass of another thread may hand over a
        # gradient.
        take_over(self, self._tables, self._watched)

    def parameters(self) -> list[Tensor]:
        """The rows that wait for a step: one float32 tensor `(u, dim)` for each table with such
        rows, with its `.grad`.

        Meant for functions such as `torch.nn.utils.clip_grad_norm_([*model.parameters(),
        *tables.parameters()], 1.0)`. The step uses a `.grad` that was changed in place. It ignores
        changes of the rows themselves.
        """
        with self._lock:
            return [rows for pending in self._pending.values() for rows in pending.parameters()]

    def collect(
        self,
        table: Table,
        lease: Lease,
        keys: NDArray[np.uint64],
        rows: Tensor,
        gradient: Tensor,
    ) -> None:
        """Takes a gradient from the backward pass."""
        at = identity(table)
        if at not in self._group:
            raise _without_optimizer(table)
        with self._lock:
            pending = self._pending.get(at)
            # A parameter that the program has put here stays, so that the step refuses it.
            others = self._others(self._group[at])
            if pending is None:
                pending = self._pending[at] = _Pending(table, keys, rows, gradient)
            else:
                pending.merge(keys, rows, gradient)
            if all(lease is not of for of in pending.leases):
                pending.leases.append(lease)
            self._group[at]["params"] = [*pending.parameters(), *others]

    def check_bound(self, table: Table, keys: NDArray[np.int64]) -> None:
        """Called before a get. Refuses a get that would wait for ever, because its rows are held by
        leases that wait for `step()` or for a backward pass of this thread.
        """
        bound = table.staleness_bound
        at = identity(table)
        with self._lock:
            if at not in self._group:
                raise _without_optimizer(table)
            if bound is None:
                return
            pending = self._pending.get(at)
            waiting = [] if pending is None else list(pending.leases)
            here = threading.get_ident()
            leased = [of.lease for of, thread in self._leased[at].items() if thread == here]
        waiting += [lease for lease in leased if all(lease is not other for other in waiting)]
        waiting = [lease for lease in waiting if lease.held]
        if len(waiting) <= bound:
            return
        wanted = keys.view(np.uint64)
        held = sum(np.isin(wanted, lease.keys).astype(np.int64) for lease in waiting)
        if np.any(held > bound):
            raise RuntimeError(
                f"rows of table {table.name!r} wait for step() after {int(np.max(held))} forward passes, and its "
                f"staleness_bound is {bound}: call step() or zero_grad() first, drop the loss of a forward pass that has "
                "no backward pass (del loss), or set the bound to the number of forward passes a step, less one, or more"
            )

    def leased(self, table: Table, awaited: Awaited) -> None:
        """Called after a get. The reference to the lease is weak, so a graph that is dropped gives
        its lease back.
        """
        with self._lock:
            self._leased[identity(table)][awaited] = threading.get_ident()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:
        """Takes one step with each table that has gradients, at its group's learning rate, and
        drops the gradients.

        After an error it drops the gradients of all tables too, and gives their leases back.

        Raises:
            ValueError: A gradient is NaN or infinite, or a group has a parameter or an option that
                no step uses: no row of any table has changed. Or a row would become infinite: this
                row is unchanged, and all other rows took their step.
            embank.LeaseExpired: The rows were held for longer than the bank's `lease_timeout`: no
                row has changed.
            embank.EmbankError: The store failed. The message names the tables that took their step
                before.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            self._check_groups()
        except ValueError:
            self.zero_grad()
            raise
        waiting = self._take_pending()
        try:
            parts = [pending.part() for pending in waiting]
            for pending in waiting:
                rate = float(self._group[identity(pending.table)]["lr"])
                if rate != pending.table.learning_rate:
                    pending.table.learning_rate = rate
            apply_step(parts)
        finally:
            for pending in waiting:
                pending.release()
        return loss

    def _take_pending(self) -> list[_Pending]:
        """Takes the pending updates out, in the order of the tables."""
        with self._lock:
            for group in self.param_groups:
                group["params"] = self._others(group)
            return [self._pending.pop(of) for of in self._group if of in self._pending]

    def _others(self, group: dict[str, Any]) -> list[Tensor]:
        """Returns the parameters of a group that are no rows. Must be called with the lock held."""
        rows = {id(pending.rows) for pending in self._pending.values()}
        return [param for param in group["params"] if id(param) not in rows]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients that wait for a step, and gives their leases back.

        After it, a backward pass through a graph that was retained (`backward(retain_graph=True)`)
        fails, because its rows are not held any more.
        """
        for pending in self._take_pending():
            pending.release()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises `TypeError`: the groups are those of the tables."""
        if self._group:
            raise TypeError(
                "a SparseOptimizer steps only the tables of its modules: give parameters to an optimizer of torch.optim "
                "beside it; for more tables, call detach() and make SparseOptimizer([model, new_module])"
            )
        super().add_param_group(param_group)

    def _check_groups(self) -> None:
        """Raises `ValueError` if a group has something that no step would use."""
        with self._lock:
            others = [param for group in self.param_groups for param in self._others(group)]
        if others:
            raise ValueError(
                "param_groups of a SparseOptimizer has a parameter that it does not step: give parameters to an optimizer "
                "of torch.optim beside it"
            )
        if [id(group) for group in self.param_groups] != [id(group) for group in self._group.values()]:
            raise ValueError(
                "param_groups of a SparseOptimizer has other groups than those of its tables, which no step would use: "
                "change its groups in place, as in tables.param_groups[0]['lr'] = 0.1"
            )
        for group in self.param_groups:
            found = sorted(_IGNORED.intersection(group))
            if found:
                raise ValueError(
                    f"{found[0]!r} in param_groups would not change the steps of table {group['table']!r}: set it in the "
                    "table's own optimizer, as in table.optimizer = embank.SGD(lr=0.1, weight_decay=1e-4), and remove it "
                    "from the group"
                )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises `TypeError`: a table has at most one `SparseOptimizer`, and it is in this process.
        """
        raise TypeError(
            "a SparseOptimizer can't be copied or pickled, since it owns the steps of its tables: keep its learning "
            "rates with state_dict(), or detach() it and make another one"
        )

    def detach(self) -> None:
        """Gives the tables back: backward passes apply gradients again. Pending gradients are
        dropped.
        """
        give_back(self)
        self.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """The learning rates and the numbers that schedules keep with them. The optimizer state of
        rows is in the tables.

        Raises:
            RuntimeError: `get_state_dict` or `get_optimizer_state_dict` of
                `torch.distributed.checkpoint` asks for it.
        """
        if runs_inside("torch.distributed.checkpoint.state_dict"):
            # These functions name the parameters of each group, and restore no group without a
            # parameter. A load fails, or loses the learning rates.
            raise RuntimeError(
                "get_state_dict and set_state_dict of torch.distributed.checkpoint can't restore a SparseOptimizer: give "
                "them the other optimizers, and save this one under a name of its own, "
                "dcp.save({..., 'tables': tables.state_dict()})"
            )
        state = super().state_dict()
        for group in state["param_groups"]:
            group["params"] = []
        return state

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Restores the learning rates, by the names of the tables.

        Args:
            state_dict: The result of `state_dict` for these tables, in any order.
            strict: Whether other tables are an error. If not, tables that `state_dict` lacks keep
                their learning rate.

        Raises:
            ValueError: `strict` is true, and `state_dict` has other tables. Or it is the state of
                another kind of optimizer.
        """
        state_dict = state_dict.copy()
        for before in self._hooks("pre"):
            state_dict = before(self, state_dict) or state_dict
        saved = state_dict["param_groups"]
        if any("table" not in of for of in saved):
            raise ValueError("the state dict is of another optimizer: give it SparseOptimizer.state_dict()")
        names = [of["table"] for of in saved]
        own = [group["table"] for group in self.param_groups]
        if strict and sorted(names) != sorted(own):
            raise ValueError(f"the state dict is of tables {names}, this optimizer of {own}")
        for group, at in zip(self.param_groups, group_places(own, names)):
            if at is not None:
                group.update({name: value for name, value in saved[at].items() if name != "params"})
        for after in self._hooks("post"):
            after(self)

    def _hooks(self, when: str) -> list[Callable[..., Any]]:
        """The hooks of `load_state_dict`. PyTorch 2.1 has none."""
        return list(getattr(self, f"_optimizer_load_state_dict_{when}_hooks", {}).values())


# Options of the optimizers of torch, which the steps of tables do not read from a group.
_IGNORED = {
    "alpha", "amsgrad", "betas", "centered", "dampening", "eps", "etas", "initial_accumulator_value", "lambd",
    "lr_decay", "maximize", "momentum", "momentum_decay", "nesterov", "rho", "weight_decay",
}  # fmt: skip


def group_places(own: Sequence[str], saved: Sequence[str]) -> list[Optional[int]]:
    """Returns for each name in `own` its place in `saved`. None for a name that `saved` lacks.

    Tables of two banks may have one name: the first in `own` is paired with the first in `saved`.
    """
    places: dict[str, list[int]] = {}
    for at, name in enumerate(saved):
        places.setdefault(name, []).append(at)
    return [places[name].pop(0) if places.get(name) else None for name in own]


def _without_optimizer(table: Table) -> ValueError:
    return ValueError(
        f"table {table.name!r} has no optimizer: give Bank.table one, such as "
        "optimizer=embank.Adagrad(lr=0.01)"
    )


def _with_gradient(rows: Tensor, gradient: Tensor) -> Tensor:
    rows = rows.detach().requires_grad_()
    rows.grad = gradient
    return rows
