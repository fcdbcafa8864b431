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
    /// What becomes of values that have no id.
    pub(crate) on_unseen: OnUnseen,
    /// Whether the run counts its values.
    pub(crate) counts: bool,
    /// The numbering that an evaluation looks up. The evaluation ends when there is another one.
    evaluates: Option<Evaluated>,
}

/// Where a run looks ids up.
#[derive(Debug)]
pub(crate) enum RunIds {
    /// For values below some number. Ids from `limit` on do not count for this run.
    Direct { table: Arc<DirectTable>, limit: u32 },
    /// Of values of any kind.
    Bank(BankIds),
}

/// The ids of a bank's vocabulary.
#[derive(Debug)]
pub(crate) struct BankIds {
    pub(crate) vocabulary: Vocabulary,
    /// Ids from here on do not count for this run.
    pub(crate) limit: u64,
}

/// What becomes of a value that has no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnUnseen {
    /// It is given one when its chunk is committed; a frozen vocabulary that has no id for such
    /// values refuses.
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

impl RunNumbering {
    /// The vocabulary as a run sees it that gives ids to new values. It `counts` if the vocabulary
    /// does.
    pub(crate) fn learning(numbering: &Numbering, counts: bool) -> Self {
        let (ids, on_unseen) = match &numbering.ids {
            Ids::Bank(vocabulary) => {
                let on_unseen = match vocabulary.config().unknown_id {
                    // Nothing has to wait for its turn then.
                    Some(id) if vocabulary.is_frozen() => OnUnseen::Id(id),
                    _ => OnUnseen::Number,
                };
                (RunIds::bank(vocabulary, u64::MAX), on_unseen)
            }
            // What a frozen table lacks has its id in the table itself.
            Ids::Memory(memory) => (RunIds::direct(memory.table(), NO_LIMIT), OnUnseen::Number),
        };
        Self { ids, on_unseen, counts: counts && numbering.counts, evaluates: None }
    }

    /// The vocabulary as a run sees it that looks up what is there now, and gives no ids.
    pub(crate) fn evaluating(numbering: &Numbering) -> Self {
        let (ids, unknown, evaluates) = match &numbering.ids {
            Ids::Bank(vocabulary) => {
                // Before the values: a renumbering in between is seen as one.
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

    /// Fails if an evaluation's ids are those of other values by now. Every batch asks before it is
    /// handed out, so an evaluation that begins with old ids hands out none.
    pub(crate) fn check_numbering(&self, name: &str, numbering: &Numbering) -> Result<()> {
        let Some(evaluates) = self.evaluates else { return Ok(()) };
        let is_current = match &numbering.ids {
            // Another program part may have renumbered the bank's vocabulary, which the pipeline's
            // own count can't tell.
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
