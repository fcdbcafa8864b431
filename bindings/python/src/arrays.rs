//! NumPy arrays in and out.
//!
//! In: a C-contiguous, aligned array of the right dtype is borrowed as a slice; anything else is
//! converted once. Out: see [`Rows`].

use numpy::{
    PyArray1, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2,
    PyReadwriteArray2, PyUntypedArray, PyUntypedArrayMethods, dtype,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyList, PyTuple};

/// Keys as Python passed them: borrowed, or converted once.
#[derive(Debug)]
pub(crate) enum Keys<'py> {
    /// int64, whose bits are taken for the key's.
    Signed(PyReadonlyArray1<'py, i64>),
    /// uint64.
    Unsigned(PyReadonlyArray1<'py, u64>),
}

impl<'py> Keys<'py> {
    /// Reads `object` as a batch of keys.
    ///
    /// # Errors
    /// `TypeError` unless it holds integers, `ValueError` unless it is 1-D.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let array = as_array(object)?;
        let kind = array.dtype().kind();
        // An empty list becomes an array of float64, though it holds nothing that is no integer.
        let empty_list = array.is_empty() && !object.is_instance_of::<PyUntypedArray>();
        if !matches!(kind, b'i' | b'u') && !empty_list {
            return Err(PyTypeError::new_err(format!(
                "keys must be integers (int64 and uint64 are taken as they are), not {}",
                array.dtype()
            )));
        }
        if array.ndim() != 1 {
            return Err(PyValueError::new_err(format!(
                "keys must be 1-D, not {}-D with shape {}: use keys.reshape(-1)",
                array.ndim(),
                shape_text(array.shape())
            )));
        }
        if kind == b'u' {
            let array = contiguous(&array, dtype::<u64>(py))?;
            Ok(Keys::Unsigned(array.cast_into::<PyArray1<u64>>()?.try_readonly()?))
        } else {
            let array = contiguous(&array, dtype::<i64>(py))?;
            Ok(Keys::Signed(array.cast_into::<PyArray1<i64>>()?.try_readonly()?))
        }
    }

    /// The keys, one for each place of the batch.
    pub(crate) fn as_slice(&self) -> PyResult<&[u64]> {
        match self {
            Keys::Signed(array) => Ok(bytemuck::cast_slice(array.as_slice()?)),
            Keys::Unsigned(array) => Ok(array.as_slice()?),
        }
    }
}

/// Reads `object` as float32 values of shape `(keys, dim)`.
///
/// # Errors
/// `TypeError` for an array of another dtype (lists of numbers are converted), `ValueError` for
/// another shape.
pub(crate) fn values<'py>(
    what: &str,
    object: &Bound<'py, PyAny>,
    keys: usize,
    dim: usize,
) -> PyResult<PyReadonlyArray2<'py, f32>> {
    let py = object.py();
    let array = as_array(object)?;
    let is_list = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
    let found = array.dtype();
    let is_float32 = found.kind() == b'f' && found.itemsize() == size_of::<f32>();
    if !is_list && !is_float32 {
        return Err(PyTypeError::new_err(format!(
            "{what} must be float32, not {found}: use {what}.astype(numpy.float32)"
        )));
    }
    if array.shape() != [keys, dim] {
        return Err(PyValueError::new_err(format!(
            "{what} must have shape ({keys}, {dim}), a row of dim {dim} for each of {keys} keys; \
             found shape {}",
            shape_text(array.shape())
        )));
    }
    let array = contiguous(&array, dtype::<f32>(py))?;
    Ok(array.cast_into::<PyArray2<f32>>()?.try_readonly()?)
}

/// A fresh array of rows, float32 `(keys, dim)`, for the store to fill.
///
/// NumPy zeroes it. The store takes a `&mut [f32]`, which may not point to memory that was never
/// written, so an array from `numpy.empty` would not be sound. It costs little: 4 of the 1,070 us that
/// a get of 4,096 rows of 16 columns took from memory.
#[derive(Debug)]
pub(crate) struct Rows<'py>(PyReadwriteArray2<'py, f32>);

impl<'py> Rows<'py> {
    /// # Errors
    /// `MemoryError` when there is no memory for it.
    pub(crate) fn new(py: Python<'py>, keys: usize, dim: usize) -> PyResult<Self> {
        static ZEROS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let zeros = ZEROS.import(py, "numpy", "zeros")?;
        let array = zeros.call1(((keys, dim), dtype::<f32>(py)))?;
        Ok(Rows(array.cast_into::<PyArray2<f32>>()?.try_readwrite()?))
    }

    /// All values, row after row.
    pub(crate) fn as_slice_mut(&mut self) -> PyResult<&mut [f32]> {
        Ok(self.0.as_slice_mut()?)
    }

    /// Ends the borrow and hands the array over.
    pub(crate) fn into_array(self) -> Bound<'py, PyArray2<f32>> {
        (**self.0).clone()
    }
}

fn as_array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let asarray = ASARRAY.import(object.py(), "numpy", "asarray")?;
    Ok(asarray.call1((object,))?.cast_into::<PyUntypedArray>()?)
}

/// `array` itself when a slice of `wanted` can be borrowed from it, else one converted copy.
fn contiguous<'py>(
    array: &Bound<'py, PyUntypedArray>,
    wanted: Bound<'py, numpy::PyArrayDescr>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    if array.is_c_contiguous() && array.is_aligned() && array.dtype().is_equiv_to(&wanted) {
        return Ok(array.clone());
    }
    let options = [("order", "C")].into_py_dict(array.py())?;
    let copy = array.call_method("astype", (wanted,), Some(&options))?;
    Ok(copy.cast_into::<PyUntypedArray>()?)
}

fn shape_text(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => {
            let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
            format!("({})", sizes.join(", "))
        }
    }
}
