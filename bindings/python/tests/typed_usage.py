"""A program that uses the whole package. `mypy --strict` must find no error in it.

`test_typing.py` runs mypy over it. The program itself is never run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from numpy.typing import NDArray

import embank
import embank.torch
from embank.pipeline import (
    ArrowBatch,
    Batch,
    Column,
    Field,
    FrozenPipeline,
    Output,
    PartialVocabularies,
    Pipeline,
    Spec,
    VocabularySpec,
    connect,
    criteo,
    merge_parts,
    modulus,
    partial_vocabularies,
    split_parts,
    vocabulary,
)
from embank.torch.distributed import ShardedBank, ShardedTable


def train(path: Path, batches: list[NDArray[np.int64]]) -> Optional[bytes]:
    with embank.Bank(path, memory_budget="64MiB", device="auto", wait_timeout=5.0) as bank:
        table: embank.Table = bank.table(
            "user",
            dim=16,
            optimizer=embank.Adagrad(lr=0.01),
            initializer=embank.Uniform(-0.1, 0.1),
            staleness_bound=4,
        )
        for keys in batches:
            table.lookahead(keys)
            with table.get(keys) as lease:
                rows: NDArray[np.float32] = lease.rows
                lease.apply(rows * 2)
            distinct = table.get_distinct([1, 2, 3])
            inverse: NDArray[np.int64] = distinct.inverse
            distinct.put(distinct.rows[inverse[:1]])
        table.learning_rate = 0.5
        table.staleness_bound = None
        late: int = bank.stats()["lookahead"]["late"]
        gets: int = table.stats()["gets"]
        freed: int = bank.compact()["freed_bytes"]
        amplification: float = bank.stats()["space"]["amplification"]
        stopped: Optional[str] = bank.stats()["compaction"]["stopped"]
        print(freed, amplification, stopped)
        number: int = bank.checkpoint(b"%d %d" % (late, gets))
        found: NDArray[np.bool_] = table.contains(np.array([number]))
        with table.scan(batch_size=1000) as scan:
            for some, vectors in scan:
                total: np.float32 = vectors[: len(some)].sum()
                print(scan.checkpoint, len(scan), total)
        delta: int = embank.export_delta(path, path / "delta", since=1, to=number)
        copied: int = embank.copy_checkpoint(path, path.with_name("copy"), checkpoint=delta)
        applied: int = embank.apply_delta("copy", "delta", checkpoints_kept=copied)
        gone: list[int] = embank.roll_back("copy", applied)
        rows_of_users: int = embank.list_checkpoints(path)[gone[0]]["tables"]["user"]
        print(rows_of_users)
        bank.drop_table("user")
        if found.all() and bank.recovered is not None:
            return bank.recovered.blob
    return None


def evaluate(table: embank.Table) -> torch.Tensor:
    bag = embank.torch.EmbeddingBag(table, mode="sum")
    batches = [torch.arange(4)]
    loader = embank.torch.LookaheadLoader(batches, lambda batch: {table: batch}, depth=2)
    total = torch.zeros(table.dim)
    for batch in loader:
        output: torch.Tensor = bag(batch, torch.tensor([0, 2]))
        total += output.sum(0)
    return total


def train_a_model(path: Path, users: embank.Table, items: embank.Table) -> int:
    bank: embank.Bank = users.bank
    buffer = np.empty((3, users.dim), dtype=np.float32)
    users.peek([1, 2, 3], out=buffer)
    for lease in embank.get_many([(users, np.array([1])), (items, torch.tensor([2]))]):
        lease.release()
    bags = embank.torch.EmbeddingBagCollection({"user": users, "item": items}, mode="max")
    words = embank.torch.Embedding.from_pretrained(torch.zeros(3, items.dim), items, padding_idx=0)
    model = torch.nn.ModuleList([bags, words])
    tables = embank.torch.SparseOptimizer(model, lr=0.1)
    loader = embank.torch.ResumableLoader([torch.arange(4)])
    values = embank.torch.resume(bank, model=model, tables=tables, loader=loader)
    step: int = 0 if values is None else values["step"]
    for batch in loader:
        pooled: dict[str, torch.Tensor] = bags({"user": (batch, torch.zeros(1)), "item": batch})
        torch.autograd.backward(pooled["user"].sum())
        torch.nn.utils.clip_grad_norm_(tables.parameters(), 1.0)
        tables.step()
        tables.zero_grad()
    changed: bool = bank.changed_since_checkpoint
    number: Optional[int] = bank.last_checkpoint
    print(changed, number, embank.list_checkpoints(path)[0]["id"])
    gone: list[int] = embank.torch.roll_back(bank, model.state_dict())
    shared: type[UserWarning] = embank.torch.SharedRowsWarning
    same: embank.Bank = copy.deepcopy(bank)
    frozen: bool = bags.freeze().frozen
    print(gone, shared, same, frozen)
    return embank.torch.save(bank, model=model, tables=tables, loader=loader, step=step)


def train_on_ranks(path: Path, batches: list[torch.Tensor]) -> int:
    with ShardedBank(path, memory_budget="64MiB", timeout=60.0) as bank:
        words: ShardedTable = bank.table("word", dim=4, optimizer=embank.Adagrad(lr=0.01))
        model = embank.torch.EmbeddingBagCollection({"word": words})
        tables = embank.torch.SparseOptimizer(model)
        for batch in embank.torch.Pipelined(batches, lambda batch: {words: batch}, depth=2):
            rows: torch.Tensor = embank.torch.Embedding(words)(batch)
            model({"word": batch})["word"].sum().backward()
            tables.step()
            print(rows.shape)
        embank.torch.resume(bank, model=model)
        rates: dict[str, torch.Tensor] = bank.state_dict()
        bank.load_state_dict(rates)
        for batch in bank.together(batches):
            with words.get_distinct(batch) as lease:
                lease.apply(lease.rows * 2)
        print(bank.local.stats()["hits"], words.peek([1]), bank.sets()[0].blob, bank.recovered)
        return embank.torch.save(bank, model=model)


def first_missing(table: embank.Table) -> int:
    try:
        table.peek([1], missing="error")
    except embank.MissingRow as error:
        return error.key
    except embank.StoreIOError as error:
        return error.errno or 0
    return -1


def preprocess(path: Path) -> dict[str, torch.Tensor]:
    spec = Spec(
        [Field("site", "hex32", required=True)],
        [Column("site", modulus(100), vocabulary("site"))],
        [Output("sparse", ["site"], "i64")],
        bad_rows="skip",
    )
    rows: int = Pipeline(spec.to_json(), format="csv", separator=";").run([path, b"7f\n"]).rows
    tensors: dict[str, torch.Tensor] = {}
    with Pipeline(criteo(rows)).feed(path, batch_rows=512, shuffle_rows=10, seed=1) as feed:
        for batch in feed:
            found: Batch = batch
            tensors = found.torch()
        position: int = feed.position
        print(position, None if feed.report is None else feed.report.first_bad_rows)
        arrow: ArrowBatch = batch.arrow()
        print(len(arrow), arrow.__arrow_c_array__(), feed.__arrow_c_stream__())
    with connect("grpc://127.0.0.1:41234", skip_rows=position, seed=2) as remote:
        labels: list[NDArray[np.float32]] = [served["label"] for served in remote]
        print(len(labels), remote.position, None if remote.report is None else remote.report.rows)
    with connect("grpc://127.0.0.1:41234", skip_rows=remote.state_dict(), part=0, of=2) as part:
        print(next(part)["label"], None if part.report is None else part.report.discarded_rows)
    first, second = Pipeline(criteo(rows)).feed(path).split(2)
    discarded: int = first.discarded_rows
    print(discarded, next(second)["label"])
    return tensors


def number_in_a_bank(path: Path, bank: embank.Bank) -> int:
    words: embank.Vocabulary = bank.vocabulary("word", "bytes", first_id=1, unknown_id=0, counts=True)
    ids: NDArray[np.uint64] = words.ids_or_insert(["red", "green"])
    words.count(ids, [1, 2])
    words.frozen = len(words) > 10 or words.ids(["blue"])[0] == embank.UNKNOWN_ID
    rows: embank.Table = bank.table("word", dim=4, vocabulary="word")
    exported: embank.Table = bank.table_as_exported("copy", path, format="npy", vocabulary=False)
    count: int = len(exported)
    print(count, bool(rows), embank.Adam(), embank.SGD(momentum=0.9))
    print(words.values(ids), words.counts(ids), rows.peek(words.lookup([b"red"])).shape)
    spec = Spec(
        [Field("word", "bytes")],
        [Column("word", vocabulary("word"))],
        [Output("ids", ["word"], "i64")],
        vocabularies=[VocabularySpec("word", min_count=2, first_id=1, unknown_id=0)],
    )
    pipeline = Pipeline(spec, bank=bank)
    kept: int = pipeline.generate(path).rows and pipeline.keep_frequent(2)[0][1]
    with pipeline.feed(path, save_each_batch=kept > 0) as feed:
        for _ in feed:
            pipeline.checkpoint(b"%d" % feed.position)
    return pipeline.checkpoint()


def preprocess_on_a_cluster(path: Path, bank: embank.Bank, batches: Iterable[Any]) -> FrozenPipeline:
    parts = split_parts(criteo(5000), [path], part_bytes="1MiB", header=False)
    partial: PartialVocabularies = partial_vocabularies(criteo(5000))
    schema: str = partial.spark_schema
    pipeline = merge_parts(criteo(5000), [partial(parts), *partial.iterator(batches)])
    print(schema, pipeline.spark_schema, pipeline.fingerprint, pipeline.report.rows)
    print(list(pipeline.files(parts)), list(pipeline.files_iterator(batches)))
    print(list(partial.rows_iterator(batches)), list(pipeline.rows_iterator(batches)))
    pipeline.save(bank)
    return pipeline
