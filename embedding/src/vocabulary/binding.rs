//! Tables whose keys are ids of a vocabulary.
//!
//! A table's rows belong to values, by way of their ids. If the vocabulary gives those ids to other values, because it
//! was renumbered or made anew, every row is somebody else's, and nothing would look wrong. So the table's
//! descriptor keeps which numbering it was made for, and is opened with that one alone.
//!
//! Within a bank that is enough: table and vocabulary lie in the same checkpoints. A file of exported rows does not,
//! and the bank may go back to a checkpoint and grow otherwise; so the file tells the hash of the values that it goes
//! with.

use std::sync::Arc;

use super::hash::{EMPTY_FINGERPRINT, fingerprint_with};
use super::shared::{Published, VocabularyShared};
use super::unknown::Unknown;
use super::{Values, Vocabulary};
use crate::bank::BankShared;
use crate::error::{Error, Result};
use crate::files::settings::HeldValues;
use crate::row::numbering::TableVocabulary;
use crate::table::Table;

impl Table {
    /// Refuses keys that are no ids of the table's vocabulary: those that it has given out, and those below its first
    /// one, which are the caller's own. A table without a vocabulary takes every key, and so does one that
    /// [`open_table_unchecked`](crate::Bank::open_table_unchecked) opened although its vocabulary is another one.
    #[inline]
    pub(crate) fn check_ids(&self, keys: &[u64]) -> Result<()> {
        self.check_numbering()?;
        let Some(ids) = self.shared.ids() else { return Ok(()) };
        let end = ids.ids_end();
        if all_below(keys, end) { Ok(()) } else { Err(self.key_is_no_id(keys, ids, end)) }
    }

    /// Fails if the table's vocabulary was renumbered or dropped since this handle was made.
    #[inline]
    pub(crate) fn check_numbering(&self) -> Result<()> {
        if self.shared.has_other_numbering() { self.other_numbering() } else { Ok(()) }
    }

    #[cold]
    fn other_numbering(&self) -> Result<()> {
        let Some(wanted) = self.shared.vocabulary() else { return Ok(()) };
        self.bank.check_vocabulary(self.name(), wanted).map(drop)
    }

    #[cold]
    fn key_is_no_id(&self, keys: &[u64], ids: &VocabularyShared, end: u64) -> Error {
        let config = &ids.founding.config;
        Error::KeyIsNoId {
            table: self.name().to_owned(),
            vocabulary: ids.name.clone(),
            key: keys.iter().copied().find(|&key| key >= end).unwrap_or_default(),
            first_id: config.first_id,
            next_id: end,
            unknown: match config.unknown {
                Unknown::Id(id) => Some(id),
                Unknown::Error => None,
            },
        }
    }

    /// The vocabulary whose ids the table's keys are, if the bank has it and it is still of that numbering.
    pub(crate) fn own_vocabulary(&self) -> Option<Vocabulary> {
        let wanted = self.shared.vocabulary()?;
        let shared = Arc::clone(self.bank.vocabularies.lock().get(&wanted.name)?);
        let is_own = Some(shared.identity()) == wanted.identity;
        is_own.then(|| Vocabulary { bank: Arc::clone(&self.bank), shared })
    }

    /// What an export tells of that vocabulary: its values at this moment, which are those of the checkpoint's ids and
    /// perhaps some more.
    pub(crate) fn vocabulary_values(&self) -> Option<HeldValues> {
        let vocabulary = self.own_vocabulary()?;
        let Published { len, fingerprint, generation } = vocabulary.shared.published();
        let wanted = self.shared.vocabulary()?.identity?;
        (generation == wanted.generation).then_some(HeldValues { len, fingerprint })
    }
}

/// Whether all keys are below `end`, which is below 2^63.
#[inline]
fn all_below(keys: &[u64], end: u64) -> bool {
    // The top bit of `key - end` is set for keys below the end, and for some from 2^63 on, whose own top bit tells them
    // apart. This compiles to vector instructions of every processor, where a comparison of 64 bits does not.
    let below = keys.iter().fold(u64::MAX, |below, &key| below & key.wrapping_sub(end) & !key);
    below >> 63 == 1
}

impl Vocabulary {
    /// As [`fingerprint`](Self::fingerprint), of the first `len` values; `None` if there are fewer. Goes through them
    /// if there are more.
    pub(crate) fn fingerprint_of_first(&self, len: u64) -> Result<Option<u64>> {
        let published = self.shared.published();
        if published.len <= len {
            return Ok((published.len == len).then_some(published.fingerprint));
        }
        let (mut scan, mut left) = (self.scan(), len);
        let mut fingerprint = EMPTY_FINGERPRINT;
        while left > 0
            && let Some(chunk) = scan.next_chunk()?
        {
            let count = left.min(chunk.values.len() as u64);
            fingerprint = chunk.values.fingerprint_after(fingerprint, count as usize);
            left -= count;
        }
        Ok((left == 0).then_some(fingerprint))
    }
}

impl Values<'_> {
    /// The fingerprint of what had this one, and the first `count` of these values after it.
    pub(crate) fn fingerprint_after(self, fingerprint: u64, count: usize) -> u64 {
        match self {
            Self::U64(numbers) => {
                let bytes = numbers[..count].iter().map(|number| number.to_le_bytes());
                bytes.fold(fingerprint, |print, bytes| fingerprint_with(print, &bytes))
            }
            Self::Bytes(strings) => strings.iter().take(count).fold(fingerprint, fingerprint_with),
        }
    }
}

impl BankShared {
    /// After vocabularies may have changed: handles of tables that were made for another numbering are refused.
    pub(crate) fn refuse_other_numberings(&self) {
        for table in self.tables.lock().values() {
            if let Some(wanted) = table.vocabulary() {
                table.note_numbering(self.check_vocabulary(&table.name, wanted).is_err());
            }
        }
    }

    /// The vocabulary of `table`, which must have the numbering that the table was made for, if it was made.
    pub(crate) fn check_vocabulary(
        &self,
        table: &str,
        wanted: &TableVocabulary,
    ) -> Result<Arc<VocabularyShared>> {
        let shared = self.vocabularies.lock().get(&wanted.name).cloned();
        let there = shared.as_ref().map(|shared| shared.identity());
        if let Some(shared) = shared
            && wanted.identity.is_none_or(|wanted| Some(wanted) == there)
        {
            return Ok(shared);
        }
        let found = match (there, wanted.identity) {
            (Some(there), Some(wanted)) if there.id == wanted.id => {
                let (now, then) = (there.renumberings(), wanted.renumberings());
                if now == then {
                    "it was renumbered otherwise, after the bank was taken back to a checkpoint"
                        .to_owned()
                } else {
                    format!(
                        "it was renumbered since ({now} times, and {then} times when the table was made)"
                    )
                }
            }
            (Some(_), _) => "the vocabulary of that name is another one".to_owned(),
            (None, _) => "the bank has none of that name".to_owned(),
        };
        Err(Error::OtherVocabulary {
            table: table.to_owned(),
            vocabulary: wanted.name.clone(),
            found,
        })
    }
}
