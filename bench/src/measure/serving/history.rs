//! The expected rows of each checkpoint. They depend only on the batches that were trained before
//! the checkpoint.
//!
//! The writer trains batches of keys from a seeded stream, and each update changes a row from one
//! known content to the next. A checkpoint's blob holds the number of batches before it. A reader
//! can draw the stream too. It therefore knows every bit of every row of every checkpoint, without
//! asking the writer.

use crate::ground::content::{self, KeyStream, Popularity};

/// Keys are below `1 << KEY_BITS`. The higher bits of a row's content number hold the number of the
/// row's updates.
const KEY_BITS: u32 = 40;
/// Largest number of updates of a row that the bits above `KEY_BITS` can count. A key is in a batch
/// at most once, so this number also limits the batches of a run. It allows days of training.
const UPDATES_MAX: u32 = (1 << (u64::BITS - KEY_BITS)) - 1;

/// The batches of the training, in order.
#[derive(Debug)]
pub(super) struct Training {
    keys: KeyStream,
    batch: usize,
    batches: u64,
}

impl Training {
    /// Makes the training of a bank with `rows` rows. A batch has up to `batch` distinct keys.
    pub(super) fn new(rows: u64, zipf: f64, batch: usize, seed: u64) -> Self {
        assert!(rows >> KEY_BITS == 0, "keys have {KEY_BITS} bits here");
        // The seed differs from that of the peeks, so the two streams differ.
        let keys = KeyStream::of(Popularity::Zipf(zipf), seed ^ 0x7E, rows);
        Self { keys, batch, batches: 0 }
    }

    /// The keys of the next batch, distinct and ascending.
    pub(super) fn next_batch(&mut self) -> Vec<u64> {
        self.batches += 1;
        let mut keys = self.keys.draw(self.batch);
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Number of batches so far.
    pub(super) fn batches(&self) -> u64 {
        self.batches
    }
}

/// The number of updates of each row.
#[derive(Debug)]
pub(super) struct Updates(Vec<u32>);

impl Updates {
    /// The state after loading `rows` rows: no row is updated.
    pub(super) fn none(rows: u64) -> Self {
        Self(vec![0; rows as usize])
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> u64 {
        self.0.len() as u64
    }

    /// Counts one update of each of these keys.
    pub(super) fn note(&mut self, keys: &[u64]) {
        for &key in keys {
            let updates = &mut self.0[key as usize];
            assert!(*updates < UPDATES_MAX, "key {key} has been updated too often");
            *updates += 1;
        }
    }

    /// Fills `rows` (`keys.len() * dim`) with the keys' rows after their updates.
    pub(super) fn fill(&self, keys: &[u64], dim: usize, rows: &mut [f32]) {
        for (&key, row) in keys.iter().zip(rows.chunks_exact_mut(dim)) {
            content::fill(&[self.content(key)], dim, row);
        }
    }

    /// The first key whose row differs from the expected one in any bit.
    pub(super) fn wrong(&self, keys: &[u64], dim: usize, rows: &[f32]) -> Option<u64> {
        let right = |key: u64, row: &[f32]| {
            let content = self.content(key);
            row.iter().enumerate().all(|(column, &found)| found == content::value(content, column))
        };
        let mut pairs = keys.iter().zip(rows.chunks_exact(dim));
        pairs.find(|&(&key, row)| !right(key, row)).map(|(&key, _)| key)
    }

    /// Returns the content number: it differs for every pair of a key and its number of updates.
    fn content(&self, key: u64) -> u64 {
        key | u64::from(self.0[key as usize]) << KEY_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_replays_with_distinct_keys_in_each_batch() {
        let (mut one, mut other) = (Training::new(500, 0.9, 64, 3), Training::new(500, 0.9, 64, 3));
        for number in 1..50 {
            let keys = one.next_batch();
            assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
            assert_eq!(keys, other.next_batch());
            assert_eq!(one.batches(), number);
        }
    }

    #[test]
    fn a_row_of_another_update_or_key_or_torn_between_two_is_found() {
        let (mut then, mut now) = (Updates::none(10), Updates::none(10));
        then.note(&[3]);
        now.note(&[3]);
        now.note(&[3, 4]);
        let (keys, dim) = ([2, 3, 4], 8);
        let (mut old, mut new) = (vec![0.0; 24], vec![0.0; 24]);
        then.fill(&keys, dim, &mut old);
        now.fill(&keys, dim, &mut new);
        assert_eq!(now.wrong(&keys, dim, &new), None);
        assert_eq!(now.wrong(&keys, dim, &old), Some(3));
        assert_eq!(now.wrong(&[2, 4, 3], dim, &new), Some(4));
        let mut torn = new.clone();
        torn[dim..dim + 4].copy_from_slice(&old[dim..dim + 4]);
        assert_eq!(now.wrong(&keys, dim, &torn), Some(3));
        torn = new.clone();
        torn[2 * dim..].copy_from_slice(&old[2 * dim..]);
        assert_eq!(now.wrong(&keys, dim, &torn), Some(4), "one row of the checkpoint before");
    }
}
