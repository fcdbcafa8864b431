//! What batches add to the store's counters, and the counters as its users see them.

use super::tables::TableState;
use super::{Core, Store};
use crate::address::{Address, TableId};
use crate::compaction::SpaceHolder;
use crate::execute::{Hit, Mode, Tally};
use crate::stats::StoreStats;
use crate::sync::Ordering;

impl Core {
    /// Adds to the bytes of a table's records, wrapping.
    #[cold]
    pub(crate) fn add_record_bytes(&self, table: TableId, bytes: u64) {
        self.with_live_table(table, |state| state.record_bytes.fetch_add(bytes, Ordering::Relaxed));
    }

    /// Counts a single key that took the short way: one counter tells all.
    #[inline]
    pub(super) fn count_single(&self, mode: Mode, changes: bool, hit: Hit) {
        let singles = &self.counters.singles;
        match (mode, hit) {
            (Mode::Peek, Hit::Mutable) => singles.peek_mutable.add(1),
            (Mode::Peek, Hit::ReadOnly) => singles.peek_read_only.add(1),
            (Mode::Get, _) => singles.get.add(1),
            (Mode::Update, _) if !changes => singles.touch.add(1),
            (Mode::Update, _) => singles.update.add(1),
            (Mode::Put, _) => singles.put.add(1),
            (Mode::Delete | Mode::Promote | Mode::Compact | Mode::Locate | Mode::Retain, _) => {}
        }
    }

    /// So many promoted rows were used for the first time, the oldest of which lay at `from`.
    #[cold]
    pub(crate) fn note_promoted_used(&self, rows: u64, from: Address) {
        self.counters.promoted_used.add(rows);
        self.log.note_promoted_use(from);
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

    /// Counts a batch of `keys` keys. `changes`: its updates change values.
    pub(super) fn add_tally(&self, mode: Mode, changes: bool, keys: u64, tally: &Tally) {
        let counters = &self.counters;
        counters.batches.add(1);
        // What was done, which after an error is less than what was asked.
        let found = tally.hits_mutable + tally.hits_read_only + tally.hits_disk + tally.hits_cache;
        let changed = match mode {
            Mode::Peek => {
                counters.peek_keys.add(keys);
                0
            }
            Mode::Get => {
                counters.get_keys.add(keys);
                tally.inserted
            }
            Mode::Update => {
                counters.update_keys.add(keys);
                found + tally.inserted
            }
            Mode::Put => {
                counters.put_keys.add(keys);
                found + tally.inserted
            }
            Mode::Delete => {
                counters.delete_keys.add(keys);
                tally.deleted
            }
            // Looking ahead is no operation on rows; what it moves is counted as promoted.
            Mode::Promote | Mode::Compact | Mode::Locate | Mode::Retain => 0,
        };
        counters.changed.add(if changes { changed } else { 0 });
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
        if let Some(from) = tally.promoted_used_from {
            self.note_promoted_used(tally.promoted_used, from);
        }
        counters.overtaken.add(tally.overtaken);
    }
}

impl Store {
    /// What keeps log from being given back, the largest holder first: open scans, and checkpoints with the processes
    /// that read them. Asks the system who holds locks, so it takes longer than [`stats`](Self::stats).
    #[must_use]
    pub fn space_holders(&self) -> Vec<SpaceHolder> {
        self.core().space_holders()
    }

    /// A snapshot of the counters. Cheap; may be called while batches run.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let core = self.core();
        let c = &core.counters;
        // Before the changes, which only grow. The cells of the changes are loaded in no order: another thread's may
        // look older than the checkpoint's sum, so the difference saturates.
        let changed_at_checkpoint = c.changed_at_checkpoint.get();
        let mut stats = StoreStats::counted(c);
        stats.changed_since_checkpoint = stats.changed.saturating_sub(changed_at_checkpoint);
        let singles = c.singles.get();
        stats.batches += singles.all();
        stats.peek_keys += singles.peek_mutable + singles.peek_read_only;
        stats.get_keys += singles.get;
        stats.update_keys += singles.update + singles.touch;
        stats.put_keys += singles.put;
        stats.hits_mutable += singles.all() - singles.peek_read_only;
        stats.hits_read_only += singles.peek_read_only;
        core.gauge(&mut stats);
        stats
    }
}

impl Core {
    /// Sets what is no counter.
    fn gauge(&self, stats: &mut StoreStats) {
        let report = self.log.device.report();
        stats.device = self.log.device.name();
        stats.device_notes =
            report.io_uring_refused.into_iter().chain(report.direct_io_refused).collect();
        stats.memory_budget_bytes = self.budget.total_bytes();
        stats.memory_frames_bytes = self.log.frame_bytes();
        stats.memory_index_bytes = self.budget.index_bytes();
        stats.memory_cache_bytes = self.cache.bytes();
        stats.memory_buffers_bytes = self.budget.buffer_bytes();
        stats.index_entries = self.index.entry_count();
        let live = self.live();
        stats.live_rows = live.rows;
        stats.live_bytes = live.bytes;
        let view = self.log.view();
        stats.log_begin = view.begin;
        stats.log_head = view.head;
        stats.log_read_only = view.read_only;
        stats.log_tail = self.log.tail_address();
        stats.log_disk_bytes = self.disk_bytes();
        stats.log_held_bytes = view.begin.saturating_sub(self.space.freed());
        stats.page_size_bytes = self.log.page_bytes();
        stats.log_address_left_bytes = self.log.address_left_bytes();
        stats.log_address_warning = self.log.address_warning();
        stats.compaction_stopped = self.space.stopped();
        stats.not_removed = self.not_removed();
    }
}
