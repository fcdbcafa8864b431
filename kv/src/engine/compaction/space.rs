//! The state of a store's disk space: limits, pins and freed addresses. It is a field of `Core`.

use crate::checkpoint::Checkpoints;
use crate::device::AlignedBuffer;
use crate::engine::batch::scratch::Scratch;
use crate::engine::compaction::options::CompactionOptions;
use crate::engine::signal::Signal;
use crate::engine::signal::Turn;
use crate::index::Candidates;
use crate::record::address::Address;
use crate::record::address::TableNumber;
use crate::sync::AtomicBool;
use crate::sync::AtomicU64;
use crate::sync::Mutex;
use crate::sync::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of a store's disk space.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) options: CompactionOptions,
    pub(crate) quota_bytes: Option<u64>,
    pub(crate) signal: Arc<Signal>,
    /// The thread that compacts holds this lock while it compacts a page.
    pub(crate) pass: Mutex<Pass>,
    pub(crate) pins: Mutex<Pins>,
    /// The bank's checkpoints, for the statistics: which processes read a checkpoint, and which
    /// files could not be removed. `None` in a read-only store.
    pub(crate) checkpoints: Option<Checkpoints>,
    /// The address below which all space has been given back.
    pub(crate) freed: AtomicU64,
    /// The address below which the device was asked to give back all space. Some of this space may
    /// not be free yet: without holes, the device gives back a segment only as a whole.
    pub(crate) tried: AtomicU64,
    /// The thread that gives space back holds this lock.
    pub(crate) freeing: Mutex<()>,
    /// The page number of the log's tail when the disk last had room. `u64::MAX` before the first
    /// check.
    pub(crate) page_with_room: AtomicU64,
    /// True if the log could not take another page when a batch last checked.
    pub(crate) short: AtomicBool,
}

impl Space {
    pub(crate) fn new(
        options: CompactionOptions,
        quota_bytes: Option<u64>,
        signal: Arc<Signal>,
        pins: Pins,
        checkpoints: Option<Checkpoints>,
    ) -> Self {
        Space {
            options,
            quota_bytes,
            signal,
            pass: Mutex::default(),
            pins: Mutex::new(pins),
            checkpoints,
            freed: AtomicU64::new(0),
            tried: AtomicU64::new(0),
            freeing: Mutex::default(),
            page_with_room: AtomicU64::new(u64::MAX),
            short: AtomicBool::new(false),
        }
    }

    /// Notes that this store must give back no space below `begin`. This space was given back
    /// earlier, or it belongs to another store.
    pub(crate) fn leave_below(&self, begin: u64) {
        self.freed.store(begin, Ordering::Relaxed);
        self.tried.store(begin, Ordering::Relaxed);
    }

    pub(crate) fn background(&self) -> bool {
        self.options.background
    }

    pub(crate) fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Returns the address below which all space has been given back.
    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// Returns the reason why compaction stopped. `None` if it has not stopped.
    pub(crate) fn stopped(&self) -> Option<String> {
        self.signal.state.lock().stopped.clone()
    }

    pub(crate) fn shut_down(&self) {
        self.signal.state.lock().shutdown = true;
        self.signal.raise();
    }
}

/// Memory and state that compaction keeps from one page to the next.
#[derive(Default)]
pub(crate) struct Pass {
    pub(crate) buffer: Option<AlignedBuffer>,
    pub(crate) rows: Vec<Row>,
    /// Records without a current row: tombstones, and records of dropped tables.
    pub(crate) dead: Vec<Row>,
    /// Keys and addresses of rows that may be in chains, by table.
    pub(crate) chained: BTreeMap<TableNumber, (Vec<u64>, Vec<Address>)>,
    pub(crate) candidates: Candidates,
    pub(crate) scratch: Box<Scratch>,
    /// The size of the page and of its records, for `note_turn`.
    pub(crate) fill: Turn,
    /// The bucket at which the sweep of the index continues.
    pub(crate) sweep: u64,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass").field("sweep", &self.sweep).finish_non_exhaustive()
    }
}

/// A record of the page that is being compacted, identified by its offset in the page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) offset: u32,
    pub(crate) hash: u64,
}

/// The holders of the log, and the addresses from which they need it.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// The checkpoints that are on disk or being taken. Each has its number and the address at
    /// which its log begins.
    pub(crate) checkpoints: Vec<(u64, u64)>,
    /// For each scan, the address at which its log begins.
    pub(crate) scans: Vec<u64>,
    /// True while a checkpoint is being taken. At its end, older checkpoints may release space.
    pub(crate) taking: bool,
}

impl Pins {
    pub(crate) fn new(checkpoints: Vec<(u64, u64)>) -> Self {
        Pins { checkpoints, ..Pins::default() }
    }

    pub(crate) fn checkpoints(&self) -> &[(u64, u64)] {
        &self.checkpoints
    }

    pub(crate) fn scans(&self) -> &[u64] {
        &self.scans
    }

    pub(crate) fn lowest(&self) -> Option<u64> {
        let checkpoints = self.checkpoints.iter().map(|&(_, begin)| begin);
        checkpoints.chain(self.scans.iter().copied()).min()
    }
}
