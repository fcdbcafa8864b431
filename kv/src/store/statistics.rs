//! Calls that report a store's counters and space.

use crate::engine::core::Core;
use crate::stats::StoreStats;
use crate::stats::space_holder::SpaceHolder;
use crate::store::Store;

impl Store {
    /// Returns what keeps log from being freed: open scans, and checkpoints with the processes that
    /// read them. The holder of the most bytes comes first. Asks the operating system which
    /// processes hold locks, so it takes longer than [`stats`](Self::stats).
    #[must_use]
    pub fn space_holders(&self) -> Vec<SpaceHolder> {
        let core = self.core();
        core.space.holders(&core.log)
    }

    /// Returns the counter `promoted` of [`stats`](Self::stats). Takes the same time however many
    /// tables there are.
    #[must_use]
    pub fn promoted(&self) -> u64 {
        self.core().counters.promoted.get()
    }

    /// Returns a snapshot of the counters. The call is cheap and may be used while batches run.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let core = self.core();
        let c = &core.counters;
        // Read before `changed`, which only grows. Each thread counts changes in its own cell, and
        // this thread may read an old value of a cell. The difference therefore saturates at 0.
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
        gauge(&core, &mut stats);
        stats
    }
}

/// Fills in the values that are not counters: present sizes and addresses.
fn gauge(core: &Core, stats: &mut StoreStats) {
    let report = core.log.device.report();
    stats.device = core.log.device.name();
    stats.device_notes =
        report.io_uring_refused.into_iter().chain(report.direct_io_refused).collect();
    stats.memory_budget_bytes = core.budget.total_bytes();
    stats.memory_frames_bytes = core.log.frame_bytes();
    stats.memory_index_bytes = core.budget.index_bytes();
    stats.memory_cache_bytes = core.cache.bytes();
    stats.memory_buffers_bytes = core.budget.buffer_bytes();
    stats.memory_cold_bytes = core.budget.cold_bytes();
    stats.memory_lent_bytes = core.budget.lent_bytes();
    stats.index_entries = core.index.entry_count();
    let live = core.tables.live(core.log.page_bytes());
    stats.live_rows = live.rows;
    stats.live_bytes = live.bytes;
    let view = core.log.view();
    stats.log_begin = view.begin;
    stats.log_head = view.head;
    stats.log_read_only = view.read_only;
    stats.log_tail = core.log.tail_address();
    stats.log_disk_bytes = core.space.disk_bytes(&core.log);
    stats.log_held_bytes = core.headroom().held_log_bytes();
    stats.page_size_bytes = core.log.page_bytes();
    gauge_cold(core, stats);
    stats.log_address_left_bytes = core.log.address_left_bytes();
    stats.log_address_warning = core.log.address_warning();
    stats.compaction_stopped = core.space.stopped();
    stats.not_removed = core.space.not_removed(&core.log);
    stats.not_removed.extend(core.cold.not_removed());
}

/// Fills in the sizes and limits of the cold tier.
fn gauge_cold(core: &Core, stats: &mut StoreStats) {
    let view = core.cold.view();
    stats.cold_versions = view.rows();
    stats.cold_parts = view.part_count() as u64;
    stats.cold_runs = view.runs().count() as u64;
    stats.cold_base_bytes = view.base().iter().map(|part| part.file_bytes()).sum();
    stats.cold_disk_bytes = core.cold.disk_bytes();
    drop(view);
    let plan = core.cold.memory_plan();
    stats.cold_run_share_per_mille = (plan.run_share * 1000.0).round() as u64;
    stats.cold_filter_columns = u64::from(plan.columns);
    stats.cold_fence_stride = 1 << plan.stride_bits;
    let (tiers, debt) = core.headroom().tiers();
    stats.tiers = tiers;
    if let Some(debt) = debt {
        stats.cold_log_limit_bytes = debt.log_limit_bytes;
        stats.cold_run_limit_bytes = debt.run_limit_bytes;
        stats.cold_run_bytes = debt.run_bytes;
    }
}
