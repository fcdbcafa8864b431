//! The reverse look-up: from ids to values.

use super::byte_values::{ByteBuffer, OwnedValues};
use super::numbering::{Blocks, Numbering};
use super::record::{BlockEntries, Blocked, NUMBERS_PER_BLOCK};
use super::{ValueKind, Vocabulary};
use crate::error::{Error, Result};
use crate::keys::UniqueKeys;

/// The number of ids whose blocks are read together. The blocks take at most 1 MiB of numbers or 8
/// MiB of strings.
const READ_AT_ONCE: usize = 2048;

impl Vocabulary {
    /// Returns the values of `ids`, in the order of `ids`.
    ///
    /// # Errors
    /// [`Error::UnknownId`] for an id that was never given out or is below `first_id`;
    /// [`Error::DamagedVocabulary`], [`Error::VocabularyDropped`], or a failure of the store.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Error, OwnedValues, VocabularyConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let users = bank.vocabulary("user", VocabularyConfig::u64())?;
    /// users.ids_or_insert(&[900, 800], &mut [0; 2])?;
    /// assert_eq!(users.values(&[1, 0])?, OwnedValues::U64(vec![800, 900]));
    /// assert!(matches!(users.values(&[2]), Err(Error::UnknownId { id: 2, .. })));
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn values(&self, ids: &[u64]) -> Result<OwnedValues> {
        self.read(|numbering, len| {
            let places = self.places_of(ids, len)?;
            self.values_at(numbering, &places)
        })
    }

    /// Returns the places of `ids`. Fails if one of `ids` belongs to no value.
    pub(crate) fn places_of(&self, ids: &[u64], len: u64) -> Result<Vec<u64>> {
        let first_id = self.config().first_id;
        let place = |&id: &u64| {
            let place = id.checked_sub(first_id).filter(|&place| place < len);
            place.ok_or_else(|| Error::UnknownId {
                vocabulary: self.name().to_owned(),
                id,
                first_id,
                next_id: first_id + len,
            })
        };
        ids.iter().map(place).collect()
    }

    /// Returns the values at these places. Every place must have a value.
    pub(crate) fn values_at(&self, numbering: &Numbering, places: &[u64]) -> Result<OwnedValues> {
        let mut numbers = Vec::new();
        let mut strings = ByteBuffer::default();
        let at_once = READ_AT_ONCE.min(self.config().values_at_once() as usize);
        for places in places.chunks(at_once) {
            let per_block = numbering.values_per_block();
            let of: Vec<u64> = places.iter().map(|place| place / per_block).collect();
            let (block_numbers, inverse) = UniqueKeys::new(&of)?.into_parts();
            let blocks = numbering.read_blocks(&self.context().store, &block_numbers)?;
            match numbering.kind {
                ValueKind::U64 => self.take_numbers(&blocks, places, &inverse, &mut numbers)?,
                ValueKind::Bytes => {
                    self.take_strings(numbering, &blocks, places, &inverse, &mut strings)?;
                }
            }
        }
        Ok(match numbering.kind {
            ValueKind::U64 => OwnedValues::U64(numbers),
            ValueKind::Bytes => OwnedValues::Bytes(strings),
        })
    }

    fn take_numbers(
        &self,
        blocks: &Blocks,
        places: &[u64],
        inverse: &[u32],
        numbers: &mut Vec<u64>,
    ) -> Result<()> {
        for (&place, &block) in places.iter().zip(inverse) {
            let block = blocks.get(block as usize).ok_or_else(|| self.lacks(place))?;
            let at = (place % NUMBERS_PER_BLOCK) as usize * 8;
            let bytes = block[at..].first_chunk().ok_or_else(|| self.lacks(place))?;
            numbers.push(u64::from_le_bytes(*bytes));
        }
        Ok(())
    }

    fn take_strings(
        &self,
        numbering: &Numbering,
        blocks: &Blocks,
        places: &[u64],
        inverse: &[u32],
        strings: &mut ByteBuffer,
    ) -> Result<()> {
        let per_block = numbering.values_per_block();
        let mut blocked = Vec::with_capacity(places.len());
        let mut long_keys = Vec::new();
        let mut long_places = Vec::new();
        // The place after the last string that was read, and the iterator of its block. If that
        // place is asked for next, the iterator continues instead of starting at the block's head.
        let mut last: Option<(u64, BlockEntries<'_>)> = None;
        for (&place, &block) in places.iter().zip(inverse) {
            let follows =
                last.take().filter(|&(next, _)| next == place && !place.is_multiple_of(per_block));
            let entry = match follows {
                Some((_, mut entries)) => entries.next().map(|entry| (entry, entries)),
                None => blocks.get(block as usize).and_then(|block| {
                    let mut entries = BlockEntries(block);
                    let entry = entries.nth((place % per_block) as usize);
                    entry.map(|entry| (entry, entries))
                }),
            };
            let (entry, entries) = entry.ok_or_else(|| self.lacks(place))?;
            last = Some((place + 1, entries));
            if let Blocked::Long { key } = entry {
                long_keys.push(key);
                long_places.push(place);
            }
            blocked.push(entry);
        }
        let (long, is_there) =
            numbering.read_long(&self.context().store, &long_keys, &long_places)?;
        let mut next_long = 0;
        for (entry, &place) in blocked.into_iter().zip(places) {
            match entry {
                Blocked::Inline(string) => strings.push(string),
                Blocked::Long { .. } => {
                    if !is_there[next_long] {
                        return Err(self.lacks(place));
                    }
                    strings.push(long.get(next_long));
                    next_long += 1;
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn lacks(&self, place: u64) -> Error {
        let id = self.config().first_id + place;
        self.damaged(format!("id {id} was given out and has no value"))
    }
}
