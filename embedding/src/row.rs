//! How a row lies in the store's bytes.
//!
//! ```text
//! vector | optimizer state: vectors, single values | count of steps | time of last use, uses | zeros up to 8 bytes
//! ```
//!
//! Each section begins at a multiple of 4 bytes, in this order, where a table has it. docs/format.md says the
//! same to whoever reads a bank without this code.

use std::sync::Arc;

use crate::config::TableConfig;
use crate::initializer::RowSource;
use crate::optimizer::{RowState, StateShape, Stepper};
use crate::tracking::{TRACKING_BYTES, Tracker, Tracking, Uses};

// Rows are viewed as f32 where they lie, and their format is little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "big-endian machines need a byte swap here");

/// Where the sections of a row begin, in bytes. A section that a table has not is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sections {
    /// The optimizer's vectors; they end where `scalars` begin.
    pub(crate) state: usize,
    scalars: usize,
    /// A u32.
    pub(crate) steps: usize,
    /// Two u32; see the module `tracking`. The count of steps ends where they begin.
    tracking: usize,
    end: usize,
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
        section(dim * config.dtype.bytes());
        let state = section(shape.vectors * dim * 4);
        let scalars = section(shape.scalars * 4);
        let steps = section(if shape.counts_steps { 4 } else { 0 });
        let tracked = config.tracking != Tracking::None;
        let tracking = section(if tracked { TRACKING_BYTES } else { 0 });
        Self { state, scalars, steps, tracking, end }
    }

    /// Bytes of the whole row.
    pub(crate) fn value_bytes(&self) -> usize {
        self.end.next_multiple_of(8)
    }
}

/// The parts of a table's rows, and what fills new ones.
#[derive(Debug, Clone)]
pub(crate) struct RowLayout {
    pub(crate) dim: usize,
    sections: Sections,
    shape: StateShape,
    initial_accumulator: f32,
    source: RowSource,
    /// The table's time, if its rows are to tell when they were used.
    tracker: Option<Arc<Tracker>>,
    /// What this processor can do.
    arch: pulp::Arch,
}

impl RowLayout {
    pub(crate) fn new(table: &str, config: &TableConfig) -> Self {
        Self {
            dim: config.dim as usize,
            sections: Sections::of(config),
            shape: config.optimizer.state_shape(),
            initial_accumulator: config.optimizer.initial_accumulator(),
            source: RowSource::new(table, config),
            tracker: Tracker::new(config.tracking).map(Arc::new),
            arch: pulp::Arch::new(),
        }
    }

    /// Columns of a row's state in a file: its values, and the count of steps where there is one.
    pub(crate) fn state_values(&self) -> usize {
        let Sections { state, steps, .. } = self.sections;
        (steps - state) / 4 + usize::from(self.shape.counts_steps)
    }

    /// Writes the vector as a file holds it: 4 * dim bytes.
    pub(crate) fn export_vector(&self, value: &[u8], to: &mut [u8]) {
        to.copy_from_slice(&value[..4 * self.dim]);
    }

    /// Writes the state as a file holds it: 4 * [`state_values`](Self::state_values) bytes of f32. A count of
    /// steps is a float there, exact up to 2^24.
    pub(crate) fn export_state(&self, value: &[u8], to: &mut [u8]) {
        let Sections { state, steps, tracking, .. } = self.sections;
        let (values, count) = to.split_at_mut(steps - state);
        values.copy_from_slice(&value[state..steps]);
        if self.shape.counts_steps {
            let steps: &[u32] = bytemuck::cast_slice(&value[steps..tracking]);
            count.copy_from_slice(&(steps[0] as f32).to_le_bytes());
        }
    }

    /// Fills the state from a file's columns.
    pub(crate) fn import_state(&self, value: &mut [u8], from: &[f32]) {
        let Sections { state, steps, tracking, .. } = self.sections;
        let (values, count) = from.split_at((steps - state) / 4);
        value[state..steps].copy_from_slice(bytemuck::cast_slice(values));
        if let [count] = count {
            value[steps..tracking].copy_from_slice(&(*count as u32).to_le_bytes());
        }
    }

    /// Whether rows hold more than their vector.
    pub(crate) fn has_state(&self) -> bool {
        self.sections.end > self.sections.state
    }

    /// The row's vector.
    #[inline]
    pub(crate) fn vector<'v>(&self, value: &'v [u8]) -> &'v [f32] {
        bytemuck::cast_slice(&value[..4 * self.dim])
    }

    /// The row's vector, to write to.
    #[inline]
    pub(crate) fn vector_mut<'v>(&self, value: &'v mut [u8]) -> &'v mut [f32] {
        bytemuck::cast_slice_mut(&mut value[..4 * self.dim])
    }

    /// Fills a vector with `key`'s initial values.
    pub(crate) fn fill_initial(&self, key: u64, vector: &mut [f32]) {
        self.source.fill(key, vector);
    }

    /// Fills everything but the vector as a new row has it.
    #[inline]
    pub(crate) fn fill_rest(&self, value: &mut [u8]) {
        let Sections { state, steps, .. } = self.sections;
        value[state..].fill(0);
        if self.initial_accumulator != 0.0 {
            // The accumulator is the first state vector, or the scalar of an optimizer that has no vector.
            let state: &mut [f32] = bytemuck::cast_slice_mut(&mut value[state..steps]);
            let accumulators = state.len().min(self.dim);
            state[..accumulators].fill(self.initial_accumulator);
        }
        if let Some(tracker) = &self.tracker {
            tracker.begin(&mut value[self.sections.tracking..][..TRACKING_BYTES]);
        }
    }

    /// The table's time, where rows tell when they were used.
    pub(crate) fn tracker(&self) -> Option<&Tracker> {
        self.tracker.as_deref()
    }

    /// Marks that a row is used, where rows tell that.
    #[inline]
    pub(crate) fn note_use(&self, value: &mut [u8]) {
        if let Some(tracker) = &self.tracker {
            tracker.note(&mut value[self.sections.tracking..][..TRACKING_BYTES]);
        }
    }

    /// When and how often a row was used, where rows tell that.
    pub(crate) fn uses(&self, value: &[u8]) -> Option<Uses> {
        let words = || &value[self.sections.tracking..][..TRACKING_BYTES];
        self.tracker.is_some().then(|| Uses::of(words()))
    }

    /// The square of the vector's L2 norm.
    pub(crate) fn squared_norm(&self, value: &[u8]) -> f64 {
        self.vector(value).iter().map(|&value| f64::from(value).powi(2)).sum()
    }

    /// Takes one step with a gradient, dim values.
    #[inline]
    pub(crate) fn step(&self, stepper: &Stepper, value: &mut [u8], gradient: &[f32]) {
        let Sections { state, scalars, steps, tracking, .. } = self.sections;
        let step = if self.shape.counts_steps {
            let count: &mut [u32] = bytemuck::cast_slice_mut(&mut value[steps..tracking]);
            // A row is not stepped four billion times; if it is, it goes on at the last correction.
            count[0] = count[0].saturating_add(1);
            count[0]
        } else {
            0
        };
        let floats: &mut [f32] = bytemuck::cast_slice_mut(&mut value[..steps]);
        let (vector, rest) = floats.split_at_mut(state / 4);
        let (state, scalars) = rest.split_at_mut((scalars - state) / 4);
        stepper.take(self.arch, RowState { vector, state, scalars, step }, gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::initializer::Initializer;
    use crate::optimizer::{Adagrad, Optimizer, RowWiseAdagrad};

    #[test]
    fn a_new_row_has_vector_state_and_zero_padding() {
        let adagrad = Adagrad { initial_accumulator: 0.5, ..Adagrad::new(0.1) };
        let row_wise = RowWiseAdagrad { initial_accumulator: 0.5, ..RowWiseAdagrad::new(0.1) };
        let odd = TableConfig::new(3).initializer(Initializer::Constant(2.0));
        for (optimizer, expected) in [
            (Optimizer::Adagrad(adagrad), &[2.0, 2.0, 2.0, 0.5, 0.5, 0.5][..]),
            (Optimizer::RowWiseAdagrad(row_wise), &[2.0, 2.0, 2.0, 0.5]),
            (Optimizer::adam(0.1), &[2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
            (Optimizer::None, &[2.0, 2.0, 2.0, 0.0]),
        ] {
            let config = odd.clone().optimizer(optimizer);
            let layout = RowLayout::new("t", &config);
            let mut words = vec![u64::MAX; config.value_bytes() as usize / 8];
            let value: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            layout.fill_initial(1, layout.vector_mut(value));
            layout.fill_rest(value);
            assert_eq!(bytemuck::cast_slice::<u8, f32>(value), expected, "{optimizer:?}");
        }
    }

    #[test]
    fn steps_are_counted_in_the_row_and_stop_at_the_end() {
        let config = TableConfig::new(2).optimizer(Optimizer::adam(0.0));
        let (layout, stepper) = (RowLayout::new("t", &config), Stepper::new(&config.optimizer));
        let mut words = vec![0_u64; config.value_bytes() as usize / 8];
        let value: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        layout.step(&stepper, value, &[0.0, 0.0]);
        layout.step(&stepper, value, &[0.0, 0.0]);
        assert_eq!(value[24..28], 2_u32.to_le_bytes());
        value[24..28].fill(0xFF);
        layout.step(&stepper, value, &[0.0, 0.0]);
        assert_eq!(value[24..28], u32::MAX.to_le_bytes());
    }
}
