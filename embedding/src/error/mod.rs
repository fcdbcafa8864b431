//! The errors of banks and tables, and what the caller can do about them.

mod from_store;
mod wording;

use std::path::{Path, PathBuf};
use std::time::Duration;

use embank_kv::{LockHolders, SpaceHolder, THREADS_ADVICE, no_checkpoint};

use crate::dtype::Dtype;
use crate::keys::UNKNOWN_ID;
use crate::stats::lease_info::LeaseInfo;
use wording::{cure, others, quota_exceeded, why_it_waited};

/// The result of a fallible call on a bank or a table.
pub type Result<T> = std::result::Result<T, Error>;

/// Every way in which a bank or a table refuses or fails.
///
/// A missing row is an outcome, not an error, unless the caller chooses
/// [`Missing::Error`](crate::Missing::Error).
///
/// # Examples
/// ```
/// use embank::{Error, TableConfig};
///
/// let error = TableConfig::new(0).validate("user").unwrap_err();
/// assert!(matches!(error, Error::InvalidConfig { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A Get waited for the staleness bound until its time was up. Nothing is held; the call can be
    /// made again.
    #[error(
        "table {table:?}, key {key}: {}",
        why_it_waited(*outstanding, *bound, *waited, oldest.as_deref())
    )]
    StalenessTimeout {
        /// The table.
        table: String,
        /// The first row that kept the batch waiting at the end.
        key: u64,
        /// Its staleness clock: the number of Gets that no update has answered.
        outstanding: u32,
        /// The table's staleness bound.
        bound: u32,
        /// How long the Get waited.
        waited: Duration,
        /// The oldest lease that holds the row. `None` if no lease holds it any more.
        oldest: Option<Box<LeaseInfo>>,
    },
    /// A Get waited for the staleness bound, and the check that the program gave to
    /// [`check_while_waiting`](crate::check_while_waiting) ended the wait. Nothing is held; the
    /// call can be made again.
    #[error("table {table:?}, key {key}: the program ended the wait for this row after {waited:?}")]
    Interrupted {
        /// The table.
        table: String,
        /// The row that the Get waited for.
        key: u64,
        /// How long the Get waited.
        waited: Duration,
    },
    /// A Get would wait for leases of its own thread, so it fails at once. It holds nothing. The
    /// leases are those that this thread took and that do not expire before the end of the wait, if
    /// more of them than the staleness bound hold a row. Leases that were handed over
    /// ([`Lease::hand_over`](crate::Lease::hand_over)) do not count. No lease counts once a thread
    /// of the bank has ended another thread's lease.
    #[error(
        "table {table:?}, key {key}: this thread holds {held} {} on the row itself, more than the staleness bound of \
         {bound} lets through, so this get would wait for its own thread (the oldest holds {oldest}); apply, put or \
         release what it holds first, or raise the bound; if another thread ends these leases, call hand_over() on \
         each before it gets them",
        if *held == 1 { "lease" } else { "leases" }
    )]
    SelfBlocked {
        /// The table.
        table: String,
        /// The row.
        key: u64,
        /// The number of leases of this thread on the row.
        held: u32,
        /// The table's staleness bound.
        bound: u32,
        /// The oldest of them.
        oldest: Box<LeaseInfo>,
    },
    /// The lease grew older than the bank's `lease_timeout`, and its counts were given back so that
    /// other Gets could continue. The call has changed nothing.
    #[error(
        "table {table:?}: this lease of {keys} keys was taken {age:.1?} ago and has expired: after the bank's \
         lease_timeout of {timeout:?} others were let through; nothing was changed; get the rows again and \
         compute the update anew, or raise lease_timeout"
    )]
    LeaseExpired {
        /// The table.
        table: String,
        /// Distinct keys of the lease.
        keys: usize,
        /// Time since the lease was taken.
        age: Duration,
        /// The bank's `lease_timeout`.
        timeout: Duration,
    },
    /// A peek with [`Missing::Error`](crate::Missing::Error) asked for rows that do not exist.
    #[error(
        "table {table:?} has no row for key {key} ({count} of the keys asked for are missing); get \
         or put them first, or peek with Missing::Initial"
    )]
    MissingRow {
        /// The table.
        table: String,
        /// The first missing key of the batch.
        key: u64,
        /// The number of missing keys in the batch.
        count: usize,
    },
    /// The bank holds a table of this name with another layout or other initial values.
    #[error(
        "table {table:?} exists with {found}, but was asked for with {expected}; ask for it as it \
         is, or choose another name"
    )]
    ConfigMismatch {
        /// The table.
        table: String,
        /// The differing settings as the caller asked for them.
        expected: String,
        /// The same settings as the bank holds them.
        found: String,
    },
    /// The table was dropped while the program had this handle or lease of it.
    #[error(
        "table {table:?} was dropped, and its rows are gone; to go on under that name, open the table \
         anew"
    )]
    TableDropped {
        /// The table.
        table: String,
    },
    /// A setting of a table is out of its range.
    #[error("table {table:?}: {what}")]
    InvalidConfig {
        /// The table.
        table: String,
        /// The setting, its value and its range.
        what: String,
    },
    /// The bank holds a table of this name that this version can't read.
    #[error("table {table:?} can't be opened as an embedding table: {reason}")]
    UnreadableTable {
        /// The table.
        table: String,
        /// The reason: a descriptor of a newer version, or its damage.
        reason: String,
    },
    /// A slice has not the length that the keys and the table's dim require.
    #[error("table {table:?}: {what} must hold {expected} f32 values, found {found}")]
    ShapeMismatch {
        /// The table.
        table: String,
        /// Which argument.
        what: &'static str,
        /// Values wanted: keys times dim.
        expected: usize,
        /// Values found.
        found: usize,
    },
    /// Offsets or weights of bags do not fit the batch. Nothing is held, and no row has changed.
    #[error("table {table:?}: {what}")]
    BadBags {
        /// The table.
        table: String,
        /// What does not fit, and what would fit.
        what: String,
    },
    /// The table has no optimizer that could apply a gradient.
    #[error(
        "table {table:?} was created without an optimizer, which can't be added, and so can't apply gradients; put new \
         values instead, create a table of another name with one, or drop this one and create it anew"
    )]
    NoOptimizer {
        /// The table.
        table: String,
    },
    /// A gradient is NaN or infinite. No row of the batch has been changed.
    #[error(
        "table {table:?}, key {key}: the gradient of column {column} is {value}; no row of this \
         batch was changed; lower the learning rate, clip or unscale the gradients, or skip the batch"
    )]
    NonFiniteGradient {
        /// The table.
        table: String,
        /// The row.
        key: u64,
        /// The column of the row.
        column: usize,
        /// The gradient, after duplicates were summed.
        value: f32,
    },
    /// A step of the optimizer would make rows infinite or NaN as the table stores them. These rows
    /// are unchanged; all other rows of the batch took their step.
    #[error(
        "table {table:?}, key {key}: the step makes column {column} {value}, which {} can't hold; this row is unchanged{}, \
         and all other rows took their step; lower the learning rate, clip the gradients, or store the rows as another \
         dtype",
        dtype.name(),
        others(*rows)
    )]
    RowOverflow {
        /// The table.
        table: String,
        /// The first such row.
        key: u64,
        /// The column of the row.
        column: usize,
        /// What it would become.
        value: f32,
        /// How the table stores its rows.
        dtype: Dtype,
        /// How many rows were refused.
        rows: usize,
    },
    /// A step over several tables failed after some of them took theirs. The leases are given back.
    #[error(
        "the step of tables {} is taken, and that of table {table:?} failed, so the batch is half applied: go back to the \
         last checkpoint, or train on; {source}",
        moved.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
    )]
    StepIncomplete {
        /// The tables whose rows have changed.
        moved: Vec<String>,
        /// The table that failed.
        table: String,
        /// Why.
        source: Box<Error>,
    },
    /// A row to be put holds a value that is NaN or infinite, or becomes infinite as the table
    /// stores it. No row of the batch has been changed.
    #[error(
        "table {table:?}, key {key}: column {column} of the row to put is {value}, which {} can't hold as a finite value; \
         no row of this batch was changed; mend the value, or store the rows as another dtype",
        dtype.name()
    )]
    NonFiniteRow {
        /// The table.
        table: String,
        /// The row.
        key: u64,
        /// The column of the row.
        column: usize,
        /// The value.
        value: f32,
        /// How the table stores its rows.
        dtype: Dtype,
    },
    /// A vocabulary has no id for a value, and its settings make that an error.
    #[error(
        "vocabulary {vocabulary:?} has no id for the value {value} at place {position} of the batch ({count} of its \
         values have none){}; or make the vocabulary with an id for unknown values",
        if *frozen { ", and is frozen: let it grow again" } else { ": insert it first" }
    )]
    UnknownValue {
        /// The vocabulary.
        vocabulary: String,
        /// The first such value, shown as text.
        value: String,
        /// Its place in the batch.
        position: usize,
        /// The number of values in the batch that have no id.
        count: usize,
        /// True if the call was to insert the value, and the vocabulary is frozen.
        frozen: bool,
    },
    /// The vocabulary has given this id to no value.
    #[error(
        "vocabulary {vocabulary:?} never gave out id {id}: its values have the ids from {first_id} up to and not \
         including {next_id}"
    )]
    UnknownId {
        /// The vocabulary.
        vocabulary: String,
        /// The first such id.
        id: u64,
        /// The first value's id.
        first_id: u64,
        /// The id that the next new value gets.
        next_id: u64,
    },
    /// A key is no id of the vocabulary whose ids are the table's keys. No row was read or written.
    #[error(
        "table {table:?}: key {key}{} is no id of vocabulary {vocabulary:?}, whose ids end before {next_id}; {}",
        if *key == UNKNOWN_ID { " (UNKNOWN_ID, for a value without an id)" } else { "" },
        cure(*key, *unknown_id, *first_id)
    )]
    KeyIsNoId {
        /// The table.
        table: String,
        /// Its vocabulary.
        vocabulary: String,
        /// The first such key of the batch.
        key: u64,
        /// The id of the first value. Smaller keys are free for the caller's use.
        first_id: u64,
        /// The id that the next new value gets.
        next_id: u64,
        /// The id that lookups give to unknown values. `None` if unknown values are an error.
        unknown_id: Option<u64>,
    },
    /// A byte string is longer than the vocabulary allows. No value of the batch was inserted.
    #[error(
        "vocabulary {vocabulary:?}: the value {value} has {found} bytes and may have {longest}; shorten it, or make \
         the vocabulary anew with a larger value_bytes_max"
    )]
    ValueTooLong {
        /// The vocabulary.
        vocabulary: String,
        /// The value, its beginning.
        value: String,
        /// Its length in bytes.
        found: usize,
        /// The longest length that the vocabulary allows.
        longest: u32,
    },
    /// The vocabulary is frozen, so its ids can't change.
    #[error(
        "vocabulary {vocabulary:?} is frozen; let it grow again first (Vocabulary::set_frozen)"
    )]
    VocabularyFrozen {
        /// The vocabulary.
        vocabulary: String,
    },
    /// The vocabulary does not count its values.
    #[error("vocabulary {vocabulary:?} has no counts; make it anew with VocabularyConfig::counts")]
    NoCounts {
        /// The vocabulary.
        vocabulary: String,
    },
    /// The bank has no vocabulary of this name. Also the error of a new table for ids of it.
    #[error(
        "there is no vocabulary {vocabulary:?} in this bank; make it first, with Bank::vocabulary or by a pipeline on \
         this bank"
    )]
    NoSuchVocabulary {
        /// The name.
        vocabulary: String,
    },
    /// The vocabulary was dropped while the program had this handle of it.
    #[error(
        "vocabulary {vocabulary:?} was dropped, and its values are gone; to go on under that name, make it anew with \
         Bank::vocabulary"
    )]
    VocabularyDropped {
        /// The vocabulary.
        vocabulary: String,
    },
    /// The bank holds a vocabulary of this name with other settings.
    #[error(
        "vocabulary {vocabulary:?} exists with {found}, but was asked for with {expected}; open it as it is with \
         Bank::open_vocabulary, choose another name, or drop it with Bank::drop_vocabulary"
    )]
    VocabularyMismatch {
        /// The vocabulary.
        vocabulary: String,
        /// The differing settings as the caller asked for them.
        expected: String,
        /// The same settings as the bank holds them.
        found: String,
    },
    /// A setting of a vocabulary is out of its range.
    #[error("vocabulary {vocabulary:?}: {what}")]
    InvalidVocabulary {
        /// The vocabulary.
        vocabulary: String,
        /// The setting, its value and its range.
        what: String,
    },
    /// The stored parts of a vocabulary contradict each other, or this version can't read them.
    #[error(
        "vocabulary {vocabulary:?} can't be used: {what}; go back to a checkpoint where Vocabulary::verify finds it \
         whole, or drop it"
    )]
    DamagedVocabulary {
        /// The vocabulary.
        vocabulary: String,
        /// What is wrong.
        what: String,
    },
    /// A table's keys are ids of a vocabulary, and the bank does not have the vocabulary as it was
    /// when the table was made.
    #[error(
        "table {table:?} was made for ids of vocabulary {vocabulary:?}, but {found}; a row of it would be taken for the \
         row of another value: drop the table and make it anew when the vocabulary is renumbered no more (with a \
         `min_count`: after the pipeline's first run), go back to a checkpoint that has both, or read it as it is with \
         Bank::open_table_unchecked"
    )]
    OtherVocabulary {
        /// The table.
        table: String,
        /// The vocabulary that the table was made for.
        vocabulary: String,
        /// What the bank has instead.
        found: String,
    },
    /// A file can be read, but its rows do not fit the table: it has another dim, the state of
    /// another optimizer or ids of another vocabulary. Or the file has no settings to make a table
    /// from. Batches before the one that failed are in the table.
    #[error("{} does not fit: {what}", path.display())]
    FileMismatch {
        /// The file.
        path: PathBuf,
        /// What the file holds, what the table needs, and what to do.
        what: String,
    },
    /// A file can't be read as a table. It is damaged, has values that are not finite, or does not
    /// say which of its parts are keys and vectors. Batches before the one that failed are in the
    /// table.
    #[error("{} can't be imported: {what}", path.display())]
    UnreadableFile {
        /// The file.
        path: PathBuf,
        /// What was expected and found, and in which row and column.
        what: String,
    },
    /// The caller's progress function ended an export, import or eviction.
    #[error("the caller ended it before it was through")]
    Cancelled,
    /// An earlier lookahead met an error. Its rows stay on disk. A Get finds them there, or meets
    /// the error again.
    #[error("looking ahead failed earlier: {0}")]
    LookaheadFailed(#[source] Box<Error>),
    /// The thread that reads ahead panicked with this request, which is a bug of this library.
    #[error(
        "the thread that reads ahead panicked before it had read these rows; peek at them instead, and please \
         report what it wrote to standard error"
    )]
    PrefetchAbandoned,
    /// A system call on a file failed. After a failed write the store takes no more writes.
    #[error("{operation} {path}: {source}")]
    Io {
        /// The attempted operation: "open", "read", "write", "sync", ...
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A file ends before the last byte that a checkpoint refers to.
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
        /// The check, with the expected and the found value.
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
    /// The path of a bank's directory, or of a folder that is written to, leads elsewhere since it
    /// was opened.
    #[error(
        "{path} was {} while it was in use, so nothing is written or removed there. Put the directory back and call \
         again; or, if it is a bank, close it and open it where it lies now",
        if *replaced { "replaced by another directory" } else { "moved or removed" }
    )]
    DirectoryMoved {
        /// The path of the directory when the bank was opened.
        path: PathBuf,
        /// True if another directory has the path now; false if no directory has it.
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
    /// A delta does not follow the bank's newest checkpoint.
    #[error("{path} can't be applied here: {what}")]
    DeltaMismatch {
        /// The delta.
        path: PathBuf,
        /// The checkpoint that the delta follows, and the bank's newest one.
        what: String,
    },
    /// The memory budget is too small.
    #[error(
        "a memory budget of {budget_bytes} bytes is too small: {what} needs at least {needed_bytes} bytes"
    )]
    BudgetTooSmall {
        /// The budget given, in bytes.
        budget_bytes: u64,
        /// The smallest budget, in bytes, that is also enough for a scan. An open alone may succeed
        /// with a third of it.
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
        /// Bytes of the refused part.
        bytes: u64,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The system refuses a thread that the bank needs.
    #[error("the {thread} thread of bank {path:?} can't be started: {source}; {THREADS_ADVICE}")]
    ThreadRefused {
        /// Which thread: "writer", "compactor" or "lookahead".
        thread: &'static str,
        /// The bank's directory.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The log may not grow, and compaction can't make room.
    #[error("{}", quota_exceeded(*quota_bytes, *log_bytes, *live_bytes, *held_bytes, holders))]
    QuotaExceeded {
        /// The quota, in bytes.
        quota_bytes: u64,
        /// Bytes of the log.
        log_bytes: u64,
        /// Bytes of the current rows in the log.
        live_bytes: u64,
        /// Bytes of the log before the current rows that only scans and kept checkpoints hold.
        held_bytes: u64,
        /// The scans and checkpoints that hold it, the largest holder first.
        holders: Vec<SpaceHolder>,
    },
    /// The disk has no room for the call's data. The store still works: rows in memory can be read
    /// and changed, and the call can be repeated when there is room. A part of the batch may be
    /// done.
    #[error(
        "the disk of {path} is full ({reason}). No row is lost: remove files from that disk, delete rows, drop tables or \
         compact, and call again"
    )]
    DiskFull {
        /// The file that could not be written, or the folder of the log.
        path: PathBuf,
        /// The system's reason, or the purpose for which the remaining room is kept.
        reason: String,
    },
    /// A call waited for compaction to make room on disk, and the check that the program gave to
    /// [`check_while_waiting`](crate::check_while_waiting) ended the wait. A part of the batch may
    /// be done.
    #[error(
        "the program ended the wait for disk space after {waited:?}; part of the batch may be done"
    )]
    SpaceWaitInterrupted {
        /// The duration of the wait.
        waited: Duration,
    },
    /// The directory holds no bank.
    #[error("{path} is not a bank: {why}")]
    NotABank {
        /// The directory.
        path: PathBuf,
        /// What lies in the directory, and what to do.
        why: String,
    },
    /// The bank has no checkpoint of that number, or no checkpoint at all.
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
        /// The reason why it has to be removed.
        why: &'static str,
    },
    /// The data of the call was changed or removed during the call. The text says whether to repeat
    /// the call.
    #[error("{0}")]
    ChangedMeanwhile(String),
    /// An option is out of its range, or does not fit the bank or another option.
    #[error("{option} {problem}")]
    InvalidOption {
        /// The option's field name.
        option: &'static str,
        /// The allowed values, and the given one.
        problem: String,
    },
    /// A file or directory can't be written under this name.
    #[error("{path} {why}")]
    UnusableOutput {
        /// The path.
        path: PathBuf,
        /// What has this name, and what to do.
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
        /// The limit of the length, and what to do.
        limit: &'static str,
    },
    /// All numbers or addresses of a kind are taken.
    #[error("{0}")]
    Exhausted(String),
    /// A list has not the length that it must have.
    #[error("vocabulary {vocabulary:?}: {expected} {of} need as many {what}, found {found}")]
    LengthMismatch {
        /// The vocabulary.
        vocabulary: String,
        /// What the list holds.
        what: &'static str,
        /// What it belongs to.
        of: &'static str,
        /// How long that is.
        expected: usize,
        /// How long the list is.
        found: usize,
    },
    /// The table's keys do not fit a dense file.
    #[error("table {table:?} {why}")]
    NotDense {
        /// The table.
        table: String,
        /// The keys that are missing or too large, and what to do.
        why: String,
    },
    /// The call has a wrong argument for which there is no variant above: a batch of 2^32 values,
    /// falling offsets of strings, an eviction without a condition, an import without a file, a
    /// vocabulary merged into itself, more rows than a safetensors file can hold, and the cases of
    /// [`embank_kv::Error::InvalidArgument`].
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
    /// An earlier write failed. The bank writes nothing more until it is reopened.
    #[error(
        "the store stopped taking writes after an earlier failure ({reason}); the last checkpoint \
         is good: mend the cause and reopen the bank"
    )]
    Poisoned {
        /// The first failure.
        reason: String,
    },
    /// The store's own counts contradict each other, which is a bug in Embank.
    #[error(
        "the store contradicts itself, which is a mistake in Embank and should be reported: {what}. The last \
         checkpoint stands; reopen the bank to go on from it"
    )]
    Inconsistent {
        /// What does not fit.
        what: String,
    },
    /// The options name a device that this system does not support.
    #[error("{device} can't be used here: {reason}; use DeviceChoice::Auto to fall back")]
    DeviceUnavailable {
        /// The device.
        device: &'static str,
        /// Why.
        reason: String,
    },
    /// A failure of the store for which this version has no variant.
    #[error(transparent)]
    OfStore(embank_kv::Error),
}

impl Error {
    /// An option, with the allowed values.
    pub(crate) fn option(option: &'static str, problem: impl Into<String>) -> Self {
        Self::InvalidOption { option, problem: problem.into() }
    }

    pub(crate) fn unusable_output(path: &Path, why: impl Into<String>) -> Self {
        Self::UnusableOutput { path: path.to_owned(), why: why.into() }
    }

    /// A call on a table or vocabulary of the wrong kind.
    pub(crate) fn wrong_kind(kind: &str, name: &str, why: impl Into<String>) -> Self {
        Self::WrongKind { of: format!("{kind} {name:?}"), why: why.into() }
    }
}
