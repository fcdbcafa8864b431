//! The result of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::arrays::ArrayCounts;
use crate::decode::REPORTED_BAD_ROWS;
use crate::error::{BadRowReport, Error, Result};
use crate::trace::Trace;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunReport {
    /// Rows that the consumer got. A feed's rows that were skipped count.
    pub rows: u64,
    /// Those of the rows that the run did not decode, because a feed that resumed could begin after
    /// them. Otherwise 0.
    #[serde(default)]
    pub passed_rows: u64,
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
    /// Where the arrays of costly columns came from.
    #[serde(default)]
    pub arrays: ArrayReport,
    /// Bytes of input. For a compressed input, compressed bytes count. For a pipe, the bytes that
    /// were read from it count.
    pub bytes: u64,
    /// Wall time of the run.
    pub elapsed: Duration,
    /// Times of the stages. `None` unless [`RunOptions::trace`](crate::RunOptions::trace) is set.
    #[serde(skip)]
    pub trace: Option<Trace>,
}

/// Where the arrays of a run came from. Arrays of chunks that were read and not handed out count.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ArrayReport {
    /// Arrays that decoders have made.
    pub made: u64,
    /// Arrays from memory ([`RunOptions::cache_bytes`](crate::RunOptions::cache_bytes)).
    pub cached: u64,
    /// Arrays from the spool ([`RunOptions::spool`](crate::RunOptions::spool)).
    pub spooled: u64,
    /// Groups of the spool's files that were damaged. Their arrays were made again.
    pub damaged_groups: u64,
    /// Why the spool takes no more arrays, such as a full disk. One report of a pipeline has it.
    pub spool_failure: Option<String>,
}

impl ArrayReport {
    pub(crate) fn of(counts: ArrayCounts) -> Self {
        let ArrayCounts { made, cached, spooled, damaged } = counts;
        Self { made, cached, spooled, damaged_groups: damaged, spool_failure: None }
    }

    fn add(&mut self, next: &Self) {
        self.made += next.made;
        self.cached += next.cached;
        self.spooled += next.spooled;
        self.damaged_groups += next.damaged_groups;
        let earlier = self.spool_failure.take();
        self.spool_failure = earlier.or_else(|| next.spool_failure.clone());
    }
}

impl RunReport {
    /// Writes the report as JSON, which [`from_json`](Self::from_json) reads. The JSON has no
    /// trace.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts have a JSON form")
    }

    /// Reads a report from JSON.
    ///
    /// # Errors
    /// [`Error::Spec`] with the fault and its place in the JSON.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| Error::Spec(format!("no report: {error}")))
    }

    /// Adds the report of a run over the next part of the inputs. The durations are summed.
    pub(crate) fn add(&mut self, next: &Self) {
        self.rows += next.rows;
        self.passed_rows += next.passed_rows;
        self.bad_rows += next.bad_rows;
        self.bad_lines += next.bad_lines;
        self.first_bad_rows.extend(next.first_bad_rows.iter().cloned());
        self.first_bad_rows.truncate(REPORTED_BAD_ROWS);
        self.missing_columns += next.missing_columns;
        self.first_missing_columns.extend(next.first_missing_columns.iter().cloned());
        self.first_missing_columns.truncate(REPORTED_BAD_ROWS);
        self.arrays.add(&next.arrays);
        self.bytes += next.bytes;
        self.elapsed += next.elapsed;
    }
}
