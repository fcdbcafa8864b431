"""Warnings that point at the program's own line.

torch calls this package from deep inside: a state dict by recursion over modules, a hook by
autograd. A warning that names a line of torch does not help the user. Python would also show it
only once, because it shows a warning only once for each line.
"""

from __future__ import annotations

import sys
import warnings

# `copy` is between a program and the copies of modules.
_INNER = ("torch", "embank", "copy")


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning at the innermost line outside of torch and this package."""
    level = 2
    frame = sys._getframe(1)
    # The loop ends because every stack has a first frame.
    while frame.f_back is not None and _is_inner(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)


def runs_inside(module: str) -> bool:
    """Whether a function of this module is on the stack of the caller."""
    frame = sys._getframe(1)
    # The loop ends because every stack has a first frame.
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == module:
            return True
    return False


def _is_inner(module: str) -> bool:
    return module.partition(".")[0] in _INNER
