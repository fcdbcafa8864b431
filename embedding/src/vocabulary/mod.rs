//! Vocabularies map raw values to dense ids, in order of first appearance, and ids back to values.
//!
//! **Problem.** Click logs name users, items and words by numbers and strings from large ranges.
//! Rows of an embedding need dense ids. The map from values to ids of a large data set exceeds
//! memory. After a crash the map must agree with the embedding rows that have its ids as keys. Many
//! threads use the map for every batch.
//!
//! **Approach.** A vocabulary is stored in tables of the bank, so the bank's memory budget,
//! checkpoints, copies and deltas include it. One table maps a value to its *place* (the id is
//! `first_id` plus the place). A second table maps places to values in blocks of many values, which
//! needs few entries of the index. A third table counts occurrences if the settings ask for counts.
//! A table with one row, the *header*, names the valid tables and the number of values
//! (`numbering`).
//!
//! **Several threads.** Lookups take no lock, write nothing, and never wait for an insertion. A
//! lookup loads the length first and sees only places below it. The content of these places never
//! changes. One thread at a time inserts. A renumbering (`keep_frequent`) makes new tables beside
//! those in use. Lookups wait only while the new tables replace the old ones.
//!
//! **No cache for frequent values.** A batch first finds its distinct values. The index buckets and
//! records of frequent values lie in the processor's caches, so looking up such a value takes about
//! half the time of a value that comes from memory. A separate cache for frequent values would have
//! to be large to help. It would then miss the processor's caches just as often.
//!
//! **Crashes.** A checkpoint may be cut at any moment. `insertion` describes the order of writes
//! that allows this.

mod access;
pub(crate) mod byte_values;
pub(crate) mod config;
mod counts;
pub(crate) mod descriptor;
mod distinct;
mod fingerprint;
mod frequent;
pub(crate) mod hash;
mod insertion;
mod merge;
pub(crate) mod numbering;
pub(crate) mod record;
pub(crate) mod registry;
mod reverse;
mod rows;
mod scan;
pub(crate) mod shared;
mod summary;
pub(crate) mod verify;

use std::fmt;
use std::sync::Arc;

pub use byte_values::{ByteBuffer, ByteValues, OwnedValues, Values};
pub use config::{ValueKind, VocabularyConfig};
pub(crate) use descriptor::is_of_a_vocabulary;
pub use frequent::KeptFrequent;
pub use merge::{MergedIds, MergedVocabulary};
pub(crate) use numbering::is_name_of_a_part;
pub use scan::{VocabularyChunk, VocabularyScan};
pub(crate) use shared::VocabularyShared;
pub use summary::VocabularySummary;
pub use verify::{VerifiedVocabulary, VocabularyProgress};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::row::numbering::VocabularyIdentity;
use crate::unknown_id::UNKNOWN_ID;
use distinct::Distinct;
use embank_kv::check_batch;
use registry::Vocabularies;

/// A handle to a vocabulary of a bank. Cloning it is cheap; all handles of a vocabulary are
/// equivalent.
///
/// Values come in batches of any length and may repeat. They get dense ids in order of first
/// appearance, from [`first_id`](VocabularyConfig::first_id) on. A call's changes are in memory
/// when the call returns. [`Bank::checkpoint`](crate::Bank::checkpoint) makes the changes durable
/// together with the tables.
///
/// In the source, `vocabulary/mod.rs` has the lookups. The files `insertion`, `reverse`, `counts`,
/// `frequent`, `merge`, `scan`, `verify` and `fingerprint` have the other methods. All of them
/// build on `access`.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, ByteBuffer, TableConfig, VocabularyConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let words = bank.vocabulary("word", VocabularyConfig::bytes())?;
/// let rows = bank.table("word", TableConfig::new(4).vocabulary("word"))?;
///
/// let batch = ByteBuffer::from_iter(["red", "green", "red"]);
/// let mut ids = [0; 3];
/// assert_eq!(words.ids_or_insert(&batch, &mut ids)?, 2);
/// assert_eq!(ids, [0, 1, 0]);
/// let lease = rows.get(&ids, &mut [0.0; 12])?;
/// # drop(lease);
/// bank.checkpoint(b"step 1")?;
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Clone)]
pub struct Vocabulary {
    /// The bank's vocabularies.
    pub(crate) registry: Arc<Vocabularies>,
    pub(crate) shared: Arc<VocabularyShared>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Vocabulary")
            .field("name", &self.name())
            .field("config", &self.config())
            .field("len", &self.len())
            .finish()
    }
}

/// The places of a batch's values. Also the numbering in which they were looked up, and its length
/// at that time.
#[derive(Debug)]
pub(crate) struct Found {
    /// The place of each distinct value, by the value's number. `UNKNOWN_ID` for a value without a
    /// place.
    pub(crate) places: Vec<u64>,
    pub(crate) numbering: u64,
    pub(crate) len: u64,
}

impl Vocabulary {
    pub(crate) fn context(&self) -> &Context {
        &self.registry.context
    }

    /// The vocabulary's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The vocabulary's settings.
    #[must_use]
    pub fn config(&self) -> &VocabularyConfig {
        &self.shared.founding.config
    }

    /// The number of values with ids.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shared.len()
    }

    /// True if the vocabulary has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the id that the next new value gets. All ids that values have now are smaller. A
    /// dense matrix with a row for each id needs this number of rows.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.config().first_id + self.len()
    }

    /// Returns the identity of the present numbering (assignment of ids to values). A table that is
    /// made [for this vocabulary](crate::TableConfig::vocabulary) stores this identity. Later the
    /// table opens only if the vocabulary still has it.
    #[must_use]
    pub fn identity(&self) -> VocabularyIdentity {
        self.shared.identity()
    }

    /// Returns a hash of all values in the order of their ids. Two vocabularies, also of two banks,
    /// have equal fingerprints if they have equal values in equal order. If an insertion is
    /// running, waits until it ends.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.shared.writer.lock().header.fingerprint
    }

    /// True if the vocabulary takes no new values.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.shared.is_frozen()
    }

    /// Freezes the vocabulary, so that it takes no new values, or lets it grow again. The next
    /// checkpoint makes the change durable.
    ///
    /// # Errors
    /// [`Error::VocabularyDropped`] or a failure of the store.
    pub fn set_frozen(&self, frozen: bool) -> Result<()> {
        let mut writer = self.shared.writer.lock();
        let header = descriptor::Header { frozen, ..writer.header };
        self.put_header(header)?;
        self.shared.note_frozen(&mut writer, frozen);
        Ok(())
    }

    /// Looks up the ids of `values`. `ids` gets one id for each value, and [`UNKNOWN_ID`] for a
    /// value without one. Returns the places of such values in the batch, ascending. Writes nothing
    /// and waits for no insertion.
    ///
    /// # Errors
    /// [`WrongKind`](crate::StoreError::WrongKind) if `values` are not of the vocabulary's kind.
    /// [`Error::LengthMismatch`] if `ids` and `values` have different lengths.
    /// [`Error::VocabularyDropped`]. A failure of the store.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, UNKNOWN_ID, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64())?;
    /// let mut ids = [0; 3];
    /// users.ids_or_insert(&[900, 800], &mut ids[..2])?;
    /// assert_eq!(users.ids(&[800, 700, 900], &mut ids)?, [1]);
    /// assert_eq!(ids, [1, UNKNOWN_ID, 0]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn ids<'v>(&self, values: impl Into<Values<'v>>, ids: &mut [u64]) -> Result<Vec<u32>> {
        let values = values.into();
        self.check_batch(values, ids.len())?;
        let distinct = Distinct::new(values, self.shared.founding.seed)?;
        let found = self.find(&distinct)?;
        Ok(self.fill_ids(&distinct, &found.places, ids))
    }

    /// Looks up ids like [`ids`](Self::ids), but values without an id get
    /// [`VocabularyConfig::unknown_id`].
    ///
    /// # Errors
    /// The errors of [`ids`](Self::ids). [`Error::UnknownValue`] if a value has no id and the
    /// settings have no `unknown_id`. The content of `ids` is then unspecified.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, ByteBuffer, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let config = VocabularyConfig::bytes().first_id(1).unknown_id(0);
    /// let words = bank.vocabulary("word", config)?;
    /// let mut ids = [7; 2];
    /// words.ids_or_insert(&ByteBuffer::from_iter(["red"]), &mut ids[..1])?;
    /// words.lookup(&ByteBuffer::from_iter(["green", "red"]), &mut ids)?;
    /// assert_eq!(ids, [0, 1]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn lookup<'v>(&self, values: impl Into<Values<'v>>, ids: &mut [u64]) -> Result<()> {
        let values = values.into();
        let unknown = self.ids(values, ids)?;
        self.settle_unknown(values, &unknown, ids, false)
    }

    /// Fails if `values` are of another kind than the vocabulary's, or if the length of `ids` is
    /// not the number of values.
    pub(crate) fn check_batch(&self, values: Values<'_>, ids: usize) -> Result<()> {
        let kind = match values {
            Values::U64(_) => ValueKind::U64,
            Values::Bytes(_) => ValueKind::Bytes,
        };
        let own = self.config().kind;
        let name = self.name();
        if kind != own {
            let why = format!("has {} values and was given {} values", own.name(), kind.name());
            return Err(Error::wrong_kind("vocabulary", name, why));
        }
        if values.len() != ids {
            let vocabulary = name.to_owned();
            let (of, expected) = ("values", values.len());
            return Err(Error::LengthMismatch {
                vocabulary,
                what: "ids",
                of,
                expected,
                found: ids,
            });
        }
        Ok(check_batch(values.len())?)
    }

    /// Looks up all distinct values.
    pub(crate) fn find(&self, distinct: &Distinct<'_>) -> Result<Found> {
        self.read(|numbering, len| {
            let store = &self.context().store;
            let places = numbering.find(store, &distinct.keys, |i| distinct.bytes(i), len)?;
            Ok(Found { places, numbering: numbering.number, len })
        })
    }

    /// Turns places into ids. Returns the places of values without an id.
    pub(crate) fn fill_ids(
        &self,
        distinct: &Distinct<'_>,
        places: &[u64],
        ids: &mut [u64],
    ) -> Vec<u32> {
        let first_id = self.config().first_id;
        let mut unknown = Vec::new();
        for (i, (id, &number)) in ids.iter_mut().zip(&distinct.inverse).enumerate() {
            let place = places[number as usize];
            if place == UNKNOWN_ID {
                unknown.push(i as u32);
            }
            *id = if place == UNKNOWN_ID { UNKNOWN_ID } else { first_id + place };
        }
        unknown
    }

    /// Replaces unknown ids by `unknown_id`, or returns an error if the settings have no
    /// `unknown_id`.
    pub(crate) fn settle_unknown(
        &self,
        values: Values<'_>,
        unknown: &[u32],
        ids: &mut [u64],
        frozen: bool,
    ) -> Result<()> {
        let Some(&first) = unknown.first() else { return Ok(()) };
        match self.config().unknown_id {
            Some(id) => {
                unknown.iter().for_each(|&place| ids[place as usize] = id);
                Ok(())
            }
            None => Err(Error::UnknownValue {
                vocabulary: self.name().to_owned(),
                value: values.show(first as usize),
                position: first as usize,
                count: unknown.len(),
                frozen,
            }),
        }
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
