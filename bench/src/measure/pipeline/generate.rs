//! Generates rows in the format of the Criteo Kaggle set. The columns have the cardinalities of
//! that set, and the categories are skewed.
//!
//! The generator of the training examples has the same distributions. Here the label can't be
//! learned, because only the speed of reading counts. A row is a function of the seed and its
//! number, so threads can make parts of the rows side by side.

use std::io::Write;

/// Distinct values of C1 to C26 in the Kaggle training file.
const KAGGLE_CARDINALITIES: [u32; 26] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27,
    14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];
/// The fraction of each integer column's fields that are empty.
const MISSING_INTEGER: [f64; 13] =
    [0.45, 0.0, 0.2, 0.2, 0.03, 0.2, 0.04, 0.001, 0.04, 0.45, 0.04, 0.75, 0.2];
const INTEGER_MEDIAN: [f64; 13] =
    [1.0, 3.0, 7.0, 5.0, 1500.0, 40.0, 4.0, 10.0, 50.0, 1.0, 2.0, 1.0, 5.0];
/// Standard deviation of the integers' logarithms.
const INTEGER_SPREAD: f64 = 1.3;
/// The fraction of the second integer column's values that are negative.
const NEGATIVE: f64 = 0.1;
const MISSING_CATEGORY: f64 = 0.03;
/// Exponent of the categories' Zipf distribution.
const SKEW: f64 = 1.05;

/// A row's fields, as numbers: label, integers, categories. `None` for an empty field.
pub(super) type Fields = [Option<u32>; 40];

/// Draws rows.
pub(super) struct Generator {
    seed: u64,
}

/// A generator of pseudo-random numbers from a counter (SplitMix64).
struct Draws(u64);

impl Draws {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number from 0 to below 1.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The row of this number.
    pub(super) fn row(&self, number: u64) -> Fields {
        let mut draws = Draws(mix(self.seed ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93)));
        let mut fields = [None; 40];
        fields[0] = Some(u32::from(draws.unit() < 0.26));
        for i in 0..13 {
            if draws.unit() < MISSING_INTEGER[i] {
                continue;
            }
            // A sum of four uniform numbers is close to a normal distribution of variance 1/3.
            let sum: f64 = (0..4).map(|_| draws.unit()).sum();
            let normal = (sum - 2.0) * 3.0_f64.sqrt();
            let value = (INTEGER_MEDIAN[i] * (INTEGER_SPREAD * normal).exp()) as i32;
            let negative = i == 1 && draws.unit() < NEGATIVE;
            fields[1 + i] = Some(if negative { -1 - value % 2 } else { value }.cast_unsigned());
        }
        for (i, &cardinality) in KAGGLE_CARDINALITIES.iter().enumerate() {
            if draws.unit() < MISSING_CATEGORY {
                continue;
            }
            let rank = zipf(draws.unit(), cardinality);
            fields[14 + i] = Some(mix(u64::from(rank) << 8 | i as u64) as u32);
        }
        fields
    }
}

/// Returns a rank below `n` by Zipf's law. `unit` is a uniform number from 0 to below 1, to which
/// the inverse of the continuous distribution is applied.
fn zipf(unit: f64, n: u32) -> u32 {
    let exponent = 1.0 - SKEW;
    let power = (f64::from(n) + 1.0).powf(exponent);
    let value = (1.0 + unit * (power - 1.0)).powf(1.0 / exponent);
    ((value as u32).saturating_sub(1)).min(n - 1)
}

/// Appends a row as text.
pub(super) fn write_text(fields: &Fields, into: &mut Vec<u8>) {
    for (i, field) in fields.iter().enumerate() {
        if let Some(value) = field {
            let written = if i < 14 {
                write!(into, "{}", value.cast_signed())
            } else {
                write!(into, "{value:08x}")
            };
            written.expect("a vector takes all that is written");
        }
        into.push(if i == 39 { b'\n' } else { b'\t' });
    }
}

/// Appends a row as forty little-endian numbers, 0 where a field is empty.
pub(super) fn write_packed(fields: &Fields, into: &mut Vec<u8>) {
    for field in fields {
        into.extend_from_slice(&field.unwrap_or(0).to_le_bytes());
    }
}

/// All rows as one vector, made by two threads.
pub(super) fn rows(seed: u64, rows: u64, write: fn(&Fields, &mut Vec<u8>)) -> Vec<u8> {
    let part = |range: std::ops::Range<u64>| {
        let generator = Generator::new(seed);
        let mut bytes = Vec::new();
        for number in range {
            write(&generator.row(number), &mut bytes);
        }
        bytes
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| part(rows / 2..rows));
        let mut all = part(0..rows / 2);
        all.append(&mut second.join().expect("the other half is made"));
        all
    })
}
