//! Rows of variable width.
//!
//! **Problem.** Rows of a vocabulary are as long as their words. The loops for embedding rows are tuned to few
//! instructions a key and know a row's length beforehand; none of that may be lost.
//!
//! **Approach.** The width is a constant of the operation (`Work::WIDTH`), so the loops for fixed width are
//! compiled without a trace of this module. A record tells its own length: in units of 8 bytes in word 3,
//! which is fixed when it is allocated, less the unused bytes in word 0, which change with the value
//! under the lock. So a value changes in place as long as its padded length stays, and a reader without
//! the lock reads word 0 with the value, between the same two looks at the clock word. A value of another
//! padded length goes to the tail, and its old record is replaced for good, wherever that lay.
//!
//! What the table's rows weigh is counted with their number: compaction measures the log by it, and
//! reads and prefetches take the mean for the length that they can't know.

use super::{Batch, Mode, Step, Work, bytes_of};
use crate::engine::batch::row::Peeked;
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::record::address::TableId;
use crate::record::clock::{self, ClockWord, LockRefused, Locked};
use crate::record::layout::{HEADER_BYTES, RecordRef, record_bytes};
use crate::sync::Ordering;

/// Before the first row is counted, records are taken to be so long.
const MEAN_BYTES_DEFAULT: usize = 64;
/// So many times the mean is read at first.
const READ_MEANS: usize = 2;

/// Bytes of the table's records on average, and what to read of one at first.
pub(super) fn typical_bytes(core: &Core, table: TableId, value_bytes_max: usize) -> (usize, usize) {
    let longest = record_bytes(value_bytes_max);
    let mean = core.mean_record_bytes(table).unwrap_or(MEAN_BYTES_DEFAULT);
    let mean = mean.clamp(HEADER_BYTES, longest);
    (mean, (mean * READ_MEANS).min(longest))
}

/// Reads a row in memory without its lock. `words`: room for the longest value.
pub(super) fn peek<W: Work>(
    work: &mut W,
    i: usize,
    record: RecordRef<'_>,
    words: &mut [u64],
) -> Peeked {
    let padded = record.shape().padded_value_bytes();
    let words = &mut words[..padded / 8];
    let mut link = record.link();
    let current = clock::read_unlocked(record.clock(), || {
        link = record.link();
        if !link.is_tombstone() {
            record.load_value(words);
        }
    });
    if !current {
        return Peeked::Moved;
    }
    if link.is_tombstone() {
        return Peeked::Missing;
    }
    work.read(i, bytes_of(words, padded - link.unused_bytes()));
    // Relaxed: a count of its own, as of now.
    let clock = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
    work.clock(i, clock.outstanding());
    Peeked::Row
}

impl<W: Work> Batch<'_, W> {
    /// A row in the mutable region; none if its next value has no room there.
    pub(super) fn in_place_variable(&mut self, i: usize, record: RecordRef<'_>) -> Option<Step> {
        let clock = self.clock;
        let locked = match clock::lock(record.clock(), |word| clock.admits(word.outstanding())) {
            Ok(locked) => locked,
            Err(LockRefused::Replaced) => return Some(Step::Moved),
            Err(LockRefused::Declined) => {
                self.outcome.blocked.push(i as u32);
                return Some(Step::Done);
            }
        };
        let before = locked.word();
        if record.link().is_tombstone() {
            return self.revive_variable(i, record, locked);
        }
        let after = before.with_outstanding(clock.after(before.outstanding())).with_promoted(false);
        // SAFETY: the lock is held.
        let old = unsafe { record.value(record.value_bytes()) };
        match W::MODE {
            Mode::Get => {
                self.work.read(i, old);
                locked.unlock_unchanged(after);
                self.work.clock(i, before.outstanding());
                self.work.settled(i);
            }
            Mode::Delete => {
                clock::fence_before_change();
                record.set_link(record.link().with_tombstone(true));
                locked.unlock_changed(after.with_outstanding(0));
                self.tally.deleted += 1;
                self.note_replaced(record.shape().record_bytes(), 0);
            }
            _ => {
                let known = (W::MODE == Mode::Update).then_some(old);
                let Some(next) = self.next_value_bytes(i, known) else {
                    locked.unlock_unchanged(before);
                    return Some(Step::Done);
                };
                let padded = record.shape().padded_value_bytes();
                if next.next_multiple_of(8) != padded {
                    locked.unlock_unchanged(before);
                    return None;
                }
                let words = &mut self.scratch.value[..padded / 8];
                // The padding, and what the new value is longer than the old one.
                if let Some(last) = words.last_mut() {
                    *last = 0;
                }
                let value = bytes_of(words, next);
                if W::MODE == Mode::Update {
                    let kept = old.len().min(next);
                    value[..kept].copy_from_slice(&old[..kept]);
                }
                self.work.update(i, value);
                self.store_variable(record, next);
                locked.unlock_changed(after);
                self.work.settled(i);
            }
        }
        self.tally.hits_mutable += 1;
        if before.is_promoted() {
            self.note_promoted_used(record.address());
        }
        Some(Step::Done)
    }

    /// A deleted row in the mutable region: may be filled again, where there is room.
    #[cold]
    fn revive_variable(
        &mut self,
        i: usize,
        record: RecordRef<'_>,
        locked: Locked<'_>,
    ) -> Option<Step> {
        let before = locked.word();
        let Some(next) = self.make_missing_value(i) else {
            locked.unlock_unchanged(before);
            self.note_missing(i);
            return Some(Step::Done);
        };
        if next.next_multiple_of(8) != record.shape().padded_value_bytes() {
            locked.unlock_unchanged(before);
            return None;
        }
        self.store_variable(record, next);
        record.set_link(record.link().with_tombstone(false));
        locked.unlock_changed(before.with_outstanding(self.clock.after(0)));
        self.work.settled(i);
        self.note_inserted(record.shape().record_bytes());
        Some(Step::Done)
    }

    /// Stores the scratch's value of so many bytes, whose padded length is the record's. Under its lock.
    fn store_variable(&self, record: RecordRef<'_>, value_bytes: usize) {
        clock::fence_before_change();
        record.store_value(&self.scratch.value[..value_bytes.div_ceil(8)]);
        record.set_link(record.link().with_value_bytes(value_bytes));
    }

    /// Asks the operation for the length of a row's next value; none if the table does not admit it.
    pub(super) fn asked_value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> Option<usize> {
        let value_bytes = self.work.value_bytes(i, old);
        if value_bytes > self.value_bytes {
            self.too_long = Some((i, value_bytes));
            return None;
        }
        Some(value_bytes)
    }

    /// Fails if a value was too long. Not pinned.
    pub(super) fn check_lengths(&mut self) -> Result<()> {
        let Some((i, value_bytes)) = self.too_long.take() else { return Ok(()) };
        let (key, name) = (self.keys[i], self.core.table_name(self.table));
        Err(Error::InvalidArgument(format!(
            "key {key} of table {name:?}: a value of {value_bytes} bytes is longer than the table's \
             maximum of {}; make it shorter, or make the table anew with a larger maximum",
            self.value_bytes
        )))
    }

    /// Brings what the table's rows weigh up to date. Pinned, as `note_rows`.
    pub(super) fn note_grown(&mut self) {
        let grown = self.tally.grown_bytes;
        if grown != self.grown_noted {
            self.core.add_record_bytes(self.table, grown.wrapping_sub(self.grown_noted));
            self.grown_noted = grown;
        }
    }
}
