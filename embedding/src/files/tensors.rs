//! Columns that lie in files as plain arrays, one after another or each in its own file.

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

/// Where an array goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Which of the files.
    pub(crate) file: usize,
    /// Its first byte.
    pub(crate) offset: u64,
}

/// Arrays that are being written.
#[derive(Debug)]
pub(crate) struct TensorWriter {
    pub(crate) files: Vec<OutputFile>,
    /// None for a dense table.
    pub(crate) keys: Option<Place>,
    /// Where each part goes.
    pub(crate) parts: Vec<(Part, Place)>,
}

impl TensorWriter {
    /// Writes a batch from row `first` on. In a dense table writes each row at its key, and the
    /// batch must be sorted.
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

    /// Rows with consecutive keys are written together.
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

/// A readable array that lies in its file completely.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) file: Arc<File>,
    pub(crate) path: PathBuf,
    /// As errors call it.
    pub(crate) name: String,
    pub(crate) element: Element,
    pub(crate) rows: u64,
    pub(crate) columns: usize,
    /// Its first byte.
    pub(crate) offset: u64,
    /// True if the array lies column after column, in Fortran's order.
    pub(crate) is_column_major: bool,
}

impl Tensor {
    /// Reads rows, one after another.
    fn read(&self, first: u64, count: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let row_bytes = self.columns * self.element.bytes();
        bytes.resize(count * row_bytes, 0);
        if self.is_column_major {
            return self.read_columns(first, count, bytes);
        }
        let read = self.file.read_exact_at(bytes, self.offset + first * row_bytes as u64);
        read.map_err(|error| io_error("read", &self.path, error))
    }

    /// Reads a piece of each column, and puts its values into their rows.
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

    /// An error that says what the array is, and what it should be.
    fn refuse<T>(&self, what: &str) -> Result<T> {
        let Self { name, element, rows, columns, .. } = self;
        let found = format!("{name} is {} of {rows} rows and {columns} columns", element.name());
        Err(unreadable(&self.path, format!("{found}; {what}")))
    }
}

/// Whose rows a file's are.
#[derive(Debug)]
pub(crate) enum Keys {
    /// Row i is that of key i of the array.
    Array(Tensor),
    /// Row i is that of this key plus i.
    From(u64),
}

/// Arrays that make up a table's rows.
#[derive(Debug)]
pub(crate) struct Arrays {
    pub(crate) keys: Keys,
    pub(crate) vectors: Tensor,
    /// One factor for each row, by which its values are multiplied.
    pub(crate) scales: Option<Tensor>,
    pub(crate) state: Option<Tensor>,
    pub(crate) uses: Option<UsesArrays>,
}

/// Arrays with the times of the rows' last uses and the numbers of their uses.
#[derive(Debug)]
pub(crate) struct UsesArrays {
    pub(crate) last_used: Tensor,
    pub(crate) uses: Tensor,
}

/// A table's rows from arrays, batch by batch.
#[derive(Debug)]
pub(crate) struct TensorRows {
    arrays: Arrays,
    next: u64,
    bytes: Vec<u8>,
}

impl TensorRows {
    /// # Errors
    /// The arrays do not fit each other, or have a wrong content.
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
