//! A pipeline's columns, checked and laid out: what runs over each block, in order.
//!
//! Types are checked here, once: a plan that comes out runs over any rows without another look.
//! Each column of the pipeline lives in one slot of the blocks and is changed in place; it gets a
//! slot of its own where another column or output needs what it was before.
//!
//! [`planner`] goes through a spec: [`fields`] says how rows are read,
//! [`operators`](crate::operators) what becomes of each column, [`outputs`] which matrices show
//! them. [`plans`] keeps the plans of one pipeline.

mod check;
mod fields;
mod outputs;
mod planner;
mod plans;

use std::sync::Arc;

use crate::decode::{Block, ColumnCounts, FieldKind, FieldLayout, Layout, Slot};
use crate::operators::{Kernel, LookUp, ValueSpace};
use crate::spec::{Dtype, VocabularySpec};

pub(crate) use plans::Plans;

/// A vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VocabularyPlan {
    pub(crate) name: String,
    pub(crate) space: ValueSpace,
    /// What the pipeline says about it, if it does.
    pub(crate) settings: Option<VocabularySpec>,
}

/// A matrix, and where its columns come from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutputPlan {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
    pub(crate) dtype: Dtype,
    pub(crate) from: OutputFrom,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OutputFrom {
    /// 32-bit slots, as they are.
    Words(Vec<usize>),
    /// Slots that are widened to i64.
    Wides(Vec<WidenedSlot>),
}

/// A slot that is shown as i64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WidenedSlot {
    pub(crate) slot: Slot,
    /// Whether the values are signed words, which are widened with their sign.
    pub(crate) signed: bool,
}

/// What runs over each block.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) layout: Arc<Layout>,
    pub(crate) field_names: Vec<String>,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) vocabularies: Vec<VocabularyPlan>,
    pub(crate) look_ups: Vec<LookUp>,
    pub(crate) outputs: Vec<OutputPlan>,
    /// The columns that a block needs.
    pub(crate) columns: ColumnCounts,
}

impl Plan {
    /// Room for its columns.
    pub(crate) fn block(&self) -> Block {
        Block::new(self.columns, self.layout.planes())
    }

    /// The names of the fields that are read, in the pipeline's order.
    pub(crate) fn needed_fields(&self) -> Vec<String> {
        self.fields_that_are_read().map(|(name, _)| name.clone()).collect()
    }

    /// Fields that are read, by name.
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
