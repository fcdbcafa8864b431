//! A new record in the place of an old one, for a row that an operation cannot change where it
//! lies.
//!
//! **Problem.** A row in the read-only region, on disk or in the row cache is changed by a new
//! record at the tail. So is a row whose next value has another length, and a row that is moved.
//! The work decides which value the new record has. The order in which the record becomes visible
//! is one for all.
//!
//! **Approach.** The caller makes sure that no other thread changes the old record: it holds the
//! record's lock, or the record lies outside mutable memory, where no record changes. `succeed`
//! fills the new record, and then exchanges the entry of the index that led to the old one. The
//! exchange fails if the entry has changed. Then the new record is abandoned, and the caller
//! searches again.

use super::{Batch, Effect, Work, row};
use crate::hints::RowHint;
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
    /// In the row cache, which counts no uses.
    Cached,
}

/// A row's newest record. No other thread changes it during the succession.
pub(super) struct Predecessor<'r> {
    pub(super) place: Old,
    /// The hash of the row's key.
    pub(super) hash: u64,
    /// The entry whose chain has the record.
    pub(super) entry: Entry,
    pub(super) address: Address,
    /// The next record of the chain.
    pub(super) previous: Address,
    /// `None` if the record is a tombstone.
    pub(super) value: Option<&'r [u8]>,
    /// The record's clock, without the Gets of an earlier session. At rest for a tombstone.
    pub(super) word: ClockWord,
    pub(super) record_bytes: usize,
}

/// The result of a succession.
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
        // A deletion cancels the leases on its row, so a row that is made later starts from 0.
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

    /// Begins the record that replaces a row's newest one, and lets the work fill its value. `None`
    /// if the row is to stay missing, or if the table does not admit the value. `old` is the row's
    /// value; `None` if the row is deleted.
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

    /// Gives a filled record its clock, and exchanges the entry of the index so that it leads to
    /// the new record. If the old record was the head of its chain, it is no longer in the chain.
    /// False if the chain has changed.
    ///
    /// Once the log's beginning has passed a tombstone in the middle of a chain, searches no longer
    /// meet the tombstone. An insert then gives the key another slot and leaves this chain alone.
    /// The exchange of this chain's entry would succeed, and the key would be there twice. So an
    /// old record that is a tombstone must not lie below the beginning while the bucket is locked,
    /// which both slots share. An insert that took the lock earlier saw the new beginning, so this
    /// exchange sees it too. An insert that takes the lock later finds this entry changed.
    fn publish(&self, old: &Predecessor<'_>, new: RecordRef<'_>, word: ClockWord) -> bool {
        let begin = || self.core.log.begin();
        let is_head = old.address == old.entry.address();
        let previous = if is_head { old.previous } else { old.entry.address() };
        // No record is left below the log's beginning, so the chain ends here. If compaction had
        // moved a row from there, its copy would be this chain's head now, and the exchange below
        // fails.
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
                // A row that was promoted earlier and not used since continues to wait for its
                // first use.
                self.tally.promoted += u64::from(!old.word.is_promoted());
                self.work.moved(i, row::mark_of(new));
            }
            return;
        }
        self.tally.copied += 1;
        self.work.settled(i, RowHint::new(self.core.store, new.address()));
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
