//! `Decode`: a decoder that the caller gives turns a value into an array.

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::arrays::{self, ArrayMaker, ArrayPlan, Decode};
use crate::decode::Slot;
use crate::error::{Result, refused};
use crate::spec::Dtype;

/// Largest number of dimensions of an array.
const DIMENSIONS_MAX: usize = 8;
/// Largest number of bytes of an array.
const ARRAY_BYTES_MAX: usize = 256 << 20;

impl Definition for Decode {
    fn name(&self) -> &'static str {
        "Decode"
    }

    /// A missing value has no bytes. A path that is missing names no file.
    fn takes_missing(&self) -> bool {
        true
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        let from = match (place.flow.kind, place.flow.slot) {
            (Kind::Bytes | Kind::Blob, Slot::Bytes(column)) => arrays::Place::Bytes(column),
            (Kind::File, Slot::Bytes(column)) => arrays::Place::File(column),
            _ => return place.wrong_kind("Decode", "fields of kind Bytes, Blob or File"),
        };
        if !place.is_alone {
            return refused(format!(
                "column {:?}: Decode must be its only operator; a missing value is decoded as no bytes",
                place.column
            ));
        }
        check(place.column, self)?;
        Ok(program.push_array(ArrayPlan {
            column: place.column.to_owned(),
            field: place.flow.field,
            place: from,
            maker: ArrayMaker::Named {
                decoder: self.decoder.clone(),
                version: self.version.clone(),
            },
            dtype: self.dtype,
            shape: self.shape.clone(),
            output: 0,
        }))
    }
}

fn check(column: &str, decode: &Decode) -> Result<()> {
    let Decode { shape, dtype, .. } = decode;
    let values = shape.iter().try_fold(1_usize, |values, &side| values.checked_mul(side));
    let bytes = values.and_then(|values| values.checked_mul(dtype.bytes()));
    let why = match bytes {
        _ if !(1..=DIMENSIONS_MAX).contains(&shape.len()) || shape.contains(&0) => {
            format!("a shape is 1 to {DIMENSIONS_MAX} numbers, each 1 at least, not {shape:?}")
        }
        _ if *dtype == Dtype::Bits32 => "arrays are u8, i32, i64 or f32, not bits32".to_owned(),
        None | Some(ARRAY_BYTES_MAX..) if bytes != Some(ARRAY_BYTES_MAX) => {
            format!("an array has at most {ARRAY_BYTES_MAX} bytes, and {shape:?} has more")
        }
        _ => return Ok(()),
    };
    refused(format!("column {column:?}: {why}"))
}
