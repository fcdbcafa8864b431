//! Compaction gives space back: the log's beginning moves up.
//!
//! **Problem.** Updates of settled rows, promotions and deletions leave superseded records behind.
//! Without compaction the log only grows.
//!
//! **Approach.** Compaction takes pages from the log's beginning, one after another. It copies the
//! rows that are still current to the tail, as a promotion does. Then `begin` moves past the page,
//! and its space goes back to the file system: whole segments are removed, and the part of the next
//! segment below `begin` is punched out, so a large segment holds back no space. With rewrites
//! spread evenly and a log of 1.4 times its rows, half of the oldest page is dead, and each
//! compacted page gains half a page. Compaction always takes the oldest page, not the emptiest one:
//! chains lead only to older records, so no link leads below `begin`.
//!
//! **Which records are current.** A record is current if a search for its key ends at it. A search
//! for each record would read one newer record from disk for every dead one. The index saves these
//! reads, because an entry says whether its head is its whole chain (`index::entry`). If an
//! unchained head has the record's address, the record is current. If there is no such head and no
//! chained entry, it is dead. Chained entries are rare with enough memory; only for these the chain
//! is walked (`MoveChained` of `engine::batch`).
//!
//! **Why it is right, beside all other threads.**
//! 1. Compaction reads pages that are on the device (below `flushed`). Their records never change,
//!    and neither do their clocks: an operation that changes the clock of a settled row first
//!    copies the row to the tail.
//! 2. `Index::replace` publishes the copy in the very entry that was seen, as it does for every
//!    copy. So of a compaction and an update, promotion or deletion of one row, one succeeds and
//!    the other searches again.
//! 3. `begin` moves after the last row below it was published elsewhere. A thread that sees the new
//!    `begin` and then looks into the index sees the copies (`Log::view`). A thread that searched
//!    earlier reads the old record, which was current when its search began, or finds the place
//!    gone and searches again (`engine::batch::disk`).
//! 4. An entry whose head lies below `begin` leads nowhere, and so does a link. Tombstones are not
//!    copied: the records that they hide lie below them, so these go first. The entries of
//!    tombstones are removed, so that they take no slots. A tombstone also keeps its key from being
//!    inserted elsewhere, and ceases to do so without a change of its chain's entry. So an
//!    operation that found a tombstone and puts a row in its place looks at `begin` again under the
//!    bucket's lock (`publish` of `engine::batch::succession`). It searches again if `begin` has
//!    passed the tombstone.
//! 5. Space that a kept checkpoint names stays until that checkpoint goes (`pins`). Moved rows are
//!    durable with the next checkpoint, and until then recovery from a crash needs the old ones. A
//!    bank without a checkpoint recovers nothing, so its space goes back at once.
//! 6. No threads wait in a circle. Compaction waits for frames, which the writer thread frees
//!    without compaction; for pauses of a checkpoint, which waits for no batch; and for a ring of
//!    the device, which batches and scans hold only while they read. A thread that waits for
//!    compaction holds no ring, no read buffer and no pin (`Core::await_space`,
//!    `engine::batch::disk`).
//!
//! **Damage.** A page that does not verify stops compaction: no space at or after it is given back.
//! The statistics show the reason, and `Store::compact` returns it.

mod held;
pub(crate) mod options;
mod pass;
pub(crate) mod pins;
mod pressure;
pub(crate) mod space;

use crate::engine::signal::CompactorState;
use crate::engine::signal::Turn;

use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::sync::MutexGuard;

pub(crate) use pins::LogPin;
pub(crate) use pressure::quota_reserve_bytes;

/// What a pass of [`Store::compact`](crate::Store::compact) did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of log that the pass read.
    pub scanned_bytes: u64,
    /// Bytes of rows copied to the tail.
    pub copied_bytes: u64,
    /// Bytes given back to the file system so far. Space that kept checkpoints name goes back when
    /// they go.
    pub freed_bytes: u64,
    /// True if the pass ended early. On a disk with little room, compaction leaves the room that
    /// the next checkpoint needs. Take a checkpoint, which gives back the space that the oldest
    /// one held, and compact again.
    pub out_of_room: bool,
}

impl Core {
    /// One pass over the whole log that is on the device now.
    pub(crate) fn compact_all(&self) -> Result<Compacted> {
        self.log.check_poison()?;
        let end = self.log.flushed();
        let freed = self.space.freed();
        let mut done = Compacted::default();
        let mut pass = self.space.pass.lock();
        self.space.signal.state.lock().stopped = None;
        // Ends: each page moves `begin` towards `end`.
        while self.log.begin() + self.log.page_bytes() <= end {
            // Until the next checkpoint no copy gives space back, and that checkpoint must find
            // room.
            if self.pinned().is_some() && self.disk_lacks(0).is_some() {
                done.out_of_room = true;
                break;
            }
            let copied = match self.compact_page(&mut pass) {
                Err(Error::DiskFull { .. }) if done.scanned_bytes > 0 => {
                    done.out_of_room = true;
                    break;
                }
                worked => worked.inspect_err(|error| self.stop(error))?,
            };
            done.scanned_bytes += self.log.page_bytes();
            done.copied_bytes += copied;
            self.free_space(self.free_stride())?;
            self.space.signal.raise();
        }
        drop(pass);
        self.free_space(0)?;
        self.space.signal.raise();
        done.freed_bytes = self.space.freed() - freed;
        Ok(done)
    }

    /// The files that could not be removed, one line each.
    pub(crate) fn not_removed(&self) -> Vec<String> {
        let checkpoints = self.space.checkpoints.as_ref();
        let mut lines = checkpoints.map_or(Vec::new(), |all| all.left.lock().lines());
        lines.extend(self.log.device.not_removed());
        lines
    }

    fn stop(&self, error: &Error) {
        let mut state = self.space.signal.state.lock();
        state.stopped = Some(error.to_string());
        state.moved = matches!(error, Error::DirectoryMoved { .. });
        state.full = matches!(error, Error::DiskFull { .. });
        drop(state);
        self.space.signal.raise();
    }

    /// The bank's directory is where it belongs. Compaction continues if it stopped because the
    /// directory had moved.
    pub(crate) fn is_in_place(&self) {
        let mut state = self.space.signal.state.lock();
        if std::mem::take(&mut state.moved) {
            state.stopped = None;
        }
    }

    /// The thread's loop; returns at shutdown.
    pub(crate) fn run_compactor(&self) {
        /// If this thread panics, the guard wakes the writers that wait for it.
        struct StopOnPanic<'a>(&'a Core);
        impl Drop for StopOnPanic<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    let reason = "the compaction thread panicked".into();
                    self.0.stop(&Error::Poisoned { reason });
                }
            }
        }
        let _stop_on_panic = StopOnPanic(self);
        while self.wait_for_work() {
            let worked = {
                let mut pass = self.space.pass.lock();
                // The thread that had the pass before may have done the work.
                let left = self.log.begin() + self.log.page_bytes() <= self.log.flushed();
                if left { self.compact_page(&mut pass) } else { Ok(0) }
            };
            let worked = worked.and_then(|copied| {
                self.free_space(self.free_stride())?;
                Ok(copied)
            });
            match worked {
                Ok(copied) => self.pace(copied),
                Err(error) => self.stop(&error),
            }
        }
    }

    fn wait_for_work(&self) -> bool {
        let mut state = self.space.signal.state.lock();
        // Ends: with work, or at shutdown.
        loop {
            if state.shutdown {
                return false;
            }
            if state.full && !self.log.is_disk_full() {
                state.full = false;
                state.stopped = None;
            }
            if self.compaction_wanted(&state) {
                return true;
            }
            // A writer may have seen work that is done by now.
            self.space.signal.changed.notify_all();
            self.space.signal.changed.wait(&mut state);
        }
    }

    /// Records how full the pages of a turn through the log are. Rows of different lengths may fill
    /// pages badly. Then a log without any dead record is longer than the target allows, and
    /// copying it would gain nothing. So the goals follow from the pages that the rows turn out to
    /// need.
    fn note_turn(&self, page: Turn) {
        let mut state = self.space.signal.state.lock();
        state.turn.records += page.records;
        state.turn.pages += page.pages;
        if self.log.begin() + self.log.page_bytes() >= state.turn_end {
            let live = self.live();
            if state.turn_end > 0 && state.turn.records > 0 && live.bytes > 0 {
                let needed =
                    live.bytes as f64 * state.turn.pages as f64 / state.turn.records as f64;
                state.packing = needed / live.footprint() as f64;
            }
            state.turn_end = self.log.tail_address();
            state.turn = Turn::default();
        }
    }

    /// Wakes the waiting threads, and keeps to the throttle.
    fn pace(&self, copied: u64) {
        let space = &self.space;
        let mut state = space.signal.state.lock();
        space.signal.changed.notify_all();
        if let Some(throttle) = space.options.throttle_bytes_per_s.filter(|_| !state.urgent) {
            self.sleep_for(&mut state, self.log.page_bytes() + copied, throttle);
        }
    }

    /// Waits as long as the work was done faster than the throttle allows.
    fn sleep_for(&self, state: &mut MutexGuard<'_, CompactorState>, bytes: u64, throttle: u64) {
        let time = std::time::Duration::from_secs_f64(bytes as f64 / throttle as f64);
        let until = std::time::Instant::now() + time;
        // Ends: at the time, at shutdown, or when a writer waits at the quota.
        while !state.shutdown && !state.urgent {
            if self.space.signal.changed.wait_until(state, until).timed_out() {
                return;
            }
        }
    }
}
