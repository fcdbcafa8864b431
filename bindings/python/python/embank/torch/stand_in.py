"""A parameter that stands in for the rows of a module.

Rows are in a table, so they are no parameter. But a program that freezes a part of a model sets
`requires_grad` of its parameters and calls nothing else: `requires_grad_(False)` of the model,
Lightning's `BaseFinetuning`, a loop over `parameters()`. So each module over tables has one
parameter with one zero, `_stand_in`. Its `requires_grad` says whether the rows learn. Its dtype is
the dtype of the output, because casts of a model change the dtype of parameters. Its value has no
effect.

Programs expect of each parameter what they find at all others, so the stand-in is like them. In
training it is an input of the module's graph, and its gradient is zero: `torch.autograd.grad`
refuses a parameter without a gradient, and `DistributedDataParallel` waits for each one. It has an
element, because an empty tensor has no largest value, so clipping by the infinite norm would fail.
State dicts have it, because `torch.distributed.checkpoint` looks each parameter up there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from typing_extensions import Self

from .caller import warn_caller

if TYPE_CHECKING:
    from .many import AnyTable as Table

_NAME = "_stand_in"


class SharedRowsWarning(UserWarning):
    """A deep copy of a model shares the rows of its tables: what one of them learns, both have."""


class StandInModule(nn.Module):
    """A module whose rows learn while its stand-in requires a gradient."""

    _stand_in: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        # The dtype and the device are set here, because the defaults of torch may differ.
        self._stand_in = nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))

    @property
    def frozen(self) -> bool:
        """Whether forward passes always peek."""
        return not self._stand_in.requires_grad

    def freeze(self, frozen: bool = True) -> Self:
        """Makes later forward passes peek, so that the rows never learn. `freeze(False)` lets them
        learn again.

        `requires_grad_(False)` and `requires_grad_()` of the module, or of a model around it, do
        the same.
        """
        self._stand_in.requires_grad_(not frozen)
        return self

    def tables(self) -> list[Table]:
        """The tables, each once."""
        raise NotImplementedError

    def _linked(self, rows: Tensor) -> Tensor:
        """Returns `rows` in the module's dtype. If they learn, the stand-in is in their graph."""
        rows = rows.to(self._stand_in.dtype)
        if not (rows.requires_grad and self._stand_in.requires_grad):
            return rows
        return _link(rows, self._stand_in)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copies the module, and shares its tables. Warns once in a copy of a whole model."""
        # Each copy has a `memo` of its own. The entry says that the copied class is the class.
        if id(SharedRowsWarning) not in memo and self._learns():
            memo[id(SharedRowsWarning)] = SharedRowsWarning
            table = self.tables()[0]
            warn_caller(
                f"this copy shares the rows of the model's tables, such as table {table.name!r} of {table.bank.path}: "
                "what one model learns, both have. To keep the best rows, call bank.pin(bank.checkpoint()), and go back "
                "with embank.torch.roll_back; for an average of rows (EMA, SWA) or a target network, keep a second "
                "table; see 'Copies of a model' in docs/python.md. To share rows on purpose, ignore SharedRowsWarning",
                SharedRowsWarning,
            )
        memo[id(self)] = copied = type(self).__new__(type(self))
        set_state: Callable[[Any], None] = copied.__setstate__
        set_state(copy.deepcopy(self.__reduce_ex__(4)[2], memo))
        return copied

    def _learns(self) -> bool:
        """Whether a forward pass can make rows learn, now or after `train()`."""
        tables = [table for table in self.tables() if not table.bank.closed]
        return not self.frozen and any(table.learning_rate is not None for table in tables)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        # State dicts of older versions have no stand-in.
        if prefix + _NAME in missing_keys:
            missing_keys.remove(prefix + _NAME)


class _Linked(torch.autograd.Function):
    """Returns `rows`, and makes the stand-in an input of their graph, with a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, stand_in: Tensor) -> Tensor:
        ctx.stand_in = stand_in
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.zeros_like(ctx.stand_in)


class _LinkedOutput(torch.autograd.Function):
    """As `_Linked`, for rows that are no leaf: returns the tensor itself. It is no view, so a model
    may change it in place."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, stand_in: Tensor) -> Tensor:
        ctx.stand_in = stand_in
        ctx.mark_dirty(rows)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.zeros_like(ctx.stand_in)


def _linked(rows: Tensor, stand_in: Tensor) -> Tensor:
    apply: Callable[[Tensor, Tensor], Tensor] = _Linked.apply
    return apply(rows, stand_in)


def _linked_output(rows: Tensor, stand_in: Tensor) -> Tensor:
    apply: Callable[[Tensor, Tensor], Tensor] = _LinkedOutput.apply
    return apply(rows, stand_in)


# `torch.compile` does not look into these calls. `torch.compiler.disable` does the same, but
# imports the compiler at once.
_link: Callable[[Tensor, Tensor], Tensor] = _disable_dynamo(_linked)
link_output: Callable[[Tensor, Tensor], Tensor] = _disable_dynamo(_linked_output)


def is_stand_in(name: str) -> bool:
    """Whether `named_parameters` gives this name to a stand-in."""
    return name.rpartition(".")[2] == _NAME
