//! Counters: those that a training loop looks at as structs, and all of them as text.

use bytemuck::{Pod, Zeroable};

use crate::bank::{embank_bank, stats_of};
use crate::bytes::embank_bytes;
use crate::memory::HandlePlace;
use crate::sized::{self, Growing};
use crate::status::{call, embank_status};
use crate::table::{embank_table, table_of};

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

// SAFETY: `Pod`, and its size comes first.
unsafe impl Growing for embank_bank_stats {
    const NAME: &'static str = "embank_bank_stats";
    const FILLED_BY: &'static str = "embank_bank_get_stats";
    const SIZE_MIN: usize = 288;

    fn defaults() -> Self {
        Self::zeroed()
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

// SAFETY: `Pod`, and its size comes first.
unsafe impl Growing for embank_table_stats {
    const NAME: &'static str = "embank_table_stats";
    const FILLED_BY: &'static str = "embank_table_get_stats";
    const SIZE_MIN: usize = 136;

    fn defaults() -> Self {
        Self::zeroed()
    }
}

/// The bank's counters. `size` is sizeof(embank_bank_stats).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_get_stats(
    bank: *const embank_bank,
    stats: *mut embank_bank_stats,
    size: usize,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let now = stats_of(bank)?;
        let (store, ahead) = (&now.store, &now.lookahead);
        let found = embank_bank_stats {
            size,
            memory_budget_bytes: now.memory_budget_bytes,
            memory_used_bytes: store.memory_frames_bytes
                + store.memory_index_bytes
                + store.memory_cache_bytes
                + store.memory_buffers_bytes
                + ahead.memory_bytes,
            hits_mutable: store.hits_mutable,
            hits_read_only: store.hits_read_only,
            hits_cache: store.hits_cache,
            hits_disk: store.hits_disk,
            missing: store.missing,
            inserted: store.inserted,
            disk_reads: store.disk_reads,
            disk_read_bytes: store.disk_read_bytes,
            disk_write_bytes: store.disk_write_bytes,
            live_rows: store.live_rows,
            live_bytes: store.live_bytes,
            log_disk_bytes: store.log_disk_bytes,
            waits: now.waits,
            wait_us: now.wait_us,
            timeouts: now.timeouts,
            release_failures: now.release_failures,
            leases_expired: now.leases_expired,
            checkpoints: store.checkpoints,
            last_checkpoint_us: store.last_checkpoint_us,
            lookahead_requested: ahead.requested,
            lookahead_resident: ahead.resident,
            lookahead_queued: ahead.queued,
            lookahead_merged: ahead.merged,
            lookahead_dropped: ahead.dropped,
            lookahead_moved: ahead.moved,
            lookahead_on_time: ahead.on_time,
            lookahead_kept: ahead.kept,
            lookahead_late: ahead.late,
            lookahead_wasted: ahead.wasted,
            lookahead_cancelled: ahead.cancelled,
            lookahead_failed: ahead.failed,
            lookahead_pending: ahead.pending,
            lookahead_capacity: ahead.capacity,
            newest_checkpoint: store.newest_checkpoint,
            changed_since_checkpoint: store.changed_since_checkpoint,
        };
        sized::write(stats, size, &found)
    })
}

/// The table's counters. `size` is sizeof(embank_table_stats).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_stats(
    table: *const embank_table,
    stats: *mut embank_table_stats,
    size: usize,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let now = table_of(table)?.stats();
        let found = embank_table_stats {
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
        };
        sized::write(stats, size, &found)
    })
}

/// All numbers of the bank as text that Prometheus scrapes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_prometheus(
    bank: *const embank_bank,
    text: *mut *mut embank_bytes,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = HandlePlace::cleared("text", text)?;
        let stats = stats_of(bank)?;
        place.hand_over(embank_bytes::new(stats.to_prometheus().as_bytes()));
        Ok(())
    })
}
