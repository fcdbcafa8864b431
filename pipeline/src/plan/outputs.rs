//! Lays out the matrices of a pipeline.

use std::collections::HashMap;

use super::{OutputFrom, OutputPlan, WidenedSlot};
use crate::decode::Slot;
use crate::error::{Result, refused};
use crate::operators::{Flow, Kind, LookUp, Program, Shown, float_copy};
use crate::spec::{Dtype, Output, Spec};

/// Lays the outputs out. `flows` are the columns after their last operators.
///
/// # Errors
/// [`Error::Spec`](crate::Error::Spec) if a column does not exist, or if the output's dtype can't
/// show its values.
pub(super) fn outputs(
    spec: &Spec,
    flows: &HashMap<&str, Flow>,
    program: &mut Program,
) -> Result<Vec<OutputPlan>> {
    let mut outputs = Vec::new();
    for (index, output) in spec.outputs.iter().enumerate() {
        let mut columns = Vec::new();
        for (column, name) in output.columns.iter().enumerate() {
            let Some(&flow) = flows.get(name.as_str()) else {
                return refused(format!(
                    "output {:?} shows {name:?}, which no column is named",
                    output.name
                ));
            };
            if let Some(why) = why_not_shown(output.dtype, flow, program) {
                return refused(format!(
                    "output {:?} can't show column {name:?} as {:?}: {why}",
                    output.name, output.dtype
                ));
            }
            if flow.kind == Kind::Id {
                let look_up = look_up_of(program, flow.slot);
                look_up.shown.push(Shown { output: index, column });
                look_up.id_max = look_up.id_max.min(largest_id(output.dtype));
            }
            columns.push(flow);
        }
        outputs.push(output_plan(output, &columns, program)?);
    }
    for (index, array) in program.arrays.iter_mut().enumerate() {
        let shows = |output: &OutputPlan| output.from == OutputFrom::Array(index);
        let shown: Vec<_> = (0..).zip(&outputs).filter(|(_, output)| shows(output)).collect();
        let [(output, _)] = *shown else {
            return refused(format!(
                "column {:?} makes arrays, so one output must show it, and {} do",
                array.column,
                shown.len()
            ));
        };
        array.output = output;
    }
    Ok(outputs)
}

/// The reason why a matrix of this type can't show the column. `None` if it can.
fn why_not_shown(dtype: Dtype, flow: Flow, program: &Program) -> Option<&'static str> {
    if flow.missing.is_some() {
        return Some("it may be missing; give it FillMissing, or make its field required");
    }
    if let Slot::Array(array) = flow.slot {
        return match program.arrays[array].dtype {
            of if of == dtype => None,
            Dtype::U8 => Some("its arrays are u8"),
            Dtype::I32 => Some("its arrays are i32"),
            Dtype::I64 => Some("its arrays are i64"),
            Dtype::F32 | Dtype::Bits32 => Some("its arrays are f32"),
        };
    }
    match (dtype, flow.kind) {
        (_, Kind::Bytes) => Some("it has text; Hash and Modulus make numbers of it"),
        (_, Kind::Blob | Kind::File) => {
            Some("it has bytes to decode; Image and Decode make arrays of them")
        }
        (Dtype::U8, _) => Some("it has no arrays"),
        (Dtype::F32, Kind::Id) => Some("ids of a vocabulary are no floats"),
        (Dtype::F32, Kind::I64 | Kind::U64) => Some("it has 64 bits; give it Float"),
        (Dtype::I32 | Dtype::I64, Kind::F32) => Some("it has floats"),
        (Dtype::I32, Kind::U32) if flow.below.is_none_or(|below| below > 1 << 31) => {
            Some("its values may be too large; Modulus bounds them")
        }
        (Dtype::I64, Kind::U64) => Some(
            "an unsigned number of 64 bits, as hashes are, may be too large; Modulus bounds it, and \
             Vocabulary numbers it",
        ),
        (Dtype::I32 | Dtype::Bits32, Kind::I64 | Kind::U64) => Some("it has 64 bits"),
        _ => None,
    }
}

/// The largest id that fits in a matrix of this type.
fn largest_id(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::I32 => u64::from(i32::MAX.cast_unsigned()),
        Dtype::Bits32 => u64::from(u32::MAX),
        Dtype::I64 | Dtype::F32 | Dtype::U8 => u64::MAX,
    }
}

fn output_plan(output: &Output, columns: &[Flow], program: &mut Program) -> Result<OutputPlan> {
    let mut shape = vec![columns.len()];
    let of_arrays = columns.iter().find_map(|flow| match flow.slot {
        Slot::Array(array) => Some(array),
        _ => None,
    });
    let from = match (of_arrays, output.dtype) {
        (Some(array), _) if columns.len() == 1 => {
            shape.clone_from(&program.arrays[array].shape);
            OutputFrom::Array(array)
        }
        (Some(_), _) | (None, Dtype::U8) => {
            return refused(format!(
                "output {:?} has {} columns, and an output of arrays has one",
                output.name,
                columns.len()
            ));
        }
        (None, Dtype::I64) => OutputFrom::Wides(columns.iter().map(widened_slot).collect()),
        (None, dtype) => {
            OutputFrom::Words(columns.iter().map(|flow| word(dtype, *flow, program)).collect())
        }
    };
    Ok(OutputPlan {
        name: output.name.clone(),
        columns: output.columns.clone(),
        dtype: output.dtype,
        shape,
        from,
    })
}

fn widened_slot(flow: &Flow) -> WidenedSlot {
    WidenedSlot { slot: flow.slot, signed: flow.kind == Kind::I32 }
}

/// Returns the 32-bit column that a matrix of this type copies to show a column of the pipeline.
fn word(dtype: Dtype, flow: Flow, program: &mut Program) -> usize {
    let word = match flow.slot {
        Slot::Word(word) => word,
        Slot::Wide(_) if flow.kind == Kind::Id => return narrow_ids(program, flow.slot),
        Slot::Wide(_) | Slot::Bytes(_) | Slot::Array(_) => {
            unreachable!("`why_not_shown` refuses 64 bits")
        }
    };
    if dtype != Dtype::F32 || flow.kind == Kind::F32 {
        return word;
    }
    // Makes a copy for the float, because another output may show the integer.
    float_copy(program, flow.kind, word)
}

fn look_up_of(program: &mut Program, ids: Slot) -> &mut LookUp {
    let look_up = program.look_ups.iter_mut().find(|look_up| look_up.ids == ids);
    look_up.expect("ids come of a look-up")
}

/// Returns the 32-bit column that receives a copy of these 64-bit ids. Adds it if there is none
/// yet.
fn narrow_ids(program: &mut Program, ids: Slot) -> usize {
    if let Some(word) = look_up_of(program, ids).narrow {
        return word;
    }
    let word = program.new_word();
    look_up_of(program, ids).narrow = Some(word);
    word
}
