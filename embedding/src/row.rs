//! How a row lies in the store's bytes: the vector, the optimizer's state, zeros up to 8 bytes.

use crate::config::TableConfig;
use crate::initializer::RowSource;
use crate::optimizer::Optimizer;

// Rows are viewed as f32 where they lie, and their format is little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "big-endian machines need a byte swap here");

/// The parts of a table's rows, and what fills new ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowLayout {
    pub(crate) dim: usize,
    state_values: usize,
    optimizer: Optimizer,
    source: RowSource,
}

impl RowLayout {
    pub(crate) fn new(table: &str, config: &TableConfig) -> Self {
        let dim = config.dim as usize;
        Self {
            dim,
            state_values: config.optimizer.state_values(dim),
            optimizer: config.optimizer,
            source: RowSource::new(config.initializer, config.seed, table),
        }
    }

    /// How many f32 of optimizer state a row has.
    pub(crate) fn state_values(&self) -> usize {
        self.state_values
    }

    /// Whether rows hold more than their vector.
    pub(crate) fn has_state(&self) -> bool {
        self.state_values != 0
    }

    /// The row's vector.
    #[inline]
    pub(crate) fn vector<'v>(&self, value: &'v [u8]) -> &'v [f32] {
        bytemuck::cast_slice(&value[..4 * self.dim])
    }

    /// The row's vector and state.
    #[inline]
    pub(crate) fn parts<'v>(&self, value: &'v mut [u8]) -> (&'v mut [f32], &'v mut [f32]) {
        let used = 4 * (self.dim + self.state_values);
        bytemuck::cast_slice_mut(&mut value[..used]).split_at_mut(self.dim)
    }

    /// Fills a vector with `key`'s initial values.
    pub(crate) fn fill_initial(&self, key: u64, vector: &mut [f32]) {
        self.source.fill(key, vector);
    }

    /// Fills everything but the vector as a new row has it.
    #[inline]
    pub(crate) fn fill_rest(&self, value: &mut [u8]) {
        let used = 4 * (self.dim + self.state_values);
        value[used..].fill(0);
        self.optimizer.start(self.parts(value).1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::initializer::Initializer;

    #[test]
    fn a_new_row_has_vector_state_and_zero_padding() {
        let optimizer = Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial_accumulator: 0.5 };
        let odd = TableConfig::new(3).initializer(Initializer::Constant(2.0));
        for (config, expected) in [
            (odd.clone().optimizer(optimizer), &[2.0, 2.0, 2.0, 0.5, 0.5, 0.5][..]),
            (odd, &[2.0, 2.0, 2.0, 0.0][..]),
        ] {
            let layout = RowLayout::new("t", &config);
            let mut words = vec![u64::MAX; config.value_bytes() as usize / 8];
            let value: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            layout.fill_initial(1, layout.parts(value).0);
            layout.fill_rest(value);
            assert_eq!(bytemuck::cast_slice::<u8, f32>(value), expected);
        }
    }
}
