//! Batches of rows on their way into a file and out of one.

use super::element::Element;
use crate::error::Result;
use crate::row::RowLayout;

/// What a batch holds in memory, in bytes, if a row is not longer.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_ROWS_MAX: usize = 1 << 16;

/// How many rows of so many bytes are gone through at a time.
pub(crate) fn rows_per_batch(row_bytes: usize) -> usize {
    (BATCH_BYTES / row_bytes.max(1)).clamp(1, BATCH_ROWS_MAX)
}

/// What of a row's value a part is.
#[derive(Debug, Clone, Copy)]
enum Source {
    Vector,
    State,
}

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
}

/// The parts of a table's rows: `rows`, and `state` if it is wanted and there is one.
pub(crate) fn parts_of(layout: &RowLayout, state: bool) -> Vec<Part> {
    let element = Element::F32;
    let mut parts =
        vec![Part { name: "rows", element, columns: layout.dim, source: Source::Vector }];
    let columns = layout.state_values();
    if state && columns > 0 {
        parts.push(Part { name: "state", element, columns, source: Source::State });
    }
    parts
}

/// Rows on their way into a file.
#[derive(Debug, Default)]
pub(crate) struct RowBatch {
    pub(crate) keys: Vec<u64>,
    /// Part by part, row after row.
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
                Source::Vector => layout.export_vector(value, to),
                Source::State => layout.export_state(value, to),
            }
        }
    }

    /// Puts the rows in order of their keys.
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

/// Rows on their way out of a file, converted.
#[derive(Debug, Default)]
pub(crate) struct ReadBatch {
    pub(crate) keys: Vec<u64>,
    pub(crate) vectors: Vec<f32>,
    /// Empty where the file has none.
    pub(crate) state: Vec<f32>,
}

impl ReadBatch {
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.vectors.clear();
        self.state.clear();
    }
}

/// A file of rows whose header has been read and checked.
pub(crate) trait RowFile {
    fn rows(&self) -> u64;

    /// Values per vector.
    fn columns(&self) -> usize;

    /// Values of state per row; none where the file has no state.
    fn state_columns(&self) -> Option<usize>;

    /// Reads the next rows, `count` at most, into an empty batch; nothing is left then if it stays empty.
    fn read_batch(&mut self, count: usize, batch: &mut ReadBatch) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TableConfig;
    use crate::optimizer::Optimizer;

    #[test]
    fn sorting_moves_every_part_with_its_key() {
        let config = TableConfig::new(1).optimizer(Optimizer::adagrad(0.1));
        let layout = RowLayout::new("t", &config);
        let parts = parts_of(&layout, true);
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
