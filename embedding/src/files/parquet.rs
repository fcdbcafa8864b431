//! The Parquet format: columns `key`, `vector`, `state`, `last_used` and `uses`, in row groups of
//! bounded size.
//!
//! Vectors are fixed-size lists of f32, or of f16 if the table stores f16. Polars shows them as
//! arrays. Vector bytes compress badly and rarely repeat, so they are written without compression
//! and dictionary.

mod columns;
mod groups;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, UInt32Type};
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type};
use arrow_array::types::{UInt8Type, UInt16Type, UInt64Type};
use arrow_array::{Array, ArrayRef, FixedSizeListArray, Float16Array, Float32Array};
use arrow_array::{RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use half::f16;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::arrow_writer::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::batch::{LAST_USED, Part, ReadBatch, RowBatch, RowFile, USES, rows_per_batch};
use super::element::Element;
use super::output::Output;
use super::selection::{KEY_CURE, Selection, append_positions, check_first_key};
use super::{io_error, open_to_read, unreadable};
use crate::error::{Error, Result};
use columns::{Columns, Found};
use groups::Groups;

/// Largest size of a row group, in bytes; a longer row forms a group alone. A group stays in memory
/// until it is written.
const ROW_GROUP_BYTES: usize = 16 << 20;

/// A Parquet file that is being written.
pub(crate) struct ParquetWriter {
    writer: ArrowWriter<Output>,
    schema: SchemaRef,
    parts: Vec<Part>,
    path: PathBuf,
}

impl std::fmt::Debug for ParquetWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ParquetWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

fn column_name(part: &Part) -> &'static str {
    if part.name == "rows" { "vector" } else { part.name }
}

fn list_of(part: &Part) -> (Arc<Field>, i32) {
    let float = if part.element == Element::F16 { DataType::Float16 } else { DataType::Float32 };
    (Arc::new(Field::new("item", float, false)), part.columns as i32)
}

impl ParquetWriter {
    pub(crate) fn create(
        output: Output,
        parts: Vec<Part>,
        pairs: HashMap<String, String>,
    ) -> Result<Self> {
        let mut fields = vec![Field::new("key", DataType::UInt64, false)];
        for part in &parts {
            let kind = if part.is_flat() {
                DataType::UInt32
            } else {
                let (item, columns) = list_of(part);
                DataType::FixedSizeList(item, columns)
            };
            fields.push(Field::new(column_name(part), kind, false));
        }
        let row_bytes = 8 + parts.iter().map(Part::row_bytes).sum::<usize>();
        // The settings are written twice: in the file's own metadata, and in the Arrow schema that
        // the writer stores. pyarrow and Polars restore that schema and look for the settings
        // there.
        let schema = Arc::new(Schema::new_with_metadata(fields, pairs.clone()));
        let pairs = pairs.into_iter().map(|(name, value)| KeyValue::new(name, value)).collect();
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_max_row_group_row_count(Some((ROW_GROUP_BYTES / row_bytes).max(1)))
            .set_key_value_metadata(Some(pairs))
            .build();
        let path = output.path().to_owned();
        let writer = ArrowWriter::try_new(output, Arc::clone(&schema), Some(properties))
            .map_err(|error| write_error(&path, error))?;
        Ok(Self { writer, schema, parts, path })
    }

    pub(crate) fn write(&mut self, batch: &RowBatch) -> Result<()> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(batch.keys.clone()))];
        for (part, bytes) in self.parts.iter().zip(&batch.parts) {
            if part.is_flat() {
                let words = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word));
                columns.push(Arc::new(UInt32Array::from_iter_values(words)));
                continue;
            }
            let (item, width) = list_of(part);
            let values: ArrayRef = if part.element == Element::F16 {
                let halves = bytes.as_chunks().0.iter().map(|&half| f16::from_le_bytes(half));
                Arc::new(Float16Array::from_iter_values(halves))
            } else {
                let mut values = Vec::with_capacity(bytes.len() / part.element.bytes());
                part.element.append_f32(bytes, &mut values);
                Arc::new(Float32Array::from(values))
            };
            let lists = FixedSizeListArray::try_new(item, width, values, None);
            columns.push(Arc::new(lists.map_err(|error| write_error(&self.path, error.into()))?));
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns);
        let written = batch.map_err(ParquetError::from).and_then(|batch| self.writer.write(&batch));
        written.map_err(|error| write_error(&self.path, error))
    }

    /// Completes the destination. Returns its path (`None` for a stream) and its length.
    pub(crate) fn commit(self) -> Result<(Option<PathBuf>, u64)> {
        let output = self.writer.into_inner().map_err(|error| write_error(&self.path, error))?;
        output.commit()
    }
}

fn write_error(path: &Path, error: ParquetError) -> Error {
    io_error("write", path, as_io(error))
}

/// Returns the I/O error that `error` wraps. Any other error is wrapped in a new I/O error.
fn as_io(error: ParquetError) -> std::io::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<std::io::Error>() {
            Ok(error) => *error,
            Err(cause) => std::io::Error::other(cause),
        },
        other => std::io::Error::other(other),
    }
}

/// A Parquet file that is read batch by batch.
pub(crate) struct ParquetRows {
    path: PathBuf,
    groups: Groups,
    rows: u64,
    keys: KeySource,
    vector_column: String,
    columns: usize,
    state_columns: Option<usize>,
    has_uses: bool,
    /// The batch that was read last, and the number of its rows that were returned.
    pending: Option<(RecordBatch, usize)>,
    row: u64,
}

/// The source of the rows' keys.
enum KeySource {
    Column(String),
    /// Keys by position: row i is the row of this key plus i.
    From(u64),
}

impl std::fmt::Debug for ParquetRows {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ParquetRows").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Returns the text entries of a file's metadata.
pub(crate) fn read_pairs(path: &Path) -> Result<HashMap<String, String>> {
    let (_, opened) = open(path)?;
    let pairs = opened.metadata().file_metadata().key_value_metadata();
    let pairs = pairs.into_iter().flatten();
    Ok(pairs.filter_map(|pair| Some((pair.key.clone(), pair.value.clone()?))).collect())
}

fn open(path: &Path) -> Result<(std::fs::File, ArrowReaderMetadata)> {
    let (file, _) = open_to_read(path)?;
    // A later program may have changed the columns and kept the stored Arrow schema. Then the types
    // of the Parquet schema count alone.
    let alone = || ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let load = || {
        let loaded = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new());
        loaded.or_else(|_| ArrowReaderMetadata::load(&file, alone()))
    };
    let metadata = caught(path, load)?.map_err(|error| read_error(path, error))?;
    Ok((file, metadata))
}

/// Calls the Parquet reader and turns a panic into an error. The reader panics if some numbers of a
/// damaged file contradict each other. After a panic, the objects in `call` must not be used again.
fn caught<T>(path: &Path, call: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        unreadable(path, format!("it is damaged; its reader says: {text}"))
    })
}

fn read_error(path: &Path, error: ParquetError) -> Error {
    match as_io(error) {
        error if error.raw_os_error().is_some() => io_error("read", path, error),
        error => unreadable(path, format!("as Parquet: {error}")),
    }
}

/// Opens a file's rows. `selection` names the columns of keys and vectors. Default: columns `key`
/// and `vector`, or the only column of lists. The module `selection` gives the rule.
pub(crate) fn read(path: &Path, selection: Selection<'_>) -> Result<ParquetRows> {
    let (file, opened) = open(path)?;
    let schema = Arc::clone(opened.schema());
    let Columns { vector, key, state, uses } =
        Found { path, schema: &schema }.columns(selection)?;
    let roots =
        [Some(vector), key, state].into_iter().flatten().chain(uses.iter().flatten().copied());
    let mask = ProjectionMask::roots(opened.parquet_schema(), roots);
    let rows = u64::try_from(opened.metadata().file_metadata().num_rows()).unwrap_or(0);
    let name = |i: usize| schema.field(i).name().clone();
    let width = |i: usize, cure: &str| {
        let field = schema.field(i);
        list_width(field.data_type()).ok_or_else(|| {
            unreadable(
                path,
                format!(
                    "column {:?} is {}, and no list of floats; {cure}",
                    field.name(),
                    field.data_type()
                ),
            )
        })
    };
    let columns = width(vector, "write its values as float32, or name another column with `rows`")?;
    let state_columns = state.map(|state| width(state, "import without the state")).transpose()?;
    let keys = match key {
        Some(key) => KeySource::Column(name(key)),
        None => {
            let first = selection.first_key.unwrap_or(0);
            check_first_key(path, first, rows)?;
            KeySource::From(first)
        }
    };
    let metadata = opened.metadata();
    let lists = [Some(vector), state].into_iter().flatten();
    let row_bytes = lists.map(|column| bytes_a_row(metadata, column));
    let row_bytes = row_bytes.fold(8, usize::saturating_add);
    let batch_rows = rows_per_batch(row_bytes.max(8 * (columns + state_columns.unwrap_or(0))));
    let mut found = ParquetRows {
        path: path.to_owned(),
        groups: Groups::new(file, opened, mask, batch_rows),
        rows,
        keys,
        vector_column: name(vector),
        columns,
        state_columns,
        has_uses: uses.is_some(),
        pending: None,
        row: 0,
    };
    // The first row shows the length of lists that have no fixed length in the schema.
    found.fill()?;
    if let Some((batch, _)) = &found.pending {
        let width = |name: &str| batch.column_by_name(name).map_or(0, first_width);
        if found.columns == 0 {
            found.columns = width(&found.vector_column);
        }
        if found.state_columns == Some(0) {
            found.state_columns = Some(width("state"));
        }
    }
    Ok(found)
}

/// Estimates the bytes that one row of a list column takes in memory, from the file's metadata.
/// Each value counts as at least 8 bytes. The estimate is needed before the first batch is read,
/// when the length of a list is still unknown.
fn bytes_a_row(metadata: &ParquetMetaData, column: usize) -> usize {
    let schema = metadata.file_metadata().schema_descr();
    let leaves =
        (0..schema.num_columns()).filter(|&leaf| schema.get_column_root_idx(leaf) == column);
    let leaves: Vec<usize> = leaves.collect();
    let in_group = |group: &RowGroupMetaData| {
        let chunks = leaves.iter().filter_map(|&leaf| group.columns().get(leaf));
        // Takes the larger of two estimates. A dictionary encodes many values in few bytes, and a
        // damaged value count may be too small.
        let bytes = chunks
            .map(|chunk| chunk.num_values().saturating_mul(8).max(chunk.uncompressed_size()))
            .fold(0, i64::saturating_add);
        usize::try_from(bytes.max(0) / group.num_rows().max(1)).unwrap_or(usize::MAX)
    };
    metadata.row_groups().iter().map(in_group).max().unwrap_or(0)
}

/// Returns the width of a column of float lists: 0 if the lists vary in length, `None` if the
/// column is of another type.
fn list_width(kind: &DataType) -> Option<usize> {
    let (item, width) = match kind {
        DataType::FixedSizeList(item, width) => (item, usize::try_from(*width).ok()?),
        DataType::List(item) | DataType::LargeList(item) => (item, 0),
        _ => return None,
    };
    item.data_type().is_floating().then_some(width)
}

fn first_width(lists: &ArrayRef) -> usize {
    if lists.is_empty() {
        return 0;
    }
    match lists.data_type() {
        DataType::FixedSizeList(_, width) => *width as usize,
        DataType::List(_) => lists.as_list::<i32>().value_length(0) as usize,
        DataType::LargeList(_) => lists.as_list::<i64>().value_length(0) as usize,
        _ => 0,
    }
}

impl ParquetRows {
    /// Reads the next batch if the rows of the pending one were all returned. Returns false at the
    /// end of the file.
    fn fill(&mut self) -> Result<bool> {
        // The loop ends: the reader returns a batch with rows, an error, or the end of the file.
        loop {
            if self.pending.as_ref().is_some_and(|(batch, used)| *used < batch.num_rows()) {
                return Ok(true);
            }
            match caught(&self.path, || self.groups.next())? {
                Ok(None) => return Ok(false),
                Ok(Some(batch)) => self.pending = Some((batch, 0)),
                Err(error) => {
                    return Err(unreadable(&self.path, format!("after row {}: {error}", self.row)));
                }
            }
        }
    }

    fn lists(
        &self,
        batch: &RecordBatch,
        name: &str,
        width: usize,
        values: &mut Vec<f32>,
    ) -> Result<()> {
        let Some(lists) = batch.column_by_name(name) else {
            return Err(unreadable(&self.path, format!("column {name:?} is gone")));
        };
        let refuse = |row: usize, what: String| {
            let row = self.row + row as u64;
            Err(unreadable(&self.path, format!("row {row}, column {name:?}: {what}")))
        };
        if let Some(row) = (0..lists.len()).find(|&row| lists.is_null(row)) {
            return refuse(row, "it is null".to_owned());
        }
        let inner = match lists.data_type() {
            DataType::FixedSizeList(_, found) if *found as usize == width => {
                let lists = lists.as_fixed_size_list();
                let start = lists.value_offset_at(0);
                lists.values().slice(start, lists.len() * width)
            }
            DataType::List(_) => {
                let lists = lists.as_list::<i32>();
                let offsets = lists.value_offsets();
                if let Some(row) =
                    (0..lists.len()).find(|&row| lists.value_length(row) as usize != width)
                {
                    return refuse(
                        row,
                        format!("it has {} values, not {width}", lists.value_length(row)),
                    );
                }
                lists.values().slice(offsets[0] as usize, lists.len() * width)
            }
            DataType::LargeList(_) => {
                let lists = lists.as_list::<i64>();
                let offsets = lists.value_offsets();
                if let Some(row) =
                    (0..lists.len()).find(|&row| lists.value_length(row) as usize != width)
                {
                    return refuse(
                        row,
                        format!("it has {} values, not {width}", lists.value_length(row)),
                    );
                }
                lists.values().slice(offsets[0] as usize, lists.len() * width)
            }
            other => return refuse(0, format!("it is {other}")),
        };
        if let Some(at) = (0..inner.len()).find(|&at| inner.is_null(at)) {
            return refuse(at / width.max(1), format!("value {} is null", at % width.max(1)));
        }
        match inner.data_type() {
            DataType::Float32 => values.extend(inner.as_primitive::<Float32Type>().values().iter()),
            DataType::Float64 => {
                let found = inner.as_primitive::<Float64Type>().values();
                values.extend(found.iter().map(|&value| value as f32));
            }
            DataType::Float16 => {
                let found = inner.as_primitive::<Float16Type>().values();
                values.extend(found.iter().map(|value| value.to_f32()));
            }
            other => return refuse(0, format!("its values are {other}")),
        }
        Ok(())
    }

    /// Returns a column that has one value per row. Fails if a value is null.
    fn flat<'b>(&self, batch: &'b RecordBatch, name: &str) -> Result<&'b ArrayRef> {
        let Some(column) = batch.column_by_name(name) else {
            return Err(unreadable(&self.path, format!("column {name:?} is gone")));
        };
        if let Some(row) = (0..column.len()).find(|&row| column.is_null(row)) {
            let row = self.row + row as u64;
            return Err(unreadable(&self.path, format!("row {row}, column {name:?} is null")));
        }
        Ok(column)
    }

    fn words(&self, batch: &RecordBatch, name: &str, words: &mut Vec<u32>) -> Result<()> {
        let column = self.flat(batch, name)?;
        let Some(found) = column.as_primitive_opt::<UInt32Type>() else {
            let what = format!("column {name:?} is {}, and not UInt32", column.data_type());
            return Err(unreadable(&self.path, what));
        };
        words.extend(found.values().iter());
        Ok(())
    }

    fn keys(&self, batch: &RecordBatch, name: &str, keys: &mut Vec<u64>) -> Result<()> {
        /// Appends a column's keys. A negative number is sign-extended to 64 bits, as in
        /// `Element::append_keys`.
        fn widen<T: ArrowPrimitiveType>(
            column: &ArrayRef,
            keys: &mut Vec<u64>,
            to_key: impl Fn(T::Native) -> u64,
        ) {
            keys.extend(column.as_primitive::<T>().values().iter().map(|&key| to_key(key)));
        }
        let column = self.flat(batch, name)?;
        match column.data_type() {
            DataType::UInt64 => widen::<UInt64Type>(column, keys, |key| key),
            DataType::Int64 => widen::<Int64Type>(column, keys, |key| key as u64),
            DataType::UInt32 => widen::<UInt32Type>(column, keys, u64::from),
            DataType::Int32 => widen::<Int32Type>(column, keys, |key| i64::from(key) as u64),
            DataType::UInt16 => widen::<UInt16Type>(column, keys, u64::from),
            DataType::Int16 => widen::<Int16Type>(column, keys, |key| i64::from(key) as u64),
            DataType::UInt8 => widen::<UInt8Type>(column, keys, u64::from),
            DataType::Int8 => widen::<Int8Type>(column, keys, |key| i64::from(key) as u64),
            other => {
                let what = format!("column {name:?} is {other}; keys are {KEY_CURE}");
                return Err(unreadable(&self.path, what));
            }
        }
        Ok(())
    }
}

impl RowFile for ParquetRows {
    fn rows(&self) -> u64 {
        self.rows
    }

    fn columns(&self) -> usize {
        self.columns
    }

    fn has_keys(&self) -> bool {
        matches!(self.keys, KeySource::Column(_))
    }

    fn state_columns(&self) -> Option<usize> {
        self.state_columns
    }

    fn has_uses(&self) -> bool {
        self.has_uses
    }

    fn read_batch(&mut self, count: usize, batch: &mut ReadBatch) -> Result<()> {
        if !self.fill()? {
            return Ok(());
        }
        let Some((found, used)) = self.pending.take() else { return Ok(()) };
        let taken = count.min(found.num_rows() - used);
        let slice = found.slice(used, taken);
        self.lists(&slice, &self.vector_column, self.columns, &mut batch.vectors)?;
        if let Some(columns) = self.state_columns {
            self.lists(&slice, "state", columns, &mut batch.state)?;
        }
        if self.has_uses {
            self.words(&slice, LAST_USED, &mut batch.last_used)?;
            self.words(&slice, USES, &mut batch.uses)?;
        }
        match &self.keys {
            KeySource::Column(name) => self.keys(&slice, name, &mut batch.keys)?,
            KeySource::From(first) => append_positions(first + self.row, taken, &mut batch.keys),
        }
        self.row += taken as u64;
        self.pending = Some((found, used + taken));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::Wanted;
    use arrow_array::builder::{Float64Builder, ListBuilder};

    use super::*;

    /// Regression test: the first read of a column with lists of variable length took 65,536 lists,
    /// whatever their length, so its memory had no bound.
    #[test]
    fn a_batch_of_long_lists_is_bounded_before_the_first_is_seen() {
        const WIDTH: usize = 4096;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let mut lists = ListBuilder::new(Float64Builder::new());
        (0..400).for_each(|_| lists.append_value([Some(0.5); WIDTH]));
        let lists: ArrayRef = Arc::new(lists.finish());
        let batch = RecordBatch::try_from_iter([("vector", lists)]).unwrap();
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let wanted = Wanted { state: true, uses: true };
        let selection = Selection { keys: None, rows: None, first_key: None, wanted };
        let mut found = read(&path, selection).unwrap();
        assert_eq!((found.columns(), found.rows()), (WIDTH, 400));
        let first = found.pending.as_ref().unwrap().0.num_rows();
        assert!((1..=rows_per_batch(8 * WIDTH)).contains(&first), "{first}");
        let mut batch = ReadBatch::default();
        let mut rows = 0;
        // The loop ends when the file has no more rows.
        loop {
            batch.clear();
            found.read_batch(1000, &mut batch).unwrap();
            if batch.keys.is_empty() {
                break;
            }
            rows += batch.keys.len();
        }
        assert_eq!(rows, 400);
    }
}
