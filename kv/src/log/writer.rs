//! The thread that settles pages (makes them read-only for good), writes them, and evicts them from
//! memory.
//!
//! **Every thread that waits for the log waits for this thread only.** A batch or compaction waits
//! for a frame in `turn_page`, and a checkpoint in `reserve_frame`. A borrower of memory waits in
//! `give_way`. A checkpoint waits for written pages in `await_flushed`. Frames are missing for one
//! of two reasons. Either pages fill them, and this thread evicts pages. Or the budget has no frame
//! left, because the index or a scan took memory that the read cache still has. Then this thread
//! makes the cache shrink before it plans. It cannot leave that to the waiting threads, because all
//! threads of the program may be waiting.
//!
//! No wake-up is lost. A waiting thread wakes the writer while it holds the lock of `Log::state`,
//! after the charge that made it wait. The writer checks the cache's share under this lock before
//! it sleeps. If a thread charges the budget while the writer sleeps, either no thread waits for a
//! frame, or a wake-up under this lock follows. A batch sends the wake-up at its end (`make_room`),
//! and a scan sends it when it waits itself (`Scan::new`).

use std::time::{Duration, Instant};

use super::page;
use super::regions::FREE_FRAMES_WANTED;
use super::{Log, State};
use crate::device::AlignedBuffer;
use crate::epoch;
use crate::error::{Error, Result};
use crate::record::clock::ClockWord;
use crate::sync::{MutexGuard, Ordering, Planted, planted};

/// Longest rest of the writer after a page. A slow drive takes less time for a page. Only if the
/// process was suspended during the write does the page seem to have taken longer; without this
/// limit, a checkpoint would then wait for that long.
const REST_MAX: Duration = Duration::from_secs(1);

/// Returns how long the writer rests after a page whose write took `took`.
fn rest_after(took: Duration) -> Duration {
    took.min(REST_MAX)
}

/// The next boundaries, as page numbers.
struct Plan {
    read_only: u64,
    head: u64,
    /// The writer writes the settled pages below this one.
    write_end: u64,
}

impl Log {
    /// Runs the writer thread until shutdown. `give_way` makes the read cache release the memory
    /// that it has beyond its share.
    pub(crate) fn run_writer(&self, give_way: impl Fn()) {
        /// A guard that poisons the log if a device panics. The poison wakes the threads that wait
        /// for this thread.
        struct PoisonOnPanic<'a>(&'a Log);
        impl Drop for PoisonOnPanic<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.poison(&Error::Poisoned { reason: "the writer thread panicked".into() });
                }
            }
        }
        let _poison_on_panic = PoisonOnPanic(self);
        let mut image = AlignedBuffer::zeroed(self.page_bytes() as usize);
        while let Some(plan) = self.next_plan(&give_way) {
            self.move_boundaries(&plan);
            // On a full disk, `begin_attempt` returns `None` until a call requests an attempt.
            let Some(requests) = self.begin_attempt() else { continue };
            if let Err(error) = self.write_settled(&mut image)
                && !self.note_refused(&error, requests)
            {
                self.poison(&error);
            }
        }
    }

    /// Waits until there is work. `None` at shutdown.
    fn next_plan(&self, give_way: impl Fn()) -> Option<Plan> {
        let mut state = self.state.lock();
        loop {
            if state.shutdown {
                return None;
            }
            if self.budget.cache_bytes_over() > 0 {
                // `give_way` runs without the lock, because the cache reports its new allowance to
                // the log, which takes the lock.
                MutexGuard::unlocked(&mut state, &give_way);
                continue;
            }
            self.leave_out(&mut state);
            if self.poison.get().is_none() {
                let mut plan = self.plan(&state);
                let page = |boundary: u64| boundary >> self.page_bits;
                let read_only = page(self.read_only.load(Ordering::Relaxed));
                let may_write = state.disk.may_write();
                if !may_write {
                    // On a full disk, the writer makes no further page read-only. A change of a row
                    // on a read-only page would copy the row to the tail, and might need another
                    // page.
                    plan.read_only = read_only;
                }
                if plan.read_only > read_only
                    || may_write && page(self.flushed.load(Ordering::Relaxed)) < plan.write_end
                    || plan.head > page(self.head.load(Ordering::Relaxed))
                {
                    return Some(plan);
                }
            }
            self.writer_wake.wait(&mut state);
        }
    }

    /// Leaves out the pages that the log's beginning has passed before they were written.
    fn leave_out(&self, state: &mut State) {
        let flushed = self.flushed.load(Ordering::Relaxed);
        let cut = state.cut_page << self.page_bits;
        let begin = self.begin();
        // The pages below a cut belong to a checkpoint, which may have a lower beginning.
        if flushed < begin && (flushed >= cut || planted(Planted::CutUnwritten)) {
            // Release: pairs with the Acquire load in `flushed`.
            self.flushed.store(begin, Ordering::Release);
            // On a full disk, the first of these pages is the one that could not be written. No
            // attempt writes it any more, so the calls that wait for an attempt go on.
            self.note_written(state);
        }
    }

    fn plan(&self, state: &State) -> Plan {
        let allowed = self.budget.frames_allowed();
        let regions = self.regions();
        let tail = self.tail.load(Ordering::Relaxed) >> 32;
        let old = (tail + 1).saturating_sub(regions.mutable);
        let settled = self.read_only.load(Ordering::Relaxed) >> self.page_bits;
        let read_only = old.max(state.settle_below).max(settled).min(tail);
        // Evicts as many pages as needed for `frames_wanted` free frames within the allowance.
        let in_use = self.budget.frames() - state.free.len() as u64;
        let evict = (in_use + state.frames_wanted()).saturating_sub(allowed);
        let head = self.head.load(Ordering::Relaxed) >> self.page_bits;
        let flushed = self.flushed.load(Ordering::Relaxed) >> self.page_bits;
        let write_end = match regions.before_spill {
            // On a full disk there is always a page with which an attempt can be made.
            Some(_) if !state.disk.is_full() => state.cut_page.max(head + evict).min(settled),
            _ => settled,
        };
        Plan { read_only, head: (head + evict).min(flushed), write_end }
    }

    /// Moves both boundaries, waits until no thread acts on the old ones, and frees the frames of
    /// evicted pages.
    fn move_boundaries(&self, plan: &Plan) {
        let old_head = self.head.load(Ordering::Relaxed) >> self.page_bits;
        // Release: pairs with the Acquire loads in `view`. The barrier, not this ordering, protects
        // threads that use the old boundaries. A cut may have moved the read-only boundary further
        // in between.
        self.read_only.fetch_max(plan.read_only << self.page_bits, Ordering::Release);
        self.head.store(plan.head << self.page_bits, Ordering::Release);
        if !planted(Planted::MoveAtOnce) {
            epoch::barrier();
        }
        // After the barrier no thread can fill or change a record below the boundary. Release:
        // pairs with the Acquire load in `settled`.
        self.settled.store(plan.read_only << self.page_bits, Ordering::Release);
        for page in old_head..plan.head {
            self.count_wasted(page);
            self.free_frame(page);
        }
        if let Some(told) = self.lookahead.0.get() {
            told();
        }
        if self.bytes_before_spill().is_some() {
            // A spill can read the settled pages.
            self.compactor.raise();
        }
    }

    /// Counts the rows that lookahead brought in and that no operation used before their eviction.
    fn count_wasted(&self, page: u64) {
        if !self.counters.promoted_waiting() {
            return;
        }
        let used = u64::from(self.used_bytes[self.slot(page)].load(Ordering::Relaxed));
        let mut wasted = 0;
        // SAFETY: after the barrier no thread reaches the page, and its frame is not freed yet. The
        // page was full, so every record in its used part is complete.
        unsafe {
            let frame = self.frame_pointer(page);
            page::for_each_record(frame, page << self.page_bits, used, |_, record| {
                let clock = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
                let unused = clock.is_promoted() && !clock.is_replaced();
                wasted += u64::from(unused && !record.link().is_invalid());
            });
        }
        self.counters.promoted_wasted.add(wasted);
    }

    fn free_frame(&self, page: u64) {
        let shift = self.shifts[self.slot(page)].load(Ordering::Relaxed);
        let offset = (page << self.page_bits).wrapping_add(shift);
        let frame = (offset >> self.page_bits) as u32;
        let mut state = self.state.lock();
        if !self.is_within_allowance() {
            self.retire(&mut state, frame);
        } else {
            state.free.push(frame);
        }
        self.frame_freed.notify_all();
    }

    /// True if batches that append as fast as the drive writes could fill memory before pages
    /// `page..end` are written. This is the case if at most `end - page` frames have no unwritten
    /// page.
    fn is_urgent(&self, state: &State, page: u64, end: u64) -> bool {
        let unwritten = (self.tail.load(Ordering::Relaxed) >> 32) + 1 - page;
        let left = self.budget.frames_allowed().saturating_sub(unwritten + FREE_FRAMES_WANTED);
        state.shutdown || left <= end - page
    }

    /// True if frames can be freed or the cache must shrink. A thread that waits for a frame should
    /// not wait until all settled pages are written.
    fn has_to_give_way(&self, state: &State) -> bool {
        let head = self.head.load(Ordering::Relaxed) >> self.page_bits;
        self.plan(state).head > head || self.budget.cache_bytes_over() > 0
    }

    /// Writes settled pages to the device. Ends when those are written that have to be, when frames
    /// can be freed, or when the cache must shrink. A checkpoint settles all pages in memory at
    /// once. While memory has room, the writer therefore rests after each page for the time that
    /// the page took, and leaves processor and drive to the batches.
    fn write_settled(&self, image: &mut AlignedBuffer) -> Result<()> {
        // Acquire: pairs with the Release of the boundary by this thread or by a cut. A cut runs
        // after all batches have unpinned.
        let settled = self.read_only.load(Ordering::Acquire) >> self.page_bits;
        let end = self.plan(&self.state.lock()).write_end.min(settled);
        let mut page = self.flushed.load(Ordering::Relaxed) >> self.page_bits;
        let mut tail = self.tail.load(Ordering::Relaxed);
        while page < end {
            let began = Instant::now();
            let start = page << self.page_bits;
            let used = u64::from(self.used_bytes[self.slot(page)].load(Ordering::Relaxed));
            // SAFETY: the page lies below the read-only boundary. No thread acts on an older
            // boundary: a barrier has passed since this thread moved it, or `Log::cut` moved it
            // while no thread was pinned. The records are therefore complete and their values don't
            // change. The page is above the head, which only this thread moves.
            unsafe {
                let identity = self.lineage.page(page);
                page::write_image(self.frame_pointer(page), start, used, identity, image);
            }
            self.device.write(start, image)?;
            self.counters.disk_write_bytes.add(image.len() as u64);
            page += 1;
            // Release: pairs with the Acquire load in `flushed`. The store is made under the lock,
            // so no waiting call misses the wake-up.
            let mut state = self.state.lock();
            self.flushed.store(page << self.page_bits, Ordering::Release);
            self.note_written(&mut state);
            if !planted(Planted::FlushUntold) {
                self.page_flushed.notify_all();
            }
            if self.has_to_give_way(&state) {
                // The next plan follows at once and continues with the following pages.
                drop(state);
                self.compactor.raise();
                return Ok(());
            }
            let tail_before = std::mem::replace(&mut tail, self.tail.load(Ordering::Relaxed));
            let rest = rest_after(began.elapsed());
            if page < end && tail != tail_before && !self.is_urgent(&state, page, end) {
                // A thread that turns a page ends this rest early.
                self.writer_wake.wait_for(&mut state, rest);
            }
            drop(state);
            self.compactor.raise();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is suspended for a night during the write of a page once made its next
    /// checkpoint wait for as long.
    #[test]
    fn a_suspension_during_a_write_makes_no_long_rest() {
        assert_eq!(rest_after(Duration::from_secs(8 * 3600)), REST_MAX);
        assert_eq!(rest_after(Duration::from_millis(5)), Duration::from_millis(5));
    }
}
