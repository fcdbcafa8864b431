//! Makes keys and row contents. A row's content follows from its key alone, so every answer can be
//! checked.
//!
//! Column `c` of the row of key `k` is a fixed pseudo-random number in (0, 1). The get + put
//! measurement negates whole rows, so a row's sign says whether it was put an even or an odd number
//! of times. [`KeyStream`] draws the keys.

use anyhow::{Result, bail};
use fastrand::Rng;

/// Mixes the bits of a 64-bit number, by the finaliser of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The value of one column of one key's row: a multiple of 2^-24 in (0, 1), never zero.
pub(crate) fn value(key: u64, column: usize) -> f32 {
    let bits = mix(key.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(column as u64 + 1));
    // 23 random bits, and a lowest bit that is set. The result is exact in an f32 and not zero.
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

/// True if the row is the negation of the key's row.
///
/// # Errors
/// Fails if the row is neither the key's row nor its negation.
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

/// Returns the eight bytes at `place` of the memory that a bare loop reads.
#[inline]
pub(crate) fn word(place: usize) -> u64 {
    mix((place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
}

/// How often each key is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Popularity {
    /// Every key has the same share.
    Uniform,
    /// YCSB's Zipf distribution with this exponent (below 1). Popular keys do not have neighbouring
    /// numbers.
    Zipf(f64),
}

impl std::fmt::Display for Popularity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Popularity::Uniform => write!(f, "uniform"),
            Popularity::Zipf(exponent) => write!(f, "Zipf {exponent}"),
        }
    }
}

/// Ranks by a Zipf distribution: the approximation of Gray et al. (SIGMOD 1994), as in YCSB.
#[derive(Debug, Clone, Copy)]
struct Zipf {
    count: f64,
    alpha: f64,
    eta: f64,
    zeta: f64,
    half_to_theta: f64,
}

impl Zipf {
    fn new(theta: f64, count: u64) -> Self {
        let zeta: f64 = (1..=count).map(|rank| (rank as f64).powf(-theta)).sum();
        let half_to_theta = 0.5_f64.powf(theta);
        let eta =
            (1.0 - (2.0 / count as f64).powf(1.0 - theta)) / (1.0 - (1.0 + half_to_theta) / zeta);
        Self { count: count as f64, alpha: 1.0 / (1.0 - theta), eta, zeta, half_to_theta }
    }

    /// The rank, from 0, for a number in [0, 1).
    fn rank(&self, uniform: f64) -> u64 {
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + self.half_to_theta {
            return 1;
        }
        let rank = self.count * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count as u64 - 1)
    }
}

/// A seeded stream of keys.
#[derive(Debug, Clone)]
pub(crate) struct KeyStream {
    random: Rng,
    first: u64,
    stride: u64,
    count: u64,
    zipf: Option<Zipf>,
}

impl KeyStream {
    /// Draws uniformly from `count` keys: `first`, `first + stride`, `first + 2 * stride` and so
    /// on.
    pub(crate) fn new(seed: u64, first: u64, stride: u64, count: u64) -> Self {
        assert!(count > 0 && stride > 0, "a stream needs keys to draw from");
        Self { random: Self::start(seed), first, stride, count, zipf: None }
    }

    /// Keys of `0..count`, drawn by `popularity`.
    pub(crate) fn of(popularity: Popularity, seed: u64, count: u64) -> Self {
        let zipf = match popularity {
            Popularity::Uniform => None,
            Popularity::Zipf(theta) => Some(Zipf::new(theta, count)),
        };
        Self { zipf, ..Self::new(seed, 0, 1, count) }
    }

    /// A stream with equal keys and popularity, drawn in another order. It copies the constants of
    /// the Zipf distribution, which are costly to compute.
    pub(crate) fn reseeded(&self, seed: u64) -> Self {
        Self { random: Self::start(seed), ..self.clone() }
    }

    /// The generator for a seed. Mixing the seed makes the streams of neighbouring seeds
    /// independent.
    fn start(seed: u64) -> Rng {
        Rng::with_seed(mix(seed ^ 0x5851_f42d_4c95_7f2d))
    }

    /// A uniform number below `count`.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.random.u64(..count)
    }

    /// The next `n` keys.
    pub(crate) fn draw(&mut self, n: usize) -> Vec<u64> {
        (0..n).map(|_| self.next_key()).collect()
    }

    /// The next key.
    pub(crate) fn next_key(&mut self) -> u64 {
        let place = match self.zipf {
            None => self.below(self.count),
            Some(zipf) => scattered(zipf.rank(self.random.f64()), self.count),
        };
        self.first + place * self.stride
    }
}

/// Permutes `0..count`, so that popular keys do not have neighbouring numbers. The multiplier is a
/// prime above the number of keys of any measurement.
pub(crate) fn scattered(place: u64, count: u64) -> u64 {
    const PRIME: u128 = 0x9e37_79b9_7f4a_7c55;
    (u128::from(place) * PRIME % u128::from(count)) as u64
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

    #[test]
    fn zipf_ranks_come_as_often_as_they_should() {
        let count = 1_000;
        let mut stream = KeyStream::of(Popularity::Zipf(0.99), 5, count);
        let mut seen = vec![0u32; count as usize];
        for key in stream.draw(200_000) {
            seen[key as usize] += 1;
        }
        let zeta: f64 = (1..=count).map(|rank| (rank as f64).powf(-0.99)).sum();
        let expected = 200_000.0 / zeta;
        let most = f64::from(seen[scattered(0, count) as usize]);
        assert!((most / expected - 1.0).abs() < 0.05, "{most} of {expected}");
        assert!(seen.iter().filter(|&&n| n > 0).count() > 990, "the rare ones come too");
    }

    #[test]
    fn scattering_is_one_to_one() {
        let mut places: Vec<u64> = (0..10_000).map(|place| scattered(place, 10_000)).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..10_000));
    }
}
