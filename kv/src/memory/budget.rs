//! The memory budget of a store. The index, the parts of the cold tier and the buffers take the
//! memory that they need, and scans and prefetches borrow some. The log's frames (memory for one
//! page each) and the read cache share the rest.
//!
//! **The index grows by taking memory from the frames.** No batch waits for this memory. The frames
//! leave a slack of at least one page free (`slack_bytes`). When the index needs a unit of memory,
//! it takes the unit from the slack, which lowers the number of allowed frames. The log's writer
//! thread then evicts pages until the slack is complete again. Until then, no batch can begin a new
//! page of the log. The rows of one page need less than half a page of index. The slack therefore
//! lasts until the next page begins, even if the disk delays the writer thread.
//!
//! The slack can be too small in three cases. Batches of many threads insert at once. A unit is as
//! long as a page. The read cache or a scan has just taken more than a page. In these cases, the
//! budget refuses the request of the index. The index asks again after the next batch
//! (`Index::grow`).
//!
//! **The index gives memory back** in a bank with two tiers. Most of its rows have left the log, so
//! the index folds (`index::fold`), and frames and read cache get the memory.
//!
//! **The process stays inside the budget at every instant.** Frames and index are counted under one
//! lock. The read cache and scans take memory without that lock. They may therefore overlook one
//! unit that the index takes at the same time, and the slack has room for this unit. There are two
//! exceptions. While a checkpoint's index image is written, each thread may save index buckets of
//! about 50 KiB outside the budget (`index::cut`). When the compactor adds a part, the frames and
//! the read cache have too much memory until they have released the bytes that the part takes.
//!
//! **The index stops growing** when the frames are down to their minimum. More rows then share an
//! index entry, and the entry's chain of records gets longer (`Index::insert`). Answers stay
//! correct, but a lookup may read several records from disk. Old records of a row also stay in the
//! chain until compaction removes them. A bank with far too small a budget therefore gets slower
//! over time.
//!
//! **The read cache** takes its memory from the frames and returns it (`cache::sizing`). At least a
//! sixteenth of the memory that cache and frames share stays with the frames. The index and scans
//! may take memory that the cache is using. Until the cache has released this memory, the log may
//! have no free frame. A thread that waits for a frame therefore wakes the writer thread, which
//! first makes the cache release memory (`log::writer`).

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::memory::region::HUGE_PAGE_BYTES;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Minimum number of frames of the log. A log that writes its pages needs six: one frame that
/// batches fill, two that are being written, two free frames and one in reserve. The seventh frame
/// is the slack: the index may take this memory before the log has released a frame.
const FRAMES_MIN: u64 = 7;
/// Parts of the cold tier take at most the budget divided by this number.
const COLD_PART: u64 = 2;
/// The buffers of spills and merges take about the budget divided by this number, or less.
const TIER_PART: u64 = 8;
/// In a bank with two tiers, a scan borrows about the budget divided by this number for the parts:
/// see `store::scan::cold`.
const COLD_SCAN_PART: u64 = 10;
/// The index of a bank that has or may get a cold tier grows to at most this number of eighths of
/// the budget. The bank gets its cold tier when its rows need more. With the shortest rows, of 40
/// bytes, the index of the log then takes at most a quarter of the budget.
const INDEX_EIGHTHS_BESIDE_PARTS: u64 = 2;
/// Number of pages that a scan borrows: one page to read into, and one for bits that mark the rows
/// of the page.
pub(crate) const SCAN_PAGES: u64 = 2;
/// Length of the smallest page of a bank, in bytes.
pub(crate) const PAGE_BYTES_MIN: u64 = 8 << 10;
/// Length of the largest page of a bank, in bytes.
pub(crate) const PAGE_BYTES_MAX: u64 = 4 << 20;
/// Budgets of at least this number of bytes use huge pages of 2 MiB. For a smaller budget, a unit
/// of 2 MiB is too coarse.
const HUGE_PAGES_FROM_BYTES: u64 = 128 << 20;
/// The smallest memory budget of a store, in bytes.
pub const BUDGET_BYTES_MIN: u64 = 256 << 10;
/// The budget that an error suggests is a multiple of this number of bytes.
const BUDGET_STEP_BYTES: u64 = 256 << 10;
/// Unit in which the index takes memory without huge pages, in bytes. Only in concurrency models
/// can a page of the log be shorter than this; the unit is then one page.
const INDEX_UNIT_BYTES: u64 = 4096;
/// Number of pages of the smallest length (8 KiB) that the minimum budget has in addition to the
/// log's pages: 32 KiB together. They hold the buckets of an empty index (16 KiB), and the bytes by
/// which the size of the read buffers is rounded up.
const SPARE_PAGES: u64 = 4;

/// The memory budget of a store, and the memory that each part has taken.
#[derive(Debug)]
pub(crate) struct Budget {
    total_bytes: u64,
    page_bytes: u64,
    limits: Limits,
    buffer_bytes: u64,
    /// Bytes that the frames leave free, so that the index can take them without waiting.
    slack_bytes: u64,
    /// Number of frames that have memory. The number changes only under the lock `taking`.
    frames: AtomicU64,
    /// Bytes that the index has taken. The number changes only under the lock `taking`.
    index_bytes: AtomicU64,
    /// Largest size in bytes to which the index may grow. A loaded index may be larger. `u64::MAX`
    /// if only [`index_bytes_max`](Self::index_bytes_max) limits it.
    index_growth_max: AtomicU64,
    /// Bytes that fences and filters of parts have taken. The number grows only under the lock
    /// `taking`.
    cold_bytes: AtomicU64,
    cache_bytes: AtomicU64,
    /// Bytes that scans and prefetches have borrowed from the frames. The number grows only under
    /// the lock `taking`.
    lent_bytes: AtomicU64,
    /// Bytes that the buffers of spills and merges have. 0 in a bank with one tier. The number
    /// changes only under the lock `taking`.
    tier_bytes: AtomicU64,
    /// This lock is held while memory is taken for a frame or for the index. Both then see each
    /// other's memory, so that together they do not exceed the budget.
    taking: Mutex<()>,
}

impl Budget {
    /// Returns the default page size for a budget. It is a 64th of the budget if that is at most
    /// 128 KiB, else a 128th but at least 128 KiB. The size is rounded down to a power of two from
    /// 8 KiB to 4 MiB. Pages are a small part of the budget, because a few pages of memory serve no
    /// rows, for example free frames and buffers of one page. Even smaller pages could not hold
    /// long rows.
    pub(crate) fn page_bytes_for(total_bytes: u64) -> u64 {
        let wanted = (total_bytes / 128).max((total_bytes / 64).min(128 << 10));
        1 << wanted.clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX).ilog2()
    }

    /// Returns the bytes of read buffers for a budget. This is a 16th of the budget if that is at
    /// most 1 MiB, else a 32nd but at least 1 MiB. The result is at most 8 MiB.
    pub(crate) fn read_buffer_bytes_for(total_bytes: u64) -> u64 {
        let wanted = (total_bytes / 32).max((total_bytes / 16).min(1 << 20));
        wanted.min(8 << 20).next_multiple_of(4096)
    }

    /// Returns the bytes of compaction's read buffer. It has room for a page, and for a record of
    /// nearly a page's length that begins in the middle of a disk block.
    pub(crate) fn compaction_buffer_bytes_for(page_bytes: u64) -> u64 {
        page_bytes + 4096
    }

    /// Returns the memory limit, in bytes, for index buckets that batches save for a checkpoint's
    /// image. Buckets that wait to be written may take a quarter of a page, and so may buckets that
    /// are being written.
    fn saved_bytes_for(page_bytes: u64) -> u64 {
        page_bytes / 2
    }

    /// Returns the memory limit, in bytes, for copies of index buckets that wait to be written to a
    /// checkpoint's image. Above the limit, batches wait until the thread that writes the image has
    /// written some of them.
    pub(crate) fn saved_bytes_max(&self) -> usize {
        Self::saved_bytes_for(self.page_bytes) as usize / 2
    }

    /// Returns the smallest budget for a log with pages of this size and an empty index.
    fn least_without_index(page_bytes: u64, limits: Limits) -> u64 {
        // Sums the frames, the writer's buffer of one page, one page of index, compaction's read
        // buffer, and saved buckets. A 15th is added for the read buffers, because they take a 16th
        // of the total.
        let pages = (FRAMES_MIN + 2) * page_bytes
            + Self::compaction_buffer_bytes_for(page_bytes)
            + Self::saved_bytes_for(page_bytes);
        (pages + pages / 15 + SPARE_PAGES * limits.page_bytes_min).max(limits.budget_bytes_min)
    }

    pub(crate) fn new(total_bytes: u64, page_bytes: u64, limits: Limits) -> Result<Self> {
        // Sums the read buffers, the buffer of one page from which the writer thread writes,
        // compaction's read buffer, and buckets saved for checkpoints.
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
            index_growth_max: AtomicU64::new(u64::MAX),
            cold_bytes: AtomicU64::new(0),
            cache_bytes: AtomicU64::new(0),
            lent_bytes: AtomicU64::new(0),
            tier_bytes: AtomicU64::new(0),
            taking: Mutex::new(()),
        })
    }

    /// Returns the bytes of slack: one page, or two huge pages if the budget uses huge pages and
    /// two huge pages are longer than a page. The index may need one huge page for buckets and one
    /// for overflow buckets.
    fn slack_bytes_for(total_bytes: u64, page_bytes: u64) -> u64 {
        let units = if uses_huge_pages(total_bytes) { 2 * HUGE_PAGE_BYTES as u64 } else { 0 };
        units.max(page_bytes)
    }

    /// Returns the slack in pages, rounded up.
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

    /// Returns the number of frames that have memory.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Takes memory for one more frame. Returns false if the log has all allowed frames.
    pub(crate) fn try_take_frame(&self) -> bool {
        let _taking = self.taking.lock();
        let fits = self.frames() < self.frames_allowed();
        if fits {
            self.frames.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    /// Records that a frame's memory has gone back to the operating system.
    pub(crate) fn give_back_frame(&self) {
        let _taking = self.taking.lock();
        self.frames.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if the frames or the read cache have too much memory: more than remains beside the
    /// index and the memory lent to scans and prefetches.
    pub(crate) fn is_over(&self) -> bool {
        self.frames() > self.frames_allowed() || self.cache_bytes_over() > 0
    }

    /// Returns the number of frames that the log may have now.
    pub(crate) fn frames_allowed(&self) -> u64 {
        let lent = self.lent_bytes.load(Ordering::Relaxed);
        let tiers = self.cold_bytes() + self.tier_bytes();
        self.frames_beside(self.index_bytes() + tiers + self.cache_bytes() + lent)
    }

    /// Returns the bytes that the read cache has taken.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes.load(Ordering::Relaxed)
    }

    /// Returns the largest size that the read cache may have now, in bytes. It depends on the size
    /// of the index and of the parts, and on the memory lent to scans and prefetches.
    pub(crate) fn cache_bytes_max(&self) -> u64 {
        // Memory for one scan stays with the frames, so that a scan need not wait for the cache.
        let lent = self.lent_bytes.load(Ordering::Relaxed).max(SCAN_PAGES * self.page_bytes);
        let taken = self.index_bytes() + self.cold_bytes() + self.tier_bytes() + lent;
        let shared = (self.total_bytes - self.buffer_bytes).saturating_sub(taken);
        let frames = FRAMES_MIN.max(shared / 16 / self.page_bytes) + self.slack_pages();
        shared.saturating_sub(frames * self.page_bytes)
    }

    /// Returns the bytes that the read cache must release because the index, a scan or a prefetch
    /// has taken memory. 0 if there are none.
    pub(crate) fn cache_bytes_over(&self) -> u64 {
        self.cache_bytes().saturating_sub(self.cache_bytes_max())
    }

    /// Takes memory from the frames for the read cache. Returns false if the cache would exceed its
    /// maximum. Only one thread at a time may call this.
    pub(crate) fn try_charge_cache(&self, bytes: u64) -> bool {
        let fits = self.cache_bytes() + bytes <= self.cache_bytes_max();
        if fits {
            // The memory is charged only after the check. If it were charged first and given back
            // after a failed check, a thread that waits for a frame could see too few frames in
            // between. No event would wake that thread to check again.
            self.cache_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Returns memory of the read cache to the frames.
    pub(crate) fn uncharge_cache(&self, bytes: u64) {
        self.cache_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the largest possible result of `frames_allowed`. This is the result if the index and
    /// the read cache have no memory, and none is lent.
    pub(crate) fn frames_max(&self) -> u64 {
        self.frames_beside(0)
    }

    /// Returns the number of frames that the index always leaves to the log: a quarter of the
    /// budget, but at least six frames, plus the slack.
    fn frames_kept(&self) -> u64 {
        let slack = self.slack_pages();
        (FRAMES_MIN - 1 + slack).max(self.total_bytes / 4 / self.page_bytes + slack)
    }

    /// Returns the largest size in bytes of the index and the parts together.
    pub(crate) fn index_bytes_max(&self) -> u64 {
        let frames = self.frames_kept() * self.page_bytes;
        let for_tiers = match self.tier_bytes() {
            0 => 0,
            bytes => {
                bytes + self.lent_bytes_wanted().saturating_sub(self.lent_bytes_beside_index())
            }
        };
        (self.total_bytes - self.buffer_bytes).saturating_sub(frames + for_tiers)
    }

    /// Returns the bytes that the buffers of spills and merges have.
    pub(crate) fn tier_bytes(&self) -> u64 {
        self.tier_bytes.load(Ordering::Relaxed)
    }

    /// Takes memory of the frames and the read cache for the buffers of spills and merges, so that
    /// they have `bytes` bytes, for as long as the store is open. The caller makes frames and cache
    /// release it ([`is_over`](Self::is_over)).
    ///
    /// # Errors
    /// `BudgetTooSmall` if the log would have too few frames left to begin new pages.
    pub(crate) fn reserve_for_tiers(&self, bytes: u64) -> Result<()> {
        let _taking = self.taking.lock();
        let more = bytes.saturating_sub(self.tier_bytes());
        if more > self.bytes_beside_frames_min() {
            let needs = Needs { tier_bytes: bytes, ..self.needs_now() };
            return Err(Error::BudgetTooSmall {
                budget_bytes: self.total_bytes,
                needed_bytes: Self::least(self.page_bytes, needs, self.limits),
                what: format!("moving rows to the cold tier, with buffers of {bytes} bytes,"),
            });
        }
        self.tier_bytes.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the bytes that are left beside the fewest frames with which the log can turn its
    /// pages. Frames and read cache may have them.
    fn bytes_beside_frames_min(&self) -> u64 {
        let lent = self.lent_bytes.load(Ordering::Relaxed);
        let taken = self.index_bytes() + self.cold_bytes() + self.tier_bytes() + lent;
        let frames = self.slack_bytes + (FRAMES_MIN - 1) * self.page_bytes;
        (self.total_bytes - self.buffer_bytes).saturating_sub(taken + frames)
    }

    /// Returns what the budget provides for now, beside the log. Buckets and overflow buckets are
    /// assumed to take half of the index each. The division matters, because each half is rounded
    /// up to whole units.
    fn needs_now(&self) -> Needs {
        let half = self.index_bytes().div_ceil(2);
        Needs {
            buckets_bytes: half,
            overflow_bytes: half,
            lent_bytes: SCAN_PAGES * self.page_bytes,
            cold_bytes: self.cold_bytes(),
            tier_bytes: self.tier_bytes(),
        }
    }

    /// Lends memory of the frames to a scan, which must return it by `take_back`.
    ///
    /// # Errors
    /// `BudgetTooSmall` if the log would have too few frames left to begin new pages.
    pub(crate) fn lend(&self, bytes: u64) -> Result<()> {
        self.lend_for(bytes, "scanning, with the scans and prefetches that are under way,")
    }

    /// Lends memory of the frames for the purpose `what`, which the error names. The borrower must
    /// return it by `take_back`.
    pub(crate) fn lend_for(&self, bytes: u64, what: &str) -> Result<()> {
        let _taking = self.taking.lock();
        let lent = self.lent_bytes.load(Ordering::Relaxed);
        if lent + bytes <= self.lent_bytes_max() && bytes <= self.bytes_beside_frames_min() {
            self.lent_bytes.fetch_add(bytes, Ordering::Relaxed);
            return Ok(());
        }
        let needs = Needs { lent_bytes: lent + bytes, ..self.needs_now() };
        Err(Error::BudgetTooSmall {
            budget_bytes: self.total_bytes,
            needed_bytes: Self::least(self.page_bytes, needs, self.limits),
            what: what.into(),
        })
    }

    /// Returns the most bytes that may be lent at one time.
    fn lent_bytes_max(&self) -> u64 {
        let wanted = if self.tier_bytes() > 0 { self.lent_bytes_wanted() } else { 0 };
        self.lent_bytes_beside_index().max(wanted)
    }

    /// Returns the most bytes that may be lent if index and parts take all that they may.
    fn lent_bytes_beside_index(&self) -> u64 {
        (self.frames_kept() + 1 - FRAMES_MIN - self.slack_pages()) * self.page_bytes
    }

    /// Returns the bytes that a scan of a bank with two tiers borrows, unless its parts are many.
    fn lent_bytes_wanted(&self) -> u64 {
        SCAN_PAGES * self.page_bytes + self.total_bytes / COLD_SCAN_PART
    }

    /// Returns this number of borrowed bytes to the frames.
    pub(crate) fn take_back(&self, bytes: u64) {
        self.lent_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// True if the budget is large enough to use huge pages.
    pub(crate) fn huge_pages(&self) -> bool {
        uses_huge_pages(self.total_bytes)
    }

    /// Returns the unit in which the index takes memory, in bytes.
    pub(crate) fn index_unit_bytes(&self) -> u64 {
        index_unit_bytes_for(self.total_bytes, self.page_bytes)
    }

    /// Takes memory for the index. Returns false if the index would exceed its maximum, or if the
    /// log has not released enough frames yet. The caller then makes the log release frames
    /// ([`is_over`](Self::is_over)).
    pub(crate) fn try_charge_index(&self, bytes: u64) -> bool {
        let _taking = self.taking.lock();
        let index_bytes = self.index_bytes() + bytes;
        let cold = self.cold_bytes();
        let lent = self.lent_bytes.load(Ordering::Relaxed);
        let tiers = cold + self.tier_bytes();
        let others = self.frames() * self.page_bytes + self.cache_bytes() + tiers + lent;
        let most = self.index_bytes_max();
        // In a bank with two tiers the index has the rows of a short log, and must leave room for
        // fences and filters.
        let alone = if self.tier_bytes() > 0 { most / 2 } else { most };
        let fits = index_bytes + cold <= most
            && index_bytes <= alone
            && index_bytes <= self.index_growth_max.load(Ordering::Relaxed)
            && index_bytes + others <= self.total_bytes - self.buffer_bytes;
        if fits {
            self.index_bytes.store(index_bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Returns memory of the index to the frames and the read cache. The caller tells the log
    /// (`Log::allowance_changed`).
    pub(crate) fn uncharge_index(&self, bytes: u64) {
        let _taking = self.taking.lock();
        self.index_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Keeps the index from growing beyond a part of the budget, because the bank has a cold tier
    /// or may get one. Its index then needs entries only for the rows of the log, and an index that
    /// took all memory would leave the parts without any. Called before batches run.
    pub(crate) fn limit_index_beside_parts(&self) {
        let most = self.total_bytes / 8 * INDEX_EIGHTHS_BESIDE_PARTS;
        // Relaxed: no other thread uses the budget yet.
        self.index_growth_max.store(most, Ordering::Relaxed);
    }

    /// Returns the bytes that are lent now.
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.lent_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes that fences and filters of parts have taken.
    pub(crate) fn cold_bytes(&self) -> u64 {
        self.cold_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that parts may still take: together they have at most half of
    /// the budget, and leave the log the frames that the index leaves it.
    pub(crate) fn cold_bytes_left(&self) -> u64 {
        self.cold_bytes_max().saturating_sub(self.cold_bytes())
    }

    /// Returns the number of bytes that parts may take together.
    pub(crate) fn cold_bytes_max(&self) -> u64 {
        let beside_index = self.index_bytes_max().saturating_sub(self.index_bytes());
        beside_index.min(self.total_bytes / COLD_PART)
    }

    /// Takes memory from the frames and the read cache for a part. They may still use it: the
    /// caller makes them release it ([`is_over`](Self::is_over)). The memory goes back when the
    /// result is dropped.
    ///
    /// # Errors
    /// `BudgetTooSmall` if [`cold_bytes_left`](Self::cold_bytes_left) is less.
    pub(crate) fn charge_cold(self: &Arc<Self>, bytes: u64) -> Result<ColdCharge> {
        let _taking = self.taking.lock();
        if bytes > self.cold_bytes_left() {
            return Err(self.too_small_for_parts(self.cold_bytes() + bytes));
        }
        self.cold_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(ColdCharge { budget: Arc::clone(self), bytes })
    }

    /// Returns the error for a budget that is too small for parts with `cold_bytes` bytes of fences
    /// and filters.
    pub(crate) fn too_small_for_parts(&self, cold_bytes: u64) -> Error {
        // Parts of runs leave a 16th to base merges. An opening may find too little memory before
        // it has reserved the buffers of spills and merges. 1 byte stands for them: see `least`.
        let needs = Needs {
            cold_bytes: cold_bytes + cold_bytes.div_ceil(15),
            tier_bytes: self.tier_bytes().max(1),
            ..self.needs_now()
        };
        Error::BudgetTooSmall {
            budget_bytes: self.total_bytes,
            needed_bytes: Self::least(self.page_bytes, needs, self.limits),
            what: format!(
                "the cold tier of this bank, with {cold_bytes} bytes of fences and filters,"
            ),
        }
    }

    /// Returns the smallest budget that meets `needs`. It tries budgets in steps of 256 KiB, or of
    /// a 4096th of the index if that is more. Each budget is tested with the checks of an opening
    /// bank, so a bank with the returned budget opens.
    fn least(page_bytes: u64, needs: Needs, limits: Limits) -> u64 {
        let fits = |total: u64| {
            Self::new(total, page_bytes, limits).is_ok_and(|budget| {
                // The buffers of spills and merges grow with the budget.
                let tier_bytes = match needs.tier_bytes {
                    0 => 0,
                    bytes => bytes.max(total / TIER_PART),
                };
                budget.tier_bytes.store(tier_bytes, Ordering::Relaxed);
                needs.index_bytes(budget.index_unit_bytes()) + needs.cold_bytes
                    <= budget.index_bytes_max()
                    && needs.cold_bytes <= total / COLD_PART
                    && needs.lent_bytes <= budget.lent_bytes_max()
            })
        };
        // A damaged file may claim any index size, for which the sums below could overflow. The
        // limit of 2^55 bytes is above every real size.
        let needs = Needs {
            buckets_bytes: needs.buckets_bytes.min(1 << 55),
            overflow_bytes: needs.overflow_bytes.min(1 << 55),
            cold_bytes: needs.cold_bytes.min(1 << 55),
            ..needs
        };
        let index_bytes = needs.index_bytes(index_unit_bytes_for(0, page_bytes)) + needs.cold_bytes;
        let step = (index_bytes / 4096).max(1).next_multiple_of(BUDGET_STEP_BYTES);
        let least = Self::least_without_index(page_bytes, limits).max(index_bytes);
        let mut total = least.next_multiple_of(BUDGET_STEP_BYTES);
        // The loop ends: each round raises the budget, and a large enough budget meets the needs. A
        // quarter of it holds the lent memory, and half of it holds the index.
        while !fits(total) {
            total += step;
        }
        total
    }

    /// Returns the error for a budget that is too small for a bank. The bank needs its log with
    /// pages of this size, an index with these bytes of buckets and overflow buckets, and one scan.
    pub(crate) fn too_small(
        total_bytes: u64,
        page_bytes: u64,
        index_bytes: (u64, u64),
        limits: Limits,
    ) -> Error {
        let (buckets_bytes, overflow_bytes) = index_bytes;
        let lent_bytes = SCAN_PAGES * page_bytes;
        let needs =
            Needs { buckets_bytes, overflow_bytes, lent_bytes, cold_bytes: 0, tier_bytes: 0 };
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

/// Memory of the budget that the fences and filters of a part have.
#[derive(Debug)]
pub(crate) struct ColdCharge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for ColdCharge {
    fn drop(&mut self) {
        // Takes no lock: in a child made by `fork`, a thread of the parent may hold it.
        self.budget.cold_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The memory that a budget must provide in addition to the memory of the log.
#[derive(Debug, Clone, Copy)]
struct Needs {
    buckets_bytes: u64,
    overflow_bytes: u64,
    /// The most bytes that are lent to scans and prefetches at one time.
    lent_bytes: u64,
    /// The bytes of fences and filters of parts.
    cold_bytes: u64,
    /// The bytes of the buffers of spills and merges; 0 in a bank with one tier.
    tier_bytes: u64,
}

impl Needs {
    /// Returns the bytes charged for the index: buckets and overflow buckets, each in whole units
    /// of `unit` bytes.
    fn index_bytes(self, unit: u64) -> u64 {
        self.buckets_bytes.next_multiple_of(unit) + self.overflow_bytes.next_multiple_of(unit)
    }
}

fn uses_huge_pages(total_bytes: u64) -> bool {
    total_bytes >= HUGE_PAGES_FROM_BYTES
}

/// Returns the unit in which the index takes memory, in bytes. Without huge pages, the unit is at
/// most a page of the log, because the index takes it from the slack, which is then one page.
fn index_unit_bytes_for(total_bytes: u64, page_bytes: u64) -> u64 {
    if uses_huge_pages(total_bytes) {
        HUGE_PAGE_BYTES as u64
    } else {
        INDEX_UNIT_BYTES.min(page_bytes)
    }
}
