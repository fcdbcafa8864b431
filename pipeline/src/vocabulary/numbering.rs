//! The state of one vocabulary between the runs of a pipeline.

use embank::{ByteBuffer, OwnedValues, ValueKind, Values, Vocabulary};

use super::counts::ValueCounts;
use super::memory::{Kept, MemoryNumbering};
use crate::error::{Error, Result};

/// Result of [`Pipeline::keep_frequent`](crate::Pipeline::keep_frequent) for one vocabulary.
///
/// # Examples
/// See [`Pipeline::keep_frequent`](crate::Pipeline::keep_frequent).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptValues {
    /// The vocabulary's name.
    pub vocabulary: String,
    /// Number of values that kept an id.
    pub kept: u64,
    /// Number of values that lost their id.
    pub removed: u64,
}

/// A vocabulary of a pipeline. The pipeline and its evaluations share it under a lock.
#[derive(Debug)]
pub(crate) struct Numbering {
    pub(super) ids: Ids,
    /// Whether a pass without output counts how often values occur.
    pub(crate) counts: bool,
    /// Values that occur fewer than `min_count` times have no id of their own. 0 if all values get
    /// ids.
    pub(crate) min_count: u64,
}

/// Where a vocabulary keeps its ids.
#[derive(Debug)]
pub(super) enum Ids {
    /// A table in memory, for values of a known range. A bank may keep these ids too.
    Memory(MemoryNumbering),
    /// A bank's vocabulary, for values of unknown range.
    Bank(Vocabulary),
}

impl Numbering {
    /// The vocabulary in memory. `None` if the bank gives the ids.
    pub(crate) fn memory(&self) -> Option<&MemoryNumbering> {
        match &self.ids {
            Ids::Memory(memory) => Some(memory),
            Ids::Bank(_) => None,
        }
    }

    /// The vocabulary in memory, to give ids to new values. `None` if the bank gives the ids.
    pub(crate) fn memory_mut(&mut self) -> Option<&mut MemoryNumbering> {
        match &mut self.ids {
            Ids::Memory(memory) => Some(memory),
            Ids::Bank(_) => None,
        }
    }

    /// The values in the order of their ids. `None` if they are only in the bank, because their
    /// range is not known.
    pub(crate) fn values(&self) -> Option<&[u32]> {
        self.memory().map(MemoryNumbering::values)
    }

    /// Largest number of bytes of a value. `None` unless the values are texts.
    pub(crate) fn value_bytes_max(&self) -> Option<u32> {
        match &self.ids {
            Ids::Bank(vocabulary) if vocabulary.config().kind == ValueKind::Bytes => {
                Some(vocabulary.config().value_bytes_max)
            }
            Ids::Bank(_) | Ids::Memory(_) => None,
        }
    }

    /// The id of the first value.
    pub(super) fn first_id(&self) -> u64 {
        match &self.ids {
            Ids::Memory(memory) => u64::from(memory.first_id()),
            Ids::Bank(vocabulary) => vocabulary.config().first_id,
        }
    }

    /// True if unknown values have an id once the vocabulary is frozen.
    pub(super) fn has_unknown_id(&self) -> bool {
        match &self.ids {
            Ids::Memory(memory) => memory.unknown().is_some(),
            Ids::Bank(vocabulary) => vocabulary.config().unknown_id.is_some(),
        }
    }

    /// True if the vocabulary takes no new values.
    pub(crate) fn is_frozen(&self) -> bool {
        match &self.ids {
            Ids::Memory(memory) => memory.is_frozen(),
            Ids::Bank(vocabulary) => vocabulary.is_frozen(),
        }
    }

    /// True if the bank counts during a pass. A pass that fails then leaves its counts in the bank.
    pub(crate) fn counts_as_it_goes(&self) -> bool {
        self.counts && matches!(self.ids, Ids::Bank(_))
    }

    /// True if the vocabulary counts and takes new values.
    pub(crate) fn is_counting(&self) -> bool {
        self.counts && !self.is_frozen()
    }

    /// Adds the counts of one thread. Does nothing if the vocabulary is in a bank, which has
    /// counted already.
    pub(crate) fn add(&mut self, counted: &ValueCounts) {
        if let Some(memory) = self.memory_mut() {
            memory.add(counted);
        }
    }

    /// Keeps the values that occurred at least `min_count` times, and freezes the vocabulary.
    pub(crate) fn keep_frequent(&mut self, min_count: u64) -> Result<Kept> {
        match &mut self.ids {
            Ids::Memory(memory) => memory.keep_frequent(min_count),
            Ids::Bank(vocabulary) => {
                let kept = vocabulary.keep_frequent(min_count)?;
                vocabulary.set_frozen(true)?;
                Ok(Kept { kept: kept.kept, removed: kept.removed })
            }
        }
    }

    /// Gives ids to those of `values` that have none, in their order, and adds the counts of a
    /// vocabulary that counts. `counts` is empty, or has a count for each value.
    pub(crate) fn absorb(&mut self, values: Values<'_>, counts: &[u64]) -> Result<()> {
        match (&mut self.ids, values) {
            (Ids::Memory(memory), Values::U64(values)) => memory.absorb(values, counts),
            (Ids::Memory(memory), Values::Bytes(_)) => Err(Error::Spec(format!(
                "vocabulary {:?} has numbers, and was given texts",
                memory.name()
            ))),
            (Ids::Bank(vocabulary), values) => {
                let mut ids = vec![0; values.len()];
                vocabulary.ids_or_insert(values, &mut ids)?;
                if self.counts && !counts.is_empty() {
                    vocabulary.add_counts(&ids, counts)?;
                }
                Ok(())
            }
        }
    }

    /// The values in the order of their ids, and their counts if the vocabulary counts.
    pub(crate) fn export(&self) -> Result<(OwnedValues, Option<Vec<u64>>)> {
        let vocabulary = match &self.ids {
            Ids::Memory(memory) => return Ok(memory.export()),
            Ids::Bank(vocabulary) => vocabulary,
        };
        let (mut numbers, mut texts) = (Vec::new(), ByteBuffer::default());
        let mut counts = self.counts.then(Vec::new);
        let mut scan = vocabulary.scan();
        while let Some(chunk) = scan.next_chunk()? {
            match chunk.values {
                Values::U64(values) => numbers.extend_from_slice(values),
                Values::Bytes(values) => values.iter().for_each(|value| texts.push(value)),
            }
            if let Some(counts) = &mut counts {
                counts.extend_from_slice(chunk.counts);
            }
        }
        let values = match vocabulary.config().kind {
            ValueKind::Bytes => OwnedValues::Bytes(texts),
            _ => OwnedValues::U64(numbers),
        };
        Ok((values, counts))
    }

    /// Freezes the vocabulary of a pipeline without a bank.
    pub(crate) fn freeze(&mut self) -> Result<()> {
        match &mut self.ids {
            Ids::Memory(memory) => memory.freeze(),
            Ids::Bank(vocabulary) => vocabulary.set_frozen(true)?,
        }
        Ok(())
    }

    /// Adopts changes that another program made to the bank's vocabulary. Fails if unsaved values
    /// or counts would be lost.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        self.memory_mut().map_or(Ok(()), MemoryNumbering::refresh)
    }

    /// Saves the values and counts that the bank does not have yet.
    pub(crate) fn save(&mut self) -> Result<()> {
        self.memory_mut().map_or(Ok(()), MemoryNumbering::save)
    }

    /// Tells the bank which ids the pipeline gives. Called before the batch with new ids is handed
    /// out.
    pub(crate) fn give_out(&mut self) -> Result<()> {
        self.memory_mut().map_or(Ok(()), MemoryNumbering::give_out)
    }
}
