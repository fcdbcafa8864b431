//! The layout of a row in the store's bytes.
//!
//! ```text
//! vector | scale | optimizer state: vectors, single values | count | time of last use, uses | zeros up to 8 bytes
//! ```
//!
//! Sections begin at multiples of 4 bytes, in this order, each if the table has it. A new section
//! is a line in [`Sections::of`]. The count is that of the row's updates: the optimizer's steps, on
//! which the draws of stochastic rounding depend too. docs/format.md describes the layout for
//! programs that read a bank without this code.

use std::sync::Arc;

use crate::dtype::{Draws, Dtype, decode_float, decode_int8, encode_float, encode_int8};
use crate::optimizer::Stepper;
use crate::optimizer::state::{RowState, StateShape};
use crate::row::config::TableConfig;
use crate::row::initializer::RowSource;
use crate::row::sections::{Rounds, Sections};
use crate::row::tracking::{TRACKING_BYTES, Tracker, Uses};

// Rows are viewed as f32 in place, and their format is little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "big-endian machines need a byte swap here");

/// The effect of a step on a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stepped {
    Taken,
    /// The step was taken. A value of the optimizer's state is at the largest value of its dtype.
    Saturated,
    /// The value of this column would not be finite as the table stores it. The row is unchanged.
    Refused {
        column: usize,
        value: f32,
    },
}

/// The sections of a table's rows, and their initial content.
#[derive(Debug, Clone)]
pub(crate) struct RowLayout {
    pub(crate) dim: usize,
    dtype: Dtype,
    state_dtype: Dtype,
    rounds: Rounds,
    sections: Sections,
    shape: StateShape,
    initial_accumulator: f32,
    source: RowSource,
    /// The table's time, if its rows record their uses.
    tracker: Option<Arc<Tracker>>,
    /// What this processor can do.
    arch: pulp::Arch,
}

impl RowLayout {
    /// Bytes of a row.
    pub(crate) fn value_bytes(&self) -> usize {
        self.sections.value_bytes()
    }

    pub(crate) fn new(table: &str, config: &TableConfig) -> Self {
        Self {
            dim: config.dim as usize,
            dtype: config.dtype,
            state_dtype: config.state_dtype,
            rounds: Rounds::of(config),
            sections: Sections::of(config),
            shape: config.optimizer.state_shape(),
            initial_accumulator: config.optimizer.initial_accumulator(),
            source: RowSource::new(config.seed, table, config.dim, &config.initializer),
            tracker: Tracker::new(config.tracking).map(Arc::new),
            arch: pulp::Arch::new(),
        }
    }

    /// True if rows hold more than their vector.
    pub(crate) fn has_state(&self) -> bool {
        self.sections.end > self.sections.state
    }

    /// True if a row's first bytes are its vector in f32.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.dtype == Dtype::F32
    }

    /// The row's vector: in place, or converted into `room`.
    pub(crate) fn vector<'v>(&self, value: &'v [u8], room: &'v mut Vec<f32>) -> &'v [f32] {
        if self.is_plain() {
            return bytemuck::cast_slice(&value[..4 * self.dim]);
        }
        room.resize(self.dim, 0.0);
        self.read_vector(value, room);
        room
    }

    /// Copies the row's vector out.
    #[inline]
    pub(crate) fn read_vector(&self, value: &[u8], to: &mut [f32]) {
        if self.is_plain() {
            to.copy_from_slice(bytemuck::cast_slice(&value[..4 * self.dim]));
            return;
        }
        let vector = &value[..self.dtype.bytes_of(self.dim)];
        if self.dtype == Dtype::Int8 {
            let scale = self.scale(value);
            self.arch.dispatch(|| decode_int8(vector, scale, to));
        } else {
            self.arch.dispatch(|| decode_float(self.dtype, vector, to));
        }
    }

    /// Writes the row's vector, rounded by the draws, or to the nearest without draws.
    #[inline]
    fn encode_vector(&self, value: &mut [u8], from: &[f32], draws: Option<&Draws>) {
        if self.is_plain() {
            value[..4 * self.dim].copy_from_slice(bytemuck::cast_slice(from));
            return;
        }
        let scale_at = self.sections.scale;
        let vector = &mut value[..self.dtype.bytes_of(self.dim)];
        if self.dtype == Dtype::Int8 {
            let scale = self.arch.dispatch(|| encode_int8(from, vector, draws));
            value[scale_at..scale_at + 4].copy_from_slice(&scale.to_le_bytes());
        } else {
            self.arch.dispatch(|| encode_float(self.dtype, from, vector, draws));
        }
    }

    /// Writes the row's vector, rounded to the nearest.
    #[inline]
    pub(crate) fn write_vector(&self, value: &mut [u8], from: &[f32]) {
        self.encode_vector(value, from, None);
    }

    /// Writes the vector of `key`'s row as an update of the row, rounded as the table rounds
    /// updates.
    #[inline]
    pub(crate) fn update_vector(&self, key: u64, value: &mut [u8], from: &[f32]) {
        if !self.rounds.vector {
            return self.write_vector(value, from);
        }
        // A put does not count as a step of the optimizer.
        let salt = if self.shape.counts_steps { PUT } else { 0 };
        let count = if self.shape.counts_steps { self.count(value) } else { self.count_up(value) };
        let draws = self.source.draws(key, u64::from(count) ^ salt);
        self.encode_vector(value, from, Some(&draws));
    }

    fn scale(&self, value: &[u8]) -> f32 {
        let at = self.sections.scale;
        bytemuck::cast_slice::<u8, f32>(&value[at..at + 4])[0]
    }

    fn count(&self, value: &[u8]) -> u32 {
        let at = self.sections.count;
        bytemuck::cast_slice::<u8, u32>(&value[at..at + 4])[0]
    }

    /// Counts an update of the row.
    #[inline]
    fn count_up(&self, value: &mut [u8]) -> u32 {
        let count = self.next_count(value);
        self.write_count(value, count);
        count
    }

    /// The number of the row's next update; 0 if the table does not count them. After four billion
    /// updates the number stays at its largest value.
    #[inline]
    fn next_count(&self, value: &[u8]) -> u32 {
        let counted = self.sections.count < self.sections.tracking;
        if counted { self.count(value).saturating_add(1) } else { 0 }
    }

    #[inline]
    fn write_count(&self, value: &mut [u8], count: u32) {
        let Sections { count: at, tracking, .. } = self.sections;
        if at < tracking {
            value[at..at + 4].copy_from_slice(&count.to_le_bytes());
        }
    }

    /// Writes the initial vector of `key` to `to`, as the table can hold it.
    pub(crate) fn fill_initial(&self, key: u64, to: &mut [f32]) {
        self.fill_source(key, to);
        if !self.is_plain() {
            let mut words = vec![0_u32; self.sections.state / 4];
            let value = bytemuck::cast_slice_mut(&mut words);
            self.write_vector(value, to);
            self.read_vector(value, to);
        }
    }

    /// Makes a new row for `key`, and copies its vector to `to`.
    pub(crate) fn begin(&self, key: u64, value: &mut [u8], to: &mut [f32]) {
        self.fill_source(key, to);
        self.write_vector(value, to);
        if !self.is_plain() {
            self.read_vector(value, to);
        }
        self.fill_rest(value);
    }

    /// The initializer's values. Values beyond the largest one of the dtype become the largest one.
    #[inline]
    fn fill_source(&self, key: u64, to: &mut [f32]) {
        self.source.fill(key, to);
        if !self.is_plain() {
            self.dtype.range().saturate(to);
        }
    }

    /// Fills everything except the vector with the content of a new row.
    #[inline]
    pub(crate) fn fill_rest(&self, value: &mut [u8]) {
        value[self.sections.state..].fill(0);
        self.fill_accumulators(value);
        if let Some(tracker) = &self.tracker {
            tracker.begin(&mut value[self.sections.tracking..][..TRACKING_BYTES]);
        }
    }

    /// Writes the parts of a new row's optimizer state that are not zero.
    #[inline]
    fn fill_accumulators(&self, value: &mut [u8]) {
        let Sections { state, scalars, count, .. } = self.sections;
        let accumulator = self.initial_accumulator;
        if accumulator == 0.0 {
            return;
        }
        // The initial accumulator is in the first state vector, or in the single value of an
        // optimizer without a vector.
        if self.shape.vectors == 0 {
            let scalars: &mut [f32] = bytemuck::cast_slice_mut(&mut value[scalars..count]);
            scalars.fill(accumulator);
            return;
        }
        let accumulators = &mut value[state..][..self.state_dtype.bytes_of(self.dim)];
        let size = self.state_dtype.bytes();
        let mut one = [0; 4];
        encode_float(self.state_dtype, &[accumulator], &mut one[..size], None);
        for bytes in accumulators.chunks_exact_mut(size) {
            bytes.copy_from_slice(&one[..size]);
        }
    }

    /// The table's time, if rows record their uses.
    pub(crate) fn tracker(&self) -> Option<&Tracker> {
        self.tracker.as_deref()
    }

    /// Records a use of a row, if rows record uses.
    #[inline]
    pub(crate) fn note_use(&self, value: &mut [u8]) {
        if let Some(tracker) = &self.tracker {
            tracker.note(&mut value[self.sections.tracking..][..TRACKING_BYTES]);
        }
    }

    /// Writes the number of a row's uses and the last use, which is the present time if `last` is
    /// `None`. Does nothing if rows do not record uses.
    pub(crate) fn import_uses(&self, value: &mut [u8], last: Option<u32>, count: u32) {
        let Some(tracker) = &self.tracker else { return };
        let words = &mut value[self.sections.tracking..][..TRACKING_BYTES];
        match last {
            Some(last) => Uses { last, count }.write(words),
            None => tracker.adopt(words, count),
        }
    }

    /// The number of a row's uses and its last use, if rows record them.
    pub(crate) fn uses(&self, value: &[u8]) -> Option<Uses> {
        let words = || &value[self.sections.tracking..][..TRACKING_BYTES];
        self.tracker.is_some().then(|| Uses::of(words()))
    }

    /// The square of the vector's L2 norm.
    pub(crate) fn squared_norm(&self, value: &[u8]) -> f64 {
        self.vector(value, &mut Vec::new()).iter().map(|&value| f64::from(value).powi(2)).sum()
    }

    /// Takes one step with a gradient, dim values, for the row of `key`. If the row would not stay
    /// finite, it keeps its values. `careful` must be true unless
    /// [`Magnitudes`](crate::table::gradients::Magnitudes) of the batch show that no f32 row can
    /// become infinite. `room` is scratch space for conversions.
    #[inline]
    pub(crate) fn step(
        &self,
        stepper: &Stepper,
        key: u64,
        value: &mut [u8],
        gradient: &[f32],
        careful: bool,
        room: &mut Vec<f32>,
    ) -> Stepped {
        let step = self.next_count(value);
        let stepped = if !self.is_plain() || self.state_dtype != Dtype::F32 {
            self.step_converted(stepper, key, value, gradient, step, room)
        } else if careful {
            self.step_aside(stepper, value, gradient, step, room)
        } else {
            let floats = bytemuck::cast_slice_mut(&mut value[..self.sections.count]);
            stepper.take(self.arch, self.row_state(floats, step), gradient);
            Stepped::Taken
        };
        if !matches!(stepped, Stepped::Refused { .. }) {
            self.write_count(value, step);
        }
        stepped
    }

    /// The parts of an all-f32 row, up to its count.
    #[inline]
    fn row_state<'r>(&self, floats: &'r mut [f32], step: u32) -> RowState<'r> {
        let Sections { state, scalars, .. } = self.sections;
        let (vector, rest) = floats.split_at_mut(state / 4);
        let (state, scalars) = rest.split_at_mut((scalars - state) / 4);
        RowState { vector, state, scalars, step }
    }

    /// Takes the step of an all-f32 row in a copy, and keeps the copy if all of it is finite.
    fn step_aside(
        &self,
        stepper: &Stepper,
        value: &mut [u8],
        gradient: &[f32],
        step: u32,
        room: &mut Vec<f32>,
    ) -> Stepped {
        let floats: &mut [f32] = bytemuck::cast_slice_mut(&mut value[..self.sections.count]);
        room.clear();
        room.extend_from_slice(floats);
        stepper.take(self.arch, self.row_state(room, step), gradient);
        let range = Dtype::F32.range();
        if let Some(at) = range.first_beyond(room) {
            return Stepped::Refused { column: at % self.dim, value: room[at] };
        }
        floats.copy_from_slice(room);
        let saturated = range.saturate(&mut room[self.sections.state / 4..]);
        if saturated { Stepped::Saturated } else { Stepped::Taken }
    }

    /// Takes the step of a row with parts in other dtypes than f32.
    fn step_converted(
        &self,
        stepper: &Stepper,
        key: u64,
        value: &mut [u8],
        gradient: &[f32],
        step: u32,
        room: &mut Vec<f32>,
    ) -> Stepped {
        let Sections { state, scalars, count, .. } = self.sections;
        let singles = (count - scalars) / 4;
        let moments = self.dim * self.shape.vectors;
        room.resize(self.dim + moments + singles, 0.0);
        self.read_vector(value, &mut room[..self.dim]);
        let arch = self.arch;
        let dtype = self.state_dtype;
        let (floats, room_singles) = room.split_at_mut(self.dim + moments);
        let (vector, moments) = floats.split_at_mut(self.dim);
        arch.dispatch(|| decode_float(dtype, &value[state..scalars], moments));
        room_singles.copy_from_slice(bytemuck::cast_slice(&value[scalars..count]));
        let row = RowState {
            vector: &mut *vector,
            state: &mut *moments,
            scalars: &mut *room_singles,
            step,
        };
        stepper.take(arch, row, gradient);
        if let Some(column) = self.first_beyond(vector) {
            return Stepped::Refused { column, value: vector[column] };
        }
        let saturated = arch.dispatch(|| dtype.range().saturate(moments))
            | Dtype::F32.range().saturate(room_singles);
        let draws = self.source.draws(key, u64::from(step));
        self.encode_vector(value, vector, self.rounds.vector.then_some(&draws));
        let draws = draws.after(self.dim);
        let draws = self.rounds.state.then_some(&draws);
        arch.dispatch(|| encode_float(dtype, moments, &mut value[state..scalars], draws));
        value[scalars..count].copy_from_slice(bytemuck::cast_slice(room_singles));
        if saturated { Stepped::Saturated } else { Stepped::Taken }
    }

    /// The column of the first value that the table can't hold as a finite one.
    #[inline]
    pub(crate) fn first_beyond(&self, vector: &[f32]) -> Option<usize> {
        let range = self.dtype.range();
        let holds = self.arch.dispatch(|| range.holds(vector));
        if holds { None } else { range.first_beyond(vector) }
    }

    /// Columns of a row's state in a file: its values, and the count if there is one.
    pub(crate) fn state_values(&self) -> usize {
        let has_count = self.sections.count < self.sections.tracking;
        self.shape.vectors * self.dim + self.shape.scalars + usize::from(has_count)
    }

    /// How the vector is stored.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The stored bytes of the vector, without an int8 row's scale.
    pub(crate) fn stored_vector<'v>(&self, value: &'v [u8]) -> &'v [u8] {
        &value[..self.dtype.bytes_of(self.dim)]
    }

    /// The scale's bytes of an int8 row.
    pub(crate) fn stored_scale<'v>(&self, value: &'v [u8]) -> &'v [u8] {
        &value[self.sections.scale..][..4]
    }

    /// Writes an int8 row's vector from its stored form.
    pub(crate) fn write_int8(&self, value: &mut [u8], bytes: &[u8], scale: f32) {
        value[..self.dim].copy_from_slice(bytes);
        value[self.sections.scale..][..4].copy_from_slice(&scale.to_le_bytes());
    }

    /// Writes the vector as f32: 4 * dim bytes.
    pub(crate) fn export_vector(&self, value: &[u8], to: &mut [u8]) {
        let mut room = Vec::new();
        for (bytes, column) in to.as_chunks_mut().0.iter_mut().zip(self.vector(value, &mut room)) {
            *bytes = column.to_le_bytes();
        }
    }

    /// Writes the state in the form of a file: 4 * [`state_values`](Self::state_values) bytes of
    /// f32. The count is a float there, exact up to 2^24.
    pub(crate) fn export_state(&self, value: &[u8], to: &mut [u8]) {
        let columns = self.state_columns(value);
        for (bytes, column) in to.as_chunks_mut::<4>().0.iter_mut().zip(columns) {
            *bytes = column.to_le_bytes();
        }
    }

    /// Writes one of the two words of a row's uses in the form of a file. Zero if rows do not
    /// record uses.
    pub(crate) fn export_uses(&self, value: &[u8], word: impl Fn(Uses) -> u32, to: &mut [u8]) {
        to.copy_from_slice(&self.uses(value).map_or(0, word).to_le_bytes());
    }

    /// The state as a file's columns.
    pub(crate) fn state_columns(&self, value: &[u8]) -> Vec<f32> {
        let Sections { state, scalars, count, tracking, .. } = self.sections;
        let mut columns = vec![0.0; self.shape.vectors * self.dim];
        decode_float(self.state_dtype, &value[state..scalars], &mut columns);
        columns.extend_from_slice(bytemuck::cast_slice(&value[scalars..count]));
        if count < tracking {
            columns.push(self.count(value) as f32);
        }
        columns
    }

    /// The row's count of updates; `None` if the table does not count them.
    pub(crate) fn count_of(&self, value: &[u8]) -> Option<u32> {
        (self.sections.count < self.sections.tracking).then(|| self.count(value))
    }

    /// Fills the state from a file's columns. A value beyond the largest one of its dtype becomes
    /// the largest one.
    pub(crate) fn import_state(&self, value: &mut [u8], from: &[f32]) {
        let Sections { state, scalars, count, tracking, .. } = self.sections;
        let (moments, rest) = from.split_at(self.shape.vectors * self.dim);
        let (single, updates) = rest.split_at(self.shape.scalars);
        let mut moments = moments.to_vec();
        self.state_dtype.range().saturate(&mut moments);
        encode_float(self.state_dtype, &moments, &mut value[state..scalars], None);
        value[scalars..count].copy_from_slice(bytemuck::cast_slice(single));
        if let [updates] = updates {
            value[count..tracking].copy_from_slice(&(*updates as u32).to_le_bytes());
        }
    }
}

/// Separates the draws of a put from those of the step before it.
const PUT: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::{Adagrad, Adam, Ftrl, Optimizer, RowWiseAdagrad};
    use crate::row::initializer::Initializer;

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
            layout.begin(1, value, &mut [0.0; 3]);
            assert_eq!(bytemuck::cast_slice::<u8, f32>(value), expected, "{optimizer:?}");
        }
    }

    /// Squares that are 0 in the state's dtype are no divisor if `eps` is 0.
    #[test]
    fn state_that_underflows_makes_no_nan() {
        let adam = Adam { eps: 0.0, ..Adam::new(0.01) };
        let adagrad = Adagrad { eps: 0.0, ..Adagrad::new(0.1) };
        let ftrl = Ftrl { initial_accumulator: 0.0, ..Ftrl::new(0.1) };
        for optimizer in [Optimizer::Adam(adam), Optimizer::Adagrad(adagrad), Optimizer::Ftrl(ftrl)]
        {
            for state in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
                let config = TableConfig::new(9).optimizer(optimizer).state_dtype(state);
                let layout = RowLayout::new("t", &config);
                let stepper = Stepper::new(&optimizer);
                let mut words = vec![0_u64; config.value_bytes() as usize / 8];
                let value: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
                layout.begin(1, value, &mut [0.0; 9]);
                for gradient in [1e-4, 0.0, 1e-5, 0.0, 0.0] {
                    layout.step(&stepper, 1, value, &[gradient; 9], false, &mut Vec::new());
                    let mut vector = [0.0; 9];
                    layout.read_vector(value, &mut vector);
                    let finite = vector.iter().all(|value| value.abs() < 10.0);
                    assert!(finite, "{optimizer:?} {state:?}: {vector:?} after {gradient}");
                }
            }
        }
    }

    #[test]
    fn steps_are_counted_in_the_row_and_stop_at_the_end() {
        let config = TableConfig::new(2).optimizer(Optimizer::adam(0.0));
        let layout = RowLayout::new("t", &config);
        let stepper = Stepper::new(&config.optimizer);
        let mut words = vec![0_u64; config.value_bytes() as usize / 8];
        let value: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        layout.step(&stepper, 1, value, &[0.0, 0.0], false, &mut Vec::new());
        layout.step(&stepper, 1, value, &[0.0, 0.0], false, &mut Vec::new());
        assert_eq!(value[24..28], 2_u32.to_le_bytes());
        value[24..28].fill(0xFF);
        layout.step(&stepper, 1, value, &[0.0, 0.0], false, &mut Vec::new());
        assert_eq!(value[24..28], u32::MAX.to_le_bytes());
    }
}
