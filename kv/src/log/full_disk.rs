//! A full disk: pages that can't be written stay in memory until there is room.
//!
//! **Problem.** A write that fails for want of room loses no row: the page is still in its frame. A
//! store that stopped for good would lose every row since the last checkpoint.
//!
//! **Approach.** The writer thread keeps the page and goes to sleep. The rows in memory can be read
//! and changed in place. A call that needs a frame, or a page on the device, asks for one more
//! attempt and waits for its outcome. If that attempt fails too, the call fails with
//! [`Error::DiskFull`]. The first attempt that succeeds ends the state. An attempt writes the page
//! again at the same offset.
//!
//! Each request has a number. An attempt answers all requests that were made before it began. So a
//! call fails only by an attempt that began after the call had asked.
//!
//! Compaction gives space back, and it needs pages for that. So while the disk is full, calls leave
//! some frames free ([`TurnFor::frames_left`]). A disk that fills up while memory is full leaves no
//! frame free.

use std::path::PathBuf;

use super::{FREE_FRAMES_WANTED, Log, State};
use crate::error::{Error, Result};
use crate::sync::{Ordering, Planted, planted};

/// What a page is turned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnFor {
    /// Rows of a caller that can repeat the call.
    Rows,
    /// A batch that completes: an update that has changed rows, the end of a lease, a deletion.
    Ending,
    /// Compaction or a checkpoint, which give space back.
    Space,
}

impl TurnFor {
    /// Frames that a page turn leaves while the disk is full. The rows of a page that compaction
    /// moves fill at most two pages.
    pub(super) fn frames_left(self) -> u64 {
        match self {
            TurnFor::Rows => 4,
            TurnFor::Ending => 2,
            TurnFor::Space => 0,
        }
    }
}

/// The state that the writer and the waiting calls share about a full disk.
#[derive(Debug, Default)]
pub(super) struct FullDisk {
    /// The file that can't be written, and the system's reason. `None` while there is room.
    refused: Option<(PathBuf, String)>,
    /// Requests for an attempt so far.
    asked: u64,
    /// Requests that a failed attempt has answered.
    failed: u64,
}

impl FullDisk {
    pub(super) fn is_full(&self) -> bool {
        self.refused.is_some()
    }

    /// True if the writer should try to write.
    pub(super) fn may_write(&self) -> bool {
        !self.is_full() || self.asked > self.failed
    }

    fn error(&self) -> Option<Error> {
        let (path, reason) = self.refused.clone()?;
        Some(Error::DiskFull { path, reason })
    }
}

/// The request of one waiting call.
#[derive(Debug, Default)]
pub(super) struct Request(Option<u64>);

impl State {
    /// Frames that the writer keeps free. On a full disk it keeps more, so that a page turn for
    /// rows finds a frame beyond those that it must leave.
    pub(super) fn frames_wanted(&self) -> u64 {
        let left = if self.disk.is_full() { TurnFor::Rows.frames_left() } else { 0 };
        FREE_FRAMES_WANTED + left
    }

    /// A call that waits for the writer calls this each time before it sleeps. On a full disk, its
    /// first call asks for an attempt.
    ///
    /// # Errors
    /// `DiskFull` if the attempt that it asked for has failed.
    pub(super) fn check_disk(&mut self, request: &mut Request) -> Result<()> {
        let disk = &mut self.disk;
        match request.0 {
            _ if !disk.is_full() => Ok(()),
            None => {
                disk.asked += 1;
                request.0 = Some(disk.asked);
                Ok(())
            }
            Some(number) if number > disk.failed => Ok(()),
            Some(_) => disk.error().map_or(Ok(()), Err),
        }
    }
}

impl Log {
    /// The requests that the attempt that begins now answers; `None` if the disk is full and no
    /// call has asked.
    pub(super) fn begin_attempt(&self) -> Option<u64> {
        let state = self.state.lock();
        state.disk.may_write().then_some(state.disk.asked)
    }

    /// Ends an attempt that failed. False if not for want of room.
    pub(super) fn note_refused(&self, error: &Error, answered: u64) -> bool {
        let Some(refused) = error.for_want_of_room() else { return false };
        let mut state = self.state.lock();
        let is_news = state.disk.refused.replace(refused).is_none();
        state.disk.failed = answered;
        self.is_full.store(true, Ordering::Relaxed);
        self.frame_freed.notify_all();
        self.page_flushed.notify_all();
        drop(state);
        if is_news {
            // A writer that waits for compaction looks again. It is not woken after each attempt,
            // because it asks for attempts itself.
            self.compactor.raise();
        }
        true
    }

    /// A page has been written.
    pub(super) fn note_written(&self, state: &mut State) {
        if state.disk.refused.take().is_some() {
            self.is_full.store(false, Ordering::Relaxed);
            // Now every waiting call may take the frames that calls had to leave free.
            if !planted(Planted::RoomUntold) {
                self.frame_freed.notify_all();
            }
        }
    }

    /// True if the last attempt to write found the disk full.
    pub(crate) fn is_disk_full(&self) -> bool {
        // Relaxed: a hint. The decision is made under the state's lock.
        self.is_full.load(Ordering::Relaxed)
    }

    /// If the disk is full, has the writer try once more.
    ///
    /// # Errors
    /// `DiskFull` if that fails; `Poisoned`.
    pub(crate) fn try_to_write(&self) -> Result<()> {
        let mut state = self.state.lock();
        let mut request = Request::default();
        // Ends: the writer succeeds, finds the disk full, or poisons the log; it wakes all waiting
        // calls then.
        while state.disk.is_full() {
            self.check_poison()?;
            state.check_disk(&mut request)?;
            self.writer_wake.notify_one();
            self.frame_freed.wait(&mut state);
        }
        Ok(())
    }
}
