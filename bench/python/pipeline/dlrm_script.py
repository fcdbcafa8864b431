"""Runs the preprocessing of a clone of facebookresearch/dlrm on a file, and says how long it took.

    dlrm_script.py CLONE FILE MODULUS PROCESSES OUTPUT

`PROCESSES` is 1, or more for the script's own `--dataset-multiprocessing`, which takes a process a
day. Its functions are called as its Kaggle data set does (`dlrm_data_pytorch.CriteoDataset`): count
the lines and part the file in seven days, parse, collect a dictionary a column, number, put the
days together in one file; then load that, and take logarithms. Unshuffled, so that rows can be told
apart. What it prints, a line a row, goes nowhere. Writes label, logarithms and ids to `OUTPUT`, and
prints the seconds without starting Python and without that.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DAYS = 7


def main() -> int:
    clone, text, output = Path(sys.argv[1]), Path(sys.argv[2]).resolve(), Path(sys.argv[5])
    modulus, processes = int(sys.argv[3]), int(sys.argv[4])
    spec = importlib.util.spec_from_file_location("data_utils", clone / "data_utils.py")
    assert spec is not None and spec.loader is not None
    data_utils = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data_utils)
    # It writes beside what it reads.
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        copy = Path(folder) / "train.txt"
        shutil.copyfile(text, copy)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            started = time.perf_counter()
            done = data_utils.getCriteoAdData(
                str(copy), "processed", max_ind_range=modulus, days=DAYS, randomize="none",
                criteo_kaggle=True, dataset_multiprocessing=processes > 1,
            )
            with np.load(done) as data:
                found = data_utils.transformCriteoAdData(
                    data["X_cat"], data["X_int"], data["y"], DAYS, "none", "none", [0] * DAYS
                )
            seconds = time.perf_counter() - started
    ids, logarithms, labels = found[:3]
    np.savez(output, label=labels, dense=logarithms, sparse=ids)
    print(seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
