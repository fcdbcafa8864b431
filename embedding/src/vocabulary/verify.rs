//! Verification: checks that a vocabulary is undamaged.
//!
//! Verification reads each value from its block, in the order of the ids, and looks the value up.
//! The look-up must return the value's id. This proves that no id is missing and no two values
//! share an id. The fingerprint of the values must equal the header's fingerprint.
//!
//! The table of ids may hold further rows, so verification also counts its rows and entries.
//! Strings with equal hashes share a row. Verification counts such a row once, when it checks the
//! string with the lowest place in the row.

use std::ops::ControlFlow;

use super::Vocabulary;
use super::byte_values::Values;
use super::descriptor::Header;
use super::distinct::Distinct;
use super::hash::{EMPTY_FINGERPRINT, fingerprint_with, key_of};
use super::numbering::{Numbering, values_in};
use super::record::Entries;
use crate::error::{Error, Result, StoreError};
use crate::unknown_id::UNKNOWN_ID;

/// The progress of a verification.
///
/// # Examples
/// See [`Vocabulary::verify_with`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularyProgress {
    /// The number of values checked so far.
    pub values_done: u64,
    /// The number of values of the vocabulary.
    pub values_total: u64,
}

/// The result of a verification that found no damage.
///
/// # Examples
/// See [`Vocabulary::verify`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedVocabulary {
    /// The number of values.
    pub values: u64,
    /// The hash of all values in order, as [`Vocabulary::fingerprint`] returns it.
    pub fingerprint: u64,
    /// The sum of all counts; `None` if the vocabulary has no counts.
    pub counted: Option<u64>,
}

/// Sums over the values checked so far.
#[derive(Debug, Clone, Copy)]
struct Seen {
    fingerprint: u64,
    counted: u64,
    /// The number of rows in the table of ids.
    records: u64,
    entries: u64,
}

impl Vocabulary {
    /// Checks every value: looking up the value must give its id, and looking up the id must give
    /// the value. Also checks that the tables hold no other values. Reads the whole vocabulary, in
    /// constant memory. Insertions wait; lookups continue.
    ///
    /// # Errors
    /// [`Error::DamagedVocabulary`], which names the first damage. [`Error::VocabularyDropped`]. A
    /// failure of the store, such as a page with a wrong checksum.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64())?;
    /// users.ids_or_insert(&[900, 800], &mut [0; 2])?;
    /// let whole = users.verify()?;
    /// assert_eq!((whole.values, whole.fingerprint), (2, users.fingerprint()));
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn verify(&self) -> Result<VerifiedVocabulary> {
        self.verify_with(|_| ControlFlow::Continue(()))
    }

    /// Verifies as [`verify`](Self::verify) does, and calls `progress` after every few thousand
    /// values. `progress` may end the verification. The verification holds the lock of insertions,
    /// so `progress` must not make a call that needs this lock. Such calls on this vocabulary are:
    /// `ids_or_insert` with new values, `merge` into the vocabulary, `fingerprint`, `set_frozen`,
    /// `keep_frequent`, `verify`, and [`Bank::drop_vocabulary`](crate::Bank::drop_vocabulary).
    /// `progress` may make lookups, counts, scans and checkpoints, and any call on tables and other
    /// vocabularies.
    ///
    /// # Errors
    /// The errors of [`verify`](Self::verify). [`Error::Cancelled`] if `progress` ends the
    /// verification.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
    /// # let users = bank.vocabulary("user", embank::VocabularyConfig::u64())?;
    /// use std::ops::ControlFlow;
    ///
    /// users.verify_with(|progress| {
    ///     println!("{} of {} values", progress.values_done, progress.values_total);
    ///     ControlFlow::Continue(())
    /// })?;
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn verify_with(
        &self,
        mut progress: impl FnMut(VocabularyProgress) -> ControlFlow<()>,
    ) -> Result<VerifiedVocabulary> {
        let store = &self.context().store;
        let moment = || store.reading().map(|at| at.checkpoint);
        let began = moment();
        // Holds the lock of insertions. A read-only bank has no insertions to exclude, but another
        // thread may refresh it during the call.
        let mut held = (!store.is_read_only()).then(|| self.writer());
        if let Some(writer) = &mut held {
            let numbering = self.shared.numbering();
            self.take_out_what_lies_beyond(writer, &numbering)?;
        }
        let header = held.as_ref().map_or_else(|| self.writer().header, |writer| writer.header);
        let mut seen = Seen { fingerprint: EMPTY_FINGERPRINT, counted: 0, records: 0, entries: 0 };
        let at_once = self.config().values_at_once();
        for start in (0..header.len).step_by(at_once as usize) {
            let places: Vec<u64> = (start..header.len.min(start + at_once)).collect();
            seen = self.read(|numbering, _| {
                let mut seen = seen;
                self.check_chunk(numbering, &places, header.len, &mut seen)?;
                Ok(seen)
            })?;
            let values_done = start + places.len() as u64;
            let so_far = VocabularyProgress { values_done, values_total: header.len };
            if progress(so_far).is_break() {
                return Err(Error::Cancelled);
            }
        }
        // Rows that an interrupted (torn) insertion has left are no damage. A read-only bank can't
        // remove them.
        let (rows, beyond) = self.read(|numbering, _| {
            let beyond = if held.is_some() { 0 } else { self.rows_beyond(numbering, header.len)? };
            Ok((store.rows(numbering.ids)?, beyond))
        })?;
        if moment() != began {
            let name = self.name();
            let what = format!("the bank was refreshed while vocabulary {name:?} was verified");
            return Err(StoreError::ChangedMeanwhile(what).into());
        }
        self.check_sums(header, &seen, rows, beyond)?;
        let counted = self.config().counts.then_some(seen.counted);
        Ok(VerifiedVocabulary { values: header.len, fingerprint: header.fingerprint, counted })
    }

    /// Compares the sums with the header and with `rows`, the number of rows in the table of ids. A
    /// torn insertion may have left up to `beyond` of these rows.
    fn check_sums(&self, header: Header, seen: &Seen, rows: u64, beyond: u64) -> Result<()> {
        if seen.fingerprint != header.fingerprint {
            return Err(self.damaged(format!(
                "the fingerprint of its {} values is {:#018x}, and its header has {:#018x}",
                header.len, seen.fingerprint, header.fingerprint
            )));
        }
        let rows_fit = (seen.records..=seen.records + beyond).contains(&rows);
        if !rows_fit || seen.entries != header.len {
            return Err(self.damaged(format!(
                "it has {} values, but its table of ids has {} entries in {rows} rows; expected {} rows",
                header.len, seen.entries, seen.records
            )));
        }
        Ok(())
    }

    fn check_chunk(
        &self,
        numbering: &Numbering,
        places: &[u64],
        len: u64,
        seen: &mut Seen,
    ) -> Result<()> {
        let values = self.values_at(numbering, places)?;
        let values = values.values();
        let store = &self.context().store;
        let first_id = self.config().first_id;
        let seed = self.shared.founding.seed;
        let distinct = Distinct::new(values, seed)?;
        let found = numbering.find(store, &distinct.keys, |i| distinct.bytes(i), UNKNOWN_ID)?;
        for (i, (&place, &number)) in places.iter().zip(&distinct.inverse).enumerate() {
            let found = found[number as usize];
            if found != place {
                let id = first_id + place;
                let value = values.show(i);
                let leads = match found {
                    UNKNOWN_ID => "to no id".to_owned(),
                    other => format!("to id {}", first_id + other),
                };
                return Err(
                    self.damaged(format!("id {id} has the value {value}, which leads {leads}"))
                );
            }
        }
        if numbering.counts.is_some() {
            let counts = self.counts_at(numbering, places)?;
            seen.counted = counts.into_iter().fold(seen.counted, u64::saturating_add);
        }
        match values {
            Values::U64(numbers) => {
                for number in numbers {
                    seen.fingerprint = fingerprint_with(seen.fingerprint, &number.to_le_bytes());
                }
                seen.records += places.len() as u64;
                seen.entries += places.len() as u64;
            }
            Values::Bytes(strings) => {
                let keys: Vec<u64> = strings.iter().map(|string| key_of(seed, string)).collect();
                let records = numbering.read_records(store, &keys)?;
                for (i, (string, &place)) in strings.iter().zip(places).enumerate() {
                    seen.fingerprint = fingerprint_with(seen.fingerprint, string);
                    let given = || Entries(records.get(i)).filter(|&(place, _)| place < len);
                    if given().map(|(place, _)| place).min() == Some(place) {
                        seen.records += 1;
                        seen.entries += given().count() as u64;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the largest number of rows that a torn insertion may have left in the table of ids:
    /// the number of values in blocks beyond the length.
    fn rows_beyond(&self, numbering: &Numbering, len: u64) -> Result<u64> {
        let per_block = numbering.values_per_block();
        let mut number = len / per_block;
        let mut beyond = 0;
        // The loop ends, because a torn insertion leaves at most the blocks of one insertion.
        loop {
            let blocks = numbering.read_blocks(&self.context().store, &[number])?;
            let Some(block) = blocks.get(0) else { return Ok(beyond) };
            let skipped = if number == len / per_block { len % per_block } else { 0 };
            let held = values_in(numbering.kind, block).count() as u64;
            beyond += held.saturating_sub(skipped);
            number += 1;
        }
    }
}
