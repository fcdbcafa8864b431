//! Counts the rows of tables and the bytes of their records.

use super::state::TableState;
use super::{Tables, no_such_table};
use crate::error::Result;
use crate::log::page::PAGE_HEADER_BYTES;
use crate::operation::Width;
use crate::record::address::TableId;
use crate::sync::Ordering;

/// The current rows of a store.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) rows: u64,
    /// Total size in bytes of the records of the current rows.
    pub(crate) bytes: u64,
    /// Bytes of the pages that the records of each table would fill by themselves.
    pub(crate) footprint: u64,
}

impl Tables {
    /// Adds `rows` to a table's row count, wrapping.
    #[cold]
    pub(crate) fn add_rows(&self, table: TableId, rows: u64) {
        self.count(table, |state| state.rows.fetch_add(rows, Ordering::Relaxed));
    }

    /// Adds `versions` to a table's number of uncounted versions.
    #[cold]
    pub(crate) fn add_uncounted(&self, table: TableId, versions: u64) {
        self.count(table, |state| state.marked.fetch_add(versions, Ordering::Relaxed));
    }

    /// Returns the tables that may have uncounted versions, each with the number of those that were
    /// written so far.
    pub(crate) fn marked(&self) -> Vec<(TableId, u64)> {
        let list = self.list.read();
        let uncounted = list.there().filter(|state| state.uncounted() > 0);
        uncounted.map(|state| (state.id(), state.marked.load(Ordering::Relaxed))).collect()
    }

    /// Notes that the first `marked` uncounted versions of a table have been counted.
    pub(crate) fn note_counted(&self, table: TableId, marked: u64) {
        self.count(table, |state| state.marks_ended.fetch_max(marked, Ordering::Relaxed));
    }

    /// Adds `bytes` to the total size of a table's records, wrapping.
    #[cold]
    pub(crate) fn add_record_bytes(&self, table: TableId, bytes: u64) {
        self.count(table, |state| state.record_bytes.fetch_add(bytes, Ordering::Relaxed));
    }

    /// Calls `add` with the table's state. Does nothing if the table was dropped: a batch that was
    /// running at the drop no longer counts its rows.
    fn count<R>(&self, table: TableId, add: impl FnOnce(&TableState) -> R) {
        // The lock is held while counting, so a drop comes either before or after the count.
        let list = self.list.read();
        // The number may belong to another table by now.
        if let Some(state) = list.find(table) {
            add(state);
        }
    }

    /// Returns the number of rows of a table as far as it is known. The number is exact while no
    /// batch of the table runs and the table has no uncounted versions.
    pub(crate) fn rows(&self, table: TableId) -> Result<u64> {
        let list = self.list.read();
        list.find(table).map(TableState::rows_now).ok_or_else(|| no_such_table(table))
    }

    /// Returns the mean length in bytes of a table's records. `None` while the table has no rows.
    pub(crate) fn mean_record_bytes(&self, table: TableId) -> Option<usize> {
        let list = self.list.read();
        let state = list.find(table)?;
        let rows = state.rows_now();
        (rows > 0).then(|| state.live_bytes(rows).div_ceil(rows) as usize)
    }

    /// Returns the counts of the current rows of all tables. They are exact while batches are
    /// paused. Otherwise they may miss a few operations.
    pub(crate) fn live(&self, page_bytes: u64) -> Live {
        let room = page_bytes - PAGE_HEADER_BYTES;
        let mut live = Live::default();
        for table in self.list.read().there() {
            let rows = table.rows_now();
            if rows == 0 {
                continue;
            }
            let bytes = table.live_bytes(rows);
            let record = table.record_bytes_max();
            live.rows += rows;
            live.bytes += bytes;
            live.footprint += match table.entry.width() {
                Width::Fixed => rows * page_bytes / (room / record),
                // A page's unused end is shorter than the next record. Of two neighbouring pages,
                // at least one is half full. The estimate must not be too low, because writers
                // would then wait for compaction forever.
                Width::Variable => bytes * page_bytes / (room - record).max(room / 2),
            };
        }
        live
    }

    /// Returns the largest length in bytes of a record of any table.
    pub(crate) fn longest_record(&self) -> usize {
        let list = self.list.read();
        list.there().map(|table| table.record_bytes_max() as usize).max().unwrap_or(0)
    }
}
