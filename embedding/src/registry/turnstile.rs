//! The turnstile: keeps clocks still while rows with leases are deleted.
//!
//! A call that moves clocks for a lease stays inside the turnstile from before the change until the
//! lease is registered or ended. A deletion of rows with leases shuts the turnstile, and waits for
//! the calls inside to finish. After that, every count belongs to a registered lease. No call can
//! get a deleted row again until the deletion is over.
//!
//! The turnstile has several lanes, each with a lock. Threads seldom share a lane, so the lock that
//! a thread takes to enter is rarely contended. A thread inside never waits for a staleness bound
//! or for another turnstile.

use embank_kv::locks::{RwLock, RwLockReadGuard, RwLockWriteGuard};

const LANES: usize = 16;

#[derive(Debug)]
pub(crate) struct Turnstile {
    lanes: Box<[Lane]>,
}

/// Aligned to 128 bytes, so two lanes never share a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(RwLock<()>);

/// While this guard exists, the thread may move clocks for leases.
#[must_use]
pub(crate) struct Entered<'a> {
    _lane: RwLockReadGuard<'a, ()>,
}

/// While this guard exists, no thread moves a clock for a lease.
#[must_use]
pub(crate) struct Shut<'a> {
    _lanes: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Turnstile {
    pub(crate) fn new() -> Self {
        Self { lanes: (0..LANES).map(|_| Lane::default()).collect() }
    }

    /// Enters by the lane of thread number `thread`. A thread must not enter twice.
    pub(crate) fn enter(&self, thread: usize) -> Entered<'_> {
        Entered { _lane: self.lanes[thread % LANES].0.read() }
    }

    pub(crate) fn shut(&self) -> Shut<'_> {
        // Every thread locks the lanes in the same order, so two threads never wait for each other.
        Shut { _lanes: self.lanes.iter().map(|lane| lane.0.write()).collect() }
    }
}
