//! The public calls of the store: opening, batches of operations, tables, checkpoints and scans
//! over one log.

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
use crate::engine::core::Core;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::Checkpoints;
pub use crate::checkpoint::recovered::Recovered;
use crate::engine::batch::{
    BatchMemory, Delete, DeleteIf, Effect, ReadClock, Rows, Tally, Work, give_back_scratch,
    is_variable, take_scratch, try_single,
};
use crate::engine::compaction::Compacted;
use crate::engine::waiters::{ReleaseTicket, Waiters};
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::operation::{Clock, Operation, Outcome, Width};
use crate::record::address::TableId;
use crate::sync::Mutex;
use crate::sync::thread::JoinHandle;
use checkpointing::Newest;
pub(crate) use creating::Making;
pub use loan::Loan;
pub(crate) use open::{check_bank_file, check_last_page, log_begins};
pub(crate) use reading::hold_one;
use serving::{CallState, Serving};
pub use state::StateId;
pub use tables::TableInfo;

/// When dropped, wakes the threads that wait for a row of this batch. It is a drop guard because a
/// batch that ends with an error or a panic may already have lowered the staleness clocks of some
/// rows.
struct Released<'a> {
    waiters: &'a Waiters,
    table: TableId,
    keys: &'a [u64],
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.waiters.released(self.table.number, self.keys);
    }
}

/// A store of rows in a directory. Threads share it behind an `Arc` or a reference.
///
/// Dropping a store writes nothing: rows that changed after the last checkpoint are lost.
///
/// In the source, `store/mod.rs` runs operations over the rows of a batch and waits for blocked
/// rows. Other files of the folder have the other calls:
///
/// - `open` opens a store for writing and `reading` opens a store read-only.
/// - `tables`, `checkpointing`, `scan`, `statistics` and `state` have the calls of these names.
/// - `ahead` moves rows into memory before a batch needs them.
/// - `loan` lends memory to the caller.
///
/// Deltas, copies and roll backs are in the folder `history`.
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
    compactor: Option<JoinHandle<()>>,
    checkpoints: Checkpoints,
    /// Held while a checkpoint is taken, so that one thread at a time takes one.
    newest: Mutex<Newest>,
    checkpoints_kept: usize,
    segment_bytes: u64,
    hash_seed: u64,
    bank: u64,
    /// Random number that identifies this opening of the store.
    opening: u64,
    recovered: Option<Recovered>,
    dir: Arc<Directory>,
    /// `None` if the store is open read-only.
    lock: Option<Mutex<BankLock>>,
}

impl Store {
    /// The checkpoint that the store was opened at. `None` for a new store, and for a store that is
    /// open read-only: that one has [`reading`](Self::reading).
    #[must_use]
    pub fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// The absolute path that the store's directory had when the store was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs the operation on one key without the machinery of a batch, and counts the key. Returns
    /// false, without any effect, if the key needs a batch: for example if its row is on disk.
    #[inline]
    fn run_single<O: Operation>(
        &self,
        table: TableId,
        key: u64,
        clock: Clock,
        operation: &mut O,
    ) -> bool {
        let core = self.core();
        let hit = try_single(&core, table, key, clock, operation);
        if let Some(hit) = hit {
            core.count_single(O::ACCESS, O::CHANGES, hit);
            // Only after the row was released: a thread that wakes earlier would find the row
            // blocked.
            if clock == Clock::Release {
                core.waiters.released(table.number, &[key]);
            }
        }
        hit.is_some()
    }

    #[inline(never)]
    fn run<O: Operation>(
        core: &Core,
        table: TableId,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        let run = |core: &Core, rows: Rows, memory: BatchMemory<'_>| {
            if const { is_variable::<O>() } {
                core.run_batch::<O, true>(rows, keys, clock, operation, memory)
            } else {
                core.run_batch::<O, false>(rows, keys, clock, operation, memory)
            }
        };
        let counted = Self::run_counted::<O>(core, (table, O::WIDTH), keys, clock, run);
        counted.map(|(outcome, _)| outcome)
    }

    /// Runs one of the store's own jobs, such as a deletion or a promotion, over a batch of keys.
    fn run_job<W: Work>(
        &self,
        table: TableId,
        keys: &[u64],
        work: &mut W,
    ) -> Result<(Outcome, Tally)> {
        let core = self.core();
        let width = core.width(table)?;
        let run = |core: &Core, rows: Rows, memory: BatchMemory<'_>| {
            core.run_job_over(width, rows, keys, work, memory)
        };
        Self::run_counted::<W>(&core, (table, width), keys, Clock::Keep, run)
    }

    /// Runs a batch of work of the kind `W` and counts what it did. Then wakes the threads that
    /// wait for the rows that the batch released.
    fn run_counted<W: Work>(
        core: &Core,
        (table, width): (TableId, Width),
        keys: &[u64],
        clock: Clock,
        run: impl FnOnce(&Core, Rows, BatchMemory<'_>) -> Result<()>,
    ) -> Result<(Outcome, Tally)> {
        let rows = Rows { table, value_bytes: core.value_bytes(table, width)? };
        let releases = clock == Clock::Release || W::EFFECT == Effect::Delete;
        let _released = releases.then(|| Released { waiters: &core.waiters, table, keys });
        if u32::try_from(keys.len()).is_err() {
            return Err(Error::InvalidArgument("a batch holds at most 4,294,967,295 keys".into()));
        }
        let mut scratch = take_scratch();
        // Filled through references: moving them takes most of the time of a batch of one key.
        let mut outcome = Outcome::default();
        let mut tally = Tally::default();
        let memory =
            BatchMemory { scratch: &mut scratch, outcome: &mut outcome, tally: &mut tally };
        let result = run(core, rows, memory);
        give_back_scratch(scratch);
        core.add_tally::<W>(keys.len() as u64, &tally);
        result.map(|()| (outcome, tally))
    }

    /// Runs an operation over a batch of keys of one table.
    ///
    /// With `Acquire` and `Release` the keys of a batch must be distinct: otherwise a batch may
    /// wait for itself. The store works on the rows one by one and in no particular order. Another
    /// batch may therefore see some rows done and others not yet.
    ///
    /// # Errors
    /// `NoSuchTable`; `WrongKind` if the width of the operation is not the table's; `TooLong` if a
    /// value is longer than the table's maximum; `Damaged` or `Io` if a row can't be read;
    /// `Poisoned` after a failed write, except for a peek. The batch may have worked on other rows
    /// before the failure.
    #[inline]
    pub fn execute<O: Operation>(
        &self,
        table: TableId,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        if let [key] = *keys
            && O::WIDTH == Width::Fixed
            && self.run_single(table, key, clock, operation)
        {
            return Ok(Outcome::default());
        }
        Self::run(&self.core(), table, keys, clock, operation)
    }

    /// The state that the store shows now, for the batches of one call. In a store that is open to
    /// read only it is one checkpoint, which stays the same while the store is refreshed.
    #[must_use]
    pub fn call_state(&self) -> CallState<'_> {
        CallState(self.core())
    }

    /// Deletes rows. Returns the number of rows that existed and were deleted.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub fn delete(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        let (_, tally) = self.run_job(table, keys, &mut Delete)?;
        Ok(tally.deleted)
    }

    /// Deletes the rows for which `condition` returns true. Returns the number of deleted rows. The
    /// table must be of fixed width.
    ///
    /// `condition` gets the position of the key in `keys`, the row's present value, and its clock.
    /// No other thread can change the row while `condition` decides, so it decides on the value
    /// that is deleted. The store asks again if another thread has moved the row, and the last
    /// answer counts. `condition` should only compute, and must not call any store.
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
        self.core().value_bytes(table, Width::Fixed)?;
        let (_, tally) = self.run_job(table, keys, &mut DeleteIf(condition))?;
        Ok(tally.deleted)
    }

    /// Returns a ticket to wait for a blocked row with. After taking the ticket, the caller tries
    /// its `Acquire` again, and [waits](Self::wait_released) with the ticket if the row is still
    /// blocked. In this order the caller misses no release.
    pub fn release_ticket(&self, table: TableId, key: u64) -> ReleaseTicket<'_> {
        self.waiters.ticket(table.number, key)
    }

    /// Parks the calling thread until a batch has released a row of the ticket's stripe. Returns
    /// false if the deadline passes first.
    #[must_use]
    pub fn wait_released(&self, ticket: ReleaseTicket<'_>, deadline: Instant) -> bool {
        ticket.wait(deadline)
    }

    /// Wakes all threads that [wait for a release](Self::wait_released), so that they try their
    /// batches again. For changes that are not releases, such as a dropped table.
    pub fn wake_waiters(&self) {
        self.waiters.wake_all();
    }

    /// Fails if the store can't write any more. Clocks that are above zero then stay as they are.
    ///
    /// # Errors
    /// `Poisoned` after a failed write; `ReadOnly` for a store that is open read-only.
    pub fn check_writable(&self) -> Result<()> {
        self.core().log.check_poison()
    }

    /// True if a batch that appends may have to wait now, for room on the disk or in the quota or
    /// for compaction. A hint.
    #[must_use]
    pub fn may_await_space(&self) -> bool {
        self.core().may_await_space()
    }

    /// The number of outstanding gets of a row; `None` if the row does not exist. Reads the disk if
    /// the row is there.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub fn clock_of(&self, table: TableId, key: u64) -> Result<Option<u32>> {
        let mut clock = ReadClock(None);
        let (outcome, _) = self.run_job(table, &[key], &mut clock)?;
        Ok(clock.0.filter(|_| outcome.missing.is_empty()))
    }

    /// Compacts the whole part of the log that is on disk now, whatever its space amplification.
    /// Copies current rows to the tail, and frees the log below the first address that a kept
    /// checkpoint or a scan needs. The rest is freed when later checkpoints replace the kept ones.
    /// Other calls go on during compaction. Starts compaction again if an error had stopped it.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` if a page can't be read or a file can't be removed. The store
    /// has then freed no page from that page on, and every row that could be read before can still
    /// be read. `Poisoned` after a failed write.
    pub fn compact(&self) -> Result<Compacted> {
        self.core().compact_all()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Serving::Writing(core) = &self.serving else { return };
        // Stops the compactor first: it may be waiting for the writer thread.
        core.space.shut_down();
        if let Some(compactor) = self.compactor.take() {
            // A panic of the compactor would be a bug; there is nothing to report it to here.
            let _ = compactor.join();
        }
        core.log.shut_down();
        if let Some(writer) = self.writer.take() {
            // A panic of the writer thread would be a bug; there is nothing to report it to here.
            let _ = writer.join();
        }
    }
}
