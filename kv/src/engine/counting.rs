//! What a finished batch adds to the store's counters.

use crate::engine::batch::{Effect, Hit, Tally, Work};
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

    /// Counts a single key that took the short way: one counter tells all.
    #[inline]
    pub(crate) fn count_single(&self, access: Access, changes: bool, hit: Hit) {
        let singles = &self.counters.singles;
        match (access, hit) {
            (Access::Peek, Hit::Mutable) => singles.peek_mutable.add(1),
            (Access::Peek, Hit::ReadOnly) => singles.peek_read_only.add(1),
            (Access::Get, _) => singles.get.add(1),
            (Access::Update, _) if !changes => singles.touch.add(1),
            (Access::Update, _) => singles.update.add(1),
            (Access::Put, _) => singles.put.add(1),
        }
    }

    /// Adds to a table's count of rows, wrapping.
    #[cold]
    pub(crate) fn add_rows(&self, table: TableId, rows: u64) {
        self.with_live_table(table, |state| state.rows.fetch_add(rows, Ordering::Relaxed));
    }

    /// Leaves a dropped table alone: a batch that was under way when it was dropped counts what it did to rows that are
    /// counted no more.
    fn with_live_table<R>(&self, table: TableId, count: impl FnOnce(&TableState) -> R) {
        // Held while counting: a drop comes before or after.
        let tables = self.tables.read();
        let state = tables.get(usize::from(table.number.0).wrapping_sub(1));
        // Another table may have the number by now.
        if let Some(state) = state.filter(|state| state.id() == table && !state.entry.dropped) {
            count(state);
        }
    }

    /// Counts a batch of `keys` keys.
    pub(crate) fn add_tally<W: Work>(&self, keys: u64, tally: &Tally) {
        let counters = &self.counters;
        counters.batches.add(1);
        // What was done, which after an error is less than what was asked.
        let found = tally.hits_mutable + tally.hits_read_only + tally.hits_disk + tally.hits_cache;
        let changed = match W::EFFECT {
            Effect::Peek => {
                counters.peek_keys.add(keys);
                0
            }
            Effect::Get => {
                counters.get_keys.add(keys);
                tally.inserted
            }
            Effect::Update => {
                counters.update_keys.add(keys);
                found + tally.inserted
            }
            Effect::Put => {
                counters.put_keys.add(keys);
                found + tally.inserted
            }
            Effect::Delete => {
                counters.delete_keys.add(keys);
                tally.deleted
            }
            // Looking ahead is no operation on rows; what it moves is counted as promoted.
            Effect::Move | Effect::Locate => 0,
        };
        counters.changed.add(if W::CHANGES { changed } else { 0 });
        counters.deleted.add(tally.deleted);
        counters.hits_mutable.add(tally.hits_mutable);
        counters.hits_read_only.add(tally.hits_read_only);
        counters.hits_disk.add(tally.hits_disk);
        counters.hits_cache.add(tally.hits_cache);
        counters.missing.add(tally.missing);
        counters.inserted.add(tally.inserted);
        counters.records_appended.add(tally.appended);
        counters.copied_to_tail.add(tally.copied);
        counters.disk_reads.add(tally.disk_reads);
        counters.disk_reads_joined.add(tally.disk_reads_joined);
        counters.disk_queue_depth_max.raise(tally.disk_queue_depth_max);
        counters.disk_read_bytes.add(tally.disk_read_bytes);
        counters.promoted.add(tally.promoted);
        counters.promoted_used.add(tally.promoted_used);
        counters.overtaken.add(tally.overtaken);
    }
}
