//! Decodes rows for programs that read a bank without opening it.

use crate::row::config::TableConfig;
use crate::row::initializer::Initializer;
use crate::row::layout::RowLayout;

/// A row and its optimizer's state, decoded to f32.
///
/// # Examples
/// See [`TableConfig::decode_row`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DecodedRow {
    /// The vector, dim values.
    pub vector: Vec<f32>,
    /// The optimizer's state values in the order of docs/format.md, without the count of steps.
    pub state: Vec<f32>,
    /// The number of the row's updates. `None` if neither the optimizer nor the rounding needs this
    /// count.
    pub steps: Option<u32>,
}

impl TableConfig {
    /// Decodes a row of a table with these settings from its stored value, which
    /// [`inspect`](crate::inspect) returns. `None` if the value is too short.
    ///
    /// # Examples
    /// ```
    /// use embank::{Optimizer, TableConfig};
    ///
    /// let config = TableConfig::new(1).optimizer(Optimizer::adam(0.1));
    /// let value = [[1.5_f32, 0.25, 0.5].map(f32::to_bits).as_slice(), &[7]].concat();
    /// let bytes: Vec<u8> = value.iter().flat_map(|word| word.to_le_bytes()).collect();
    /// let row = config.decode_row(&bytes).unwrap();
    /// assert_eq!((row.vector, row.state, row.steps), (vec![1.5], vec![0.25, 0.5], Some(7)));
    /// ```
    #[must_use]
    pub fn decode_row(&self, value: &[u8]) -> Option<DecodedRow> {
        // Initial values are not needed here, and some initializers are slow to prepare.
        let layout = RowLayout::new("", &self.clone().initializer(Initializer::Zeros));
        let mut words = vec![0_u64; self.value_bytes() as usize / 8];
        let aligned: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        aligned.copy_from_slice(value.get(..aligned.len())?);
        let mut vector = vec![0.0; layout.whole_len()];
        layout.read_whole(aligned, &mut vector);
        let state = vector.split_off(layout.dim);
        let steps = layout.count_of(aligned);
        Some(DecodedRow { vector, state, steps })
    }
}
