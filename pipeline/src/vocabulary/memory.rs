//! A vocabulary that gives ids in memory. It has the table of ids, the values by id, their counts,
//! and the number of values that a bank has already.
//!
//! The table gives ids without a look into the bank. The bank gets the new values only at a save
//! ([`MemoryNumbering::save`]), in the order of their ids, and gives them the same ids. Between two
//! saves, no other pipeline may give ids of the bank's vocabulary: it would give the same ids to
//! other values. So the bank keeps the end of the ids that were given, and a pipeline gives only
//! the ids that follow the last one ([`MemoryNumbering::give_out`]).
//!
//! A pipeline and its [evaluations](crate::Pipeline::evaluation) share the vocabulary under a lock.
//! When an evaluation's run begins, it takes a reference to the table, and the next new id as its
//! limit. It treats ids from the limit on as missing, so it does not see later values.
//! [`MemoryNumbering::load`] and [`MemoryNumbering::keep_frequent`] give existing ids to other
//! values. If an evaluation still reads the table, they fill a new one.

use std::sync::Arc;

use embank::{OwnedValues, Values, Vocabulary, VocabularyIdentity};

use super::counts::ValueCounts;
use super::direct::DirectTable;
use crate::error::{Error, Result};

/// Values that one call inserts into a bank: 512 KiB of values, enough for efficient batches.
const SAVED_AT_ONCE: usize = 1 << 16;

/// Settings of a vocabulary that numbers in memory.
#[derive(Debug)]
pub(super) struct MemorySettings {
    pub(super) name: String,
    pub(super) first_id: u32,
    /// The id of unknown values once the vocabulary is frozen. `None` if they have no id.
    pub(super) unknown: Option<u32>,
    /// Whether to count how often values occur.
    pub(super) counts: bool,
}

/// A vocabulary whose ids are in a table. One thread at a time adds values.
#[derive(Debug)]
pub(crate) struct MemoryNumbering {
    name: String,
    /// The id of each value.
    table: Arc<DirectTable>,
    /// Number of renumberings: changes that gave existing ids to other values.
    renumberings: u64,
    /// The values in the order of their ids; the first one has `first_id`.
    values: Vec<u32>,
    first_id: u32,
    /// The id of unknown values once the vocabulary is frozen. `None` if they have no id.
    unknown: Option<u32>,
    frozen: bool,
    /// How often each value occurred. If there is a bank, only the occurrences since the last save.
    counts: Option<Vec<u64>>,
    kept_in: Option<KeptIn>,
}

/// A bank's vocabulary, with the state that this pipeline last saw.
#[derive(Debug)]
struct KeptIn {
    vocabulary: Vocabulary,
    identity: VocabularyIdentity,
    /// The bank has the first `saved` of the values.
    saved: usize,
    /// True after a failed save. The bank may then have more of the values than `saved` counts.
    torn: bool,
    /// The bank knows that the ids of the first `given` values are given out.
    given: usize,
}

impl MemoryNumbering {
    /// Makes a vocabulary without values. If `vocabulary`, the bank's vocabulary, is given,
    /// [`load`](Self::load) reads its values.
    pub(super) fn new(
        settings: MemorySettings,
        table: DirectTable,
        vocabulary: Option<Vocabulary>,
    ) -> Self {
        let kept_in = vocabulary.map(|vocabulary| {
            let identity = vocabulary.identity();
            KeptIn { vocabulary, identity, saved: 0, torn: false, given: 0 }
        });
        Self {
            name: settings.name,
            table: Arc::new(table),
            renumberings: 0,
            values: Vec::new(),
            first_id: settings.first_id,
            unknown: settings.unknown,
            frozen: false,
            counts: settings.counts.then(Vec::new),
            kept_in,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn table(&self) -> &Arc<DirectTable> {
        &self.table
    }

    /// The values in the order of their ids.
    pub(super) fn values(&self) -> &[u32] {
        &self.values
    }

    /// Number of renumberings so far.
    pub(super) fn renumberings(&self) -> u64 {
        self.renumberings
    }

    /// True if the bank's vocabulary was renumbered since the last load, so that the ids here
    /// belong to the old numbering.
    pub(super) fn is_outdated(&self) -> bool {
        self.kept_in
            .as_ref()
            .is_some_and(|kept_in| kept_in.vocabulary.identity() != kept_in.identity)
    }

    /// The id of the first value.
    pub(super) fn first_id(&self) -> u32 {
        self.first_id
    }

    /// The next new id. All ids given so far are below it.
    pub(super) fn next_id(&self) -> u32 {
        // At most 2^31, as `DirectTable::id_or_insert` explains.
        self.first_id + self.values.len() as u32
    }

    /// The id of unknown values. `None` if the vocabulary was made without one.
    pub(super) fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// Returns a table whose ids may be removed: the present table, or a new, empty one if an
    /// evaluation reads the present table.
    fn table_to_clear(&mut self) -> Result<Arc<DirectTable>> {
        if Arc::get_mut(&mut self.table).is_none() {
            self.table = Arc::new(new_table(&self.name, self.table.range())?);
        }
        Ok(Arc::clone(&self.table))
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Fills the table with the bank's values. Values that are not saved are lost. If `load` fails,
    /// it changes nothing.
    pub(super) fn load(&mut self) -> Result<()> {
        let Some(kept_in) = &self.kept_in else { return Ok(()) };
        let vocabulary = &kept_in.vocabulary;
        let range = self.table.range() as u64;
        // Read before the values. If another program renumbers the vocabulary during the scan, the
        // bank's vocabulary gets another identity, and `is_outdated` detects the change.
        let identity = vocabulary.identity();
        let frozen = vocabulary.is_frozen();
        let mut loaded = Vec::new();
        let mut scan = vocabulary.scan();
        while let Some(chunk) = scan.next_chunk()? {
            let Values::U64(values) = chunk.values else {
                unreachable!("the kind was looked at when the vocabulary was opened")
            };
            for (id, &value) in (chunk.first_id..).zip(values) {
                if value >= range {
                    let name = self.name.clone();
                    return Err(Error::ValueOutOfRange { name, value, id, range });
                }
                loaded.push(value as u32);
            }
        }
        let table = self.table_to_clear()?;
        let Some(kept_in) = &mut self.kept_in else { return Ok(()) };
        self.renumberings += u64::from(kept_in.identity != identity);
        kept_in.identity = identity;
        self.frozen = frozen;
        table.clear(self.unknown.filter(|_| frozen));
        // The loaded values are different and below the range, so their ids fit in 32 bits.
        for (id, &value) in (self.first_id..).zip(&loaded) {
            table.put(value, id);
        }
        kept_in.saved = loaded.len();
        kept_in.given = loaded.len();
        kept_in.torn = false;
        self.values = loaded;
        if let Some(counts) = &mut self.counts {
            counts.clear();
        }
        Ok(())
    }

    /// Says how the bank's vocabulary has changed since this pipeline last saw it. `None` if it has
    /// not.
    fn change(&self) -> Option<String> {
        let kept_in = self.kept_in.as_ref()?;
        let vocabulary = &kept_in.vocabulary;
        if self.is_outdated() {
            return Some("was renumbered".to_owned());
        }
        if vocabulary.len() != kept_in.saved as u64 {
            return Some(format!(
                "has grown from {} to {} values",
                kept_in.saved,
                vocabulary.len()
            ));
        }
        if vocabulary.is_frozen() == self.frozen {
            return None;
        }
        Some(if self.frozen { "was unfrozen" } else { "was frozen" }.to_owned())
    }

    /// Called after a failed save: finds out which of the pipeline's own values the bank has.
    /// Otherwise they would look like values that another program added.
    fn settle(&mut self) -> Result<()> {
        let Some(kept_in) = self.kept_in.as_mut().filter(|kept_in| kept_in.torn) else {
            return Ok(());
        };
        let there = kept_in.vocabulary.len().min(self.values.len() as u64) as usize;
        let own = self.values.get(kept_in.saved..there).unwrap_or_default();
        let first = u64::from(self.first_id) + kept_in.saved as u64;
        let ids: Vec<u64> = (first..first + own.len() as u64).collect();
        if let OwnedValues::U64(found) = kept_in.vocabulary.values(&ids)?
            && found.iter().copied().eq(own.iter().map(|&value| u64::from(value)))
        {
            kept_in.saved += own.len();
        }
        kept_in.torn = false;
        Ok(())
    }

    fn changed(&self, what: String) -> Error {
        Error::VocabularyChanged { name: self.name.clone(), what }
    }

    fn unsaved(&self) -> &[u32] {
        &self.values[self.kept_in.as_ref().map_or(0, |kept_in| kept_in.saved)..]
    }

    /// Adopts changes that another program made to the bank's vocabulary. Fails if the pipeline has
    /// unsaved values or counts.
    pub(super) fn refresh(&mut self) -> Result<()> {
        self.settle()?;
        let Some(what) = self.change() else { return Ok(()) };
        let counted = self.counts.as_ref().is_some_and(|counts| !counts.is_empty());
        if counted || !self.unsaved().is_empty() {
            return Err(self.changed(what));
        }
        self.load()
    }

    /// Tells the bank which ids the pipeline gives to new values. The bank's tables then accept ids
    /// whose values the bank does not have yet.
    ///
    /// # Errors
    /// [`Error::IdsGivenElsewhere`] or [`Error::VocabularyChanged`] if another pipeline has given
    /// ids in the meantime. The new values then have no ids again.
    pub(super) fn give_out(&mut self) -> Result<()> {
        let Some(kept_in) = &mut self.kept_in else { return Ok(()) };
        if self.values.len() == kept_in.given {
            return Ok(());
        }
        let end = |count: usize| u64::from(self.first_id) + count as u64;
        let Err(given_end) =
            kept_in.vocabulary.give_out(end(kept_in.given)..end(self.values.len()))
        else {
            kept_in.given = self.values.len();
            return Ok(());
        };
        let given = kept_in.given;
        for value in self.values.drain(given..) {
            self.table.remove(value);
        }
        // An evaluation that began after the values got their ids has seen some of these ids.
        self.renumberings += 1;
        let name = self.name.clone();
        Err(match self.change() {
            Some(what) => self.changed(what),
            None => Error::IdsGivenElsewhere { name, last: given_end.saturating_sub(1) },
        })
    }

    /// Saves new values to the bank, in the order of their ids, and then the counts.
    pub(super) fn save(&mut self) -> Result<()> {
        let counted = self.counts.as_ref().is_some_and(|counts| !counts.is_empty());
        if self.kept_in.is_none() || (self.unsaved().is_empty() && !counted) {
            return Ok(());
        }
        self.settle()?;
        if let Some(what) = self.change() {
            return Err(self.changed(what));
        }
        self.give_out()?;
        let Some(kept_in) = &mut self.kept_in else { return Ok(()) };
        let mut ids = Vec::new();
        while kept_in.saved < self.values.len() {
            let end = self.values.len().min(kept_in.saved + SAVED_AT_ONCE);
            let values: Vec<u64> =
                self.values[kept_in.saved..end].iter().map(|&value| u64::from(value)).collect();
            ids.resize(values.len(), 0);
            // If the insertion fails, `torn` stays true.
            kept_in.torn = true;
            kept_in.vocabulary.ids_or_insert(&values, &mut ids)?;
            let first = u64::from(self.first_id) + kept_in.saved as u64;
            if !ids.iter().copied().eq(first..first + ids.len() as u64) {
                return Err(self.changed("has grown".to_owned()));
            }
            kept_in.saved = end;
            kept_in.torn = false;
        }
        if let Some(counts) = &mut self.counts {
            let mut first = u64::from(self.first_id);
            for counts in counts.chunks_mut(SAVED_AT_ONCE) {
                ids.clear();
                ids.extend(first..first + counts.len() as u64);
                // `move_counts` sets each count to 0 once it has added it to the bank. So no count
                // is added twice, even if `move_counts` fails.
                kept_in.vocabulary.move_counts(&ids, counts)?;
                first += counts.len() as u64;
            }
            counts.clear();
        }
        Ok(())
    }

    /// Returns the id of a value that had no id when its row was looked up. If it still has no id,
    /// it gets one. `refused` makes the error for a frozen vocabulary.
    #[inline]
    pub(crate) fn number(
        &mut self,
        table: &DirectTable,
        value: u32,
        refused: impl FnOnce() -> Error,
    ) -> Result<u32> {
        if self.frozen {
            // Only a frozen vocabulary without an id for unknown values comes here. Otherwise every
            // free slot holds that id, and the look-up finds it.
            return Err(refused());
        }
        Ok(table.id_or_insert(value, self.first_id, &mut self.values))
    }

    /// Adds the counts of one thread.
    pub(super) fn add(&mut self, counted: &ValueCounts) {
        let Some(counts) = &mut self.counts else { return };
        counts.resize(self.values.len(), 0);
        counted.add_to(counts, &self.values);
    }

    /// Gives ids to those of `values` that have none, in their order, and adds the counts. `counts`
    /// is empty, or has a count for each value.
    pub(super) fn absorb(&mut self, values: &[u64], counts: &[u64]) -> Result<()> {
        let range = self.table.range() as u64;
        let table = Arc::clone(&self.table);
        for (place, &value) in values.iter().enumerate() {
            if value >= range {
                let (name, id) = (self.name.clone(), u64::from(self.next_id()));
                return Err(Error::ValueOutOfRange { name, value, id, range });
            }
            let id = table.id_or_insert(value as u32, self.first_id, &mut self.values);
            if let (Some(sums), Some(&count)) = (&mut self.counts, counts.get(place)) {
                sums.resize(self.values.len(), 0);
                sums[(id - self.first_id) as usize] += count;
            }
        }
        Ok(())
    }

    /// The values in the order of their ids, and their counts if the vocabulary counts.
    pub(super) fn export(&self) -> (OwnedValues, Option<Vec<u64>>) {
        let values = self.values.iter().map(|&value| u64::from(value)).collect();
        let counts = self.counts.clone().map(|mut counts| {
            counts.resize(self.values.len(), 0);
            counts
        });
        (OwnedValues::U64(values), counts)
    }

    /// Freezes a vocabulary that no bank keeps. Free slots of the table get the id of unknown
    /// values.
    pub(super) fn freeze(&mut self) {
        self.frozen = true;
        self.table.clear(self.unknown);
        for (id, &value) in (self.first_id..).zip(&self.values) {
            self.table.put(value, id);
        }
    }

    /// Keeps the values that were counted at least `min_count` times, renumbers them in their old
    /// order, and freezes the vocabulary.
    pub(super) fn keep_frequent(&mut self, min_count: u64) -> Result<Kept> {
        self.save()?;
        if let Some(kept_in) = &self.kept_in {
            let kept = kept_in.vocabulary.keep_frequent(min_count)?;
            kept_in.vocabulary.set_frozen(true)?;
            self.load()?;
            return Ok(Kept { kept: kept.kept, removed: kept.removed });
        }
        self.table_to_clear()?;
        self.renumberings += 1;
        let before = self.values.len() as u64;
        let counts = self.counts.get_or_insert_default();
        counts.resize(self.values.len(), 0);
        let mut each = counts.iter();
        self.values.retain(|_| each.next().is_some_and(|&count| count >= min_count));
        counts.retain(|&count| count >= min_count);
        self.freeze();
        let kept = self.values.len() as u64;
        Ok(Kept { kept, removed: before - kept })
    }
}

/// Result of keeping the frequent values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// Number of values that kept an id.
    pub(crate) kept: u64,
    /// Number of values that lost their id.
    pub(crate) removed: u64,
}

/// Makes an empty table of ids for values below `range`.
pub(super) fn new_table(name: &str, range: usize) -> Result<DirectTable> {
    DirectTable::new(range as u32).map_err(|source| Error::OutOfMemory {
        name: name.to_owned(),
        bytes: range as u64 * 4,
        source,
    })
}
