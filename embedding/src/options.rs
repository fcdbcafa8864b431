//! The options for opening a bank.

use std::time::Duration;

use crate::pool::default_threads;
use embank_kv::{ColdTier, CompactionOptions, DeviceChoice, default_memory_budget_bytes};

/// Default limit on a Get's wait for rows above the staleness bound. [`BankOptions::wait_timeout`]
/// and the bindings use it.
pub const WAIT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// Options for opening a bank.
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
    /// Memory in bytes for everything that the bank keeps: rows, index, buffers and the lookahead
    /// queue. The slices that callers pass are not included. Default: 1 GiB, or a quarter of the
    /// memory limit of the process's control group if that is less. If the budget exceeds that
    /// limit, opening the bank warns through the `log` crate and in
    /// [`BankStats::memory_budget_warning`](crate::BankStats::memory_budget_warning).
    pub memory_budget_bytes: u64,
    /// Whether [`Bank::open`](crate::Bank::open) makes a bank if none is at the path. Default:
    /// true. With false, a mistyped path or a file system that is not mounted is an error. With
    /// true, training would silently begin again.
    pub create: bool,
    /// How the bank reads and writes files. Default: `io_uring` if the system allows it, otherwise
    /// a pool of threads.
    pub device: DeviceChoice,
    /// Number of newest checkpoints to keep. Default: 2.
    pub checkpoints_kept: usize,
    /// Largest number of pending lookahead keys; 0 turns lookahead off. Default: `None`, as many as
    /// fit 1/32 of the budget (about 20,000 keys per MiB of that share), at most 790,000.
    pub lookahead_queue_keys: Option<usize>,
    /// Longest wait of a Get for rows above the staleness bound. A suspension of the process counts
    /// as 100 ms at most. Default: 60 s ([`WAIT_TIMEOUT_DEFAULT`]).
    pub wait_timeout: Duration,
    /// Age at which a lease may expire; must be above zero. An older lease stays valid until a Get
    /// of its table expires it: the next Get that begins, or a Get that waits for the lease's rows.
    /// The staleness clocks of its rows then no longer count the lease. Later updates through the
    /// lease fail with [`LeaseExpired`](crate::Error::LeaseExpired) and change nothing. A
    /// suspension of the process, and a time in which no thread calls a Get, count as 100 ms at
    /// most. Several times the slowest step is a good value. Default: `None`, leases never expire.
    /// Then no slow step loses its update, but a lease that never ends blocks its rows.
    pub lease_timeout: Option<Duration>,
    /// Options of compaction, which frees disk space. Default: only
    /// [`Bank::compact`](crate::Bank::compact) frees space. With `background` and no throttle, the
    /// log stays below 1.5 times the size of its current rows, not counting space that kept
    /// checkpoints hold. The rows that compaction copies pass through mutable memory and displace
    /// rows that lookahead brought in. If the index leaves little memory for rows, training may run
    /// at half speed. Turn `background` on for runs whose log would outgrow the disk. A
    /// `space_amplification_target` of 3 then costs training little (docs/memory.md, "Compaction").
    pub compaction: CompactionOptions,
    /// When rows move to the *cold tier*: files of sorted rows, which take about 1 byte of memory
    /// for each row, where a row of the log takes 15 bytes of index. With [`ColdTier::Auto`], they
    /// do if the index would take more than a quarter of the budget. A thread then moves rows and
    /// merges files, also without `background` compaction. A bank with a cold tier that is opened
    /// without `Auto` and without `background` compaction has no such thread: its log grows until
    /// [`Bank::compact`](crate::Bank::compact). So a resumed run needs `Auto` again. With `Auto`, a
    /// bank whose index does not fit the budget opens, too: the opening first moves all rows of the
    /// log. Default: [`ColdTier::Never`]. Programs older than format 7 can't open a bank with a
    /// cold tier (docs/memory.md, "One tier or two").
    pub cold_tier: ColdTier,
    /// Largest size on disk of the log and of the cold tier's files together, in bytes; at least 16
    /// of the bank's pages. At the quota, calls that write wait while compaction can make room. If
    /// it can't, they fail with [`QuotaExceeded`](crate::StoreError::QuotaExceeded). Peeks,
    /// deletions, drops and checkpoints still work. Leases can still be applied, put or dropped,
    /// beyond the quota if necessary. Default: `None`, no quota.
    pub disk_quota_bytes: Option<u64>,
    /// Number of threads that share a large batch of a Get, a put, a peek, gradients or bags,
    /// including the calling thread. Batches of 2,048 keys or more are shared. Smaller batches stay
    /// on the calling thread. While one batch is shared, batches of other threads stay on their
    /// threads too. After a batch, the threads look for the next one for 50 microseconds, and then
    /// sleep. 1 means that no batch is shared. Rows, clocks and errors are the same as with one
    /// thread, bit for bit. Default: the processors that the process may use, at most 16. At most
    /// 1,024.
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
            cold_tier: ColdTier::default(),
            disk_quota_bytes: None,
            threads: default_threads(),
        }
    }
}
