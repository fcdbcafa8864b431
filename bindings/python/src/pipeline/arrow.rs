//! Batches for other libraries without a copy: Arrow's PyCapsule interface.
//!
//! An object with `__arrow_c_array__` or `__arrow_c_stream__` hands out capsules with C structs that name buffers and a
//! function that gives them back. pyarrow, polars, DuckDB and others take them.
//!
//! The one `unsafe` block of this crate is here: NumPy's memory seen as Arrow's, which keeps the array alive for as
//! long as somebody has a buffer of it. As with tensors made of the same arrays, whoever writes into one is seen in
//! all.

use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::ffi::{FFI_ArrowSchema, to_ffi};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Int32Type, Int64Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, PrimitiveArray, RecordBatchReader, StructArray,
};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::{ArrowError, Field, Fields, Schema};
use numpy::{Element, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

/// A batch for libraries of Arrow, without a copy: `pyarrow.record_batch(batch.arrow())`. Made by `Batch.arrow`.
///
/// A column for each output, of lists of as many values as the matrix has columns, none of them null.
///
/// >>> from embank.pipeline import Pipeline, criteo
/// >>> batch = next(Pipeline(criteo(100)).feed(b"1" + b"\t7" * 39 + b"\n"))
/// >>> batch.arrow()
/// <embank.pipeline.ArrowBatch, 1 rows of label, dense, sparse>
#[pyclass(name = "ArrowBatch", module = "embank.pipeline", frozen)]
#[derive(Debug)]
pub(crate) struct PyArrowBatch {
    batch: StructArray,
}

#[pymethods]
impl PyArrowBatch {
    /// Of a dict of matrices that are contiguous and aligned.
    #[new]
    fn new(arrays: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut fields = Vec::new();
        let mut columns = Vec::new();
        let mut rows = None;
        for (name, array) in arrays {
            let name: String = name.extract()?;
            let found = column::<Float32Type>(&array)
                .or_else(|| column::<Int32Type>(&array))
                .or_else(|| column::<Int64Type>(&array))
                .or_else(|| column::<UInt32Type>(&array))
                .ok_or_else(|| {
                    PyTypeError::new_err(format!(
                        "{name:?} is no matrix of float32, int32, int64 or uint32"
                    ))
                })?;
            let column = found.map_err(|what| {
                PyTypeError::new_err(format!(
                    "{name:?} {what}: np.require(array, requirements=[\"C\", \"A\"]) makes one that goes"
                ))
            })?;
            if *rows.get_or_insert(column.len()) != column.len() {
                return Err(PyTypeError::new_err(format!(
                    "{name:?} has {} rows, and others have not",
                    column.len()
                )));
            }
            fields.push(Field::new(name, column.data_type().clone(), false));
            columns.push(column);
        }
        let made = StructArray::try_new_with_length(
            Fields::from(fields),
            columns,
            None,
            rows.unwrap_or(0),
        );
        Ok(Self { batch: made.map_err(to_python)? })
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.batch.data_type()).map_err(to_python)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// A schema that is asked for is not heeded, as the interface allows: nothing is converted.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        let (array, schema) = to_ffi(&self.batch.to_data()).map_err(to_python)?;
        let schema = PyCapsule::new_with_value(py, schema, c"arrow_schema")?;
        Ok((schema, PyCapsule::new_with_value(py, array, c"arrow_array")?))
    }

    fn __len__(&self) -> usize {
        self.batch.len()
    }

    fn __repr__(&self) -> String {
        let names: Vec<_> = self.batch.column_names();
        format!("<embank.pipeline.ArrowBatch, {} rows of {}>", self.batch.len(), names.join(", "))
    }
}

/// A matrix as a column of lists, if it is of that type; what is wrong with how it lies in memory.
fn column<T: ArrowPrimitiveType>(array: &Bound<'_, PyAny>) -> Option<Result<ArrayRef, &'static str>>
where
    T::Native: Element,
{
    let array = array.cast::<PyArray2<T::Native>>().ok()?;
    if !array.is_c_contiguous() {
        return Some(Err("is not contiguous in memory"));
    }
    // NumPy calls an empty one aligned wherever it is.
    if !array.is_empty() && !array.data().is_aligned() {
        return Some(Err("is not aligned in memory"));
    }
    let &[rows, columns] = array.shape() else { return None };
    let values = PrimitiveArray::<T>::new(shared(array), None);
    let item = Arc::new(Field::new("item", T::DATA_TYPE, false));
    let columns = i32::try_from(columns).ok()?;
    let lists =
        FixedSizeListArray::try_new_with_length(item, columns, Arc::new(values), None, rows);
    lists.ok().map(|lists| Ok(Arc::new(lists) as ArrayRef))
}

/// A contiguous and aligned array's memory as Arrow's.
#[expect(unsafe_code, reason = "the array is kept alive by whoever has the buffer")]
fn shared<T: Element + arrow_buffer::ArrowNativeType>(
    array: &Bound<'_, PyArray2<T>>,
) -> ScalarBuffer<T> {
    if array.is_empty() {
        return ScalarBuffer::from(Vec::new());
    }
    let data = NonNull::new(array.data()).unwrap_or(NonNull::dangling());
    let bytes = array.len() * size_of::<T>();
    let owner = Arc::new(AssertUnwindSafe(array.clone().unbind()));
    // SAFETY: the array is contiguous (`column` checked that, and the alignment, which `ScalarBuffer::new` would panic
    // without), so `bytes` bytes from `data` on are its values; NumPy frees them when the array goes, and `owner` keeps
    // it until the buffer goes.
    let buffer = unsafe { Buffer::from_custom_allocation(data.cast(), bytes, owner) };
    ScalarBuffer::new(buffer, 0, array.len())
}

/// A reader's batches for whoever asks with `__arrow_c_stream__`.
pub(crate) fn stream<'py>(
    py: Python<'py>,
    reader: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let stream = FFI_ArrowArrayStream::new(reader);
    PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
}

/// A schema for whoever asks with `__arrow_c_schema__`.
pub(crate) fn schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(to_python)?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

fn to_python(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
