//! Makes the last segment file longer than the log, so that few writes change its length.
//!
//! **Problem.** ext4 locks a file while a direct write makes it longer. A read that meets this lock
//! goes to one of io_uring's kernel threads. The kernel thread costs more processor time than the
//! read.
//!
//! **Approach.** A write that reaches beyond the file's end first allocates blocks for itself and
//! the writes after it, and the file gets the length of these blocks. On Linux 6.18, reads run at
//! the same time as a write into allocated blocks. An allocation waits for all direct transfers of
//! its file, so one allocation serves [`WRITES_PER_ALLOCATION`] writes.
//!
//! **Invariants.**
//! - No checkpoint contains a byte between `written` and `allocated`, and a read of such a byte
//!   fails as a read beyond the file's end does.
//! - A sync first cuts the file to `written`. After a checkpoint, the file ends where the log ends
//!   unless a write followed. A checkpoint that fails cuts the file too, because it may have lacked
//!   the surplus's room. After a crash, the next opening for writing cuts the file (`truncate`).
//! - `changing` is locked during an allocation with its write, and during a cut. Otherwise a cut
//!   could remove a write whose end is not noted yet.
//!
//! **Limits.** A bank with a disk quota allocates nothing, so that the log's files stay within the
//! quota.

use crate::process::locks::{Mutex, MutexGuard};
use crate::sync::{AtomicU64, Ordering};

/// Number of writes for which the device allocates blocks at once. A page of the log is one write.
/// With 1, reads meet the lock of an allocation nearly as often as they met the lock of a write.
const WRITES_PER_ALLOCATION: u64 = 8;

/// An allocation takes at most 1 / `ROOM_PART` of the file system's room. The rest is for the files
/// of checkpoints.
const ROOM_PART: u64 = 16;

/// The ends of what was written and of what was allocated, as log offsets. Both are 0 before the
/// first write.
#[derive(Debug, Default)]
pub(super) struct Growth {
    changing: Mutex<()>,
    written: AtomicU64,
    allocated: AtomicU64,
}

/// A write or a cut. No other runs before it is dropped.
pub(super) struct Changing<'a> {
    growth: &'a Growth,
    _locked: MutexGuard<'a, ()>,
}

impl Growth {
    pub(super) fn change(&self) -> Changing<'_> {
        Changing { growth: self, _locked: self.changing.lock() }
    }

    /// Returns the number of written bytes in a read of `len` bytes at log offset `offset`. `None`
    /// if the read touches no byte that is allocated and not written.
    pub(super) fn written_of(&self, offset: u64, len: u64) -> Option<u64> {
        // Acquire: pairs with the Release in `note_allocated`, so `written` is at least the begin
        // of this allocation. Bytes below it were in the file before.
        let allocated = self.allocated.load(Ordering::Acquire);
        // Acquire: pairs with the Release in `note_written`. A thread that knows of a completed
        // write sees its end.
        let written = self.written.load(Ordering::Acquire);
        (offset + len > written && offset < allocated).then(|| written.saturating_sub(offset))
    }
}

impl Changing<'_> {
    /// Returns the number of bytes to allocate from log offset `offset` on, before `bytes` bytes
    /// are written there. `None` if an earlier allocation covers the write, or if the file system's
    /// `room` in bytes is too small. `rest` is the number of bytes up to the segment's end.
    pub(super) fn wanted(&self, offset: u64, bytes: u64, rest: u64, room: u64) -> Option<u64> {
        let wanted = (WRITES_PER_ALLOCATION * bytes).min(rest);
        let is_covered = offset + bytes <= self.growth.allocated.load(Ordering::Relaxed);
        (!is_covered && wanted <= room / ROOM_PART).then_some(wanted)
    }

    /// Notes an allocation from log offset `begin` to log offset `end`.
    pub(super) fn note_allocated(&self, begin: u64, end: u64) {
        self.note_written(begin);
        // Release: pairs with the Acquire in `written_of`.
        self.growth.allocated.store(end, Ordering::Release);
    }

    /// Notes a write up to log offset `end`.
    pub(super) fn note_written(&self, end: u64) {
        // Release: pairs with the Acquire in `written_of`.
        self.growth.written.fetch_max(end, Ordering::Release);
    }

    /// Returns the end of what was written and the end of what was allocated, if they differ.
    pub(super) fn surplus(&self) -> Option<(u64, u64)> {
        let written = self.growth.written.load(Ordering::Relaxed);
        let allocated = self.growth.allocated.load(Ordering::Relaxed);
        (written < allocated).then_some((written, allocated))
    }

    /// Forgets the surplus, because the file ends where the log ends.
    pub(super) fn note_cut(&self) {
        self.growth.allocated.store(0, Ordering::Relaxed);
    }

    /// Forgets all, because the log continues at another place.
    pub(super) fn begin_anew(&self) {
        self.note_cut();
        self.growth.written.store(0, Ordering::Relaxed);
    }
}
