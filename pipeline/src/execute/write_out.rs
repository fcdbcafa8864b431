//! Writes the columns of a block into the matrices of a batch.

use super::concatenate::concatenate;
use crate::batch::{Batch, Values};
use crate::decode::{Block, Level, Slot};
use crate::plan::{OutputFrom, Plan, WidenedSlot};

/// Appends the block's rows to the batch's matrices, which must have space for them.
pub(super) fn write_out(plan: &Plan, level: Level, block: &Block, batch: &mut Batch) {
    let rows = block.rows;
    for (output, values) in plan.outputs.iter().zip(&mut batch.matrices) {
        match (&output.from, &mut **values) {
            (OutputFrom::Array(_), _) => {}
            (OutputFrom::Words(columns), Values::Words(into)) => {
                let width = columns.len();
                let into = &mut into[batch.rows * width..][..rows * width];
                concatenate(level, block.words(), columns, rows, into);
            }
            (OutputFrom::Wides(columns), Values::Wides(into)) => {
                let width = columns.len();
                let into = &mut into[batch.rows * width..][..rows * width];
                for (place, &column) in columns.iter().enumerate() {
                    // If the block has no rows, `into` is empty, and `min` keeps the index valid.
                    widen(block, column, &mut into[place.min(rows * width)..], width);
                }
            }
            _ => unreachable!("a matrix is as wide as its plan says"),
        }
    }
    batch.rows += rows;
}

/// Writes a column into every `stride`-th value of `into`.
fn widen(block: &Block, column: WidenedSlot, into: &mut [u64], stride: usize) {
    let into = into.iter_mut().step_by(stride);
    match column.slot {
        Slot::Word(word) if column.signed => {
            for (value, into) in block.word(word).iter().zip(into) {
                *into = i64::from(value.cast_signed()).cast_unsigned();
            }
        }
        Slot::Word(word) => {
            for (value, into) in block.word(word).iter().zip(into) {
                *into = u64::from(*value);
            }
        }
        Slot::Wide(wide) => {
            for (value, into) in block.wide(wide).iter().zip(into) {
                *into = *value;
            }
        }
        Slot::Bytes(_) | Slot::Array(_) => unreachable!("the plan refuses to show text"),
    }
}
