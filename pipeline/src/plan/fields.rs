//! Decides how the fields of a row are read, and makes columns of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::plans::TextLimits;
use crate::arrays::VALUE_BYTES_MAX;
use crate::decode::{FIELD_BYTES_MAX, FieldKind, FieldLayout, Layout, Slot, Spelling};
use crate::error::{Result, refused};
use crate::format::Format;
use crate::operators::{Flow, Kind, Operator, Program};
use crate::spec::{Column, Field, Source, Spec};

/// The fields of a row, and for each the number of columns that the plan has still to make of it.
pub(super) struct Fields<'a> {
    spec: &'a Spec,
    /// The place of each field, by its name.
    places: HashMap<&'a str, usize>,
    pub(super) layout: Arc<Layout>,
    /// How each field is read. In two cases this is not the kind that the spec gives: text that
    /// `Hex2Int` reads, and fields that no column needs.
    kinds: Vec<FieldKind>,
    /// For each field, the number of columns that are still to be made of it.
    uses_left: Vec<usize>,
}

/// Number of columns that are made of a field.
#[derive(Debug, Clone, Copy)]
struct Uses {
    all: usize,
    /// Number of these columns that begin with `Hex2Int`.
    hex: usize,
    /// Largest number of bytes that all of these columns take.
    bytes_max: usize,
}

impl Default for Uses {
    fn default() -> Self {
        Self { all: 0, hex: 0, bytes_max: FIELD_BYTES_MAX }
    }
}

impl Uses {
    /// Counts a column that is made of `field`.
    fn add(&mut self, field: &Field, column: &Column, limits: &TextLimits) -> Result<()> {
        self.all += 1;
        match first_operator(column) {
            Some(Operator::Hex2Int) => {
                if !matches!(field.kind, FieldKind::Bytes | FieldKind::Hex32) {
                    return refused(format!(
                        "column {:?}: Hex2Int is for text, and field {:?} is {:?}",
                        column.name, field.name, field.kind
                    ));
                }
                self.hex += 1;
            }
            Some(Operator::Vocabulary(name)) => {
                let limit = limits.get(name).map_or(FIELD_BYTES_MAX, |&limit| limit as usize);
                self.bytes_max = self.bytes_max.min(limit);
            }
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Fields<'a> {
    /// Lays the fields out.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) if packed rows can't have a field. Also if a column uses
    /// a field that does not exist or is skipped, or if two columns read one field as different
    /// types.
    pub(super) fn new(spec: &'a Spec, format: Format, limits: &TextLimits) -> Result<Self> {
        let separator = match format {
            // A text with a separator of several bytes is rewritten before it is decoded. Each
            // separator is replaced by its first byte.
            Format::Text { separator, .. } => separator.first(),
            Format::Packed | Format::Columns | Format::ByName(_) => b'\t',
        };
        let places = spec.fields.iter().enumerate();
        let places: HashMap<_, _> = places.map(|(place, field)| (&*field.name, place)).collect();
        let mut uses = vec![Uses::default(); spec.fields.len()];
        for column in &spec.columns {
            if let Source::Field(name) = &column.from {
                let field = field_index(spec, &places, column, name)?;
                uses[field].add(&spec.fields[field], column, limits)?;
            }
        }
        let mut kinds = Vec::with_capacity(spec.fields.len());
        for (field, uses) in spec.fields.iter().zip(&uses) {
            let kind = kind_of(field, *uses)?;
            check_packed(field, kind, format)?;
            check_blob(kind, field, format)?;
            kinds.push(kind);
        }
        let fields = spec.fields.iter().zip(&kinds).zip(&uses);
        let fields = fields.map(|((field, &kind), uses)| FieldLayout {
            kind,
            required: field.required,
            bytes_max: if kind == FieldKind::Blob { VALUE_BYTES_MAX } else { uses.bytes_max },
            spelling: Spelling::new(kind, &field.missing, field.whole_floats, &field.words),
            time_unit: field.time_unit,
        });
        let layout = Arc::new(Layout::new(fields.collect(), separator));
        let uses_left = uses.iter().map(|uses| uses.all).collect();
        Ok(Self { spec, places, layout, kinds, uses_left })
    }

    /// Returns the column that is made of the field `name`, before its operators. If several
    /// columns are made of the field, the last one uses the field's own slot, and each earlier
    /// column gets a copy.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) if there is no such field.
    pub(super) fn flow(
        &mut self,
        column: &Column,
        name: &str,
        program: &mut Program,
    ) -> Result<Flow> {
        let field = field_index(self.spec, &self.places, column, name)?;
        let target = self.layout.target(field).expect("a field that a column is made of is read");
        let (kind, signed) = match self.kinds[field] {
            FieldKind::Int32 => (Kind::I32, true),
            FieldKind::Int64 => (Kind::I64, true),
            FieldKind::Uint64 => (Kind::U64, false),
            FieldKind::Hex32 => (Kind::U32, false),
            FieldKind::Float32 => (Kind::F32, true),
            FieldKind::Bytes => (Kind::Bytes, false),
            FieldKind::Blob => (Kind::Blob, false),
            FieldKind::File => (Kind::File, false),
            FieldKind::Skip => unreachable!("a field that a column is made of is read"),
        };
        let others_follow = self.uses_left[field] > 1;
        let slot = match target.slot {
            Slot::Word(from) if others_follow => Slot::Word(program.copy_word(from)),
            Slot::Wide(from) if others_follow => Slot::Wide(program.copy_wide(from)),
            // Byte strings need no copy: only `FillMissing` changes them, and only where the value
            // is missing.
            Slot::Bytes(from) if others_follow => {
                program.shared_bytes.insert(from);
                target.slot
            }
            slot => slot,
        };
        self.uses_left[field] -= 1;
        let missing = (!self.spec.fields[field].required).then_some(target.missing);
        Ok(Flow { field, missing, signed, ..Flow::new(kind, slot) })
    }
}

/// Returns the kind that the decoder reads the field as.
fn kind_of(field: &Field, uses: Uses) -> Result<FieldKind> {
    let is_hex_text = field.kind == FieldKind::Bytes && uses.hex > 0;
    if is_hex_text && uses.hex < uses.all {
        return refused(format!(
            "field {:?} is read as text by one column and as a number, by Hex2Int, by another: declare it Hex32 \
             and use the number in both",
            field.name
        ));
    }
    Ok(if uses.all == 0 && !field.required {
        FieldKind::Skip
    } else if is_hex_text {
        FieldKind::Hex32
    } else {
        field.kind
    })
}

/// Fails if packed rows can't have this field.
fn check_packed(field: &Field, kind: FieldKind, format: Format) -> Result<()> {
    let is_word = !matches!(
        field.kind,
        FieldKind::Int64 | FieldKind::Uint64 | FieldKind::Bytes | FieldKind::Blob | FieldKind::File
    );
    if format != Format::Packed || is_word || kind == FieldKind::Hex32 {
        return Ok(());
    }
    refused(format!(
        "field {:?} is {kind:?}, and packed rows have numbers of 32 bits: Int32, Hex32 or Float32",
        field.name
    ))
}

/// Fails if the field has bytes of pictures, and the rows are text.
fn check_blob(kind: FieldKind, field: &Field, format: Format) -> Result<()> {
    if kind != FieldKind::Blob || !matches!(format, Format::Text { .. }) {
        return Ok(());
    }
    refused(format!(
        "field {:?} is Blob, which text can't hold: read Parquet, Arrow or tar files, or make it \
         File, whose text is the path of a file",
        field.name
    ))
}

fn field_index(
    spec: &Spec,
    places: &HashMap<&str, usize>,
    column: &Column,
    name: &str,
) -> Result<usize> {
    let Some(&field) = places.get(name) else {
        return refused(format!(
            "column {:?} is made of {name:?}, which no field is named",
            column.name
        ));
    };
    if spec.fields[field].kind == FieldKind::Skip {
        return refused(format!(
            "column {:?} is made of field {name:?}, which is skipped",
            column.name
        ));
    }
    Ok(field)
}

/// The column's first operator that changes values of its field which are not missing.
fn first_operator(column: &Column) -> Option<&Operator> {
    column.operators.iter().find(|operator| !matches!(operator, Operator::FillMissing(_)))
}
