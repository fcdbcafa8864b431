//! Counts the occurrences of values.
//!
//! The counts lie in blocks of many counts; each block is a row of a table. In a missing block, all
//! counts are 0. A batch adds to each of its blocks once, while it holds the lock of the block's
//! row, so any number of threads may count. Counting waits only for a renumbering.

use std::ops::Range;

use embank_kv::Clock;

use super::Vocabulary;
use super::numbering::{Numbering, read_number_blocks};
use super::record::{NUMBER_BLOCK_BYTES, NUMBERS_PER_BLOCK};
use super::rows::AddCounts;
use crate::error::{Error, Result};
use crate::keys::UniqueKeys;

/// The number of ids whose counts are read together. The blocks with these counts take at most 1
/// MiB.
const READ_AT_ONCE: usize = 2048;

impl Vocabulary {
    /// Adds one to an id's count for each time that `ids` contains the id. Ids below `first_id`
    /// belong to the caller and are skipped. The ids must be of the vocabulary's present numbering.
    ///
    /// # Errors
    /// [`Error::NoCounts`]. [`Error::UnknownId`] for an id without a value; the call then counts no
    /// id. [`Error::VocabularyDropped`]. A failure of the store, after which some of the ids may be
    /// counted.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64().counts(true))?;
    /// let mut ids = [0; 3];
    /// users.ids_or_insert(&[900, 800, 900], &mut ids)?;
    /// users.count(&ids)?;
    /// users.add_counts(&[1], &[9])?;
    /// assert_eq!(users.counts(&[0, 1])?, [2, 10]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn count(&self, ids: &[u64]) -> Result<()> {
        let first_id = self.config().first_id;
        let mut places: Vec<u64> = ids.iter().filter_map(|id| id.checked_sub(first_id)).collect();
        places.sort_unstable();
        let mut counts: Vec<(u64, u64)> = Vec::new();
        for place in places {
            match counts.last_mut() {
                Some(last) if last.0 == place => last.1 += 1,
                _ => counts.push((place, 1)),
            }
        }
        self.add(&counts, &mut Vec::new())
    }

    /// Adds `counts[i]` to the count of `ids[i]`. Otherwise works like [`count`](Self::count).
    ///
    /// # Errors
    /// The errors of [`count`](Self::count). [`Error::LengthMismatch`] if `counts` and `ids` have
    /// different lengths.
    pub fn add_counts(&self, ids: &[u64], counts: &[u64]) -> Result<()> {
        self.check_counts(ids, counts)?;
        let first_id = self.config().first_id;
        let places = ids.iter().zip(counts);
        let places = places.filter_map(|(id, &count)| Some((id.checked_sub(first_id)?, count)));
        let mut counts: Vec<(u64, u64)> = places.collect();
        counts.sort_unstable();
        self.add(&counts, &mut Vec::new())
    }

    /// Adds counts as [`add_counts`](Self::add_counts) does, and sets to 0 each element of `counts`
    /// that it has added. After a failure of the store, the elements that were not added keep their
    /// numbers, so the caller can repeat the call. Elements for ids below `first_id` keep their
    /// numbers too.
    ///
    /// # Errors
    /// The errors of [`add_counts`](Self::add_counts).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64().counts(true))?;
    /// users.ids_or_insert(&[900, 800], &mut [0; 2])?;
    /// let mut counted = [3, 4];
    /// users.move_counts(&[0, 1], &mut counted)?;
    /// assert_eq!(counted, [0, 0]);
    /// assert_eq!(users.counts(&[0, 1])?, [3, 4]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn move_counts(&self, ids: &[u64], counts: &mut [u64]) -> Result<()> {
        self.check_counts(ids, counts)?;
        let first_id = self.config().first_id;
        let places = ids.iter().enumerate().zip(&*counts).filter(|&(_, &count)| count > 0);
        let places =
            places.filter_map(|((i, id), &count)| Some((id.checked_sub(first_id)?, i, count)));
        let mut places: Vec<(u64, usize, u64)> = places.collect();
        places.sort_unstable();
        let ascending: Vec<(u64, u64)> =
            places.iter().map(|&(place, _, count)| (place, count)).collect();
        let mut added = Vec::new();
        let outcome = self.add(&ascending, &mut added);
        for range in added {
            places[range].iter().for_each(|&(_, i, _)| counts[i] = 0);
        }
        outcome
    }

    fn check_counts(&self, ids: &[u64], counts: &[u64]) -> Result<()> {
        if ids.len() == counts.len() {
            return Ok(());
        }
        Err(Error::LengthMismatch {
            vocabulary: self.name().to_owned(),
            what: "counts",
            of: "ids",
            expected: ids.len(),
            found: counts.len(),
        })
    }

    /// Adds counts, which are sorted by place. `added` gets the ranges of `counts` that were added,
    /// also if the call fails.
    fn add(&self, counts: &[(u64, u64)], added: &mut Vec<Range<usize>>) -> Result<()> {
        let mut blocks: Vec<u64> = Vec::new();
        let mut ends = Vec::new();
        for (i, &(place, _)) in counts.iter().enumerate() {
            let block = place / NUMBERS_PER_BLOCK;
            if blocks.last() != Some(&block) {
                blocks.push(block);
                ends.push(i);
            }
            if let Some(end) = ends.last_mut() {
                *end = i + 1;
            }
        }
        let _not_renumbered = self.shared.counting.read();
        self.read(|numbering, len| {
            let table = numbering.counts.ok_or_else(|| self.no_counts())?;
            if let Some(&(place, _)) = counts.last() {
                self.places_of(&[self.config().first_id.saturating_add(place)], len)?;
            }
            let per_block = NUMBERS_PER_BLOCK;
            let mut settled = Vec::new();
            let mut add = AddCounts { counts, ends: &ends, per_block, settled: &mut settled };
            let outcome = self.context().store.execute(table, &blocks, Clock::Keep, &mut add);
            added.extend(settled.into_iter().map(|block| {
                let block = block as usize;
                block.checked_sub(1).map_or(0, |before| ends[before])..ends[block]
            }));
            outcome?;
            Ok(())
        })
    }

    /// The counts of `ids`.
    ///
    /// # Errors
    /// [`Error::NoCounts`]; [`Error::UnknownId`] for an id without a value;
    /// [`Error::VocabularyDropped`]; a failure of the store.
    pub fn counts(&self, ids: &[u64]) -> Result<Vec<u64>> {
        self.read(|numbering, len| {
            let places = self.places_of(ids, len)?;
            self.counts_at(numbering, &places)
        })
    }

    pub(crate) fn counts_at(&self, numbering: &Numbering, places: &[u64]) -> Result<Vec<u64>> {
        let table = numbering.counts.ok_or_else(|| self.no_counts())?;
        let mut counts = Vec::with_capacity(places.len());
        for places in places.chunks(READ_AT_ONCE) {
            let of: Vec<u64> = places.iter().map(|place| place / NUMBERS_PER_BLOCK).collect();
            let (blocks, inverse) = UniqueKeys::new(&of)?.into_parts();
            let (bytes, missing) = read_number_blocks(&self.context().store, table, &blocks)?;
            for (&place, &block) in places.iter().zip(&inverse) {
                let at = block as usize * NUMBER_BLOCK_BYTES;
                let at = at + (place % NUMBERS_PER_BLOCK) as usize * 8;
                let is_there = missing.binary_search(&block).is_err();
                let bytes = bytes[at..].first_chunk().filter(|_| is_there);
                counts.push(bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)));
            }
        }
        Ok(counts)
    }

    #[cold]
    pub(crate) fn no_counts(&self) -> Error {
        Error::NoCounts { vocabulary: self.name().to_owned() }
    }
}
