//! Describes the vocabularies of a bank that is inspected without opening it.

use embank_kv::inspect::TableSummary;

use super::config::VocabularyConfig;
use super::descriptor::{Part, Role, is_of_a_vocabulary, role_of};
use super::numbering::header_name;
use crate::row::numbering::renumberings;

/// A vocabulary as a checkpoint's metadata describes it, for programs that inspect a bank without
/// opening it ([`inspect`](crate::inspect)).
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, VocabularyConfig, VocabularySummary};
///
/// let bank = Bank::open(dir.path(), BankOptions::default())?;
/// bank.vocabulary("user", VocabularyConfig::u64())?.ids_or_insert(&[900, 800], &mut [0; 2])?;
/// bank.checkpoint(b"")?;
///
/// let summary = embank::inspect::summary(dir.path())?;
/// let found = VocabularySummary::all(&summary.checkpoints[0].tables);
/// assert_eq!((&found[0].name[..], found[0].rows), ("user", 2));
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularySummary {
    /// The vocabulary's name.
    pub name: String,
    /// The vocabulary's settings.
    pub config: VocabularyConfig,
    /// The number of renumberings of the vocabulary.
    pub generation: u32,
    /// The number of rows that map values to ids. Strings with equal hashes share a row, so there
    /// may be fewer rows than values. An interrupted insertion may have left additional rows.
    pub rows: u64,
    /// Bytes of the records of all tables of the vocabulary.
    pub record_bytes: u64,
}

impl VocabularySummary {
    /// Returns the vocabularies among a checkpoint's tables, in the order in which they were made.
    /// A checkpoint that was cut during a renumbering has the tables of two numberings. Only the
    /// header tells which numbering is valid; this function shows the older numbering.
    #[must_use]
    pub fn all(tables: &[TableSummary]) -> Vec<Self> {
        let roles: Vec<(&TableSummary, Role)> = tables
            .iter()
            .filter_map(|table| Some((table, role_of(&table.descriptor)?.ok()?)))
            .collect();
        let of = |(table, role): &(&TableSummary, Role)| {
            let Role::Header(founding) = role else { return None };
            let name = table.name.strip_suffix(&header_name(""))?;
            let parts = roles.iter().filter_map(|(table, role)| match role {
                Role::Part { part, identity, numbering } if *identity == founding.identity => {
                    Some((*table, *part, *numbering))
                }
                Role::Part { .. } | Role::Header(_) => None,
            });
            let numbering =
                parts.clone().map(|of| of.2).min_by_key(|&number| renumberings(number))?;
            let ids = parts.clone().find(|of| (of.1, of.2) == (Part::Ids, numbering))?;
            Some(Self {
                name: name.to_owned(),
                config: founding.config.clone(),
                generation: renumberings(numbering),
                rows: ids.0.rows,
                record_bytes: table.record_bytes + parts.map(|of| of.0.record_bytes).sum::<u64>(),
            })
        };
        roles.iter().filter_map(of).collect()
    }

    /// True if a table belongs to a vocabulary, or to a numbering or a vocabulary that was not
    /// removed completely.
    #[must_use]
    pub fn owns(table: &TableSummary) -> bool {
        is_of_a_vocabulary(&table.descriptor)
    }
}
