//! Keeps only the frequent values of a vocabulary. These values get new ids in a new numbering.
//!
//! The call copies the values that stay into new tables, in order. Lookups use the old tables
//! meanwhile. Then the call changes the header, a single row, so that it names the new tables. A
//! checkpoint therefore has either the whole old numbering or the whole new numbering. The next
//! open for writing drops the tables that the header does not name.

use std::mem;

use super::Vocabulary;
use super::byte_values::OwnedValues;
use super::descriptor::Header;
use super::distinct::Distinct;
use super::numbering::{Items, Numbering, Tip, number_after};
use super::record::NUMBERS_PER_BLOCK;
use super::rows::AddCounts;
use crate::error::{Error, Result};
use crate::row::numbering::VocabularyIdentity;
use embank_kv::Clock;

/// What [`Vocabulary::keep_frequent`] did.
///
/// # Examples
/// See [`Vocabulary::keep_frequent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptFrequent {
    /// The number of values that stayed.
    pub kept: u64,
    /// The number of values that lost their ids.
    pub removed: u64,
    /// Identifies the new numbering.
    pub identity: VocabularyIdentity,
}

impl Vocabulary {
    /// Keeps the values with a count of `min_count` or more. The kept values get new ids from
    /// `first_id` on, in their old order. All other values become unknown. Counts stay with their
    /// values. Old ids are no longer valid: embedding tables that were made [for this
    /// vocabulary](crate::TableConfig::vocabulary) can no longer be opened.
    ///
    /// Lookups continue during the call. A lookup or a checkpoint sees either the whole old
    /// numbering or the whole new numbering. Insertions and counting wait. The call needs extra
    /// space for the values that it keeps, until compaction has freed the old tables.
    ///
    /// # Errors
    /// [`Error::NoCounts`]; [`Error::VocabularyFrozen`]; [`Error::VocabularyDropped`]; a failure of
    /// the store. After an error the vocabulary is unchanged.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, UNKNOWN_ID, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64().counts(true))?;
    /// let mut ids = [0; 5];
    /// users.ids_or_insert(&[900, 800, 700, 800, 700], &mut ids)?;
    /// users.count(&ids)?;
    /// let kept = users.keep_frequent(2)?;
    /// assert_eq!((kept.kept, kept.removed), (2, 1));
    /// users.ids(&[900, 800, 700], &mut ids[..3])?;
    /// assert_eq!(ids[..3], [UNKNOWN_ID, 0, 1]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn keep_frequent(&self, min_count: u64) -> Result<KeptFrequent> {
        let mut writer = self.writer();
        let _nobody_counts = self.shared.counting.write();
        let old = self.shared.numbering();
        if old.counts.is_none() {
            return Err(self.no_counts());
        }
        if writer.header.frozen {
            return Err(Error::VocabularyFrozen { vocabulary: self.name().to_owned() });
        }
        self.take_out_what_lies_beyond(&mut writer, &old)?;
        let store = &self.context().store;
        let number = number_after(old.number);
        let identity = self.shared.founding.identity;
        // Removes the tables that a failed attempt has left.
        self.registry.drop_leftovers(identity, old.number)?;
        let made = Numbering::create(store, self.name(), self.config(), identity, number);
        let before = writer.header;
        let filled = made.map_err(Error::from).and_then(|new| {
            let tip = self.copy_frequent(&old, &new, before.len, min_count)?;
            let len = tip.len;
            let fingerprint = tip.fingerprint;
            let header = Header { len, fingerprint, numbering: number, ..before };
            self.put_header(header)?;
            Ok((new, header, tip))
        });
        let (new, header, tip) = match filled {
            Ok(filled) => filled,
            Err(error) => {
                // The stored header may already be the new header. Therefore the old header is
                // written again before the new tables are dropped. If that fails, the new tables
                // stay, and the next insertion writes the header first. If the vocabulary was
                // dropped, the new tables can be dropped.
                match self.put_header(before) {
                    Ok(()) | Err(Error::VocabularyDropped { .. }) => {
                        let _ = self.registry.drop_leftovers(identity, old.number);
                    }
                    Err(_) => writer.tip = None,
                }
                return Err(self.in_terms_of_the_vocabulary(error));
            }
        };
        self.shared.exchange(&mut writer, header, new);
        writer.tip = Some(tip);
        self.registry.refuse_other_numberings();
        // If this drop fails, the next open for writing drops the tables.
        let _ = store.drop_tables(&old.tables().collect::<Vec<_>>());
        Ok(KeptFrequent {
            kept: header.len,
            removed: before.len - header.len,
            identity: VocabularyIdentity { id: identity, generation: number },
        })
    }

    fn copy_frequent(
        &self,
        old: &Numbering,
        new: &Numbering,
        len: u64,
        min_count: u64,
    ) -> Result<Tip> {
        let store = &self.context().store;
        let mut tip = Tip::empty();
        let mut start = 0;
        let at_once = self.config().values_at_once();
        while start < len {
            let places: Vec<u64> = (start..len.min(start + at_once)).collect();
            start += places.len() as u64;
            let counts = self.counts_at(old, &places)?;
            let kept = places.iter().zip(&counts).filter(|&(_, &count)| count >= min_count);
            let (places, counts): (Vec<u64>, Vec<u64>) = kept.unzip();
            if places.is_empty() {
                continue;
            }
            let values = self.values_at(old, &places)?;
            let distinct = Distinct::new(values.values(), self.shared.founding.seed)?;
            if distinct.keys.len() != places.len() {
                return Err(self.damaged("a value has two ids".to_owned()));
            }
            let strings = match &values {
                OwnedValues::U64(_) => 0..0,
                OwnedValues::Bytes(strings) => 0..strings.len(),
            };
            let bytes: Vec<&[u8]> = strings.map(|number| distinct.bytes(number)).collect();
            let items = Items { keys: &distinct.keys, bytes: &bytes };
            let next = new.append(store, &tip, items)?;
            let first = mem::replace(&mut tip, next).len;
            self.put_counts(new, first, &counts)?;
        }
        Ok(tip)
    }

    /// Stores counts for the places from `first` on. These places must not have counts yet.
    fn put_counts(&self, numbering: &Numbering, first: u64, counts: &[u64]) -> Result<()> {
        let table = numbering.counts.ok_or_else(|| self.no_counts())?;
        let counts: Vec<(u64, u64)> = (first..).zip(counts.iter().copied()).collect();
        let Some(&(last, _)) = counts.last() else { return Ok(()) };
        let blocks: Vec<u64> = (first / NUMBERS_PER_BLOCK..=last / NUMBERS_PER_BLOCK).collect();
        let end = |block: &u64| (((block + 1) * NUMBERS_PER_BLOCK).min(last + 1) - first) as usize;
        let ends: Vec<usize> = blocks.iter().map(end).collect();
        let per_block = NUMBERS_PER_BLOCK;
        let settled = &mut Vec::new();
        let mut add = AddCounts { counts: &counts, ends: &ends, per_block, settled };
        self.context().store.execute(table, &blocks, Clock::Keep, &mut add)?;
        Ok(())
    }
}
