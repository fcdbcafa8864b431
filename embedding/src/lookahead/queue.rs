//! The queue of rows that are to be read ahead: what callers and the worker share.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use embank_kv::locks::{Condvar, Mutex, MutexGuard};
use embank_kv::{RowMark, Store, TableId};

use crate::lookahead::pending::{Insertion, PendingSet};
use crate::lookahead::requests::{Requests, number};
use crate::lookahead::window::Window;
use crate::stats::counter::Counter;

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

/// Rows that the worker reads for a caller, between its bursts. Dropped unfinished, it tells its
/// caller.
pub(crate) trait Job: fmt::Debug + Send {
    /// Reads up to `keys_max` rows; true when the job is over, and its caller knows.
    fn advance(&mut self, store: &Store, keys_max: usize) -> bool;
}

/// What callers and the worker share. What the worker does with it stands in `worker.rs`.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) queue: Arc<Queue>,
    /// What the values of a group's rows may take.
    pub(crate) burst_bytes_max: u64,
    /// Whether there may be rows that wait in the queue or are in hand; written under the queue's
    /// lock.
    pub(crate) has_requests: AtomicBool,
    /// Signalled when there is nothing to do any more.
    pub(crate) idle: Condvar,
    /// Signalled when a burst is over and a Get waits for that.
    pub(crate) burst_over: Condvar,
    pub(crate) counters: Counters,
}

/// What the store's writer may tell: it must not own the store.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) state: Mutex<QueueState>,
    /// Signalled when there is work or the worker has to stop.
    pub(crate) work: Condvar,
}

impl Queue {
    /// The log's boundaries have moved.
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
    /// The rows of the queue and of the burst in hand.
    pub(crate) pending: PendingSet,
    /// Announced rows in mutable memory.
    pub(crate) window: Window,
    /// Some of them may be about to leave it.
    pub(crate) look: bool,
    /// The worker is looking after those.
    pub(crate) looking: bool,
    /// What was cancelled since the worker took what it has in hand: it does not come back to the
    /// window.
    pub(crate) cancelled: Vec<Cancelled>,
    /// The worker has something in hand.
    pub(crate) working: bool,
    /// The keys of the burst in hand, ascending, and their table; none between bursts.
    pub(crate) in_hand: Vec<u64>,
    pub(crate) in_hand_of: Option<TableId>,
    /// Bursts that are over.
    pub(crate) bursts: u64,
    /// Gets that wait for the end of the burst in hand.
    pub(crate) awaiting: usize,
    /// Requests for buffers, in their order.
    pub(crate) prefetches: VecDeque<Box<dyn Job>>,
    pub(crate) burst_was_last: bool,
    pub(crate) stopping: bool,
    pub(crate) failure: Option<embank_kv::Error>,
}

impl QueueState {
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.len() == 0 && !self.look && !self.looking
    }

    /// Whether a row that the worker has in hand was not cancelled meanwhile.
    pub(crate) fn is_wanted(&self, table: TableId, key: u64) -> bool {
        !self.cancelled.iter().any(|cancelled| cancelled.covers(table, key))
    }
}

/// Requests that no caller waits for any more.
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
    /// An upper bound on the rows whose requests were cancelled while they were moved or after
    /// that. This many rows may leave memory unused without a fault of the depth.
    pub(crate) cancelled_too_late: Counter,
    /// As an `AutoDepth` has chosen it.
    pub(crate) depth: AtomicU64,
}

impl Shared {
    /// How many rows of `row_bytes` bytes one group may have.
    pub(crate) fn fitting(&self, row_bytes: u64) -> usize {
        (self.burst_bytes_max / row_bytes.max(1)) as usize
    }

    /// The keys are queued in groups of no more than `fitting`, if that is enough for a burst.
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
            // Another thread that wants the queue gets it in between.
            MutexGuard::bump(&mut state);
        }
    }

    /// Forgets everything that is pending, as failed.
    pub(crate) fn give_up_pending(&self) {
        let mut state = self.queue.state.lock();
        self.counters.failed.add(state.pending.len() as u64);
        state.requests.clear();
        state.pending.clear();
        // No thread would look after the rows of the window.
        state.window.forget(|_, _| true);
        state.look = false;
        state.looking = false;
        state.working = false;
        self.has_requests.store(false, Ordering::Relaxed);
        self.end_burst(&mut state);
        state.cancelled.clear();
        // Dropping them takes locks of their own alone.
        state.prefetches.clear();
        self.idle.notify_all();
    }

    /// The burst in hand, if any, is over.
    pub(crate) fn end_burst(&self, state: &mut QueueState) {
        state.in_hand.clear();
        state.in_hand_of = None;
        state.bursts += 1;
        if state.awaiting > 0 {
            self.burst_over.notify_all();
        }
    }
}
