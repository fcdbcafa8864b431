"""Models that the tests of sharded banks train: on ranks, and in one process that takes the parts
of each batch in turn.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import embank
import embank.torch
from embank.torch.distributed import ShardedBank

ROWS = 8
"""The rows of a batch on one rank."""
BUDGET = "16MiB"

Bank = Union[embank.Bank, ShardedBank]
Batch = dict[str, Tensor]
Export = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


class Dlrm(nn.Module):
    """Three bags over two tables, crossed with dense features."""

    def __init__(self, bank: Bank, optimizer: Any, **options: Any) -> None:
        super().__init__()
        options = {"dim": 8, "optimizer": optimizer, **options}
        users, items = bank.table("user", **options), bank.table("item", **options)
        self.bags = embank.torch.EmbeddingBagCollection(
            {"user": users, "seen": items, "liked": items},
            mode={"user": "sum", "seen": "mean", "liked": "sum"},
        )
        self.bottom = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(14, 8), nn.ReLU(), nn.Linear(8, 1))

    def features(self, batch: Batch) -> dict[str, Tensor]:
        keys = batch["keys"]
        return {"user": keys[:, :1], "seen": keys[:, 1:4], "liked": keys[:, 4:6]}

    def announced(self, batch: Batch) -> dict[Any, Tensor]:
        """The keys of a batch by table, for `Pipelined`."""
        of = self.features(batch)
        tables = self.bags.features
        return {
            tables["user"]: of["user"],
            tables["seen"]: torch.cat([of["seen"].reshape(-1), of["liked"].reshape(-1)]),
        }

    def forward(self, batch: Batch) -> Tensor:
        dense = self.bottom(batch["dense"])
        bags = self.bags(self.features(batch))
        every = torch.stack([dense, *bags.values()], dim=1)
        products = torch.bmm(every, every.transpose(1, 2))
        above = torch.triu_indices(4, 4, offset=1)
        crossed = torch.cat([dense, products[:, above[0], above[1]]], dim=1)
        logits = self.top(crossed).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, batch["label"])


class DistMult(nn.Module):
    """Entities and relations, with tails drawn at random as negatives."""

    def __init__(self, bank: Bank, optimizer: Any, **options: Any) -> None:
        super().__init__()
        options = {"dim": 8, "optimizer": optimizer, **options}
        entities, relations = bank.table("entity", **options), bank.table("relation", **options)
        self.rows = embank.torch.EmbeddingCollection(
            {"head": entities, "tail": entities, "wrong": entities, "relation": relations}
        )

    def forward(self, batch: Batch) -> Tensor:
        keys = batch["keys"]
        rows = self.rows(
            {"head": keys[:, 0], "tail": keys[:, 1], "wrong": keys[:, 2:5], "relation": keys[:, 5] % 7}
        )
        query = rows["head"] * rows["relation"]
        right = (query * rows["tail"]).sum(1)
        wrong = (query.unsqueeze(1) * rows["wrong"]).sum(2)
        softplus = nn.functional.softplus
        return softplus(-right).mean() + softplus(wrong).mean()


MODELS: dict[str, Callable[..., nn.Module]] = {"dlrm": Dlrm, "distmult": DistMult}
OPTIMIZERS = {"sgd": embank.SGD(lr=0.5), "adagrad": embank.Adagrad(lr=0.1)}


def batches(steps: int, ranks: int, rank: int, rows: int = ROWS) -> Iterator[Batch]:
    """The parts of one rank, of `rows` rows each. Keys repeat within and over ranks."""
    random = np.random.default_rng(5)
    for _ in range(steps):
        keys = (random.random((ranks * rows, 6)) ** 2 * 40).astype(np.int64)
        dense = random.random((ranks * rows, 4)).astype(np.float32)
        label = (random.random(ranks * rows) < 0.5).astype(np.float32)
        own = slice(rank * rows, (rank + 1) * rows)
        yield {
            "keys": torch.from_numpy(keys[own]),
            "dense": torch.from_numpy(dense[own]),
            "label": torch.from_numpy(label[own]),
        }


def exported(bank: Bank, directory: Path) -> Export:
    """The keys, rows and optimizer states of all tables, by name, in the order of the keys. Over
    shards, those of this rank's shard.
    """
    bank.checkpoint()
    local = bank if isinstance(bank, embank.Bank) else bank.local
    found = {}
    for name in bank.tables():
        path = directory / f"{name}.npy"
        local.open_table(name).export(path, format="npy", state=True)
        keys, rows = (np.load(directory / f"{name}.{part}.npy") for part in ("keys", "rows"))
        state_path = directory / f"{name}.state.npy"
        state = np.load(state_path) if state_path.exists() else np.zeros((len(keys), 0))
        order = np.argsort(keys)
        found[name] = keys[order], rows[order], state[order]
    return found


def joined(exports: Sequence[Export]) -> Export:
    """The rows of all shards, in the order of the keys."""
    found = {}
    for name in exports[0]:
        keys, rows, state = (np.concatenate([of[name][at] for of in exports]) for at in range(3))
        order = np.argsort(keys)
        found[name] = keys[order], rows[order], state[order]
    return found


def differences(one: Export, other: Export) -> list[str]:
    """The names of what differs in two exports, by one bit or more."""
    return [
        f"{name}: {part}"
        for name in sorted({*one, *other})
        for at, part in enumerate(("keys", "rows", "state"))
        if name not in one or name not in other or not np.array_equal(one[name][at], other[name][at])
    ]


def in_rank_order(group: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Adds dense gradients in the order of the ranks. gloo adds more than two in another order."""
    mine = bucket.buffer()
    of_all = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, mine)
    total = of_all[0]
    for of in of_all[1:]:
        total = total + of
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(total / len(of_all))
    return done


# torch looks at the annotations themselves, not at their text.
in_rank_order.__annotations__ = {
    "bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]
}  # fmt: skip


def train_on_rank(
    rank: int,
    directory: Path,
    model_name: str,
    optimizer: str,
    steps: int,
    options: Optional[dict[str, Any]] = None,
) -> tuple[list[float], Export]:
    """Trains on one of several ranks. Returns its losses, and what its shard has."""
    options = options or {}
    ranks = dist.get_world_size()
    bank = ShardedBank(
        directory / "fleet", memory_budget=BUDGET, timeout=60.0, gradients=options.get("gradients", "mean")
    )
    torch.manual_seed(7)
    inner = MODELS[model_name](bank, OPTIMIZERS[optimizer], staleness_bound=options.get("bound"))
    model = DistributedDataParallel(inner)
    if ranks > 2:
        model.register_comm_hook(None, in_rank_order)
    dense = dense_optimizer(inner)
    losses = []
    depth = options.get("depth")
    source: Any = batches(steps, ranks, rank)
    if depth is not None:
        source = embank.torch.Pipelined(source, inner.announced, depth=depth)  # type: ignore[arg-type]
    for batch in source:
        loss = model(batch)
        dense.zero_grad()
        loss.backward()
        dense.step()
        losses.append(loss.item())
    (directory / f"export-{rank}").mkdir()
    found = exported(bank, directory / f"export-{rank}")
    bank.close()
    del model, loss
    gc.collect()
    return losses, found


def train_in_turn(
    rank: int,
    directory: Path,
    model_name: str,
    optimizer: str,
    steps: int,
    parts: int,
    ranks_a_part: int = 1,
) -> tuple[list[list[float]], Export]:
    """Trains in one process, which takes the parts of each batch in turn, and divides the sums of
    their gradients. A part has the rows of `ranks_a_part` ranks. Returns the losses of each part,
    and what the bank has.
    """
    bank = embank.Bank(directory / "alone", memory_budget=BUDGET)
    torch.manual_seed(7)
    model = MODELS[model_name](bank, OPTIMIZERS[optimizer])
    # Its sums are those of distinct rows, as over shards. A table that pools bags adds them in
    # another order.
    tables = embank.torch.SparseOptimizer(model)
    dense = dense_optimizer(model)
    losses: list[list[float]] = [[] for _ in range(parts)]
    for batch_parts in zip(
        *(batches(steps, parts, part, ROWS * ranks_a_part) for part in range(parts))
    ):
        dense.zero_grad()
        tables.zero_grad()
        for part, batch in enumerate(batch_parts):
            loss = model(batch)
            loss.backward()
            losses[part].append(loss.item())
        for parameter in [*model.parameters(), *tables.parameters()]:
            assert parameter.grad is not None
            parameter.grad /= parts
        dense.step()
        tables.step()
    (directory / "export-alone").mkdir()
    found = exported(bank, directory / "export-alone")
    bank.close()
    return losses, found


def dense_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)
