//! Columns that lie in files as plain arrays, one after another or each in a file of its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::batch::{Part, ReadBatch, RowBatch, RowFile};
use super::element::Element;
use super::output::OutputFile;
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
    /// Writes a batch: from row `first` on, or each row at its key in a dense table, for which the batch must be
    /// sorted.
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

    /// Rows whose keys follow one another go out together.
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

/// An array that is there to be read, all of it within its file.
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
}

impl Tensor {
    fn read(&self, first: u64, count: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let row_bytes = self.columns * self.element.bytes();
        bytes.resize(count * row_bytes, 0);
        let read = self.file.read_exact_at(bytes, self.offset + first * row_bytes as u64);
        read.map_err(|error| io_error("read", &self.path, error))
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

    /// An error that says what the array is, and `what` it should be.
    fn refuse<T>(&self, what: &str) -> Result<T> {
        let Self { name, element, rows, columns, .. } = self;
        let found = format!("{name} is {} of {rows} rows and {columns} columns", element.name());
        Err(unreadable(&self.path, format!("{found}; {what}")))
    }
}

/// Arrays that together are a table's rows.
#[derive(Debug)]
pub(crate) struct Arrays {
    /// None: row i is that of key i.
    pub(crate) keys: Option<Tensor>,
    pub(crate) vectors: Tensor,
    /// What each row's values are multiplied with.
    pub(crate) scales: Option<Tensor>,
    pub(crate) state: Option<Tensor>,
    pub(crate) uses: Option<UsesArrays>,
}

/// Arrays that tell when each row was used last, and how often.
#[derive(Debug)]
pub(crate) struct UsesArrays {
    pub(crate) last_used: Tensor,
    pub(crate) uses: Tensor,
}

/// A table's rows out of arrays, batch by batch.
#[derive(Debug)]
pub(crate) struct TensorRows {
    arrays: Arrays,
    next: u64,
    bytes: Vec<u8>,
}

impl TensorRows {
    /// # Errors
    /// The arrays do not fit each other, or hold something else than they should.
    pub(crate) fn new(mut arrays: Arrays) -> Result<Self> {
        let scaled = arrays.vectors.element == Element::I8;
        if !(arrays.vectors.element.is_float() || scaled && arrays.scales.is_some()) {
            return arrays
                .vectors
                .refuse("vectors are f64, f32, f16, bf16, or i8 beside a tensor `scales`");
        }
        arrays.scales = arrays.scales.filter(|_| scaled);
        arrays.check()?;
        Ok(Self { arrays, next: 0, bytes: Vec::new() })
    }
}

impl Arrays {
    fn check(&self) -> Result<()> {
        let Self { keys, vectors, scales, state, uses } = self;
        if let Some(keys) = keys
            && (!keys.element.is_key() || keys.columns != 1)
        {
            return keys.refuse("keys are one column of u64, i64, u32 or i32");
        }
        if let Some(scales) = scales
            && (!scales.element.is_float() || scales.columns != 1)
        {
            return scales.refuse("scales are one column of floats");
        }
        if let Some(state) = state
            && !state.element.is_float()
        {
            return state.refuse("state is of floats");
        }
        let uses = uses.iter().flat_map(|arrays| [&arrays.last_used, &arrays.uses]);
        for tensor in uses.clone() {
            if tensor.element != Element::U32 || tensor.columns != 1 {
                return tensor
                    .refuse("times of last use and numbers of uses are one column of u32");
            }
        }
        for tensor in [keys, scales, state].into_iter().flatten().chain(uses) {
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
            Some(keys) => {
                keys.read(first, count, bytes)?;
                keys.element.append_keys(bytes, &mut batch.keys);
            }
            None => batch.keys.extend(first..first + count as u64),
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
