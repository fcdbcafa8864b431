//! Decides which kernel reads which fields of a row, and where their values go.

use super::block::{ColumnCounts, MissingBit, Slot};
use super::field::FieldKind;
use super::narrow::{STEP_FIELDS_MAX, Step, StepKind};
use super::spelling::Spelling;
use crate::spec::TimeUnit;

/// Largest number of bytes of a byte string in a field.
pub(crate) const FIELD_BYTES_MAX: usize = 1 << 16;

/// Largest number of blobs of a column in a block.
#[cfg(feature = "parquet")]
const BLOBS_OF_BLOCK: usize = 32;
#[cfg(feature = "parquet")]
const _: () = assert!(BLOBS_OF_BLOCK * crate::arrays::VALUE_BYTES_MAX < u32::MAX as usize);

/// How one field is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldLayout {
    pub(crate) kind: FieldKind,
    /// True if an empty field makes its row bad.
    pub(crate) required: bool,
    /// Largest number of bytes of a byte string.
    pub(crate) bytes_max: usize,
    pub(crate) spelling: Spelling,
    /// Unit for times of Parquet and Arrow files.
    pub(crate) time_unit: TimeUnit,
}

/// The column that receives a field's values, and the bit that marks the missing ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) slot: Slot,
    pub(crate) missing: MissingBit,
}

/// How the rows of a text are read.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(super) fields: Vec<FieldLayout>,
    pub(super) separator: u8,
    /// The target of each field. `None` for a skipped field.
    pub(super) targets: Vec<Option<Target>>,
    pub(super) steps: Vec<PlannedStep>,
    /// Fields that are read one at a time, not in a step.
    pub(super) singles: Vec<usize>,
    columns: ColumnCounts,
    planes: usize,
}

#[derive(Debug)]
pub(super) struct PlannedStep {
    pub(super) step: Step,
    pub(super) plane: usize,
    /// A bit for each required field of the step.
    pub(super) required: u8,
}

impl Layout {
    /// Plans how rows of these fields are read.
    pub(crate) fn new(fields: Vec<FieldLayout>, separator: u8) -> Self {
        let mut layout = Self {
            targets: vec![None; fields.len()],
            fields,
            separator,
            steps: Vec::new(),
            singles: Vec::new(),
            columns: ColumnCounts::default(),
            planes: 0,
        };
        let mut at = 0;
        while at < layout.fields.len() {
            let kind = layout.fields[at].kind;
            if let Some(step_kind) = narrow(&layout.fields[at]) {
                let is_alike = |field: &&FieldLayout| narrow(field) == Some(step_kind);
                let alike = layout.fields[at..].iter().take_while(is_alike);
                at += layout.plan_steps(at, alike.count(), step_kind);
            } else {
                layout.plan_single(at, kind);
                at += 1;
            }
        }
        layout
    }

    /// Plans the steps that read `count` neighbouring fields of one kind, from field `first` on.
    /// There are as few steps as possible, and their numbers of fields differ by at most one.
    /// Returns `count`.
    fn plan_steps(&mut self, first: usize, count: usize, kind: StepKind) -> usize {
        let steps = count.div_ceil(STEP_FIELDS_MAX);
        let mut at = first;
        for left in (1..=steps).rev() {
            let count = (first + count - at).div_ceil(left);
            let plane = self.planes;
            self.planes += 1;
            let mut required = 0;
            for lane in 0..count {
                required |= u8::from(self.fields[at + lane].required) << lane;
                let slot = Slot::Word(self.columns.words + lane);
                self.targets[at + lane] =
                    Some(Target { slot, missing: MissingBit { plane, bit: lane as u8 } });
            }
            let step = Step {
                first_field: at,
                count,
                kind,
                ends_row: at + count == self.fields.len(),
                first_column: self.columns.words,
                separator: self.separator,
            };
            self.steps.push(PlannedStep { step, plane, required });
            self.columns.words += count;
            at += count;
        }
        count
    }

    fn plan_single(&mut self, at: usize, kind: FieldKind) {
        let counter = match kind {
            FieldKind::Skip => return,
            FieldKind::Int32 | FieldKind::Hex32 | FieldKind::Float32 => &mut self.columns.words,
            FieldKind::Int64 | FieldKind::Uint64 => &mut self.columns.wides,
            FieldKind::Bytes | FieldKind::Blob | FieldKind::File => &mut self.columns.bytes,
        };
        let index = *counter;
        *counter += 1;
        let slot = match kind {
            FieldKind::Int64 | FieldKind::Uint64 => Slot::Wide(index),
            FieldKind::Bytes | FieldKind::Blob | FieldKind::File => Slot::Bytes(index),
            _ => Slot::Word(index),
        };
        self.targets[at] =
            Some(Target { slot, missing: MissingBit { plane: self.planes, bit: 0 } });
        self.planes += 1;
        self.singles.push(at);
    }

    /// Largest number of rows of a block of columns. The bytes of a block's strings are counted by
    /// 32 bits.
    #[cfg(feature = "parquet")]
    pub(crate) fn block_rows(&self) -> usize {
        let has_blobs = self.fields.iter().any(|field| field.kind == FieldKind::Blob);
        if has_blobs { BLOBS_OF_BLOCK } else { super::block::BLOCK_ROWS }
    }

    /// The target of a field. `None` if the field is skipped.
    pub(crate) fn target(&self, field: usize) -> Option<Target> {
        self.targets[field]
    }

    /// The kind of a field. `None` if there is no such field.
    pub(crate) fn kind(&self, field: usize) -> Option<FieldKind> {
        self.fields.get(field).map(|field| field.kind)
    }

    /// How a field is read.
    pub(crate) fn field(&self, field: usize) -> &FieldLayout {
        &self.fields[field]
    }

    /// Number of fields in a row.
    pub(crate) fn fields(&self) -> usize {
        self.fields.len()
    }

    /// Number of columns that a block needs for the fields.
    pub(crate) fn columns(&self) -> ColumnCounts {
        self.columns
    }

    /// Number of planes of missing bits.
    pub(crate) fn planes(&self) -> usize {
        self.planes
    }
}

/// The kind of step that reads the field. `None` if no kernel can read it.
fn narrow(field: &FieldLayout) -> Option<StepKind> {
    match field.kind {
        FieldKind::Int32 | FieldKind::Hex32 if field.spelling.is_first() => None,
        FieldKind::Int32 => Some(StepKind::Decimal),
        FieldKind::Hex32 => Some(StepKind::Hex),
        FieldKind::Uint64
        | FieldKind::Int64
        | FieldKind::Float32
        | FieldKind::Bytes
        | FieldKind::Blob
        | FieldKind::File
        | FieldKind::Skip => None,
    }
}
