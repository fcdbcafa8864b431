//! The values of a batch as bytes, in little-endian order.

use std::borrow::Cow;

use super::{Batch, Values};

impl Batch {
    /// Returns the values of output number `output`, row by row, in little-endian order.
    pub(crate) fn little_endian(&self, output: usize) -> Cow<'_, [u8]> {
        let count = self.rows * self.infos[output].row_values();
        match &*self.matrices[output] {
            Values::Bytes(bytes) => Cow::Borrowed(&bytes[..count]),
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

    /// Replaces the batch's rows. Calls `fill` once for each output, in order, with room for the
    /// values of `rows` rows. `fill` writes them in little-endian order. After an error of `fill`,
    /// the batch has no rows.
    pub(crate) fn fill<E>(
        &mut self,
        rows: usize,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.reserve(rows);
        for (values, width) in self.matrices_mut() {
            match values {
                Values::Bytes(bytes) => fill(&mut bytes[..rows * width])?,
                Values::Words(words) => {
                    let words = &mut words[..rows * width];
                    fill(bytemuck::cast_slice_mut(words))?;
                    words.iter_mut().for_each(|word| *word = u32::from_le(*word));
                }
                Values::Wides(wides) => {
                    let wides = &mut wides[..rows * width];
                    fill(bytemuck::cast_slice_mut(wides))?;
                    wides.iter_mut().for_each(|wide| *wide = u64::from_le(*wide));
                }
            }
        }
        self.rows = rows;
        Ok(())
    }
}
