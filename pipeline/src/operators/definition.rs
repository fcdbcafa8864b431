//! The trait that every operator implements, and the description of its column.

use std::fmt;

use super::program::Program;
use crate::decode::{MissingBit, Slot};
use crate::error::{Result, refused};

/// The type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    I32,
    U32,
    I64,
    U64,
    F32,
    Bytes,
    /// Bytes that a costly column decodes.
    Blob,
    /// Paths of files with such bytes.
    File,
    /// Arrays, which a costly column has made.
    Array,
    /// Ids of a vocabulary. They have 32 bits if the range of the vocabulary's values is known,
    /// otherwise 64.
    Id,
}

/// The type in words that follow "the values are".
impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::I32 => "whole numbers of 32 bits",
            Self::U32 => "unsigned numbers of 32 bits",
            Self::I64 => "whole numbers of 64 bits",
            Self::U64 => "unsigned numbers of 64 bits",
            Self::F32 => "floats",
            Self::Bytes => "text",
            Self::Blob => "blobs",
            Self::File => "paths of files",
            Self::Array => "arrays",
            Self::Id => "ids of a vocabulary",
        })
    }
}

/// State of a column between two of its operators.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) kind: Kind,
    /// The index of the column's field. 0 for a column that is made of others.
    pub(crate) field: usize,
    pub(crate) slot: Slot,
    /// The bit of the block that marks missing rows. `None` if no row can be missing.
    pub(crate) missing: Option<MissingBit>,
    /// True if values can be negative.
    pub(crate) signed: bool,
    /// All values are below this number. `None` if no such number is known.
    pub(crate) below: Option<u64>,
}

impl Flow {
    /// Makes a column of type `kind` in `slot`. No value is missing or negative, and no limit is
    /// known.
    pub(crate) fn new(kind: Kind, slot: Slot) -> Self {
        Self { kind, field: 0, slot, missing: None, signed: false, below: None }
    }
}

/// Position of an operator in its column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The column's name.
    pub(crate) column: &'a str,
    /// True if no operator except `FillMissing` comes before this one.
    pub(crate) is_first: bool,
    /// True if the operator is the column's only one.
    pub(crate) is_alone: bool,
    /// The state of the column after the operators before this one.
    pub(crate) flow: Flow,
}

impl Place<'_> {
    /// Makes the error of an operator that does not accept the column's type.
    pub(super) fn wrong_kind(&self, operator: &str, needs: &str) -> Result<Flow> {
        refused(format!(
            "column {:?}: {operator} is for {needs}, and the values are {} there",
            self.column, self.flow.kind
        ))
    }
}

/// Name, rules and loops of one operator. [`Operator::definition`](super::Operator::definition)
/// finds it.
pub(crate) trait Definition {
    /// The operator's name in errors.
    fn name(&self) -> &'static str;

    /// True if the operator accepts a column with missing values. Default: false.
    fn takes_missing(&self) -> bool {
        false
    }

    /// Checks that the operator can be used at `place`, and adds its kernels to the program.
    /// Returns the state of the column after the operator.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec); the message names the column and says what to change.
    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow>;
}
