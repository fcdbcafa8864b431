"""Tests `Pipelined`: results at every depth, all ways in which a pass ends, and what it refuses."""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

from embank.torch import (  # noqa: E402
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingCollection,
    LookaheadLoader,
    Pipelined,
    ResumableLoader,
    SparseOptimizer,
    resume,
    save,
)


def new_table(bank: embank.Bank, name: str, bound: Optional[int] = 8, dim: int = 4) -> embank.Table:
    return bank.table(
        name, dim=dim, optimizer=embank.Adagrad(lr=0.1), staleness_bound=bound
    )


def new_bank(path: Path) -> embank.Bank:
    return embank.Bank(path, memory_budget="16MiB", wait_timeout=20.0)


class Model(torch.nn.Module):
    """Looks users up, and items as bags and as single rows."""

    def __init__(self, bank: embank.Bank, bound: Optional[int] = 8) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.users = Embedding(new_table(bank, "user", bound), padding_idx=0)
        items = new_table(bank, "item", bound)
        self.bags = EmbeddingBag(items, mode="mean")
        self.items = Embedding(items)
        self.dense = torch.nn.Linear(12, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        parts = [self.users(batch["user"]), self.bags(batch["seen"]), self.items(batch["item"])]
        return self.dense(torch.cat(parts, dim=1)).squeeze(1)

    def keys(self, batch: dict[str, torch.Tensor]) -> dict[Any, torch.Tensor]:
        return {
            self.users: batch["user"],
            self.bags: batch["seen"],
            self.items: batch["item"],
        }


def batches_of(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        {
            "user": torch.randint(0, 30, (16,), generator=generator),
            "seen": torch.randint(0, 200, (16, 3), generator=generator),
            "item": torch.randint(0, 200, (16,), generator=generator),
        }
        for _ in range(count)
    ]


def until(is_true: Callable[[], bool]) -> None:
    """Waits until other threads have made it true."""
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def train(model: Model, loader: Any) -> list[float]:
    dense = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    losses = []
    for batch in loader:
        loss = (model(batch) - 1.0).square().mean()
        dense.zero_grad()
        loss.backward()
        dense.step()
        losses.append(loss.item())
    return losses


def rows_of(model: Model) -> list[np.ndarray[Any, Any]]:
    return [model.users.table.peek(range(31)), model.items.table.peek(range(200))]


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
@pytest.mark.parametrize("lookahead", [False, True])
def test_every_depth_gives_the_results_of_the_plain_loop(
    tmp_path: Path, depth: int, lookahead: bool
) -> None:
    with new_bank(tmp_path / "plain") as bank:
        model = Model(bank)
        losses, rows = train(model, batches_of(40)), rows_of(model)
    with new_bank(tmp_path / "pipelined") as bank:
        model = Model(bank)
        loader: Any = batches_of(40)
        if lookahead:
            loader = LookaheadLoader(loader, model.keys, depth=3)
        pipelined = Pipelined(loader, model.keys, depth)
        assert len(pipelined) == 40
        found = train(model, pipelined)
        gets = model.items.table.stats()["gets"]
        assert bank.outstanding_leases() == []
        if depth == 0:
            # Bit for bit, with a get for each module.
            assert found == losses and gets == 80
            for own, other in zip(rows_of(model), rows):
                np.testing.assert_array_equal(own, other)
        else:
            assert gets == 40
            np.testing.assert_allclose(found, losses, rtol=1e-5)
            for own, other in zip(rows_of(model), rows):
                np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)


def test_collections_take_rows_of_several_tables(tmp_path: Path) -> None:
    results = []
    for depth in (0, 3):
        with new_bank(tmp_path / f"{depth}") as bank:
            tables = {"a": new_table(bank, "a"), "b": new_table(bank, "b")}
            bags, rows = EmbeddingBagCollection(tables), EmbeddingCollection(tables)
            sharing = EmbeddingBagCollection({"c": tables["a"], "d": tables["a"]})
            generator = torch.Generator().manual_seed(3)
            batches = [torch.randint(0, 50, (8, 4), generator=generator) for _ in range(20)]
            keys = lambda batch: {table: batch for table in tables.values()}  # noqa: E731
            for batch in Pipelined(batches, keys, depth):
                out = bags({"a": batch, "b": batch})
                (out["a"] * out["b"]).sum().backward()
            # One batch of the table has the bags of both features.
            shared = lambda batch: {tables["a"]: torch.cat([batch, batch + 1])}  # noqa: E731
            for batch in Pipelined(batches, shared, depth):
                out = sharing({"c": batch, "d": batch + 1})
                (out["c"] * out["d"]).sum().backward()
            with torch.no_grad():
                found = rows(dict.fromkeys("ab", torch.arange(50)))
                results.append({name: found[name].numpy() for name in "ab"})
    for name in "ab":
        np.testing.assert_array_equal(results[0][name], results[1][name])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_one_module_are_bit_for_bit_those_of_the_plain_loop(
    tmp_path: Path, mode: Any, weighted: bool
) -> None:
    if weighted and mode != "sum":
        pytest.skip("weights go with sums")
    generator = torch.Generator().manual_seed(3)
    offsets = torch.tensor([0, 3, 3, 7])
    batches = [torch.randint(0, 20, (12,), generator=generator) for _ in range(12)]
    weights = torch.rand(12, generator=generator) if weighted else None
    results = []
    for depth in (0, 2):
        with new_bank(tmp_path / f"{depth}") as bank:
            table = new_table(bank, "t")
            bag = EmbeddingBag(table, mode=mode)
            outputs = []
            for keys in Pipelined(batches, lambda keys: {bag: keys}, depth):
                output = bag(keys, offsets, per_sample_weights=weights)
                output.square().sum().backward()
                outputs.append(output.detach().numpy())
            assert table.stats()["gets"] == len(batches) and bank.outstanding_leases() == []
            results.append((np.stack(outputs), table.peek(range(20))))
    for plain, ahead in zip(*results):
        np.testing.assert_array_equal(plain, ahead)


@pytest.mark.parametrize("pooled_learns", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_passes_after_a_pooled_one_share_its_lease(
    tmp_path: Path, weight_decay: float, pooled_learns: bool
) -> None:
    """Two passes with equal keys, and one with some of them, take one step together. If the bags
    are not in the loss, only the rows of the last pass take it."""
    results = []
    for depth in (0, 1):
        with new_bank(tmp_path / f"{depth}") as bank:
            optimizer = embank.Adagrad(lr=0.1, weight_decay=weight_decay)
            table = bank.table("t", dim=3, optimizer=optimizer, staleness_bound=8)
            bag, single = EmbeddingBag(table, mode="sum"), Embedding(table)
            for keys in Pipelined(
                [torch.tensor([[1, 2], [2, 9]]) + step for step in range(6)],
                lambda keys: {table: keys},
                depth,
            ):
                outputs = [bag(keys)]
                outputs += [bag(keys)] if pooled_learns else []
                outputs += [single(keys[1])]
                learns = outputs if pooled_learns else outputs[-1:]
                sum(of.square().sum() for of in learns).backward()
                del outputs, learns
            # At depth 0, each pass makes a get.
            assert table.stats()["gets"] == (6 if depth == 1 else 18 if pooled_learns else 12)
            assert bank.outstanding_leases() == []
            results.append(table.peek(range(1, 15)))
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_the_next_rows_are_leased_while_a_batch_is_computed(bank: embank.Bank) -> None:
    table = new_table(bank, "t", bound=2)
    module = Embedding(table)
    batches = [torch.tensor([at, at + 1]) for at in range(10)]
    for at, batch in enumerate(Pipelined(batches, lambda batch: {module: batch}, depth=2)):
        module(batch).sum().backward()
        if at + 3 < 10:
            # The leases come without another call of this thread.
            until(lambda: len(table.outstanding_leases()) == 2)
            assert table.outstanding(at + 3) == 1


def test_gets_wait_for_the_batch_in_hand_and_no_longer(bank: embank.Bank) -> None:
    module = Embedding(new_table(bank, "t", bound=0))
    batch = torch.tensor([5, 6])
    for each in Pipelined([batch] * 10, lambda batch: {module: batch}, depth=1):
        module(each).sum().backward()
    assert module.table.stats()["staleness"] == {0: 20}


def test_a_framework_may_draw_one_batch_early(bank: embank.Bank) -> None:
    module = Embedding(new_table(bank, "t", bound=0))
    batches = [torch.tensor([at, 100]) for at in range(8)]
    passing = iter(Pipelined(batches, lambda batch: {module: batch}, depth=1))
    now = next(passing)
    for coming in itertools.chain(passing, [None]):
        module(now).sum().backward()
        now = coming
    # The pass ends before the last batch is trained, so this batch makes a get of its own. Its get
    # ahead was cancelled, before it was made or after.
    assert module.table.stats()["gets"] in (8, 9)
    learned = module.table.peek(range(8)) != module.table.initial(range(8))
    assert learned.all() and bank.outstanding_leases() == []


@pytest.mark.parametrize("bound", [0, 1])
def test_batches_without_a_step_are_let_go(bank: embank.Bank, bound: int) -> None:
    module = Embedding(new_table(bank, "t", bound=bound))
    batches = [torch.tensor([at % 2]) for at in range(12)]
    for at, batch in enumerate(Pipelined(batches, lambda batch: {module: batch}, depth=1)):
        if at % 3 == 0:
            continue  # no forward pass
        output = module(batch)
        if at % 3 == 1:
            output.sum().backward()
        with torch.no_grad():
            module(torch.tensor([77]))  # peeks
        del output
    assert bank.outstanding_leases() == []


@pytest.mark.parametrize("ends", ["break", "model", "backward", "loader", "keys"])
def test_a_pass_that_ends_early_leaves_no_lease_and_no_thread(
    bank: embank.Bank, ends: str
) -> None:
    module, other = Embedding(new_table(bank, "t")), Embedding(new_table(bank, "other"))
    threads = native_threads()

    def source() -> Iterator[torch.Tensor]:
        for at in range(10):
            if ends == "loader" and at == 5:
                raise RuntimeError("loader")
            yield torch.tensor([at, at + 1])

    def keys(batch: torch.Tensor) -> dict[Any, torch.Tensor]:
        if ends == "keys" and batch[0] == 5:
            raise RuntimeError("keys")
        return {module: batch, other: batch}

    seen = []

    def run() -> None:
        for batch in Pipelined(source(), keys, depth=3):
            seen.append(int(batch[0]))
            rows, others = module(batch), other(batch)
            if ends == "backward" and len(seen) == 5:
                # Autograd reaches the newest nodes first, so the pass does not reach `rows`.
                others.register_hook(planned_failure)
            (rows * others).sum().backward()
            if ends == "break" and len(seen) == 5:
                break
            if ends == "model" and len(seen) == 5:
                raise RuntimeError("model")

    if ends == "break":
        run()
    else:
        with pytest.raises(RuntimeError, match=ends):
            run()
    assert seen == [0, 1, 2, 3, 4]
    gc.collect()
    assert bank.outstanding_leases() == []
    until(lambda: native_threads() == threads)
    # No batch is in hand, so the module makes a get of its own.
    module(torch.tensor([3])).sum().backward()


def planned_failure(_: object) -> None:
    raise RuntimeError("backward")


@pytest.mark.parametrize("depth", [0, 1])
def test_a_failed_backward_pass_may_be_skipped(bank: embank.Bank, depth: int) -> None:
    """Regression test: the graph of a failed pass kept its leases, and the gets ahead waited for
    them."""
    modules = [Embedding(new_table(bank, name, bound=0)) for name in ("a", "b")]
    batches = [torch.tensor([5, 6])] * 6

    def step(batch: torch.Tensor, fails: bool) -> None:
        rows, others = (module(batch) for module in modules)
        if fails:
            others.register_hook(planned_failure)
        (rows * others).sum().backward()

    for at, batch in enumerate(Pipelined(batches, lambda batch: dict.fromkeys(modules, batch), depth)):
        if at % 2 == 1:
            step(batch, fails=False)
            continue
        with pytest.raises(RuntimeError, match="backward"):
            step(batch, fails=True)
    assert bank.outstanding_leases() == []
    assert [module.table.stats()["applies"] for module in modules] == [3, 3]


@pytest.mark.parametrize("kind", [Embedding, EmbeddingBag])
def test_a_failed_pass_of_own_gets_does_not_block_the_next_batch(
    bank: embank.Bank, kind: Any
) -> None:
    """The second pass of a batch makes a get of its own. Its graph keeps the lease, and it blocks
    the get ahead of the next batch."""
    module = kind(new_table(bank, "t", bound=0))

    def fails(batch: torch.Tensor) -> None:
        newer = module(batch) * 2
        newer.register_hook(planned_failure)
        newer.sum().backward()

    failures = 0
    for batch in Pipelined([torch.tensor([[5, 6]])] * 4, lambda batch: {module: batch}, depth=1):
        module(batch).sum().backward()
        # `pytest.raises` would keep the graph by the traceback.
        try:
            fails(batch)
        except RuntimeError as error:
            failures += "backward" in str(error)
    assert failures == 4 and bank.outstanding_leases() == []


def native_threads() -> int:
    """The number of the process's threads that make gets ahead."""
    count = 0
    for path in Path("/proc/self/task").glob("*/comm"):
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            count += path.read_text().strip() == "embank-ahead"
    return count


def test_ctrl_c_ends_a_wait(bank: embank.Bank) -> None:
    module = Embedding(new_table(bank, "t", bound=0))
    held = []
    holder = threading.Thread(target=lambda: held.append(module.table.get([7])))
    holder.start()
    holder.join()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            for batch in Pipelined([torch.tensor([7])], lambda batch: {module: batch}):
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                module(batch)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    until(lambda: len(bank.outstanding_leases()) == 1)
    held[0].release()


def test_keys_that_were_not_announced_are_refused(bank: embank.Bank) -> None:
    module = Embedding(new_table(bank, "t"))
    other = Embedding(new_table(bank, "other"))
    for batch in Pipelined([torch.tensor([1, 2, 2])], lambda batch: {module: batch}):
        with pytest.raises(ValueError, match="key 3 of table 't' was not announced"):
            module(torch.tensor([1, 3]))
        other(torch.tensor([9])).sum().backward()  # of no announced table
        assert module(torch.tensor([[2], [1]])).shape == (2, 1, 4)
        module(batch).sum().backward()
        # The batch has taken its step, so this pass gets its rows itself.
        module(torch.tensor([3])).sum().backward()
    assert module.table.stats()["gets"] == 2
    assert bank.outstanding_leases() == []


def test_rows_that_no_pass_uses_take_no_step(tmp_path: Path) -> None:
    results = []
    for depth in (0, 2):
        with new_bank(tmp_path / f"{depth}") as bank:
            optimizer = embank.Adam(lr=0.1)
            table = bank.table("t", dim=2, optimizer=optimizer, staleness_bound=2)
            table.put(range(10), np.ones((10, 2), np.float32))
            module, frozen = Embedding(table, padding_idx=0), Embedding(table).freeze()
            batches = [torch.tensor([0, at % 3 + 1, at % 2 + 4]) for at in range(12)]
            keys = lambda batch: {module: batch, frozen: batch + 3, table: batch}  # noqa: E731
            for batch in Pipelined(batches, keys, depth):
                (module(batch[:2]) * frozen(batch[1:] + 3)).sum().backward()
            results.append(table.peek(range(10)))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    assert results[0][0, 0] == 1.0


def test_a_table_with_weight_decay_and_several_modules(tmp_path: Path) -> None:
    results = []
    for depth in (0, 3):
        with new_bank(tmp_path / f"{depth}") as bank:
            optimizer = embank.AdamW(lr=0.1, weight_decay=0.1)
            table = bank.table("t", dim=2, optimizer=optimizer, staleness_bound=3)
            bag = EmbeddingBag(table, mode="max")
            weighted = EmbeddingBag(table, mode="sum")
            scaled = Embedding(table, scale_grad_by_freq=True)
            generator = torch.Generator().manual_seed(2)
            batches = [torch.randint(-3, 9, (4, 3), generator=generator) for _ in range(30)]
            weights = torch.rand(4, 3, generator=generator)
            keys = lambda batch: {table: batch.numpy().astype(np.int32)}  # noqa: E731
            for batch in Pipelined(batches, keys, depth):
                out = bag(batch) + weighted(batch, per_sample_weights=weights)
                out = out + scaled(batch[:, :2].to(torch.int32)).sum(1)
                out.square().sum().backward()
            results.append(table.peek(np.arange(-3, 9)))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-6)


def test_empty_batches_and_keys_that_change_in_place(bank: embank.Bank) -> None:
    module = Embedding(new_table(bank, "t"))

    def source() -> Iterator[torch.Tensor]:
        for at in range(6):
            yield torch.arange(at % 3) + 10 * at

    for batch in Pipelined(source(), lambda batch: {module: batch}, depth=2):
        module(batch).sum().backward()
    keys = np.zeros(2, np.int64)

    def reused(batch: torch.Tensor) -> dict[Any, Any]:
        keys[:] = batch.numpy()
        return {module: keys}

    batches = [torch.tensor([at, at + 1]) for at in range(6)]
    for batch in Pipelined(batches, reused, depth=2):
        module(batch).sum().backward()
    assert bank.outstanding_leases() == []


def test_what_cannot_get_ahead_is_refused_by_name(bank: embank.Bank, tmp_path: Path) -> None:
    module = Embedding(new_table(bank, "t", bound=1))
    one = [torch.tensor([1])]
    with pytest.raises(ValueError, match="depth is 3.*staleness_bound of 1"):
        list(Pipelined(one, lambda batch: {module: batch}, depth=3))
    admitted = bank.table("admitted", dim=2, admit_after_gets=2)
    with pytest.raises(ValueError, match="'admitted' has admission"):
        list(Pipelined(one, lambda batch: {admitted: batch}))
    short = Embedding(new_table(bank, "short"), max_norm=1.0)
    for batch in Pipelined(one, lambda batch: {short: batch}):
        with pytest.raises(ValueError, match="max_norm"):
            short(batch)
    for match, keys in [("table: keys", lambda batch: batch), ("table: keys", lambda batch: {1: batch})]:
        with pytest.raises(TypeError, match=match):
            list(Pipelined(one, keys))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 or more"):
        Pipelined(one, lambda batch: {module: batch}, depth=-1)
    with pytest.raises(TypeError, match="nest them as ResumableLoader"):
        Pipelined(ResumableLoader(one), lambda batch: {module: batch})
    with pytest.raises(TypeError, match="do not wrap it in another"):
        Pipelined(Pipelined(one, lambda batch: {module: batch}), lambda batch: {module: batch})
    with pytest.raises(TypeError, match="nest them as Pipelined"):
        LookaheadLoader(Pipelined(one, lambda batch: {module: batch}), lambda batch: {})
    assert bank.outstanding_leases() == []


def test_a_sparse_optimizer_keeps_its_results(tmp_path: Path) -> None:
    results = []
    for depth in (0, 2):
        with new_bank(tmp_path / f"{depth}") as bank:
            module = Embedding(new_table(bank, "t"))
            tables = SparseOptimizer(module)
            batches = [torch.tensor([at % 7, at % 5 + 10]) for at in range(20)]
            for at, batch in enumerate(Pipelined(batches, lambda batch: {module: batch}, depth)):
                (module(batch).sum() * (at + 1)).backward()
                if at % 2 == 1:
                    torch.nn.utils.clip_grad_norm_(tables.parameters(), 1.0)
                    tables.step()
                    tables.zero_grad()
            assert bank.outstanding_leases() == []
            results.append(module.table.peek(range(15)))
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("lookahead", [False, True])
def test_it_resumes_at_any_batch(tmp_path: Path, lookahead: bool) -> None:
    generator = torch.Generator().manual_seed(6)
    data = torch.utils.data.TensorDataset(torch.randint(0, 99, (64, 3), generator=generator))

    def new_loader(module: Embedding) -> ResumableLoader[Any]:
        loader: Any = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        if lookahead:
            loader = LookaheadLoader(loader, lambda batch: {module.table: batch[0]})
        return ResumableLoader(Pipelined(loader, lambda batch: {module: batch[0]}, depth=2))

    def run(path: Path, stop: Optional[int]) -> tuple[list[int], Any]:
        with new_bank(path) as bank:
            torch.manual_seed(5)
            module = Embedding(new_table(bank, "t"))
            loader = new_loader(module)
            resume(bank, loader=loader)
            seen = []
            for at, (batch,) in enumerate(loader):
                seen.append(int(batch.sum()))
                module(batch).square().sum().backward()
                if at == stop:
                    save(bank, loader=loader)
                    break
            return seen, module.table.peek(range(99))

    whole, rows = run(tmp_path / "whole", None)
    first, _ = run(tmp_path / "parts", 4)
    second, _ = run(tmp_path / "parts", 3)
    third, found = run(tmp_path / "parts", None)
    assert first + second + third == whole and len(whole) == 16
    np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize("place", ["loader", "keys", "forward", "backward"])
def test_a_run_with_two_exceptions_resumes_to_the_same_bits(tmp_path: Path, place: str) -> None:
    """Shows that exceptions lose nothing: two resumes within one pass, the last one at depth 0,
    give the batches and the rows of a run without exceptions."""
    generator = torch.Generator().manual_seed(6)
    data = torch.utils.data.TensorDataset(torch.randint(0, 99, (64, 3), generator=generator))

    def run(path: Path, depth: int, fails_at: Optional[int]) -> tuple[dict[int, int], Any]:
        """Trains to the end, or until batch `fails_at` of the pass. Returns each batch that was
        trained, by its number, and the rows."""
        with new_bank(path) as bank:
            torch.manual_seed(5)
            module, other = Embedding(new_table(bank, "t")), Embedding(new_table(bank, "other"))
            begun = 0

            def fail(at: int, of: str) -> None:
                if (at, of) == (fails_at, place):
                    raise RuntimeError("planned")

            def collate(samples: Any) -> torch.Tensor:
                # A resumed loader draws the batches that it skips too.
                drawn = next(draws)
                fail(drawn, "loader")
                return torch.stack([keys for (keys,) in samples])

            def keys(batch: torch.Tensor) -> dict[Any, torch.Tensor]:
                fail(begun + next(asked), "keys")
                return {module: batch, other: batch}

            draws, asked = itertools.count(), itertools.count()
            batches: Any = torch.utils.data.DataLoader(
                data, batch_size=4, shuffle=True, collate_fn=collate
            )
            loader = ResumableLoader(Pipelined(batches, keys, depth))
            saved = resume(bank, loader=loader) or {"done": 0}
            begun = saved["done"]
            seen = {}
            for at, batch in enumerate(loader, begun):
                rows, others = module(batch), other(batch)
                fail(at, "forward")
                if (at, "backward") == (fails_at, place):
                    others.register_hook(planned_failure)
                (rows * others).square().sum().backward()
                seen[at] = int(batch.sum())
                if at % 3 == 2:
                    save(bank, loader=loader, done=at + 1)
            assert bank.outstanding_leases() == []
            return seen, [of.table.peek(range(99)) for of in (module, other)]

    whole, rows = run(tmp_path / "whole", 0, None)
    for fails_at in (7, 12):
        with pytest.raises(RuntimeError, match="planned|backward"):
            run(tmp_path / "parts", 2, fails_at)
    seen, found = run(tmp_path / "parts", 0, None)
    # The second exception comes at batch 12, right after a save.
    assert seen == {at: whole[at] for at in range(12, 16)} and len(whole) == 16
    np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_save_withdraws_what_was_got_ahead(tmp_path: Path, depth: int) -> None:
    results = []
    for of in (0, depth):
        with new_bank(tmp_path / f"{of}") as bank:
            # The smallest bound that the depth allows, and a key that all batches share.
            module = Embedding(new_table(bank, "t", bound=depth - 1))
            batches = [torch.tensor([at, at + 1, 100]) for at in range(14)]
            for at, batch in enumerate(Pipelined(batches, lambda batch: {module: batch}, of)):
                module(batch).square().sum().backward()
                if at % 4 == 1:
                    save(bank, model=module, at=at)
                    assert bank.outstanding_leases() == []
            assert bank.outstanding_leases() == []
            results.append(module.table.peek(range(101)))
    np.testing.assert_array_equal(results[0], results[1])


def test_two_pipelines_share_two_tables(bank: embank.Bank) -> None:
    tables = [
        bank.table(
            name, dim=1, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros(), staleness_bound=1
        )
        for name in ("b", "a")
    ]
    failures: list[BaseException] = []

    def train_one(seed: int) -> None:
        try:
            modules = [Embedding(table) for table in tables]
            generator = torch.Generator().manual_seed(seed)
            batches = [torch.randperm(12, generator=generator)[:6] for _ in range(60)]
            order = modules if seed == 0 else modules[::-1]
            for batch in Pipelined(batches, lambda batch: dict.fromkeys(order, batch), depth=2):
                (-sum(module(batch).sum() for module in order)).backward()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train_one, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    counts = np.zeros(12)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(60):
            counts[torch.randperm(12, generator=generator)[:6].numpy()] += 1
    for table in tables:
        assert table.peek(range(12)).ravel().tolist() == counts.tolist()
    assert bank.outstanding_leases() == []
