//! Insertion of new values: one thread at a time, in an order that allows a checkpoint at any
//! moment.
//!
//! **Problem.** A checkpoint contains all batches of the store that ended before it was cut. It may
//! contain a part of a batch that was running then. After a reopen, no part of an incomplete
//! insertion may be visible, because ids have no gaps, and the table of ids must agree with the
//! table of values.
//!
//! **Approach.** An insertion writes the blocks of values, then the values' places in the table of
//! ids, then the header with the new length. It then publishes the length in memory. Each step is a
//! separate batch. A checkpoint with a part of one step therefore contains all earlier steps.
//! Lookups ignore a place at or beyond the length, so a read-only bank needs no repair. In a bank
//! that is open for writing, such a place must be removed, because after later insertions it would
//! lead to a block with another value. The first insertion after an open or after a failed
//! insertion removes these places. It finds the values of these places in the blocks beyond the
//! length, because an insertion writes the block of a value before its place. It removes the places
//! before the blocks. If it is interrupted in between, the blocks are still there for the next
//! attempt.
//!
//! A simpler design would make insertions wait while a checkpoint is cut. It would not repair an
//! insertion that fails in the middle, for example because the disk quota is used up. A checkpoint
//! would also have to wait while an insertion reads from disk.

use super::descriptor::Header;
use super::distinct::Distinct;
use super::hash::key_of;
use super::numbering::{BlockValue, Items, Numbering, Tip, values_in};
use super::record::{Blocked, Entries, push_entry};
use super::rows::PutVariable;
use super::shared::Writer;
use super::{Found, ValueKind, Values, Vocabulary};
use crate::error::{Error, Result, StoreError};
use crate::unknown_id::UNKNOWN_ID;
use embank_kv::Clock;

/// The number of values that are inserted together. An interrupted insertion leaves at most this
/// number of values to remove.
const INSERTED_AT_ONCE: usize = 1 << 13;

impl Vocabulary {
    /// Looks up the ids of `values`, and gives new ids to values without one, in order of first
    /// appearance. `ids` gets one id for each value. Returns the number of new values. One thread
    /// inserts at a time; batches without a new value do not wait. A frozen vocabulary inserts
    /// nothing: unknown values get [`unknown_id`](super::VocabularyConfig::unknown_id), or the call
    /// fails.
    ///
    /// # Errors
    /// The errors of [`ids`](Self::ids). [`Error::ValueTooLong`]. [`Error::UnknownValue`] if the
    /// vocabulary is frozen and has no `unknown_id`. After these errors, no value was inserted.
    /// After a failure of the store, some of the new values may have ids, in order from the first
    /// one on.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64().first_id(1))?;
    /// let mut ids = [0; 4];
    /// assert_eq!(users.ids_or_insert(&[900, 800, 900, 700], &mut ids)?, 3);
    /// assert_eq!(ids, [1, 2, 1, 3]);
    /// assert_eq!((users.len(), users.next_id()), (3, 4));
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn ids_or_insert<'v>(&self, values: impl Into<Values<'v>>, ids: &mut [u64]) -> Result<u64> {
        let values = values.into();
        self.check_batch(values, ids.len())?;
        let distinct = Distinct::new(values, self.shared.founding.seed)?;
        let mut found = self.find(&distinct)?;
        let mut inserted = 0;
        if found.places.contains(&UNKNOWN_ID) {
            inserted = self.insert(&distinct, &mut found)?;
        }
        let unknown = self.fill_ids(&distinct, &found.places, ids);
        self.settle_unknown(values, &unknown, ids, true)?;
        Ok(inserted)
    }

    /// Inserts the values that `found` lacks, unless the vocabulary is frozen.
    fn insert(&self, distinct: &Distinct<'_>, found: &mut Found) -> Result<u64> {
        if self.context().store.is_read_only() {
            if self.is_frozen() {
                return Ok(0);
            }
            return Err(StoreError::ReadOnly { path: self.context().store.path().into() }.into());
        }
        let mut writer = self.writer();
        if found.numbering != self.shared.numbering().number || found.len != self.shared.len() {
            *found = self.find(distinct)?;
        }
        let numbering = self.shared.numbering();
        let places = found.places.iter().enumerate();
        let new: Vec<usize> = places.filter(|of| *of.1 == UNKNOWN_ID).map(|of| of.0).collect();
        if new.is_empty() || writer.header.frozen {
            return Ok(0);
        }
        self.check_lengths(new.iter().map(|&number| distinct.bytes(number)))?;
        for numbers in new.chunks(INSERTED_AT_ONCE) {
            let keys: Vec<u64> = numbers.iter().map(|&number| distinct.keys[number]).collect();
            let strings = if distinct.are_strings() { numbers } else { &[] };
            let bytes: Vec<&[u8]> = strings.iter().map(|&number| distinct.bytes(number)).collect();
            let first = writer.header.len;
            self.append(&mut writer, &numbering, Items { keys: &keys, bytes: &bytes })?;
            for (place, &number) in (first..).zip(numbers) {
                found.places[number] = place;
            }
        }
        Ok(new.len() as u64)
    }

    fn check_lengths<'v>(&self, mut strings: impl Iterator<Item = &'v [u8]>) -> Result<()> {
        let longest = self.config().value_bytes_max;
        match strings.find(|string| string.len() > longest as usize) {
            None => Ok(()),
            Some(string) => Err(Error::ValueTooLong {
                vocabulary: self.name().to_owned(),
                value: super::byte_values::show_bytes(string),
                found: string.len(),
                longest,
            }),
        }
    }

    /// Appends new values, and makes them visible to lookups.
    fn append(&self, writer: &mut Writer, numbering: &Numbering, items: Items<'_>) -> Result<()> {
        self.take_out_what_lies_beyond(writer, numbering)?;
        // `writer.tip` stays `None` until the insertion ends, because rows may lie beyond the
        // length until then.
        let Some(tip) = writer.tip.take() else { return Ok(()) };
        let appended = numbering.append(&self.context().store, &tip, items);
        let next = appended.map_err(|error| self.in_terms_of_the_vocabulary(error.into()))?;
        let header = Header { len: next.len, fingerprint: next.fingerprint, ..writer.header };
        self.put_header(header)?;
        self.shared.publish(writer, header);
        writer.tip = Some(next);
        Ok(())
    }

    /// Removes the rows that an interrupted or failed insertion has left at places beyond the
    /// vocabulary's length.
    pub(crate) fn take_out_what_lies_beyond(
        &self,
        writer: &mut Writer,
        numbering: &Numbering,
    ) -> Result<()> {
        if writer.tip.is_none() {
            // If the failed insertion could not write the header, this call writes it again.
            self.put_header(writer.header)?;
            let tip = self.tip_of(writer.header, numbering);
            writer.tip = Some(tip.map_err(|error| self.in_terms_of_the_vocabulary(error))?);
        }
        Ok(())
    }

    fn tip_of(&self, header: Header, numbering: &Numbering) -> Result<Tip> {
        let store = &self.context().store;
        let per_block = numbering.values_per_block();
        let first = header.len / per_block;
        let count = (header.len % per_block) as usize;
        let mut number = first;
        // The loop ends, because an interrupted insertion leaves a bounded number of blocks.
        loop {
            let blocks = numbering.read_blocks(store, &[number])?;
            let Some(block) = blocks.get(0) else { break };
            let skipped = if number == first { count } else { 0 };
            let held = values_in(numbering.kind, block).skip(skipped);
            self.take_out(numbering, held, header.len)?;
            number += 1;
        }
        for number in (first + 1..number).rev() {
            numbering.put_block(store, number, &[])?;
        }
        let block = numbering.block_of_first(store, first, count)?;
        let block = block.ok_or_else(|| {
            self.damaged(format!("the block of its last {count} values is not whole"))
        })?;
        if number > first {
            numbering.put_block(store, first, &block)?;
        }
        Ok(Tip { len: header.len, fingerprint: header.fingerprint, block })
    }

    /// Removes the values whose place is not below `len`.
    fn take_out<'b>(
        &self,
        numbering: &Numbering,
        held: impl Iterator<Item = BlockValue<'b>>,
        len: u64,
    ) -> Result<()> {
        let store = &self.context().store;
        let seed = self.shared.founding.seed;
        let mut keys: Vec<u64> = held
            .map(|held| match held {
                BlockValue::Number(number) => number,
                BlockValue::String(Blocked::Inline(string)) => key_of(seed, string),
                BlockValue::String(Blocked::Long { key }) => key,
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        match numbering.kind {
            ValueKind::U64 => {
                let places = numbering.find(store, &keys, |_| &[], UNKNOWN_ID)?;
                let beyond = keys.iter().zip(places);
                let beyond = beyond.filter(|&(_, place)| place != UNKNOWN_ID && place >= len);
                let beyond: Vec<u64> = beyond.map(|(&key, _)| key).collect();
                store.delete(numbering.ids, &beyond)?;
            }
            ValueKind::Bytes => {
                let records = numbering.read_records(store, &keys)?;
                let mut emptied = Vec::new();
                let mut cut = Vec::new();
                let mut bytes = Vec::new();
                let mut ends = Vec::new();
                for (i, &key) in keys.iter().enumerate() {
                    let entries = Entries(records.get(i));
                    if entries.clone().all(|(place, _)| place < len) {
                        continue;
                    }
                    let start = bytes.len();
                    for (place, string) in entries.filter(|&(place, _)| place < len) {
                        push_entry(&mut bytes, place, string);
                    }
                    if bytes.len() == start {
                        emptied.push(key);
                    } else {
                        cut.push(key);
                        ends.push(bytes.len());
                    }
                }
                store.delete(numbering.ids, &emptied)?;
                let mut put = PutVariable { bytes: &bytes, ends: &ends };
                store.execute(numbering.ids, &cut, Clock::Keep, &mut put)?;
            }
        }
        Ok(())
    }
}
