//! Lookahead: brings rows that training will soon need from disk into memory before the Get.
//!
//! `announce` asks the index which keys are on disk or will leave memory next, and queues those
//! keys. It holds the queue's lock only for hash look-ups and never waits for the disk. One worker
//! thread takes bursts of keys from the queue, and the store reads their rows into memory. The
//! thread parks while there is no work. The queue, and the set that merges duplicates, have a fixed
//! capacity, taken from the bank's memory budget. A key that does not fit is dropped and counted;
//! the Get then reads its row itself.
//!
//! An announced row that is in memory may leave memory before its batch comes. The module `window`
//! therefore remembers announced rows in mutable memory. The store reports when the log's
//! boundaries move. The worker then looks for remembered rows that are about to leave memory and
//! were not used since their announcement. It copies these rows to the log's tail.
//!
//! If the disk is too slow, a Get may need rows that still wait in the queue. The Get *overtakes*
//! them: it reads them itself, and the worker skips them. Without overtaking, nearly every row
//! would be read twice when the disk is the limit: by the Get, and later by the worker. Rows of the
//! current burst are already being read. A Get that needs many of them waits for the burst, up to a
//! limit, and then reads the rows that have not arrived. While other calls read, a burst is a
//! background call and reaches 0.7 to 0.9 of its speed (`kv/src/device/priority.rs`). Within a
//! burst, read-only rows in memory wait for the rows on disk. These two effects cost a waiting Get
//! at most a part of one burst. If an overtaken row was announced several times, the worker skips
//! all of these announcements. The Get has just moved the row to the log's tail, where it stays in
//! memory longest.
//!
//! The worker has normal thread priority. A low priority would cost most when the disk is the
//! limit, and a thread can't raise its priority again after lowering it.
//!
//! A key counts as late if a Get overtook it, or if its row is already in mutable memory when its
//! turn comes. In the second case another call has brought the row there, because the row was not
//! in mutable memory when the key was queued. A mark in the record tells the store whether a row
//! that was brought in was used in time.

pub(crate) mod depth;
pub(crate) mod pending;
pub(crate) mod queue;
pub(crate) mod requests;
pub(crate) mod window;
pub(crate) mod worker;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use embank_kv::locks::{Condvar, Mutex, MutexGuard};
use embank_kv::{RunningTime, Store, StoreStats, TableId};

use crate::error::{Error, Result, StoreError};
use crate::keys::UniqueKeys;
use crate::lookahead::pending::PendingSet;
use crate::lookahead::queue::{
    Cancelled, Counters, Job, LookaheadReceipt, Queue, QueueState, Shared,
};
use crate::lookahead::requests::{BURST_KEYS_MAX, BURST_KEYS_MIN, Requests, number};
use crate::lookahead::window::{Remembered, Window};
use crate::stats::LookaheadStats;

/// The values of a group (rows that are announced together) take at most 1 / `BURST_BUDGET_SHARE`
/// of the bank's budget, unless the group has few rows (`Requests::groups`). The limit keeps bursts
/// short, because the worker copies rows that leave memory soon only between bursts.
const BURST_BUDGET_SHARE: u64 = 16;

/// By default the queue takes 1 / `BUDGET_SHARE` of the bank's budget.
const BUDGET_SHARE: u64 = 32;
/// Largest default for the queue's memory, in bytes. It is enough for 790,000 keys; with more keys,
/// rows would be read too early.
const MEMORY_BYTES_MAX: u64 = 40 << 20;

/// A Get waits for the current burst if it needs at least 1 / `WANTED_SHARE` of the burst's keys.
/// Otherwise the Get reads these rows itself, although the burst reads them too.
const WANTED_SHARE: usize = 4;
/// A Get waits for a burst at most this long per 1,024 keys of the burst. Only a drive with fewer
/// than about 10,000 reads a second takes longer.
const WAIT_PER_1024_KEYS: Duration = Duration::from_millis(100);
/// Number of keys that a Get looks up in the queue before it lets other threads take the lock.
const OVERTAKEN_AT_ONCE_MAX: usize = 4096;

/// The window's capacity in rows is the queue's capacity in keys divided by this number. A row is
/// in the window until its batch has come, but in the queue only until it is read.
const KEYS_PER_REMEMBERED: usize = 2;

/// Memory per key of the queue's capacity, in bytes.
const BYTES_PER_KEY: u64 = Requests::BYTES_PER_KEY
    + PendingSet::BYTES_PER_KEY
    + (size_of::<Remembered>() / KEYS_PER_REMEMBERED) as u64;

/// Returns the number of keys that may be pending in a bank with this budget.
pub(crate) fn capacity_for_budget(budget_bytes: u64) -> usize {
    ((budget_bytes / BUDGET_SHARE).min(MEMORY_BYTES_MAX) / BYTES_PER_KEY) as usize
}

/// Returns the memory of a queue with this capacity, in bytes.
pub(crate) fn memory_bytes(capacity_keys: usize) -> u64 {
    (capacity_keys as u64).saturating_mul(BYTES_PER_KEY)
}

/// Returns the smallest budget that leaves `store_bytes` to the store after the queue took its
/// share.
pub(crate) fn budget_for(store_bytes: u64) -> u64 {
    let share = (store_bytes / (BUDGET_SHARE - 1) + 1).min(MEMORY_BYTES_MAX);
    store_bytes.saturating_add(share)
}

/// A bank's lookahead queue and its worker thread. Dropping this struct stops the worker after the
/// current burst.
#[derive(Debug)]
pub(crate) struct Lookahead {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Lookahead {
    pub(crate) fn new(store: Arc<Store>, budget_bytes: u64, capacity_keys: usize) -> Self {
        let state = QueueState {
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

    /// Queues the keys whose rows are on disk or in the read-only region, which leaves memory next.
    /// A row takes `row_bytes`.
    ///
    /// # Errors
    /// [`Error::LookaheadFailed`] if the worker failed since the last call. Each failure is
    /// reported once. The call that reports it queues no keys.
    /// [`ThreadRefused`](crate::StoreError::ThreadRefused) if the worker can't be started.
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
        let unique = UniqueKeys::new(keys)?;
        let keys = unique.keys();
        let mut wanted = Vec::new();
        let mut resident = Vec::new();
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

    /// Called by a Get of these distinct keys. Overtakes keys that wait in the queue, so the worker
    /// skips them. If many of the keys are in the current burst, waits for the burst.
    pub(crate) fn make_way(&self, table: TableId, keys: &[u64]) {
        // Relaxed: a Get that misses a very new announcement reads the row as without lookahead.
        if self.shared.has_requests.load(Ordering::Relaxed) {
            self.make_way_within(table, keys, WAIT_PER_1024_KEYS);
        }
    }

    /// Does the work of `make_way`. Returns true if the Get waited and the burst ended within the
    /// time. Returns `None` if the Get did not wait.
    fn make_way_within(
        &self,
        table: TableId,
        keys: &[u64],
        wait_per_1024_keys: Duration,
    ) -> Option<bool> {
        let shared = &*self.shared;
        let mut state = shared.queue.state.lock();
        let mut burst = state.bursts;
        let mut wanted = 0;
        for chunk in keys.chunks(OVERTAKEN_AT_ONCE_MAX) {
            // Lets another thread use the queue.
            MutexGuard::bump(&mut state);
            let QueueState { pending, in_hand, in_hand_of, bursts, .. } = &mut *state;
            if *bursts != burst {
                burst = *bursts;
                wanted = 0;
            }
            let is_in_hand = |key| *in_hand_of == Some(table) && in_hand.binary_search(key).is_ok();
            let overtaken = chunk.iter().filter(|&&key| pending.overtake(number(table), key));
            wanted += overtaken.filter(|&key| is_in_hand(key)).count();
        }
        if state.bursts != burst || wanted == 0 || wanted * WANTED_SHARE < state.in_hand.len() {
            return None;
        }
        let wait = wait_per_1024_keys * state.in_hand.len().div_ceil(1024) as u32;
        let deadline = RunningTime::now() + wait;
        state.awaiting += 1;
        let mut in_time = true;
        while in_time && state.bursts == burst {
            shared.burst_over.wait_until(&mut state, deadline.look_by());
            in_time = RunningTime::now() < deadline;
        }
        state.awaiting -= 1;
        Some(state.bursts != burst)
    }

    /// Queues a job for the worker that reads rows into a buffer.
    ///
    /// # Errors
    /// [`ThreadRefused`](crate::StoreError::ThreadRefused) if the worker can't be started.
    pub(crate) fn prefetch(&self, job: Box<dyn Job>) -> Result<()> {
        self.start_worker()?;
        self.shared.queue.state.lock().prefetches.push_back(job);
        self.shared.queue.work.notify_one();
        Ok(())
    }

    fn start_worker(&self) -> Result<()> {
        let mut worker = self.worker.lock();
        if worker.as_ref().is_none_or(JoinHandle::is_finished) {
            // A worker that has ended before the bank has panicked, and has printed the panic. The
            // rows of the queue and of the current burst are given up.
            self.shared.give_up_pending();
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("embank-lookahead".to_owned());
            let started = thread.spawn(move || shared.work());
            *worker = Some(started.map_err(|source| StoreError::ThreadRefused {
                thread: "lookahead",
                path: self.shared.store.path().to_owned(),
                source,
            })?);
        }
        Ok(())
    }

    /// Empties the queue and returns the number of its keys. A burst that has begun continues.
    pub(crate) fn cancel(&self) -> usize {
        let given_up = self.cancel_those(Cancelled::All);
        self.count_all_as_cancelled();
        given_up
    }

    /// Removes `keys` of a table from the queue. Returns the number of these keys that were in the
    /// queue.
    pub(crate) fn cancel_keys(&self, table: TableId, keys: &[u64]) -> usize {
        let given_up = self.cancel_those(Cancelled::Keys(table, keys.iter().copied().collect()));
        self.shared.counters.cancelled_too_late.add(keys.len().saturating_sub(given_up) as u64);
        given_up
    }

    /// Removes the rows of a dropped table from the queue. A burst that has begun continues.
    pub(crate) fn forget(&self, table: TableId) {
        self.cancel_those(Cancelled::Table(table));
        self.count_all_as_cancelled();
    }

    /// Adds to `cancelled_too_late`, which is an upper bound: the rows may be of other tables.
    fn count_all_as_cancelled(&self) {
        let in_hand = self.shared.queue.state.lock().pending.len() as u64;
        // `promoted` is read after `in_hand`. A row counts as promoted before it leaves the pending
        // set, so the sum misses no row.
        let promoted = self.shared.store.promoted();
        self.shared.counters.cancelled_too_late.add(promoted + in_hand);
    }

    fn cancel_those(&self, cancelled: Cancelled) -> usize {
        let mut state = self.shared.queue.state.lock();
        let QueueState { requests, pending, window, .. } = &mut *state;
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

    /// Waits until no key is pending. Returns false if keys are still pending at `deadline`.
    pub(crate) fn wait_idle(&self, deadline: RunningTime) -> bool {
        let mut state = self.shared.queue.state.lock();
        while !state.is_idle() {
            self.shared.idle.wait_until(&mut state, deadline.look_by());
            if RunningTime::now() >= deadline {
                return state.is_idle();
            }
        }
        true
    }

    pub(crate) fn note_depth(&self, depth: usize) {
        // Relaxed: only statistics read the value.
        self.shared.counters.depth.store(depth as u64, Ordering::Relaxed);
    }

    /// Returns an upper bound on the number of rows whose request was cancelled only after the
    /// worker had taken them.
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
        if !self.shared.store.is_of_this_process() {
            // A forked child does not have the worker, which may have held the queue's lock.
            std::mem::forget(self.worker.get_mut().take());
            return;
        }
        self.shared.queue.state.lock().stopping = true;
        self.shared.queue.work.notify_all();
        if let Some(worker) = self.worker.lock().take() {
            // A worker that panicked has already printed the panic, so the result is ignored.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests;
