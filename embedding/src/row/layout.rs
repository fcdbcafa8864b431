//! The layout of a row's bytes in the store.
//!
//! ```text
//! vector | scale | optimizer state: vectors, single values | count | time of last use, uses | zeros up to 8 bytes
//! ```
//!
//! The sections have this order, and each begins at a multiple of 4 bytes. A table has only the
//! sections that it needs. To add a section, add a line in [`Sections::of`]. The count is the
//! number of the row's updates. It counts the optimizer's steps and selects the draws of stochastic
//! rounding. docs/format.md describes the layout for programs that read a bank without this code.

pub(crate) mod whole;

use std::sync::Arc;

use crate::dtype::{Draws, Dtype, decode_float, decode_int8, encode_float, encode_int8};
use crate::optimizer::Stepper;
use crate::optimizer::state::{RowState, StateShape};
use crate::row::config::TableConfig;
use crate::row::initializer::RowSource;
use crate::row::sections::{Rounds, Sections};
use crate::row::tracking::{TRACKING_BYTES, Tracker, Uses};

// A row's bytes are viewed as f32 in place, and the format is little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "big-endian machines need a byte swap here");

/// The effect of an optimizer step on a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stepped {
    Taken,
    /// The step was taken. A value of the optimizer's state reached the largest value of its dtype.
    Saturated,
    /// The step was not taken, because this column's value would not be finite in the table's
    /// dtype. The row is unchanged.
    Refused {
        column: usize,
        value: f32,
    },
}

/// The sections of a table's rows, and the content of new rows.
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
    /// Gives the time that a row stores when it is used (`Tracking`). `None` if the table's rows do
    /// not record uses.
    tracker: Option<Arc<Tracker>>,
    /// The instruction set that this processor supports.
    arch: pulp::Arch,
}

impl RowLayout {
    /// Number of bytes in a row.
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

    /// True if a row has optimizer state, a count or use words after its vector.
    pub(crate) fn has_state(&self) -> bool {
        self.sections.end > self.sections.state
    }

    /// True if a row begins with its vector in f32.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.dtype == Dtype::F32
    }

    /// Returns the row's vector: in place if it is f32, otherwise converted into `room`.
    pub(crate) fn vector<'v>(&self, value: &'v [u8], room: &'v mut Vec<f32>) -> &'v [f32] {
        if self.is_plain() {
            return bytemuck::cast_slice(&value[..4 * self.dim]);
        }
        room.resize(self.dim, 0.0);
        self.read_vector(value, room);
        room
    }

    /// Copies the row's vector to `to` as f32.
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

    /// Writes the row's vector. Rounds stochastically with `draws`, and to nearest without them.
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

    /// Writes the row's vector, rounded to nearest.
    #[inline]
    pub(crate) fn write_vector(&self, value: &mut [u8], from: &[f32]) {
        self.encode_vector(value, from, None);
    }

    /// Writes the vector of `key`'s row as an update, with the table's rounding of updates.
    #[inline]
    pub(crate) fn update_vector(&self, key: u64, value: &mut [u8], from: &[f32]) {
        if !self.rounds.vector {
            return self.write_vector(value, from);
        }
        let (draws, count) = self.draws_of_update(key, value);
        self.write_count(value, count);
        self.encode_vector(value, from, Some(&draws));
    }

    /// Returns the draws for an update of `key`'s row that is not a step of the optimizer, and the
    /// row's count after the update.
    #[inline]
    fn draws_of_update(&self, key: u64, value: &[u8]) -> (Draws, u32) {
        // If the row's count is the number of steps, such an update does not raise the count.
        let (salt, count) = match self.shape.counts_steps {
            true => (NO_STEP, self.count(value)),
            false => (0, self.next_count(value)),
        };
        (self.source.draws(key, u64::from(count) ^ salt), count)
    }

    fn scale(&self, value: &[u8]) -> f32 {
        let at = self.sections.scale;
        bytemuck::cast_slice::<u8, f32>(&value[at..at + 4])[0]
    }

    fn count(&self, value: &[u8]) -> u32 {
        let at = self.sections.count;
        bytemuck::cast_slice::<u8, u32>(&value[at..at + 4])[0]
    }

    /// Returns the number of the row's next update; 0 if the table does not count updates. The
    /// number stops at its largest value, after four billion updates.
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

    /// Writes the initial vector of `key` to `to`, rounded to the table's dtype.
    pub(crate) fn fill_initial(&self, key: u64, to: &mut [f32]) {
        self.fill_source(key, to);
        if !self.is_plain() {
            let mut words = vec![0_u32; self.sections.state / 4];
            let value = bytemuck::cast_slice_mut(&mut words);
            self.write_vector(value, to);
            self.read_vector(value, to);
        }
    }

    /// Writes a new row for `key`, and copies its vector to `to`.
    pub(crate) fn begin(&self, key: u64, value: &mut [u8], to: &mut [f32]) {
        self.fill_source(key, to);
        self.write_vector(value, to);
        if !self.is_plain() {
            self.read_vector(value, to);
        }
        self.fill_rest(value);
    }

    /// Writes the initializer's values, limited to the finite range of the table's dtype.
    #[inline]
    fn fill_source(&self, key: u64, to: &mut [f32]) {
        self.source.fill(key, to);
        if !self.is_plain() {
            self.dtype.range().saturate(to);
        }
    }

    /// Fills everything after the vector with the content of a new row.
    #[inline]
    pub(crate) fn fill_rest(&self, value: &mut [u8]) {
        value[self.sections.state..].fill(0);
        self.fill_accumulators(value);
        if let Some(tracker) = &self.tracker {
            tracker.begin(&mut value[self.sections.tracking..][..TRACKING_BYTES]);
        }
    }

    /// Writes the initial accumulator of a new row's optimizer state, unless it is zero.
    #[inline]
    fn fill_accumulators(&self, value: &mut [u8]) {
        let Sections { state, scalars, count, .. } = self.sections;
        let accumulator = self.initial_accumulator;
        if accumulator == 0.0 {
            return;
        }
        // The accumulator is the first state vector. If the optimizer has no state vector, it is
        // the single value.
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

    /// Returns the source of the time that a row stores when it is used. `None` if the table's rows
    /// do not record uses.
    pub(crate) fn tracker(&self) -> Option<&Tracker> {
        self.tracker.as_deref()
    }

    /// Records a use of the row, if the table tracks uses.
    #[inline]
    pub(crate) fn note_use(&self, value: &mut [u8]) {
        if let Some(tracker) = &self.tracker {
            tracker.note(&mut value[self.sections.tracking..][..TRACKING_BYTES]);
        }
    }

    /// Writes a row's use count and time of last use. If `last` is `None`, the time is the present.
    /// Does nothing if the table does not track uses.
    pub(crate) fn import_uses(&self, value: &mut [u8], last: Option<u32>, count: u32) {
        let Some(tracker) = &self.tracker else { return };
        let words = &mut value[self.sections.tracking..][..TRACKING_BYTES];
        match last {
            Some(last) => Uses { last, count }.write(words),
            None => tracker.adopt(words, count),
        }
    }

    /// Returns the row's use count and time of last use; `None` if the table does not track uses.
    pub(crate) fn uses(&self, value: &[u8]) -> Option<Uses> {
        let words = || &value[self.sections.tracking..][..TRACKING_BYTES];
        self.tracker.is_some().then(|| Uses::of(words()))
    }

    /// Returns the square of the vector's L2 norm.
    pub(crate) fn squared_norm(&self, value: &[u8]) -> f64 {
        self.vector(value, &mut Vec::new()).iter().map(|&value| f64::from(value).powi(2)).sum()
    }

    /// Takes one optimizer step for the row of `key` with a gradient of dim values. If the row
    /// would not stay finite, it keeps its values. `careful` may be false only if the batch's
    /// [`Magnitudes`](crate::table::gradients::Magnitudes) show that no f32 value can become
    /// infinite. `room` is scratch memory for conversions.
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

    /// Splits a row whose values are all f32 into vector, state vectors and single values.
    #[inline]
    fn row_state<'r>(&self, floats: &'r mut [f32], step: u32) -> RowState<'r> {
        let Sections { state, scalars, .. } = self.sections;
        let (vector, rest) = floats.split_at_mut(state / 4);
        let (state, scalars) = rest.split_at_mut((scalars - state) / 4);
        RowState { vector, state, scalars, step }
    }

    /// Takes the step on a copy of an all-f32 row, and keeps the copy if it is finite.
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

    /// Takes the step of a row with values that are not f32. Converts them to f32 before the step,
    /// and back after it.
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
        room.resize(self.whole_len(), 0.0);
        self.read_whole(value, room);
        let arch = self.arch;
        let dtype = self.state_dtype;
        let (floats, room_singles) = room.split_at_mut(self.dim * (1 + self.shape.vectors));
        let (vector, moments) = floats.split_at_mut(self.dim);
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

    /// Returns the column of the first value that is not finite in the table's dtype. `None` if all
    /// values are finite.
    #[inline]
    pub(crate) fn first_beyond(&self, vector: &[f32]) -> Option<usize> {
        let range = self.dtype.range();
        let holds = self.arch.dispatch(|| range.holds(vector));
        if holds { None } else { range.first_beyond(vector) }
    }

    /// Number of state columns of a row in a file: the state values, and the count if the row has
    /// one.
    pub(crate) fn state_values(&self) -> usize {
        let has_count = self.sections.count < self.sections.tracking;
        self.shape.vectors * self.dim + self.shape.scalars + usize::from(has_count)
    }

    /// The stored type of the vector.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the stored bytes of the vector, without the scale of an int8 row.
    pub(crate) fn stored_vector<'v>(&self, value: &'v [u8]) -> &'v [u8] {
        &value[..self.dtype.bytes_of(self.dim)]
    }

    /// Returns the stored bytes of an int8 row's scale.
    pub(crate) fn stored_scale<'v>(&self, value: &'v [u8]) -> &'v [u8] {
        &value[self.sections.scale..][..4]
    }

    /// Writes the vector of an int8 row from its stored bytes and scale.
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

    /// Writes the state as it is stored in a file: 4 * [`state_values`](Self::state_values) bytes
    /// of f32. The count becomes an f32 too, which is exact up to 2^24.
    pub(crate) fn export_state(&self, value: &[u8], to: &mut [u8]) {
        let columns = self.state_columns(value);
        for (bytes, column) in to.as_chunks_mut::<4>().0.iter_mut().zip(columns) {
            *bytes = column.to_le_bytes();
        }
    }

    /// Writes a row's time of last use or its use count, as a file stores it. `word` selects one of
    /// the two. Writes 0 if the table does not track uses.
    pub(crate) fn export_uses(&self, value: &[u8], word: impl Fn(Uses) -> u32, to: &mut [u8]) {
        to.copy_from_slice(&self.uses(value).map_or(0, word).to_le_bytes());
    }

    /// Returns the state as the columns of a file.
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

    /// Returns the row's count of updates; `None` if the table does not count them.
    pub(crate) fn count_of(&self, value: &[u8]) -> Option<u32> {
        (self.sections.count < self.sections.tracking).then(|| self.count(value))
    }

    /// Writes the state from a file's columns. Limits the state vectors to the finite range of the
    /// state dtype.
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

/// Mixed into the count that seeds the draws of an update that is not a step, for rounding. These
/// draws therefore differ from the draws of the preceding step.
const NO_STEP: u64 = 1 << 63;

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

    /// Checks steps with an `eps` of 0: a step does not divide by a sum of squares that is 0 in the
    /// state's dtype.
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
