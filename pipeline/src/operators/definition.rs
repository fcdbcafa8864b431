//! What every operator says of itself, and the column that it says it about.

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
    /// Numbers of a vocabulary: in 32 bits where the range of its values is known, else in 64.
    Id,
}

/// A column between two of its operators.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) kind: Kind,
    pub(crate) slot: Slot,
    /// Where the block says which rows are empty; `None` if no row can be.
    pub(crate) missing: Option<MissingBit>,
    /// Whether values can be below zero.
    pub(crate) signed: bool,
    /// All values are below it; `None` if that is not known.
    pub(crate) below: Option<u64>,
}

impl Flow {
    /// Values of this type in this slot: none missing, none negative, of unknown range.
    pub(crate) fn new(kind: Kind, slot: Slot) -> Self {
        Self { kind, slot, missing: None, signed: false, below: None }
    }
}

/// Where an operator stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The name of its column.
    pub(crate) column: &'a str,
    /// Whether no operator but `FillMissing` stands before it.
    pub(crate) is_first: bool,
    /// The column as the operators before it leave it.
    pub(crate) flow: Flow,
}

impl Place<'_> {
    /// The error of an operator that gets values of a type that it does not take.
    pub(super) fn wrong_kind(&self, operator: &str, needs: &str) -> Result<Flow> {
        refused(format!(
            "column {:?}: {operator} is for {needs}, and the values are {:?} there",
            self.column, self.flow.kind
        ))
    }
}

/// All that is said of one operator. [`Operator::definition`](super::Operator::definition) finds
/// it.
pub(crate) trait Definition {
    /// Its name in errors.
    fn name(&self) -> &'static str;

    /// Whether it takes a column of which values may be missing. Default: no.
    fn takes_missing(&self) -> bool {
        false
    }

    /// Checks that the operator can stand at `place`, and adds its kernels to the program. Returns
    /// the column as the operator leaves it.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec), which names the column and the cure.
    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow>;
}
