//! NumPy arrays in and out.
//!
//! An argument that is a C-contiguous, aligned array of the right dtype is borrowed as a slice. Any
//! other argument is converted once. Results are arrays that [`Rows`] makes.

use embank::UniqueKeys;
use numpy::{
    PyArray1, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2,
    PyReadwriteArray2, PyUntypedArray, PyUntypedArrayMethods, dtype,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyList, PySlice, PyTuple};

/// Keys as Python passed them: borrowed, or converted once.
#[derive(Debug)]
pub(crate) enum Keys<'py> {
    /// Values of dtype int64. A negative value stands for the unsigned key with the same 64 bits.
    Signed(PyReadonlyArray1<'py, i64>),
    /// Values of dtype uint64.
    Unsigned(PyReadonlyArray1<'py, u64>),
}

impl<'py> Keys<'py> {
    /// Reads `object` as a batch of keys.
    ///
    /// # Errors
    /// `TypeError` unless `object` holds integers, `ValueError` unless it is 1-D.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::named("keys", object)
    }

    /// Reads integers that count or number something, with the rules of [`new`](Self::new). A
    /// negative one stands for no other number. Errors call them `what`.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new), and `ValueError` for a negative integer.
    pub(crate) fn numbers(what: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let numbers = Self::named(what, object)?;
        if let Self::Signed(array) = &numbers
            && let Some(negative) = array.as_slice()?.iter().find(|&&number| number < 0)
        {
            return Err(PyValueError::new_err(format!(
                "{what} must not be negative, found {negative}"
            )));
        }
        Ok(numbers)
    }

    /// Reads integers that are no keys of a table but may have 64 bits, with the rules of
    /// [`new`](Self::new). Errors call them `what`.
    pub(crate) fn named(what: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let array = as_array(object)?;
        let kind = array.dtype().kind();
        // NumPy turns an empty list into an array of float64. The array holds no value that is not
        // an integer, so this function accepts it.
        let empty_list = array.is_empty() && !object.is_instance_of::<PyUntypedArray>();
        if !matches!(kind, b'i' | b'u') && !empty_list {
            return Err(PyTypeError::new_err(format!(
                "{what} must be integers (int64 and uint64 are taken as they are), not {}",
                array.dtype()
            )));
        }
        // Checked before a conversion copies the array.
        embank::check_batch(array.len())
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        if array.ndim() != 1 {
            return Err(PyValueError::new_err(format!(
                "{what} must be 1-D, not {}-D with shape {}: use {what}.reshape(-1)",
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

    /// The keys, one for each row of the batch.
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
    let array = of_float32(what, object)?;
    if array.shape() != [keys, dim] {
        return Err(PyValueError::new_err(format!(
            "{what} must have shape ({keys}, {dim}), a row of dim {dim} for each of {keys} keys; \
             found shape {}",
            shape_text(array.shape())
        )));
    }
    let array = contiguous(&array, dtype::<f32>(object.py()))?;
    Ok(array.cast_into::<PyArray2<f32>>()?.try_readonly()?)
}

/// Reads `object` as one float32 for each of `keys` keys.
///
/// # Errors
/// The errors of [`values`].
pub(crate) fn weights<'py>(
    object: &Bound<'py, PyAny>,
    keys: usize,
) -> PyResult<PyReadonlyArray1<'py, f32>> {
    let array = of_float32("weights", object)?;
    if array.shape() != [keys] {
        return Err(PyValueError::new_err(format!(
            "weights must have shape ({keys},), one for each key; found shape {}",
            shape_text(array.shape())
        )));
    }
    let array = contiguous(&array, dtype::<f32>(object.py()))?;
    Ok(array.cast_into::<PyArray1<f32>>()?.try_readonly()?)
}

/// Returns `object` as an array that `astype(float32)` converts number by number: an array of
/// float32, or the array of a list or tuple of numbers.
///
/// # Errors
/// `TypeError` for an array of another dtype, and for a list of other objects. NumPy would convert
/// `None` to NaN, parse text, and drop the imaginary part of a complex number.
fn of_float32<'py>(what: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let array = as_array(object)?;
    let found = array.dtype();
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        if matches!(found.kind(), b'f' | b'i' | b'u') {
            return Ok(array);
        }
        return Err(PyTypeError::new_err(format!("{what} must be numbers, not {found}")));
    }
    if found.kind() == b'f' && found.itemsize() == size_of::<f32>() {
        return Ok(array);
    }
    Err(PyTypeError::new_err(format!(
        "{what} must be float32, not {found}: use {what}.astype(numpy.float32)"
    )))
}

/// An array of rows, float32 `(keys, dim)`, that the store fills: a fresh one, or the caller's
/// `out`.
///
/// A fresh array is made with `numpy.zeros`. The store takes a `&mut [f32]`, which may not point to
/// memory that was never written, so an array from `numpy.empty` would not be sound. Zeroing takes
/// less than 1% of a get's time.
#[derive(Debug)]
pub(crate) struct Rows<'py>(PyReadwriteArray2<'py, f32>);

impl<'py> Rows<'py> {
    /// The rows of `out`, or a fresh array without `out`.
    ///
    /// # Errors
    /// The errors of [`given`](Self::given), and `MemoryError` if a fresh array can't be allocated.
    pub(crate) fn new(
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
        keys: usize,
        dim: usize,
    ) -> PyResult<Self> {
        if let Some(out) = out {
            let array = Self::given(out, dim)?;
            if array.shape()[0] != keys {
                return Err(out_shape(&format!("{keys}"), dim, array.shape()));
            }
            return Self::borrow(array);
        }
        static ZEROS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let zeros = ZEROS.import(py, "numpy", "zeros")?;
        let array = zeros.call1(((keys, dim), dtype::<f32>(py)))?;
        Ok(Rows(array.cast_into::<PyArray2<f32>>()?.try_readwrite()?))
    }

    /// The first `keys` rows of `out`, which may have more rows, or a fresh array without `out`.
    pub(crate) fn first_of(
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
        keys: usize,
        dim: usize,
    ) -> PyResult<Self> {
        let Some(out) = out else { return Self::new(py, None, keys, dim) };
        let array = Self::given(out, dim)?;
        if array.shape()[0] < keys {
            return Err(out_shape(&format!("{keys} or more"), dim, array.shape()));
        }
        let end = isize::try_from(keys).map_err(|_| PyValueError::new_err("too many keys"))?;
        let first = array.get_item(PySlice::new(py, 0, end, 1))?;
        Self::borrow(first.cast_into::<PyArray2<f32>>()?)
    }

    /// Returns `out` as an array if the store can write rows of `dim` values directly into it.
    ///
    /// # Errors
    /// `TypeError` unless `out` is a NumPy array of float32. `ValueError` unless it is C-contiguous
    /// and has rows of `dim` values.
    fn given(out: &Bound<'py, PyAny>, dim: usize) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let array = out.cast::<PyUntypedArray>().map_err(|_| {
            PyTypeError::new_err(format!(
                "out must be a NumPy array of float32, not {}; of a torch tensor in host memory, tensor.numpy()",
                out.get_type()
            ))
        })?;
        if !array.dtype().is_equiv_to(&dtype::<f32>(out.py())) {
            return Err(PyTypeError::new_err(format!(
                "out must be float32, not {}",
                array.dtype()
            )));
        }
        if array.ndim() != 2 || array.shape()[1] != dim {
            return Err(out_shape("keys", dim, array.shape()));
        }
        if !array.is_c_contiguous() || !array.is_aligned() {
            return Err(PyValueError::new_err(
                "out must be C-contiguous: the store writes rows to it, one behind the other",
            ));
        }
        Ok(array.clone().cast_into::<PyArray2<f32>>()?)
    }

    fn borrow(array: Bound<'py, PyArray2<f32>>) -> PyResult<Self> {
        array.try_readwrite().map(Rows).map_err(|error| {
            PyValueError::new_err(format!(
                "out can't be written to: {error}; it must be writable and share no memory with the keys"
            ))
        })
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

/// The distinct keys, and for each key of the batch its place among them.
pub(crate) fn unique<'py>(
    py: Python<'py>,
    unique: &UniqueKeys,
) -> (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<i64>>) {
    let inverse = unique.inverse().iter().map(|&place| i64::from(place));
    (PyArray1::from_slice(py, unique.keys()), PyArray1::from_iter(py, inverse))
}

fn out_shape(keys: &str, dim: usize, found: &[usize]) -> PyErr {
    PyValueError::new_err(format!(
        "out must have shape ({keys}, {dim}); found shape {}",
        shape_text(found)
    ))
}

/// Loads NumPy's functions and the table of borrowed arrays. The crate `numpy` loads them at their
/// first use, runs Python code for it, and panics if that raises. In a call, Ctrl-C would then be a
/// panic and no `KeyboardInterrupt`. The package therefore loads them when it is imported.
///
/// # Errors
/// The error of importing NumPy.
pub(crate) fn load_numpy(py: Python<'_>) -> PyResult<()> {
    py.import("numpy")?;
    let array = PyArray1::<f32>::zeros(py, [1], false);
    drop(array.try_readonly()?);
    drop(array.try_readwrite()?);
    Ok(())
}

/// Returns `object` as a NumPy array. Returns a NumPy array itself. The result shares the memory of
/// an object with `__array__` or `__dlpack__`, and is a copy of any other object.
fn as_array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let numpy_way = "__array__";
    let dlpack = "__dlpack__";
    if !object.hasattr(numpy_way)? && object.hasattr(dlpack)? {
        let from_dlpack = FROM_DLPACK.import(object.py(), "numpy", "from_dlpack")?;
        return Ok(from_dlpack.call1((object,))?.cast_into::<PyUntypedArray>()?);
    }
    let asarray = ASARRAY.import(object.py(), "numpy", "asarray")?;
    Ok(asarray.call1((object,))?.cast_into::<PyUntypedArray>()?)
}

/// Returns `array` itself if a slice of `wanted` can be borrowed from it, otherwise a converted
/// copy.
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
