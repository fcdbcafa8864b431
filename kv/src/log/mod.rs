//! The hybrid log: one growing address space, its newest part in memory.
//!
//! ```text
//! begin            head              read_only            tail
//!   |-- on disk -----|-- read-only ----|---- mutable -------|
//!                    '---------- frames in memory ----------'
//! ```
//!
//! Records at or above `read_only` change in place. Records between `head` and `read_only` are in
//! memory but settled: their pages are written to disk, and an update copies the row to the tail.
//! Records below `head` are only on disk. (After FASTER, SIGMOD 2018.)
//!
//! **Turning a page.** Threads take space at the tail by fetch-and-add on one word, which holds
//! page and offset. The thread that crosses the page's end notes how much of the page is used and
//! reports the page full. Its caller unpins and calls `turn_page`, which waits for a free frame if
//! it must. The writer thread (`writer`) keeps frames free. It moves `read_only` and `head`, waits
//! for a `barrier` so that no thread acts on the old values, writes settled pages, and frees the
//! frames of evicted pages. A checkpoint's `cut` ends the tail's page and moves `read_only` to the
//! tail, while no thread is pinned.
//!
//! **Invariants.**
//! 1. `head <= flushed <= read_only <= tail`, `settled <= read_only` and `begin <= flushed`; each
//!    only grows. (`begin` passes the head if the whole log is in memory. No row lies below
//!    `begin`: compaction has moved the rows to the tail, and an index entry or a link to an
//!    address below leads nowhere.)
//! 2. A thread uses the `head` and `read_only` that it loaded after it pinned. Until it has
//!    unpinned, no frame at or above that head is reused, and no page at or above that read-only
//!    boundary is written.
//! 3. When a page is written, every record in it is complete, and no record changes any more except
//!    for its clock word.

mod full_disk;
pub(crate) mod page;
#[cfg(test)]
mod tests;
pub(crate) mod view;
mod writer;

use crate::log::view::Frames;
use crate::log::view::View;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::checkpoint::lineage::Lineage;
use crate::device::Device;
use crate::engine::signal::Signal;
use crate::error::{Error, Result};
use crate::index::ADDRESS_LIMIT;
use crate::memory::budget::Budget;
use crate::memory::region::Region;
use crate::record::address::Address;
use crate::record::layout::{HEADER_BYTES, RecordRef};
use crate::stats::Counters;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, Planted, planted};
pub(crate) use full_disk::TurnFor;
use full_disk::{FullDisk, Request};
use page::PAGE_HEADER_BYTES;

/// Frames that the writer keeps free, so that turning a page seldom waits.
const FREE_FRAMES_WANTED: u64 = 2;

/// A page is at its last call (`retention`) this many pages before its eviction: one page is filled
/// during the last call, and the copies may turn another.
const LAST_CALL_PAGES: u64 = 2;

/// Pages that are settled at once if the log has reached its quota and no page is on the device.
const SETTLED_EARLY_PAGES: u64 = 4;

/// A store warns when one part in `ADDRESSES_LOW_PART` of the log's addresses is left.
const ADDRESSES_LOW_PART: u64 = 16;

/// The last page of the address space, which stays empty: the address of its start and its number
/// must fit a manifest.
pub(crate) fn last_page(page_bits: u32) -> u64 {
    (ADDRESS_LIMIT >> page_bits).min(u64::from(u32::MAX)) - 1
}

/// The tail's page has no room: unpin, call [`Log::turn_page`] with this, and try again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageFull(u64);

/// The log of a store. See the module's essay.
#[derive(Debug)]
pub(crate) struct Log {
    page_bits: u32,
    lineage: Lineage,
    /// Page number in the upper half, offset in the lower; the offset runs past the page when
    /// full.
    tail: AtomicU64,
    read_only: AtomicU64,
    /// All records below are known to be complete, up to the read-only boundary. At least
    /// `flushed`.
    settled: AtomicU64,
    flushed: AtomicU64,
    head: AtomicU64,
    begin: AtomicU64,
    frames: Region,
    /// For a page in memory, at `page % shifts.len()`: the number to add (wrapping) to an address
    /// in the page to get its offset in `frames`.
    shifts: Box<[AtomicU64]>,
    /// Bytes in use of a full page, at the same place.
    used_bytes: Box<[AtomicU32]>,
    state: Mutex<State>,
    writer_wake: Condvar,
    frame_freed: Condvar,
    page_flushed: Condvar,
    poison: OnceLock<Stopped>,
    /// True if the disk is full, as `state` knows it; can be read without the lock.
    is_full: AtomicBool,
    /// Raised when a page has been written, because compaction may then have work.
    compactor: Arc<Signal>,
    lookahead: Told,
    pub(crate) device: Arc<dyn Device>,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
}

/// Whom the log informs when its boundaries have moved.
#[derive(Default)]
struct Told(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for Told {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Told").field(&self.0.get().is_some()).finish()
    }
}

/// Why a log takes no writes.
#[derive(Debug)]
enum Stopped {
    /// A write failed: for this reason.
    Failed(String),
    /// The log was opened to read only, in this directory.
    ReadOnly(PathBuf),
}

/// A frame that belongs to no page yet. Dropping it frees it.
#[must_use]
pub(crate) struct ReservedFrame<'a> {
    log: &'a Log,
    frame: Option<u32>,
}

impl Drop for ReservedFrame<'_> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            let mut state = self.log.state.lock();
            state.free.push(frame);
            self.log.retire_free_frames(&mut state);
            self.log.frame_freed.notify_all();
        }
    }
}

/// Where a log lies when it is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) page_bits: u32,
    pub(crate) begin: u64,
    pub(crate) tail_page: u64,
}

/// The state that page turns and the writer share.
#[derive(Debug, Default)]
struct State {
    free: Vec<u32>,
    retired: Vec<u32>,
    never_used: u32,
    /// Pages below this number are settled and written, however young they are.
    settle_below: u64,
    disk: FullDisk,
    shutdown: bool,
}

impl State {
    /// A frame for a page, if one is free; see [`TurnFor::frames_left`].
    fn take_frame(&mut self, budget: &Budget, turn_for: TurnFor) -> Option<u32> {
        if budget.frames() > budget.frames_allowed() {
            return None;
        }
        let unused = budget.frames_allowed().saturating_sub(budget.frames());
        let left = unused + self.free.len() as u64;
        if self.disk.is_full() && left <= turn_for.frames_left() {
            return None;
        }
        if let Some(frame) = self.free.pop() {
            return Some(frame);
        }
        if !budget.try_take_frame() {
            return None;
        }
        self.retired.pop().or_else(|| {
            self.never_used += 1;
            Some(self.never_used - 1)
        })
    }
}

impl Log {
    /// A log whose pages are on the device, of which the tail page is the next one.
    pub(crate) fn new(
        budget: Arc<Budget>,
        device: Arc<dyn Device>,
        counters: Arc<Counters>,
        lineage: Lineage,
        extent: Extent,
        compactor: Arc<Signal>,
    ) -> Result<Self> {
        let Extent { page_bits, begin, tail_page } = extent;
        let frames_max = budget.frames_max();
        let slots = (frames_max as usize + 2).next_power_of_two();
        let start = tail_page << page_bits;
        let log = Log {
            page_bits,
            lineage,
            tail: AtomicU64::new(0),
            read_only: AtomicU64::new(start),
            settled: AtomicU64::new(start),
            flushed: AtomicU64::new(start),
            head: AtomicU64::new(start),
            begin: AtomicU64::new(begin),
            frames: Region::reserve((frames_max as usize) << page_bits, budget.huge_pages())?,
            shifts: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            used_bytes: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            state: Mutex::default(),
            writer_wake: Condvar::new(),
            frame_freed: Condvar::new(),
            page_flushed: Condvar::new(),
            poison: OnceLock::new(),
            is_full: AtomicBool::new(false),
            compactor,
            lookahead: Told::default(),
            device,
            budget,
            counters,
        };
        {
            let mut state = log.state.lock();
            let frame = state.take_frame(&log.budget, TurnFor::Rows).expect("frames_min > 0");
            log.begin_page(tail_page, frame);
        }
        Ok(log)
    }

    /// Only the first call has an effect.
    pub(crate) fn when_boundaries_move(&self, told: Box<dyn Fn() + Send + Sync>) {
        // A later call changes nothing.
        let _ = self.lookahead.0.set(told);
    }

    /// Which opening wrote each page. This opening writes all pages from the end that the log had
    /// when it began.
    pub(crate) fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        1 << self.page_bits
    }

    fn slot(&self, page: u64) -> usize {
        page as usize & (self.shifts.len() - 1)
    }

    fn frames(&self) -> Frames<'_> {
        Frames { base: self.frames.as_ptr(), shifts: &self.shifts, page_bits: self.page_bits }
    }

    pub(crate) fn frame_pointer(&self, page: u64) -> *mut u8 {
        self.frames().place(Address::new(page << self.page_bits))
    }

    /// All records below are complete, and no record there changes any more except for its clock
    /// word.
    fn settled(&self) -> u64 {
        // Acquire: pairs with the writer's Release stores, each after a barrier.
        self.settled.load(Ordering::Acquire).max(self.flushed())
    }

    /// The end of the pages that are at their last call. These pages are settled.
    pub(crate) fn last_call(&self) -> u64 {
        let pages = (self.tail.load(Ordering::Relaxed) >> 32) + 1;
        let end = (pages + FREE_FRAMES_WANTED + LAST_CALL_PAGES)
            .saturating_sub(self.budget.frames_allowed());
        (end << self.page_bits).min(self.settled())
    }

    /// Calls `visit` for the records from one on to the end of its page, or until `visit` returns
    /// false. Returns the address of the next record, or of the next page.
    ///
    /// # Safety
    /// `from` is the start of a page or of a record, or the end of a page's last record. It is at
    /// or above the `head` of this view, and below a [`last_call`](Self::last_call), so it is
    /// settled. The thread is still pinned as it was when it took the view.
    pub(crate) unsafe fn visit_settled(
        &self,
        view: View<'_>,
        from: u64,
        mut visit: impl FnMut(RecordRef<'_>) -> bool,
    ) -> u64 {
        let page = from >> self.page_bits;
        debug_assert!(view.head <= from && from < self.settled());
        // Stored by the thread that filled the page; the barrier before `settled` was moved has
        // waited for that thread.
        let used = u64::from(self.used_bytes[self.slot(page)].load(Ordering::Relaxed));
        let start = page << self.page_bits;
        let mut offset = (from - start).max(PAGE_HEADER_BYTES);
        while offset + HEADER_BYTES as u64 <= used {
            let address = Address::new(start + offset);
            // SAFETY: in memory by this function's contract; all of a settled page's records have
            // their headers.
            let record = unsafe { view.record(address) };
            offset += record.shape().record_bytes() as u64;
            if !visit(record) {
                return start + offset;
            }
        }
        start + self.page_bytes()
    }

    /// The boundaries for a thread that has just pinned.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        // Acquire: pairs with the writer's Release stores. `head` is loaded first, because it never
        // passes the read-only boundary that is loaded after it. `begin` pairs with `set_begin`: a
        // thread that sees it and then looks into the index finds there the rows that were moved
        // from below it.
        let begin = self.begin.load(Ordering::Acquire);
        let head = self.head.load(Ordering::Acquire);
        let read_only = self.read_only.load(Ordering::Acquire);
        // If the whole log is in memory, `begin` passes the head. Addresses between them lead
        // nowhere and are not read.
        View { begin, head: head.max(begin), read_only, frames: self.frames() }
    }

    /// The log's beginning: no row lies below.
    pub(crate) fn begin(&self) -> u64 {
        self.begin.load(Ordering::Acquire)
    }

    /// Moves the log's beginning up to an address below which no row is left. Only compaction calls
    /// it.
    pub(crate) fn set_begin(&self, begin: u64) {
        debug_assert!(self.begin() <= begin && begin <= self.flushed());
        // Release: pairs with `view`; the moves come before.
        self.begin.store(begin, Ordering::Release);
    }

    /// Everything below is on the device, not necessarily synced.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// Space at the tail for a record. The caller is pinned and writes the record's header before
    /// it unpins.
    #[inline]
    pub(crate) fn allocate(&self, bytes: usize) -> std::result::Result<Address, PageFull> {
        let bytes = bytes as u64;
        let page_bytes = self.page_bytes();
        // Relaxed: this load only avoids the addition on a full page, so the word stays far from
        // overflow.
        let seen = self.tail.load(Ordering::Relaxed);
        if seen & 0xFFFF_FFFF > page_bytes {
            return Err(PageFull(seen >> 32));
        }
        // Acquire: sees the page's frame (Release in `begin_page`; additions continue its
        // sequence).
        let old = self.tail.fetch_add(bytes, Ordering::Acquire);
        let page = old >> 32;
        let offset = old & 0xFFFF_FFFF;
        if offset + bytes <= page_bytes {
            return Ok(Address::new((page << self.page_bits) + offset));
        }
        if offset <= page_bytes {
            // This thread crossed the end. The writer reads the value after a barrier, so Relaxed
            // is enough.
            self.used_bytes[self.slot(page)].store(offset as u32, Ordering::Relaxed);
        }
        Err(PageFull(page))
    }

    /// Opens the page after a full one. Waits for a frame if all are in use. The caller is not
    /// pinned.
    ///
    /// # Errors
    /// `Poisoned` after a failed write; `DiskFull`; `Exhausted` at the end of the address space.
    pub(crate) fn turn_page(&self, full: PageFull, turn_for: TurnFor) -> Result<()> {
        debug_assert!(!crate::epoch::is_pinned());
        let next = full.0 + 1;
        self.check_page(next)?;
        let mut state = self.state.lock();
        let mut waiting = None;
        let mut request = Request::default();
        // Ends: the writer frees a frame, finds the disk full, or poisons the log; it wakes all
        // waiting calls then.
        loop {
            self.check_poison()?;
            let turned = self.tail.load(Ordering::Relaxed) >> 32 != full.0;
            if turned && !planted(Planted::TurnTwice) {
                break;
            }
            self.retire_free_frames(&mut state);
            if let Some(frame) = state.take_frame(&self.budget, turn_for) {
                self.begin_page(next, frame);
                self.writer_wake.notify_one();
                // Another thread has turned the page during the wait.
                self.frame_freed.notify_all();
                break;
            }
            state.check_disk(&mut request)?;
            waiting.get_or_insert_with(Instant::now);
            self.writer_wake.notify_one();
            self.frame_freed.wait(&mut state);
        }
        if let Some(since) = waiting {
            self.counters.page_waits.note(since.elapsed());
        }
        Ok(())
    }

    /// Refuses a page behind the last one of the address space.
    fn check_page(&self, page: u64) -> Result<()> {
        if page > last_page(self.page_bits) {
            return Err(Error::Exhausted(
                "the log has used up its addresses (512 TiB, or 4 billion pages); export the tables into a new bank"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Bytes of log that can still be appended.
    pub(crate) fn address_left_bytes(&self) -> u64 {
        (last_page(self.page_bits) << self.page_bits).saturating_sub(self.tail_address())
    }

    /// A warning if no more than a sixteenth of the addresses is left.
    pub(crate) fn address_warning(&self) -> Option<String> {
        let left = self.address_left_bytes();
        let all = last_page(self.page_bits) << self.page_bits;
        (left <= all / ADDRESSES_LOW_PART).then(|| {
            format!(
                "the log has {left} of {all} bytes of addresses left; when they are used up, the bank takes no more \
                 writes: export the tables into a new bank before that"
            )
        })
    }

    fn begin_page(&self, page: u64, frame: u32) {
        let frame_start = u64::from(frame) << self.page_bits;
        let shift = frame_start.wrapping_sub(page << self.page_bits);
        self.shifts[self.slot(page)].store(shift, Ordering::Relaxed);
        let is_last = page == last_page(self.page_bits);
        // A checkpoint ends the tail's page and begins the next one. The last page has no next one,
        // so no record may lie in it.
        let offset = if is_last { self.page_bytes() + 1 } else { PAGE_HEADER_BYTES };
        // Release: publishes the frame to `allocate`.
        self.tail.store(page << 32 | offset, Ordering::Release);
    }

    /// Sets a frame aside for [`cut`](Self::cut). Waits for one if all are in use. The caller is
    /// not pinned.
    ///
    /// # Errors
    /// `Poisoned` after a failed write; `DiskFull`.
    pub(crate) fn reserve_frame(&self) -> Result<ReservedFrame<'_>> {
        debug_assert!(!crate::epoch::is_pinned());
        let mut state = self.state.lock();
        let mut request = Request::default();
        // Ends: as in `turn_page`.
        loop {
            self.check_poison()?;
            state.check_disk(&mut request)?;
            self.retire_free_frames(&mut state);
            // On a full disk, only after an attempt has succeeded: a cut that can't be written
            // would use up a frame.
            if !state.disk.is_full()
                && let Some(frame) = state.take_frame(&self.budget, TurnFor::Space)
            {
                return Ok(ReservedFrame { log: self, frame: Some(frame) });
            }
            self.writer_wake.notify_one();
            self.frame_freed.wait(&mut state);
        }
    }

    /// Ends the tail's page and settles everything written so far, which lies below the returned
    /// address. Does not wait. Must be called while no thread is pinned.
    ///
    /// # Errors
    /// `Exhausted` at the end of the address space: a defect, as `turn_page` leaves a page for
    /// this.
    pub(crate) fn cut(&self, mut reserved: ReservedFrame<'_>) -> Result<Address> {
        let mut end = {
            // A thread that found the page full before the pause may be about to turn it.
            let _state = self.state.lock();
            let tail = self.tail.load(Ordering::Acquire);
            let page = tail >> 32;
            let offset = tail & 0xFFFF_FFFF;
            if offset == PAGE_HEADER_BYTES || page == last_page(self.page_bits) {
                page
            } else {
                self.check_page(page + 1)?;
                if offset <= self.page_bytes() {
                    self.used_bytes[self.slot(page)].store(offset as u32, Ordering::Relaxed);
                }
                if let Some(frame) = reserved.frame.take() {
                    self.begin_page(page + 1, frame);
                }
                page + 1
            }
        };
        drop(reserved);
        end <<= self.page_bits;
        // No thread acts on the old boundary, so the pages below can be written at once. This is no
        // plain store, because the writer may be about to move the boundary less far.
        self.read_only.fetch_max(end, Ordering::Release);
        // The writer thread writes the pages that the cut has settled, and batches may turn pages
        // again.
        let _state = self.state.lock();
        self.frame_freed.notify_all();
        self.writer_wake.notify_one();
        Ok(Address::new(end))
    }

    /// Waits until everything below `end`, which is settled, is on the device, not yet synced.
    ///
    /// # Errors
    /// `Poisoned` after a failed write; `DiskFull`.
    pub(crate) fn await_flushed(&self, end: Address) -> Result<()> {
        let mut state = self.state.lock();
        let mut request = Request::default();
        // Ends: the writer gets there, finds the disk full, or poisons the log; it wakes all
        // waiting calls then.
        while self.flushed() < end.raw() {
            self.check_poison()?;
            state.check_disk(&mut request)?;
            self.writer_wake.notify_one();
            self.page_flushed.wait(&mut state);
        }
        Ok(())
    }

    /// Lets the writer settle the oldest pages of the mutable region early, so that compaction can
    /// read them. Returns false if there is only the tail's page. Does not wait.
    pub(crate) fn settle_oldest(&self) -> bool {
        let tail = self.tail.load(Ordering::Relaxed) >> 32;
        let flushed = self.flushed() >> self.page_bits;
        let mut state = self.state.lock();
        if flushed < tail && state.settle_below <= flushed {
            state.settle_below = tail.min(flushed + SETTLED_EARLY_PAGES);
        }
        self.writer_wake.notify_one();
        flushed < tail
    }

    /// The error of an earlier failed write, or that of a log that is open to read only.
    pub(crate) fn check_poison(&self) -> Result<()> {
        match self.poison.get() {
            None => Ok(()),
            Some(Stopped::Failed(reason)) => Err(Error::Poisoned { reason: reason.clone() }),
            Some(Stopped::ReadOnly(path)) => Err(Error::ReadOnly { path: path.clone() }),
        }
    }

    /// Refuses all writes from the beginning: the bank in `dir` is opened to read only.
    pub(crate) fn seal(&self, dir: &Path) {
        let _ = self.poison.set(Stopped::ReadOnly(dir.to_owned()));
    }

    fn is_sealed(&self) -> bool {
        matches!(self.poison.get(), Some(Stopped::ReadOnly(_)))
    }

    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poison.get().is_some()
    }

    /// Stops all writing for good.
    pub(crate) fn poison(&self, error: &Error) {
        let _ = self.poison.set(Stopped::Failed(error.to_string()));
        let state = self.state.lock();
        self.frame_freed.notify_all();
        self.page_flushed.notify_all();
        drop(state);
        self.compactor.raise();
    }

    pub(crate) fn shut_down(&self) {
        self.state.lock().shutdown = true;
        self.writer_wake.notify_all();
    }

    /// Waits until no more frames are in use than the budget allows: free frames go back to the
    /// system, and the writer evicts pages for the others. Called, unpinned, by a thread that
    /// borrows from the budget.
    ///
    /// # Errors
    /// `Poisoned` after a failed write; `DiskFull`.
    pub(crate) fn give_way(&self) -> Result<()> {
        let mut state = self.state.lock();
        let mut request = Request::default();
        // Ends: the writer evicts pages down to what is allowed, finds the disk full, or poisons
        // the log; it wakes all waiting calls then.
        loop {
            self.retire_free_frames(&mut state);
            // A log that is open to read only has one frame, and no thread that could evict it.
            if self.is_within_allowance() || self.is_sealed() {
                return Ok(());
            }
            self.check_poison()?;
            state.check_disk(&mut request)?;
            self.writer_wake.notify_one();
            self.frame_freed.wait(&mut state);
        }
    }

    /// Frames of the allowance that the log does not need so far.
    pub(crate) fn frames_unused(&self) -> u64 {
        // One frame is being filled and two are kept free.
        self.budget.frames_allowed().saturating_sub(self.budget.frames() + 3)
    }

    /// True if the log takes no more memory than the budget allows.
    pub(crate) fn is_within_allowance(&self) -> bool {
        self.budget.frames() <= self.budget.frames_allowed()
    }

    /// The budget's allowance has changed. Free frames beyond it go back to the system at once, the
    /// writer evicts pages for the others, and threads that wait for a frame look again. Does not
    /// wait.
    pub(crate) fn allowance_changed(&self) {
        let mut state = self.state.lock();
        self.retire_free_frames(&mut state);
        self.writer_wake.notify_one();
        self.frame_freed.notify_all();
    }

    fn retire_free_frames(&self, state: &mut State) {
        while !self.is_within_allowance()
            && let Some(frame) = state.free.pop()
        {
            self.retire(state, frame);
        }
    }

    fn retire(&self, state: &mut State, frame: u32) {
        // SAFETY: no thread refers to the frame: its page was evicted behind a barrier, or never
        // begun, and the frame is on no list.
        unsafe {
            let offset = (frame as usize) << self.page_bits;
            self.frames.release(offset, self.page_bytes() as usize);
        }
        self.budget.give_back_frame();
        state.retired.push(frame);
    }

    /// Bytes of memory that frames take now.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.budget.frames() << self.page_bits
    }

    /// Returns an address at or above which no record lies. Must be called after a barrier; holds
    /// for the records that were appended before it.
    pub(crate) fn records_end(&self) -> u64 {
        let tail = self.tail_address();
        let in_page = self.page_bytes() - 1;
        // A page that has only its header has no record.
        if tail & in_page <= PAGE_HEADER_BYTES { tail & !in_page } else { tail }
    }

    pub(crate) fn tail_address(&self) -> u64 {
        let tail = self.tail.load(Ordering::Relaxed);
        let page = tail >> 32;
        let offset = tail & 0xFFFF_FFFF;
        let used =
            if page == last_page(self.page_bits) { 0 } else { offset.min(self.page_bytes()) };
        (page << self.page_bits) + used
    }
}
