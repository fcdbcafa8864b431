//! Updates the row counts of tables while a batch runs, and the counters of operations on a single
//! key.

use crate::engine::batch::Hit;
use crate::engine::core::Core;
use crate::engine::tables::TableState;
use crate::operation::Access;
use crate::record::address::TableId;
use crate::sync::Ordering;

impl Core {
    /// Adds `bytes` to the total size of a table's records, wrapping.
    #[cold]
    pub(crate) fn add_record_bytes(&self, table: TableId, bytes: u64) {
        self.with_live_table(table, |state| state.record_bytes.fetch_add(bytes, Ordering::Relaxed));
    }

    /// Counts an operation on a single key that took the short path. The call adds to one counter
    /// only, and the statistics derive the operation's other counts from that counter.
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

    /// Adds `rows` to a table's row count, wrapping.
    #[cold]
    pub(crate) fn add_rows(&self, table: TableId, rows: u64) {
        self.with_live_table(table, |state| state.rows.fetch_add(rows, Ordering::Relaxed));
    }

    /// Calls `count` with the table's state. Does nothing if the table was dropped: a batch that
    /// was running at the drop no longer counts its rows.
    fn with_live_table<R>(&self, table: TableId, count: impl FnOnce(&TableState) -> R) {
        // The lock is held while counting, so a drop comes either before or after the count.
        let tables = self.tables.read();
        let state = tables.get(usize::from(table.number.0).wrapping_sub(1));
        // The number may belong to another table by now.
        if let Some(state) = state.filter(|state| state.id() == table && !state.entry.dropped) {
            count(state);
        }
    }
}
