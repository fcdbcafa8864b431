//! The operations of a vocabulary on rows of its tables, as the store executes them.
//!
//! The store may call a method again for a place if the row has moved. Each call therefore repeats
//! the whole work for its place.

use embank_kv::{Access, Operation, RowHint, Shortage, Width};

use super::record::{Entries, push_entry};
use crate::unknown_id::UNKNOWN_ID;

/// Reads whole rows of a table of fixed width.
#[derive(Debug)]
pub(crate) struct PeekFixed<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) row_bytes: usize,
}

impl Operation for PeekFixed<'_> {
    const ACCESS: Access = Access::Peek;

    #[inline]
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        Some(&mut self.bytes[i * self.row_bytes..][..self.row_bytes])
    }
}

/// Writes whole rows of a table of fixed width.
#[derive(Debug)]
pub(crate) struct PutFixed<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) row_bytes: usize,
}

impl Operation for PutFixed<'_> {
    const ACCESS: Access = Access::Put;

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&self.bytes[i * self.row_bytes..][..self.row_bytes]);
    }

    #[inline]
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Copies of rows of variable width. The copies may be in any order.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    bytes: Vec<u8>,
    ranges: Vec<(usize, usize)>,
}

impl Copies {
    pub(crate) fn of(count: usize) -> Self {
        Self { bytes: Vec::new(), ranges: vec![(0, 0); count] }
    }

    pub(crate) fn get(&self, i: usize) -> &[u8] {
        let (start, end) = self.ranges[i];
        &self.bytes[start..end]
    }

    fn put(&mut self, i: usize, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ranges[i] = (start, self.bytes.len());
    }
}

/// Reads rows of variable width.
#[derive(Debug)]
pub(crate) struct PeekVariable<'a>(pub(crate) &'a mut Copies);

impl Operation for PeekVariable<'_> {
    const ACCESS: Access = Access::Peek;
    const WIDTH: Width = Width::Variable;

    fn read(&mut self, i: usize, value: &[u8]) {
        self.0.put(i, value);
    }
}

/// Writes whole rows of variable width.
#[derive(Debug)]
pub(crate) struct PutVariable<'a> {
    pub(crate) bytes: &'a [u8],
    /// The end of each row in `bytes`.
    pub(crate) ends: &'a [usize],
}

impl PutVariable<'_> {
    fn row(&self, i: usize) -> &[u8] {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[i]]
    }
}

impl Operation for PutVariable<'_> {
    const ACCESS: Access = Access::Put;
    const WIDTH: Width = Width::Variable;

    fn value_bytes(&mut self, i: usize, _: Option<&[u8]>) -> usize {
        self.row(i).len()
    }

    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(self.row(i));
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Looks up the places of byte strings. Each key's record holds the strings of one hash, with their
/// places.
pub(crate) struct FindPlaces<'a, F> {
    /// Returns string `i` of the batch.
    pub(crate) value: F,
    /// Places at or beyond this length count as absent.
    pub(crate) len: u64,
    /// Receives the places. The caller must fill this slice with `UNKNOWN_ID` before.
    pub(crate) places: &'a mut [u64],
}

impl<'v, F: Fn(usize) -> &'v [u8]> Operation for FindPlaces<'_, F> {
    const ACCESS: Access = Access::Peek;
    const WIDTH: Width = Width::Variable;

    #[inline]
    fn read(&mut self, i: usize, value: &[u8]) {
        let wanted = (self.value)(i);
        let found = Entries(value).find(|&(place, found)| found == wanted && place < self.len);
        self.places[i] = found.map_or(UNKNOWN_ID, |(place, _)| place);
    }
}

/// Copies the byte strings at `places`. Each key's record holds the strings of one hash, with their
/// places.
#[derive(Debug)]
pub(crate) struct FindStrings<'a> {
    pub(crate) places: &'a [u64],
    pub(crate) found: &'a mut Copies,
    pub(crate) is_there: &'a mut [bool],
}

impl Operation for FindStrings<'_> {
    const ACCESS: Access = Access::Peek;
    const WIDTH: Width = Width::Variable;

    fn read(&mut self, i: usize, value: &[u8]) {
        let found = Entries(value).find(|&(place, _)| place == self.places[i]);
        self.is_there[i] = found.is_some();
        if let Some((_, value)) = found {
            self.found.put(i, value);
        }
    }
}

/// Adds byte strings with their places to the records of their hashes.
#[derive(Debug)]
pub(crate) struct AddEntries<'a> {
    /// The place of the first string. The others have the next places.
    pub(crate) first_place: u64,
    pub(crate) values: &'a [&'a [u8]],
    room: Vec<u8>,
}

impl<'a> AddEntries<'a> {
    pub(crate) fn new(first_place: u64, values: &'a [&'a [u8]]) -> Self {
        Self { first_place, values, room: Vec::new() }
    }

    fn entry(&mut self, i: usize) -> &[u8] {
        self.room.clear();
        push_entry(&mut self.room, self.first_place + i as u64, self.values[i]);
        &self.room
    }
}

impl Operation for AddEntries<'_> {
    const ACCESS: Access = Access::Update;
    const WIDTH: Width = Width::Variable;

    /// A failed insertion may leave a part of its rows. The next insertion removes them
    /// (`insertion`).
    fn shortage(&self) -> Shortage {
        Shortage::Stops
    }

    fn value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> usize {
        old.map_or(0, <[u8]>::len) + self.entry(i).len()
    }

    /// The store fills `value` with the old entries and zeros, and the new entry replaces the
    /// zeros.
    fn update(&mut self, i: usize, value: &mut [u8]) {
        let entry = self.entry(i);
        let from = value.len() - entry.len();
        value[from..].copy_from_slice(entry);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        value.copy_from_slice(self.entry(i));
        true
    }
}

/// Adds to counts, one block at a time.
#[derive(Debug)]
pub(crate) struct AddCounts<'a> {
    /// Pairs of a place and the number to add to its count, sorted by place.
    pub(crate) counts: &'a [(u64, u64)],
    /// For each block, the end of its part of `counts`.
    pub(crate) ends: &'a [usize],
    pub(crate) per_block: u64,
    /// The operation appends the indices of the blocks whose counts were added, also if the batch
    /// fails.
    pub(crate) settled: &'a mut Vec<u32>,
}

impl Operation for AddCounts<'_> {
    const ACCESS: Access = Access::Update;

    /// A failed batch may have added some of the counts. `settled` tells the caller which blocks
    /// have them.
    fn shortage(&self) -> Shortage {
        Shortage::Stops
    }

    fn settled(&mut self, i: usize, _: RowHint) {
        self.settled.push(i as u32);
    }

    fn update(&mut self, i: usize, value: &mut [u8]) {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        for &(place, more) in &self.counts[start..self.ends[i]] {
            let at = (place % self.per_block) as usize * 8;
            let Some(count) = value[at..].first_chunk_mut::<8>() else { continue };
            *count = u64::from_le_bytes(*count).saturating_add(more).to_le_bytes();
        }
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}
