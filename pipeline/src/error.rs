//! The errors of a pipeline.

use std::path::PathBuf;

use embank::StoreError;
use serde::{Deserialize, Serialize};

use crate::feed::InputId;
use crate::records::RecordDamage;

/// An error lists at most 50 names of a header.
const NAMES_MAX: usize = 50;
/// An error shows at most 60 characters of a name. A first line that is no header may be one long
/// name.
const NAME_CHARS_MAX: usize = 60;

/// A failure of a pipeline. The message says where it happened and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The spec or an option is invalid: for example, an operator for another type, or an unknown
    /// name.
    #[error("the pipeline can't be run: {0}")]
    Spec(String),
    /// One run can't read its inputs together: there are no inputs, or their names imply different
    /// formats.
    #[error("{0}")]
    Inputs(String),
    /// A feed resumes over other inputs than those that its skipped rows came from, so the number
    /// of skipped rows stands for other rows.
    #[error(
        "the {rows} rows to skip came from other inputs: input {number} was {}, and is {}; resume over the inputs of the \
         interrupted feed in their order, with new ones after them, or, if these have the same rows, skip by the number \
         of rows alone",
        then.as_ref().map_or("not there".to_owned(), ToString::to_string),
        now.as_ref().map_or("not there".to_owned(), ToString::to_string)
    )]
    OtherInputs {
        /// Rows to skip.
        rows: u64,
        /// Number of the first input that differs, from 1.
        number: usize,
        /// The interrupted feed's input. `None` if it had fewer inputs.
        then: Option<InputId>,
        /// This feed's input. `None` if it has fewer inputs.
        now: Option<InputId>,
    },
    /// A row can't be used, and the spec's `bad_rows` is [`BadRows::Fail`](crate::BadRows::Fail).
    #[error("{0:#}; `bad_rows: skip` leaves out single bad rows and counts them")]
    BadRow(BadRowReport),
    /// The bad rows span a larger share of the lines than
    /// [`Spec::bad_rows_max`](crate::Spec::bad_rows_max) allows. The run checks this from 10,000
    /// lines on, and at its end if every row is bad.
    #[error(
        "{bad_lines} of the first {lines} lines are of bad rows, more than the share of {limit} that `bad_rows_max` allows; \
         the first: {}; fields have settings for spellings of missing values (`missing`) and whole floats \
         (`whole_floats`), and `bad_rows_max: 1` leaves out any number",
        first.iter().map(|bad| format!("{bad:#}")).collect::<Vec<_>>().join("; ")
    )]
    TooManyBadRows {
        /// Lines that the bad rows span.
        bad_lines: u64,
        /// All lines so far: the lines of the bad rows and one for each good row.
        lines: u64,
        /// The largest share that the spec allows.
        limit: f64,
        /// The first bad rows, at least one.
        first: Vec<BadRowReport>,
    },
    /// A text has an encoding or line ends that the pipeline can't read.
    #[error(
        "{input}:{line}: it is {what}; convert it to UTF-8 with LF or CRLF at line ends (`iconv -t UTF-8`, `tr '\\r' '\\n'`), \
         or say the format that it has"
    )]
    Encoding {
        /// The input's name.
        input: String,
        /// The line's number, from 1.
        line: u64,
        /// The encoding or the line ends that were found.
        what: &'static str,
    },
    /// The first line of a text does not name the pipeline's fields.
    #[error(
        "{input}:1: the header does not fit: {why}; expected {}, found {}; if the first line is a row, say that there is \
         no header (`none`), and if its names are others and the columns stand in this order, pass over it (`skip`)",
        listed(expected),
        listed(found)
    )]
    Header {
        /// The input's name.
        input: String,
        /// The name that does not fit, and the reason.
        why: String,
        /// The fields that the pipeline reads.
        expected: Vec<String>,
        /// The column names in the header.
        found: Vec<String>,
    },
    /// A line exceeds the limit of a line's length.
    #[error(
        "{input}:{line}: a line of more than {limit} bytes; is this a text with line ends, and is each quote closed?"
    )]
    LineTooLong {
        /// The input's name.
        input: String,
        /// The line's number, from 1. If the row spans several lines, its first line.
        line: u64,
        /// Largest number of bytes of a line, without its line end.
        limit: usize,
    },
    /// A compressed input can't be decompressed.
    #[error("{input}: it can't be decompressed, so it is cut short or damaged: {source}")]
    Compressed {
        /// The input's name.
        input: String,
        /// The error of the decompressor.
        source: std::io::Error,
    },
    /// A Parquet or Arrow file can't be read, or its columns do not fit the pipeline's fields.
    #[error("{input}: {what}")]
    Columns {
        /// The input's name.
        input: String,
        /// The fault of the file.
        what: String,
    },
    /// An input of packed rows ends within a row.
    #[error(
        "{input}: {bytes} bytes are no whole number of rows of {row_bytes} bytes; is it cut short, or of other fields?"
    )]
    NoWholeRows {
        /// The input's name.
        input: String,
        /// Bytes of the input.
        bytes: u64,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// A vocabulary of the bank has a value above all values that the pipeline's columns can have.
    #[error(
        "vocabulary {name:?} of the bank gives value {value} id {id}, and the pipeline's values are below {range}: it \
         was made with another modulus; use that one, or a vocabulary of another name"
    )]
    ValueOutOfRange {
        /// The vocabulary's name.
        name: String,
        /// The value.
        value: u64,
        /// The value's id.
        id: u64,
        /// All values of the pipeline are below this number.
        range: u64,
    },
    /// Another program part changed a vocabulary of the bank while the pipeline had unsaved values
    /// for it.
    #[error(
        "vocabulary {name:?} of the bank {what} while the pipeline had new values for it that were not saved: ids that \
         it gave out since the last save are worth nothing; go back to the last checkpoint, and let one pipeline at a \
         time number"
    )]
    VocabularyChanged {
        /// The vocabulary's name.
        name: String,
        /// The change, as a phrase that follows the vocabulary's name.
        what: String,
    },
    /// Counting the values again would count rows twice. Either a pass that counted has failed, or
    /// keeping the frequent values failed after the pass. The text says which, and what to do.
    #[error("the counts of vocabularies can't be added to: {0}")]
    CountedInPart(String),
    /// A vocabulary was renumbered while an [evaluation](crate::Pipeline::evaluation) used its ids.
    /// The evaluation's batch was not handed out.
    #[error(
        "vocabulary {name:?} was numbered anew, and this run looks values up by the old numbering, as its earlier batches \
         were: run again, over tables of the new one; where somebody else has numbered it anew, let the pipeline that \
         learns run first"
    )]
    VocabularyRenumbered {
        /// The vocabulary's name.
        name: String,
    },
    /// A vocabulary that gives no new ids in this run met a value that it lacks, and the vocabulary
    /// has no `unknown_id`.
    #[error(
        "{input}: column {column:?} has value {value} in row {row} of the run, and vocabulary {name:?} does not have it \
         and {}, or make the vocabulary anew with an id for such values (first_id=1, unknown_id=0)",
        if *frozen {
            "is frozen: let it grow (`set_frozen(false)`)"
        } else {
            "learns nothing in this run: let a run that learns see the value first"
        }
    )]
    UnknownValue {
        /// The vocabulary's name.
        name: String,
        /// The column's name.
        column: String,
        /// The value, shown as text.
        value: String,
        /// The input's name.
        input: String,
        /// The row's number in the run, from 0, without bad rows.
        row: u64,
        /// True if the vocabulary is frozen. False if the run is an
        /// [evaluation](crate::Pipeline::evaluation).
        frozen: bool,
    },
    /// A byte string is longer than its vocabulary allows. The batch was not handed out.
    #[error(
        "{input}: vocabulary {name:?} takes values of {longest} bytes, and {value}, met in row {row} of the run, has \
         {found}; make it anew with a larger `value_bytes_max`"
    )]
    ValueTooLong {
        /// The vocabulary's name.
        name: String,
        /// The beginning of the value.
        value: String,
        /// Bytes of the value.
        found: usize,
        /// Largest number of bytes that the vocabulary allows.
        longest: u32,
        /// The input's name.
        input: String,
        /// The row's number in the run, from 0, without bad rows.
        row: u64,
    },
    /// An id does not fit in the type of an output.
    #[error(
        "vocabulary {name:?} has come to id {id}, and an output shows its ids only up to {limit}; show them as I64"
    )]
    IdTooLarge {
        /// The vocabulary's name.
        name: String,
        /// The id.
        id: u64,
        /// The largest id that fits.
        limit: u64,
    },
    /// The bank with the vocabularies returned an error.
    #[error(transparent)]
    Bank(#[from] embank::Error),
    /// The system refused the memory for a table of ids.
    #[error(
        "{bytes} bytes for the ids of vocabulary {name:?} are not to be had: {source}; a smaller modulus needs less"
    )]
    OutOfMemory {
        /// The vocabulary's name.
        name: String,
        /// Bytes that were asked for.
        bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file can't be read or written.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A record file is damaged. If the damage is in a group, other groups can still be read.
    #[error("{0}; write the file again, or take a copy of it")]
    Records(RecordDamage),
    /// A newer version of Embank wrote a record file. The file is not damaged.
    #[error(
        "{}{}: {what}, and Embank {} does not read that. The file is not damaged: use a newer Embank",
        path.display(),
        group.map_or(String::new(), |group| format!(": group {group}")),
        env!("CARGO_PKG_VERSION")
    )]
    NewerRecords {
        /// The file's path.
        path: PathBuf,
        /// The group that can't be read, from 0. `None` if it is the whole file.
        group: Option<u64>,
        /// What this version does not know.
        what: String,
    },
    /// The system refused a thread that the call needs. A run does not fail if the system refuses
    /// some of its worker threads: it goes on with the threads that have started.
    #[error("the thread of the {thread} can't be started: {source}; {}", embank::THREADS_ADVICE)]
    ThreadRefused {
        /// The thread's use: "feed", "server" or "client" (of a feed over the network), or "run"
        /// (in Python).
        thread: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// A thread of the pipeline panicked. The defect is in the pipeline or in its consumer.
    #[error("a thread of the pipeline panicked: {0}")]
    Panicked(String),
    /// The consumer of the batches failed.
    #[error("the consumer of the batches failed: {0}")]
    Consumer(Box<dyn std::error::Error + Send + Sync>),
    /// A decoder of a column can't go on. A value that can't be decoded is no such failure: it
    /// makes its row bad.
    #[error("column {column:?}: its decoder {what}")]
    Decoder {
        /// The column's name.
        column: String,
        /// What the decoder did, as a phrase that follows its name.
        what: String,
    },
    /// A feed was to skip more rows than the inputs have. The inputs or the options are probably
    /// other ones than those of the feed whose rows were counted.
    #[error(
        "`skip_rows` is {skip_rows}, and the inputs have {rows} rows: resume with the inputs that the row was counted \
         in, or begin at 0"
    )]
    SkipsTooMany {
        /// The number of rows to skip.
        skip_rows: u64,
        /// The number of rows of the inputs, without bad rows.
        rows: u64,
    },
    /// A file was changed while a run read it. The run may have read some bytes from before the
    /// change and others from after it.
    #[error(
        "{input}: the file was changed while the run read it: {what}; write a new file and rename it over the old one, \
         or run when the file is complete"
    )]
    InputChanged {
        /// The input's name.
        input: String,
        /// The change.
        what: String,
    },
    /// Another pipeline has given ids of a bank's vocabulary to values that it has not saved. This
    /// pipeline would give the same ids to other values. The batch was not handed out.
    #[error(
        "vocabulary {name:?} of the bank: another pipeline has given ids up to {last} to values that it has not saved, \
         and this one would give them to other values: save that pipeline first and let one at a time number, or, if \
         it is gone, roll the bank back to its last checkpoint, or close it and open it again"
    )]
    IdsGivenElsewhere {
        /// The vocabulary's name.
        name: String,
        /// The largest id that was given.
        last: u64,
    },
    /// The caller stopped the run ([`Pipeline::stop_when`](crate::Pipeline::stop_when)).
    #[error("the run was stopped before its end")]
    Stopped,
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Makes an [`Error::Spec`] with the reason `why`, and returns it as an `Err`.
pub(crate) fn refused<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Spec(why.into()))
}

/// Converts an error of an [`OutputFile`](embank::OutputFile).
pub(crate) fn of_output(error: StoreError) -> Error {
    match error {
        StoreError::Io { operation, path, source }
        | StoreError::TooManyOpenFiles { operation, path, source } => {
            Error::Io { doing: operation, path, source }
        }
        other => Error::Spec(other.to_string()),
    }
}

/// Joins the first `NAMES_MAX` names for a message, and says how many more there are.
fn listed(names: &[String]) -> String {
    let short =
        |name: &String| format!("{:?}", name.chars().take(NAME_CHARS_MAX).collect::<String>());
    let mut listed: Vec<_> = names.iter().take(NAMES_MAX).map(short).collect();
    if names.len() > NAMES_MAX {
        listed.push(format!("and {} more", names.len() - NAMES_MAX));
    }
    listed.join(", ")
}

/// The place of a bad row and the reason why it can't be used. The format `{:#}` also shows the
/// number of lines if the row spans several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRowReport {
    /// The input's name. For a file, its path.
    pub input: String,
    /// The row's first line, from 1.
    pub line: u64,
    /// Number of lines that the row spans. More than one if a quoted field contains a line end.
    pub lines: u64,
    /// The byte of the row, from 1, at which the bad field begins. `None` if the row has the wrong
    /// number of fields.
    pub column: Option<u64>,
    /// The fault, with the field's name and value.
    pub what: String,
}

impl std::fmt::Display for BadRowReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}:", self.input, self.line)?;
        if let Some(column) = self.column {
            write!(formatter, "{column}:")?;
        }
        write!(formatter, " {}", self.what)?;
        if formatter.alternate() && self.lines > 1 {
            write!(formatter, " (it spans {} lines)", self.lines)?;
        }
        Ok(())
    }
}
