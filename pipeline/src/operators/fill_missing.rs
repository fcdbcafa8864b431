//! `FillMissing`: a default value for empty fields.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::decode::{
    Block, ByteColumn, FIELD_BYTES_MAX, MissingBit, Slot, hex32, uint64, vectorised,
};
use crate::error::{Result, refused};

/// A constant in an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// Text. For a hexadecimal field, its digits.
    Text(String),
}

/// The value as JSON writes it: text in quotes, numbers without.
impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => write!(formatter, "{value}"),
            Self::Float(value) => write!(formatter, "{value:?}"),
            Self::Text(value) => write!(formatter, "{value:?}"),
        }
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

pub(super) struct FillMissing<'a>(pub(super) &'a Value);

impl Definition for FillMissing<'_> {
    fn name(&self) -> &'static str {
        "FillMissing"
    }

    fn takes_missing(&self) -> bool {
        true
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        let flow = place.flow;
        let value = self.0;
        // JSON can't hold NaN or an infinity, so a spec with such a value is refused: it could not
        // be saved.
        let is_finite = !matches!(value, Value::Float(value) if !value.is_finite());
        if let (true, Some(missing)) = (is_finite, flow.missing) {
            let filled =
                match flow.slot {
                    Slot::Word(column) => word(flow.kind, value)
                        .map(|value| fill_word(program, column, missing, value)),
                    Slot::Wide(column) => wide(flow.kind, value)
                        .map(|value| fill_wide(program, column, missing, value)),
                    Slot::Array(_) => None,
                    Slot::Bytes(column) => match value {
                        Value::Text(text) if flow.kind == Kind::Bytes => {
                            check_length(place.column, text)?;
                            fill_text(program, column, missing, text);
                            Some(())
                        }
                        Value::Text(_) | Value::Int(_) | Value::Float(_) => None,
                    },
                };
            if filled.is_none() {
                return self.misfit(place);
            }
        } else if !is_finite {
            return self.misfit(place);
        }
        Ok(Flow { missing: None, ..flow })
    }
}

impl FillMissing<'_> {
    fn misfit(&self, place: Place<'_>) -> Result<Flow> {
        refused(format!(
            "column {:?}: FillMissing has {}, and the values are {} there",
            place.column, self.0, place.flow.kind
        ))
    }
}

/// Converts the value to the bits of a 32-bit column of this type. `None` if the type can't hold
/// it.
fn word(kind: Kind, value: &Value) -> Option<u32> {
    match (kind, value) {
        (Kind::I32, Value::Int(value)) => i32::try_from(*value).ok().map(i32::cast_unsigned),
        (Kind::U32, Value::Int(value)) => u32::try_from(*value).ok(),
        (Kind::U32, Value::Text(text)) => hex32(text.as_bytes()).ok().flatten(),
        (Kind::F32, Value::Int(value)) => Some((*value as f32).to_bits()),
        (Kind::F32, Value::Float(value)) => Some((*value as f32).to_bits()),
        _ => None,
    }
}

/// Converts the value to the bits of a 64-bit column of this type. `None` if the type can't hold
/// it.
fn wide(kind: Kind, value: &Value) -> Option<u64> {
    match (kind, value) {
        (Kind::I64, Value::Int(value)) => Some(value.cast_unsigned()),
        (Kind::U64, Value::Int(value)) => u64::try_from(*value).ok(),
        (Kind::U64, Value::Text(text)) => uint64(text.as_bytes()).ok().flatten(),
        _ => None,
    }
}

fn fill_word(program: &mut Program, column: usize, missing: MissingBit, value: u32) {
    // The decoder already reads empty fields as 0.
    if value != 0 {
        program.push("FillMissing", move |level, block| {
            let (values, plane) = block.word_and_missing_mut(column, missing.plane);
            fill_words(level, values, plane, missing.bit, value);
        });
    }
}

fn fill_wide(program: &mut Program, column: usize, missing: MissingBit, value: u64) {
    // The decoder already reads empty fields as 0.
    if value != 0 {
        program.push("FillMissing", move |level, block| {
            let (values, plane) = block.wide_and_missing_mut(column, missing.plane);
            fill_wides(level, values, plane, missing.bit, value);
        });
    }
}

fn check_length(column: &str, text: &str) -> Result<()> {
    if text.len() <= FIELD_BYTES_MAX {
        return Ok(());
    }
    refused(format!(
        "column {column:?}: FillMissing has {} bytes, and text {FIELD_BYTES_MAX} at most",
        text.len()
    ))
}

fn fill_text(program: &mut Program, column: usize, missing: MissingBit, text: &str) {
    // The decoder already reads an empty field as empty text. But if several columns share the
    // slot, an earlier column's `FillMissing` may have written other text there.
    let is_shared = program.shared_bytes.contains(&column);
    if is_shared || !text.is_empty() {
        let value = text.to_owned().into_bytes();
        program.push("FillMissing", move |_, block| fill_bytes(block, column, missing, &value));
    }
}

vectorised! {
    /// Writes `value` into each row whose bit `bit` of `missing` is set.
    fn fill_words(values: &mut [u32], missing: &[u8], bit: u8, value: u32) {
        for (slot, &missing) in values.iter_mut().zip(missing) {
            *slot = if missing >> bit & 1 == 1 { value } else { *slot };
        }
    }
}

vectorised! {
    /// Writes the 64-bit `value` into each row whose bit `bit` of `missing` is set.
    fn fill_wides(values: &mut [u64], missing: &[u8], bit: u8, value: u64) {
        for (slot, &missing) in values.iter_mut().zip(missing) {
            *slot = if missing >> bit & 1 == 1 { value } else { *slot };
        }
    }
}

fn fill_bytes(block: &mut Block, column: usize, missing: MissingBit, value: &[u8]) {
    let before = std::mem::take(&mut block.bytes[column]);
    let mut filled = ByteColumn::default();
    for row in 0..block.rows {
        let is_missing = block.missing(missing.plane)[row] >> missing.bit & 1 == 1;
        filled.push(if is_missing { value } else { before.get(row) });
    }
    block.bytes[column] = filled;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Level;

    #[test]
    fn filled_where_missing() {
        for level in Level::available() {
            let mut values: Vec<u32> = (1..=20).collect();
            let missing: Vec<u8> =
                (0..20).map(|row| if row % 3 == 0 { 0b100 } else { 0b011 }).collect();
            fill_words(level, &mut values, &missing, 2, 77);
            let expected: Vec<u32> =
                (1..=20).map(|i| if (i - 1) % 3 == 0 { 77 } else { i }).collect();
            assert_eq!(values, expected, "{level}");
        }
    }
}
