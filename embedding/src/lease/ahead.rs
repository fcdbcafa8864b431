//! Gets ahead: Gets that a thread of the bank makes while the program still computes an earlier
//! batch.
//!
//! **Problem.** A program that computes one batch after another waits for the rows of each batch.
//! With a staleness bound above 0, it may get the rows of later batches before the gradients of
//! earlier ones have arrived. That needs a second thread, which must not block the first one.
//!
//! **Approach.** An [`AheadQueue`] has one thread, which makes the Gets of the queue one after the
//! other. A Get ahead raises the clocks of its rows and brings the rows into memory. It copies no
//! row. [`Pending::wait`] copies or pools the rows on the calling thread, so these include all
//! updates up to then.
//!
//! **Whose Get it is.** A Get ahead may meet rows whose clocks are above the bound, often because
//! of leases on earlier batches of its own program. While no thread waits for it, the program can
//! still end these leases. The Get then has no time limit, reserves no rows, and queues behind the
//! reservations of other Gets. Once a thread waits for it, or for a later Get of the queue, the Get
//! acts as a Get that this thread began at that time. It then fails if the thread would wait for
//! itself, passes reservations of rows that the thread has leases on, reserves its own rows after a
//! while, and ends with a timeout ([`Waiters`]).
//!
//! **Order.** A queue makes its Gets in the order of the calls. So no Get takes a row that an
//! earlier Get of the queue still needs, and two Gets of one queue can't wait for each other.
//!
//! **Lease.** The taker of a pending Get's lease is the thread that asked for the Get. Its taker
//! becomes the thread that waits for the Get, or that drops it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embank_kv::interrupt::Checks;
use embank_kv::locks::{Condvar, Mutex, MutexGuard};
use embank_kv::{Clock, FloatState, RunningTime};

use crate::error::{Error, Result, StoreError};
use crate::keys::UniqueKeys;
use crate::lease::Lease;
use crate::lease::request::{LeasedPer, Request};
use crate::registry::{Taker, TakerNumber, this_number, this_thread};
use crate::table::Table;
use crate::table::bags::{Bags, OwnedBags};
use crate::table::gate::Decision;
use crate::table::operations::PeekRows;
use crate::table::peek::Missing;
use crate::vocabulary::registry::Vocabularies;

/// Longest wait for a Get's end before the waiting thread looks once more.
const FAR_OFF: Duration = Duration::from_secs(3600);

/// A queue of Gets that a thread of its own makes, in order: [`Table::get_ahead`] adds one. The
/// tables may be several of the bank. [`Bank::ahead_queue`](crate::Bank::ahead_queue) makes a
/// queue. A program has one queue for each training loop.
///
/// Dropping the queue ends its thread. Gets that it has not made then fail with
/// [`AheadEnded`](Error::AheadEnded). If a Get is under way, the drop waits for its reads, and for
/// disk space if the Get waits for that. The bank stays open while the queue exists.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Optimizer, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let config = TableConfig::new(1).optimizer(Optimizer::sgd(1.0)).staleness_bound(Some(1));
/// let table = bank.table("user", config)?;
/// let queue = bank.ahead_queue()?;
/// let batches = [[1, 2], [2, 3], [3, 1]];
/// let mut next = table.get_ahead(table.request(&batches[0])?, &queue)?;
/// for i in 0..batches.len() {
///     let mut rows = [0.0; 2];
///     let lease = next.wait(&mut rows)?;
///     if i + 1 == batches.len() {
///         lease.apply(&[0.5; 2])?;
///         break;
///     }
///     // The queue's thread gets the next rows while this thread computes.
///     next = table.get_ahead(table.request(&batches[i + 1])?, &queue)?;
///     lease.apply(&[0.5; 2])?;
/// }
/// # Ok::<(), embank::Error>(())
/// ```
pub struct AheadQueue {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
    /// Keeps the bank open.
    vocabularies: Arc<Vocabularies>,
}

impl fmt::Debug for AheadQueue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.vocabularies.context.store.path();
        formatter.debug_struct("AheadQueue").field("bank", &path).finish_non_exhaustive()
    }
}

/// The part of a queue that its thread uses too.
#[derive(Debug)]
struct Shared {
    state: Mutex<QueueState>,
    /// A Get was added, or the queue is ending.
    work: Condvar,
    /// A Get has ended.
    done: Condvar,
    waiters: Waiters,
    /// True once the queue is ending. The Get that is under way then gives up its wait.
    ending: AtomicBool,
}

#[derive(Debug, Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    next_number: u64,
}

/// A Get that the queue's thread has not made.
#[derive(Debug)]
struct Job {
    number: u64,
    table: Table,
    unique: UniqueKeys,
    per: LeasedPer,
    decisions: Option<Vec<Decision>>,
    timeout: Duration,
    taker: Arc<Taker>,
    /// The caller's floating-point state, with which missing rows are made.
    float_state: FloatState,
    outcome: Arc<Outcome>,
}

/// What became of a Get. Its handle and the queue's thread share this.
#[derive(Debug)]
struct Outcome {
    /// `None` until the Get has ended, and after the handle has taken the result. Set while the
    /// lock of [`QueueState`] is held, so that no waiting thread misses it.
    result: Mutex<Option<Result<Lease>>>,
    /// True once the handle was dropped. The queue's thread then ends the lease.
    dropped: AtomicBool,
}

/// The threads that wait for Gets of a queue.
#[derive(Debug, Default)]
struct Waiters(Mutex<Vec<Waiter>>);

#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    /// Number of the Get that the thread waits for. Such a thread waits for all earlier Gets too.
    job: u64,
    pub(super) thread: TakerNumber,
    /// When the wait began, in running time and by the system's clock.
    pub(super) since: RunningTime,
    pub(super) started: Instant,
}

/// A Get ahead as the code of waiting Gets sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead<'a> {
    shared: &'a Shared,
    outcome: &'a Outcome,
    number: u64,
}

impl Ahead<'_> {
    /// Returns the thread that waits for the Get, the first one if there are several. `None` while
    /// no thread waits.
    pub(super) fn waiter(&self) -> Option<Waiter> {
        let waiters = self.shared.waiters.0.lock();
        waiters.iter().find(|waiter| waiter.job >= self.number).copied()
    }

    /// True if the result of the Get is no longer wanted.
    pub(super) fn is_cancelled(&self) -> bool {
        // Relaxed: the flags carry no data. A Get that misses one looks again soon.
        self.outcome.dropped.load(Ordering::Relaxed) || self.shared.ending.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// The loop of the queue's thread. It runs until the queue ends.
    fn work(&self) {
        /// If the thread panics, this guard wakes the threads that wait for it.
        struct EndAtTheEnd<'a>(&'a Shared);
        impl Drop for EndAtTheEnd<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        let _end_at_the_end = EndAtTheEnd(self);
        while let Some(job) = self.next_job() {
            self.serve(job);
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if self.ending.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            self.work.wait(&mut state);
        }
    }

    fn serve(&self, job: Job) {
        /// Ends the Get, also if it panics.
        struct EndOfGet<'a> {
            shared: &'a Shared,
            outcome: Arc<Outcome>,
            result: Option<Result<Lease>>,
            table: String,
        }
        impl Drop for EndOfGet<'_> {
            fn drop(&mut self) {
                let ended = || Err(Error::AheadEnded { table: self.table.clone() });
                let result = self.result.take().unwrap_or_else(ended);
                self.shared.finish(&self.outcome, result);
            }
        }
        let Job { number, table, unique, per, decisions, timeout, taker, float_state, outcome } =
            job;
        let name = table.name().to_owned();
        let mut end = EndOfGet { shared: self, outcome, result: None, table: name };
        let ahead = Ahead { shared: self, outcome: &end.outcome, number };
        if ahead.is_cancelled() {
            return;
        }
        let get = || table.get_for_later(unique, per, decisions, timeout, taker, ahead);
        let result = float_state.during(get);
        // The end of the queue interrupts a Get, and the caller learns the cause.
        if !(matches!(result, Err(Error::Interrupted { .. })) && ahead.is_cancelled()) {
            end.result = Some(result);
        }
    }

    fn finish(&self, outcome: &Outcome, result: Result<Lease>) {
        let state = self.state.lock();
        *outcome.result.lock() = Some(result);
        let unwanted = match outcome.dropped.load(Ordering::Relaxed) {
            true => outcome.result.lock().take(),
            false => None,
        };
        drop(state);
        self.done.notify_all();
        end_unwanted(unwanted);
    }

    /// Ends the queue. Gets that were not made fail.
    fn end(&self) {
        let mut state = self.state.lock();
        // Relaxed: read under the lock, or by a Get that looks again soon.
        self.ending.store(true, Ordering::Relaxed);
        for Job { outcome, table, .. } in state.jobs.drain(..) {
            let error = Error::AheadEnded { table: table.name().to_owned() };
            *outcome.result.lock() = Some(Err(error));
        }
        drop(state);
        self.work.notify_all();
        self.done.notify_all();
    }
}

/// Ends the lease of a Get whose handle was dropped.
fn end_unwanted(result: Option<Result<Lease>>) {
    if let Some(Ok(lease)) = result {
        lease.entry.what().take_over();
    }
}

impl AheadQueue {
    pub(crate) fn new(vocabularies: Arc<Vocabularies>) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            waiters: Waiters::default(),
            ending: AtomicBool::new(false),
        });
        let of_worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("embank-ahead".to_owned());
        let worker = thread.spawn(move || of_worker.work());
        let worker = worker.map_err(|source| StoreError::ThreadRefused {
            thread: "get-ahead",
            path: vocabularies.context.store.path().to_owned(),
            source,
        })?;
        Ok(Self { shared, worker: Some(worker), vocabularies })
    }
}

impl Drop for AheadQueue {
    fn drop(&mut self) {
        if !self.vocabularies.context.store.is_of_this_process() {
            // A forked child does not have the thread, which may have held the queue's lock.
            std::mem::forget(self.worker.take());
            return;
        }
        self.shared.end();
        if let Some(worker) = self.worker.take() {
            // A thread that panicked has already printed the panic, so the result is ignored.
            let _ = worker.join();
        }
    }
}

/// A Get ahead: [`Table::get_ahead`] returns it. Dropping it cancels the Get, or ends its lease
/// without an update.
#[must_use = "dropping a pending Get cancels it"]
pub struct Pending {
    table: Table,
    keys: Vec<u64>,
    row_count: usize,
    /// Bags that take the place of those of the request.
    bags: Option<OwnedBags>,
    number: u64,
    shared: Arc<Shared>,
    outcome: Arc<Outcome>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pending")
            .field("table", &self.table.name())
            .field("keys", &self.keys.len())
            .field("ready", &self.is_ready())
            .finish()
    }
}

impl Pending {
    /// True if [`wait`](Self::wait) would not wait for the Get.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.outcome.result.lock().is_some()
    }

    /// The number of rows: of keys, of distinct keys, or of bags.
    #[must_use]
    pub fn row_count(&self) -> usize {
        self.row_count
    }

    /// The table of the rows.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Asks for one pooled row per bag, in place of the rows of the request, as
    /// [`Request::bags`] does. The rows are read only in [`wait`](Self::wait), so a caller that
    /// learns the bags after it has asked for the Get loses nothing.
    ///
    /// # Errors
    /// [`BadBags`](Error::BadBags); the Get is then cancelled.
    pub fn bags(mut self, bags: Bags<'_>) -> Result<Self> {
        self.table.check_bags(self.keys.len(), &bags)?;
        self.row_count = bags.len();
        self.bags = Some(bags.into());
        Ok(self)
    }

    /// Waits for the Get, and returns its lease. `rows` holds [`row_count`](Self::row_count) * dim
    /// values and receives the rows of the request, with all updates up to now. A row that the
    /// lease does not hold, because it was not admitted or was deleted since, is read as a peek
    /// reads it.
    ///
    /// The calling thread becomes the lease's taker. It also waits for earlier Gets of the queue.
    /// The time limit of the request begins with this call. Until then, the lease counts as one of
    /// the thread that asked for the Get. So a thread that asks for a Get and does not wait for it
    /// must not get its rows.
    ///
    /// # Errors
    /// [`ShapeMismatch`](Error::ShapeMismatch), and the errors of
    /// [`get_rows`](Table::get_rows). [`AheadEnded`](Error::AheadEnded) if the queue has ended.
    /// [`LeaseExpired`](Error::LeaseExpired) if the lease has expired since the Get. No other call
    /// reports an error of the Get. After an error, the Get holds no lease.
    pub fn wait(mut self, rows: &mut [f32]) -> Result<Lease> {
        self.table.check_shape("rows", self.row_count, rows.len())?;
        let mut lease = self.wait_for_lease()?;
        if let Some(bags) = self.bags.take() {
            lease.per = LeasedPer::Bag(bags);
        }
        lease.entry.what().take_over();
        lease.read_rows(&self.keys, rows)?;
        // An expired lease does not count for the bound, so the rows may be too old.
        lease.check()?;
        Ok(lease)
    }

    fn wait_for_lease(&self) -> Result<Lease> {
        /// Takes the thread off the list of waiting threads.
        struct Waiting<'a>(&'a Waiters, TakerNumber);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                let mut waiters = self.0.0.lock();
                let own = waiters.iter().position(|waiter| waiter.thread == self.1);
                own.map(|at| waiters.remove(at));
            }
        }
        if let Some(result) = self.outcome.result.lock().take() {
            return result;
        }
        let started = Instant::now();
        let thread = this_number();
        let waiter = Waiter { job: self.number, thread, since: RunningTime::now(), started };
        self.shared.waiters.0.lock().push(waiter);
        let _waiting = Waiting(&self.shared.waiters, thread);
        let mut checks = Checks::new();
        let mut state = self.shared.state.lock();
        // The loop ends: the queue's thread ends every Get at its time limit, and the end of the
        // queue ends all of its Gets.
        loop {
            if let Some(result) = self.outcome.result.lock().take() {
                return result;
            }
            self.shared.done.wait_until(&mut state, checks.until(Instant::now() + FAR_OFF));
            // Releases the lock while the program checks for an interrupt, because that check may
            // run for a long time.
            if checks.due().is_some_and(|check| MutexGuard::unlocked(&mut state, check)) {
                let table = self.table.name().to_owned();
                let key = self.keys.first().copied().unwrap_or_default();
                return Err(Error::Interrupted { table, key, waited: started.elapsed() });
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.table.context().store.is_of_this_process() {
            // The thread of the parent may have held the lock, and the lease is the parent's.
            return;
        }
        let mut state = self.shared.state.lock();
        // Relaxed: changed and read under the lock, or read by a Get that looks again soon.
        self.outcome.dropped.store(true, Ordering::Relaxed);
        let job = state.jobs.iter().position(|job| job.number == self.number);
        let job = job.and_then(|at| state.jobs.remove(at));
        let unwanted = self.outcome.result.lock().take();
        drop(state);
        drop(job);
        end_unwanted(unwanted);
    }
}

impl Lease {
    /// Reads the rows of the lease, one per row of its request. `keys` are those of the request.
    fn read_rows(&self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        let (table, entry, unique) = (&self.table, self.entry.what(), self.unique());
        let read = |rows: &mut [f32]| -> Result<()> {
            let layout = table.shared.layout();
            let mut peek = PeekRows { layout, rows: &mut *rows, hints: Some(entry.hints().all()) };
            let mut outcome = table.execute_in_parts(unique.keys(), Clock::Keep, &mut peek)?;
            table.shared.counters.disk_reads.add(outcome.disk_reads);
            outcome.missing.sort_unstable();
            let key_at = |place: u32| unique.keys()[place as usize];
            table.settle_missing(key_at, rows, outcome.missing, Missing::Initial).map(drop)
        };
        match &self.per {
            LeasedPer::Bag(bags) => table.pool_bags(keys, Some(entry), &bags.as_bags(), rows),
            LeasedPer::Key if !unique.all_distinct() => {
                let dim = table.dim();
                let mut distinct = vec![0.0; unique.len() * dim];
                read(&mut distinct)?;
                for (row, &place) in rows.chunks_exact_mut(dim).zip(unique.inverse()) {
                    row.copy_from_slice(&distinct[place as usize * dim..][..dim]);
                }
                Ok(())
            }
            LeasedPer::Key | LeasedPer::Distinct => read(rows),
        }
    }
}

impl Table {
    /// Asks for rows of a later batch. Returns at once. The thread of `queue` makes the Get after
    /// the earlier Gets of the queue: it takes the lease, and brings rows from disk into memory.
    /// [`Pending::wait`] returns the lease and the rows.
    ///
    /// The lease counts for the staleness bound from the time of the Get. A program that gets `n`
    /// batches ahead of the batch in hand needs a bound of at least `n`, or its Gets ahead wait
    /// until the leases of earlier batches end. While no thread waits for a Get ahead, it never
    /// fails with a timeout, and it never keeps rows from other Gets by a reservation. Once a
    /// thread waits, the Get acts as a Get that this thread began then; it notices the thread
    /// within 50 ms. The queue has no limit of its length: ask for a bounded number of batches.
    ///
    /// [`lookahead`](Self::lookahead) reads further ahead than the staleness bound allows.
    ///
    /// # Errors
    /// [`BadBags`](Error::BadBags). [`InvalidArgument`](crate::StoreError::InvalidArgument) if the
    /// queue is one of another bank. [`AheadEnded`](Error::AheadEnded) if the queue's thread has
    /// panicked.
    ///
    /// # Examples
    /// See [`AheadQueue`].
    pub fn get_ahead(&self, request: Request<'_>, queue: &AheadQueue) -> Result<Pending> {
        if !Arc::ptr_eq(&queue.vocabularies, &self.vocabularies) {
            let what = format!(
                "table {:?} is not one of the bank of the queue of gets ahead, {}: make a queue with the table's bank",
                self.name(),
                queue.vocabularies.context.store.path().display()
            );
            return Err(StoreError::InvalidArgument(what).into());
        }
        let row_count = request.row_count();
        let timeout = request.timeout.unwrap_or(self.context().wait_timeout);
        let decisions = self.decided(&request);
        let Request { keys, unique, per, .. } = request;
        let per = LeasedPer::from(per);
        if let LeasedPer::Bag(bags) = &per {
            self.check_bags(keys.len(), &bags.as_bags())?;
        }
        let shared = Arc::clone(&queue.shared);
        let outcome =
            Arc::new(Outcome { result: Mutex::default(), dropped: AtomicBool::new(false) });
        let mut state = shared.state.lock();
        if shared.ending.load(Ordering::Relaxed) {
            return Err(Error::AheadEnded { table: self.name().to_owned() });
        }
        let number = state.next_number;
        state.next_number += 1;
        state.jobs.push_back(Job {
            number,
            table: self.clone(),
            unique,
            per,
            decisions,
            timeout,
            taker: this_thread(),
            float_state: FloatState::of_this_thread(),
            outcome: Arc::clone(&outcome),
        });
        drop(state);
        shared.work.notify_one();
        let (table, keys) = (self.clone(), keys.to_vec());
        Ok(Pending { table, keys, row_count, bags: None, number, shared, outcome })
    }
}
