//! Keys and row contents as pure functions, so that every answer can be checked.
//!
//! Column `c` of the row of key `k` is a fixed pseudo-random number in (0, 1). A row may have been
//! negated as a whole by the get + put measurement; its sign tells how often, modulo two.

use anyhow::{Result, bail};

/// A finaliser that turns any 64-bit number into a well mixed one (SplitMix64's).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The value of one column of one key's row: a multiple of 2^-24 in (0, 1), never zero.
pub(crate) fn value(key: u64, column: usize) -> f32 {
    let bits = mix(key.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(column as u64 + 1));
    // 23 random bits and a set lowest one: exact in an f32, and not zero.
    ((bits >> 41) * 2 + 1) as f32 / (1u64 << 24) as f32
}

/// Fills `rows` (`keys.len() * dim`) with the keys' rows.
pub(crate) fn fill(keys: &[u64], dim: usize, rows: &mut [f32]) {
    for (&key, row) in keys.iter().zip(rows.chunks_exact_mut(dim)) {
        for (column, cell) in row.iter_mut().enumerate() {
            *cell = value(key, column);
        }
    }
}

/// Whether the row was read negated.
///
/// # Errors
/// The row is not the key's row, nor its negation.
pub(crate) fn sign(key: u64, row: &[f32]) -> Result<bool> {
    let negated = row[0] < 0.0;
    for (column, &found) in row.iter().enumerate() {
        let magnitude = value(key, column);
        let expected = if negated { -magnitude } else { magnitude };
        if found != expected {
            bail!("wrong answer: key {key}, column {column}: expected {expected}, found {found}");
        }
    }
    Ok(negated)
}

/// A seeded stream of uniform keys (SplitMix64).
#[derive(Debug)]
pub(crate) struct KeyStream {
    state: u64,
    first: u64,
    stride: u64,
    count: u64,
}

impl KeyStream {
    /// Uniform over `first`, `first + stride`, ..., `count` keys of them.
    pub(crate) fn new(seed: u64, first: u64, stride: u64, count: u64) -> Self {
        assert!(count > 0 && stride > 0, "a stream needs keys to draw from");
        Self { state: mix(seed ^ 0x5851_f42d_4c95_7f2d), first, stride, count }
    }

    /// The next `n` keys.
    pub(crate) fn draw(&mut self, n: usize) -> Vec<u64> {
        (0..n).map(|_| self.next_key()).collect()
    }

    fn next_key(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let random = mix(self.state);
        // Lemire's multiply-and-shift: uniform up to a bias of count / 2^64.
        let place = ((u128::from(random) * u128::from(self.count)) >> 64) as u64;
        self.first + place * self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_and_its_negation_are_told_apart_and_a_torn_row_is_refused() {
        let mut row = vec![0.0; 16];
        fill(&[7], 16, &mut row);
        assert!(!sign(7, &row).unwrap());
        row.iter_mut().for_each(|x| *x = -*x);
        assert!(sign(7, &row).unwrap());
        row[3] = -row[3];
        assert!(sign(7, &row).is_err());
        fill(&[8], 16, &mut row);
        assert!(sign(7, &row).is_err());
    }

    #[test]
    fn values_are_never_zero_and_stay_below_one() {
        for key in 0..10_000 {
            let x = value(key, key as usize % 16);
            assert!(x > 0.0 && x < 1.0, "key {key}: {x}");
        }
    }

    #[test]
    fn a_stream_replays_and_keeps_to_its_share() {
        let keys = KeyStream::new(3, 1, 4, 25).draw(1_000);
        assert_eq!(keys, KeyStream::new(3, 1, 4, 25).draw(1_000));
        assert!(keys.iter().all(|k| k % 4 == 1 && *k < 100));
        let mut seen: Vec<u64> = keys;
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 25, "a thousand draws reach all 25 keys");
    }
}
