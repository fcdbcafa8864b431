//! Reads a vocabulary's tables. Every call of a vocabulary builds on these functions.

use std::sync::atomic::Ordering;

use embank_kv::locks::MutexGuard;

use super::Vocabulary;
use super::descriptor::Header;
use super::numbering::Numbering;
use super::shared::{Writer, write_header};
use crate::error::{Error, Result, StoreError};

/// Limit of the ids: every id is below 2^63 - 1.
const IDS_END_MAX: u64 = (1 << 63) - 1;

impl Vocabulary {
    /// Calls `f` with the tables in use and the number of values. While `f` runs, this process does
    /// not replace the tables. `f` must not call this function. This function may call `f` several
    /// times.
    pub(crate) fn read<R>(&self, mut f: impl FnMut(&Numbering, u64) -> Result<R>) -> Result<R> {
        let mut read = || {
            let numbering = self.shared.numbering.read();
            // The length is read before all look-ups, which ignore places at or beyond it.
            // Meanwhile another thread may clear such places and give them to other values.
            let len = self.shared.len();
            f(&numbering, len)
        };
        let is_gone =
            |result: &Result<R>| matches!(result, Err(Error::Store(StoreError::NoSuchTable(_))));
        let mut result = read();
        if is_gone(&result) && self.context().store.is_read_only() {
            // A refresh has moved the store to another checkpoint, and the tables of the old
            // checkpoint are gone. While this thread holds the lock, no other refresh comes. Most
            // often the refresh has also moved the vocabulary, before it gave the lock back.
            let moving = self.registry.moving.lock();
            result = read();
            if is_gone(&result) && self.registry.reread(&self.shared, &moving)? {
                result = read();
            }
        }
        result.map_err(|error| self.in_terms_of_the_vocabulary(error))
    }

    /// Announces ids that the caller gives to values before it inserts them. The caller must insert
    /// the values later, in the order of the ids. Tables whose keys are this vocabulary's ids
    /// accept these ids from now on. A renumbering of the vocabulary, or closing the bank, undoes
    /// the announcement. Ids end at 2^63 - 1; larger ids count as 2^63 - 1.
    ///
    /// # Errors
    /// Fails with the end of the ids that are given out, and announces nothing, if that end is not
    /// `ids.start`. Another caller has then announced or inserted values, and would give some of
    /// these ids to other values.
    pub fn give_out(&self, ids: std::ops::Range<u64>) -> std::result::Result<(), u64> {
        let first_id = self.config().first_id;
        let count = |end: u64| end.min(IDS_END_MAX).saturating_sub(first_id);
        let given_out = &self.shared.given_out;
        // Relaxed: as in `VocabularyShared::ids_end`.
        let (from, to) = (count(ids.start), count(ids.end).max(count(ids.start)));
        given_out
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .map(drop)
            .map_err(|found| first_id + found)
    }

    pub(crate) fn put_header(&self, header: Header) -> Result<()> {
        let written = write_header(&self.context().store, self.shared.header, header);
        written.map_err(|error| self.in_terms_of_the_vocabulary(error.into()))
    }

    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        self.shared.writer.lock()
    }

    /// Translates an error of the store. `NoSuchTable` means that the vocabulary was dropped.
    #[cold]
    pub(crate) fn in_terms_of_the_vocabulary(&self, error: Error) -> Error {
        match error {
            Error::Store(StoreError::NoSuchTable(_)) => self.dropped(),
            other => other,
        }
    }

    fn dropped(&self) -> Error {
        Error::VocabularyDropped { vocabulary: self.name().to_owned() }
    }

    #[cold]
    pub(crate) fn damaged(&self, what: String) -> Error {
        Error::DamagedVocabulary { vocabulary: self.name().to_owned(), what }
    }
}
