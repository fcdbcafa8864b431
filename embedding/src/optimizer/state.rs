//! The state of an optimizer beside a row.

/// The shape of the state beside a row's vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateShape {
    /// Vectors of dim values.
    pub(crate) vectors: usize,
    /// Single f32.
    pub(crate) scalars: usize,
    /// True if the row's steps are counted.
    pub(crate) counts_steps: bool,
}

/// A row as an optimizer sees it: the vector, its state, and the number of this step, from 1.
#[derive(Debug)]
pub(crate) struct RowState<'r> {
    /// dim values.
    pub(crate) vector: &'r mut [f32],
    /// [`StateShape::vectors`] * dim values, vector after vector.
    pub(crate) state: &'r mut [f32],
    /// [`StateShape::scalars`] values.
    pub(crate) scalars: &'r mut [f32],
    /// The number of this step of the row, from 1. Unspecified if steps are not counted.
    pub(crate) step: u32,
}
