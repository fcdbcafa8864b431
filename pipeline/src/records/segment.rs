//! The values of a group as bytes.
//!
//! A segment of the codec `exact` has the values of each output, one output after the other, row by
//! row, in little-endian order. The values of an output begin at a multiple of [`VALUES_ALIGNMENT`]
//! from the segment's beginning, so that a program can use them where they lie. The bytes between
//! are zero.

use std::io::{self, Read, Write};

use super::GROUP_BYTES_MAX;
use crate::batch::{Batch, MatrixInfo};
use crate::spec::Dtype;

/// Alignment of an output's values in a segment: a line of the processor's cache.
const VALUES_ALIGNMENT: u64 = 64;
const ZEROS: [u8; VALUES_ALIGNMENT as usize] = [0; VALUES_ALIGNMENT as usize];

/// The places of the outputs' values in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of a row of each output.
    row_bytes: Vec<u64>,
}

impl Layout {
    /// Returns the layout of these outputs. `None` if a row is larger than a group may be.
    pub(super) fn of(infos: &[MatrixInfo]) -> Option<Self> {
        let row_bytes = |info: &MatrixInfo| row_bytes(info.dtype, &shape_of(info));
        let layout = Self { row_bytes: infos.iter().map(row_bytes).collect::<Option<_>>()? };
        layout.bytes(1)?;
        Some(layout)
    }

    /// Bytes of a row of each output.
    pub(super) fn row_bytes(&self) -> &[u64] {
        &self.row_bytes
    }

    /// Returns the bytes of a segment of `rows` rows. `None` if a group may not have as many bytes.
    pub(super) fn bytes(&self, rows: usize) -> Option<u64> {
        let mut at: u64 = 0;
        for row_bytes in &self.row_bytes {
            let bytes = row_bytes.checked_mul(rows as u64)?;
            at = at.checked_next_multiple_of(VALUES_ALIGNMENT)?.checked_add(bytes)?;
        }
        (at <= GROUP_BYTES_MAX).then_some(at)
    }

    /// Returns the largest number of rows, up to `rows_max`, of which a segment may consist.
    pub(super) fn rows_max(&self, rows_max: usize) -> usize {
        let mut fits = 1;
        let mut too_large = rows_max + 1;
        // The search ends because each turn halves the distance.
        while too_large - fits > 1 {
            let middle = fits + (too_large - fits) / 2;
            match self.bytes(middle) {
                Some(_) => fits = middle,
                None => too_large = middle,
            }
        }
        fits
    }

    /// Writes a segment. `matrices` has the bytes of each output's values.
    pub(super) fn write(&self, matrices: &[Vec<u8>], to: &mut dyn Write) -> io::Result<()> {
        let mut at = 0;
        for values in matrices {
            let zeros = gap(at);
            to.write_all(&ZEROS[..zeros])?;
            to.write_all(values)?;
            at += (zeros + values.len()) as u64;
        }
        Ok(())
    }

    /// Reads the rows of a segment into a batch. After an error, the batch has no rows.
    ///
    /// # Errors
    /// `UnexpectedEof` if `from` ends early. `InvalidData` if it does not end after the values, or
    /// if a byte between the values is not zero.
    pub(super) fn read(
        &self,
        rows: usize,
        from: &mut dyn Read,
        batch: &mut Batch,
    ) -> io::Result<()> {
        let mut at = 0;
        batch.fill(rows, |values| {
            let mut zeros = [0; VALUES_ALIGNMENT as usize];
            let zeros = &mut zeros[..gap(at)];
            from.read_exact(zeros)?;
            if *zeros != ZEROS[..zeros.len()] {
                return Err(invalid("bytes between its values are not zero"));
            }
            at += (zeros.len() + values.len()) as u64;
            from.read_exact(values)
        })?;
        if from.read(&mut [0])? > 0 {
            batch.reserve(0);
            return Err(invalid("it has bytes after its values"));
        }
        Ok(())
    }
}

/// Number of zeros before the values of the next output.
fn gap(at: u64) -> usize {
    (at.next_multiple_of(VALUES_ALIGNMENT) - at) as usize
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Shape of a row of an output.
pub(super) fn shape_of(info: &MatrixInfo) -> Vec<u64> {
    info.shape.iter().map(|&side| side as u64).collect()
}

/// Returns the output that a head describes. `None` if this program has no such outputs.
pub(super) fn info_of(
    name: &str,
    columns: &[String],
    dtype: Dtype,
    shape: &[u64],
) -> Option<MatrixInfo> {
    let sides: Vec<usize> =
        shape.iter().map(|&side| side.try_into().ok()).collect::<Option<_>>()?;
    // One column may have arrays.
    let is_known = columns.len() == 1 || (dtype != Dtype::U8 && *sides == [columns.len()]);
    let (name, columns) = (name.to_owned(), columns.to_vec());
    is_known.then_some(MatrixInfo { name, columns, dtype, shape: sides })
}

/// Returns the bytes of a row. `None` if the number does not fit in 64 bits.
fn row_bytes(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    let value_bytes = dtype.bytes() as u64;
    shape.iter().try_fold(value_bytes, |bytes: u64, &length| bytes.checked_mul(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(row_bytes: &[u64]) -> Layout {
        Layout { row_bytes: row_bytes.to_vec() }
    }

    #[test]
    fn values_begin_at_lines_and_end_without_zeros() {
        assert_eq!(layout(&[]).bytes(9), Some(0));
        assert_eq!(layout(&[12]).bytes(3), Some(36));
        assert_eq!(layout(&[12, 0, 8]).bytes(3), Some(64 + 24));
        assert_eq!(layout(&[64, 4]).bytes(2), Some(128 + 8));
    }

    #[test]
    fn lengths_have_limits_and_do_not_overflow() {
        let large = layout(&[1 << 20, 24]);
        let rows = large.rows_max(65_536);
        assert!(large.bytes(rows).is_some() && large.bytes(rows + 1).is_none());
        assert_eq!((rows, large.rows_max(7)), (255, 7));
        for row_bytes in [&[GROUP_BYTES_MAX + 1][..], &[u64::MAX], &[u64::MAX / 2, u64::MAX / 2]] {
            assert_eq!(layout(row_bytes).bytes(3), None);
        }
        assert_eq!(row_bytes(Dtype::I64, &[1 << 61, 1]), None);
        assert_eq!(row_bytes(Dtype::F32, &[2, 3, 5]), Some(120));
    }
}
