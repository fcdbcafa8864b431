"""Does training out of core learn as well as training in memory?

MovieLens-100K, three seeds: the AUC of Embank under a quarter of the tables' bytes, less that of
torch.nn.EmbeddingBag in memory with the same seeds. The mean difference must stay within 0.003.
"""

from __future__ import annotations

import statistics
import sys

import measure
import torch
from experiments import movielens_experiment, movielens_variants, quarter_budget
from figures import Figure
from measure import Measured
from variant import run_variant

DIFFERENCE_MAX = 0.003
SEEDS = 3


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--budget-bytes", type=int, help="default: a quarter of the tables")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    rows: list[Measured] = []
    in_memory: list[float] = []
    on_bank: list[float] = []
    for seed in range(given.seed, given.seed + SEEDS):
        experiment = movielens_experiment(
            measure.DATA, batch_size=256 if given.quick else 128, seed=seed, device=given.device
        )
        budget = given.budget_bytes or quarter_budget(experiment)
        outcomes = [
            run_variant(experiment, variant, measure.SCRATCH / "quality" / str(seed), False)
            for variant in movielens_variants(budget)
        ]
        in_memory.append(outcomes[0].auc)
        on_bank.append(outcomes[1].auc)
        rows.append(Measured(
            Figure(f"auc, seed {seed}", on_bank[-1], "", "torch in memory", in_memory[-1])
        ))
    differences = [bank - memory for bank, memory in zip(on_bank, in_memory, strict=True)]
    mean = statistics.fmean(differences)
    spread = max(differences) - min(differences)
    rows += [
        Measured(Figure("budget", budget, "bytes", "tables", experiment.table_bytes),
                 passed=budget * 4 <= experiment.table_bytes),
        Measured(Figure("mean auc", statistics.fmean(on_bank), "", "torch in memory",
                        statistics.fmean(in_memory))),
        Measured(Figure("mean auc difference", mean, ""), spread, abs(mean) <= DIFFERENCE_MAX),
    ]
    return measure.report(rows, given)


if __name__ == "__main__":
    sys.exit(main())
