//! The store's counters as its users see them.

use crate::stats::StoreStats;
use crate::stats::space_holder::SpaceHolder;
use crate::store::Store;

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
