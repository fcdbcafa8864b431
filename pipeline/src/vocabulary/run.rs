//! A vocabulary as all threads of one run see it.

use std::sync::Arc;

use embank::{Vocabulary, VocabularyIdentity};

use super::direct::{DirectTable, NO_LIMIT};
use super::numbering::{Ids, Numbering};
use crate::error::{Error, Result};

/// A vocabulary as all threads of one run see it.
#[derive(Debug)]
pub(crate) struct RunNumbering {
    pub(crate) ids: RunIds,
    /// What happens to a value without an id.
    pub(crate) on_unseen: OnUnseen,
    /// Whether the run counts its values.
    pub(crate) counts: bool,
    /// Identifies the numbering that the vocabulary had when an evaluation began. If the vocabulary
    /// is renumbered later, the evaluation fails. `None` for a run that is no evaluation.
    evaluates: Option<Evaluated>,
}

/// Where a run looks ids up.
#[derive(Debug)]
pub(crate) enum RunIds {
    /// A table, for values of a known range. The run treats ids from `limit` on as missing.
    Direct { table: Arc<DirectTable>, limit: u32 },
    /// A bank's vocabulary, for values of any kind.
    Bank(BankIds),
}

/// A bank's vocabulary, with the limit of the ids that the run knows.
#[derive(Debug)]
pub(crate) struct BankIds {
    pub(crate) vocabulary: Vocabulary,
    /// The run treats ids from `limit` on as missing.
    pub(crate) limit: u64,
}

/// What happens to a value without an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnUnseen {
    /// The commit of the value's chunk gives it an id. If the vocabulary is frozen and has no id
    /// for unknown values, the commit fails.
    Number,
    /// The value gets this id.
    Id(u64),
    /// The value ends the run with an error.
    Refuse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evaluated {
    InMemory(u64),
    InBank(VocabularyIdentity),
}

impl RunNumbering {
    /// Makes the view of a run that gives ids to new values. The run counts if `counts` is true and
    /// the vocabulary counts.
    pub(crate) fn learning(numbering: &Numbering, counts: bool) -> Self {
        let (ids, on_unseen) = match &numbering.ids {
            Ids::Bank(vocabulary) => {
                let on_unseen = match vocabulary.config().unknown_id {
                    // Every unknown value gets `id` at the look-up, so no value waits for the
                    // commit.
                    Some(id) if vocabulary.is_frozen() => OnUnseen::Id(id),
                    _ => OnUnseen::Number,
                };
                (RunIds::bank(vocabulary, u64::MAX), on_unseen)
            }
            // If the table is frozen and unknown values have an id, its free slots hold that id and
            // the look-up finds it. So `Number` is right in every case.
            Ids::Memory(memory) => (RunIds::direct(memory.table(), NO_LIMIT), OnUnseen::Number),
        };
        Self { ids, on_unseen, counts: counts && numbering.counts, evaluates: None }
    }

    /// Makes the view of a run that knows only the present values and gives no ids.
    pub(crate) fn evaluating(numbering: &Numbering) -> Self {
        let (ids, unknown, evaluates) = match &numbering.ids {
            Ids::Bank(vocabulary) => {
                // Read before the next id. If the vocabulary is renumbered between the two reads,
                // `check_numbering` notices it.
                let evaluates = Evaluated::InBank(vocabulary.identity());
                let unknown = vocabulary.config().unknown_id;
                (RunIds::bank(vocabulary, vocabulary.next_id()), unknown, evaluates)
            }
            Ids::Memory(memory) => {
                let ids = RunIds::direct(memory.table(), memory.next_id());
                let unknown = memory.unknown().map(u64::from);
                (ids, unknown, Evaluated::InMemory(memory.renumberings()))
            }
        };
        let on_unseen = unknown.map_or(OnUnseen::Refuse, OnUnseen::Id);
        Self { ids, on_unseen, counts: false, evaluates: Some(evaluates) }
    }

    /// Makes the view of a run that reads again what a run that learned has read: as an evaluation,
    /// but a growing vocabulary has all values, so that another value is an error.
    pub(crate) fn replaying(numbering: &Numbering) -> Self {
        let evaluating = Self::evaluating(numbering);
        if numbering.is_frozen() {
            return evaluating;
        }
        Self { on_unseen: OnUnseen::Refuse, ..evaluating }
    }

    /// Fails if the vocabulary was renumbered since the evaluation began. Called before the
    /// consumer gets a batch, so the consumer never gets a batch with old ids.
    pub(crate) fn check_numbering(&self, name: &str, numbering: &Numbering) -> Result<()> {
        let Some(evaluates) = self.evaluates else { return Ok(()) };
        let is_current = match &numbering.ids {
            // Another part of the program may have renumbered the bank's vocabulary. `renumberings`
            // counts only the pipeline's own changes, so the bank is asked too.
            Ids::Memory(memory) => {
                evaluates == Evaluated::InMemory(memory.renumberings()) && !memory.is_outdated()
            }
            Ids::Bank(vocabulary) => evaluates == Evaluated::InBank(vocabulary.identity()),
        };
        if is_current {
            return Ok(());
        }
        Err(Error::VocabularyRenumbered { name: name.to_owned() })
    }
}

impl RunIds {
    fn bank(vocabulary: &Vocabulary, limit: u64) -> Self {
        Self::Bank(BankIds { vocabulary: vocabulary.clone(), limit })
    }

    fn direct(table: &Arc<DirectTable>, limit: u32) -> Self {
        Self::Direct { table: Arc::clone(table), limit }
    }
}
