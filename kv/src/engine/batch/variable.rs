//! Rows whose values differ in length.
//!
//! **Problem.** In a vocabulary table, a row is as long as its word. The loops for embedding rows
//! need few instructions a key, because they know the length of a row beforehand. Rows of variable
//! width must not make these loops slower.
//!
//! **Approach.** The width is a constant of the batch (`Batch::VARIABLE`), so the loops for fixed
//! width are compiled without the code of this module.
//!
//! A record stores its own length in two parts. Word 3 has the length in units of 8 bytes, which is
//! fixed when the record is allocated. Word 0 has the number of unused bytes, which changes with
//! the value while the record is locked. So a value can change in place only if its length in units
//! of 8 bytes does not change. Otherwise the value gets a new record at the tail, and the batch
//! marks the old record as replaced. A reader without the lock reads word 0 and the value between
//! two loads of the clock word.
//!
//! The store counts the rows of a table and the total size of their records. Compaction compares
//! that size with the size of the log. Reads and prefetches use the mean length of a record until
//! they know the real length.

use super::{Batch, Work};
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::operation::Operation;
use crate::record::address::TableId;
use crate::record::layout::{HEADER_BYTES, record_bytes};

/// Assumed length in bytes of a record of a table whose rows have not been counted yet.
const MEAN_BYTES_DEFAULT: usize = 64;
/// The first read of a record brings this multiple of the mean length, so that few records need a
/// second read.
const READ_MEANS: usize = 2;

/// Returns the mean length of the table's records in bytes, and the number of bytes that the first
/// read of a record brings.
pub(super) fn typical_bytes(core: &Core, table: TableId, value_bytes_max: usize) -> (usize, usize) {
    let longest = record_bytes(value_bytes_max);
    let mean = core.tables.mean_record_bytes(table).unwrap_or(MEAN_BYTES_DEFAULT);
    let mean = mean.clamp(HEADER_BYTES, longest);
    (mean, (mean * READ_MEANS).min(longest))
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// Asks the operation for the length of a row's next value. `None` if the table does not admit
    /// that length.
    pub(super) fn asked_value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> Option<usize> {
        let value_bytes = self.work.caller().value_bytes(i, old);
        if value_bytes > self.value_bytes {
            self.too_long = Some((i, value_bytes));
            return None;
        }
        Some(value_bytes)
    }

    /// Returns an error if a value was too long. Must be called while not pinned.
    pub(super) fn check_lengths(&mut self) -> Result<()> {
        let Some((i, value_bytes)) = self.too_long.take() else { return Ok(()) };
        let key = self.keys[i];
        let name = self.core.tables.name(self.table);
        Err(Error::TooLong {
            what: format!("key {key} of table {name:?}: a value"),
            bytes: value_bytes,
            bytes_max: self.value_bytes,
            limit: "the table admits; make it shorter, or make the table anew with a larger maximum",
        })
    }

    /// Brings the table's total record size up to date. Must be called while pinned.
    pub(super) fn note_grown(&mut self) {
        let grown = self.tally.grown_bytes;
        if grown != self.grown_noted {
            self.core.tables.add_record_bytes(self.table, grown.wrapping_sub(self.grown_noted));
            self.grown_noted = grown;
        }
    }
}
