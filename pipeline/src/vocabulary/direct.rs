//! Finds the id of a value from a small range with one load.
//!
//! If a modulus bounds the values, the map from value to id is an array with a slot for each
//! possible value. A value gets its id at its first appearance and keeps it. During a run that
//! succeeds, a slot therefore changes only once, from 0 to id + 1, and readers need no lock. A
//! reader finds the id or 0. If it finds 0, the value is looked up again at the commit of its
//! chunk, when values may be added
//! ([`crate::execute`]).
//!
//! The slots are in an anonymous map with advice for huge pages. With small pages, nearly every
//! random load over 100 MiB would miss the processor's address translation cache.

use std::io;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::unseen::UnseenWord;
use crate::decode::{BLOCK_ROWS, Level, vectorised};

/// A table of ids that many threads read.
pub(crate) struct DirectTable {
    map: MmapRaw,
    range: usize,
}

impl std::fmt::Debug for DirectTable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DirectTable").field("range", &self.range).finish_non_exhaustive()
    }
}

vectorised! {
    /// Replaces each value by its id if the slot in `found` has an id below `limit`. A slot holds
    /// its id plus 1. Returns the number of values that were not replaced.
    fn replace_known(values: &mut [u32], found: &[u32], limit: u32) -> u32 {
        let mut unknown = 0;
        for (value, &slot) in values.iter_mut().zip(found) {
            let is_known = has_id_below(slot, limit);
            unknown += u32::from(!is_known);
            *value = if is_known { slot.wrapping_sub(1) } else { *value };
        }
        unknown
    }
}

/// True if a slot has an id below `limit`. For an empty slot, 0 - 1 wraps to the largest number, so
/// the result is false.
#[inline]
fn has_id_below(slot: u32, limit: u32) -> bool {
    slot.wrapping_sub(1) < limit
}

/// A limit that every id of a table is below.
pub(crate) const NO_LIMIT: u32 = u32::MAX;

impl DirectTable {
    /// Makes a table for values from 0 to below `range`.
    pub(crate) fn new(range: u32) -> io::Result<Self> {
        let bytes = (range as usize * size_of::<AtomicU32>()).max(1);
        let map = MmapOptions::new().len(bytes).map_anon()?;
        #[cfg(target_os = "linux")]
        {
            // The advice may fail: small pages are slower but correct.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { map: MmapRaw::from(map), range: range as usize })
    }

    #[inline]
    pub(crate) fn slots(&self) -> &[AtomicU32] {
        // SAFETY: the map has `range` times four bytes, is aligned to a page, and is zero at first.
        // It lives as long as `self`. The pointer is the map's own and writable, and no other
        // reference to the map is ever made.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast(), self.range) }
    }

    /// Replaces the values that have an id below `limit` by their ids. The other values stay and go
    /// into `unseen`, with rows that count from `first_row`. `found` is scratch space.
    ///
    /// The look-up takes two passes. The first pass only loads slots, without branches, so the
    /// processor overlaps as many cache misses as it can. With a branch after each load, the
    /// processor would wait at every new value until the value's cache miss has ended.
    #[inline]
    pub(crate) fn look_up(
        &self,
        level: Level,
        values: &mut [u32],
        limit: u32,
        found: &mut [u32; BLOCK_ROWS],
        first_row: u32,
        unseen: &mut Vec<UnseenWord>,
    ) {
        let slots = self.slots();
        let found = &mut found[..values.len()];
        for (found, &value) in found.iter_mut().zip(&*values) {
            // Relaxed: this code reads no data except the slot. If the load misses a new id, the
            // commit looks the value up again. If there is a limit, it was read under a lock. That
            // lock orders all stores of lower ids before this load.
            *found = slots[value as usize].load(Ordering::Relaxed);
        }
        let unknown = replace_known(level, values, found, limit);
        if unknown == 0 {
            return;
        }
        unseen.reserve(unknown as usize);
        for (row, (&value, &slot)) in values.iter().zip(&*found).enumerate() {
            if !has_id_below(slot, limit) {
                unseen.push(UnseenWord { row: first_row + row as u32, value });
            }
        }
    }

    /// Loads the slots of these values into the processor's cache together. `id_or_insert` then
    /// reads them one by one.
    #[inline]
    pub(crate) fn touch(&self, unseen: &[UnseenWord]) {
        let slots = self.slots();
        // Relaxed: the loaded values are not used.
        let load = |word: &UnseenWord| slots[word.value as usize].load(Ordering::Relaxed);
        std::hint::black_box(unseen.iter().map(load).fold(0, |all, slot| all | slot));
    }

    /// Returns the id of a value. A value without an id gets the next one and is appended to
    /// `values`, whose ids start at `first_id`. Must be called by one thread at a time, and
    /// `values` must be the list of this table.
    #[inline]
    pub(crate) fn id_or_insert(&self, value: u32, first_id: u32, values: &mut Vec<u32>) -> u32 {
        // Relaxed: only commits write slots. Commits run one after the other under a lock, so this
        // load sees their stores.
        let known = self.slots()[value as usize].load(Ordering::Relaxed);
        if known != 0 {
            return known - 1;
        }
        // `first_id` plus the range is at most 2^31, so an id plus 1 fits in 32 bits.
        let id = first_id + values.len() as u32;
        values.push(value);
        self.put(value, id);
        id
    }

    /// Stores the id of a value.
    #[inline]
    pub(crate) fn put(&self, value: u32, id: u32) {
        // Relaxed: no other data depends on the slot; `look_up` says why readers may miss the
        // store.
        self.slots()[value as usize].store(id + 1, Ordering::Relaxed);
    }

    /// Removes the id of a value.
    pub(crate) fn remove(&self, value: u32) {
        // Relaxed: as in `put`.
        self.slots()[value as usize].store(0, Ordering::Relaxed);
    }

    /// Removes all ids. Every value then has the id `id`, or no id if `id` is `None`.
    pub(crate) fn clear(&self, id: Option<u32>) {
        let empty = id.map_or(0, |id| id + 1);
        for slot in self.slots() {
            // Stores only where the slot differs. The pages of a new table that no store has
            // touched take no memory.
            if slot.load(Ordering::Relaxed) != empty {
                slot.store(empty, Ordering::Relaxed);
            }
        }
    }

    /// All values are below this number.
    pub(crate) fn range(&self) -> usize {
        self.range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_given_in_order_of_first_appearance() {
        let table = DirectTable::new(10).unwrap();
        let mut known = Vec::new();
        let ids = [7, 3, 7, 0, 3, 9].map(|value| table.id_or_insert(value, 0, &mut known));
        assert_eq!(ids, [0, 1, 0, 2, 1, 3]);
        assert_eq!(known, [7, 3, 0, 9]);
        for level in Level::available() {
            let mut values = [9, 8, 7];
            let mut unseen = Vec::new();
            let mut found = [0; BLOCK_ROWS];
            table.look_up(level, &mut values, NO_LIMIT, &mut found, 100, &mut unseen);
            assert_eq!(values, [3, 8, 0], "{level}");
            assert_eq!(unseen, [UnseenWord { row: 101, value: 8 }], "{level}");
            values = [9, 8, 7];
            unseen.clear();
            table.look_up(level, &mut values, 3, &mut found, 0, &mut unseen);
            assert_eq!(values, [9, 8, 0], "9 has id 3 ({level})");
            let expected = [(0, 9), (1, 8)].map(|(row, value)| UnseenWord { row, value });
            assert_eq!(unseen, expected, "{level}");
        }
    }
}
