//! Ids of values from a small range, by one load.
//!
//! If a modulus bounds the values, a vocabulary's forward map is an array with a slot for each
//! possible value. An id is final at its first appearance, so a slot changes once, from 0 to id +
//! 1, and a reader needs no lock. A reader sees the id, or 0; then it asks again when it may add
//! values ([`crate::execute`]).
//!
//! The slots lie in an anonymous map that is advised for huge pages: random loads over 100 MiB of
//! small pages would miss the processor's address translation nearly every time.

use std::io;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::unseen::UnseenWord;
use crate::decode::{BLOCK_ROWS, Level, vectorised};

/// A table of ids, read by many threads.
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
    /// Puts ids, one less than what was found, in the place of values, but where no id below
    /// `limit` was found; counts those.
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

/// Whether a slot has an id below `limit`. An empty one has none, whatever the limit: it wraps
/// around to the largest number.
#[inline]
fn has_id_below(slot: u32, limit: u32) -> bool {
    slot.wrapping_sub(1) < limit
}

/// Every id of a table is below it.
pub(crate) const NO_LIMIT: u32 = u32::MAX;

impl DirectTable {
    /// For values from 0 to below `range`.
    pub(crate) fn new(range: u32) -> io::Result<Self> {
        let bytes = (range as usize * size_of::<AtomicU32>()).max(1);
        let map = MmapOptions::new().len(bytes).map_anon()?;
        #[cfg(target_os = "linux")]
        {
            // Small pages are slower, and as right.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { map: MmapRaw::from(map), range: range as usize })
    }

    /// The table's slots.
    #[inline]
    pub(crate) fn slots(&self) -> &[AtomicU32] {
        // SAFETY: the map has `range` times four bytes, aligned to a page, zero at first; it lives
        // as long as `self`. The pointer is the map's own, for writing, and nothing else is
        // ever made of it.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast(), self.range) }
    }

    /// Looks values up, which become their ids. Those that have no id below `limit` stay, and are
    /// put on the list with their rows, counted from `first_row`. `found` is room to work in.
    ///
    /// Two passes: the loads of the first wait for no branch, so that as many cache misses are
    /// under way as the processor can have. Deciding at each load would stop at every new value
    /// until its miss is over.
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
            // Relaxed: the id is all that is read, and a slot that is seen too early is asked again
            // at the commit. With a limit, slots of lower ids were stored before the
            // lock was released under which the limit was taken.
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

    /// Brings the slots of values into the processor's cache, all at once, before they are asked
    /// for one by one.
    #[inline]
    pub(crate) fn touch(&self, unseen: &[UnseenWord]) {
        let slots = self.slots();
        // Relaxed: nothing is made of what is read.
        let load = |word: &UnseenWord| slots[word.value as usize].load(Ordering::Relaxed);
        std::hint::black_box(unseen.iter().map(load).fold(0, |all, slot| all | slot));
    }

    /// The id of a value; if it has none yet, the first one after those of `values`, by their ids
    /// from `first_id` on. One thread at a time: `values` are the table's own.
    #[inline]
    pub(crate) fn id_or_insert(&self, value: u32, first_id: u32, values: &mut Vec<u32>) -> u32 {
        // Relaxed: the thread that wrote it was committing, as this thread is now.
        let known = self.slots()[value as usize].load(Ordering::Relaxed);
        if known != 0 {
            return known - 1;
        }
        // The first id and the range are at most 2^31 together, so ids fit with one to spare.
        let id = first_id + values.len() as u32;
        values.push(value);
        self.put(value, id);
        id
    }

    /// Gives a value an id.
    #[inline]
    pub(crate) fn put(&self, value: u32, id: u32) {
        // Relaxed: see `look_up`.
        self.slots()[value as usize].store(id + 1, Ordering::Relaxed);
    }

    /// Takes all ids back; all values have `id` then, or none.
    pub(crate) fn clear(&self, id: Option<u32>) {
        let empty = id.map_or(0, |id| id + 1);
        for slot in self.slots() {
            // Most pages of a new table are not there yet, and need not be.
            if slot.load(Ordering::Relaxed) != empty {
                slot.store(empty, Ordering::Relaxed);
            }
        }
    }

    /// Values are below it.
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
