//! The counters of a store, and the statistics that are made from them.
//!
//! # Where to look
//!
//! - `mod.rs`: the counters, and the snapshot `StoreStats`.
//! - `counting`: how threads count.
//! - `metrics`: names, units and help texts for monitoring, and the macro `statistics!`.
//! - `space_holder`: the checkpoints and scans that keep disk space of the log from being freed.

mod counting;
pub mod metrics;
pub(crate) mod space_holder;

use std::time::Duration;

use crate::statistics;
pub(crate) use crate::stats::counting::{BatchCounter, Counter, Stalls};

/// Counters of the batches of one key that `run_single` completed, by operation and by the region
/// that held the row. `run_single` completes other operations than peeks only if the row is in the
/// mutable region. Each batch adds to one of these counters. The statistics derive five other
/// counters from these, because adding to all five would double the cost of the batch.
#[derive(Debug, Default)]
pub(crate) struct Singles<T = BatchCounter> {
    pub(crate) peek_mutable: T,
    pub(crate) peek_read_only: T,
    pub(crate) get: T,
    pub(crate) update: T,
    /// Operations that change the row's clock and keep its value.
    pub(crate) touch: T,
    pub(crate) put: T,
}

impl Singles {
    pub(crate) fn get(&self) -> Singles<u64> {
        Singles {
            peek_mutable: self.peek_mutable.get(),
            peek_read_only: self.peek_read_only.get(),
            get: self.get.get(),
            update: self.update.get(),
            touch: self.touch.get(),
            put: self.put.get(),
        }
    }
}

impl Singles<u64> {
    pub(crate) fn all(&self) -> u64 {
        self.peek_mutable + self.peek_read_only + self.get + self.update + self.touch + self.put
    }
}

/// The live counters behind [`StoreStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) singles: Singles,
    pub(crate) batches: BatchCounter,
    pub(crate) peek_keys: BatchCounter,
    pub(crate) get_keys: BatchCounter,
    pub(crate) update_keys: BatchCounter,
    pub(crate) put_keys: BatchCounter,
    pub(crate) delete_keys: BatchCounter,
    pub(crate) changed: BatchCounter,
    pub(crate) deleted: BatchCounter,
    pub(crate) tables_dropped: Counter,
    pub(crate) hits_mutable: BatchCounter,
    pub(crate) hits_read_only: BatchCounter,
    pub(crate) hits_disk: BatchCounter,
    pub(crate) hits_cache: BatchCounter,
    pub(crate) missing: BatchCounter,
    pub(crate) inserted: BatchCounter,
    pub(crate) records_appended: BatchCounter,
    pub(crate) copied_to_tail: BatchCounter,
    pub(crate) disk_reads: BatchCounter,
    pub(crate) disk_reads_joined: BatchCounter,
    pub(crate) disk_queue_depth_max: Counter,
    pub(crate) disk_read_bytes: BatchCounter,
    pub(crate) disk_write_bytes: Counter,
    pub(crate) cold_blocks_read: BatchCounter,
    pub(crate) cold_false_reads: BatchCounter,
    pub(crate) spilled_rows: Counter,
    pub(crate) spilled_bytes: Counter,
    pub(crate) spilled_clean_rows: Counter,
    pub(crate) merged_rows: Counter,
    pub(crate) merged_bytes: Counter,
    pub(crate) retained: BatchCounter,
    pub(crate) promoted: BatchCounter,
    pub(crate) promoted_used: BatchCounter,
    pub(crate) promoted_wasted: Counter,
    pub(crate) overtaken: BatchCounter,
    pub(crate) page_waits: Stalls,
    pub(crate) growth_steps: Stalls,
    pub(crate) growth_steps_cpu_us_max: Counter,
    pub(crate) checkpoint_pauses: Stalls,
    pub(crate) checkpoints: Counter,
    pub(crate) compacted_bytes: Counter,
    pub(crate) compaction_copied_bytes: Counter,
    pub(crate) compaction_us: Counter,
    pub(crate) compaction_waits: Stalls,
    pub(crate) freed_bytes: Counter,
    pub(crate) segments_freed: Counter,
    pub(crate) last_checkpoint_us: Counter,
    pub(crate) last_checkpoint_pause_us: Counter,
    /// Number of the newest checkpoint; 0 if there is none.
    pub(crate) newest_checkpoint: Counter,
    /// Value of [`changes`](Self::changes) when the newest checkpoint began.
    pub(crate) changed_at_checkpoint: Counter,
}

impl Counters {
    /// Changes of rows since the store was opened, including those of batches of one key.
    pub(crate) fn changes(&self) -> u64 {
        self.changed.get() + self.singles.update.get() + self.singles.put.get()
    }

    /// Counts a checkpoint that took `taken`, and that paused batches for `paused`.
    pub(crate) fn note_checkpoint(&self, taken: Duration, paused: Duration) {
        self.checkpoints.add(1);
        self.last_checkpoint_us.set(taken.as_micros() as u64);
        self.last_checkpoint_pause_us.set(paused.as_micros() as u64);
        self.checkpoint_pauses.note(paused);
    }

    /// True if memory has rows that lookahead brought there and that no batch has used yet.
    pub(crate) fn promoted_waiting(&self) -> bool {
        self.promoted.get() > self.promoted_used.get() + self.promoted_wasted.get()
    }
}

statistics! {
    /// A snapshot of a store's counters and gauges. Counters start at 0 when the bank is opened.
    #[derive(Debug, Default, Clone, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct StoreStats counted by Counters {
        /// Batches that were run.
        batches: Counter Count in operations.batches
            as "embank_batches" "Batches run"
            from |c| c.batches.get();
        /// Keys of peeks.
        peek_keys: Counter Count in operations.peek_keys
            as "embank_keys" { operation: "peek" } "Keys of batches"
            from |c| c.peek_keys.get();
        /// Keys of gets.
        get_keys: Counter Count in operations.get_keys
            as "embank_keys" { operation: "get" } "Keys of batches"
            from |c| c.get_keys.get();
        /// Keys of updates.
        update_keys: Counter Count in operations.update_keys
            as "embank_keys" { operation: "update" } "Keys of batches"
            from |c| c.update_keys.get();
        /// Keys of puts.
        put_keys: Counter Count in operations.put_keys
            as "embank_keys" { operation: "put" } "Keys of batches"
            from |c| c.put_keys.get();
        /// Keys of deletions.
        delete_keys: Counter Count in operations.delete_keys
            as "embank_keys" { operation: "delete" } "Keys of batches"
            from |c| c.delete_keys.get();
        /// Rows found in the mutable region.
        hits_mutable: Counter Count in hits.mutable
            as "embank_hits" { region: "mutable" } "Rows found"
            from |c| c.hits_mutable.get();
        /// Rows found in the read-only region.
        hits_read_only: Counter Count in hits.read_only
            as "embank_hits" { region: "read_only" } "Rows found"
            from |c| c.hits_read_only.get();
        /// Rows found on disk, and read from disk.
        hits_disk: Counter Count in hits.disk
            as "embank_hits" { region: "disk" } "Rows found"
            from |c| c.hits_disk.get();
        /// Rows found in the read cache, which holds copies of rows on disk.
        hits_cache: Counter Count in hits.cache
            as "embank_hits" { region: "cache" } "Rows found"
            from |c| c.hits_cache.get();
        /// Rows that an operation looked for and did not find, including those that it then
        /// inserted.
        missing: Counter Count in hits.missing
            as "embank_missing" "Rows looked for and not found"
            from |c| c.missing.get();
        /// Rows inserted.
        inserted: Counter Count in inserted
            as "embank_inserted" "Rows inserted"
            from |c| c.inserted.get();
        /// Rows changed. A row changes if it is updated, put, inserted by a get, or deleted.
        changed: Counter Count in operations.changed
            as "embank_changed" "Rows changed, inserted or deleted"
            from |c| c.changes();
        /// Gauge: the part of [`changed`](Self::changed) that came after the newest checkpoint, or
        /// after the opening if no checkpoint was taken since. Closing the store now would lose
        /// these changes. A row that changed twice counts twice. Rows of vocabularies count too. A
        /// change that another thread makes while a checkpoint begins may count here although the
        /// checkpoint contains it.
        changed_since_checkpoint: Gauge Count in changed_since_checkpoint
            as "embank_changed_since_checkpoint" "Changes of rows since the newest checkpoint";
        /// Rows deleted.
        deleted: Counter Count in operations.deleted
            as "embank_deleted" "Rows deleted"
            from |c| c.deleted.get();
        /// Records appended to the log, including copies.
        records_appended: Counter Count in records_appended
            as "embank_records" "Records appended"
            from |c| c.records_appended.get();
        /// Records appended because an operation used a row that was in the read-only region or on
        /// disk.
        copied_to_tail: Counter Count in copied_to_tail
            as "embank_copied" "Records copied to the tail"
            from |c| c.copied_to_tail.get();
        /// Rows copied to the log's tail before their page left memory, because they are used
        /// often.
        retained: Counter Count in retained
            as "embank_retained" "Rows kept in memory because they are used often"
            from |c| c.retained.get();
        /// Rows that lookahead (`promote`) brought into mutable memory before their use.
        promoted: Counter Count
            as "embank_promoted_rows" { fate: "all" } "Rows brought into memory before their use"
            from |c| c.promoted.get();
        /// Promoted rows that a batch then used, without a read from disk.
        promoted_used: Counter Count
            as "embank_promoted_rows" { fate: "used" } "Rows brought into memory before their use"
            from |c| c.promoted_used.get();
        /// Promoted rows that left memory before any batch used them.
        promoted_wasted: Counter Count
            as "embank_promoted_rows" { fate: "wasted" } "Rows brought into memory before their use"
            from |c| c.promoted_wasted.get();
        /// Rows that another operation brought into mutable memory while `promote` was reading
        /// them.
        overtaken: Counter Count
            as "embank_promoted_rows" { fate: "overtaken" } "Rows brought into memory before their use"
            from |c| c.overtaken.get();
        /// Read requests to the device. One request may read several rows that lie close together.
        disk_reads: Counter Count in disk.reads
            as "embank_disk_reads" "Read requests to the device"
            from |c| c.disk_reads.get();
        /// Rows that needed no read request of their own, because the request for another row read
        /// them too.
        disk_reads_joined: Counter Count in disk.reads_joined
            as "embank_disk_reads_joined" "Rows on disk that came with the read of another row"
            from |c| c.disk_reads_joined.get();
        /// Gauge: the most reads that one batch had in flight at the same time.
        disk_queue_depth_max: Gauge Count in disk.queue_depth_max
            as "embank_disk_queue_depth_max" "The most reads that one batch had in flight"
            from |c| c.disk_queue_depth_max.get();
        /// Bytes read from the device. The reads of merges of the cold tier do not count.
        disk_read_bytes: Counter Bytes in disk.read_bytes
            as "embank_disk_read_bytes" "Bytes read"
            from |c| c.disk_read_bytes.get();
        /// Bytes written to the device: the log's pages, and the parts of the cold tier.
        disk_write_bytes: Counter Bytes in disk.write_bytes
            as "embank_disk_write_bytes" "Bytes written"
            from |c| c.disk_write_bytes.get();
        /// Gauge: rows in all tables.
        live_rows: Gauge Count in space.live_rows
            as "embank_live_rows" "Rows in all tables";
        /// Gauge: bytes of the records of all rows, including headers.
        live_bytes: Gauge Bytes in space.live_bytes
            as "embank_live_bytes" "Bytes of the records of all rows";
        /// Gauge: bytes of log on disk. In a bank with two tiers, pages count that were never
        /// written, because their rows went to the cold tier from memory. They take no space.
        log_disk_bytes: Gauge Bytes in space.log_disk_bytes
            as "embank_log_disk_bytes" "Bytes of log on disk";
        /// Gauge: bytes of log on disk that the present state does not need, and that kept
        /// checkpoints, readers of checkpoints, or scans still need.
        log_held_bytes: Gauge Bytes in space.log_held_bytes
            as "embank_log_held_bytes" "Bytes of log held for checkpoints and scans";
        /// Bytes of log that compaction has read.
        compacted_bytes: Counter Bytes in compaction.compacted_bytes
            as "embank_compacted_bytes" "Bytes of log that compaction has read"
            from |c| c.compacted_bytes.get();
        /// Bytes of records that compaction copied to the log's tail.
        compaction_copied_bytes: Counter Bytes in compaction.copied_bytes
            as "embank_compaction_copied_bytes" "Bytes of rows that compaction copied to the tail"
            from |c| c.compaction_copied_bytes.get();
        /// Time that compaction worked, in microseconds. Time in which it waited for work or for
        /// the throttle does not count.
        compaction_us: Counter Microseconds in compaction.us
            as "embank_compaction_seconds" "Time that compaction worked"
            from |c| c.compaction_us.get();
        /// Gauge: 2 if rows leave the log for the cold tier, or if the bank has a cold tier. Else
        /// 1.
        tiers: Gauge Count in cold.tiers
            as "embank_tiers" "Tiers of the bank: 1, or 2 with a cold tier";
        /// Gauge: row versions in the cold tier. Tombstones, and versions that a newer version
        /// supersedes, count until a merge into the base removes them.
        cold_versions: Gauge Count in cold.versions
            as "embank_cold_versions" "Row versions in the cold tier";
        /// Gauge: parts of the cold tier. A part is a file of sorted rows.
        cold_parts: Gauge Count in cold.parts
            as "embank_cold_parts" "Parts (files) of the cold tier";
        /// Gauge: runs of the cold tier. A run has the rows that left the log at one time, in one
        /// part or several. Runs are merged into the base, the oldest rows of the cold tier.
        cold_runs: Gauge Count in cold.runs
            as "embank_cold_runs" "Runs of the cold tier";
        /// Gauge: bytes of the parts on disk, also of those that only kept checkpoints or scans
        /// need.
        cold_disk_bytes: Gauge Bytes in cold.disk_bytes
            as "embank_cold_disk_bytes" "Bytes of the cold tier's parts on disk";
        /// Gauge: bytes of the base of the cold tier.
        cold_base_bytes: Gauge Bytes in cold.base_bytes
            as "embank_cold_base_bytes" "Bytes of the base of the cold tier";
        /// Gauge: bytes of runs that are not merged into the base yet.
        cold_run_bytes: Gauge Bytes in cold.run_bytes
            as "embank_cold_run_bytes" "Bytes of runs that the base lacks";
        /// Gauge: bytes of runs above which merges into the base are due. 0 in a bank with one tier
        /// and in a read-only store.
        cold_run_limit_bytes: Gauge Bytes in cold.run_limit_bytes
            as "embank_cold_run_limit_bytes" "Bytes of runs above which merges are due";
        /// Gauge: length of the log, in bytes, above which rows leave it for the cold tier. 0 in a
        /// bank with one tier and in a read-only store.
        cold_log_limit_bytes: Gauge Bytes in cold.log_limit_bytes
            as "embank_cold_log_limit_bytes" "Length of the log above which rows leave it";
        /// Gauge: the largest size of the runs as a part of the base's, in thousandths: 400 where
        /// the memory allows, at least 50. With shorter runs, merges write more.
        cold_run_share_per_mille: Gauge Count in cold.run_share_per_mille
            as "embank_cold_run_share_per_mille" "Largest size of the runs as a part of the base's, in thousandths";
        /// Gauge: columns of the filters of new runs, at most 9. With c columns, a lookup reads one
        /// block in 2^c for nothing, for each run that does not have its key.
        cold_filter_columns: Gauge Count in cold.filter_columns
            as "embank_cold_filter_columns" "Columns of the filters of new runs";
        /// Gauge: blocks of new base parts for each fence in memory. A lookup reads that number of
        /// blocks together.
        cold_fence_stride: Gauge Count in cold.fence_stride
            as "embank_cold_fence_stride" "Blocks of new base parts for each fence in memory";
        /// Blocks of the cold tier that lookups read, one for each key and block.
        cold_blocks_read: Counter Count in cold.blocks_read
            as "embank_cold_blocks_read" "Blocks of the cold tier that lookups read"
            from |c| c.cold_blocks_read.get();
        /// Blocks of the cold tier that a lookup read although they do not have the row: a filter
        /// or a fence was wrong, or the bank does not have the row.
        cold_false_reads: Counter Count in cold.false_reads
            as "embank_cold_false_reads" "Blocks that a lookup read and that do not have its row"
            from |c| c.cold_false_reads.get();
        /// Rows and tombstones that left the log for the cold tier.
        spilled_rows: Counter Count in cold.spilled_rows
            as "embank_spilled_rows" "Rows that left the log for the cold tier"
            from |c| c.spilled_rows.get();
        /// Bytes of the runs that rows from the log were written to.
        spilled_bytes: Counter Bytes in cold.spilled_bytes
            as "embank_spilled_bytes" "Bytes of the runs that rows from the log were written to"
            from |c| c.spilled_bytes.get();
        /// Rows that left the log without a write, because the cold tier has an equal version.
        spilled_clean_rows: Counter Count in cold.spilled_clean_rows
            as "embank_spilled_clean_rows" "Rows that left the log without a write"
            from |c| c.spilled_clean_rows.get();
        /// Rows and tombstones that merges of the cold tier have written.
        merged_rows: Counter Count in cold.merged_rows
            as "embank_merged_rows" "Rows that merges of the cold tier have written"
            from |c| c.merged_rows.get();
        /// Bytes of the parts that merges of the cold tier have written.
        merged_bytes: Counter Bytes in cold.merged_bytes
            as "embank_merged_bytes" "Bytes of parts that merges of the cold tier have written"
            from |c| c.merged_bytes.get();
        /// Bytes of log freed on the file system.
        freed_bytes: Counter Bytes in space.freed_bytes
            as "embank_freed_bytes" "Bytes of log freed on the file system"
            from |c| c.freed_bytes.get();
        /// Segment files removed.
        segments_freed: Counter Count in space.segments_freed
            as "embank_freed_segments" "Segment files removed"
            from |c| c.segments_freed.get();
        /// Times that a batch waited for memory for the log's next page.
        page_waits: Counter Count in stalls.page_waits
            as "embank_stalls" { cause: "page" } "Times that batches waited"
            from |c| c.page_waits.count();
        /// Times that a batch waited for compaction to free disk space.
        compaction_waits: Counter Count in stalls.compaction_waits
            as "embank_stalls" { cause: "compaction" } "Times that batches waited"
            from |c| c.compaction_waits.count();
        /// Times that a batch split buckets of the index after its inserts.
        growth_steps: Counter Count in stalls.growth_steps
            as "embank_stalls" { cause: "growth" } "Times that batches waited"
            from |c| c.growth_steps.count();
        /// Checkpoints taken.
        checkpoints: Counter Count in checkpoints
            as "embank_stalls" { cause: "checkpoint" } "Times that batches waited"
            from |c| c.checkpoints.get();
        /// Total time that batches waited for memory for the log's next page, in microseconds.
        page_waits_us: Counter Microseconds in stalls.page_waits_us
            as "embank_stalls_seconds" { cause: "page" } "Total time that batches waited"
            from |c| c.page_waits.total_us();
        /// Total time that batches waited for compaction to free disk space, in microseconds.
        compaction_waits_us: Counter Microseconds in stalls.compaction_waits_us
            as "embank_stalls_seconds" { cause: "compaction" } "Total time that batches waited"
            from |c| c.compaction_waits.total_us();
        /// Total time that batches split buckets of the index after their inserts, in microseconds.
        growth_steps_us: Counter Microseconds in stalls.growth_steps_us
            as "embank_stalls_seconds" { cause: "growth" } "Total time that batches waited"
            from |c| c.growth_steps.total_us();
        /// Total time that checkpoints paused batches, in microseconds.
        checkpoint_pauses_us: Counter Microseconds in stalls.checkpoint_pauses_us
            as "embank_stalls_seconds" { cause: "checkpoint" } "Total time that batches waited"
            from |c| c.checkpoint_pauses.total_us();
        /// The longest wait of a batch for memory for the log's next page, in microseconds.
        page_waits_us_max: Gauge Microseconds in stalls.page_waits_us_max
            as "embank_stall_longest_seconds" { cause: "page" } "Longest time that a batch waited"
            from |c| c.page_waits.longest_us();
        /// The longest wait of a batch for compaction to free disk space, in microseconds.
        compaction_waits_us_max: Gauge Microseconds in stalls.compaction_waits_us_max
            as "embank_stall_longest_seconds" { cause: "compaction" } "Longest time that a batch waited"
            from |c| c.compaction_waits.longest_us();
        /// The longest time that one batch split buckets of the index, in microseconds.
        growth_steps_us_max: Gauge Microseconds in stalls.growth_steps_us_max
            as "embank_stall_longest_seconds" { cause: "growth" } "Longest time that a batch waited"
            from |c| c.growth_steps.longest_us();
        /// The most processor time that one batch took to split buckets of the index, in
        /// microseconds. Time in which the thread did not run does not count. Measured only for
        /// batches that insert 64 rows or more. For a smaller batch, reading the processor time
        /// from the system costs more than the splits.
        growth_steps_cpu_us_max: Gauge Microseconds in stalls.growth_steps_cpu_us_max
            as "embank_stall_longest_seconds" { cause: "growth (processor time)" } "Longest time that a batch waited"
            from |c| c.growth_steps_cpu_us_max.get();
        /// The longest pause of batches by a checkpoint, in microseconds.
        checkpoint_pauses_us_max: Gauge Microseconds in stalls.checkpoint_pauses_us_max
            as "embank_stall_longest_seconds" { cause: "checkpoint" } "Longest time that a batch waited"
            from |c| c.checkpoint_pauses.longest_us();
        /// Gauge: duration of the last checkpoint, in microseconds.
        last_checkpoint_us: Gauge Microseconds in last_checkpoint_us
            as "embank_last_checkpoint_seconds" "Duration of the last checkpoint"
            from |c| c.last_checkpoint_us.get();
        /// Gauge: time that the last checkpoint paused batches, in microseconds.
        last_checkpoint_pause_us: Gauge Microseconds in last_checkpoint_pause_us
            as "embank_last_checkpoint_pause_seconds" "Time that the last checkpoint paused batches"
            from |c| c.last_checkpoint_pause_us.get();
        /// Gauge: the number of the newest checkpoint, which may have been taken before this
        /// opening. 0 if there is no checkpoint, or if the store is open read-only.
        newest_checkpoint: Gauge Count in newest_checkpoint
            as "embank_newest_checkpoint" "The newest checkpoint's number"
            from |c| c.newest_checkpoint.get();
        /// Gauge: the memory budget, in bytes.
        memory_budget_bytes: Gauge Bytes
            as "embank_memory_budget_bytes" "The store's memory budget";
        /// Gauge: memory of the log's frames, in bytes.
        memory_frames_bytes: Gauge Bytes in memory.frames_bytes
            as "embank_memory_bytes" { part: "frames" } "Memory in use";
        /// Gauge: memory of the index, in bytes.
        memory_index_bytes: Gauge Bytes in memory.index_bytes
            as "embank_memory_bytes" { part: "index" } "Memory in use";
        /// Gauge: memory of the read cache, in bytes.
        memory_cache_bytes: Gauge Bytes in memory.cache_bytes
            as "embank_memory_bytes" { part: "cache" } "Memory in use";
        /// Gauge: memory of the read and write buffers, in bytes.
        memory_buffers_bytes: Gauge Bytes in memory.buffers_bytes
            as "embank_memory_bytes" { part: "buffers" } "Memory in use";
        /// Gauge: memory of the cold tier, in bytes: the fences and filters of its parts.
        memory_cold_bytes: Gauge Bytes in memory.cold_bytes
            as "embank_memory_bytes" { part: "cold" } "Memory in use";
        /// Gauge: memory lent to scans, to prefetches, and to the spills and merges of the cold
        /// tier, in bytes.
        memory_lent_bytes: Gauge Bytes in memory.lent_bytes
            as "embank_memory_bytes" { part: "lent" } "Memory in use";
        /// Gauge: index slots in use.
        index_entries: Gauge Count in index_entries
            as "embank_index_entries" "Index slots in use";
        /// Gauge: address where the log begins, in bytes.
        log_begin: Gauge Bytes in log.begin
            as "embank_log_address" { boundary: "begin" } "Boundaries of the log, in bytes";
        /// Gauge: address where the log's pages in memory begin, in bytes. Lower addresses are only
        /// on disk.
        log_head: Gauge Bytes in log.head
            as "embank_log_address" { boundary: "head" } "Boundaries of the log, in bytes";
        /// Gauge: address where the mutable region begins, in bytes.
        log_read_only: Gauge Bytes in log.read_only
            as "embank_log_address" { boundary: "read_only" } "Boundaries of the log, in bytes";
        /// Gauge: address where the log ends, in bytes.
        log_tail: Gauge Bytes in log.tail
            as "embank_log_address" { boundary: "tail" } "Boundaries of the log, in bytes";
        /// Gauge: bytes of log that can be appended before the bank's addresses are used up. At 0
        /// the bank refuses all writes. A new bank has 512 TiB of addresses, or 4,294,967,294 pages
        /// if that is less.
        log_address_left_bytes: Gauge Bytes in log.address_left_bytes
            as "embank_log_address_left_bytes" "Bytes of log that can be appended before the bank's addresses are used up";
        /// The size of a log page, in bytes.
        page_size_bytes: Gauge Bytes in log.page_size_bytes
            as "embank_page_bytes" "Size of a log page";
    } and {
        /// The device that reads and writes files: `"io_uring"`, `"threads"` or `"memory"`.
        pub device: &'static str,
        /// Why the preferred device, or direct I/O, is not in use. Empty if both are in use.
        pub device_notes: Vec<String>,
        /// Why compaction stopped. `None` if it has not stopped.
        /// [`Store::compact`](crate::Store::compact) tries to compact again.
        pub compaction_stopped: Option<String>,
        /// Files of removed or unfinished checkpoints and of the log that could not be removed.
        /// Each entry has the path and the reason. Each new checkpoint tries to remove these files
        /// again. Empty if every removal has succeeded.
        pub not_removed: Vec<String>,
        /// A warning that the bank will run out of log addresses. `None` while more than a
        /// sixteenth of the addresses is left.
        pub log_address_warning: Option<String>,
    }
}

impl StoreStats {
    /// Bytes written to the device for each row changed since the bank was opened. 0 if no row was
    /// changed.
    ///
    /// A row that changes often while it is in mutable memory is written to disk once. The result
    /// may therefore be far below the length of a record. Changes that are not written yet count as
    /// changed rows, and add no bytes.
    #[must_use]
    pub fn written_bytes_per_changed_row(&self) -> f64 {
        if self.changed == 0 { 0.0 } else { self.disk_write_bytes as f64 / self.changed as f64 }
    }

    /// Bytes of log and of the cold tier's parts on disk, divided by the bytes of the records of
    /// all rows. Rows that are only in memory count too. 0 if nothing is on disk. Infinite if
    /// something is on disk and the store has no row.
    #[must_use]
    pub fn space_amplification(&self) -> f64 {
        let disk_bytes = self.log_disk_bytes + self.cold_disk_bytes;
        if disk_bytes == 0 { 0.0 } else { disk_bytes as f64 / self.live_bytes as f64 }
    }

    /// How far spills and merges of a bank with two tiers are behind: the larger of the two ratios
    /// of the log's length and of the runs' bytes to their limits. At 1.5 a batch that begins a
    /// page of the log waits for a spill or a part of a merge. 0 in a bank with one tier.
    #[must_use]
    pub fn cold_debt(&self) -> f64 {
        if self.cold_log_limit_bytes == 0 {
            return 0.0;
        }
        let of = |bytes: u64, limit_bytes: u64| bytes as f64 / limit_bytes.max(1) as f64;
        let log = of(self.log_tail.saturating_sub(self.log_begin), self.cold_log_limit_bytes);
        log.max(of(self.cold_run_bytes, self.cold_run_limit_bytes))
    }

    /// Bytes of log that compaction reads in each second of its work.
    #[must_use]
    pub fn compaction_bytes_per_s(&self) -> f64 {
        self.compacted_bytes as f64 * 1e6 / self.compaction_us.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_changed_nothing_has_written_nothing_a_row() {
        assert_eq!(StoreStats::default().written_bytes_per_changed_row(), 0.0);
    }
}
