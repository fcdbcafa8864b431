//! Reads and writes a row as a whole: its vector and the optimizer's state, as f32.

use super::RowLayout;
use crate::dtype::{Dtype, decode_float, encode_float};
use crate::row::sections::Sections;

/// The first value of a row that can't be written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Beyond {
    /// The table can't hold the value as a finite one.
    Vector { column: usize, value: f32 },
    /// The table can't hold the value as a finite one.
    State { place: usize, value: f32 },
    /// An update must not leave this state: see [`STATE_MAX`].
    NoState { place: usize, value: f32 },
}

/// State other than squares must be below this after an update by a function. A step checks its
/// result only if the gradient is large (`table::gradients`). So with larger state, a step could
/// make a row infinite without an error. Large gradients make such state too, and an import takes
/// it, because a table must take back what it has exported.
const STATE_MAX: f32 = (1_u64 << 50) as f32;

impl RowLayout {
    /// Number of values of a whole row: the vector and the optimizer's state. The count of updates
    /// is not one of them.
    pub(crate) fn whole_len(&self) -> usize {
        self.dim * (1 + self.shape.vectors) + self.shape.scalars
    }

    /// Copies the whole row to `to`, which holds [`whole_len`](Self::whole_len) values: the vector,
    /// the state vectors and the single values.
    #[inline]
    pub(crate) fn read_whole(&self, value: &[u8], to: &mut [f32]) {
        let Sections { state, scalars, count, .. } = self.sections;
        let (vector, rest) = to.split_at_mut(self.dim);
        let (moments, singles) = rest.split_at_mut(self.dim * self.shape.vectors);
        self.read_vector(value, vector);
        self.arch.dispatch(|| decode_float(self.state_dtype, &value[state..scalars], moments));
        singles.copy_from_slice(bytemuck::cast_slice(&value[scalars..count]));
    }

    /// Writes a whole row as an update of `key`'s row, with the table's rounding of updates.
    /// `before` is the row as [`read_whole`](Self::read_whole) returned it, and `after` is the new
    /// row. If these are equal, or if the table can't hold `after`, the row keeps its bytes.
    pub(crate) fn write_whole(
        &self,
        key: u64,
        value: &mut [u8],
        before: &[f32],
        after: &[f32],
    ) -> Result<(), Beyond> {
        let Sections { state, scalars, count, .. } = self.sections;
        if have_equal_bits(before, after) {
            return Ok(());
        }
        let (vector, rest) = after.split_at(self.dim);
        let (moments, singles) = rest.split_at(self.dim * self.shape.vectors);
        self.check_whole(vector, moments, singles)?;
        self.check_state(&before[self.dim..], &after[self.dim..])?;
        let (draws, updates) = self.draws_of_update(key, value);
        self.write_count(value, updates);
        // An imported int8 row can have any scale. Encoding its vector again would round to another
        // scale.
        if !have_equal_bits(&before[..self.dim], vector) {
            self.encode_vector(value, vector, self.rounds.vector.then_some(&draws));
        }
        let draws = draws.after(self.dim);
        let draws = self.rounds.state.then_some(&draws);
        let dtype = self.state_dtype;
        self.arch.dispatch(|| encode_float(dtype, moments, &mut value[state..scalars], draws));
        value[scalars..count].copy_from_slice(bytemuck::cast_slice(singles));
        Ok(())
    }

    fn check_whole(&self, vector: &[f32], moments: &[f32], singles: &[f32]) -> Result<(), Beyond> {
        if let Some(column) = self.first_beyond(vector) {
            return Err(Beyond::Vector { column, value: vector[column] });
        }
        if let Some(place) = self.state_dtype.range().first_beyond(moments) {
            return Err(Beyond::State { place, value: moments[place] });
        }
        match Dtype::F32.range().first_beyond(singles) {
            None => Ok(()),
            Some(at) => Err(Beyond::State { place: moments.len() + at, value: singles[at] }),
        }
    }
}

impl RowLayout {
    /// Fails if a changed value of the state is negative where it is a square, or is too large.
    fn check_state(&self, before: &[f32], after: &[f32]) -> Result<(), Beyond> {
        let pairs = before.iter().zip(after).enumerate();
        let mut changed = pairs.filter(|(_, (old, new))| old.to_bits() != new.to_bits());
        let wrong = |place, new: f32| match self.is_never_negative(place) {
            true => new < 0.0,
            false => new.abs() >= STATE_MAX,
        };
        match changed.find(|&(place, (_, &new))| wrong(place, new)) {
            None => Ok(()),
            Some((place, (_, &value))) => Err(Beyond::NoState { place, value }),
        }
    }

    /// True if `place` of a row's state holds a sum or mean of squares, or the count of steps.
    /// The places are those of [`state_columns`](Self::state_columns).
    pub(crate) fn is_never_negative(&self, place: usize) -> bool {
        place >= self.dim * self.shape.vectors || self.shape.squares == Some(place / self.dim)
    }
}

fn have_equal_bits(one: &[f32], other: &[f32]) -> bool {
    bytemuck::cast_slice::<f32, u32>(one) == bytemuck::cast_slice::<f32, u32>(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Optimizer;
    use crate::row::config::TableConfig;

    /// Checks that a change of the state leaves the vector of an int8 row whose largest value is
    /// not 127 scales, and the count of steps.
    #[test]
    fn a_change_of_the_state_leaves_the_vector_and_the_steps() {
        let config = TableConfig::new(2).dtype(Dtype::Int8).optimizer(Optimizer::adam(0.1));
        let layout = RowLayout::new("t", &config);
        let mut words = vec![0_u64; config.value_bytes() as usize / 8];
        let value: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        layout.write_int8(value, &[3, 50], 0.3);
        layout.write_count(value, 7);
        let expected = value.to_vec();
        let mut before = vec![f32::NAN; layout.whole_len()];
        layout.read_whole(value, &mut before);
        let mut after = before.clone();
        after[5] = 1.5;
        layout.write_whole(1, value, &before, &after).unwrap();
        assert_eq!(layout.state_columns(value), [0.0, 0.0, 0.0, 1.5, 7.0]);
        let state = layout.sections.state..layout.sections.count;
        value[state.clone()].copy_from_slice(&expected[state]);
        assert_eq!(value, expected);
    }
}
