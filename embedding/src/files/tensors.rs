//! Reads and writes columns that are plain arrays, several in one file or each in its own file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::batch::{Part, ReadBatch, RowBatch, RowFile};
use super::element::Element;
use super::output::OutputFile;
use super::selection::{KEY_CURE, append_positions, check_first_key};
use super::{io_error, unreadable};
use crate::error::Result;

/// The place of an array that is being written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Index of the file in `TensorWriter::files`.
    pub(crate) file: usize,
    /// Offset of the array's first byte in the file.
    pub(crate) offset: u64,
}

/// Writes a table's arrays.
#[derive(Debug)]
pub(crate) struct TensorWriter {
    pub(crate) files: Vec<OutputFile>,
    /// Place of the keys. `None` in a dense table, which stores no keys.
    pub(crate) keys: Option<Place>,
    /// Each part and its place.
    pub(crate) parts: Vec<(Part, Place)>,
}

impl TensorWriter {
    /// Writes a batch to the rows from `first` on. In a dense table each row goes to the position
    /// of its key instead; the batch must be sorted.
    pub(crate) fn write(&mut self, first: u64, batch: &RowBatch) -> Result<()> {
        let Some(place) = self.keys else { return self.write_dense(batch) };
        let keys: Vec<u8> = batch.keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        self.files[place.file].write_at(&keys, place.offset + first * 8)?;
        for ((part, place), bytes) in self.parts.iter().zip(&batch.parts) {
            let offset = place.offset + first * part.row_bytes() as u64;
            self.files[place.file].write_at(bytes, offset)?;
        }
        Ok(())
    }

    /// Writes each run of consecutive keys with one write per part.
    fn write_dense(&self, batch: &RowBatch) -> Result<()> {
        let mut start = 0;
        for run in batch.keys.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            for ((part, place), bytes) in self.parts.iter().zip(&batch.parts) {
                let row_bytes = part.row_bytes();
                let bytes = &bytes[start * row_bytes..][..run.len() * row_bytes];
                let offset = place.offset + run[0] * row_bytes as u64;
                self.files[place.file].write_at(bytes, offset)?;
            }
            start += run.len();
        }
        Ok(())
    }
}

/// An array in a file. Its bytes are known to lie within the file.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) file: Arc<File>,
    pub(crate) path: PathBuf,
    /// The array's name in error messages.
    pub(crate) name: String,
    pub(crate) element: Element,
    pub(crate) rows: u64,
    pub(crate) columns: usize,
    /// Offset of the array's first byte in the file.
    pub(crate) offset: u64,
    /// True if the array is stored column after column, in Fortran's order.
    pub(crate) is_column_major: bool,
}

impl Tensor {
    /// Reads `count` rows from row `first` on.
    fn read(&self, first: u64, count: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let row_bytes = self.columns * self.element.bytes();
        bytes.resize(count * row_bytes, 0);
        if self.is_column_major {
            return self.read_columns(first, count, bytes);
        }
        let read = self.file.read_exact_at(bytes, self.offset + first * row_bytes as u64);
        read.map_err(|error| io_error("read", &self.path, error))
    }

    /// Reads rows from an array in column order: reads a piece of each column and spreads its
    /// values over the rows.
    fn read_columns(&self, first: u64, count: usize, bytes: &mut [u8]) -> Result<()> {
        let value_bytes = self.element.bytes();
        let row_bytes = self.columns * value_bytes;
        let mut column = vec![0; count * value_bytes];
        for i in 0..self.columns {
            let place = (i as u64 * self.rows + first) * value_bytes as u64;
            let read = self.file.read_exact_at(&mut column, self.offset + place);
            read.map_err(|error| io_error("read", &self.path, error))?;
            for (row, value) in column.chunks_exact(value_bytes).enumerate() {
                bytes[row * row_bytes + i * value_bytes..][..value_bytes].copy_from_slice(value);
            }
        }
        Ok(())
    }

    fn read_u32(
        &self,
        first: u64,
        count: usize,
        bytes: &mut Vec<u8>,
        values: &mut Vec<u32>,
    ) -> Result<()> {
        self.read(first, count, bytes)?;
        values.extend(bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)));
        Ok(())
    }

    /// Returns an error that says what the array is and, in `what`, what it should be.
    fn refuse<T>(&self, what: &str) -> Result<T> {
        let Self { name, element, rows, columns, .. } = self;
        let found = format!("{name} is {} of {rows} rows and {columns} columns", element.name());
        Err(unreadable(&self.path, format!("{found}; {what}")))
    }
}

/// The source of the rows' keys.
#[derive(Debug)]
pub(crate) enum Keys {
    /// The array holds the keys: its entry i is the key of row i.
    Array(Tensor),
    /// Keys by position: row i is the row of this key plus i.
    From(u64),
}

/// The arrays that together form a table's rows.
#[derive(Debug)]
pub(crate) struct Arrays {
    pub(crate) keys: Keys,
    pub(crate) vectors: Tensor,
    /// One factor per row. The row's values are multiplied by it.
    pub(crate) scales: Option<Tensor>,
    pub(crate) state: Option<Tensor>,
    pub(crate) uses: Option<UsesArrays>,
}

/// The arrays with each row's time of last use and number of uses.
#[derive(Debug)]
pub(crate) struct UsesArrays {
    pub(crate) last_used: Tensor,
    pub(crate) uses: Tensor,
}

/// Reads a table's rows from arrays, batch by batch.
#[derive(Debug)]
pub(crate) struct TensorRows {
    arrays: Arrays,
    next: u64,
    bytes: Vec<u8>,
}

impl TensorRows {
    /// # Errors
    /// The arrays have different lengths, or one of them has an unsuitable type or shape.
    pub(crate) fn new(arrays: Arrays) -> Result<Self> {
        let scaled = arrays.vectors.element == Element::I8;
        if !(arrays.vectors.element.is_float() || scaled && arrays.scales.is_some()) {
            return arrays.vectors.refuse(
                "vectors are f64, f32, f16, bf16, or i8 beside a tensor `scales`; write them so, or name another \
                 tensor with `rows`",
            );
        }
        arrays.check()?;
        if let Keys::From(first) = arrays.keys {
            check_first_key(&arrays.vectors.path, first, arrays.vectors.rows)?;
        }
        Ok(Self { arrays, next: 0, bytes: Vec::new() })
    }
}

impl Arrays {
    fn check(&self) -> Result<()> {
        let Self { keys, vectors, scales, state, uses } = self;
        let keys = match keys {
            Keys::Array(keys) => Some(keys),
            Keys::From(_) => None,
        };
        if let Some(keys) = keys
            && (!keys.element.is_key() || keys.columns != 1)
        {
            return keys.refuse(&format!("keys are one column of {KEY_CURE}"));
        }
        if let Some(scales) = scales
            && (!scales.element.is_float() || scales.columns != 1)
        {
            return scales.refuse("scales are one column of floats; write them so");
        }
        if let Some(scales) = scales
            && vectors.element.is_float()
        {
            return scales.refuse(&format!(
                "scales go with vectors of i8, and {} is {}; multiply it and leave the scales out of the file, or name \
                 {:?} with `rows` to take it as it is",
                vectors.name,
                vectors.element.name(),
                vectors.name
            ));
        }
        if let Some(state) = state
            && !state.element.is_float()
        {
            return state.refuse("state is of floats; import without the state");
        }
        let uses = uses.iter().flat_map(|arrays| [&arrays.last_used, &arrays.uses]);
        for tensor in uses.clone() {
            if tensor.element != Element::U32 || tensor.columns != 1 {
                return tensor
                    .refuse("times of last use and numbers of uses are one column of u32");
            }
        }
        for tensor in [keys, scales.as_ref(), state.as_ref()].into_iter().flatten().chain(uses) {
            if tensor.rows != vectors.rows {
                return tensor.refuse(&format!("{} has {} rows", vectors.name, vectors.rows));
            }
        }
        Ok(())
    }
}

impl RowFile for TensorRows {
    fn rows(&self) -> u64 {
        self.arrays.vectors.rows
    }

    fn columns(&self) -> usize {
        self.arrays.vectors.columns
    }

    fn has_keys(&self) -> bool {
        matches!(self.arrays.keys, Keys::Array(_))
    }

    fn state_columns(&self) -> Option<usize> {
        self.arrays.state.as_ref().map(|state| state.columns)
    }

    fn has_uses(&self) -> bool {
        self.arrays.uses.is_some()
    }

    fn read_batch(&mut self, count: usize, batch: &mut ReadBatch) -> Result<()> {
        let Self { arrays, next, bytes } = self;
        let Arrays { keys, vectors, scales, state, uses } = arrays;
        let first = *next;
        let count = (vectors.rows - first).min(count as u64) as usize;
        if count == 0 {
            return Ok(());
        }
        match keys {
            Keys::Array(keys) => {
                keys.read(first, count, bytes)?;
                keys.element.append_keys(bytes, &mut batch.keys);
            }
            Keys::From(key) => append_positions(*key + first, count, &mut batch.keys),
        }
        vectors.read(first, count, bytes)?;
        vectors.element.append_f32(bytes, &mut batch.vectors);
        if let Some(scales) = scales {
            batch.int8.extend_from_slice(bytes);
            scales.read(first, count, bytes)?;
            scales.element.append_f32(bytes, &mut batch.scales);
            let rows = batch.vectors.chunks_exact_mut(vectors.columns);
            for (row, factor) in rows.zip(&batch.scales) {
                row.iter_mut().for_each(|value| *value *= factor);
            }
        }
        if let Some(state) = state {
            state.read(first, count, bytes)?;
            state.element.append_f32(bytes, &mut batch.state);
        }
        if let Some(UsesArrays { last_used, uses }) = uses {
            last_used.read_u32(first, count, bytes, &mut batch.last_used)?;
            uses.read_u32(first, count, bytes, &mut batch.uses)?;
        }
        *next += count as u64;
        Ok(())
    }
}
