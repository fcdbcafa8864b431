//! Finds the distinct keys of a batch.
//!
//! Every Get and every update begins here, so this code is hot. It is one pass over the batch with
//! a hash table that has several slots per key. A processor can't predict whether a key is
//! new or repeats an earlier one. So the pass does not branch on that: it writes each key behind
//! the distinct keys found so far, and a new key has the number of that place. The only branch is
//! whether the key at the slot's number is this key. It is, unless two different keys share a slot,
//! which happens to about every sixteenth key.
//!
//! The table of a very large batch is not in the fast caches, so the pass prefetches the slots of
//! the keys to come. Without that, each wrong prediction would wait for a slot.
//!
//! Keys often come from outside. The hash has a random multiplier for each process
//! ([`Scatter`](crate::scatter::Scatter)), so that no caller can choose keys that share a slot. The
//! multiplier does not change the result, because the distinct keys are in the order of their first
//! appearance.
//!
//! No key needs an allocation. A sorted batch without duplicates needs no table.

use std::cell::RefCell;

use embank_kv::{check_batch, prefetch};

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::scatter::Scatter;

/// Largest table, in words of 4 bytes, that a thread keeps for its next batch. 4 MiB serves batches
/// of 131,072 keys.
const WORDS_KEPT_MAX: usize = 1 << 20;

/// Least number of slots per key of a batch whose table stays with the thread. With fewer slots,
/// more keys share a slot, and each of them costs a wrong prediction. With more, the table leaves
/// the processor's fast caches.
const SLOTS_PER_KEY_MIN: usize = 8;

/// Least number of slots per key of a larger batch. Its table does not fit the fast caches, and a
/// smaller table costs fewer cache misses.
const SLOTS_PER_FAR_KEY_MIN: usize = 4;

/// Largest batch with [`SLOTS_PER_KEY_MIN`] slots per key.
const NEAR_KEYS_MAX: usize = WORDS_KEPT_MAX / SLOTS_PER_KEY_MIN;

/// The pass prefetches the slot of the key that comes this many places later.
const KEYS_AHEAD: usize = 16;

thread_local! {
    static SLOTS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// The distinct keys of a batch, in order of first appearance. For each key of the batch, also its
/// index among the distinct keys.
///
/// # Examples
/// ```
/// use embank::UniqueKeys;
///
/// let unique = UniqueKeys::new(&[7, 3, 7, 9])?;
/// assert_eq!(unique.keys(), [7, 3, 9]);
/// assert_eq!(unique.inverse(), [0, 1, 0, 2]);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueKeys {
    keys: Vec<u64>,
    inverse: Vec<u32>,
}

impl UniqueKeys {
    /// Finds the distinct keys of `batch`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::StoreError::InvalidArgument) if the batch has 2^32 or more keys
    /// (32 GiB).
    pub fn new(batch: &[u64]) -> Result<Self> {
        check_batch(batch.len())?;
        if batch.windows(2).all(|pair| pair[0] < pair[1]) {
            return Ok(Self { keys: batch.to_vec(), inverse: (0..batch.len() as u32).collect() });
        }
        Ok(Self::scattered(batch, Scatter::of_process()))
    }

    fn scattered(batch: &[u64], scatter: Scatter) -> Self {
        let with_kept = |kept: &RefCell<Vec<u32>>| {
            let mut slots = kept.borrow_mut();
            let unique = Self::hashed(batch, scatter, &mut slots);
            if slots.len() > WORDS_KEPT_MAX {
                *slots = Vec::new();
            }
            unique
        };
        // A thread that is ending can't keep a scratch table.
        SLOTS.try_with(with_kept).unwrap_or_else(|_| Self::hashed(batch, scatter, &mut Vec::new()))
    }

    fn hashed(batch: &[u64], scatter: Scatter, scratch: &mut Vec<u32>) -> Self {
        if batch.len() <= usize::from(u16::MAX) {
            Self::find::<u16>(batch, scatter, scratch)
        } else {
            Self::find::<u32>(batch, scatter, scratch)
        }
    }

    fn find<S: Slot>(batch: &[u64], scatter: Scatter, scratch: &mut Vec<u32>) -> Self {
        let is_near = batch.len() <= NEAR_KEYS_MAX;
        let per_key = if is_near { SLOTS_PER_KEY_MIN } else { SLOTS_PER_FAR_KEY_MIN };
        let count = (per_key * batch.len()).next_power_of_two();
        let words = (count * size_of::<S>()).div_ceil(size_of::<u32>());
        match scratch.get_mut(..words) {
            Some(used) => used.fill(0),
            None => *scratch = vec![0; words],
        }
        let slots: &mut [S] = &mut bytemuck::cast_slice_mut(scratch)[..count];
        // Calculated from the length so that the compiler leaves the bounds check out.
        let mask = slots.len() - 1;
        let mut keys = vec![0; batch.len()];
        let mut inverse = vec![0; batch.len()];
        let mut distinct = 0;
        for (place, (&key, to)) in batch.iter().zip(&mut inverse).enumerate() {
            if S::LIES_FAR
                && let Some(&later) = batch.get(place + KEYS_AHEAD)
            {
                prefetch(&slots[scatter.hash(later) as usize & mask]);
            }
            keys[distinct] = key;
            let mut at = scatter.hash(key) as usize & mask;
            // The loop ends: the table has more slots than distinct keys.
            loop {
                let slot = slots[at].count();
                let new = slot == 0;
                let number = if new { distinct } else { slot - 1 };
                if keys[number] == key {
                    slots[at] = S::from_count(number + 1);
                    *to = number as u32;
                    distinct += usize::from(new);
                    break;
                }
                at = (at + 1) & mask;
            }
        }
        keys.truncate(distinct);
        Self { keys, inverse }
    }

    /// The distinct keys, in order of first appearance.
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// For each key of the batch, its index in [`keys`](Self::keys).
    #[must_use]
    pub fn inverse(&self) -> &[u32] {
        &self.inverse
    }

    /// Number of distinct keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Number of keys in the batch, including duplicates.
    #[must_use]
    pub fn batch_len(&self) -> usize {
        self.inverse.len()
    }

    /// True if no key appears twice. Then the batch equals the distinct keys, in the same order.
    #[must_use]
    pub fn all_distinct(&self) -> bool {
        self.keys.len() == self.inverse.len()
    }

    /// Returns the distinct keys and the inverse as two vectors.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u64>, Vec<u32>) {
        (self.keys, self.inverse)
    }

    /// Divides the places of the batch into those that begin a key and those that repeat one.
    /// Without a branch on which one a place is, because a processor can't predict it.
    pub(crate) fn places(&self) -> Places {
        let mut first = vec![0; self.inverse.len()];
        let mut later = vec![0; self.inverse.len()];
        let mut distinct = 0;
        for (place, &number) in self.inverse.iter().enumerate() {
            first[distinct] = place as u32;
            later[place - distinct] = place as u32;
            distinct += usize::from(number as usize == distinct);
        }
        first.truncate(distinct);
        later.truncate(self.inverse.len() - distinct);
        Places { first, later }
    }

    /// Returns, for each distinct key, the place of its last appearance in the batch.
    pub(crate) fn last_places(&self) -> Vec<u32> {
        let mut last = vec![0; self.keys.len()];
        for (place, &number) in self.inverse.iter().enumerate() {
            last[number as usize] = place as u32;
        }
        last
    }
}

/// A slot of the hash table: 1 + the number of a distinct key, or 0 if the slot is free.
trait Slot: bytemuck::Pod {
    /// True if the table is not in the fast caches, so the pass prefetches slots.
    const LIES_FAR: bool;

    fn from_count(count: usize) -> Self;
    fn count(self) -> usize;
}

/// For batches of up to 65,535 keys, whose table takes at most 1 MiB.
impl Slot for u16 {
    const LIES_FAR: bool = false;

    #[inline(always)]
    fn from_count(count: usize) -> Self {
        count as Self
    }

    #[inline(always)]
    fn count(self) -> usize {
        self.into()
    }
}

impl Slot for u32 {
    const LIES_FAR: bool = true;

    #[inline(always)]
    fn from_count(count: usize) -> Self {
        count as Self
    }

    #[inline(always)]
    fn count(self) -> usize {
        self as usize
    }
}

/// The places of a batch.
pub(crate) struct Places {
    /// For each distinct key, the place of its first appearance.
    pub(crate) first: Vec<u32>,
    /// The places of keys that appear earlier in the batch too, ascending.
    pub(crate) later: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn reference(batch: &[u64]) -> (Vec<u64>, Vec<u32>) {
        let mut numbers = HashMap::new();
        let mut keys = Vec::new();
        let inverse = batch
            .iter()
            .map(|&key| {
                *numbers.entry(key).or_insert_with(|| {
                    keys.push(key);
                    keys.len() as u32 - 1
                })
            })
            .collect();
        (keys, inverse)
    }

    fn assert_matches_reference(batch: &[u64]) {
        let unique = UniqueKeys::new(batch).unwrap();
        let (keys, inverse) = reference(batch);
        let Places { first, later } = unique.places();
        for (number, (&first, &last)) in first.iter().zip(&unique.last_places()).enumerate() {
            let places: Vec<_> =
                (0..batch.len()).filter(|&place| batch[place] == keys[number]).collect();
            assert_eq!((first as usize, last as usize), (places[0], places[places.len() - 1]));
        }
        let is_later = |place: &u32| !first.contains(place);
        assert_eq!(later, (0..batch.len() as u32).filter(is_later).collect::<Vec<_>>());
        assert_eq!(unique.into_parts(), (keys, inverse));
    }

    proptest! {
        #[test]
        fn agrees_with_a_hash_map(batch in prop::collection::vec(0_u64..60, 0..120)) {
            assert_matches_reference(&batch);
        }

        #[test]
        fn agrees_with_a_hash_map_for_any_key(batch in prop::collection::vec(any::<u64>(), 0..200)) {
            assert_matches_reference(&batch);
        }
    }

    #[test]
    fn empty_one_and_equal_keys() {
        assert_matches_reference(&[]);
        assert_matches_reference(&[u64::MAX]);
        assert_matches_reference(&[0; 9]);
        assert!(UniqueKeys::new(&[]).unwrap().is_empty());
    }

    /// Returns the greatest number of keys of `batch` that have one of 64 neighbouring slots, in a
    /// table with eight slots per key.
    fn crowd(batch: &[u64], scatter: Scatter) -> usize {
        let mask = (SLOTS_PER_KEY_MIN * batch.len()).next_power_of_two() as u64 - 1;
        let mut counts = HashMap::new();
        batch
            .iter()
            .for_each(|&key| *counts.entry((scatter.hash(key) & mask) / 64).or_insert(0) += 1);
        counts.into_values().max().unwrap_or(0)
    }

    /// Regression test: the hash had no secret, so 4,096 keys that a caller chose to share a slot
    /// took 200 times as long as others.
    #[test]
    fn keys_that_were_chosen_to_collide_do_not_under_another_multiplier() {
        let known = Scatter::with(1);
        let hits = |key: &u64| known.hash(*key) & 0x7FFF < 64;
        for first in [0, 1 << 40, u64::MAX << 36] {
            let chosen: Vec<u64> = (first..).filter(hits).take(4096).collect();
            assert_eq!(crowd(&chosen, known), 4096);
            for seed in 2..20 {
                let scatter = Scatter::with(seed);
                let crowded = crowd(&chosen, scatter);
                assert!(crowded < 64, "{crowded} keys share 64 slots under seed {seed}");
                assert_eq!(UniqueKeys::scattered(&chosen, scatter).keys(), chosen);
            }
        }
    }

    /// Shows that the result does not depend on the multiplier, for tables of both kinds of slots.
    #[test]
    fn the_result_is_the_same_under_every_multiplier() {
        let mut random = fastrand::Rng::with_seed(5);
        for count in [300, 5000, 70_000, 140_000] {
            let batch: Vec<u64> = (0..count).map(|_| random.u64(0..count)).collect();
            let expected = reference(&batch);
            for seed in 0..4 {
                let unique = UniqueKeys::scattered(&batch, Scatter::with(seed));
                assert_eq!(unique.into_parts(), expected, "seed {seed}");
            }
        }
    }

    #[test]
    fn batches_of_all_lengths_share_one_table() {
        let mut random = fastrand::Rng::with_seed(3);
        for count in [70_000, 65_536, 10, 65_535, 140_000, 0, 65_534, 1, 4096, 70_000] {
            let kinds = random.u64(1..2 * count.max(1));
            let batch: Vec<u64> = (0..count).map(|_| random.u64(0..kinds)).collect();
            let unique = UniqueKeys::new(&batch).unwrap();
            assert_eq!(unique.into_parts(), reference(&batch));
        }
    }

    #[test]
    fn a_large_batch_leaves_no_large_scratch_behind() {
        let batch: Vec<u64> = (0..400_000_u64).rev().collect();
        assert_eq!(UniqueKeys::new(&batch).unwrap().len(), batch.len());
        SLOTS.with_borrow(|slots| assert!(slots.len() <= WORDS_KEPT_MAX));
    }
}
