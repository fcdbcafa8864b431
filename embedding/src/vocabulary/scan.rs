//! Scans of a vocabulary in the order of its ids.

use super::Vocabulary;
use super::byte_values::{OwnedValues, Values};
use crate::error::{Result, StoreError};

/// A chunk of the values that a [`VocabularyScan`] returns.
///
/// # Examples
/// See [`Vocabulary::scan`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct VocabularyChunk<'a> {
    /// The first value's id. The chunk's ids are consecutive.
    pub first_id: u64,
    /// The values.
    pub values: Values<'a>,
    /// The values' counts. Empty if the vocabulary has no counts.
    pub counts: &'a [u64],
}

/// The values that a vocabulary had when [`Vocabulary::scan`] was called, in the order of their
/// ids.
///
/// # Examples
/// See [`Vocabulary::scan`].
#[derive(Debug)]
pub struct VocabularyScan {
    vocabulary: Vocabulary,
    numbering: u64,
    place: u64,
    len: u64,
    values: OwnedValues,
    counts: Vec<u64>,
}

impl Vocabulary {
    /// Scans the values in the order of their ids, in constant memory. A chunk has up to 4,096
    /// values. If `value_bytes_max` is above 4 KiB, it has fewer: at most about 16 MiB of values.
    /// Values that are inserted during the scan are not in it. Unlike a table's scan, this scan
    /// needs no checkpoint.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, ByteBuffer, Values, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let words = bank.vocabulary("word", VocabularyConfig::bytes())?;
    /// words.ids_or_insert(&ByteBuffer::from_iter(["red", "green"]), &mut [0; 2])?;
    /// let mut scan = words.scan();
    /// while let Some(chunk) = scan.next_chunk()? {
    ///     let Values::Bytes(values) = chunk.values else { unreachable!() };
    ///     for (id, word) in (chunk.first_id..).zip(values.iter()) {
    ///         println!("{id}: {}", word.escape_ascii());
    ///     }
    /// }
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn scan(&self) -> VocabularyScan {
        let (numbering, len) = self.shared.numbering_and_len();
        VocabularyScan {
            vocabulary: self.clone(),
            numbering,
            place: 0,
            len,
            values: OwnedValues::U64(Vec::new()),
            counts: Vec::new(),
        }
    }
}

impl VocabularyScan {
    /// The number of values that the scan has not returned yet.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.len - self.place
    }

    /// Returns the next values. `None` after the last chunk.
    ///
    /// # Errors
    /// [`ChangedMeanwhile`](crate::StoreError::ChangedMeanwhile) if the vocabulary was renumbered
    /// during the scan; [`Error::DamagedVocabulary`](crate::Error::DamagedVocabulary),
    /// [`Error::VocabularyDropped`](crate::Error::VocabularyDropped), or a failure of the store.
    pub fn next_chunk(&mut self) -> Result<Option<VocabularyChunk<'_>>> {
        let end = self.len.min(self.place + self.vocabulary.config().values_at_once());
        let places: Vec<u64> = (self.place..end).collect();
        if places.is_empty() {
            return Ok(None);
        }
        let vocabulary = &self.vocabulary;
        let wanted = self.numbering;
        let (values, counts) = vocabulary.read(|numbering, len| {
            if numbering.number != wanted || len < self.len {
                let name = vocabulary.name();
                let what = format!("vocabulary {name:?} was renumbered while it was scanned");
                return Err(StoreError::ChangedMeanwhile(what).into());
            }
            let counts = match numbering.counts {
                Some(_) => vocabulary.counts_at(numbering, &places)?,
                None => Vec::new(),
            };
            Ok((vocabulary.values_at(numbering, &places)?, counts))
        })?;
        self.values = values;
        self.counts = counts;
        let first_id = vocabulary.config().first_id + self.place;
        self.place += places.len() as u64;
        Ok(Some(VocabularyChunk { first_id, values: self.values.values(), counts: &self.counts }))
    }
}
