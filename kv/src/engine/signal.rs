//! The signal between the compaction thread and the batches that wait for space.

use crate::sync::Condvar;
use crate::sync::Mutex;

/// Wakes threads after the log's length has changed: the compaction thread, which waits for work,
/// and writers, which wait for space.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    pub(crate) state: Mutex<CompactorState>,
    pub(crate) changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct CompactorState {
    pub(crate) shutdown: bool,
    /// True if a writer waits because the quota or the disk leaves no room.
    pub(crate) urgent: bool,
    /// The reason why compaction stopped. Background compaction stays stopped until a program calls
    /// for compaction, or until the cause is removed (`moved`, `full`, `short_of_files`).
    pub(crate) stopped: Option<String>,
    /// True if compaction stopped because the bank's directory had been moved.
    pub(crate) moved: bool,
    /// True if compaction stopped because the disk was full.
    pub(crate) full: bool,
    /// True if compaction stopped because no file descriptor was free.
    pub(crate) short_of_files: bool,
    /// The address at which compaction's present turn (its passage through the log) ends. `turn`
    /// has the counts of the present turn.
    pub(crate) turn_end: u64,
    pub(crate) turn: Turn,
    /// The number of pages that the rows need, divided by the number of pages that they would fill
    /// without gaps. 0 before compaction has measured it.
    pub(crate) packing: f64,
}

/// Counts of one turn of compaction through the log.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Turn {
    /// Bytes of all records that compaction read, also of superseded ones.
    pub(crate) records: u64,
    /// Bytes of the pages that held the records that compaction read.
    pub(crate) pages: u64,
}

impl Signal {
    /// Wakes all waiting threads. A waiting thread checks its condition under the lock, so it
    /// misses no signal.
    pub(crate) fn raise(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}
