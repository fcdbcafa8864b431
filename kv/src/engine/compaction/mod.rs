//! Giving space back: the log's cold end moves up.
//!
//! **Problem.** Updates of settled rows, promotions and deletions leave superseded records behind. Without
//! compaction the log only grows.
//!
//! **Approach.** Pages are taken from the log's beginning, one after another. Rows that are still current
//! are copied to the tail, as a promotion would; then `begin` moves past the page, and its space goes back
//! to the file system: whole segments are removed, and the part of the next one below `begin` is punched
//! out, so that a large segment holds back no space. With rewrites spread evenly and a log kept at 1.4
//! times its rows, half of the oldest page is dead, and each page compacted gains half a page.
//! Always the oldest page, rather than the emptiest one: chains lead only to older records, so below
//! `begin` there is nothing that anything could lead to.
//!
//! **Which records are current.** A record is current just when a search for its key ends at it. Searching
//! for each would read one newer record from disk for every dead one. The index saves that: an entry
//! says whether its head is all its chain (`index::entry`). An unchained head at the record's address means
//! current, no such head and no chained entry means dead. Only for chained entries, rare with enough
//! memory, the chain is walked (`MoveChained` of `engine::batch`).
//!
//! **Why it is right, beside everything else that goes on.**
//! 1. Compaction reads pages that are on the device (below `flushed`). Their records never change again;
//!    their clocks neither, because whatever changes a settled row's clock copies it to the tail first.
//! 2. The copy is published by `Index::replace` on the very entry that was seen, as every other copy is. So
//!    of a compaction and an update, promotion or deletion of the same row, one wins and the other searches
//!    again.
//! 3. `begin` moves after the last row below it was published elsewhere. Who sees the new `begin` and then
//!    looks into the index sees the copies (`Log::view`). Who has searched before reads the old record, which
//!    was current when the search began, or finds its place gone: then it searches again
//!    (`engine::batch::disk`).
//! 4. An entry whose head lies below `begin` leads nowhere; so does a link. Tombstones are not copied: what
//!    they hide lies below them, so it goes when they go. Their entries are removed, lest they take slots.
//!    A tombstone also keeps its key from being inserted elsewhere, and ceases to without its chain's entry
//!    changing. So who has found one, and means to put a row in its place, looks at `begin` once more under
//!    the bucket's lock (`publish` of `engine::batch::succession`), and searches again where it has passed the tombstone.
//! 5. Space that a kept checkpoint names stays until that checkpoint goes (`pins`): moved rows are durable
//!    with the next checkpoint, and until then a crash needs the old ones. A bank without a checkpoint
//!    recovers nothing, so there space goes back at once.
//! 6. Nobody waits in a circle. Compaction waits for frames, which the writer thread frees without it; for
//!    pauses of a checkpoint, which waits for no batch; and for a ring of the device, which batches and scans
//!    hold only while they read. Whoever waits for compaction holds neither a ring nor a read buffer nor a
//!    pin (`Core::await_space`, `engine::batch::disk`).
//!
//! **Damage.** A page that does not verify stops compaction there: nothing at or after it is given back, the
//! reason shows in the statistics, and `Store::compact` returns it.

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
    /// Bytes of log gone through.
    pub scanned_bytes: u64,
    /// Bytes of rows copied to the tail.
    pub copied_bytes: u64,
    /// Bytes given back to the file system so far. What kept checkpoints name follows with them.
    pub freed_bytes: u64,
    /// True if the pass ended early: a disk with little room keeps what the next checkpoint needs. Take a checkpoint,
    /// which gives back what the oldest one held, and compact again.
    pub out_of_room: bool,
}

impl Core {
    /// One pass over everything that is on the device now.
    pub(crate) fn compact_all(&self) -> Result<Compacted> {
        self.log.check_poison()?;
        let end = self.log.flushed();
        let freed = self.space.freed();
        let mut done = Compacted::default();
        let mut pass = self.space.pass.lock();
        self.space.signal.state.lock().stopped = None;
        // Ends: each page moves `begin` towards `end`.
        while self.log.begin() + self.log.page_bytes() <= end {
            // Until the next checkpoint no copy gives space back, and that checkpoint must find room.
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

    /// What could not be cleared away, a line each.
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

    /// The bank's directory is where it belongs: compaction goes on if it stopped because it was not.
    pub(crate) fn is_in_place(&self) {
        let mut state = self.space.signal.state.lock();
        if std::mem::take(&mut state.moved) {
            state.stopped = None;
        }
    }

    /// The thread's loop; returns at shutdown.
    pub(crate) fn run_compactor(&self) {
        /// Should this thread panic, no writer waits for it in vain.
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
                // Whoever had the pass may have done it meanwhile.
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
            // A writer may have seen work where there is none any more.
            self.space.signal.changed.notify_all();
            self.space.signal.changed.wait(&mut state);
        }
    }

    /// Keeps account of a turn through the log: how full its pages are. Rows of different lengths may fill them
    /// so badly that a log without any dead record is longer than the target allows, and copying it
    /// around would gain nothing: goals are set by what rows turn out to need.
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

    /// Wakes those who wait, and keeps to the throttle.
    fn pace(&self, copied: u64) {
        let space = &self.space;
        let mut state = space.signal.state.lock();
        space.signal.changed.notify_all();
        if let Some(throttle) = space.options.throttle_bytes_per_s.filter(|_| !state.urgent) {
            self.sleep_for(&mut state, self.log.page_bytes() + copied, throttle);
        }
    }

    /// Makes up for work that was done faster than the throttle allows.
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
