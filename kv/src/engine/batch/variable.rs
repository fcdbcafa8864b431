//! Rows of variable width.
//!
//! **Problem.** A row of a vocabulary is as long as its word. The loops for embedding rows are
//! tuned to few instructions a key and know a row's length beforehand. They must not become slower.
//!
//! **Approach.** The width is a constant of the batch (`Batch::VARIABLE`), so the loops for fixed
//! width are compiled without any code of this module. A record tells its own length: word 3 has
//! its length in units of 8 bytes, which is fixed when the record is allocated, and word 0 has the
//! number of unused bytes, which changes with the value while the record is locked. So a value
//! changes in place as long as its padded length stays equal. A reader without the lock reads word
//! 0 together with the value, between two looks at the clock word. A value of another padded length
//! goes to the tail, and its old record is marked as replaced.
//!
//! The store counts the bytes of a table's records beside the number of its rows. Compaction
//! measures the log by that sum, and reads and prefetches take the mean for the length that they
//! don't know yet.

use super::{Batch, Work};
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::record::address::TableId;
use crate::record::layout::{HEADER_BYTES, record_bytes};

/// Assumed length of a record, in bytes, before the first row of the table is counted.
const MEAN_BYTES_DEFAULT: usize = 64;
/// The first read of a record brings this many times the mean length.
const READ_MEANS: usize = 2;

/// Bytes of the table's records on average, and what to read of one at first.
pub(super) fn typical_bytes(core: &Core, table: TableId, value_bytes_max: usize) -> (usize, usize) {
    let longest = record_bytes(value_bytes_max);
    let mean = core.mean_record_bytes(table).unwrap_or(MEAN_BYTES_DEFAULT);
    let mean = mean.clamp(HEADER_BYTES, longest);
    (mean, (mean * READ_MEANS).min(longest))
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// Asks the operation for the length of a row's next value. `None` if the table does not admit
    /// that length.
    pub(super) fn asked_value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> Option<usize> {
        let value_bytes = self.work.value_bytes(i, old);
        if value_bytes > self.value_bytes {
            self.too_long = Some((i, value_bytes));
            return None;
        }
        Some(value_bytes)
    }

    /// Fails if a value was too long. Not pinned.
    pub(super) fn check_lengths(&mut self) -> Result<()> {
        let Some((i, value_bytes)) = self.too_long.take() else { return Ok(()) };
        let key = self.keys[i];
        let name = self.core.table_name(self.table);
        Err(Error::TooLong {
            what: format!("key {key} of table {name:?}: a value"),
            bytes: value_bytes,
            bytes_max: self.value_bytes,
            limit: "the table admits; make it shorter, or make the table anew with a larger maximum",
        })
    }

    /// Brings the count of the bytes of the table's records up to date. Must be called while
    /// pinned.
    pub(super) fn note_grown(&mut self) {
        let grown = self.tally.grown_bytes;
        if grown != self.grown_noted {
            self.core.add_record_bytes(self.table, grown.wrapping_sub(self.grown_noted));
            self.grown_noted = grown;
        }
    }
}
