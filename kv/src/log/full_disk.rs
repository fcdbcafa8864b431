//! A full disk: the pages that can't be written stay in memory until there is room.
//!
//! **Problem.** A write that fails for want of room loses nothing: the page is still in its frame. A store that stopped
//! for good would lose every row since the last checkpoint.
//!
//! **Approach.** The writer thread keeps the page and goes to sleep. The rows in memory can be read and changed in place.
//! A call that needs a frame, or a page on the device, asks for one more attempt and waits for its outcome. If that
//! attempt fails too, the call fails with [`Error::DiskFull`]. The first attempt that succeeds ends the state. An attempt
//! writes the same page at the same offset again.
//!
//! Each request has a number. An attempt answers all requests that were made before it began, so a call fails only by an
//! attempt that began after the call had asked.
//!
//! Compaction and deletions give space back, and need a page for that. So while the disk is full, other calls leave
//! [`FRAMES_TO_FREE`] frames for them.

use std::path::PathBuf;

use super::{Log, State};
use crate::error::{Error, Result};

/// Frames that compaction, deletions and checkpoints alone may take while the disk is full: the rows of one page fill
/// at most two pages.
pub(super) const FRAMES_TO_FREE: u64 = 2;

/// What the writer and the calls that wait for it know of a full disk.
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

    /// Whether the writer should try to write.
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
    /// To be called by a call that waits for the writer, each time before it sleeps. If the disk is full, the first such
    /// call asks for an attempt.
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
    /// The requests that the attempt that begins now answers; `None` if the disk is full and no call has asked.
    pub(super) fn begin_attempt(&self) -> Option<u64> {
        let state = self.state.lock();
        state.disk.may_write().then_some(state.disk.asked)
    }

    /// Ends an attempt that failed. False if not for want of room.
    pub(super) fn note_refused(&self, error: &Error, answered: u64) -> bool {
        let Some(refused) = error.for_want_of_room() else { return false };
        let mut state = self.state.lock();
        state.disk.refused = Some(refused);
        state.disk.failed = answered;
        self.frame_freed.notify_all();
        self.page_flushed.notify_all();
        drop(state);
        self.compactor.raise();
        true
    }

    /// A page has been written.
    pub(super) fn note_written(&self, state: &mut State) {
        if state.disk.refused.take().is_some() {
            // The frames that were kept are for all calls again.
            self.frame_freed.notify_all();
        }
    }

    /// Whether the last attempt to write found the disk full.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.state.lock().disk.is_full()
    }
}
