//! `Clip` and `Neg2Zero`: limit values to a range.

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::decode::{Slot, vectorised};
use crate::error::{Result, refused};

pub(super) struct Clip {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Definition for Clip {
    fn name(&self) -> &'static str {
        "Clip"
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        self.check(place)?;
        let Self { low, high } = *self;
        let flow = place.flow;
        // The casts saturate. This is right: an end of the range that the type can't hold limits no
        // value.
        match (flow.kind, flow.slot) {
            (Kind::I32, Slot::Word(column)) => {
                push_i32(program, "Clip", column, low as i32, high as i32);
            }
            (Kind::U32, Slot::Word(column)) => {
                program.push("Clip", move |level, block| {
                    clip_u32(level, block.word_mut(column), low as u32, high as u32);
                });
            }
            (Kind::I64, Slot::Wide(column)) => {
                push_i64(program, "Clip", column, low as i64, high as i64);
            }
            (Kind::F32, Slot::Word(column)) => {
                push_f32(program, "Clip", column, low as f32, high as f32);
            }
            _ => return place.wrong_kind("Clip", "numbers"),
        }
        let is_bounded = flow.kind == Kind::U32 && high >= 0.0;
        let below = is_bounded.then(|| u64::from(high as u32) + 1);
        Ok(Flow { signed: flow.signed && low < 0.0, below, ..flow })
    }
}

impl Clip {
    /// Fails if no value of the column's type is in the range.
    fn check(&self, place: Place<'_>) -> Result<()> {
        let Self { low, high } = *self;
        let column = place.column;
        let kind = place.flow.kind;
        if !low.is_finite() || !high.is_finite() || low > high {
            return refused(format!(
                "column {column:?}: Clip from {low} to {high} has no values, or an end that is no number"
            ));
        }
        if kind == Kind::U64 {
            return refused(format!(
                "column {column:?}: Clip is not for unsigned numbers of 64 bits, as hashes are: put Modulus before it"
            ));
        }
        let whole = low.fract() == 0.0 && high.fract() == 0.0;
        if kind != Kind::F32 && !whole {
            return refused(format!(
                "column {column:?}: Clip from {low} to {high} of whole numbers: whole ends, or Float before it"
            ));
        }
        let (least, largest) = match kind {
            Kind::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
            Kind::U32 => (0.0, f64::from(u32::MAX)),
            Kind::F32 => (f64::from(f32::MIN), f64::from(f32::MAX)),
            _ => (i64::MIN as f64, i64::MAX as f64),
        };
        if low > largest || high < least {
            return refused(format!(
                "column {column:?}: Clip from {low} to {high} leaves no value to a column of {kind}"
            ));
        }
        Ok(())
    }
}

pub(super) struct Neg2Zero;

impl Definition for Neg2Zero {
    fn name(&self) -> &'static str {
        "Neg2Zero"
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        match (place.flow.kind, place.flow.slot) {
            (Kind::I32, Slot::Word(column)) => push_i32(program, "Neg2Zero", column, 0, i32::MAX),
            (Kind::I64, Slot::Wide(column)) => push_i64(program, "Neg2Zero", column, 0, i64::MAX),
            (Kind::F32, Slot::Word(column)) => {
                push_f32(program, "Neg2Zero", column, 0.0, f32::MAX);
            }
            (Kind::U32 | Kind::U64, _) => {}
            _ => return place.wrong_kind("Neg2Zero", "numbers"),
        }
        Ok(Flow { signed: false, ..place.flow })
    }
}

fn push_i32(program: &mut Program, of: &'static str, column: usize, low: i32, high: i32) {
    program.push(of, move |level, block| clip_i32(level, block.word_mut(column), low, high));
}

fn push_i64(program: &mut Program, of: &'static str, column: usize, low: i64, high: i64) {
    program.push(of, move |level, block| clip_i64(level, block.wide_mut(column), low, high));
}

fn push_f32(program: &mut Program, of: &'static str, column: usize, low: f32, high: f32) {
    program.push(of, move |level, block| clip_f32(level, block.word_mut(column), low, high));
}

vectorised! {
    /// Limits signed integers to a range.
    fn clip_i32(values: &mut [u32], low: i32, high: i32) {
        for value in values {
            *value = value.cast_signed().clamp(low, high).cast_unsigned();
        }
    }
}

vectorised! {
    /// Limits unsigned integers to a range.
    fn clip_u32(values: &mut [u32], low: u32, high: u32) {
        for value in values {
            *value = (*value).clamp(low, high);
        }
    }
}

vectorised! {
    /// Limits signed 64-bit integers to a range.
    fn clip_i64(values: &mut [u64], low: i64, high: i64) {
        for value in values {
            *value = value.cast_signed().clamp(low, high).cast_unsigned();
        }
    }
}

vectorised! {
    /// Limits floats to a range. If the lower end is 0.0, the result may be -0.0, which equals 0.0.
    fn clip_f32(values: &mut [u32], low: f32, high: f32) {
        for value in values {
            *value = f32::from_bits(*value).clamp(low, high).to_bits();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Level;

    #[test]
    fn clipped_at_both_ends() {
        for level in Level::available() {
            let mut values = [i32::MIN, -1, 0, 5, i32::MAX].map(i32::cast_unsigned);
            clip_i32(level, &mut values, 0, 4);
            assert_eq!(values, [0, 0, 0, 4, 4], "{level}");
            let mut values = [-1.5_f32, 0.5, 9.0].map(f32::to_bits);
            clip_f32(level, &mut values, 0.0, 1.0);
            assert_eq!(values.map(f32::from_bits), [0.0, 0.5, 1.0], "{level}");
        }
    }
}
