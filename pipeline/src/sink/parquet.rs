//! Writes an output as a Parquet file.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Int32Array, Int64Array, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::Output;
use crate::batch::{Batch, MatrixInfo};
use crate::error::{Error, Result};
use crate::spec::Dtype;

/// Rows of a row group. A group is kept in memory until it is full. It takes one or two MiB for
/// each column.
const GROUP_ROWS: usize = 1 << 18;

/// A Parquet table whose columns all have one type.
#[derive(Debug)]
pub(super) struct Table {
    writer: ArrowWriter<Output>,
    schema: Arc<Schema>,
    path: PathBuf,
}

impl Table {
    pub(super) fn new(file: Output, info: &MatrixInfo) -> Result<Self> {
        let kind = match info.dtype {
            Dtype::F32 => DataType::Float32,
            Dtype::I32 => DataType::Int32,
            Dtype::I64 => DataType::Int64,
            Dtype::Bits32 => DataType::UInt32,
            Dtype::U8 => unreachable!("arrays are refused"),
        };
        let field = |name: &String| Field::new(name, kind.clone(), false);
        let schema = Arc::new(Schema::new(info.columns.iter().map(field).collect::<Vec<_>>()));
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .build();
        let path = file.path().to_owned();
        let writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties));
        let writer = writer.map_err(|error| write_error(path.clone(), error))?;
        Ok(Self { writer, schema, path })
    }

    pub(super) fn write(&mut self, batch: &Batch, output: usize) -> Result<()> {
        let columns = self.schema.fields().len();
        let array = |column| -> ArrayRef {
            match batch.infos()[output].dtype {
                Dtype::F32 => {
                    Arc::new(Float32Array::from(every(batch.f32(output), column, columns)))
                }
                Dtype::I32 => Arc::new(Int32Array::from(every(batch.i32(output), column, columns))),
                Dtype::I64 => Arc::new(Int64Array::from(every(batch.i64(output), column, columns))),
                Dtype::U8 => unreachable!("arrays are refused"),
                Dtype::Bits32 => {
                    Arc::new(UInt32Array::from(every(batch.bits32(output), column, columns)))
                }
            }
        };
        let arrays = (0..columns).map(array).collect();
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), arrays);
        let written = rows.map_err(Into::into).and_then(|rows| self.writer.write(&rows));
        written.map_err(|error| write_error(self.path.clone(), error))
    }

    pub(super) fn output(&self) -> &Output {
        self.writer.inner()
    }

    pub(super) fn finish(self) -> Result<Output> {
        let path = self.path;
        self.writer.into_inner().map_err(|error| write_error(path, error))
    }
}

/// Copies a column out of a matrix.
fn every<T: Copy>(matrix: Option<&[T]>, column: usize, columns: usize) -> Vec<T> {
    let matrix = matrix.expect("a matrix is as its dtype says");
    matrix.iter().skip(column).step_by(columns).copied().collect()
}

fn write_error(path: PathBuf, error: parquet::errors::ParquetError) -> Error {
    use parquet::errors::ParquetError::External;
    let source = match error {
        External(cause) => cause.downcast().map_or_else(std::io::Error::other, |error| *error),
        other => std::io::Error::other(other),
    };
    Error::Io { doing: "write", path, source }
}
