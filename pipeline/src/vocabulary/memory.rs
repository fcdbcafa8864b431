//! A vocabulary with a table of ids: its values by their ids, how often they came, and what a bank
//! has of that.
//!
//! The table numbers in memory, at its own speed; a bank learns of new values when it is told to
//! ([`MemoryNumbering::save`]), in the order of their ids, so that it gives them the same ones. No
//! other pipeline may insert meanwhile: ids that this pipeline has given out would be another
//! value's.
//!
//! A pipeline and its [evaluations](crate::Pipeline::evaluation) share it under a lock. An
//! evaluation takes a share of the table and the number of values when its run begins. Slots that
//! get ids later look empty to it, since those ids are not below its limit. What would take ids
//! back ([`MemoryNumbering::load`], [`MemoryNumbering::keep_frequent`]) fills another table if an
//! evaluation still reads this one.

use std::sync::Arc;

use embank::{OwnedValues, Values, Vocabulary, VocabularyIdentity};

use super::counts::ValueCounts;
use super::direct::DirectTable;
use crate::error::{Error, Result};

/// Values that go to a bank together: enough to make its batches cheap, 512 KiB.
const SAVED_AT_ONCE: usize = 1 << 16;

/// How a vocabulary numbers in memory.
#[derive(Debug)]
pub(super) struct MemorySettings {
    pub(super) name: String,
    /// The id of the first value.
    pub(super) first_id: u32,
    /// The id of values that the vocabulary lacks if it is frozen; `None` if they have none.
    pub(super) unknown: Option<u32>,
    /// Whether it counts how often values come.
    pub(super) counts: bool,
}

/// A vocabulary whose ids are in a table. One thread at a time adds to it.
#[derive(Debug)]
pub(crate) struct MemoryNumbering {
    name: String,
    /// The ids by value.
    table: Arc<DirectTable>,
    /// Counts up when ids become those of other values.
    renumberings: u64,
    /// The values by their ids, which begin with `first_id`.
    values: Vec<u32>,
    first_id: u32,
    /// The id of values that the vocabulary lacks if it is frozen.
    unknown: Option<u32>,
    frozen: bool,
    /// How often each value came: all in all, or, with a bank, since the last save.
    counts: Option<Vec<u64>>,
    kept_in: Option<KeptIn>,
}

/// A bank's vocabulary, as it was when it was last looked at.
#[derive(Debug)]
struct KeptIn {
    vocabulary: Vocabulary,
    identity: VocabularyIdentity,
    /// The first values are there.
    saved: usize,
    /// Whether a save has failed, so that some of the next values may be there too.
    torn: bool,
}

impl MemoryNumbering {
    /// Without values; a bank's `vocabulary` is [loaded](Self::load) on its own.
    pub(super) fn new(
        settings: MemorySettings,
        table: DirectTable,
        vocabulary: Option<Vocabulary>,
    ) -> Self {
        let kept_in = vocabulary.map(|vocabulary| {
            let identity = vocabulary.identity();
            KeptIn { vocabulary, identity, saved: 0, torn: false }
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

    /// The table of ids.
    pub(super) fn table(&self) -> &Arc<DirectTable> {
        &self.table
    }

    /// The values by their ids.
    pub(super) fn values(&self) -> &[u32] {
        &self.values
    }

    /// How many times ids have become those of other values.
    pub(super) fn renumberings(&self) -> u64 {
        self.renumberings
    }

    /// Whether the bank's vocabulary was renumbered since it was last looked at, so that the ids
    /// here are of the old numbering.
    pub(super) fn is_outdated(&self) -> bool {
        self.kept_in
            .as_ref()
            .is_some_and(|kept_in| kept_in.vocabulary.identity() != kept_in.identity)
    }

    /// All ids that were given out are below it.
    pub(super) fn next_id(&self) -> u32 {
        // At most 2^31: see `DirectTable::id_or_insert`.
        self.first_id + self.values.len() as u32
    }

    /// The id of values that have none, if the vocabulary was made with one.
    pub(super) fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// The table, to take ids back in. Another one, empty, if an evaluation reads this one.
    fn table_to_clear(&mut self) -> Result<Arc<DirectTable>> {
        if Arc::get_mut(&mut self.table).is_none() {
            self.table = Arc::new(new_table(&self.name, self.table.range())?);
        }
        Ok(Arc::clone(&self.table))
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Fills the table with what the bank has. What was not saved is forgotten. After an error all
    /// is as it was.
    pub(super) fn load(&mut self) -> Result<()> {
        let Some(kept_in) = &self.kept_in else { return Ok(()) };
        let vocabulary = &kept_in.vocabulary;
        let range = self.table.range() as u64;
        // Before the values: what changes while they are read is seen as a change by the next look.
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
        // As many as there are different values below the range, so ids have 32 bits too.
        for (id, &value) in (self.first_id..).zip(&loaded) {
            table.put(value, id);
        }
        kept_in.saved = loaded.len();
        kept_in.torn = false;
        self.values = loaded;
        if let Some(counts) = &mut self.counts {
            counts.clear();
        }
        Ok(())
    }

    /// What has changed in the bank since it was last looked at.
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

    /// Sees how far a save came that failed, so that its own values are not taken for another
    /// hand's.
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

    /// Adopts the changes that another program has made to the bank's vocabulary, if this one loses
    /// no value by it.
    pub(super) fn refresh(&mut self) -> Result<()> {
        self.settle()?;
        let Some(what) = self.change() else { return Ok(()) };
        let counted = self.counts.as_ref().is_some_and(|counts| !counts.is_empty());
        if counted || !self.unsaved().is_empty() {
            return Err(self.changed(what));
        }
        self.load()
    }

    /// Tells the bank which ids are out, so that its tables take those whose values it does not
    /// have yet.
    pub(super) fn give_out(&self) {
        if let Some(kept_in) = &self.kept_in {
            kept_in.vocabulary.give_out(u64::from(self.first_id) + self.values.len() as u64);
        }
    }

    /// Gives the bank what it does not have yet: values in the order of their ids, and counts.
    pub(super) fn save(&mut self) -> Result<()> {
        let counted = self.counts.as_ref().is_some_and(|counts| !counts.is_empty());
        if self.kept_in.is_none() || (self.unsaved().is_empty() && !counted) {
            return Ok(());
        }
        self.settle()?;
        if let Some(what) = self.change() {
            return Err(self.changed(what));
        }
        let Some(kept_in) = &mut self.kept_in else { return Ok(()) };
        let mut ids = Vec::new();
        while kept_in.saved < self.values.len() {
            let end = self.values.len().min(kept_in.saved + SAVED_AT_ONCE);
            let values: Vec<u64> =
                self.values[kept_in.saved..end].iter().map(|&value| u64::from(value)).collect();
            ids.resize(values.len(), 0);
            // Until it is through.
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
                // What was added is 0 then, also after a failure: not again.
                kept_in.vocabulary.move_counts(&ids, counts)?;
                first += counts.len() as u64;
            }
            counts.clear();
        }
        Ok(())
    }

    /// The id of a value that had none when its row was looked at. `refused` makes a frozen
    /// vocabulary's error.
    #[inline]
    pub(crate) fn number(
        &mut self,
        table: &DirectTable,
        value: u32,
        refused: impl FnOnce() -> Error,
    ) -> Result<u32> {
        if self.frozen {
            // With an id for unknown values none comes here.
            return Err(refused());
        }
        Ok(table.id_or_insert(value, self.first_id, &mut self.values))
    }

    /// Adds what a thread has counted.
    pub(super) fn add(&mut self, counted: &ValueCounts) {
        let Some(counts) = &mut self.counts else { return };
        counts.resize(self.values.len(), 0);
        counted.add_to(counts, &self.values);
    }

    /// Keeps the values that were counted `min_count` times or more, numbered again in their old
    /// order, and takes no new values.
    pub(super) fn keep_frequent(&mut self, min_count: u64) -> Result<Kept> {
        self.save()?;
        if let Some(kept_in) = &self.kept_in {
            let kept = kept_in.vocabulary.keep_frequent(min_count)?;
            kept_in.vocabulary.set_frozen(true)?;
            self.load()?;
            return Ok(Kept { kept: kept.kept, removed: kept.removed });
        }
        let table = self.table_to_clear()?;
        self.renumberings += 1;
        let before = self.values.len() as u64;
        let counts = self.counts.get_or_insert_default();
        counts.resize(self.values.len(), 0);
        let mut each = counts.iter();
        self.values.retain(|_| each.next().is_some_and(|&count| count >= min_count));
        counts.retain(|&count| count >= min_count);
        self.frozen = true;
        table.clear(self.unknown);
        for (id, &value) in (self.first_id..).zip(&self.values) {
            table.put(value, id);
        }
        let kept = self.values.len() as u64;
        Ok(Kept { kept, removed: before - kept })
    }
}

/// What keeping the frequent values has done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// Values that stayed.
    pub(crate) kept: u64,
    /// Values that have no id of their own any more.
    pub(crate) removed: u64,
}

/// An empty table of ids for values below `range`.
pub(super) fn new_table(name: &str, range: usize) -> Result<DirectTable> {
    DirectTable::new(range as u32).map_err(|source| Error::OutOfMemory {
        name: name.to_owned(),
        bytes: range as u64 * 4,
        source,
    })
}
