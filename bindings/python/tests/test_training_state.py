"""A run that is saved in one process and resumed in another ends as if it had never stopped."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402

PROGRAM = Path(__file__).with_name("resumed_training.py")
STEPS = 18


def run(path: Path, end: int) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path), str(end)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_runs_in_several_processes_end_bit_for_bit_as_one(tmp_path: Path) -> None:
    """Stopped in the middle of a pass, at its last batch, and between two saves."""
    whole = run(tmp_path / "whole", 0)
    assert len(whole) == 64
    for ends in ((4, 12), (6, 9), (17,)):
        path = tmp_path / f"bank {ends}"
        for end in ends:
            assert run(path, end) == ""
        assert run(path, 0) == whole, ends


def opened(path: Path) -> embank.Bank:
    return embank.Bank(path, memory_budget="16MiB")


def test_everything_comes_back(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with opened(tmp_path / "bank") as bank:
        assert embank.torch.resume(bank, model=model) is None
        number = embank.torch.save(
            bank, model=model, step=3, name="x", history=[0.5, 1.5], weights={"a": torch.ones(2)}
        )
        drawn = torch.rand(2), np.random.rand(), random.random()
    other = torch.nn.Linear(2, 1)
    with opened(tmp_path / "bank") as bank:
        assert bank.last_checkpoint == number
        values = embank.torch.resume(bank, model=other)
        assert values is not None
        assert values.pop("weights")["a"].tolist() == [1.0, 1.0]
        assert values == {"step": 3, "name": "x", "history": [0.5, 1.5]}
        again = torch.rand(2), np.random.rand(), random.random()
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(drawn[0], again[0]) and drawn[1:] == again[1:]


def test_random_generators_may_be_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        embank.torch.save(bank, random_state=False, step=1)
    with opened(tmp_path / "bank") as bank:
        before = torch.get_rng_state()
        embank.torch.resume(bank)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_bank_that_went_on_is_not_resumed(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        table = bank.table("t", dim=1)
        embank.torch.save(bank, step=1)
    with opened(tmp_path / "bank") as bank:
        table = bank.open_table("t")
        table.put([1], [[1.0]])
        with pytest.raises(ValueError, match="open it anew"):
            embank.torch.resume(bank)
        bank.checkpoint()
        with pytest.raises(ValueError, match="open it anew"):
            embank.torch.resume(bank)


def test_a_model_over_two_banks_is_not_saved(tmp_path: Path) -> None:
    """It was, and could not be resumed."""
    with opened(tmp_path / "one") as bank, opened(tmp_path / "two") as other:
        model = torch.nn.ModuleList(
            embank.torch.Embedding(of.table("t", dim=1, optimizer=embank.SGD(lr=1.0)))
            for of in (bank, other)
        )
        with pytest.raises(ValueError, match=r"part 'model' has table 't' of the bank .*two"):
            embank.torch.save(bank, model=model)
        assert bank.last_checkpoint is None


def test_pretrained_rows_are_not_put_again(tmp_path: Path) -> None:
    """They were, over what was learnt, and the run could not be resumed."""
    matrix = torch.zeros(4, 2)

    def model_of(bank: embank.Bank) -> Any:
        table = bank.table("t", dim=2, optimizer=embank.SGD(lr=1.0))
        return embank.torch.Embedding.from_pretrained(
            matrix, table, freeze=False, fill=bank.recovered is None
        )

    with opened(tmp_path / "bank") as bank:
        model = model_of(bank)
        model(torch.tensor([1])).sum().backward()
        embank.torch.save(bank, model=model)
    with opened(tmp_path / "bank") as bank:
        model = model_of(bank)
        assert embank.torch.resume(bank, model=model) == {}
        assert model(torch.tensor([0, 1])).tolist() == [[0.0, 0.0], [-1.0, -1.0]]
        with pytest.raises(ValueError, match="shape"):
            embank.torch.Embedding.from_pretrained(torch.zeros(4, 3), model.table, fill=False)


def test_names_must_be_those_that_were_saved(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        embank.torch.save(bank, model=torch.nn.Linear(1, 1), step=1)
    with opened(tmp_path / "bank") as bank:
        for parts in ({}, {"model": torch.nn.Linear(1, 1), "more": torch.nn.Linear(1, 1)}):
            with pytest.raises(ValueError, match=r"has states of \['model'\]"):
                embank.torch.resume(bank, **parts)


@pytest.mark.parametrize("blob", [b"", b"step 1"])
def test_a_blob_of_somebody_else_is_told(tmp_path: Path, blob: bytes) -> None:
    with opened(tmp_path / "bank") as bank:
        bank.checkpoint(blob)
    with opened(tmp_path / "bank") as bank:
        with pytest.raises(ValueError, match=r"was not made by embank\.torch\.save"):
            embank.torch.resume(bank)


def test_what_could_not_be_read_back_is_not_saved(tmp_path: Path) -> None:
    with opened(tmp_path / "bank") as bank:
        with pytest.raises(TypeError, match="weights_only"):
            embank.torch.save(bank, path=Path("x"))
        assert bank.last_checkpoint is None


def loaders(seed: int) -> list[Any]:
    """Loaders that draw their order in different ways, and the generator of each."""
    data = torch.arange(20)
    own = torch.Generator().manual_seed(seed)
    chosen = torch.utils.data.RandomSampler(range(20), replacement=True, num_samples=40)
    return [
        (torch.utils.data.DataLoader(data, batch_size=3, shuffle=True), None),
        (torch.utils.data.DataLoader(data, batch_size=3, shuffle=True, generator=own), own),
        (torch.utils.data.DataLoader(data, batch_size=4, sampler=chosen), None),
        (torch.utils.data.DataLoader(data, batch_size=3, shuffle=True, num_workers=1), None),
    ]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("stop", [1, 5, 7, 10])
def test_a_loader_goes_on_where_it_was(which: int, stop: int) -> None:
    if which == 3 and stop != 5:
        pytest.skip("one start of workers is enough")

    def passes(loader: Any) -> Any:
        while loader.epoch < 2:
            for batch in loader:
                yield batch.tolist(), torch.rand(1).item()  # the model draws too

    torch.manual_seed(stop)
    loader, generator = loaders(stop)[which]
    first = embank.torch.ResumableLoader(loader, generator)
    batches = passes(first)
    for _ in range(stop):
        next(batches)
    state, random_state = first.state_dict(), torch.get_rng_state()
    wanted = list(batches)
    assert wanted, "stopped before the end"

    loader, generator = loaders(stop + 1)[which]
    again = embank.torch.ResumableLoader(loader, generator)
    again.load_state_dict(state)
    torch.set_rng_state(random_state)
    assert list(passes(again)) == wanted


def test_own_draws_are_repeated_however_far_a_loader_is_read_ahead() -> None:
    """A loader that draws for every batch, read ahead by other depths before and after."""

    class Drawing:
        def __init__(self, generator: Any, ahead: int) -> None:
            self.generator, self.ahead = generator, ahead

        def __iter__(self) -> Any:
            waiting = []
            for _ in range(8):
                waiting.append(torch.rand(1, generator=self.generator).item())
                if len(waiting) > self.ahead:
                    yield waiting.pop(0)
            yield from waiting

    own = torch.Generator().manual_seed(1)
    first = embank.torch.ResumableLoader(Drawing(own, ahead=3), own)
    batches = iter(first)
    for _ in range(2):
        next(batches)
    state = first.state_dict()
    wanted = list(batches) + list(first)
    other = torch.Generator().manual_seed(2)
    again = embank.torch.ResumableLoader(Drawing(other, ahead=1), other)
    again.load_state_dict(state)
    assert list(again) + list(again) == wanted


def test_a_pass_that_is_left_early_has_ended() -> None:
    """A resumed run took it up where it was left, while one that went on began a new one."""
    first = embank.torch.ResumableLoader([[0, 1], [2, 3], [4, 5], [6, 7]])
    for _ in range(2):
        for batch in first:
            if batch == [2, 3]:
                break
    assert first.epoch == 2
    again = embank.torch.ResumableLoader(first.loader)
    again.load_state_dict(first.state_dict())
    assert next(iter(again)) == next(iter(first)) == [0, 1]


def test_a_pass_that_is_closed_late_ends_no_other() -> None:
    loader = embank.torch.ResumableLoader(range(4))
    old: Any = iter(loader)
    next(old)
    new = iter(loader)
    assert [next(new), next(new)] == [0, 1]
    old.close()
    assert (loader.epoch, loader.state_dict()["handed_out"]) == (0, 2)


def test_what_is_skipped_is_not_announced() -> None:
    class Table:
        bank = SimpleNamespace(closed=True)

        def __init__(self) -> None:
            self.keys: list[int] = []

        def lookahead(self, keys: Any) -> None:
            self.keys += keys.tolist()

    def loader_of(table: Any) -> Any:
        batches = [torch.tensor([at]) for at in range(8)]
        return embank.torch.ResumableLoader(
            embank.torch.LookaheadLoader(batches, lambda batch: {table: batch}, depth=1)
        )

    first = loader_of(Table())
    batches = iter(first)
    for _ in range(5):
        next(batches)
    table = Table()
    again = loader_of(table)
    again.load_state_dict(first.state_dict())
    assert [int(batch) for batch in again] == [5, 6, 7]
    assert table.keys == [6, 7]


def test_a_shorter_loader_is_told() -> None:
    loader = embank.torch.ResumableLoader(range(5))
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    again = embank.torch.ResumableLoader(range(3))
    again.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="3 batches, but 4"):
        next(iter(again))
    assert len(again) == 3
    with pytest.raises(TypeError, match="has no len"):
        len(embank.torch.ResumableLoader(iter([1])))
