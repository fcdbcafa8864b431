"""Runs the preprocessing of a clone of facebookresearch/dlrm on a file, and prints its time.

    dlrm_script.py CLONE FILE MODULUS PROCESSES OUTPUT

`PROCESSES` is 1, or more for the script's own `--dataset-multiprocessing`, which uses a process for
each day. This program calls the script's functions as its Kaggle data set does
(`dlrm_data_pytorch.CriteoDataset`). They count the lines, split the file into seven days, parse,
collect a dictionary for each column, number the values, and join the days in one file. Then they
load that file and take logarithms. Rows are not shuffled, so that they can be compared. The script
prints a line for each row, which is discarded. This program writes labels, logarithms and ids to
`OUTPUT`. It prints the seconds without Python's start and without that writing.
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
    # The script writes its files beside its input.
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
