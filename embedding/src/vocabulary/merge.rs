//! Merges one vocabulary's values into another.

use std::ops::ControlFlow;

use super::Vocabulary;
use crate::error::{Error, Result, StoreError};

/// The ids that this vocabulary has for a chunk of the other vocabulary's values.
/// [`Vocabulary::merge`] reports one `MergedIds` for each chunk.
///
/// # Examples
/// See [`Vocabulary::merge`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct MergedIds<'a> {
    /// The other vocabulary's id of the first value in the chunk. The ids of the next values follow
    /// it without gaps.
    pub first_id: u64,
    /// This vocabulary's ids of the chunk's values, in order.
    pub ids: &'a [u64],
}

/// What [`Vocabulary::merge`] did.
///
/// # Examples
/// See [`Vocabulary::merge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MergedVocabulary {
    /// The number of values in the other vocabulary.
    pub values: u64,
    /// The number of values that were new to this vocabulary.
    pub inserted: u64,
}

impl Vocabulary {
    /// Appends the values of `other` that this vocabulary lacks, in the order of their ids in
    /// `other`. The other vocabulary may be in this bank or another bank. The result depends only
    /// on the two vocabularies. The call passes this vocabulary's ids of the values of `other` to
    /// `translated`, in order, a few thousand at a time. `translated` may end the merge by
    /// returning `Break`. If both vocabularies have counts, the merge adds the counts of `other` to
    /// this vocabulary's counts.
    ///
    /// The memory that the call takes does not depend on the number of values. A checkpoint during
    /// the call contains the first part of the merge. After a crash, repeat the merge in the bank
    /// as the checkpoint left it; every value gets the id that it would have got without the crash.
    /// But if that checkpoint was taken during the merge, the repeated merge adds some counts
    /// twice. Take no checkpoint during a merge if counts matter.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::StoreError::InvalidArgument) if `other` is this vocabulary;
    /// [`WrongKind`](crate::StoreError::WrongKind) if its values are of another kind;
    /// [`Error::VocabularyFrozen`]; [`Error::ValueTooLong`]; [`Error::Cancelled`];
    /// [`Error::VocabularyDropped`]; a failure of one of the stores. Values that were merged before
    /// the error stay.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, VocabularyConfig};
    /// use std::ops::ControlFlow;
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let (all, monday) = (VocabularyConfig::u64(), VocabularyConfig::u64().first_id(1));
    /// let (all, monday) = (bank.vocabulary("all", all)?, bank.vocabulary("monday", monday)?);
    /// all.ids_or_insert(&[900, 800], &mut [0; 2])?;
    /// monday.ids_or_insert(&[700, 800], &mut [0; 2])?;
    ///
    /// let mut translation = Vec::new();
    /// let merged = all.merge(&monday, |chunk| {
    ///     translation.extend((chunk.first_id..).zip(chunk.ids.iter().copied()));
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!((merged.values, merged.inserted), (2, 1));
    /// assert_eq!(translation, [(1, 2), (2, 1)]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn merge(
        &self,
        other: &Self,
        mut translated: impl FnMut(MergedIds<'_>) -> ControlFlow<()>,
    ) -> Result<MergedVocabulary> {
        if std::sync::Arc::ptr_eq(&self.shared, &other.shared) {
            let name = self.name();
            let what = format!("vocabulary {name:?} can't be merged into itself");
            return Err(StoreError::InvalidArgument(what).into());
        }
        let own = self.config();
        let others = other.config();
        if own.kind != others.kind {
            let why = format!(
                "has {} values, {:?} has {}: they can't be merged",
                own.kind.name(),
                other.name(),
                others.kind.name()
            );
            return Err(Error::wrong_kind("vocabulary", self.name(), why));
        }
        let mut merged = MergedVocabulary::default();
        let mut scan = other.scan();
        while let Some(chunk) = scan.next_chunk()? {
            if self.is_frozen() {
                return Err(Error::VocabularyFrozen { vocabulary: self.name().to_owned() });
            }
            let mut ids = vec![0; chunk.values.len()];
            merged.inserted += self.ids_or_insert(chunk.values, &mut ids)?;
            merged.values += ids.len() as u64;
            if own.counts && others.counts {
                self.add_counts(&ids, chunk.counts)?;
            }
            if translated(MergedIds { first_id: chunk.first_id, ids: &ids }).is_break() {
                return Err(Error::Cancelled);
            }
        }
        Ok(merged)
    }
}
