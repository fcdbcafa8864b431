//! How compaction and those that wait for it tell each other that the log has changed.

use crate::sync::Condvar;
use crate::sync::Mutex;

/// Wakes whoever waits for the log's length to change: the thread for work, writers for space.
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
    /// Why compaction stopped, until somebody calls for it.
    pub(crate) stopped: Option<String>,
    /// True if it stopped because the bank's directory was elsewhere.
    pub(crate) moved: bool,
    /// True if it stopped because the disk was full.
    pub(crate) full: bool,
    /// Where the present turn through the log ends, and what it has come by.
    pub(crate) turn_end: u64,
    pub(crate) turn: Turn,
    /// How many times the pages that its rows would fill by themselves the log needs; 0 if unknown.
    pub(crate) packing: f64,
}

/// What compaction has come by in a turn through the log.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Turn {
    /// Bytes of records, current or not.
    pub(crate) records: u64,
    /// Bytes of the pages that they took.
    pub(crate) pages: u64,
}

impl Signal {
    /// Wakes everybody who waits. A waiter looks at its condition under the lock, so it misses nothing.
    pub(crate) fn raise(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}
