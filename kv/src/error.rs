//! The errors of the store, and how the caller can react to them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::descriptors::is_out_of_descriptors;

use crate::stats::space_holder::SpaceHolder;
use crate::stats::space_holder::advice;

use crate::files::lock_holders::LockHolders;

/// The result of a fallible store call.
pub type Result<T> = std::result::Result<T, Error>;

/// Advice for the user if the system refuses a thread, for the error messages of all crates.
#[doc(hidden)]
pub const THREADS_ADVICE: &str = "the process is at a limit of threads (or of memory for them): raise that of its \
                                  container (`docker run --pids-limit`, pids.max) or of its user (`ulimit -u`), or run \
                                  fewer threads beside it";

/// Advice for the user if the process can open no more files.
const FILES_ADVICE: &str = "nothing is lost: close files, or raise the limit of open files (`ulimit -n`; fs.file-max for the whole system), and call again";

/// Every refusal and failure of a store call. A missing row is not an error: the result of the call
/// reports it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on a file failed. After a failed write or sync of the log, the store accepts
    /// no more writes.
    #[error("{operation} {path}: {source}")]
    Io {
        /// The operation: "open", "read", "write", "sync", ...
        operation: &'static str,
        /// The file or directory of the operation.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// A file ends before bytes that it should have according to a checkpoint or to its own
    /// content.
    #[error(
        "{path} is cut short: {expected} bytes are wanted at offset {offset}, {found} are there; \
         restore the file from a copy, or open an older checkpoint"
    )]
    Truncated {
        /// Path of the file.
        path: PathBuf,
        /// Offset where the read began, in bytes.
        offset: u64,
        /// Number of bytes that the store wanted to read.
        expected: u64,
        /// Number of bytes that the file has from that offset on.
        found: u64,
    },
    /// Bytes on disk do not match their checksum or their format.
    #[error("{path} is damaged at offset {offset}: {what}")]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Byte offset of the damaged structure in that file.
        offset: u64,
        /// The property that is wrong, in most cases with the expected and the found value.
        what: String,
    },
    /// A newer version of Embank wrote the file, in a format that this version does not know. The
    /// file is not damaged, and the call has changed nothing. A newer version of Embank can read
    /// it.
    #[error(
        "{path} has version {found} of the {kind} format, and Embank {} reads {}. The file is not damaged: use a newer \
         Embank",
        env!("CARGO_PKG_VERSION"),
        versions(*oldest, *newest)
    )]
    NewerFormat {
        /// Path of the file.
        path: PathBuf,
        /// The kind of the file: "metadata", "index", "blob", "delta", ...
        kind: &'static str,
        /// The format version of the file.
        found: u32,
        /// The oldest format version of this kind that this version of Embank reads.
        oldest: u32,
        /// The newest format version of this kind that this version of Embank reads.
        newest: u32,
    },
    /// This process, or another process, already has the bank open for writing.
    #[error(
        "bank {path:?} is open for writing in {holders}; close it there, or open it here read-only"
    )]
    Locked {
        /// The bank's directory.
        path: PathBuf,
        /// The processes that have the bank open.
        holders: LockHolders,
    },
    /// The path of a bank's directory, or of a directory that a call writes to, no longer leads to
    /// the directory that was opened. It leads to another directory, or nowhere.
    #[error(
        "{path} was {} while it was in use, so nothing is written or removed there. Put the directory back and call \
         again; or, if it is a bank, close it and open it where it lies now",
        if *replaced { "replaced by another directory" } else { "moved or removed" }
    )]
    DirectoryMoved {
        /// The directory's path when it was opened.
        path: PathBuf,
        /// True if another directory has the path now. False if the path leads nowhere.
        replaced: bool,
    },
    /// The bank was opened read-only.
    #[error(
        "{path} was opened read-only, so nothing can be written, got for training or compacted; open it for \
         writing instead (in one process at a time)"
    )]
    ReadOnly {
        /// The bank's directory.
        path: PathBuf,
    },
    /// A process reads the checkpoint, so the checkpoint can't be removed.
    #[error(
        "checkpoint {checkpoint} in {path} is being read by {readers}; close what was opened read-only at it first, or \
         have it refresh"
    )]
    BeingRead {
        /// The directory of the checkpoints.
        path: PathBuf,
        /// The checkpoint's number.
        checkpoint: u64,
        /// The processes that read the checkpoint.
        readers: LockHolders,
    },
    /// A delta does not follow the bank's newest checkpoint.
    #[error("{path} can't be applied here: {what}")]
    DeltaMismatch {
        /// The delta's file.
        path: PathBuf,
        /// Names the checkpoint that the delta follows, and the bank's newest checkpoint.
        what: String,
    },
    /// The memory budget is too small for a part of the store, or for the call.
    #[error(
        "a memory budget of {budget_bytes} bytes is too small: {what} needs at least {needed_bytes} bytes"
    )]
    BudgetTooSmall {
        /// The budget that the caller gave, in bytes.
        budget_bytes: u64,
        /// The smallest sufficient budget, in bytes. If the bank can't be opened, it includes the
        /// memory of one scan.
        needed_bytes: u64,
        /// The part of the store, or the call, that needs the memory.
        what: String,
    },
    /// The system refuses the address space that a memory budget reserves.
    #[error(
        "the system refuses {bytes} bytes of address space: {source}; a store reserves about 2.5 times its memory \
         budget and fills no more of it than the budget: lower the memory budget, or allow the process more address \
         space (`ulimit -v`; under vm.overcommit_memory=2, vm.overcommit_ratio)"
    )]
    AddressSpaceRefused {
        /// Length of the refused address range, in bytes.
        bytes: u64,
        /// The system's own error.
        source: io::Error,
    },
    /// The system refuses a thread that the bank needs.
    #[error("the {thread} thread of bank {path:?} can't be started: {source}; {THREADS_ADVICE}")]
    ThreadRefused {
        /// The thread's name: "writer", "compactor" or "lookahead".
        thread: &'static str,
        /// The bank's directory.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// The log and the cold tier's files have reached the quota, and compaction can't free space.
    #[error(
        "the disk quota of {quota_bytes} bytes is used up: log and cold tier take {log_bytes} bytes, the rows {live_bytes} of \
         them; the log is held{}",
        advice(holders)
    )]
    QuotaExceeded {
        /// The quota, in bytes.
        quota_bytes: u64,
        /// Bytes that the log and the cold tier's files take.
        log_bytes: u64,
        /// Bytes that the current rows take in the log.
        live_bytes: u64,
        /// Bytes of log that the current rows do not need, and that scans and kept checkpoints
        /// hold.
        held_bytes: u64,
        /// The checkpoints and scans that hold space of the log, the largest first.
        holders: Vec<SpaceHolder>,
    },
    /// The disk has no room for the bytes that the call must write. Other calls can still read
    /// rows, and change rows in mutable memory. The caller can repeat the failed call when there is
    /// room. If the call was a batch, a part of it may be done.
    #[error("{path} can't grow: {reason}, and call again")]
    DiskFull {
        /// The file that could not be written, or the folder of the log.
        path: PathBuf,
        /// The system's reason, or the work for which the store reserves the remaining room. Ends
        /// with what the caller can do.
        reason: String,
    },
    /// The process, or the whole system, has no free file descriptor. The call has waited for one
    /// for 2 seconds. Nothing is lost, and the caller can repeat the call when a descriptor is
    /// free. If the call was a batch, a part of it may be done.
    #[error("{operation} {path}: {source}; {FILES_ADVICE}")]
    TooManyOpenFiles {
        /// The operation: "open", "create", "list", ...
        operation: &'static str,
        /// The file or directory of the operation.
        path: PathBuf,
        /// The system's own error: `EMFILE` for the process's limit, `ENFILE` for the system's.
        source: io::Error,
    },
    /// A call waited for compaction to free disk space, and the program's check function
    /// ([`check_while_waiting`](crate::check_while_waiting)) ended the wait. Part of the batch may
    /// be done.
    #[error(
        "the program ended the wait for disk space after {waited:?}; part of the batch may be done"
    )]
    Interrupted {
        /// How long the call waited.
        waited: Duration,
    },
    /// The directory is not a bank.
    #[error("{path} is not a bank: {why}")]
    NotABank {
        /// The directory.
        path: PathBuf,
        /// The reason, and what the caller can do.
        why: String,
    },
    /// The bank has no checkpoint of the requested number, or no checkpoint at all.
    #[error("{path} has no checkpoint {}", no_checkpoint(*number, kept))]
    NoSuchCheckpoint {
        /// The directory of the bank.
        path: PathBuf,
        /// The requested number. `None` if the call wanted the newest checkpoint.
        number: Option<u64>,
        /// The numbers of the bank's checkpoints.
        kept: Vec<u64>,
    },
    /// A checkpoint that the call must remove is pinned by the program, or a process reads it.
    #[error(
        "checkpoint {checkpoint} in {path} is pinned or being read, and {why}: unpin it, close what reads it or have \
         that refresh, then call again"
    )]
    CheckpointInUse {
        /// The directory of the checkpoints.
        path: PathBuf,
        /// The checkpoint's number.
        checkpoint: u64,
        /// Why the call must remove the checkpoint.
        why: &'static str,
    },
    /// Another call or process changed or removed the data while this call read it. The text says
    /// whether to repeat the call.
    #[error("{0}")]
    ChangedMeanwhile(String),
    /// An option is out of its range, or does not match the bank or another option.
    #[error("{option} {problem}")]
    InvalidOption {
        /// The name of the option's field.
        option: &'static str,
        /// The allowed values, and the given value.
        problem: String,
    },
    /// The call can't write a file or directory under the name `path`.
    #[error("{path} {why}")]
    UnusableOutput {
        /// The path.
        path: PathBuf,
        /// Why the name can't be used, and what the caller can do.
        why: String,
    },
    /// The call does not work on this kind of store or table.
    #[error("{of} {why}")]
    WrongKind {
        /// The store or table that the call was made for, with its name.
        of: String,
        /// The kind of the store or table, and the kind that the call needs.
        why: String,
    },
    /// A name, a descriptor or a value is too long.
    #[error("{what} of {bytes} bytes is longer than the {bytes_max} bytes that {limit}")]
    TooLong {
        /// The text or value that is too long, and its table.
        what: String,
        /// The length of the text or value, in bytes.
        bytes: usize,
        /// The largest permitted length, in bytes.
        bytes_max: usize,
        /// What limits the length, and what the caller can do.
        limit: &'static str,
    },
    /// All numbers, or all addresses, of some kind are in use. The text says which.
    #[error("{0}")]
    Exhausted(String),
    /// The call itself is wrong, and no other variant fits. Examples:
    /// - a batch of 2^32 keys,
    /// - text that is not the state of a store,
    /// - a read or write that breaks the contract of a [`Device`](crate::device::Device),
    /// - a checkpoint taken by an operation's callback,
    /// - a delta from a newer to an older checkpoint,
    /// - two new tables of one name,
    /// - a bank to salvage without any manifest.
    #[error("{0}")]
    InvalidArgument(String),
    /// A table of the requested name exists with a different layout.
    #[error("table {name:?} exists with {found}; it was asked for with {expected}")]
    TableMismatch {
        /// The table's name.
        name: String,
        /// The layout that the caller asked for.
        expected: String,
        /// The layout in the bank.
        found: String,
    },
    /// No table has the requested name or number. The text names the table, and says whether the
    /// bank or a checkpoint lacks it.
    #[error("there is no table {0}")]
    NoSuchTable(String),
    /// An earlier write failed. The store refuses all writes until the bank is reopened.
    #[error(
        "the store stopped taking writes after an earlier failure ({reason}); the last checkpoint \
         is good: mend the cause and reopen the bank"
    )]
    Poisoned {
        /// The message of the first failure.
        reason: String,
    },
    /// The store's own counts contradict each other, which is a bug in Embank.
    #[error(
        "the store contradicts itself, which is a mistake in Embank and should be reported: {what}. The last \
         checkpoint stands; reopen the bank to go on from it"
    )]
    Inconsistent {
        /// The contradiction.
        what: String,
    },
    /// The program chose a device that this system does not provide.
    #[error("{device} can't be used here: {reason}; use DeviceChoice::Auto to fall back")]
    DeviceUnavailable {
        /// The device's name.
        device: &'static str,
        /// Why the device can't be used.
        reason: String,
    },
}

/// Returns the end of the message of [`Error::NoSuchCheckpoint`].
fn no_checkpoint(number: Option<u64>, kept: &[u64]) -> String {
    match number {
        Some(number) => format!("{number}; those that are kept are {kept:?}"),
        None => "yet, and this call goes by one: take one first".to_owned(),
    }
}

/// Returns the words for a range of versions.
pub(crate) fn versions(oldest: u32, newest: u32) -> String {
    match oldest == newest {
        true => format!("version {newest}"),
        false => format!("versions {oldest} to {newest}"),
    }
}

impl Error {
    /// Returns the error for a checkpoint that is not among the checkpoints with the numbers
    /// `kept`. `number` is `None` if the caller wanted the newest checkpoint.
    pub(crate) fn no_such_checkpoint(
        path: impl Into<PathBuf>,
        number: Option<u64>,
        kept: Vec<u64>,
    ) -> Self {
        Self::NoSuchCheckpoint { path: path.into(), number, kept }
    }

    /// Returns the error for an option with a wrong value. `problem` names the allowed values.
    pub(crate) fn option(option: &'static str, problem: impl Into<String>) -> Self {
        Self::InvalidOption { option, problem: problem.into() }
    }

    /// Returns the error of a failed system call on a file: `TooManyOpenFiles` if no descriptor is
    /// free, and otherwise `Io`.
    #[doc(hidden)]
    pub fn io(operation: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        if is_out_of_descriptors(&source) {
            return Error::TooManyOpenFiles { operation, path, source };
        }
        Error::Io { operation, path, source }
    }

    /// True if the call lacked disk space or a file descriptor, and can be repeated when there is
    /// some.
    #[doc(hidden)]
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self, Error::DiskFull { .. } | Error::TooManyOpenFiles { .. })
    }

    /// Returns the error for a disk without room. `why` is the system's reason, or names the work
    /// for which the store reserves the remaining room.
    pub(crate) fn disk_full(path: PathBuf, why: &dyn std::fmt::Display) -> Self {
        let reason = format!(
            "the disk is full ({why}). No row is lost: remove files from that disk, delete rows, drop tables or compact"
        );
        Error::DiskFull { path, reason }
    }

    /// Returns the want that made a call fail. `None` for another failure. `None` after a failed
    /// sync too, because earlier writes may then be lost, and more room would not bring them back.
    pub(crate) fn want(&self) -> Option<Want> {
        match self {
            Error::Io { operation: "sync", .. } => None,
            Error::Io { path, source, .. } => Want::of_room(path, source),
            Error::TooManyOpenFiles { operation, path, source } => {
                let code = source.raw_os_error().unwrap_or(libc::EMFILE);
                Some(Want::Files { operation, path: path.clone(), code })
            }
            _ => None,
        }
    }
}

/// Something that the store lacks now and may have again later.
#[derive(Debug, Clone)]
pub(crate) enum Want {
    /// Room for a file that must grow. `reason` is that of [`Error::DiskFull`].
    Room { path: PathBuf, reason: String },
    /// A file descriptor. `code` is the number of the system's error.
    Files { operation: &'static str, path: PathBuf, code: i32 },
}

impl Want {
    /// `None` if `source` does not say that a file can't grow.
    fn of_room(path: &Path, source: &io::Error) -> Option<Self> {
        let full = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::disk_full(path.to_owned(), source)
            }
            io::ErrorKind::FileTooLarge => Error::DiskFull {
                path: path.to_owned(),
                reason: format!(
                    "this process, or this file system, allows no longer file ({source}). No row is lost: raise the limit of \
                     file sizes (`ulimit -f`)"
                ),
            },
            _ => return None,
        };
        let Error::DiskFull { path, reason } = full else { return None };
        Some(Want::Room { path, reason })
    }
}

impl From<Want> for Error {
    fn from(want: Want) -> Self {
        match want {
            Want::Room { path, reason } => Error::DiskFull { path, reason },
            Want::Files { operation, path, code } => Error::TooManyOpenFiles {
                operation,
                path,
                source: io::Error::from_raw_os_error(code),
            },
        }
    }
}
