//! All that a pipeline has of one vocabulary, between its runs.

use embank::Vocabulary;

use super::counts::ValueCounts;
use super::memory::{Kept, MemoryNumbering};
use crate::error::Result;

/// What [`Pipeline::keep_frequent`](crate::Pipeline::keep_frequent) has done to a vocabulary.
///
/// # Examples
/// See there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptValues {
    /// Its name.
    pub vocabulary: String,
    /// Values that stayed.
    pub kept: u64,
    /// Values that have no id of their own any more.
    pub removed: u64,
}

/// A vocabulary of a pipeline. The pipeline and its evaluations share it under a lock.
#[derive(Debug)]
pub(crate) struct Numbering {
    pub(super) ids: Ids,
    /// Whether it counts how often values come.
    pub(crate) counts: bool,
    /// Values that come less often get no id of their own; 0 if all values do.
    pub(crate) min_count: u64,
}

/// Where the ids of a vocabulary are.
#[derive(Debug)]
pub(super) enum Ids {
    /// In a table, for values of a known range, whether or not a bank keeps them.
    Memory(MemoryNumbering),
    /// In a bank, for all other values.
    Bank(Vocabulary),
}

impl Numbering {
    /// What numbers in memory; `None` if the bank numbers.
    pub(crate) fn memory(&self) -> Option<&MemoryNumbering> {
        match &self.ids {
            Ids::Memory(memory) => Some(memory),
            Ids::Bank(_) => None,
        }
    }

    /// As [`memory`](Self::memory), to give ids to new values.
    pub(crate) fn memory_mut(&mut self) -> Option<&mut MemoryNumbering> {
        match &mut self.ids {
            Ids::Memory(memory) => Some(memory),
            Ids::Bank(_) => None,
        }
    }

    /// The values by their ids, if they have a known range. Others are to be seen in the bank.
    pub(crate) fn values(&self) -> Option<&[u32]> {
        self.memory().map(MemoryNumbering::values)
    }

    /// Whether it takes no new values.
    pub(crate) fn is_frozen(&self) -> bool {
        match &self.ids {
            Ids::Memory(memory) => memory.is_frozen(),
            Ids::Bank(vocabulary) => vocabulary.is_frozen(),
        }
    }

    /// Whether a bank counts while a pass goes on, so that a pass that fails leaves counts behind.
    pub(crate) fn counts_as_it_goes(&self) -> bool {
        self.counts && matches!(self.ids, Ids::Bank(_))
    }

    /// Whether it counts, and takes new values.
    pub(crate) fn is_counting(&self) -> bool {
        self.counts && !self.is_frozen()
    }

    /// Adds what a thread has counted in memory.
    pub(crate) fn add(&mut self, counted: &ValueCounts) {
        if let Some(memory) = self.memory_mut() {
            memory.add(counted);
        }
    }

    /// Keeps what came often, and takes no new values from now on.
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

    /// Takes over what others have done to the bank's vocabulary, if nothing of this one would be
    /// lost.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        self.memory_mut().map_or(Ok(()), MemoryNumbering::refresh)
    }

    /// Gives the bank what it does not have yet.
    pub(crate) fn save(&mut self) -> Result<()> {
        self.memory_mut().map_or(Ok(()), MemoryNumbering::save)
    }

    /// Tells the bank which ids are out.
    pub(crate) fn give_out(&self) {
        if let Some(memory) = self.memory() {
            memory.give_out();
        }
    }
}
