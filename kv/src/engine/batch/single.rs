//! The short path for a batch of one key.
//!
//! A batch of one key has no second key whose cache misses could overlap. The processor can overlap
//! successive operations, but it looks only about 500 instructions ahead, and a batch's bookkeeping
//! is longer than that.
//!
//! So a single key takes this path under two conditions. Its table has fixed width. The first probe
//! finds the row in memory, at a place where the operation needs no new record. A peek may find the
//! row anywhere in memory, another operation only in mutable memory. The work on the row uses the
//! same code as a batch (`row`). In every other case this path gives up, and the caller runs a
//! batch from the beginning. No row was changed by then, though a peek may have written to its
//! destination. A get that keeps the clock reads as a peek does here.

use super::row::ValueRoom;
use super::{Effect, Entry, Work};
use crate::engine::batch::row::{InPlace, Peeked, in_place, peek};
use crate::engine::core::Core;
use crate::hints::RowHint;
use crate::operation::{Access, Clock, Operation, Width};
use crate::record::address::TableId;
use crate::record::clock::ClockWord;
use crate::stats::Counters;
use crate::sync::Ordering;

/// Largest value on this path, in words of 8 bytes. The value is copied to the stack.
const WORDS_MAX: usize = 16;

/// The region of memory where a row was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hit {
    /// The row is in the mutable region.
    Mutable,
    /// The row is in the read-only region.
    ReadOnly,
}

impl Core {
    /// Completes the operation on `key` of a table of fixed width, and counts the key. False if
    /// this path does not cover the case (for example because the row is on disk). The row is then
    /// unchanged.
    #[inline]
    pub(crate) fn run_single<O: Operation>(
        &self,
        table: TableId,
        key: u64,
        clock: Clock,
        operation: &mut O,
    ) -> bool {
        let Some(hit) = try_single(self, table, key, clock, operation) else { return false };
        count::<O>(&self.counters, hit);
        // Called after the row was released. A thread that is woken earlier would find the row
        // still blocked.
        if clock == Clock::Release {
            self.waiters.released(table.number, &[key]);
        }
        true
    }
}

/// Counts an operation on a single key that took the short path. The call adds to one counter
/// only, and the statistics derive the operation's other counts from that counter.
#[inline]
fn count<O: Operation>(counters: &Counters, hit: Hit) {
    let singles = &counters.singles;
    match (O::ACCESS, hit) {
        (Access::Peek, Hit::Mutable) => singles.peek_mutable.add(1),
        (Access::Peek, Hit::ReadOnly) => singles.peek_read_only.add(1),
        (Access::Get, _) => singles.get.add(1),
        (Access::Update, _) if O::CHANGES => singles.update.add(1),
        (Access::Update | Access::Touch, _) => singles.touch.add(1),
        (Access::Put, _) => singles.put.add(1),
    }
}

/// Returns where the row was. `None` if this path does not cover the case.
#[inline]
fn try_single<W: Work>(
    core: &Core,
    table: TableId,
    key: u64,
    clock: Clock,
    work: &mut W,
) -> Option<Hit> {
    let mut words = [0; WORDS_MAX];
    let _pin = core.gate.enter();
    // Looks the table up while pinned. Without the pin, another thread could drop the table
    // afterwards (see `Batch::pinned`).
    let value_bytes = core.tables.value_bytes_if(table, Width::Fixed)?;
    let room = ValueRoom { words: words.get_mut(..value_bytes.div_ceil(8))?, value_bytes };
    let view = core.log.view();
    let entry: Entry = core.index.outline().first_match(core.key_hash.of(table.number, key));
    if entry.is_nowhere() || !view.in_memory(entry.address()) {
        return None;
    }
    // SAFETY: the duty is to pass the address of a complete record in memory. The thread is pinned,
    // the address is above the head, and it came from the index.
    let record = unsafe { view.record(entry.address()) };
    if !record.is(table.number, key) {
        return None;
    }
    let mutable = view.mutable(entry.address());
    match W::EFFECT {
        Effect::Peek => {
            let Peeked::Row = peek::<W, false>(work, 0, record, room) else { return None };
        }
        // A Get with `Clock::Keep` changes only the mark of a promoted row, so a row without the
        // mark needs no lock.
        Effect::Get if clock == Clock::Keep => {
            let word = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
            if !mutable || word.is_promoted() || core.log.is_poisoned() {
                return None;
            }
            let Peeked::Row = peek::<W, false>(work, 0, record, room) else { return None };
            work.caller().settled(0, RowHint::new(core.store, record.address()));
        }
        Effect::Get | Effect::Update | Effect::Put | Effect::Touch => {
            let has_room = record.shape().padded_value_bytes() == room.words.len() * 8;
            if !mutable || !has_room || core.log.is_poisoned() {
                return None;
            }
            let hint = RowHint::new(core.store, record.address());
            let done = in_place::<W, false>(work, 0, record, hint, clock, room);
            // If the outcome is `Tombstone`, dropping it unlocks the record.
            match done {
                InPlace::Row { promoted } => {
                    if promoted {
                        core.counters.promoted_used.add(1);
                    }
                }
                InPlace::Moved
                | InPlace::Blocked
                | InPlace::LeftAlone
                | InPlace::Tombstone(_)
                | InPlace::NoRoom
                | InPlace::TooLong(_) => return None,
            }
        }
        Effect::Delete | Effect::Move | Effect::Locate => return None,
    }
    Some(if mutable { Hit::Mutable } else { Hit::ReadOnly })
}
