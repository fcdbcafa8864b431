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

use crate::error::{Error, Result};
use crate::table::Table;
use crate::vocabulary::{Vocabulary, VocabularyShared};

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

    /// The vocabulary whose ids the table's keys are, if the bank has it and it is still of that numbering.
    pub(crate) fn own_vocabulary(&self) -> Option<Vocabulary> {
        let wanted = self.shared.vocabulary()?;
        let shared = self.vocabularies.get(&wanted.name)?;
        let is_own = Some(shared.identity()) == wanted.identity;
        is_own.then(|| Vocabulary { registry: Arc::clone(&self.vocabularies), shared })
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
