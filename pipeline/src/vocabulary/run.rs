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
    /// The treatment of values without an id.
    pub(crate) on_unseen: OnUnseen,
    /// Whether the run counts its values.
    pub(crate) counts: bool,
    /// The numbering that an evaluation began with. The evaluation fails if the vocabulary is
    /// renumbered. `None` for other runs.
    evaluates: Option<Evaluated>,
}

/// The place in which a run looks ids up.
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
    /// The run treats ids from here on as missing.
    pub(crate) limit: u64,
}

/// Treatment of a value without an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnUnseen {
    /// The commit of the value's chunk gives it an id. A frozen vocabulary without an id for
    /// unknown values fails instead.
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
    /// Makes the view of a run that gives ids to new values. The run counts if both `counts` and
    /// the vocabulary say so.
    pub(crate) fn learning(numbering: &Numbering, counts: bool) -> Self {
        let (ids, on_unseen) = match &numbering.ids {
            Ids::Bank(vocabulary) => {
                let on_unseen = match vocabulary.config().unknown_id {
                    // Every unknown value gets `id` at once, so none has to wait for the commit.
                    Some(id) if vocabulary.is_frozen() => OnUnseen::Id(id),
                    _ => OnUnseen::Number,
                };
                (RunIds::bank(vocabulary, u64::MAX), on_unseen)
            }
            // A frozen table holds the id of unknown values in its free slots, so `Number` finds it
            // there.
            Ids::Memory(memory) => (RunIds::direct(memory.table(), NO_LIMIT), OnUnseen::Number),
        };
        Self { ids, on_unseen, counts: counts && numbering.counts, evaluates: None }
    }

    /// Makes the view of a run that looks up the present values and gives no ids.
    pub(crate) fn evaluating(numbering: &Numbering) -> Self {
        let (ids, unknown, evaluates) = match &numbering.ids {
            Ids::Bank(vocabulary) => {
                // Read before the next id: a renumbering in between is then noticed.
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

    /// Fails if the vocabulary was renumbered since the evaluation began. Called before each batch
    /// is handed out, so no batch with old ids goes out.
    pub(crate) fn check_numbering(&self, name: &str, numbering: &Numbering) -> Result<()> {
        let Some(evaluates) = self.evaluates else { return Ok(()) };
        let is_current = match &numbering.ids {
            // Another program part may have renumbered the bank's vocabulary. The pipeline's own
            // count does not include that, so the bank is asked too.
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
