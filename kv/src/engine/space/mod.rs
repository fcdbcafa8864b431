//! The disk space of a log: which space rows need, which space is given back to the file system,
//! and what a writer does that finds no space.
//!
//! - [`Space`]: the state. `options`: when and how fast compaction frees space.
//! - `room`: the room that the log has, below its quota and on the disk ([`Headroom`]).
//! - `pressure`: how far the log's length exceeds the size that its rows need.
//! - `tiers`: when a bank has two tiers, and which spills and merges are due then. `tier_memory`:
//!   the memory that these take.
//! - `waiting`: when there is work for compaction, and what a writer does that lacks room or is too
//!   far ahead of compaction.
//! - `pins`: the checkpoints and scans that keep old space, and how other space is given back.
//! - `compactor`: the work of the compaction thread, and the call `Store::compact`. `thread`:
//!   starts and ends this thread. `signal`: wakes this thread and the writers that wait for it.
//! - `compaction`: copies the current rows of the log's oldest page to the tail. In a bank with two
//!   tiers, moves the rows of the oldest pages to the cold tier, and merges there.
//!
//! Batches call [`Headroom`], a checkpoint and a scan call `pins`, and only `compactor` calls
//! `compaction`.

mod compaction;
pub(crate) mod compactor;
pub(crate) mod options;
pub(crate) mod pins;
mod pressure;
mod room;
mod signal;
pub(crate) mod thread;
pub(crate) mod tier_memory;
pub(crate) mod tiers;
mod waiting;

use std::sync::{Arc, OnceLock};

use crate::checkpoint::Checkpoints;
use crate::log::Log;
use crate::memory::budget::Budget;
use crate::options::StoreOptions;
use crate::stats::Counters;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use compaction::Pass;
use options::{ColdTier, CompactionOptions};
use pins::Pins;
pub(crate) use room::{Headroom, quota_reserve_bytes};
pub(crate) use signal::Signal;
use signal::Until;
use thread::CompactorThread;
pub use tiers::TierLimits;

/// To remove a file takes as long as to write about this number of bytes.
const WORK_BYTES_PER_FILE: u64 = 16 << 10;

/// The state of a store's disk space.
#[derive(Debug)]
pub(crate) struct Space {
    options: CompactionOptions,
    quota_bytes: Option<u64>,
    cold_tier: ColdTier,
    /// True once the bank should have a second tier. Never becomes false again.
    second_tier: AtomicBool,
    /// What tests have set for the second tier.
    tier_limits: OnceLock<TierLimits>,
    signal: Arc<Signal>,
    thread: CompactorThread,
    /// The thread that compacts holds this lock while it compacts a page.
    pass: Mutex<Pass>,
    pins: Mutex<Pins>,
    /// The bank's checkpoints, for the statistics: which processes read a checkpoint, and which
    /// files could not be removed. `None` in a read-only store.
    checkpoints: Option<Checkpoints>,
    /// The address below which all space has been given back.
    freed: AtomicU64,
    /// The address below which the device was asked to give back all space. Some of this space may
    /// not be free yet: without holes, the device gives back a segment only as a whole.
    tried: AtomicU64,
    /// The thread that gives space back holds this lock.
    freeing: Mutex<()>,
    /// The page number of the log's tail when the disk last had room. `u64::MAX` before the first
    /// check.
    page_with_room: AtomicU64,
    /// True if the log could not take another page when a batch last checked.
    short: AtomicBool,
    /// True if writers of a bank in two tiers were far ahead of spills and merges when a thread
    /// last checked.
    far_ahead: AtomicBool,
    /// While the log ends below this address, no writer waits for spills and merges. The first of
    /// several waiting writers to go on moves it, so the others go on, too.
    next_wait: AtomicU64,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
}

impl Space {
    /// Makes the state for a store that is open for writing. `kept` has the number of each
    /// checkpoint on disk, and the address at which its log begins.
    pub(crate) fn new(
        options: &StoreOptions,
        checkpoints: Checkpoints,
        kept: Vec<(u64, u64)>,
        budget: &Arc<Budget>,
        counters: &Arc<Counters>,
    ) -> Self {
        Space {
            options: options.compaction.clone(),
            quota_bytes: options.disk_quota_bytes,
            cold_tier: options.cold_tier,
            pins: Mutex::new(Pins { checkpoints: kept, ..Pins::default() }),
            checkpoints: Some(checkpoints),
            ..Space::with_begin(0, budget, counters)
        }
    }

    /// Makes the state for a read-only store. Only the writer frees log, so this store gives back
    /// no space below `log_begin`.
    pub(crate) fn of_reader(
        log_begin: u64,
        budget: &Arc<Budget>,
        counters: &Arc<Counters>,
    ) -> Self {
        // A reader has no compaction thread.
        let options = CompactionOptions { background: false, ..CompactionOptions::default() };
        Space { options, ..Space::with_begin(log_begin, budget, counters) }
    }

    /// Makes a state in which all space below `log_begin` counts as given back.
    fn with_begin(log_begin: u64, budget: &Arc<Budget>, counters: &Arc<Counters>) -> Self {
        Space {
            options: CompactionOptions::default(),
            quota_bytes: None,
            cold_tier: ColdTier::default(),
            second_tier: AtomicBool::new(false),
            tier_limits: OnceLock::new(),
            signal: Arc::default(),
            thread: CompactorThread::default(),
            pass: Mutex::default(),
            pins: Mutex::default(),
            checkpoints: None,
            freed: AtomicU64::new(log_begin),
            tried: AtomicU64::new(log_begin),
            freeing: Mutex::default(),
            page_with_room: AtomicU64::new(u64::MAX),
            short: AtomicBool::new(false),
            far_ahead: AtomicBool::new(false),
            next_wait: AtomicU64::new(0),
            budget: Arc::clone(budget),
            counters: Arc::clone(counters),
        }
    }

    pub(crate) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    /// Returns the address below which all space has been given back.
    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of log that are on the device. Pages that rows have left for the
    /// cold tier before they were written count, too.
    pub(crate) fn disk_bytes(&self, log: &Log) -> u64 {
        log.flushed().saturating_sub(self.freed())
    }

    /// Returns the files that could not be removed, one line for each file.
    pub(crate) fn not_removed(&self, log: &Log) -> Vec<String> {
        let checkpoints = self.checkpoints.as_ref();
        let mut lines = checkpoints.map_or(Vec::new(), |all| all.left.lock().lines());
        lines.extend(log.device.not_removed());
        lines
    }

    /// Returns the reason why compaction stopped, or why merges leave a part of the cold tier out.
    /// `None` if compaction has not stopped.
    pub(crate) fn stopped(&self) -> Option<String> {
        let state = self.signal.state.lock();
        state.stopped.as_ref().map(|(reason, _)| reason.clone()).or(state.left_out.clone())
    }

    /// A checkpoint calls this function when it finds the bank's directory at its path. If
    /// compaction had stopped because the directory was moved, compaction continues.
    pub(crate) fn note_in_place(&self) {
        self.signal.state.lock().go_on_after(Until::InPlace);
    }

    /// Notes that the file of a part was removed, which takes the time of some work.
    pub(crate) fn note_file(&self) {
        self.signal.note_work(WORK_BYTES_PER_FILE);
    }

    /// Ends the compaction thread. No batch may run, and none may follow.
    pub(crate) fn shut_down(&self) {
        self.signal.state.lock().shutdown = true;
        self.signal.raise();
        self.thread.join();
    }
}
