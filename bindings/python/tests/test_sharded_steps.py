"""Tests of forward and backward passes over shards, also when the ranks do different things."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
from sharded_banks import error_of, items, opened  # noqa: E402

import embank  # noqa: E402
import embank.torch  # noqa: E402
from embank.torch.distributed import PeerLost, ShardedBank, ShardedTable  # noqa: E402

KEYS = np.arange(20)


def module(table: Any) -> embank.torch.Embedding:
    return embank.torch.Embedding(table)


def first_column(table: ShardedTable) -> list[float]:
    column: list[float] = table.peek(KEYS)[:, 0].tolist()
    return column


def expected(values: dict[int, float]) -> list[float]:
    return [values.get(key, 0.0) for key in KEYS.tolist()]


def skip_backward(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet") as bank:
        table = items(bank, staleness_bound=0)
        model = module(table)
        found: list[Any] = []
        # Rank 1 drops the graph of its first pass, and takes part at its second one.
        out = model(torch.tensor([1, 2 + rank]))
        if rank == 0:
            out.sum().backward()
        del out
        model(torch.tensor([1, 2 + rank])).sum().backward()
        found.append(first_column(table))
        # All ranks drop it.
        model(KEYS_TENSOR)
        model(KEYS_TENSOR)
        model(torch.tensor([5])).sum().backward()
        found.append(first_column(table))
        # Rank 1 drops the last one.
        out = model(torch.tensor([6]))
        if rank == 0:
            out.sum().backward()
        del out
    return [*found, bank.closed, table.local.bank.closed]


KEYS_TENSOR = torch.from_numpy(KEYS)


def test_a_rank_without_a_backward_pass_releases_its_rows(tmp_path: Path) -> None:
    for found in ranks.run(2, tmp_path, skip_backward, tmp_path):
        once = expected({1: -1.5, 2: -1.0, 3: -0.5})
        assert found[0] == once
        once[5] -= 1.0
        assert found[1:] == [once, True, True]


def several_passes(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet", gradients="sum") as bank:
        one, other = items(bank), items(bank, "other")
        first, second = module(one), module(other)
        found: list[Any] = []
        # One loss over several passes and tables; a feature that the loss does not use.
        unused = second(torch.tensor([9]))
        loss = first(torch.tensor([1, 2])).sum() + first(torch.tensor([2, 3 + rank])).sum()
        (loss + second(torch.tensor([1])).sum()).backward()
        found.append(one.local.outstanding_leases())
        found.append(len(other.local.outstanding_leases()) <= 1)
        del unused
        found += [first_column(one), first_column(other)]
        # Several backward passes, one step.
        sparse = embank.torch.SparseOptimizer([first, second])
        for key in (1, 11):
            first(torch.tensor([key, key + rank])).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(sparse.parameters(), 100.0)
        sparse.step()
        found += [norm.item(), first_column(one)]
        for group in sparse.param_groups:
            group["lr"] = 0.5
        first(torch.tensor([15])).sum().backward()
        sparse.step()
        first(torch.tensor([16])).sum().backward()
        sparse.zero_grad()
        found.append(first_column(one))
        return found


def test_one_loss_may_use_several_passes_and_tables(tmp_path: Path) -> None:
    for rank, found in enumerate(ranks.run(2, tmp_path, several_passes, tmp_path)):
        assert found[:2] == [[], True]
        values = {1: -2.0, 2: -4.0, 3: -1.0, 4: -1.0}
        assert found[2] == expected(values)
        assert found[3] == expected({1: -2.0})
        assert found[4] == pytest.approx([4.0, 2.0 * 2**0.5][rank])
        # Rank 0 uses the keys 1 and 11 twice; rank 1 uses 1, 2, 11 and 12.
        for key, gradient in {1: 3.0, 2: 1.0, 11: 3.0, 12: 1.0}.items():
            values[key] = values.get(key, 0.0) - gradient
        assert found[5] == expected(values)
        values[15] = -1.0
        assert found[6] == expected(values)


def skip_steps(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet", gradients="sum") as bank:
        one, other = items(bank), items(bank, "other")
        model = embank.torch.EmbeddingCollection({"one": one, "other": other})
        sparse = embank.torch.SparseOptimizer(model)
        found: list[Any] = []
        for step, rate in enumerate([0.5, 0.25, 0.125]):
            for group in sparse.param_groups:
                group["lr"] = rate
            rows = model({"one": KEYS_TENSOR, "other": KEYS_TENSOR})
            # Rank 0 alone uses both tables.
            (rows["one"].sum() + (rows["other"].sum() if rank == 0 else 0.0)).backward()
            # Rank 1 has used no row of the other table.
            del rows
            # Rank 1 skips the step of rate 0.25.
            if rank == 0 or step != 1:
                sparse.step()
            sparse.zero_grad()
            found += [first_column(one)[0], len(set(first_column(one)))]
        found.append(set(first_column(other)))
        # A rate that ranks do not share is no step.
        for group in sparse.param_groups:
            group["lr"] = 1.0 + rank
        model({"one": KEYS_TENSOR, "other": KEYS_TENSOR})["one"].sum().backward()
        return [*found, error_of(sparse.step)]


def test_a_rank_may_skip_a_step_of_another_rate(tmp_path: Path) -> None:
    for found in ranks.run(2, tmp_path, skip_steps, tmp_path):
        assert found[:6] == [-1.0, 1, -1.25, 1, -1.5, 1]
        assert found[6] == {-0.875}
        assert found[7].startswith("ProtocolMismatch") and "lr=2.0" in found[7], found[7]


def skip_a_backward_pass_of_another_rate(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet", gradients="sum") as bank:
        table = items(bank)
        model = module(table)
        out = model(KEYS_TENSOR)
        if rank == 0:
            out.sum().backward()
        del out
        # Rank 1 takes part in the gradients of rank 0 after it has set its next rate.
        table.learning_rate = 0.5
        model(KEYS_TENSOR).sum().backward()
        return [set(first_column(table)), table.learning_rate]


def test_gradients_are_applied_at_the_rate_of_their_rank(tmp_path: Path) -> None:
    found = ranks.run(2, tmp_path, skip_a_backward_pass_of_another_rate, tmp_path)
    assert found == [[{-2.0}, 0.5]] * 2


def test_a_release_during_an_answer_leaves_nothing() -> None:
    from embank.torch.distributed.rounds import Rounds

    made: Any = Rounds.__new__(Rounds)

    class Releases(set[int]):
        def discard(self, number: int) -> None:
            super().discard(number)
            made.release(number)

    made._held, made._released = {3: "held"}, Releases([3])
    assert made._taken(3) == "held"
    assert made._released == set()


def bad_gradients(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet") as bank:
        one, other = items(bank), items(bank, "other")
        model = embank.torch.EmbeddingCollection({"one": one, "other": other})
        rows = model({"one": torch.tensor([1]), "other": torch.tensor([2 + rank])})
        factor = float("nan") if rank == 1 else 1.0
        loss = rows["one"].sum() + rows["other"].sum() * factor
        error = error_of(loss.backward)
        found = [error, first_column(one), first_column(other)]
        model({"one": torch.tensor([1]), "other": torch.tensor([2])})["one"].sum().backward()
        return [*found, first_column(one), first_column(other)]


def test_a_nan_on_one_rank_changes_no_row(tmp_path: Path) -> None:
    first, second = ranks.run(2, tmp_path, bad_gradients, tmp_path)
    text = "table 'other', key 3: the gradient of column 0 is nan; no row of this step was changed"
    assert first[0].startswith("ValueError: shard 1 (rank 1): " + text), first[0]
    assert second[0].startswith("ValueError: " + text), second[0]
    zeros = expected({})
    for found in (first, second):
        assert found[1:] == [zeros, zeros, expected({1: -1.0}), zeros]


def failing_owner(rank: int, directory: Path) -> list[str]:
    with opened(directory / "fleet") as bank:
        table = items(bank, staleness_bound=0)
        own = [key for key in KEYS.tolist() if len(table.request([key]).of_rank[0])]
        model = module(table)
        # Rank 0 owns all of these rows, so its shard alone refuses.
        held = model(torch.tensor(own))
        errors = [error_of(lambda: model(torch.tensor(own[:1])))]
        del held
        model(torch.tensor(own)).sum().backward()
        # Its shard fails to apply gradients. The next exchange raises the error on all ranks.
        table.put([own[0]], np.full((1, 2), 3e38, dtype=np.float32))
        out = model(torch.tensor(own[:1]))
        errors.append(error_of((out * -3e38).sum().backward))
        errors.append(error_of(lambda: table.peek([0])))
        errors.append(error_of(lambda: table.peek([0])))
        return errors


def test_an_error_of_one_shard_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    first, second = ranks.run(2, tmp_path, failing_owner, tmp_path)
    assert first[0].startswith("SelfBlocked: ") and "del loss" in first[0], first
    assert second[0].startswith("SelfBlocked: shard 0 (rank 0): "), second
    assert first[1] == second[1] == "no error"
    assert first[2].startswith("ValueError: ") and "is -inf" in first[2], first
    assert second[2].startswith("ValueError: shard 0 (rank 0): ") and "is -inf" in second[2], second
    assert first[3] == second[3] == "no error"


def different_calls(rank: int, directory: Path, case: str) -> list[Any]:
    bank = opened(directory / "fleet")
    table, other = items(bank), items(bank, "other")
    model, model_of_other = module(table), module(other)
    keys = torch.tensor([1, 2])
    out = model(keys)

    def train() -> None:
        out.sum().backward()
        model(keys)

    def on_rank_1() -> object:
        if case == "forward":
            return model(keys)
        if case == "evaluation":
            out.sum().backward()
            return model.eval()(keys)
        if case == "table":
            out.sum().backward()
            return model_of_other(keys)
        if case == "rate":
            out.sum().backward()
            table.learning_rate = 0.5
            return model(keys)
        if case == "optimizer":
            out.sum().backward()
            table.optimizer = embank.SGD(lr=1.0, weight_decay=0.1)
            return model(keys)
        if case == "put":
            out.sum().backward()
            table.put(keys.numpy(), np.ones((2, 2)))
        return bank.close()

    error = error_of(on_rank_1 if rank == 1 else train)
    # The lock and the leases are free.
    with embank.Bank(bank.path, memory_budget="16MiB") as local:
        assert local.outstanding_leases() == []
    later = error_of(lambda: model(keys))
    bank.close()
    return [error, bank.closed, later]


@pytest.mark.parametrize(
    "case, doing_0, doing_1",
    [
        ("forward", "hands over gradients of tables ['item']", "gets rows for training of tables ['item'], after forward"),
        ("evaluation", "gets rows for training of tables ['item']", "reads rows for evaluation of tables ['item']"),
        ("table", "gets rows for training of tables ['item']", "gets rows for training of tables ['other']"),
        ("rate", "gets rows for training of tables ['item']", "gets rows for training of tables ['item']"),
        ("optimizer", "gets rows for training of tables ['item']", "gets rows for training of tables ['item']"),
        ("put", "gets rows for training of tables ['item']", "puts rows"),
        ("close", "hands over gradients of tables ['item']", "closes the bank, after forward"),
    ],
)  # fmt: skip
def test_ranks_that_do_different_things_are_named(
    case: str, doing_0: str, doing_1: str, tmp_path: Path
) -> None:
    for error, closed, later in ranks.run(2, tmp_path, different_calls, tmp_path, case):
        assert error.startswith("ProtocolMismatch: the ranks do different things"), error
        assert f"rank 0 (shard 0) {doing_0}" in error and f"rank 1 (shard 1) {doing_1}" in error, error
        if case in ("rate", "optimizer"):
            assert "rank 0 has table 'item' with optimizer=SGD(lr=1.0" in error
            setting = "lr=0.5" if case == "rate" else "weight_decay=0.1"
            assert setting in error.split("rank 1 table 'item' with optimizer=SGD(")[1], error
        assert closed and "the sharded bank is closed: ProtocolMismatch" in later


def lose_a_peer(rank: int, directory: Path, how: str) -> list[Any]:
    bank = opened(directory / "fleet")
    model = module(items(bank, staleness_bound=0))
    model(torch.tensor([1, 2, 3])).sum().backward()
    out = model(torch.tensor([1, 2, 3]))
    # Set here and not at the opening, so that a slow machine does not lose a rank before.
    bank._exchange._group._set_default_timeout(timedelta(seconds=2))
    if rank == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        ranks.stop()
    try:
        out.sum().backward()
    except PeerLost as error:
        found = [str(error), error.step > 0, bool(error.words), bank.closed]
    with embank.Bank(bank.path, memory_budget="16MiB") as local:
        found.append(local.outstanding_leases())
    bank.close()
    return [*found, error_of(lambda: model(torch.tensor([1])))]


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_lost_peer_closes_the_bank(how: str, tmp_path: Path) -> None:
    found, of_lost = ranks.run(2, tmp_path, lose_a_peer, tmp_path, how)
    assert of_lost is None
    assert "hands over gradients" in found[0] and "start all ranks again" in found[0]
    assert found[1:5] == [True, True, True, []]
    assert "the sharded bank is closed: PeerLost" in found[5]


def bytes_of_a_step(rank: int, directory: Path) -> tuple[int, int, int]:
    with opened(directory / "fleet") as bank:
        tables = {name: items(bank, name) for name in ("one", "other")}
        model = embank.torch.EmbeddingBagCollection(tables)
        random = np.random.default_rng(rank)
        keys = {name: torch.from_numpy(random.integers(0, 300, (200, 3))) for name in tables}
        asked = answered = 0
        for name, table in tables.items():
            of_rank = [table.request(of.reshape(-1).numpy()).of_rank for of in all_keys(keys[name])]
            asked += len(of_rank[rank][1 - rank])
            answered += len(of_rank[1 - rank][rank])
        before = bank.bytes_sent
        sum(out.sum() for out in model(keys).values()).backward()
        return bank.bytes_sent - before, asked, answered


def all_keys(own: Any) -> list[Any]:
    found = [torch.empty_like(own) for _ in range(2)]
    torch.distributed.all_gather(found, own)
    return found


def test_a_key_goes_out_once(tmp_path: Path) -> None:
    for sent, asked, answered in ranks.run(2, tmp_path, bytes_of_a_step, tmp_path):
        # Keys, rows and gradients of two columns, and a flag before the rows.
        assert sent == asked * 8 + answered * 2 * 4 + asked * 2 * 4 + 4
        assert 200 < asked < 600


def leave_by_an_error(rank: int, directory: Path) -> str:
    def body() -> None:
        with opened(directory / "fleet") as bank:
            model = module(items(bank))
            if rank == 1:
                raise KeyError("of the program")
            model(torch.tensor([1]))

    return error_of(body)


def test_an_exception_of_one_rank_does_not_hang_the_others(tmp_path: Path) -> None:
    first, second = ranks.run(2, tmp_path, leave_by_an_error, tmp_path)
    assert first.startswith("PeerLost") and second.startswith("KeyError")


def bounded(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet") as bank:
        table = items(bank, staleness_bound=2)
        model = module(table)
        keys = torch.tensor([1, 2, 3 + rank])
        held = [model(keys) for _ in range(3)]
        error = error_of(lambda: model(keys))
        most = max((table.local.outstanding(int(key)) or 0) for key in KEYS)
        sum(out.sum() for out in held).backward()
        return [error, most, table.local.outstanding_leases(), dict(table.local.stats()["staleness"])]


def test_a_bound_counts_global_steps(tmp_path: Path) -> None:
    found = ranks.run(2, tmp_path, bounded, tmp_path)
    for error, most, leases, staleness in found:
        assert error.startswith("SelfBlocked"), error
        assert most <= 3 and leases == []
        assert max(staleness, default=0) <= 2
    # Both ranks use keys 1 and 2 in each step, which counts once.
    assert max(most for _, most, _, _ in found) == 3


def options_of_tables(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet") as bank:
        found: list[Any] = []
        admitted = items(bank, "admitted", admit_after_gets=2)
        model = module(admitted)
        for _ in range(2):
            # A get of all ranks counts once, also for a key that both use.
            model(torch.tensor([1, 2 + rank])).sum().backward()
            found.append(first_column(admitted))
        both = model(torch.tensor([7])).sum() + model(torch.tensor([7])).sum()
        both.backward()
        found.append(first_column(admitted))
        timed = items(bank, "timed", tracking="set_time")
        model = module(timed)
        for time in (10, 20):
            timed.set_time(time)
            model(torch.tensor([time])).sum().backward()
        bank.checkpoint()
        timed.local.evict(unused_for=5)
        found.append(first_column(timed))
        return found


def test_admission_and_tracking_count_global_steps(tmp_path: Path) -> None:
    for found in ranks.run(2, tmp_path, options_of_tables, tmp_path):
        assert found[0] == expected({})
        assert found[1] == expected({1: -1.0, 2: -0.5, 3: -0.5})
        # One loss uses key 7 twice, which is one get.
        assert found[2] == expected({1: -1.0, 2: -0.5, 3: -0.5})
        # Key 10 was last used at time 10, and 20 - 10 is more than 5.
        assert found[3] == expected({20 % 20: 0.0})


def modules_over_shards(rank: int, directory: Path) -> list[Any]:
    matrix = torch.arange(40.0).reshape(20, 2)
    keys = torch.tensor([[3, 3, 1], [4 + rank, 0, 3]])
    with opened(directory / "fleet") as bank, embank.Bank(
        directory / f"local-{rank}", memory_budget="16MiB"
    ) as local:
        found: list[Any] = []
        options: Any = {"optimizer": embank.SGD(lr=1.0), "initializer": embank.Zeros()}
        for name, of in (("sharded", bank), ("local", local)):
            of_kind = []
            make = of.table  # type: ignore[attr-defined]
            words = embank.torch.Embedding.from_pretrained(
                matrix, make("word", dim=2, **options), freeze=False, padding_idx=0
            )
            of_kind.append(words(keys).tolist())
            for mode in ("sum", "mean", "max"):
                bag = embank.torch.EmbeddingBag.from_pretrained(
                    matrix, make(mode, dim=2, **options), mode, freeze=False
                )
                of_kind.append(bag(keys).tolist())
                of_kind.append(bag.eval()(keys).tolist())
            frozen = embank.torch.Embedding.from_pretrained(matrix, make("frozen", dim=2))
            of_kind.append(frozen(keys).tolist())
            found.append(of_kind)
        normed = embank.torch.Embedding(items(bank, "normed"), max_norm=1.0)
        found.append(error_of(lambda: normed(keys)))
        loader = embank.torch.LookaheadLoader([keys, keys], lambda batch: {words_of(bank): batch}, depth=1)
        found.append(error_of(lambda: list(loader)))
        return found


def words_of(bank: ShardedBank) -> ShardedTable:
    return next(table for table in bank.rounds.tables if table.name == "word")


def test_modules_give_what_they_give_over_one_bank(tmp_path: Path) -> None:
    for sharded, local, norm, lookahead in ranks.run(2, tmp_path, modules_over_shards, tmp_path):
        assert sharded == local
        assert "max_norm" in norm and "clip_row_norm" in norm
        assert "LookaheadLoader" in lookahead and "Pipelined" in lookahead


def some_of_the_ranks(rank: int, directory: Path) -> list[float]:
    group = torch.distributed.new_group([2, 0])
    if rank == 1:
        return []
    # torch sorts the ranks of a group.
    with opened(directory / "fleet", group=group) as bank:
        table = items(bank)
        module(table)(torch.tensor([rank, 5])).sum().backward()
        return [bank.shard, *table.peek([0, 2, 5])[:, 0].tolist()]


def test_a_group_of_some_ranks_has_a_bank(tmp_path: Path) -> None:
    found = ranks.run(3, tmp_path, some_of_the_ranks, tmp_path)
    assert found == [[0, -0.5, -0.5, -1.0], [], [1, -0.5, -0.5, -1.0]]


def groups_that_overlap(rank: int, directory: Path) -> list[Any]:
    both = [torch.distributed.new_group(of) for of in ([0, 1], [0, 2])]
    if rank == 1:
        return []
    found = []
    for value in range(6):
        with opened(directory / "fleet", group=both[1]) as bank:
            table = items(bank)
            found.append(float(table.peek([1])[0, 0]))
            module(table)(torch.tensor([1])).sum().backward()
            bank.checkpoint()
    return found


def test_a_group_may_open_many_banks(tmp_path: Path) -> None:
    found = ranks.run(3, tmp_path, groups_that_overlap, tmp_path)
    values = [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    assert found == [values, [], values]


def too_many_passes(rank: int, directory: Path) -> list[Any]:
    from embank.torch.distributed import rounds

    rounds.OPEN_LEASES_MAX = 4
    with opened(directory / "fleet") as bank:
        table = items(bank)
        model = module(table)
        held = [model(torch.tensor([1])) for _ in range(4)]
        error = error_of(lambda: model(torch.tensor([1])))
        sum(out.sum() for out in held).backward()
        model(torch.tensor([1])).sum().backward()
        # The next forward pass tells the owners what was dropped.
        held = [model(torch.tensor([1])) for _ in range(4)]
        again = error_of(lambda: model(torch.tensor([1])))
        del held
        model(torch.tensor([1])).sum().backward()
        return [error, again, table.peek([1])[0, 0]]


def test_the_passes_that_wait_are_limited(tmp_path: Path) -> None:
    for error, again, value in ranks.run(2, tmp_path, too_many_passes, tmp_path):
        assert error.startswith("RuntimeError") and "wait for their backward pass" in error
        assert again == error and value == -6.0


def fork_and_share(rank: int, directory: Path) -> list[Any]:
    with opened(directory / "fleet") as bank:
        table = items(bank)
        module(table)(torch.tensor([1])).sum().backward()
        child = os.fork()
        if child == 0:
            error = error_of(lambda: table.peek([1]))
            bank.close()
            os._exit(0 if error.startswith("RuntimeError: this process was forked") else 1)
        status = os.waitpid(child, 0)[1]
        # Another thread is inside of a call.
        bank.rounds._one_thread.acquire()
        error = error_of(lambda: table.peek([1]))
        bank.rounds._one_thread.release()
        return [status, error, table.peek([1])[0, 0]]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_one_process_and_one_thread_make_the_calls(tmp_path: Path) -> None:
    for status, error, value in ranks.run(2, tmp_path, fork_and_share, tmp_path):
        assert status == 0 and value == -1.0
        assert "another thread is inside of a call on the same sharded bank" in error


def together(rank: int, directory: Path) -> list[int]:
    with opened(directory / "fleet") as bank:
        model = module(items(bank))
        seen = []
        for batch in bank.together(range(3 + 2 * rank)):
            model(torch.tensor([batch])).sum().backward()
            seen.append(batch)

        def failing() -> Any:
            yield 7
            if rank == 1:
                raise OSError("the source fails")
            yield 8

        error = error_of(lambda: seen.extend(bank.together(failing())))
        assert error == ["no error", "OSError: the source fails"][rank]
        return [*seen, len(list(bank.together([])))]


def test_ranks_with_fewer_batches_end_together(tmp_path: Path) -> None:
    assert ranks.run(2, tmp_path, together, tmp_path) == [[0, 1, 2, 7, 0]] * 2
