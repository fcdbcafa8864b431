//! What the store counts.

use crate::sync::{AtomicU64, Ordering};

/// A counter that only grows. Batches add once each, not once per key.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        if count != 0 {
            // Relaxed: counters order nothing.
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The live counters behind [`StoreStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits_mutable: Counter,
    pub(crate) hits_read_only: Counter,
    pub(crate) hits_disk: Counter,
    pub(crate) missing: Counter,
    pub(crate) inserted: Counter,
    pub(crate) records_appended: Counter,
    pub(crate) copied_to_tail: Counter,
    pub(crate) disk_reads: Counter,
    pub(crate) disk_read_bytes: Counter,
    pub(crate) disk_write_bytes: Counter,
    pub(crate) promoted: Counter,
    pub(crate) promoted_used: Counter,
    pub(crate) promoted_wasted: Counter,
    pub(crate) overtaken: Counter,
    pub(crate) page_waits: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) last_checkpoint_us: Counter,
    pub(crate) last_checkpoint_pause_us: Counter,
}

impl Counters {
    /// Whether rows that lookahead brought in may still wait for their first use.
    pub(crate) fn promoted_waiting(&self) -> bool {
        self.promoted.get() > self.promoted_used.get() + self.promoted_wasted.get()
    }
}

/// A snapshot of a store's counters and gauges. Counters count since the bank was opened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// The device in use: `"io_uring"`, `"threads"` or `"memory"`.
    pub device: &'static str,
    /// Why the preferred device or direct I/O is not in use; empty if it is.
    pub device_notes: Vec<String>,
    /// Rows found in the mutable region.
    pub hits_mutable: u64,
    /// Rows found in the read-only region.
    pub hits_read_only: u64,
    /// Rows found on disk.
    pub hits_disk: u64,
    /// Rows looked for and missing, those then inserted included.
    pub missing: u64,
    /// Rows inserted.
    pub inserted: u64,
    /// Records appended to the log, for whatever reason.
    pub records_appended: u64,
    /// Records appended because a row of the read-only region or of the disk was used.
    pub copied_to_tail: u64,
    /// Read requests to the device, after coalescing.
    pub disk_reads: u64,
    /// Bytes read from the device.
    pub disk_read_bytes: u64,
    /// Bytes written to the device.
    pub disk_write_bytes: u64,
    /// Rows brought into memory by `promote`.
    pub promoted: u64,
    /// Promoted rows that were then used from memory.
    pub promoted_used: u64,
    /// Promoted rows that left memory unused.
    pub promoted_wasted: u64,
    /// Rows that an operation had brought in before `promote` could.
    pub overtaken: u64,
    /// Times that a batch waited for a free frame.
    pub page_waits: u64,
    /// Gauge: the memory budget, in bytes.
    pub memory_budget_bytes: u64,
    /// Gauge: log frames in memory, in bytes.
    pub memory_frames_bytes: u64,
    /// Gauge: index, in bytes.
    pub memory_index_bytes: u64,
    /// Gauge: read and write buffers, in bytes.
    pub memory_buffers_bytes: u64,
    /// Gauge: index slots in use.
    pub index_entries: u64,
    /// Gauge: where the log begins, in bytes.
    pub log_begin: u64,
    /// Gauge: where the part in memory begins, in bytes.
    pub log_head: u64,
    /// Gauge: where the mutable region begins, in bytes.
    pub log_read_only: u64,
    /// Gauge: where the log ends, in bytes.
    pub log_tail: u64,
    /// The size of a log page, in bytes.
    pub page_size_bytes: u64,
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// Gauge: duration of the last checkpoint, in microseconds.
    pub last_checkpoint_us: u64,
    /// Gauge: how long the last checkpoint held batches, in microseconds.
    pub last_checkpoint_pause_us: u64,
}
