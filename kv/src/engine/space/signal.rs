//! The signal between the compaction thread and the batches that wait for space.

use super::pressure::Packing;
use crate::error::Error;
use crate::sync::{Condvar, Mutex};

/// Wakes threads after the log's length has changed: the compaction thread, which waits for work,
/// and writers, which wait for space.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    pub(super) state: Mutex<CompactorState>,
    pub(super) changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct CompactorState {
    pub(super) shutdown: bool,
    /// True if a writer waits because the quota or the disk leaves no room.
    pub(super) urgent: bool,
    /// The reason why compaction stopped, and the event after which it continues.
    pub(super) stopped: Option<(String, Until)>,
    pub(super) packing: Packing,
}

/// The event after which stopped compaction continues. A program's call for compaction also ends
/// each stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// Only the program's call.
    Called,
    /// The bank's directory, which was moved, is at its path again.
    InPlace,
    /// The disk, which was full, has room.
    DiskHasRoom,
    /// The next signal: the log has grown, or a call needs room. No file descriptor was free.
    Signal,
}

impl Signal {
    /// Wakes all waiting threads. A waiting thread checks its condition under the lock, so it
    /// misses no signal.
    pub(crate) fn raise(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Stops background compaction, and wakes the writers that wait for it.
    pub(super) fn stop(&self, error: &Error) {
        let until = match error {
            Error::DirectoryMoved { .. } => Until::InPlace,
            Error::DiskFull { .. } => Until::DiskHasRoom,
            Error::TooManyOpenFiles { .. } => Until::Signal,
            _ => Until::Called,
        };
        self.state.lock().stopped = Some((error.to_string(), until));
        self.raise();
    }
}

impl CompactorState {
    pub(super) fn is_stopped_until(&self, event: Until) -> bool {
        self.stopped.as_ref().is_some_and(|&(_, until)| until == event)
    }

    /// Ends a stop that lasts until `event`.
    pub(super) fn go_on_after(&mut self, event: Until) {
        if self.is_stopped_until(event) {
            self.stopped = None;
        }
    }
}
