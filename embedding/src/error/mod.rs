//! The errors of banks and tables, and what a caller can do about them.

mod wording;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use embank_kv::Error as StoreError;

use crate::dtype::Dtype;
use crate::stats::lease_info::LeaseInfo;
use crate::unknown_id::UNKNOWN_ID;
use wording::{cure, others, why_it_waited};

/// The result of a fallible call on a bank or a table.
pub type Result<T> = std::result::Result<T, Error>;

/// Every way in which a call on a bank or a table can fail.
///
/// A missing row is an outcome, not an error, unless the caller passes
/// [`Missing::Error`](crate::Missing::Error).
///
/// # Examples
/// ```
/// use embank::{Error, FileFormat, StoreError, TableConfig};
///
/// let error = TableConfig::new(0).validate("user").unwrap_err();
/// assert!(matches!(error, Error::InvalidConfig { .. }));
///
/// let error = FileFormat::of_path("rows.txt").unwrap_err();
/// assert!(matches!(error, Error::Store(StoreError::InvalidOption { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A Get waited until its timeout, but the clock of a row stayed above the staleness bound. The
    /// Get took no lease, and the caller can repeat it.
    #[error(
        "table {table:?}, key {key}: {}",
        why_it_waited(*outstanding, *bound, *waited, oldest.as_deref())
    )]
    StalenessTimeout {
        /// The table's name.
        table: String,
        /// The first row that blocked the batch at the end of the wait.
        key: u64,
        /// The row's staleness clock: the number of its Gets whose update has not arrived.
        outstanding: u32,
        /// The table's staleness bound.
        bound: u32,
        /// Duration of the wait.
        waited: Duration,
        /// The oldest lease that holds the row. `None` if no lease holds it any more.
        oldest: Option<Box<LeaseInfo>>,
    },
    /// A Get waited for the staleness bound, and the program's check ended the wait. The program
    /// sets the check with [`check_while_waiting`](crate::check_while_waiting). The Get took no
    /// lease, and the caller can repeat it.
    #[error("table {table:?}, key {key}: the program ended the wait for this row after {waited:?}")]
    Interrupted {
        /// The table's name.
        table: String,
        /// The key whose row the Get waited for.
        key: u64,
        /// Duration of the wait.
        waited: Duration,
    },
    /// A Get would wait for its own thread's leases, so it fails at once. The Get took no lease.
    /// The error occurs if this thread holds more leases on a row than the staleness bound allows.
    /// Leases that expire before the end of the wait do not count. Leases that were handed over
    /// ([`Lease::hand_over`](crate::Lease::hand_over)) do not count either. Once a thread has ended
    /// a lease of the bank that another thread took and did not hand over, no Get of the bank fails
    /// in this way.
    #[error(
        "table {table:?}, key {key}: this thread holds {held} {} on the row itself, more than the staleness bound of \
         {bound} lets through, so this get would wait for its own thread (the oldest holds {oldest}); apply, put or \
         release what it holds first, or raise the bound; if another thread ends these leases, call hand_over() on \
         each before it gets them",
        if *held == 1 { "lease" } else { "leases" }
    )]
    SelfBlocked {
        /// The table's name.
        table: String,
        /// The row's key.
        key: u64,
        /// Number of this thread's leases on the row.
        held: u32,
        /// The table's staleness bound.
        bound: u32,
        /// The oldest of these leases.
        oldest: Box<LeaseInfo>,
    },
    /// The lease became older than the bank's `lease_timeout`, and a Get expired the lease:
    /// staleness clocks no longer count it. The call has changed nothing.
    #[error(
        "table {table:?}: this lease of {keys} keys was taken {age:.1?} ago and has expired: after the bank's \
         lease_timeout of {timeout:?} others were let through; nothing was changed; get the rows again and \
         compute the update anew, or raise lease_timeout"
    )]
    LeaseExpired {
        /// The table's name.
        table: String,
        /// Number of the lease's distinct keys.
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
        /// The table's name.
        table: String,
        /// The first missing key of the batch.
        key: u64,
        /// Number of missing keys in the batch.
        count: usize,
    },
    /// The bank has a table of this name with another layout or other initial values.
    #[error(
        "table {table:?} exists with {found}, but was asked for with {expected}; ask for it as it \
         is, or choose another name"
    )]
    ConfigMismatch {
        /// The table's name.
        table: String,
        /// The differing settings that the caller asked for.
        expected: String,
        /// The bank's values of these settings.
        found: String,
    },
    /// The table was dropped while the program had this handle or lease of it.
    #[error(
        "table {table:?} was dropped, and its rows are gone; to go on under that name, open the table \
         anew"
    )]
    TableDropped {
        /// The table's name.
        table: String,
    },
    /// A setting of a table is out of range.
    #[error("table {table:?}: {what}")]
    InvalidConfig {
        /// The table's name.
        table: String,
        /// The setting, its value and its range.
        what: String,
    },
    /// The bank has a table of this name that this version can't read.
    #[error("table {table:?} can't be opened: {reason}")]
    UnreadableTable {
        /// The table's name.
        table: String,
        /// The reason: its descriptor is of a newer version, or damaged.
        reason: String,
    },
    /// A slice does not have the length that the keys and the table's dim require.
    #[error("table {table:?}: {what} must hold {expected} f32 values, found {found}")]
    ShapeMismatch {
        /// The table's name.
        table: String,
        /// Name of the argument.
        what: &'static str,
        /// Expected number of values: keys times dim.
        expected: usize,
        /// Number of values found.
        found: usize,
    },
    /// The offsets or weights of bags do not fit the batch. A Get took no lease, and no row has
    /// changed.
    #[error("table {table:?}: {what}")]
    BadBags {
        /// The table's name.
        table: String,
        /// Describes the values that do not fit, and valid values.
        what: String,
    },
    /// The table has no optimizer, so it can't apply gradients.
    #[error(
        "table {table:?} was created without an optimizer, which can't be added, and so can't apply gradients; put new \
         values instead, create a table of another name with one, or drop this one and create it anew"
    )]
    NoOptimizer {
        /// The table's name.
        table: String,
    },
    /// A gradient is NaN or infinite. No row of the batch has changed.
    #[error(
        "table {table:?}, key {key}: the gradient of column {column} is {value}; no row of this \
         batch was changed; lower the learning rate, clip or unscale the gradients, or skip the batch"
    )]
    NonFiniteGradient {
        /// The table's name.
        table: String,
        /// The row's key.
        key: u64,
        /// The column in the row.
        column: usize,
        /// The gradient, after the gradients of a repeated key were summed.
        value: f32,
    },
    /// A step of the optimizer would make rows NaN or infinite in the table's dtype. These rows are
    /// unchanged. All other rows of the batch took their step.
    #[error(
        "table {table:?}, key {key}: the step makes column {column} {value}, which {} can't hold; this row is unchanged{}, \
         and all other rows took their step; lower the learning rate, clip the gradients, or store the rows as another \
         dtype",
        dtype.name(),
        others(*rows)
    )]
    RowOverflow {
        /// The table's name.
        table: String,
        /// Key of the first unchanged row.
        key: u64,
        /// The column in the row.
        column: usize,
        /// The value that the column would get.
        value: f32,
        /// The stored type of the table's rows.
        dtype: Dtype,
        /// Number of unchanged rows.
        rows: usize,
    },
    /// The caller's function of [`Table::update`](crate::Table::update) panicked, or it gave a value
    /// that is not finite in the table's dtype. These rows are unchanged; a missing row of them was
    /// inserted with its initial values. All other rows of the batch are changed.
    #[error(
        "table {table:?}, key {key}: {why}; this row is unchanged{}, and all other rows are changed; mend the \
         function, and do not repeat the whole batch, which would change the other rows again",
        others(*rows)
    )]
    UpdateRefused {
        /// The table's name.
        table: String,
        /// Key of the first unchanged row.
        key: u64,
        /// The panic's text, or the value that the table can't hold.
        why: String,
        /// Number of unchanged rows.
        rows: usize,
    },
    /// A step over several tables failed after some tables had taken their step. All leases of the
    /// step have ended: staleness clocks no longer count them.
    #[error(
        "the step of tables {} is taken, and that of table {table:?} failed, so the batch is half applied: go back to the \
         last checkpoint, or train on; {source}{}",
        moved.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", "),
        overflow.as_ref().map(|overflow| format!("; besides, {overflow}")).unwrap_or_default()
    )]
    StepIncomplete {
        /// The tables whose rows have changed.
        moved: Vec<String>,
        /// The table that failed.
        table: String,
        /// The cause.
        source: Box<Error>,
        /// The [`RowOverflow`](Error::RowOverflow) of a table that took its step before. `None` if
        /// no row overflowed.
        overflow: Option<Box<Error>>,
    },
    /// A row to be put has a value that is NaN or infinite, or that becomes infinite in the table's
    /// dtype. No row of the batch has changed.
    #[error(
        "table {table:?}, key {key}: column {column} of the row to put is {value}, which {} can't hold as a finite value; \
         no row of this batch was changed; mend the value, or store the rows as another dtype",
        dtype.name()
    )]
    NonFiniteRow {
        /// The table's name.
        table: String,
        /// The row's key.
        key: u64,
        /// The column in the row.
        column: usize,
        /// The invalid value.
        value: f32,
        /// The stored type of the table's rows.
        dtype: Dtype,
    },
    /// A vocabulary has no id for a value, and its settings have no `unknown_id`.
    #[error(
        "vocabulary {vocabulary:?} has no id for the value {value} at place {position} of the batch ({count} of its \
         values have none){}; or make the vocabulary with an id for unknown values",
        if *frozen { ", and is frozen: let it grow again" } else { ": insert it first" }
    )]
    UnknownValue {
        /// The vocabulary's name.
        vocabulary: String,
        /// The first value without an id, as text.
        value: String,
        /// The value's place in the batch.
        position: usize,
        /// Number of values in the batch without an id.
        count: usize,
        /// True if the call tried to insert the value and the vocabulary is frozen.
        frozen: bool,
    },
    /// A batch of ids contains an id that the vocabulary has assigned to no value.
    #[error(
        "vocabulary {vocabulary:?} never gave out id {id}: its values have the ids from {first_id} up to and not \
         including {next_id}"
    )]
    UnknownId {
        /// The vocabulary's name.
        vocabulary: String,
        /// The first id of the batch without a value.
        id: u64,
        /// Id of the vocabulary's first value.
        first_id: u64,
        /// The id that the next new value gets.
        next_id: u64,
    },
    /// A key is not an id of the table's vocabulary. No row was read or written.
    #[error(
        "table {table:?}: key {key}{} is no id of vocabulary {vocabulary:?}, whose ids end before {next_id}; {}",
        if *key == UNKNOWN_ID { " (UNKNOWN_ID, for a value without an id)" } else { "" },
        cure(*key, *unknown_id, *first_id)
    )]
    KeyIsNoId {
        /// The table's name.
        table: String,
        /// Name of the table's vocabulary.
        vocabulary: String,
        /// The first key of the batch that is not an id.
        key: u64,
        /// Id of the vocabulary's first value. The caller may use smaller keys freely.
        first_id: u64,
        /// The id that the next new value gets.
        next_id: u64,
        /// The id that lookups return for unknown values. `None` if unknown values are an error.
        unknown_id: Option<u64>,
    },
    /// A byte string is longer than the vocabulary allows. No value of the batch was inserted.
    #[error(
        "vocabulary {vocabulary:?}: the value {value} has {found} bytes and may have {longest}; shorten it, or make \
         the vocabulary anew with a larger value_bytes_max"
    )]
    ValueTooLong {
        /// The vocabulary's name.
        vocabulary: String,
        /// The first part of the value.
        value: String,
        /// Length in bytes.
        found: usize,
        /// Largest length in bytes that the vocabulary allows.
        longest: u32,
    },
    /// The vocabulary is frozen, so its ids can't change.
    #[error(
        "vocabulary {vocabulary:?} is frozen; let it grow again first (Vocabulary::set_frozen)"
    )]
    VocabularyFrozen {
        /// The vocabulary's name.
        vocabulary: String,
    },
    /// The vocabulary does not count its values.
    #[error("vocabulary {vocabulary:?} has no counts; make it anew with VocabularyConfig::counts")]
    NoCounts {
        /// The vocabulary's name.
        vocabulary: String,
    },
    /// The bank has no vocabulary of this name. Making a table for the ids of a missing vocabulary
    /// fails with this error too.
    #[error(
        "there is no vocabulary {vocabulary:?} in this bank; make it first, with Bank::vocabulary or by a pipeline on \
         this bank"
    )]
    NoSuchVocabulary {
        /// The name that the caller asked for.
        vocabulary: String,
    },
    /// The vocabulary was dropped while the program had this handle of it.
    #[error(
        "vocabulary {vocabulary:?} was dropped, and its values are gone; to go on under that name, make it anew with \
         Bank::vocabulary"
    )]
    VocabularyDropped {
        /// The vocabulary's name.
        vocabulary: String,
    },
    /// The bank has a vocabulary of this name with other settings.
    #[error(
        "vocabulary {vocabulary:?} exists with {found}, but was asked for with {expected}; open it as it is with \
         Bank::open_vocabulary, choose another name, or drop it with Bank::drop_vocabulary"
    )]
    VocabularyMismatch {
        /// The vocabulary's name.
        vocabulary: String,
        /// The differing settings that the caller asked for.
        expected: String,
        /// The bank's values of these settings.
        found: String,
    },
    /// A setting of a vocabulary is out of range.
    #[error("vocabulary {vocabulary:?}: {what}")]
    InvalidVocabulary {
        /// The vocabulary's name.
        vocabulary: String,
        /// The setting, its value and its range.
        what: String,
    },
    /// The stored parts of a vocabulary contradict each other.
    #[error(
        "vocabulary {vocabulary:?} can't be used: {what}; go back to a checkpoint where Vocabulary::verify finds it \
         whole, or drop it"
    )]
    DamagedVocabulary {
        /// The vocabulary's name.
        vocabulary: String,
        /// Describes the contradiction or the unreadable part.
        what: String,
    },
    /// A table's keys are ids of a vocabulary that was dropped, replaced or renumbered since the
    /// table was made.
    #[error(
        "table {table:?} was made for ids of vocabulary {vocabulary:?}, but {found}; a row of it would be taken for the \
         row of another value: drop the table and make it anew when the vocabulary is renumbered no more (with a \
         `min_count`: after the pipeline's first run), go back to a checkpoint that has both, or read it as it is with \
         Bank::open_table_unchecked"
    )]
    OtherVocabulary {
        /// The table's name.
        table: String,
        /// Name of the vocabulary that the table was made for.
        vocabulary: String,
        /// Says what the bank has in place of that vocabulary.
        found: String,
    },
    /// A file is readable, but its rows do not fit the table: they have another dim, state of
    /// another optimizer or ids of another vocabulary. Also the error for making a table from a
    /// file that stores no settings. Batches that were imported before the failure are in the
    /// table.
    #[error("{} does not fit: {what}", path.display())]
    FileMismatch {
        /// The file's path.
        path: PathBuf,
        /// Says what the file has and what the table needs, and gives a remedy.
        what: String,
    },
    /// A file can't be read as a table. It is damaged, has values that are not finite, or does not
    /// show which of its parts are keys and vectors. Batches that were imported before the failure
    /// are in the table.
    #[error("{} can't be imported: {what}", path.display())]
    UnreadableFile {
        /// The file's path.
        path: PathBuf,
        /// Describes what was expected and found, with the row and column.
        what: String,
    },
    /// The caller's function ended an export, import, eviction or update.
    #[error("the caller ended it before it was through")]
    Cancelled,
    /// An earlier lookahead failed. Its rows stay on disk. A later Get reads them from disk, or
    /// fails with the error of that read.
    #[error("looking ahead failed earlier: {0}")]
    LookaheadFailed(#[source] StoreError),
    /// The lookahead thread panicked while it read this prefetch, which is a bug of this library.
    #[error(
        "the thread that reads ahead panicked before it had read these rows; peek at them instead, and please \
         report what it wrote to standard error"
    )]
    PrefetchAbandoned,
    /// A queue of Gets ahead ended before it made this Get.
    #[error(
        "table {table:?}: the queue of gets ahead ended before this get: the queue was closed, or its thread panicked, \
         which it wrote to standard error; make a new queue (Bank::ahead_queue)"
    )]
    AheadEnded {
        /// The table's name.
        table: String,
    },
    /// A list does not have the required length.
    #[error("vocabulary {vocabulary:?}: {expected} {of} need as many {what}, found {found}")]
    LengthMismatch {
        /// The vocabulary's name.
        vocabulary: String,
        /// The kind of entries in the list.
        what: &'static str,
        /// The kind of things that need one entry each.
        of: &'static str,
        /// Number of these things, and required length of the list.
        expected: usize,
        /// Length of the list.
        found: usize,
    },
    /// A bank is not the shard that the caller opens, or the shards of a fleet do not belong
    /// together. Nothing was changed.
    #[error("{}: found {found}, expected {expected}; {cure}", path.display())]
    ShardMismatch {
        /// The directory of the shard's bank, or the file that does not fit.
        path: PathBuf,
        /// What is there.
        found: String,
        /// What must be there.
        expected: String,
        /// What the user can do.
        cure: String,
    },
    /// The table's keys do not fit a dense file.
    #[error("table {table:?} {why}")]
    NotDense {
        /// The table's name.
        table: String,
        /// Names the missing or too large keys, and gives a remedy.
        why: String,
    },
    /// A failure of the store. Also a refusal of this crate for which the store has a variant, such
    /// as an option out of range. The text and the cause are those of the [`StoreError`].
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// Makes a [`StoreError::InvalidOption`].
    pub(crate) fn option(option: &'static str, problem: impl Into<String>) -> Self {
        StoreError::InvalidOption { option, problem: problem.into() }.into()
    }

    /// Makes a [`StoreError::UnusableOutput`].
    pub(crate) fn unusable_output(path: &Path, why: impl Into<String>) -> Self {
        StoreError::UnusableOutput { path: path.to_owned(), why: why.into() }.into()
    }

    /// Makes a [`StoreError::WrongKind`] for a table or vocabulary.
    pub(crate) fn wrong_kind(kind: &str, name: &str, why: impl Into<String>) -> Self {
        StoreError::WrongKind { of: format!("{kind} {name:?}"), why: why.into() }.into()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;

    use super::*;

    #[test]
    fn an_error_of_the_store_keeps_its_message_and_its_cause() {
        let source = io::Error::other("refused");
        let of_store = StoreError::Io { operation: "read", path: "bank".into(), source };
        let message = of_store.to_string();
        let error = Error::from(of_store);
        assert_eq!(error.to_string(), message);
        assert_eq!(error.source().unwrap().to_string(), "refused");
    }
}
