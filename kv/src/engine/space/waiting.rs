//! When compaction has work, and when writers wait for it.

use std::time::{Duration, Instant};

use super::pressure::Pressure;
use super::room::Headroom;
use super::signal::{CompactorState, Until};
use super::tiers::Work;
use crate::error::{Error, Result};
use crate::process::interrupt::Checks;
use crate::sync::{MutexGuard, Ordering};

/// Longest wait for the signal before the waiting thread checks its condition again.
const FAR_OFF: Duration = Duration::from_secs(3600);

/// In a bank in two tiers, writers wait at most this number of times while the log grows by a unit
/// of work.
const WAITS_PER_UNIT: u64 = 4;

/// What a waiting writer waits for.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    /// The log begins at this address.
    Begin(u64),
    /// Spills and merges have read and written this number of bytes.
    Work(u64),
}

impl Headroom<'_> {
    /// True if `await_space` would wait or fail.
    pub(crate) fn must_await_space(&self) -> bool {
        self.decide_tiers();
        self.is_short() || self.is_behind(&mut self.space.signal.state.lock())
    }

    /// True if `await_space` may wait or fail. Makes no call to the file system.
    pub(crate) fn may_await_space(&self) -> bool {
        self.was_short() || self.is_behind(&mut self.space.signal.state.lock())
    }

    /// True if a batch should call `await_space` although its page has room. A page may be much
    /// longer than what the log may grow between two waits for spills and merges.
    #[inline]
    pub(crate) fn is_far_ahead(&self) -> bool {
        // Relaxed: a writer that sees a change late waits later.
        self.space.far_ahead.load(Ordering::Relaxed)
            && self.log.tail_address() >= self.space.next_wait.load(Ordering::Relaxed)
    }

    /// Waits in two cases: compaction is behind, or the quota or the disk leaves no room. A batch
    /// calls this before it takes another page of the log. Must be called while not pinned, without
    /// a read buffer and without a stream of reads.
    ///
    /// # Errors
    /// `QuotaExceeded` or `DiskFull` if compaction cannot make room. `TooManyOpenFiles` if the log
    /// can't be written for lack of a descriptor. `Interrupted` if the program ends the wait.
    /// `Poisoned` if the log cannot be written.
    #[cold]
    pub(crate) fn await_space(&self) -> Result<()> {
        self.log.check_poison()?;
        self.decide_tiers();
        let signal = &self.space.signal;
        let mut state = signal.state.lock();
        let mut waiting: Option<(Instant, Awaited)> = None;
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
            let lack = written.and_then(|()| self.check()).err();
            let is_first = waiting.is_none();
            let is_short = lack.is_some();
            match lack {
                None if !self.is_behind(&mut state) => break Ok(()),
                None if waiting.is_some_and(|(_, awaited)| self.is_reached(awaited, &state)) => {
                    break Ok(());
                }
                Some(error) if !self.can_make_room(&mut state) => break Err(error),
                None | Some(_) => {}
            }
            waiting.get_or_insert_with(|| (Instant::now(), self.awaited(&mut state)));
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
        let tail = self.log.tail_address();
        if self.has_two_tiers() && tail >= self.space.next_wait.load(Ordering::Relaxed) {
            let next = tail + self.unit_bytes() / WAITS_PER_UNIT;
            self.space.next_wait.store(next, Ordering::Relaxed);
        }
        if done.is_err() {
            // A later call tries once more whether spills find rows that no call holds any more.
            state.held.begin_lap(tail);
        }
        if done.is_err() && state.is_stopped_until(Until::Signal) {
            // Compaction tries again, so that a later call finds room.
            signal.changed.notify_all();
        }
        if let Some((since, _)) = waiting {
            self.space.counters.compaction_waits.note(since.elapsed());
        }
        done
    }

    /// Waits until compaction has work. Returns false at shutdown.
    pub(super) fn await_work(&self) -> bool {
        let signal = &self.space.signal;
        let mut state = signal.state.lock();
        // The loop ends when there is work, or at shutdown.
        loop {
            if state.shutdown {
                return false;
            }
            if !self.log.is_disk_full() {
                state.go_on_after(Until::DiskHasRoom);
            }
            if self.next_work(&mut state).is_some() {
                return true;
            }
            // Compaction has no work now. Wakes the writers that wait for compaction, so that they
            // check their condition again.
            signal.changed.notify_all();
            signal.changed.wait(&mut state);
            state.go_on_after(Until::Signal);
        }
    }

    /// Returns the work that the compaction thread should do. `None` if it should wait. See
    /// `can_make_room` for the rule that connects both functions.
    pub(super) fn next_work(&self, state: &mut CompactorState) -> Option<Work> {
        if state.stopped.is_some() || self.log.is_poisoned() {
            return None;
        }
        if state.urgent && self.space.has_unneeded(self.log) {
            return Some(Work::Free);
        }
        let work = match self.has_two_tiers() {
            true => self.tier_work(state, state.urgent),
            false => self.page_work(state),
        };
        // Compaction cannot free space now if a checkpoint or a scan still needs the old records or
        // parts, and there is no room for what compaction writes.
        work.filter(|_| !(self.space.has_holder() && self.is_short()))
    }

    /// Returns the work that is due in a bank with one tier.
    fn page_work(&self, state: &CompactorState) -> Option<Work> {
        if !self.has_cold_page() {
            return None;
        }
        let pressure = self.pressure(state);
        let is_due = state.urgent && pressure.has_dead_space() || pressure.exceeds_target();
        is_due.then_some(Work::Page)
    }

    /// True if a writer without room should wait, because compaction or a checkpoint may make room.
    /// If this function returns true while `next_work` returns `None`, an event in progress must
    /// raise the signal: the end of a checkpoint, or the settling or the write of a page. Otherwise
    /// the waiting writer would sleep although no room comes.
    fn can_make_room(&self, state: &mut CompactorState) -> bool {
        self.works_in_background()
            && state.stopped.is_none()
            && !state.shutdown
            && !self.log.is_poisoned()
            && (self.space.has_unneeded(self.log)
                // At its end, the checkpoint that is being taken releases older checkpoints, and so
                // frees space. The checkpoint itself waits only for the log's writer.
                || self.space.pins.lock().taking
                // Copying rows frees no space while a checkpoint holds the old records or parts.
                || !self.space.has_holder() && match self.has_two_tiers() {
                    // Ends, because each merge shortens the runs, and the spills of each lap the
                    // log, unless its rows are held (`Held::lets_shrink`).
                    true => self.tier_work(state, true).is_some()
                        || self.debt(state).exceeds_log() && self.can_settle(),
                    false => self.pressure(state).has_dead_space()
                        && (self.has_cold_page() || self.can_settle()),
                })
    }

    /// True if the log's writer can settle more pages. It then does so.
    fn can_settle(&self) -> bool {
        !self.log.is_disk_full() && self.log.settle_oldest()
    }

    /// True if writers are so far ahead of compaction that they should wait.
    fn is_behind(&self, state: &mut CompactorState) -> bool {
        self.works_in_background()
            && self.space.options.throttle_bytes_per_s.is_none()
            && !state.shutdown
            && self.next_work(state).is_some()
            && match self.has_two_tiers() {
                true => {
                    self.debt(state).makes_writers_wait()
                        && self.log.tail_address() >= self.space.next_wait.load(Ordering::Relaxed)
                }
                false => self.pressure(state).is_behind(),
            }
    }

    /// Returns what a waiting writer waits for, before it continues.
    fn awaited(&self, state: &mut CompactorState) -> Awaited {
        if self.has_two_tiers() {
            let units = self.debt(state).units_to_await();
            return Awaited::Work(state.work_bytes + units * self.unit_bytes());
        }
        let pages = self.pressure(state).pages_to_await();
        Awaited::Begin(self.log.begin() + pages * self.log.page_bytes())
    }

    fn is_reached(&self, awaited: Awaited, state: &CompactorState) -> bool {
        match awaited {
            Awaited::Begin(begin) => self.log.begin() >= begin,
            Awaited::Work(bytes) => state.work_bytes >= bytes,
        }
    }

    /// True if compaction can read the oldest page.
    pub(super) fn has_cold_page(&self) -> bool {
        self.log.begin() + self.log.page_bytes() <= self.readable()
    }

    /// Returns the end of the pages that compaction can read: a spill reads settled pages, and
    /// compaction in one tier reads pages on the device.
    pub(super) fn readable(&self) -> u64 {
        match self.has_two_tiers() {
            true => self.log.settled(),
            false => self.log.flushed(),
        }
    }

    fn pressure(&self, state: &CompactorState) -> Pressure {
        let page_bytes = self.log.page_bytes();
        let needed_bytes = state.packing.needed_bytes(&self.tables.live(page_bytes));
        Pressure {
            log_bytes: self.log.tail_address() - self.log.begin(),
            needed_bytes,
            target_bytes: needed_bytes * self.space.options.space_amplification_target,
            page_bytes,
        }
    }
}
