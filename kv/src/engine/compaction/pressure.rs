//! When compaction begins, and when writers wait for it. This depends on the log's target length,
//! on the disk quota and on the room on the disk.
//!
//! The log's length is compared with the size that its current rows need. That size is their
//! *footprint* times the *packing*. The footprint is the size of the pages that the rows of each
//! table would fill by themselves. The packing is the size of the pages that the rows really need,
//! divided by the footprint. Compaction measures it in each turn through the log. It exceeds 1
//! because long and short rows in one page may leave gaps.
//!
//! Compaction begins at 1.4 times that size (the target). If the log is longer than
//! `bytes_before_waiting`, which is a little above the target, a writer waits at its next page
//! turn. It waits until compaction has passed some pages: the longer the log, the more pages
//! ([`pages_to_await`]). So the log stays near its target at any rate of writing. The number of
//! pages has a limit. So no writer waits until compaction has passed all pages that a checkpoint
//! has settled.
//!
//! Kept checkpoints also hold log below `begin`. That log takes disk space, but it does not count
//! in the log's length. Compaction cannot reduce it: until the next checkpoint, every copy makes
//! the log longer, and a checkpoint still holds the space of the old record.

use crate::engine::signal::CompactorState;
use std::time::{Duration, Instant};

use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::memory::budget::Budget;
use crate::process::interrupt::Checks;
use crate::sync::{MutexGuard, Ordering};

/// Number of pages by which the log may exceed its target. This allows for pages that are being
/// filled, written or compacted.
const SLACK_PAGES: u64 = 2;
/// Writers wait if the log exceeds this multiple of its target by more than `2 * SLACK_PAGES`
/// pages.
const BEHIND: f64 = 1.03;
/// A writer waits for one more compacted page for each hundredth by which the log exceeds the
/// length up to which no writer waits (`bytes_before_waiting`).
const PAGES_PER_EXCESS: f64 = 100.0;
/// Smallest and largest number of compacted pages that a writer waits for. With two pages, a log
/// with evenly spread rewrites keeps its length.
const AWAITED_PAGES: (f64, f64) = (2.0, 16.0);
/// Longest wait for the signal before the waiting thread checks its condition again.
const FAR_OFF: Duration = Duration::from_secs(3600);
/// Smallest number of pages of disk room that writers leave for compaction. Compaction copies rows
/// into that room until the next checkpoint frees space.
const WORKING_PAGES: u64 = 8;
/// Writers leave at least the memory budget divided by this number as disk room for compaction.
/// With more room, compaction needs fewer checkpoints.
const WORKING_BUDGET_PART: u64 = 16;
/// Number of pages below the quota that only compaction and deletions may use.
const QUOTA_RESERVE_PAGES: u64 = 4;

/// Returns the bytes below the quota that a batch must leave free: the pages for compaction, and
/// the pages for rows that other batches are reading.
pub(crate) fn quota_reserve_bytes(page_bytes: u64, budget_bytes: u64) -> u64 {
    QUOTA_RESERVE_PAGES * page_bytes + Budget::read_buffer_bytes_for(budget_bytes)
}

/// The reason why the log may not take another page.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lack {
    /// The log has reached its quota.
    Quota {
        /// The quota in bytes.
        bytes: u64,
    },
    /// After another page, the next checkpoint might find no room on the disk.
    Disk {
        /// Bytes that are free in the file system.
        room_bytes: u64,
        /// Largest number of bytes that a checkpoint and compaction need.
        needed_bytes: u64,
    },
}

/// Returns how many pages compaction must pass before a waiting writer may take another page.
/// `length` is the log's length divided by the length up to which no writer waits.
fn pages_to_await(length: f64) -> u64 {
    let (least, most) = AWAITED_PAGES;
    (least + (length - 1.0) * PAGES_PER_EXCESS).clamp(least, most) as u64
}

impl Core {
    /// Returns the bytes of the pages that the current rows need: the footprint times the packing.
    fn needed_bytes(&self, state: &CompactorState) -> f64 {
        self.tables.live(self.log.page_bytes()).footprint as f64 * state.packing.max(1.0)
    }

    fn log_bytes(&self) -> u64 {
        self.log.tail_address() - self.log.begin()
    }

    /// Returns the number of bytes of log that are on the device.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.log.flushed().saturating_sub(self.space.freed())
    }

    /// Returns the smallest number of bytes that compaction gives back to the file system in one
    /// call. A system call for each small page would cost more than it gains.
    pub(super) fn free_stride(&self) -> u64 {
        let page_bytes = self.log.page_bytes();
        let urgent = self.space.quota_bytes.is_some() || self.was_short_of_room();
        let footprint = || self.tables.live(page_bytes).footprint;
        if urgent { 0 } else { (footprint() / 64).min(1 << 20).max(page_bytes) }
    }

    /// True if the compaction thread should compact a page. See `can_make_room` for the rule that
    /// connects both functions.
    pub(super) fn compaction_wanted(&self, state: &CompactorState) -> bool {
        if state.stopped.is_some() || self.log.check_poison().is_err() {
            return false;
        }
        if state.urgent && self.has_unneeded() {
            return true;
        }
        // True if compaction cannot free space now: a checkpoint or a scan still needs the old
        // records, and there is no room for the copies that compaction appends.
        let in_vain = || self.pinned().is_some() && self.lacks_room().is_some();
        self.has_cold_page()
            && (state.urgent && self.has_dead_space(state)
                || self.exceeds(self.target_bytes(state), SLACK_PAGES))
            && !in_vain()
    }

    /// Returns the length in bytes above which compaction begins.
    fn target_bytes(&self, state: &CompactorState) -> f64 {
        self.needed_bytes(state) * self.space.options.space_amplification_target
    }

    fn has_cold_page(&self) -> bool {
        self.log.begin() + self.log.page_bytes() <= self.log.flushed()
    }

    fn has_dead_space(&self, state: &CompactorState) -> bool {
        self.exceeds(self.needed_bytes(state) * 1.05, SLACK_PAGES)
    }

    fn exceeds(&self, bytes: f64, pages: u64) -> bool {
        self.log_bytes() as f64 > bytes + (pages * self.log.page_bytes()) as f64
    }

    /// True if writers are so far ahead of compaction that they should wait.
    fn behind(&self, state: &CompactorState) -> bool {
        let options = &self.space.options;
        options.background
            && options.throttle_bytes_per_s.is_none()
            && !state.shutdown
            && self.compaction_wanted(state)
            && self.log_bytes() as f64 > self.bytes_before_waiting(state)
    }

    /// Returns the largest length in bytes of a log for which no writer waits.
    fn bytes_before_waiting(&self, state: &CompactorState) -> f64 {
        self.target_bytes(state) * BEHIND + (2 * SLACK_PAGES * self.log.page_bytes()) as f64
    }

    /// Returns the address that `begin` must reach before a waiting writer continues.
    fn awaited_begin(&self, state: &CompactorState) -> u64 {
        let length = self.log_bytes() as f64 / self.bytes_before_waiting(state);
        self.log.begin() + pages_to_await(length) * self.log.page_bytes()
    }

    /// True if `await_space` would wait or fail.
    pub(crate) fn must_await_space(&self) -> bool {
        self.has_no_room() || self.behind(&self.space.signal.state.lock())
    }

    /// True if `await_space` may wait or fail. Makes no call to the file system.
    pub(crate) fn may_await_space(&self) -> bool {
        self.was_short_of_room() || self.behind(&self.space.signal.state.lock())
    }

    /// True if the log may not take another page now.
    pub(crate) fn has_no_room(&self) -> bool {
        self.lacks_room().is_some()
    }

    /// True if a batch has met a lack of room that may still exist. A batch checks this before it
    /// changes its first row.
    pub(crate) fn was_short_of_room(&self) -> bool {
        // Relaxed: this is only a hint, and the caller then checks the room itself.
        self.space.short.load(Ordering::Relaxed) || self.log.is_disk_full()
    }

    /// # Errors
    /// Returns `QuotaExceeded` or `DiskFull` if the log may not take another page.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.lacks_room().map_or(Ok(()), |lack| Err(self.no_room(lack)))
    }

    /// Returns the reason why the log may not take another page. `None` if it may.
    fn lacks_room(&self) -> Option<Lack> {
        let over_quota = self.over_quota().map(|bytes| Lack::Quota { bytes });
        let lack = over_quota.or_else(|| self.lacks_disk());
        self.space.short.store(lack.is_some(), Ordering::Relaxed);
        lack
    }

    fn over_quota(&self) -> Option<u64> {
        let quota = self.space.quota_bytes?;
        let reserve = quota_reserve_bytes(self.log.page_bytes(), self.budget.total_bytes());
        let next = self.log.tail_address() + self.log.page_bytes() + reserve;
        (next - self.space.freed() > quota).then_some(quota)
    }

    /// Returns a reason if the disk has less room than another page of the log, the next checkpoint
    /// and compaction need together. With that room, a bank on a full disk can still compact and
    /// take checkpoints in turn.
    ///
    /// The function asks the file system once for each page of the log, and on every call while
    /// there is no room.
    fn lacks_disk(&self) -> Option<Lack> {
        let page = self.log.tail_address() / self.log.page_bytes();
        // Relaxed: if two threads check for the same page, both may ask the file system.
        if self.space.page_with_room.load(Ordering::Relaxed) == page {
            return None;
        }
        // `working_bytes` is at least the size of the index. So after a checkpoint that writes a
        // whole image of the index, there is still room for the next checkpoint.
        let working_bytes = (WORKING_PAGES * self.log.page_bytes())
            .max(self.budget.total_bytes() / WORKING_BUDGET_PART)
            .max(self.budget.index_bytes());
        let lack = self.disk_lacks(working_bytes);
        if lack.is_none() {
            self.space.page_with_room.store(page, Ordering::Relaxed);
        }
        lack
    }

    /// Returns a reason if the disk has less room than the next checkpoint, another page of the log
    /// and `more_bytes` need together.
    pub(super) fn disk_lacks(&self, more_bytes: u64) -> Option<Lack> {
        let room_bytes = self.log.device.room_bytes()?;
        let unwritten_bytes = self.log.tail_address().saturating_sub(self.log.flushed());
        let reserve_bytes = quota_reserve_bytes(self.log.page_bytes(), self.budget.total_bytes());
        let checkpoint_bytes =
            unwritten_bytes + self.log.page_bytes() + reserve_bytes + self.budget.index_bytes();
        let needed_bytes = checkpoint_bytes + more_bytes;
        (room_bytes < needed_bytes).then_some(Lack::Disk { room_bytes, needed_bytes })
    }

    /// Waits in two cases: compaction is behind, or the quota or the disk leaves no room. A batch
    /// calls this before it takes another page of the log. Must be called while not pinned, without
    /// a read buffer and without a stream of reads.
    ///
    /// # Errors
    /// `QuotaExceeded` or `DiskFull` if compaction cannot make room. `TooManyOpenFiles` if the log
    /// can't be written for lack of a descriptor. `Interrupted` if the program
    /// ends the wait. `Poisoned` if the log cannot be written.
    #[cold]
    pub(crate) fn await_space(&self) -> Result<()> {
        self.log.check_poison()?;
        let signal = &self.space.signal;
        let mut state = signal.state.lock();
        let mut waiting: Option<(Instant, u64)> = None;
        let mut checks = Checks::new();
        // The loop ends: compaction makes room, has no work left, or stops, and each of these
        // raises the signal. The program can also end the wait.
        let done = loop {
            // The lock of `state` is released while the writer thread tries to write. After a
            // failed attempt, that thread may take the lock (`Signal::raise`).
            let written = match self.log.is_disk_full() {
                true => MutexGuard::unlocked(&mut state, || self.log.try_to_write()),
                false => Ok(()),
            };
            if written.is_err() {
                // A user's disk quota may have refused the write. The file system does not report
                // such a quota as lack of room.
                self.space.page_with_room.store(u64::MAX, Ordering::Relaxed);
            }
            let lack = match written {
                Ok(()) => self.lacks_room().map(|lack| self.no_room(lack)),
                Err(refused) => Some(refused),
            };
            let is_first = waiting.is_none();
            let is_short = lack.is_some();
            match lack {
                None if !self.behind(&state) => break Ok(()),
                None if waiting.is_some_and(|(_, awaited)| self.log.begin() >= awaited) => {
                    break Ok(());
                }
                Some(error) if !self.can_make_room(&state) => break Err(error),
                None | Some(_) => {}
            }
            waiting.get_or_insert_with(|| (Instant::now(), self.awaited_begin(&state)));
            // The compaction thread may sleep although it has work, because the log has grown since
            // it last checked. This thread wakes the compaction thread only once. Otherwise the two
            // threads would wake each other forever.
            let becomes_urgent = is_short && !std::mem::replace(&mut state.urgent, true);
            if is_first || becomes_urgent {
                signal.changed.notify_all();
            }
            signal.changed.wait_until(&mut state, checks.until(Instant::now() + FAR_OFF));
            if checks.due().is_some_and(|check| MutexGuard::unlocked(&mut state, check)) {
                let waited = waiting.map_or(Duration::ZERO, |(since, _)| since.elapsed());
                break Err(Error::Interrupted { waited });
            }
        };
        state.urgent = false;
        if done.is_err() && state.short_of_files {
            // Compaction tries again, so that a later call finds room.
            signal.changed.notify_all();
        }
        if let Some((since, _)) = waiting {
            self.counters.compaction_waits.note(since.elapsed());
        }
        done
    }

    /// True if a writer without room should wait, because compaction or a checkpoint may make room.
    /// If this function returns true while `compaction_wanted` returns false, an event in progress
    /// must raise the signal: the end of a checkpoint, or the write of a page. Otherwise the
    /// waiting writer would sleep although no room comes.
    fn can_make_room(&self, state: &CompactorState) -> bool {
        self.space.options.background
            && state.stopped.is_none()
            && !state.shutdown
            && self.log.check_poison().is_ok()
            && (self.has_unneeded()
                // At its end, the checkpoint that is being taken releases older checkpoints, and so
                // frees space. The checkpoint itself waits only for the log's writer.
                || self.is_taking_checkpoint()
                // Copying rows frees no space while a checkpoint holds the old records.
                || self.has_dead_space(state)
                    && self.pinned().is_none()
                    && (self.has_cold_page() || !self.log.is_disk_full() && self.log.settle_oldest()))
    }

    fn no_room(&self, lack: Lack) -> Error {
        let quota_bytes = match lack {
            Lack::Quota { bytes } => bytes,
            Lack::Disk { room_bytes, needed_bytes } => {
                let (path, _) = self.log.device.locate(self.log.tail_address());
                let reason = format!(
                    "{room_bytes} bytes are left, and compaction and the next checkpoint need {needed_bytes}"
                );
                return Error::disk_full(path, &reason);
            }
        };
        Error::QuotaExceeded {
            quota_bytes,
            log_bytes: self.log.tail_address() - self.space.freed(),
            live_bytes: self.tables.live(self.log.page_bytes()).bytes,
            held_bytes: self.log.begin().saturating_sub(self.space.freed()),
            holders: self.space_holders(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_wait_the_longer_the_further_they_are_ahead() {
        assert_eq!([1.0, 1.01, 1.055, 1.1, 2.0].map(pages_to_await), [2, 3, 7, 12, 16]);
    }
}
