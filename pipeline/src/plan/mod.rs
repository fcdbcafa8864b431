//! Checks the columns of a pipeline and lays them out: the operations on each block, in order.
//!
//! Types are checked here and nowhere else. A finished plan runs on any rows without further
//! checks. Each column lives in one slot of the block and is changed in place. If another column or
//! output still needs the values before a change, that column gets a copy.
//!
//! [`planner`] goes through a spec. [`fields`] decides how rows are read,
//! [`operators`](crate::operators) plan the operations on each column, and [`outputs`] lays the
//! matrices out. [`plans`] keeps the plans of one pipeline.

mod check;
mod fields;
mod outputs;
mod planner;
mod plans;

use std::sync::Arc;

use crate::arrays::ArrayPlan;
use crate::decode::{Block, ColumnCounts, FieldKind, FieldLayout, Layout, Slot};
use crate::operators::{Kernel, LookUp, ValueSpace};
use crate::spec::{Dtype, VocabularySpec};

#[cfg(feature = "parquet")]
pub(crate) use plans::alike;
pub(crate) use plans::{Plans, TextLimits};

/// A vocabulary that the pipeline uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VocabularyPlan {
    pub(crate) name: String,
    pub(crate) space: ValueSpace,
    /// The spec's settings of the vocabulary, if it has some.
    pub(crate) settings: Option<VocabularySpec>,
}

impl VocabularyPlan {
    /// True if all values are below a number that the plan knows.
    pub(crate) fn is_of_known_range(&self) -> bool {
        matches!(self.space, ValueSpace::Below(_))
    }
}

/// A matrix and the slots of its columns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutputPlan {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
    pub(crate) dtype: Dtype,
    /// Shape of a row.
    pub(crate) shape: Vec<usize>,
    pub(crate) from: OutputFrom,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OutputFrom {
    /// 32-bit slots, which are copied unchanged.
    Words(Vec<usize>),
    /// Slots that are widened to i64.
    Wides(Vec<WidenedSlot>),
    /// Arrays of this index, which are in the batch before the block is written out.
    Array(usize),
}

/// A slot that a matrix shows as i64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WidenedSlot {
    pub(crate) slot: Slot,
    /// True if the values are signed 32-bit numbers. They are then widened to 64 bits with their
    /// sign.
    pub(crate) signed: bool,
}

/// The operations on each block.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) layout: Arc<Layout>,
    pub(crate) field_names: Vec<String>,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) vocabularies: Vec<VocabularyPlan>,
    pub(crate) look_ups: Vec<LookUp>,
    pub(crate) arrays: Vec<ArrayPlan>,
    pub(crate) outputs: Vec<OutputPlan>,
    /// Number of columns in a block.
    pub(crate) columns: ColumnCounts,
}

impl Plan {
    /// Makes a block with space for the plan's columns.
    pub(crate) fn block(&self) -> Block {
        Block::new(self.columns, self.layout.planes())
    }

    /// Names of the fields that are read, in the pipeline's order.
    pub(crate) fn needed_fields(&self) -> Vec<String> {
        self.fields_that_are_read().map(|(name, _)| name.clone()).collect()
    }

    /// Names and layouts of the fields that are read.
    #[cfg(feature = "parquet")]
    pub(crate) fn read_fields(&self) -> Vec<(String, FieldLayout)> {
        self.fields_that_are_read().map(|(name, field)| (name.clone(), field.clone())).collect()
    }

    fn fields_that_are_read(&self) -> impl Iterator<Item = (&String, &FieldLayout)> {
        let all = self.field_names.iter().enumerate();
        let all = all.map(|(field, name)| (name, self.layout.field(field)));
        all.filter(|(_, field)| field.kind != FieldKind::Skip)
    }
}
