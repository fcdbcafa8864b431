//! Where a vocabulary's ids come from.

use std::sync::Arc;

use embank::{
    Bank, Error as BankError, Unknown, ValueKind, Vocabulary, VocabularyConfig, VocabularyIdentity,
};

use super::direct::NO_LIMIT;
use super::growing::new_table;
use super::{DirectTable, Growing};
use crate::error::{Error, Result};
use crate::operators::{MODULUS_MAX, ValueSpace};
use crate::plan::VocabularyPlan;
use crate::spec::VocabularySpec;

/// A vocabulary of a pipeline, beside what [`Growing`] has of it.
#[derive(Debug)]
pub(crate) struct Numbering {
    /// The bank's, for values without a known range. None for others: [`Growing`] has their ids.
    vocabulary: Option<Vocabulary>,
    /// Whether it counts how often values come.
    pub(crate) counts: bool,
    /// What comes less often gets no id of its own; 0 where all values do.
    pub(crate) min_count: u64,
}

/// A vocabulary as all threads of one run see it.
#[derive(Debug)]
pub(crate) struct RunNumbering {
    pub(crate) ids: Ids,
    /// What becomes of values that have no id.
    pub(crate) unseen: Unseen,
    /// Whether the run counts its values.
    pub(crate) counts: bool,
    /// An evaluation's: the numbering that its ids are of. It ends when there is another one.
    evaluates: Option<Evaluated>,
}

#[derive(Debug)]
pub(crate) enum Ids {
    /// Of values below some number. Ids from `limit` on are none for this run.
    Direct { table: Arc<DirectTable>, limit: u32 },
    /// Of values of any kind, in a bank; the same limit.
    Bank { vocabulary: Vocabulary, limit: u64 },
}

/// What becomes of a value that has no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// It is given one when its chunk is committed; a frozen vocabulary that has no id for such values refuses.
    Number,
    /// It gets this one.
    Id(u64),
    /// It ends the run.
    Refuse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evaluated {
    InMemory(u64),
    InBank(VocabularyIdentity),
}

/// Makes what a run needs for a vocabulary, with the values that the bank has.
pub(crate) fn open(plan: &VocabularyPlan, bank: Option<&Bank>) -> Result<(Numbering, Growing)> {
    let name = &plan.name;
    let kind = match plan.space {
        ValueSpace::Below(_) | ValueSpace::Numbers => ValueKind::U64,
        ValueSpace::Strings => ValueKind::Bytes,
    };
    let vocabulary = bank.map(|bank| open_in(bank, plan, kind)).transpose()?;
    let config = match &vocabulary {
        Some(vocabulary) => vocabulary.config().clone(),
        None => config_of(plan, kind, None),
    };
    config.validate(name).map_err(|error| Error::Spec(error.to_string()))?;
    let min_count = plan.settings.as_ref().map_or(0, |settings| settings.min_count);
    let counts = config.counts;
    let ValueSpace::Below(range) = plan.space else {
        let vocabulary = vocabulary.ok_or_else(|| {
            Error::Spec(format!("vocabulary {name:?} has values of any range and needs a bank"))
        })?;
        let vocabulary = Some(vocabulary);
        return Ok((Numbering { vocabulary, counts, min_count }, Growing::default()));
    };
    let first_id = u32::try_from(config.first_id).ok();
    let first_id = first_id
        .filter(|&first_id| u64::from(first_id) + u64::from(range) <= u64::from(MODULUS_MAX));
    let first_id = first_id.ok_or_else(|| {
        Error::Spec(format!(
            "vocabulary {name:?}: its first id, {}, and {range} possible values are more than 2^31 together",
            config.first_id
        ))
    })?;
    let table = new_table(name, range as usize)?;
    let unknown = match config.unknown {
        // Below the first id, which has 32 bits.
        Unknown::Id(id) => u32::try_from(id).ok(),
        _ => None,
    };
    let mut growing = Growing::new(name, table, (first_id, unknown), counts, vocabulary);
    growing.load()?;
    Ok((Numbering { vocabulary: None, counts, min_count }, growing))
}

fn open_in(bank: &Bank, plan: &VocabularyPlan, kind: ValueKind) -> Result<Vocabulary> {
    let name = &plan.name;
    let there = match bank.open_vocabulary(name) {
        Ok(there) => Some(there),
        Err(BankError::NoSuchVocabulary { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(there) = &there
        && there.config().kind != kind
    {
        return Err(Error::Spec(format!(
            "vocabulary {name:?} of the bank has {} values, and the pipeline's columns have {} values for it; take \
             another name",
            there.config().kind.name(),
            kind.name()
        )));
    }
    match there {
        Some(there) if plan.settings.is_none() => Ok(there),
        None if bank.reading().is_some() => Err(Error::Spec(format!(
            "bank {} has no vocabulary {name:?}, and is open to read only: let a pipeline on the bank learn it where the \
             bank is open for writing, and take a checkpoint",
            bank.path().display()
        ))),
        there => {
            let config =
                config_of(plan, kind, there.as_ref().map(|of| of.config().value_bytes_max));
            Ok(bank.vocabulary(name, config)?)
        }
    }
}

/// What the pipeline says about a vocabulary, as a bank's setting.
fn config_of(plan: &VocabularyPlan, kind: ValueKind, bytes_max: Option<u32>) -> VocabularyConfig {
    let mut config = match kind {
        ValueKind::Bytes => VocabularyConfig::bytes(),
        _ => VocabularyConfig::u64(),
    };
    if let Some(bytes_max) = bytes_max {
        config = config.value_bytes_max(bytes_max);
    }
    let Some(settings) = &plan.settings else { return config };
    let VocabularySpec { min_count, out_of_vocabulary, first_id, counts, value_bytes_max, .. } =
        *settings;
    if let Some(bytes_max) = value_bytes_max {
        config = config.value_bytes_max(bytes_max);
    }
    if let Some(id) = out_of_vocabulary {
        config = config.unknown(Unknown::Id(id));
    }
    config.first_id(first_id).counts(counts || min_count > 0)
}

impl Numbering {
    /// The vocabulary as a run sees it that gives ids to new values.
    pub(crate) fn learning(&self, growing: &Growing, counts: bool) -> RunNumbering {
        let (ids, unseen) = match (&self.vocabulary, growing.table()) {
            (Some(vocabulary), _) => {
                let unseen = match vocabulary.config().unknown {
                    // Nothing has to wait for its turn then.
                    Unknown::Id(id) if vocabulary.is_frozen() => Unseen::Id(id),
                    _ => Unseen::Number,
                };
                (Ids::Bank { vocabulary: vocabulary.clone(), limit: u64::MAX }, unseen)
            }
            // What a frozen table lacks has its id in the table itself.
            (None, Some(table)) => {
                (Ids::Direct { table: Arc::clone(table), limit: NO_LIMIT }, Unseen::Number)
            }
            (None, None) => unreachable!("a vocabulary is in a table or in a bank"),
        };
        RunNumbering { ids, unseen, counts: counts && self.counts, evaluates: None }
    }

    /// The vocabulary as a run sees it that looks up what is there now, and gives no ids.
    pub(crate) fn evaluating(&self, growing: &Growing) -> RunNumbering {
        let (ids, unknown, evaluates) = match (&self.vocabulary, growing.table()) {
            (Some(vocabulary), _) => {
                // Before the values: a renumbering in between is seen as one.
                let evaluates = Evaluated::InBank(vocabulary.identity());
                let unknown = match vocabulary.config().unknown {
                    Unknown::Id(id) => Some(id),
                    _ => None,
                };
                let limit = vocabulary.next_id();
                (Ids::Bank { vocabulary: vocabulary.clone(), limit }, unknown, evaluates)
            }
            (None, Some(table)) => {
                let ids = Ids::Direct { table: Arc::clone(table), limit: growing.next_id() };
                let unknown = growing.unknown().map(u64::from);
                (ids, unknown, Evaluated::InMemory(growing.numbering()))
            }
            (None, None) => unreachable!("a vocabulary is in a table or in a bank"),
        };
        let unseen = unknown.map_or(Unseen::Refuse, Unseen::Id);
        RunNumbering { ids, unseen, counts: false, evaluates: Some(evaluates) }
    }

    /// Whether it takes no new values.
    pub(crate) fn is_frozen(&self, growing: &Growing) -> bool {
        match &self.vocabulary {
            None => growing.is_frozen(),
            Some(vocabulary) => vocabulary.is_frozen(),
        }
    }

    /// Whether a bank counts while a pass goes on, so that a pass that fails leaves counts behind.
    pub(crate) fn counts_as_it_goes(&self) -> bool {
        self.counts && self.vocabulary.is_some()
    }

    /// Keeps what came often, and takes no new values from now on. How many stayed, and how many did not.
    pub(crate) fn keep_frequent(
        &self,
        growing: &mut Growing,
        min_count: u64,
    ) -> Result<(u64, u64)> {
        match &self.vocabulary {
            None => growing.keep_frequent(min_count),
            Some(vocabulary) => {
                let kept = vocabulary.keep_frequent(min_count)?;
                vocabulary.set_frozen(true)?;
                Ok((kept.kept, kept.removed))
            }
        }
    }
}

impl RunNumbering {
    /// Fails if an evaluation's ids are those of other values by now. Every batch asks before it is handed out, so an
    /// evaluation that begins with old ids hands out none.
    pub(crate) fn check_numbering(&self, name: &str, growing: &Growing) -> Result<()> {
        let now = match (&self.evaluates, &self.ids) {
            (None, _) => return Ok(()),
            (Some(_), Ids::Direct { .. }) => Evaluated::InMemory(growing.numbering()),
            (Some(_), Ids::Bank { vocabulary, .. }) => Evaluated::InBank(vocabulary.identity()),
        };
        // Another program part may have renumbered the bank's vocabulary, which the pipeline's own count can't tell.
        if self.evaluates == Some(now) && !growing.is_outdated() {
            return Ok(());
        }
        Err(Error::VocabularyRenumbered { name: name.to_owned() })
    }
}
