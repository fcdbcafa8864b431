//! Copies columns side by side into a matrix of rows.

use crate::decode::{COLUMN_STRIDE, Level};

/// Columns of a tile, and rows of a tile: one for each 32-bit lane of an AVX2 vector.
const TILE: usize = 8;

/// Writes `rows` rows of the columns into `into`, row by row. `columns` are indices of columns in
/// `words`.
pub(super) fn concatenate(
    level: Level,
    words: &[u32],
    columns: &[usize],
    rows: usize,
    into: &mut [u32],
) {
    let width = columns.len();
    assert!(into.len() >= rows * width, "room for all rows");
    assert!(rows <= COLUMN_STRIDE, "rows of a block");
    assert!(
        columns.iter().all(|&column| (column + 1) * COLUMN_STRIDE <= words.len()),
        "columns of this block"
    );
    let tiled = match level {
        Level::Portable => (0, 0),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            let tiled = (rows / TILE * TILE, width / TILE * TILE);
            // SAFETY: `tiles` needs AVX2, which this level implies, and valid rows and columns,
            // which the assertions above have checked.
            unsafe { tiles(words, columns, tiled, into) };
            tiled
        }
    };
    for row in 0..rows {
        let done = if row < tiled.0 { tiled.1 } else { 0 };
        for at in done..width {
            into[row * width + at] = words[columns[at] * COLUMN_STRIDE + row];
        }
    }
}

/// Writes the part of the matrix that complete tiles cover.
///
/// # Safety
/// The processor must have AVX2. `into` must have space for `tiled.0` rows of `columns.len()`
/// values, and `words` must have these columns.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn tiles(words: &[u32], columns: &[usize], tiled: (usize, usize), into: &mut [u32]) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm256_setzero_si256, _mm256_storeu_si256};
    let width = columns.len();
    for first_row in (0..tiled.0).step_by(TILE) {
        for first_column in (0..tiled.1).step_by(TILE) {
            let mut tile = [_mm256_setzero_si256(); TILE];
            for (lane, &column) in tile.iter_mut().zip(&columns[first_column..first_column + TILE])
            {
                // SAFETY: the load needs eight readable values. The tile's eight rows are below
                // `tiled.0`, which is at most `COLUMN_STRIDE`, and a column has `COLUMN_STRIDE`
                // values.
                *lane = unsafe {
                    _mm256_loadu_si256(
                        words.as_ptr().add(column * COLUMN_STRIDE + first_row).cast(),
                    )
                };
            }
            for (i, row) in crate::decode::avx2::transpose(tile).into_iter().enumerate() {
                let at = (first_row + i) * width + first_column;
                // SAFETY: the store needs eight writable values. The tile's columns are within the
                // row, and the caller provides the row.
                unsafe { _mm256_storeu_si256(into.as_mut_ptr().add(at).cast(), row) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::BLOCK_ROWS;

    #[test]
    fn any_shape_with_every_level() {
        let words: Vec<u32> = (0..40 * COLUMN_STRIDE as u32).collect();
        for columns in [
            vec![],
            vec![3],
            vec![5, 1],
            (0..8).collect(),
            (0..26).rev().collect(),
            (0..40).collect::<Vec<_>>(),
        ] {
            for rows in [0, 1, 7, 8, 9, 100, BLOCK_ROWS] {
                let row = |row: usize| {
                    columns.iter().map(move |&column| (column * COLUMN_STRIDE + row) as u32)
                };
                let expected: Vec<u32> = (0..rows).flat_map(row).collect();
                for level in Level::available() {
                    let mut into = vec![0; rows * columns.len()];
                    concatenate(level, &words, &columns, rows, &mut into);
                    assert_eq!(into, expected, "{level}: {} columns, {rows} rows", columns.len());
                }
            }
        }
    }
}
