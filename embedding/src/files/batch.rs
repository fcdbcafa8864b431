//! Batches of rows in memory, between a table and a file.

use super::FileFormat;
use super::element::Element;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::row::layout::RowLayout;

/// Largest size of a batch in memory, in bytes. A longer row forms a batch alone.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_ROWS_MAX: usize = 1 << 16;

/// Returns the number of rows in a batch if a row has `row_bytes` bytes.
pub(crate) fn rows_per_batch(row_bytes: usize) -> usize {
    (BATCH_BYTES / row_bytes.max(1)).clamp(1, BATCH_ROWS_MAX)
}

/// The part of a row's stored value that becomes a column.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// The vector's bytes as stored.
    Stored,
    /// The vector, converted to f32.
    Vector,
    /// The scale of an int8 vector.
    Scale,
    State,
    /// The time of the last use.
    LastUsed,
    /// The number of uses.
    Uses,
}

/// Column name for the time of a row's last use.
pub(crate) const LAST_USED: &str = "last_used";
/// Column name for the number of a row's uses.
pub(crate) const USES: &str = "uses";

/// A part of every row that becomes a column of a file.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) element: Element,
    /// Elements per row.
    pub(crate) columns: usize,
    source: Source,
}

impl Part {
    pub(crate) fn row_bytes(&self) -> usize {
        self.columns * self.element.bytes()
    }

    /// True if the column has one dimension. Other columns have two, even if the second one is 1.
    pub(crate) fn is_flat(&self) -> bool {
        matches!(self.source, Source::Scale | Source::LastUsed | Source::Uses)
    }
}

/// Returns the columns to export. They are `rows`, and `scales` if the vectors are written as int8.
/// If `state` is true, the optimizer's state follows as `state`, if the optimizer has any. With
/// tracking, `last_used` and `uses` follow too.
///
/// Vectors keep their stored type if the format supports it; otherwise they are written as f32.
/// State is always f32, because it also contains single values and counts. f32 represents every f16
/// and bf16 value exactly. Times and use counts are u32, because f32 is exact for whole numbers
/// only up to 2^24. Minutes since 1970 exceed 2^24.
pub(crate) fn parts_of(layout: &RowLayout, format: FileFormat, state: bool) -> Vec<Part> {
    use FileFormat::{Npy, Parquet, Safetensors};
    let (element, source) = match (layout.dtype(), format) {
        (Dtype::F32, _) => (Element::F32, Source::Stored),
        (Dtype::F16, _) => (Element::F16, Source::Stored),
        (Dtype::Bf16, Safetensors) => (Element::Bf16, Source::Stored),
        (Dtype::Int8, Safetensors) => (Element::I8, Source::Stored),
        (Dtype::Bf16 | Dtype::Int8, Npy | Parquet) => (Element::F32, Source::Vector),
    };
    let mut parts = vec![Part { name: "rows", element, columns: layout.dim, source }];
    if element == Element::I8 {
        let name = "scales";
        let element = Element::F32;
        let source = Source::Scale;
        parts.push(Part { name, element, columns: 1, source });
    }
    let columns = layout.state_values();
    if state && columns > 0 {
        parts.push(Part { name: "state", element: Element::F32, columns, source: Source::State });
    }
    if state && layout.tracker().is_some() {
        for (name, source) in [(LAST_USED, Source::LastUsed), (USES, Source::Uses)] {
            parts.push(Part { name, element: Element::U32, columns: 1, source });
        }
    }
    parts
}

/// A batch of rows to write to a file.
#[derive(Debug, Default)]
pub(crate) struct RowBatch {
    pub(crate) keys: Vec<u64>,
    /// The bytes of each part, row after row.
    pub(crate) parts: Vec<Vec<u8>>,
}

impl RowBatch {
    pub(crate) fn new(parts: &[Part]) -> Self {
        Self { keys: Vec::new(), parts: vec![Vec::new(); parts.len()] }
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.parts.iter_mut().for_each(Vec::clear);
    }

    pub(crate) fn push(&mut self, layout: &RowLayout, parts: &[Part], key: u64, value: &[u8]) {
        self.keys.push(key);
        for (bytes, part) in self.parts.iter_mut().zip(parts) {
            let start = bytes.len();
            bytes.resize(start + part.row_bytes(), 0);
            let to = &mut bytes[start..];
            match part.source {
                Source::Stored => to.copy_from_slice(layout.stored_vector(value)),
                Source::Vector => layout.export_vector(value, to),
                Source::Scale => to.copy_from_slice(layout.stored_scale(value)),
                Source::State => layout.export_state(value, to),
                Source::LastUsed => layout.export_uses(value, |uses| uses.last, to),
                Source::Uses => layout.export_uses(value, |uses| uses.count, to),
            }
        }
    }

    /// Sorts the rows by key.
    pub(crate) fn sort(&mut self, parts: &[Part]) {
        if self.keys.is_sorted() {
            return;
        }
        let mut order: Vec<u32> = (0..self.keys.len() as u32).collect();
        order.sort_unstable_by_key(|&row| self.keys[row as usize]);
        self.keys = order.iter().map(|&row| self.keys[row as usize]).collect();
        for (bytes, part) in self.parts.iter_mut().zip(parts) {
            let row_bytes = part.row_bytes();
            let mut sorted = Vec::with_capacity(bytes.len());
            for &row in &order {
                sorted.extend_from_slice(&bytes[row as usize * row_bytes..][..row_bytes]);
            }
            *bytes = sorted;
        }
    }
}

/// A batch of rows read from a file, converted to the types of a table.
#[derive(Debug, Default)]
pub(crate) struct ReadBatch {
    pub(crate) keys: Vec<u64>,
    pub(crate) vectors: Vec<f32>,
    /// Empty if the file has no state.
    pub(crate) state: Vec<f32>,
    /// Times of last use. Empty unless the file has them and the caller asked for them.
    pub(crate) last_used: Vec<u32>,
    /// Numbers of uses. Empty whenever `last_used` is.
    pub(crate) uses: Vec<u32>,
    /// The vectors as int8. Empty unless the file stores int8 vectors with scales.
    pub(crate) int8: Vec<u8>,
    /// The scale of each int8 row. Empty whenever `int8` is.
    pub(crate) scales: Vec<f32>,
}

impl ReadBatch {
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.vectors.clear();
        self.state.clear();
        self.last_used.clear();
        self.uses.clear();
        self.int8.clear();
        self.scales.clear();
    }

    /// Returns a row in the encoding of an int8 table: its bytes and its scale. `None` if the file
    /// has no int8 rows, or if an int8 table can't store this row. Files of other programs may
    /// contain the value -128 or a negative scale.
    pub(crate) fn int8_row(&self, row: usize, dim: usize) -> Option<(&[u8], f32)> {
        let scale = *self.scales.get(row)?;
        let bytes = &self.int8[row * dim..][..dim];
        let storable =
            scale.is_finite() && scale >= 0.0 && !bytes.contains(&i8::MIN.cast_unsigned());
        storable.then_some((bytes, scale))
    }
}

/// The optional parts that the caller wants to read in addition to the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) state: bool,
    /// Also read each row's time of last use and number of uses.
    pub(crate) uses: bool,
}

impl Wanted {
    /// Asks for the vectors only.
    pub(crate) const NOTHING: Self = Self { state: false, uses: false };
}

/// An opened file of rows whose header was checked.
pub(crate) trait RowFile {
    fn rows(&self) -> u64;

    /// Number of values in a vector.
    fn columns(&self) -> usize;

    /// True if the file stores the rows' keys. Otherwise a row's position gives its key.
    fn has_keys(&self) -> bool;

    /// Number of state values in a row; `None` if the file has no state.
    fn state_columns(&self) -> Option<usize>;

    /// True if the file stores the rows' use counts and times of last use.
    fn has_uses(&self) -> bool;

    /// Reads at most `count` further rows into `batch`, which must be empty. At the end of the file
    /// the batch stays empty.
    fn read_batch(&mut self, count: usize, batch: &mut ReadBatch) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Optimizer;
    use crate::row::config::TableConfig;

    #[test]
    fn sorting_moves_every_part_with_its_key() {
        let config = TableConfig::new(1).optimizer(Optimizer::adagrad(0.1));
        let layout = RowLayout::new("t", &config);
        let parts = parts_of(&layout, FileFormat::Npy, true);
        let mut batch = RowBatch::new(&parts);
        for key in [3_u64, 1, 2] {
            let value: Vec<u8> = [key as f32, -(key as f32)].map(f32::to_le_bytes).concat();
            batch.push(&layout, &parts, key, &value);
        }
        batch.sort(&parts);
        assert_eq!(batch.keys, [1, 2, 3]);
        assert_eq!(batch.parts[0], [1.0_f32, 2.0, 3.0].map(f32::to_le_bytes).concat());
        assert_eq!(batch.parts[1], [-1.0_f32, -2.0, -3.0].map(f32::to_le_bytes).concat());
    }

    #[test]
    fn a_batch_is_bounded_in_rows_and_bytes() {
        assert_eq!(rows_per_batch(1), BATCH_ROWS_MAX);
        assert_eq!(rows_per_batch(4096), BATCH_BYTES / 4096);
        assert_eq!(rows_per_batch(usize::MAX), 1);
    }
}
