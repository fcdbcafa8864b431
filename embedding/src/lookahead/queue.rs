//! The queue of rows to read. Callers and the worker share it.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use embank_kv::locks::{Condvar, Mutex, MutexGuard};
use embank_kv::{RowMark, Store, TableId};

use crate::error::StoreError;
use crate::lookahead::pending::{Insertion, PendingSet};
use crate::lookahead::requests::{Requests, number};
use crate::lookahead::window::Window;
use crate::stats::counter::Counter;

/// The result of one [`Table::lookahead`](crate::Table::lookahead): the number of distinct keys
/// with each outcome.
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
    /// Keys whose rows are already in mutable memory or do not exist.
    pub resident: usize,
    /// Keys that this call queued.
    pub queued: usize,
    /// Keys that were already queued or being read.
    pub merged: usize,
    /// Keys that were refused because the queue was full.
    pub dropped: usize,
}

impl LookaheadReceipt {
    /// Number of keys that will be brought into memory: queued and merged ones.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.queued + self.merged
    }
}

/// A job of the worker: it reads rows into a caller's buffer, between bursts. If a job is dropped
/// before it is done, it informs its caller.
pub(crate) trait Job: fmt::Debug + Send {
    /// Reads up to `keys_max` rows. Returns true when the job is done and has informed its caller.
    fn advance(&mut self, store: &Store, keys_max: usize) -> bool;
}

/// The state that callers share with the worker. `worker.rs` has the worker's methods.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) queue: Arc<Queue>,
    /// Limit on the bytes of all values of a group.
    pub(crate) burst_bytes_max: u64,
    /// False if the queue is empty and no burst is running. Written under the queue's lock.
    pub(crate) has_requests: AtomicBool,
    /// Signalled when all work is done.
    pub(crate) idle: Condvar,
    /// Signalled when a burst ends and a Get waits for it.
    pub(crate) burst_over: Condvar,
    pub(crate) counters: Counters,
}

/// The state of lookahead that the store's writer thread calls. `Queue` must not own the store,
/// because the store owns the `Queue`; two owners of each other would never be dropped.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) state: Mutex<QueueState>,
    /// Signalled when there is work for the worker, or when it must stop.
    pub(crate) work: Condvar,
}

impl Queue {
    /// Called by the store after the log's boundaries have moved.
    pub(crate) fn boundaries_moved(&self) {
        let mut state = self.state.lock();
        if !state.window.is_empty() {
            state.look = true;
            self.work.notify_one();
        }
    }
}

#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) requests: Requests,
    /// The rows in the queue and in the current burst.
    pub(crate) pending: PendingSet,
    /// Announced rows that are in mutable memory.
    pub(crate) window: Window,
    /// True if rows of the window may be about to leave memory.
    pub(crate) look: bool,
    /// True while the worker copies rows that are about to leave memory.
    pub(crate) looking: bool,
    /// Requests that were cancelled since the worker began its current task. At the end of the
    /// task, the worker does not put their rows into the window.
    pub(crate) cancelled: Vec<Cancelled>,
    /// True while the worker has a task.
    pub(crate) working: bool,
    /// Keys of the current burst, in ascending order. Empty between bursts.
    pub(crate) in_hand: Vec<u64>,
    pub(crate) in_hand_of: Option<TableId>,
    /// Number of bursts that have ended.
    pub(crate) bursts: u64,
    /// Number of Gets that wait for the end of the current burst.
    pub(crate) awaiting: usize,
    /// Jobs that read into buffers, in order.
    pub(crate) prefetches: VecDeque<Box<dyn Job>>,
    pub(crate) burst_was_last: bool,
    pub(crate) stopping: bool,
    pub(crate) failure: Option<StoreError>,
}

impl QueueState {
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.len() == 0 && !self.look && !self.looking
    }

    /// True if a row of the current task was not cancelled since the task began.
    pub(crate) fn is_wanted(&self, table: TableId, key: u64) -> bool {
        !self.cancelled.iter().any(|cancelled| cancelled.covers(table, key))
    }
}

/// Requests that were cancelled.
#[derive(Debug)]
pub(crate) enum Cancelled {
    All,
    Table(TableId),
    Keys(TableId, HashSet<u64>),
}

impl Cancelled {
    pub(crate) fn covers(&self, table: TableId, key: u64) -> bool {
        match self {
            Self::All => true,
            Self::Table(of) => *of == table,
            Self::Keys(of, keys) => *of == table && keys.contains(&key),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requested: Counter,
    pub(crate) resident: Counter,
    pub(crate) queued: Counter,
    pub(crate) merged: Counter,
    pub(crate) dropped: Counter,
    pub(crate) moved: Counter,
    pub(crate) late: Counter,
    pub(crate) missing: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) failed: Counter,
    pub(crate) kept: Counter,
    pub(crate) reading_us: Counter,
    /// An upper bound on the number of rows whose request was cancelled after the worker had taken
    /// them. Such rows may leave memory unused although the depth was right.
    pub(crate) cancelled_too_late: Counter,
    /// The depth that an `AutoDepth` has chosen.
    pub(crate) depth: AtomicU64,
}

impl Shared {
    /// Returns the number of rows of `row_bytes` bytes that one group may have.
    pub(crate) fn fitting(&self, row_bytes: u64) -> usize {
        (self.burst_bytes_max / row_bytes.max(1)) as usize
    }

    /// Queues the keys in groups of at most `fitting` keys, or of at most `BURST_KEYS_MIN` keys if
    /// `fitting` is less.
    pub(crate) fn enqueue(
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
            let QueueState { requests, pending, .. } = &mut *state;
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
            // Lets another thread use the queue.
            MutexGuard::bump(&mut state);
        }
    }

    /// Removes all pending keys and counts them as failed.
    pub(crate) fn give_up_pending(&self) {
        let mut state = self.queue.state.lock();
        self.counters.failed.add(state.pending.len() as u64);
        state.requests.clear();
        state.pending.clear();
        // Without a worker, no thread would copy the rows of the window.
        state.window.forget(|_, _| true);
        state.look = false;
        state.looking = false;
        state.working = false;
        self.has_requests.store(false, Ordering::Relaxed);
        self.end_burst(&mut state);
        state.cancelled.clear();
        // Dropping these jobs under the queue's lock is safe: a job's drop takes only the job's own
        // locks.
        state.prefetches.clear();
        self.idle.notify_all();
    }

    /// Ends the current burst, if one is running.
    pub(crate) fn end_burst(&self, state: &mut QueueState) {
        state.in_hand.clear();
        state.in_hand_of = None;
        state.bursts += 1;
        if state.awaiting > 0 {
            self.burst_over.notify_all();
        }
    }
}
