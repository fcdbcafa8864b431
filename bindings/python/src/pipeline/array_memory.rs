//! The arrays of a batch, in the memory that the feed wrote.
//!
//! An array refers to its memory by a pointer, and to a Python object that owns the memory: its
//! *base*. The base here is an [`ArrayMemory`]. Python drops it when neither the array nor a slice,
//! a tensor or an Arrow buffer of the array is left, and its drop gives the memory back to the
//! feed. So the feed writes into the memory only when no Python object can read it.
//!
//! The only `unsafe` block of this module makes an array of the memory of its base.

use embank_pipeline::{Batch, Dtype, MatrixBuffer, MatrixInfo};
use numpy::ndarray::ArrayViewMutD;
use numpy::{Element, PyArrayDyn};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// Owns the memory of an array. It has no methods, so only its drop uses the memory besides the
/// array.
#[pyclass(name = "ArrayMemory", module = "embank.pipeline")]
#[derive(Debug)]
struct ArrayMemory(MatrixBuffer);

/// A batch as Python's `Batch`. The arrays own the memory that the pipeline wrote.
pub(super) fn batch_of_arrays<'py>(py: Python<'py>, batch: Batch) -> PyResult<Bound<'py, PyAny>> {
    static BATCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let rows = batch.rows();
    let shapes: Vec<_> =
        batch.infos().iter().map(|info| (info.name.clone(), shape(rows, info))).collect();
    let found = PyDict::new(py);
    for ((name, shape), buffer) in shapes.into_iter().zip(batch.into_buffers()) {
        match buffer.dtype() {
            Dtype::F32 => found.set_item(name, array::<f32>(py, buffer, shape)?)?,
            Dtype::I32 => found.set_item(name, array::<i32>(py, buffer, shape)?)?,
            Dtype::I64 => found.set_item(name, array::<i64>(py, buffer, shape)?)?,
            Dtype::Bits32 => found.set_item(name, array::<u32>(py, buffer, shape)?)?,
            Dtype::U8 => found.set_item(name, array::<u8>(py, buffer, shape)?)?,
            _ => unreachable!("there is an array for every dtype"),
        }
    }
    BATCH.import(py, "embank.pipeline", "Batch")?.call1((found,))
}

/// The shape of an output's array.
fn shape(rows: usize, info: &MatrixInfo) -> Vec<usize> {
    [rows].into_iter().chain(info.shape.iter().copied()).collect()
}

/// A matrix as an array that the caller may change. The array owns the buffer.
#[expect(unsafe_code, reason = "the array keeps its memory alive")]
fn array<T: Element + bytemuck::Pod>(
    py: Python<'_>,
    buffer: MatrixBuffer,
    shape: Vec<usize>,
) -> PyResult<Bound<'_, PyArrayDyn<T>>> {
    let base = Bound::new(py, ArrayMemory(buffer))?;
    let mut memory = base.borrow_mut();
    // A mutable view, because Python may write to the array.
    let values = bytemuck::cast_slice_mut(memory.0.as_bytes_mut());
    let view = ArrayViewMutD::from_shape(shape, values);
    let view = view.expect("a matrix has the values of its shape");
    // SAFETY: the memory must be valid, and must not move, until `base` is dropped. `base` owns the
    // memory, and nothing borrows its content after this function.
    Ok(unsafe { PyArrayDyn::borrow_from_array(&view, base.clone().into_any()) })
}
