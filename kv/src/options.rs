//! The settings with which a program opens a store.

use crate::device::DeviceChoice;
use crate::engine::compaction::options::CompactionOptions;
use crate::memory::control_group::default_memory_budget_bytes;

/// The settings with which a store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Memory for log frames, index, buffers and all else, in bytes. The minimum is
    /// [`BUDGET_BYTES_MIN`](crate::BUDGET_BYTES_MIN). Default: 1 GiB, or a quarter of the memory
    /// limit of the process's control group if that is less ([`default_memory_budget_bytes`]). If
    /// the budget exceeds that limit, the system kills the process (see
    /// [`memory_budget_warning`](crate::memory_budget_warning)).
    pub memory_budget_bytes: u64,
    /// The device that reads and writes files. Default: io_uring if the kernel allows it.
    pub device: DeviceChoice,
    /// Number of newest checkpoints that stay on disk, at least 1. Default: 2.
    pub checkpoints_kept: usize,
    /// Size of a log page for a new bank: a power of two from 8 KiB to 4 MiB. Default: derived from
    /// the budget. A bank keeps the page size that it was created with.
    pub page_size_bytes: Option<u32>,
    /// Size of the log's files for a new bank: a power of two from the page size to 64 GiB.
    /// Default: 256 MiB. Copies share whole files. If the file system can't punch holes, disk space
    /// is freed in whole files. A bank keeps the size that it was created with.
    pub segment_size_bytes: Option<u64>,
    /// True if opening a missing bank creates it. Default: true. With false, a mistyped path or a
    /// file system that is not mounted is an error.
    pub create: bool,
    /// How disk space is freed. Default: only when [`Store::compact`](crate::Store::compact) is
    /// called. With unthrottled `background` compaction, the log stays below 1.5 times its rows,
    /// plus the log that kept checkpoints hold.
    pub compaction: CompactionOptions,
    /// Largest size of the log on disk in bytes. `None` sets no limit. Default: `None`. At the
    /// quota, writers wait while compaction can free space, then fail with `QuotaExceeded`.
    /// Deletions, peeks and the ends of leases still work. The ends of leases may exceed the quota.
    /// Index images of checkpoints are not counted.
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
            disk_quota_bytes: None,
        }
    }
}
