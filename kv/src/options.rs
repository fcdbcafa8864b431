//! The settings with which a program opens a store.

use crate::device::DeviceChoice;
use crate::engine::space::options::{ColdTier, CompactionOptions};
use crate::memory::control_group::default_memory_budget_bytes;

/// The settings with which a store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Memory for the log's pages in memory, the index, the read cache and the buffers, in bytes.
    /// The minimum is [`BUDGET_BYTES_MIN`](crate::BUDGET_BYTES_MIN). Default: 1 GiB, or a quarter
    /// of the memory limit of the process's control group if that is less
    /// ([`default_memory_budget_bytes`]). If the budget exceeds the memory limit, the system kills
    /// the process before the budget is used up (see
    /// [`memory_budget_warning`](crate::memory_budget_warning)).
    pub memory_budget_bytes: u64,
    /// The device that reads and writes files. Default: io_uring if the kernel allows it.
    pub device: DeviceChoice,
    /// Number of newest checkpoints that stay on disk, at least 1. Default: 2. Older checkpoints
    /// are removed, except pinned checkpoints and checkpoints that a process reads.
    pub checkpoints_kept: usize,
    /// Size of a log page for a new bank, in bytes: a power of two from 8 KiB to 4 MiB. Default:
    /// derived from the memory budget. A bank keeps the page size that it was created with.
    pub page_size_bytes: Option<u32>,
    /// Size of the log's files for a new bank, in bytes: a power of two from the page size to 64
    /// GiB. Default: 256 MiB. A copy of the bank on the same file system shares whole files with
    /// the bank. If the file system can't free a part of a file (punch a hole), disk space is freed
    /// in whole files. A bank keeps the file size that it was created with.
    pub segment_size_bytes: Option<u64>,
    /// True if opening a bank that does not exist creates it. Default: true. If false, opening
    /// fails for a mistyped path or for a file system that is not mounted.
    pub create: bool,
    /// How disk space is freed. Default: only when [`Store::compact`](crate::Store::compact) is
    /// called. With `background` compaction, the default target and no throttle, the log has a
    /// limit. It stays below 1.5 times the size of the rows' records, plus the log that kept
    /// checkpoints hold.
    pub compaction: CompactionOptions,
    /// When rows leave the log for the cold tier. Default: [`ColdTier::Never`].
    pub cold_tier: ColdTier,
    /// Largest size on disk of the log and of the cold tier's files together, in bytes. `None` sets
    /// no limit. Default: `None`. At the quota, calls that write wait while compaction can free
    /// space. If compaction can't free space, these calls fail with `QuotaExceeded`. Deletions and
    /// peeks still work. Calls that end leases also work, and may exceed the quota. Index images of
    /// checkpoints do not count. Pages of the log count from the oldest kept checkpoint on, also
    /// those that were never written, because their rows went to the cold tier from memory.
    pub disk_quota_bytes: Option<u64>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            memory_budget_bytes: default_memory_budget_bytes(),
            device: DeviceChoice::Auto,
            checkpoints_kept: 2,
            page_size_bytes: None,
            segment_size_bytes: None,
            create: true,
            compaction: CompactionOptions::default(),
            cold_tier: ColdTier::default(),
            disk_quota_bytes: None,
        }
    }
}
