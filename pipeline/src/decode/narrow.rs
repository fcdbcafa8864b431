//! Plans the conversion of neighbouring fields to 32-bit numbers, several at a time.
//!
//! The fields of a row are divided into *steps*: up to seven neighbours of one kind. They fit in
//! one load of 64 bytes, because seven times eight digits and six separators are 62 bytes. The
//! kernels convert a step for eight rows, and transpose the resulting numbers into columns. A
//! kernel marks a row that it can't convert: a field of more than eight bytes, a byte that is no
//! digit, or a field too near the beginning of the text. The reference ([`super::field`]) reads
//! that row again, so only one place decides what is an error.

/// Largest number of fields of a step. With their separators they fit in 64 bytes.
pub(super) const STEP_FIELDS_MAX: usize = 7;
/// Rows that a kernel converts together: one for each 32-bit lane of an AVX2 vector.
pub(super) const GROUP_ROWS: usize = 8;

/// Form of the fields of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepKind {
    /// Decimal digits, with an optional minus: an `i32`.
    Decimal,
    /// Hexadecimal digits: a `u32`.
    Hex,
}

/// Neighbouring fields of one kind that a kernel converts together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) first_field: usize,
    pub(super) count: usize,
    pub(super) kind: StepKind,
    /// True if the step's last field ends the row. A carriage return may then follow it.
    pub(super) ends_row: bool,
    /// The column of the first field. The columns of the other fields follow.
    pub(super) first_column: usize,
    pub(super) separator: u8,
}

impl Step {
    /// Returns a mask with a bit for each field.
    pub(super) fn lanes(&self) -> u8 {
        ((1_u32 << self.count) - 1) as u8
    }
}

/// Some rows of a step, and the place of their values.
pub(super) struct Group<'a> {
    /// Index in `Structure::ends` of the field end before the group's first row.
    pub(super) first_end: usize,
    /// Number of fields in a row.
    pub(super) fields: usize,
    /// All 32-bit columns, one after the other.
    pub(super) columns: &'a mut [u32],
    /// Values from the start of one column to the next.
    pub(super) column_stride: usize,
    /// Number of the group's first row in the columns.
    pub(super) first_row: usize,
    /// For each row of the group, a mask of the step's fields that are empty.
    pub(super) missing: &'a mut [u8; GROUP_ROWS],
}

impl Group<'_> {
    /// Returns the group's values in the column of field `lane` of the step.
    #[inline]
    pub(super) fn column(&mut self, step: &Step, lane: usize) -> &mut [u32; GROUP_ROWS] {
        let at = (step.first_column + lane) * self.column_stride + self.first_row;
        let part = &mut self.columns[at..at + GROUP_ROWS];
        part.try_into().expect("it has as many as a group has rows")
    }
}
