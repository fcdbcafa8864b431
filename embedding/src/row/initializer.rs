//! Computes the initial values of a row.
//!
//! A row's initial vector is a pure function of the table's seed and name, the key and the column.
//! It does not depend on the order of calls, the thread, a restart or the machine. Rows that were
//! only peeked at therefore need not be stored. A resumed run gets the initial values that an
//! uninterrupted run would get.
//!
//! The generator is counter-based. A row's stream starts at a hash of (seed, name, key). The n-th
//! 64-bit draw is SplitMix64's finisher applied to start + n * golden ratio (Steele, Lea and Flood,
//! "Fast splittable pseudorandom number generators", 2014). One draw serves two columns. The code
//! uses only additions, multiplications, divisions and square roots, each rounded by IEEE 754. Its
//! bits therefore do not depend on a platform's mathematical library.

use crate::dtype::Draws;
use crate::row::quantile::{standard_normal_probability, standard_normal_quantile};

/// The distribution of a new row's values. Default: `Uniform { low: -0.05, high: 0.05 }`.
///
/// # Examples
/// ```
/// use embank::{Initializer, TableConfig};
///
/// let config = TableConfig::new(16).initializer(Initializer::Normal { mean: 0.0, std: 0.01 });
/// assert_eq!(config.initializer, Initializer::Normal { mean: 0.0, std: 0.01 });
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Initializer {
    /// Every value is 0.
    Zeros,
    /// Every value is this constant.
    Constant(f32),
    /// Uniform between `low` and `high`. Rounding can yield `high` itself.
    Uniform {
        /// Smallest value.
        low: f32,
        /// Largest value.
        high: f32,
    },
    /// Normal (Gaussian). All draws are within 6.3 standard deviations of the mean.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
    /// Normal, drawn again until the value is between `low` and `high`, as in
    /// `torch.nn.init.trunc_normal_`. [`truncated_normal`](Self::truncated_normal) sets the bounds
    /// two standard deviations from the mean.
    TruncatedNormal {
        /// Mean before truncation.
        mean: f32,
        /// Standard deviation before truncation.
        std: f32,
        /// Smallest value.
        low: f32,
        /// Largest value.
        high: f32,
    },
    /// Uniform between -a and a, where a = gain * sqrt(6 / (fan_in + fan_out)), as in
    /// `torch.nn.init.xavier_uniform_` (Glorot and Bengio, 2010).
    XavierUniform {
        /// Factor of all values; 1 by default in torch.
        gain: f32,
        /// `fan_in` and `fan_out` of the formula.
        fans: Fans,
    },
    /// Normal with mean 0 and standard deviation gain * sqrt(2 / (fan_in + fan_out)), as in
    /// `torch.nn.init.xavier_normal_`.
    XavierNormal {
        /// Factor of all values; 1 by default in torch.
        gain: f32,
        /// `fan_in` and `fan_out` of the formula.
        fans: Fans,
    },
}

/// `fan_in` and `fan_out` of an Xavier initializer. A table does not know its final number of rows,
/// so the caller gives them. Default: `None` for both, which means the table's dim.
///
/// Torch treats the weight of an `Embedding` with n rows as a matrix with fan_in = dim and fan_out
/// = n.
///
/// # Examples
/// ```
/// use embank::{Fans, Initializer};
///
/// // As torch fills an Embedding of 10,000 rows.
/// let fans = Fans { fan_out: Some(10_000), ..Fans::default() };
/// let initializer = Initializer::XavierUniform { gain: 1.0, fans };
/// # assert_ne!(initializer, Initializer::XavierNormal { gain: 1.0, fans });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fans {
    /// `None` means the table's dim.
    pub fan_in: Option<u64>,
    /// `None` means the table's dim.
    pub fan_out: Option<u64>,
}

impl Fans {
    /// Returns fan_in + fan_out.
    fn sum(self, dim: u32) -> f64 {
        let or_dim = |fan: Option<u64>| fan.unwrap_or(u64::from(dim)) as f64;
        or_dim(self.fan_in) + or_dim(self.fan_out)
    }
}

impl Initializer {
    /// Makes a truncated normal with bounds two standard deviations from the mean.
    #[must_use]
    pub fn truncated_normal(mean: f32, std: f32) -> Self {
        Initializer::TruncatedNormal { mean, std, low: mean - 2.0 * std, high: mean + 2.0 * std }
    }

    /// Fails if a number is out of range; the message names it.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        match *self {
            Initializer::Zeros => Ok(()),
            Initializer::Constant(value) if value.is_finite() => Ok(()),
            Initializer::Constant(value) => {
                Err(format!("the initial constant must be finite, found {value}"))
            }
            Initializer::Uniform { low, high } => check_bounds(low, high),
            Initializer::Normal { mean, std } => check_normal(mean, std),
            Initializer::TruncatedNormal { mean, std, low, high } => {
                check_normal(mean, std)?;
                check_bounds(low, high)?;
                let reach = TRUNCATION_REACH * f64::from(std);
                let mean = f64::from(mean);
                if f64::from(low) > mean + reach || f64::from(high) < mean - reach {
                    return Err(format!(
                        "a truncated normal's low and high must come within {TRUNCATION_REACH} standard \
                         deviations of its mean, found {low} and {high}"
                    ));
                }
                Ok(())
            }
            Initializer::XavierUniform { gain, fans }
            | Initializer::XavierNormal { gain, fans } => {
                if !(gain.is_finite() && gain >= 0.0) {
                    return Err(format!(
                        "the initializer's gain must be finite and not negative, found {gain}"
                    ));
                }
                if fans.fan_in == Some(0) || fans.fan_out == Some(0) {
                    return Err("the initializer's fans must be 1 or more, found 0".into());
                }
                Ok(())
            }
        }
    }
}

/// The bounds of a truncated normal must include a value within this number of standard deviations
/// of the mean. Less than one draw in a million lies beyond it.
const TRUNCATION_REACH: f64 = 5.0;

fn check_bounds(low: f32, high: f32) -> std::result::Result<(), String> {
    if low <= high && (high - low).is_finite() {
        return Ok(());
    }
    Err(format!(
        "the initializer's low must not be above its high, and both finite, found {low} and {high}"
    ))
}

fn check_normal(mean: f32, std: f32) -> std::result::Result<(), String> {
    if mean.is_finite() && std.is_finite() && std >= 0.0 {
        return Ok(());
    }
    Err(format!(
        "the initializer's mean must be finite and its std finite and not negative, found {mean} and {std}"
    ))
}

impl Default for Initializer {
    fn default() -> Self {
        Initializer::Uniform { low: -0.05, high: 0.05 }
    }
}

/// An initializer for one table, with its seed and name.
#[derive(Debug, Clone)]
pub(crate) struct RowSource {
    values: Values,
    table_stream: u64,
}

/// The distribution. Numbers that do not depend on the row are computed in advance.
#[derive(Debug, Clone)]
enum Values {
    Constant(f32),
    Uniform { low: f32, width: f32 },
    Normal { mean: f32, std: f32 },
    Truncated { mean: f32, std: f32, low: f32, high: f32, from: f64, width: f64 },
}

impl Values {
    fn new(initializer: &Initializer, dim: u32) -> Self {
        match *initializer {
            Initializer::Zeros => Values::Constant(0.0),
            Initializer::Constant(value) => Values::Constant(value),
            Initializer::Uniform { low, high } => Values::Uniform { low, width: high - low },
            Initializer::Normal { mean, std } => Values::Normal { mean, std },
            Initializer::TruncatedNormal { mean, std: 0.0, .. } => Values::Constant(mean),
            Initializer::TruncatedNormal { mean, std, low, high } => {
                let probability = |bound: f32| {
                    standard_normal_probability(
                        (f64::from(bound) - f64::from(mean)) / f64::from(std),
                    )
                };
                let from = probability(low);
                Values::Truncated { mean, std, low, high, from, width: probability(high) - from }
            }
            Initializer::XavierUniform { gain, fans } => {
                let bound = (f64::from(gain) * (6.0 / fans.sum(dim)).sqrt()) as f32;
                Values::Uniform { low: -bound, width: 2.0 * bound }
            }
            Initializer::XavierNormal { gain, fans } => {
                let std = (f64::from(gain) * (2.0 / fans.sum(dim)).sqrt()) as f32;
                Values::Normal { mean: 0.0, std }
            }
        }
    }
}

impl RowSource {
    /// Makes the initializer of a table with this seed, name and dim.
    pub(crate) fn new(seed: u64, table: &str, dim: u32, initializer: &Initializer) -> Self {
        Self {
            values: Values::new(initializer, dim),
            table_stream: finish(seed.wrapping_add(name_hash(table))),
        }
    }

    /// Writes the initial vector of `key`.
    pub(crate) fn fill(&self, key: u64, vector: &mut [f32]) {
        match self.values {
            Values::Constant(value) => vector.fill(value),
            Values::Uniform { low, width } => {
                self.fill_from_draws(key, vector, |bits| low + width * unit_24(bits));
            }
            Values::Normal { mean, std } => {
                self.fill_from_draws(key, vector, |bits| mean + std * standard_normal(bits));
            }
            Values::Truncated { mean, std, low, high, from, width } => {
                self.fill_from_draws(key, vector, |bits| {
                    // Near the upper end of the distribution the sum could round to 1, and the
                    // quantile of 1 is infinite.
                    let probability = (from + width * open_unit(bits)).min(1.0 - 1e-16);
                    let quantile = standard_normal_quantile(probability);
                    (mean + std * quantile as f32).clamp(low, high)
                });
            }
        }
    }

    /// Returns the draws for stochastic rounding of one update of the row of `key`. These draws and
    /// the initial values come from different streams.
    pub(crate) fn draws(&self, key: u64, update: u64) -> Draws {
        let row = finish(!self.table_stream ^ key.wrapping_mul(KEY_MULTIPLIER));
        Draws::new(finish(row.wrapping_add(update.wrapping_mul(GOLDEN_RATIO))))
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
/// Multiplier of a key. It is odd, so different keys start different streams. It differs from the
/// golden ratio: otherwise the streams of consecutive keys would be shifts of each other.
const KEY_MULTIPLIER: u64 = 0xD1B5_4A32_D192_ED03;

/// The finisher of SplitMix64. It maps 64-bit words one to one.
fn finish(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Hashes the name's UTF-8 bytes with FNV-1a.
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// Returns a number that is uniform in [0, 1), a multiple of 2^-24.
fn unit_24(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// Returns a number that is uniform between 0 and 1, both excluded, on a grid of 2^-32.
fn open_unit(bits: u32) -> f64 {
    (f64::from(bits) + 0.5) * (1.0 / 4_294_967_296.0)
}

fn standard_normal(bits: u32) -> f32 {
    standard_normal_quantile(open_unit(bits)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(initializer: Initializer, seed: u64, table: &str, dim: usize) -> RowSource {
        RowSource::new(seed, table, dim as u32, &initializer)
    }

    fn rows(initializer: Initializer, seed: u64, table: &str, keys: u64, dim: usize) -> Vec<f32> {
        let source = source(initializer, seed, table, dim);
        let mut rows = vec![f32::NAN; keys as usize * dim];
        for (key, row) in rows.chunks_exact_mut(dim).enumerate() {
            source.fill(key as u64, row);
        }
        rows
    }

    /// Returns the mean, the standard deviation and the fourth standardised moment.
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
    fn truncated_normals_have_their_moments_and_bounds() {
        let values = rows(Initializer::truncated_normal(1.0, 2.0), 1, "t", 20_000, 16);
        let (mean, std, _) = moments(&values);
        assert!((mean - 1.0).abs() < 0.015, "{mean}");
        // Expected: sqrt(1 - 2 * 2 * phi(2) / (Phi(2) - Phi(-2))) = 0.8796.
        assert!((std - 2.0 * 0.8796).abs() < 0.01, "{std}");
        assert!(values.iter().all(|value| (-3.0..=5.0).contains(value)));
        // One tail: the mean of a standard normal above 1 is phi(1) / (1 - Phi(1)) = 1.5251.
        let tail = Initializer::TruncatedNormal { mean: 0.0, std: 1.0, low: 1.0, high: 9.0 };
        let (mean, ..) = moments(&rows(tail, 1, "t", 20_000, 16));
        assert!((mean - 1.5251).abs() < 0.005, "{mean}");
        let point = Initializer::TruncatedNormal { mean: 1.0, std: 0.0, low: 0.0, high: 2.0 };
        assert_eq!(rows(point, 1, "t", 1, 2), [1.0, 1.0]);
    }

    #[test]
    fn xavier_follows_torchs_formulas() {
        let fans = Fans { fan_in: None, fan_out: Some(1000) };
        let uniform = rows(Initializer::XavierUniform { gain: 2.0, fans }, 1, "t", 20_000, 16);
        let bound = 2.0 * (6.0 / 1016.0_f32).sqrt();
        assert!(uniform.iter().all(|value| value.abs() <= bound));
        assert!(uniform.iter().any(|value| value.abs() > 0.999 * bound));
        let normal = Initializer::XavierNormal { gain: 0.5, fans: Fans::default() };
        let (mean, std, kurtosis) = moments(&rows(normal, 1, "t", 20_000, 16));
        let expected = 0.5 * (2.0_f64 / 32.0).sqrt();
        assert!(mean.abs() < 0.002 && (std / expected - 1.0).abs() < 0.01, "{mean} {std}");
        assert!((kurtosis - 3.0).abs() < 0.06, "{kurtosis}");
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
        let base = rows(uniform.clone(), 7, "user", 4, 6);
        assert_eq!(base, rows(uniform.clone(), 7, "user", 4, 6));
        assert_ne!(base, rows(uniform.clone(), 8, "user", 4, 6));
        assert_ne!(base, rows(uniform.clone(), 7, "item", 4, 6));
        assert_ne!(base[..6], base[6..12]);
        let mut narrow = [0.0; 5];
        source(uniform, 7, "user", 5).fill(2, &mut narrow);
        assert_eq!(narrow, base[12..17], "a column does not depend on the dim");
    }

    #[test]
    fn constants_are_constant() {
        assert_eq!(rows(Initializer::Zeros, 1, "t", 2, 3), [0.0; 6]);
        assert_eq!(rows(Initializer::Constant(0.25), 1, "t", 2, 3), [0.25; 6]);
    }

    /// Pins the exact bits of initial values. If they changed, a resumed training run would see
    /// other rows.
    #[test]
    fn known_answers() {
        let mut vector = [0.0; 3];
        source(Initializer::Uniform { low: -0.05, high: 0.05 }, 42, "user", 3)
            .fill(123_456_789, &mut vector);
        assert_eq!(vector.map(f32::to_bits), UNIFORM_BITS);
        source(Initializer::Normal { mean: 0.0, std: 1.0 }, 42, "user", 3)
            .fill(u64::MAX, &mut vector);
        assert_eq!(vector.map(f32::to_bits), NORMAL_BITS);
    }

    const UNIFORM_BITS: [u32; 3] = [0xbcc7_44fd, 0xbb66_d0b0, 0x3ca7_ff42];
    const NORMAL_BITS: [u32; 3] = [0x3f76_3fe3, 0xbfd4_a372, 0xbea4_3dff];
}
