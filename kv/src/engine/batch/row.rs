//! How a batch works on a row that is in memory.

use super::succession::{Old, Predecessor, Succession, Tier};
use super::{Batch, Effect, Place, Step, Work, bytes_of};
use crate::hints::RowHint;
use crate::log::PageFull;
use crate::log::view::View;
use crate::operation::{Clock, Operation, RowMark};
use crate::record::clock::{self, ClockWord, LockRefused, Locked};
use crate::record::layout::RecordRef;
use crate::sync::Ordering;

/// Memory of this thread for one value of a table.
pub(super) struct ValueRoom<'a> {
    /// Room for one value of the table, in words of 8 bytes; for the longest value if the lengths
    /// vary.
    pub(super) words: &'a mut [u64],
    /// The length of the table's values in bytes; the largest length if the lengths vary.
    pub(super) value_bytes: usize,
}

/// The result of reading a row without its lock.
pub(super) enum Peeked {
    /// Another thread has replaced this record by a newer one. The caller searches again.
    Moved,
    /// The row is deleted.
    Missing,
    /// The operation has read the row.
    Row,
}

/// Reads a row in memory without taking its lock. Always inlined: a call costs as much as the rest
/// of the work on a short row.
#[inline(always)]
pub(super) fn peek<W: Work, const VARIABLE: bool>(
    work: &mut W,
    i: usize,
    record: RecordRef<'_>,
    room: ValueRoom<'_>,
) -> Peeked {
    let padded_bytes = record.shape().padded_value_bytes();
    // A tombstone of a table of fixed width may be too short for a value.
    let has_room = VARIABLE || padded_bytes == room.words.len() * 8;
    let words = if VARIABLE { &mut room.words[..padded_bytes / 8] } else { room.words };
    let mut link = record.link();
    let mut direct = false;
    let current = clock::read_unlocked(record.clock(), || {
        link = record.link();
        direct = false;
        if !has_room || link.is_tombstone() {
            return;
        }
        match if VARIABLE { None } else { work.caller().destination(i) } {
            Some(to) => {
                let bytes = to.len().min(room.value_bytes);
                record.load_value_bytes(&mut to[..bytes]);
                direct = true;
            }
            None => record.load_value(words),
        }
    });
    if !current {
        return Peeked::Moved;
    }
    if link.is_tombstone() {
        return Peeked::Missing;
    }
    if !direct {
        let bytes = if VARIABLE { padded_bytes - link.unused_bytes() } else { room.value_bytes };
        work.caller().read(i, bytes_of(words, bytes));
    }
    // Relaxed: any count that the row had during the read is right.
    let clock = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
    work.caller().seen(i, clock.outstanding());
    Peeked::Row
}

/// The result of work on a row in the mutable region.
pub(super) enum InPlace<'g> {
    /// Another thread has replaced this record by a newer one. The caller searches again.
    Moved,
    /// The row has more outstanding Gets than the staleness bound admits.
    Blocked,
    /// The condition of a conditional deletion is false, so the row stays.
    LeftAlone,
    /// The row is deleted. The caller holds its lock.
    Tombstone(Locked<'g>),
    /// The row's next value has another padded length, so it needs a new record.
    NoRoom,
    /// The row's next value has this length in bytes, which the table does not admit.
    TooLong(usize),
    /// The operation has worked on the row.
    Row {
        /// True if Lookahead had brought the row to memory, and this was its first use.
        promoted: bool,
    },
}

/// Works on a row in the mutable region under the row's lock. With `hint`, a later batch finds this
/// record without the index. A record of a table of fixed width must have room for a value. Always
/// inlined, because a call costs as much as the rest of the work on a short row.
#[inline(always)]
pub(super) fn in_place<'g, W: Work, const VARIABLE: bool>(
    work: &mut W,
    i: usize,
    record: RecordRef<'g>,
    hint: RowHint,
    clock: Clock,
    room: ValueRoom<'_>,
) -> InPlace<'g> {
    let locked = match clock::lock(record.clock(), |word| clock.admits(word.outstanding())) {
        Ok(locked) => locked,
        Err(LockRefused::Replaced) => return InPlace::Moved,
        Err(LockRefused::Declined) => return InPlace::Blocked,
    };
    if record.link().is_tombstone() {
        return InPlace::Tombstone(locked);
    }
    let before = locked.word();
    let done = InPlace::Row { promoted: before.is_promoted() };
    let after = before.with_outstanding(clock.after(before.outstanding())).with_promoted(false);
    let old_bytes = if VARIABLE { record.value_bytes() } else { room.value_bytes };
    match W::EFFECT {
        Effect::Get => {
            match if VARIABLE { None } else { work.caller().destination(i) } {
                Some(to) => {
                    let bytes = to.len().min(old_bytes);
                    record.load_value_bytes(&mut to[..bytes]);
                }
                // SAFETY: the duty is that no thread writes the value while it is borrowed, and
                // that it lies in the record. The lock is held, and the record has room for its
                // value.
                None => work.caller().read(i, unsafe { record.value(old_bytes) }),
            }
            locked.unlock_unchanged(after);
            work.caller().seen(i, before.outstanding());
            work.caller().settled(i, hint);
            return done;
        }
        Effect::Delete => {
            // SAFETY: the duty is that no thread writes the value while it is borrowed, and that it
            // lies in the record. The lock is held, and the record has room for its value.
            if !work.deletes(i, unsafe { record.value(old_bytes) }, before.outstanding()) {
                locked.unlock_unchanged(before);
                return InPlace::LeftAlone;
            }
            clock::fence_before_change();
            record.set_link(record.link().with_tombstone(true));
            locked.unlock_changed(after.with_outstanding(0));
            return done;
        }
        Effect::Touch => {
            // A release counts as a change of the value and ends a Get. So the row's use count, the
            // sum of changes and outstanding Gets, stays as it is.
            locked.unlock_changed(after);
            work.caller().settled(i, hint);
            return done;
        }
        Effect::Update | Effect::Put => {}
        Effect::Locate | Effect::Peek | Effect::Move => unreachable!("`Work::IN_PLACE` is false"),
    }
    if !VARIABLE {
        let value = bytes_of(room.words, room.value_bytes);
        if W::EFFECT == Effect::Update {
            // SAFETY: the duty is that no thread writes the value while it is borrowed, and that it
            // lies in the record. The lock is held, and the record has room for its value.
            value.copy_from_slice(unsafe { record.value(old_bytes) });
        }
        work.caller().update(i, value);
        clock::fence_before_change();
        record.store_value(room.words);
        locked.unlock_changed(after);
        work.caller().settled(i, hint);
        return done;
    }
    if let Err(refused) = write_variable(work, i, record, old_bytes, room) {
        locked.unlock_unchanged(before);
        return refused;
    }
    locked.unlock_changed(after);
    work.caller().settled(i, hint);
    done
}

/// Writes the next value of a row of variable width in place, if the record has room for it. The
/// caller holds the row's lock.
fn write_variable<'g, W: Work>(
    work: &mut W,
    i: usize,
    record: RecordRef<'g>,
    old_bytes: usize,
    room: ValueRoom<'_>,
) -> Result<(), InPlace<'g>> {
    // SAFETY: the duty is that no thread writes the value while it is borrowed, and that it lies in
    // the record. The lock is held, the record has room, and this thread stores only after the last
    // use of `known`.
    let known = (W::EFFECT == Effect::Update).then(|| unsafe { record.value(old_bytes) });
    let next_bytes = work.caller().value_bytes(i, known);
    if next_bytes > room.value_bytes {
        return Err(InPlace::TooLong(next_bytes));
    }
    let padded_bytes = record.shape().padded_value_bytes();
    if next_bytes.next_multiple_of(8) != padded_bytes {
        return Err(InPlace::NoRoom);
    }
    let words = &mut room.words[..padded_bytes / 8];
    // Clears the padding after the value. If the value grows, this also clears the new bytes.
    if let Some(last) = words.last_mut() {
        *last = 0;
    }
    let value = bytes_of(words, next_bytes);
    if let Some(old) = known {
        let kept = old.len().min(next_bytes);
        value[..kept].copy_from_slice(&old[..kept]);
    }
    work.caller().update(i, value);
    clock::fence_before_change();
    record.store_value(words);
    record.set_link(record.link().with_value_bytes(next_bytes));
    Ok(())
}

/// Returns the mark (address and use count) of a row in mutable memory.
pub(super) fn mark_of(record: RecordRef<'_>) -> RowMark {
    // Relaxed: a use that this load misses is concurrent with it, and either count is right.
    let word = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
    RowMark { address: record.address().raw(), uses: word.uses() }
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// True if the operation changes the row in place, or locks it in place to read it. A tombstone
    /// without room for a value gets a new record instead.
    #[inline]
    pub(super) fn may_change_in_place(&self, record: RecordRef<'_>, view: View<'_>) -> bool {
        W::IN_PLACE && view.mutable(record.address()) && self.has_room(record)
    }

    #[inline(never)]
    pub(super) fn on_record(
        &mut self,
        i: usize,
        place: Place<'_>,
        view: View<'_>,
    ) -> Result<Step, PageFull> {
        let record = place.record;
        match W::EFFECT {
            Effect::Locate => {
                if !view.mutable(record.address()) {
                    self.work.elsewhere(i);
                } else if !record.link().is_tombstone() {
                    self.work.in_mutable_memory(i, mark_of(record));
                }
                return Ok(Step::Done);
            }
            Effect::Move if W::PROMOTES && view.mutable(record.address()) => {
                if record.link().is_tombstone() {
                    self.note_missing(i);
                } else {
                    self.tally.resident += 1;
                    self.work.in_mutable_memory(i, mark_of(record));
                }
                return Ok(Step::Done);
            }
            Effect::Move => {
                // Relaxed: a use that this load misses is concurrent with it, and either count is
                // right.
                let word = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
                if !self.work.wants(i, record.address(), word) {
                    return Ok(Step::Done);
                }
            }
            Effect::Peek => return Ok(self.peek(i, record, view)),
            Effect::Get | Effect::Update | Effect::Put | Effect::Touch | Effect::Delete => {
                if self.may_change_in_place(record, view)
                    && let Some(step) = self.in_place(i, record)
                {
                    return Ok(step);
                }
            }
        }
        self.copy_to_tail(i, place, view)
    }

    fn has_room(&self, record: RecordRef<'_>) -> bool {
        VARIABLE || record.shape().padded_value_bytes() == self.scratch.value.len() * 8
    }

    #[inline(always)]
    pub(super) fn peek(&mut self, i: usize, record: RecordRef<'_>, view: View<'_>) -> Step {
        let room = ValueRoom { words: &mut self.scratch.value, value_bytes: self.value_bytes };
        match peek::<W, VARIABLE>(self.work, i, record, room) {
            Peeked::Moved => return Step::Moved,
            Peeked::Missing => self.note_missing(i),
            Peeked::Row if view.mutable(record.address()) => self.tally.hits_mutable += 1,
            Peeked::Row => self.tally.hits_read_only += 1,
        }
        Step::Done
    }

    /// Works on a row in the mutable region. `None` if the record has no room for the next value.
    #[inline(always)]
    pub(super) fn in_place(&mut self, i: usize, record: RecordRef<'_>) -> Option<Step> {
        let room = ValueRoom { words: &mut self.scratch.value, value_bytes: self.value_bytes };
        let hint = RowHint::new(self.core.store, record.address());
        match in_place::<W, VARIABLE>(self.work, i, record, hint, self.clock, room) {
            InPlace::Moved => return Some(Step::Moved),
            InPlace::Blocked => self.outcome.blocked.push(i as u32),
            InPlace::LeftAlone => self.tally.hits_mutable += 1,
            InPlace::Tombstone(locked) => return self.revive(i, record, locked),
            InPlace::NoRoom => return None,
            InPlace::TooLong(value_bytes) => self.too_long = Some((i, value_bytes)),
            InPlace::Row { promoted } => {
                self.tally.hits_mutable += 1;
                self.tally.promoted_used += u64::from(promoted);
                if W::EFFECT == Effect::Delete {
                    let uncounted = record.link().is_uncounted();
                    self.note_deleted(record.shape().record_bytes(), uncounted);
                }
            }
        }
        Some(Step::Done)
    }

    /// Gives a deleted row in the mutable region a new value. `None` if the record has no room for
    /// that value.
    #[cold]
    fn revive(&mut self, i: usize, record: RecordRef<'_>, locked: Locked<'_>) -> Option<Step> {
        let before = locked.word();
        let Some(value_bytes) = self.make_missing_value(i) else {
            locked.unlock_unchanged(before);
            self.note_missing(i);
            return Some(Step::Done);
        };
        if VARIABLE && value_bytes.next_multiple_of(8) != record.shape().padded_value_bytes() {
            locked.unlock_unchanged(before);
            return None;
        }
        clock::fence_before_change();
        record.store_value(&self.scratch.value[..value_bytes.div_ceil(8)]);
        let link = record.link().with_tombstone(false);
        record.set_link(if VARIABLE { link.with_value_bytes(value_bytes) } else { link });
        locked.unlock_changed(before.with_outstanding(self.clock.after(0)));
        self.work.caller().settled(i, RowHint::new(self.core.store, record.address()));
        self.note_inserted(record);
        Some(Step::Done)
    }

    /// Appends a new record for a row that is in the read-only region, or whose record has no room
    /// for the next value.
    #[inline(never)]
    pub(super) fn copy_to_tail(
        &mut self,
        i: usize,
        place: Place<'_>,
        view: View<'_>,
    ) -> Result<Step, PageFull> {
        let record = place.record;
        let clock = self.clock;
        let locked = match clock::lock(record.clock(), |word| clock.admits(word.outstanding())) {
            Ok(locked) => locked,
            Err(LockRefused::Replaced) => return Ok(Step::Moved),
            Err(LockRefused::Declined) => {
                self.outcome.blocked.push(i as u32);
                return Ok(Step::Done);
            }
        };
        let before = locked.word();
        let link = record.link();
        let old = Predecessor {
            place: Old::InMemory { mutable: view.mutable(record.address()) },
            hash: self.core.key_hash.of(self.table.number, self.keys[i]),
            tier: Tier::Hot {
                entry: place.entry,
                address: record.address(),
                previous: link.previous(),
            },
            // SAFETY: the duty is that no thread writes the value while it is borrowed. This thread
            // holds the record's lock.
            value: (!link.is_tombstone()).then(|| unsafe { record.value(record.value_bytes()) }),
            word: if link.is_tombstone() { ClockWord::at_rest(0) } else { before },
            uncounted: link.is_uncounted(),
            record_bytes: record.shape().record_bytes(),
        };
        match self.succeed(i, &old) {
            Ok(Succession::Replaced(new)) => {
                locked.unlock_replaced();
                self.note_succession(i, &old, new);
                Ok(Step::Done)
            }
            Ok(Succession::LeftAlone) => {
                locked.unlock_unchanged(before);
                Ok(Step::Done)
            }
            Ok(Succession::Moved) => {
                locked.unlock_unchanged(before);
                Ok(Step::Moved)
            }
            Err(full) => {
                locked.unlock_unchanged(before);
                Err(full)
            }
        }
    }
}
