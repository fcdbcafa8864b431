//! `Vocabulary`: the id of a value in a vocabulary. Look-ups run after all kernels.

use super::definition::{Definition, Flow, Kind, Place};
use super::modulus::MODULUS_MAX;
use super::program::{LookUp, NamedVocabulary, Program, ValueSpace};
use crate::decode::Slot;
use crate::error::{Result, refused};

pub(super) struct Vocabulary<'a>(pub(super) &'a str);

impl Definition for Vocabulary<'_> {
    fn name(&self) -> &'static str {
        "Vocabulary"
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        let flow = place.flow;
        let space = value_space(place, program.has_bank)?;
        let vocabulary = self.named(place.column, space, program)?;
        let from = match flow.slot {
            // All columns of one text field share a slot, and the `FillMissing` of a later column
            // changes it. The copy keeps this column's values until the look-up.
            Slot::Bytes(shared) if program.shared_bytes.contains(&shared) => {
                Slot::Bytes(program.copy_bytes(shared))
            }
            slot => slot,
        };
        let ids = match space {
            ValueSpace::Below(_) => from,
            ValueSpace::Numbers | ValueSpace::Strings => Slot::Wide(program.new_wide()),
        };
        program.look_ups.push(LookUp {
            column: place.column.to_owned(),
            vocabulary,
            from,
            signed: flow.kind == Kind::I32,
            ids,
            narrow: None,
            id_max: i64::MAX.cast_unsigned(),
            shown: Vec::new(),
        });
        Ok(Flow { kind: Kind::Id, slot: ids, ..flow })
    }
}

impl Vocabulary<'_> {
    /// Returns the vocabulary's index in the program. Adds the vocabulary if the program does not
    /// have it, and extends its range to the values of this column.
    fn named(&self, column: &str, space: ValueSpace, program: &mut Program) -> Result<usize> {
        let name = self.0;
        let known = program.vocabularies.iter().position(|vocabulary| vocabulary.name == name);
        let place = known.unwrap_or_else(|| {
            program.vocabularies.push(NamedVocabulary { name: name.to_owned(), space });
            program.vocabularies.len() - 1
        });
        let shared = &mut program.vocabularies[place];
        shared.space = match (shared.space, space) {
            (ValueSpace::Below(one), ValueSpace::Below(other)) => ValueSpace::Below(one.max(other)),
            (one, other) if one == other => one,
            _ => {
                return refused(format!(
                    "column {column:?} shares vocabulary {name:?} with columns of other values: all of them must have \
                     values of a known range (by Modulus), or numbers, or text"
                ));
            }
        };
        Ok(place)
    }
}

/// Returns the kind and the range of the values that the column looks up in its vocabulary.
fn value_space(place: Place<'_>, has_bank: bool) -> Result<ValueSpace> {
    let column = place.column;
    let kind = place.flow.kind;
    match (kind, place.flow.below) {
        (Kind::U32, Some(below)) if below <= u64::from(MODULUS_MAX) => {
            Ok(ValueSpace::Below(below as u32))
        }
        (Kind::F32 | Kind::Id, _) => refused(format!(
            "column {column:?}: Vocabulary is for whole numbers and text, and the values are {kind} there"
        )),
        (Kind::Bytes, _) if has_bank => Ok(ValueSpace::Strings),
        (Kind::I32 | Kind::U32 | Kind::I64 | Kind::U64, _) if has_bank => Ok(ValueSpace::Numbers),
        _ => refused(format!(
            "column {column:?}: Vocabulary takes values whose range is known: put Modulus (and Hash, for text) \
             before it, or keep the vocabulary in a bank (Pipeline::with_bank), which takes any values"
        )),
    }
}
