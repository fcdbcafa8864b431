"""Embedding tables larger than memory.

A `Bank` is a directory that holds many tables under one memory budget. A `Table` maps 64-bit keys
to rows of float32, and keeps its optimizer's state in the store. `Table.get` returns rows with a
`Lease`, which takes the gradient:

>>> import numpy as np
>>> with Bank("quick.bank", memory_budget="16MiB") as bank:
...     users = bank.table("user", dim=4, optimizer=SGD(lr=0.5), initializer=Constant(1.0))
...     with users.get([7, 7, 9]) as lease:
...         lease.apply(np.ones((3, 4), dtype=np.float32))
...     users.peek([7, 9])[:, 0].tolist()
[0.0, 0.5]

`embank.torch` has modules for PyTorch, and `embank.pipeline` makes batches of raw rows. Everything
but `embank.torch` needs only NumPy.

**Threads.** Threads may share every object, and the GIL is released while the store works. The
store reads the caller's arrays without a copy if it can. So no other thread may write to such an
array before the call returns.

**Processes.** One process has a bank open for writing. An open bank does not survive `fork`: in the
child every call on the bank raises `RuntimeError`, and only the parent has the bank's lock. So
`DataLoader` workers must not use the parent's bank. They can open it with `read_only=True`.
"""

from ._embank import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    AheadQueue,
    AutoDepth,
    Bank,
    Constant,
    Lease,
    Normal,
    Pending,
    Prefetch,
    Recovered,
    RowWiseAdagrad,
    Scan,
    Table,
    TruncatedNormal,
    Uniform,
    Vocabulary,
    XavierNormal,
    XavierUniform,
    Zeros,
    __version__,
    apply_delta,
    apply_many,
    checkpoint_id,
    copy_checkpoint,
    export_delta,
    get_bags_many,
    get_many,
    list_checkpoints,
    prometheus,
    roll_back,
)
from .errors import (
    BadRow,
    BudgetTooSmall,
    Damaged,
    DeltaMismatch,
    DeviceUnavailable,
    DirectoryMoved,
    DiskFull,
    EmbankError,
    FileMismatch,
    LeaseExpired,
    Locked,
    MissingRow,
    NewerFormat,
    NoSuchTable,
    NoSuchVocabulary,
    PipelineError,
    PoisonedError,
    QuotaExceeded,
    ReadOnly,
    SelfBlocked,
    ShardMismatch,
    SpecError,
    StalenessTimeout,
    StoreIOError,
    TableMismatch,
    UnknownValue,
    UnreadableFile,
    VocabularyMismatch,
)

UNKNOWN_ID = 2**64 - 1
"""The id that `Vocabulary.ids` returns for a value without an id."""

from . import pipeline  # noqa: E402, F401  (makes batches with the classes above)

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "AheadQueue",
    "AutoDepth",
    "BadRow",
    "Bank",
    "BudgetTooSmall",
    "Constant",
    "Damaged",
    "DeltaMismatch",
    "DeviceUnavailable",
    "DirectoryMoved",
    "DiskFull",
    "EmbankError",
    "FileMismatch",
    "Lease",
    "LeaseExpired",
    "Locked",
    "MissingRow",
    "NewerFormat",
    "NoSuchTable",
    "NoSuchVocabulary",
    "Normal",
    "Pending",
    "PipelineError",
    "PoisonedError",
    "Prefetch",
    "QuotaExceeded",
    "ReadOnly",
    "SelfBlocked",
    "ShardMismatch",
    "Recovered",
    "RowWiseAdagrad",
    "Scan",
    "SpecError",
    "StalenessTimeout",
    "StoreIOError",
    "Table",
    "TableMismatch",
    "TruncatedNormal",
    "UNKNOWN_ID",
    "Uniform",
    "UnknownValue",
    "UnreadableFile",
    "Vocabulary",
    "VocabularyMismatch",
    "XavierNormal",
    "XavierUniform",
    "Zeros",
    "__version__",
    "apply_delta",
    "apply_many",
    "checkpoint_id",
    "copy_checkpoint",
    "export_delta",
    "get_bags_many",
    "get_many",
    "list_checkpoints",
    "prometheus",
    "roll_back",
]
