//! Converts batches to Arrow record batches, in which each output is a column of lists.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Int32Type, Int64Type, UInt8Type, UInt32Type,
};
use arrow_array::{ArrayRef, FixedSizeListArray, PrimitiveArray, RecordBatch, RecordBatchOptions};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use bytes::Bytes;

use crate::batch::{Batch, MatrixBuffer, MatrixInfo};
use crate::spec::Dtype;

/// Metadata key of a column. Its value is a JSON list of the names of the matrix's columns.
const COLUMNS: &str = "embank.columns";
/// Metadata of a column of arrays: Arrow's extension type for tensors of one shape.
const EXTENSION: &str = "ARROW:extension:name";
const EXTENSION_METADATA: &str = "ARROW:extension:metadata";
const FIXED_SHAPE_TENSOR: &str = "arrow.fixed_shape_tensor";

/// Returns the Arrow schema of batches with these outputs. Each output is a column of lists without
/// nulls. A list is one row of the output's matrix, so it has as many values as the matrix has
/// columns. The metadata `embank.columns` is a JSON list of the names of the matrix's columns. An
/// output of arrays of several dimensions has Arrow's extension type `arrow.fixed_shape_tensor`,
/// whose metadata has the shape.
///
/// # Examples
/// ```
/// use embank_pipeline::{Pipeline, RunOptions, Spec, arrow_schema};
///
/// let pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
/// let schema = arrow_schema(pipeline.outputs());
/// assert_eq!((schema.fields().len(), schema.field(0).name().as_str()), (1, "row"));
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[must_use]
pub fn arrow_schema(outputs: &[MatrixInfo]) -> SchemaRef {
    let field = |info: &MatrixInfo| {
        let kind = DataType::FixedSizeList(item(info.dtype), width(info));
        let columns = serde_json::Value::from(info.columns.clone()).to_string();
        let mut metadata = array_metadata(&info.shape);
        metadata.insert(COLUMNS.to_owned(), columns);
        Field::new(&info.name, kind, false).with_metadata(metadata)
    };
    Arc::new(Schema::new(outputs.iter().map(field).collect::<Vec<_>>()))
}

/// Returns the metadata of a column whose rows have this shape: the name and the shape of Arrow's
/// extension type for tensors, if a row is more than a list.
///
/// # Examples
/// ```
/// use embank_pipeline::array_metadata;
///
/// assert!(array_metadata(&[40]).is_empty());
/// assert_eq!(array_metadata(&[8, 6, 3])["ARROW:extension:name"], "arrow.fixed_shape_tensor");
/// ```
#[must_use]
pub fn array_metadata(shape: &[usize]) -> HashMap<String, String> {
    if shape.len() < 2 {
        return HashMap::new();
    }
    let shape = serde_json::json!({ "shape": shape }).to_string();
    HashMap::from([
        (EXTENSION.to_owned(), FIXED_SHAPE_TENSOR.to_owned()),
        (EXTENSION_METADATA.to_owned(), shape),
    ])
}

impl Batch {
    /// Converts the batch to an Arrow record batch with the schema [`arrow_schema`]. Each matrix
    /// becomes a column of lists, with one list for each row. No value is copied. A feed reuses the
    /// memory after the last array that shares it is dropped.
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{FeedInput, FeedOptions, Pipeline, RunOptions, Spec};
    ///
    /// let pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
    /// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
    /// let inputs = vec![FeedInput::memory("a row", row.into_bytes())];
    /// for batch in pipeline.feed(inputs, &FeedOptions::default())? {
    ///     let arrow = batch?.into_record_batch();
    ///     assert_eq!((arrow.num_rows(), arrow.num_columns()), (1, 1));
    /// }
    /// # Ok::<(), embank_pipeline::Error>(())
    /// ```
    #[must_use]
    pub fn into_record_batch(self) -> RecordBatch {
        let rows = self.rows;
        let infos = Arc::clone(&self.infos);
        let array = |(info, buffer): (&MatrixInfo, MatrixBuffer)| -> ArrayRef {
            let values: ArrayRef = match info.dtype {
                Dtype::F32 => primitive::<Float32Type>(buffer),
                Dtype::I32 => primitive::<Int32Type>(buffer),
                Dtype::I64 => primitive::<Int64Type>(buffer),
                Dtype::Bits32 => primitive::<UInt32Type>(buffer),
                Dtype::U8 => primitive::<UInt8Type>(buffer),
            };
            let item = item(info.dtype);
            let width = width(info);
            let lists = FixedSizeListArray::try_new_with_length(item, width, values, None, rows);
            Arc::new(lists.expect("a matrix has as many values as its shape says"))
        };
        let arrays = infos.iter().zip(self.into_buffers()).map(array).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(arrow_schema(&infos), arrays, &options)
            .expect("the schema is that of the outputs")
    }
}

/// The values of a buffer, in its memory. The array owns the buffer.
fn primitive<T: ArrowPrimitiveType>(buffer: MatrixBuffer) -> ArrayRef {
    let count = buffer.as_bytes().len() / size_of::<T::Native>();
    let memory = Buffer::from(Bytes::from_owner(buffer));
    Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::new(memory, 0, count), None))
}

/// Type of a list's values.
fn item(dtype: Dtype) -> FieldRef {
    let kind = match dtype {
        Dtype::F32 => DataType::Float32,
        Dtype::I32 => DataType::Int32,
        Dtype::I64 => DataType::Int64,
        Dtype::Bits32 => DataType::UInt32,
        Dtype::U8 => DataType::UInt8,
    };
    Arc::new(Field::new("item", kind, false))
}

fn width(info: &MatrixInfo) -> i32 {
    i32::try_from(info.row_values()).expect("a row has fewer values")
}
