"""One run of `quality.py` on MovieLens-100K: on a bank, or in memory."""

from __future__ import annotations

import json
from pathlib import Path

import measure
import torch
from experiments import movielens_experiment
from model import INTERACTIONS
from variant import Variant, run_variant

LOOKAHEAD = 4


def main() -> None:
    options = measure.parser(__doc__)
    add = options.add_argument
    add("--model", choices=tuple(INTERACTIONS), required=True)
    add("--in-memory", action="store_true")
    add("--budget-share", type=float, required=True)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    experiment = movielens_experiment(
        measure.DATA, batch_size=128, seed=given.seed, device=given.device, model=given.model
    )
    variant = Variant("memory", None)
    if not given.in_memory:
        budget = int(experiment.table_bytes * given.budget_share)
        variant = Variant("bank", budget, lookahead=LOOKAHEAD)
    folder: Path = measure.SCRATCH / "quality" / given.model / str(given.seed)
    outcome = run_variant(experiment, variant, folder, resume=False)
    history = [{"epoch": step / experiment.order.steps_per_epoch, "metric": auc}
               for step, auc in outcome.aucs]
    given.json.write_text(json.dumps({"metric": outcome.auc, "history": history}))


if __name__ == "__main__":
    main()
