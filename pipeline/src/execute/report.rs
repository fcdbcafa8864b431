//! What came of a run.

use std::time::Duration;

use crate::error::BadRowReport;
use crate::trace::Trace;

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RunReport {
    /// Rows that came out.
    pub rows: u64,
    /// Rows that were left out as bad.
    pub bad_rows: u64,
    /// Lines that those span: more, where a quote is open at a line's end.
    pub bad_lines: u64,
    /// The first few of those, in the order of the input.
    pub first_bad_rows: Vec<BadRowReport>,
    /// Columns that files of Parquet or Arrow lack, each file's own counted: their values are
    /// missing.
    pub missing_columns: u64,
    /// The first ten of those: file and column.
    pub first_missing_columns: Vec<String>,
    /// Bytes of input, compressed ones as they are; of pipes, what was read of them.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Where the time went, if that was asked for.
    pub trace: Option<Trace>,
}
