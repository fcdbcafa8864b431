//! What happens to a row that is in memory.

use super::{Batch, Mode, Place, Step, Work, bytes_of, variable};
use crate::index::Entry;
use crate::log::{PageFull, View};
use crate::operation::{Clock, RowMark, Width};
use crate::record::clock::{self, ClockWord, LockRefused, Locked};
use crate::record::layout::RecordRef;
use crate::sync::Ordering;

/// What a look without the lock found.
pub(super) enum Peeked {
    /// A newer record of the key exists.
    Moved,
    /// The row is deleted.
    Missing,
    /// The row, and the operation has it.
    Row,
}

/// Reads a row in memory without its lock. `room`: words for a value of the table, and its length in bytes.
#[inline]
pub(super) fn peek<W: Work>(
    work: &mut W,
    i: usize,
    record: RecordRef<'_>,
    (value, value_bytes): (&mut [u64], usize),
) -> Peeked {
    let has_room = record.shape().padded_value_bytes() == value.len() * 8;
    let (mut tombstone, mut direct) = (false, false);
    let current = clock::read_unlocked(record.clock(), || {
        tombstone = record.link().is_tombstone();
        direct = false;
        if !has_room || tombstone {
            return;
        }
        match if W::MODE == Mode::Peek { work.destination(i) } else { None } {
            Some(to) => {
                let bytes = to.len().min(value_bytes);
                record.load_value_bytes(&mut to[..bytes]);
                direct = true;
            }
            None => record.load_value(value),
        }
    });
    if !current {
        return Peeked::Moved;
    }
    if tombstone {
        return Peeked::Missing;
    }
    if !direct {
        work.read(i, bytes_of(value, value_bytes));
    }
    let clock = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
    work.clock(i, clock.outstanding());
    Peeked::Row
}

/// What became of a row of the mutable region.
pub(super) enum InPlace<'g> {
    /// A newer record of the key exists.
    Moved,
    /// The staleness bound keeps it.
    Blocked,
    /// A conditional deletion left it alone.
    Kept,
    /// It is deleted; the lock is the caller's.
    Tombstone(Locked<'g>),
    /// It is done.
    Row {
        /// Lookahead had brought it, and this was its first use.
        promoted: bool,
    },
}

/// Works on a row of the mutable region that has room for a value. `room` as for [`peek`].
#[inline]
pub(super) fn in_place<'g, W: Work>(
    work: &mut W,
    i: usize,
    record: RecordRef<'g>,
    clock: Clock,
    (scratch, value_bytes): (&mut [u64], usize),
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
    match W::MODE {
        Mode::Get => {
            // SAFETY: the lock is held; the record has room for a value of this table.
            work.read(i, unsafe { record.value(value_bytes) });
            locked.unlock_unchanged(after);
            work.clock(i, before.outstanding());
            work.settled(i);
            return done;
        }
        Mode::Delete => {
            // SAFETY: as above.
            if !work.deletes(i, unsafe { record.value(value_bytes) }, before.outstanding()) {
                locked.unlock_unchanged(before);
                return InPlace::Kept;
            }
            clock::fence_before_change();
            record.set_link(record.link().with_tombstone(true));
            locked.unlock_changed(after.with_outstanding(0));
            return done;
        }
        _ => {
            let value = bytes_of(scratch, value_bytes);
            if W::MODE == Mode::Update {
                // SAFETY: as above.
                value.copy_from_slice(unsafe { record.value(value_bytes) });
            }
            work.update(i, value);
            clock::fence_before_change();
            record.store_value(scratch);
        }
    }
    locked.unlock_changed(after);
    work.settled(i);
    done
}

/// The mark of a row in mutable memory.
pub(super) fn mark_of(record: RecordRef<'_>) -> RowMark {
    // Relaxed: a use that it misses is one at the same time.
    let word = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
    RowMark { address: record.address().raw(), uses: word.uses() }
}

impl<'a, W: Work> Batch<'a, W> {
    /// Whether the row is one that this operation changes, or locks to read, where it lies. A tombstone
    /// without a value has no room for one: its successor is appended.
    #[inline]
    pub(super) fn may_change_in_place(&self, record: RecordRef<'_>, view: View<'_>) -> bool {
        matches!(W::MODE, Mode::Get | Mode::Update | Mode::Put | Mode::Delete)
            && view.mutable(record.address())
            && self.has_room(record)
    }

    #[inline(never)]
    pub(super) fn on_record(
        &mut self,
        i: usize,
        place: Place<'_>,
        view: View<'_>,
    ) -> Result<Step, PageFull> {
        match W::MODE {
            Mode::Locate => {
                if !view.mutable(place.record.address()) {
                    self.outcome.missing.push(i as u32);
                } else if !place.record.link().is_tombstone() {
                    self.work.in_mutable_memory(i, mark_of(place.record));
                }
                Ok(Step::Done)
            }
            Mode::Compact | Mode::Retain if !self.wants(i, place.record) => Ok(Step::Done),
            Mode::Promote if view.mutable(place.record.address()) => {
                if place.record.link().is_tombstone() {
                    self.note_missing(i);
                } else {
                    self.tally.resident += 1;
                    self.work.in_mutable_memory(i, mark_of(place.record));
                }
                Ok(Step::Done)
            }
            Mode::Promote if !self.wants(i, place.record) => Ok(Step::Done),
            Mode::Peek => Ok(self.peek(i, place.record, view)),
            _ if self.may_change_in_place(place.record, view) => match W::WIDTH {
                Width::Fixed => Ok(self.in_place(i, place.record)),
                Width::Variable => match self.in_place_variable(i, place.record) {
                    Some(step) => Ok(step),
                    None => self.copy_to_tail(i, place, view),
                },
            },
            _ => self.copy_to_tail(i, place, view),
        }
    }

    /// Whether `Compact`, `Promote` or `Retain` is to move a row.
    fn wants(&self, i: usize, record: RecordRef<'_>) -> bool {
        // Relaxed: a use that it misses is one at the same time.
        let word = ClockWord::from_bits(record.clock().load(Ordering::Relaxed));
        self.work.wants(i, record.address(), word)
    }

    fn has_room(&self, record: RecordRef<'_>) -> bool {
        W::WIDTH == Width::Variable
            || record.shape().padded_value_bytes() == self.scratch.value.len() * 8
    }

    fn count_hit(&mut self, record: RecordRef<'_>, view: View<'_>) {
        if view.mutable(record.address()) {
            self.tally.hits_mutable += 1;
        } else {
            self.tally.hits_read_only += 1;
        }
    }

    #[inline]
    pub(super) fn peek(&mut self, i: usize, record: RecordRef<'_>, view: View<'_>) -> Step {
        let room = (&mut self.scratch.value[..], self.value_bytes);
        let peeked = match W::WIDTH {
            Width::Fixed => peek(self.work, i, record, room),
            Width::Variable => variable::peek(self.work, i, record, room.0),
        };
        match peeked {
            Peeked::Moved => return Step::Moved,
            Peeked::Missing => self.note_missing(i),
            Peeked::Row => self.count_hit(record, view),
        }
        Step::Done
    }

    /// A row in the mutable region.
    #[inline]
    pub(super) fn in_place(&mut self, i: usize, record: RecordRef<'_>) -> Step {
        let room = (&mut self.scratch.value[..], self.value_bytes);
        match in_place(self.work, i, record, self.clock, room) {
            InPlace::Moved => return Step::Moved,
            InPlace::Blocked => self.outcome.blocked.push(i as u32),
            InPlace::Kept => self.tally.hits_mutable += 1,
            InPlace::Tombstone(locked) => self.revive_in_place(i, record, locked),
            InPlace::Row { promoted } => {
                self.tally.hits_mutable += 1;
                if promoted {
                    self.note_promoted_used(record.address());
                }
                self.tally.deleted += u64::from(W::MODE == Mode::Delete);
            }
        }
        Step::Done
    }

    /// A deleted row in the mutable region: may be filled again.
    #[cold]
    fn revive_in_place(&mut self, i: usize, record: RecordRef<'_>, locked: Locked<'_>) {
        let before = locked.word();
        if self.make_missing_value(i).is_some() {
            clock::fence_before_change();
            record.store_value(&self.scratch.value);
            record.set_link(record.link().with_tombstone(false));
            locked.unlock_changed(before.with_outstanding(self.clock.after(0)));
            self.work.settled(i);
            self.note_inserted(record.shape().record_bytes());
        } else {
            locked.unlock_unchanged(before);
            self.note_missing(i);
        }
    }

    /// A row in the read-only region, or one without room for its next value: its successor goes to the tail.
    #[inline(never)]
    fn copy_to_tail(
        &mut self,
        i: usize,
        place: Place<'_>,
        view: View<'_>,
    ) -> Result<Step, PageFull> {
        let hash = self.core.key_hash.of(self.table.number, self.keys[i]);
        let old = place.record;
        let clock = self.clock;
        let locked = match clock::lock(old.clock(), |word| clock.admits(word.outstanding())) {
            Ok(locked) => locked,
            Err(LockRefused::Replaced) => return Ok(Step::Moved),
            Err(LockRefused::Declined) => {
                self.outcome.blocked.push(i as u32);
                return Ok(Step::Done);
            }
        };
        let before = locked.word();
        let tombstone = old.link().is_tombstone();
        // SAFETY: the old record's lock is held.
        let old_value = (!tombstone).then(|| unsafe { old.value(old.value_bytes()) });
        if W::MODE == Mode::Delete
            && let Some(value) = old_value
            && !self.work.deletes(i, value, before.outstanding())
        {
            locked.unlock_unchanged(before);
            self.count_hit(old, view);
            return Ok(Step::Done);
        }
        let new = match self.make_successor(i, old_value) {
            Ok(Some(new)) => new,
            Ok(None) => {
                locked.unlock_unchanged(before);
                self.note_missing(i);
                return Ok(Step::Done);
            }
            Err(full) => {
                locked.unlock_unchanged(before);
                return Err(full);
            }
        };
        let word = if tombstone {
            ClockWord::at_rest(clock.after(0))
        } else {
            let uses = self.core.inherited_uses(before, old.address(), new.address());
            before
                .inherited(clock.after(before.outstanding()), uses)
                .with_promoted(W::MODE == Mode::Retain && before.is_promoted())
        };
        let published = self.publish(
            hash,
            place.entry,
            place.is_head().then(|| old.link().previous()),
            new,
            word,
            tombstone.then(|| old.address()),
        );
        if !published {
            locked.unlock_unchanged(before);
            self.abandon(new);
            return Ok(Step::Moved);
        }
        locked.unlock_replaced();
        let (old_bytes, new_bytes) = (old.shape().record_bytes(), new.shape().record_bytes());
        if W::MODE == Mode::Compact {
            self.tally.moved += 1;
            self.tally.moved_bytes += new_bytes as u64;
            return Ok(Step::Done);
        }
        if W::MODE == Mode::Retain {
            self.tally.moved += 1;
            return Ok(Step::Done);
        }
        self.tally.copied += 1;
        if W::MODE == Mode::Promote {
            // A row that was promoted before and not used since goes on waiting for its first use.
            self.tally.promoted += u64::from(!before.is_promoted());
            self.tally.moved += 1;
            self.work.moved(i, mark_of(new));
            return Ok(Step::Done);
        }
        self.work.settled(i);
        if before.is_promoted() {
            self.note_promoted_used(old.address());
        }
        match W::MODE {
            _ if tombstone => self.note_inserted(new_bytes),
            Mode::Delete => {
                self.tally.deleted += 1;
                self.note_replaced(old_bytes, 0);
                self.count_hit(old, view);
            }
            _ => {
                if W::MODE == Mode::Get {
                    self.work.clock(i, before.outstanding());
                }
                self.note_replaced(old_bytes, new_bytes);
                self.count_hit(old, view);
            }
        }
        Ok(Step::Done)
    }

    /// The record that is to replace a row's last one, complete but for its clock and its place in the chain;
    /// none if the row is to stay missing. `old`: the row's value; none if it is deleted.
    pub(super) fn make_successor(
        &mut self,
        i: usize,
        old: Option<&[u8]>,
    ) -> Result<Option<RecordRef<'a>>, PageFull> {
        let key = self.keys[i];
        let Some(old) = old else {
            let Some(value_bytes) = self.make_missing_value(i) else { return Ok(None) };
            let new = self.begin_record(key, value_bytes)?;
            new.store_value(&self.scratch.value[..value_bytes.div_ceil(8)]);
            return Ok(Some(new));
        };
        let value_bytes = match W::MODE {
            Mode::Delete => Some(0),
            Mode::Update => self.next_value_bytes(i, Some(old)),
            Mode::Put => self.next_value_bytes(i, None),
            Mode::Get
            | Mode::Peek
            | Mode::Promote
            | Mode::Compact
            | Mode::Locate
            | Mode::Retain => Some(old.len()),
        };
        let Some(value_bytes) = value_bytes else { return Ok(None) };
        let new = self.begin_record(key, value_bytes)?;
        let kept = old.len().min(value_bytes);
        // SAFETY: this thread's own unpublished record, with room for the value and its padding.
        let value = unsafe { new.value_mut(value_bytes.next_multiple_of(8)) };
        if W::MODE == Mode::Put {
            value[value_bytes..].fill(0);
        } else {
            value[..kept].copy_from_slice(&old[..kept]);
            value[kept..].fill(0);
        }
        let value = &mut value[..value_bytes];
        match W::MODE {
            Mode::Get => self.work.read(i, value),
            Mode::Update | Mode::Put => self.work.update(i, value),
            Mode::Peek
            | Mode::Delete
            | Mode::Promote
            | Mode::Compact
            | Mode::Locate
            | Mode::Retain => {}
        }
        Ok(Some(new))
    }

    /// Puts a complete record in the place of the key's last one. `after_head` is what followed that
    /// one, if it was its chain's head: the new record then takes its place, and the superseded one
    /// is out of the chain. `word` is its clock, but for what the operation itself changes. False if the chain has
    /// changed.
    ///
    /// `tombstone` is where the key's last record lies if it is a tombstone. Once the log's beginning has
    /// passed one in the middle of a chain, searches don't meet it any more, and an insert gives the key
    /// another slot without touching this chain's: the exchange of this one's entry would succeed, and the key
    /// be there twice. So it must not lie below the beginning while the bucket, which both slots share, is
    /// locked: an insert that took the lock before saw the new beginning, so this sees it too; one that
    /// takes it afterwards finds this entry changed.
    pub(super) fn publish(
        &self,
        hash: u64,
        entry: Entry,
        after_head: Option<crate::record::address::Address>,
        new: RecordRef<'_>,
        word: ClockWord,
        tombstone: Option<crate::record::address::Address>,
    ) -> bool {
        let previous = after_head.unwrap_or(entry.address());
        // Nothing is left below the log's beginning: the chain ends here. (Had a row been moved from there,
        // its copy would be this chain's head now, and the exchange below fails.)
        let gone = previous.raw() < self.core.log.begin();
        let previous = if gone { crate::record::address::Address::NONE } else { previous };
        new.set_link(new.link().with_previous(previous));
        // A deletion cancels the leases on its row: whatever comes after starts from 0.
        let word = match W::MODE {
            Mode::Delete => ClockWord::at_rest(0),
            Mode::Update | Mode::Put => word.next_generation(),
            Mode::Promote => word.with_promoted(true),
            Mode::Get | Mode::Peek | Mode::Compact | Mode::Locate | Mode::Retain => word,
        };
        new.finish(word, W::MODE == Mode::Delete);
        let alone = previous.is_none();
        self.core.index.replace_if(hash, entry, new.address(), alone, || {
            tombstone.is_none_or(|address| address.raw() >= self.core.log.begin())
        })
    }
}
