"""Tests that a model over a `ShardedBank` with DistributedDataParallel learns what TorchRec's
row-wise sharding learns, on two ranks with plain SGD.

TorchRec has no part in the package: only this test imports it.
"""

from __future__ import annotations

import gc
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import embank  # noqa: E402
import embank.torch  # noqa: E402
from embank.torch.distributed import ShardedBank  # noqa: E402

STEPS = 20
LIMIT = 1e-5
"""The largest difference of a loss, and of a number in a row."""
RATE, DENSE_RATE = 4.0, 0.5
DIM = 8
KEYS = 41
"""Keys are below this odd number, so the parts of the ranks are unequal."""
ROWS = 16
"""The rows of a batch on one rank."""
TABLES = {"user": ["user"], "item": ["seen", "liked"], "tag": ["tags"]}
"""The features of each table."""
MEANS = ("tag",)
"""The tables whose bags are means. The other bags are sums."""
LENGTHS = {"user": 1, "seen": 3, "liked": 2, "tags": 4}
"""The longest bag of each feature. Bags are shorter at random, but those of `user`."""


class Model(nn.Module):
    """A dense part over the bags of a collection, which is TorchRec's or Embank's."""

    def __init__(self, bags: nn.Module) -> None:
        super().__init__()
        self.bags = bags
        torch.manual_seed(7)
        width = DIM * len(LENGTHS) + 4
        self.top = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch: dict[str, Any]) -> Tensor:
        bags = self.bags(batch["keys"])
        of = bags if isinstance(bags, dict) else bags.to_dict()
        logits = self.top(torch.cat([batch["dense"], *(of[name] for name in LENGTHS)], 1))
        return nn.functional.binary_cross_entropy_with_logits(logits.squeeze(1), batch["label"])


def batches(rank: int) -> list[dict[str, Any]]:
    """The batches of a rank: the keys and the length of each bag by feature, dense features, and
    labels. Keys repeat within and over ranks."""
    random = np.random.default_rng((3, rank))
    found = []
    for _ in range(STEPS):
        bags = {}
        for name, longest in LENGTHS.items():
            least = longest if name == "user" else 0
            lengths = torch.from_numpy(random.integers(least, longest + 1, ROWS))
            keys = (random.random(int(lengths.sum())) ** 2 * KEYS).astype(np.int64)
            bags[name] = torch.from_numpy(keys), lengths
        found.append({
            "bags": bags,
            "dense": torch.from_numpy(random.random((ROWS, 4)).astype(np.float32)),
            "label": torch.from_numpy((random.random(ROWS) < 0.5).astype(np.float32)),
        })  # fmt: skip
    return found


def torchrec_model() -> nn.Module:
    """The model with TorchRec's collection, each table sharded by rows."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingPlan
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    configs = [
        EmbeddingBagConfig(
            name=table, embedding_dim=DIM, num_embeddings=KEYS, feature_names=features,
            pooling=PoolingType.MEAN if table in MEANS else PoolingType.SUM,
        )
        for table, features in TABLES.items()
    ]  # fmt: skip
    bags = EmbeddingBagCollection(tables=configs)
    apply_optimizer_in_backward(torch.optim.SGD, bags.parameters(), {"lr": RATE})
    model = Model(bags)
    sharder: ModuleSharder[Any] = EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(
        bags, {table: row_wise() for table in TABLES}, sharder, device_type="cpu",
        local_size=dist.get_world_size(), world_size=dist.get_world_size(),
    )  # fmt: skip
    return DistributedModelParallel(
        model, ShardingEnv.from_process_group(dist.group.WORLD), torch.device("cpu"),
        ShardingPlan({"bags": plan}), [sharder],
    )  # fmt: skip


def rows_of(model: nn.Module) -> dict[str, np.ndarray]:
    """The rows of TorchRec's tables, of all ranks."""
    found = {}
    state = model.state_dict()
    for table in TABLES:
        [shard] = state[f"bags.embedding_bags.{table}.weight"].local_shards()
        part = (shard.metadata.shard_offsets[0], shard.tensor.detach().clone())
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, part)
        parts.sort(key=lambda of: of[0])
        # The test would say nothing if one rank had all rows.
        assert all(len(rows) > 0 for _, rows in parts)
        found[table] = torch.cat([rows for _, rows in parts]).numpy()
    return found


def train_both(rank: int, directory: Path) -> dict[str, tuple[float, float]]:
    # The modules of TorchRec warn when they are imported.
    warnings.simplefilter("ignore")
    return {way: train(rank, directory / way, way) for way in ("mean", "sum")}


def train(rank: int, directory: Path, gradients: Any) -> tuple[float, float]:
    """Trains both models on the same batches from the same rows. Returns the largest difference of
    their losses, and of their rows at the end."""
    from torchrec import KeyedJaggedTensor

    other = torchrec_model()
    first = rows_of(other)
    bank = ShardedBank(directory, memory_budget="16MiB", timeout=60.0, gradients=gradients)
    tables = {name: bank.table(name, dim=DIM, optimizer=embank.SGD(lr=RATE)) for name in TABLES}
    keys = np.arange(KEYS)
    for name, table in tables.items():
        table.put(keys, first[name])
    features = {feature: name for name, of in TABLES.items() for feature in of}
    bags = embank.torch.EmbeddingBagCollection(
        {feature: tables[name] for feature, name in features.items()},
        mode={feature: "mean" if name in MEANS else "sum" for feature, name in features.items()},
    )
    inner = Model(bags)
    model = nn.parallel.DistributedDataParallel(inner)
    other_top = [of for name, of in other.named_parameters() if ".top." in f".{name}"]
    assert len(other_top) == len(list(inner.top.parameters()))
    optimizers = [torch.optim.SGD(of, lr=DENSE_RATE) for of in (inner.parameters(), other_top)]
    of_losses, of_rows = [], []
    for batch in batches(rank):
        names, pairs = list(batch["bags"]), list(batch["bags"].values())
        offsets = {
            name: (keys_of, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])[:-1])
            for name, (keys_of, lengths) in batch["bags"].items()
        }
        jagged = KeyedJaggedTensor(
            keys=names, values=torch.cat([of for of, _ in pairs]),
            lengths=torch.cat([lengths for _, lengths in pairs]),
        )  # fmt: skip
        losses = [model({**batch, "keys": offsets}), other({**batch, "keys": jagged})]
        for loss, optimizer in zip(losses, optimizers):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        of_losses.append(abs(losses[0].item() - losses[1].item()))
    last = rows_of(other)
    for name, table in tables.items():
        found = table.peek(keys)
        # The test would say nothing if rows had stayed as they were.
        assert (np.abs(last[name] - first[name]).max(axis=1) > 100 * LIMIT).all()
        of_rows.append(np.abs(found - last[name]).max())
    bank.close()
    del model, other, losses, loss
    gc.collect()
    # In NumPy, a NaN is the largest.
    return float(np.max(of_losses)), float(np.max(of_rows))


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[float, float]]]:
    """What `train` returns on each rank, with each way to sum gradients."""
    missing = [name for name in ("torchrec", "fbgemm_gpu") if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        why = f"no {names}: pip install --no-deps -r xtask/torchrec-requirements.txt"
        if os.environ.get("CI"):
            pytest.fail(f"{why}, and CI is set")
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("torchrec")
    found = ranks.run(2, directory, train_both, directory)
    return {way: [of[way] for of in found] for way in ("mean", "sum")}


def test_two_ranks_learn_what_torchrec_learns(differences: Any) -> None:
    for of_losses, of_rows in differences["mean"]:
        assert of_losses <= LIMIT
        assert of_rows <= LIMIT


def test_a_missing_division_is_seen_beside_torchrec(differences: Any) -> None:
    for of_losses, of_rows in differences["sum"]:
        assert of_losses > 10 * LIMIT
        assert of_rows > 10 * LIMIT
