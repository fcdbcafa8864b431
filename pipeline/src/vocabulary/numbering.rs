//! Where a vocabulary's ids come from.

use embank::{Bank, Error as BankError, Unknown, ValueKind, Vocabulary, VocabularyConfig};

use super::{DirectTable, Growing};
use crate::error::{Error, Result};
use crate::kernels::MODULUS_MAX;
use crate::plan::{ValueSpace, VocabularyPlan};
use crate::spec::VocabularySpec;

/// A vocabulary as all threads of a run see it.
#[derive(Debug)]
pub(crate) struct Numbering {
    pub(crate) ids: Ids,
    /// Whether it counts how often values come.
    pub(crate) counts: bool,
    /// What comes less often gets no id of its own; 0 where all values do.
    pub(crate) min_count: u64,
}

#[derive(Debug)]
pub(crate) enum Ids {
    /// Values below some number.
    Direct(DirectTable),
    /// Values of any kind, in a bank.
    Bank {
        vocabulary: Vocabulary,
        /// Whether unknown values have an id, because it is frozen: then nothing has to wait for its turn.
        settled: bool,
    },
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
        let ids = Ids::Bank { vocabulary, settled: false };
        return Ok((Numbering { ids, counts, min_count }, Growing::default()));
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
    let table = DirectTable::new(range).map_err(|source| Error::OutOfMemory {
        name: name.clone(),
        bytes: u64::from(range) * 4,
        source,
    })?;
    let unknown = match config.unknown {
        // Below the first id, which has 32 bits.
        Unknown::Id(id) => u32::try_from(id).ok(),
        _ => None,
    };
    let mut growing = Growing::new(name, first_id, unknown, counts, vocabulary);
    growing.load(&table)?;
    Ok((Numbering { ids: Ids::Direct(table), counts, min_count }, growing))
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
    /// Sees what has become of a bank's vocabulary, before a run.
    pub(crate) fn refresh(&mut self, growing: &mut Growing) -> Result<()> {
        match &mut self.ids {
            Ids::Direct(table) => growing.refresh(table),
            Ids::Bank { vocabulary, settled } => {
                let has_id = !matches!(vocabulary.config().unknown, Unknown::Error);
                *settled = vocabulary.is_frozen() && has_id;
                Ok(())
            }
        }
    }

    /// Whether it takes no new values.
    pub(crate) fn is_frozen(&self, growing: &Growing) -> bool {
        match &self.ids {
            Ids::Direct(_) => growing.is_frozen(),
            Ids::Bank { vocabulary, .. } => vocabulary.is_frozen(),
        }
    }

    /// Keeps what came often, and takes no new values from now on. How many stayed, and how many did not.
    pub(crate) fn keep_frequent(
        &self,
        growing: &mut Growing,
        min_count: u64,
    ) -> Result<(u64, u64)> {
        match &self.ids {
            Ids::Direct(table) => growing.keep_frequent(table, min_count),
            Ids::Bank { vocabulary, .. } => {
                let kept = vocabulary.keep_frequent(min_count)?;
                vocabulary.set_frozen(true)?;
                Ok((kept.kept, kept.removed))
            }
        }
    }
}
