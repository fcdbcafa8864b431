//! What a program sets when it opens a store.

use crate::device::DeviceChoice;
use crate::engine::compaction::options::CompactionOptions;
use crate::memory::control_group::default_memory_budget_bytes;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Memory for everything: log frames, index, buffers. Bytes; at least
    /// [`BUDGET_BYTES_MIN`](crate::BUDGET_BYTES_MIN). Default: 1 GiB, or a quarter of the memory
    /// limit of the process's control group, if that is less
    /// ([`default_memory_budget_bytes`]). A budget above that limit gets the process
    /// killed: see [`memory_budget_warning`](crate::memory_budget_warning).
    pub memory_budget_bytes: u64,
    /// Default: io_uring where the kernel grants it.
    pub device: DeviceChoice,
    /// Checkpoints that stay on disk, the newest ones; at least 1. Default 2.
    pub checkpoints_kept: usize,
    /// Size of a log page for a new bank: a power of two from 8 KiB to 4 MiB. Default: follows
    /// from the budget. A bank keeps the page size that it was created with.
    pub page_size_bytes: Option<u32>,
    /// Size of the log's files for a new bank: a power of two from the page size to 64 GiB.
    /// Default: 256 MiB. Space is given back in these units where the file system can't punch
    /// holes, and copies share whole files. A bank keeps the size that it was created with.
    pub segment_size_bytes: Option<u64>,
    /// Whether a bank is made if there is no bank. Default true. With false, a mistyped path and a
    /// file system that is not mounted are errors.
    pub create: bool,
    /// How space is given back. Default: only when [`Store::compact`](crate::Store::compact) is
    /// called; with `background`, unthrottled, the log stays below 1.5 times its rows, beside
    /// what kept checkpoints hold.
    pub compaction: CompactionOptions,
    /// Most bytes of the log on disk; `None` sets no limit. Default: `None`. At the quota, writers
    /// wait for compaction as far as that can help, then fail with `QuotaExceeded`. Deletions,
    /// peeks and the ends of leases still work; the ends of leases may exceed the quota.
    /// Checkpoints' index images are not counted.
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
