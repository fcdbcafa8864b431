//! Fields that become 32-bit numbers, a handful of neighbours at a time.
//!
//! A row's fields are cut into *steps*: up to seven neighbours of one kind, read by one load of 64
//! bytes (seven times eight digits and the separators between them are 62). The kernels convert a
//! step for eight rows and transpose the eight times eight numbers into columns. A row is marked if
//! it is not as the kernel expects: a field of more than eight characters, a character that is not
//! a digit, or a field too near the ends of the text. The reference ([`super::field`]) then reads
//! the fields of that row again, so only one place decides what is an error.

/// Fields of a step at most.
pub(super) const STEP_FIELDS_MAX: usize = 7;
/// Rows that a kernel converts together.
pub(super) const GROUP_ROWS: usize = 8;

/// How the fields of a step are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepKind {
    /// Decimal digits, perhaps with a minus before them: an `i32`.
    Decimal,
    /// Hexadecimal digits: a `u32`.
    Hex,
}

/// Neighbouring fields of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) first_field: usize,
    pub(super) count: usize,
    pub(super) kind: StepKind,
    /// Whether the last of them is the row's last, before whose end there may be a carriage
    /// return.
    pub(super) ends_row: bool,
    /// The column of the first field's values; those of the others follow.
    pub(super) first_column: usize,
    pub(super) separator: u8,
}

impl Step {
    /// A bit for each field.
    pub(super) fn lanes(&self) -> u8 {
        ((1_u32 << self.count) - 1) as u8
    }
}

/// Where the values of some rows of a step go.
pub(super) struct Group<'a> {
    /// Where in `ends` the end before the group's first row stands.
    pub(super) first_end: usize,
    /// Fields of a row.
    pub(super) fields: usize,
    /// All columns of 32-bit values, one behind the other.
    pub(super) columns: &'a mut [u32],
    /// Values from one column to the next.
    pub(super) column_stride: usize,
    /// The group's first row in the columns.
    pub(super) first_row: usize,
    /// For each row of the group, a bit for each field of the step that is empty.
    pub(super) missing: &'a mut [u8; GROUP_ROWS],
}

impl Group<'_> {
    /// The group's part of the column of a step's field.
    #[inline]
    pub(super) fn column(&mut self, step: &Step, lane: usize) -> &mut [u32; GROUP_ROWS] {
        let at = (step.first_column + lane) * self.column_stride + self.first_row;
        let part = &mut self.columns[at..at + GROUP_ROWS];
        part.try_into().expect("it has as many as a group has rows")
    }
}
