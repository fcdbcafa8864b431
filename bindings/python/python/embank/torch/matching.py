"""Restores each part of a run from a checkpoint, by name.

A model changes between two runs: features are added, removed and reordered. torch stores the state
of an optimizer by the numbers of its parameters, and a schedule stores a number for each group.
With another order, a parameter would get the momentum of another parameter, without an error if the
shapes agree. So `save` stores the name of each parameter of an optimizer: `part.name`, with the
name from `named_parameters` of the part. This module puts states into the order of the objects that
get them. `Differences` collects the names without a counterpart.

A checkpoint of an older version has no names. Its states are restored by numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from .modules import TableModule
from .optimizer import SparseOptimizer, group_places
from .reference import EXTRA_STATE, decoded, taking_checkpoint
from .stand_in import is_stand_in

Names = list[list[Optional[str]]]
# For each group of an optimizer: the number of the saved group whose options it takes.
Places = list[Optional[int]]

# The fields that torch's learning rate schedulers store for each group of their optimizer.
_PER_GROUP = (
    "base_lrs", "_last_lr", "max_lrs", "min_lrs", "lr_lambdas", "base_momentums", "max_momentums",
)  # fmt: skip


class Differences(NamedTuple):
    """Names without a counterpart: names of parts, and of things in parts, such as
    `model.bags.features.user`.
    """

    added: list[str]
    removed: list[str]
    changed: list[str]

    def __bool__(self) -> bool:
        return any(self)


def parameter_names(parts: Mapping[str, Any]) -> dict[str, Names]:
    """Returns the names of the parameters of each group, for each part that is an optimizer of
    parameters. The name of a parameter that no part has is None.
    """
    name_of = _name_of_parameter(parts)
    return {
        part: [[name_of.get(id(of)) for of in group["params"]] for group in optimizer.param_groups]
        for part, optimizer in parts.items()
        if _is_dense(optimizer)
    }


def load(
    parts: Mapping[str, Any],
    states: Mapping[str, Any],
    names: Mapping[str, Names],
    strict: bool,
) -> Differences:
    """Loads the state of each part that `states` has.

    Args:
        parts: The parts of the model, by name.
        states: The checkpoint's state of each part, by the part's name.
        names: The result of `parameter_names` when the checkpoint was saved.
        strict: Whether a difference within a part is an error.

    Raises:
        ValueError: `strict` is true, and an optimizer has other parameters or tables. Nothing was
            loaded.
        RuntimeError: `strict` is true, and a module has other keys or shapes.
    """
    found = Differences([], [], [])
    own_names = parameter_names(parts)
    saved_shapes = _shapes(states)
    ready: dict[str, Any] = {}
    places: dict[int, Places] = {}
    for name, part in parts.items():
        if name not in states:
            continue
        state = states[name]
        if isinstance(part, SparseOptimizer):
            places[id(part)] = _tables(name, part, state, found)
        elif _is_dense(part):
            dense = _Dense(name, part, own_names[name], names.get(name), saved_shapes)
            state, places[id(part)] = dense.fitted(state, found, strict)
        if state is not None:
            ready[name] = state
    if strict and found:
        raise ValueError(
            f"optimizers have other parameters or tables than the checkpoint; added: {found.added}, removed: "
            f"{found.removed}: give resume strict=False to restore the rest"
        )
    for name, state in ready.items():
        part = parts[name]
        if isinstance(part, nn.Module) and not strict:
            _load_module(name, part, state, found)
        elif isinstance(part, SparseOptimizer):
            part.load_state_dict(state, strict=strict)
        else:
            of = places.get(id(getattr(part, "optimizer", None)))
            part.load_state_dict(state if of is None else _schedule_state(part, state, of))
    return found


def _is_dense(part: Any) -> bool:
    return isinstance(part, torch.optim.Optimizer) and not isinstance(part, SparseOptimizer)


def _name_of_parameter(parts: Mapping[str, Any]) -> dict[int, str]:
    """Returns the name of each parameter by its id. If two parts have a parameter, the part whose
    name sorts first names it.
    """
    found: dict[int, str] = {}
    for part in sorted(parts):
        if isinstance(parts[part], nn.Module):
            for name, of in parts[part].named_parameters():
                found.setdefault(id(of), f"{part}.{name}")
    return found


def _shapes(states: Mapping[str, Any]) -> dict[str, torch.Size]:
    """Returns the shape of each tensor in the parts' states, by the name of `_name_of_parameter`.
    """
    return {
        f"{part}.{key}": of.shape
        for part, state in states.items()
        if isinstance(state, Mapping)
        for key, of in state.items()
        if isinstance(of, Tensor)
    }


def _tables(name: str, part: SparseOptimizer, state: Any, found: Differences) -> Places:
    saved = [of["table"] for of in state["param_groups"]]
    own = [of["table"] for of in part.param_groups]
    places = group_places(own, saved)
    taken = set(places)
    found.added.extend(f"{name}.tables.{of}" for of, at in zip(own, places) if at is None)
    found.removed.extend(f"{name}.tables.{of}" for at, of in enumerate(saved) if at not in taken)
    return places


class _Dense(NamedTuple):
    """An optimizer of parameters, with the present names and the names in the checkpoint."""

    part: str
    optimizer: torch.optim.Optimizer
    own: Names
    saved: Optional[Names]
    saved_shapes: Mapping[str, torch.Size]

    def fitted(self, state: Any, found: Differences, strict: bool) -> tuple[Any, Places]:
        """Returns the state in the order of this optimizer's parameters. None if the names do not
        identify them.
        """
        groups = state["param_groups"]
        as_saved: Places = list(range(len(groups)))
        own, saved = _distinct(self.own), None if self.saved is None else _distinct(self.saved)
        if own is None or saved is None:
            counts = [len(group["params"]) for group in groups]
            if strict or counts == [len(group) for group in self.own]:
                return state, as_saved
            found.changed.append(self.part)
            return None, as_saved
        # A state of a stand-in has no effect, so it may be missing.
        added = (name for name in own if name not in saved and not is_stand_in(name))
        removed = (name for name in saved if name not in own and not is_stand_in(name))
        found.added.extend(f"{self.part}.{name}" for name in added)
        found.removed.extend(f"{self.part}.{name}" for name in removed)
        if self.own == self.saved and not self._reshaped():
            return state, as_saved
        return self._in_order(state, saved)

    def _reshaped(self) -> set[str]:
        """Returns the parameters whose shape has changed. The optimizer's state of them does not
        fit any more.
        """
        found = set()
        for group, names in zip(self.optimizer.param_groups, self.own):
            for of, name in zip(group["params"], names):
                shape = None if name is None else self.saved_shapes.get(name)
                if name is not None and shape is not None and not is_lazy(of) and shape != of.shape:
                    found.add(name)
        return found

    def _in_order(self, state: Any, saved: dict[str, tuple[int, int]]) -> tuple[Any, Places]:
        reshaped = self._reshaped()
        places: Places = []
        groups, states = [], {}
        for own_group, names in zip(self.optimizer.state_dict()["param_groups"], self.own):
            known = [(number, name) for number, name in zip(own_group["params"], names) if name in saved]
            votes = Counter(saved[str(name)][0] for _, name in known)
            place = votes.most_common(1)[0][0] if votes else None
            places.append(place)
            group = dict(own_group)
            if place is not None:
                options = state["param_groups"][place]
                group.update({key: of for key, of in options.items() if key not in ("params", "param_names")})
            groups.append(group)
            for number, name in known:
                at, index = saved[str(name)]
                old = state["param_groups"][at]["params"][index]
                if old in state["state"] and name not in reshaped:
                    states[number] = state["state"][old]
        return {**state, "state": states, "param_groups": groups}, places


def _distinct(names: Names) -> Optional[dict[str, tuple[int, int]]]:
    """Returns group and place of each name. None if a parameter has no name."""
    found = {}
    for group, of_group in enumerate(names):
        for at, name in enumerate(of_group):
            if name is None:
                return None
            found[name] = (group, at)
    return found


def _load_module(part: str, module: nn.Module, state: Any, found: Differences) -> None:
    """Loads what fits by name and shape."""
    with taking_checkpoint():
        own = module.state_dict()
    changed = {
        key
        for key, of in state.items()
        if not key.endswith(EXTRA_STATE)
        and isinstance(of, Tensor)
        and isinstance(own.get(key), Tensor)
        and not is_lazy(own[key])
        and own[key].shape != of.shape
    }
    result = module.load_state_dict(
        {key: of for key, of in state.items() if key not in changed}, strict=False
    )
    missing = [name for key in result.missing_keys for name in _named(key, module)]
    unexpected = [name for key in result.unexpected_keys for name in _named(key, state.get(key))]
    # The feature is known, but has another table.
    changed |= {name for name in missing if name in unexpected}
    found.added.extend(f"{part}.{name}" for name in missing if name not in changed)
    found.removed.extend(f"{part}.{name}" for name in unexpected if name not in changed)
    found.changed.extend(f"{part}.{name}" for name in sorted(changed))


def _named(key: str, of: Union[nn.Module, Any]) -> list[str]:
    """Returns `key`. If it is the extra state of tables, returns a name for each table. Returns no
    name for a stand-in, whose value has no effect.

    Args:
        key: A key of a state dict.
        of: The module that has the key, or its state.
    """
    if is_stand_in(key):
        return []
    if not key.endswith(EXTRA_STATE):
        return [key]
    prefix = key[: -len(EXTRA_STATE)]
    if isinstance(of, nn.Module):
        module = of.get_submodule(prefix.rstrip("."))
        names = [table.name for table in module.tables()] if isinstance(module, TableModule) else []
    else:
        names = [table["name"] for table in (decoded(of) or {}).get("tables", [])]
    return [f"{prefix}tables.{name}" for name in names] or [key]


def _schedule_state(part: Any, state: Any, places: Places) -> Any:
    """The state of a schedule, with its lists for groups in the present order of its optimizer's
    groups. The state of a part that is not a schedule is returned unchanged.
    """
    if not isinstance(part, (LRScheduler, ReduceLROnPlateau)):
        return state
    found = dict(state)
    for key in _PER_GROUP:
        saved, own = state.get(key), getattr(part, key, None)
        if not isinstance(saved, list) or not isinstance(own, (list, tuple)) or len(own) != len(places):
            continue
        # The values of groups without a saved group. `lr_lambdas` holds the states of a schedule's
        # functions, and None leaves a function unchanged.
        fresh: Any = [None] * len(places) if key == "lr_lambdas" else own
        found[key] = [
            fresh[at] if place is None or place >= len(saved) else saved[place]
            for at, place in enumerate(places)
        ]
    inner = getattr(part, "_schedulers", None)
    if inner is not None:
        found["_schedulers"] = [
            _schedule_state(of, inner_state, places)
            for of, inner_state in zip(inner, state["_schedulers"])
        ]
    return found
