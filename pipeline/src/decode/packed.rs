//! Reads packed rows of 32-bit numbers: PIPER's Config III.
//!
//! A row is its fields, little-endian, without gaps between fields or between rows. There is
//! nothing to check or parse. The rows are only transposed into columns, in tiles of eight by
//! eight.

use super::block::{BLOCK_ROWS, Block, COLUMN_STRIDE, Slot};
use super::layout::Layout;
use super::level::Level;

/// Rows of a tile, and fields of a tile: one for each 32-bit lane of an AVX2 vector.
const TILE: usize = 8;

/// Returns the bytes of a row of `fields` fields.
pub(crate) fn row_bytes(fields: usize) -> usize {
    fields * 4
}

/// Fills `block` with as many rows from the start of `rows` as fit. Returns their number.
pub(crate) fn unpack(rows: &[u8], layout: &Layout, level: Level, block: &mut Block) -> usize {
    let fields = layout.fields();
    let count = (rows.len() / row_bytes(fields)).min(BLOCK_ROWS);
    block.clear();
    block.rows = count;
    let columns: Vec<Option<usize>> = (0..fields).map(|field| column(layout, field)).collect();
    let tiled = match level {
        Level::Portable => (0, 0),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            let tiled = (count / TILE * TILE, fields / TILE * TILE);
            // SAFETY: `tiles` needs AVX2, which this level implies, `count` rows in `rows`, and the
            // columns in the block. The block was made for this layout.
            unsafe { tiles(rows, &columns, tiled, block.words_mut()) };
            tiled
        }
    };
    for row in 0..count {
        let first = if row < tiled.0 { tiled.1 } else { 0 };
        for (field, &column) in columns.iter().enumerate().skip(first) {
            let Some(column) = column else { continue };
            let at = row * row_bytes(fields) + field * 4;
            let bytes = rows[at..at + 4].try_into().expect("four bytes");
            block.words_mut()[column * COLUMN_STRIDE + row] = u32::from_le_bytes(bytes);
        }
    }
    count
}

fn column(layout: &Layout, field: usize) -> Option<usize> {
    match layout.target(field)?.slot {
        Slot::Word(column) => Some(column),
        Slot::Wide(_) | Slot::Bytes(_) | Slot::Array(_) => {
            unreachable!("the plan refuses these in packed rows")
        }
    }
}

/// Transposes the complete tiles, which cover the first `tiled.0` rows and `tiled.1` fields, into
/// the columns of `words`.
///
/// # Safety
/// The processor must have AVX2. `rows` must have `tiled.0` rows of `columns.len()` fields, and
/// `words` must have these columns.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn tiles(rows: &[u8], columns: &[Option<usize>], tiled: (usize, usize), words: &mut [u32]) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm256_setzero_si256, _mm256_storeu_si256};
    let row_bytes = row_bytes(columns.len());
    for first_row in (0..tiled.0).step_by(TILE) {
        for first_field in (0..tiled.1).step_by(TILE) {
            let mut tile = [_mm256_setzero_si256(); TILE];
            for (i, row) in tile.iter_mut().enumerate() {
                let at = (first_row + i) * row_bytes + first_field * 4;
                // SAFETY: the load needs 32 readable bytes. The tile's eight fields are within the
                // row, and the caller provides the row.
                *row = unsafe { _mm256_loadu_si256(rows.as_ptr().add(at).cast()) };
            }
            let lanes = super::avx2::transpose(tile);
            for (lane, &column) in lanes.iter().zip(&columns[first_field..first_field + TILE]) {
                let Some(column) = column else { continue };
                let at = column * COLUMN_STRIDE + first_row;
                // SAFETY: the store needs eight writable values. A column has `COLUMN_STRIDE` of
                // them, and the tile's rows are below `BLOCK_ROWS`.
                unsafe { _mm256_storeu_si256(words.as_mut_ptr().add(at).cast(), *lane) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FieldKind, FieldLayout};
    use super::*;

    #[test]
    fn any_shape_with_every_level() {
        for (fields, skipped) in [(1, 9), (3, 1), (8, 2), (17, 3), (40, 0)] {
            for count in [0, 1, 8, 21, BLOCK_ROWS, BLOCK_ROWS + 5] {
                let kind =
                    |field| if field == skipped { FieldKind::Skip } else { FieldKind::Hex32 };
                let field = |field| FieldLayout {
                    kind: kind(field),
                    required: false,
                    bytes_max: 0,
                    spelling: Default::default(),
                    time_unit: Default::default(),
                };
                let layout = Layout::new((0..fields).map(field).collect(), b'\t');
                let bytes: Vec<u8> =
                    (0..(count * fields) as u32).flat_map(u32::to_le_bytes).collect();
                for level in Level::available() {
                    let mut block = Block::new(layout.columns(), layout.planes());
                    let got = unpack(&bytes, &layout, level, &mut block);
                    assert_eq!(got, count.min(BLOCK_ROWS));
                    for field in (0..fields).filter(|&field| field != skipped) {
                        let column = block.word(column(&layout, field).unwrap());
                        let expected: Vec<_> =
                            (0..got).map(|row| (row * fields + field) as u32).collect();
                        assert_eq!(
                            column, expected,
                            "{level}: field {field} of {fields}, {count} rows"
                        );
                    }
                }
            }
        }
    }
}
