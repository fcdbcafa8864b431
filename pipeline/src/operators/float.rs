//! `Float`: converts numbers to f32.

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::decode::{Block, Slot, vectorised};
use crate::error::Result;

pub(super) struct Float;

impl Definition for Float {
    fn name(&self) -> &'static str {
        "Float"
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        let flow = place.flow;
        let slot = match (flow.kind, flow.slot) {
            (Kind::F32, slot) => slot,
            (Kind::I32, Slot::Word(column)) => {
                push_i32(program, column);
                flow.slot
            }
            (Kind::U32, Slot::Word(column)) => {
                push_u32(program, column);
                flow.slot
            }
            (Kind::I64, Slot::Wide(from)) => {
                let to = program.new_word();
                program.push("Float", move |_, block| {
                    narrow(block, from, to, |value| value.cast_signed() as f32);
                });
                Slot::Word(to)
            }
            (Kind::U64, Slot::Wide(from)) => {
                let to = program.new_word();
                program.push("Float", move |_, block| {
                    narrow(block, from, to, |value| value as f32);
                });
                Slot::Word(to)
            }
            _ => return place.wrong_kind("Float", "numbers"),
        };
        Ok(Flow { kind: Kind::F32, slot, below: None, ..flow })
    }
}

/// Makes a new column with the floats of a 32-bit integer column. The integer column stays
/// unchanged.
pub(crate) fn float_copy(program: &mut Program, kind: Kind, from: usize) -> usize {
    let to = program.copy_word(from);
    match kind {
        Kind::I32 => push_i32(program, to),
        _ => push_u32(program, to),
    }
    to
}

fn push_i32(program: &mut Program, column: usize) {
    program.push("Float", move |level, block| float_of_i32(level, block.word_mut(column)));
}

fn push_u32(program: &mut Program, column: usize) {
    program.push("Float", move |level, block| float_of_u32(level, block.word_mut(column)));
}

vectorised! {
    /// Converts signed integers to the nearest floats.
    fn float_of_i32(values: &mut [u32]) {
        for value in values {
            *value = (value.cast_signed() as f32).to_bits();
        }
    }
}

vectorised! {
    /// Converts unsigned integers to the nearest floats.
    fn float_of_u32(values: &mut [u32]) {
        for value in values {
            *value = (*value as f32).to_bits();
        }
    }
}

/// Converts 64-bit integers to floats.
fn narrow(block: &mut Block, from: usize, to: usize, convert: impl Fn(u64) -> f32) {
    let (values, into) = block.wide_and_word_mut(from, to);
    for (value, into) in values.iter().zip(into) {
        *into = convert(*value).to_bits();
    }
}
