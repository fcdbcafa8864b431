//! The options with which a program opens a bank.

use std::time::Duration;

use crate::pool::default_threads;
use embank_kv::{CompactionOptions, DeviceChoice, default_memory_budget_bytes};

/// Longest wait of a Get for a staleness bound: the default of [`BankOptions::wait_timeout`], and
/// of the bindings.
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
    /// Memory in bytes for all that the bank keeps: rows, index, buffers and the lookahead queue.
    /// The slices of callers are not part of it. Default: 1 GiB, or a quarter of the memory limit
    /// of the process's control group if that is less. If the budget is above that limit, opening
    /// the bank warns through the `log` crate and in
    /// [`BankStats::memory_budget_warning`](crate::BankStats::memory_budget_warning).
    pub memory_budget_bytes: u64,
    /// Whether [`Bank::open`](crate::Bank::open) makes a bank if there is none at the path.
    /// Default: true. With false, a mistyped path, or a file system that is not mounted, is an
    /// error; otherwise training would begin again without notice.
    pub create: bool,
    /// Default: `io_uring` if the system allows it, else a pool of threads.
    pub device: DeviceChoice,
    /// Number of the newest checkpoints that are kept. Default: 2.
    pub checkpoints_kept: usize,
    /// Most keys that Lookahead may have pending; 0 turns it off. Default: `None`, the number for
    /// which 1/32 of the budget has room (some 20,000 keys for each MiB of that share).
    pub lookahead_queue_keys: Option<usize>,
    /// Longest wait of a Get for a staleness bound. Default: 60 s ([`WAIT_TIMEOUT_DEFAULT`]).
    pub wait_timeout: Duration,
    /// Age at which a lease may expire, longer than zero. An older lease still counts, and can be
    /// applied, until the next Get of its table, or a Get that waits for its rows, declares it
    /// expired. Its counts are then given back, and later updates through it fail with
    /// [`LeaseExpired`](crate::Error::LeaseExpired) and change nothing. Several times the slowest
    /// step is a good value. Default: `None`, leases never expire: no slow step loses its update,
    /// and a lease that is never ended blocks its rows.
    pub lease_timeout: Option<Duration>,
    /// How space on disk is given back. Default: only by [`Bank::compact`](crate::Bank::compact).
    /// With `background` and no throttle, the log stays below 1.5 times its rows, without the space
    /// that kept checkpoints hold. The copied rows pass through mutable memory and push out rows
    /// that Lookahead brought. If the index leaves little memory for rows, training can run at half
    /// its speed. Switch it on for runs whose log would outgrow the disk.
    pub compaction: CompactionOptions,
    /// Most bytes of the log on disk; at least 16 of the bank's pages. At the quota, calls that
    /// write wait for compaction as far as it can help, then fail with
    /// [`QuotaExceeded`](crate::Error::QuotaExceeded). Peeks, deletions, drops and checkpoints
    /// still work. Leases can be applied, put or dropped, beyond the quota if need be. Default:
    /// `None`, no quota.
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
