//! The hash of the first values of a vocabulary. A file of exported rows stores this hash. The hash
//! shows which vocabulary's ids are the keys of the file. A pipeline's feed stores it in the places
//! at which another feed can continue.

use super::hash::{EMPTY_FINGERPRINT, fingerprint_with};
use super::{Values, Vocabulary};
use crate::error::Result;

impl Vocabulary {
    /// Returns the [`fingerprint`](Self::fingerprint) of the first `len` values. `None` if the
    /// vocabulary has fewer values. Reads these values from the store only if the vocabulary has
    /// more than `len` values.
    ///
    /// # Errors
    /// The errors of [`VocabularyScan::next_chunk`](crate::VocabularyScan::next_chunk).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64())?;
    /// users.ids_or_insert(&[900, 800], &mut [0; 2])?;
    /// let before = users.fingerprint();
    /// users.ids_or_insert(&[700], &mut [0])?;
    /// assert_eq!(users.fingerprint_of_first(2)?, Some(before));
    /// assert_eq!(users.fingerprint_of_first(4)?, None);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn fingerprint_of_first(&self, len: u64) -> Result<Option<u64>> {
        let published = self.shared.published();
        if published.len <= len {
            return Ok((published.len == len).then_some(published.fingerprint));
        }
        let mut scan = self.scan();
        let mut left = len;
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
    /// Returns the fingerprint of a vocabulary to which the first `count` values of `self` are
    /// appended. Before that, the vocabulary has the fingerprint `fingerprint`.
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
