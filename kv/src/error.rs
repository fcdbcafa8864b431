//! What can go wrong, and what the caller can do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::stats::space_holder::SpaceHolder;
use crate::stats::space_holder::advice;

use crate::files::lock_holders::LockHolders;

/// The result of a fallible store call.
pub type Result<T> = std::result::Result<T, Error>;

/// What to do where the system refuses a thread, for the errors of all crates.
#[doc(hidden)]
pub const THREADS_ADVICE: &str = "the process is at a limit of threads (or of memory for them): raise that of its \
                                  container (`docker run --pids-limit`, pids.max) or of its user (`ulimit -u`), or run \
                                  fewer threads beside it";

/// Every way in which the store refuses or fails. A missing row is an outcome, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on a file failed. The store stops taking writes after a failed write.
    #[error("{operation} {path}: {source}")]
    Io {
        /// What was attempted: "open", "read", "write", "sync", ...
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// A file ended before the bytes that a checkpoint names.
    #[error(
        "{path} is cut short: {expected} bytes are wanted at offset {offset}, {found} are there; \
         restore the file from a copy, or open an older checkpoint"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the read began, in bytes.
        offset: u64,
        /// Bytes wanted.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// Bytes on disk do not match their checksum or their format.
    #[error("{path} is damaged at offset {offset}: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Byte offset of the damaged structure in that file.
        offset: u64,
        /// What was checked, expected and found.
        what: String,
    },
    /// The bank is open for writing already, in this process or another.
    #[error(
        "bank {path:?} is open for writing in {holders}; close it there, or open it here read-only"
    )]
    Locked {
        /// The bank's directory.
        path: PathBuf,
        /// The processes that have it open.
        holders: LockHolders,
    },
    /// The path of a bank's directory, or of a folder that is written to, leads elsewhere than when
    /// it was opened.
    #[error(
        "{path} was {} while it was in use, so nothing is written or removed there. Put the directory back and call \
         again; or, if it is a bank, close it and open it where it lies now",
        if *replaced { "replaced by another directory" } else { "moved or removed" }
    )]
    DirectoryMoved {
        /// The directory, as its path was when the bank was opened.
        path: PathBuf,
        /// True if another directory lies there now; false if none does.
        replaced: bool,
    },
    /// The bank was opened to read only.
    #[error(
        "{path} was opened read-only, so nothing can be written, got for training or compacted; open it for \
         writing instead (in one process at a time)"
    )]
    ReadOnly {
        /// The bank's directory.
        path: PathBuf,
    },
    /// A checkpoint is being read, so it can't be removed.
    #[error(
        "checkpoint {checkpoint} in {path} is being read by {readers}; close what was opened read-only at it first, or \
         have it refresh"
    )]
    BeingRead {
        /// The directory of the checkpoints.
        path: PathBuf,
        /// The checkpoint.
        checkpoint: u64,
        /// The processes that read it.
        readers: LockHolders,
    },
    /// A delta does not lead on from where the bank is.
    #[error("{path} can't be applied here: {what}")]
    DeltaMismatch {
        /// The delta.
        path: PathBuf,
        /// What it follows, and where the bank is.
        what: String,
    },
    /// The memory budget can't hold what it must.
    #[error(
        "a memory budget of {budget_bytes} bytes is too small: {what} needs at least {needed_bytes} bytes"
    )]
    BudgetTooSmall {
        /// The budget given, in bytes.
        budget_bytes: u64,
        /// The smallest budget that would do, in bytes.
        needed_bytes: u64,
        /// What needs it.
        what: String,
    },
    /// The system refuses the address space that a memory budget reserves.
    #[error(
        "the system refuses {bytes} bytes of address space: {source}; a store reserves about 2.5 times its memory \
         budget and fills no more of it than the budget: lower the memory budget, or allow the process more address \
         space (`ulimit -v`; under vm.overcommit_memory=2, vm.overcommit_ratio)"
    )]
    AddressSpaceRefused {
        /// What the refused part would take, in bytes.
        bytes: u64,
        /// The system's own error.
        source: io::Error,
    },
    /// The system refuses a thread that the bank needs.
    #[error("the {thread} thread of bank {path:?} can't be started: {source}; {THREADS_ADVICE}")]
    ThreadRefused {
        /// Which thread: "writer", "compactor" or "lookahead".
        thread: &'static str,
        /// The bank's directory.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// The log may not grow, and compaction can't make room.
    #[error(
        "the disk quota of {quota_bytes} bytes is used up: the log takes {log_bytes} bytes, its rows {live_bytes} of \
         them; the log is held{}",
        advice(holders)
    )]
    QuotaExceeded {
        /// The quota, in bytes.
        quota_bytes: u64,
        /// What the log takes, in bytes.
        log_bytes: u64,
        /// What the current rows take of it, in bytes.
        live_bytes: u64,
        /// What lies before the current rows and is held for scans and kept checkpoints alone, in
        /// bytes.
        held_bytes: u64,
        /// What holds it, the largest holder first.
        holders: Vec<SpaceHolder>,
    },
    /// The disk has no room for what the call has to write. The store goes on: rows in memory can
    /// be read and changed, and the call can be made again when there is room. A batch may be
    /// done in part.
    #[error(
        "the disk of {path} is full ({reason}). No row is lost: remove files from that disk, delete rows, drop tables or \
         compact, and call again"
    )]
    DiskFull {
        /// The file that could not be written, or the folder of the log.
        path: PathBuf,
        /// The system's reason, or what the room that is left is kept for.
        reason: String,
    },
    /// A call waited for compaction to make room on disk, and the check that the program gave to
    /// [`check_while_waiting`](crate::check_while_waiting) ended the wait. Part of the batch may be
    /// done.
    #[error(
        "the program ended the wait for disk space after {waited:?}; part of the batch may be done"
    )]
    Interrupted {
        /// The duration of the wait.
        waited: Duration,
    },
    /// The directory holds no bank.
    #[error("{path} is not a bank: {why}")]
    NotABank {
        /// The directory.
        path: PathBuf,
        /// What is there instead, and what to do.
        why: String,
    },
    /// The bank has no checkpoint of that number, or none at all.
    #[error("{path} has no checkpoint {}", no_checkpoint(*number, kept))]
    NoSuchCheckpoint {
        /// The directory of the bank.
        path: PathBuf,
        /// The number asked for; `None` if the call wanted the newest one.
        number: Option<u64>,
        /// The checkpoints that are there.
        kept: Vec<u64>,
    },
    /// A checkpoint that has to be removed is pinned or being read.
    #[error(
        "checkpoint {checkpoint} in {path} is pinned or being read, and {why}: unpin it, close what reads it or have \
         that refresh, then call again"
    )]
    CheckpointInUse {
        /// The directory of the checkpoints.
        path: PathBuf,
        /// The checkpoint.
        checkpoint: u64,
        /// Why it has to be removed.
        why: &'static str,
    },
    /// What the call reads was changed or removed while it read. The text says whether to call
    /// again.
    #[error("{0}")]
    ChangedMeanwhile(String),
    /// An option is out of its range, or does not fit the bank or another option.
    #[error("{option} {problem}")]
    InvalidOption {
        /// The option, as its field is called.
        option: &'static str,
        /// What it must be, and what was given.
        problem: String,
    },
    /// A file or directory can't be written under this name.
    #[error("{path} {why}")]
    UnusableOutput {
        /// The path.
        path: PathBuf,
        /// What has the name, and what to do.
        why: String,
    },
    /// The call is for another kind of store or table.
    #[error("{of} {why}")]
    WrongKind {
        /// The store or table, with its name.
        of: String,
        /// Its kind, and the kind that the call is for.
        why: String,
    },
    /// A name, a descriptor or a value is too long.
    #[error("{what} of {bytes} bytes is longer than the {bytes_max} bytes that {limit}")]
    TooLong {
        /// What is too long, and of which table.
        what: String,
        /// Its length in bytes.
        bytes: usize,
        /// The largest length in bytes.
        bytes_max: usize,
        /// What limits the length, and what to do.
        limit: &'static str,
    },
    /// All numbers or addresses of a kind are taken.
    #[error("{0}")]
    Exhausted(String),
    /// The call is wrong as it is written, and no variant above stands for it: a batch of 2^32
    /// keys, text that is no state of a store, a transfer that breaks the contract of a
    /// [`Device`](crate::device::Device), a checkpoint taken by an operation's callback, a
    /// delta from a newer to an older checkpoint, a bank to salvage without any manifest.
    #[error("{0}")]
    InvalidArgument(String),
    /// A table of that name exists with another layout.
    #[error("table {name:?} exists with {found}; it was asked for with {expected}")]
    TableMismatch {
        /// The table.
        name: String,
        /// What the caller asked for.
        expected: String,
        /// What the bank holds.
        found: String,
    },
    /// No table has this name or number.
    #[error("there is no table {0} in this bank")]
    NoSuchTable(String),
    /// An earlier write failed; nothing more is written until the bank is reopened.
    #[error(
        "the store stopped taking writes after an earlier failure ({reason}); the last checkpoint \
         is good: mend the cause and reopen the bank"
    )]
    Poisoned {
        /// The first failure.
        reason: String,
    },
    /// The store's own counts do not fit each other, which is a mistake in Embank.
    #[error(
        "the store contradicts itself, which is a mistake in Embank and should be reported: {what}. The last \
         checkpoint stands; reopen the bank to go on from it"
    )]
    Inconsistent {
        /// What does not fit.
        what: String,
    },
    /// The device was asked for by name and can't be had here.
    #[error("{device} can't be used here: {reason}; use DeviceChoice::Auto to fall back")]
    DeviceUnavailable {
        /// The device.
        device: &'static str,
        /// Why.
        reason: String,
    },
}

/// The end of the message of [`Error::NoSuchCheckpoint`], for the errors of all crates.
#[doc(hidden)]
#[must_use]
pub fn no_checkpoint(number: Option<u64>, kept: &[u64]) -> String {
    match number {
        Some(number) => format!("{number}; those that are kept are {kept:?}"),
        None => "yet, and this call goes by one: take one first".to_owned(),
    }
}

impl Error {
    /// A checkpoint that is not among the `kept` ones; `number` is `None` where the newest one was
    /// wanted.
    pub(crate) fn no_such_checkpoint(
        path: impl Into<PathBuf>,
        number: Option<u64>,
        kept: Vec<u64>,
    ) -> Self {
        Self::NoSuchCheckpoint { path: path.into(), number, kept }
    }

    /// An option with what it must be.
    pub(crate) fn option(option: &'static str, problem: impl Into<String>) -> Self {
        Self::InvalidOption { option, problem: problem.into() }
    }

    pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Error::Io { operation, path: path.into(), source }
    }

    /// The file and the system's reason, if a file could not be written for want of room. A failed
    /// sync is another matter: what was written before may be lost by then.
    pub(crate) fn for_want_of_room(&self) -> Option<(PathBuf, String)> {
        let Error::Io { operation, path, source } = self else { return None };
        let is_full =
            matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        (is_full && *operation != "sync").then(|| (path.clone(), source.to_string()))
    }
}
