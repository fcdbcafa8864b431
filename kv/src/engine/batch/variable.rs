//! Rows of variable width.
//!
//! **Problem.** Rows of a vocabulary are as long as their words. The loops for embedding rows are tuned to few
//! instructions a key and know a row's length beforehand; none of that may be lost.
//!
//! **Approach.** The width is a constant of the batch (`Batch::VARIABLE`), so the loops for fixed width are
//! compiled without a trace of this module. A record tells its own length: in units of 8 bytes in word 3,
//! which is fixed when it is allocated, less the unused bytes in word 0, which change with the value
//! under the lock. So a value changes in place as long as its padded length stays, and a reader without
//! the lock reads word 0 with the value, between the same two looks at the clock word. A value of another
//! padded length goes to the tail, and its old record is replaced for good, wherever that lay.
//!
//! What the table's rows weigh is counted with their number: compaction measures the log by it, and
//! reads and prefetches take the mean for the length that they can't know.

use super::{Batch, Work};
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::record::address::TableId;
use crate::record::layout::{HEADER_BYTES, record_bytes};

/// Before the first row is counted, records are taken to be so long.
const MEAN_BYTES_DEFAULT: usize = 64;
/// So many times the mean is read at first.
const READ_MEANS: usize = 2;

/// Bytes of the table's records on average, and what to read of one at first.
pub(super) fn typical_bytes(core: &Core, table: TableId, value_bytes_max: usize) -> (usize, usize) {
    let longest = record_bytes(value_bytes_max);
    let mean = core.mean_record_bytes(table).unwrap_or(MEAN_BYTES_DEFAULT);
    let mean = mean.clamp(HEADER_BYTES, longest);
    (mean, (mean * READ_MEANS).min(longest))
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// Asks the operation for the length of a row's next value; none if the table does not admit it.
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

    /// Brings what the table's rows weigh up to date. Pinned, as `note_rows`.
    pub(super) fn note_grown(&mut self) {
        let grown = self.tally.grown_bytes;
        if grown != self.grown_noted {
            self.core.add_record_bytes(self.table, grown.wrapping_sub(self.grown_noted));
            self.grown_noted = grown;
        }
    }
}
