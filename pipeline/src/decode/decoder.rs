//! Text to blocks of columns.

use std::sync::Arc;

use super::bad::BadList;
use super::block::{BLOCK_ROWS, Block, COLUMN_STRIDE, ColumnCounts, MissingBit, Slot};
use super::field::{self, BadField, FieldKind};
use super::level::Level;
use super::narrow::{GROUP_ROWS, Group, STEP_FIELDS_MAX, Step, StepKind};
use super::spelling::Spelling;
use super::structure::{Run, Structure};
use crate::spec::TimeUnit;

/// The longest byte string of a field.
pub(crate) const FIELD_BYTES_MAX: usize = 1 << 16;
/// Of a bad field, so many bytes are kept for the report.
pub(crate) const SNIPPET_BYTES: usize = 40;

/// One field of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldLayout {
    pub(crate) kind: FieldKind,
    /// Whether an empty field makes its row a bad one.
    pub(crate) required: bool,
    /// The longest byte string.
    pub(crate) bytes_max: usize,
    pub(crate) spelling: Spelling,
    /// What a time of a file of columns is counted in.
    pub(crate) time_unit: TimeUnit,
}

/// Where the values of a field go, and how to tell whether it was empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) slot: Slot,
    pub(crate) missing: MissingBit,
}

/// How the rows of a text are read.
#[derive(Debug)]
pub(crate) struct Layout {
    fields: Vec<FieldLayout>,
    separator: u8,
    /// Of the fields; none for those that are skipped.
    targets: Vec<Option<Target>>,
    steps: Vec<PlannedStep>,
    /// Fields that are no part of a step, and are read.
    singles: Vec<usize>,
    columns: ColumnCounts,
    planes: usize,
}

#[derive(Debug)]
struct PlannedStep {
    step: Step,
    plane: usize,
    /// A bit for each field that must not be empty.
    required: u8,
}

impl Layout {
    /// Plans for rows of these fields.
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

    /// Spreads neighbours of one kind over as few steps as hold them, evenly.
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
            FieldKind::Bytes => &mut self.columns.bytes,
        };
        let index = *counter;
        *counter += 1;
        let slot = match kind {
            FieldKind::Int64 | FieldKind::Uint64 => Slot::Wide(index),
            FieldKind::Bytes => Slot::Bytes(index),
            _ => Slot::Word(index),
        };
        self.targets[at] =
            Some(Target { slot, missing: MissingBit { plane: self.planes, bit: 0 } });
        self.planes += 1;
        self.singles.push(at);
    }

    /// Where a field's values go; none if it is skipped.
    pub(crate) fn target(&self, field: usize) -> Option<Target> {
        self.targets[field]
    }

    /// How a field is written; none beyond the last.
    pub(crate) fn kind(&self, field: usize) -> Option<FieldKind> {
        self.fields.get(field).map(|field| field.kind)
    }

    /// How a field is read.
    pub(crate) fn field(&self, field: usize) -> &FieldLayout {
        &self.fields[field]
    }

    /// Fields of a row.
    pub(crate) fn fields(&self) -> usize {
        self.fields.len()
    }

    /// The columns that a block needs for the fields.
    pub(crate) fn columns(&self) -> ColumnCounts {
        self.columns
    }

    /// Planes of bits that say which fields were empty.
    pub(crate) fn planes(&self) -> usize {
        self.planes
    }
}

/// How the kernels read it, if they do.
fn narrow(field: &FieldLayout) -> Option<StepKind> {
    match field.kind {
        FieldKind::Int32 | FieldKind::Hex32 if field.spelling.is_first() => None,
        FieldKind::Int32 => Some(StepKind::Decimal),
        FieldKind::Hex32 => Some(StepKind::Hex),
        FieldKind::Uint64
        | FieldKind::Int64
        | FieldKind::Float32
        | FieldKind::Bytes
        | FieldKind::Skip => None,
    }
}

/// A row that can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRow {
    /// Its line in the text, from 0.
    pub(crate) line: usize,
    /// How many lines it spans.
    pub(crate) lines: usize,
    pub(crate) fault: Fault,
}

/// Why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It has another number of fields than the schema.
    Fields { found: usize, expected: usize },
    /// A value of a file of columns is bad.
    #[cfg(feature = "parquet")]
    Value { field: usize, why: BadField, snippet: Vec<u8> },
    /// A field is bad; `column` counts bytes from the line's begin.
    Field { field: usize, column: usize, why: BadField, snippet: Vec<u8> },
}

/// Reads one text after the other, block by block.
#[derive(Debug)]
pub(crate) struct Decoder {
    layout: Arc<Layout>,
    level: Level,
    structure: Structure,
    runs: Vec<Run>,
    /// The next run, and how many of its rows are done.
    at: (usize, usize),
    kept: Vec<bool>,
}

impl Decoder {
    pub(crate) fn new(layout: Arc<Layout>, level: Level) -> Self {
        Self {
            layout,
            level,
            structure: Structure::default(),
            runs: Vec::new(),
            at: (0, 0),
            kept: Vec::new(),
        }
    }

    /// Begins a text of whole lines; the last one may lack its newline. Returns its lines.
    pub(crate) fn begin(&mut self, text: &[u8], bad: &mut BadList) -> usize {
        self.structure.index(text, self.layout.separator, self.level);
        self.begin_indexed(text, bad, |_| 1)
    }

    /// The same for a text whose quoted fields were opened. Bad rows are told by their places among its rows.
    pub(crate) fn begin_unquoted(
        &mut self,
        unquoted: &mut super::Unquoted,
        bad: &mut BadList,
    ) -> usize {
        let rows = unquoted.rows();
        self.structure.replace(&mut unquoted.ends, rows);
        self.begin_indexed(&unquoted.text, bad, |row| unquoted.lines_of(row))
    }

    fn begin_indexed(
        &mut self,
        text: &[u8],
        bad: &mut BadList,
        lines_of: impl Fn(usize) -> usize,
    ) -> usize {
        let (expected, mut misfits) = (self.layout.fields.len(), 0);
        self.structure.runs(text, expected, &mut self.runs, |line, found| {
            misfits += 1;
            let lines = lines_of(line);
            bad.add(BadRow { line, lines, fault: Fault::Fields { found, expected } });
        });
        self.at = (0, 0);
        self.rows() + misfits
    }

    /// Rows of the text that have as many fields as they should.
    pub(crate) fn rows(&self) -> usize {
        self.runs.iter().map(|run| run.rows).sum()
    }

    /// Fills `block` with the next rows of the text that [`begin`](Self::begin) got; false at its end. A block
    /// may come out with fewer rows than there are left, or none, where rows are bad; these go to `bad`, some with
    /// several faults.
    pub(crate) fn next(&mut self, text: &[u8], block: &mut Block, bad: &mut Vec<BadRow>) -> bool {
        block.clear();
        let Some(run) = self.runs.get(self.at.0) else { return false };
        let (run, done) = (run.clone(), self.at.1);
        let rows = (run.rows - done).min(BLOCK_ROWS);
        self.at =
            if done + rows == run.rows { (self.at.0 + 1, 0) } else { (self.at.0, done + rows) };
        block.rows = rows;
        let first_end = run.first + done * self.layout.fields.len();
        let first_line = run.lines_before + done;

        let bad_before = bad.len();
        self.narrow_fields(text, first_end, first_line, block, bad);
        for &field in &self.layout.singles {
            self.single_field(text, first_end, first_line, field, block, bad);
        }
        if bad.len() > bad_before {
            self.drop_bad(first_line, &bad[bad_before..], block);
        }
        true
    }

    /// Takes bad rows out of the block.
    #[cold]
    fn drop_bad(&mut self, first_line: usize, bad: &[BadRow], block: &mut Block) {
        self.kept.clear();
        self.kept.resize(block.rows, true);
        for row in bad {
            self.kept[row.line - first_line] = false;
        }
        block.retain(&self.kept);
    }

    fn narrow_fields(
        &self,
        text: &[u8],
        first_end: usize,
        first_line: usize,
        block: &mut Block,
        bad: &mut Vec<BadRow>,
    ) {
        if self.layout.steps.is_empty() {
            return;
        }
        let fields = self.layout.fields.len();
        let groups = match self.level {
            Level::Portable => 0,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 if block.rows < GROUP_ROWS => 0,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => block.rows.div_ceil(GROUP_ROWS),
        };
        for group in 0..groups {
            // The last group begins early if it must, and does some rows a second time.
            let first_row = (group * GROUP_ROWS).min(block.rows - GROUP_ROWS);
            let done = group * GROUP_ROWS - first_row;
            let mut careful = 0;
            for planned in &self.layout.steps {
                let (words, missing) = block.words_and_missing_mut(planned.plane);
                let missing = &mut missing[first_row..first_row + GROUP_ROWS];
                let mut group = Group {
                    first_end: first_end + first_row * fields,
                    fields,
                    columns: words,
                    column_stride: COLUMN_STRIDE,
                    first_row,
                    missing: missing.try_into().expect("it has as many as a group has rows"),
                };
                careful |= self.convert(text, &planned.step, &mut group);
                if planned.required != 0 {
                    for (row, missing) in group.missing.iter().enumerate() {
                        careful |= u8::from(missing & planned.required != 0) << row;
                    }
                }
            }
            while careful != 0 {
                let row = first_row + careful.trailing_zeros() as usize;
                let known = bad.len();
                self.careful_row(text, first_end, first_line, row, block, bad);
                if row < first_row + done {
                    // A bad row that was done before is on the list.
                    bad.truncate(known);
                }
                careful &= careful - 1;
            }
        }
        let rest = if groups == 0 { 0..block.rows } else { 0..0 };
        for row in rest {
            self.careful_row(text, first_end, first_line, row, block, bad);
        }
    }

    fn convert(&self, text: &[u8], step: &Step, group: &mut Group<'_>) -> u8 {
        let ends = self.structure.ends();
        match self.level {
            Level::Portable => unreachable!("it has no groups"),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a pipeline is made only with a level that the processor has; the group was cut from
            // this text's structure.
            Level::Avx2 => unsafe { super::avx2::convert(text, ends, step, group) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512 => unsafe { super::avx512::convert(text, ends, step, group) },
        }
    }

    /// Reads the 32-bit fields of one row by the reference.
    #[inline(never)]
    fn careful_row(
        &self,
        text: &[u8],
        first_end: usize,
        first_line: usize,
        row: usize,
        block: &mut Block,
        bad: &mut Vec<BadRow>,
    ) {
        let line = first_line + row;
        for planned in &self.layout.steps {
            let step = &planned.step;
            let mut missing = 0;
            for lane in 0..step.count {
                let field = step.first_field + lane;
                let bytes = self.field(text, first_end, row, field);
                let spelling = &self.layout.fields[field].spelling;
                let value = match step.kind {
                    StepKind::Decimal => spelling
                        .read(bytes, field::int32)
                        .map(|value| value.map(i32::cast_unsigned)),
                    StepKind::Hex => spelling.read(bytes, field::hex32),
                };
                let value = match self.required(field, value) {
                    Ok(value) => value,
                    Err(why) => {
                        bad.push(self.bad_field(text, first_end, row, line, field, why));
                        return;
                    }
                };
                missing |= u8::from(value.is_none()) << lane;
                block.words_mut()[(step.first_column + lane) * COLUMN_STRIDE + row] =
                    value.unwrap_or(0);
            }
            block.missing_mut(planned.plane)[row] = missing;
        }
    }

    fn single_field(
        &self,
        text: &[u8],
        first_end: usize,
        first_line: usize,
        field: usize,
        block: &mut Block,
        bad: &mut Vec<BadRow>,
    ) {
        let target = self.layout.targets[field].expect("a field that is read has a target");
        let FieldLayout { kind, bytes_max: limit, ref spelling, .. } = self.layout.fields[field];
        for row in 0..block.rows {
            let bytes = self.field(text, first_end, row, field);
            let missing = match (kind, target.slot) {
                (FieldKind::Bytes, Slot::Bytes(column)) => {
                    let missing =
                        bytes.is_empty() || (spelling.is_first() && spelling.is_missing(bytes));
                    let value = (!missing).then_some(bytes);
                    let value =
                        if bytes.len() > limit { Err(BadField::TooLong(limit)) } else { Ok(value) };
                    self.required(field, value).map(|value| {
                        block.bytes[column].push(value.unwrap_or_default());
                        value.is_none()
                    })
                }
                (_, Slot::Word(column)) => {
                    let value = match kind {
                        FieldKind::Float32 => spelling
                            .read(bytes, field::float32)
                            .map(|value| value.map(f32::to_bits)),
                        FieldKind::Hex32 => spelling.read(bytes, field::hex32),
                        _ => {
                            let value = spelling.read(bytes, field::int32);
                            value.map(|value| value.map(i32::cast_unsigned))
                        }
                    };
                    self.required(field, value).map(|value| {
                        block.words_mut()[column * COLUMN_STRIDE + row] = value.unwrap_or(0);
                        value.is_none()
                    })
                }
                (_, Slot::Wide(column)) => {
                    let value = if kind == FieldKind::Uint64 {
                        spelling.read(bytes, field::uint64)
                    } else {
                        let value = spelling.read(bytes, field::int64);
                        value.map(|value| value.map(i64::cast_unsigned))
                    };
                    self.required(field, value).map(|value| {
                        block.wides_mut()[column * COLUMN_STRIDE + row] = value.unwrap_or(0);
                        value.is_none()
                    })
                }
                (kind, slot) => unreachable!("{kind:?} is not read into {slot:?}"),
            };
            match missing {
                Ok(missing) => block.missing_mut(target.missing.plane)[row] = u8::from(missing),
                Err(why) => {
                    if let Slot::Bytes(column) = target.slot {
                        block.bytes[column].push(b"");
                    }
                    bad.push(self.bad_field(text, first_end, row, first_line + row, field, why));
                }
            }
        }
    }

    fn required<T>(
        &self,
        field: usize,
        value: Result<Option<T>, BadField>,
    ) -> Result<Option<T>, BadField> {
        match value {
            Ok(None) if self.layout.fields[field].required => Err(BadField::Missing),
            value => value,
        }
    }

    /// The bytes of a field, without the carriage return of the line's end.
    #[inline]
    fn field<'a>(&self, text: &'a [u8], first_end: usize, row: usize, field: usize) -> &'a [u8] {
        let fields = self.layout.fields.len();
        let at = first_end + row * fields + field;
        let ends = self.structure.ends();
        let bytes = &text[ends[at].wrapping_add(1) as usize..ends[at + 1] as usize];
        match bytes {
            [rest @ .., b'\r'] if field + 1 == fields => rest,
            bytes => bytes,
        }
    }

    #[cold]
    fn bad_field(
        &self,
        text: &[u8],
        first_end: usize,
        row: usize,
        line: usize,
        field: usize,
        why: BadField,
    ) -> BadRow {
        let ends = self.structure.ends();
        let row_end = first_end + row * self.layout.fields.len();
        let column = ends[row_end + field].wrapping_sub(ends[row_end]) as usize;
        let bytes = self.field(text, first_end, row, field);
        let snippet = bytes[..bytes.len().min(SNIPPET_BYTES)].to_vec();
        BadRow { line, lines: 1, fault: Fault::Field { field, column, why, snippet } }
    }
}
