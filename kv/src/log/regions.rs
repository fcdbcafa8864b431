//! How many pages the regions of the log in memory have.
//!
//! **Usually** the writer writes each page when it settles, and evicts the oldest pages when it
//! needs their frames.
//!
//! **In a bank in two tiers** the rows of the oldest pages go to the cold tier, which writes them
//! again. If they go while their pages are in memory, the pages need not be written at all. The log
//! then ends with memory: it *spills* at a length that leaves some frames free, so that a spill
//! that comes late still finds its pages in memory. The writer writes a page only if a checkpoint
//! needs it, or if its frame is needed before a spill has passed the page.

use super::Log;
use crate::sync::Ordering;

/// Number of frames that the writer keeps free, so that a page turn rarely waits.
pub(super) const FREE_FRAMES_WANTED: u64 = 2;

/// A page is at its last call during this many page turns before it leaves memory: `retention` then
/// copies its frequently used rows. One page is filled during the last call, and the copies may
/// fill another.
const LAST_CALL_PAGES: u64 = 2;

/// Number of pages that `settle_oldest` settles early. A waiting batch calls `settle_oldest` if the
/// log has reached its quota and compaction finds no page that it can read.
const SETTLED_EARLY_PAGES: u64 = 4;

/// A log that spills from memory leaves this number of bytes free for its growth until the spill,
/// but at most one part in `SPARE_PART` of its frames, and at least `SPARE_PAGES_MIN` frames.
const SPARE_BYTES: u64 = 2 << 20;
const SPARE_PART: u64 = 8;
const SPARE_PAGES_MIN: u64 = 2;

/// A log with so few frames that less than this part would be mutable does not spill from memory.
/// Models have few frames.
const MUTABLE_PART: u64 = if cfg!(embank_shuttle) { 8 } else { 2 };

/// The sizes of regions in pages, counted from the tail's page back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Regions {
    /// The pages of the mutable region.
    pub(super) mutable: u64,
    /// A page is at its last call if it is followed by at least this number of pages.
    pub(super) before_last_call: u64,
    /// The length at which a log spills from memory. `None` for a log whose pages are written as
    /// they settle.
    pub(super) before_spill: Option<u64>,
}

impl Regions {
    /// Returns the regions for `frames_allowed` frames of `page_bytes` bytes. The pages of a spill
    /// are `spill_pages`, or 0 if no rows go to the cold tier from memory.
    pub(super) fn of(frames_allowed: u64, page_bytes: u64, spill_pages: u64) -> Self {
        let written = Self::written_at_once(frames_allowed);
        if spill_pages == 0 {
            return written;
        }
        let spare = (SPARE_BYTES / page_bytes).min(frames_allowed / SPARE_PART);
        let spare = spare.max(SPARE_PAGES_MIN);
        let before_spill = frames_allowed.saturating_sub(FREE_FRAMES_WANTED + spare);
        // The pages of a spill are at their last call before it.
        let kept = before_spill.saturating_sub(spill_pages);
        let last_call = (2 * LAST_CALL_PAGES).min(frames_allowed / 4);
        let mutable = kept.saturating_sub(last_call).min(written.mutable);
        if mutable <= frames_allowed / MUTABLE_PART {
            return written;
        }
        let before_last_call = kept.saturating_sub(LAST_CALL_PAGES);
        Regions { mutable, before_last_call, before_spill: Some(before_spill) }
    }

    /// Returns the regions of a log whose pages are written as they settle. The read-only region
    /// has an eighth of the frames, and at least enough pages for writing and for pages at their
    /// last call.
    ///
    /// Lookahead keeps announced rows in memory: between its reads, its thread copies unused rows
    /// that have reached the read-only region back to the tail. The region must be long enough that
    /// the thread finds such a row before the row is evicted.
    fn written_at_once(frames_allowed: u64) -> Self {
        // The free frames count as part of the read-only region, because the writer gets them by
        // evicting the oldest pages of that region.
        let last_call = (FREE_FRAMES_WANTED + 2 * LAST_CALL_PAGES).min(frames_allowed / 4);
        let read_only = (frames_allowed / 8).max(last_call).max(FREE_FRAMES_WANTED);
        Regions {
            // Saturating: fewer than two frames may be allowed while the read cache still has
            // memory that the index or a scan has taken.
            mutable: frames_allowed.saturating_sub(read_only),
            before_last_call: frames_allowed.saturating_sub(FREE_FRAMES_WANTED + LAST_CALL_PAGES),
            before_spill: None,
        }
    }
}

impl Log {
    /// Returns the end of the pages that are at their last call: they are evicted next, and
    /// `retention` copies their often used rows. All of these pages are settled.
    pub(crate) fn last_call(&self) -> u64 {
        let pages = (self.tail.load(Ordering::Relaxed) >> 32) + 1;
        let end = pages.saturating_sub(self.regions().before_last_call);
        (end << self.page_bits).min(self.settled())
    }

    pub(super) fn regions(&self) -> Regions {
        // Relaxed: with an old value, a few pages are written that need not be.
        let spill_pages = self.spill_pages.load(Ordering::Relaxed);
        Regions::of(self.budget.frames_allowed(), self.page_bytes(), spill_pages)
    }

    /// Makes the log spill from memory: the rows of the oldest pages go to the cold tier, a spill
    /// has the rows of `spill_pages` pages, and the writer writes pages late.
    pub(crate) fn spill_from_memory(&self, spill_pages: u64) {
        self.spill_pages.store(spill_pages, Ordering::Relaxed);
    }

    /// Returns the length in bytes at which the log spills from memory. `None` if its pages are
    /// written as they settle.
    pub(crate) fn bytes_before_spill(&self) -> Option<u64> {
        self.regions().before_spill.map(|pages| pages << self.page_bits)
    }

    /// Makes the writer settle the oldest pages of the mutable region early, and write them unless
    /// the log spills from memory, so that compaction can read them. Returns false if the tail's
    /// page is the only page that compaction cannot read. Does not wait.
    pub(crate) fn settle_oldest(&self) -> bool {
        let tail = self.tail.load(Ordering::Relaxed) >> 32;
        let readable = match self.bytes_before_spill() {
            Some(_) => self.settled(),
            None => self.flushed(),
        } >> self.page_bits;
        let mut state = self.state.lock();
        if readable < tail && state.settle_below <= readable {
            state.settle_below = tail.min(readable + SETTLED_EARLY_PAGES);
        }
        self.writer_wake.notify_one();
        readable < tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(frames_allowed: u64, spill_pages: u64) -> (u64, u64, Option<u64>) {
        let regions = Regions::of(frames_allowed, 128 << 10, spill_pages);
        (regions.mutable, regions.before_last_call, regions.before_spill)
    }

    #[test]
    fn a_log_that_is_written_at_once_evicts_its_oldest_pages() {
        assert_eq!(sizes(1, 0), (0, 0, None));
        assert_eq!(sizes(8, 0), (6, 4, None));
        assert_eq!(sizes(24, 0), (18, 20, None));
        assert_eq!(sizes(80, 0), (70, 76, None));
    }

    #[test]
    fn a_log_that_spills_from_memory_settles_the_pages_of_a_spill_first() {
        assert_eq!(sizes(28, 4), (15, 17, Some(23)));
        assert_eq!(sizes(80, 4), (60, 62, Some(68)));
        assert_eq!(sizes(160, 8), (130, 132, Some(142)));
        // The mutable region is not larger than without spills.
        assert_eq!(sizes(1600, 8), (1400, 1572, Some(1582)));
    }

    #[test]
    fn with_few_frames_pages_are_written_at_once() {
        for (frames, spill_pages) in [(1, 1), (12, 4), (80, 60)] {
            assert_eq!(sizes(frames, spill_pages), sizes(frames, 0), "{frames} frames");
        }
    }

    #[test]
    fn regions_have_their_order() {
        for frames in 1..300 {
            for spill_pages in 0..40 {
                let regions = Regions::of(frames, 128 << 10, spill_pages);
                assert!(regions.mutable <= frames, "{frames} frames, {spill_pages} pages");
                let Some(before_spill) = regions.before_spill else { continue };
                // A spill finds its pages settled, and they had their last call.
                let oldest = before_spill - spill_pages;
                assert!(regions.mutable + LAST_CALL_PAGES <= regions.before_last_call);
                assert!(regions.before_last_call + LAST_CALL_PAGES <= oldest);
                assert!(before_spill + FREE_FRAMES_WANTED < frames);
            }
        }
    }
}
