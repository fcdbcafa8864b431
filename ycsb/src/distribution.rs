//! The request distributions of YCSB's own program (*the reference*). A request distribution
//! chooses the row of an operation.

use clap::ValueEnum;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::zipf::Zipf;

/// A request distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Distribution {
    /// Every row is equally likely
    Uniform,
    /// Zipf's law; row 0 is the hottest
    Zipfian,
    /// Zipf's law over 10^10 items that are hashed onto the rows, as in YCSB's core workloads
    /// except D
    Scrambled,
    /// Zipf's law; the newest row is the hottest
    Latest,
    /// A share of the operations goes to the hot rows, the others to the cold rows; within each
    /// part every row is equally likely
    Hotspot,
}

/// The parameters of the skewed distributions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Skew {
    /// Exponent of Zipf's law.
    pub(crate) theta: f64,
    /// The share of the rows that are hot.
    pub(crate) hot_rows: f64,
    /// The share of the operations that go to hot rows.
    pub(crate) hot_operations: f64,
}

impl Default for Skew {
    fn default() -> Self {
        Skew { theta: 0.99, hot_rows: 0.2, hot_operations: 0.8 }
    }
}

/// The scrambled distribution draws from this number of items, whatever the number of rows is.
/// YCSB's own program does so too.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// Draws rows.
#[derive(Debug, Clone)]
pub(crate) struct Chooser {
    distribution: Distribution,
    skew: Skew,
    zipf: Option<Zipf>,
    /// The number of rows onto which scrambled ranks are hashed.
    scrambled_onto: u64,
}

impl Chooser {
    /// Makes a distribution over `rows` rows. If the number of rows will grow, scrambled ranks are
    /// hashed onto twice as many row numbers. A draw of a row that does not exist yet is repeated.
    /// So an insert does not change the ranks of the existing rows.
    pub(crate) fn new(distribution: Distribution, skew: Skew, rows: u64, grows: bool) -> Self {
        let zipf = match distribution {
            Distribution::Zipfian | Distribution::Latest => Some(Zipf::new(rows, skew.theta)),
            Distribution::Scrambled => Some(Zipf::new(SCRAMBLED_ITEMS, skew.theta)),
            Distribution::Uniform | Distribution::Hotspot => None,
        };
        let scrambled_onto = if grows { rows * 2 } else { rows };
        Chooser { distribution, skew, zipf, scrambled_onto }
    }

    /// Draws a row below `rows`, which may have grown since the last draw.
    #[inline]
    pub(crate) fn next(&mut self, rows: u64, random: &mut Rng) -> u64 {
        match (self.distribution, &mut self.zipf) {
            (Distribution::Zipfian, Some(zipf)) => zipf.draw(rows, random),
            (Distribution::Latest, Some(zipf)) => rows - 1 - zipf.draw(rows, random),
            // The loop ends because at least half of the row numbers have a row.
            (Distribution::Scrambled, Some(zipf)) => loop {
                let row = fnv_64(zipf.draw(SCRAMBLED_ITEMS, random)) % self.scrambled_onto;
                if row < rows {
                    break row;
                }
            },
            (Distribution::Hotspot, _) => {
                let hot = ((rows as f64 * self.skew.hot_rows) as u64).clamp(1, rows);
                if hot == rows || random.f64() < self.skew.hot_operations {
                    random.u64(..hot)
                } else {
                    hot + random.u64(..rows - hot)
                }
            }
            _ => random.u64(..rows),
        }
    }
}

/// Hashes a rank as YCSB's own program does: FNV-1 over its eight bytes, lowest first, without the
/// sign.
#[inline]
fn fnv_64(number: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in number.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    (hash as i64).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    const DRAWS: u64 = 400_000;

    fn counts(distribution: Distribution, skew: Skew, rows: u64, seed: u64) -> Vec<u64> {
        let mut random = stream(seed, 0);
        let mut chooser = Chooser::new(distribution, skew, rows, false);
        let mut counts = vec![0; rows as usize];
        for _ in 0..DRAWS {
            counts[chooser.next(rows, &mut random) as usize] += 1;
        }
        counts
    }

    /// Returns Pearson's statistic as a number of standard deviations above its expectation. The
    /// expected count of every row must be 5 or more.
    fn chi_square_sigmas(counts: &[u64], probabilities: &[f64]) -> f64 {
        let mut statistic = 0.0;
        for (&count, probability) in counts.iter().zip(probabilities) {
            let expected = probability * DRAWS as f64;
            assert!(expected >= 5.0, "a cell expects {expected}");
            statistic += (count as f64 - expected).powi(2) / expected;
        }
        let freedom = (counts.len() - 1) as f64;
        (statistic - freedom) / (2.0 * freedom).sqrt()
    }

    fn assert_fits(distribution: Distribution, skew: Skew, probabilities: &[f64]) {
        for seed in 1..=5 {
            let counts = counts(distribution, skew, probabilities.len() as u64, seed);
            let sigmas = chi_square_sigmas(&counts, probabilities);
            assert!(sigmas.abs() < 4.0, "{distribution:?}, seed {seed}: {sigmas} sigma off");
        }
    }

    #[test]
    fn uniform() {
        assert_fits(Distribution::Uniform, Skew::default(), &[1.0 / 1_000.0; 1_000]);
    }

    #[test]
    fn zipfian_and_latest() {
        for theta in [0.5, 0.8, 0.99, 1.2] {
            let skew = Skew { theta, ..Skew::default() };
            let mut probabilities = Zipf::new(500, theta).probabilities(500);
            assert_fits(Distribution::Zipfian, skew, &probabilities);
            probabilities.reverse();
            assert_fits(Distribution::Latest, skew, &probabilities);
        }
    }

    #[test]
    fn hotspot() {
        let skew = Skew { hot_rows: 0.1, hot_operations: 0.7, ..Skew::default() };
        let mut probabilities = vec![0.7 / 100.0; 100];
        probabilities.extend([0.3 / 900.0; 900]);
        assert_fits(Distribution::Hotspot, skew, &probabilities);
    }

    #[test]
    fn scrambled() {
        // The probability of each of the hottest ranks goes to the row of its hash. The probability
        // of all other ranks is spread evenly over all rows.
        let rows = 100;
        let zipf = Zipf::new(SCRAMBLED_ITEMS, 0.99);
        let ranks = 2_000_000;
        let mut probabilities = vec![0.0; rows];
        let head = zipf.probabilities(ranks);
        for (rank, probability) in head.iter().enumerate() {
            probabilities[(fnv_64(rank as u64) % rows as u64) as usize] += probability;
        }
        let rest = (1.0 - head.iter().sum::<f64>()) / rows as f64;
        probabilities.iter_mut().for_each(|probability| *probability += rest);
        assert_fits(Distribution::Scrambled, Skew::default(), &probabilities);
    }

    #[test]
    fn a_chi_square_of_the_wrong_law_is_far_off() {
        let counts = counts(Distribution::Zipfian, Skew::default(), 500, 1);
        let wrong = Zipf::new(500, 0.95).probabilities(500);
        assert!(chi_square_sigmas(&counts, &wrong) > 20.0);
    }

    #[test]
    fn growing_rows_are_asked_for_and_never_rows_beyond_the_end() {
        for distribution in Distribution::value_variants() {
            let mut random = stream(3, 0);
            let mut chooser = Chooser::new(*distribution, Skew::default(), 100, true);
            let mut newest = 0;
            for rows in 100..150 {
                for _ in 0..2_000 {
                    let row = chooser.next(rows, &mut random);
                    assert!(row < rows, "{distribution:?} gave row {row} of {rows}");
                    newest = newest.max(row);
                }
            }
            assert!(newest >= 140, "{distribution:?} stayed below row {newest}");
        }
    }

    #[test]
    fn one_row_is_enough() {
        for distribution in Distribution::value_variants() {
            let mut chooser = Chooser::new(*distribution, Skew::default(), 1, false);
            assert_eq!(chooser.next(1, &mut stream(1, 1)), 0, "{distribution:?}");
        }
    }
}
