"""Trains for several epochs from raw text: a pipeline's feed, with `embank.torch.save` and a
resume.

    python examples/python/feed_epochs.py clicks.bank clicks.tsv
The script makes the text if it does not exist. End the script at any moment and start it again: it
continues with the row after its last save, in the epoch of that save. `--crash-at 70` ends it like
a crash at step 70.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import numpy as np
import torch

import embank
import embank.torch
from embank.pipeline import (
    Column,
    Field,
    Output,
    Pipeline,
    Spec,
    VocabularySpec,
    fill_missing,
    logarithm,
    neg2zero,
    vocabulary,
)

ROWS = 4096
SITES = 500
EPOCHS = 3
BATCH_ROWS = 128
SAVE_EVERY_STEPS = 20

SPEC = Spec(
    fields=[Field("clicked", "int32", required=True), Field("age", "int32"), Field("site", "bytes")],
    columns=[
        Column("clicked"),
        Column("age", fill_missing(0), neg2zero(), logarithm()),
        Column("site", fill_missing(""), vocabulary("site")),
    ],
    outputs=[
        Output("label", ["clicked"], "f32"),
        Output("dense", ["age"], "f32"),
        Output("site", ["site"], "i64"),
    ],
    # Id 0 stands for sites that an evaluation meets and that training has not met.
    vocabularies=[VocabularySpec("site", first_id=1, unknown_id=0)],
)


class Model(torch.nn.Module):
    """A dense layer over two inputs: the row of a site, and the age."""

    def __init__(self, sites: embank.Table) -> None:
        super().__init__()
        self.sites = embank.torch.Embedding(sites)
        self.top = torch.nn.Linear(sites.dim + 1, 1)

    def forward(self, site: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.top(torch.cat([self.sites(site[:, 0]), dense], dim=1))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bank", help="the bank's directory; it is made if it is not there")
    parser.add_argument("text", type=Path, help="rows of clicked, age and site, divided by tabs")
    parser.add_argument("--crash-at", type=int, metavar="STEP", help="end without a word at this step")
    arguments = parser.parse_args()
    if not arguments.text.exists():
        make_text(arguments.text)

    # A resumed run ends with the same bits only on the same number of threads.
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with embank.Bank(arguments.bank, memory_budget="16MiB") as bank:
        pipeline = Pipeline(SPEC, bank=bank)
        sites = bank.table("site", dim=8, optimizer=embank.Adagrad(lr=0.1), vocabulary="site")
        model = Model(sites)
        dense = torch.optim.Adam(model.top.parameters(), lr=0.01)

        # `resume` comes after all objects are made, and before training.
        parts = {"model": model, "dense": dense}
        saved = embank.torch.resume(bank, **parts) or {"step": 0, "epoch": 0, "rows_done": 0, "feed": 0}
        step, first_epoch, rows_done = saved["step"], saved["epoch"], saved["rows_done"]
        # The place in the text, with its name and length: a changed text is an error.
        skip_rows = saved["feed"]
        print(f"begins at step {step}, in epoch {first_epoch} behind row {rows_done}")
        for epoch in range(first_epoch, EPOCHS):
            # The seed gives each epoch its own order. A resumed epoch has the seed, and so the
            # order, of the interrupted one.
            with pipeline.feed(
                arguments.text,
                batch_rows=BATCH_ROWS,
                shuffle_rows=ROWS,
                seed=epoch,
                skip_rows=skip_rows,
            ) as feed:
                for batch in embank.torch.LookaheadLoader(feed, lambda batch: {sites: batch["site"]}):
                    tensors = batch.torch()
                    scores = model(tensors["site"], tensors["dense"])
                    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, tensors["label"])
                    dense.zero_grad()
                    loss.backward()  # the table's optimizer steps here
                    dense.step()
                    step += 1
                    # The loop counts its rows, because `feed.position` also counts the batches that
                    # the LookaheadLoader holds.
                    rows_done += len(tensors["label"])
                    if step % SAVE_EVERY_STEPS == 0:
                        # One checkpoint makes rows, vocabulary, dense weights and the place in the
                        # text durable together.
                        state = feed.state_dict(rows_done)
                        embank.torch.save(
                            bank, step=step, epoch=epoch, rows_done=rows_done, feed=state, **parts
                        )
                    if step == arguments.crash_at:
                        os._exit(1)
            rows_done = skip_rows = 0
        embank.torch.save(bank, step=step, epoch=EPOCHS, rows_done=0, feed=0, **parts)
        print(f"ends at step {step} with {len(sites)} sites: {digest(model, sites)}")


def make_text(path: Path) -> None:
    """Writes made-up rows. Readers of odd sites' pages click."""
    random = np.random.default_rng(1)
    lines = []
    for age, site in zip(random.integers(18, 90, ROWS), random.integers(SITES, size=ROWS)):
        lines.append(f"{site % 2}\t{age}\tsite {site}\n")
    path.write_text("".join(lines), encoding="utf-8")


def digest(model: Model, sites: embank.Table) -> str:
    """A short text. It differs between two runs if a row or a dense weight differs in any bit."""
    found = hashlib.sha256(sites.peek(np.arange(1, 1 + len(sites))).tobytes())
    for parameter in model.top.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    main()
