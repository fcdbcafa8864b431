"""Uses an installed wheel in an environment with NumPy and without torch.

`cargo xtask wheel` runs this program with each CPython.
"""

import doctest
import importlib.util
import os
import sys
import tempfile

import numpy as np

import embank


def main() -> int:
    if importlib.util.find_spec("torch") is not None:
        print("torch is installed here: this says nothing of an installation without it")
        return 1
    try:
        importlib.import_module("embank.torch")
    except ImportError as error:
        assert "pip install 'embank[torch]'" in str(error), error
    else:
        raise AssertionError("embank.torch was imported without torch")

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with embank.Bank("bank", memory_budget="16MiB") as bank:
            table = bank.table("item", dim=4, optimizer=embank.SGD(lr=1.0))
            with table.get(np.arange(1000)) as lease:
                wanted = lease.rows - 1.0
                lease.apply(np.ones((1000, 4), np.float32))
            bank.checkpoint(b"smoke")
        with embank.Bank("bank", memory_budget="16MiB") as bank:
            assert bank.recovered.blob == b"smoke"
            np.testing.assert_array_equal(bank.open_table("item").peek(np.arange(1000)), wanted)
        try:
            table.peek([1])
        except ValueError as error:
            assert "closed" in str(error), error
        examples = doctest.testmod(embank, optionflags=doctest.NORMALIZE_WHITESPACE)
        os.chdir("/")
    print(
        f"embank {embank.__version__}, Python {sys.version.split()[0]}, NumPy {np.__version__}: "
        f"{examples.attempted} examples, {examples.failed} failed"
    )
    return 1 if examples.failed or not examples.attempted else 0


if __name__ == "__main__":
    sys.exit(main())
