use bytemuck::{Pod, Zeroable};
use embank::{BankStats, TableStats};

/// What a bank has done since it was opened. docs/python.md and docs/staleness.md say more of each.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_bank_stats {
    /// sizeof(embank_bank_stats), as it was passed.
    pub size: usize,
    /// The memory budget, in bytes.
    pub memory_budget_bytes: u64,
    /// What of it is taken, in bytes.
    pub memory_used_bytes: u64,
    /// Keys found in the mutable part of memory.
    pub hits_mutable: u64,
    /// Keys found in the read-only part of memory.
    pub hits_read_only: u64,
    /// Keys on disk of which memory held a copy.
    pub hits_cache: u64,
    /// Keys found on disk.
    pub hits_disk: u64,
    /// Keys without a row, those included that were then made.
    pub missing: u64,
    /// Rows made.
    pub inserted: u64,
    /// Reads of the disk.
    pub disk_reads: u64,
    /// Bytes read.
    pub disk_read_bytes: u64,
    /// Bytes written.
    pub disk_write_bytes: u64,
    /// Gauge: rows there are.
    pub live_rows: u64,
    /// Gauge: bytes of log that they take.
    pub live_bytes: u64,
    /// Gauge: bytes of log on disk.
    pub log_disk_bytes: u64,
    /// Gets that had to wait for a staleness bound.
    pub waits: u64,
    /// How long they waited together, in microseconds.
    pub wait_us: u64,
    /// Gets that gave up waiting.
    pub timeouts: u64,
    /// Leases that were freed or expired and whose counts could not all be given back.
    pub release_failures: u64,
    /// Leases that grew too old.
    pub leases_expired: u64,
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// How long the last one took, in microseconds.
    pub last_checkpoint_us: u64,
    /// Keys asked to be looked ahead for.
    pub lookahead_requested: u64,
    /// Those in memory already, or in no table.
    pub lookahead_resident: u64,
    /// Those put in the queue.
    pub lookahead_queued: u64,
    /// Those pending already.
    pub lookahead_merged: u64,
    /// Those turned away by a full queue.
    pub lookahead_dropped: u64,
    /// Brought into mutable memory.
    pub lookahead_moved: u64,
    /// Moved, then used from memory.
    pub lookahead_on_time: u64,
    /// In memory, and copied to its mutable part again because they were about to leave it unused.
    pub lookahead_kept: u64,
    /// In mutable memory before their turn came.
    pub lookahead_late: u64,
    /// Moved, and evicted without a use.
    pub lookahead_wasted: u64,
    /// Given up before their turn.
    pub lookahead_cancelled: u64,
    /// Left on disk because reading failed.
    pub lookahead_failed: u64,
    /// Gauge: waiting for their turn or being read.
    pub lookahead_pending: u64,
    /// Gauge: the most that may be pending.
    pub lookahead_capacity: u64,
    /// Gauge: the newest checkpoint's number; 0 if there is none, or if the bank is open to read only.
    pub newest_checkpoint: u64,
    /// Gauge: changes of rows since that checkpoint: what embank_bank_close loses if no other handle of the bank is left.
    /// A row that changed twice counts twice, and rows of vocabularies count too.
    pub changed_since_checkpoint: u64,
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
    /// Batches put.
    pub puts: u64,
    /// Distinct rows put.
    pub put_rows: u64,
    /// Batches of gradients applied.
    pub applies: u64,
    /// Distinct rows that gradients were applied to.
    pub apply_rows: u64,
    /// Rows deleted.
    pub deleted_rows: u64,
    /// Rows evicted.
    pub evicted_rows: u64,
    /// Rows that had to be read from disk.
    pub disk_reads: u64,
    /// Gets that had to wait for the staleness bound.
    pub waits: u64,
    /// How long they waited together, in microseconds.
    pub wait_us: u64,
    /// Gets that gave up waiting.
    pub timeouts: u64,
    /// Leases that were freed or expired and whose counts could not all be given back.
    pub release_failures: u64,
    /// Leases that grew too old.
    pub leases_expired: u64,
    /// Rows that gets did not make because of the table's admission.
    pub not_admitted_rows: u64,
    /// Steps of rows whose optimizer state is at the largest value that its dtype holds.
    pub saturated_rows: u64,
}
impl embank_bank_stats {
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
        }
    }
}
impl embank_table_stats {
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
