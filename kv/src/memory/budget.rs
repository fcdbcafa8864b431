//! One number of bytes, shared out: index, buffers, and the log's frames take what is left.
//!
//! The index grows with the rows and the frames give way, a page at a time, and nobody waits for that. Some memory,
//! a page at least, is kept free of frames (`slack_bytes`). The index takes a unit of it when it needs one, which
//! lowers the frames' allowance; the log's writer then evicts pages until the slack is whole again. No page is
//! turned before it is, and the rows of a page need less than half a page of index, so the slack lasts from one
//! turn to the next, even if the writer is held up by its disk. Should it not (batches of many threads at once,
//! units that are as long as a page, a row cache or a scan that has just charged more than that), the index grows a
//! little later: it is refused now and asks again after the next batch (`Index::grow`). What is charged is there:
//! frames and index are counted together under one lock. Cache and scans charge outside of it, and what one of them
//! may miss of the index, a unit, the slack has room for. So the process stays inside the budget at every instant,
//! but for what each thread saves in one stretch of work while a checkpoint's image is written (`index::cut`): some
//! 50 KiB.
//!
//! When the frames are down to their least, the index stops growing: rows then share index entries and chains get
//! longer, which costs disk reads but never an answer (`Index::insert`). Superseded records stay in a shared chain
//! until compaction takes them out, so a bank that lives for long with far too small a budget gets slower.
//! The row cache takes from the frames too, and moves back and forth (`cache::sizing`); a sixteenth of
//! what both share stays with the frames. Index and scans charge without regard to the cache, so between a
//! charge and the cache's giving way there may be no frame left for the log: who waits for one then wakes the
//! log's writer, which makes the cache give way before anything else (`log::writer`).

use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::memory::region::HUGE_PAGE_BYTES;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The log needs so many frames to turn its pages (one filling, one or two being written, two free, one
/// to spare), and one page stays unused while the index takes memory before a frame has given way.
const FRAMES_MIN: u64 = 7;
/// Pages that a scan borrows: one to read into, one for its bits.
pub(crate) const SCAN_PAGES: u64 = 2;
/// Length of the smallest page of a bank, in bytes.
pub(crate) const PAGE_BYTES_MIN: u64 = 8 << 10;
pub(crate) const PAGE_BYTES_MAX: u64 = 4 << 20;
/// Budgets from here on use huge pages; below, 2 MiB are too coarse a unit.
const HUGE_PAGES_FROM_BYTES: u64 = 128 << 20;
/// The least that a store works with.
pub const BUDGET_BYTES_MIN: u64 = 256 << 10;
/// Budgets that an error asks for are multiples of this.
const BUDGET_STEP_BYTES: u64 = 256 << 10;
/// The longest unit in which the index is charged without huge pages.
const INDEX_UNIT_BYTES: u64 = 4096;
/// Pages of the smallest length, 32 KiB together, that the least budget has beside the log's. They
/// hold the buckets of an empty index, 16 KiB, and what rounding adds to the read buffers.
const SPARE_PAGES: u64 = 4;

/// Who has how much of the budget.
#[derive(Debug)]
pub(crate) struct Budget {
    total_bytes: u64,
    page_bytes: u64,
    limits: Limits,
    buffer_bytes: u64,
    /// What the frames leave free, for the index to take from until they have given way.
    slack_bytes: u64,
    /// Frames of the log that have memory. Changes under `taking` only.
    frames: AtomicU64,
    /// Changes under `taking` only.
    index_bytes: AtomicU64,
    cache_bytes: AtomicU64,
    /// Lent to scans; frames give way.
    lent_bytes: AtomicU64,
    /// Held by who takes memory for a frame or for the index: of two, one sees what the other took.
    taking: Mutex<()>,
}

impl Budget {
    /// The page size that fits a budget: a 128th of it, below 128 KiB a 64th; a power of two from 8 KiB to 4 MiB. Some
    /// pages are never rows' (two free, one being written, one in compaction), but a small one must hold long rows.
    pub(crate) fn page_bytes_for(total_bytes: u64) -> u64 {
        let wanted = (total_bytes / 128).max((total_bytes / 64).min(128 << 10));
        1 << wanted.clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX).ilog2()
    }

    /// Bytes of read buffers that go with a budget: a 32nd, below 1 MiB a 16th; at most 8 MiB.
    pub(crate) fn read_buffer_bytes_for(total_bytes: u64) -> u64 {
        let wanted = (total_bytes / 32).max((total_bytes / 16).min(1 << 20));
        wanted.min(8 << 20).next_multiple_of(4096)
    }

    /// Bytes that compaction reads into: a page, and room to align a record of nearly that length.
    pub(crate) fn compaction_buffer_bytes_for(page_bytes: u64) -> u64 {
        page_bytes + 4096
    }

    /// Bytes of buckets that may wait for the image of a checkpoint: a quarter of a page, twice, as some are being
    /// written.
    fn saved_bytes_for(page_bytes: u64) -> u64 {
        page_bytes / 2
    }

    /// Bytes of buckets saved for a checkpoint's image at which batches wait until they have been fetched.
    pub(crate) fn saved_bytes_max(&self) -> usize {
        Self::saved_bytes_for(self.page_bytes) as usize / 2
    }

    /// The smallest budget for a log with pages of this size.
    fn least_without_index(page_bytes: u64, limits: Limits) -> u64 {
        // Frames, what compaction reads into, what checkpoints save, one page's worth of index; a 15th more for the read
        // buffers, which take no more.
        let pages = (FRAMES_MIN + 2) * page_bytes
            + Self::compaction_buffer_bytes_for(page_bytes)
            + Self::saved_bytes_for(page_bytes);
        (pages + pages / 15 + SPARE_PAGES * limits.page_bytes_min).max(limits.budget_bytes_min)
    }

    pub(crate) fn new(total_bytes: u64, page_bytes: u64, limits: Limits) -> Result<Self> {
        // Read buffers, the page that is being written, what compaction reads into, and what checkpoints save.
        let buffer_bytes = Self::read_buffer_bytes_for(total_bytes)
            + page_bytes
            + Self::compaction_buffer_bytes_for(page_bytes)
            + Self::saved_bytes_for(page_bytes);
        if total_bytes < Self::least_without_index(page_bytes, limits) {
            return Err(Self::too_small(total_bytes, page_bytes, (0, 0), limits));
        }
        Ok(Budget {
            total_bytes,
            page_bytes,
            limits,
            buffer_bytes,
            slack_bytes: Self::slack_bytes_for(total_bytes, page_bytes),
            frames: AtomicU64::new(0),
            index_bytes: AtomicU64::new(0),
            cache_bytes: AtomicU64::new(0),
            lent_bytes: AtomicU64::new(0),
            taking: Mutex::new(()),
        })
    }

    /// A page; with huge pages two of those if they are more: one for buckets and one for overflow buckets.
    fn slack_bytes_for(total_bytes: u64, page_bytes: u64) -> u64 {
        let units = if uses_huge_pages(total_bytes) { 2 * HUGE_PAGE_BYTES as u64 } else { 0 };
        units.max(page_bytes)
    }

    /// The slack in whole pages.
    fn slack_pages(&self) -> u64 {
        self.slack_bytes.div_ceil(self.page_bytes)
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }

    pub(crate) fn index_bytes(&self) -> u64 {
        self.index_bytes.load(Ordering::Relaxed)
    }

    fn frames_beside(&self, index_bytes: u64) -> u64 {
        let taken = index_bytes + self.slack_bytes;
        (self.total_bytes - self.buffer_bytes).saturating_sub(taken) / self.page_bytes
    }

    /// Frames of the log that have memory.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Takes memory for another frame of the log; false if it has as many as it may.
    pub(crate) fn try_take_frame(&self) -> bool {
        let _taking = self.taking.lock();
        let fits = self.frames() < self.frames_allowed();
        if fits {
            self.frames.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    /// A frame's memory has gone back to the system.
    pub(crate) fn give_back_frame(&self) {
        let _taking = self.taking.lock();
        self.frames.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether frames or row cache have more than is left to them since index or scans took memory.
    pub(crate) fn is_over(&self) -> bool {
        self.frames() > self.frames_allowed() || self.cache_bytes_over() > 0
    }

    /// Pages of the log that may be in memory now.
    pub(crate) fn frames_allowed(&self) -> u64 {
        self.frames_beside(
            self.index_bytes() + self.cache_bytes() + self.lent_bytes.load(Ordering::Relaxed),
        )
    }

    /// Bytes that the row cache has been given.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes.load(Ordering::Relaxed)
    }

    /// The most that the row cache may have beside the index and the scans of now.
    pub(crate) fn cache_bytes_max(&self) -> u64 {
        // What one scan borrows stays with the frames, so that a scan need not wait for the cache.
        let lent = self.lent_bytes.load(Ordering::Relaxed).max(SCAN_PAGES * self.page_bytes);
        let taken = self.index_bytes() + lent;
        let shared = (self.total_bytes - self.buffer_bytes).saturating_sub(taken);
        let frames = FRAMES_MIN.max(shared / 16 / self.page_bytes) + self.slack_pages();
        shared.saturating_sub(frames * self.page_bytes)
    }

    /// Bytes that the row cache has to give back: index or scans took memory since it was given them.
    pub(crate) fn cache_bytes_over(&self) -> u64 {
        self.cache_bytes().saturating_sub(self.cache_bytes_max())
    }

    /// Takes memory from the frames for the row cache; false if that is more than it may have. One thread
    /// at a time does so.
    pub(crate) fn try_charge_cache(&self, bytes: u64) -> bool {
        let fits = self.cache_bytes() + bytes <= self.cache_bytes_max();
        if fits {
            // Not before: whoever waits for a frame would see too few and might never look again.
            self.cache_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Gives memory of the row cache back to the frames.
    pub(crate) fn uncharge_cache(&self, bytes: u64) {
        self.cache_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The most that `frames_allowed` can ever say.
    pub(crate) fn frames_max(&self) -> u64 {
        self.frames_beside(0)
    }

    /// Frames that the index leaves to the rows however many there are: a quarter of the budget.
    fn frames_kept(&self) -> u64 {
        let slack = self.slack_pages();
        (FRAMES_MIN - 1 + slack).max(self.total_bytes / 4 / self.page_bytes + slack)
    }

    /// The most that the index may take, in bytes.
    pub(crate) fn index_bytes_max(&self) -> u64 {
        let frames = self.frames_kept() * self.page_bytes;
        (self.total_bytes - self.buffer_bytes).saturating_sub(frames)
    }

    /// Lends memory to a scan, from the frames that the index leaves.
    ///
    /// # Errors
    /// `BudgetTooSmall` if so much is lent already that the log could not turn its pages.
    pub(crate) fn lend(&self, bytes: u64) -> Result<()> {
        self.lend_for(bytes, "scanning, with the scans and prefetches that are under way,")
    }

    /// As [`lend`](Self::lend), for `what`.
    pub(crate) fn lend_for(&self, bytes: u64, what: &str) -> Result<()> {
        let most = self.lent_bytes_max();
        let order = Ordering::Relaxed;
        let charge = |lent: u64| Some(lent + bytes);
        let within = |lent| charge(lent).filter(|&lent| lent <= most);
        self.lent_bytes.fetch_update(order, order, within).map(|_| ()).map_err(|lent| {
            // Half of what the index is charged as either kind of bucket: each is rounded up to a unit.
            let half = self.index_bytes().div_ceil(2);
            let lent_bytes = lent + bytes;
            let needs = Needs { buckets_bytes: half, overflow_bytes: half, lent_bytes };
            Error::BudgetTooSmall {
                budget_bytes: self.total_bytes,
                needed_bytes: Self::least(self.page_bytes, needs, self.limits),
                what: what.into(),
            }
        })
    }

    /// The most that may be lent.
    fn lent_bytes_max(&self) -> u64 {
        (self.frames_kept() + 1 - FRAMES_MIN - self.slack_pages()) * self.page_bytes
    }

    /// Takes back what was lent.
    pub(crate) fn take_back(&self, bytes: u64) {
        self.lent_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether huge pages are a fine enough unit for this budget.
    pub(crate) fn huge_pages(&self) -> bool {
        uses_huge_pages(self.total_bytes)
    }

    /// The unit in which the index is charged, in bytes.
    pub(crate) fn index_unit_bytes(&self) -> u64 {
        index_unit_bytes_for(self.total_bytes, self.page_bytes)
    }

    /// Takes memory for the index, to be used at once; false when the frames are down to their least, or have
    /// not given way yet. The caller sees to it that they do ([`is_over`](Self::is_over)).
    pub(crate) fn try_charge_index(&self, bytes: u64) -> bool {
        let _taking = self.taking.lock();
        let index_bytes = self.index_bytes() + bytes;
        let lent = self.lent_bytes.load(Ordering::Relaxed);
        let others = self.frames() * self.page_bytes + self.cache_bytes() + lent;
        let fits = index_bytes <= self.index_bytes_max()
            && index_bytes + others <= self.total_bytes - self.buffer_bytes;
        if fits {
            self.index_bytes.store(index_bytes, Ordering::Relaxed);
        }
        fits
    }

    /// The smallest budget, in steps of 256 KiB or of a 4096th of the index, with which all of this works. It is tried out, step by step: so a call
    /// with this budget is not refused with a larger one.
    fn least(page_bytes: u64, needs: Needs, limits: Limits) -> u64 {
        let fits = |total: u64| {
            Self::new(total, page_bytes, limits).is_ok_and(|budget| {
                needs.index_bytes(budget.index_unit_bytes()) <= budget.index_bytes_max()
                    && needs.lent_bytes <= budget.lent_bytes_max()
            })
        };
        // What a damaged file says of its index is no more than this. From `least_without_index` on, `new` refuses nothing.
        let needs = Needs {
            buckets_bytes: needs.buckets_bytes.min(1 << 55),
            overflow_bytes: needs.overflow_bytes.min(1 << 55),
            ..needs
        };
        let index_bytes = needs.index_bytes(index_unit_bytes_for(0, page_bytes));
        let step = (index_bytes / 4096).max(1).next_multiple_of(BUDGET_STEP_BYTES);
        let least = Self::least_without_index(page_bytes, limits).max(index_bytes);
        let mut total = least.next_multiple_of(BUDGET_STEP_BYTES);
        // Ends: each round comes nearer to a budget of which a quarter holds the pages that are lent, and half the index.
        while !fits(total) {
            total += step;
        }
        total
    }

    /// The error for a budget that can't hold a bank: pages of this size, an index of these bytes of buckets and of
    /// overflow buckets, and the pages of a scan.
    pub(crate) fn too_small(
        total_bytes: u64,
        page_bytes: u64,
        index_bytes: (u64, u64),
        limits: Limits,
    ) -> Error {
        let (buckets_bytes, overflow_bytes) = index_bytes;
        let lent_bytes = SCAN_PAGES * page_bytes;
        let needs = Needs { buckets_bytes, overflow_bytes, lent_bytes };
        let index_bytes = buckets_bytes.saturating_add(overflow_bytes);
        let what = match index_bytes {
            0 => format!("a log with pages of {page_bytes} bytes"),
            _ => format!(
                "this bank, with pages of {page_bytes} bytes and an index of {index_bytes} bytes, and a scan, export or \
                 eviction at a time,"
            ),
        };
        Error::BudgetTooSmall {
            budget_bytes: total_bytes,
            needed_bytes: Self::least(page_bytes, needs, limits),
            what,
        }
    }
}

/// What a budget must hold.
#[derive(Debug, Clone, Copy)]
struct Needs {
    buckets_bytes: u64,
    overflow_bytes: u64,
    /// Bytes that are lent to scans and prefetches at a time.
    lent_bytes: u64,
}

impl Needs {
    /// What the index is charged: buckets and overflow buckets each in whole units of `unit` bytes.
    fn index_bytes(self, unit: u64) -> u64 {
        self.buckets_bytes.next_multiple_of(unit) + self.overflow_bytes.next_multiple_of(unit)
    }
}

fn uses_huge_pages(total_bytes: u64) -> bool {
    total_bytes >= HUGE_PAGES_FROM_BYTES
}

/// The unit in which the index is charged, in bytes. Without huge pages it is no longer than a page:
/// the index takes it from the slack, which is one page.
fn index_unit_bytes_for(total_bytes: u64, page_bytes: u64) -> u64 {
    if uses_huge_pages(total_bytes) {
        HUGE_PAGE_BYTES as u64
    } else {
        INDEX_UNIT_BYTES.min(page_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_from_the_budget() {
        assert_eq!(Budget::page_bytes_for(1 << 20), 16 << 10);
        assert_eq!(Budget::page_bytes_for(8 << 20), 128 << 10);
        assert_eq!(Budget::page_bytes_for(64 << 20), 512 << 10);
        assert_eq!(Budget::page_bytes_for(64 << 30), 4 << 20);
        assert_eq!(Budget::page_bytes_for(300 << 10), 8 << 10);
    }

    #[test]
    fn the_index_takes_from_the_frames_and_leaves_them_a_quarter() {
        let budget = Budget::new(1 << 20, 16 << 10, Limits::PRODUCT).unwrap();
        let before = budget.frames_allowed();
        assert!(budget.try_charge_index(64 << 10));
        assert_eq!(budget.frames_allowed(), before - 4);
        while budget.try_charge_index(4096) {}
        assert!(budget.frames_allowed() * (16 << 10) >= 256 << 10);
        assert!(budget.index_bytes() <= budget.index_bytes_max());
    }

    /// The index was charged whether or not the frames had given way, and every batch then waited for that.
    #[test]
    fn the_index_takes_what_is_free_and_no_more_until_frames_give_way() {
        for (total_bytes, page_bytes) in
            [(1 << 20, 16 << 10), (128 << 20, 8 << 10), (1 << 30, 4 << 20)]
        {
            let budget = Budget::new(total_bytes, page_bytes, Limits::PRODUCT).unwrap();
            let unit = if budget.huge_pages() { HUGE_PAGE_BYTES as u64 } else { 4096 };
            while budget.try_take_frame() {}
            let mut charged = 0;
            while budget.try_charge_index(unit) {
                charged += unit;
                assert!(
                    budget.buffer_bytes() + charged + budget.frames() * page_bytes <= total_bytes
                );
            }
            assert!(charged >= page_bytes.max(2 * unit), "{charged} bytes were free");
            assert!(budget.is_over() && !budget.try_take_frame());
            while budget.is_over() {
                budget.give_back_frame();
            }
            assert!(budget.try_charge_index(unit));
        }
    }

    #[test]
    fn too_small_a_budget_is_refused_with_the_one_that_would_do() {
        let new = |total_bytes| Budget::new(total_bytes, 4 << 20, Limits::PRODUCT);
        let Err(Error::BudgetTooSmall { needed_bytes, .. }) = new(1 << 20) else {
            panic!("accepted")
        };
        assert!(new(needed_bytes).is_ok());
    }
}
