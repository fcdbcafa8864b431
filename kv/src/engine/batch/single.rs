//! The short path of a batch of one key.
//!
//! A program that works key by key gives the store nothing to overlap within a batch. The processor
//! overlaps the operations that it sees ahead, about 500 instructions, and a batch's own
//! bookkeeping takes more. So a single key takes this path if its table has fixed width and if the
//! first look finds its row in memory, at a place where the row may stay. The work on the row is
//! the code of a batch (`row`). Every other case is left to the batch, which starts from the
//! beginning: no row was changed or read, though a peek may have written to its destination.

use super::row::ValueRoom;
use super::{Effect, Entry, Work};
use crate::engine::batch::row::{InPlace, Peeked, in_place, peek};
use crate::engine::core::Core;
use crate::hints::RowHint;
use crate::operation::{Clock, Width};
use crate::record::address::TableId;
use crate::record::clock::ClockWord;
use crate::sync::Ordering;

/// Longest value on this path, in words of 8 bytes: the value is copied to the stack.
const WORDS_MAX: usize = 16;

/// Where a row was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hit {
    /// In the mutable region.
    Mutable,
    /// In the read-only region.
    ReadOnly,
}

/// Does the whole work for `key` of a table of fixed width, or nothing. Returns `None` if it did
/// nothing.
#[inline]
pub(crate) fn try_single<W: Work>(
    core: &Core,
    table: TableId,
    key: u64,
    clock: Clock,
    work: &mut W,
) -> Option<Hit> {
    let mut words = [0; WORDS_MAX];
    let _pin = core.gate.enter();
    // Looked up while pinned: see `Batch::pinned`.
    let value_bytes = core.value_bytes_if(table, Width::Fixed)?;
    let room = ValueRoom { words: words.get_mut(..value_bytes.div_ceil(8))?, value_bytes };
    let view = core.log.view();
    let entry: Entry = core.index.outline().first_match(core.key_hash.of(table.number, key));
    if entry.is_nowhere() || !view.in_memory(entry.address()) {
        return None;
    }
    // SAFETY: pinned, above the head; the address came from the index.
    let record = unsafe { view.record(entry.address()) };
    if !record.is(table.number, key) {
        return None;
    }
    let mutable = view.mutable(entry.address());
    match W::EFFECT {
        Effect::Peek => {
            let Peeked::Row = peek::<W, false>(work, 0, record, room) else { return None };
        }
        // Such a Get changes only the mark of a first use, so a row without the mark needs no lock.
        Effect::Get if clock == Clock::Keep => {
            let word = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
            if !mutable || word.is_promoted() || core.log.is_poisoned() {
                return None;
            }
            let Peeked::Row = peek::<W, false>(work, 0, record, room) else { return None };
            work.settled(0, RowHint::new(core.store, record.address()));
        }
        Effect::Get | Effect::Update | Effect::Put | Effect::Touch => {
            let has_room = record.shape().padded_value_bytes() == room.words.len() * 8;
            if !mutable || !has_room || core.log.is_poisoned() {
                return None;
            }
            let hint = RowHint::new(core.store, record.address());
            let done = in_place::<W, false>(work, 0, record, hint, clock, room);
            // Dropping the outcome unlocks a tombstone.
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
