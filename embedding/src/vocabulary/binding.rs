//! Tables whose keys are ids of a vocabulary.
//!
//! A table's rows belong to values, by way of their ids. If the vocabulary gives those ids to other values, because it
//! was renumbered or made anew, every row is somebody else's, and nothing would look wrong. So the table's
//! descriptor keeps which numbering it was made for, and is opened with that one alone.

use super::VocabularyIdentity;
use crate::bank::BankShared;
use crate::error::{Error, Result};

/// The vocabulary whose ids are a table's keys ([`TableConfig::vocabulary`](crate::TableConfig::vocabulary)).
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Error, TableConfig, VocabularyConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let config = TableConfig::new(2).vocabulary("user");
/// let refused = bank.table("user", config.clone());
/// assert!(matches!(refused, Err(Error::OtherVocabulary { .. })));
///
/// let users = bank.vocabulary("user", VocabularyConfig::u64())?;
/// let table = bank.table("user", config)?;
/// assert_eq!(table.config().vocabulary.unwrap().identity, Some(users.identity()));
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableVocabulary {
    /// Its name.
    pub name: String,
    /// Which numbering; `None` before the table is made: the present one.
    pub identity: Option<VocabularyIdentity>,
}

impl TableVocabulary {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), identity: None }
    }

    /// The bytes that a table's descriptor has.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // The bank fills it in before a table is made.
        let VocabularyIdentity { id, generation } =
            self.identity.unwrap_or(VocabularyIdentity { id: 0, generation: 0 });
        [&id.to_le_bytes(), &generation.to_le_bytes(), self.name.as_bytes()].concat()
    }

    /// `None` for bytes that are none.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (generation, name) = rest.split_first_chunk()?;
        let (id, generation) = (u64::from_le_bytes(*id), u64::from_le_bytes(*generation));
        let name = String::from_utf8(name.to_vec()).ok()?;
        Some(Self { name, identity: Some(VocabularyIdentity { id, generation }) })
    }
}

impl BankShared {
    /// Which numbering the vocabulary of `table` has, which must be the one that the table was made for, if it was.
    pub(crate) fn check_vocabulary(
        &self,
        table: &str,
        wanted: &TableVocabulary,
    ) -> Result<VocabularyIdentity> {
        let there = self.vocabularies.lock().get(&wanted.name).map(|shared| shared.identity());
        let found = match (there, wanted.identity) {
            (Some(there), None) => return Ok(there),
            (Some(there), Some(wanted)) if there == wanted => return Ok(there),
            (Some(there), Some(wanted)) if there.id == wanted.id => format!(
                "it was renumbered since ({} times, and {} times when the table was made)",
                there.generation, wanted.generation
            ),
            (Some(_), Some(_)) => "the vocabulary of that name is another one".to_owned(),
            (None, _) => "the bank has none of that name".to_owned(),
        };
        Err(Error::OtherVocabulary {
            table: table.to_owned(),
            vocabulary: wanted.name.clone(),
            found,
        })
    }
}
