//! The distinct keys of a batch.
//!
//! Every Get and every update starts here, so this is part of the hot path: one pass over the keys, an
//! open-addressing table of 32-bit numbers that fits the first-level cache for a batch of 4,096 keys,
//! and no allocation per key. A batch that is sorted already skips the table.

use std::cell::RefCell;

/// Scratch tables up to this many slots (256 KiB) are kept by the thread for its next batch.
const SLOTS_KEPT_MAX: usize = 1 << 16;

thread_local! {
    static SLOTS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// The distinct keys of a batch in order of first appearance, and each key's place among them.
///
/// # Examples
/// ```
/// use embank::UniqueKeys;
///
/// let unique = UniqueKeys::new(&[7, 3, 7, 9]);
/// assert_eq!(unique.keys(), [7, 3, 9]);
/// assert_eq!(unique.inverse(), [0, 1, 0, 2]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueKeys {
    keys: Vec<u64>,
    inverse: Vec<u32>,
}

impl UniqueKeys {
    /// Finds the distinct keys of `batch`.
    ///
    /// # Panics
    /// When the batch has `u32::MAX` keys (32 GiB of them) or more.
    #[must_use]
    pub fn new(batch: &[u64]) -> Self {
        assert!(batch.len() < u32::MAX as usize, "a batch holds fewer than 2^32 - 1 keys");
        if batch.windows(2).all(|pair| pair[0] < pair[1]) {
            return Self { keys: batch.to_vec(), inverse: (0..batch.len() as u32).collect() };
        }
        SLOTS.with_borrow_mut(|slots| {
            let unique = Self::hashed(batch, slots);
            if slots.len() > SLOTS_KEPT_MAX {
                *slots = Vec::new();
            }
            unique
        })
    }

    /// `slots` holds a distinct key's number + 1, or 0. It has at least twice as many slots as the
    /// batch has keys, so a probe always meets an empty slot.
    fn hashed(batch: &[u64], slots: &mut Vec<u32>) -> Self {
        let slot_count = (2 * batch.len()).next_power_of_two();
        if slots.len() < slot_count {
            *slots = vec![0; slot_count];
        } else {
            slots[..slot_count].fill(0);
        }
        let slots = &mut slots[..slot_count];
        let mask = slot_count - 1;
        let mut keys = vec![0; batch.len()];
        let mut inverse = vec![0; batch.len()];
        let mut distinct = 0;
        for (&key, place) in batch.iter().zip(&mut inverse) {
            let mut slot = scatter(key);
            *place = loop {
                let entry = &mut slots[slot & mask];
                if *entry == 0 {
                    keys[distinct] = key;
                    distinct += 1;
                    *entry = distinct as u32;
                    break distinct as u32 - 1;
                }
                if keys[*entry as usize - 1] == key {
                    break *entry - 1;
                }
                slot += 1;
            };
        }
        keys.truncate(distinct);
        Self { keys, inverse }
    }

    /// The distinct keys, in order of first appearance.
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// For each key of the batch its place in [`keys`](Self::keys).
    #[must_use]
    pub fn inverse(&self) -> &[u32] {
        &self.inverse
    }

    /// How many distinct keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether the batch has no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many keys the batch has, duplicates counted.
    #[must_use]
    pub fn batch_len(&self) -> usize {
        self.inverse.len()
    }

    /// Whether no key appears twice. Then place `i` of the batch is place `i` of the distinct keys.
    #[must_use]
    pub fn all_distinct(&self) -> bool {
        self.keys.len() == self.inverse.len()
    }

    /// The distinct keys and the inverse, taken apart.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u64>, Vec<u32>) {
        (self.keys, self.inverse)
    }

    /// For each distinct key the place of its first appearance in the batch.
    pub(crate) fn first_places(&self) -> Vec<u32> {
        let mut first = Vec::with_capacity(self.keys.len());
        for (place, &number) in self.inverse.iter().enumerate() {
            if number as usize == first.len() {
                first.push(place as u32);
            }
        }
        first
    }

    /// For each distinct key the place of its last appearance in the batch.
    pub(crate) fn last_places(&self) -> Vec<u32> {
        let mut last = vec![0; self.keys.len()];
        for (place, &number) in self.inverse.iter().enumerate() {
            last[number as usize] = place as u32;
        }
        last
    }
}

/// Both halves of a 128-bit product folded: regular keys (runs, strides, powers of two) spread evenly
/// over the low bits.
fn scatter(key: u64) -> usize {
    let product = u128::from(key ^ 0x2545_F491_4F6C_DD1D) * 0x9E37_79B9_7F4A_7C15;
    (product as u64 ^ (product >> 64) as u64) as usize
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
        let unique = UniqueKeys::new(batch);
        let (keys, inverse) = reference(batch);
        for (number, (&first, &last)) in
            unique.first_places().iter().zip(&unique.last_places()).enumerate()
        {
            let places: Vec<_> =
                (0..batch.len()).filter(|&place| batch[place] == keys[number]).collect();
            assert_eq!((first as usize, last as usize), (places[0], places[places.len() - 1]));
        }
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
        assert!(UniqueKeys::new(&[]).is_empty());
    }

    #[test]
    fn regular_keys_do_not_cluster() {
        for shift in [0, 1, 4, 12, 32, 48] {
            let descending: Vec<u64> = (0..4096).rev().map(|key| key << shift).collect();
            assert!(UniqueKeys::new(&descending).all_distinct());
        }
    }

    #[test]
    fn a_large_batch_leaves_no_large_scratch_behind() {
        let batch: Vec<u64> = (0..200_000_u64).rev().collect();
        assert_eq!(UniqueKeys::new(&batch).len(), batch.len());
        SLOTS.with_borrow(|slots| assert!(slots.len() <= SLOTS_KEPT_MAX));
    }
}
