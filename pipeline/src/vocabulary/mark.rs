//! Marks of how far a vocabulary had grown at a place of a run.
//!
//! A run that begins at the place must know that the vocabulary has all values of the rows before
//! it. A vocabulary only appends values. If its first values have the digest of a mark, they are
//! the values that the vocabulary of the marking run had, and those include the values of all rows
//! before the mark. The rows would then add nothing.

use embank::VocabularyIdentity;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::numbering::{Ids, Numbering};
use super::run::{OnUnseen, RunIds, RunNumbering};

/// The number and the digest of the values that a vocabulary had. In JSON, a list of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub(crate) struct VocabularyMark {
    values: u64,
    /// Of a vocabulary in memory, XXH3 of the values. Of a bank's vocabulary, its fingerprint.
    digest: u64,
}

impl From<(u64, u64)> for VocabularyMark {
    fn from((values, digest): (u64, u64)) -> Self {
        Self { values, digest }
    }
}

impl From<VocabularyMark> for (u64, u64) {
    fn from(mark: VocabularyMark) -> Self {
        (mark.values, mark.digest)
    }
}

/// Makes the marks of one vocabulary during a run.
pub(crate) struct Marker {
    /// Hashes the first values of a vocabulary in memory: those of `hashed`.
    hash: Xxh3,
    hashed: VocabularyMark,
    identity: Option<VocabularyIdentity>,
    /// True if the vocabulary may lack values of the run's rows.
    lacks: bool,
}

impl Default for Marker {
    fn default() -> Self {
        let hash = Xxh3::default();
        let hashed = VocabularyMark { values: 0, digest: hash.digest() };
        Self { hash, hashed, identity: None, lacks: false }
    }
}

impl Marker {
    /// Hashes the values of a vocabulary in memory that are not hashed yet.
    fn hash(&mut self, new: &[u32]) -> VocabularyMark {
        if !new.is_empty() {
            self.hash.update(bytemuck::cast_slice(new));
            self.hashed.values += new.len() as u64;
            self.hashed.digest = self.hash.digest();
        }
        self.hashed
    }

    /// Marks the present values. `None` if the vocabulary may lack values of the run's rows so far.
    pub(crate) fn mark(
        &mut self,
        run: &RunNumbering,
        numbering: &Numbering,
    ) -> Option<VocabularyMark> {
        self.lacks |= run.gives_unknown_id(numbering);
        let mark = match &numbering.ids {
            Ids::Memory(memory) => {
                memory.values().get(self.hashed.values as usize..).map(|new| self.hash(new))
            }
            Ids::Bank(vocabulary) => {
                let identity = vocabulary.identity();
                // A renumbering takes values away.
                self.lacks |= *self.identity.get_or_insert(identity) != identity;
                let values = vocabulary.len();
                let digest = vocabulary.fingerprint();
                // Another user of the vocabulary may add values between the calls.
                (vocabulary.len() == values).then_some(VocabularyMark { values, digest })
            }
        };
        mark.filter(|_| !self.lacks)
    }
}

impl RunNumbering {
    /// True if values without an id get the id of unknown values, so that no row changes the
    /// vocabulary or fails.
    fn gives_unknown_id(&self, numbering: &Numbering) -> bool {
        let frozen = || numbering.is_frozen() && numbering.has_unknown_id();
        matches!(self.on_unseen, OnUnseen::Id(_)) || frozen()
    }

    /// True if the rows before a mark would neither change the vocabulary nor fail. `None` is the
    /// mark of a vocabulary that may lack values of these rows.
    pub(crate) fn may_begin_at(&self, numbering: &Numbering, mark: Option<VocabularyMark>) -> bool {
        if self.gives_unknown_id(numbering) {
            return true;
        }
        let Some(VocabularyMark { values, digest }) = mark else { return false };
        // An evaluation knows the ids below its limit only.
        let end = numbering.first_id().saturating_add(values);
        let known = match &self.ids {
            RunIds::Direct { limit, .. } => end <= u64::from(*limit),
            RunIds::Bank(ids) => end <= ids.limit,
        };
        known && numbering.begins_with(values, digest)
    }
}

impl Numbering {
    /// True if the vocabulary's first `count` values have the digest. False if they can't be read;
    /// the run then meets the error itself.
    fn begins_with(&self, count: u64, digest: u64) -> bool {
        match &self.ids {
            Ids::Memory(memory) => {
                let first =
                    usize::try_from(count).ok().and_then(|count| memory.values().get(..count));
                first.is_some_and(|first| xxh3_64(bytemuck::cast_slice(first)) == digest)
            }
            Ids::Bank(vocabulary) => {
                vocabulary.fingerprint_of_first(count).is_ok_and(|found| found == Some(digest))
            }
        }
    }
}
