//! `Logarithm`: log(x + 1) in f32.
//!
//! The method is Norbert Juffa's (2016, "a faithfully rounded logf"). It splits the argument into
//! 2^e times m, with m from 2/3 to 4/3. A minimax polynomial gives log1p(m - 1). A correction term
//! keeps the precision for small fractions. In a test over all exponents, the largest error for
//! numbers from 1 on is below one unit in the last place.

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::decode::{Slot, vectorised};
use crate::error::{Result, refused};

pub(super) struct Logarithm;

impl Definition for Logarithm {
    fn name(&self) -> &'static str {
        "Logarithm"
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        if place.flow.signed {
            return refused(format!(
                "column {:?} may be negative: put Neg2Zero, or Clip from 0 on, before Logarithm",
                place.column
            ));
        }
        let slot = match (place.flow.kind, place.flow.slot) {
            (Kind::I32, Slot::Word(column)) => {
                program.push("Logarithm", move |level, block| {
                    log1p_of_i32(level, block.word_mut(column));
                });
                Slot::Word(column)
            }
            (Kind::U32, Slot::Word(column)) => {
                program.push("Logarithm", move |level, block| {
                    log1p_of_u32(level, block.word_mut(column));
                });
                Slot::Word(column)
            }
            (Kind::F32, Slot::Word(column)) => {
                program.push("Logarithm", move |level, block| {
                    log1p_of_f32(level, block.word_mut(column));
                });
                Slot::Word(column)
            }
            (Kind::I64 | Kind::U64, Slot::Wide(from)) => {
                let to = program.new_word();
                program.push("Logarithm", move |_, block| {
                    let (values, into) = block.wide_and_word_mut(from, to);
                    log1p_of_wide(values, into);
                });
                Slot::Word(to)
            }
            _ => return place.wrong_kind("Logarithm", "numbers"),
        };
        Ok(Flow::new(Kind::F32, slot))
    }
}

/// Returns log(x + 1) for x >= 0.
#[inline(always)]
fn log1p_f32(x: f32) -> f32 {
    let sum = x + 1.0;
    // The part of x that rounding removed from the sum. It is small, so log(sum + lost) is log(sum)
    // + lost / sum.
    let lost = if x < 1.0 { x - (sum - 1.0) } else { 1.0 - (sum - x) };
    log_f32(sum) + lost / sum
}

/// Returns log(y) for a normal, positive y.
#[inline(always)]
fn log_f32(y: f32) -> f32 {
    let exponent = y.to_bits().wrapping_sub(0x3F2A_AAAB) & 0xFF80_0000;
    let mantissa = f32::from_bits(y.to_bits().wrapping_sub(exponent));
    let doublings = exponent.cast_signed() as f32 * 1.192_092_9e-7;
    let f = mantissa - 1.0;
    let square = f * f;
    let high = (-0.130_310_06_f32).mul_add(f, 0.140_869_14);
    let low = (-0.121_483_51_f32).mul_add(f, 0.139_814_85);
    let mut sum = high.mul_add(square, low);
    sum = sum.mul_add(f, -0.166_846_13);
    sum = sum.mul_add(f, 0.200_120_35);
    sum = sum.mul_add(f, -0.249_996_2);
    sum = sum.mul_add(f, 0.333_331_97);
    sum = sum.mul_add(f, -0.5);
    sum = sum.mul_add(square, f);
    doublings.mul_add(std::f32::consts::LN_2, sum)
}

vectorised! {
    /// Replaces signed integers from 0 on by log(x + 1).
    fn log1p_of_i32(values: &mut [u32]) {
        for value in values {
            *value = log1p_f32(value.cast_signed() as f32).to_bits();
        }
    }
}

vectorised! {
    /// Replaces unsigned integers by log(x + 1).
    fn log1p_of_u32(values: &mut [u32]) {
        for value in values {
            *value = log1p_f32(*value as f32).to_bits();
        }
    }
}

vectorised! {
    /// Replaces floats from 0 on by log(x + 1).
    fn log1p_of_f32(values: &mut [u32]) {
        for value in values {
            *value = log1p_f32(f32::from_bits(*value)).to_bits();
        }
    }
}

/// Writes log(x + 1) of 64-bit integers from 0 on into `into`.
fn log1p_of_wide(values: &[u64], into: &mut [u32]) {
    for (value, into) in values.iter().zip(into) {
        *into = log1p_f32(*value as f32).to_bits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Level;

    /// Returns the error of `log1p_f32(x)` in units of the last place of the exact value.
    fn error_ulp(x: f32) -> f64 {
        let exact = f64::from(x).ln_1p();
        let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
        (f64::from(log1p_f32(x)) - exact).abs() / ulp
    }

    #[test]
    fn within_two_units_of_the_last_place() {
        let whole = (0..200_000).map(|x| x as f32);
        let scattered = (0..2_000_000_u32).map(|i| f32::from_bits(i * 1061 % 0x7F00_0000));
        let worst = whole
            .chain(scattered)
            .map(|x| (error_ulp(x), x))
            .fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a });
        assert!(worst.0 < 2.0, "{worst:?}");
        assert_eq!(log1p_f32(0.0), 0.0);
    }

    #[test]
    fn the_same_bits_with_every_level() {
        let values: Vec<u32> = (0..5000).map(|x| x * x * 7).collect();
        let expected: Vec<u32> =
            values.iter().map(|&x| log1p_f32(x.cast_signed() as f32).to_bits()).collect();
        for level in Level::available() {
            let mut got = values.clone();
            log1p_of_i32(level, &mut got);
            assert_eq!(got, expected, "{level}");
        }
    }
}
