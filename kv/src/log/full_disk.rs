//! A full disk: pages that can't be written stay in memory until there is room.
//!
//! **Problem.** A write that fails on a full disk loses no row: the page is still in its frame in
//! memory. If the store stopped for good, all changes since the last checkpoint would be lost. The
//! same holds if a write fails because the process has no free descriptor for the next segment
//! file, or because the file may not grow further (`ulimit -f`). In this module, "full disk" means
//! each of these wants ([`Want`]).
//!
//! **Approach.** The writer thread keeps the page and sleeps. Calls can still read the rows in
//! memory and change them in place. A call that needs a frame, or a page on the device, requests
//! one more attempt and waits for its outcome. If that attempt fails too, the call fails with
//! [`Error::DiskFull`] or [`Error::TooManyOpenFiles`]. An attempt writes the page again at the same
//! offset. The first attempt that succeeds ends the full-disk state.
//!
//! Each request has a number. An attempt answers all requests that were made before it began. A
//! call therefore fails only if an attempt fails that began after the call's request.
//!
//! Compaction frees disk space, and it needs frames for that. While the disk is full, other calls
//! therefore leave some frames free ([`TurnFor::frames_left`]). If all frames were in use when the
//! disk filled up, no frame is free for compaction.

use super::regions::FREE_FRAMES_WANTED;
use super::{Log, State};
use crate::error::{Error, Result, Want};
use crate::sync::{Ordering, Planted, planted};

/// The purpose of a page turn, which decides how many frames it must leave free on a full disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnFor {
    /// Rows of a call that the caller can repeat.
    Rows,
    /// A batch that must complete: an update that has changed rows, the end of a lease, or a
    /// deletion.
    Ending,
    /// Compaction or a checkpoint, which free disk space.
    Space,
}

impl TurnFor {
    /// Returns the frames that a page turn must leave free while the disk is full. Compaction needs
    /// at most two pages for the rows that it moves out of one page.
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
    /// Why the last attempt to write has failed. `None` while there is room.
    refused: Option<Want>,
    /// Number of requests for an attempt to write so far.
    asked: u64,
    /// Number of the last request that a failed attempt has answered.
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
        self.refused.clone().map(Error::from)
    }
}

/// The number of a waiting call's request. `None` before the call's first wait.
#[derive(Debug, Default)]
pub(super) struct Request(Option<u64>);

impl State {
    /// Returns the number of frames that the writer keeps free. On a full disk the writer keeps
    /// more. A page turn for rows then finds a frame in addition to the frames that it must leave
    /// free.
    pub(super) fn frames_wanted(&self) -> u64 {
        let left = if self.disk.is_full() { TurnFor::Rows.frames_left() } else { 0 };
        FREE_FRAMES_WANTED + left
    }

    /// Requests an attempt to write if the disk is full and this call has not requested one yet. A
    /// call must use this function each time before it sleeps to wait for the writer.
    ///
    /// # Errors
    /// `DiskFull` or `TooManyOpenFiles` if the requested attempt has failed.
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
    /// Returns the number of the last request that a new attempt answers. `None` if the disk is
    /// full and no call has requested an attempt.
    pub(super) fn begin_attempt(&self) -> Option<u64> {
        let state = self.state.lock();
        state.disk.may_write().then_some(state.disk.asked)
    }

    /// Records a failed attempt that answers requests up to `answered`. Returns false if the error
    /// is not about a full disk.
    pub(super) fn note_refused(&self, error: &Error, answered: u64) -> bool {
        let Some(refused) = error.want() else { return false };
        let mut state = self.state.lock();
        let is_news = state.disk.refused.replace(refused).is_none();
        state.disk.failed = answered;
        self.is_full.store(true, Ordering::Relaxed);
        self.frame_freed.notify_all();
        self.page_flushed.notify_all();
        drop(state);
        if is_news {
            // Wakes the batches that wait for compaction (`await_space`), so that they check the
            // disk again. Only the first failed attempt wakes them: they request attempts
            // themselves, and otherwise each failed attempt would lead to the next one.
            self.compactor.raise();
        }
        true
    }

    /// Ends the full-disk state after a page has been written.
    pub(super) fn note_written(&self, state: &mut State) {
        if state.disk.refused.take().is_some() {
            self.is_full.store(false, Ordering::Relaxed);
            // Every waiting call may now take the frames that it had to leave free.
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

    /// If the disk is full, makes the writer try once more and waits for the outcome.
    ///
    /// # Errors
    /// `DiskFull` or `TooManyOpenFiles` if the attempt fails. `Poisoned` if the log has stopped.
    pub(crate) fn try_to_write(&self) -> Result<()> {
        let mut state = self.state.lock();
        let mut request = Request::default();
        // The loop ends: the writer succeeds, fails on the full disk, or poisons the log, and then
        // wakes all waiting calls.
        while state.disk.is_full() {
            self.check_poison()?;
            state.check_disk(&mut request)?;
            self.writer_wake.notify_one();
            self.frame_freed.wait(&mut state);
        }
        Ok(())
    }
}
