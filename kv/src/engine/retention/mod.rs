//! Retention: rows that are used often stay in memory when their page is evicted.
//!
//! **Problem.** The log evicts its oldest page, whatever rows are in it. If an operation uses a row
//! while its page is in the read-only region, the row goes to the tail and stays in memory. Another
//! row may be used often, but not while its page is in that region. Such a row leaves memory
//! together with the rows that were used once, and is soon read from disk again.
//!
//! **Approach.** The rows of the page that will be evicted next are at their *last call*: retention
//! copies the most used of these rows to the tail. The clock word of a record counts its uses
//! (changes of its value, and Gets that await a change). A copy inherits the count of its record,
//! also when the row comes from disk. The count loses half of its weight after the log has grown by
//! [`HALF_LIFE_ROUNDS`] times the most memory that rows can have. So the count is a frequency of
//! use. It is known even for rows that left memory long ago, and it takes no bytes beyond the clock
//! word. The read cache does not keep the count, so a row from there gets the mean count of the
//! recently evicted rows. A new row begins at 0.
//!
//! **Limits.** At most one in [`RETAINED_SHARE`] of the rows at their last call is retained. This
//! bounds the extra bytes written. No row is retained if the counts vary only as much as they would
//! by chance. Then all rows are alike, and retention gains nothing.
//!
//! **Which threads run it.** The batches that append records run retention. After each chunk, a
//! batch inspects 4 of the log's oldest records for each record that it appended. It copies the
//! rows to retain to the tail. Before a batch turns a page, it inspects the rest of the page that
//! will be evicted. The cost is proportional to the bytes written, and no thread waits for another.
//! One batch inspects at a time. A batch that finds the lock taken skips the inspection, and tries
//! again at its next chunk or page.
//!
//! The inspecting batch may be in the middle of its reads. Its copies wait only for a memory frame
//! when they turn a page, and the log's writer frees that frame. Retention does not wait for space
//! on disk. If the log has reached its quota, retention copies no row. If compaction is behind, the
//! batch that runs retention waits afterwards.
//!
//! A page can be evicted without a last call in two cases. The log may grow faster than pages
//! settle. Or memory has fewer than 12 pages, so the read-only region is too small.
//!
//! **Why it is safe.** The inspection is pinned and reads settled pages, whose records are complete
//! (`log`, invariants 2 and 3). Between inspection and copy, another thread may use, move or delete
//! the row, and its page may be evicted. An address is never used twice. So the copy, which is a
//! batch like any other, either finds the row at the inspected address or leaves the row alone.
//!
//! `uses` has the rules that need no store: how a count ages, and which counts are retained.

mod uses;

use std::fmt;

use crate::engine::batch::{Retain, Scratch, Tally};
use crate::engine::core::Core;
use crate::epoch::Gate;
use crate::log::Log;
use crate::record::address::{Address, TableNumber};
use crate::record::clock::ClockWord;
use crate::record::layout::RecordRef;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::testing::mechanisms::{Mechanism, is_on};
use uses::{Age, Uses, dice};

/// A use loses half of its weight after the log has grown by this multiple of the most memory that
/// rows can have. In simulations, 8 and 32 gave the same result.
const HALF_LIFE_ROUNDS: u64 = 16;
/// Number of records inspected for each appended record. With this number, few records are left for
/// the inspection before a page turn.
const RECORDS_PER_APPENDED: u64 = 4;
/// Smallest number of records of one inspection.
const RECORDS_MIN: u64 = 64;
/// Largest number of records inspected under one pin.
const RECORDS_AT_ONCE_MAX: u64 = 1024;
/// Largest number of records inspected before a page is turned. The remaining rows of the page may
/// be evicted without a last call.
const RECORDS_BEFORE_TURN_MAX: u64 = 16 * RECORDS_AT_ONCE_MAX;

/// The inspection of the oldest pages: its position, and the values that all batches read.
#[derive(Debug)]
pub(crate) struct Retention {
    /// The next record to inspect. Changes only while `inspection` is locked.
    next: AtomicU64,
    inspection: Mutex<Inspection>,
    /// Mean use count of the rows that retention has recently inspected before their eviction.
    mean_uses: AtomicU64,
    /// Growth of the log in bytes after which a use has lost half of its weight.
    half_life_bytes: u64,
}

#[derive(Default)]
struct Inspection {
    uses: Uses,
    /// The rows to retain, and the addresses at which the inspection saw them.
    found: Vec<(TableNumber, u64, Address)>,
    copying: Copying,
}

/// Memory for the batches that copy rows.
#[derive(Default)]
struct Copying {
    keys: Vec<u64>,
    addresses: Vec<Address>,
    /// The thread's own scratch memory belongs to the batch that runs retention.
    scratch: Scratch,
}

/// Shows no content, because it has the keys of many rows.
impl fmt::Debug for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspection").finish_non_exhaustive()
    }
}

impl Retention {
    /// Makes the state for a store whose rows have at most `memory_bytes` of memory.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        Retention {
            next: AtomicU64::new(0),
            inspection: Mutex::default(),
            mean_uses: AtomicU64::new(0),
            half_life_bytes: (memory_bytes * HALF_LIFE_ROUNDS).max(1),
        }
    }

    /// Default use count of a row without history: the mean of recently evicted rows.
    pub(crate) fn mean_uses(&self) -> u32 {
        // Relaxed: an old value is good enough, because the count is an estimate.
        self.mean_uses.load(Ordering::Relaxed) as u32
    }

    /// Returns the use count that the copy of a row inherits from its record.
    pub(crate) fn inherited_uses(&self, record: ClockWord, from: Address, to: Address) -> u32 {
        self.age(to.raw().saturating_sub(from.raw())).of(record.uses(), dice(to))
    }

    fn age(&self, bytes: u64) -> Age {
        Age::new(bytes, self.half_life_bytes)
    }

    /// Inspects a few records for each of the `appended` records. Must be called while not pinned.
    pub(crate) fn retain(&self, core: &Core, appended: u64) {
        self.inspect(core, appended.saturating_mul(RECORDS_PER_APPENDED).max(RECORDS_MIN));
    }

    /// Inspects the rest of the page that will be evicted. A batch calls this before it turns a
    /// page, because one chunk may have filled that page. Must be called while not pinned.
    pub(crate) fn retain_before_turn(&self, core: &Core) {
        self.inspect(core, RECORDS_BEFORE_TURN_MAX);
    }

    /// Inspects at most `records` records of the pages that are evicted next, and copies the rows
    /// to retain.
    fn inspect(&self, core: &Core, records: u64) {
        if !is_on(Mechanism::Retention) {
            return;
        }
        // Relaxed: an old value is good enough, because the next inspection reads a newer one.
        if self.next.load(Ordering::Relaxed) >= core.log.last_call() {
            return;
        }
        let Some(mut inspection) = self.inspection.try_lock() else { return };
        let Inspection { uses, found, copying } = &mut *inspection;
        let mut left = records;
        // The copies below may turn pages, and more pages then reach their last call. Later batches
        // inspect these pages.
        let end = core.log.last_call();
        // The loop ends: each round has fewer records to inspect.
        while left > 0 && !core.headroom().is_short() {
            found.clear();
            let records = left.min(RECORDS_AT_ONCE_MAX);
            let looked_at = self.find(&core.log, &core.gate, end, records, |row, count| {
                if uses.note(count) {
                    found.push(row);
                }
            });
            self.mean_uses.store(uses.mean, Ordering::Relaxed);
            if looked_at == 0 {
                return;
            }
            left -= looked_at;
            copying.copy(core, found);
        }
    }

    /// Inspects at most `records` records before `end`. Calls `note` with each row and its use
    /// count. Returns the number of records that it inspected.
    fn find(
        &self,
        log: &Log,
        gate: &Gate,
        end: u64,
        records: u64,
        mut note: impl FnMut((TableNumber, u64, Address), u32),
    ) -> u64 {
        let _pin = gate.enter();
        let view = log.view();
        let mut next = self.next.load(Ordering::Relaxed).max(view.head).max(view.begin);
        let age = self.age(log.tail_address().saturating_sub(next));
        let mut looked_at = 0;
        while next < end && looked_at < records {
            let visit = |record: RecordRef<'_>| {
                looked_at += 1;
                let word = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
                let link = record.link();
                if !(word.is_replaced() || link.is_tombstone() || link.is_invalid()) {
                    let row = (record.shape().table(), record.key(), record.address());
                    note(row, age.of(word.uses(), dice(record.address())));
                }
                looked_at < records
            };
            // SAFETY: the duty is to pass the address of a settled record or page in memory. The
            // thread is pinned, `next` is not below the view's head and is below a last call, and a
            // record or page begins there.
            next = unsafe { log.visit_settled(view, next, visit) };
        }
        self.next.store(next, Ordering::Relaxed);
        looked_at
    }

    /// Retains rows with at least `USES_MIN` uses from now on. Models have too few rows to judge.
    #[cfg(all(test, embank_shuttle))]
    pub(crate) fn retain_often_used(&self) {
        let uses = &mut self.inspection.lock().uses;
        uses.at_least = Some(uses::USES_MIN as u32);
        uses.credit = uses::JUDGED_ROWS;
    }
}

impl Copying {
    /// Copies the rows to the tail, table by table.
    fn copy(&mut self, core: &Core, rows: &mut [(TableNumber, u64, Address)]) {
        rows.sort_by_key(|&(table, ..)| table.0);
        for rows in rows.chunk_by(|a, b| a.0 == b.0) {
            // `None` if the table was dropped. If another table has the number now, that table has
            // no row at these addresses.
            let Some(table) = core.tables.of(rows[0].0) else { continue };
            let Copying { keys, addresses, scratch } = self;
            keys.clear();
            keys.extend(rows.iter().map(|&(_, key, _)| key));
            addresses.clear();
            addresses.extend(rows.iter().map(|&(.., address)| address));
            let mut tally = Tally::default();
            // The job fails if the log is poisoned or if there is no space. The next batch that
            // writes reports such an error. The rows that were not copied leave memory, but they
            // are on disk already.
            let job = &mut Retain(addresses);
            let _ = core.run_within(table, keys, job, scratch, &mut tally);
            core.counters.records_appended.add(tally.appended);
            core.counters.retained.add(tally.moved);
        }
    }
}
