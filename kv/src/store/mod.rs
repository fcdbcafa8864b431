//! The store as its callers see it: opening, batches, tables, checkpoints and scans over one log.

mod ahead;
mod checkpointing;
mod creating;
mod loan;
mod open;
pub(crate) mod reading;
pub(crate) mod scan;
mod serving;
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
use serving::Serving;
pub use state::StateId;
pub use tables::TableInfo;

/// Wakes those who wait for rows of a batch when the batch is over, whatever its end: an error or a panic in
/// the middle leaves clocks that have come down.
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

/// A store of rows in a directory. Share it between threads behind an `Arc` or a reference.
///
/// Dropping it writes nothing: what was not in a checkpoint is gone.
///
/// In the source, `store/mod.rs` has what runs over the rows of a batch, and waiting for rows. The other calls stand in
/// the files of that folder: `open` and `reading` (opening, to write and to read only), `tables`, `checkpointing`, `scan`,
/// `ahead` (promoting rows that will be needed), `loan` (memory for its caller), `statistics` and `state`. Deltas, copies
/// and going back are in `history`.
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
    /// Held while a checkpoint is taken.
    newest: Mutex<Newest>,
    checkpoints_kept: usize,
    segment_bytes: u64,
    hash_seed: u64,
    bank: u64,
    /// Random: tells this opening of the store from all others.
    opening: u64,
    recovered: Option<Recovered>,
    dir: Arc<Directory>,
    /// `None` if the store is opened to read only.
    lock: Option<Mutex<BankLock>>,
}

impl Store {
    /// The checkpoint that the store was opened at; none for a new store. For one that is opened to read only, see
    /// [`reading`](Self::reading).
    #[must_use]
    pub fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// The store's directory, from the root, where it was when the store was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Does the whole work for one key and counts it, or nothing: then false.
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
            // Not where nothing was done, a panic included: whoever is woken finds the row released.
            if clock == Clock::Release {
                core.waiters.released(table.number, &[key]);
            }
        }
        hit.is_some()
    }

    #[inline(never)]
    fn run<O: Operation>(
        &self,
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
        self.run_counted::<O>((table, O::WIDTH), keys, clock, run).map(|(outcome, _)| outcome)
    }

    /// Runs one of the store's own jobs.
    fn run_job<W: Work>(
        &self,
        table: TableId,
        keys: &[u64],
        work: &mut W,
    ) -> Result<(Outcome, Tally)> {
        let width = self.core().width(table)?;
        let run = |core: &Core, rows: Rows, memory: BatchMemory<'_>| {
            core.run_job_over(width, rows, keys, work, memory)
        };
        self.run_counted::<W>((table, width), keys, Clock::Keep, run)
    }

    /// Runs a batch of work of the kind `W`, counts what it did, and wakes those that wait for the rows that it released.
    fn run_counted<W: Work>(
        &self,
        (table, width): (TableId, Width),
        keys: &[u64],
        clock: Clock,
        run: impl FnOnce(&Core, Rows, BatchMemory<'_>) -> Result<()>,
    ) -> Result<(Outcome, Tally)> {
        let core = self.core();
        let rows = Rows { table, value_bytes: core.value_bytes(table, width)? };
        let releases = clock == Clock::Release || W::EFFECT == Effect::Delete;
        let _released = releases.then(|| Released { waiters: &core.waiters, table, keys });
        if u32::try_from(keys.len()).is_err() {
            return Err(Error::InvalidArgument("a batch holds at most 4,294,967,295 keys".into()));
        }
        let mut scratch = take_scratch();
        // Filled where they lie: most of a single operation's time would go into moving them.
        let mut outcome = Outcome::default();
        let mut tally = Tally::default();
        let memory =
            BatchMemory { scratch: &mut scratch, outcome: &mut outcome, tally: &mut tally };
        let result = run(&core, rows, memory);
        give_back_scratch(scratch);
        core.add_tally::<W>(keys.len() as u64, &tally);
        result.map(|()| (outcome, tally))
    }

    /// Runs an operation over a batch of keys of one table.
    ///
    /// With `Acquire` and `Release` the keys must be distinct, lest a batch wait for itself; of equal keys
    /// in other batches each is worked on, in no particular order. Rows are
    /// worked on one by one: other batches may see some done and others not yet.
    ///
    /// # Errors
    /// `NoSuchTable`; `WrongKind` for an operation of another width than the table's; `TooLong` for a value longer
    /// than its maximum; `Damaged` or `Io` for a row that can't be read; `Poisoned` after a failed write,
    /// for anything but a peek. Other rows may have been worked on before the failure.
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
        self.run(table, keys, clock, operation)
    }

    /// Deletes rows; returns how many were there.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn delete(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        let (_, tally) = self.run_job(table, keys, &mut Delete)?;
        Ok(tally.deleted)
    }

    /// Deletes those rows of a table of fixed width of which `condition` says so; returns how many those were.
    ///
    /// It gets the key's place among `keys`, the row's value as it is now and its clock, and is asked while nobody
    /// else can change the row, so that nothing that it did not see is deleted. It may be asked again for a row that
    /// moved meanwhile: its last answer counts. It should only compute, and must not call any store.
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
    /// As [`execute`](Self::execute).
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

    /// To wait for a blocked row: take a ticket, try the `Acquire` again, and if it is still blocked,
    /// [wait](Self::wait_released) with the ticket. In this order no release is missed.
    pub fn release_ticket(&self, table: TableId, key: u64) -> ReleaseTicket<'_> {
        self.waiters.ticket(table.number, key)
    }

    /// Parks until some row of the ticket's stripe was released, or until the deadline: then false.
    #[must_use]
    pub fn wait_released(&self, ticket: ReleaseTicket<'_>, deadline: Instant) -> bool {
        ticket.wait(deadline)
    }

    /// Wakes everybody who [waits](Self::wait_released), to try again: what they wait for may have changed
    /// otherwise than by a release.
    pub fn wake_waiters(&self) {
        self.waiters.wake_all();
    }

    /// Fails if the store can't write any more: clocks that are up then stay up.
    ///
    /// # Errors
    /// `Poisoned` after a failed write; `ReadOnly` for a store that is open to read only.
    pub fn check_writable(&self) -> Result<()> {
        self.core().log.check_poison()
    }

    /// True if a batch that appends may have to wait for room on the disk or in the quota. A hint.
    #[must_use]
    pub fn is_short_of_room(&self) -> bool {
        self.core().was_short_of_room()
    }

    /// How many Gets of a row are outstanding; none if the row is missing. Reads the disk if it must.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn clock_of(&self, table: TableId, key: u64) -> Result<Option<u32>> {
        let mut clock = ReadClock(None);
        let (outcome, _) = self.run_job(table, &[key], &mut clock)?;
        Ok(clock.0.filter(|_| outcome.missing.is_empty()))
    }

    /// Compacts all of the log that is on disk now, whatever its space amplification: current rows go to the
    /// tail, and space goes back as far as no kept checkpoint names it; the rest follows with the next
    /// checkpoints. Other calls go on meanwhile. Tries again where compaction had stopped.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` for a page that can't be read, or a file that can't be removed: nothing
    /// at or after that page has been given back, and no row is lost that could be read before. `Poisoned`.
    pub fn compact(&self) -> Result<Compacted> {
        self.core().compact_all()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Serving::Writing(core) = &self.serving else { return };
        // Before the writer, which it may wait for.
        core.space.shut_down();
        if let Some(compactor) = self.compactor.take() {
            // It does not panic either.
            let _ = compactor.join();
        }
        core.log.shut_down();
        if let Some(writer) = self.writer.take() {
            // The thread does not panic; if it did, there is nobody to tell.
            let _ = writer.join();
        }
    }
}
