//! Identifies a numbering of a vocabulary, that is, its assignment of ids to values. The vocabulary
//! stores this identity, and so does each table whose keys are the vocabulary's ids.

/// Identifies a numbering of a vocabulary: its assignment of ids to values. If two vocabularies
/// have equal identities, a value has the same id in both.
///
/// The exception: a bank was copied, or went back to a checkpoint after a crash or by
/// [`roll_back`](crate::Bank::roll_back). From then on, the two vocabularies may give the same new
/// id to different values, although their identities stay equal.
/// [`Vocabulary::fingerprint`](crate::Vocabulary::fingerprint) shows whether two vocabularies have
/// the same values.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, VocabularyConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let config = VocabularyConfig::u64().counts(true);
/// let users = bank.vocabulary("user", config)?;
/// let before = users.identity();
/// users.keep_frequent(2)?;
/// let after = users.identity();
/// assert_eq!((before.id, before.renumberings() + 1), (after.id, after.renumberings()));
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct VocabularyIdentity {
    /// A random number that is drawn when the vocabulary is made.
    pub id: u64,
    /// The lowest 32 bits count the renumberings. The other bits are drawn at random at each
    /// renumbering. A numbering that is made after a rollback therefore differs from the numbering
    /// that was rolled back.
    pub generation: u64,
}

impl VocabularyIdentity {
    /// Number of times that the vocabulary was renumbered.
    #[must_use]
    pub fn renumberings(&self) -> u32 {
        renumberings(self.generation)
    }
}

/// Returns the number of renumberings before this numbering.
pub(crate) fn renumberings(numbering: u64) -> u32 {
    numbering as u32
}

/// The vocabulary whose ids are a table's keys
/// ([`TableConfig::vocabulary`](crate::TableConfig::vocabulary)).
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Error, TableConfig, VocabularyConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let config = TableConfig::new(2).vocabulary("user");
/// let refused = bank.table("user", config.clone());
/// assert!(matches!(refused, Err(Error::NoSuchVocabulary { .. })));
///
/// let users = bank.vocabulary("user", VocabularyConfig::u64())?;
/// let table = bank.table("user", config)?;
/// assert_eq!(table.config().vocabulary.unwrap().identity, Some(users.identity()));
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableVocabulary {
    /// The vocabulary's name.
    pub name: String,
    /// The numbering that the table was made for. `None` before the table is made; the bank sets it
    /// when it makes the table, to the vocabulary's present numbering.
    pub identity: Option<VocabularyIdentity>,
}

impl TableVocabulary {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), identity: None }
    }

    /// Encodes the vocabulary for a table's descriptor.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // The bank sets the identity before it makes a table, so 0 is never stored.
        let VocabularyIdentity { id, generation } =
            self.identity.unwrap_or(VocabularyIdentity { id: 0, generation: 0 });
        [&id.to_le_bytes(), &generation.to_le_bytes(), self.name.as_bytes()].concat()
    }

    /// Returns `None` if `bytes` do not encode a `TableVocabulary`.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (generation, name) = rest.split_first_chunk()?;
        let id = u64::from_le_bytes(*id);
        let generation = u64::from_le_bytes(*generation);
        let name = String::from_utf8(name.to_vec()).ok()?;
        Some(Self { name, identity: Some(VocabularyIdentity { id, generation }) })
    }
}
