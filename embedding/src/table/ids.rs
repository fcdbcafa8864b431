//! Tables whose keys are ids of a vocabulary.
//!
//! The rows of such a table belong to values, through their ids. If the vocabulary was renumbered
//! or made again, the ids belong to other values. Every row would then be another value's, and no
//! error would show. So the table's descriptor names the numbering that the table was made for, and
//! the table opens with that numbering alone.
//!
//! Within a bank that is enough, because table and vocabulary lie in the same checkpoints. A file
//! of exported rows does not, and a bank may roll back to a checkpoint and grow in another way. So
//! the file has a hash of the values that it belongs to.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::table::Table;
use crate::vocabulary::{Vocabulary, VocabularyShared};

impl Table {
    /// Refuses keys that are no ids of the table's vocabulary. Ids are those that the vocabulary
    /// has given out, and those below its first one, which belong to the caller. A table without a
    /// vocabulary takes every key. So does a table that
    /// [`open_table_unchecked`](crate::Bank::open_table_unchecked) opened although its vocabulary
    /// has another numbering.
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
        self.vocabularies.check(self.name(), wanted).map(drop)
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
            unknown_id: config.unknown_id,
        }
    }

    /// The vocabulary whose ids the table's keys are, if the bank has it in the table's numbering.
    pub(crate) fn own_vocabulary(&self) -> Option<Vocabulary> {
        let wanted = self.shared.vocabulary()?;
        let shared = self.vocabularies.get(&wanted.name)?;
        let is_own = Some(shared.identity()) == wanted.identity;
        is_own.then(|| Vocabulary { registry: Arc::clone(&self.vocabularies), shared })
    }
}

/// True if all keys are below `end`, which is below 2^63.
#[inline]
fn all_below(keys: &[u64], end: u64) -> bool {
    // The top bit of `key - end` is set for keys below `end`, and for some keys from 2^63 on, whose
    // own top bit shows that. This compiles to vector instructions of every processor; a comparison
    // of 64 bits does not.
    let below = keys.iter().fold(u64::MAX, |below, &key| below & key.wrapping_sub(end) & !key);
    below >> 63 == 1
}
