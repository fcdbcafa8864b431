//! What can go wrong in a pipeline.

use std::path::PathBuf;

/// A failure, with its place and its cure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pipeline itself makes no sense: an operator for another type, a name that is not there.
    #[error("the pipeline can't be run: {0}")]
    Spec(String),
    /// A row can't be used, and the pipeline is to fail at those.
    #[error("{0}; `bad_rows: skip` leaves such rows out and counts them")]
    BadRow(BadRowReport),
    /// A line is longer than the input's limit.
    #[error(
        "{place}: a line of more than {limit} bytes; is this a text with line ends, and is each quote closed?"
    )]
    LineTooLong {
        /// Where it begins.
        place: String,
        /// Bytes.
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
    /// A vocabulary has no room for one more value.
    #[error(
        "vocabulary {name:?} is full: it has {limit} values; a smaller modulus or a frequency threshold makes it smaller"
    )]
    VocabularyFull {
        /// Its name.
        name: String,
        /// Values.
        limit: u64,
    },
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
    /// A thread of the pipeline panicked: a defect, of the pipeline or of its consumer.
    #[error("a thread of the pipeline panicked: {0}")]
    Panicked(String),
    /// The consumer of the batches failed.
    #[error("the consumer of the batches failed: {0}")]
    Consumer(Box<dyn std::error::Error + Send + Sync>),
}

/// The crate's results.
pub type Result<T> = std::result::Result<T, Error>;

/// A row that can't be used: where it is and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRowReport {
    /// The input's name, a path where it is a file.
    pub input: String,
    /// Its line, from 1.
    pub line: u64,
    /// Where in the line the bad field begins, in bytes from 1; none where the number of fields is wrong.
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
        write!(formatter, " {}", self.what)
    }
}
