//! Checks for tables whose keys are ids of a vocabulary, which maps values to ids.
//!
//! In such a table, the key of a row is the id of a value. If the vocabulary was renumbered or made
//! again, each id means a different value. Each row would then be used for a wrong value, and no
//! error would show it. Therefore the table's descriptor names the numbering that the table was
//! made for. The table opens only with that numbering.
//!
//! Within a bank this suffices, because each checkpoint contains the table together with the
//! vocabulary. An exported file is outside the bank. After the export, the bank may go back to an
//! older checkpoint and give the ids to other values. Therefore the file stores a hash of the
//! values that its rows belong to.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::table::Table;
use crate::vocabulary::{Vocabulary, VocabularyShared};

impl Table {
    /// Fails if a key is not an id of the table's vocabulary. Valid ids are the ids that the
    /// vocabulary has assigned, and the ids below `first_id`, which the caller may use freely. A
    /// table without a vocabulary accepts every key. A table that was opened with
    /// [`open_table_unchecked`](crate::Bank::open_table_unchecked) after its vocabulary was
    /// renumbered also accepts every key.
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

    /// Returns the vocabulary whose ids are the table's keys. `None` if the bank no longer has this
    /// vocabulary, or has it with another numbering than the table was made for.
    pub(crate) fn own_vocabulary(&self) -> Option<Vocabulary> {
        let wanted = self.shared.vocabulary()?;
        let shared = self.vocabularies.get(&wanted.name)?;
        let is_own = Some(shared.identity()) == wanted.identity;
        is_own.then(|| Vocabulary { registry: Arc::clone(&self.vocabularies), shared })
    }
}

/// True if all keys are below `end`, which must be below 2^63.
#[inline]
fn all_below(keys: &[u64], end: u64) -> bool {
    // `key - end` has its top bit set if `key` is below `end`. For some keys from 2^63 on, that bit
    // is set too; `!key` excludes these keys. This code compiles to vector instructions on every
    // processor; a 64-bit comparison does not.
    let below = keys.iter().fold(u64::MAX, |below, &key| below & key.wrapping_sub(end) & !key);
    below >> 63 == 1
}
