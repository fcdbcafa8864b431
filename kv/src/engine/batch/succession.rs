//! One record in the place of another: a row that its operation cannot change where it lies.
//!
//! **Problem.** A row of the read-only region, on disk or in the row cache is changed by a new record at the tail. So
//! is a row whose next value has another length, and a row that is moved. Which value the new record has depends on
//! the work; in which order it becomes visible does not.
//!
//! **Approach.** The caller sees to it that nobody else changes the old record: it holds the record's lock, or the
//! record lies outside mutable memory, where none is changed. `succeed` fills the new record, and exchanges the entry of
//! the index that led to the old one. The exchange fails if the entry has changed since; then the new record is
//! abandoned and the caller searches again.

use super::{Batch, Effect, Work, row};
use crate::index::Entry;
use crate::log::PageFull;
use crate::record::address::Address;
use crate::record::clock::ClockWord;
use crate::record::layout::RecordRef;

/// Where a row's newest record was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Old {
    /// In memory; the caller holds its lock.
    InMemory {
        mutable: bool,
    },
    OnDisk,
    /// In the row cache, which keeps no uses.
    Cached,
}

/// A row's newest record, which nobody else changes meanwhile.
pub(super) struct Predecessor<'r> {
    pub(super) place: Old,
    /// The hash of the row's key.
    pub(super) hash: u64,
    /// The entry whose chain has the record.
    pub(super) entry: Entry,
    pub(super) address: Address,
    /// What follows the record in its chain.
    pub(super) previous: Address,
    /// `None` if the record is a tombstone.
    pub(super) value: Option<&'r [u8]>,
    /// Its clock, without the Gets of an earlier session; at rest for a tombstone.
    pub(super) word: ClockWord,
    pub(super) record_bytes: usize,
}

/// What became of a row that was to get a new record.
pub(super) enum Succession<'a> {
    /// The index leads to this record.
    Replaced(RecordRef<'a>),
    /// The row stays as it is.
    LeftAlone,
    /// The row moved, or its chain changed: search again.
    Moved,
}

impl<'a, W: Work, const VARIABLE: bool> Batch<'a, W, VARIABLE> {
    /// Puts a new record in the place of a row's newest one.
    pub(super) fn succeed(
        &mut self,
        i: usize,
        old: &Predecessor<'_>,
    ) -> Result<Succession<'a>, PageFull> {
        let outstanding = old.word.outstanding();
        if W::EFFECT == Effect::Delete
            && let Some(value) = old.value
            && !self.work.deletes(i, value, outstanding)
        {
            self.note_hit(old.place);
            return Ok(Succession::LeftAlone);
        }
        let Some(new) = self.begin_successor(i, old.value)? else {
            self.note_missing(i);
            self.outcome.disk_reads += u64::from(old.place == Old::OnDisk);
            return Ok(Succession::LeftAlone);
        };
        let uses = match old.place {
            _ if old.value.is_none() => 0,
            Old::InMemory { .. } | Old::OnDisk => {
                self.core.inherited_uses(old.word, old.address, new.address())
            }
            Old::Cached => self.core.mean_uses(),
        };
        let word = old.word.inherited(self.clock.after(outstanding), uses);
        // A deletion cancels the leases on its row: whatever comes after starts from 0.
        let word = match W::EFFECT {
            Effect::Delete => ClockWord::at_rest(0),
            Effect::Update | Effect::Put | Effect::Touch => word.next_generation(),
            Effect::Move => word.with_promoted(W::is_promoted(old.word.is_promoted())),
            Effect::Get | Effect::Peek | Effect::Locate => word,
        };
        if self.publish(old, new, word) {
            Ok(Succession::Replaced(new))
        } else {
            new.abandon();
            Ok(Succession::Moved)
        }
    }

    /// Begins the record that is to replace a row's newest one, and lets the work fill its value. `None` if the row is to
    /// stay missing, or the table does not admit the value. `old`: the row's value; `None` if it is deleted.
    fn begin_successor(
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
        let value_bytes = match W::EFFECT {
            Effect::Delete => Some(0),
            Effect::Update => self.next_value_bytes(i, Some(old)),
            Effect::Put => self.next_value_bytes(i, None),
            Effect::Get | Effect::Touch | Effect::Move | Effect::Peek | Effect::Locate => {
                Some(old.len())
            }
        };
        let Some(value_bytes) = value_bytes else { return Ok(None) };
        let new = self.begin_record(key, value_bytes)?;
        // SAFETY: this thread's own unpublished record, with room for the value and its padding.
        let value = unsafe { new.value_mut(value_bytes.next_multiple_of(8)) };
        let kept = if W::EFFECT == Effect::Put { value_bytes } else { old.len().min(value_bytes) };
        if W::EFFECT != Effect::Put {
            value[..kept].copy_from_slice(&old[..kept]);
        }
        value[kept..].fill(0);
        let value = &mut value[..value_bytes];
        match W::EFFECT {
            Effect::Get => self.work.read(i, value),
            Effect::Update | Effect::Put => self.work.update(i, value),
            Effect::Touch | Effect::Delete | Effect::Move | Effect::Peek | Effect::Locate => {}
        }
        Ok(Some(new))
    }

    /// Gives a filled record its clock, and lets the index lead to it in place of the old one. If that was its chain's
    /// head, it is out of the chain then. False if the chain has changed.
    ///
    /// Once the log's beginning has passed a tombstone in the middle of a chain, searches don't meet it any more, and an
    /// insert gives the key another slot without touching this chain's: the exchange of this one's entry would succeed,
    /// and the key be there twice. So an old record that is a tombstone must not lie below the beginning while the
    /// bucket, which both slots share, is locked: an insert that took the lock before saw the new beginning, so this
    /// sees it too; one that takes it afterwards finds this entry changed.
    fn publish(&self, old: &Predecessor<'_>, new: RecordRef<'_>, word: ClockWord) -> bool {
        let begin = || self.core.log.begin();
        let is_head = old.address == old.entry.address();
        let previous = if is_head { old.previous } else { old.entry.address() };
        // Nothing is left below the log's beginning: the chain ends here. (Had a row been moved from there,
        // its copy would be this chain's head now, and the exchange below fails.)
        let previous = if previous.raw() < begin() { Address::NONE } else { previous };
        new.set_link(new.link().with_previous(previous));
        new.finish(word, W::EFFECT == Effect::Delete);
        let is_tombstone = old.value.is_none();
        let alone = previous.is_none();
        self.core.index.replace_if(old.hash, old.entry, new.address(), alone, || {
            !is_tombstone || old.address.raw() >= begin()
        })
    }

    /// Counts a row whose record was replaced, and tells the work.
    pub(super) fn note_succession(&mut self, i: usize, old: &Predecessor<'_>, new: RecordRef<'_>) {
        let new_bytes = new.shape().record_bytes();
        if W::EFFECT == Effect::Move {
            self.tally.moved += 1;
            self.tally.moved_bytes += new_bytes as u64;
            if W::PROMOTES {
                self.tally.copied += 1;
                // A row that was promoted before and not used since goes on waiting for its first use.
                self.tally.promoted += u64::from(!old.word.is_promoted());
                self.work.moved(i, row::mark_of(new));
            }
            return;
        }
        self.tally.copied += 1;
        self.work.settled(i);
        self.tally.promoted_used += u64::from(old.word.is_promoted());
        if old.value.is_none() {
            self.note_inserted(new_bytes);
            return;
        }
        match W::EFFECT {
            Effect::Delete => {
                self.tally.deleted += 1;
                self.note_replaced(old.record_bytes, 0);
            }
            Effect::Get => {
                self.work.clock(i, old.word.outstanding());
                self.note_replaced(old.record_bytes, new_bytes);
            }
            _ => self.note_replaced(old.record_bytes, new_bytes),
        }
        self.note_hit(old.place);
    }

    pub(super) fn note_hit(&mut self, place: Old) {
        match place {
            Old::InMemory { mutable: true } => self.tally.hits_mutable += 1,
            Old::InMemory { mutable: false } => self.tally.hits_read_only += 1,
            Old::OnDisk => {
                self.tally.hits_disk += 1;
                self.outcome.disk_reads += 1;
            }
            Old::Cached => self.tally.hits_cache += 1,
        }
    }
}
