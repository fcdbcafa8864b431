//! Compaction frees disk space: it copies rows from the log's beginning to the tail, and then moves
//! the beginning up.
//!
//! **Problem.** An update of a settled row, a promotion and a deletion each leave a superseded
//! record in the log. Without compaction the log only grows.
//!
//! **Approach.** Compaction takes pages from the log's beginning, one after another. It copies the
//! rows that are still current to the tail, as a promotion does. Then `begin` moves past the page,
//! and its space goes back to the file system. Whole segment files are removed. In the first
//! segment that is still needed, a hole is punched up to `begin`, so a large segment holds back no
//! space.
//!
//! If rewrites are spread evenly and the log is 1.4 times as long as its rows, half of the oldest
//! page is dead. Each compacted page then frees half a page. Compaction always takes the oldest
//! page, not the page with the fewest rows. Chains lead only to older records, so no link leads
//! below `begin`.
//!
//! **Which records are current.** A record is current if a search for its key ends at it. A search
//! for each record would read a newer record from disk for every dead record. The index saves these
//! reads, because an entry says whether its chain has more than one record (`index::entry`). The
//! record is current if an entry without a chain has its address. The record is dead if there is no
//! such entry and no entry with a chain. In the remaining case, compaction walks the chain
//! (`MoveChained` of `engine::batch`). Chains are rare if there is enough memory.
//!
//! **Why it is right, beside all other threads.**
//! 1. Compaction reads pages that are on the device (below `flushed`). Their records and clocks
//!    never change: an operation that changes the clock of a settled row first copies the row to
//!    the tail.
//! 2. `Index::replace` publishes the copy in the same entry that compaction saw, if the entry is
//!    unchanged. Updates, promotions and deletions do the same. So if two threads replace the
//!    record of one row, one succeeds and the other searches again.
//! 3. `begin` moves after the last row below it was published elsewhere. A thread that sees the new
//!    `begin` and then reads the index sees the copies (`Log::view`). A thread that searched
//!    earlier reads the old record, which was current when its search began. If the old record's
//!    space was given back, that thread searches again (`engine::batch::disk`).
//! 4. An entry or a link below `begin` counts as empty. Compaction does not copy tombstones: the
//!    records that a tombstone hides lie below it, so they are gone first. Compaction removes the
//!    entries of tombstones, so that they take no slots. While a search for a key meets its
//!    tombstone, no insert gives the key another entry. When `begin` passes the tombstone, searches
//!    stop meeting it, but the entry of its chain does not change. So an operation that replaces a
//!    tombstone by a row checks `begin` again under the bucket's lock (`publish` of
//!    `engine::batch::succession`). If `begin` has passed the tombstone, the operation searches
//!    again.
//! 5. The space that a kept checkpoint needs stays until that checkpoint is removed (`pins`). Moved
//!    rows are durable with the next checkpoint, and until then recovery from a crash needs the old
//!    records. A bank without a checkpoint recovers nothing, so its space is given back at once.
//! 6. No threads wait in a circle. Compaction waits for frames, which the writer thread frees
//!    without compaction. It waits for pauses of a checkpoint, and a pause waits only for pinned
//!    threads. It waits for a ring of the device, which batches and scans hold only while they
//!    read. A thread that waits for compaction holds no ring, no read buffer and no pin
//!    (`Core::await_space`, `engine::batch::disk`).
//!
//! **Damage.** A page that fails verification stops compaction, and no space at or after that page
//! is given back. The statistics show the reason, and `Store::compact` returns it.

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

/// The result of a pass of [`Store::compact`](crate::Store::compact).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of log that the pass read.
    pub scanned_bytes: u64,
    /// Bytes of rows copied to the tail.
    pub copied_bytes: u64,
    /// Bytes given back to the file system so far. Space that kept checkpoints need is given back
    /// only after these checkpoints are removed.
    pub freed_bytes: u64,
    /// True if the pass ended early because the disk has little room. Compaction leaves the room
    /// that the next checkpoint needs. Take a checkpoint, which frees the space that only the
    /// oldest checkpoint held, and then compact again.
    pub out_of_room: bool,
}

impl Core {
    /// Makes one pass of compaction over the pages of the log that are on the device now.
    pub(crate) fn compact_all(&self) -> Result<Compacted> {
        self.log.check_poison()?;
        let end = self.log.flushed();
        let freed = self.space.freed();
        let mut done = Compacted::default();
        let mut pass = self.space.pass.lock();
        self.space.signal.state.lock().stopped = None;
        // The loop ends: each round moves `begin` by one page towards `end`.
        while self.log.begin() + self.log.page_bytes() <= end {
            // A kept checkpoint or a scan needs the old records, so copies free no space now. The
            // next checkpoint may free some, and must find room on the disk.
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

    /// Returns the files that could not be removed, one line for each file.
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
        state.short_of_files = matches!(error, Error::TooManyOpenFiles { .. });
        drop(state);
        self.space.signal.raise();
    }

    /// A checkpoint calls this function when it finds the bank's directory at its path. If
    /// compaction had stopped because the directory was moved, compaction continues.
    pub(crate) fn is_in_place(&self) {
        let mut state = self.space.signal.state.lock();
        if std::mem::take(&mut state.moved) {
            state.stopped = None;
        }
    }

    /// The loop of the compaction thread. Returns at shutdown.
    pub(crate) fn run_compactor(&self) {
        /// A guard that acts if this thread panics: it stops compaction, and wakes the writers that
        /// wait for compaction.
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
                // Another thread may have compacted these pages while this thread waited for the
                // lock.
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
        // The loop ends when there is work, or at shutdown.
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
            // Compaction has no work now. Wakes the writers that wait for compaction, so that they
            // check their condition again.
            self.space.signal.changed.notify_all();
            self.space.signal.changed.wait(&mut state);
            // Compaction lacked a descriptor. It tries again after each signal: the log has grown,
            // or a call needs room.
            if std::mem::take(&mut state.short_of_files) {
                state.stopped = None;
            }
        }
    }

    /// Adds a page to the counts of the present turn. A turn is one passage of compaction through
    /// the whole log. At the end of a turn, computes the packing (`pressure`) from these counts.
    /// Rows of different lengths may leave gaps in pages. A log without dead records can then be
    /// longer than the target, and copying it would gain nothing. So the target is a multiple of
    /// the size of the pages that the rows really need.
    fn note_turn(&self, page: Turn) {
        let mut state = self.space.signal.state.lock();
        state.turn.records += page.records;
        state.turn.pages += page.pages;
        if self.log.begin() + self.log.page_bytes() >= state.turn_end {
            let live = self.tables.live(self.log.page_bytes());
            if state.turn_end > 0 && state.turn.records > 0 && live.bytes > 0 {
                let needed =
                    live.bytes as f64 * state.turn.pages as f64 / state.turn.records as f64;
                state.packing = needed / live.footprint as f64;
            }
            state.turn_end = self.log.tail_address();
            state.turn = Turn::default();
        }
    }

    /// Wakes the waiting threads, and then sleeps if there is a throttle.
    fn pace(&self, copied: u64) {
        let space = &self.space;
        let mut state = space.signal.state.lock();
        space.signal.changed.notify_all();
        if let Some(throttle) = space.options.throttle_bytes_per_s.filter(|_| !state.urgent) {
            self.sleep_for(&mut state, self.log.page_bytes() + copied, throttle);
        }
    }

    /// Sleeps for the time that `bytes` bytes take at the rate `throttle`.
    fn sleep_for(&self, state: &mut MutexGuard<'_, CompactorState>, bytes: u64, throttle: u64) {
        let time = std::time::Duration::from_secs_f64(bytes as f64 / throttle as f64);
        let until = std::time::Instant::now() + time;
        // The loop ends at `until`, at shutdown, or when a writer waits for space.
        while !state.shutdown && !state.urgent {
            if self.space.signal.changed.wait_until(state, until).timed_out() {
                return;
            }
        }
    }
}
