"""Notices that Ray Data waits for ever because actors have all processors.

With as many actors as processors, the stage before the actors never runs, and Ray Data prints no
message (ray#44687). A function that is never called can't notice that. But Ray sends the function
to each actor when the actor starts, so a thread of the actor can see that no part comes.
"""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

_WAIT_SECONDS = 30.0
"""How long an actor waits for its first part before it looks at the processors. Longer than a read
stage takes to make its first block, and short beside a job.
"""

first_part = threading.Event()
"""Set when the first part comes to this process."""


def watch() -> None:
    """Called when the pickle of a function for parts is read. In an actor of Ray, starts a thread
    that warns if no part comes while no processor is free.
    """
    ray = sys.modules.get("ray")
    if ray is None or first_part.is_set() or not ray.is_initialized():
        return
    if ray.get_runtime_context().get_actor_id() is not None:
        threading.Thread(target=_wait, args=(ray,), name="embank-ray-hang", daemon=True).start()


def _wait(ray: Any) -> None:
    if not first_part.wait(_WAIT_SECONDS):
        warn_if_full(ray)


def warn_if_full(ray: Any) -> None:
    """Warns unless a processor of the cluster is free."""
    if ray.available_resources().get("CPU", 0.0) >= 1.0:
        return
    warnings.warn(
        f"no part came to this actor of Ray for {_WAIT_SECONDS:.0f} s, and no processor is free: with as many "
        "actors as processors, the stage before the actors may never run, and Ray Data then waits for ever without a "
        "message (ray#44687); give ActorPoolStrategy a smaller size, or map_batches a smaller num_cpus",
        RuntimeWarning,
        stacklevel=2,
    )
