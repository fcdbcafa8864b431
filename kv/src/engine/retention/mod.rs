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

pub(crate) mod state;

use crate::engine::batch::BatchMemory;
use crate::engine::batch::{Retain, Scratch, Tally};
use crate::engine::core::Core;
use crate::engine::retention::state::Age;
use crate::engine::retention::state::RetentionState;
use crate::engine::retention::state::dice;
use crate::operation::Outcome;
use crate::record::address::{Address, TableNumber};
use crate::record::clock::ClockWord;
use crate::record::layout::RecordRef;
use crate::sync::Ordering;
use crate::testing::mechanisms::{Mechanism, is_on};

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

impl Core {
    fn age(&self, bytes: u64) -> Age {
        Age::new(bytes, self.retention.half_life_bytes)
    }

    /// Default use count of a row without history: the mean of recently evicted rows.
    pub(crate) fn mean_uses(&self) -> u32 {
        // Relaxed: an old value is good enough, because the count is an estimate.
        self.retention.mean_uses.load(Ordering::Relaxed) as u32
    }

    /// Returns the use count that the copy of a row inherits from its record.
    pub(crate) fn inherited_uses(&self, record: ClockWord, from: Address, to: Address) -> u32 {
        self.age(to.raw().saturating_sub(from.raw())).of(record.uses(), dice(to))
    }

    /// Inspects a few records for each of the `appended` records. Must be called while not pinned.
    pub(crate) fn retain(&self, appended: u64) {
        self.retain_some(appended.saturating_mul(RECORDS_PER_APPENDED).max(RECORDS_MIN));
    }

    /// Inspects the rest of the page that will be evicted. A batch calls this before it turns a
    /// page, because one chunk may have filled that page. Must be called while not pinned.
    pub(crate) fn retain_before_turn(&self) {
        self.retain_some(RECORDS_BEFORE_TURN_MAX);
    }

    /// Inspects at most `records` records of the pages that are evicted next.
    fn retain_some(&self, records: u64) {
        if !is_on(Mechanism::Retention) {
            return;
        }
        // Relaxed: an old value is good enough, because the next inspection reads a newer one.
        if self.retention.next.load(Ordering::Relaxed) >= self.log.last_call() {
            return;
        }
        let Some(mut state) = self.retention.state.try_lock() else { return };
        let mut left = records;
        // The copies below may turn pages, and more pages then reach their last call. Later batches
        // inspect these pages.
        let end = self.log.last_call();
        // The loop ends: each round has fewer records to inspect.
        while left > 0 && !self.headroom().is_short() {
            let looked_at = self.find_retained(&mut state, end, left.min(RECORDS_AT_ONCE_MAX));
            if looked_at == 0 {
                return;
            }
            left -= looked_at;
            self.copy_retained(&mut state);
        }
    }

    /// Inspects at most `records` records before `end`, and lists the rows to retain. Returns the
    /// number of records that it inspected.
    fn find_retained(
        &self,
        RetentionState { uses, found, .. }: &mut RetentionState,
        end: u64,
        records: u64,
    ) -> u64 {
        found.clear();
        let _pin = self.gate.enter();
        let view = self.log.view();
        let mut next = self.retention.next.load(Ordering::Relaxed).max(view.head).max(view.begin);
        let age = self.age(self.log.tail_address().saturating_sub(next));
        let mut looked_at = 0;
        while next < end && looked_at < records {
            let visit = |record: RecordRef<'_>| {
                looked_at += 1;
                let word = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
                let link = record.link();
                let is_row = !(word.is_replaced() || link.is_tombstone() || link.is_invalid());
                if is_row && uses.note(age.of(word.uses(), dice(record.address()))) {
                    found.push((record.shape().table(), record.key(), record.address()));
                }
                looked_at < records
            };
            // SAFETY: the duty is to pass the address of a settled record or page in memory. The
            // thread is pinned, `next` is not below the view's head and is below a last call, and a
            // record or page begins there.
            next = unsafe { self.log.visit_settled(view, next, visit) };
        }
        self.retention.next.store(next, Ordering::Relaxed);
        self.retention.mean_uses.store(uses.mean, Ordering::Relaxed);
        looked_at
    }

    /// Copies the listed rows to the tail, table by table.
    fn copy_retained(
        &self,
        RetentionState { found, keys, addresses, scratch, .. }: &mut RetentionState,
    ) {
        found.sort_by_key(|&(table, ..)| table.0);
        for rows in found.chunk_by(|a, b| a.0 == b.0) {
            keys.clear();
            keys.extend(rows.iter().map(|&(_, key, _)| key));
            addresses.clear();
            addresses.extend(rows.iter().map(|&(.., address)| address));
            self.copy_retained_of(rows[0].0, keys, addresses, scratch);
        }
    }

    fn copy_retained_of(
        &self,
        number: TableNumber,
        keys: &[u64],
        addresses: &[Address],
        scratch: &mut Scratch,
    ) {
        // `None` if the table was dropped. If another table has the number now, that table has no
        // row at these addresses.
        let Some(table) = self.tables.of(number) else { return };
        let mut outcome = Outcome::default();
        let mut tally = Tally::default();
        let memory = BatchMemory { scratch, outcome: &mut outcome, tally: &mut tally };
        // The job fails if the log is poisoned or if there is no space. The next batch that writes
        // reports such an error. The rows that were not copied leave memory, but they are on disk
        // already.
        let _ = self.run_job(table, keys, &mut Retain(addresses), memory);
        self.counters.records_appended.add(tally.appended);
        self.counters.retained.add(tally.moved);
    }
}
