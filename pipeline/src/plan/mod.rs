//! A pipeline's columns, checked and laid out: what runs over each block, in order.
//!
//! Types are checked here, once: a plan that comes out runs over any rows without another look. Each column of the
//! pipeline lives in one slot of the blocks and is changed in place; it gets a slot of its own where another column or
//! output needs what it was before.

mod kernel;
mod operators;
mod outputs;
mod plans;
mod sources;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::decode::{Block, FieldKind, FieldLayout, Layout, Slot, Spelling};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::spec::{Column, Dtype, Field, Operator, Source, Spec, VocabularySpec};

pub(crate) use kernel::Kernel;
pub(crate) use plans::Plans;

/// The longest byte string of a field, unless the pipeline says otherwise.
const FIELD_BYTES_MAX: usize = 1 << 16;

/// The type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    I32,
    U32,
    I64,
    U64,
    F32,
    Bytes,
    /// Numbers of a vocabulary: in 32 bits where the range of its values is known, else in 64.
    Id,
}

/// A column on its way through its operators.
#[derive(Debug, Clone, Copy)]
struct Flow {
    kind: Kind,
    slot: Slot,
    /// Where to see which rows are empty; none if none can be.
    missing: Option<(usize, u8)>,
    /// Whether values can be below zero.
    signed: bool,
    /// All values are below it, where that is known.
    below: Option<u64>,
}

/// What values a vocabulary has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueSpace {
    /// Numbers below this one.
    Below(u32),
    /// Any numbers.
    Numbers,
    /// Byte strings.
    Strings,
}

/// A vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VocabularyPlan {
    pub(crate) name: String,
    pub(crate) space: ValueSpace,
    /// What the pipeline says about it, if it does.
    pub(crate) settings: Option<VocabularySpec>,
}

/// A column whose values a vocabulary numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LookUp {
    /// The column's name.
    pub(crate) column: String,
    /// In [`Plan::vocabularies`].
    pub(crate) vocabulary: usize,
    /// The slot of the values.
    pub(crate) from: Slot,
    /// Whether a word's sign goes with it.
    pub(crate) signed: bool,
    /// The slot of the ids: that of the values itself where their range is known.
    pub(crate) ids: Slot,
    /// Where they go as words too, where ids have 64 bits and an output shows 32.
    pub(crate) narrow: Option<usize>,
    /// The largest that the outputs can show.
    pub(crate) id_max: u64,
    /// Outputs and their columns that show it.
    pub(crate) shown: Vec<(usize, usize)>,
}

/// A matrix, and where its columns come from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutputPlan {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
    pub(crate) dtype: Dtype,
    pub(crate) from: OutputFrom,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OutputFrom {
    /// 32-bit slots, as they are.
    Words(Vec<usize>),
    /// Slots that are widened to i64; whether an i32's sign goes with it.
    Wides(Vec<(Slot, bool)>),
}

/// What runs over each block.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) layout: Arc<Layout>,
    pub(crate) field_names: Vec<String>,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) vocabularies: Vec<VocabularyPlan>,
    pub(crate) look_ups: Vec<LookUp>,
    pub(crate) outputs: Vec<OutputPlan>,
    /// Columns of 32 bits, of 64 bits, and of byte strings that a block needs.
    pub(crate) columns: (usize, usize, usize),
}

impl Plan {
    /// Checks a pipeline and lays it out.
    ///
    /// # Errors
    /// [`Error::Spec`], which names the column and the cure.
    pub(crate) fn new(spec: &Spec, format: Format, has_bank: bool) -> Result<Self> {
        let planner = Planner { has_bank, ..Planner::new(spec, format)? };
        planner.plan()
    }

    /// Room for its columns.
    pub(crate) fn block(&self) -> Block {
        let (words, wides, bytes) = self.columns;
        Block::new(words, wides, bytes, self.layout.planes())
    }

    /// The names of the fields that are read, in the pipeline's order.
    pub(crate) fn needed_fields(&self) -> Vec<String> {
        self.fields_that_are_read().map(|(name, _)| name.clone()).collect()
    }

    /// Fields that are read, by name.
    #[cfg(feature = "parquet")]
    pub(crate) fn read_fields(&self) -> Vec<(String, FieldLayout)> {
        self.fields_that_are_read().map(|(name, field)| (name.clone(), field.clone())).collect()
    }

    fn fields_that_are_read(&self) -> impl Iterator<Item = (&String, &FieldLayout)> {
        let all = self.field_names.iter().enumerate();
        let all = all.map(|(field, name)| (name, self.layout.field(field)));
        all.filter(|(_, field)| field.kind != FieldKind::Skip)
    }
}

struct Planner<'a> {
    spec: &'a Spec,
    /// Whether values of unknown range can be numbered.
    has_bank: bool,
    layout: Arc<Layout>,
    kinds: Vec<FieldKind>,
    kernels: Vec<Kernel>,
    vocabularies: Vec<VocabularyPlan>,
    look_ups: Vec<LookUp>,
    flows: HashMap<&'a str, Flow>,
    /// For each field, how many columns are still to be made of it.
    uses_left: Vec<usize>,
    /// Slots of text that several columns are made of.
    shared_bytes: HashSet<usize>,
    columns: (usize, usize, usize),
}

fn error<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Spec(what.into()))
}

/// Each name once, none empty.
fn check_names<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if name.is_empty() {
            return error(format!("a {what} has no name"));
        }
        if !seen.insert(name) {
            return error(format!("there are two {what}s of the name {name:?}; names must differ"));
        }
    }
    Ok(())
}

/// Refuses settings of fields and bad rows that mean nothing.
fn check_settings(spec: &Spec, format: Format) -> Result<()> {
    if !(0.0..=1.0).contains(&spec.bad_rows_max) {
        return error(format!("bad_rows_max is a share from 0 to 1, not {}", spec.bad_rows_max));
    }
    for Field { name, kind, missing, whole_floats, .. } in &spec.fields {
        let whole = matches!(kind, FieldKind::Int32 | FieldKind::Int64 | FieldKind::Uint64);
        if *whole_floats && !whole {
            return error(format!(
                "field {name:?} has whole_floats, which is for Int32, Int64 and Uint64, and is {kind:?}"
            ));
        }
        if format == Format::Packed && (*whole_floats || !missing.is_empty()) {
            return error(format!(
                "field {name:?} has settings of how text is written, and packed rows are none"
            ));
        }
    }
    Ok(())
}

impl<'a> Planner<'a> {
    fn new(spec: &'a Spec, format: Format) -> Result<Self> {
        format.check()?;
        let separator = match format {
            // Texts with separators of several bytes are written anew, with the first of them in their place.
            Format::Text { separator, .. } => separator.first(),
            Format::Columns if cfg!(not(feature = "parquet")) => {
                return error("this program was built without Parquet and Arrow; convert to text");
            }
            Format::Packed | Format::Columns | Format::ByName(_) => b'\t',
        };
        check_names("field", spec.fields.iter().map(|field| field.name.as_str()))?;
        check_names("column", spec.columns.iter().map(|column| column.name.as_str()))?;
        check_names("output", spec.outputs.iter().map(|output| output.name.as_str()))?;
        let settings = spec.vocabularies.iter().map(|vocabulary| vocabulary.name.as_str());
        check_names("vocabulary", settings)?;
        if spec.fields.is_empty() {
            return error("it has no fields");
        }
        check_settings(spec, format)?;
        let mut uses_left = vec![0; spec.fields.len()];
        let mut kinds: Vec<_> = spec.fields.iter().map(|field| field.kind).collect();
        let mut hex_uses = uses_left.clone();
        for column in &spec.columns {
            let Source::Field(name) = &column.from else { continue };
            let field = field_index(spec, column, name)?;
            uses_left[field] += 1;
            if reads_hex(column) {
                match spec.fields[field].kind {
                    FieldKind::Bytes | FieldKind::Hex32 => {
                        kinds[field] = FieldKind::Hex32;
                        hex_uses[field] += 1;
                    }
                    other => {
                        return error(format!(
                            "column {:?}: Hex2Int is for text, and field {name:?} is {other:?}",
                            column.name
                        ));
                    }
                }
            }
        }
        for (field, kind) in kinds.iter_mut().enumerate() {
            let mixed = spec.fields[field].kind == FieldKind::Bytes && hex_uses[field] > 0;
            if mixed && hex_uses[field] < uses_left[field] {
                return error(format!(
                    "field {:?} is read as text by one column and as a number, by Hex2Int, by another: declare it Hex32 \
                     and use the number in both",
                    spec.fields[field].name
                ));
            }
            if uses_left[field] == 0 && !spec.fields[field].required {
                *kind = FieldKind::Skip;
            }
            if format == Format::Packed
                && matches!(
                    spec.fields[field].kind,
                    FieldKind::Int64 | FieldKind::Uint64 | FieldKind::Bytes
                )
                && *kind != FieldKind::Hex32
            {
                return error(format!(
                    "field {:?} is {kind:?}, and packed rows have numbers of 32 bits: Int32, Hex32 or Float32",
                    spec.fields[field].name
                ));
            }
        }
        let fields = spec.fields.iter().zip(&kinds).map(|(field, &kind)| FieldLayout {
            kind,
            required: field.required,
            bytes_max: FIELD_BYTES_MAX,
            spelling: Spelling::new(kind, &field.missing, field.whole_floats),
            time_unit: field.time_unit,
        });
        let layout = Arc::new(Layout::new(fields.collect(), separator));
        let columns = layout.columns();
        Ok(Self {
            spec,
            has_bank: false,
            layout,
            kinds,
            kernels: Vec::new(),
            vocabularies: Vec::new(),
            look_ups: Vec::new(),
            flows: HashMap::new(),
            uses_left,
            shared_bytes: HashSet::new(),
            columns,
        })
    }

    fn plan(mut self) -> Result<Plan> {
        for column in &self.spec.columns {
            let mut flow = self.source(column)?;
            for (i, operator) in column.operators.iter().enumerate() {
                flow = self.operator(column, i, operator, flow)?;
            }
            self.flows.insert(&column.name, flow);
        }
        for settings in &self.spec.vocabularies {
            let name = &settings.name;
            if self.vocabularies.iter().all(|vocabulary| vocabulary.name != *name) {
                return error(format!(
                    "it has settings for vocabulary {name:?}, which no column uses"
                ));
            }
            if settings.min_count > 0 && settings.out_of_vocabulary.is_none() {
                return error(format!(
                    "vocabulary {name:?} has a min_count, so it needs an id for the values that come less often: \
                     out_of_vocabulary 0 and first_id 1, for example"
                ));
            }
        }
        let outputs = self.outputs()?;
        Ok(Plan {
            field_names: self.spec.fields.iter().map(|field| field.name.clone()).collect(),
            layout: self.layout,
            kernels: self.kernels,
            vocabularies: self.vocabularies,
            look_ups: self.look_ups,
            outputs,
            columns: self.columns,
        })
    }

    fn new_word(&mut self) -> usize {
        self.columns.0 += 1;
        self.columns.0 - 1
    }

    fn new_wide(&mut self) -> usize {
        self.columns.1 += 1;
        self.columns.1 - 1
    }
}

fn field_index(spec: &Spec, column: &Column, name: &str) -> Result<usize> {
    let found = spec.fields.iter().position(|field| field.name == name);
    let Some(field) = found else {
        return error(format!(
            "column {:?} is made of {name:?}, which no field is named",
            column.name
        ));
    };
    if spec.fields[field].kind == FieldKind::Skip {
        return error(format!(
            "column {:?} is made of field {name:?}, which is skipped",
            column.name
        ));
    }
    Ok(field)
}

/// Whether the column's field is read as a hexadecimal number at once.
fn reads_hex(column: &Column) -> bool {
    let first =
        column.operators.iter().find(|operator| !matches!(operator, Operator::FillMissing(_)));
    first == Some(&Operator::Hex2Int)
}
