//! A pipeline's columns, checked and laid out: what runs over each block, in order.
//!
//! Types are checked here, once: a plan that comes out runs over any rows without another look. Each column of the
//! pipeline lives in one slot of the blocks and is changed in place; it gets a slot of its own where another column or
//! output needs what it was before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::decode::FieldKind;
use crate::decode::{FieldLayout, Layout, Slot};
use crate::error::{Error, Result};
use crate::kernels::{MODULUS_MAX, Modulus};
use crate::spec::{Column, Dtype, Format, Operator, Source, Spec, Value, VocabularySpec};

/// The longest byte string of a field, unless the pipeline says otherwise.
const FIELD_BYTES_MAX: usize = 1 << 16;

/// One loop over a block's columns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kernel {
    FillWord { column: usize, missing: (usize, u8), value: u32 },
    FillWide { column: usize, missing: (usize, u8), value: u64 },
    FillBytes { column: usize, missing: (usize, u8), value: Vec<u8> },
    CopyWord { from: usize, to: usize },
    CopyWide { from: usize, to: usize },
    CopyBytes { from: usize, to: usize },
    ClipI32 { column: usize, low: i32, high: i32 },
    ClipU32 { column: usize, low: u32, high: u32 },
    ClipI64 { column: usize, low: i64, high: i64 },
    ClipF32 { column: usize, low: f32, high: f32 },
    LogI32 { column: usize },
    LogU32 { column: usize },
    LogF32 { column: usize },
    LogWide { from: usize, to: usize },
    FloatI32 { column: usize },
    FloatU32 { column: usize },
    FloatI64 { from: usize, to: usize },
    FloatU64 { from: usize, to: usize },
    ModulusI32 { column: usize, modulus: Modulus },
    ModulusU32 { column: usize, modulus: Modulus },
    ModulusI64 { from: usize, to: usize, modulus: Modulus },
    ModulusU64 { from: usize, to: usize, modulus: Modulus },
    BucketI32 { column: usize, boundaries: Vec<f32> },
    BucketU32 { column: usize, boundaries: Vec<f32> },
    BucketF32 { column: usize, boundaries: Vec<f32> },
    HashI32 { from: usize, to: usize, seed: u64 },
    HashU32 { from: usize, to: usize, seed: u64 },
    HashWide { column: usize, seed: u64 },
    HashBytes { from: usize, to: usize, seed: u64 },
    Cross { first: Slot, second: Slot, to: usize, seed: u64 },
}

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
    let mut seen = std::collections::HashSet::new();
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

impl<'a> Planner<'a> {
    fn new(spec: &'a Spec, format: Format) -> Result<Self> {
        let separator = match format {
            Format::Text { separator: b'\n' | b'\r', .. } => {
                return error("the separator of fields can't be a line end");
            }
            Format::Text { separator, quote: Some(quote), .. }
                if matches!(quote, b'\n' | b'\r') || quote == separator =>
            {
                return error("the quote can't be a line end or the separator of fields");
            }
            Format::Text { separator, .. } => separator,
            Format::Columns if cfg!(not(feature = "parquet")) => {
                return error("this program was built without Parquet and Arrow; convert to text");
            }
            Format::Packed | Format::Columns => b'\t',
        };
        check_names("field", spec.fields.iter().map(|field| field.name.as_str()))?;
        check_names("column", spec.columns.iter().map(|column| column.name.as_str()))?;
        check_names("output", spec.outputs.iter().map(|output| output.name.as_str()))?;
        let settings = spec.vocabularies.iter().map(|vocabulary| vocabulary.name.as_str());
        check_names("vocabulary", settings)?;
        if spec.fields.is_empty() {
            return error("it has no fields");
        }
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
                && matches!(spec.fields[field].kind, FieldKind::Int64 | FieldKind::Bytes)
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

    fn source(&mut self, column: &'a Column) -> Result<Flow> {
        match &column.from {
            Source::Field(name) => {
                let field = field_index(self.spec, column, name)?;
                Ok(self.field_source(field))
            }
            Source::Cross { first, second, seed } => {
                let slot = |name: &String| match self.flows.get(name.as_str()) {
                    None => error(format!(
                        "column {:?} crosses {name:?}, which no earlier column is named",
                        column.name
                    )),
                    Some(flow) if flow.kind == Kind::Id => error(format!(
                        "column {:?} crosses {name:?}, which a vocabulary numbers: cross its values, by a column \
                         without Vocabulary",
                        column.name
                    )),
                    Some(flow) if flow.missing.is_some() => error(format!(
                        "column {:?} crosses {name:?}, which may be missing: give it FillMissing",
                        column.name
                    )),
                    Some(flow) if flow.kind == Kind::Bytes => error(format!(
                        "column {:?} crosses {name:?}, which has text: give it Hash",
                        column.name
                    )),
                    Some(flow) => Ok(flow.slot),
                };
                let (first, second) = (slot(first)?, slot(second)?);
                let to = self.new_wide();
                self.kernels.push(Kernel::Cross { first, second, to, seed: *seed });
                let slot = Slot::Wide(to);
                Ok(Flow { kind: Kind::U64, slot, missing: None, signed: false, below: None })
            }
        }
    }

    /// The field's own slot for the last column that is made of it, copies for the others.
    fn field_source(&mut self, field: usize) -> Flow {
        let target = self.layout.target(field).expect("a field that a column is made of is read");
        let (kind, signed) = match self.kinds[field] {
            FieldKind::Int32 => (Kind::I32, true),
            FieldKind::Int64 => (Kind::I64, true),
            FieldKind::Hex32 => (Kind::U32, false),
            FieldKind::Float32 => (Kind::F32, true),
            FieldKind::Bytes => (Kind::Bytes, false),
            FieldKind::Skip => unreachable!("a field that a column is made of is read"),
        };
        let slot = match target.slot {
            Slot::Word(from) if self.uses_left[field] > 1 => {
                let to = self.new_word();
                self.kernels.push(Kernel::CopyWord { from, to });
                Slot::Word(to)
            }
            Slot::Wide(from) if self.uses_left[field] > 1 => {
                let to = self.new_wide();
                self.kernels.push(Kernel::CopyWide { from, to });
                Slot::Wide(to)
            }
            // Byte strings change only where they were missing.
            slot => slot,
        };
        if let Slot::Bytes(bytes) = slot
            && self.uses_left[field] > 1
        {
            self.shared_bytes.insert(bytes);
        }
        self.uses_left[field] -= 1;
        let missing = (!self.spec.fields[field].required).then_some(target.missing);
        Flow { kind, slot, missing, signed, below: None }
    }

    fn operator(
        &mut self,
        column: &Column,
        place: usize,
        operator: &Operator,
        flow: Flow,
    ) -> Result<Flow> {
        let name = &column.name;
        if flow.kind == Kind::Id {
            return error(format!("column {name:?}: Vocabulary must be its last operator"));
        }
        if let Operator::FillMissing(value) = operator {
            return self.fill(name, value, flow);
        }
        if *operator == Operator::Hex2Int {
            let first =
                column.operators[..place].iter().all(|o| matches!(o, Operator::FillMissing(_)));
            if flow.kind == Kind::U32 && first {
                return Ok(flow);
            }
            return error(format!(
                "column {name:?}: Hex2Int must be its first operator, on a field of text"
            ));
        }
        if flow.missing.is_some() {
            return error(format!(
                "column {name:?} may be missing: put FillMissing before {}, or make its field required",
                operator_name(operator)
            ));
        }
        let wrong = |needs: &str| {
            error(format!(
                "column {name:?}: {} is for {needs}, and the values are {:?} there",
                operator_name(operator),
                flow.kind
            ))
        };
        match operator {
            Operator::FillMissing(_) | Operator::Hex2Int => unreachable!("handled above"),
            Operator::Modulus(divisor) => {
                if !(1..=MODULUS_MAX).contains(divisor) {
                    return error(format!(
                        "column {name:?}: a modulus is from 1 to 2^31, not {divisor}"
                    ));
                }
                let modulus = Modulus::new(*divisor);
                let slot = match (flow.kind, flow.slot) {
                    (Kind::I32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::ModulusI32 { column, modulus });
                        flow.slot
                    }
                    (Kind::U32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::ModulusU32 { column, modulus });
                        flow.slot
                    }
                    (Kind::I64, Slot::Wide(from)) => {
                        let to = self.new_word();
                        self.kernels.push(Kernel::ModulusI64 { from, to, modulus });
                        Slot::Word(to)
                    }
                    (Kind::U64, Slot::Wide(from)) => {
                        let to = self.new_word();
                        self.kernels.push(Kernel::ModulusU64 { from, to, modulus });
                        Slot::Word(to)
                    }
                    _ => return wrong("whole numbers; give text Hash before it"),
                };
                let below = Some(u64::from(*divisor));
                Ok(Flow { kind: Kind::U32, slot, missing: None, signed: false, below })
            }
            Operator::Hash { seed } => {
                let seed = *seed;
                let to = match (flow.kind, flow.slot) {
                    (Kind::I32, Slot::Word(from)) => {
                        let to = self.new_wide();
                        self.kernels.push(Kernel::HashI32 { from, to, seed });
                        to
                    }
                    (Kind::U32, Slot::Word(from)) => {
                        let to = self.new_wide();
                        self.kernels.push(Kernel::HashU32 { from, to, seed });
                        to
                    }
                    (Kind::I64 | Kind::U64, Slot::Wide(column)) => {
                        self.kernels.push(Kernel::HashWide { column, seed });
                        column
                    }
                    (Kind::Bytes, Slot::Bytes(from)) => {
                        let to = self.new_wide();
                        self.kernels.push(Kernel::HashBytes { from, to, seed });
                        to
                    }
                    _ => return wrong("whole numbers and text"),
                };
                let slot = Slot::Wide(to);
                Ok(Flow { kind: Kind::U64, slot, missing: None, signed: false, below: None })
            }
            Operator::Neg2Zero => {
                match (flow.kind, flow.slot) {
                    (Kind::I32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::ClipI32 { column, low: 0, high: i32::MAX });
                    }
                    (Kind::I64, Slot::Wide(column)) => {
                        self.kernels.push(Kernel::ClipI64 { column, low: 0, high: i64::MAX });
                    }
                    (Kind::F32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::ClipF32 { column, low: 0.0, high: f32::MAX });
                    }
                    (Kind::U32 | Kind::U64, _) => {}
                    _ => return wrong("numbers"),
                }
                Ok(Flow { signed: false, ..flow })
            }
            Operator::Clip { low, high } => self.clip(name, *low, *high, flow),
            Operator::Logarithm => {
                if flow.signed {
                    return error(format!(
                        "column {name:?} may be negative: put Neg2Zero, or Clip from 0 on, before Logarithm"
                    ));
                }
                let slot = match (flow.kind, flow.slot) {
                    (Kind::I32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::LogI32 { column });
                        flow.slot
                    }
                    (Kind::U32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::LogU32 { column });
                        flow.slot
                    }
                    (Kind::F32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::LogF32 { column });
                        flow.slot
                    }
                    (Kind::I64 | Kind::U64, Slot::Wide(from)) => {
                        let to = self.new_word();
                        self.kernels.push(Kernel::LogWide { from, to });
                        Slot::Word(to)
                    }
                    _ => return wrong("numbers"),
                };
                Ok(Flow { kind: Kind::F32, slot, missing: None, signed: false, below: None })
            }
            Operator::Bucketize(boundaries) => {
                let ascends = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
                if boundaries.is_empty() || !ascends || boundaries.iter().any(|b| !b.is_finite()) {
                    return error(format!("column {name:?}: boundaries must be finite and ascend"));
                }
                let boundaries = boundaries.clone();
                let below = Some(boundaries.len() as u64 + 1);
                match (flow.kind, flow.slot) {
                    (Kind::I32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::BucketI32 { column, boundaries });
                    }
                    (Kind::U32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::BucketU32 { column, boundaries });
                    }
                    (Kind::F32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::BucketF32 { column, boundaries });
                    }
                    _ => return wrong("numbers of 32 bits; Float makes them of others"),
                }
                Ok(Flow { kind: Kind::U32, signed: false, below, ..flow })
            }
            Operator::Float => {
                let slot = match (flow.kind, flow.slot) {
                    (Kind::F32, slot) => slot,
                    (Kind::I32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::FloatI32 { column });
                        flow.slot
                    }
                    (Kind::U32, Slot::Word(column)) => {
                        self.kernels.push(Kernel::FloatU32 { column });
                        flow.slot
                    }
                    (Kind::I64, Slot::Wide(from)) => {
                        let to = self.new_word();
                        self.kernels.push(Kernel::FloatI64 { from, to });
                        Slot::Word(to)
                    }
                    (Kind::U64, Slot::Wide(from)) => {
                        let to = self.new_word();
                        self.kernels.push(Kernel::FloatU64 { from, to });
                        Slot::Word(to)
                    }
                    _ => return wrong("numbers"),
                };
                Ok(Flow { kind: Kind::F32, slot, below: None, ..flow })
            }
            Operator::Vocabulary(vocabulary) => self.vocabulary(column, vocabulary, flow),
        }
    }

    fn fill(&mut self, name: &str, value: &Value, flow: Flow) -> Result<Flow> {
        let filled = Flow { missing: None, ..flow };
        let wrong = || {
            error(format!(
                "column {name:?}: FillMissing has {value:?}, and the values are {:?} there",
                flow.kind
            ))
        };
        let Some(missing) = flow.missing else { return Ok(filled) };
        let word = match (flow.kind, value) {
            (Kind::I32, Value::Int(value)) => i32::try_from(*value).ok().map(i32::cast_unsigned),
            (Kind::U32, Value::Int(value)) => u32::try_from(*value).ok(),
            (Kind::U32, Value::Text(text)) => crate::decode::hex32(text.as_bytes()).ok().flatten(),
            (Kind::F32, Value::Int(value)) => Some((*value as f32).to_bits()),
            (Kind::F32, Value::Float(value)) if value.is_finite() => {
                Some((*value as f32).to_bits())
            }
            (Kind::I64, Value::Int(value)) => {
                if let (Slot::Wide(column), true) = (flow.slot, *value != 0) {
                    let value = value.cast_unsigned();
                    self.kernels.push(Kernel::FillWide { column, missing, value });
                }
                return Ok(filled);
            }
            (Kind::Bytes, Value::Text(text)) => {
                if text.len() > FIELD_BYTES_MAX {
                    return error(format!(
                        "column {name:?}: FillMissing has {} bytes, and text {FIELD_BYTES_MAX} at most",
                        text.len()
                    ));
                }
                // Empty fields are read as empty; but where several columns share the slot, another has filled it.
                let shared =
                    matches!(flow.slot, Slot::Bytes(slot) if self.shared_bytes.contains(&slot));
                if let (Slot::Bytes(column), true) = (flow.slot, shared || !text.is_empty()) {
                    let value = text.clone().into_bytes();
                    self.kernels.push(Kernel::FillBytes { column, missing, value });
                }
                return Ok(filled);
            }
            _ => return wrong(),
        };
        let (Some(value), Slot::Word(column)) = (word, flow.slot) else { return wrong() };
        // Empty fields are read as zeros.
        if value != 0 {
            self.kernels.push(Kernel::FillWord { column, missing, value });
        }
        Ok(filled)
    }

    fn clip(&mut self, name: &str, low: f64, high: f64, flow: Flow) -> Result<Flow> {
        if !low.is_finite() || !high.is_finite() || low > high {
            return error(format!(
                "column {name:?}: Clip from {low} to {high} has no values, or an end that is no number"
            ));
        }
        if flow.kind == Kind::U64 {
            return error(format!(
                "column {name:?}: Clip is not for 64-bit hashes: put Modulus before it"
            ));
        }
        let whole = low.fract() == 0.0 && high.fract() == 0.0;
        if flow.kind != Kind::F32 && !whole {
            return error(format!(
                "column {name:?}: Clip from {low} to {high} of whole numbers: whole ends, or Float before it"
            ));
        }
        // Conversions saturate, which is what the ends of a range should do.
        match (flow.kind, flow.slot) {
            (Kind::I32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ClipI32 { column, low: low as i32, high: high as i32 });
            }
            (Kind::U32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ClipU32 { column, low: low as u32, high: high as u32 });
            }
            (Kind::I64, Slot::Wide(column)) => {
                self.kernels.push(Kernel::ClipI64 { column, low: low as i64, high: high as i64 });
            }
            (Kind::F32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ClipF32 { column, low: low as f32, high: high as f32 });
            }
            _ => {
                return error(format!(
                    "column {name:?}: Clip is for numbers, and the values are {:?} there",
                    flow.kind
                ));
            }
        }
        let below = if flow.kind == Kind::U32 && high >= 0.0 {
            Some(u64::from(high as u32) + 1)
        } else {
            None
        };
        Ok(Flow { signed: flow.signed && low < 0.0, below, ..flow })
    }

    fn vocabulary(&mut self, column: &Column, name: &str, flow: Flow) -> Result<Flow> {
        let (kind, has_bank) = (flow.kind, self.has_bank);
        let place = &column.name;
        let space = match (kind, flow.below) {
            (Kind::U32, Some(below)) if below <= u64::from(MODULUS_MAX) => {
                ValueSpace::Below(below as u32)
            }
            (Kind::F32 | Kind::Id, _) => {
                return error(format!(
                    "column {place:?}: Vocabulary is for whole numbers and text, and the values are {kind:?} there"
                ));
            }
            (Kind::Bytes, _) if has_bank => ValueSpace::Strings,
            (Kind::I32 | Kind::U32 | Kind::I64 | Kind::U64, _) if has_bank => ValueSpace::Numbers,
            _ => {
                return error(format!(
                    "column {place:?}: Vocabulary takes values whose range is known: put Modulus (and Hash, for text) \
                     before it, or keep the vocabulary in a bank (Pipeline::with_bank), which takes any values"
                ));
            }
        };
        let known = self.vocabularies.iter().position(|vocabulary| vocabulary.name == name);
        let vocabulary = known.unwrap_or_else(|| {
            let settings = self.spec.vocabularies.iter().find(|of| of.name == name).cloned();
            self.vocabularies.push(VocabularyPlan { name: name.to_owned(), space, settings });
            self.vocabularies.len() - 1
        });
        let shared = &mut self.vocabularies[vocabulary];
        shared.space = match (shared.space, space) {
            (ValueSpace::Below(one), ValueSpace::Below(other)) => ValueSpace::Below(one.max(other)),
            (one, other) if one == other => one,
            _ => {
                return error(format!(
                    "column {place:?} shares vocabulary {name:?} with columns of other values: all of them must have \
                     values of a known range (by Modulus), or numbers, or text"
                ));
            }
        };
        let from = self.values_of_its_own(column, flow.slot);
        let ids = match space {
            ValueSpace::Below(_) => from,
            ValueSpace::Numbers | ValueSpace::Strings => Slot::Wide(self.new_wide()),
        };
        let signed = kind == Kind::I32;
        let id_max = i64::MAX.cast_unsigned();
        let (narrow, shown) = (None, Vec::new());
        self.look_ups.push(LookUp { vocabulary, from, signed, ids, narrow, id_max, shown });
        Ok(Flow { kind: Kind::Id, slot: ids, ..flow })
    }

    /// Values that nobody changes: look-ups come after all kernels. Columns of text that are made of one field have
    /// one slot, and fill it one after the other.
    fn values_of_its_own(&mut self, column: &Column, slot: Slot) -> Slot {
        let Slot::Bytes(from) = slot else { return slot };
        let others = self.spec.columns.iter().filter(|other| other.from == column.from);
        if others.count() == 1 {
            return slot;
        }
        let to = self.columns.2;
        self.columns.2 += 1;
        self.kernels.push(Kernel::CopyBytes { from, to });
        Slot::Bytes(to)
    }

    fn outputs(&mut self) -> Result<Vec<OutputPlan>> {
        let mut outputs = Vec::new();
        for (index, output) in self.spec.outputs.iter().enumerate() {
            let mut flows = Vec::new();
            for (place, name) in output.columns.iter().enumerate() {
                let Some(&flow) = self.flows.get(name.as_str()) else {
                    return error(format!(
                        "output {:?} shows {name:?}, which no column is named",
                        output.name
                    ));
                };
                let refuse = |why: &str| {
                    error(format!(
                        "output {:?} can't show column {name:?} as {:?}: {why}",
                        output.name, output.dtype
                    ))
                };
                if flow.missing.is_some() {
                    return refuse(
                        "it may be missing; give it FillMissing, or make its field required",
                    );
                }
                match (output.dtype, flow.kind) {
                    (_, Kind::Bytes) => {
                        return refuse("it has text; Hash and Modulus make numbers of it");
                    }
                    (Dtype::F32, Kind::Id) => return refuse("ids of a vocabulary are no floats"),
                    (Dtype::F32, Kind::I64 | Kind::U64) => {
                        return refuse("it has 64 bits; give it Float");
                    }
                    (Dtype::I32 | Dtype::I64, Kind::F32) => return refuse("it has floats"),
                    (Dtype::I32, Kind::U32) if flow.below.is_none_or(|below| below > 1 << 31) => {
                        return refuse("its values may be too large; Modulus bounds them");
                    }
                    (Dtype::I64, Kind::U64) => {
                        return refuse("a 64-bit hash may be too large; Modulus bounds it");
                    }
                    (Dtype::I32 | Dtype::Bits32, Kind::I64 | Kind::U64) => {
                        return refuse("it has 64 bits");
                    }
                    _ => {}
                }
                if flow.kind == Kind::Id {
                    let look_up = self.look_up_of(flow.slot);
                    look_up.shown.push((index, place));
                    look_up.id_max = look_up.id_max.min(match output.dtype {
                        Dtype::I32 => u64::from(i32::MAX.cast_unsigned()),
                        Dtype::Bits32 => u64::from(u32::MAX),
                        Dtype::I64 | Dtype::F32 => u64::MAX,
                    });
                }
                flows.push(flow);
            }
            let from = self.output_from(output.dtype, &flows);
            let (name, columns) = (output.name.clone(), output.columns.clone());
            outputs.push(OutputPlan { name, columns, dtype: output.dtype, from });
        }
        Ok(outputs)
    }

    fn look_up_of(&mut self, ids: Slot) -> &mut LookUp {
        let look_up = self.look_ups.iter_mut().find(|look_up| look_up.ids == ids);
        look_up.expect("ids come of a look-up")
    }

    /// Where ids of 64 bits go as words.
    fn narrow_ids(&mut self, ids: Slot) -> usize {
        if let Some(word) = self.look_up_of(ids).narrow {
            return word;
        }
        let word = self.new_word();
        self.look_up_of(ids).narrow = Some(word);
        word
    }

    fn output_from(&mut self, dtype: Dtype, flows: &[Flow]) -> OutputFrom {
        if dtype == Dtype::I64 {
            return OutputFrom::Wides(
                flows.iter().map(|flow| (flow.slot, flow.kind == Kind::I32)).collect(),
            );
        }
        let word = |flow: &Flow| {
            let word = match flow.slot {
                Slot::Word(word) => word,
                Slot::Wide(_) if flow.kind == Kind::Id => return self.narrow_ids(flow.slot),
                Slot::Wide(_) | Slot::Bytes(_) => unreachable!("64 bits are refused above"),
            };
            if dtype != Dtype::F32 || flow.kind == Kind::F32 {
                return word;
            }
            // Another output may show the number itself.
            let to = self.new_word();
            self.kernels.push(Kernel::CopyWord { from: word, to });
            self.kernels.push(match flow.kind {
                Kind::I32 => Kernel::FloatI32 { column: to },
                _ => Kernel::FloatU32 { column: to },
            });
            to
        };
        OutputFrom::Words(flows.iter().map(word).collect())
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

fn operator_name(operator: &Operator) -> &'static str {
    match operator {
        Operator::FillMissing(_) => "FillMissing",
        Operator::Hex2Int => "Hex2Int",
        Operator::Modulus(_) => "Modulus",
        Operator::Hash { .. } => "Hash",
        Operator::Vocabulary(_) => "Vocabulary",
        Operator::Neg2Zero => "Neg2Zero",
        Operator::Logarithm => "Logarithm",
        Operator::Clip { .. } => "Clip",
        Operator::Bucketize(_) => "Bucketize",
        Operator::Float => "Float",
    }
}
