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
}

/// Arrays that together are a table's rows.
#[derive(Debug)]
pub(crate) struct TensorRows {
    /// None: row i is that of key i.
    keys: Option<Tensor>,
    vectors: Tensor,
    /// What each row's values are multiplied with.
    scales: Option<Tensor>,
    state: Option<Tensor>,
    next: u64,
    bytes: Vec<u8>,
}

impl TensorRows {
    /// # Errors
    /// The arrays do not fit each other, or hold something else than they should.
    pub(crate) fn new(
        keys: Option<Tensor>,
        vectors: Tensor,
        scales: Option<Tensor>,
        state: Option<Tensor>,
    ) -> Result<Self> {
        let refuse = |tensor: &Tensor, what: &str| {
            let found = format!(
                "{} is {} of {} rows and {} columns",
                tensor.name,
                tensor.element.name(),
                tensor.rows,
                tensor.columns
            );
            Err(unreadable(&tensor.path, format!("{found}; {what}")))
        };
        let scaled = vectors.element == Element::I8;
        if !(vectors.element.is_float() || scaled && scales.is_some()) {
            return refuse(
                &vectors,
                "vectors are f64, f32, f16, bf16, or i8 beside a tensor `scales`",
            );
        }
        if let Some(keys) = &keys
            && (!keys.element.is_key() || keys.columns != 1)
        {
            return refuse(keys, "keys are one column of u64, i64, u32 or i32");
        }
        let scales = scales.filter(|_| scaled);
        if let Some(scales) = &scales
            && (!scales.element.is_float() || scales.columns != 1)
        {
            return refuse(scales, "scales are one column of floats");
        }
        if let Some(state) = &state
            && !state.element.is_float()
        {
            return refuse(state, "state is of floats");
        }
        for tensor in [&keys, &scales, &state].into_iter().flatten() {
            if tensor.rows != vectors.rows {
                return refuse(tensor, &format!("{} has {} rows", vectors.name, vectors.rows));
            }
        }
        Ok(Self { keys, vectors, scales, state, next: 0, bytes: Vec::new() })
    }
}

impl RowFile for TensorRows {
    fn rows(&self) -> u64 {
        self.vectors.rows
    }

    fn columns(&self) -> usize {
        self.vectors.columns
    }

    fn state_columns(&self) -> Option<usize> {
        self.state.as_ref().map(|state| state.columns)
    }

    fn read_batch(&mut self, count: usize, batch: &mut ReadBatch) -> Result<()> {
        let first = self.next;
        let count = (self.vectors.rows - first).min(count as u64) as usize;
        if count == 0 {
            return Ok(());
        }
        match &self.keys {
            Some(keys) => {
                keys.read(first, count, &mut self.bytes)?;
                keys.element.append_keys(&self.bytes, &mut batch.keys);
            }
            None => batch.keys.extend(first..first + count as u64),
        }
        self.vectors.read(first, count, &mut self.bytes)?;
        self.vectors.element.append_f32(&self.bytes, &mut batch.vectors);
        if let Some(scales) = &self.scales {
            batch.int8.extend_from_slice(&self.bytes);
            scales.read(first, count, &mut self.bytes)?;
            scales.element.append_f32(&self.bytes, &mut batch.scales);
            let rows = batch.vectors.chunks_exact_mut(self.vectors.columns);
            for (row, factor) in rows.zip(&batch.scales) {
                row.iter_mut().for_each(|value| *value *= factor);
            }
        }
        if let Some(state) = &self.state {
            state.read(first, count, &mut self.bytes)?;
            state.element.append_f32(&self.bytes, &mut batch.state);
        }
        self.next += count as u64;
        Ok(())
    }
}
