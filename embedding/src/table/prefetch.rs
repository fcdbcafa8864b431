//! Prefetch: reads rows into a buffer in advance, for evaluation and for features that are not
//! trained.
//!
//! A request is a job of the lookahead thread, which reads in advance. The job owns the buffer,
//! fills it a burst (a limited number of rows) at a time, and hands it to the handle at the end. No
//! thread therefore writes to memory that another thread reads. The handle only waits for the end
//! of the job. If a caller drops the handle, the job is cancelled, and the caller does not wait for
//! it. A job always reports its end to the handle, even if a panic or the end of the queue drops it
//! unfinished.
//!
//! The buffer's bytes belong to the bank's memory budget. While the buffer exists, the log and the
//! cache have that many bytes less.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use embank_kv::interrupt::Checks;
use embank_kv::locks::{Condvar, Mutex, MutexGuard};
use embank_kv::{Access, Clock, FloatState, Loan, Operation, Store};

use crate::error::{Error, Result, StoreError};
use crate::keys::UniqueKeys;
use crate::lookahead::queue::{Job, LookaheadReceipt};
use crate::table::Table;
use crate::table::operations::PeekRows;
use crate::table::peek::{Missing, PeekOutcome};
use crate::table::shared::TableShared;

/// Longest wait for a job's end before the waiting thread looks once more.
const FAR_OFF: Duration = Duration::from_secs(3600);

/// A request whose rows are being read into a buffer. [`Table::prefetch`] returns this handle.
/// Dropping the handle cancels the reads that are left.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Missing, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("feature", TableConfig::new(2))?;
/// table.put(&[1, 2], &[0.5, 1.5, 2.5, 3.5])?;
/// let prefetch = table.prefetch(&[2, 1, 2])?; // returns at once
/// // ... compute something else ...
/// let mut rows = [0.0; 6];
/// prefetch.wait(&mut rows, Missing::Error)?;
/// assert_eq!(rows, [2.5, 3.5, 0.5, 1.5, 2.5, 3.5]);
/// # Ok::<(), embank::Error>(())
/// ```
#[must_use = "dropping a prefetch cancels it"]
pub struct Prefetch {
    table: Table,
    request: Arc<Request>,
    /// Reserves the buffer's memory until the caller fetches the rows or drops the handle.
    _loan: Arc<Loan>,
}

impl fmt::Debug for Prefetch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.name();
        let keys = self.request.unique.len();
        let ready = self.is_ready();
        formatter
            .debug_struct("Prefetch")
            .field("table", &table)
            .field("keys", &keys)
            .field("ready", &ready)
            .finish()
    }
}

#[derive(Debug)]
struct Request {
    unique: UniqueKeys,
    cancelled: AtomicBool,
    progress: Mutex<Progress>,
    ended: Condvar,
}

#[derive(Debug)]
enum Progress {
    Reading,
    /// `rows` has one row per distinct key. `missing` has the indices of the distinct keys that
    /// have no row, ascending.
    Read {
        rows: Vec<f32>,
        missing: Vec<u32>,
    },
    Failed(StoreError),
    /// The lookahead thread dropped the job before its end.
    Abandoned,
}

/// The lookahead thread's part of a prefetch.
#[derive(Debug)]
pub(crate) struct PrefetchJob {
    request: Arc<Request>,
    table: Arc<TableShared>,
    loan: Arc<Loan>,
    rows: Vec<f32>,
    missing: Vec<u32>,
    /// Number of distinct keys that were read so far.
    read: usize,
    /// The caller's floating-point state, with which the rows are decoded.
    float_state: FloatState,
}

/// Reads rows with low priority, because no caller waits for them yet.
struct PeekAhead<'a>(PeekRows<'a>);

impl Operation for PeekAhead<'_> {
    const ACCESS: Access = Access::Peek;
    const AHEAD: bool = true;

    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        self.0.destination(i)
    }

    fn read(&mut self, i: usize, value: &[u8]) {
        self.0.read(i, value);
    }
}

impl Job for PrefetchJob {
    fn advance(&mut self, store: &Store, keys_max: usize) -> bool {
        // Relaxed: the flag carries no data. A lookahead thread that misses it only does unneeded
        // reads.
        if self.request.cancelled.load(Ordering::Relaxed) {
            return true;
        }
        match self.float_state.during(|| self.read_some(store, keys_max)) {
            Ok(false) => false,
            Ok(true) => {
                let (rows, missing) =
                    (std::mem::take(&mut self.rows), std::mem::take(&mut self.missing));
                self.request.end(Progress::Read { rows, missing });
                true
            }
            Err(failure) => {
                self.request.end(Progress::Failed(failure));
                true
            }
        }
    }
}

impl PrefetchJob {
    fn read_some(&mut self, store: &Store, keys_max: usize) -> embank_kv::Result<bool> {
        let keys = self.request.unique.keys();
        let layout = self.table.layout();
        if self.rows.is_empty() {
            self.loan.make_room()?;
            self.rows = vec![0.0; keys.len() * layout.dim];
        }
        let end = keys.len().min(self.read + keys_max);
        let rows = &mut self.rows[self.read * layout.dim..end * layout.dim];
        let mut peek = PeekAhead(PeekRows { layout, rows, hints: None });
        let outcome =
            store.execute(self.table.id, &keys[self.read..end], Clock::Keep, &mut peek)?;
        let first = self.read as u32;
        self.missing.extend(outcome.missing.iter().map(|&place| first + place));
        self.read = end;
        self.missing.sort_unstable();
        Ok(end == keys.len())
    }
}

impl Drop for PrefetchJob {
    fn drop(&mut self) {
        self.request.end(Progress::Abandoned);
    }
}

impl Request {
    /// Records how the request ended. Only the first call for a request has an effect.
    fn end(&self, how: Progress) {
        let mut progress = self.progress.lock();
        if matches!(*progress, Progress::Reading) {
            *progress = how;
            self.ended.notify_all();
        }
    }
}

impl Prefetch {
    pub(crate) fn new(table: Table, unique: UniqueKeys, loan: Loan) -> (Self, PrefetchJob) {
        let loan = Arc::new(loan);
        let shared = Arc::clone(&table.shared);
        let request = Arc::new(Request {
            unique,
            cancelled: AtomicBool::new(false),
            progress: Mutex::new(Progress::Reading),
            ended: Condvar::new(),
        });
        let job = PrefetchJob {
            request: Arc::clone(&request),
            table: shared,
            loan: Arc::clone(&loan),
            rows: Vec::new(),
            missing: Vec::new(),
            read: 0,
            float_state: FloatState::of_this_thread(),
        };
        (Self { table, request, _loan: loan }, job)
    }

    /// True if [`wait`](Self::wait) would return at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !matches!(*self.request.progress.lock(), Progress::Reading)
    }

    /// Number of keys in the request, counting duplicates.
    #[must_use]
    pub fn batch_len(&self) -> usize {
        self.request.unique.batch_len()
    }

    /// The table that the rows are read from.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Waits for the rows. `rows` holds keys * dim values and receives one row per key, including
    /// duplicates. Each row was read at some time between the call of [`Table::prefetch`] and the
    /// return of this call, and has its values of that time. Does not change staleness clocks.
    ///
    /// # Errors
    /// [`ShapeMismatch`](Error::ShapeMismatch). [`MissingRow`](Error::MissingRow) if a row is
    /// missing and `missing` is [`Missing::Error`]. [`KeyIsNoId`](Error::KeyIsNoId), as from a
    /// [`peek`](crate::Table::peek). If reading the rows failed, the error of that read; no other
    /// call reports it. After an error, the content of `rows` is unspecified.
    pub fn wait(self, rows: &mut [f32], missing: Missing) -> Result<PeekOutcome> {
        let Request { unique, progress, ended, .. } = &*self.request;
        self.table.check_shape("rows", unique.batch_len(), rows.len())?;
        self.table.check_numbering()?;
        let started = Instant::now();
        let mut checks = Checks::new();
        let mut progress = progress.lock();
        // The loop ends: the lookahead thread finishes or drops every job.
        while matches!(*progress, Progress::Reading) {
            ended.wait_until(&mut progress, checks.until(Instant::now() + FAR_OFF));
            // Releases the lock while the program checks for an interrupt, because that check may
            // run for a long time.
            if checks.due().is_some_and(|check| MutexGuard::unlocked(&mut progress, check)) {
                let table = self.table.name().to_owned();
                let key = unique.keys().first().copied().unwrap_or_default();
                return Err(Error::Interrupted { table, key, waited: started.elapsed() });
            }
        }
        let (read, absent) = match std::mem::replace(&mut *progress, Progress::Abandoned) {
            Progress::Read { rows, missing } => (rows, missing),
            Progress::Failed(failure) => return Err(self.table.in_terms_of_the_table(failure)),
            Progress::Reading | Progress::Abandoned => return Err(Error::PrefetchAbandoned),
        };
        let dim = self.table.dim();
        let mut is_absent = vec![false; unique.len()];
        absent.iter().for_each(|&place| is_absent[place as usize] = true);
        let mut places = Vec::new();
        for (place, (&number, row)) in
            unique.inverse().iter().zip(rows.chunks_exact_mut(dim)).enumerate()
        {
            let number = number as usize;
            if is_absent[number] {
                places.push(place as u32);
            } else {
                row.copy_from_slice(&read[number * dim..][..dim]);
            }
        }
        let key_at = |place: u32| unique.keys()[unique.inverse()[place as usize] as usize];
        self.table.settle_missing(key_at, rows, places, missing)
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // Relaxed: the flag carries no data; see `PrefetchJob::advance`.
        self.request.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Table {
    /// Asks the lookahead thread to bring rows into mutable memory soon, if they are on disk or are
    /// about to leave memory. Never waits for the disk, because the lookahead thread reads the
    /// rows. Drops keys that do not fit the thread's queue. Does not change or wait for staleness
    /// clocks.
    ///
    /// # Errors
    /// [`Error::LookaheadFailed`] if the lookahead thread met an error since the last call. The
    /// call that reports the error queues no keys. Each error is reported once.
    /// [`ThreadRefused`](crate::StoreError::ThreadRefused), or another failure of the store.
    pub fn lookahead(&self, keys: &[u64]) -> Result<LookaheadReceipt> {
        let row_bytes = self.shared.layout().value_bytes() as u64;
        let announced = self.context().lookahead.announce(self.shared.id, row_bytes, keys);
        announced.map_err(|error| self.in_terms_of_the_table(error))
    }

    /// Cancels the remaining lookahead of these keys, for every caller that asked for it. The
    /// lookahead thread then does not read queued rows, and no longer keeps announced rows in
    /// memory. Returns the number of queued keys that were cancelled.
    pub fn cancel_lookahead(&self, keys: &[u64]) -> usize {
        self.context().lookahead.cancel_keys(self.shared.id, keys)
    }

    /// Reads the rows of `keys` into a buffer in advance; [`wait`](Prefetch::wait) returns them.
    /// This suits evaluation and features that are not trained. The call never waits: the lookahead
    /// thread reads the rows, with lower priority than reads that callers wait for. Like a peek, a
    /// prefetch does not change clocks and writes nothing. For rows to train, use
    /// [`lookahead`](Self::lookahead). The buffer takes 4 bytes * dim per distinct key from the
    /// bank's memory budget, until the rows are fetched or the handle is dropped.
    ///
    /// # Errors
    /// [`BudgetTooSmall`](crate::StoreError::BudgetTooSmall) if the buffer would leave the store
    /// too little memory to work. In that case, wait for earlier prefetches first.
    /// [`Error::TableDropped`] and [`ThreadRefused`](crate::StoreError::ThreadRefused). If a key is
    /// not an id of the table's vocabulary, [`wait`](Prefetch::wait) fails, as a
    /// [`peek`](Self::peek) does.
    pub fn prefetch(&self, keys: &[u64]) -> Result<Prefetch> {
        self.check_numbering()?;
        let unique = UniqueKeys::new(keys)?;
        let bytes = unique.len() as u64 * self.dim() as u64 * 4;
        let loan = self.context().store.lend_memory(bytes);
        let loan = loan.map_err(|error| self.context().budget.in_terms_of_the_bank(error))?;
        let (prefetch, job) = Prefetch::new(self.clone(), unique, loan);
        self.context().lookahead.prefetch(Box::new(job))?;
        Ok(prefetch)
    }
}
