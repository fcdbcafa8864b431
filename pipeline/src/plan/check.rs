//! Refuses specs with invalid names or settings, before the fields are laid out.

use std::collections::HashSet;

use crate::decode::{FieldKind, float32, int32, int64, uint64};
use crate::error::{Result, refused};
use crate::format::Format;
use crate::spec::{Field, Spec};

/// Checks everything in a spec that does not depend on operators.
///
/// # Errors
/// [`Error::Spec`](crate::Error::Spec) with the reason.
pub(super) fn check(spec: &Spec, format: Format) -> Result<()> {
    check_names("field", spec.fields.iter().map(|field| field.name.as_str()))?;
    check_names("column", spec.columns.iter().map(|column| column.name.as_str()))?;
    check_names("output", spec.outputs.iter().map(|output| output.name.as_str()))?;
    let settings = spec.vocabularies.iter().map(|vocabulary| vocabulary.name.as_str());
    check_names("vocabulary", settings)?;
    if spec.fields.is_empty() {
        return refused("it has no fields");
    }
    if !(0.0..=1.0).contains(&spec.bad_rows_max) {
        return refused(format!("bad_rows_max is a share from 0 to 1, not {}", spec.bad_rows_max));
    }
    spec.fields.iter().try_for_each(|field| check_field(field, format))
}

/// Fails if a name is empty or occurs twice.
fn check_names<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if name.is_empty() {
            return refused(format!("a {what} has no name"));
        }
        if !seen.insert(name) {
            return refused(format!(
                "there are two {what}s of the name {name:?}; names must differ"
            ));
        }
    }
    Ok(())
}

fn check_field(field: &Field, format: Format) -> Result<()> {
    let Field { name, kind, missing, whole_floats, words, .. } = field;
    let whole = matches!(kind, FieldKind::Int32 | FieldKind::Int64 | FieldKind::Uint64);
    if *whole_floats && !whole {
        return refused(format!(
            "field {name:?} has whole_floats, which is for Int32, Int64 and Uint64, and is {kind:?}"
        ));
    }
    words.iter().try_for_each(|(word, number)| check_word(field, word, *number))?;
    if format == Format::Packed && (*whole_floats || !missing.is_empty() || !words.is_empty()) {
        return refused(format!(
            "field {name:?} has settings of how text is written, and packed rows are none"
        ));
    }
    Ok(())
}

/// Fails if a word of the field could never stand for its number.
fn check_word(field: &Field, word: &str, number: i64) -> Result<()> {
    let Field { name, kind, missing, .. } = field;
    let reads = |text: &[u8]| match kind {
        FieldKind::Int32 => Some(int32(text).is_ok()),
        FieldKind::Int64 => Some(int64(text).is_ok()),
        FieldKind::Uint64 => Some(uint64(text).is_ok()),
        FieldKind::Float32 => Some(float32(text).is_ok()),
        FieldKind::Hex32
        | FieldKind::Bytes
        | FieldKind::Blob
        | FieldKind::File
        | FieldKind::Skip => None,
    };
    let Some(is_number) = reads(word.as_bytes()) else {
        return refused(format!(
            "field {name:?} has words, which are for Int32, Int64, Uint64 and Float32, and is {kind:?}"
        ));
    };
    if is_number || missing.iter().any(|one| one == word) {
        return refused(format!(
            "field {name:?} has the word {word:?}, which is read as a number or as missing already"
        ));
    }
    if reads(number.to_string().as_bytes()) == Some(false) {
        return refused(format!(
            "field {name:?} has the word {word:?} for {number}, which does not fit {kind:?}"
        ));
    }
    Ok(())
}
