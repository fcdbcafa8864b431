//! Decodes text into blocks of columns.

use std::sync::Arc;

use super::bad::{BadList, BadRow, Fault, SNIPPET_BYTES};
use super::block::{BLOCK_ROWS, Block, COLUMN_STRIDE, Slot};
use super::field::{self, BadField, FieldKind};
use super::layout::{FieldLayout, Layout};
use super::level::Level;
use super::narrow::{GROUP_ROWS, Group, Step, StepKind};
use super::structure::{Run, Structure};

/// Decodes texts one after the other, block by block.
#[derive(Debug)]
pub(crate) struct Decoder {
    layout: Arc<Layout>,
    level: Level,
    structure: Structure,
    runs: Vec<Run>,
    /// Index in `runs` of the run from which the next block comes. It stays at a run until the
    /// run's last row is decoded.
    next_run: usize,
    /// Number of rows of run `next_run` that are decoded.
    rows_done: usize,
    kept: Vec<bool>,
}

impl Decoder {
    pub(crate) fn new(layout: Arc<Layout>, level: Level) -> Self {
        Self {
            layout,
            level,
            structure: Structure::default(),
            runs: Vec::new(),
            next_run: 0,
            rows_done: 0,
            kept: Vec::new(),
        }
    }

    /// Begins a text of complete lines. The last line may have no newline. Returns the number of
    /// lines.
    pub(crate) fn begin(&mut self, text: &[u8], bad: &mut BadList) -> usize {
        self.structure.index(text, self.layout.separator, self.level);
        self.begin_indexed(text, bad, |_| 1)
    }

    /// As [`begin`](Self::begin), for a text whose quotes were removed. A bad row then has the
    /// row's number in place of its line.
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
        let expected = self.layout.fields.len();
        let mut misfits = 0;
        self.structure.runs(text, expected, &mut self.runs, |line, found| {
            misfits += 1;
            // An empty line is no row. Editors and scripts leave one at a file's end.
            if found > 0 {
                let lines = lines_of(line);
                bad.add(BadRow { line, lines, fault: Fault::Fields { found, expected } });
            }
        });
        self.next_run = 0;
        self.rows_done = 0;
        self.rows() + misfits
    }

    /// Number of rows with the right number of fields.
    pub(crate) fn rows(&self) -> usize {
        self.runs.iter().map(|run| run.rows).sum()
    }

    /// Fills `block` with the next rows of `text`, which must be the text given to
    /// [`begin`](Self::begin). Returns false at the text's end. Bad rows go to `bad`; a row with
    /// several faults may go there several times. Bad rows are removed from the block, which may
    /// then have no row.
    pub(crate) fn next(&mut self, text: &[u8], block: &mut Block, bad: &mut Vec<BadRow>) -> bool {
        block.clear();
        let Some(run) = self.runs.get(self.next_run) else { return false };
        let run = run.clone();
        let done = self.rows_done;
        let rows = (run.rows - done).min(BLOCK_ROWS);
        self.rows_done += rows;
        if self.rows_done == run.rows {
            self.next_run += 1;
            self.rows_done = 0;
        }
        block.rows = rows;
        block.first_line = run.lines_before + done;
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
            // If fewer than `GROUP_ROWS` rows are left, the last group begins earlier, at rows that
            // an earlier group has already decoded. These rows are decoded twice.
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
                    // An earlier group has decoded this row and put its fault on the list.
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
            // SAFETY: `convert` needs the instructions of this level and a group of this text.
            // `RunOptions::check` refuses a level that the processor lacks. The group comes from
            // this text's structure.
            Level::Avx2 => unsafe { super::avx2::convert(text, ends, step, group) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `convert` needs the instructions of this level and a group of this text.
            // `RunOptions::check` refuses a level that the processor lacks. The group comes from
            // this text's structure.
            Level::Avx512 => unsafe { super::avx512::convert(text, ends, step, group) },
        }
    }

    /// Reads the 32-bit fields of one row by the functions in `field`, without vector instructions.
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
                (FieldKind::Bytes | FieldKind::Blob | FieldKind::File, Slot::Bytes(column)) => {
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

    /// Returns the bytes of a field, without a carriage return that belongs to the line's end.
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
