"""Tests of checkpoints of all shards, and of the states that name them."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
from sharded_banks import error_of, items, opened  # noqa: E402
import sharded_models as models  # noqa: E402
from test_serve import command  # noqa: E402

import embank  # noqa: E402
import embank.torch  # noqa: E402
from embank.torch.distributed import SetName, ShardedTable, set_of  # noqa: E402

KEYS = np.arange(40)


def write(table: ShardedTable, value: float) -> None:
    table.put(KEYS, np.full((len(KEYS), 2), value, dtype=np.float32))


def values(table: ShardedTable) -> list[float]:
    return sorted(set(table.peek(KEYS)[:, 0].tolist()))


def directory_of(directory: Path, rank: int, swapped: bool) -> Path:
    return directory / str(1 - rank if swapped else rank)


def take_sets(rank: int, directory: Path, swapped: bool) -> list[Any]:
    """Takes two sets, and changes rows after them."""
    with opened(directory_of(directory, rank, swapped)) as bank:
        table = items(bank)
        found: list[Any] = [bank.recovered, values(table)]
        numbers = []
        for value in (1.0, 2.0):
            write(table, value)
            numbers.append(bank.checkpoint(f"rank {rank}, {value}".encode()))
        write(table, 3.0)
        return [*found, numbers, [of.number for of in bank.sets()], bank.last_checkpoint]


def open_again(rank: int, directory: Path, swapped: bool) -> list[Any]:
    with opened(directory_of(directory, rank, swapped)) as bank:
        assert bank.recovered is not None
        changed = bank.changed_since_checkpoint
        return [bank.recovered.number, bank.recovered.blob, values(items(bank)), bank.shard, changed]


def test_an_opening_is_at_the_last_set(tmp_path: Path) -> None:
    for found in ranks.run(2, tmp_path, take_sets, tmp_path, False):
        recovered, first, numbers, kept, last = found
        assert recovered is None and first == [0.0]
        assert numbers[1] == numbers[0] + 1 and kept == numbers and last == numbers[1]
    for swapped in (False, True):
        for rank, found in enumerate(ranks.run(2, tmp_path, open_again, tmp_path, swapped)):
            # The bytes go with the rank, not with the shard.
            shard = 1 - rank if swapped else rank
            assert found == [last, f"rank {rank}, 2.0".encode(), [2.0], shard, False]


def die_in_a_set(rank: int, directory: Path, moment: str) -> None:
    bank = opened(directory)
    table = items(bank)
    write(table, 1.0)
    bank.checkpoint(b"first")
    write(table, 2.0)
    shard = bank._sets.shard

    class Dies:
        """Ends the process before or after a call of one shard."""

        def __getattr__(self, name: str) -> Any:
            inner = getattr(shard, name)
            if rank == 0 or not moment.endswith(name):
                return inner

            def call(*arguments: Any) -> Any:
                if moment.startswith("before"):
                    os.kill(os.getpid(), signal.SIGKILL)
                inner(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)

            return call

    bank._sets.shard = Dies()  # type: ignore[assignment]
    text = error_of(lambda: bank.checkpoint(b"second"))
    assert rank == 0 and text.startswith("PeerLost"), text


def state_after(rank: int, directory: Path) -> tuple[list[float], bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bank = opened(directory)
    with bank:
        assert bank.recovered is not None
        return values(items(bank)), bank.recovered.blob


@pytest.mark.parametrize(
    "moment, expected",
    [
        ("before take", 1.0),
        ("after take", 1.0),
        # Rank 0 has written its record, and both shards have their checkpoints.
        ("before commit", 2.0),
        ("after commit", 2.0),
    ],
)
def test_a_rank_that_dies_leaves_all_shards_at_one_set(
    moment: str, expected: float, tmp_path: Path
) -> None:
    assert ranks.run(2, tmp_path, die_in_a_set, tmp_path / "fleet", moment) == [None, None]
    found = ranks.run(2, tmp_path, state_after, tmp_path / "fleet")
    # Rank 0 may not have written its record yet when rank 1 dies before its own one.
    allowed = [[expected], [1.0]] if moment == "before commit" else [[expected]]
    assert found[0][0] in allowed
    assert found[1] == found[0]
    assert found[0][1] == (b"second" if found[0][0] == [2.0] else b"first")


def open_with_errors(rank: int, directory: Path) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = error_of(lambda: opened(directory / str(rank)))
    # No shard is left open.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bank = opened(directory / str(rank))
    with bank:
        return [error, values(items(bank))]


def test_a_warning_that_is_an_error_is_one_on_all_ranks(tmp_path: Path) -> None:
    ranks.run(2, tmp_path, take_sets, tmp_path, False)
    shutil.rmtree(max((tmp_path / "1" / "shard-00001" / "checkpoints").iterdir()))
    first, second = ranks.run(2, tmp_path, open_with_errors, tmp_path)
    assert first[0].startswith("UserWarning") and "set 2: shard 1 lacks checkpoint" in first[0]
    assert second[0].startswith("RuntimeError: rank 0: UserWarning") and first[1] == second[1] == [1.0]


def fail_three_times(rank: int, directory: Path) -> list[Any]:
    with opened(directory) as bank:
        table = items(bank)
        write(table, 1.0)
        first = bank.checkpoint()
        shard = bank._sets.shard

        class Fails:
            def take(self) -> bytes:
                if rank == 1:
                    raise OSError("planted")
                return shard.take()

            def __getattr__(self, name: str) -> Any:
                return getattr(shard, name)

        bank._sets.shard = Fails()  # type: ignore[assignment]
        errors = []
        for value in (2.0, 3.0, 4.0):
            write(table, value)
            errors.append(error_of(bank.checkpoint))
        kept = [of.number for of in bank.sets()]
        bank._sets.shard = shard
        return [errors, kept[-1] == first]


def test_a_set_that_fails_leaves_the_last_one(tmp_path: Path) -> None:
    found = ranks.run(2, tmp_path, fail_three_times, tmp_path / "fleet")
    assert found[0][0] == ["RuntimeError: rank 1: OSError: planted"] * 3
    assert found[1][0] == ["OSError: planted"] * 3
    assert found[0][1] and found[1][1]
    assert ranks.run(2, tmp_path, state_after, tmp_path / "fleet") == [([1.0], b"")] * 2


def take_text(rank: int, directory: Path) -> list[Any]:
    with opened(directory) as bank:
        table = items(bank)
        write(table, 1.0)
        error = error_of(lambda: bank.checkpoint("text" if rank == 1 else b"bytes"))  # type: ignore[arg-type]
        return [error, values(table), bank.checkpoint(b"bytes")]


def test_a_text_is_no_blob_on_all_ranks(tmp_path: Path) -> None:
    first, second = ranks.run(2, tmp_path, take_text, tmp_path / "fleet")
    assert first[0].startswith("TypeError: shard 1 (rank 1): ")
    assert second[0].startswith("TypeError: ")
    assert first[1:] == second[1:] == [[1.0], 1]


def fail_locally(rank: int, directory: Path) -> list[Any]:
    bank = opened(directory)
    table = items(bank)
    write(table, 1.0)
    shard = bank._sets.shard

    class Fails:
        """Fails at a place that no other rank hears of."""

        def take(self) -> bytes:
            if rank == 0:
                raise OSError("the first")
            return shard.take()

        def abandon(self) -> None:
            raise OSError("planted")

        def __getattr__(self, name: str) -> Any:
            return getattr(shard, name)

    bank._sets.shard = Fails()  # type: ignore[assignment]
    return [error_of(bank.checkpoint), bank.closed]


def test_an_error_of_one_rank_alone_closes_its_bank(tmp_path: Path) -> None:
    found = ranks.run(2, tmp_path, fail_locally, tmp_path / "fleet")
    assert found == [["OSError: the first", False], ["OSError: planted", True]]


def change_one_shard(rank: int, directory: Path) -> list[Any]:
    with opened(directory) as bank:
        table = items(bank)
        own = [key for key in KEYS.tolist() if len(table.request([key]).of_rank[0])][:1]
        found = []

        def changes(call: Any) -> None:
            bank.checkpoint()
            found.append(bank.changed_since_checkpoint)
            call()
            found.append(bank.changed_since_checkpoint)

        changes(lambda: table.put(own, np.ones((1, 2), dtype=np.float32)))
        lease = table.get_distinct(own)
        changes(lambda: lease.apply(np.ones((1, 2), dtype=np.float32)))
        changes(lambda: table.get_distinct(own).release())
        changes(lambda: table.peek(own))
        # The record is read once for all tables.
        shard, reads = bank._sets.shard, []

        class Counts:
            def __getattr__(self, name: str) -> Any:
                reads.append(name)
                return getattr(shard, name)

        bank._sets.shard = Counts()  # type: ignore[assignment]
        states = [bank.state_dict()["reference"].tolist() for _ in range(3)]
        bank._sets.shard = shard
        return [found, states, reads.count("sets")]


def test_all_ranks_know_that_rows_have_changed(tmp_path: Path) -> None:
    first, second = ranks.run(2, tmp_path, change_one_shard, tmp_path / "fleet")
    assert first == second
    assert first[0] == [False, True, False, True, False, True, False, False] and first[2] == 0


def take_three(rank: int, directory: Path) -> list[int]:
    with opened(directory, sets_kept=3) as bank:
        table = items(bank)
        taken = []
        for value in (1.0, 2.0, 3.0):
            write(table, value)
            taken.append(embank.torch.save(bank, value=value, rank=rank))
        return taken


def go_back(rank: int, directory: Path) -> list[Any]:
    """Goes back to set 1, and takes another set 2."""
    with opened(directory, set=np.int64(1)) as bank:
        table = items(bank)
        assert bank.recovered is not None
        resumed = embank.torch.resume(bank)
        assert resumed is not None
        found: list[Any] = [bank.recovered.number, resumed["value"], resumed["rank"], values(table)]
        found += [[of.number for of in bank.sets()], bank.changed_since_checkpoint]
        lease = table.get_distinct([1])
        lease.apply(np.full((1, 2), -8.0, dtype=np.float32))
        return [*found, bank.checkpoint(b"again")]


def test_a_fleet_goes_back_to_an_earlier_set(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    assert ranks.run(2, tmp_path, take_three, fleet) == [[1, 2, 3]] * 2
    for rank, found in enumerate(ranks.run(2, tmp_path, go_back, fleet)):
        assert found == [1, 1.0, rank, [1.0], [1], False, 2]
    # Set 3 is gone for good.
    assert ranks.run(2, tmp_path, state_after, fleet) == [([1.0, 9.0], b"again")] * 2


def refuse_sets(rank: int, directory: Path) -> list[str]:
    fleet, new = directory / "fleet", directory / "new"
    found = [
        error_of(lambda: opened(fleet, set=7)),
        error_of(lambda: opened(fleet, set=1 + rank)),
        error_of(lambda: opened(fleet, set="2")),
        error_of(lambda: opened(fleet, set=-1)),
        error_of(lambda: opened(new, set=0)),
    ]
    assert not new.exists()
    with opened(fleet) as bank:
        found.append(error_of(lambda: bank.roll_back(2)))
        found.append(error_of(lambda: bank.local.roll_back(2)))
        found.append(error_of(lambda: bank.local.checkpoint()))
        newest = embank.list_checkpoints(bank.path)[-1]["number"]
        found.append(error_of(lambda: bank.local.unpin(newest)))
        assert values(items(bank)) == [3.0]
    return found


def test_a_set_that_is_not_kept_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    ranks.run(2, tmp_path, take_three, tmp_path / "fleet")
    for found in ranks.run(2, tmp_path, refuse_sets, tmp_path):
        assert found[0].startswith("ValueError") and "one of [1, 2, 3], not 7" in found[0]
        expected = "set must be the same on all ranks: rank 0 has 1, rank 1 2"
        assert found[1] == f"ValueError: {expected}"
        assert found[2].startswith("TypeError")
        assert "set must be the number of a set or the result of set_of, not '2'" in found[2]
        assert found[3].startswith("ValueError")
        assert found[4].startswith("ValueError") and "there is no set 0" in found[4]
        assert found[5].startswith("AttributeError") and "set=" in found[5]
        for text in found[6:]:
            assert text.startswith("ShardMismatch") and "call the ShardedBank's checkpoint()" in text


def can_not_go_back(rank: int, directory: Path) -> str:
    return error_of(lambda: opened(directory, set=1))


def test_a_reader_of_one_shard_keeps_all_shards_from_going_back(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    ranks.run(2, tmp_path, take_three, fleet)
    with embank.Bank(fleet / "shard-00001", memory_budget="16MiB", read_only=True):
        first, second = ranks.run(2, tmp_path, can_not_go_back, fleet)
    assert "is being read" in first and "is being read" in second
    assert ranks.run(2, tmp_path, numbers_and_values, fleet) == [([2, 3], [3.0])] * 2


def numbers_and_values(rank: int, directory: Path) -> tuple[list[int], list[float]]:
    with opened(directory) as bank:
        return [of.number for of in bank.sets()], values(items(bank))


def refuse_an_abandoned_future(rank: int, directory: Path) -> list[str]:
    """Goes back, and takes another set 2. Returns the errors of the name of the first one."""
    with opened(directory, sets_kept=3) as bank:
        by_number = {of.number: SetName(of.number, of.id) for of in bank.sets()}
    with opened(directory, sets_kept=3, set=by_number[1]) as bank:
        write(items(bank), 7.0)
        assert bank.checkpoint() == 2
        state = bank.state_dict()
        write(items(bank), 8.0)
        bank.checkpoint()
    error = error_of(lambda: opened(directory, sets_kept=3, set=by_number[2]))
    differ = error_of(lambda: opened(directory, set=SetName(2, rank)))
    with opened(directory, sets_kept=3) as bank:
        assert values(items(bank)) == [8.0]
    with opened(directory, sets_kept=3, set=set_of(state)) as bank:
        assert values(items(bank)) == [7.0]
    text = error_of(lambda: opened(directory, set=SetName(2, "5")))  # type: ignore[arg-type]
    return [error, differ, text]


def test_a_name_of_an_abandoned_set_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    ranks.run(2, tmp_path, take_three, fleet)
    for error, differ, text in ranks.run(2, tmp_path, refuse_an_abandoned_future, fleet):
        assert error.startswith("ValueError") and "set 2 of this fleet has id" in error
        assert differ == "ValueError: the id of set must be the same on all ranks: rank 0 has 0, rank 1 1"
        assert text.startswith("TypeError") and "not (2, '5')" in text
    assert repr(SetName(3, 171)) == "SetName(number=3, id=0x00000000000000ab)"


def die_while_going_back(rank: int, directory: Path) -> None:
    """Goes back to set 1. The process of rank 1 ends before its shard has done so."""
    from embank._embank import Shard
    from embank.torch.distributed import opening

    class Dies:
        """A shard whose process ends before it settles."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._inner = Shard(*arguments, **options)

        def settle(self, *arguments: Any) -> None:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            self._inner.settle(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    setattr(opening, "Shard", Dies)
    error = error_of(lambda: opened(directory, set=1))
    assert rank == 0 and error.startswith("PeerLost"), error


def test_a_rank_that_dies_while_the_fleet_goes_back_leaves_all_shards_at_one_set(
    tmp_path: Path,
) -> None:
    fleet = tmp_path / "fleet"
    ranks.run(2, tmp_path, take_three, fleet)
    assert ranks.run(2, tmp_path, die_while_going_back, fleet) == [None, None]
    first, second = ranks.run(2, tmp_path, state_after, fleet)
    # Rank 0 has removed its checkpoints of later sets, so set 1 is the newest complete one.
    assert first[0] == second[0] == [1.0]


def test_a_shard_takes_no_checkpoint_alone(tmp_path: Path) -> None:
    ranks.run(2, tmp_path, take_three, tmp_path)
    path = tmp_path / "shard-00001"
    before = embank.list_checkpoints(path)
    with embank.Bank(path, memory_budget="16MiB") as bank:
        bank.open_table("item").put(KEYS, np.full((len(KEYS), 2), 9.0, dtype=np.float32))
        with pytest.raises(embank.ShardMismatch, match="shard 1 of 2 of fleet"):
            bank.checkpoint()
        with pytest.raises(embank.ShardMismatch, match="open the whole fleet"):
            embank.torch.save(bank, step=1)
        with pytest.raises(embank.ShardMismatch, match="ShardedBank"):
            bank.roll_back(2)
    with pytest.raises(embank.ShardMismatch, match="ShardedBank"):
        embank.roll_back(path, 2)
    with pytest.raises(embank.ShardMismatch, match="ShardedBank"):
        embank.apply_delta(path, tmp_path / "delta")
    assert embank.list_checkpoints(path) == before
    # A reading bank, and a copy, are as before.
    with embank.Bank(path, memory_budget="16MiB", read_only=True) as bank:
        assert bank.open_table("item").peek(KEYS).max() == 3.0
    embank.copy_checkpoint(path, tmp_path / "copy")
    with embank.Bank(tmp_path / "copy", memory_budget="16MiB") as bank:
        bank.checkpoint()


def resume_after_training(rank: int, directory: Path) -> list[str]:
    with opened(directory) as bank:
        table = items(bank)
        embank.torch.save(bank, step=1)
        taken = error_of(lambda: embank.torch.resume(bank))
    with opened(directory) as bank:
        write(items(bank), 2.0)
        return [taken, error_of(lambda: embank.torch.resume(bank))]


def test_the_cure_of_a_resume_is_one_that_a_fleet_has(tmp_path: Path) -> None:
    for found in ranks.run(2, tmp_path, resume_after_training, tmp_path / "fleet"):
        for error in found:
            assert "open it anew" in error and "roll_back" not in error, error


def states(rank: int, directory: Path) -> dict[str, str]:
    found = {}
    with opened(directory) as bank:
        table = items(bank)
        model = embank.torch.Embedding(table)
        empty = bank.state_dict()
        found["no set yet"] = error_of(lambda: set_of(empty))
        found["none"] = error_of(lambda: bank.load_state_dict(empty))
        bank.checkpoint()
        write(table, 1.0)
        changed = bank.state_dict()
        bank.checkpoint()
        state, of_model = bank.state_dict(), model.state_dict()
        assert state["reference"].shape == (512,) and state["reference"].dtype == torch.uint8
        found["equal"] = error_of(lambda: bank.load_state_dict(state))
        found["model equal"] = error_of(lambda: model.load_state_dict(of_model))
        found["changed"] = error_of(lambda: bank.load_state_dict(changed))
        found["empty"] = error_of(lambda: bank.load_state_dict({}))
        found["foreign"] = error_of(
            lambda: bank.load_state_dict({"reference": torch.zeros(512, dtype=torch.uint8)})
        )
        write(table, 2.0)
        found["later"] = error_of(lambda: bank.load_state_dict(state))
        bank.checkpoint()
        found["older"] = error_of(lambda: bank.load_state_dict(state))
        found["model older"] = error_of(lambda: model.load_state_dict(of_model))
        found["no set"] = error_of(lambda: set_of(changed))
        named = {"reference": torch.zeros(3), **model.state_dict()}
        assert set_of(named).number == 3
        found["no table"] = error_of(lambda: set_of(torch.nn.Linear(1, 1).state_dict()))
        torch.save((state, of_model), directory.parent / "state.pt")
    assert set_of(state) == set_of(of_model) and set_of(state).number == 2
    with opened(directory, set=set_of(state)) as bank:
        model = embank.torch.Embedding(items(bank))
        bank.load_state_dict(state)
        model.load_state_dict(of_model)
        write(items(bank), 3.0)
        bank.checkpoint()
        later = bank.state_dict()
    with opened(directory, set=2) as bank:
        write(items(bank), 4.0)
        bank.checkpoint()
        found["same number"] = error_of(lambda: bank.load_state_dict(later))
    return found


def other_shards(rank: int, directory: Path) -> str:
    state, _ = torch.load(directory.parent / "state.pt")
    with opened(directory / "other") as bank:
        return error_of(lambda: bank.load_state_dict(state))


def test_states_name_a_set(tmp_path: Path) -> None:
    for found in ranks.run(2, tmp_path, states, tmp_path / "fleet"):
        assert found["equal"] == found["model equal"] == "no error"
        assert "rows had changed since the last set" in found["none"]
        assert "rows had changed since the last set" in found["changed"]
        assert "not made by ShardedBank.state_dict()" in found["empty"]
        assert "not made by ShardedBank.state_dict()" in found["foreign"]
        assert "rows have changed since set 2" in found["later"]
        assert "refers to set 2, and the bank is at set 3" in found["older"]
        assert "refers to set 2, and the bank is at set 3" in found["model older"]
        assert "ShardedBank(..., set=2)" in found["older"] and "set=2" in found["model older"]
        assert "names no set: rows had changed" in found["no set"]
        assert "made before the first set" in found["no set yet"]
        assert "has no sharded tables" in found["no table"]
        assert "refers to set 3, and the bank is at another set 3" in found["same number"]
        assert "set=3" not in found["same number"]
    for text in ranks.run(3, tmp_path, other_shards, tmp_path / "fleet"):
        assert text.startswith("ShardMismatch") and "2 shards" in text
        assert "embank reshard" in text and "--shards 3" in text


def take_a_set(rank: int, directory: Path) -> None:
    with opened(directory / "two") as bank:
        table = items(bank)
        table.put(KEYS, np.repeat(KEYS[:, None], 2, axis=1).astype(np.float32))
        with table.get_distinct([1, 2]) as lease:
            lease.apply(np.ones((2, 2), dtype=np.float32))
        bank.checkpoint(f"rank {rank}".encode())
        torch.save(bank.state_dict(), directory / f"state-{rank}.pt")


def open_resharded(rank: int, directory: Path) -> list[Any]:
    state = torch.load(directory / f"state-{rank % 2}.pt")
    with opened(directory / "three") as bank:
        assert bank.recovered is not None
        error = error_of(lambda: bank.load_state_dict(state))
        return [error, bank.recovered.blob, items(bank).peek(KEYS)[:, 0].tolist()]


def test_a_state_loads_after_a_change_of_the_number_of_shards(tmp_path: Path) -> None:
    ranks.run(2, tmp_path, take_a_set, tmp_path)
    program = [command(), "reshard", str(tmp_path / "two"), str(tmp_path / "three"), "--shards", "3"]
    subprocess.run(program, check=True, capture_output=True)
    expected = KEYS.astype(float)
    expected[1:3] -= 1.0
    for rank, found in enumerate(ranks.run(3, tmp_path, open_resharded, tmp_path)):
        # A rank that the set did not have gets the bytes of rank 0.
        assert found == ["no error", f"rank {rank % 2}".encode(), expected.tolist()]


def trained(
    rank: int, directory: Path, swapped: bool, steps: int, dies: bool, with_dcp: bool
) -> tuple[str, list[float]]:
    """Trains to step 12, or ends before as in a crash. Saves at step 6."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(rank)
    random.seed(rank)
    bank = opened(directory_of(directory, rank, swapped))
    model: Any = models.Dlrm(bank, embank.Adagrad(lr=0.1))
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    dense = models.dense_optimizer(model)
    begin = 0
    if with_dcp:
        if bank.recovered is not None:
            state = {"bank": bank, "model": model.state_dict()}
            dcp.load(state, checkpoint_id=directory / "dcp")
            model.load_state_dict(state["model"])
            begin = 6
    else:
        resumed = embank.torch.resume(bank, model=model, dense=dense)
        begin = 0 if resumed is None else resumed["step"]
    losses = []
    batches = list(models.batches(12, dist.get_world_size(), rank))
    for step in range(begin, steps):
        noise = torch.rand(1).item() + random.random()
        loss = wrapped(batches[step]) * (1.0 + (0.0 if with_dcp else noise))
        dense.zero_grad()
        loss.backward()
        if with_dcp:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
        else:
            dense.step()
        losses.append(loss.item())
        if step + 1 == 6 and with_dcp:
            bank.checkpoint()
            dcp.save({"bank": bank, "model": model.state_dict()}, checkpoint_id=directory / "dcp")
        elif step + 1 == 6:
            number = embank.torch.save(bank, step=6, model=model, dense=dense)
            assert number == bank.last_checkpoint
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    bank.close()
    del wrapped, loss
    gc.collect()
    return f"begins at {begin}", losses


@pytest.mark.parametrize("with_dcp", [False, True], ids=["save", "dcp"])
def test_a_run_resumes_bit_for_bit(with_dcp: bool, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "crashed").mkdir()
    arguments = (False, 12, False, with_dcp)
    whole = ranks.run(2, tmp_path, trained, tmp_path / "whole", *arguments)
    crashed = (False, 9, True, with_dcp)
    ranks.run(2, tmp_path, trained, tmp_path / "crashed", *crashed)
    # The shards change places. A rank goes on with its own part of the data.
    again = (True, 12, False, with_dcp)
    resumed = ranks.run(2, tmp_path, trained, tmp_path / "crashed", *again)
    for (begin, losses), (at, later) in zip(whole, resumed):
        assert (begin, at) == ("begins at 0", "begins at 6")
        assert later == losses[6:]
