//! Opens the vocabularies of a pipeline, or makes them.

use embank::{
    Bank, ByteBuffer, Error as BankError, OwnedValues, ValueKind, Values, Vocabulary,
    VocabularyConfig,
};

use super::memory::{MemoryNumbering, MemorySettings, new_table};
use super::numbering::{Ids, Numbering};
use crate::error::{Error, Result};
use crate::operators::{MODULUS_MAX, ValueSpace};
use crate::plan::VocabularyPlan;
use crate::spec::VocabularySpec;

/// Opens or makes a vocabulary. If its ids are in a table and a bank keeps them, loads the bank's
/// values into the table.
pub(crate) fn open(plan: &VocabularyPlan, bank: Option<&Bank>) -> Result<Numbering> {
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
    let ids = match plan.space {
        ValueSpace::Below(range) => {
            let settings = memory_settings(name, &config, range)?;
            let table = new_table(name, range as usize)?;
            let mut memory = MemoryNumbering::new(settings, table, vocabulary);
            memory.load()?;
            Ids::Memory(memory)
        }
        ValueSpace::Numbers | ValueSpace::Strings => Ids::Bank(vocabulary.ok_or_else(|| {
            Error::Spec(format!("vocabulary {name:?} has values of any range and needs a bank"))
        })?),
    };
    Ok(Numbering {
        ids,
        counts: config.counts,
        min_count: plan.settings.as_ref().map_or(0, |settings| settings.min_count),
    })
}

/// Values that one call inserts into a bank.
const WRITTEN_AT_ONCE: usize = 1 << 16;

/// Writes the values, counts and state of `from` into the bank's vocabulary, which must be new or
/// have exactly these values.
pub(crate) fn write(plan: &VocabularyPlan, from: &Numbering, bank: &Bank) -> Result<()> {
    let kind = match plan.space {
        ValueSpace::Below(_) | ValueSpace::Numbers => ValueKind::U64,
        ValueSpace::Strings => ValueKind::Bytes,
    };
    let (values, counts) = from.export()?;
    let vocabulary = open_in(bank, plan, kind)?;
    if !vocabulary.is_empty() {
        if has_values(&vocabulary, values.values())? && vocabulary.is_frozen() == from.is_frozen() {
            return Ok(());
        }
        return Err(Error::Spec(format!(
            "vocabulary {:?} of the bank has {} values already, and other ones than the merged parts: take a bank without \
             it, or drop it with its tables",
            plan.name,
            vocabulary.len()
        )));
    }
    let mut first = 0;
    while first < values.values().len() {
        let end = values.values().len().min(first + WRITTEN_AT_ONCE);
        let mut ids = vec![0; end - first];
        match &values {
            OwnedValues::U64(values) => {
                vocabulary.ids_or_insert(&values[first..end], &mut ids)?;
            }
            OwnedValues::Bytes(values) => {
                let some = ByteBuffer::from_iter((first..end).map(|place| values.get(place)));
                vocabulary.ids_or_insert(&some, &mut ids)?;
            }
        }
        if let Some(counts) = &counts {
            vocabulary.add_counts(&ids, &counts[first..end])?;
        }
        first = end;
    }
    if from.is_frozen() {
        vocabulary.set_frozen(true)?;
    }
    Ok(())
}

/// True if the vocabulary has exactly these values in this order.
fn has_values(vocabulary: &Vocabulary, values: Values<'_>) -> Result<bool> {
    if vocabulary.len() != values.len() as u64 {
        return Ok(false);
    }
    let mut first = 0;
    let mut scan = vocabulary.scan();
    while let Some(chunk) = scan.next_chunk()? {
        let range = first..first + chunk.values.len();
        let equal = match (chunk.values, values) {
            (Values::U64(there), Values::U64(wanted)) => there == &wanted[range.clone()],
            (Values::Bytes(there), Values::Bytes(wanted)) => {
                there.iter().eq(range.clone().map(|place| wanted.get(place)))
            }
            _ => false,
        };
        if !equal {
            return Ok(false);
        }
        first = range.end;
    }
    Ok(true)
}

/// Settings for a vocabulary of values below `range` in memory.
fn memory_settings(name: &str, config: &VocabularyConfig, range: u32) -> Result<MemorySettings> {
    let first_id = u32::try_from(config.first_id).ok();
    let first_id = first_id
        .filter(|&first_id| u64::from(first_id) + u64::from(range) <= u64::from(MODULUS_MAX));
    let first_id = first_id.ok_or_else(|| {
        Error::Spec(format!(
            "vocabulary {name:?}: its first id, {}, and {range} possible values are more than 2^31 together",
            config.first_id
        ))
    })?;
    // The id fits in 32 bits: the bank requires that it is below the first id, which fits.
    let unknown = config.unknown_id.and_then(|id| u32::try_from(id).ok());
    Ok(MemorySettings { name: name.to_owned(), first_id, unknown, counts: config.counts })
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

/// Translates the spec's settings of a vocabulary into a bank's configuration.
fn config_of(plan: &VocabularyPlan, kind: ValueKind, bytes_max: Option<u32>) -> VocabularyConfig {
    let mut config = match kind {
        ValueKind::Bytes => VocabularyConfig::bytes(),
        _ => VocabularyConfig::u64(),
    };
    if let Some(bytes_max) = bytes_max {
        config = config.value_bytes_max(bytes_max);
    }
    let Some(settings) = &plan.settings else { return config };
    let VocabularySpec { min_count, unknown_id, first_id, counts, value_bytes_max, .. } = *settings;
    if let Some(bytes_max) = value_bytes_max {
        config = config.value_bytes_max(bytes_max);
    }
    if let Some(id) = unknown_id {
        config = config.unknown_id(id);
    }
    config.first_id(first_id).counts(counts || min_count > 0)
}
