//! What a program sets when it opens a bank.

use std::time::Duration;

use crate::pool::default_threads;
use embank_kv::{CompactionOptions, DeviceChoice, default_memory_budget_bytes};

/// How long a Get waits for a staleness bound where nothing else is set: the default of
/// [`BankOptions::wait_timeout`], and of the bindings.
pub const WAIT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// How to open a bank.
///
/// # Examples
/// ```
/// use embank::BankOptions;
///
/// let options = BankOptions { memory_budget_bytes: 64 << 20, ..Default::default() };
/// assert_eq!(options.checkpoints_kept, 2);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BankOptions {
    /// Memory for everything the bank keeps: rows, index, buffers and the lookahead queue, in
    /// bytes. Default: 1 GiB, or a quarter of the memory limit of the process's control group, if
    /// that is less. If the budget is above that limit, opening the bank warns through the `log`
    /// crate and in [`BankStats::memory_budget_warning`](crate::BankStats::memory_budget_warning).
    /// The slices that callers pass in and get filled are not part of it.
    pub memory_budget_bytes: u64,
    /// Whether [`Bank::open`](crate::Bank::open) makes a bank if there is no bank. Default: true.
    /// With false, a mistyped path, or a file system that is not mounted, is an error; otherwise
    /// training would begin again without notice.
    pub create: bool,
    /// Default: `io_uring` where the system grants it, else a pool of threads.
    pub device: DeviceChoice,
    /// How many of the newest checkpoints stay. Default: 2.
    pub checkpoints_kept: usize,
    /// The most keys that looking ahead may have pending; 0 turns it off. Default: `None`, what
    /// 1/32 of the budget holds (some 20,000 keys per MiB of that share).
    pub lookahead_queue_keys: Option<usize>,
    /// How long a Get waits for a staleness bound before it fails. Default: 60 s
    /// ([`WAIT_TIMEOUT_DEFAULT`]).
    pub wait_timeout: Duration,
    /// How old a lease may become before it expires, longer than zero. A lease that is older still
    /// counts, and can be applied, until the next Get of its table, or a Get that waits for
    /// its rows, declares it expired: its counts are given back, and what its owner tries to
    /// do with it fails with [`LeaseExpired`](crate::Error::LeaseExpired) and changes nothing.
    /// Several times what the slowest step takes is a good value. Default: `None`, leases
    /// never expire: no update is lost because a step was slow, and a lease that
    /// is never ended blocks its rows.
    pub lease_timeout: Option<Duration>,
    /// How space on disk is given back. Default: only when [`Bank::compact`](crate::Bank::compact)
    /// is called; with `background`, unthrottled, the log stays below 1.5 times its rows,
    /// beside what kept checkpoints hold. Then what is copied passes through mutable memory
    /// and pushes out what Lookahead brought: where little memory is left beside the index,
    /// training ran at half its speed. For runs whose log would outgrow the disk, switch it
    /// on.
    pub compaction: CompactionOptions,
    /// The most that the log may take on disk, in bytes; at least 16 of the bank's pages. At the
    /// quota, calls that write wait for compaction as far as that can help, then fail with
    /// [`QuotaExceeded`](crate::Error::QuotaExceeded); peeks, deletions, drops and checkpoints go
    /// on, and leases that are out can be applied, put or dropped, if need be beyond the
    /// quota. Default: `None`, no quota.
    pub disk_quota_bytes: Option<u64>,
    /// Threads that share a large batch of a Get, a put, a peek, gradients or bags, the calling
    /// one among them. A batch of 2,048 keys or more is shared; smaller batches stay on the
    /// calling thread, and so do those of other threads while a batch is shared. 1 shares
    /// nothing. Rows, clocks and errors are those of one thread, bit for bit. Default: the
    /// processors that the process may use, at most 16. At most 1,024. A batch that is called in a
    /// thread of rayon is not shared, because that thread might run another batch while it waits.
    pub threads: usize,
}

impl Default for BankOptions {
    fn default() -> Self {
        Self {
            memory_budget_bytes: default_memory_budget_bytes(),
            create: true,
            device: DeviceChoice::Auto,
            checkpoints_kept: 2,
            lookahead_queue_keys: None,
            wait_timeout: WAIT_TIMEOUT_DEFAULT,
            lease_timeout: None,
            compaction: CompactionOptions::default(),
            disk_quota_bytes: None,
            threads: default_threads(),
        }
    }
}
