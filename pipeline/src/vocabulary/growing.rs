//! What a vocabulary with a table of ids has besides the table: its values by their ids, how often they came, and
//! what a bank has of that.
//!
//! The table numbers in memory, at its own speed; a bank learns of new values when it is told to
//! ([`Growing::save`]), in the order of their ids, so that it gives them the same ones. Nobody else may insert
//! meanwhile: ids that this pipeline has given out would be another value's.
//!
//! A pipeline and its [evaluations](crate::Pipeline::evaluation) share it under a lock. An evaluation takes a share of
//! the table and the number of values when its run begins. Slots that get ids later look empty to it, since those ids
//! are not below its limit. What would take ids back ([`Growing::load`], [`Growing::keep_frequent`]) fills another
//! table if an evaluation still reads this one.

use std::io;
use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions};

use embank::{OwnedValues, Values, Vocabulary, VocabularyIdentity};

use super::DirectTable;
use crate::error::{Error, Result};

/// Values that go to a bank together: enough to make its batches cheap, 512 KiB.
const SAVED_AT_ONCE: usize = 1 << 16;

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

/// What one thread at a time adds to.
#[derive(Debug, Default)]
pub(crate) struct Growing {
    name: String,
    /// The ids by value. None for a vocabulary whose values have no known range: the bank alone has it.
    table: Option<Arc<DirectTable>>,
    /// Counts up when ids become those of other values.
    numbering: u64,
    /// The values by their ids, which begin with `first_id`.
    pub(crate) values: Vec<u32>,
    first_id: u32,
    /// The id of what a frozen vocabulary lacks.
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

impl Growing {
    pub(crate) fn new(
        name: &str,
        table: DirectTable,
        (first_id, unknown): (u32, Option<u32>),
        counts: bool,
        vocabulary: Option<Vocabulary>,
    ) -> Self {
        let kept_in = vocabulary.map(|vocabulary| {
            let identity = vocabulary.identity();
            KeptIn { vocabulary, identity, saved: 0, torn: false }
        });
        let counts = counts.then(Vec::new);
        let (name, values, table) = (name.to_owned(), Vec::new(), Some(Arc::new(table)));
        Self {
            name,
            table,
            numbering: 0,
            values,
            first_id,
            unknown,
            frozen: false,
            counts,
            kept_in,
        }
    }

    /// The table of ids, if this vocabulary has one.
    pub(crate) fn table(&self) -> Option<&Arc<DirectTable>> {
        self.table.as_ref()
    }

    /// Which numbering its ids are of.
    pub(crate) fn numbering(&self) -> u64 {
        self.numbering
    }

    /// Whether the bank's vocabulary was renumbered since it was last looked at, so that the ids here are of the old
    /// numbering.
    pub(crate) fn is_outdated(&self) -> bool {
        self.kept_in
            .as_ref()
            .is_some_and(|kept_in| kept_in.vocabulary.identity() != kept_in.identity)
    }

    /// All ids that were given out are below it.
    pub(crate) fn next_id(&self) -> u32 {
        // At most 2^31: see `DirectTable::id_or_insert`.
        self.first_id + self.values.len() as u32
    }

    /// The id of values that have none, if the vocabulary was made with one.
    pub(crate) fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// The table, to take ids back in. Another one, empty, if an evaluation reads this one. `None` if this vocabulary
    /// has no table.
    fn table_to_clear(&mut self) -> Result<Option<Arc<DirectTable>>> {
        let Some(table) = &mut self.table else { return Ok(None) };
        if Arc::get_mut(table).is_none() {
            *table = Arc::new(new_table(&self.name, table.range())?);
        }
        Ok(Some(Arc::clone(table)))
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Fills the table with what the bank has. What was not saved is forgotten. After an error all is as it was.
    pub(crate) fn load(&mut self) -> Result<()> {
        let (Some(kept_in), Some(table)) = (&self.kept_in, &self.table) else { return Ok(()) };
        let (vocabulary, range) = (&kept_in.vocabulary, table.range() as u64);
        // Before the values: what changes while they are read is seen as a change by the next look.
        let (identity, frozen) = (vocabulary.identity(), vocabulary.is_frozen());
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
        let Some(table) = self.table_to_clear()? else { return Ok(()) };
        let Some(kept_in) = &mut self.kept_in else { return Ok(()) };
        self.numbering += u64::from(kept_in.identity != identity);
        (kept_in.identity, self.frozen) = (identity, frozen);
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

    /// Sees how far a save came that failed, so that its own values are not taken for another hand's.
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

    /// Takes over what somebody else has done to the bank's vocabulary, if nothing of this one would be lost.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        self.settle()?;
        let Some(what) = self.change() else { return Ok(()) };
        let counted = self.counts.as_ref().is_some_and(|counts| !counts.is_empty());
        if counted || !self.unsaved().is_empty() {
            return Err(self.changed(what));
        }
        self.load()
    }

    /// Tells the bank which ids are out, so that its tables take those whose values it does not have yet.
    pub(crate) fn give_out(&self) {
        if let Some(kept_in) = &self.kept_in {
            kept_in.vocabulary.give_out(u64::from(self.first_id) + self.values.len() as u64);
        }
    }

    /// Gives the bank what it does not have yet: values in the order of their ids, and counts.
    pub(crate) fn save(&mut self) -> Result<()> {
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

    /// The id of a value that had none when its row was looked at. `refused` makes a frozen vocabulary's error.
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
    pub(crate) fn add(&mut self, counted: &ValueCounts) {
        let Some(counts) = &mut self.counts else { return };
        counts.resize(self.values.len(), 0);
        let all = counted.counts();
        for (count, &value) in counts.iter_mut().zip(&self.values) {
            *count += u64::from(all[value as usize]);
        }
        if counted.wrapped.is_empty() {
            return;
        }
        let mut wrapped = counted.wrapped.clone();
        wrapped.sort_unstable();
        for (count, value) in counts.iter_mut().zip(&self.values) {
            let (from, to) = (
                wrapped.partition_point(|other| other < value),
                wrapped.partition_point(|other| other <= value),
            );
            *count += ((to - from) as u64) << 32;
        }
    }

    /// Keeps the values that came so often, numbered anew in their old order, and takes no more.
    pub(crate) fn keep_frequent(&mut self, min_count: u64) -> Result<(u64, u64)> {
        self.save()?;
        if let Some(kept_in) = &self.kept_in {
            let kept = kept_in.vocabulary.keep_frequent(min_count)?;
            kept_in.vocabulary.set_frozen(true)?;
            self.load()?;
            return Ok((kept.kept, kept.removed));
        }
        let Some(table) = self.table_to_clear()? else { return Ok((0, 0)) };
        self.numbering += 1;
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
        Ok((kept, before - kept))
    }
}

/// An empty table of ids for values below `range`.
pub(crate) fn new_table(name: &str, range: usize) -> Result<DirectTable> {
    DirectTable::new(range as u32).map_err(|source| Error::OutOfMemory {
        name: name.to_owned(),
        bytes: range as u64 * 4,
        source,
    })
}

/// How often a thread met each value of a range.
#[derive(Debug)]
pub(crate) struct ValueCounts {
    /// A number of 32 bits for each value. A map, as tables of ids are: pages of values that do not come take no
    /// memory, and where it is not to be had, that is an error.
    counts: MmapMut,
    /// A value for each time that its count came to 2^32, and went on from 0.
    wrapped: Vec<u32>,
}

impl ValueCounts {
    pub(crate) fn new(range: usize) -> io::Result<Self> {
        let counts = MmapOptions::new().len(range.max(1) * size_of::<u32>()).map_anon()?;
        Ok(Self { counts, wrapped: Vec::new() })
    }

    fn counts(&self) -> &[u32] {
        bytemuck::cast_slice(&self.counts)
    }

    #[inline]
    pub(crate) fn count(&mut self, values: &[u32]) {
        let counts: &mut [u32] = bytemuck::cast_slice_mut(&mut self.counts);
        for &value in values {
            let count = &mut counts[value as usize];
            *count = count.wrapping_add(1);
            if *count == 0 {
                self.wrapped.push(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_beyond_32_bits() {
        let table = DirectTable::new(4).unwrap();
        let mut growing = Growing::new("v", table, (0, None), true, None);
        growing.values = vec![3, 1];
        let mut counted = ValueCounts::new(4).unwrap();
        counted.counts[12..].fill(0xFF);
        counted.count(&[3, 1, 3]);
        growing.add(&counted);
        assert_eq!(growing.counts, Some(vec![(1 << 32) + 1, 1]));
    }
}
