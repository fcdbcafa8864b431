//! Keeps clocks still while rows that have leases on them are deleted.
//!
//! A call that moves clocks for a lease, up or down, is inside the turnstile from before the change
//! until the lease is registered or answered. A deletion of rows with leases shuts the turnstile.
//! The calls inside finish first, so every count then belongs to a registered lease. No call can
//! get the row again before the deletion is over.
//!
//! The turnstile has lanes, so that threads seldom share one: entering costs an uncontended lock.
//! No thread is inside while it waits for a staleness bound, or for another turnstile.

use embank_kv::locks::{RwLock, RwLockReadGuard, RwLockWriteGuard};

const LANES: usize = 16;

#[derive(Debug)]
pub(crate) struct Turnstile {
    lanes: Box<[Lane]>,
}

/// Alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(RwLock<()>);

/// While this exists, the thread may move clocks for leases.
#[must_use]
pub(crate) struct Entered<'a> {
    _lane: RwLockReadGuard<'a, ()>,
}

/// While this exists, no thread moves a clock for a lease.
#[must_use]
pub(crate) struct Shut<'a> {
    _lanes: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Turnstile {
    pub(crate) fn new() -> Self {
        Self { lanes: (0..LANES).map(|_| Lane::default()).collect() }
    }

    /// Threads with different numbers use different lanes. A thread must not enter twice.
    pub(crate) fn enter(&self, thread: usize) -> Entered<'_> {
        Entered { _lane: self.lanes[thread % LANES].0.read() }
    }

    pub(crate) fn shut(&self) -> Shut<'_> {
        // All threads lock the lanes in one order, so two of them do not wait for each other.
        Shut { _lanes: self.lanes.iter().map(|lane| lane.0.write()).collect() }
    }
}
