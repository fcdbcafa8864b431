//! The result of a run.

use std::time::Duration;

use crate::error::BadRowReport;
use crate::trace::Trace;

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RunReport {
    /// Rows that the consumer got.
    pub rows: u64,
    /// Bad rows that were left out.
    pub bad_rows: u64,
    /// Lines that the bad rows span. A row spans several lines if a quoted field contains a line
    /// end.
    pub bad_lines: u64,
    /// The first few bad rows, in the order of the input.
    pub first_bad_rows: Vec<BadRowReport>,
    /// Number of columns that fields need and a Parquet or Arrow file lacks, summed over the files.
    /// The values of such a column are missing.
    pub missing_columns: u64,
    /// The first ten columns that a Parquet or Arrow file lacks, each with the file's name.
    pub first_missing_columns: Vec<String>,
    /// Bytes of input. For a compressed input, compressed bytes count. For a pipe, the bytes that
    /// were read from it count.
    pub bytes: u64,
    /// Wall time of the run.
    pub elapsed: Duration,
    /// Times of the stages. `None` unless [`RunOptions::trace`](crate::RunOptions::trace) is set.
    pub trace: Option<Trace>,
}
