//! Rows from their bytes, for whoever reads a bank without opening it.

use crate::config::TableConfig;
use crate::row::Sections;

/// A row with its optimizer's state.
///
/// # Examples
/// See [`TableConfig::decode_row`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DecodedRow {
    /// dim values.
    pub vector: Vec<f32>,
    /// The optimizer's values in the order of docs/format.md, without the count of steps.
    pub state: Vec<f32>,
    /// How many steps the row has taken, where its optimizer counts them.
    pub steps: Option<u32>,
}

impl TableConfig {
    /// A row of such a table from the value that the store holds, as [`embank_kv::inspect`] hands it out; `None` if
    /// the value is too short to be one.
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
        let sections = Sections::of(self);
        let (words, _) = value.get(..sections.value_bytes())?.as_chunks::<4>();
        let floats =
            |words: &[[u8; 4]]| words.iter().map(|&word| f32::from_le_bytes(word)).collect();
        let shape = self.optimizer.state_shape();
        Some(DecodedRow {
            vector: floats(&words[..self.dim as usize]),
            state: floats(&words[sections.state / 4..sections.steps / 4]),
            steps: shape.counts_steps.then(|| u32::from_le_bytes(words[sections.steps / 4])),
        })
    }
}
