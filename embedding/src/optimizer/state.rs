//! The state that an optimizer stores with a row.

/// The shape of the state that is stored with a row's vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateShape {
    /// Number of vectors of dim values.
    pub(crate) vectors: usize,
    /// Number of single f32. They are sums or means of squares.
    pub(crate) scalars: usize,
    /// Index of the state vector that has sums or means of squares. `None` if no vector has.
    pub(crate) squares: Option<usize>,
    /// True if the row counts its steps.
    pub(crate) counts_steps: bool,
}

/// The parts of a row that an optimizer step reads and changes.
#[derive(Debug)]
pub(crate) struct RowState<'r> {
    /// The row's vector, dim values.
    pub(crate) vector: &'r mut [f32],
    /// The state vectors, one after another: [`StateShape::vectors`] * dim values.
    pub(crate) state: &'r mut [f32],
    /// The single state values, [`StateShape::scalars`] of them.
    pub(crate) scalars: &'r mut [f32],
    /// Number of this step of the row, from 1. Unspecified if the row does not count steps.
    pub(crate) step: u32,
}
