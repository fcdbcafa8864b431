//! Finds the distinct keys of a batch.
//!
//! Every Get and every update begins here, so this code is hot. Probing a hash table key by key
//! takes branches that a processor can't predict. The table in this module needs no such branches:
//!
//! 1. The first pass goes backwards over the batch. Each key writes its place to its slot, without
//!    a comparison. After the pass, each slot holds the first place of the batch whose key maps to
//!    the slot. The slots need no clearing, because the second pass reads only slots that the first
//!    pass wrote.
//! 2. The second pass goes forwards. Each key reads the place in its slot. If the key at that place
//!    is equal, the place is the first place of the key. If the key there is different, the pass
//!    puts the current key's place on a list, without a branch. With 2 to 4 slots per key, about a
//!    sixth of the keys are listed. Equal keys have equal slots, so the list has either all places
//!    of a key or no place of the key.
//! 3. The third pass finds the first places of the listed keys in a small hash table with probing.
//! 4. The fourth pass numbers the keys in the order of their first places, without a branch.
//!
//! No key needs an allocation. A sorted batch without duplicates needs no table.

use std::cell::RefCell;

/// Stands for the id of an unknown value. No value has this id.
///
/// # Examples
/// See [`Vocabulary::ids`](crate::Vocabulary::ids).
pub const UNKNOWN_ID: u64 = u64::MAX;

/// Largest scratch table, in slots, that a thread keeps for its next batch. 1 MiB serves batches of
/// 65,536 keys.
const SLOTS_KEPT_MAX: usize = 1 << 18;

/// The first table has at least this many slots per key of the batch. With more slots, fewer keys
/// need the probed table, but the first table takes more of the processor's cache.
const OWNERS_PER_KEY_MIN: usize = 2;

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
    /// If the batch has `u32::MAX` or more keys (32 GiB).
    #[must_use]
    pub fn new(batch: &[u64]) -> Self {
        assert!(batch.len() < u32::MAX as usize, "a batch holds fewer than 2^32 - 1 keys");
        if batch.windows(2).all(|pair| pair[0] < pair[1]) {
            return Self { keys: batch.to_vec(), inverse: (0..batch.len() as u32).collect() };
        }
        let with_kept = |kept: &RefCell<Vec<u32>>| {
            let mut slots = kept.borrow_mut();
            let unique = Self::hashed(batch, &mut slots);
            if slots.len() > SLOTS_KEPT_MAX {
                *slots = Vec::new();
            }
            unique
        };
        // A thread that is ending can't keep a scratch table.
        SLOTS.try_with(with_kept).unwrap_or_else(|_| Self::hashed(batch, &mut Vec::new()))
    }

    fn hashed(batch: &[u64], scratch: &mut Vec<u32>) -> Self {
        let owner_count = (OWNERS_PER_KEY_MIN * batch.len()).next_power_of_two();
        let probed_count = (2 * batch.len()).next_power_of_two();
        if scratch.len() < owner_count + probed_count {
            *scratch = vec![0; owner_count + probed_count];
        }
        let (owners, probed) = scratch.split_at_mut(owner_count);
        // Calculated from the length so that the compiler leaves the bounds check out.
        let mask = owners.len() - 1;
        for (place, &key) in batch.iter().enumerate().rev() {
            owners[scatter(key) as usize & mask] = place as u32;
        }
        let mut inverse = vec![0; batch.len()];
        let mut keys = vec![0; batch.len()];
        // Until the fourth pass, `inverse` holds the first place of each place's key, and `keys`
        // holds the listed places.
        let mut listed = 0;
        for ((place, &key), first) in batch.iter().enumerate().zip(&mut inverse) {
            let owner = owners[scatter(key) as usize & mask];
            *first = owner;
            keys[listed] = place as u64;
            listed += usize::from(batch[owner as usize] != key);
        }
        let mut probed = Probed::new(&mut probed[..(2 * listed).next_power_of_two()]);
        for &place in &keys[..listed] {
            inverse[place as usize] = probed.first_place(place as u32, batch);
        }
        let mut distinct = 0;
        for (place, &key) in batch.iter().enumerate() {
            let first = inverse[place] as usize;
            let new = first == place;
            keys[distinct] = key;
            // The first place is before `place`, so it already holds the number of its key.
            inverse[place] = if new { distinct as u32 } else { inverse[first] };
            distinct += usize::from(new);
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

    /// Returns, for each distinct key, the place of its first appearance in the batch.
    pub(crate) fn first_places(&self) -> Vec<u32> {
        let mut first = Vec::with_capacity(self.keys.len());
        for (place, &number) in self.inverse.iter().enumerate() {
            if number as usize == first.len() {
                first.push(place as u32);
            }
        }
        first
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

/// A hash table with linear probing. It handles keys whose slot in the first table belongs to a
/// different key.
struct Probed<'s> {
    /// The first place of a key + 1, or 0 if the slot is empty. There are at least twice as many
    /// slots as keys that come here, so every probe meets an empty slot.
    slots: &'s mut [u32],
}

impl<'s> Probed<'s> {
    fn new(slots: &'s mut [u32]) -> Self {
        slots.fill(0);
        Self { slots }
    }

    /// Returns the first place of the key at `place` of the batch. The caller must ask for the
    /// places in ascending order.
    fn first_place(&mut self, place: u32, batch: &[u64]) -> u32 {
        let mask = self.slots.len() - 1;
        let key = batch[place as usize];
        // Keys come here because they have the same hash bits in the first table as a different
        // key. This table therefore uses hash bits that the first table does not use.
        let mut slot = (scatter(key) >> 32) as usize;
        loop {
            let first = &mut self.slots[slot & mask];
            if *first == 0 {
                *first = place + 1;
                return place;
            }
            if batch[*first as usize - 1] == key {
                return *first - 1;
            }
            slot += 1;
        }
    }
}

/// Hashes a key by folding both halves of a 128-bit product. Regular keys (runs, strides, powers of
/// two) then spread evenly.
#[inline]
fn scatter(key: u64) -> u64 {
    let product = u128::from(key ^ 0x2545_F491_4F6C_DD1D) * 0x9E37_79B9_7F4A_7C15;
    product as u64 ^ (product >> 64) as u64
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
