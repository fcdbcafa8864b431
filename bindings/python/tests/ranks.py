"""Runs a function on several ranks, each in a process of its own.

A fork server imports torch once, so a rank starts in a fraction of a second. The ranks meet in a
file, so no test needs a port.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable

CONTEXT = multiprocessing.get_context("forkserver")
# A module that is not installed is left out.
FRAMEWORKS = ["lightning", "transformers.trainer"]
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.nn.parallel", "embank.torch.distributed", *FRAMEWORKS]
)


LIMIT = 300.0
"""Seconds without an answer of any rank, after which a test fails in place of hanging."""


class Failed(AssertionError):
    """A rank has raised an error. The text has its traceback."""


def run(ranks: int, directory: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Calls `function(rank, *arguments)` on each rank in a process group, and returns the results.

    A rank that ends without a result, because it killed itself, has the result None. A rank that
    ends otherwise, or not within `LIMIT` seconds, is an error.
    """
    meeting = directory / f"meeting-{os.urandom(8).hex()}"
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        CONTEXT.Process(
            target=_rank, args=(rank, ranks, str(meeting), sender, function, arguments), daemon=True
        )
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()
    results: list[Any] = [None] * ranks
    failures: list[str] = []
    waiting = {receiver: rank for rank, (receiver, _) in enumerate(pipes)}
    stopped: set[int] = set()
    while waiting:
        answered = wait(list(waiting), LIMIT)
        if not answered:
            failures.append(f"ranks {sorted(waiting.values())} have not answered in {LIMIT} seconds")
            stopped.update(waiting.values())
            break
        for receiver in answered:
            assert isinstance(receiver, Connection)
            rank = waiting[receiver]
            try:
                kind, value = receiver.recv()
            except EOFError:
                del waiting[receiver]
                continue
            if kind == "stops":
                stopped.add(rank)
            elif kind == "error":
                failures.append(f"rank {rank}:\n{value}")
            else:
                results[rank] = value
        # A stopped rank has no end of its own.
        if waiting and set(waiting.values()) <= stopped:
            break
    for rank, process in enumerate(processes):
        if rank in stopped:
            process.kill()
        process.join(LIMIT)
        if process.exitcode not in (0, -signal.SIGKILL):
            failures.append(f"rank {rank} has ended with exit code {process.exitcode}")
            process.kill()
    if failures:
        raise Failed("\n".join(failures))
    return results


_sender: Connection


def stop() -> None:
    """Stops this rank, as `kill -STOP` does. `run` kills it when the other ranks have ended."""
    _sender.send(("stops", None))
    os.kill(os.getpid(), signal.SIGSTOP)


def _rank(
    rank: int,
    ranks: int,
    meeting: str,
    sender: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    global _sender
    import torch
    import torch.distributed as dist

    _sender = sender
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    try:
        sender.send(("result", function(rank, *arguments)))
    except BaseException:
        sender.send(("error", traceback.format_exc()))
    # A live model in DistributedDataParallel would abort the process at its end.
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
    sender.close()
