//! The structs of C for statistics.
//!
//! Made by `EMBANK_BLESS=1 cargo test -p embank-c --test header`; the statistics of
//! the crates `embank-kv` and `embank` describe each number.

use bytemuck::{Pod, Zeroable};
use embank::{BankStats, TableStats};

/// What a bank has done since it was opened. docs/python.md explains the main counters.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_bank_stats {
    /// sizeof(embank_bank_stats), as it was passed.
    pub size: usize,
    /// The bank's memory budget, in bytes, as given at open.
    pub memory_budget_bytes: u64,
    /// Gauge: what is taken of the memory budget, in bytes.
    pub memory_used_bytes: u64,
    /// Rows found in the mutable region.
    pub hits_mutable: u64,
    /// Rows found in the read-only region.
    pub hits_read_only: u64,
    /// Rows found in the read cache, which holds copies of rows on disk.
    pub hits_cache: u64,
    /// Rows found on disk, and read from disk.
    pub hits_disk: u64,
    /// Rows that an operation looked for and did not find, including those that it then
    /// inserted.
    pub missing: u64,
    /// Rows inserted.
    pub inserted: u64,
    /// Read requests to the device. One request may read several rows that lie close together.
    pub disk_reads: u64,
    /// Bytes read from the device. The reads of merges of the cold tier do not count.
    pub disk_read_bytes: u64,
    /// Bytes written to the device: the log's pages, and the parts of the cold tier.
    pub disk_write_bytes: u64,
    /// Gauge: rows in all tables.
    pub live_rows: u64,
    /// Gauge: bytes of the records of all rows, including headers.
    pub live_bytes: u64,
    /// Gauge: bytes of log on disk. In a bank with two tiers, pages count that were never
    /// written, because their rows went to the cold tier from memory. They take no space.
    pub log_disk_bytes: u64,
    /// Gets that had to wait for a staleness bound, in all tables.
    pub waits: u64,
    /// Total time that Gets waited for a staleness bound, in microseconds.
    pub wait_us: u64,
    /// Gets that failed because they had waited for `wait_timeout`.
    pub timeouts: u64,
    /// Dropped or expired leases that could not lower the clocks of all their rows.
    pub release_failures: u64,
    /// Leases that grew older than lease_timeout and
    /// were declared expired.
    pub leases_expired: u64,
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// Gauge: duration of the last checkpoint, in microseconds.
    pub last_checkpoint_us: u64,
    /// Requested keys. Equal keys of one call count once.
    pub lookahead_requested: u64,
    /// Keys that had no row at the request, or whose row was already in mutable memory.
    pub lookahead_resident: u64,
    /// Keys put in the queue.
    pub lookahead_queued: u64,
    /// Keys that were already pending because of an earlier request.
    pub lookahead_merged: u64,
    /// Keys that the full queue refused.
    pub lookahead_dropped: u64,
    /// Rows brought from disk, or from the read-only region, into mutable memory.
    pub lookahead_moved: u64,
    /// Rows that were moved or kept, and then used from memory.
    pub lookahead_on_time: u64,
    /// Rows that were copied to the mutable region because they were about to leave memory
    /// before their use. One announcement may keep a row several times.
    pub lookahead_kept: u64,
    /// Keys whose turn came too late: another call had got the row, and may have waited for the
    /// disk.
    pub lookahead_late: u64,
    /// Rows that were moved or kept, and left memory without a use.
    pub lookahead_wasted: u64,
    /// Keys that were given up before their turn, by
    /// embank_bank_cancel_lookahead or because their table was
    /// dropped.
    pub lookahead_cancelled: u64,
    /// Rows left on disk because reading failed, or because the disk quota left no room.
    pub lookahead_failed: u64,
    /// Gauge: keys that wait for their turn or are being read.
    pub lookahead_pending: u64,
    /// Gauge: largest number of pending keys.
    pub lookahead_capacity: u64,
    /// Gauge: the number of the newest checkpoint, which may have been taken before this
    /// opening. 0 if there is no checkpoint, or if the store is open read-only.
    pub newest_checkpoint: u64,
    /// Gauge: the part of changed that came after the newest checkpoint, or
    /// after the opening if no checkpoint was taken since. Closing the store now would lose
    /// these changes. A row that changed twice counts twice. Rows of vocabularies count too. A
    /// change that another thread makes while a checkpoint begins may count here although the
    /// checkpoint contains it.
    pub changed_since_checkpoint: u64,
    /// Batches that were run.
    pub batches: u64,
    /// Keys of peeks.
    pub peek_keys: u64,
    /// Keys of gets.
    pub get_keys: u64,
    /// Keys of updates.
    pub update_keys: u64,
    /// Keys of puts.
    pub put_keys: u64,
    /// Keys of deletions.
    pub delete_keys: u64,
    /// Rows changed. A row changes if it is updated, put, inserted by a get, or deleted.
    pub changed: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Records appended to the log, including copies.
    pub records_appended: u64,
    /// Records appended because an operation used a row that was in the read-only region or on
    /// disk.
    pub copied_to_tail: u64,
    /// Rows copied to the log's tail before their page left memory, because they are used
    /// often.
    pub retained: u64,
    /// Rows that needed no read request of their own, because the request for another row read
    /// them too.
    pub disk_reads_joined: u64,
    /// Gauge: the most reads that one batch had in flight at the same time.
    pub disk_queue_depth_max: u64,
    /// Gauge: bytes of log on disk that the present state does not need, and that kept
    /// checkpoints, readers of checkpoints, or scans still need.
    pub log_held_bytes: u64,
    /// Bytes of log that compaction has read.
    pub compacted_bytes: u64,
    /// Bytes of records that compaction copied to the log's tail.
    pub compaction_copied_bytes: u64,
    /// Time that compaction worked, in microseconds. Time in which it waited for work or for
    /// the throttle does not count.
    pub compaction_us: u64,
    /// Bytes of log freed on the file system.
    pub freed_bytes: u64,
    /// Segment files removed.
    pub segments_freed: u64,
    /// Times that a batch waited for memory for the log's next page.
    pub page_waits: u64,
    /// Times that a batch waited for compaction to free disk space.
    pub compaction_waits: u64,
    /// Times that a batch split buckets of the index after its inserts.
    pub growth_steps: u64,
    /// Total time that batches waited for memory for the log's next page, in microseconds.
    pub page_waits_us: u64,
    /// Total time that batches waited for compaction to free disk space, in microseconds.
    pub compaction_waits_us: u64,
    /// Total time that batches split buckets of the index after their inserts, in microseconds.
    pub growth_steps_us: u64,
    /// Total time that checkpoints paused batches, in microseconds.
    pub checkpoint_pauses_us: u64,
    /// The longest wait of a batch for memory for the log's next page, in microseconds.
    pub page_waits_us_max: u64,
    /// The longest wait of a batch for compaction to free disk space, in microseconds.
    pub compaction_waits_us_max: u64,
    /// The longest time that one batch split buckets of the index, in microseconds.
    pub growth_steps_us_max: u64,
    /// The most processor time that one batch took to split buckets of the index, in
    /// microseconds. Time in which the thread did not run does not count. Measured only for
    /// batches that insert 64 rows or more. For a smaller batch, reading the processor time
    /// from the system costs more than the splits.
    pub growth_steps_cpu_us_max: u64,
    /// The longest pause of batches by a checkpoint, in microseconds.
    pub checkpoint_pauses_us_max: u64,
    /// Gauge: time that the last checkpoint paused batches, in microseconds.
    pub last_checkpoint_pause_us: u64,
    /// Gauge: memory of the log's frames, in bytes.
    pub memory_frames_bytes: u64,
    /// Gauge: memory of the index, in bytes.
    pub memory_index_bytes: u64,
    /// Gauge: memory of the read cache, in bytes.
    pub memory_cache_bytes: u64,
    /// Gauge: memory of the read and write buffers, in bytes.
    pub memory_buffers_bytes: u64,
    /// Gauge: index slots in use.
    pub index_entries: u64,
    /// Gauge: address where the log begins, in bytes.
    pub log_begin: u64,
    /// Gauge: address where the log's pages in memory begin, in bytes. Lower addresses are only
    /// on disk.
    pub log_head: u64,
    /// Gauge: address where the mutable region begins, in bytes.
    pub log_read_only: u64,
    /// Gauge: address where the log ends, in bytes.
    pub log_tail: u64,
    /// Gauge: bytes of log that can be appended before the bank's addresses are used up. At 0
    /// the bank refuses all writes. A new bank has 512 TiB of addresses, or 4,294,967,294 pages
    /// if that is less.
    pub log_address_left_bytes: u64,
    /// The size of a log page, in bytes.
    pub page_size_bytes: u64,
    /// Keys that had no row when their turn came.
    pub lookahead_missing: u64,
    /// Working time of the lookahead thread, in microseconds: for reading announced rows, for
    /// prefetches, and for rows that it keeps in memory.
    pub lookahead_reading_us: u64,
    /// Gauge: the last depth that an AutoDepth has chosen; 0 without one.
    pub lookahead_depth: u64,
    /// Gauge: most bytes of memory for the queue, a part of the bank's budget.
    pub lookahead_memory_bytes: u64,
    /// Gauge: 2 if rows leave the log for the cold tier, or if the bank has a cold tier. Else
    /// 1.
    pub tiers: u64,
    /// Gauge: row versions in the cold tier. Tombstones, and versions that a newer version
    /// supersedes, count until a merge into the base removes them.
    pub cold_versions: u64,
    /// Gauge: parts of the cold tier. A part is a file of sorted rows.
    pub cold_parts: u64,
    /// Gauge: runs of the cold tier. A run has the rows that left the log at one time, in one
    /// part or several. Runs are merged into the base, the oldest rows of the cold tier.
    pub cold_runs: u64,
    /// Gauge: bytes of the parts on disk, also of those that only kept checkpoints or scans
    /// need.
    pub cold_disk_bytes: u64,
    /// Gauge: bytes of the base of the cold tier.
    pub cold_base_bytes: u64,
    /// Gauge: bytes of runs that are not merged into the base yet.
    pub cold_run_bytes: u64,
    /// Gauge: bytes of runs above which merges into the base are due. 0 in a bank with one tier
    /// and in a read-only store.
    pub cold_run_limit_bytes: u64,
    /// Gauge: length of the log, in bytes, above which rows leave it for the cold tier. 0 in a
    /// bank with one tier and in a read-only store.
    pub cold_log_limit_bytes: u64,
    /// Gauge: the largest size of the runs as a part of the base's, in thousandths: 400 where
    /// the memory allows, at least 50. With shorter runs, merges write more.
    pub cold_run_share_per_mille: u64,
    /// Gauge: columns of the filters of new runs, at most 9. With c columns, a lookup reads one
    /// block in 2^c for nothing, for each run that does not have its key.
    pub cold_filter_columns: u64,
    /// Gauge: blocks of new base parts for each fence in memory. A lookup reads that number of
    /// blocks together.
    pub cold_fence_stride: u64,
    /// Blocks of the cold tier that lookups read, one for each key and block.
    pub cold_blocks_read: u64,
    /// Blocks of the cold tier that a lookup read although they do not have the row: a filter
    /// or a fence was wrong, or the bank does not have the row.
    pub cold_false_reads: u64,
    /// Rows and tombstones that left the log for the cold tier.
    pub spilled_rows: u64,
    /// Bytes of the runs that rows from the log were written to.
    pub spilled_bytes: u64,
    /// Rows that left the log without a write, because the cold tier has an equal version.
    pub spilled_clean_rows: u64,
    /// Rows and tombstones that merges of the cold tier have written.
    pub merged_rows: u64,
    /// Bytes of the parts that merges of the cold tier have written.
    pub merged_bytes: u64,
    /// Gauge: memory of the cold tier, in bytes: the fences and filters of its parts.
    pub memory_cold_bytes: u64,
    /// Gauge: memory lent to scans, to prefetches, and to the spills and merges of the cold
    /// tier, in bytes.
    pub memory_lent_bytes: u64,
}

impl embank_bank_stats {
    /// The numbers of a snapshot, for a caller's struct of `size` bytes.
    pub(crate) fn of(now: &BankStats, size: usize) -> Self {
        Self {
            size,
            memory_budget_bytes: now.memory_budget_bytes,
            memory_used_bytes: now.memory_used_bytes(),
            hits_mutable: now.store.hits_mutable,
            hits_read_only: now.store.hits_read_only,
            hits_cache: now.store.hits_cache,
            hits_disk: now.store.hits_disk,
            missing: now.store.missing,
            inserted: now.store.inserted,
            disk_reads: now.store.disk_reads,
            disk_read_bytes: now.store.disk_read_bytes,
            disk_write_bytes: now.store.disk_write_bytes,
            live_rows: now.store.live_rows,
            live_bytes: now.store.live_bytes,
            log_disk_bytes: now.store.log_disk_bytes,
            waits: now.waits,
            wait_us: now.wait_us,
            timeouts: now.timeouts,
            release_failures: now.release_failures,
            leases_expired: now.leases_expired,
            checkpoints: now.store.checkpoints,
            last_checkpoint_us: now.store.last_checkpoint_us,
            lookahead_requested: now.lookahead.requested,
            lookahead_resident: now.lookahead.resident,
            lookahead_queued: now.lookahead.queued,
            lookahead_merged: now.lookahead.merged,
            lookahead_dropped: now.lookahead.dropped,
            lookahead_moved: now.lookahead.moved,
            lookahead_on_time: now.lookahead.on_time,
            lookahead_kept: now.lookahead.kept,
            lookahead_late: now.lookahead.late,
            lookahead_wasted: now.lookahead.wasted,
            lookahead_cancelled: now.lookahead.cancelled,
            lookahead_failed: now.lookahead.failed,
            lookahead_pending: now.lookahead.pending,
            lookahead_capacity: now.lookahead.capacity,
            newest_checkpoint: now.store.newest_checkpoint,
            changed_since_checkpoint: now.store.changed_since_checkpoint,
            batches: now.store.batches,
            peek_keys: now.store.peek_keys,
            get_keys: now.store.get_keys,
            update_keys: now.store.update_keys,
            put_keys: now.store.put_keys,
            delete_keys: now.store.delete_keys,
            changed: now.store.changed,
            deleted: now.store.deleted,
            records_appended: now.store.records_appended,
            copied_to_tail: now.store.copied_to_tail,
            retained: now.store.retained,
            disk_reads_joined: now.store.disk_reads_joined,
            disk_queue_depth_max: now.store.disk_queue_depth_max,
            log_held_bytes: now.store.log_held_bytes,
            compacted_bytes: now.store.compacted_bytes,
            compaction_copied_bytes: now.store.compaction_copied_bytes,
            compaction_us: now.store.compaction_us,
            freed_bytes: now.store.freed_bytes,
            segments_freed: now.store.segments_freed,
            page_waits: now.store.page_waits,
            compaction_waits: now.store.compaction_waits,
            growth_steps: now.store.growth_steps,
            page_waits_us: now.store.page_waits_us,
            compaction_waits_us: now.store.compaction_waits_us,
            growth_steps_us: now.store.growth_steps_us,
            checkpoint_pauses_us: now.store.checkpoint_pauses_us,
            page_waits_us_max: now.store.page_waits_us_max,
            compaction_waits_us_max: now.store.compaction_waits_us_max,
            growth_steps_us_max: now.store.growth_steps_us_max,
            growth_steps_cpu_us_max: now.store.growth_steps_cpu_us_max,
            checkpoint_pauses_us_max: now.store.checkpoint_pauses_us_max,
            last_checkpoint_pause_us: now.store.last_checkpoint_pause_us,
            memory_frames_bytes: now.store.memory_frames_bytes,
            memory_index_bytes: now.store.memory_index_bytes,
            memory_cache_bytes: now.store.memory_cache_bytes,
            memory_buffers_bytes: now.store.memory_buffers_bytes,
            index_entries: now.store.index_entries,
            log_begin: now.store.log_begin,
            log_head: now.store.log_head,
            log_read_only: now.store.log_read_only,
            log_tail: now.store.log_tail,
            log_address_left_bytes: now.store.log_address_left_bytes,
            page_size_bytes: now.store.page_size_bytes,
            lookahead_missing: now.lookahead.missing,
            lookahead_reading_us: now.lookahead.reading_us,
            lookahead_depth: now.lookahead.depth,
            lookahead_memory_bytes: now.lookahead.memory_bytes,
            tiers: now.store.tiers,
            cold_versions: now.store.cold_versions,
            cold_parts: now.store.cold_parts,
            cold_runs: now.store.cold_runs,
            cold_disk_bytes: now.store.cold_disk_bytes,
            cold_base_bytes: now.store.cold_base_bytes,
            cold_run_bytes: now.store.cold_run_bytes,
            cold_run_limit_bytes: now.store.cold_run_limit_bytes,
            cold_log_limit_bytes: now.store.cold_log_limit_bytes,
            cold_run_share_per_mille: now.store.cold_run_share_per_mille,
            cold_filter_columns: now.store.cold_filter_columns,
            cold_fence_stride: now.store.cold_fence_stride,
            cold_blocks_read: now.store.cold_blocks_read,
            cold_false_reads: now.store.cold_false_reads,
            spilled_rows: now.store.spilled_rows,
            spilled_bytes: now.store.spilled_bytes,
            spilled_clean_rows: now.store.spilled_clean_rows,
            merged_rows: now.store.merged_rows,
            merged_bytes: now.store.merged_bytes,
            memory_cold_bytes: now.store.memory_cold_bytes,
            memory_lent_bytes: now.store.memory_lent_bytes,
        }
    }
}

/// What a table has done since its bank was opened. Rows are counted once per batch.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_table_stats {
    /// sizeof(embank_table_stats), as it was passed.
    pub size: usize,
    /// Batches got.
    pub gets: u64,
    /// Distinct rows got.
    pub get_rows: u64,
    /// Batches peeked at.
    pub peeks: u64,
    /// Rows peeked at, duplicates counted.
    pub peek_rows: u64,
    /// Batches put, with or without a lease, and batches changed by a function.
    pub puts: u64,
    /// Distinct rows put or changed by a function.
    pub put_rows: u64,
    /// Batches of gradients applied, with or without a lease.
    pub applies: u64,
    /// Distinct rows that gradients were applied to.
    pub apply_rows: u64,
    /// Rows deleted.
    pub deleted_rows: u64,
    /// Rows evicted.
    pub evicted_rows: u64,
    /// Rows that a get, peek, put, apply or update had to read from disk.
    pub disk_reads: u64,
    /// Gets that had to wait for the staleness bound.
    pub waits: u64,
    /// Total time that Gets waited for a staleness bound, in microseconds.
    pub wait_us: u64,
    /// Gets that failed because they had waited for `wait_timeout`.
    pub timeouts: u64,
    /// Dropped or expired leases that could not lower the clocks of all their rows.
    pub release_failures: u64,
    /// Leases that grew older than lease_timeout and
    /// were declared expired.
    pub leases_expired: u64,
    /// Rows that Gets did not make, because their keys were not admitted. Their gradients were
    /// dropped.
    pub not_admitted_rows: u64,
    /// Steps that left a value of the optimizer's state at the largest value of its dtype,
    /// where it stays.
    pub saturated_rows: u64,
}

impl embank_table_stats {
    /// The numbers of a snapshot, for a caller's struct of `size` bytes.
    pub(crate) fn of(now: &TableStats, size: usize) -> Self {
        Self {
            size,
            gets: now.gets,
            get_rows: now.get_rows,
            peeks: now.peeks,
            peek_rows: now.peek_rows,
            puts: now.puts,
            put_rows: now.put_rows,
            applies: now.applies,
            apply_rows: now.apply_rows,
            deleted_rows: now.deleted_rows,
            evicted_rows: now.evicted_rows,
            disk_reads: now.disk_reads,
            waits: now.waits,
            wait_us: now.wait_us,
            timeouts: now.timeouts,
            release_failures: now.release_failures,
            leases_expired: now.leases_expired,
            not_admitted_rows: now.not_admitted_rows,
            saturated_rows: now.saturated_rows,
        }
    }
}
