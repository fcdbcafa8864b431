"""Trains from rows with a picture and a title, beside rows of users in a bank.

    python examples/python/pictures.py shop.bank shop
The script makes the folder of items and the text of clicks if they do not exist. A click depends on
the user's taste, the colour in the picture and a word of the title. One checkpoint holds the users'
rows, the words' rows, the dense weights and the place in the text. End the script at any moment and
start it again: it continues after its last save. `--crash-at 70` ends it like a crash at step 70.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

import embank
import embank.torch
from embank.pipeline import Column, Field, Output, Pipeline, Spec, decode, image, modulus

ROWS = 4096
USERS = 64
ITEMS = 50
WORDS = 1 << 16
TITLE_TOKENS = 6
EPOCHS = 4
BATCH_ROWS = 128
SAVE_EVERY_STEPS = 20
TITLES = ("plain shirt", "shirt with a print", "long coat", "print coat", "summer dress")


def tokens(title: bytes) -> list[int]:
    """A small tokenizer: a number for each word, by hashing. 0 fills the title up."""
    words = [1 + zlib.crc32(word) % (WORDS - 1) for word in title.lower().split()]
    return (words + [0] * TITLE_TOKENS)[:TITLE_TOKENS]


SPEC = Spec(
    fields=[
        Field("clicked", "int32", required=True),
        Field("user", "int32", required=True),
        Field("picture", "file", required=True),
        Field("title", "bytes"),
    ],
    columns=[
        Column("clicked"),
        Column("user", modulus(USERS)),
        Column("picture", image(16, 16)),
        Column("title", decode(tokens, shape=[TITLE_TOKENS], dtype="i64", version="1")),
    ],
    outputs=[
        Output("label", ["clicked"], "f32"),
        Output("user", ["user"], "i64"),
        Output("picture", ["picture"], "u8"),
        Output("title", ["title"], "i64"),
    ],
    # One picture of the folder is damaged. Its rows are left out and counted.
    bad_rows="skip",
    bad_rows_max=0.1,
)


class Model(torch.nn.Module):
    """Compares a user's row with what the picture and the words of the title become."""

    def __init__(self, users: embank.Table, words: embank.Table) -> None:
        super().__init__()
        self.users = embank.torch.Embedding(users)
        self.words = embank.torch.Embedding(words)
        self.eyes = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 4, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(128, users.dim)
        )
        self.bias = torch.nn.Linear(users.dim, 1)

    def dense(self) -> list[torch.nn.Parameter]:
        """The parameters that are not rows of the bank."""
        return [*self.eyes.parameters(), *self.bias.parameters()]

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        pixels = batch["picture"].permute(0, 3, 1, 2).float() / 255 - 0.5
        item = self.eyes(pixels) + self.words(batch["title"]).mean(dim=1)
        user = self.users(batch["user"][:, 0])
        scores: torch.Tensor = (user * item).sum(dim=1, keepdim=True) + self.bias(item)
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bank", help="the bank's directory; it is made if it is not there")
    parser.add_argument("folder", type=Path, help="pictures of items, and clicks.tsv")
    parser.add_argument("--crash-at", type=int, metavar="STEP", help="end without a word at this step")
    arguments = parser.parse_args()
    clicks = arguments.folder / "clicks.tsv"
    if not clicks.exists():
        make_folder(arguments.folder, clicks)

    # A resumed run ends with the same bits only on the same number of threads.
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with embank.Bank(arguments.bank, memory_budget="16MiB") as bank:
        # Later epochs take the arrays of pictures and titles from memory.
        pipeline = Pipeline(SPEC, root=arguments.folder, cache="64MiB")
        users = bank.table("user", dim=16, optimizer=embank.Adagrad(lr=0.1))
        words = bank.table("word", dim=16, optimizer=embank.Adagrad(lr=0.1))
        model = Model(users, words)
        dense = torch.optim.Adam(model.dense(), lr=0.01)

        # `resume` comes after all objects are made, and before training.
        parts = {"model": model, "dense": dense}
        saved = embank.torch.resume(bank, **parts) or {"step": 0, "epoch": 0, "feed": 0}
        step, skip_rows, right, rows = saved["step"], saved["feed"], 0, 0
        print(f"begins at step {step}, in epoch {saved['epoch']}")
        for epoch in range(saved["epoch"], EPOCHS):
            right = rows = 0
            feed = pipeline.feed(
                clicks, batch_rows=BATCH_ROWS, shuffle_rows=ROWS, seed=epoch, skip_rows=skip_rows
            )
            with feed:
                for batch in feed:
                    tensors = batch.torch()
                    scores, label = model(tensors), tensors["label"]
                    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, label)
                    dense.zero_grad()
                    loss.backward()  # the tables' optimizers step here
                    dense.step()
                    step += 1
                    right += int(((scores > 0) == (label > 0.5)).sum())
                    rows += len(label)
                    if step % SAVE_EVERY_STEPS == 0:
                        # One checkpoint makes the rows, the dense weights and the place in the
                        # text durable together.
                        embank.torch.save(bank, step=step, epoch=epoch, feed=feed.state_dict(), **parts)
                    if step == arguments.crash_at:
                        os._exit(1)
            skip_rows = 0
            report = feed.report
            assert report is not None
            print(
                f"epoch {epoch}: {right / rows:.0%} right, {report.bad_rows} rows of bad pictures, "
                f"{report.made_arrays} arrays made, {report.cached_arrays} from memory"
            )
        embank.torch.save(bank, step=step, epoch=EPOCHS, feed=0, **parts)
        print(f"ends at step {step}: {digest(model, users)}")


def make_folder(folder: Path, clicks: Path) -> None:
    """Makes up items and clicks. One half of the users likes red and prints, the other does not."""
    random = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    reds = random.random(ITEMS) < 0.5
    for item in range(ITEMS):
        pixels = random.integers(0, 60, (24, 24, 3), dtype=np.uint8)
        pixels[6:18, 6:18, 0 if reds[item] else 2] += 190
        (folder / f"{item}.png").write_bytes(png(pixels))
    (folder / "0.png").write_bytes(b"no picture")
    lines = []
    for user, item in zip(random.integers(USERS, size=ROWS), random.integers(ITEMS, size=ROWS)):
        title = TITLES[item % len(TITLES)]
        likes = (1 if reds[item] else -1) + (2 if "print" in title else -1)
        clicked = (likes > 0) == (user % 2 == 0)
        lines.append(f"{int(clicked)}\t{user}\t{item}.png\t{title}\n")
    clicks.write_text("".join(lines), encoding="utf-8")


def png(pixels: np.ndarray) -> bytes:
    """A PNG of pixels `(height, width, 3)` of uint8."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        sum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", sum)

    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def digest(model: Model, users: embank.Table) -> str:
    """A short text. It differs between two runs if a user's row or a dense weight differs in any
    bit."""
    found = hashlib.sha256(users.peek(np.arange(USERS)).tobytes())
    for parameter in model.dense():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    main()
