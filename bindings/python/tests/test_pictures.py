"""Tests columns of pictures: arrays, Arrow, torch, bad pictures, and Pillow's values."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embank.errors import SpecError
from embank.pipeline import Column, Field, Output, Pipeline, Spec, image

pyarrow = pytest.importorskip("pyarrow")
Image = pytest.importorskip("PIL.Image")


def spec(*, bad_rows: str = "skip", kind: str = "blob", **how: Any) -> Spec:
    return Spec(
        fields=[Field("jpg", kind, required=True), Field("cls", "int32", required=True)],  # type: ignore[arg-type]
        columns=[Column("jpg", image(24, 32, **how)), Column("cls")],
        outputs=[Output("picture", ["jpg"], "u8"), Output("label", ["cls"], "i64")],
        bad_rows=bad_rows,  # type: ignore[arg-type]
        bad_rows_max=1.0,
    )


def picture(seed: int, width: int = 100, height: int = 75, **how: Any) -> bytes:
    """A JPEG of smooth noise."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    file = io.BytesIO()
    coarse.resize((width, height), Image.BICUBIC).save(file, "JPEG", quality=90, **how)
    return file.getvalue()


def shard(path: Path, pictures: list[bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for row, content in enumerate(pictures):
            for suffix, data in (("jpg", content), ("cls", b"%d" % row)):
                member = tarfile.TarInfo(f"{row:04}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def of_pillow(content: bytes, crop: bool) -> NDArray[np.uint8]:
    found = Image.open(io.BytesIO(content)).convert("RGB")
    if not crop:
        return np.asarray(found.resize((32, 24), Image.BILINEAR))
    width, height = found.size
    found = found.resize((int(40 * width / height), 40), Image.BILINEAR)
    left, top = round((found.width - 32) / 2), round((40 - 24) / 2)
    return np.asarray(found.crop((left, top, left + 32, top + 24)))


@pytest.mark.parametrize("crop", [False, True])
def test_arrays_are_near_those_of_pillow(tmp_path: Path, crop: bool) -> None:
    pictures = [picture(seed) for seed in range(20)]
    pictures += [picture(seed, progressive=True) for seed in range(5)]
    pictures += [picture(seed, subsampling=0) for seed in range(5)]
    shard(tmp_path / "a.tar", pictures)
    how: dict[str, Any] = {"resize": 40, "crop": "center"} if crop else {}
    with Pipeline(spec(**how)).feed(tmp_path, batch_rows=7) as feed:
        batches = list(feed)
    arrays = np.concatenate([batch["picture"] for batch in batches])
    labels = np.concatenate([batch["label"] for batch in batches])
    assert arrays.dtype == np.uint8 and arrays.shape == (30, 24, 32, 3)
    assert labels[:, 0].tolist() == list(range(30))
    expected = np.stack([of_pillow(content, crop) for content in pictures])
    far = np.abs(arrays.astype(int) - expected)
    assert far.max() <= 4 and far.mean() <= 0.5, (far.max(), far.mean())


def test_a_batch_for_other_libraries(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    shard(tmp_path / "a.tar", [picture(seed) for seed in range(6)])
    pipeline = Pipeline(spec())
    batch = next(pipeline.feed(tmp_path / "a.tar"))
    tensors = batch.torch()
    assert tensors["picture"].shape == (6, 24, 32, 3) and tensors["picture"].dtype == torch.uint8
    assert tensors["picture"].data_ptr() == batch["picture"].ctypes.data
    arrow = pyarrow.record_batch(batch.arrow())
    column = arrow.column("picture")
    assert column.type == pyarrow.fixed_shape_tensor(pyarrow.uint8(), [24, 32, 3])
    assert np.array_equal(column.to_numpy_ndarray(), batch["picture"])
    stream = pyarrow.RecordBatchReader.from_stream(pipeline.feed(tmp_path / "a.tar", batch_rows=4))
    found = np.concatenate([part.column("picture").to_numpy_ndarray() for part in stream])
    assert np.array_equal(found, batch["picture"])
    again = pickle.loads(pickle.dumps(dict(batch)))
    assert np.array_equal(again["picture"], batch["picture"])


def test_bad_pictures_are_named(tmp_path: Path) -> None:
    pictures = [picture(0), picture(1)[:200], b"", picture(2)]
    shard(tmp_path / "a.tar", pictures)
    pipeline = Pipeline(spec())
    with pipeline.feed(tmp_path / "a.tar") as feed:
        assert next(feed)["label"][:, 0].tolist() == [0, 3]
        assert list(feed) == []
        assert feed.report is not None and feed.report.bad_rows == 2
        first, second = feed.report.first_bad_rows
    assert "a.tar:2" in first and '"0001"' in first and "JPEG" in first
    assert '"0002"' in second and '"jpg"' in second
    with pytest.raises(Exception, match=r'"0001": field "jpg" is a JPEG that can\'t be decoded'):
        list(Pipeline(spec(bad_rows="fail")).feed(tmp_path / "a.tar"))


def test_files_below_a_folder(tmp_path: Path) -> None:
    for seed in range(4):
        (tmp_path / f"{seed}.jpg").write_bytes(picture(seed))
    rows = "".join(f"{seed}.jpg\t{seed}\n" for seed in range(4)) + "../x.jpg\t9\n"
    pipeline = Pipeline(spec(kind="file"), root=tmp_path)
    batch = next(pipeline.feed(rows.encode()))
    shard(tmp_path / "a.tar", [picture(seed) for seed in range(4)])
    other = next(Pipeline(spec()).feed(tmp_path / "a.tar"))
    assert np.array_equal(batch["picture"], other["picture"])
    assert batch["label"].tolist() == [[0], [1], [2], [3]]
    with pytest.raises(SpecError, match="`?root`?"):
        Pipeline(spec(kind="file"))


def test_specs_are_refused_in_names_of_python() -> None:
    with pytest.raises(SpecError, match="resize"):
        Pipeline(spec(resize=40))
    with pytest.raises(SpecError, match='"blob" or "file"'):
        Pipeline(spec(kind="bytes"))
