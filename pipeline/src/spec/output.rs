//! Outputs: matrices of columns.

use serde::{Deserialize, Serialize};

/// Type of an output's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Dtype {
    /// f32. Integers are converted.
    F32,
    /// i32. If the values of a column may not fit in an i32, making the pipeline fails.
    I32,
    /// i64, the type of ids in PyTorch.
    I64,
    /// The 32 bits of each value, unchanged, as in PIPER's packed rows.
    Bits32,
    /// u8, for arrays. The output has one column, which
    /// [`Operator::Image`](crate::Operator::Image) or
    /// [`Operator::Decode`](crate::Operator::Decode) makes.
    U8,
}

impl Dtype {
    /// Bytes of a value.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 | Self::I32 | Self::Bits32 => 4,
            Self::I64 => 8,
        }
    }
}

/// A matrix of rows by columns, as PIPER's Concatenate makes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The name by which consumers refer to the output.
    pub name: String,
    /// The columns' names, from left to right.
    pub columns: Vec<String>,
    /// Type of the values.
    pub dtype: Dtype,
}

impl Output {
    /// Makes a matrix of these columns.
    pub fn new<C: Into<String>>(
        name: impl Into<String>,
        dtype: Dtype,
        columns: impl IntoIterator<Item = C>,
    ) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { name: name.into(), columns, dtype }
    }
}
