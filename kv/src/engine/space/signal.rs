//! The signal between the compaction thread and the batches that wait for space.

use super::pressure::{Held, Packing};
use crate::engine::cold::dues::{Due, Dues, Spared};
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
    /// The bytes that spills and merges have read or written, and what else counts as such.
    pub(super) work_bytes: u64,
    /// The shortest length of the log in bytes since the store was opened. `None` in a bank with
    /// one tier.
    pub(super) shortest_log_bytes: Option<u64>,
    /// How long the log may be because of rows with outstanding Gets.
    pub(super) held: Held,
    /// The number of a view of the cold tier, and what is due in it.
    pub(super) dues: Option<(u64, Dues)>,
    /// What merges leave out because of damage.
    pub(super) spared: Spared,
    /// The first damage for which merges leave something out.
    pub(super) left_out: Option<String>,
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
    /// The next signal: the log has grown, or a call needs room. No file descriptor or thread was
    /// free.
    Signal,
    /// The end of the next checkpoint, which may free space. A spill or a merge could not be
    /// written.
    Checkpoint,
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
        self.stop_until(error, until);
    }

    /// Stops spills and merges after a failure of one of them, and wakes the writers that wait.
    pub(super) fn stop_tiers(&self, error: &Error) {
        let until = match error {
            Error::DirectoryMoved { .. } => Until::InPlace,
            Error::TooManyOpenFiles { .. } => Until::Signal,
            // A damaged page of the log would fail again.
            Error::Damaged { .. } | Error::Truncated { .. } | Error::Poisoned { .. } => {
                Until::Called
            }
            _ => Until::Checkpoint,
        };
        self.stop_until(error, until);
    }

    pub(super) fn stop_until(&self, error: &Error, until: Until) {
        self.state.lock().stopped = Some((error.to_string(), until));
        self.raise();
    }

    /// Notes that spills and merges have read or written `bytes` bytes. Writers may wait for that.
    pub(super) fn note_work(&self, bytes: u64) {
        self.state.lock().work_bytes += bytes;
        self.changed.notify_all();
    }
}

impl CompactorState {
    /// Leaves what a merge joins out from now on, because the merge has met damage.
    pub(super) fn leave_out(&mut self, merge: &Due, damage: &Error) {
        self.spared.leave_out(merge);
        self.left_out.get_or_insert_with(|| damage.to_string());
        self.dues = None;
    }

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
