"""Tests that a `ResumableLoader` continues a pass where its state was taken, in the same order."""

from __future__ import annotations

import dataclasses
import pickle
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embank

torch = pytest.importorskip("torch")

import embank.torch  # noqa: E402
import embank.torch.order  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


def loaders(seed: int) -> list[Any]:
    """Makes loaders that draw their order in different ways, with the generator of each."""
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
    """Shows that a resumed loader repeats the random numbers that it draws for every batch, also
    with another depth of lookahead."""

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
    """Shows that a resumed run does not continue a pass that the unbroken run has ended early."""
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


@pytest.mark.parametrize("ahead", [False, True])
def test_another_batch_size_or_data_set_is_told(ahead: bool) -> None:
    """Shows that `load_state_dict` names the changed batch size or data set. Earlier versions
    failed only at the first batch, and blamed an unknown generator."""

    def loader_of(samples: int, batch_size: int) -> Any:
        loader: Any = DataLoader(torch.arange(samples), batch_size=batch_size, shuffle=True)
        if ahead:
            loader = embank.torch.LookaheadLoader(loader, lambda batch: {})
        return embank.torch.ResumableLoader(loader)

    loader = loader_of(4000, 50)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()
    ended = loader.state_dict()
    for samples, batch_size, message in (
        (4000, 25, "with batches of 50, and has batches of 25 now"),
        (4001, 50, "with 4,000 samples in the data set, and has 4,001 samples in the data set now"),
        (4001, 25, "with batches of 50 and 4,000 samples .* batches of 25 and 4,001 samples"),
    ):
        other = loader_of(samples, batch_size)
        with pytest.raises(ValueError, match=f"within a pass {message}.*strict=False"):
            other.load_state_dict(state)
        # Between two passes, the batch size and the data set may change.
        other.load_state_dict(ended)
        assert (other.epoch, len(next(iter(other)))) == (1, batch_size)


def test_another_batch_sampler_is_told_as_one_of_several_reasons() -> None:
    """Shows that the error names the batch sampler among the possible reasons. It once named only
    generators."""
    data = torch.arange(40)
    loader = embank.torch.ResumableLoader(
        DataLoader(data, batch_sampler=OwnOrder(lambda _: np.arange(40).reshape(10, 4), 10))
    )
    next(iter(loader))
    batches = iter(loader)
    next(batches)
    again = embank.torch.ResumableLoader(
        DataLoader(data, batch_sampler=OwnOrder(lambda _: np.arange(40).reshape(8, 5), 8))
    )
    again.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="the sampler or the batch size has changed, or"):
        next(iter(again))


class OwnOrder:
    """A sampler whose order comes from a source of random numbers."""

    def __init__(self, shuffled: Any, length: int) -> None:
        self.shuffled, self.length = shuffled, length

    def __iter__(self) -> Any:
        return iter(self.shuffled(list(range(self.length))))

    def __len__(self) -> int:
        return self.length


def shuffled_by_python(order: list[int]) -> list[int]:
    random.shuffle(order)
    return order


class Stream:
    """The samples of a shuffling buffer. It draws once for each sample, and the training loop draws
    too."""

    def __init__(self, draw: Any, length: int) -> None:
        self.draw, self.length = draw, length

    def __iter__(self) -> Any:
        buffer: list[int] = []
        for sample in range(self.length):
            buffer.append(sample)
            if len(buffer) > 7:
                yield buffer.pop(self.draw(len(buffer)))
        while buffer:
            yield buffer.pop(self.draw(len(buffer)))


def resumed_anywhere(make: Any, stop: int, ahead: int, model: Any) -> list[Any]:
    """Returns the batches of a pass that one process begins and another ends. Each process has its
    own seeds."""

    def loader_of() -> Any:
        loader = make()
        if ahead:
            loader = embank.torch.LookaheadLoader(loader, lambda batch: {}, depth=ahead)
        return embank.torch.ResumableLoader(loader)

    def process(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    process(stop)
    first, seen = loader_of(), []
    for _ in range(stop % 3):
        list(first)
    batches = iter(first)
    for _ in range(stop):
        seen.append(next(batches))
        model()
    state = first.state_dict()
    generators = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    process(stop + 1000)
    again = loader_of()
    again.load_state_dict(state)
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    torch.set_rng_state(generators[2])
    for batch in again:
        seen.append(batch)
        model()
    return seen


def flat(batches: list[Any]) -> list[int]:
    return sorted(int(sample) for batch in batches for sample in np.asarray(batch).reshape(-1))


REPEATED = {
    "torch": lambda: DataLoader(torch.arange(40), batch_size=4, shuffle=True),
    "python": lambda: DataLoader(
        torch.arange(40), batch_size=4, sampler=OwnOrder(shuffled_by_python, 40)
    ),
    "numpy": lambda: DataLoader(
        torch.arange(40), batch_size=4, sampler=OwnOrder(np.random.permutation, 40)
    ),
    "batches by numpy": lambda: DataLoader(
        torch.arange(40),
        batch_sampler=OwnOrder(lambda order: np.random.permutation(40).reshape(10, 4), 10),
    ),
    "a stream by python": lambda: Stream(random.randrange, 40),
    "a stream by numpy": lambda: Stream(np.random.randint, 40),
    "no random order": lambda: [[at, at + 1] for at in range(0, 40, 2)],
}


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("make", REPEATED.values(), ids=REPEATED)
def test_a_resumed_pass_hands_out_every_sample_once(make: Any, ahead: int) -> None:
    """Shows that a shuffle by Python or NumPy is repeated: each sample comes once."""
    for stop in range(1, 10):
        seen = resumed_anywhere(make, stop, ahead, lambda: torch.rand(3))
        assert flat(seen) == list(range(40)), f"stopped after {stop} batches"


@pytest.mark.parametrize("ahead", [0, 3])
def test_an_order_that_cannot_be_repeated_is_told(ahead: int) -> None:
    """Shows the refusal for a sampler with its own generator, and for a stream whose draws mix with
    the model's."""

    def of_its_own() -> Any:
        # The seed stands for a second process, whose generator is at another place of its sequence
        # or begins again.
        own = np.random.default_rng(random.randrange(1 << 30))
        return DataLoader(torch.arange(40), batch_size=4, sampler=OwnOrder(own.permutation, 40))

    def shared() -> Any:
        return Stream(random.randrange, 40)

    for stop in range(2, 10):
        with pytest.raises(ValueError, match="ResumableLoader.loader, generator"):
            resumed_anywhere(of_its_own, stop, ahead, lambda: None)
    told = 0
    for stop in range(2, 30):
        try:
            seen = resumed_anywhere(shared, stop, ahead, random.random)
        except ValueError as error:
            assert "ResumableLoader(loader, generator)" in str(error)
            told += 1
        else:
            assert flat(seen) == list(range(40)), f"silent, stopped after {stop} batches"
    assert told > 20


def test_the_digest_of_an_order_tells_values_apart() -> None:
    """Shows that the digests of different batches differ, in each form of a batch."""

    @dataclasses.dataclass
    class Pair:
        a: int
        b: Any

    def digest(batch: Any) -> int:
        order = embank.torch.order.Order()
        order.note(batch)
        return order.digest

    batches = [
        torch.tensor([1, 2]), torch.tensor([2, 1]), torch.tensor([1, 2], dtype=torch.int32),
        torch.tensor([[1, 2]]), torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.tensor(1),
        np.array([1, 2]), np.array(["a", None], dtype=object), np.array([[1, 2]]), np.int64(1), 1, 1.0,
        True, None, "1", b"1", [1, 2], [1], [[1], 2], (), {"a": 1}, {"b": 1}, Pair(1, 2), Pair(1, [2]),
        torch.empty(0), torch.arange(6).reshape(2, 3).t(), torch.arange(6).reshape(3, 2),
    ]  # fmt: skip
    digests = [digest(batch) for batch in batches]
    assert len(set(digests)) == len(digests)
    assert digests == [digest(batch) for batch in batches]


def test_a_state_without_an_order_is_taken() -> None:
    """Shows that the state of a version that stored only torch's generator is accepted."""
    torch.manual_seed(1)
    loader = DataLoader(torch.arange(12), batch_size=3, shuffle=True)
    began_with = torch.get_rng_state()
    wanted = [batch.tolist() for batch in loader]
    again = embank.torch.ResumableLoader(loader)
    again.load_state_dict({"epoch": 0, "handed_out": 1, "began_with": began_with, "generator": None})
    assert [batch.tolist() for batch in again] == wanted[1:]


def test_an_iteration_outside_of_a_pass_is_not_noted() -> None:
    """Shows that an iteration outside of a pass does not change the digest of the pass before."""
    data = DataLoader(torch.arange(12), batch_size=3, shuffle=True)
    loader = embank.torch.ResumableLoader(data)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert len(list(data)) == 4
    assert loader.state_dict()["order"] == state["order"]


def test_a_sampler_that_is_noted_stays_what_it_is() -> None:
    loader: Any = DataLoader(torch.arange(12), batch_size=3, shuffle=True)
    embank.torch.ResumableLoader(loader)
    embank.torch.ResumableLoader(loader)
    assert (len(loader), loader.batch_sampler.batch_size, len(list(loader))) == (4, 3, 4)
    copied = pickle.loads(pickle.dumps(loader))
    assert len(list(copied)) == 4


class Stretch:
    """A sampler that shuffles with a generator that `ResumableLoader` does not get."""

    def __init__(self) -> None:
        self.own = torch.Generator()
        self.own.manual_seed(3)

    def __iter__(self) -> Any:
        return iter(torch.randperm(40, generator=self.own).tolist())

    def __len__(self) -> int:
        return 40


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_do_not_hide_another_order(persistent: bool) -> None:
    """Shows that another order is found with workers too. A `DataLoader` with workers begins two
    iterations of its sampler and draws from the second.
    """
    data = torch.utils.data.DataLoader(
        range(40),  # type: ignore[arg-type]
        batch_size=4,
        sampler=Stretch(),
        num_workers=2,
        persistent_workers=persistent,
    )
    for _ in data:  # persistent workers keep the sampler of their first pass
        pass
    loader = embank.torch.ResumableLoader(data)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    batches.close()  # type: ignore[attr-defined]
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="can't repeat the order"):
        next(iter(loader))


def test_workers_that_overtake_each_other_can_not_be_resumed() -> None:
    """Shows that a loader with `in_order=False` is refused when it is wrapped. It once was refused
    only at the resume, when the run was lost."""
    data: Any = torch.utils.data.DataLoader(range(40), batch_size=4, num_workers=2, in_order=False)  # type: ignore[arg-type]
    for loader in (data, embank.torch.LookaheadLoader(data, lambda batch: {})):
        with pytest.raises(ValueError, match="in_order=True"):
            embank.torch.ResumableLoader(loader)


@pytest.mark.parametrize("of", ["loader", "sampler", "batch sampler"])
def test_a_generator_that_is_not_named_comes_back(of: str) -> None:
    """Shows that the loader's own generator is restored if the program does not pass it. Between
    two passes, a resumed run once began again with the order of the first pass. Within a pass it
    raised `ValueError`.
    """

    def loader_of() -> Any:
        own = torch.Generator().manual_seed(5)
        data = torch.arange(12)
        if of == "loader":
            return DataLoader(data, batch_size=2, shuffle=True, generator=own)
        sampler = torch.utils.data.RandomSampler(data, generator=own)
        if of == "sampler":
            return DataLoader(data, batch_size=2, sampler=sampler)
        batches = torch.utils.data.BatchSampler(sampler, 2, False)
        return DataLoader(data, batch_sampler=batches)

    loader = embank.torch.ResumableLoader(loader_of())
    unbroken = [torch.cat(list(loader)).tolist() for _ in range(3)]
    assert unbroken[0] != unbroken[1]
    for batches_before in (6, 8):
        loader = embank.torch.ResumableLoader(loader_of())
        whole = list(loader)
        assert torch.cat(whole).tolist() == unbroken[0]
        head: list[Any] = []
        running = iter(loader)
        while len(whole) + len(head) < batches_before:
            head.append(next(running))
        state = loader.state_dict()
        again = embank.torch.ResumableLoader(loader_of())
        again.load_state_dict(state)
        assert torch.cat(head + list(again)).tolist() == unbroken[1]
        assert torch.cat(list(again)).tolist() == unbroken[2]


def test_a_state_of_an_older_version_without_the_own_generator() -> None:
    """Shows that the random state of an old state dict is not written into the loader's own
    generator. It is the state of the global generator, but earlier versions wrote it there."""
    data: Any = DataLoader(
        torch.arange(8), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(7)
    )
    loader = embank.torch.ResumableLoader(data)
    own = data.generator.get_state()
    loader.load_state_dict(
        {"epoch": 0, "handed_out": 1, "began_with": torch.get_rng_state(), "generator": None}
    )
    assert torch.equal(data.generator.get_state(), own)
    expected = list(
        DataLoader(
            torch.arange(8), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(7)
        )
    )
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in expected[1:]]
