//! Counts that a batch brings up to date while it runs, and the counter of a single key.

use crate::engine::batch::Hit;
use crate::engine::core::Core;
use crate::engine::tables::TableState;
use crate::operation::Access;
use crate::record::address::TableId;
use crate::sync::Ordering;

impl Core {
    /// Adds to the bytes of a table's records, wrapping.
    #[cold]
    pub(crate) fn add_record_bytes(&self, table: TableId, bytes: u64) {
        self.with_live_table(table, |state| state.record_bytes.fetch_add(bytes, Ordering::Relaxed));
    }

    /// Counts a single key that took the short path, with one counter.
    #[inline]
    pub(crate) fn count_single(&self, access: Access, changes: bool, hit: Hit) {
        let singles = &self.counters.singles;
        match (access, hit) {
            (Access::Peek, Hit::Mutable) => singles.peek_mutable.add(1),
            (Access::Peek, Hit::ReadOnly) => singles.peek_read_only.add(1),
            (Access::Get, _) => singles.get.add(1),
            (Access::Update, _) if changes => singles.update.add(1),
            (Access::Update | Access::Touch, _) => singles.touch.add(1),
            (Access::Put, _) => singles.put.add(1),
        }
    }

    /// Adds to a table's count of rows, wrapping.
    #[cold]
    pub(crate) fn add_rows(&self, table: TableId, rows: u64) {
        self.with_live_table(table, |state| state.rows.fetch_add(rows, Ordering::Relaxed));
    }

    /// Does nothing for a table that was dropped: the rows of a batch that was running then are no
    /// longer counted.
    fn with_live_table<R>(&self, table: TableId, count: impl FnOnce(&TableState) -> R) {
        // Held while counting, so a drop comes before or after the count.
        let tables = self.tables.read();
        let state = tables.get(usize::from(table.number.0).wrapping_sub(1));
        // Another table may have the number by now.
        if let Some(state) = state.filter(|state| state.id() == table && !state.entry.dropped) {
            count(state);
        }
    }
}
