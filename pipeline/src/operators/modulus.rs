//! `Modulus`: the positive remainder of a division by a constant.
//!
//! An integer division takes the processor tens of cycles, and no vector instruction divides
//! integers. This code multiplies by the reciprocal in f64. An f64 holds every 32-bit integer
//! exactly, and also the product of quotient and divisor. The quotient may be off by one. The
//! remainder is then below 0 or not below the divisor, and is corrected.

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::decode::{Level, Slot, vectorised};
use crate::error::{Result, refused};

/// Largest modulus. Remainders then fit in an i32, which every vector unit can make from a float.
pub(crate) const MODULUS_MAX: u32 = 1 << 31;

pub(super) struct Modulus(pub(super) u32);

impl Definition for Modulus {
    fn name(&self) -> &'static str {
        "Modulus"
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        let divisor = self.0;
        if !(1..=MODULUS_MAX).contains(&divisor) {
            return refused(format!(
                "column {:?}: a modulus is from 1 to 2^31, not {divisor}",
                place.column
            ));
        }
        let remainders = Remainders::new(divisor);
        let slot = match (place.flow.kind, place.flow.slot) {
            (Kind::I32, Slot::Word(column)) => {
                program.push("Modulus", move |level, block| {
                    remainders.of_i32(level, block.word_mut(column));
                });
                Slot::Word(column)
            }
            (Kind::U32, Slot::Word(column)) => {
                program.push("Modulus", move |level, block| {
                    remainders.of_u32(level, block.word_mut(column));
                });
                Slot::Word(column)
            }
            (Kind::I64, Slot::Wide(from)) => {
                let to = program.new_word();
                program.push("Modulus", move |_, block| {
                    let (values, into) = block.wide_and_word_mut(from, to);
                    remainders.of_i64(values, into);
                });
                Slot::Word(to)
            }
            (Kind::U64, Slot::Wide(from)) => {
                let to = program.new_word();
                program.push("Modulus", move |_, block| {
                    let (values, into) = block.wide_and_word_mut(from, to);
                    remainders.of_u64(values, into);
                });
                Slot::Word(to)
            }
            _ => return place.wrong_kind("Modulus", "whole numbers; give text Hash before it"),
        };
        Ok(Flow { below: Some(u64::from(divisor)), ..Flow::new(Kind::U32, slot) })
    }
}

/// A divisor with its reciprocal.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Remainders {
    divisor: u32,
    reciprocal: f64,
}

impl Remainders {
    /// Panics unless `divisor` is from 1 to [`MODULUS_MAX`].
    fn new(divisor: u32) -> Self {
        assert!((1..=MODULUS_MAX).contains(&divisor), "a divisor from 1 to 2^31");
        Self { divisor, reciprocal: 1.0 / f64::from(divisor) }
    }

    #[inline(always)]
    fn remainder(self, value: f64) -> u32 {
        let divisor = f64::from(self.divisor);
        let quotient = (value * self.reciprocal).floor();
        // `quotient` may be one too large or too small, which the next two lines correct. The
        // product and the difference are exact, because they are whole numbers below 2^53.
        let rest = value - quotient * divisor;
        let rest = if rest < 0.0 { rest + divisor } else { rest };
        let rest = if rest >= divisor { rest - divisor } else { rest };
        // SAFETY: `to_int_unchecked` needs a value in the range of i32. `rest` is from 0 to below
        // the divisor, which is at most 2^31.
        (unsafe { rest.to_int_unchecked::<i32>() }).cast_unsigned()
    }
}

vectorised! {
    /// Replaces unsigned integers by their remainders.
    fn of_u32(values: &mut [u32], modulus: Remainders) {
        for value in values {
            // `number` equals `f64::from(*value)`. Every vector unit can convert i32 to f64, but
            // not all convert u32.
            let number = f64::from((*value ^ 0x8000_0000).cast_signed()) + 2_147_483_648.0;
            *value = modulus.remainder(number);
        }
    }
}

vectorised! {
    /// Replaces signed integers by their positive remainders.
    fn of_i32(values: &mut [u32], modulus: Remainders) {
        for value in values {
            *value = modulus.remainder(f64::from(value.cast_signed()));
        }
    }
}

impl Remainders {
    fn of_u32(self, level: Level, values: &mut [u32]) {
        if self.divisor.is_power_of_two() {
            let mask = self.divisor - 1;
            values.iter_mut().for_each(|value| *value &= mask);
        } else {
            of_u32(level, values, self);
        }
    }

    fn of_i32(self, level: Level, values: &mut [u32]) {
        of_i32(level, values, self);
    }

    fn of_u64(self, values: &[u64], into: &mut [u32]) {
        for (value, into) in values.iter().zip(into) {
            *into = (value % u64::from(self.divisor)) as u32;
        }
    }

    fn of_i64(self, values: &[u64], into: &mut [u32]) {
        for (value, into) in values.iter().zip(into) {
            *into = value.cast_signed().rem_euclid(i64::from(self.divisor)) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(divisor: u32, values: &[u32]) {
        let modulus = Remainders::new(divisor);
        for level in Level::available() {
            let mut unsigned = values.to_vec();
            modulus.of_u32(level, &mut unsigned);
            let mut signed = values.to_vec();
            modulus.of_i32(level, &mut signed);
            for (i, &value) in values.iter().enumerate() {
                assert_eq!(unsigned[i], value % divisor, "{level}: {value} modulo {divisor}");
                let expected = i64::from(value.cast_signed()).rem_euclid(i64::from(divisor));
                assert_eq!(i64::from(signed[i]), expected, "{level}: {value} modulo {divisor}");
            }
        }
    }

    #[test]
    fn around_every_multiple_near_the_ends() {
        for divisor in
            [1, 2, 3, 5, 7, 1000, 5000, 65_537, 1_000_000, 1 << 30, (1 << 31) - 1, 1 << 31]
        {
            let near = |multiple: u64| {
                let at = multiple * u64::from(divisor);
                (at.saturating_sub(2)..at + 3).filter_map(|value| u32::try_from(value).ok())
            };
            let last = u64::from(u32::MAX / divisor);
            let multiples = (0..50).chain(last.saturating_sub(50)..=last);
            let values: Vec<u32> =
                multiples.flat_map(near).chain([u32::MAX, 1 << 31, (1 << 31) - 1]).collect();
            check(divisor, &values);
        }
    }

    proptest! {
        #[test]
        fn as_the_processor_divides(divisor in 1..=MODULUS_MAX, values in prop::collection::vec(any::<u32>(), 1..40)) {
            check(divisor, &values);
        }
    }
}
