//! The public calls of the store: opening, batches of operations, tables, checkpoints and scans.

mod ahead;
mod checkpointing;
mod creating;
mod loan;
mod open;
pub(crate) mod reading;
pub(crate) mod scan;
pub(crate) mod serving;
mod state;
mod statistics;
pub(crate) mod tables;

use crate::checkpoint::bank_lock::BankLock;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::Checkpoints;
pub use crate::checkpoint::recovered::Recovered;
use crate::engine::batch::{Delete, DeleteIf, ReadClock, SeenClock, Tally};
use crate::engine::space::compactor::{self, Compacted};
use crate::engine::waiters::{ReleaseTicket, Waiters};
use crate::error::Result;
use crate::files::directory::Directory;
use crate::operation::{Clock, Operation, Outcome, Width};
use crate::record::address::TableId;
use crate::sync::Mutex;
use crate::sync::thread::JoinHandle;
use checkpointing::Newest;
pub(crate) use creating::Making;
pub use loan::Loan;
pub(crate) use open::{check_bank_file, check_last_page, log_begins, part_lists};
pub(crate) use reading::hold_one;
use serving::{CallState, Serving};
pub use state::StateId;

/// A store of rows in a directory. Threads share the store through an `Arc` or a reference.
///
/// Dropping a store writes nothing: rows that changed after the last checkpoint are lost.
///
/// In the source, `store/mod.rs` runs operations over the rows of a batch and waits for blocked
/// rows. The other files of the folder have the other calls:
///
/// - `open` opens a store for writing and `reading` opens a store read-only.
/// - `tables`, `checkpointing`, `scan`, `statistics` and `state` have the calls of these names.
/// - `ahead` moves rows into memory before a batch needs them.
/// - `loan` lends memory to the caller.
///
/// The folder `history` has the calls for deltas, copies and rollbacks.
///
/// ```
/// use embank_kv::{Access, Clock, Operation, Store, StoreOptions};
///
/// struct PutAll<'a>(&'a [u64]);
/// impl Operation for PutAll<'_> {
///     const ACCESS: Access = Access::Put;
///     fn update(&mut self, i: usize, value: &mut [u8]) {
///         value.copy_from_slice(&self.0[i].to_le_bytes());
///     }
///     fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
///         self.update(i, value);
///         true
///     }
/// }
///
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let store = Store::open(dir.path(), &StoreOptions::default())?;
/// let table = store.create_table("squares", 8, b"")?;
/// store.execute(table, &[2, 3], Clock::Keep, &mut PutAll(&[4, 9]))?;
/// store.checkpoint(b"step 1")?; // durable from here on
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Store {
    serving: Serving,
    waiters: Arc<Waiters>,
    writer: Option<JoinHandle<()>>,
    checkpoints: Checkpoints,
    /// Held while a checkpoint is taken, so that only one thread takes a checkpoint.
    newest: Mutex<Newest>,
    checkpoints_kept: usize,
    pub(crate) segment_bytes: u64,
    hash_seed: u64,
    pub(crate) bank: u64,
    /// A random number that identifies this opening of the store.
    opening: u64,
    recovered: Option<Recovered>,
    dir: Arc<Directory>,
    /// The lock of the bank. `None` if the store is open read-only.
    lock: Option<Mutex<BankLock>>,
}

impl Store {
    /// Returns the checkpoint at which the store was opened. `None` for a new store and for a
    /// read-only store; [`reading`](Self::reading) returns the checkpoint of a read-only store.
    #[must_use]
    pub fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// Returns the absolute path that the store's directory had when the store was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs an operation over a batch of keys of one table.
    ///
    /// With `Acquire` and `Release`, the keys of a batch must be distinct, because a batch could
    /// otherwise wait for itself. The store works on the rows one by one, in no particular order.
    /// So another batch may see some rows before and some rows after this operation.
    ///
    /// # Errors
    /// - `NoSuchTable` if the table does not exist.
    /// - `WrongKind` if the operation and the table differ in width.
    /// - `TooLong` if a value is longer than the table's maximum.
    /// - `Damaged` or `Io` if a row cannot be read.
    /// - `QuotaExceeded` or `DiskFull` if there is no room for a new record.
    /// - `TooManyOpenFiles` if the call needs a file, and no file descriptor is free.
    /// - `Interrupted` if the program ends a wait for room.
    /// - `Poisoned` after a failed write, except for a peek.
    ///
    /// The batch may have worked on other rows before the error.
    #[inline]
    pub fn execute<O: Operation>(
        &self,
        table: TableId,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        let core = self.core();
        if let [key] = *keys
            && O::WIDTH == Width::Fixed
            && core.run_single(table, key, clock, operation)
        {
            return Ok(Outcome::default());
        }
        core.run(table, keys, clock, operation, &mut Tally::default())
    }

    /// Returns the present state of the store, for the batches of one call. In a read-only store,
    /// the state stays at one checkpoint even if another thread refreshes the store.
    #[must_use]
    pub fn call_state(&self) -> CallState<'_> {
        CallState(self.core())
    }

    /// Deletes rows. Returns the number of rows that existed and were deleted.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub fn delete(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        let mut tally = Tally::default();
        self.core().run(table, keys, Clock::Keep, &mut Delete, &mut tally)?;
        Ok(tally.deleted)
    }

    /// Deletes the rows for which `condition` returns true. Returns the number of deleted rows. The
    /// table must be of fixed width.
    ///
    /// `condition` gets the index of the key in `keys`, the row's present value, and its number of
    /// outstanding gets. No other thread can change the row during this call, so `condition` sees
    /// the value that is deleted. If another thread has moved the row, the store calls `condition`
    /// again, and the last answer counts. `condition` should only compute, and must not call any
    /// store.
    ///
    /// ```
    /// use embank_kv::{Access, Clock, Operation, Store, StoreOptions};
    ///
    /// struct Put;
    /// impl Operation for Put {
    ///     const ACCESS: Access = Access::Put;
    ///     fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
    ///         value[0] = i as u8;
    ///         true
    ///     }
    /// }
    ///
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let store = Store::open(dir.path(), &StoreOptions::default())?;
    /// let table = store.create_table("numbers", 8, b"")?;
    /// store.execute(table, &[10, 11, 12], Clock::Keep, &mut Put)?;
    /// assert_eq!(store.delete_if(table, &[10, 11, 12], |_, value, _| value[0] == 1)?, 1);
    /// assert_eq!(store.delete(table, &[10, 11, 12])?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub fn delete_if(
        &self,
        table: TableId,
        keys: &[u64],
        condition: impl FnMut(usize, &[u8], u32) -> bool,
    ) -> Result<u64> {
        let core = self.core();
        core.tables.value_bytes(table, Width::Fixed)?;
        let mut tally = Tally::default();
        core.run(table, keys, Clock::Keep, &mut DeleteIf(condition), &mut tally)?;
        Ok(tally.deleted)
    }

    /// Returns a ticket for waiting until a blocked row is released. The caller must try its
    /// `Acquire` again after it has taken the ticket. If the row is still blocked, the caller
    /// [waits](Self::wait_released) with the ticket. In this order the caller misses no release.
    pub fn release_ticket(&self, table: TableId, key: u64) -> ReleaseTicket<'_> {
        self.waiters.ticket(table.number, key)
    }

    /// Parks the calling thread until a batch releases a row of the ticket's stripe. A stripe is a
    /// group of rows that share a release count, so the released row may be another row. Returns
    /// false if the deadline passes first.
    #[must_use]
    pub fn wait_released(&self, ticket: ReleaseTicket<'_>, deadline: Instant) -> bool {
        ticket.wait(deadline)
    }

    /// Wakes all threads that [wait for a release](Self::wait_released), so that they try their
    /// batches again. The caller needs this after a change that releases no row but can also end
    /// their waits, such as a dropped table.
    pub fn wake_waiters(&self) {
        self.waiters.wake_all();
    }

    /// Gives the bank a second tier, with limits for its log and its sort buffer. Only for tests.
    #[cfg(any(test, feature = "testing", feature = "bench"))]
    #[doc(hidden)]
    pub fn begin_second_tier(&self, limits: crate::TierLimits) {
        let core = self.core();
        core.space.begin_second_tier(limits);
        // Before the index takes the memory. If there is none, the first spill fails and says so.
        let _ = core.reserve_for_tiers();
    }

    /// True in the process that opened the store, and false in its forked children. A child must
    /// not use the store, and may drop it.
    #[doc(hidden)]
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        self.core().home.is_here()
    }

    /// Fails if the store cannot write any more. A store that cannot write cannot end a lease, so
    /// rows keep their counts of outstanding gets.
    ///
    /// # Errors
    /// `Poisoned` if an earlier write to the log has failed. `ReadOnly` if the store is open
    /// read-only.
    pub fn check_writable(&self) -> Result<()> {
        self.core().log.check_poison()
    }

    /// True if a batch that appends may have to wait now for compaction, or for room on the disk or
    /// below the quota. The answer is only a hint.
    #[must_use]
    pub fn may_await_space(&self) -> bool {
        self.core().headroom().may_await_space()
    }

    /// True if a part of the log is only on disk, or if the bank has a cold tier, so that a batch
    /// may have to read rows from there.
    #[must_use]
    pub fn has_rows_on_disk(&self) -> bool {
        let core = self.core();
        let view = core.log.view();
        view.head > view.begin || core.cold.has_rows()
    }

    /// Returns the number of outstanding gets of a row. `None` if the row does not exist. Reads the
    /// row from disk if it is there.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub fn clock_of(&self, table: TableId, key: u64) -> Result<Option<u32>> {
        let mut job = ReadClock(SeenClock(None));
        let outcome =
            self.core().run(table, &[key], Clock::Keep, &mut job, &mut Tally::default())?;
        Ok(job.0.0.filter(|_| outcome.missing.is_empty()))
    }

    /// Compacts the whole part of the log that is on disk now, however few dead records it has.
    /// Copies current rows to the tail, and frees the log below the first address that a kept
    /// checkpoint or a scan needs. The rest of the compacted log is freed after later checkpoints
    /// have replaced the kept ones. Other calls continue during compaction. If background
    /// compaction has stopped after an error, this call starts it again.
    ///
    /// In a bank with two tiers, rows go to the cold tier instead, and files that are due are
    /// merged. The disk needs room for the new files beside those that kept checkpoints hold.
    ///
    /// After [blind puts](crate::Operation::BLIND) in such a bank, the call moves all rows of the
    /// log to the cold tier, those in memory too, and rewrites the cold tier once. The number of
    /// [`rows`](Self::rows) is then exact, unless rows have outstanding gets, other threads write
    /// meanwhile, files are damaged or the disk has no room.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` if a page cannot be read or a file cannot be removed. No log
    /// from that page on was then freed, and all readable rows stay readable. `Poisoned` after a
    /// failed write.
    pub fn compact(&self) -> Result<Compacted> {
        let core = self.core();
        core.log.check_poison()?;
        let marked = self.settle_marked(&core)?;
        compactor::compact_all(&core, marked.as_ref())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Serving::Writing(core) = &self.serving else { return };
        if !core.home.is_here() {
            // A thread of the parent may have held a lock of the log at the fork. The copies of the
            // threads' references keep the core, and the handle of its compaction thread, from
            // being dropped.
            std::mem::forget(self.writer.take());
            return;
        }
        // The compaction thread is stopped first, because it may be waiting for the writer thread.
        core.space.shut_down();
        core.log.shut_down();
        if let Some(writer) = self.writer.take() {
            // If the writer thread has panicked, this is a bug, and the drop cannot report it.
            let _ = writer.join();
        }
    }
}
