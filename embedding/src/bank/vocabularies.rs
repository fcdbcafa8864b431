//! The vocabularies of a bank: makes, opens, lists and drops them.

use std::sync::Arc;

use crate::bank::Bank;
use crate::error::{Error, Result, StoreError};
use crate::row::numbering::VocabularyIdentity;
use crate::vocabulary::config::VocabularyConfig;
use crate::vocabulary::descriptor::Founding;
use crate::vocabulary::hash::random;
use crate::vocabulary::registry::create;
use crate::vocabulary::{Vocabulary, VocabularyShared};

/// A vocabulary's name and settings.
///
/// # Examples
/// See [`Bank::vocabularies`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularyInfo {
    /// The vocabulary's name.
    pub name: String,
    /// The vocabulary's settings.
    pub config: VocabularyConfig,
    /// Identifies the vocabulary's present numbering.
    pub identity: VocabularyIdentity,
    /// Number of values that have ids.
    pub len: u64,
    /// True if the vocabulary accepts no new values.
    pub frozen: bool,
}

impl Bank {
    /// Opens the vocabulary `name`, or makes it. A vocabulary and a table may have the same name,
    /// because a vocabulary's internal tables have reserved names ([`Bank::table`]). The next
    /// checkpoint makes a new vocabulary durable.
    ///
    /// # Errors
    /// [`Error::VocabularyMismatch`] if the vocabulary exists with other settings, and
    /// [`Error::InvalidVocabulary`]. Also a failure of the store, such as
    /// [`TooLong`](crate::StoreError::TooLong) if strings as long as `config` allows do not fit the
    /// bank's pages.
    ///
    /// # Examples
    /// See [`Vocabulary`].
    pub fn vocabulary(&self, name: &str, config: VocabularyConfig) -> Result<Vocabulary> {
        self.vocabulary_with_seed(name, config, random())
    }

    pub(crate) fn vocabulary_with_seed(
        &self,
        name: &str,
        config: VocabularyConfig,
        seed: u64,
    ) -> Result<Vocabulary> {
        config.validate(name)?;
        let mut vocabularies = self.shared.vocabularies.lock();
        let shared = if let Some(shared) = vocabularies.get(name) {
            shared.founding.config.check_same(name, &config)?;
            Arc::clone(shared)
        } else {
            let founding = Founding { config, identity: random(), seed };
            let shared = Arc::new(create(&self.context().store, name, founding)?);
            vocabularies.insert(name.to_owned(), Arc::clone(&shared));
            shared
        };
        Ok(Vocabulary { registry: Arc::clone(&self.shared.vocabularies), shared })
    }

    /// Opens the existing vocabulary `name`.
    ///
    /// # Errors
    /// [`Error::NoSuchVocabulary`] if the bank has no such vocabulary.
    pub fn open_vocabulary(&self, name: &str) -> Result<Vocabulary> {
        match self.shared.vocabularies.lock().get(name) {
            Some(shared) => Ok(Vocabulary {
                registry: Arc::clone(&self.shared.vocabularies),
                shared: Arc::clone(shared),
            }),
            None => Err(Error::NoSuchVocabulary { vocabulary: name.to_owned() }),
        }
    }

    /// Lists the bank's vocabularies, sorted by name.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// bank.vocabulary("user", VocabularyConfig::u64())?;
    /// let of = &bank.vocabularies()[0];
    /// assert_eq!((&of.name[..], of.len, of.frozen), ("user", 0, false));
    /// assert!(bank.tables().is_empty());
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn vocabularies(&self) -> Vec<VocabularyInfo> {
        let vocabularies = self.shared.vocabularies.lock();
        let info = |shared: &Arc<VocabularyShared>| {
            let (numbering, len) = shared.numbering_and_len();
            VocabularyInfo {
                name: shared.name.clone(),
                config: shared.founding.config.clone(),
                identity: VocabularyIdentity {
                    id: shared.founding.identity,
                    generation: numbering,
                },
                len,
                frozen: shared.is_frozen(),
            }
        };
        vocabularies.values().map(info).collect()
    }

    /// Drops the vocabulary `name`. Later calls on its handles fail with
    /// [`Error::VocabularyDropped`]. Tables that were made [for it](crate::TableConfig::vocabulary)
    /// stay, but can't be opened. The next checkpoint makes the drop durable, and compaction frees
    /// the vocabulary's space.
    ///
    /// # Errors
    /// [`Error::NoSuchVocabulary`], or [`Poisoned`](crate::StoreError::Poisoned) after a failed
    /// write.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Error, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64())?;
    /// bank.drop_vocabulary("user")?;
    /// let refused = users.ids(&[900], &mut [0]);
    /// assert!(matches!(refused, Err(Error::VocabularyDropped { .. })));
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn drop_vocabulary(&self, name: &str) -> Result<()> {
        let gone = || Error::NoSuchVocabulary { vocabulary: name.to_owned() };
        let store = &self.context().store;
        if store.is_read_only() {
            return Err(StoreError::ReadOnly { path: store.path().into() }.into());
        }
        let shared = self.shared.vocabularies.get(name);
        let shared = shared.ok_or_else(gone)?;
        // While this lock is held, no other thread makes tables of the vocabulary. A verification
        // may hold this lock for a long time, so this thread takes the lock of all vocabularies
        // only afterwards.
        let _writer = shared.writer.lock();
        let mut vocabularies = self.shared.vocabularies.lock();
        if !vocabularies.get(name).is_some_and(|now| Arc::ptr_eq(now, &shared)) {
            // Another thread has dropped the vocabulary meanwhile.
            return Err(gone());
        }
        let tables: Vec<_> =
            [shared.header].into_iter().chain(shared.numbering().tables()).collect();
        store.drop_tables(&tables)?;
        vocabularies.remove(name);
        drop(vocabularies);
        self.shared.vocabularies.refuse_other_numberings();
        Ok(())
    }
}
