//! How a new record replaces an old one, for a row that an operation cannot change in place.
//!
//! **Problem.** An operation changes a row in place only in mutable memory. A row in the read-only
//! region, on disk or in the read cache gets a new record at the tail. So does a row whose next
//! value has another length, and a row that a job moves. The work decides which value the new
//! record has. All works make the record visible in the same order of steps.
//!
//! **Approach.** The caller makes sure that no other thread changes the old record. Either the
//! caller holds the record's lock, or the record lies outside mutable memory, where no record
//! changes. `succeed` fills the new record, and then replaces the index entry that led to the old
//! record. This exchange fails if another thread has changed the entry. Then `succeed` abandons the
//! new record, and the caller searches again.

use super::scratch::Searched;
use super::{Batch, Effect, Work, row};
use crate::hints::RowHint;
use crate::index::Entry;
use crate::log::PageFull;
use crate::operation::Operation;
use crate::record::address::Address;
use crate::record::clock::ClockWord;
use crate::record::layout::RecordRef;
use crate::sync::{Planted, planted};

/// The place where a row's newest record was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Old {
    /// The record is in memory, and the caller holds its lock.
    InMemory {
        mutable: bool,
    },
    OnDisk,
    /// The record is in the read cache, which counts no uses.
    Cached,
}

/// The tier that has a row's newest version.
pub(super) enum Tier<'r> {
    /// The log has it, as a record.
    Hot {
        /// The index entry whose chain contains the record.
        entry: Entry,
        address: Address,
        /// The next record of the chain, which is older.
        previous: Address,
    },
    /// A part of the cold tier has it. The search of the log saw `searched` and no record.
    Cold { searched: &'r Searched },
}

/// A row's newest version. No other thread changes it during the succession.
pub(super) struct Predecessor<'r> {
    pub(super) place: Old,
    /// The hash of the row's key.
    pub(super) hash: u64,
    pub(super) tier: Tier<'r>,
    /// The row's value. `None` if the record is a tombstone, which stands for a deleted row.
    pub(super) value: Option<&'r [u8]>,
    /// The record's clock, without the Gets that were outstanding before the store was opened. A
    /// tombstone has a clock at rest.
    pub(super) word: ClockWord,
    /// True if the table's row count does not have this version. The new version has the same mark.
    pub(super) uncounted: bool,
    pub(super) record_bytes: usize,
}

/// The result of a succession.
pub(super) enum Succession<'a> {
    /// The index now leads to this new record.
    Replaced(RecordRef<'a>),
    /// The row stays as it is.
    LeftAlone,
    /// Another thread moved the row or changed its chain. The caller searches again.
    Moved,
}

impl<'a, W: Work, const VARIABLE: bool> Batch<'a, W, VARIABLE> {
    /// Replaces a row's newest record by a new record.
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
        let uses = match (old.place, &old.tier) {
            _ if old.value.is_none() => 0,
            (Old::Cached, _) => self.core.retention.mean_uses(),
            (Old::InMemory { .. } | Old::OnDisk, Tier::Hot { address, .. }) => {
                self.core.retention.inherited_uses(old.word, *address, new.address())
            }
            (Old::InMemory { .. } | Old::OnDisk, Tier::Cold { .. }) => old.word.uses(),
        };
        let word = old.word.inherited(self.clock.after(outstanding), uses);
        // A deletion cancels the leases on its row, so a new row with the same key starts from 0.
        let word = match W::EFFECT {
            Effect::Delete => ClockWord::at_rest(0),
            Effect::Update | Effect::Put | Effect::Touch => word.next_generation(),
            Effect::Move => word.with_promoted(W::is_promoted(old.word.is_promoted())),
            Effect::Get | Effect::Peek | Effect::Locate => word,
        };
        if old.uncounted {
            new.mark_uncounted();
        }
        if self.publish(old, new, word) {
            self.note_published(new);
            Ok(Succession::Replaced(new))
        } else {
            new.abandon();
            Ok(Succession::Moved)
        }
    }

    /// Allocates the record that replaces a row's newest one, and lets the work fill its value.
    /// `old` is the row's value; `None` if the row is deleted. Returns `None` if the row stays
    /// missing, or if the table does not admit the new value.
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
        // SAFETY: the duty is that no other thread uses the value, and that it lies in the record.
        // This thread has not published the record, and the record has room for the value and its
        // padding.
        let value = unsafe { new.value_mut(value_bytes.next_multiple_of(8)) };
        let kept = if W::EFFECT == Effect::Put { value_bytes } else { old.len().min(value_bytes) };
        if W::EFFECT != Effect::Put {
            value[..kept].copy_from_slice(&old[..kept]);
        }
        value[kept..].fill(0);
        let value = &mut value[..value_bytes];
        match W::EFFECT {
            Effect::Get => self.work.caller().read(i, value),
            Effect::Update | Effect::Put => self.work.caller().update(i, value),
            Effect::Touch | Effect::Delete | Effect::Move | Effect::Peek | Effect::Locate => {}
        }
        Ok(Some(new))
    }

    /// Gives the filled record `new` its clock, and makes the index lead to it. Returns false if
    /// another thread has given the row a newer record.
    ///
    /// If the row's newest version is a record, the call replaces the index entry. If the old
    /// record was the head of its chain, the chain then skips it. If the row's newest version is in
    /// the cold tier, the call inserts an entry (`Batch::insert`).
    ///
    /// The old record must not lie below the log's beginning while the bucket is locked. Otherwise
    /// the key could get two rows, as follows. Once the log's beginning has passed a record in the
    /// middle of a chain, searches no longer meet the record: it was a tombstone, or its row has
    /// gone to the cold tier. An insert then gives the key another entry in the same bucket and
    /// leaves this chain unchanged. The exchange of this chain's entry would succeed too. The check
    /// under the bucket's lock prevents it. An insert that locked the bucket before this exchange
    /// saw the new beginning, so this check sees it too and fails. An insert that locks the bucket
    /// later finds this entry changed.
    fn publish(&self, old: &Predecessor<'_>, new: RecordRef<'_>, word: ClockWord) -> bool {
        let is_tombstone = W::EFFECT == Effect::Delete;
        let (entry, address, previous) = match old.tier {
            Tier::Hot { entry, address, previous } => (entry, address, previous),
            Tier::Cold { searched } => {
                new.finish(word, is_tombstone);
                return self.insert(new, old.hash, searched);
            }
        };
        let begin = || self.core.log.begin();
        let is_head = address == entry.address();
        let previous = if is_head { previous } else { entry.address() };
        // Below the log's beginning there are no records, so the chain ends here. If compaction
        // moved a row from there, the copy is this chain's head now, and the exchange below fails.
        let previous = if previous.raw() < begin() { Address::NONE } else { previous };
        new.set_link(new.link().with_previous(previous));
        new.finish(word, is_tombstone);
        let alone = previous.is_none();
        self.core.index.replace_if(old.hash, entry, new.address(), alone, || {
            address.raw() >= begin() || planted(Planted::RowBelowBegin)
        })
    }

    /// Counts a row whose record was replaced, and reports the row to the work.
    pub(super) fn note_succession(&mut self, i: usize, old: &Predecessor<'_>, new: RecordRef<'_>) {
        let new_bytes = new.shape().record_bytes();
        if W::EFFECT == Effect::Move {
            self.tally.moved += 1;
            self.tally.moved_bytes += new_bytes as u64;
            if W::PROMOTES {
                self.tally.copied += 1;
                // A row that was promoted before and not used since is not counted again.
                self.tally.promoted += u64::from(!old.word.is_promoted());
                self.work.moved(i, row::mark_of(new));
            }
            return;
        }
        self.tally.copied += 1;
        self.work.caller().settled(i, RowHint::new(self.core.store, new.address()));
        self.tally.promoted_used += u64::from(old.word.is_promoted());
        if old.value.is_none() {
            self.note_inserted(new);
            return;
        }
        match W::EFFECT {
            Effect::Delete => self.note_deleted(old.record_bytes, old.uncounted),
            Effect::Get => {
                self.work.caller().seen(i, old.word.outstanding());
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
