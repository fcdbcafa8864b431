//! When compaction begins, and when writers wait for it: the log's target, the disk quota, a full disk.
//!
//! The log's length is measured against its *footprint*: the pages that its current rows would fill by
//! themselves, table by table, times the *packing*: how much more they turned out to need in the last turn of
//! compaction through the log, because long and short rows side by side may leave pages badly filled.
//! Compaction begins at the target (1.4). Writers wait at the next page turn a little above it, until compaction has
//! passed some pages, the more the further they are ahead: so the log stays near its target however fast they are, and
//! nobody stands still until all that a checkpoint has settled at once is gone through ([`pages_to_await`]).
//!
//! Space that kept checkpoints hold comes on top. Compaction does not make up for it: until the next checkpoint every copy
//! makes the log longer, and its old place is still held.

use crate::engine::signal::CompactorState;
use std::time::{Duration, Instant};

use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::log::page::PAGE_HEADER_BYTES;
use crate::memory::budget::Budget;
use crate::operation::Width;
use crate::process::interrupt::Checks;
use crate::sync::{MutexGuard, Ordering};

/// What the log may be longer than its target: pages that are filling, being written, or in compaction.
const SLACK_PAGES: u64 = 2;
/// Writers wait when the log exceeds its target by this factor and `SLACK_PAGES` once more.
const BEHIND: f64 = 1.03;
/// With each further part of its length, writers wait for one more page of compaction,
const PAGES_PER_EXCESS: f64 = 100.0;
/// from two, by which the log of evenly spread rewrites stays as long as it is, to so many.
const AWAITED_PAGES: (f64, f64) = (2.0, 16.0);
/// Stands for a wait without an end of its own.
const FAR_OFF: Duration = Duration::from_secs(3600);
/// Pages of room that writers leave on the disk for compaction at least. Compaction copies rows into that room until the
/// next checkpoint gives space back.
const WORKING_PAGES: u64 = 8;
/// Writers leave one part in `WORKING_BUDGET_PART` of the memory budget for compaction, if that is more than
/// `WORKING_PAGES`. With more room, compaction needs fewer checkpoints on the way.
const WORKING_BUDGET_PART: u64 = 16;
/// Pages below the quota that only compaction and deletions use.
const QUOTA_RESERVE_PAGES: u64 = 4;

/// What stays free below the quota: those pages, and what batches take whose reads are on their way.
pub(crate) fn quota_reserve_bytes(page_bytes: u64, budget_bytes: u64) -> u64 {
    QUOTA_RESERVE_PAGES * page_bytes + Budget::read_buffer_bytes_for(budget_bytes)
}

/// Why the log may not take another page.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lack {
    /// It has reached its quota.
    Quota {
        /// The quota.
        bytes: u64,
    },
    /// The next checkpoint would not find room on the disk.
    Disk {
        /// What the file system has left.
        room_bytes: u64,
        /// What a checkpoint, and compaction, need at most.
        needed_bytes: u64,
    },
}

/// The current rows of a store.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) rows: u64,
    /// Bytes of their records.
    pub(crate) bytes: u64,
    /// Bytes of the pages that they would fill.
    footprint: u64,
}

impl Live {
    pub(super) fn footprint(&self) -> u64 {
        self.footprint
    }
}

/// How many pages compaction passes while a writer waits to take another, if the log is `length` times as long as it
/// may be without waiting.
fn pages_to_await(length: f64) -> u64 {
    let (least, most) = AWAITED_PAGES;
    (least + (length - 1.0) * PAGES_PER_EXCESS).clamp(least, most) as u64
}

impl Core {
    /// The current rows of all tables. Exact while batches are paused, else as of a moment ago.
    pub(crate) fn live(&self) -> Live {
        let page_bytes = self.log.page_bytes();
        let mut live = Live::default();
        for table in self.tables.read().iter().filter(|table| !table.entry.dropped) {
            // Another thread's deletion may be counted before the insertion.
            let rows = table.rows.load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned();
            if rows == 0 {
                continue;
            }
            let bytes = table.live_bytes(rows);
            let record = table.record_bytes_max();
            let room = page_bytes - PAGE_HEADER_BYTES;
            live.rows += rows;
            live.bytes += bytes;
            live.footprint += match table.entry.width() {
                Width::Fixed => rows * page_bytes / (room / record),
                // A page ends with less free than the next record takes; and of two pages in a row one is
                // half full. (An estimate that was too low would have writers wait for ever for compaction.)
                Width::Variable => bytes * page_bytes / (room - record).max(room / 2),
            };
        }
        live
    }

    /// Bytes of the longest record that a table holds.
    pub(super) fn longest_record(&self) -> usize {
        let tables = self.tables.read();
        let lengths = tables.iter().filter(|table| !table.entry.dropped);
        lengths.map(|table| table.record_bytes_max() as usize).max().unwrap_or(0)
    }

    /// Bytes of the pages that the current rows need, as far as compaction knows.
    fn needed_bytes(&self, state: &CompactorState) -> f64 {
        self.live().footprint as f64 * state.packing.max(1.0)
    }

    fn log_bytes(&self) -> u64 {
        self.log.tail_address() - self.log.begin()
    }

    /// Bytes of log that the device holds.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.log.flushed().saturating_sub(self.space.freed())
    }

    /// Space goes back in steps: a system call for each small page would cost more than it gains.
    pub(super) fn free_stride(&self) -> u64 {
        let page_bytes = self.log.page_bytes();
        let urgent = self.space.quota_bytes.is_some() || self.was_short_of_room();
        if urgent { 0 } else { (self.live().footprint / 64).min(1 << 20).max(page_bytes) }
    }

    /// `can_make_room` must not promise what this refuses, or a writer waits for ever.
    pub(super) fn compaction_wanted(&self, state: &CompactorState) -> bool {
        if state.stopped.is_some() || self.log.check_poison().is_err() {
            return false;
        }
        if state.urgent && self.has_unneeded() {
            return true;
        }
        // Without room every copy makes the log longer, and what a checkpoint holds does not come back.
        let in_vain = || self.pinned().is_some() && self.lacks_room().is_some();
        self.has_cold_page()
            && (state.urgent && self.has_dead_space(state)
                || self.exceeds(self.target_bytes(state), SLACK_PAGES))
            && !in_vain()
    }

    /// How long the log should be at most.
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

    /// Whether writers are so far ahead of compaction that they should wait.
    fn behind(&self, state: &CompactorState) -> bool {
        let options = &self.space.options;
        options.background
            && options.throttle_bytes_per_s.is_none()
            && !state.shutdown
            && self.compaction_wanted(state)
            && self.log_bytes() as f64 > self.bytes_before_waiting(state)
    }

    /// A log as long as this has nobody wait.
    fn bytes_before_waiting(&self, state: &CompactorState) -> f64 {
        self.target_bytes(state) * BEHIND + (2 * SLACK_PAGES * self.log.page_bytes()) as f64
    }

    /// Where compaction has to get before a writer that is ahead of it goes on.
    fn awaited_begin(&self, state: &CompactorState) -> u64 {
        let length = self.log_bytes() as f64 / self.bytes_before_waiting(state);
        self.log.begin() + pages_to_await(length) * self.log.page_bytes()
    }

    /// Whether `await_space` would wait, or fail.
    pub(crate) fn must_await_space(&self) -> bool {
        self.has_no_room() || self.behind(&self.space.signal.state.lock())
    }

    /// Whether the log may not take another page as it is.
    pub(crate) fn has_no_room(&self) -> bool {
        self.lacks_room().is_some()
    }

    /// Whether a batch has met a lack of room that may still be there. A batch asks before it changes its first row.
    pub(crate) fn was_short_of_room(&self) -> bool {
        // Relaxed: a hint, after which the caller looks closely.
        self.space.short.load(Ordering::Relaxed) || self.log.is_disk_full()
    }

    /// # Errors
    /// `QuotaExceeded` or `DiskFull` if the log may not take another page.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.lacks_room().map_or(Ok(()), |lack| Err(self.no_room(lack)))
    }

    /// What keeps the log from taking another page.
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

    /// Whether the disk has less room than the next checkpoint needs with another page of log, and compaction to work in.
    /// That room is kept, so that a bank that has filled its disk can compact and take checkpoints by turns.
    ///
    /// The system is asked once for each page of log, and each time while room is lacking.
    fn lacks_disk(&self) -> Option<Lack> {
        let page = self.log.tail_address() / self.log.page_bytes();
        // Relaxed: threads that meet on the same page may both ask.
        if self.space.page_with_room.load(Ordering::Relaxed) == page {
            return None;
        }
        // At least the index: the first checkpoint with a whole image leaves as much as the next one needs.
        let working_bytes = (WORKING_PAGES * self.log.page_bytes())
            .max(self.budget.total_bytes() / WORKING_BUDGET_PART)
            .max(self.budget.index_bytes());
        let lack = self.disk_lacks(working_bytes);
        if lack.is_none() {
            self.space.page_with_room.store(page, Ordering::Relaxed);
        }
        lack
    }

    /// Whether the disk has less room than the next checkpoint needs with another page of log, and `more_bytes`.
    pub(super) fn disk_lacks(&self, more_bytes: u64) -> Option<Lack> {
        let room_bytes = self.log.device.room_bytes()?;
        let unwritten_bytes = self.log.tail_address().saturating_sub(self.log.flushed());
        let reserve_bytes = quota_reserve_bytes(self.log.page_bytes(), self.budget.total_bytes());
        let checkpoint_bytes =
            unwritten_bytes + self.log.page_bytes() + reserve_bytes + self.budget.index_bytes();
        let needed_bytes = checkpoint_bytes + more_bytes;
        (room_bytes < needed_bytes).then_some(Lack::Disk { room_bytes, needed_bytes })
    }

    /// Called by a batch that is about to take another page of the log, unpinned and without a read
    /// buffer or a stream. Waits for compaction to pass some pages where it is behind, or until it has made room below
    /// the quota or on the disk.
    ///
    /// # Errors
    /// `QuotaExceeded` or `DiskFull` where it can't; `Interrupted`; `Poisoned`.
    #[cold]
    pub(crate) fn await_space(&self) -> Result<()> {
        self.log.check_poison()?;
        let signal = &self.space.signal;
        let mut state = signal.state.lock();
        let mut waiting: Option<(Instant, u64)> = None;
        let mut checks = Checks::new();
        // Ends: compaction makes room, has nothing left to do, or stops; each raises the signal. Or the program ends it.
        let done = loop {
            // Without the lock: the writer takes it after an attempt.
            let written = match self.log.is_disk_full() {
                true => MutexGuard::unlocked(&mut state, || self.log.try_to_write()),
                false => Ok(()),
            };
            if written.is_err() {
                // A quota of the user may have refused the write, of which the file system does not tell.
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
            // The thread may sleep: the log has grown since it looked. This thread
            // wakes it once: else both would wake each other for ever.
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
        if let Some((since, _)) = waiting {
            self.counters.compaction_waits.note(since.elapsed());
        }
        done
    }

    /// True if compaction may make room, so that a writer without any waits. Must be false where `compaction_wanted` is,
    /// or the writer waits for ever.
    fn can_make_room(&self, state: &CompactorState) -> bool {
        self.space.options.background
            && state.stopped.is_none()
            && !state.shutdown
            && self.log.check_poison().is_ok()
            && (self.has_unneeded()
                // When it is done it lets go of older ones. It waits for the log's writer alone.
                || self.is_taking_checkpoint()
                // What a checkpoint holds stays, however much is copied out of it.
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
                return Error::DiskFull { path, reason };
            }
        };
        Error::QuotaExceeded {
            quota_bytes,
            log_bytes: self.log.tail_address() - self.space.freed(),
            live_bytes: self.live().bytes,
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
