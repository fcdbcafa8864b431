//! What a batch counts while it runs.

use super::{Batch, Work};

/// Counts of one batch, added to the store's counters once.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) hits_mutable: u64,
    pub(crate) hits_read_only: u64,
    pub(crate) hits_disk: u64,
    pub(crate) hits_cache: u64,
    pub(crate) missing: u64,
    pub(crate) inserted: u64,
    pub(crate) deleted: u64,
    pub(crate) resident: u64,
    pub(crate) appended: u64,
    pub(crate) copied: u64,
    pub(crate) disk_reads: u64,
    /// Rows that came with the read of another.
    pub(crate) disk_reads_joined: u64,
    pub(crate) disk_queue_depth_max: u64,
    pub(crate) disk_read_bytes: u64,
    pub(crate) promoted: u64,
    /// Rows that a promotion brought to mutable memory, from disk or from the read-only region.
    pub(crate) moved: u64,
    /// Bytes of the records that a job has moved.
    pub(crate) moved_bytes: u64,
    /// By how much the records of the table's rows have grown (wrapping); of variable width only.
    pub(crate) grown_bytes: u64,
    /// Promoted rows that were used for the first time.
    pub(crate) promoted_used: u64,
    pub(crate) overtaken: u64,
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// Brings the table's count of rows up to date, and notes that it has records. Pinned, so that
    /// a checkpoint counts the rows that it
    /// holds.
    #[inline]
    pub(super) fn note_rows(&mut self) {
        if self.tally.appended > 0 && !self.written_noted {
            self.core.note_written(self.table);
            self.written_noted = true;
        }
        let rows = self.tally.inserted.wrapping_sub(self.tally.deleted);
        if rows != self.rows_noted {
            self.core.add_rows(self.table, rows.wrapping_sub(self.rows_noted));
            self.rows_noted = rows;
        }
        if VARIABLE {
            self.note_grown();
        }
    }

    /// Counts a row that came to be, with a record of so many bytes.
    pub(super) fn note_inserted(&mut self, record_bytes: usize) {
        self.tally.inserted += 1;
        self.tally.missing += 1;
        self.note_replaced(0, record_bytes);
    }

    /// Counts what a row's record is longer than the one before; 0 stands for no row.
    #[inline]
    pub(super) fn note_replaced(&mut self, old_bytes: usize, new_bytes: usize) {
        if VARIABLE {
            let grown = (new_bytes as u64).wrapping_sub(old_bytes as u64);
            self.tally.grown_bytes = self.tally.grown_bytes.wrapping_add(grown);
        }
    }

    pub(super) fn note_missing(&mut self, i: usize) {
        self.tally.missing += 1;
        self.outcome.missing.push(i as u32);
    }
}
