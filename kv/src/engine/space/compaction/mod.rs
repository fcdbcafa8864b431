//! Compaction frees disk space: it copies rows from the log's beginning to the tail, and then moves
//! the beginning up.
//!
//! **Problem.** An update of a settled row, a promotion and a deletion each leave a superseded
//! record in the log. Without compaction the log only grows.
//!
//! **Approach.** Compaction takes pages from the log's beginning, one after another. It copies the
//! rows that are still current to the tail, as a promotion does. Then `begin` moves past the page,
//! and its space goes back to the file system. Whole segment files are removed. In the first
//! segment that is still needed, a hole is punched up to `begin`, so a large segment holds back no
//! space.
//!
//! If rewrites are spread evenly and the log is 1.4 times as long as its rows, half of the oldest
//! page is dead. Each compacted page then frees half a page. Compaction always takes the oldest
//! page, not the page with the fewest rows. Chains lead only to older records, so no link leads
//! below `begin`.
//!
//! **Which records are current.** A record is current if a search for its key ends at it. A search
//! for each record would read a newer record from disk for every dead record. The index saves these
//! reads, because an entry says whether its chain has more than one record (`index::entry`). The
//! record is current if an entry without a chain has its address. The record is dead if there is no
//! such entry and no entry with a chain. In the remaining case, compaction walks the chain
//! (`MoveChained` of `engine::batch`). Chains are rare if there is enough memory.
//!
//! **Why it is right, beside all other threads.**
//! 1. Compaction reads pages that are on the device (below `flushed`). Their records and clocks
//!    never change: an operation that changes the clock of a settled row first copies the row to
//!    the tail.
//! 2. `Index::replace` publishes the copy in the same entry that compaction saw, if the entry is
//!    unchanged. Updates, promotions and deletions do the same. So if two threads replace the
//!    record of one row, one succeeds and the other searches again.
//! 3. `begin` moves after the last row below it was published elsewhere. A thread that sees the new
//!    `begin` and then reads the index sees the copies (`Log::view`). A thread that searched
//!    earlier reads the old record, which was current when its search began. If the old record's
//!    space was given back, that thread searches again (`engine::batch::disk`).
//! 4. An entry or a link below `begin` counts as empty. Compaction does not copy tombstones: the
//!    records that a tombstone hides lie below it, so they are gone first. Compaction removes the
//!    entries of tombstones, so that they take no slots. While a search for a key meets its
//!    tombstone, no insert gives the key another entry. When `begin` passes the tombstone, searches
//!    stop meeting it, but the entry of its chain does not change. So an operation that replaces a
//!    tombstone by a row checks `begin` again under the bucket's lock (`publish` of
//!    `engine::batch::succession`). If `begin` has passed the tombstone, the operation searches
//!    again.
//! 5. The space that a kept checkpoint needs stays until that checkpoint is removed (`pins`). Moved
//!    rows are durable with the next checkpoint, and until then recovery from a crash needs the old
//!    records. A bank without a checkpoint recovers nothing, so its space is given back at once.
//! 6. No threads wait in a circle. Compaction waits for frames, which the writer thread frees
//!    without compaction. It waits for pauses of a checkpoint, and a pause waits only for pinned
//!    threads. It waits for a ring of the device, which batches and scans hold only while they
//!    read. A thread that waits for compaction holds no ring, no read buffer and no pin
//!    (`Headroom::await_space`, `engine::batch::disk`).
//!
//! **Damage.** A page that fails verification stops compaction, and no space at or after that page
//! is given back. The statistics show the reason, and `Store::compact` returns it.

#[cfg(test)]
mod memory_tests;
mod merging;
mod rows;
mod spill;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Instant;

use super::compactor::rest_in_fold;
use super::pressure::Fill;
use crate::device::AlignedBuffer;
use crate::engine::batch::Scratch;
use crate::engine::cold::sort_buffer::SortBuffer;
use crate::engine::core::Core;
use crate::error::Result;
use crate::index::Candidates;
use crate::memory::budget::Budget;
use crate::record::address::{Address, TableNumber};
use crate::sync::{MutexGuard, Planted, planted};

/// Number of rows that are handled under one pin. The cache misses of their index lookups overlap.
const GROUP_ROWS: usize = 32;

/// Memory and state that compaction keeps from one page to the next.
#[derive(Default)]
pub(super) struct Pass {
    buffer: Option<AlignedBuffer>,
    rows: Vec<Row>,
    /// The hashes of records without a current row: tombstones, records of dropped tables, and
    /// records that are equal to the cold tier's.
    dead: Vec<u64>,
    /// Keys and addresses of rows that may be in chains, by table.
    chained: BTreeMap<TableNumber, (Vec<u64>, Vec<Address>)>,
    candidates: Candidates,
    scratch: Box<Scratch>,
    /// The rows that leave the log for the cold tier. Its memory is lent by the budget.
    sort_buffer: Option<SortBuffer>,
    /// The size of the page and of its records.
    fill: Fill,
    /// The bucket at which the sweep of the index continues.
    sweep: u64,
}

/// Shows the position alone, because the rest has the keys of many rows.
impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("sweep", &self.sweep).finish_non_exhaustive()
    }
}

/// A record of the page that is being compacted, identified by its offset in the page.
#[derive(Debug, Clone, Copy)]
struct Row {
    offset: u32,
    hash: u64,
}

/// Compaction by one thread. Other threads can't compact until it is dropped.
pub(super) struct Compaction<'c> {
    core: &'c Core,
    pass: MutexGuard<'c, Pass>,
    /// False if the index has no entries of the log's records: every record counts as current.
    has_index: bool,
}

impl<'c> Compaction<'c> {
    /// Waits until no other thread compacts.
    pub(super) fn begin(core: &'c Core) -> Self {
        Compaction { core, pass: core.space.pass.lock(), has_index: true }
    }

    /// Begins spills of a log whose records the index does not have. No batch may run. A spill then
    /// moves superseded records, too. The newest version of a row wins, because its run is newer.
    pub(super) fn without_index(core: &'c Core) -> Self {
        Compaction { has_index: false, ..Compaction::begin(core) }
    }

    /// Compacts the page at the log's beginning, which is on the device. Returns the number of
    /// bytes copied.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` if the page cannot be read. The page then stays as it is.
    /// `Poisoned` if the log cannot be written.
    pub(super) fn compact_page(&mut self) -> Result<u64> {
        let Core { log, space, tables, counters, .. } = self.core;
        let started = Instant::now();
        let start = log.begin();
        let end = start + log.page_bytes();
        let bytes = Budget::compaction_buffer_bytes_for(log.page_bytes()) as usize;
        if planted(Planted::BeginEarly) {
            log.set_begin(end);
        }
        let mut buffer = self.pass.buffer.take().unwrap_or_else(|| AlignedBuffer::zeroed(bytes));
        let copied = self.move_rows(&mut buffer, start);
        // The rows of the page have been copied. So the walks of chains can use the page's buffer
        // for reads.
        self.pass.scratch.own_buffer = Some(buffer);
        let copied = copied.and_then(|copied| Ok(copied + self.move_chained()?));
        self.pass.buffer = self.pass.scratch.own_buffer.take();
        let copied = copied?;
        let dead = std::mem::take(&mut self.pass.dead);
        self.clear_entries(dead.iter().copied(), end);
        self.pass.dead = dead;
        self.sweep_index(start, start..end);
        let live = || tables.live(log.page_bytes());
        space.signal.state.lock().packing.note(self.pass.fill, end, log.tail_address(), live);
        log.set_begin(end);
        counters.compacted_bytes.add(end - start);
        counters.compaction_copied_bytes.add(copied);
        counters.compaction_us.add(started.elapsed().as_micros() as u64);
        Ok(copied)
    }

    /// Removes the index entries of `hashes` that lead nowhere, because every row below `end` has
    /// been moved.
    fn clear_entries(&mut self, hashes: impl Iterator<Item = u64>, end: u64) {
        let Core { index, gate, .. } = self.core;
        let pass = &mut *self.pass;
        let mut hashes = hashes.peekable();
        while hashes.peek().is_some() {
            // A checkpoint's pause waits for this pin, so the index does not change during the
            // pause.
            let guard = gate.enter();
            for hash in hashes.by_ref().take(GROUP_ROWS) {
                index.candidates(hash, &mut pass.candidates);
                for entry in pass.candidates.iter().filter(|entry| entry.address().raw() < end) {
                    index.remove(hash, entry);
                }
            }
            drop(guard);
            index.wait_for_image();
        }
    }

    /// Folds a part of the index, after a spill has removed entries. Gives the memory to frames and
    /// read cache. Must be called while not pinned. Only compaction moves the log's beginning, so
    /// it stays meanwhile. Folds one portion even if there is more urgent work.
    fn fold_index(&self) {
        let Core { log, index, gate, budget, .. } = self.core;
        for _ in 0..index.portions_per_spill() {
            let Some(folded) = index.fold(budget, gate, log.begin()) else { return };
            if folded.freed_bytes > 0 {
                log.allowance_changed();
            }
            // Without a rest, a thread that wakes after a pause could find the next one.
            if !rest_in_fold(self.core, folded.rest()) {
                return;
            }
        }
    }

    /// Removes entries that lead below `below` from a part of the index. The sweep passes the whole
    /// index in the time in which compaction passes the whole log. `passed` is the log that
    /// compaction has passed since the last sweep.
    fn sweep_index(&mut self, below: u64, passed: Range<u64>) {
        let Core { log, index, gate, .. } = self.core;
        let pass = &mut *self.pass;
        let pages = |bytes: u64| bytes / log.page_bytes();
        let all = pages(log.tail_address() - passed.start) + 1;
        let mut left = index.bucket_count() * pages(passed.end - passed.start) / all + 1;
        while left > 0 {
            let count = left.min(4096);
            let guard = gate.enter();
            pass.sweep = index.purge(below, pass.sweep, count);
            drop(guard);
            index.wait_for_image();
            left -= count;
        }
    }
}
