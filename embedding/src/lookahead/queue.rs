//! The queue of rows to read, which callers and the worker share.

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

/// What happened to the distinct keys of one lookahead.
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
    /// Already in mutable memory, or in no table.
    pub resident: usize,
    /// Queued by this call.
    pub queued: usize,
    /// Already queued or being read.
    pub merged: usize,
    /// Refused because the queue is full.
    pub dropped: usize,
}

impl LookaheadReceipt {
    /// The keys that are on their way into memory: queued and merged ones.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.queued + self.merged
    }
}

/// Rows that the worker reads for a caller, between its bursts. If it is dropped unfinished, it
/// tells its caller.
pub(crate) trait Job: fmt::Debug + Send {
    /// Reads up to `keys_max` rows. True when the job is done and its caller knows it.
    fn advance(&mut self, store: &Store, keys_max: usize) -> bool;
}

/// Shared by callers and the worker. The worker's methods stand in `worker.rs`.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) queue: Arc<Queue>,
    /// Most bytes of the values of a group.
    pub(crate) burst_bytes_max: u64,
    /// False if no row waits in the queue and there is no current burst. Written under the queue's
    /// lock.
    pub(crate) has_requests: AtomicBool,
    /// Signalled when there is no more work.
    pub(crate) idle: Condvar,
    /// Signalled when a burst has ended for which a Get waits.
    pub(crate) burst_over: Condvar,
    pub(crate) counters: Counters,
}

/// The part that the store's writer calls. It must not own the store.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) state: Mutex<QueueState>,
    /// Signalled when there is work, or when the worker must stop.
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
    /// The rows of the queue and of the current burst.
    pub(crate) pending: PendingSet,
    /// Announced rows in mutable memory.
    pub(crate) window: Window,
    /// True if rows of the window may be about to leave memory.
    pub(crate) look: bool,
    /// True while the worker copies these rows.
    pub(crate) looking: bool,
    /// Requests that were cancelled since the worker took its current task. Their rows do not
    /// return to the window.
    pub(crate) cancelled: Vec<Cancelled>,
    /// True while the worker has a task.
    pub(crate) working: bool,
    /// The keys of the current burst, in ascending order. Empty between bursts.
    pub(crate) in_hand: Vec<u64>,
    pub(crate) in_hand_of: Option<TableId>,
    /// Bursts that are over.
    pub(crate) bursts: u64,
    /// Gets that wait for the end of the current burst.
    pub(crate) awaiting: usize,
    /// Prefetches into buffers, in their order.
    pub(crate) prefetches: VecDeque<Box<dyn Job>>,
    pub(crate) burst_was_last: bool,
    pub(crate) stopping: bool,
    pub(crate) failure: Option<embank_kv::Error>,
}

impl QueueState {
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.len() == 0 && !self.look && !self.looking
    }

    /// True if a row of the current task was not cancelled since.
    pub(crate) fn is_wanted(&self, table: TableId, key: u64) -> bool {
        !self.cancelled.iter().any(|cancelled| cancelled.covers(table, key))
    }
}

/// Requests that their callers have cancelled.
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
    /// The depth that an `AutoDepth` has chosen.
    pub(crate) depth: AtomicU64,
}

impl Shared {
    /// The number of rows of `row_bytes` bytes that one group may have.
    pub(crate) fn fitting(&self, row_bytes: u64) -> usize {
        (self.burst_bytes_max / row_bytes.max(1)) as usize
    }

    /// Queues the keys in groups of at most `fitting` keys, or more if that is too few for a burst.
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
            // Lets another thread have the queue.
            MutexGuard::bump(&mut state);
        }
    }

    /// Forgets all pending keys, and counts them as failed.
    pub(crate) fn give_up_pending(&self) {
        let mut state = self.queue.state.lock();
        self.counters.failed.add(state.pending.len() as u64);
        state.requests.clear();
        state.pending.clear();
        // No thread would copy the rows of the window.
        state.window.forget(|_, _| true);
        state.look = false;
        state.looking = false;
        state.working = false;
        self.has_requests.store(false, Ordering::Relaxed);
        self.end_burst(&mut state);
        state.cancelled.clear();
        // Their drop takes only locks of their own.
        state.prefetches.clear();
        self.idle.notify_all();
    }

    /// Ends the current burst, if there is one.
    pub(crate) fn end_burst(&self, state: &mut QueueState) {
        state.in_hand.clear();
        state.in_hand_of = None;
        state.bursts += 1;
        if state.awaiting > 0 {
            self.burst_over.notify_all();
        }
    }
}
