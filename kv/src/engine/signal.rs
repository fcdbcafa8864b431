//! How compaction and the threads that wait for it tell each other that the log has changed.

use crate::sync::Condvar;
use crate::sync::Mutex;

/// Wakes the threads that wait for the log's length to change: compaction for work, writers for
/// space.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    pub(crate) state: Mutex<CompactorState>,
    pub(crate) changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct CompactorState {
    pub(crate) shutdown: bool,
    /// A writer waits at the quota.
    pub(crate) urgent: bool,
    /// Why compaction stopped. It stays so until a call for compaction.
    pub(crate) stopped: Option<String>,
    /// True if it stopped because the bank's directory was elsewhere.
    pub(crate) moved: bool,
    /// True if it stopped because the disk was full.
    pub(crate) full: bool,
    /// The address at which the present turn through the log ends, and the bytes that the turn has
    /// met.
    pub(crate) turn_end: u64,
    pub(crate) turn: Turn,
    /// How many times its ideal pages the log needs: those that its rows would fill by themselves.
    /// 0 if that is unknown.
    pub(crate) packing: f64,
}

/// The bytes that compaction has met in a turn through the log.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Turn {
    /// Bytes of records, current or not.
    pub(crate) records: u64,
    /// Bytes of the pages that held them.
    pub(crate) pages: u64,
}

impl Signal {
    /// Wakes all waiting threads. A thread looks at its condition under the lock, so it misses no
    /// signal.
    pub(crate) fn raise(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}
