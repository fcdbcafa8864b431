"""Runs every program of `bench/python` on tiny data: each must end, and give right answers. No
speed is judged (`measure.SMOKE`)."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("embank", reason="the wheel of Embank is not installed")
pytest.importorskip("torch")

PYTHON = Path(__file__).resolve().parents[1]
RUNS = {
    "pipeline/arrays.py": "--rows 2000",
    "pipeline/feed.py": "--rows 2000 --batch-size 64 --budget 16MiB",
    "pipeline/peers.py": "--rows 2000",
    "pipeline/pictures.py": "--pictures 100",
    "store/memory.py": "--steps 10",
    "store/overhead.py": "--rounds 2 --calls 4",
    "training/busy.py": "--pairs 2",
    "training/clicks.py": "",
    "training/distributed.py": "--model dlrm --turns 2",
    "training/dtypes.py": "",
    "training/forecast.py": "--model dlrm --turns 2",
    "training/kills.py": "--kills 1 --exceptions 2 --depth 2",
    "training/locality.py": "",
    "training/lookahead.py": "--model distmult-disk --turns 2",
    "training/optimizers.py": "--steps 100",
    "training/pipelined.py": "--model graphsage-disk --nodes 3000 --dim 8 --turns 2",
    "training/quality.py": "--model dlrm distmult --budget-share 8",
    "training/rank_kills.py": "--kills 2",
    "training/speed.py": "--turns 2",
    "training/staleness.py": "--steps 8 --dim 8 --batch-size 16 --negatives 16",
    "training/training.py": "staleness --model dlrm --steps 8",
}
"""The arguments of each program. A smoke run is a run with `--quick`."""
LEFT_OUT = {"pipeline/dlrm_script.py": "it needs a clone of github.com/facebookresearch/dlrm"}
ELSEWHERE = {
    "pipeline/cluster.py": "bindings/python/cluster_tests/test_measurement.py runs it",
    "pipeline/reference.py": "test_pipeline_reference.py and `bench pipeline` run it",
    "store/memory_child.py": "store/memory.py runs it",
    "training/doomed_rank.py": "training/rank_kills.py runs it",
    "training/forecast_page.py": "test_forecast_page.py runs it",
    "training/in_memory.py": "test_in_memory.py runs it",
    "training/movielens_run.py": "training/quality.py runs it",
}
PACKAGES = {"pipeline/peers.py": "polars", "pipeline/pictures.py": "PIL", "training/speed.py": "rocksdict"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for smoke runs, with tiny data in the formats of the real sets."""
    folder = tmp_path_factory.mktemp("smoke")
    draw = random.Random(1)
    files = {
        f"movielens/ml-100k.{part}": lines
        for part, lines in zip(("inter", "user", "item"), movielens(draw))
    }
    files |= {f"wn18rr/{part}.tsv": lines for part, lines in triples(draw).items()}
    files |= {f"cora/{part}.tsv": lines for part, lines in citations(draw).items()}
    for name, lines in files.items():
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines))
    return folder


def movielens(draw: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Ratings of 60 films by 40 users, the users, and the films."""
    ratings = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for time in range(1200):
        user, item = draw.randrange(40), draw.randrange(60)
        likes = draw.random() < (0.8 if (user + item) % 2 else 0.3)
        ratings.append(f"{user}\t{item}\t{5 if likes else 2}\t{time}")
    users = ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"]
    users += [f"{user}\t{20 + user}\t{'FM'[user % 2]}\twriter\t{user % 7}" for user in range(40)]
    items = ["item_id:token\trelease_year:token\tclass:token_seq"]
    items += [f"{item}\t{1940 + item}\tDrama {'War' * (item % 2)}".rstrip() for item in range(60)]
    return ratings, users, items


def triples(draw: random.Random) -> dict[str, list[str]]:
    """A ring of 100 entities with three relations."""
    all_triples = [
        f"{n}\t{name}\t{(n + step) % 100}"
        for name, step in (("next", 1), ("skip", 2), ("far", 50)) for n in range(100)
    ]
    draw.shuffle(all_triples)
    return {"train": all_triples[:240], "valid": all_triples[240:270], "test": all_triples[270:]}


def citations(draw: random.Random) -> dict[str, list[str]]:
    """A ring of 90 papers of three classes, whose words tell the class."""
    parts = ["train", "valid", "test"] * 30
    draw.shuffle(parts)
    nodes = [f"{n}\t{n // 30}\t{part}\t{n // 30},{3 + n % 5}" for n, part in enumerate(parts)]
    edges = [f"{n}\t{(n + 1) % 90}" for n in range(90)]
    return {"nodes": nodes, "edges": edges}


def programs() -> set[str]:
    """The programs of `bench/python`: the files that do something when they are run."""
    files = (path for folder in ("pipeline", "store", "training") for path in (PYTHON / folder).glob("*.py"))
    return {
        str(path.relative_to(PYTHON)) for path in files if "__main__" in path.read_text()
    }


def test_every_program_has_a_smoke_run() -> None:
    assert programs() == set(RUNS) | set(LEFT_OUT) | set(ELSEWHERE)


@pytest.mark.parametrize("program", [*RUNS, *LEFT_OUT])
def test_it_ends_with_right_answers(program: str, folder: Path, tmp_path: Path) -> None:
    if program in LEFT_OUT:
        pytest.skip(f"{program}: {LEFT_OUT[program]}")
    package = PACKAGES.get(program, "embank")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{program}: it needs the package {package}")
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(PYTHON / program), *RUNS[program].split(), "--threads", "1",
         "--json", str(out)],
        env={**os.environ, "EMBANK_SMOKE": str(folder), "EMBANK_DATA": str(folder / "data"),
             "PYTHONPATH": str(PYTHON / "ground")},
        capture_output=True, text=True, timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())
    assert rows and len({(row["name"], row["unit"]) for row in rows}) == len(rows)
    assert all(math.isfinite(row["value"]) for row in rows), rows
