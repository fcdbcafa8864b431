"""Tests of `Pipelined` over shards."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
from sharded_banks import error_of, items, opened  # noqa: E402
import sharded_models as models  # noqa: E402

from embank.torch import Embedding, Pipelined, SparseOptimizer  # noqa: E402

STEPS = 40


def test_every_depth_trains_as_none(tmp_path: Path) -> None:
    exports = []
    for at, options in enumerate([{}, {"depth": 1, "bound": 2}, {"depth": 3, "bound": 3}]):
        (tmp_path / str(at)).mkdir()
        found = ranks.run(
            2, tmp_path, models.train_on_rank, tmp_path / str(at), "dlrm", "adagrad", STEPS, options
        )
        exports.append(([losses for losses, _ in found], models.joined([of for _, of in found])))
    for losses, export in exports[1:]:
        assert losses == exports[0][0]
        assert models.differences(export, exports[0][1]) == []


def uneven(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet") as bank:
        table = items(bank, staleness_bound=4)
        model = Embedding(table)
        found: list[Any] = []

        def failing() -> Any:
            yield torch.tensor([1])
            yield torch.tensor([1])
            if rank == 1:
                raise OSError("the source fails")
            yield torch.tensor([1])

        def trained(source: Any, depth: int, stop: int = 99) -> int:
            count = 0
            for batch in Pipelined(source, lambda batch: {table: batch}, depth=depth):
                model(batch).sum().backward()
                count += 1
                if count == stop:
                    break
            return count

        batches = [torch.tensor([1, 2])] * (3 + 2 * rank)
        found += [trained(batches, 1), trained(batches, 3), trained(batches, 2, stop=2)]
        # The rows of batches that were not trained are free, and calls go on.
        model(torch.tensor([5])).sum().backward()
        found.append(table.local.outstanding_leases())
        found.append(error_of(lambda: trained(failing(), 1)))
        sparse = SparseOptimizer(model)
        for _ in Pipelined(batches, lambda batch: {table: batch}, depth=1):
            model(torch.tensor([2])).sum().backward()
            model(torch.tensor([1, 2])).sum().backward()
            sparse.step()
        sparse.detach()
        found.append(table.peek([1, 2, 5])[:, 0].tolist())
        # A skipped batch, on both ranks.
        for at, batch in enumerate(Pipelined(batches, lambda batch: {table: batch}, depth=2)):
            if at != 1:
                model(batch).sum().backward()
        found.append(table.peek([1])[:, 0].tolist())
        # Evaluation in between reads the rows of now.
        with torch.no_grad():
            for batch in Pipelined(batches, lambda batch: {table: batch}, depth=2):
                model(batch)
        return found


def test_ranks_end_together(tmp_path: Path) -> None:
    for rank, found in enumerate(ranks.run(2, tmp_path, uneven, tmp_path)):
        assert found[:4] == [3, 3, 2, []]
        assert found[4] == ["no error", "OSError: the source fails"][rank]
        # 8 passes and 2 of the failing source (key 1), and 3 steps of the optimizer, in which key 2
        # is in two passes.
        assert found[5] == [-13.0, -14.0, -1.0]
        assert found[6] == [-15.0]


def refused(rank: int, directory: Path) -> list[str]:
    with opened(directory / "fleet") as bank:
        table = items(bank, staleness_bound=1)
        admitted = bank.table("admitted", dim=2, admit_after_gets=2)
        batches = [torch.tensor([1])] * 4

        def run(of: Any, depth: int) -> str:
            model = Embedding(of)
            return error_of(
                lambda: [
                    model(batch).sum().backward()
                    for batch in Pipelined(batches, lambda batch: {of: batch}, depth=depth)
                ]
            )

        return [run(table, 3), run(admitted, 1), run(table, 2)]


def test_what_can_not_work_is_named(tmp_path: Path) -> None:
    for found in ranks.run(2, tmp_path, refused, tmp_path):
        assert "staleness_bound of 1" in found[0] and "admission" in found[1]
        assert found[2] == "no error"


def bounded(rank: int, directory: Path) -> tuple[int, list[Any]]:
    with opened(directory / "fleet") as bank:
        table = items(bank, staleness_bound=2)
        model = Embedding(table)
        most = 0
        batches = [torch.tensor([1, 2, 3 + rank])] * 12
        for batch in Pipelined(batches, lambda batch: {table: batch}, depth=3):
            rows = model(batch)
            most = max([most, *(table.local.outstanding(key) or 0 for key in range(6))])
            rows.sum().backward()
        model.eval()(torch.tensor([1]))
        return most, table.local.outstanding_leases()


def test_gets_ahead_stay_inside_of_the_bound(tmp_path: Path) -> None:
    found = ranks.run(2, tmp_path, bounded, tmp_path)
    # One rank owns key 1, which every step uses: at most k + 1 global steps hold it.
    assert max(most for most, _ in found) == 3
    assert [leases for _, leases in found] == [[], []]


def skip_a_backward_pass(rank: int, directory: Path, how: str) -> list[Any]:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, rows: Any) -> Any:
            return rows.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            raise ArithmeticError("planted")

    with opened(directory / "fleet") as bank:
        table = items(bank, staleness_bound=4)
        model = Embedding(table)
        batches = [torch.tensor([at]) for at in range(6)]
        for at, batch in enumerate(Pipelined(batches, lambda batch: {table: batch}, depth=2)):
            out = model(batch)
            if rank == 1 and at == 2:
                if how == "fails":
                    # The first node that runs fails, and the node of the rows waits in the queue.
                    loss = Fails.apply(out).sum() + out.sum()
                    assert error_of(loss.backward) == "ArithmeticError: planted"
                    del loss
                del out
                continue
            out.sum().backward()
        return [table.peek(range(6))[:, 0].tolist(), bank.closed]


@pytest.mark.parametrize("how", ["skips", "fails"])
def test_a_rank_without_a_backward_pass_goes_on(how: str, tmp_path: Path) -> None:
    for found in ranks.run(2, tmp_path, skip_a_backward_pass, tmp_path, how):
        assert found == [[-1.0, -1.0, -0.5, -1.0, -1.0, -1.0], False]


def lose_a_peer(rank: int, directory: Path) -> list[Any]:
    bank = opened(directory / "fleet")
    table = items(bank, staleness_bound=4)
    model = Embedding(table)
    seen = []

    def batches() -> Any:
        for at in range(6):
            if rank == 1 and at == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            yield torch.tensor([at])

    def train() -> None:
        for batch in Pipelined(batches(), lambda batch: {table: batch}, depth=2):
            seen.append(int(batch))
            model(batch).sum().backward()

    return [error_of(train), seen]


def test_a_lost_peer_is_named_at_the_draw(tmp_path: Path) -> None:
    found, of_lost = ranks.run(2, tmp_path, lose_a_peer, tmp_path)
    assert of_lost is None
    # Rank 0 has announced batch 4 in the same call that hands batch 2 out.
    assert found[0].startswith("PeerLost") and found[1] == [0, 1], found


def fail_at_the_end(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet") as bank:
        table = items(bank, staleness_bound=4)
        own = [key for key in range(20) if len(table.request([key]).of_rank[0])]
        table.put(own[:1], np.full((1, 2), 3e38, dtype=np.float32))
        model = Embedding(table)
        # Rank 1 has one batch more. The shard of rank 0 can't take the step of the second batch.
        batches = [torch.tensor(own[1:2]), torch.tensor(own[:1]), *[torch.tensor(own[2:3])] * (1 + rank)]
        seen = 0

        def train() -> None:
            nonlocal seen
            for batch in Pipelined(batches, lambda batch: {table: batch}, depth=1):
                seen += 1
                (model(batch) * (-3e38 if seen == 2 else 1.0)).sum().backward()

        return [error_of(train), seen, table.peek(own[2:3])[0, 0], bank.closed]


def test_an_error_of_all_ranks_at_the_end_of_data(tmp_path: Path) -> None:
    for error, seen, value, closed in ranks.run(2, tmp_path, fail_at_the_end, tmp_path):
        assert error.startswith("ValueError") and "is -inf" in error, error
        assert (seen, value, closed) == (3, -1.0, False)


def optimizer_and_bound(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet") as bank:
        table = items(bank, staleness_bound=0)
        model = Embedding(table)
        sparse = SparseOptimizer(model)
        batches = [torch.tensor([1]), torch.tensor([1 + 5 * (1 - rank)])]

        def train() -> None:
            for batch in Pipelined(batches, lambda batch: {table: batch}, depth=1):
                model(batch).sum().backward()

        error = error_of(train)
        sparse.step()
        return [error, table.peek([1])[0, 0], bank.closed]


def test_the_owners_refuse_over_the_bound(tmp_path: Path) -> None:
    # Rank 1 alone uses key 1 twice before the step.
    for error, value, closed in ranks.run(2, tmp_path, optimizer_and_bound, tmp_path):
        assert error.startswith("SelfBlocked") and not closed, error
        assert value == -1.0
