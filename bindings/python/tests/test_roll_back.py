"""Tests pinned checkpoints, and the return of an open bank to one, for example to the best
epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embank


def numbers(bank: embank.Bank) -> list[int]:
    return [of["number"] for of in embank.list_checkpoints(bank.path)]


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    with embank.Bank(path, memory_budget="8MiB", checkpoints_kept=2) as bank:
        best = bank.checkpoint()
        bank.pin(best)
        bank.pin(best)
        for _ in range(4):
            bank.checkpoint()
        assert numbers(bank) == [1, 4, 5]
        assert [of["pinned"] for of in embank.list_checkpoints(path)] == [True, False, False]
        with pytest.raises(ValueError, match="no checkpoint 2"):
            bank.pin(2)
    with embank.Bank(path, memory_budget="8MiB", checkpoints_kept=1) as bank:
        bank.checkpoint()
        assert numbers(bank) == [1, 6]
        bank.unpin(best)
        bank.unpin(best)
        bank.checkpoint()
        assert numbers(bank) == [7]


def test_a_pinned_checkpoint_keeps_its_rows(tmp_path: Path) -> None:
    with embank.Bank(
        tmp_path / "bank", memory_budget="2MiB", checkpoints_kept=1, compaction=True
    ) as bank:
        table = bank.table("t", dim=16)
        keys = np.arange(20_000)
        for epoch in range(6):
            table.put(keys, np.full((len(keys), 16), epoch, np.float32))
            checkpoint = bank.checkpoint()
            if epoch == 1:
                bank.pin(checkpoint)
        bank.compact()
        assert bank.roll_back(2) == [6]
        assert (table.peek(keys, missing="error") == 1).all()


def test_everything_is_as_the_checkpoint_has_it(bank: embank.Bank) -> None:
    table = bank.table("t", dim=1, optimizer=embank.Adagrad(lr=0.5), initializer=embank.Zeros())
    words = bank.vocabulary("w", "bytes")
    words.ids_or_insert(["a"])
    table.apply_gradients([1], [[1.0]])
    table.learning_rate = 0.25
    table.staleness_bound = 3
    best = bank.checkpoint(b"best")
    before, state = table.peek([1]).tolist(), bank.state_id
    table.apply_gradients([1, 2], [[1.0], [1.0]])
    words.ids_or_insert(["b"])
    worse = bank.checkpoint(b"worse")
    table.apply_gradients([1], [[1.0]])
    lease = table.get([1])
    assert bank.roll_back(best) == [worse]
    assert bank.recovered is not None and bank.recovered.blob == b"best"
    assert bank.last_checkpoint == best and not bank.changed_since_checkpoint
    assert bank.state_id != state
    assert table.peek([1]).tolist() == before and not table.contains([2]).any()
    assert (table.learning_rate, table.staleness_bound) == (0.25, 3)
    assert len(words) == 1 and words.ids(["a"]).tolist() == [words.first_id]
    assert not lease.held
    with pytest.raises(ValueError):
        lease.apply([[1.0]])
    # The next step equals the step of a run without the roll back: the roll back restored the
    # optimizer's state too.
    table.apply_gradients([1], [[1.0]])
    assert np.allclose(table.peek([1])[0, 0], before[0][0] - 0.25 / np.sqrt(2), atol=1e-6)
    assert bank.checkpoint() == best + 1


def test_a_table_that_the_checkpoint_lacks_is_gone_for_its_objects(bank: embank.Bank) -> None:
    first = bank.checkpoint()
    later = bank.table("later", dim=1)
    words = bank.vocabulary("w", "bytes")
    later.put([1], [[1.0]])
    bank.checkpoint()
    bank.roll_back(first)
    with pytest.raises(embank.NoSuchTable, match="taken back"):
        later.peek([1])
    with pytest.raises(embank.NoSuchTable, match="taken back"):
        words.ids(["a"])
    # The next table may get the number of the removed table. The old object never shows the new
    # table.
    other = bank.table("other", dim=1)
    other.put([1], [[2.0]])
    with pytest.raises(embank.NoSuchTable):
        later.peek([1])
    assert other.peek([1]).tolist() == [[2.0]]


def test_a_wrong_number_loses_nothing(bank: embank.Bank) -> None:
    table = bank.table("t", dim=1)
    bank.checkpoint()
    table.put([1], [[1.0]])
    for wrong in (7, 0):
        with pytest.raises(ValueError, match=f"no checkpoint {wrong}"):
            bank.roll_back(wrong)
    assert table.peek([1], missing="error").tolist() == [[1.0]]


def test_a_reader_of_a_newer_checkpoint_is_in_the_way(bank: embank.Bank) -> None:
    table = bank.table("t", dim=1)
    first = bank.checkpoint()
    table.put([1], [[1.0]])
    bank.checkpoint()
    with embank.Bank(bank.path, memory_budget="8MiB", read_only=True) as reader:
        with pytest.raises(embank.EmbankError, match="being read"):
            bank.roll_back(first)
        with pytest.raises(embank.ReadOnly):
            reader.roll_back(first)
    # The bank is open at its newest checkpoint.
    assert table.peek([1], missing="error").tolist() == [[1.0]]
    assert bank.roll_back(first) == [2]
    assert not table.contains([1]).any()


def test_scans_prefetches_and_feeds_end(bank: embank.Bank) -> None:
    table = bank.table("t", dim=1)
    table.put([1], [[1.0]])
    first = bank.checkpoint()
    scan, prefetch = table.scan(), table.prefetch([1])
    bank.roll_back(first)
    assert list(scan) == []
    with pytest.raises((ValueError, embank.EmbankError)):
        prefetch.rows()
    assert table.scan() is not scan and len(list(table.scan())) == 1


USES = [
    "feed", "run", "evaluation", "vocabularies", "generate", "save", "checkpoint", "under way",
]


@pytest.mark.parametrize("use", USES)
def test_a_pipeline_that_ends_with_a_roll_back_says_so(bank: embank.Bank, use: str) -> None:
    """Regression test: the error was "bank is closed", and the bank was open."""
    from embank.pipeline import Column, Field, Output, Pipeline, Spec, modulus, vocabulary

    spec = Spec(
        fields=[Field("site", "int32", required=True)],
        columns=[Column("site", modulus(100), vocabulary("site"))],
        outputs=[Output("ids", ["site"], "i64")],
    )
    pipeline = Pipeline(spec, bank=bank)
    pipeline.run(b"7\n8\n")
    first = bank.checkpoint()
    calls = {
        "feed": lambda: pipeline.feed(b"7\n"),
        "run": lambda: pipeline.run(b"7\n"),
        "evaluation": lambda: pipeline.feed(b"7\n", learn=False),
        "vocabularies": pipeline.vocabularies,
        "generate": lambda: pipeline.generate(b"7\n"),
        "save": pipeline.save,
        "checkpoint": pipeline.checkpoint,
    }
    feed = pipeline.feed(b"7\n8\n9\n", batch_rows=1) if use == "under way" else None
    bank.roll_back(first)
    with pytest.raises(ValueError, match=r"taken back.*Pipeline\(spec, bank=bank\)"):
        list(feed) if feed is not None else calls[use]()
    again = Pipeline(spec, bank=bank)
    assert next(again.feed(b"8\n9\n"))["ids"].ravel().tolist() == [1, 2]
    bank.close()
    with pytest.raises(ValueError, match="bank is closed"):
        again.run(b"7\n")


def words_pipeline(bank: embank.Bank) -> Any:
    """Makes a pipeline over texts, whose vocabulary numbers values of any range."""
    from embank.pipeline import Column, Field, Output, Pipeline, Spec, vocabulary

    field, column = Field("word", "bytes", required=True), Column("word", vocabulary("word"))
    return Pipeline(Spec([field], [column], [Output("ids", ["word"], "i64")]), bank=bank)


def test_a_pipeline_of_a_bank_that_was_taken_back_ends_with_the_next_roll_back(
    bank: embank.Bank,
) -> None:
    first = bank.checkpoint()
    for words in (b"a\nb\nc\n", b"d\ne\nf\n"):
        pipeline = words_pipeline(bank)
        feed = pipeline.feed(words, batch_rows=1)
        assert next(feed)["ids"].tolist() == [[0]]
        bank.roll_back(first)
        assert bank.vocabularies() == []
        for use in (lambda: next(feed), lambda: pipeline.run(words)):
            with pytest.raises(ValueError, match=r"taken back.*Pipeline\(spec, bank=bank\)"):
                use()


def test_a_stream_of_arrow_batches_that_ends_with_a_roll_back_says_so(bank: embank.Bank) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    first = bank.checkpoint()
    feed = words_pipeline(bank).feed(b"a\nb\nc\n", batch_rows=1)
    stream = pyarrow.RecordBatchReader.from_stream(feed)
    assert stream.read_next_batch().num_rows == 1
    bank.roll_back(first)
    with pytest.raises(pyarrow.ArrowInvalid, match="taken back to a checkpoint"):
        stream.read_all()


def test_a_pipeline_that_ends_with_the_roll_back_of_a_model_says_so(bank: embank.Bank) -> None:
    pytest.importorskip("torch")
    import embank.torch

    table = bank.table("t", dim=1, optimizer=embank.SGD(lr=1.0))
    model, pipeline = embank.torch.Embedding(table), words_pipeline(bank)
    pipeline.run(b"a\n")
    with embank.torch.reference.taking_checkpoint():
        bank.checkpoint()
        state = model.state_dict()
    pipeline.run(b"b\n")
    table.put([1], [[1.0]])
    assert embank.torch.roll_back(bank, state) == []
    assert not table.contains([1]).any()
    with pytest.raises(ValueError, match=r"taken back.*Pipeline\(spec, bank=bank\)"):
        pipeline.run(b"b\n")
    assert next(words_pipeline(bank).feed(b"c\n"))["ids"].tolist() == [[1]]


def test_a_pipeline_without_a_bank_goes_on_after_a_roll_back(bank: embank.Bank) -> None:
    from embank.pipeline import Column, Field, Output, Pipeline, Spec

    field = Field("n", "int64", required=True)
    pipeline = Pipeline(Spec([field], [Column("n")], [Output("n", ["n"], "i64")]))
    first = bank.checkpoint()
    feed = pipeline.feed(b"7\n8\n", batch_rows=1)
    assert next(feed)["n"].tolist() == [[7]]
    bank.roll_back(first)
    assert [batch["n"].tolist() for batch in feed] == [[[8]]]
    assert pipeline.run(b"7\n8\n").rows == 2


def test_a_model_goes_on_from_the_best_epoch(bank: embank.Bank) -> None:
    torch = pytest.importorskip("torch")
    from embank.torch import Embedding, resume, save

    table = bank.table("t", dim=2, optimizer=embank.Adagrad(lr=0.1))
    model = torch.nn.Sequential(Embedding(table), torch.nn.Linear(2, 1))
    dense = torch.optim.SGD(model[1].parameters(), lr=0.1)
    keys = torch.arange(8)

    def epoch() -> None:
        dense.zero_grad()
        model(keys).pow(2).sum().backward()
        dense.step()

    epoch()
    best = save(bank, model=model, dense=dense)
    bank.pin(best)
    rows, weight = table.peek(keys.numpy()), model[1].weight.detach().clone()
    for _ in range(3):
        epoch()
        save(bank, model=model, dense=dense)
    bank.roll_back(best)
    resume(bank, model=model, dense=dense)
    assert (table.peek(keys.numpy()) == rows).all() and torch.equal(model[1].weight, weight)
    epoch()
    save(bank, model=model, dense=dense)
