//! A numbering: the tables that hold a vocabulary's values.
//!
//! Places are the numbers from 0 on, in order of first appearance. An id is `first_id` plus the
//! place. Values are only appended to a numbering and never changed in it. A renumbering makes a
//! new numbering.

use embank_kv::{Clock, Store, TableId};

use super::config::{ValueKind, VocabularyConfig};
use super::descriptor::Part;
use super::hash::{EMPTY_FINGERPRINT, fingerprint_with, random};
use super::record::{
    BYTE_BLOCK_BYTES_MAX, BYTES_PER_BLOCK, BlockEntries, Blocked, ENTRY_HEAD_BYTES_MAX,
    NUMBER_BLOCK_BYTES, NUMBERS_PER_BLOCK, first_of_block, push_blocked,
};
use super::rows::{
    AddEntries, Copies, FindPlaces, FindStrings, PeekFixed, PeekVariable, PutFixed, PutVariable,
};
use crate::row::numbering::renumberings;
use crate::unknown_id::UNKNOWN_ID;

type StoreResult<T> = embank_kv::Result<T>;

/// Returns the name of the table that holds a vocabulary's header.
pub(crate) fn header_name(vocabulary: &str) -> String {
    format!("{vocabulary} (vocabulary)")
}

/// True if a table with this name may be one of a vocabulary's internal tables.
pub(crate) fn is_name_of_a_part(table: &str) -> bool {
    table.ends_with(" (vocabulary)") || (table.contains(" (vocabulary, ") && table.ends_with(')'))
}

fn part_name(vocabulary: &str, part: Part, numbering: u64) -> String {
    format!("{vocabulary} (vocabulary, {} {numbering})", part.name())
}

/// Returns the number of the next numbering: a count and random bits. After a rollback, a bank may
/// reach a count that it had before, with other ids. The random bits distinguish the two
/// numberings.
pub(crate) fn number_after(numbering: u64) -> u64 {
    let count = renumberings(numbering).wrapping_add(1);
    random() << 32 | u64::from(count)
}

/// The tables of a numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbering {
    pub(crate) number: u64,
    pub(crate) ids: TableId,
    pub(crate) values: TableId,
    pub(crate) counts: Option<TableId>,
    pub(crate) kind: ValueKind,
}

/// The end of a numbering, where values are appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tip {
    pub(crate) len: u64,
    pub(crate) fingerprint: u64,
    /// The bytes of the last block, up to place `len`. Empty if `len` is at the start of a block.
    pub(crate) block: Vec<u8>,
}

impl Tip {
    pub(crate) fn empty() -> Self {
        Self { len: 0, fingerprint: EMPTY_FINGERPRINT, block: Vec::new() }
    }
}

/// New values without repetitions. The key of a number is the number itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Items<'a> {
    pub(crate) keys: &'a [u64],
    /// The byte string of each key. Empty if the values are numbers.
    pub(crate) bytes: &'a [&'a [u8]],
}

/// The value at a place of the numbering, as the block of values stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockValue<'b> {
    Number(u64),
    String(Blocked<'b>),
}

/// Blocks that were read.
#[derive(Debug)]
pub(crate) enum Blocks {
    Numbers { bytes: Vec<u8>, missing: Vec<u32> },
    Strings { copies: Copies, missing: Vec<u32> },
}

impl Blocks {
    /// Returns the bytes of block `i`. `None` if the block is missing.
    pub(crate) fn get(&self, i: usize) -> Option<&[u8]> {
        let (Self::Numbers { missing, .. } | Self::Strings { missing, .. }) = self;
        if missing.binary_search(&(i as u32)).is_ok() {
            return None;
        }
        Some(match self {
            Self::Numbers { bytes, .. } => &bytes[i * NUMBER_BLOCK_BYTES..][..NUMBER_BLOCK_BYTES],
            Self::Strings { copies, .. } => copies.get(i),
        })
    }
}

/// Iterates over the values in a block, in order.
pub(crate) fn values_in(kind: ValueKind, block: &[u8]) -> impl Iterator<Item = BlockValue<'_>> {
    let (numbers, strings) = match kind {
        ValueKind::U64 => (block, &[][..]),
        ValueKind::Bytes => (&[][..], block),
    };
    let numbers = numbers.chunks_exact(8).map(|bytes| {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        BlockValue::Number(u64::from_le_bytes(word))
    });
    numbers.chain(BlockEntries(strings).map(BlockValue::String))
}

impl Numbering {
    /// Makes empty tables. After an error some of the tables may exist.
    pub(crate) fn create(
        store: &Store,
        vocabulary: &str,
        config: &VocabularyConfig,
        identity: u64,
        number: u64,
    ) -> StoreResult<Self> {
        let name = |part| part_name(vocabulary, part, number);
        let descriptor = |part: Part| part.descriptor(identity, number);
        let (ids, values) = match config.kind {
            ValueKind::U64 => (
                store.create_table(&name(Part::Ids), 8, &descriptor(Part::Ids))?,
                store.create_table(
                    &name(Part::Values),
                    NUMBER_BLOCK_BYTES as u32,
                    &descriptor(Part::Values),
                )?,
            ),
            ValueKind::Bytes => {
                // A record must have room for two strings with equal hashes. Three strings with
                // equal hashes are so improbable that no room is reserved for them.
                let longest = 2 * (config.value_bytes_max + ENTRY_HEAD_BYTES_MAX);
                let ids = store.create_variable_table(
                    &name(Part::Ids),
                    longest,
                    &descriptor(Part::Ids),
                )?;
                let values = store.create_variable_table(
                    &name(Part::Values),
                    BYTE_BLOCK_BYTES_MAX,
                    &descriptor(Part::Values),
                )?;
                (ids, values)
            }
        };
        let counts = config.counts.then(|| {
            let row_bytes = NUMBER_BLOCK_BYTES as u32;
            store.create_table(&name(Part::Counts), row_bytes, &descriptor(Part::Counts))
        });
        Ok(Self { number, ids, values, counts: counts.transpose()?, kind: config.kind })
    }

    /// The numbering's tables.
    pub(crate) fn tables(&self) -> impl Iterator<Item = TableId> {
        [Some(self.ids), Some(self.values), self.counts].into_iter().flatten()
    }

    pub(crate) fn values_per_block(&self) -> u64 {
        match self.kind {
            ValueKind::U64 => NUMBERS_PER_BLOCK,
            ValueKind::Bytes => BYTES_PER_BLOCK,
        }
    }

    /// Returns the places of distinct values. `keys` holds each value's key. If the values are
    /// strings, `value(i)` must return string `i`. A value whose place is `len` or more counts as
    /// unknown.
    pub(crate) fn find<'v>(
        &self,
        store: &Store,
        keys: &[u64],
        value: impl Fn(usize) -> &'v [u8],
        len: u64,
    ) -> StoreResult<Vec<u64>> {
        let mut places = vec![UNKNOWN_ID; keys.len()];
        match self.kind {
            ValueKind::U64 => {
                let bytes = bytemuck::cast_slice_mut(&mut places);
                let mut peek = PeekFixed { bytes, row_bytes: 8 };
                let outcome = store.execute(self.ids, keys, Clock::Keep, &mut peek)?;
                for place in &mut places {
                    *place = u64::from_le(*place);
                    if *place >= len {
                        *place = UNKNOWN_ID;
                    }
                }
                for i in outcome.missing {
                    places[i as usize] = UNKNOWN_ID;
                }
            }
            ValueKind::Bytes => {
                let mut find = FindPlaces { value, len, places: &mut places };
                let outcome = store.execute(self.ids, keys, Clock::Keep, &mut find)?;
                for i in outcome.missing {
                    places[i as usize] = UNKNOWN_ID;
                }
            }
        }
        Ok(places)
    }

    /// Reads blocks of values. `numbers` must not repeat a number.
    pub(crate) fn read_blocks(&self, store: &Store, numbers: &[u64]) -> StoreResult<Blocks> {
        Ok(match self.kind {
            ValueKind::U64 => {
                let (bytes, missing) = read_number_blocks(store, self.values, numbers)?;
                Blocks::Numbers { bytes, missing }
            }
            ValueKind::Bytes => {
                let mut copies = Copies::of(numbers.len());
                let mut peek = PeekVariable(&mut copies);
                let outcome = store.execute(self.values, numbers, Clock::Keep, &mut peek)?;
                Blocks::Strings { copies, missing: sorted(outcome.missing) }
            }
        })
    }

    /// Reads the strings at these places. `keys` are the keys of the records of ids that hold these
    /// strings. The flag of a string is false if its record lacks the place.
    pub(crate) fn read_long(
        &self,
        store: &Store,
        keys: &[u64],
        places: &[u64],
    ) -> StoreResult<(Copies, Vec<bool>)> {
        let mut found = Copies::of(keys.len());
        let mut is_there = vec![false; keys.len()];
        let mut find = FindStrings { places, found: &mut found, is_there: &mut is_there };
        let outcome = store.execute(self.ids, keys, Clock::Keep, &mut find)?;
        for i in outcome.missing {
            is_there[i as usize] = false;
        }
        Ok((found, is_there))
    }

    /// Returns copies of the records of ids with these keys. The copy is empty for a key without a
    /// record.
    pub(crate) fn read_records(&self, store: &Store, keys: &[u64]) -> StoreResult<Copies> {
        let mut copies = Copies::of(keys.len());
        store.execute(self.ids, keys, Clock::Keep, &mut PeekVariable(&mut copies))?;
        Ok(copies)
    }

    /// Appends values that the numbering lacks. Writes their blocks before their places; the module
    /// `insertion` explains the order. Returns the new tip. After an error the old tip stays valid,
    /// and the caller must remove the rows beyond it.
    pub(crate) fn append(&self, store: &Store, tip: &Tip, items: Items<'_>) -> StoreResult<Tip> {
        let next = self.append_blocks(store, tip, items)?;
        match self.kind {
            ValueKind::U64 => {
                let places: Vec<u64> = (tip.len..next.len).map(u64::to_le).collect();
                let bytes = bytemuck::cast_slice(&places);
                let mut put = PutFixed { bytes, row_bytes: 8 };
                store.execute(self.ids, items.keys, Clock::Keep, &mut put)?;
            }
            ValueKind::Bytes => {
                let mut add = AddEntries::new(tip.len, items.bytes);
                store.execute(self.ids, items.keys, Clock::Keep, &mut add)?;
            }
        }
        Ok(next)
    }

    fn append_blocks(&self, store: &Store, tip: &Tip, items: Items<'_>) -> StoreResult<Tip> {
        let per_block = self.values_per_block();
        let mut next = tip.clone();
        let mut numbers = Vec::new();
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        let mut emit = |number: u64, block: &[u8]| {
            numbers.push(number);
            bytes.extend_from_slice(block);
            if self.kind == ValueKind::U64 {
                bytes.resize(numbers.len() * NUMBER_BLOCK_BYTES, 0);
            }
            ends.push(bytes.len());
        };
        for (i, &key) in items.keys.iter().enumerate() {
            match self.kind {
                ValueKind::U64 => {
                    next.block.extend_from_slice(&key.to_le_bytes());
                    next.fingerprint = fingerprint_with(next.fingerprint, &key.to_le_bytes());
                }
                ValueKind::Bytes => {
                    push_blocked(&mut next.block, key, items.bytes[i]);
                    next.fingerprint = fingerprint_with(next.fingerprint, items.bytes[i]);
                }
            }
            next.len += 1;
            if next.len.is_multiple_of(per_block) {
                emit(next.len / per_block - 1, &next.block);
                next.block.clear();
            }
        }
        if !next.block.is_empty() {
            emit(next.len / per_block, &next.block);
        }
        match self.kind {
            ValueKind::U64 => {
                let mut put = PutFixed { bytes: &bytes, row_bytes: NUMBER_BLOCK_BYTES };
                store.execute(self.values, &numbers, Clock::Keep, &mut put)?;
            }
            ValueKind::Bytes => {
                let mut put = PutVariable { bytes: &bytes, ends: &ends };
                store.execute(self.values, &numbers, Clock::Keep, &mut put)?;
            }
        }
        Ok(next)
    }

    /// Returns the first `count` values of block `number`, as bytes. `None` if the block has fewer
    /// values.
    pub(crate) fn block_of_first(
        &self,
        store: &Store,
        number: u64,
        count: usize,
    ) -> StoreResult<Option<Vec<u8>>> {
        if count == 0 {
            return Ok(Some(Vec::new()));
        }
        let blocks = self.read_blocks(store, &[number])?;
        Ok(blocks.get(0).and_then(|block| match self.kind {
            ValueKind::U64 => Some(block[..count * 8].to_vec()),
            ValueKind::Bytes => first_of_block(block, count).map(<[u8]>::to_vec),
        }))
    }

    /// Replaces a block, or removes it if `block` is empty.
    pub(crate) fn put_block(&self, store: &Store, number: u64, block: &[u8]) -> StoreResult<()> {
        if block.is_empty() {
            return store.delete(self.values, &[number]).map(drop);
        }
        match self.kind {
            ValueKind::U64 => {
                let mut bytes = block.to_vec();
                bytes.resize(NUMBER_BLOCK_BYTES, 0);
                let mut put = PutFixed { bytes: &bytes, row_bytes: NUMBER_BLOCK_BYTES };
                store.execute(self.values, &[number], Clock::Keep, &mut put).map(drop)
            }
            ValueKind::Bytes => {
                let mut put = PutVariable { bytes: block, ends: &[block.len()] };
                store.execute(self.values, &[number], Clock::Keep, &mut put).map(drop)
            }
        }
    }
}

/// Reads blocks of 64 numbers. Also returns the indices in `numbers` of the missing blocks,
/// ascending.
pub(crate) fn read_number_blocks(
    store: &Store,
    table: TableId,
    numbers: &[u64],
) -> StoreResult<(Vec<u8>, Vec<u32>)> {
    let mut bytes = vec![0; numbers.len() * NUMBER_BLOCK_BYTES];
    let mut peek = PeekFixed { bytes: &mut bytes, row_bytes: NUMBER_BLOCK_BYTES };
    let outcome = store.execute(table, numbers, Clock::Keep, &mut peek)?;
    Ok((bytes, sorted(outcome.missing)))
}

fn sorted(mut missing: Vec<u32>) -> Vec<u32> {
    missing.sort_unstable();
    missing
}
