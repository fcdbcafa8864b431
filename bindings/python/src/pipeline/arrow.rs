//! Batches for other libraries without a copy: Arrow's PyCapsule interface.
//!
//! An object with `__arrow_c_array__` or `__arrow_c_stream__` returns capsules with C structs. The
//! structs name buffers and a function that releases the buffers. pyarrow, polars, DuckDB and
//! others take such objects.
//!
//! The only `unsafe` block of this module makes an Arrow buffer of NumPy's memory. The buffer keeps
//! the array alive until its last share is dropped. The array, its tensors and its Arrow buffers
//! share the memory: a write through one of them shows in all.

use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::ffi::{FFI_ArrowSchema, to_ffi};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Int32Type, Int64Type, UInt8Type, UInt32Type,
};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, PrimitiveArray, RecordBatchReader, StructArray,
};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::{ArrowError, Field, Fields, Schema};
use embank_pipeline::array_metadata;
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

/// A batch for libraries of Arrow, without a copy: `pyarrow.record_batch(batch.arrow())`. Made by
/// `Batch.arrow`.
///
/// Each output is a column of fixed-size lists without nulls. A list is a row of the output's
/// matrix, or the values of a picture.
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
    /// Makes a batch of a dict of matrices, which must be contiguous and aligned.
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
                .or_else(|| column::<UInt8Type>(&array))
                .ok_or_else(|| {
                    PyTypeError::new_err(format!(
                        "{name:?} is no array of rows of float32, int32, int64, uint32 or uint8"
                    ))
                })?;
            let (column, shape) = found.map_err(|what| {
                PyTypeError::new_err(format!(
                    "{name:?} {what}: np.require(array, requirements=[\"C\", \"A\"]) makes a copy that can be used"
                ))
            })?;
            if *rows.get_or_insert(column.len()) != column.len() {
                return Err(PyTypeError::new_err(format!(
                    "{name:?} has {} rows, and other outputs have another number",
                    column.len()
                )));
            }
            let field = Field::new(name, column.data_type().clone(), false);
            fields.push(field.with_metadata(array_metadata(&shape)));
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

    /// `requested_schema` is ignored, as the interface allows: nothing is converted.
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

/// A column, and the shape of a row.
type ShapedColumn = (ArrayRef, Vec<usize>);

/// Returns an array as a column of lists. `None` if the values are not of type `T`, or if a list
/// would be too long for Arrow. The inner error names a problem of the array's memory layout.
fn column<T: ArrowPrimitiveType>(
    array: &Bound<'_, PyAny>,
) -> Option<Result<ShapedColumn, &'static str>>
where
    T::Native: Element,
{
    let array = array.cast::<PyArrayDyn<T::Native>>().ok()?;
    if !array.is_c_contiguous() {
        return Some(Err("is not contiguous in memory"));
    }
    // NumPy calls an empty array aligned at any address.
    if !array.is_empty() && !array.data().is_aligned() {
        return Some(Err("is not aligned in memory"));
    }
    let [rows, shape @ ..] = array.shape() else { return None };
    if shape.is_empty() {
        return None;
    }
    let (rows, shape) = (*rows, shape.to_vec());
    let values = PrimitiveArray::<T>::new(shared(array), None);
    let item = Arc::new(Field::new("item", T::DATA_TYPE, false));
    let columns = i32::try_from(shape.iter().product::<usize>()).ok()?;
    let lists =
        FixedSizeListArray::try_new_with_length(item, columns, Arc::new(values), None, rows);
    lists.ok().map(|lists| Ok((Arc::new(lists) as ArrayRef, shape)))
}

/// The memory of a contiguous and aligned array as an Arrow buffer.
#[expect(unsafe_code, reason = "the buffer keeps the array alive")]
fn shared<T: Element + arrow_buffer::ArrowNativeType>(
    array: &Bound<'_, PyArrayDyn<T>>,
) -> ScalarBuffer<T> {
    if array.is_empty() {
        return ScalarBuffer::from(Vec::new());
    }
    let data = NonNull::new(array.data()).unwrap_or(NonNull::dangling());
    let bytes = array.len() * size_of::<T>();
    let owner = Arc::new(AssertUnwindSafe(array.clone().unbind()));
    // SAFETY: the `bytes` bytes from `data` on must be valid until the buffer is dropped. `column`
    // has checked that the array is contiguous and aligned, so these bytes are its values. NumPy
    // frees them with the array, and `owner` keeps the array until the buffer is dropped.
    let buffer = unsafe { Buffer::from_custom_allocation(data.cast(), bytes, owner) };
    ScalarBuffer::new(buffer, 0, array.len())
}

/// A reader's batches as the capsule that `__arrow_c_stream__` returns.
pub(crate) fn stream<'py>(
    py: Python<'py>,
    reader: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let stream = FFI_ArrowArrayStream::new(reader);
    PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
}

/// A schema as the capsule that `__arrow_c_schema__` returns.
pub(crate) fn schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(to_python)?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

fn to_python(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
