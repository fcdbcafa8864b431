//! What comes out: matrices of columns.

use serde::{Deserialize, Serialize};

/// What the values of an output are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Dtype {
    /// f32. Whole numbers are converted.
    F32,
    /// i32. Numbers that may not fit are refused when the pipeline is made.
    I32,
    /// i64, as PyTorch takes ids.
    I64,
    /// The 32 bits of each value, whatever its type: PIPER's packed rows.
    Bits32,
}

/// A matrix of rows by columns: PIPER's Concatenate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// By which consumers refer to it.
    pub name: String,
    /// The columns' names, from left to right.
    pub columns: Vec<String>,
    /// What its values are.
    pub dtype: Dtype,
}

impl Output {
    /// A matrix of these columns.
    pub fn new<C: Into<String>>(
        name: impl Into<String>,
        dtype: Dtype,
        columns: impl IntoIterator<Item = C>,
    ) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { name: name.into(), columns, dtype }
    }
}
