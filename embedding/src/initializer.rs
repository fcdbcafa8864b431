//! The values of a row that was never written.
//!
//! A row's initial vector is a pure function of the table's seed and name, the key and the column: the
//! same in any order, on any thread, after any restart, on any machine. So nothing has to be stored
//! for rows that were only peeked at, and a run that resumes sees the rows that the first run saw.
//!
//! The generator is counter-based: the row's stream starts at a hash of (seed, name, key), and the n-th
//! 64-bit draw is SplitMix64's finisher over start + n * golden ratio (Steele, Lea and Flood, "Fast
//! splittable pseudorandom number generators", 2014). A draw serves two columns. Only additions,
//! multiplications, divisions and square roots are used, each rounded as IEEE 754 says, so the bits
//! do not depend on a platform's mathematical library.

use crate::quantile::standard_normal_quantile;

/// How the vector of a new row is filled. Default: `Uniform { low: -0.05, high: 0.05 }`.
///
/// # Examples
/// ```
/// use embank::{Initializer, TableConfig};
///
/// let config = TableConfig::new(16).initializer(Initializer::Normal { mean: 0.0, std: 0.01 });
/// assert_eq!(config.initializer, Initializer::Normal { mean: 0.0, std: 0.01 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Initializer {
    /// Every value is 0.
    Zeros,
    /// Every value is the same.
    Constant(f32),
    /// Uniform between `low` and `high`; rounding can yield `high` itself.
    Uniform {
        /// Smallest value.
        low: f32,
        /// Largest value.
        high: f32,
    },
    /// Normal (Gaussian); draws lie within 6.3 standard deviations of the mean.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
}

impl Default for Initializer {
    fn default() -> Self {
        Initializer::Uniform { low: -0.05, high: 0.05 }
    }
}

/// An initializer bound to one table's seed and name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowSource {
    initializer: Initializer,
    table_stream: u64,
}

impl RowSource {
    pub(crate) fn new(initializer: Initializer, seed: u64, table_name: &str) -> Self {
        Self { initializer, table_stream: finish(seed.wrapping_add(name_hash(table_name))) }
    }

    /// Writes the initial vector of `key`.
    pub(crate) fn fill(&self, key: u64, vector: &mut [f32]) {
        match self.initializer {
            Initializer::Zeros => vector.fill(0.0),
            Initializer::Constant(value) => vector.fill(value),
            Initializer::Uniform { low, high } => {
                let width = high - low;
                self.fill_from_draws(key, vector, |bits| low + width * unit_24(bits));
            }
            Initializer::Normal { mean, std } => {
                self.fill_from_draws(key, vector, |bits| mean + std * standard_normal(bits));
            }
        }
    }

    fn fill_from_draws(&self, key: u64, vector: &mut [f32], value: impl Fn(u32) -> f32) {
        let mut counter = finish(self.table_stream ^ key.wrapping_mul(KEY_MULTIPLIER));
        let (pairs, last) = vector.as_chunks_mut::<2>();
        for pair in pairs {
            counter = counter.wrapping_add(GOLDEN_RATIO);
            let draw = finish(counter);
            *pair = [value(draw as u32), value((draw >> 32) as u32)];
        }
        if let [only] = last {
            *only = value(finish(counter.wrapping_add(GOLDEN_RATIO)) as u32);
        }
    }
}

const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
/// Odd, so that distinct keys start distinct streams; not the golden ratio, so that the streams of
/// consecutive keys are no shifts of each other.
const KEY_MULTIPLIER: u64 = 0xD1B5_4A32_D192_ED03;

/// SplitMix64's finisher, a bijection of 64-bit words.
fn finish(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// FNV-1a over the name's UTF-8 bytes.
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// Uniform in [0, 1) on a grid of 2^-24.
fn unit_24(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

fn standard_normal(bits: u32) -> f32 {
    standard_normal_quantile((f64::from(bits) + 0.5) * (1.0 / 4_294_967_296.0)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(initializer: Initializer, seed: u64, table: &str, keys: u64, dim: usize) -> Vec<f32> {
        let source = RowSource::new(initializer, seed, table);
        let mut rows = vec![f32::NAN; keys as usize * dim];
        for (key, row) in rows.chunks_exact_mut(dim).enumerate() {
            source.fill(key as u64, row);
        }
        rows
    }

    /// Mean, standard deviation and the fourth standardised moment.
    fn moments(values: &[f32]) -> (f64, f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
        let central = |power: i32| {
            values.iter().map(|&value| (f64::from(value) - mean).powi(power)).sum::<f64>() / count
        };
        (mean, central(2).sqrt(), central(4) / central(2).powi(2))
    }

    #[test]
    fn uniform_has_its_moments_and_bounds() {
        let values = rows(Initializer::Uniform { low: -0.5, high: 1.5 }, 1, "t", 20_000, 16);
        let (mean, std, kurtosis) = moments(&values);
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        assert!((std - 2.0 / 12_f64.sqrt()).abs() < 0.005, "{std}");
        assert!((kurtosis - 1.8).abs() < 0.02, "{kurtosis}");
        assert!(values.iter().all(|value| (-0.5..=1.5).contains(value)));
    }

    #[test]
    fn normal_has_its_moments() {
        let values = rows(Initializer::Normal { mean: 1.0, std: 2.0 }, 1, "t", 20_000, 16);
        let (mean, std, kurtosis) = moments(&values);
        assert!((mean - 1.0).abs() < 0.015, "{mean}");
        assert!((std - 2.0).abs() < 0.015, "{std}");
        assert!((kurtosis - 3.0).abs() < 0.06, "{kurtosis}");
        let beyond_two = values.iter().filter(|&&value| (value - 1.0).abs() > 4.0).count();
        assert!((beyond_two as f64 / values.len() as f64 - 0.0455).abs() < 0.002);
    }

    #[test]
    fn neighbouring_keys_and_columns_are_uncorrelated() {
        let dim = 8;
        let values = rows(Initializer::Uniform { low: -1.0, high: 1.0 }, 3, "t", 20_000, dim);
        for lag in [1, 2, dim, 2 * dim] {
            let products = values.iter().zip(&values[lag..]).map(|(&a, &b)| f64::from(a * b));
            let correlation = 3.0 * products.sum::<f64>() / (values.len() - lag) as f64;
            assert!(correlation.abs() < 0.015, "lag {lag}: {correlation}");
        }
    }

    #[test]
    fn depends_on_seed_table_key_and_column_only() {
        let uniform = Initializer::default();
        let base = rows(uniform, 7, "user", 4, 6);
        assert_eq!(base, rows(uniform, 7, "user", 4, 6));
        assert_ne!(base, rows(uniform, 8, "user", 4, 6));
        assert_ne!(base, rows(uniform, 7, "item", 4, 6));
        assert_ne!(base[..6], base[6..12]);
        let mut narrow = [0.0; 5];
        RowSource::new(uniform, 7, "user").fill(2, &mut narrow);
        assert_eq!(narrow, base[12..17], "a column does not depend on the dim");
    }

    #[test]
    fn constants_are_constant() {
        assert_eq!(rows(Initializer::Zeros, 1, "t", 2, 3), [0.0; 6]);
        assert_eq!(rows(Initializer::Constant(0.25), 1, "t", 2, 3), [0.25; 6]);
    }

    /// These bits are part of what a bank promises: a change here changes resumed trainings.
    #[test]
    fn known_answers() {
        let mut vector = [0.0; 3];
        RowSource::new(Initializer::Uniform { low: -0.05, high: 0.05 }, 42, "user")
            .fill(123_456_789, &mut vector);
        assert_eq!(vector.map(f32::to_bits), UNIFORM_BITS);
        RowSource::new(Initializer::Normal { mean: 0.0, std: 1.0 }, 42, "user")
            .fill(u64::MAX, &mut vector);
        assert_eq!(vector.map(f32::to_bits), NORMAL_BITS);
    }

    const UNIFORM_BITS: [u32; 3] = [0xbcc7_44fd, 0xbb66_d0b0, 0x3ca7_ff42];
    const NORMAL_BITS: [u32; 3] = [0x3f76_3fe3, 0xbfd4_a372, 0xbea4_3dff];
}
