//! `Hex2Int`: converts hexadecimal text to a number.

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::error::{Result, refused};

/// Only checks that it is in the right place: the planner makes the decoder read the field as a
/// hexadecimal number, so there is nothing to convert.
pub(super) struct Hex2Int;

impl Definition for Hex2Int {
    fn name(&self) -> &'static str {
        "Hex2Int"
    }

    fn takes_missing(&self) -> bool {
        true
    }

    fn plan(&self, place: Place<'_>, _: &mut Program) -> Result<Flow> {
        if place.flow.kind == Kind::U32 && place.is_first {
            return Ok(place.flow);
        }
        refused(format!(
            "column {:?}: Hex2Int must be its first operator, on a field of text",
            place.column
        ))
    }
}
