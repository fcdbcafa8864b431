//! How values are stored.

/// How a table's values are stored. Rows go in and out as f32, whatever they are stored as. Default:
/// [`Dtype::F32`].
///
/// # Examples
/// ```
/// use embank::{Dtype, TableConfig};
///
/// assert_eq!(TableConfig::new(8).dtype, Dtype::F32);
/// assert_eq!((Dtype::F32.bytes(), Dtype::F32.name()), (4, "float32"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 single precision.
    #[default]
    F32,
}

impl Dtype {
    /// Bytes of a value.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
        }
    }

    /// Its name in NumPy and PyTorch.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
        }
    }
}
