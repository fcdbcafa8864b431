"""The exceptions of the package, and what to do about each.

If the store refuses a call or fails during a call, it raises an `EmbankError`. A wrong argument
raises a `ValueError` (a value, a shape, a closed bank) or a `TypeError` (a dtype, a kind of
object), and leaves the bank, the table and the lease unchanged.
"""

from __future__ import annotations

from typing import Optional

__all__ = [
    "BadRow",
    "BudgetTooSmall",
    "Damaged",
    "DeltaMismatch",
    "DeviceUnavailable",
    "DirectoryMoved",
    "DiskFull",
    "EmbankError",
    "FileMismatch",
    "LeaseExpired",
    "Locked",
    "MissingRow",
    "NewerFormat",
    "NoSuchTable",
    "NoSuchVocabulary",
    "PipelineError",
    "PoisonedError",
    "QuotaExceeded",
    "ReadOnly",
    "SelfBlocked",
    "ShardMismatch",
    "SpecError",
    "StalenessTimeout",
    "StoreIOError",
    "TableMismatch",
    "UnknownValue",
    "UnreadableFile",
    "VocabularyMismatch",
]


class EmbankError(Exception):
    """The base class of every error of the store."""


class StalenessTimeout(EmbankError):
    """A row stayed at its staleness bound for the whole `wait_timeout` of the bank.

    A lease on the row was not applied, put or released in this time. The call that raised this took
    no count, so it can be repeated.
    """

    table: str
    """The table's name."""
    key: int
    """The row's key, from 0 to 2**64 - 1."""
    outstanding: int
    """The number of leases that hold the row."""
    bound: int
    """The table's staleness bound."""
    waited_seconds: float
    """The duration of the wait."""


class SelfBlocked(StalenessTimeout):
    """A get would wait for leases of its own thread, so it failed at once. It took no count.

    It is a `StalenessTimeout`. So a program that releases leases and tries again after a
    `StalenessTimeout` handles this error too. `outstanding` equals `held`, and `waited_seconds` is
    0.

    The thread holds more leases on the row than the table's `staleness_bound` allows. Apply, put or
    release them first, or raise the bound. If another thread will end them, call `hand_over` on
    each lease before that thread gets it.
    """

    table: str
    """The table's name."""
    key: int
    """The row's key, from 0 to 2**64 - 1."""
    held: int
    """The number of leases of this thread that hold the row."""
    bound: int
    """The table's staleness bound."""


class LeaseExpired(EmbankError):
    """A lease was held for longer than the bank's `lease_timeout`, and another get of its table
    ended it.

    Its counts were given back, and the call that raised this changed nothing. Get the rows again
    and compute the update again.
    """

    table: str
    """The table's name."""
    keys: int
    """The number of distinct keys of the lease."""
    age_seconds: float
    """The age of the lease."""


class MissingRow(EmbankError):
    """A call with `missing="error"` read a row that was never written."""

    table: str
    """The table's name."""
    key: int
    """The first key without a row, from 0 to 2**64 - 1."""
    count: int
    """The number of keys of the call without a row."""


class NoSuchTable(EmbankError):
    """The bank, or its newest checkpoint, has no table of this name. Also raised for a table
    that was dropped.
    """


class TableMismatch(EmbankError):
    """The table exists with another dim, optimizer kind, seed or initializer. The text names both.

    Also raised if the vocabulary whose ids are the table's keys was renumbered or replaced since
    the table was made.
    """


class NoSuchVocabulary(EmbankError):
    """The bank has no vocabulary of this name, or the vocabulary was dropped."""


class VocabularyMismatch(EmbankError):
    """The vocabulary exists with other settings. The text names both."""


class UnknownValue(EmbankError, LookupError):
    """A vocabulary has no id for a value, or has never given out an id. The text names the first
    such value or id.

    Also raised for a key that is not an id of the table's vocabulary. Nothing was read or changed.
    """


class BudgetTooSmall(EmbankError):
    """The memory budget is smaller than the bank needs."""

    budget_bytes: int
    """The budget that was passed, in bytes."""
    needed_bytes: int
    """The smallest budget, in bytes, that is enough for a bank and a scan, export or eviction. A
    third of it may be enough to open the bank.
    """


class Damaged(EmbankError):
    """A file is cut short, or its bytes do not match their checksum or format."""

    path: str
    """The file."""
    offset: int
    """Byte offset of the damage in that file."""


class NewerFormat(EmbankError):
    """A newer version of Embank wrote a file. The file is not damaged, and nothing was changed: use
    a newer Embank.
    """

    path: str
    """The file."""
    found: int
    """The format version of the file."""
    oldest: int
    """The oldest format version of this kind of file that this Embank reads."""
    newest: int
    """The newest format version of this kind of file that this Embank reads."""


class DeltaMismatch(EmbankError):
    """A delta does not follow the checkpoint that the bank is at. The text names both."""


class ShardMismatch(EmbankError):
    """A bank is not the shard that was to be opened, or the shards of a fleet do not belong
    together. The text names both sides and the cure. Nothing was changed.
    """

    path: str
    """The directory of the shard's bank, or the file that does not fit."""
    found: str
    """What is there."""
    expected: str
    """What must be there."""


class Locked(EmbankError):
    """Another process, or another `Bank` of this process, has the bank open for writing. The
    text names the process and its command line if the system tells them.
    """


class DirectoryMoved(EmbankError):
    """The bank's directory was moved, removed or replaced while the bank was open.

    The bank writes nothing then. Put the directory back and call again, or close the bank and open
    it at its new path.
    """

    path: str
    """The path of the directory when the bank was opened."""
    replaced: bool
    """True if another directory is at this path now; False if there is none."""


class ReadOnly(EmbankError):
    """The bank was opened with `read_only=True`, and the call would write or get rows for
    training.
    """


class DeviceUnavailable(EmbankError):
    """The device that was asked for by name can't be used here. `device="auto"` takes another
    one.
    """


class PoisonedError(EmbankError):
    """An earlier write failed, and the store writes nothing more. The last checkpoint is good."""


class QuotaExceeded(EmbankError):
    """The log and the cold tier's files have reached `disk_quota`; compaction can't make room.

    The text names what holds space. If that is a scan or a reader, close it. Otherwise take a
    checkpoint, which frees the space of older ones; delete rows or drop tables; or open the bank
    with a larger quota. Peeks, deletions, checkpoints and updates through held leases still work.
    """

    quota_bytes: int
    """The quota, in bytes."""
    log_bytes: int
    """The bytes that the log and the cold tier's files take."""
    live_bytes: int
    """The bytes of the log that current rows take."""
    held_bytes: int
    """The bytes of the log that only scans and kept checkpoints need."""
    space_holders: list[dict[str, object]]
    """The scans and checkpoints that hold space, as in `Bank.stats()["space_holders"]`, the
    largest first.
    """


class StoreIOError(EmbankError, OSError):
    """A system call on one of the bank's files failed. Has `errno`, `strerror` and `filename`."""

    errno: Optional[int]
    filename: Optional[str]


class DiskFull(StoreIOError):
    """The disk has no room for the data that the call must write. `errno` is `errno.ENOSPC`.

    No row is lost, and the bank stays usable: rows in memory can be read and trained, and leases
    end. Remove files from the disk, delete rows, drop tables, or compact and take a checkpoint;
    then call again. A put may have written some of its rows. An update either fails before it
    changes a row, or completes.
    """


class FileMismatch(EmbankError):
    """A file can be read, but does not fit the table that it is imported into. The text names both
    and the cure.

    Its vectors have another dim, its state is another optimizer's, or its keys belong to another
    vocabulary. Also raised if `Bank.table_as_exported` finds no settings of a table in the file. An
    import writes rows in batches: the rows of the batches before the failed one are in the table.
    """

    path: str
    """The file."""


class UnreadableFile(EmbankError):
    """A file can't be read as a table.

    It is damaged, holds values that are not finite, or does not tell which of its parts are keys
    and vectors. An import writes rows in batches: the rows of the batches before the failed one are
    in the table.
    """

    path: str
    """The file."""


class PipelineError(EmbankError):
    """A run of a pipeline failed."""


class SpecError(PipelineError, ValueError):
    """A pipeline's spec can't be run, for example because an operator does not fit its column's
    type or a name does not exist. Also raised for inputs that can't be run over together: there
    are none, or their names stand for different formats.
    """


class BadRow(PipelineError, ValueError):
    """A row can't be used, and the pipeline's `bad_rows` is `"fail"`. With `"skip"`, raised if the
    share of bad rows is larger than `bad_rows_max`, or if every row of a run is bad. The error then
    describes the first bad row.

    The feed has handed out the whole batches before this error.
    """

    input: str
    """The file, or the name of another input."""
    line: int
    """The row's first line, counted from 1."""
    lines: int
    """The number of lines that the row spans. It is more than 1 if a quote is open at a line's
    end.
    """
    column: Optional[int]
    """The first byte of the bad field in its line, counted from 1. None if the number of fields
    is wrong.
    """
