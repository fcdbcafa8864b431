//! The distinct values of a batch, in order of first appearance, with their keys in the store.

use super::byte_values::{ByteValues, Values};
use super::hash::key_of;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::keys::UniqueKeys;
use embank_kv::check_batch;

/// The distinct values of a batch.
#[derive(Debug)]
pub(crate) struct Distinct<'v> {
    /// The key of each distinct value. A number is its own key. A string's key is its hash, and two
    /// strings may have equal hashes.
    pub(crate) keys: Vec<u64>,
    /// For each value of the batch, the index of its distinct value.
    pub(crate) inverse: Vec<u32>,
    strings: Option<(ByteValues<'v>, Vec<u32>)>,
}

impl<'v> Distinct<'v> {
    /// Finds the distinct values of a batch. `seed` seeds the hash of strings.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::StoreError::InvalidArgument) if the batch has 2^32 or more
    /// values.
    pub(crate) fn new(values: Values<'v>, seed: u64) -> Result<Self> {
        check_batch(values.len())?;
        Ok(match values {
            Values::U64(values) => {
                let (keys, inverse) = UniqueKeys::new(values)?.into_parts();
                Self { keys, inverse, strings: None }
            }
            Values::Bytes(values) => Self::strings(values, seed),
        })
    }

    fn strings(values: ByteValues<'v>, seed: u64) -> Self {
        let mask = (2 * values.len()).next_power_of_two() - 1;
        // A slot holds a string's number + 1, or 0 if it is empty. There are at least twice as many
        // slots as strings, so a probe always meets an empty slot.
        let mut slots = vec![0_u32; mask + 1];
        let mut keys = Vec::with_capacity(values.len());
        let mut first = Vec::<u32>::new();
        let mut inverse = Vec::with_capacity(values.len());
        for (place, value) in values.iter().enumerate() {
            let key = key_of(seed, value);
            // The multiplication mixes the key's bits. The upper half of the product is used,
            // because the lower bits of the product depend on few bits of the key.
            let mut slot = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
            let number = loop {
                let entry = &mut slots[slot & mask];
                if *entry == 0 {
                    keys.push(key);
                    first.push(place as u32);
                    *entry = keys.len() as u32;
                    break *entry - 1;
                }
                let number = *entry - 1;
                let at = number as usize;
                if keys[at] == key && values.get(first[at] as usize) == value {
                    break number;
                }
                slot += 1;
            };
            inverse.push(number);
        }
        Self { keys, inverse, strings: Some((values, first)) }
    }

    /// Returns string `number`. Empty if the values are numbers.
    #[inline]
    pub(crate) fn bytes(&self, number: usize) -> &'v [u8] {
        match &self.strings {
            Some((values, first)) => values.get(first[number] as usize),
            None => &[],
        }
    }

    pub(crate) fn are_strings(&self) -> bool {
        self.strings.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::byte_values::ByteBuffer;
    use super::super::hash::CLASHING_SEED;
    use super::*;

    proptest! {
        #[test]
        fn strings_come_once_in_order(batch in prop::collection::vec("[ab]{0,4}", 0..80), clash: bool) {
            let buffer = ByteBuffer::from_iter(&batch);
            let seed = if clash { CLASHING_SEED } else { 7 };
            let distinct = Distinct::new(Values::from(&buffer), seed).unwrap();
            let mut expected: Vec<&str> = Vec::new();
            for (word, &number) in batch.iter().zip(&distinct.inverse) {
                if !expected.contains(&word.as_str()) {
                    expected.push(word);
                }
                prop_assert_eq!(expected[number as usize], word);
            }
            prop_assert_eq!(distinct.keys.len(), expected.len());
            for (number, word) in expected.iter().enumerate() {
                prop_assert_eq!(distinct.bytes(number), word.as_bytes());
                prop_assert_eq!(distinct.keys[number], key_of(seed, word.as_bytes()));
            }
        }
    }
}
