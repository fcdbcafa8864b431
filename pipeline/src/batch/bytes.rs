//! The values of a batch as bytes, in little-endian order.

use std::borrow::Cow;

use super::{Batch, Values};

impl Batch {
    /// Returns the values of output number `output`, row by row, in little-endian order.
    pub(crate) fn little_endian(&self, output: usize) -> Cow<'_, [u8]> {
        let count = self.rows * self.infos[output].columns.len();
        match &self.matrices[output] {
            Values::Words(words) if cfg!(target_endian = "little") => {
                Cow::Borrowed(bytemuck::cast_slice(&words[..count]))
            }
            Values::Wides(wides) if cfg!(target_endian = "little") => {
                Cow::Borrowed(bytemuck::cast_slice(&wides[..count]))
            }
            Values::Words(words) => words[..count].iter().flat_map(|v| v.to_le_bytes()).collect(),
            Values::Wides(wides) => wides[..count].iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }
}
