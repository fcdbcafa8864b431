//! What can go wrong in a pipeline.

use std::path::PathBuf;

/// Of a header, an error shows at most 50 names.
const NAMES_MAX: usize = 50;
/// Of a name, an error shows at most 60 characters: a first line that is no header may be one long
/// name.
const NAME_CHARS_MAX: usize = 60;

/// A failure, with its place and its cure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pipeline itself makes no sense: an operator for another type, a name that is not there.
    #[error("the pipeline can't be run: {0}")]
    Spec(String),
    /// The inputs can't be run over together: the list is empty, or their names say different
    /// formats.
    #[error("{0}")]
    Inputs(String),
    /// A row can't be used, and the pipeline is to fail at those.
    #[error("{0:#}; `bad_rows: skip` leaves such rows out and counts them")]
    BadRow(BadRowReport),
    /// More rows are bad than a run may leave out
    /// ([`Spec::bad_rows_max`](crate::Spec::bad_rows_max)).
    #[error(
        "{bad_lines} of the first {lines} lines are of bad rows, more than the share of {limit} that `bad_rows_max` allows; \
         the first: {}; fields have settings for spellings of missing values (`missing`) and whole floats \
         (`whole_floats`), and `bad_rows_max: 1` leaves out any number",
        first.iter().map(|bad| format!("{bad:#}")).collect::<Vec<_>>().join("; ")
    )]
    TooManyBadRows {
        /// Lines that the bad rows span.
        bad_lines: u64,
        /// Those lines, and the rows that are not bad.
        lines: u64,
        /// The share that is allowed.
        limit: f64,
        /// The first bad rows, one at least.
        first: Vec<BadRowReport>,
    },
    /// A text can't be read: it has another encoding or other line ends.
    #[error(
        "{input}:{line}: it is {what}; convert it to UTF-8 with LF or CRLF at line ends (`iconv -t UTF-8`, `tr '\\r' '\\n'`), \
         or say the format that it has"
    )]
    Encoding {
        /// The input's name.
        input: String,
        /// The line, from 1.
        line: u64,
        /// What it is.
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
        /// What does not fit.
        why: String,
        /// The fields that are read.
        expected: Vec<String>,
        /// The columns that it names.
        found: Vec<String>,
    },
    /// A line is longer than one may be.
    #[error(
        "{input}:{line}: a line of more than {limit} bytes; is this a text with line ends, and is each quote closed?"
    )]
    LineTooLong {
        /// The input's name.
        input: String,
        /// The line, from 1; of a row that spans lines, its first.
        line: u64,
        /// Bytes, the line's end not counted.
        limit: usize,
    },
    /// A compressed input can't be decompressed.
    #[error("{input}: it can't be decompressed, so it is cut short or damaged: {source}")]
    Compressed {
        /// Its name.
        input: String,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// A file of columns can't be read, or has other columns than the pipeline has fields.
    #[error("{input}: {what}")]
    Columns {
        /// Its name.
        input: String,
        /// What is wrong with it.
        what: String,
    },
    /// An input of packed rows ends within a row.
    #[error(
        "{input}: {bytes} bytes are no whole number of rows of {row_bytes} bytes; is it cut short, or of other fields?"
    )]
    NoWholeRows {
        /// Its name.
        input: String,
        /// Its length.
        bytes: u64,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// A vocabulary of the bank has a value that the pipeline's columns can't have.
    #[error(
        "vocabulary {name:?} of the bank gives value {value} id {id}, and the pipeline's values are below {range}: it \
         was made with another modulus; use that one, or a vocabulary of another name"
    )]
    ValueOutOfRange {
        /// The vocabulary's name.
        name: String,
        /// The value.
        value: u64,
        /// Its id.
        id: u64,
        /// Values of the pipeline are below it.
        range: u64,
    },
    /// A vocabulary of the bank was changed by another hand while the pipeline had values for it.
    #[error(
        "vocabulary {name:?} of the bank {what} while the pipeline had new values for it that were not saved: ids that \
         it gave out since the last save are worth nothing; go back to the last checkpoint, and let one pipeline at a \
         time number"
    )]
    VocabularyChanged {
        /// The vocabulary's name.
        name: String,
        /// What happened to it.
        what: String,
    },
    /// Vocabularies have counts that can't be added to: what failed, and what can be done.
    #[error("the counts of vocabularies can't be added to: {0}")]
    CountedInPart(String),
    /// The ids of a vocabulary became those of other values while an
    /// [evaluation](crate::Pipeline::evaluation) used them. Its batch was not handed out.
    #[error(
        "vocabulary {name:?} was numbered anew, and this run looks values up by the old numbering, as its earlier batches \
         were: run again, over tables of the new one; where somebody else has numbered it anew, let the pipeline that \
         learns run first"
    )]
    VocabularyRenumbered {
        /// The vocabulary's name.
        name: String,
    },
    /// A vocabulary that gives no new ids in this run met a value that it lacks, and was made
    /// without an id for those.
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
        /// Among the rows of the run that are no bad ones, from 0.
        row: u64,
        /// Whether the vocabulary is frozen. Else the run is an
        /// [evaluation](crate::Pipeline::evaluation).
        frozen: bool,
    },
    /// A byte string is longer than its vocabulary takes. Its batch was not handed out.
    #[error(
        "{input}: vocabulary {name:?} takes values of {longest} bytes, and {value}, met in row {row} of the run, has \
         {found}; make it anew with a larger `value_bytes_max`"
    )]
    ValueTooLong {
        /// The vocabulary's name.
        name: String,
        /// The value, its beginning.
        value: String,
        /// Its length in bytes.
        found: usize,
        /// The longest that the vocabulary takes.
        longest: u32,
        /// The input's name.
        input: String,
        /// Among the rows of the run that are no bad ones, from 0.
        row: u64,
    },
    /// An id does not fit the output that shows it.
    #[error(
        "vocabulary {name:?} has come to id {id}, and an output shows its ids only up to {limit}; show them as I64"
    )]
    IdTooLarge {
        /// The vocabulary's name.
        name: String,
        /// The id.
        id: u64,
        /// The largest that fits.
        limit: u64,
    },
    /// The bank with the vocabularies reports a failure.
    #[error(transparent)]
    Bank(#[from] embank::Error),
    /// Memory for tables of ids is not to be had.
    #[error(
        "{bytes} bytes for the ids of vocabulary {name:?} are not to be had: {source}; a smaller modulus needs less"
    )]
    OutOfMemory {
        /// The vocabulary's name.
        name: String,
        /// Bytes.
        bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file can't be read or written.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system refuses a thread that the call needs. A run goes on with the workers that it
    /// gets.
    #[error("the thread of the {thread} can't be started: {source}; {}", embank::THREADS_ADVICE)]
    ThreadRefused {
        /// What it serves: "feed", "server" or "client" of a feed over the network, "run" in
        /// Python.
        thread: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// A thread of the pipeline panicked: a defect, of the pipeline or of its consumer.
    #[error("a thread of the pipeline panicked: {0}")]
    Panicked(String),
    /// The consumer of the batches failed.
    #[error("the consumer of the batches failed: {0}")]
    Consumer(Box<dyn std::error::Error + Send + Sync>),
    /// The run was told to stop ([`Pipeline::stop_when`](crate::Pipeline::stop_when)).
    #[error("the run was stopped before its end")]
    Stopped,
}

/// The crate's results.
pub type Result<T> = std::result::Result<T, Error>;

/// The error of a pipeline that makes no sense.
pub(crate) fn refused<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Spec(why.into()))
}

/// Names for an error, the first few of many.
fn listed(names: &[String]) -> String {
    let short =
        |name: &String| format!("{:?}", name.chars().take(NAME_CHARS_MAX).collect::<String>());
    let mut listed: Vec<_> = names.iter().take(NAMES_MAX).map(short).collect();
    if names.len() > NAMES_MAX {
        listed.push(format!("and {} more", names.len() - NAMES_MAX));
    }
    listed.join(", ")
}

/// A row that can't be used: where it is and why. Shown with `{:#}`, it tells the lines that it
/// spans, if they are several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRowReport {
    /// The input's name, a path where it is a file.
    pub input: String,
    /// Its line, from 1.
    pub line: u64,
    /// How many lines it spans: more than one where a quote is open at a line's end.
    pub lines: u64,
    /// Where in the line the bad field begins, in bytes from 1; none where the number of fields is
    /// wrong.
    pub column: Option<u64>,
    /// What is wrong, with the field's name and value.
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
