//! The offsets of a row's sections. The module `layout` describes the sections.

use crate::dtype::{Dtype, Rounding};
use crate::row::config::TableConfig;
use crate::row::tracking::{TRACKING_BYTES, Tracking};

/// Offset of each section's first byte in a row. A section that the table lacks is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sections {
    /// End of the vector, and begin of an int8 row's scale, an f32.
    pub(crate) scale: usize,
    /// Begin of the optimizer's state vectors.
    pub(crate) state: usize,
    /// Begin of the optimizer's single values.
    pub(crate) scalars: usize,
    /// Begin of the count of updates, a u32.
    pub(crate) count: usize,
    /// End of the count, and begin of the two u32 that record uses; see the module `tracking`.
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

    /// Number of bytes in the whole row, with padding.
    pub(crate) fn value_bytes(&self) -> usize {
        self.end.next_multiple_of(8)
    }
}

/// The parts of a row that are rounded stochastically.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) vector: bool,
    /// True if the state vectors are f16 or bf16. An update changes a moment by less than half a
    /// 16-bit step, so rounding to nearest would never change the moment.
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
    /// Number of bytes in a row's stored value: the vector, the optimizer's state, and zeros up to
    /// a multiple of 8. The header of the record is not included.
    #[must_use]
    pub fn value_bytes(&self) -> u32 {
        // The value is at most DIM_MAX * 4 * 3 plus a few words, which fits a u32.
        Sections::of(self).value_bytes() as u32
    }
}
