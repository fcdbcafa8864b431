//! Status codes, the message of the last failure, and the barrier that turns a panic into a status.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use embank::{Error, StoreError};

use crate::cancellation::Uncancelled;

/// The result of a call. Numbers never change their meaning. A newer library may return numbers
/// that are not listed here.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum embank_status {
    /// The call succeeded.
    Ok = 0,
    /// An argument is NULL, misaligned, overlapping, not UTF-8 or out of its range; or an option or
    /// setting is out of its range.
    InvalidArgument = 1,
    /// A buffer's length does not fit the keys and the table's dim.
    ShapeMismatch = 2,
    /// The table exists with another layout or other initial values.
    TableMismatch = 3,
    /// The bank has no table of this name.
    NoSuchTable = 4,
    /// The table of this handle or lease was dropped.
    TableDropped = 5,
    /// The bank holds a table that this version can't read.
    UnreadableTable = 6,
    /// A peek with EMBANK_MISSING_ERROR met keys that have no row.
    MissingRow = 7,
    /// A get waited for wait_timeout_ms, but a staleness clock stayed above the table's bound. The
    /// get took no lease and can be called again.
    StalenessTimeout = 8,
    /// The table has no optimizer that could apply a gradient.
    NoOptimizer = 9,
    /// A gradient is NaN or infinite. No row has been changed.
    NonFiniteGradient = 10,
    /// The lease was already applied, put or released.
    LeaseEnded = 11,
    /// A system call on a file failed.
    Io = 12,
    /// A file is damaged or cut short.
    Damaged = 13,
    /// The bank is already open for writing, in this process or another.
    Locked = 14,
    /// The bank was opened read-only.
    ReadOnly = 15,
    /// A reader shows the checkpoint, so it can't be removed.
    BeingRead = 16,
    /// A delta does not follow the bank's newest checkpoint.
    DeltaMismatch = 17,
    /// The memory budget is too small; the message names one that is enough.
    BudgetTooSmall = 18,
    /// The disk quota is used up.
    QuotaExceeded = 19,
    /// An earlier write failed. The bank writes nothing more until it is opened again.
    Poisoned = 20,
    /// The store found a contradiction in its own data: a mistake in Embank. The last checkpoint is
    /// still good.
    Inconsistent = 21,
    /// The device that was asked for by name can't be used here.
    DeviceUnavailable = 22,
    /// An earlier lookahead met an error while it read. The keys of this call are not queued.
    LookaheadFailed = 23,
    /// The handle was made before a fork(), in the parent process.
    Forked = 24,
    /// A panic: a mistake in Embank. Open the bank again from its last checkpoint.
    Internal = 25,
    /// A failure that has no number of its own; see the message. Also the refusal to change one
    /// shard of a fleet alone.
    Other = 26,
    /// The lease grew older than the bank's lease_timeout_ms, and a get of its table ended it. The
    /// call changed no row.
    LeaseExpired = 27,
    /// A callback ended the call.
    Cancelled = 28,
    /// A file can't be read as a table. It is damaged, holds values that are not finite, or does
    /// not tell which of its parts are keys and vectors. Batches that were imported before the
    /// failure are in the table.
    UnreadableFile = 29,
    /// The bank's directory was moved, removed or replaced while the bank was open. The bank writes
    /// nothing more.
    DirectoryMoved = 30,
    /// The table's keys are ids of a vocabulary, and a key of the call is not one of these ids. The
    /// call read and changed no row.
    UnknownId = 31,
    /// A get would wait for leases of its own thread, which can't end them while it waits. The get
    /// took no lease. End those leases first. If another thread will end them, call
    /// embank_lease_hand_over.
    SelfBlocked = 32,
    /// A row of a put has a value that is NaN or infinite, or too large for the table's dtype. No
    /// row has been changed.
    NonFiniteRow = 33,
    /// A step would make some rows infinite in the table's dtype. These rows are unchanged. All
    /// other rows of the batch took their step.
    RowOverflow = 34,
    /// The bank has no vocabulary of this name.
    NoSuchVocabulary = 35,
    /// The vocabulary exists with other settings.
    VocabularyMismatch = 36,
    /// A value has no id in the vocabulary, and the vocabulary has no unknown_id.
    UnknownValue = 37,
    /// The vocabulary of this handle was dropped.
    VocabularyDropped = 38,
    /// The call would insert a value, but the vocabulary is frozen.
    VocabularyFrozen = 39,
    /// The table's keys are ids of a vocabulary that was renumbered, replaced or dropped since the
    /// table was made.
    OtherVocabulary = 40,
    /// The disk has no room for the data that the call must write. No row is lost: make room and
    /// call again.
    DiskFull = 41,
    /// A file can be read, but does not fit the table: it has another dim, the state of another
    /// optimizer, or ids of another vocabulary. Batches that were imported before the failure are
    /// in the table.
    FileMismatch = 42,
    /// The callback of embank_table_update gave some rows a value that is not finite in the table's
    /// dtype. These rows are unchanged. All other rows of the batch are changed.
    UpdateRefused = 43,
    /// The get ahead has ended: embank_pending_wait was called for it already, or its queue was
    /// freed before it made the get. Call embank_table_get_ahead again.
    AheadEnded = 44,
    /// A newer version of Embank wrote a file of the bank. The file is not damaged: use a newer
    /// library. The message names the file, its format version, and the versions that this library
    /// reads.
    NewerFormat = 45,
}

/// The status and the message of a failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: embank_status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { status: embank_status::InvalidArgument, message: message.into() }
    }

    fn from_panic(panic: &(dyn Any + Send)) -> Self {
        let what = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Self {
            status: embank_status::Internal,
            message: format!(
                "a bug in Embank, please report it: {what}; open the bank again from its last checkpoint"
            ),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { status: status_of(&error), message: in_names_of_c(error.to_string()) }
    }
}

/// Rust names that occur in messages, each with the C name that replaces it.
const RUST_NAMES: [(&str, &str); 12] = [
    ("Missing::Initial", "EMBANK_MISSING_INITIAL"),
    ("Vocabulary::set_frozen", "embank_vocabulary_set_frozen"),
    ("VocabularyConfig::counts", "the counts of embank_vocabulary_settings"),
    ("Bank::vocabulary", "embank_bank_vocabulary"),
    ("Bank::open_vocabulary", "embank_bank_open_vocabulary"),
    ("Bank::drop_vocabulary", "embank_bank_drop_vocabulary"),
    ("Bank::ahead_queue", "embank_bank_ahead_queue"),
    ("Vocabulary::verify", "`embank verify`"),
    (", or read it as it is with Bank::open_table_unchecked", ""),
    ("Tracking::SetTime", "EMBANK_TRACKING_SET_TIME"),
    ("DeviceChoice::Auto", "EMBANK_DEVICE_AUTO"),
    ("wait_timeout", "wait_timeout_ms"),
];

fn in_names_of_c(message: String) -> String {
    RUST_NAMES.iter().fold(message, |message, (rust, c)| message.replace(rust, c))
}

fn status_of(error: &Error) -> embank_status {
    match error {
        Error::Store(error) => status_of_store(error),
        Error::StalenessTimeout { .. } => embank_status::StalenessTimeout,
        Error::SelfBlocked { .. } => embank_status::SelfBlocked,
        Error::KeyIsNoId { .. } | Error::UnknownId { .. } => embank_status::UnknownId,
        Error::LeaseExpired { .. } => embank_status::LeaseExpired,
        Error::MissingRow { .. } => embank_status::MissingRow,
        Error::ConfigMismatch { .. } => embank_status::TableMismatch,
        Error::TableDropped { .. } => embank_status::TableDropped,
        Error::UnreadableTable { .. } => embank_status::UnreadableTable,
        Error::ShapeMismatch { .. } => embank_status::ShapeMismatch,
        Error::NoOptimizer { .. } => embank_status::NoOptimizer,
        Error::NonFiniteGradient { .. } => embank_status::NonFiniteGradient,
        Error::StepIncomplete { source, .. } => status_of(source),
        Error::NonFiniteRow { .. } => embank_status::NonFiniteRow,
        Error::RowOverflow { .. } => embank_status::RowOverflow,
        Error::UpdateRefused { .. } => embank_status::UpdateRefused,
        Error::LookaheadFailed(_) => embank_status::LookaheadFailed,
        Error::AheadEnded { .. } => embank_status::AheadEnded,
        Error::Cancelled => embank_status::Cancelled,
        Error::UnreadableFile { .. } => embank_status::UnreadableFile,
        Error::FileMismatch { .. } => embank_status::FileMismatch,
        Error::NoSuchVocabulary { .. } => embank_status::NoSuchVocabulary,
        Error::VocabularyMismatch { .. } => embank_status::VocabularyMismatch,
        Error::UnknownValue { .. } => embank_status::UnknownValue,
        Error::VocabularyDropped { .. } => embank_status::VocabularyDropped,
        Error::VocabularyFrozen { .. } => embank_status::VocabularyFrozen,
        Error::OtherVocabulary { .. } => embank_status::OtherVocabulary,
        Error::DamagedVocabulary { .. } => embank_status::Damaged,
        Error::BadBags { .. }
        | Error::InvalidConfig { .. }
        | Error::InvalidVocabulary { .. }
        | Error::LengthMismatch { .. }
        | Error::NoCounts { .. }
        | Error::NotDense { .. }
        | Error::ValueTooLong { .. } => embank_status::InvalidArgument,
        _ => embank_status::Other,
    }
}

fn status_of_store(error: &StoreError) -> embank_status {
    match error {
        StoreError::Io { .. }
        | StoreError::TooManyOpenFiles { .. }
        | StoreError::AddressSpaceRefused { .. }
        | StoreError::ThreadRefused { .. } => embank_status::Io,
        StoreError::Truncated { .. } | StoreError::Damaged { .. } => embank_status::Damaged,
        StoreError::NewerFormat { .. } => embank_status::NewerFormat,
        StoreError::Locked { .. } => embank_status::Locked,
        StoreError::DirectoryMoved { .. } => embank_status::DirectoryMoved,
        StoreError::ReadOnly { .. } => embank_status::ReadOnly,
        StoreError::BeingRead { .. } => embank_status::BeingRead,
        StoreError::DeltaMismatch { .. } => embank_status::DeltaMismatch,
        StoreError::BudgetTooSmall { .. } => embank_status::BudgetTooSmall,
        StoreError::QuotaExceeded { .. } => embank_status::QuotaExceeded,
        StoreError::DiskFull { .. } => embank_status::DiskFull,
        StoreError::NotABank { .. }
        | StoreError::NoSuchCheckpoint { .. }
        | StoreError::CheckpointInUse { .. }
        | StoreError::ChangedMeanwhile(_)
        | StoreError::InvalidOption { .. }
        | StoreError::UnusableOutput { .. }
        | StoreError::WrongKind { .. }
        | StoreError::TooLong { .. }
        | StoreError::Exhausted(_)
        | StoreError::InvalidArgument(_) => embank_status::InvalidArgument,
        StoreError::TableMismatch { .. } => embank_status::TableMismatch,
        StoreError::NoSuchTable(_) => embank_status::NoSuchTable,
        StoreError::Poisoned { .. } => embank_status::Poisoned,
        StoreError::Inconsistent { .. } => embank_status::Inconsistent,
        StoreError::DeviceUnavailable { .. } => embank_status::DeviceUnavailable,
        _ => embank_status::Other,
    }
}

thread_local! {
    static LAST_MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Runs the body of an exported function, and turns a panic into a status. Keeps the thread from
/// being cancelled meanwhile. Later calls are sound
/// even after a panic: the store keeps its invariants, and this crate gives the caller only
/// complete handles.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> embank_status {
    let _uncancelled = Uncancelled::new();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return embank_status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::from_panic(panic.as_ref()),
    };
    let mut message = failure.message.into_bytes();
    message.retain(|&byte| byte != 0);
    let message = CString::new(message).unwrap_or_default();
    // A thread that is ending may have lost its thread-local storage already. The caller then gets
    // the status without a message.
    let _ = LAST_MESSAGE.try_with(|last| *last.borrow_mut() = message);
    failure.status
}

/// The message of the last failed call of this thread, as UTF-8 text that names the problem and the
/// cure. "" if no call of this thread failed. Valid until the next failed call of this thread, or
/// until the thread ends. A language that may move a caller to another thread between calls must
/// copy the message at once.
#[unsafe(no_mangle)]
pub extern "C" fn embank_last_error_message() -> *const c_char {
    LAST_MESSAGE.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The name of a status without its prefix, such as "LOCKED". "UNKNOWN" for a number that this
/// library does not know. The text is always valid.
#[unsafe(no_mangle)]
pub extern "C" fn embank_status_name(status: i32) -> *const c_char {
    usize::try_from(status)
        .ok()
        .and_then(|place| NAMES.get(place))
        .map_or(c"UNKNOWN", |name| name)
        .as_ptr()
}

/// The library's version, such as "0.1.0". The text is always valid.
#[unsafe(no_mangle)]
pub extern "C" fn embank_version() -> *const c_char {
    VERSION.as_ptr()
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no NUL in it"),
    };

/// The names of the statuses, indexed by number.
const NAMES: [&CStr; embank_status::NewerFormat as usize + 1] = [
    c"OK",
    c"INVALID_ARGUMENT",
    c"SHAPE_MISMATCH",
    c"TABLE_MISMATCH",
    c"NO_SUCH_TABLE",
    c"TABLE_DROPPED",
    c"UNREADABLE_TABLE",
    c"MISSING_ROW",
    c"STALENESS_TIMEOUT",
    c"NO_OPTIMIZER",
    c"NON_FINITE_GRADIENT",
    c"LEASE_ENDED",
    c"IO",
    c"DAMAGED",
    c"LOCKED",
    c"READ_ONLY",
    c"BEING_READ",
    c"DELTA_MISMATCH",
    c"BUDGET_TOO_SMALL",
    c"QUOTA_EXCEEDED",
    c"POISONED",
    c"INCONSISTENT",
    c"DEVICE_UNAVAILABLE",
    c"LOOKAHEAD_FAILED",
    c"FORKED",
    c"INTERNAL",
    c"OTHER",
    c"LEASE_EXPIRED",
    c"CANCELLED",
    c"UNREADABLE_FILE",
    c"DIRECTORY_MOVED",
    c"UNKNOWN_ID",
    c"SELF_BLOCKED",
    c"NON_FINITE_ROW",
    c"ROW_OVERFLOW",
    c"NO_SUCH_VOCABULARY",
    c"VOCABULARY_MISMATCH",
    c"UNKNOWN_VALUE",
    c"VOCABULARY_DROPPED",
    c"VOCABULARY_FROZEN",
    c"OTHER_VOCABULARY",
    c"DISK_FULL",
    c"FILE_MISMATCH",
    c"UPDATE_REFUSED",
    c"AHEAD_ENDED",
    c"NEWER_FORMAT",
];

#[cfg(test)]
mod tests {
    use super::*;
    use embank::LockHolders;
    use std::io;
    use std::path::PathBuf;
    use std::time::Duration;

    fn last_message() -> String {
        // SAFETY: the pointer is to this thread's message, which ends with a NUL. No call fails
        // before `to_owned` copies it.
        unsafe { CStr::from_ptr(embank_last_error_message()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_message() {
        assert_eq!(call(|| panic!("row {} is gone", 7)), embank_status::Internal);
        assert!(last_message().contains("row 7 is gone"), "{}", last_message());
        assert_eq!(call(|| std::panic::panic_any(7_u8)), embank_status::Internal);
        assert!(last_message().contains("no message"), "{}", last_message());
    }

    #[test]
    fn a_message_stays_until_the_next_failure_of_its_thread() {
        assert_eq!(call(|| Err(Failure::invalid("one\0two"))), embank_status::InvalidArgument);
        assert_eq!(call(|| Ok(())), embank_status::Ok);
        std::thread::spawn(|| assert_eq!(last_message(), "")).join().unwrap();
        assert_eq!(last_message(), "onetwo");
    }

    #[test]
    fn every_status_has_its_name() {
        // SAFETY: `embank_status_name` returns a static text that ends with a NUL.
        let name =
            |status: i32| unsafe { CStr::from_ptr(embank_status_name(status)) }.to_str().unwrap();
        assert_eq!(name(embank_status::Ok as i32), "OK");
        assert_eq!(name(embank_status::LeaseEnded as i32), "LEASE_ENDED");
        assert_eq!(name(embank_status::Forked as i32), "FORKED");
        assert_eq!(name(embank_status::LeaseExpired as i32), "LEASE_EXPIRED");
        assert_eq!(name(embank_status::UnreadableFile as i32), "UNREADABLE_FILE");
        assert_eq!(name(embank_status::SelfBlocked as i32), "SELF_BLOCKED");
        assert_eq!(name(embank_status::RowOverflow as i32), "ROW_OVERFLOW");
        assert_eq!(name(embank_status::UpdateRefused as i32), "UPDATE_REFUSED");
        assert_eq!(name(embank_status::AheadEnded as i32), "AHEAD_ENDED");
        assert_eq!(name(embank_status::NewerFormat as i32), "NEWER_FORMAT");
        assert_eq!((name(-1), name(46), name(i32::MAX)), ("UNKNOWN", "UNKNOWN", "UNKNOWN"));
    }

    /// Checks that each kind of error has its status, including errors that `tests/c/abi.c` can't
    /// cause.
    #[test]
    fn every_error_has_its_status() {
        let table = String::from("t");
        let path = PathBuf::from("p");
        let text = String::new;
        let io = || io::Error::from_raw_os_error(5);
        let of_tables = [
            (
                Error::StalenessTimeout {
                    table: table.clone(),
                    key: 1,
                    outstanding: 2,
                    bound: 1,
                    waited: Duration::ZERO,
                    oldest: None,
                },
                embank_status::StalenessTimeout,
            ),
            (
                Error::LeaseExpired {
                    table: table.clone(),
                    keys: 1,
                    age: Duration::ZERO,
                    timeout: Duration::ZERO,
                },
                embank_status::LeaseExpired,
            ),
            (
                Error::KeyIsNoId {
                    table: table.clone(),
                    vocabulary: text(),
                    key: 7,
                    first_id: 0,
                    next_id: 7,
                    unknown_id: None,
                },
                embank_status::UnknownId,
            ),
            (
                Error::MissingRow { table: table.clone(), key: 1, count: 1 },
                embank_status::MissingRow,
            ),
            (
                Error::ConfigMismatch { table: table.clone(), expected: text(), found: text() },
                embank_status::TableMismatch,
            ),
            (Error::TableDropped { table: table.clone() }, embank_status::TableDropped),
            (
                Error::InvalidConfig { table: table.clone(), what: text() },
                embank_status::InvalidArgument,
            ),
            (Error::BadBags { table: table.clone(), what: text() }, embank_status::InvalidArgument),
            (
                Error::UnreadableTable { table: table.clone(), reason: text() },
                embank_status::UnreadableTable,
            ),
            (
                Error::ShapeMismatch { table: table.clone(), what: "rows", expected: 1, found: 2 },
                embank_status::ShapeMismatch,
            ),
            (Error::NoOptimizer { table: table.clone() }, embank_status::NoOptimizer),
            (Error::AheadEnded { table: table.clone() }, embank_status::AheadEnded),
            (
                Error::NonFiniteGradient { table, key: 1, column: 0, value: f32::NAN },
                embank_status::NonFiniteGradient,
            ),
            (
                Error::LookaheadFailed(StoreError::Poisoned { reason: text() }),
                embank_status::LookaheadFailed,
            ),
            (Error::Cancelled, embank_status::Cancelled),
            (
                Error::UnreadableFile { path: path.clone(), what: text() },
                embank_status::UnreadableFile,
            ),
            (Error::FileMismatch { path: path.clone(), what: text() }, embank_status::FileMismatch),
        ];
        let path = || path.clone();
        let of_the_store = [
            (StoreError::Io { operation: "read", path: path(), source: io() }, embank_status::Io),
            (
                StoreError::Truncated { path: path(), offset: 0, expected: 1, found: 0 },
                embank_status::Damaged,
            ),
            (StoreError::Damaged { path: path(), offset: 0, what: text() }, embank_status::Damaged),
            (
                StoreError::NewerFormat {
                    path: path(),
                    kind: "metadata",
                    found: 3,
                    oldest: 1,
                    newest: 2,
                },
                embank_status::NewerFormat,
            ),
            (
                StoreError::Locked { path: path(), holders: LockHolders::default() },
                embank_status::Locked,
            ),
            (
                StoreError::DirectoryMoved { path: path(), replaced: true },
                embank_status::DirectoryMoved,
            ),
            (StoreError::ReadOnly { path: path() }, embank_status::ReadOnly),
            (
                StoreError::BeingRead {
                    path: path(),
                    checkpoint: 1,
                    readers: LockHolders::default(),
                },
                embank_status::BeingRead,
            ),
            (
                StoreError::DeltaMismatch { path: path(), what: text() },
                embank_status::DeltaMismatch,
            ),
            (
                StoreError::ThreadRefused { thread: "writer", path: path(), source: io() },
                embank_status::Io,
            ),
            (
                StoreError::BudgetTooSmall { budget_bytes: 0, needed_bytes: 1, what: text() },
                embank_status::BudgetTooSmall,
            ),
            (
                StoreError::QuotaExceeded {
                    quota_bytes: 0,
                    log_bytes: 0,
                    live_bytes: 0,
                    held_bytes: 0,
                    holders: Vec::new(),
                },
                embank_status::QuotaExceeded,
            ),
            (StoreError::DiskFull { path: path(), reason: text() }, embank_status::DiskFull),
            (
                StoreError::TableMismatch { name: text(), expected: text(), found: text() },
                embank_status::TableMismatch,
            ),
            (StoreError::NoSuchTable(text()), embank_status::NoSuchTable),
            (StoreError::Poisoned { reason: text() }, embank_status::Poisoned),
            (StoreError::Inconsistent { what: text() }, embank_status::Inconsistent),
            (
                StoreError::DeviceUnavailable { device: "io_uring", reason: text() },
                embank_status::DeviceUnavailable,
            ),
        ];
        let of_the_store = of_the_store.map(|(error, status)| (Error::Store(error), status));
        for (error, status) in of_tables.into_iter().chain(of_the_store) {
            let text = error.to_string();
            assert_eq!(call(|| Err(error.into())), status, "{text}");
            assert_eq!(last_message(), in_names_of_c(text));
            assert!(!last_message().contains("::"), "{}", last_message());
        }
    }

    /// Checks that all Rust errors for wrong arguments have the status `InvalidArgument`.
    #[test]
    fn refused_arguments_have_one_status() {
        let path = || PathBuf::from("p");
        let text = String::new;
        let of_the_store = [
            StoreError::NotABank { path: path(), why: text() },
            StoreError::NoSuchCheckpoint { path: path(), number: Some(1), kept: Vec::new() },
            StoreError::CheckpointInUse {
                path: path(),
                checkpoint: 1,
                why: "a delta has its number",
            },
            StoreError::ChangedMeanwhile(text()),
            StoreError::InvalidOption { option: "page_size_bytes", problem: text() },
            StoreError::UnusableOutput { path: path(), why: text() },
            StoreError::WrongKind { of: text(), why: text() },
            StoreError::TooLong { what: text(), bytes: 2, bytes_max: 1, limit: "a name may have" },
            StoreError::Exhausted(text()),
            StoreError::InvalidArgument(text()),
        ];
        let of_tables = [
            Error::LengthMismatch {
                vocabulary: text(),
                what: "ids",
                of: "values",
                expected: 1,
                found: 2,
            },
            Error::NotDense { table: text(), why: text() },
        ];
        for error in of_the_store.map(Error::Store).into_iter().chain(of_tables) {
            assert_eq!(status_of(&error), embank_status::InvalidArgument, "{error}");
        }
    }
}
