"""What can go wrong, and what to do about it.

Everything that the store refuses or fails at is an `EmbankError`. A wrong argument is a
`ValueError` (a value, a shape, a closed bank) or a `TypeError` (a dtype, a kind of object), and
leaves the bank, the table and the lease as they were.
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
    "NoSuchTable",
    "NoSuchVocabulary",
    "PipelineError",
    "PoisonedError",
    "QuotaExceeded",
    "ReadOnly",
    "SelfBlocked",
    "SpecError",
    "StalenessTimeout",
    "StoreIOError",
    "TableMismatch",
    "UnknownValue",
    "UnreadableFile",
    "VocabularyMismatch",
]


class EmbankError(Exception):
    """The base of every error of the store."""


class StalenessTimeout(EmbankError):
    """A row stayed at its staleness bound for the whole of the bank's `wait_timeout`.

    Some lease on the row was neither applied, put nor released. No count was taken by the call
    that raised this: it may be tried again.
    """

    table: str
    """The table's name."""
    key: int
    """The row's key, from 0 to 2**64 - 1."""
    outstanding: int
    """Leases that hold the row."""
    bound: int
    """The table's staleness bound."""
    waited_seconds: float
    """How long the call waited."""


class SelfBlocked(StalenessTimeout):
    """A get would wait for leases of its own thread, so it failed at once. No count was taken.

    A `StalenessTimeout`, so that a program which releases leases at one and tries again does so here too. `outstanding`
    is `held` here, and `waited_seconds` is 0.

    The thread holds more leases on the row than the table's `staleness_bound` lets through. Apply, put or release them
    first, or raise the bound. If another thread ends them, call `hand_over` on each lease before that thread gets it.
    """

    table: str
    """The table's name."""
    key: int
    """The row's key, from 0 to 2**64 - 1."""
    held: int
    """Leases of this thread that hold the row."""
    bound: int
    """The table's staleness bound."""


class LeaseExpired(EmbankError):
    """A lease was kept for longer than the bank's `lease_timeout`, and others were let through.

    Its counts are given back, and the call that raised this has changed nothing: get the rows again
    and compute the update anew.
    """

    table: str
    """The table's name."""
    keys: int
    """Distinct keys of the lease."""
    age_seconds: float
    """How long ago it was taken."""


class MissingRow(EmbankError):
    """A row that was never written was read with `missing="error"`."""

    table: str
    """The table's name."""
    key: int
    """The first such key, from 0 to 2**64 - 1."""
    count: int
    """How many keys of the call have no row."""


class NoSuchTable(EmbankError):
    """No table of that name is in the bank, or in its newest checkpoint; or the table was dropped."""


class TableMismatch(EmbankError):
    """The table exists with another dim, optimizer kind, seed or initializer; the text names both.

    Or the vocabulary whose ids are its keys was renumbered or made anew since.
    """


class NoSuchVocabulary(EmbankError):
    """No vocabulary of that name is in the bank; or it was dropped."""


class VocabularyMismatch(EmbankError):
    """The vocabulary exists with other settings; the text names both."""


class UnknownValue(EmbankError, LookupError):
    """A vocabulary has no id for a value, or never gave out an id; the text names the first.

    Also for a key of a table with `vocabulary=` that is no id of it: nothing was read or changed.
    """


class BudgetTooSmall(EmbankError):
    """The memory budget can't hold what it must."""

    budget_bytes: int
    """The budget given, in bytes."""
    needed_bytes: int
    """The smallest budget that would do, in bytes."""


class Damaged(EmbankError):
    """Bytes on disk are cut short, or do not match their checksum or format."""

    path: str
    """The file."""
    offset: int
    """Byte offset of the damage in that file."""


class DeltaMismatch(EmbankError):
    """A delta does not lead on from the checkpoint that the bank is at; the text tells both."""


class Locked(EmbankError):
    """Another process, or another `Bank` of this one, has the bank open for writing. The text names the
    process and its command line where the system tells them."""


class DirectoryMoved(EmbankError):
    """The bank's directory was moved, removed or replaced by another while the bank was open.

    Nothing is written then. Put the directory back and call again, or close the bank and open it where it lies now.
    """

    path: str
    """The directory, as its path was when the bank was opened."""
    replaced: bool
    """True if another directory lies there now; False if none does."""


class ReadOnly(EmbankError):
    """The bank was opened with `read_only=True`, and the call would write, or get rows for training."""


class DeviceUnavailable(EmbankError):
    """The device was asked for by name and can't be had here; `device="auto"` falls back."""


class PoisonedError(EmbankError):
    """An earlier write failed and the store takes no more; the last checkpoint is good."""


class QuotaExceeded(EmbankError):
    """The log may not grow beyond the bank's `disk_quota`, and compaction can't make room.

    The message names what holds space: close that scan or reader. Take a checkpoint, so that an older one lets go; delete rows or drop tables; or open the
    bank with a larger quota. Peeks, deletions, checkpoints and the leases that are out go on.
    """

    quota_bytes: int
    """The quota, in bytes."""
    log_bytes: int
    """What the log takes, in bytes."""
    live_bytes: int
    """What the rows take of it, in bytes."""
    held_bytes: int
    """What is held only because scans and kept checkpoints need it, in bytes."""
    space_holders: list[dict[str, object]]
    """What holds it, as `Bank.stats()["space_holders"]`, the largest holder first."""


class StoreIOError(EmbankError, OSError):
    """A system call on one of the bank's files failed; has `errno`, `strerror` and `filename`."""

    errno: Optional[int]
    filename: Optional[str]


class DiskFull(StoreIOError):
    """The disk has no room for what the call has to write; `errno` is `errno.ENOSPC`.

    No row is lost, and the bank goes on: rows in memory can be read and trained, and leases end. Remove files from that
    disk, delete rows, drop tables, or compact and take a checkpoint; then call again. A put may be done in part; an
    update is refused before its first row, or completes.
    """


class FileMismatch(EmbankError):
    """A file can be read, but does not fit the table that it is imported into. The text names both and the cure.

    Its vectors have another dim, its state is another optimizer's, or its keys belong to another vocabulary. Also raised
    if `Bank.table_as_exported` finds no settings of a table in the file. Rows of the batches before the one that failed
    are in the table.
    """

    path: str
    """The file."""


class UnreadableFile(EmbankError):
    """A file can't be read as a table.

    It is damaged, holds values that are not finite, or does not tell which of its parts are keys and vectors. Rows of
    the batches before the one that failed are in the table.
    """

    path: str
    """The file."""


class PipelineError(EmbankError):
    """A pipeline's run failed."""


class SpecError(PipelineError, ValueError):
    """A pipeline's spec makes no sense: an operator for another type, a name that is not there. Or its inputs
    can't be run over together: there are none, or their names say different formats."""


class BadRow(PipelineError, ValueError):
    """A row can't be used, and the pipeline's `bad_rows` is `"fail"`; or too many can't, by `bad_rows_max`,
    and this is the first.

    Batches of the rows well before it have been handed out.
    """

    input: str
    """The file, or what else the input is called."""
    line: int
    """From 1."""
    lines: int
    """Lines that the row spans: more than one where a quote is open at a line's end."""
    column: Optional[int]
    """Where the bad field begins in its line, in bytes from 1; None if the number of fields is wrong."""
