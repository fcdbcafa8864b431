//! The places of a row's sections. The module `layout` describes them.

use crate::dtype::{Dtype, Rounding};
use crate::row::config::TableConfig;
use crate::row::tracking::{TRACKING_BYTES, Tracking};

/// The first byte of each section of a row. A section that the table does not have is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sections {
    /// An f32. The vector ends here.
    pub(crate) scale: usize,
    /// The optimizer's vectors.
    pub(crate) state: usize,
    /// The optimizer's single values.
    pub(crate) scalars: usize,
    /// A u32.
    pub(crate) count: usize,
    /// Two u32; see the module `tracking`. The count ends here.
    pub(crate) tracking: usize,
    pub(crate) end: usize,
}

impl Sections {
    pub(crate) fn of(config: &TableConfig) -> Self {
        let dim = config.dim as usize;
        let shape = config.optimizer.state_shape();
        let mut end = 0;
        let mut section = |bytes: usize| {
            let begin = end;
            end += bytes.next_multiple_of(4);
            begin
        };
        section(config.dtype.bytes_of(dim));
        let scale = section(if config.dtype == Dtype::Int8 { 4 } else { 0 });
        let state = section(config.state_dtype.bytes_of(shape.vectors * dim));
        let scalars = section(shape.scalars * 4);
        let counted = shape.counts_steps || Rounds::of(config).by_chance();
        let count = section(if counted { 4 } else { 0 });
        let tracked = config.tracking != Tracking::None;
        let tracking = section(if tracked { TRACKING_BYTES } else { 0 });
        Self { scale, state, scalars, count, tracking, end }
    }

    /// Bytes of the whole row.
    pub(crate) fn value_bytes(&self) -> usize {
        self.end.next_multiple_of(8)
    }
}

/// What is rounded by chance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) vector: bool,
    /// State below f32 is always rounded stochastically: moments change by less than half a step of
    /// 16 bits, so rounding to the nearest would never change them.
    pub(crate) state: bool,
}

impl Rounds {
    pub(crate) fn of(config: &TableConfig) -> Self {
        let has_vectors = config.optimizer.state_shape().vectors > 0;
        Self {
            vector: config.dtype != Dtype::F32 && config.rounds() == Rounding::Stochastic,
            state: config.state_dtype != Dtype::F32 && has_vectors,
        }
    }

    pub(crate) fn by_chance(self) -> bool {
        self.vector || self.state
    }
}

impl TableConfig {
    /// Bytes of a row in the store, without the record's header: the vector, the optimizer's state,
    /// and zeros up to a multiple of 8.
    #[must_use]
    pub fn value_bytes(&self) -> u32 {
        // At most DIM_MAX * 4 * 3 and a few words.
        Sections::of(self).value_bytes() as u32
    }
}
