"""The two experiments of the demo: their data, their model and their variants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import criteo
import movielens
from data import ClickData, Split
from embeddings import TableOptions
from generate import GeneratorOptions, generate
from model import ModelName, ModelShape
from train import TrainOptions
from variant import Device, Experiment, Variant

MEBI = 1 << 20
BUDGET_BYTES_MIN = MEBI
ALL_IN_MEMORY = 4
"""A budget of this many times the tables' bytes holds every row, its header and the index."""


@dataclass(frozen=True)
class CriteoOptions:
    """Size of the Criteo experiment. `skew` and `scale` are options of the generator.

    The MLPs are those of DLRM's reference configuration for this data set. With this skew, a batch
    of 2,000 rows has as many distinct categories (13,000) as a batch of the real set.
    """

    rows: int = 600_000
    batch_size: int = 2048
    dim: int = 32
    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (512, 256)
    skew: float = 1.05
    scale: float = 0.1
    lookahead: int = 3
    seed: int = 0
    model: ModelName = "dlrm"


def movielens_experiment(
    data_folder: Path,
    batch_size: int,
    seed: int,
    device: Device = "auto",
    model: ModelName = "dlrm",
) -> Experiment:
    """MovieLens-100K: trains on every rating once, in shuffled order. The first get of a row
    creates it.

    The run has one epoch, because click models overfit their rare categories from the second epoch
    on.
    """
    data = movielens.load(movielens.download(data_folder / "movielens"))
    split = Split.by_time(len(data))
    steps = split.train // batch_size
    interval = max(1, steps // 25)
    dim = 16
    return Experiment(
        name="movielens",
        data=data,
        split=split,
        batch_size=batch_size,
        epochs=1,
        shuffle=True,
        seed=seed,
        shape=ModelShape(
            data.dense.shape[1], len(data.columns), dim, bottom=(64,), top=(64,), model=model
        ),
        tables=TableOptions(dim=dim, learning_rate=0.02, seed=seed),
        train=TrainOptions(
            sample_every=interval,
            evaluate_every=interval * 3,
            checkpoint_every=whole_intervals(steps // 6, interval),
        ),
        device=device,
    )


def criteo_data(source: Path | None, data_folder: Path, options: CriteoOptions) -> ClickData:
    """Returns the first rows of `source`, a TSV file of the Kaggle format, or without one of a
    generated file."""
    if source is None:
        made = GeneratorOptions(options.rows, options.scale, options.skew, options.seed)
        source = generate(data_folder / "criteo" / made.name, made)
    packed = data_folder / "criteo" / f"{source.stem}-packed"
    return criteo.pack(source, packed, options.rows)


def criteo_experiment(
    data: ClickData, options: CriteoOptions, device: Device = "auto"
) -> Experiment:
    """Criteo: trains on every row once, in order of time. The tables are filled before the
    training."""
    split = Split.by_time(len(data))
    steps = -(-split.train // options.batch_size)
    interval = max(1, steps // 40)
    return Experiment(
        name="criteo",
        data=data,
        split=split,
        batch_size=options.batch_size,
        epochs=1,
        shuffle=False,
        seed=options.seed,
        shape=ModelShape(
            criteo.DENSE, criteo.CATEGORIES, options.dim, options.bottom, options.top,
            options.model,
        ),
        tables=TableOptions(dim=options.dim, learning_rate=0.05, seed=options.seed),
        train=TrainOptions(
            sample_every=interval,
            evaluate_every=interval * 10,
            checkpoint_every=whole_intervals(steps // 3, interval),
        ),
        fill_tables=True,
        device=device,
    )


def whole_intervals(steps: int, interval: int) -> int:
    """Rounds `steps` down to a multiple of `interval`, but not below one interval."""
    return max(interval, steps // interval * interval)


def quarter_budget(experiment: Experiment) -> int:
    """Returns a quarter of the tables' bytes in memory: whole MiB, at least one."""
    return max(BUDGET_BYTES_MIN, experiment.table_bytes // 4 // MEBI * MEBI)


def movielens_variants(budget_bytes: int) -> list[Variant]:
    """The variants of the MovieLens experiment: torch in memory, and Embank under the budget."""
    return [Variant("torch in memory", None), Variant("Embank", budget_bytes, lookahead=4)]


def criteo_variants(experiment: Experiment, budget_bytes: int, lookahead: int) -> list[Variant]:
    """The variants of the Criteo experiment: torch in memory, Embank with room for all rows, and
    Embank out of core without and with Lookahead."""
    roomy = max(experiment.table_bytes * ALL_IN_MEMORY, 64 * MEBI)
    return [
        Variant("torch in memory", None),
        Variant("Embank in memory", roomy),
        Variant("Embank out of core", budget_bytes),
        Variant("Embank with Lookahead", budget_bytes, lookahead=lookahead),
    ]


def shorter(options: CriteoOptions) -> CriteoOptions:
    """Returns the options of a run that ends within five minutes on two cores."""
    return replace(options, rows=250_000)


def quick(options: CriteoOptions) -> CriteoOptions:
    """Returns the options of `--quick`, with fewer rows and smaller batches."""
    return replace(options, rows=150_000, batch_size=1024)
