//! Reading ahead: rows that training will want soon come from disk into memory before it asks.
//!
//! `announce` only asks the index which keys are on disk or next in line for it, and queues those; it
//! holds the queue's lock for the time of some hash look-ups and never waits for the disk. One worker
//! thread takes bursts from the queue and has the store bring them in; it parks when there is nothing to
//! do. The queue and the set that merges duplicates have a fixed capacity, taken from the bank's memory
//! budget; what does not fit is dropped and counted, and a Get will read it as if nobody had looked ahead.
//!
//! A row that is in memory can leave it before the batch comes for which it was announced. So rows that were announced
//! are remembered where they are in mutable memory (`window`). When the log's boundaries move, the store tells, and the
//! worker copies those to the tail that are about to leave and have not been used since.
//!
//! Where the disk can't keep up, a Get comes for rows that still wait in the queue. It *overtakes* them: it reads them
//! itself and the worker passes them over, else nearly all would be read twice just when reads are what is short. Rows
//! that are in the burst in hand are on their way already; a Get that wants a good part of those waits for the burst.
//! The wait is bounded, and nothing depends on it: the Get then reads what has not come. Beside others that read, the
//! burst is in the background, which has 0.7 to 0.9 of its speed (`kv/src/device/priority.rs`); and rows that are
//! read-only in memory wait with those on disk. Both cost the Get a part of one burst. With an overtaken row goes what
//! a later batch announced of it meanwhile: the Get has just brought the row to the tail, where it has longest to live.
//!
//! The worker has the priority of any other thread: a lower one can't be taken back, and cost most where the disk is
//! the limit (docs/benchmarks.md).
//!
//! Late is what a Get overtook, and a key that is in mutable memory when its turn comes: it was not when it was queued,
//! so somebody wanted it first. The store tells of moved rows whether they were used in time, by a mark in the records.

pub(crate) mod depth;
pub(crate) mod pending;
pub(crate) mod requests;
pub(crate) mod window;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embank_kv::locks::{Condvar, Mutex, MutexGuard};
use embank_kv::{Promoted, RowMark, Store, StoreStats, TableId};

use crate::error::{Error, Result};
use crate::lookahead::pending::{Insertion, PendingSet};
use crate::lookahead::requests::{BURST_KEYS_MAX, BURST_KEYS_MIN, Requests, number};
use crate::lookahead::window::{Remembered, Window};
use crate::stats::LookaheadStats;
use crate::stats::counter::Counter;
use crate::table::prefetch::PrefetchJob;
use crate::unique::UniqueKeys;

/// Rows that are read into a buffer before others have their turn, or as many as the last burst had if those were more.
const PREFETCH_KEYS: usize = 1024;
/// The values of a group's rows are at most one part in so many of the bank's budget, unless it has few rows anyway
/// (`Requests::groups`): between bursts the worker looks after rows that are about to leave memory.
const BURST_BUDGET_SHARE: u64 = 16;

/// One part in so many of the bank's budget goes to the queue, unless the caller says otherwise.
const BUDGET_SHARE: u64 = 32;
/// Enough for 790,000 keys; more would be read too early anyway.
const MEMORY_BYTES_MAX: u64 = 40 << 20;

/// A Get waits for the burst in hand if it wants one in so many of its keys; else it reads those few a second time.
const WANTED_SHARE: usize = 4;
/// The longest that it waits for every 1,024 keys of a burst: a drive that takes longer reads 10,000 a second.
const WAIT_PER_1024_KEYS: Duration = Duration::from_millis(100);
/// Keys that a Get looks up in the queue without a break.
const OVERTAKEN_AT_ONCE_MAX: usize = 4096;

/// For so many keys of capacity the window remembers one: rows are in it for as long as their batch is ahead, in the
/// queue only until they have been read.
const KEYS_PER_REMEMBERED: usize = 2;

/// Memory per key of capacity, in bytes.
const BYTES_PER_KEY: u64 = Requests::BYTES_PER_KEY
    + PendingSet::BYTES_PER_KEY
    + (size_of::<Remembered>() / KEYS_PER_REMEMBERED) as u64;

/// How many keys may be pending in a bank of this budget.
pub(crate) fn capacity_for_budget(budget_bytes: u64) -> usize {
    ((budget_bytes / BUDGET_SHARE).min(MEMORY_BYTES_MAX) / BYTES_PER_KEY) as usize
}

/// The memory that a queue of this capacity may take, in bytes.
pub(crate) fn memory_bytes(capacity_keys: usize) -> u64 {
    (capacity_keys as u64).saturating_mul(BYTES_PER_KEY)
}

/// The smallest budget of which so many bytes are left beside the queue's share.
pub(crate) fn budget_for(store_bytes: u64) -> u64 {
    let share = (store_bytes / (BUDGET_SHARE - 1) + 1).min(MEMORY_BYTES_MAX);
    store_bytes.saturating_add(share)
}

/// What became of the distinct keys of one lookahead.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
/// let table = bank.table("user", embank::TableConfig::new(2))?;
/// table.put(&[1, 2], &[0.0; 4])?;
/// let receipt = table.lookahead(&[1, 2])?;
/// assert_eq!((receipt.resident, receipt.accepted()), (2, 0)); // both are in memory
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LookaheadReceipt {
    /// In mutable memory already, or in no table.
    pub resident: usize,
    /// Queued by this call.
    pub queued: usize,
    /// Already queued or being read.
    pub merged: usize,
    /// Turned away because the queue is full.
    pub dropped: usize,
}

impl LookaheadReceipt {
    /// The keys that are on their way into memory: queued and merged ones.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.queued + self.merged
    }
}

/// A bank's queue and its worker. Dropping it stops the worker after the burst in hand.
#[derive(Debug)]
pub(crate) struct Lookahead {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    queue: Arc<Queue>,
    /// What the values of a group's rows may take.
    burst_bytes_max: u64,
    /// Whether there may be rows that wait in the queue or are in hand; written under the queue's lock.
    has_requests: AtomicBool,
    /// Signalled when there is nothing to do any more.
    idle: Condvar,
    /// Signalled when a burst is over and a Get waits for that.
    burst_over: Condvar,
    counters: Counters,
}

/// What the store's writer may tell: it must not own the store.
#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    /// Signalled when there is work or the worker has to stop.
    work: Condvar,
}

impl Queue {
    /// The log's boundaries have moved.
    fn boundaries_moved(&self) {
        let mut state = self.state.lock();
        if !state.window.is_empty() {
            state.look = true;
            self.work.notify_one();
        }
    }
}

#[derive(Debug)]
struct State {
    requests: Requests,
    /// The rows of the queue and of the burst in hand.
    pending: PendingSet,
    /// Announced rows in mutable memory.
    window: Window,
    /// Some of them may be about to leave it.
    look: bool,
    /// The worker is looking after those.
    looking: bool,
    /// What was cancelled since the worker took what it has in hand: it does not come back to the window.
    cancelled: Vec<Cancelled>,
    /// The worker has something in hand.
    working: bool,
    /// The keys of the burst in hand, ascending, and their table; none between bursts.
    in_hand: Vec<u64>,
    in_hand_of: Option<TableId>,
    /// Bursts that are over.
    bursts: u64,
    /// Gets that wait for the end of the burst in hand.
    awaiting: usize,
    /// Requests for buffers, in their order.
    prefetches: VecDeque<PrefetchJob>,
    burst_was_last: bool,
    stopping: bool,
    failure: Option<embank_kv::Error>,
}

impl State {
    fn is_idle(&self) -> bool {
        self.pending.len() == 0 && !self.look && !self.looking
    }

    /// Whether a row that the worker has in hand was not cancelled meanwhile.
    fn is_wanted(&self, table: TableId, key: u64) -> bool {
        !self.cancelled.iter().any(|cancelled| cancelled.covers(table, key))
    }
}

/// What nobody waits for any more.
#[derive(Debug)]
enum Cancelled {
    All,
    Table(TableId),
    Keys(TableId, HashSet<u64>),
}

impl Cancelled {
    fn covers(&self, table: TableId, key: u64) -> bool {
        match self {
            Self::All => true,
            Self::Table(of) => *of == table,
            Self::Keys(of, keys) => *of == table && keys.contains(&key),
        }
    }
}

/// What the worker does next.
enum Job {
    /// Bring the burst of this table in.
    Burst(TableId),
    /// Look after rows that are about to leave memory.
    Look,
    /// Read some rows into a buffer.
    Prefetch(PrefetchJob),
}

#[derive(Debug, Default)]
struct Counters {
    requested: Counter,
    resident: Counter,
    queued: Counter,
    merged: Counter,
    dropped: Counter,
    moved: Counter,
    late: Counter,
    missing: Counter,
    cancelled: Counter,
    failed: Counter,
    kept: Counter,
    reading_us: Counter,
    /// An upper bound on the rows that nobody waited for any more when they were being moved or had been: so many may
    /// leave memory unused for no fault of the depth.
    cancelled_too_late: Counter,
    /// As an `AutoDepth` has chosen it.
    depth: AtomicU64,
}

impl Lookahead {
    pub(crate) fn new(store: Arc<Store>, budget_bytes: u64, capacity_keys: usize) -> Self {
        let state = State {
            requests: Requests::with_capacity(capacity_keys),
            pending: PendingSet::with_capacity(capacity_keys),
            window: Window::with_capacity(capacity_keys / KEYS_PER_REMEMBERED),
            look: false,
            looking: false,
            cancelled: Vec::new(),
            working: false,
            in_hand: Vec::with_capacity(BURST_KEYS_MIN + BURST_KEYS_MAX),
            in_hand_of: None,
            bursts: 0,
            awaiting: 0,
            prefetches: VecDeque::new(),
            burst_was_last: false,
            stopping: false,
            failure: None,
        };
        let queue = Arc::new(Queue { state: Mutex::new(state), work: Condvar::new() });
        let told = Arc::clone(&queue);
        if capacity_keys > 0 {
            store.when_boundaries_move(Box::new(move || told.boundaries_moved()));
        }
        Self {
            shared: Arc::new(Shared {
                store,
                queue,
                burst_bytes_max: budget_bytes / BURST_BUDGET_SHARE,
                has_requests: AtomicBool::new(false),
                idle: Condvar::new(),
                burst_over: Condvar::new(),
                counters: Counters::default(),
            }),
            worker: Mutex::new(None),
        }
    }

    /// Queues those of `keys` that are on disk, or in the read-only region and so next in line for it. A row takes
    /// `row_bytes`.
    ///
    /// # Errors
    /// [`Error::LookaheadFailed`] once for a failure of the worker since the last call; then nothing is
    /// queued. [`ThreadRefused`](embank_kv::Error::ThreadRefused) if the worker can't be started.
    pub(crate) fn announce(
        &self,
        table: TableId,
        row_bytes: u64,
        keys: &[u64],
    ) -> Result<LookaheadReceipt> {
        let shared = &*self.shared;
        if let Some(failure) = shared.queue.state.lock().failure.take() {
            return Err(Error::LookaheadFailed(failure));
        }
        let unique = UniqueKeys::new(keys);
        let keys = unique.keys();
        let (mut wanted, mut resident) = (Vec::new(), Vec::new());
        shared.store.announce(table, keys, &mut wanted, &mut resident)?;
        let mut receipt =
            LookaheadReceipt { resident: keys.len() - wanted.len(), ..Default::default() };
        if !(wanted.is_empty() && resident.is_empty()) {
            self.start_worker()?;
            shared.enqueue(table, shared.fitting(row_bytes), &wanted, &resident, &mut receipt);
        }
        let counters = &shared.counters;
        counters.requested.add(keys.len() as u64);
        counters.resident.add(receipt.resident as u64);
        counters.queued.add(receipt.queued as u64);
        counters.merged.add(receipt.merged as u64);
        counters.dropped.add(receipt.dropped as u64);
        Ok(receipt)
    }

    /// For a Get of these keys, which are distinct: takes those that still wait in the queue off the worker, and waits
    /// for the burst in hand if many of them are in it.
    pub(crate) fn make_way(&self, table: TableId, keys: &[u64]) {
        // Relaxed: who misses what was announced a moment ago reads it like any Get.
        if self.shared.has_requests.load(Ordering::Relaxed) {
            self.make_way_within(table, keys, WAIT_PER_1024_KEYS);
        }
    }

    /// Returns whether the burst that it waited for was over in time; `None`: it waited for none.
    fn make_way_within(
        &self,
        table: TableId,
        keys: &[u64],
        wait_per_1024_keys: Duration,
    ) -> Option<bool> {
        let shared = &*self.shared;
        let mut state = shared.queue.state.lock();
        let (mut burst, mut wanted) = (state.bursts, 0);
        for chunk in keys.chunks(OVERTAKEN_AT_ONCE_MAX) {
            // Whoever else wants the queue gets it in between.
            MutexGuard::bump(&mut state);
            let State { pending, in_hand, in_hand_of, bursts, .. } = &mut *state;
            if *bursts != burst {
                (burst, wanted) = (*bursts, 0);
            }
            let is_in_hand = |key| *in_hand_of == Some(table) && in_hand.binary_search(key).is_ok();
            let overtaken = chunk.iter().filter(|&&key| pending.overtake(number(table), key));
            wanted += overtaken.filter(|&key| is_in_hand(key)).count();
        }
        if state.bursts != burst || wanted == 0 || wanted * WANTED_SHARE < state.in_hand.len() {
            return None;
        }
        let wait = wait_per_1024_keys * state.in_hand.len().div_ceil(1024) as u32;
        let deadline = Instant::now() + wait;
        state.awaiting += 1;
        let mut in_time = true;
        while in_time && state.bursts == burst {
            in_time = !shared.burst_over.wait_until(&mut state, deadline).timed_out();
        }
        state.awaiting -= 1;
        Some(state.bursts != burst)
    }

    /// Has the worker read rows into a buffer.
    ///
    /// # Errors
    /// [`ThreadRefused`](embank_kv::Error::ThreadRefused) if the worker can't be started.
    pub(crate) fn prefetch(&self, job: PrefetchJob) -> Result<()> {
        self.start_worker()?;
        self.shared.queue.state.lock().prefetches.push_back(job);
        self.shared.queue.work.notify_one();
        Ok(())
    }

    fn start_worker(&self) -> Result<()> {
        let mut worker = self.worker.lock();
        if worker.as_ref().is_none_or(JoinHandle::is_finished) {
            // A worker ends by itself only in a panic, which it has told on standard error; what it had
            // in hand and what waited behind it is given up.
            self.shared.give_up_pending();
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("embank-lookahead".to_owned());
            let started = thread.spawn(move || shared.work());
            *worker = Some(started.map_err(|source| embank_kv::Error::ThreadRefused {
                thread: "lookahead",
                path: self.shared.store.path().to_owned(),
                source,
            })?);
        }
        Ok(())
    }

    /// Empties the queue and returns how many keys were in it. A burst in hand is not stopped.
    pub(crate) fn cancel(&self) -> usize {
        let given_up = self.cancel_those(Cancelled::All);
        self.count_all_as_cancelled();
        given_up
    }

    /// Takes these keys of a table out of the queue and returns how many were in it.
    pub(crate) fn cancel_keys(&self, table: TableId, keys: &[u64]) -> usize {
        let given_up = self.cancel_those(Cancelled::Keys(table, keys.iter().copied().collect()));
        self.shared.counters.cancelled_too_late.add(keys.len().saturating_sub(given_up) as u64);
        given_up
    }

    /// Takes what waits of a dropped table out of the queue. What a burst has in hand comes to its end.
    pub(crate) fn forget(&self, table: TableId) {
        self.cancel_those(Cancelled::Table(table));
        self.count_all_as_cancelled();
    }

    fn count_all_as_cancelled(&self) {
        let in_hand = self.shared.queue.state.lock().pending.len() as u64;
        // After those, which are counted as promoted before they leave the hand.
        let promoted = self.shared.store.stats().promoted;
        self.shared.counters.cancelled_too_late.add(promoted + in_hand);
    }

    fn cancel_those(&self, cancelled: Cancelled) -> usize {
        let mut state = self.shared.queue.state.lock();
        let State { requests, pending, window, .. } = &mut *state;
        let waiting = requests.len();
        window.forget(|table, key| cancelled.covers(table, key));
        requests.retain(|table, key| {
            let cancel = cancelled.covers(table, key);
            if cancel {
                pending.remove(number(table), key);
            }
            !cancel
        });
        let given_up = waiting - requests.len();
        if state.working {
            state.cancelled.push(cancelled);
        }
        self.shared.counters.cancelled.add(given_up as u64);
        if state.is_idle() {
            self.shared.idle.notify_all();
        }
        given_up
    }

    /// Waits until nothing is pending; false if that took longer than to `deadline`.
    pub(crate) fn wait_idle(&self, deadline: Instant) -> bool {
        let mut state = self.shared.queue.state.lock();
        while !state.is_idle() {
            if self.shared.idle.wait_until(&mut state, deadline).timed_out() {
                return state.is_idle();
            }
        }
        true
    }

    pub(crate) fn note_depth(&self, depth: usize) {
        // Relaxed: for those who look.
        self.shared.counters.depth.store(depth as u64, Ordering::Relaxed);
    }

    /// At least as many as there are rows that were being moved, or had been, when they were cancelled.
    pub(crate) fn cancelled_too_late(&self) -> u64 {
        self.shared.counters.cancelled_too_late.get()
    }

    pub(crate) fn stats(&self, store: &StoreStats) -> LookaheadStats {
        let counters = &self.shared.counters;
        let (pending, capacity) = {
            let state = self.shared.queue.state.lock();
            (state.pending.len(), state.pending.capacity())
        };
        LookaheadStats {
            requested: counters.requested.get(),
            resident: counters.resident.get(),
            queued: counters.queued.get(),
            merged: counters.merged.get(),
            dropped: counters.dropped.get(),
            moved: counters.moved.get(),
            on_time: store.promoted_used,
            late: counters.late.get(),
            wasted: store.promoted_wasted,
            missing: counters.missing.get(),
            cancelled: counters.cancelled.get(),
            failed: counters.failed.get(),
            kept: counters.kept.get(),
            reading_us: counters.reading_us.get(),
            depth: counters.depth.load(Ordering::Relaxed),
            pending: pending as u64,
            capacity: capacity as u64,
            memory_bytes: memory_bytes(capacity),
        }
    }
}

impl Drop for Lookahead {
    fn drop(&mut self) {
        self.shared.queue.state.lock().stopping = true;
        self.shared.queue.work.notify_all();
        if let Some(worker) = self.worker.lock().take() {
            // A worker that panicked has said so on standard error; there is nothing left to stop.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// So many rows of `row_bytes` may be in one group.
    fn fitting(&self, row_bytes: u64) -> usize {
        (self.burst_bytes_max / row_bytes.max(1)) as usize
    }

    /// The keys are queued in groups of no more than `fitting`, if that is enough for a burst.
    fn enqueue(
        &self,
        table: TableId,
        fitting: usize,
        keys: &[u64],
        resident: &[(u64, RowMark)],
        receipt: &mut LookaheadReceipt,
    ) {
        let mut state = self.queue.state.lock();
        state.window.remember(table, resident);
        for group in Requests::groups(keys, fitting) {
            let queued_before = receipt.queued;
            let State { requests, pending, .. } = &mut *state;
            requests.begin_group();
            for &key in group {
                match pending.insert(number(table), key) {
                    Insertion::Added => {
                        requests.push(table, key);
                        receipt.queued += 1;
                    }
                    Insertion::Present => receipt.merged += 1,
                    Insertion::Full => receipt.dropped += 1,
                }
            }
            if receipt.queued > queued_before {
                self.has_requests.store(true, Ordering::Relaxed);
                self.queue.work.notify_one();
            }
            // Whoever else wants the queue gets it in between.
            MutexGuard::bump(&mut state);
        }
    }

    /// Forgets everything that is pending, as failed.
    fn give_up_pending(&self) {
        let mut state = self.queue.state.lock();
        self.counters.failed.add(state.pending.len() as u64);
        state.requests.clear();
        state.pending.clear();
        // Nobody would look after its rows.
        state.window.forget(|_, _| true);
        (state.look, state.looking, state.working) = (false, false, false);
        self.has_requests.store(false, Ordering::Relaxed);
        self.end_burst(&mut state);
        state.cancelled.clear();
        // Dropping them takes locks of their own alone.
        state.prefetches.clear();
        self.idle.notify_all();
    }

    /// The worker: burst by burst until the bank goes.
    fn work(&self) {
        let mut burst = Vec::with_capacity(BURST_KEYS_MIN + BURST_KEYS_MAX);
        /// Should it panic, nobody waits for it in vain.
        struct GiveUpAtTheEnd<'a>(&'a Shared);
        impl Drop for GiveUpAtTheEnd<'_> {
            fn drop(&mut self) {
                self.0.give_up_pending();
            }
        }
        let _give_up_at_the_end = GiveUpAtTheEnd(self);
        let (mut marks, mut burst_keys) = (Vec::new(), 0);
        let count_since = |began: &mut Instant| {
            self.counters.reading_us.add(began.elapsed().as_micros() as u64);
            *began = Instant::now();
        };
        while let Some(job) = self.next_job(&mut burst) {
            let mut began = Instant::now();
            match job {
                Job::Burst(table) => {
                    marks.clear();
                    burst_keys = burst.len();
                    let promoted = self.store.promote_marking(table, &burst, &mut marks);
                    // Before whoever waits for the burst is told.
                    count_since(&mut began);
                    self.finish_burst(table, &burst, &marks, promoted);
                }
                Job::Look => self.look_after_the_oldest(),
                Job::Prefetch(mut job) => {
                    let keys_max = std::mem::take(&mut burst_keys).max(PREFETCH_KEYS);
                    if !job.advance(&self.store, keys_max) {
                        self.queue.state.lock().prefetches.push_back(job);
                    }
                }
            }
            count_since(&mut began);
        }
    }

    /// Copies announced rows that are about to leave memory, and have not been used since, to the log's tail.
    fn look_after_the_oldest(&self) {
        // Each leaves the window here, and comes back for a bounded number of times.
        let (read_only, head) = self.store.boundaries();
        let due = self.queue.state.lock().window.take_below(read_only);
        for rows in due.chunk_by(|a, b| a.table == b.table) {
            // What is on disk already would have to be read, and may have been used before it went there.
            let rows: Vec<_> = rows.iter().filter(|row| row.mark.address() >= head).collect();
            let Some(first) = rows.first() else { continue };
            let keys: Vec<u64> = rows.iter().map(|row| row.key).collect();
            let marks: Vec<RowMark> = rows.iter().map(|row| row.mark).collect();
            let mut moved = Vec::new();
            let kept = self.store.promote_unused(first.table, &keys, &marks, &mut moved);
            self.counters.kept.add(moved.len() as u64);
            let mut state = self.queue.state.lock();
            for (place, mark) in moved {
                if state.is_wanted(first.table, rows[place].key) {
                    state.window.remember_again(rows[place], mark);
                }
            }
            match kept {
                // What there is no room to keep goes to disk, and is read when it is wanted.
                Ok(())
                | Err(
                    embank_kv::Error::NoSuchTable(_)
                    | embank_kv::Error::QuotaExceeded { .. }
                    | embank_kv::Error::DiskFull { .. }
                    | embank_kv::Error::Interrupted { .. },
                ) => {}
                Err(failure) => {
                    state.failure.get_or_insert(failure);
                }
            }
        }
        let mut state = self.queue.state.lock();
        state.looking = false;
        if state.is_idle() {
            self.idle.notify_all();
        }
    }

    /// What to do next, for a burst its keys, which are of one table; waits while there is nothing. `None`: stop.
    fn next_job(&self, burst: &mut Vec<u64>) -> Option<Job> {
        burst.clear();
        let mut state = self.queue.state.lock();
        state.working = false;
        state.cancelled.clear();
        loop {
            if state.stopping {
                return None;
            }
            // First: it takes no disk, and what is about to leave would have to be read again.
            if std::mem::take(&mut state.look) {
                (state.looking, state.working) = (true, true);
                return Some(Job::Look);
            }
            // First, so that a queue that is not empty has a burst in it, for which a prefetch may wait.
            self.pass_over(&mut state);
            // Bursts and prefetches in turn, of several prefetches each in turn.
            let turn = std::mem::take(&mut state.burst_was_last) || state.requests.len() == 0;
            if let Some(job) = if turn { state.prefetches.pop_front() } else { None } {
                return Some(Job::Prefetch(job));
            }
            if let Some(table) = self.take_burst(&mut state, burst) {
                (state.burst_was_last, state.working) = (true, true);
                return Some(Job::Burst(table));
            }
            // Nothing is in hand either. Relaxed: read by `make_way`, which may miss it.
            self.has_requests.store(false, Ordering::Relaxed);
            self.queue.work.wait(&mut state);
        }
    }

    /// Takes what Gets have overtaken off the queue's front.
    fn pass_over(&self, state: &mut State) {
        let passed = state.requests.pass_over(&mut state.pending);
        self.counters.late.add(passed);
        if passed > 0 && state.is_idle() {
            self.idle.notify_all();
        }
    }

    /// Takes a burst from the queue's front; returns its table.
    fn take_burst(&self, state: &mut State, burst: &mut Vec<u64>) -> Option<TableId> {
        let (table, passed) = state.requests.take_burst(&mut state.pending, burst)?;
        self.counters.late.add(passed);
        state.in_hand.extend_from_slice(burst);
        state.in_hand.sort_unstable();
        state.in_hand_of = Some(table);
        Some(table)
    }

    /// The burst in hand, if any, is over.
    fn end_burst(&self, state: &mut State) {
        state.in_hand.clear();
        state.in_hand_of = None;
        state.bursts += 1;
        if state.awaiting > 0 {
            self.burst_over.notify_all();
        }
    }

    fn finish_burst(
        &self,
        table: TableId,
        burst: &[u64],
        marks: &[(u64, RowMark)],
        promoted: embank_kv::Result<Promoted>,
    ) {
        let counters = &self.counters;
        let mut state = self.queue.state.lock();
        match promoted {
            Ok(promoted) => {
                counters.moved.add(promoted.moved);
                counters.late.add(promoted.resident + promoted.overtaken);
                counters.missing.add(promoted.missing);
            }
            // The table was dropped, which is nobody's failure.
            Err(embank_kv::Error::NoSuchTable(_)) => counters.cancelled.add(burst.len() as u64),
            // Whoever gets the rows is told.
            Err(
                embank_kv::Error::QuotaExceeded { .. }
                | embank_kv::Error::DiskFull { .. }
                | embank_kv::Error::Interrupted { .. },
            ) => {
                counters.failed.add(burst.len() as u64);
            }
            Err(failure) => {
                counters.failed.add(burst.len() as u64);
                state.failure.get_or_insert(failure);
            }
        }
        for &key in burst {
            state.pending.remove(number(table), key);
        }
        let wanted: Vec<_> =
            marks.iter().copied().filter(|&(key, _)| state.is_wanted(table, key)).collect();
        state.window.remember(table, &wanted);
        self.end_burst(&mut state);
        if state.is_idle() {
            self.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
