//! The hybrid log: one growing address space whose newest part is in memory.
//!
//! ```text
//! begin            head              read_only            tail
//!   |-- on disk -----|-- read-only ----|---- mutable -------|
//!                    '---------- frames in memory ----------'
//! ```
//!
//! Records at or above `read_only` change in place. Records between `head` and `read_only` are in
//! memory but settled: they no longer change, and their pages are written to disk, unless their
//! rows leave the log first (`regions`). An update of such a record copies the row to the tail.
//! Records below `head` are only on disk. (After FASTER, SIGMOD 2018.)
//!
//! **Turning a page.** Threads take space at the tail by fetch-and-add on one word, which holds
//! page and offset. The thread that crosses the page's end stores how many bytes of the page are
//! used. `allocate` reports the full page to its caller. The caller unpins and calls `turn_page`,
//! which waits until a frame is free. The writer thread (`writer`) keeps frames free. It moves
//! `read_only` and `head`, and waits for an `epoch::barrier`. After that, no thread acts on the old
//! values. It then writes settled pages and frees the frames of evicted pages. A checkpoint's `cut`
//! ends the tail's page and moves `read_only` to the tail, while no thread is pinned.
//!
//! **Invariants.**
//! 1. `head <= flushed <= read_only <= tail` and `settled <= read_only`. `begin` is at most the
//!    higher of `flushed` and `settled`. All of them only grow. No row lies below `begin`, because
//!    compaction has moved the rows to the tail or to the cold tier. A reader ignores index entries
//!    and links that lead below `begin`.
//! 2. A thread uses the `head` and `read_only` that it loaded after it pinned. Until it has
//!    unpinned, no frame at or above that head is reused, and no page at or above that read-only
//!    boundary is written.
//! 3. When a page is settled, every record in it is complete, and later only the record's clock
//!    word changes.
//! 4. A page in `begin..flushed` is on the device. So is each page of a checkpoint's log: the
//!    writer leaves a page out only if `begin` has passed it, and only above the last cut. A read
//!    of a page that was left out fails like the read of a page that was freed.

mod full_disk;
pub(crate) mod page;
mod reading;
mod regions;
#[cfg(test)]
mod tests;
pub(crate) mod view;
mod writer;

use crate::log::view::{Frames, View};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::checkpoint::lineage::Lineage;
use crate::device::Device;
use crate::engine::space::Signal;
use crate::error::{Error, Result};
use crate::index::ADDRESS_LIMIT;
use crate::memory::budget::Budget;
use crate::memory::region::Region;
use crate::record::address::{Address, TableNumber};
use crate::record::layout::{HEADER_BYTES, RecordRef, record_bytes};
use crate::stats::Counters;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, Planted, planted};
pub(crate) use full_disk::TurnFor;
use full_disk::{FullDisk, Request};
use page::PAGE_HEADER_BYTES;

/// A store warns when one part in `ADDRESSES_LOW_PART` of the log's addresses is left.
const ADDRESSES_LOW_PART: u64 = 16;

/// Returns the number of the address space's last page. That page stays empty, so the log's end is
/// an address and a page number that a manifest can hold.
pub(crate) fn last_page(page_bits: u32) -> u64 {
    (ADDRESS_LIMIT >> page_bits).min(u64::from(u32::MAX)) - 1
}

/// The tail's page has no room. The caller must unpin, call [`Log::turn_page`] with this value, and
/// try again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageFull(u64);

/// The log of a store.
#[derive(Debug)]
pub(crate) struct Log {
    page_bits: u32,
    lineage: Lineage,
    /// Page number in the upper half, offset in the lower half. An offset beyond the page's end
    /// means that the page is full.
    tail: AtomicU64,
    read_only: AtomicU64,
    /// All records below this address are complete and no longer change, except for their clock
    /// words. Use `Log::settled()`, because `flushed` may be higher.
    settled: AtomicU64,
    flushed: AtomicU64,
    head: AtomicU64,
    begin: AtomicU64,
    frames: Region,
    /// The entry `page % shifts.len()` belongs to a page in memory. Adding it (wrapping) to an
    /// address in the page gives the address's offset in `frames`.
    shifts: Box<[AtomicU64]>,
    /// Bytes in use of each full page in memory, with the same indexes as `shifts`.
    used_bytes: Box<[AtomicU32]>,
    /// The pages of a spill, if rows go to the cold tier from memory. Otherwise 0.
    spill_pages: AtomicU64,
    state: Mutex<State>,
    writer_wake: Condvar,
    frame_freed: Condvar,
    page_flushed: Condvar,
    poison: OnceLock<Stopped>,
    /// Copy of `state.disk.is_full()` that can be read without the lock.
    is_full: AtomicBool,
    /// Raised after a page has been settled or written, because compaction may then have work.
    compactor: Arc<Signal>,
    lookahead: Told,
    pub(crate) device: Arc<dyn Device>,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
}

/// The function that the log calls after its boundaries have moved.
#[derive(Default)]
struct Told(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for Told {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Told").field(&self.0.get().is_some()).finish()
    }
}

/// Why a log accepts no writes.
#[derive(Debug)]
enum Stopped {
    /// A write failed for this reason.
    Failed(String),
    /// The bank in this directory is open read-only.
    ReadOnly(PathBuf),
}

/// A frame that belongs to no page yet. Dropping this frees the frame.
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

/// Page size and boundaries of a log when it is opened.
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
    /// The writer settles and writes all pages below this number, even those that are new enough to
    /// stay mutable.
    settle_below: u64,
    /// A checkpoint needs all pages below this number. The writer writes them even if `begin` has
    /// passed them since.
    cut_page: u64,
    disk: FullDisk,
    shutdown: bool,
}

impl State {
    /// Takes a frame for a page. `None` if no frame is free, or if the turn must leave the
    /// remaining frames free (see [`TurnFor::frames_left`]).
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
    /// Opens a log whose pages below the tail page are on the device, and begins the tail page in
    /// memory.
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
            spill_pages: AtomicU64::new(0),
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

    /// Sets the function that the writer thread calls after it has moved the boundaries. Only the
    /// first call has an effect.
    pub(crate) fn when_boundaries_move(&self, told: Box<dyn Fn() + Send + Sync>) {
        let _ = self.lookahead.0.set(told);
    }

    /// Returns the lineage, which says which opening of the bank wrote each page. The present
    /// opening writes all pages from the address at which the log ended when the bank was opened.
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

    /// All records below the returned address are complete, and later only their clock words
    /// change.
    pub(crate) fn settled(&self) -> u64 {
        // Acquire: pairs with the writer's Release stores, each after a barrier.
        self.settled.load(Ordering::Acquire).max(self.flushed())
    }

    /// Calls `visit` for each record from address `from` to the end of the page, or until `visit`
    /// returns false. Returns the address of the next record or page.
    ///
    /// # Safety
    /// `from` is the start of a page or record, or the end of a page's last record. It is at or
    /// above the `head` of `view`, and below a result of [`last_call`](Self::last_call), so it is
    /// settled. The thread has stayed pinned since it took the view.
    pub(crate) unsafe fn visit_settled(
        &self,
        view: View<'_>,
        from: u64,
        mut visit: impl FnMut(RecordRef<'_>) -> bool,
    ) -> u64 {
        let page = from >> self.page_bits;
        debug_assert!(view.head <= from && from < self.settled());
        // Relaxed: the thread that filled the page stored the value, and the barrier before
        // `settled` moved has waited for that thread.
        let used = u64::from(self.used_bytes[self.slot(page)].load(Ordering::Relaxed));
        let start = page << self.page_bits;
        let mut offset = (from - start).max(PAGE_HEADER_BYTES);
        while offset + HEADER_BYTES as u64 <= used {
            let address = Address::new(start + offset);
            // SAFETY: the contract of this function says that the record is in memory. All records
            // of a settled page have their headers.
            let record = unsafe { view.record(address) };
            offset += record.shape().record_bytes() as u64;
            if !visit(record) {
                return start + offset;
            }
        }
        start + self.page_bytes()
    }

    /// Returns the boundaries for a thread that has just pinned.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        // Acquire: pairs with the writer's Release stores. `head` is loaded before `read_only`:
        // `read_only` only grows, so the `head` of the view cannot lie above its `read_only`.
        // `begin` pairs with `set_begin`. A thread that sees the new `begin` also finds in the
        // index the rows that compaction has moved.
        let begin = self.begin.load(Ordering::Acquire);
        let head = self.head.load(Ordering::Acquire);
        let read_only = self.read_only.load(Ordering::Acquire);
        // If the whole log is in memory, `begin` passes `head`. No row lies between them.
        View { begin, head: head.max(begin), read_only, frames: self.frames() }
    }

    /// Returns the log's beginning. No row lies below it.
    pub(crate) fn begin(&self) -> u64 {
        self.begin.load(Ordering::Acquire)
    }

    /// Moves the log's beginning up to an address below which no row is left. Only compaction calls
    /// this.
    pub(crate) fn set_begin(&self, begin: u64) {
        debug_assert!(self.begin() <= begin && begin <= self.settled());
        // Release: pairs with the Acquire load in `view`. Compaction's moves come before this
        // store.
        self.begin.store(begin, Ordering::Release);
        if begin > self.flushed() {
            // The writer may evict the pages. Under the lock, so that it does not miss the wake-up.
            let _state = self.state.lock();
            self.writer_wake.notify_one();
        }
    }

    /// Returns an address below which all pages are on the device, or lie below `begin`. The pages
    /// need not be synced.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// Allocates space for a record at the tail. The caller must be pinned and must write the
    /// record's header before it unpins.
    #[inline]
    pub(crate) fn allocate(&self, bytes: usize) -> std::result::Result<Address, PageFull> {
        let bytes = bytes as u64;
        let page_bytes = self.page_bytes();
        // Relaxed: this load only avoids the addition on a full page, so that the offset can't
        // overflow.
        let seen = self.tail.load(Ordering::Relaxed);
        if seen & 0xFFFF_FFFF > page_bytes {
            return Err(PageFull(seen >> 32));
        }
        // Acquire: pairs with the Release store in `begin_page` and so sees the page's frame.
        // Additions by other threads continue the release sequence of that store.
        let old = self.tail.fetch_add(bytes, Ordering::Acquire);
        let page = old >> 32;
        let offset = old & 0xFFFF_FFFF;
        if offset + bytes <= page_bytes {
            return Ok(Address::new((page << self.page_bits) + offset));
        }
        if offset <= page_bytes {
            // This thread crossed the page's end. Relaxed: the writer thread reads the value after
            // a barrier.
            self.used_bytes[self.slot(page)].store(offset as u32, Ordering::Relaxed);
        }
        Err(PageFull(page))
    }

    /// Allocates a record at the tail for a value of `value_bytes` bytes. Writes the header, which
    /// marks the record as invalid. Must be called while pinned, under the pin with which `view`
    /// was taken.
    pub(crate) fn begin_record<'g>(
        &self,
        view: View<'g>,
        table: TableNumber,
        key: u64,
        value_bytes: usize,
    ) -> std::result::Result<RecordRef<'g>, PageFull> {
        let address = self.allocate(record_bytes(value_bytes))?;
        // SAFETY: the duty is to pass the address of space in memory. The space was allocated under
        // this pin, so it is above the head. Only this thread uses the space until the record is
        // published.
        let record = unsafe { view.record(address) };
        record.begin(table, key, value_bytes);
        Ok(record)
    }

    /// Begins the page after a full one. Waits for a frame if all are in use. The caller must not
    /// be pinned.
    ///
    /// # Errors
    /// `Poisoned` after a failed write. `DiskFull` if the disk is full and a new attempt to write
    /// fails. `Exhausted` at the end of the address space.
    pub(crate) fn turn_page(&self, full: PageFull, turn_for: TurnFor) -> Result<()> {
        debug_assert!(!crate::epoch::is_pinned());
        let next = full.0 + 1;
        self.check_page(next)?;
        let mut state = self.state.lock();
        let mut waiting = None;
        let mut request = Request::default();
        // The loop ends: the writer frees a frame, finds the disk full, or poisons the log, and
        // then wakes all waiting calls.
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
                // Wakes the threads that waited to turn the same page.
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

    /// Fails for a page beyond the last one of the address space.
    fn check_page(&self, page: u64) -> Result<()> {
        if page > last_page(self.page_bits) {
            return Err(Error::Exhausted(
                "the log has used up its addresses (512 TiB, or 4 billion pages); export the tables into a new bank"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Returns the bytes of log that can still be appended.
    pub(crate) fn address_left_bytes(&self) -> u64 {
        (last_page(self.page_bits) << self.page_bits).saturating_sub(self.tail_address())
    }

    /// Returns a warning if at most one part in `ADDRESSES_LOW_PART` of the addresses is left.
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
        // A checkpoint ends the tail's page and begins the next one. The last page has no
        // successor, so it must have no records.
        let offset = if is_last { self.page_bytes() + 1 } else { PAGE_HEADER_BYTES };
        // Release: publishes the page's frame to `allocate`.
        self.tail.store(page << 32 | offset, Ordering::Release);
    }

    /// Reserves a frame for [`cut`](Self::cut). Waits for a frame if all are in use. The caller
    /// must not be pinned.
    ///
    /// # Errors
    /// `Poisoned` after a failed write. `DiskFull` if the disk is full and a new attempt to write
    /// fails.
    pub(crate) fn reserve_frame(&self) -> Result<ReservedFrame<'_>> {
        debug_assert!(!crate::epoch::is_pinned());
        let mut state = self.state.lock();
        let mut request = Request::default();
        // The loop ends: the writer frees a frame, finds the disk full, or poisons the log, and
        // then wakes all waiting calls.
        loop {
            self.check_poison()?;
            state.check_disk(&mut request)?;
            self.retire_free_frames(&mut state);
            // On a full disk, an attempt to write must succeed first. A cut that can't be written
            // would waste a frame.
            if !state.disk.is_full()
                && let Some(frame) = state.take_frame(&self.budget, TurnFor::Space)
            {
                return Ok(ReservedFrame { log: self, frame: Some(frame) });
            }
            self.writer_wake.notify_one();
            self.frame_freed.wait(&mut state);
        }
    }

    /// Ends the tail's page, settles all earlier records, and returns the new tail address. Does
    /// not wait. Must be called while no thread is pinned.
    ///
    /// # Errors
    /// `Exhausted` at the end of the address space. This would be a bug, because `turn_page` leaves
    /// the last page for a cut.
    pub(crate) fn cut(&self, mut reserved: ReservedFrame<'_>) -> Result<Address> {
        let mut end = {
            // The lock is needed, because a thread that found the page full before the pause may be
            // about to begin the next page.
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
        // No thread acts on the old boundary, so the pages below `end` can be written at once.
        // `fetch_max` is needed because the writer may be about to store a lower boundary.
        self.read_only.fetch_max(end, Ordering::Release);
        // The writer thread can write the pages that the cut has settled, and batches can turn
        // pages again.
        let mut state = self.state.lock();
        state.cut_page = end >> self.page_bits;
        self.frame_freed.notify_all();
        self.writer_wake.notify_one();
        Ok(Address::new(end))
    }

    /// Waits until all pages below the settled address `end` are on the device. The pages need not
    /// be synced.
    ///
    /// # Errors
    /// `Poisoned` after a failed write. `DiskFull` if the disk is full and a new attempt to write
    /// fails.
    pub(crate) fn await_flushed(&self, end: Address) -> Result<()> {
        let mut state = self.state.lock();
        let mut request = Request::default();
        // The loop ends: the writer writes the pages, finds the disk full, or poisons the log, and
        // then wakes all waiting calls.
        while self.flushed() < end.raw() {
            self.check_poison()?;
            state.check_disk(&mut request)?;
            self.writer_wake.notify_one();
            self.page_flushed.wait(&mut state);
        }
        Ok(())
    }

    /// Returns the error of an earlier failed write, or the error of a log that is open read-only.
    pub(crate) fn check_poison(&self) -> Result<()> {
        match self.poison.get() {
            None => Ok(()),
            Some(Stopped::Failed(reason)) => Err(Error::Poisoned { reason: reason.clone() }),
            Some(Stopped::ReadOnly(path)) => Err(Error::ReadOnly { path: path.clone() }),
        }
    }

    /// Makes the log refuse all writes, because the bank in `dir` is open read-only.
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

    /// Waits until the log uses no more frames than the budget allows. Free frames go back to the
    /// system, and the writer evicts pages. A caller that has borrowed memory from the budget calls
    /// this function. The caller must not be pinned.
    ///
    /// # Errors
    /// `Poisoned` after a failed write. `DiskFull` if the disk is full and a new attempt to write
    /// fails.
    pub(crate) fn give_way(&self) -> Result<()> {
        let mut state = self.state.lock();
        let mut request = Request::default();
        // The loop ends: the writer evicts enough pages, finds the disk full, or poisons the log,
        // and then wakes all waiting calls.
        loop {
            self.retire_free_frames(&mut state);
            // A log that is open read-only has one frame, and no thread that could evict it.
            if self.is_within_allowance() || self.is_sealed() {
                return Ok(());
            }
            self.check_poison()?;
            state.check_disk(&mut request)?;
            self.writer_wake.notify_one();
            self.frame_freed.wait(&mut state);
        }
    }

    /// Returns the number of frames that the budget allows and the log has not needed so far.
    pub(crate) fn frames_unused(&self) -> u64 {
        // Three frames count as needed soon: one for the tail's page, and two that the writer keeps
        // free.
        self.budget.frames_allowed().saturating_sub(self.budget.frames() + 3)
    }

    /// True if the log uses no more frames than the budget allows.
    pub(crate) fn is_within_allowance(&self) -> bool {
        self.budget.frames() <= self.budget.frames_allowed()
    }

    /// Must be called after the budget's allowance has changed. Returns free frames beyond the
    /// allowance to the system, wakes the writer to evict more pages, and wakes threads that wait
    /// for a frame. Does not wait.
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
        // SAFETY: no thread refers to the frame, because its page was evicted behind a barrier or
        // never begun. The frame is on no list.
        unsafe {
            let offset = (frame as usize) << self.page_bits;
            self.frames.release(offset, self.page_bytes() as usize);
        }
        self.budget.give_back_frame();
        state.retired.push(frame);
    }

    /// Returns the bytes of memory of all frames in use.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.budget.frames() << self.page_bits
    }

    /// Returns an address above all records that were appended before the last barrier. Must be
    /// called after that barrier.
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
