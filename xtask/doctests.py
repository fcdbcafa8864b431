"""Runs the examples in the docstrings of the installed package `embank`, native classes included.

pytest collects only docstrings of Python source files. The docstrings of native classes are in the
binary of the extension module.
"""

import doctest
import importlib
import os
import pkgutil
import sys
import tempfile

import embank

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def main() -> int:
    names = ["embank"] + [f"embank.{found.name}" for found in pkgutil.iter_modules(embank.__path__)]
    attempted = failed = 0
    for name in names:
        module = importlib.import_module(name)
        # Examples open banks at relative paths, so each module gets a folder of its own.
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            result = doctest.testmod(module, optionflags=OPTIONS)
            os.chdir("/")
        attempted += result.attempted
        failed += result.failed
        print(f"{name}: {result.attempted} examples, {result.failed} failed")
    if attempted == 0:
        print("no example was found in any docstring: is the package whole?")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
