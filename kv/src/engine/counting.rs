//! What batches add to the store's counters, and the counters as its users see them.

use crate::engine::batch::{Hit, Mode, Tally};
use crate::engine::compaction::SpaceHolder;
use crate::engine::core::Core;
use crate::record::address::{Address, TableId};
use crate::stats::StoreStats;
use crate::store::Store;
use crate::store::tables::TableState;
use crate::sync::Ordering;

impl Core {
    /// Adds to the bytes of a table's records, wrapping.
    #[cold]
    pub(crate) fn add_record_bytes(&self, table: TableId, bytes: u64) {
        self.with_live_table(table, |state| state.record_bytes.fetch_add(bytes, Ordering::Relaxed));
    }

    /// Counts a single key that took the short way: one counter tells all.
    #[inline]
    pub(crate) fn count_single(&self, mode: Mode, changes: bool, hit: Hit) {
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
    pub(crate) fn add_tally(&self, mode: Mode, changes: bool, keys: u64, tally: &Tally) {
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
        let changed = c.changes();
        let singles = c.singles.get();
        let view = core.log.view();
        let report = core.log.device.report();
        let live = core.live();
        StoreStats {
            device: core.log.device.name(),
            device_notes: report
                .io_uring_refused
                .into_iter()
                .chain(report.direct_io_refused)
                .collect(),
            batches: c.batches.get() + singles.all(),
            peek_keys: c.peek_keys.get() + singles.peek_mutable + singles.peek_read_only,
            get_keys: c.get_keys.get() + singles.get,
            update_keys: c.update_keys.get() + singles.update + singles.touch,
            put_keys: c.put_keys.get() + singles.put,
            delete_keys: c.delete_keys.get(),
            changed,
            deleted: c.deleted.get(),
            hits_mutable: c.hits_mutable.get() + singles.all() - singles.peek_read_only,
            hits_read_only: c.hits_read_only.get() + singles.peek_read_only,
            hits_disk: c.hits_disk.get(),
            hits_cache: c.hits_cache.get(),
            missing: c.missing.get(),
            inserted: c.inserted.get(),
            records_appended: c.records_appended.get(),
            copied_to_tail: c.copied_to_tail.get(),
            disk_reads: c.disk_reads.get(),
            disk_reads_joined: c.disk_reads_joined.get(),
            disk_queue_depth_max: c.disk_queue_depth_max.get(),
            disk_read_bytes: c.disk_read_bytes.get(),
            disk_write_bytes: c.disk_write_bytes.get(),
            retained: c.retained.get(),
            promoted: c.promoted.get(),
            promoted_used: c.promoted_used.get(),
            promoted_wasted: c.promoted_wasted.get(),
            overtaken: c.overtaken.get(),
            page_waits: c.page_waits.count(),
            page_waits_us: c.page_waits.total_us(),
            page_waits_us_max: c.page_waits.longest_us(),
            growth_steps: c.growth_steps.count(),
            growth_steps_us: c.growth_steps.total_us(),
            growth_steps_us_max: c.growth_steps.longest_us(),
            growth_steps_cpu_us_max: c.growth_steps_cpu_us_max.get(),
            checkpoint_pauses_us: c.checkpoint_pauses.total_us(),
            checkpoint_pauses_us_max: c.checkpoint_pauses.longest_us(),
            memory_budget_bytes: core.budget.total_bytes(),
            memory_frames_bytes: core.log.frame_bytes(),
            memory_index_bytes: core.budget.index_bytes(),
            memory_cache_bytes: core.cache.bytes(),
            memory_buffers_bytes: core.budget.buffer_bytes(),
            index_entries: core.index.entry_count(),
            live_rows: live.rows,
            live_bytes: live.bytes,
            log_disk_bytes: core.disk_bytes(),
            log_held_bytes: view.begin.saturating_sub(core.space.freed()),
            compacted_bytes: c.compacted_bytes.get(),
            compaction_copied_bytes: c.compaction_copied_bytes.get(),
            compaction_us: c.compaction_us.get(),
            compaction_waits: c.compaction_waits.count(),
            compaction_waits_us: c.compaction_waits.total_us(),
            compaction_waits_us_max: c.compaction_waits.longest_us(),
            compaction_stopped: core.space.stopped(),
            not_removed: core.not_removed(),
            freed_bytes: c.freed_bytes.get(),
            segments_freed: c.segments_freed.get(),
            log_begin: view.begin,
            log_head: view.head,
            log_read_only: view.read_only,
            log_tail: core.log.tail_address(),
            page_size_bytes: core.log.page_bytes(),
            log_address_left_bytes: core.log.address_left_bytes(),
            log_address_warning: core.log.address_warning(),
            checkpoints: c.checkpoints.get(),
            last_checkpoint_us: c.last_checkpoint_us.get(),
            last_checkpoint_pause_us: c.last_checkpoint_pause_us.get(),
            newest_checkpoint: c.newest_checkpoint.get(),
            changed_since_checkpoint: changed.saturating_sub(changed_at_checkpoint),
        }
    }
}
