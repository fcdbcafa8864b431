"""Runs the Python examples of the README and of the pages in `docs`.

Each example runs alone, in a folder of its own, with the names of `common`. `SETTINGS` gives an
example that needs more its own names, and replaces parts of its text. An example that is missing
here fails with a NameError that says which name it needs. `test_sharded_frameworks` runs the
examples of `ON_RANKS`.
"""

from __future__ import annotations

import copy
import io
import re
import tarfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars
import pyarrow
import pyarrow.flight
import pytest
import torch
from PIL import Image
from test_serve import serving

import embank
import embank.pipeline
import embank.torch
from embank.torch.distributed import ShardedBank

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
Names = dict[str, Any]


@dataclass(frozen=True)
class Example:
    page: str
    heading: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.heading}"


@dataclass
class Setting:
    """What an example finds: more names, and other words for parts of its text."""

    names: Callable[[Names, ExitStack], Names] = lambda names, stack: {}
    instead: dict[str, str] = field(default_factory=dict)


def examples_of(page: Path) -> Iterator[Example]:
    """Returns the blocks of Python, each with the heading above it and its first line."""
    heading, begin = "", 0
    block: list[str] | None = None
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if block is not None:
            if line.startswith("```"):
                yield Example(page.name, heading, begin, "\n".join(block))
                block = None
            else:
                block.append(line)
        elif line.startswith("```python"):
            block, begin = [], number + 1
        elif line.startswith("#"):
            heading = line.lstrip("# ")


ON_RANKS = {("distributed.md", "Lightning"), ("distributed.md", "Transformers")}
EXAMPLES = [
    example
    for page in PAGES
    for example in examples_of(page)
    if (example.page, example.heading) not in ON_RANKS
]


def common() -> Names:
    """The names that every example may use."""
    bank = embank.Bank("example.bank", memory_budget="16MiB")
    bank.pin(bank.checkpoint())
    users = bank.table("of users", dim=16, optimizer=embank.Adagrad(lr=0.05))
    items = bank.table("of items", dim=16, optimizer=embank.Adagrad(lr=0.05))
    Path("clicks.tsv").write_text("".join(f"{row % 2}\t{row % 50:08x}\n" for row in range(500)))
    Path("eval.tsv").write_text("0\t00000001\n1\tffffffff\n")
    keys = torch.arange(8)
    return {
        "embank": embank, "np": np, "torch": torch, "pyarrow": pyarrow, "polars": polars,
        **vars(embank.pipeline), "bank": bank, "users": users, "items": items, "table": users,
        "keys": keys, "offsets": torch.tensor([0, 3, 5]), "weights": torch.ones(8),
        "user_ids": torch.tensor([[1], [2], [3]]), "gradient_of": lambda rows: rows,
        "train": ignore, "evaluate": ignore, "model": embank.torch.EmbeddingBag(users),
        "loss_of": lambda model, part: model(part).sum(), "parts": [keys[None], keys[None]],
    }


def ignore(*_: Any, **__: Any) -> None:
    pass


def two_tables(names: Names, stack: ExitStack) -> Names:
    names["users"].get([0, 1]).apply(np.ones((2, 16), np.float32))
    return {"other": names["bank"].table("other", dim=16, optimizer=embank.Adagrad(lr=0.05))}


def tracked_table(names: Names, stack: ExitStack) -> Names:
    table = names["bank"].table("tracked", dim=4, optimizer=None, tracking="minutes")
    table.put([1, 2], np.ones((2, 4), np.float32))
    return {"table": table}


def arrow(names: Names, stack: ExitStack) -> Names:
    pipeline = of_clicks()
    with pipeline.feed("clicks.tsv") as feed:
        return {"batch": next(feed), "pipeline": pipeline}


def of_clicks() -> embank.pipeline.Pipeline:
    return embank.pipeline.Pipeline(embank.pipeline.Spec(
        fields=[
            embank.pipeline.Field("clicked", "int32", required=True),
            embank.pipeline.Field("site", "skip"),
        ],
        columns=[embank.pipeline.Column("clicked")],
        outputs=[embank.pipeline.Output("dense", ["clicked"], "f32")],
    ))


def shards(names: Names, stack: ExitStack) -> Names:
    Path("shards").mkdir()
    picture = io.BytesIO()
    Image.new("RGB", (300, 280)).save(picture, "JPEG")
    with tarfile.open("shards/0.tar", "w") as archive:
        for name, data in (("0.jpg", picture.getvalue()), ("0.cls", b"3")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return {}


def server(names: Names, stack: ExitStack) -> Names:
    rows = b"".join(b"%d\t%x\n" % (row, row) for row in range(100))
    return {"ADDRESS": stack.enter_context(serving(Path.cwd(), rows))}


class Blocks:
    """Rows in an engine that has one worker and knows what the examples call."""

    def __init__(self, rows: pyarrow.Table) -> None:
        self.rows = rows
        self.write = SimpleNamespace(parquet=self.write_parquet)

    def repartition(self, count: int) -> Blocks:
        return self

    def repartitionByRange(self, count: int, by: str) -> Blocks:
        return self

    def sortWithinPartitions(self, by: str) -> Blocks:
        return Blocks(self.rows.sort_by(by))

    def map_batches(self, call: Callable[[Any], Any], **how: Any) -> Blocks:
        assert how == {"batch_format": "pyarrow", "batch_size": None}
        made = call(self.rows)
        return Blocks(made if isinstance(made, pyarrow.Table) else pyarrow.concat_tables(made))

    def mapInArrow(self, call: Callable[[Any], Any], schema: str) -> Blocks:
        assert schema.startswith("part BIGINT")
        return Blocks(pyarrow.Table.from_batches(call(self.rows.to_batches())))

    def iter_batches(self, **how: Any) -> Iterator[pyarrow.Table]:
        yield self.rows

    def toArrow(self) -> pyarrow.Table:
        return self.rows

    def write_parquet(self, path: str) -> None:
        assert self.rows.num_rows == 500


def engines(names: Names, stack: ExitStack) -> Names:
    pipeline = embank.pipeline
    spec = pipeline.Spec(
        fields=[pipeline.Field("clicked", "int32"), pipeline.Field("site", "hex32")],
        columns=[
            pipeline.Column(
                "site", pipeline.fill_missing(0), pipeline.modulus(99), pipeline.vocabulary("site")
            )
        ],
        outputs=[pipeline.Output("ids", ["site"], "i64")],
    )
    numbers = range(500)
    rows = pyarrow.table({"row": numbers, "clicked": [1] * 500, "site": numbers})
    return {
        "spec": spec, "spark": SimpleNamespace(createDataFrame=Blocks),
        "frame": Blocks(rows), "partial": pipeline.partial_vocabularies(spec),
        "ray": SimpleNamespace(data=SimpleNamespace(from_arrow=Blocks)),
    }


def graph(names: Names, stack: ExitStack) -> Names:
    pytest.importorskip("torch_geometric")
    features = np.ones((5, 3), np.float32)
    return {
        "features": features, "num_rows": 5, "graph_store": None,
        "NeighborLoader": lambda *_, **__: [],
    }


def data_loader(*_: Any) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(range(32), batch_size=8)  # type: ignore[arg-type]


def resuming(names: Names, stack: ExitStack) -> Names:
    names["bank"].close()

    def made(bank: embank.Bank) -> tuple[Any, ...]:
        items = bank.table("item", dim=4, optimizer=embank.SGD(lr=0.1))
        model = torch.nn.Sequential(embank.torch.Embedding(items), torch.nn.Linear(4, 1))
        dense = torch.optim.Adam(model.parameters())
        tables = embank.torch.SparseOptimizer(model)
        schedule = torch.optim.lr_scheduler.ExponentialLR(tables, gamma=0.9)
        return model, dense, tables, schedule, lambda batch: {items: batch}

    return {"made": made, "DataLoader": data_loader, "EPOCHS": 2}


def epochs(names: Names, stack: ExitStack) -> Names:
    parts = {"model": names["model"]}
    return {"values": {"epoch": 0, "feed": 0}, "EPOCHS": 2, "pipeline": of_clicks(), "parts": parts}


def frameworks(names: Names, stack: ExitStack) -> Names:
    return {
        "accelerator": SimpleNamespace(save_state=ignore),
        "lightning": SimpleNamespace(Callback=object),
        "transformers": SimpleNamespace(
            TrainingArguments=lambda *_, **__: None, Trainer=lambda *_: SimpleNamespace(train=ignore)
        ),
    }


def copies(names: Names, stack: ExitStack) -> Names:
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore", embank.torch.SharedRowsWarning)
    model = torch.nn.Sequential()
    model.add_module("rows", embank.torch.Embedding(names["items"]))
    return {"copy": copy, "decay": 0.9, "model": model}


def reader(names: Names, stack: ExitStack) -> Names:
    embank.torch.save(names["bank"], model=names["model"])
    bank = stack.enter_context(embank.Bank("example.bank", memory_budget="16MiB", read_only=True))
    model = embank.torch.EmbeddingBag(bank.open_table("of users"))
    return {"bank": bank, "model": model}


def rank(names: Names, stack: ExitStack) -> Names:
    class ClickModel(torch.nn.Module):
        def __init__(self, bags: torch.nn.Module) -> None:
            super().__init__()
            self.bags, self.top = bags, torch.nn.Linear(32, 1)

        def forward(self, batch: Any) -> torch.Tensor:
            bags = self.bags({"user": batch.user, "seen": batch.seen})
            return self.top(torch.cat(list(bags.values()), dim=1))

    batch = SimpleNamespace(user=torch.tensor([[1], [2]]), seen=torch.tensor([[3, 4], [4, 5]]))
    return {
        "ClickModel": ClickModel, "loader": [batch] * 3,
        "loss_of": lambda output, batch: output.sum(),
    }


def saved_by_torch(names: Names, stack: ExitStack) -> Names:
    model = SimpleNamespace(module=names["model"])
    return {"dcp": SimpleNamespace(save=ignore, load=ignore), "model": model}


def begin_one_rank(stack: ExitStack) -> None:
    import torch.distributed as dist

    store = dist.FileStore("ranks", 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    stack.callback(dist.destroy_process_group)


def server_of_one_rank(names: Names, stack: ExitStack) -> Names:
    begin_one_rank(stack)
    return server(names, stack)


def saved_by_one_rank(names: Names, stack: ExitStack) -> Names:
    import torch.distributed.checkpoint as dcp

    begin_one_rank(stack)
    with ShardedBank("clicks.banks", memory_budget="16MiB") as bank:
        bank.checkpoint()
        dcp.save({"bank": bank}, checkpoint_id="dcp/7")
        bank.checkpoint()
    return {"dcp": dcp, "ShardedBank": ShardedBank}


SETTINGS = {
    ("distributed.md", "Several ranks: torch.distributed"): Setting(
        rank,
        {
            'init_process_group("gloo")': 'init_process_group("gloo", store=dist.FileStore("ranks", 1), rank=0, world_size=1)'
        },
    ),
    ("distributed.md", "Sets"): Setting(saved_by_torch),
    ("distributed.md", "Resuming from a DCP file"): Setting(
        saved_by_one_rank, {"timeout=60.0)": "timeout=60.0)\nbank.close()"}
    ),
    ("export.md", "Export and import"): Setting(two_tables),
    ("life.md", "Eviction"): Setting(tracked_table),
    ("pipeline.md", "On Ray and Spark"): Setting(engines),
    ("pipeline.md", "Pictures"): Setting(shards),
    ("pipeline.md", "Serving a training loop elsewhere"): Setting(
        server,
        {'"grpc://127.0.0.1:41234"': "ADDRESS", 'column("dense")': 'column("f")'},
    ),
    ("python.md", "Batches of a pipeline elsewhere"): Setting(
        server, {'"grpc://preprocessing:41234"': "ADDRESS"}
    ),
    ("python.md", "One preprocessing for several trainers"): Setting(
        server_of_one_rank, {'"grpc://preprocessing:41234"': "ADDRESS"}
    ),
    ("python.md", "Arrow"): Setting(arrow),
    ("python.md", "PyTorch Geometric"): Setting(graph),
    ("python.md", "Checkpoints and resuming"): Setting(
        resuming, {"...  ": "model, dense, tables, schedule, keys_of = made(bank)  "}
    ),
    ("python.md", "Checkpoints of Lightning and accelerate"): Setting(frameworks),
    ("python.md", "Copies of a model"): Setting(copies),
    ("python.md", "Threads, processes and fork"): Setting(reader),
}


def setting_of(example: Example) -> Setting:
    if "values: {" in example.text:
        return Setting(epochs)
    return SETTINGS.get((example.page, example.heading), Setting())


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_of_a_page_runs(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    setting = setting_of(example)
    names = common()
    with ExitStack() as stack:
        stack.callback(close_banks, names)
        names.update(setting.names(names, stack))
        text = example.text
        for words, others in setting.instead.items():
            assert words in text, f"{example}: the example has no {words!r} to replace"
            text = text.replace(words, others)
        exec(compile(text, str(example), "exec"), names)


def close_banks(names: Names) -> None:
    for value in list(names.values()):
        if isinstance(value, embank.Bank):
            value.close()


def test_the_pages_have_examples() -> None:
    assert len(EXAMPLES) >= 20
    for page, heading in SETTINGS:
        assert any(example.page == page and example.heading == heading for example in EXAMPLES), (
            f"{page} has no example below {heading!r}"
        )


def test_examples_are_found_with_their_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n```python\nx = 1\n# no heading\n```\n## B\n```text\nz\n```\n```python\n```\n")
    found = [(example.heading, example.line, example.text) for example in examples_of(page)]
    assert found == [("A", 3, "x = 1\n# no heading"), ("B", 11, "")]
    assert re.fullmatch(r"page.md:3 A", str(next(examples_of(page))))
