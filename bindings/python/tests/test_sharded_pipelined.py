"""Tests of `Pipelined` over shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    assert max(most for most, _ in found) <= 3
    assert [leases for _, leases in found] == [[], []]
