//! What can go wrong with banks and tables, and what the caller can do about it.

use std::path::PathBuf;
use std::time::Duration;

use crate::dtype::Dtype;
use crate::keys::UNKNOWN_ID;
use crate::stats::lease_info::LeaseInfo;

/// The result of a fallible call on a bank or a table.
pub type Result<T> = std::result::Result<T, Error>;

/// Every way in which a bank or a table refuses or fails.
///
/// A missing row is an outcome and no error, unless the caller asks for one with
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
    /// The store under the bank refused or failed.
    #[error(transparent)]
    Store(#[from] embank_kv::Error),
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
        /// Its staleness clock: Gets whose update had not come yet.
        outstanding: u32,
        /// The table's staleness bound.
        bound: u32,
        /// How long the Get waited.
        waited: Duration,
        /// The oldest lease that holds the row, if there is one still.
        oldest: Option<Box<LeaseInfo>>,
    },
    /// A Get waited for the staleness bound, and the check that the program gave to
    /// [`check_while_waiting`](crate::check_while_waiting) ended the wait. Nothing is held; the call can be made again.
    #[error("table {table:?}, key {key}: the program ended the wait for this row after {waited:?}")]
    Interrupted {
        /// The table.
        table: String,
        /// The row that the Get waited for.
        key: u64,
        /// How long the Get waited.
        waited: Duration,
    },
    /// A Get would wait for leases of its own thread, so it fails at once. Nothing is held. Leases count that the thread
    /// took, that are more than the staleness bound on one row, and that do not expire before the wait's end. Leases that
    /// are handed over ([`Lease::hand_over`](crate::Lease::hand_over)) do not count, and none does once leases of the bank
    /// are known to change hands.
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
        /// Leases of this thread on it.
        held: u32,
        /// The table's staleness bound.
        bound: u32,
        /// The oldest of them.
        oldest: Box<LeaseInfo>,
    },
    /// The lease grew older than the bank's `lease_timeout`, and its counts were given back so that others could go
    /// on. The call has changed nothing.
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
        /// How long ago the lease was taken.
        age: Duration,
        /// The bank's `lease_timeout`.
        timeout: Duration,
    },
    /// A peek asked for rows that were never written, with [`Missing::Error`](crate::Missing::Error).
    #[error(
        "table {table:?} has no row for key {key} ({count} of the keys asked for are missing); get \
         or put them first, or peek with Missing::Initial"
    )]
    MissingRow {
        /// The table.
        table: String,
        /// The first missing key of the batch.
        key: u64,
        /// How many keys of the batch are missing.
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
    /// The table was dropped while this handle or lease of it was around.
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
        /// What its descriptor says, or how it is damaged.
        reason: String,
    },
    /// A slice has another length than the keys and the table's dim ask for.
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
    /// The table has no optimizer that could apply a gradient.
    #[error(
        "table {table:?} was created without an optimizer and can't apply gradients; put new values \
         instead, or create a table with one"
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
    /// A step of the optimizer would make rows infinite or NaN as the table stores them. These rows are unchanged; all
    /// other rows of the batch took their step.
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
    /// A row to be put holds a value that is NaN or infinite, or becomes infinite as the table stores it. No row of the
    /// batch has been changed.
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
    /// A vocabulary has no id for a value, and was told to take that for an error.
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
        /// How many values of the batch have no id.
        count: usize,
        /// Whether it was to be inserted, and the vocabulary is frozen.
        frozen: bool,
    },
    /// An id was never given out by a vocabulary.
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
    /// A key of a table whose keys are ids of a vocabulary is no id of it. No row was read or written.
    #[error(
        "table {table:?}: key {key}{} is no id of vocabulary {vocabulary:?}, whose ids end before {next_id}; {}",
        if *key == UNKNOWN_ID { " (UNKNOWN_ID, for a value without an id)" } else { "" },
        cure(*key, *unknown, *first_id)
    )]
    KeyIsNoId {
        /// The table.
        table: String,
        /// Its vocabulary.
        vocabulary: String,
        /// The first such key of the batch.
        key: u64,
        /// The first value's id. Smaller keys are the caller's own and are taken.
        first_id: u64,
        /// The id that the next new value gets.
        next_id: u64,
        /// The id that the vocabulary's lookups give to values without one, if they do.
        unknown: Option<u64>,
    },
    /// A byte string is longer than the vocabulary takes. Nothing of the batch was inserted.
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
        /// The longest that the vocabulary takes.
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
    /// The vocabulary does not count how often values come.
    #[error("vocabulary {vocabulary:?} has no counts; make it anew with VocabularyConfig::counts")]
    NoCounts {
        /// The vocabulary.
        vocabulary: String,
    },
    /// The bank has no vocabulary of this name.
    #[error("there is no vocabulary {vocabulary:?} in this bank; make it with Bank::vocabulary")]
    NoSuchVocabulary {
        /// The name.
        vocabulary: String,
    },
    /// The vocabulary was dropped while this handle of it was around.
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
        "vocabulary {vocabulary:?} exists with {found}, but was asked for with {expected}; ask for it as it is, or \
         choose another name"
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
    /// What the bank holds of a vocabulary does not fit together, or this version can't read it.
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
    /// A table's keys are ids of a vocabulary that the bank does not have as it was when the table was made.
    #[error(
        "table {table:?} has rows for ids of vocabulary {vocabulary:?}, but {found}; its rows would be taken for other \
         values': go back to a checkpoint that has both, drop the table and make it anew, or read it as it is with \
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
    /// A file can't be imported. Rows of the batches before the one that failed are in the table.
    #[error("{} can't be imported: {what}", path.display())]
    UnreadableFile {
        /// The file.
        path: PathBuf,
        /// What was expected and found, and in which row and column.
        what: String,
    },
    /// The caller ended an export, import or eviction by what it told its progress.
    #[error("the caller ended it before it was through")]
    Cancelled,
    /// An earlier lookahead met an error while it read ahead. Its rows stay on disk, and a Get still
    /// finds them there or meets the same error.
    #[error("looking ahead failed earlier: {0}")]
    LookaheadFailed(#[source] embank_kv::Error),
    /// The thread that reads ahead panicked with this request, which is a bug of this library.
    #[error(
        "the thread that reads ahead panicked before it had read these rows; peek at them instead, and please \
         report what it wrote to standard error"
    )]
    PrefetchAbandoned,
}

/// An argument that is out of its range.
pub(crate) fn invalid(what: String) -> Error {
    embank_kv::Error::InvalidArgument(what).into()
}

/// How to get keys that are ids.
fn cure(key: u64, unknown: Option<u64>, first_id: u64) -> String {
    match (key == UNKNOWN_ID, unknown) {
        (false, _) => {
            "take keys from the vocabulary's ids, lookup or ids_or_insert, and insert values before the rows that \
             belong to them"
                .to_owned()
        }
        (true, Some(id)) => format!("look the values up with lookup, which gives id {id} to unknown ones"),
        (true, None) if first_id > 0 => {
            "insert the value first with ids_or_insert, or give it one of your own ids below the first one".to_owned()
        }
        (true, None) => {
            "insert the value first with ids_or_insert, or make the vocabulary with an id for unknown values, such as \
             id 0 where the first value gets id 1"
                .to_owned()
        }
    }
}

/// How many more rows than the first were refused, in words.
fn others(rows: usize) -> String {
    match rows {
        0 | 1 => String::new(),
        2 => " (and 1 other row)".to_owned(),
        rows => format!(" (and {} other rows)", rows - 1),
    }
}

/// Tells a Get that other Gets overtook from one that waited for a lease that was not ended.
fn why_it_waited(
    outstanding: u32,
    bound: u32,
    waited: Duration,
    oldest: Option<&LeaseInfo>,
) -> String {
    match oldest {
        Some(oldest) if outstanding > bound && oldest.age >= waited / 2 => format!(
            "{outstanding} Gets were outstanding, more than the staleness bound of {bound} lets through, still after \
             {waited:?} (the oldest holds {oldest}); apply or drop the leases that hold this row, raise the bound, or raise \
             the bank's wait_timeout"
        ),
        Some(LeaseInfo { age, .. }) => format!(
            "other Gets took rows of this batch at the staleness bound of {bound} again and again for {waited:?}, and no \
             lease on this row is older than {age:.1?}; threads that get rows before they end their earlier leases come \
             first, so end leases before the next Get, get smaller batches, or raise the bound"
        ),
        None => format!(
            "other Gets took rows of this batch at the staleness bound of {bound} again and again for {waited:?}, and at \
             the end none held this row; get smaller batches, raise the bound, or raise the bank's wait_timeout"
        ),
    }
}
