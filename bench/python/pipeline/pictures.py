"""Measures pictures a second of a feed, beside the loaders that PyTorch's users have.

The pictures are JPEGs of 500 x 375 pixels at quality 90, in files that the page cache has. Each
loader makes batches of 224 x 224 x 3 bytes, on two threads or in two worker processes, which stay
from epoch to epoch:

- a feed of Embank;
- PyTorch's `DataLoader` with Pillow, which decodes by libjpeg-turbo;
- PyTorch's `DataLoader` with torchvision's decoder, if torchvision is installed;
- NVIDIA's DALI on the processor, if it is installed: `pip install nvidia-dali-cuda120`.

The rounds alternate, and the ratios are medians of the rounds. The arrays of the feed are compared
with those of Pillow.

Estimate, written before measuring: zune-jpeg is as fast as libjpeg-turbo. Pillow converts and
resizes in more passes, and the DataLoader copies each batch between processes, so a feed should
have 1.5 to 2 times its rate. What is wanted is 2 times, and 1.2 times the rate of torchvision.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from figures import Figure
from measure import Measured, median_and_spread
from numpy.typing import NDArray
from PIL import Image

from embank.pipeline import Column, Field, Output, Pipeline, Spec, image

WIDTH, HEIGHT, QUALITY = 500, 375, 90
SIDE = 224
WORKERS = 2
BATCH_ROWS = 50
DIFFERENT = 100
"""The loaders read these files again and again."""
PILLOW_MIN, TORCHVISION_MIN = 2.0, 1.2
FARTHEST_MAX, MEAN_MAX = 4, 0.5
NEAR_MAX = 3.0
"""The mean distance between two loaders' pictures, which have filters of their own."""

Loader = Callable[[], Iterator[Any]]


def main() -> int:
    options = measure.parser(__doc__)
    options.add_argument("--pictures", type=int, default=2000, help="default %(default)s")
    options.add_argument("--count", type=int, default=5, help="rounds (default %(default)s)")
    given = options.parse_args()
    if given.quick:
        given.pictures, given.count = min(given.pictures, 500), min(given.count, 3)
    if measure.SMOKE is not None:
        given.count = 1
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        folder = Path(name)
        names = write_pictures(folder, given.pictures, given.seed)
        rows = compared(folder, names, given)
    return measure.report(rows, given, {"pictures": len(names), "workers": WORKERS})


def scratch() -> Path:
    measure.SCRATCH.mkdir(parents=True, exist_ok=True)
    return measure.SCRATCH


def write_pictures(folder: Path, count: int, seed: int) -> list[str]:
    """Writes pictures of clouds and rectangles. Returns `count` names, in whole batches."""
    random = np.random.default_rng(seed)
    for number in range(DIFFERENT):
        (folder / f"{number}.jpg").write_bytes(jpeg(random))
    count = max(count // BATCH_ROWS, 1) * BATCH_ROWS
    return [f"{number % DIFFERENT}.jpg" for number in range(count)]


def jpeg(random: np.random.Generator) -> bytes:
    pixels = np.full((HEIGHT, WIDTH, 3), 128, np.float32)
    for octave in range(6):
        grid = random.integers(0, 256, (3 << octave, 4 << octave, 3), dtype=np.uint8)
        wide = Image.fromarray(grid).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
        pixels += (np.asarray(wide, np.float32) - 128) * (0.6 / (1 << octave))
    for _ in range(12):
        top, left = random.integers(HEIGHT - 20), random.integers(WIDTH - 20)
        pixels[top : top + random.integers(20, 80), left : left + random.integers(20, 80)] = (
            random.integers(0, 256, 3)
        )
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def embank_loader(folder: Path, names: list[str], height: int = SIDE, width: int = SIDE) -> Loader:
    spec = Spec(
        fields=[Field("picture", "file", required=True)],
        columns=[Column("picture", image(height, width))],
        outputs=[Output("picture", ["picture"], "u8")],
    )
    listed = "".join(f"{name}\n" for name in names).encode()
    pipeline = Pipeline(spec, root=folder, threads=WORKERS)

    def batches() -> Iterator[torch.Tensor]:
        for batch in pipeline.feed(listed, batch_rows=BATCH_ROWS):
            yield torch.from_numpy(batch["picture"])

    return batches


class Files(torch.utils.data.Dataset[torch.Tensor]):
    """Pictures as tensors of bytes."""

    def __init__(self, folder: Path, names: list[str], decode: Callable[[str], torch.Tensor]) -> None:
        self.paths = [str(folder / name) for name in names]
        self.decode = decode

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.decode(self.paths[number])


def by_pillow(path: str) -> torch.Tensor:
    picture = Image.open(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(picture))


def at_own_size(path: str) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(path).convert("RGB")))


def by_torchvision(path: str) -> torch.Tensor:
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms.v2.functional import resize

    return resize(decode_image(path, ImageReadMode.RGB), [SIDE, SIDE], antialias=True)


def data_loader(folder: Path, names: list[str], decode: Callable[[str], torch.Tensor]) -> Loader:
    loader = torch.utils.data.DataLoader(
        Files(folder, names, decode), BATCH_ROWS, num_workers=WORKERS, persistent_workers=True
    )
    return lambda: iter(loader)


def dali_loader(folder: Path, names: list[str]) -> Loader:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH_ROWS, num_threads=WORKERS, device_id=None)
    def pictures() -> Any:
        encoded, _ = fn.readers.file(files=[str(folder / name) for name in names])
        decoded = fn.decoders.image(encoded, device="cpu")
        return fn.resize(
            decoded, resize_x=SIDE, resize_y=SIDE, interp_type=types.INTERP_LINEAR, antialias=True
        )

    pipeline = pictures()
    pipeline.build()

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(len(names) // BATCH_ROWS):
            (batch,) = pipeline.run()
            yield torch.from_numpy(np.asarray(batch.as_array()))

    return batches


def loaders(folder: Path, names: list[str]) -> dict[str, Loader]:
    found = {
        "a feed": embank_loader(folder, names),
        "DataLoader, Pillow": data_loader(folder, names, by_pillow),
    }
    if importlib.util.find_spec("torchvision") is not None:
        found["DataLoader, torchvision"] = data_loader(folder, names, by_torchvision)
    else:
        print("torchvision is not installed: `pip install torchvision` adds its decoder")
    if importlib.util.find_spec("nvidia.dali") is not None:
        found["DALI"] = dali_loader(folder, names)
    else:
        print("DALI is not installed: `pip install nvidia-dali-cuda120` adds it")
    return found


def compared(folder: Path, names: list[str], given: argparse.Namespace) -> list[Measured]:
    every = loaders(folder, names)
    rates: dict[str, list[float]] = {name: [] for name in every}
    for number in range(given.count + 1):
        for name, loader in every.items():
            rate = pictures_a_second(loader, len(names))
            # In the first round workers start and memory is new.
            if number > 0:
                rates[name].append(rate)
    rows = []
    ours = rates["a feed"]
    targets = {"DataLoader, Pillow": PILLOW_MIN, "DataLoader, torchvision": TORCHVISION_MIN}
    for name, theirs in rates.items():
        rate, spread = median_and_spread(theirs)
        rows.append(Measured(Figure(name, rate, "pictures/s"), spread))
        if name != "a feed":
            ratio, spread = median_and_spread([a / b for a, b in zip(ours, theirs)])
            target = None if measure.SMOKE else targets.get(name)
            passed = None if target is None else ratio >= target
            rows.append(Measured(Figure(f"a feed beside {name}", ratio, "times"), spread, passed))
    near = all(alike(loader, every["DataLoader, Pillow"]) for loader in every.values())
    rows.append(Measured(Figure("answers near", float(near), ""), None, near))
    some = names[:DIFFERENT]
    own = embank_loader(folder, some, HEIGHT, WIDTH), data_loader(folder, some, at_own_size)
    farthest, last, _ = difference(*own)
    rows.append(Measured(Figure("own size: farthest before the last column", farthest, "of 255")))
    rows.append(Measured(Figure("own size: farthest in the last column", last, "of 255")))
    farthest, last, mean = difference(every["a feed"], every["DataLoader, Pillow"])
    figure = Figure("farthest from Pillow, before the last column", farthest, "of 255")
    rows.append(Measured(figure, None, farthest <= FARTHEST_MAX))
    rows.append(Measured(Figure("farthest in the last column", last, "of 255")))
    rows.append(Measured(Figure("mean distance from Pillow", mean, "of 255"), None, mean <= MEAN_MAX))
    return rows


def alike(loader: Loader, pillow: Loader) -> bool:
    """True if the first pictures are near those of Pillow. torchvision has the channels first."""
    batch, expected = next(iter(loader())).numpy(), next(iter(pillow())).numpy()
    if batch.shape != expected.shape:
        batch = batch.transpose(0, 2, 3, 1)
    return float(np.abs(batch.astype(np.int16) - expected.astype(np.int16)).mean()) <= NEAR_MAX


def pictures_a_second(loader: Loader, expected: int) -> float:
    begun = time.perf_counter()
    pictures = 0
    for batch in loader():
        pictures += len(batch)
    if pictures != expected:
        sys.exit(f"a loader made {pictures} pictures of {expected}")
    return pictures / (time.perf_counter() - begun)


def difference(ours: Loader, theirs: Loader) -> tuple[float, float, float]:
    """The largest distance of two loaders' bytes before the last column and in it, and the mean."""
    farthest, last, total, count = 0, 0, 0, 0
    for a, b in zip(ours(), theirs()):
        distance: NDArray[np.int16] = np.abs(a.numpy().astype(np.int16) - b.numpy().astype(np.int16))
        farthest = max(farthest, int(distance[:, :, :-1].max()))
        last = max(last, int(distance[:, :, -1].max()))
        total += int(distance.sum())
        count += distance.size
    return float(farthest), float(last), total / count


if __name__ == "__main__":
    sys.exit(main())
