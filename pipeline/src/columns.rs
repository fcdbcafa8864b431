//! Parquet and Arrow files: columns, by name, to the fields of a pipeline.
//!
//! Whoever claims the next chunk reads it, as of a compressed text ([`crate::stream`]); what it gets is some rows of a
//! record batch. Whether all columns are there, and of types that their fields can be read from, is checked
//! when an input is begun: what is left for the rows are values that do not fit.
//!
//! **Hostile files.** The `parquet` and `arrow` crates give errors for most damage, and panic at some. A panic of
//! theirs ends here: it is an error that names the input, whose decoder is dropped. Sizes that a file declares are
//! held against what is there before memory is asked for ([`ipc`], [`pages`], [`counts`]). Byte strings of Parquet are
//! read as views: those that a page's dictionary has once are in memory once, in however many rows.

mod counts;
mod ipc;
mod pages;

use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, FieldRef, Schema};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::file::reader::ChunkReader;

use crate::decode::{BLOCK_ROWS, BadField, BadRow, Block, COLUMN_STRIDE, Fault, FieldKind};
use crate::decode::{Layout, SNIPPET_BYTES, Slot, float32, hex32, int32, int64};
use counts::Counted;
use ipc::Ipc;
use pages::Pages;

/// Rows of a chunk at most.
const CHUNK_ROWS_MAX: usize = 1 << 16;
/// What a value takes in a chunk, about.
const VALUE_BYTES: usize = 8;

type Batches<'a> = Box<dyn FnMut() -> Result<Option<RecordBatch>, String> + Send + 'a>;

/// A file of columns on its way.
pub(crate) struct ColumnStream<'a> {
    batches: Batches<'a>,
    /// What is left of a batch.
    rest: Option<RecordBatch>,
    chunk_rows: usize,
    rows: u64,
    /// All rows, if that is known.
    rows_total: Option<u64>,
}

impl std::fmt::Debug for ColumnStream<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ColumnStream").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// The fields of a pipeline's rows.
pub(crate) type Fields = [(String, FieldKind)];

impl<'a> ColumnStream<'a> {
    pub(crate) fn of_file(
        file: &File,
        fields: &Fields,
        chunk_bytes: usize,
    ) -> Result<Self, String> {
        let mut file = file.try_clone().map_err(|error| error.to_string())?;
        let bytes = file.metadata().map_err(|error| error.to_string())?.len();
        let magic = magic(&mut file)?;
        guarded(|| {
            if magic.starts_with(b"PAR1") {
                return Self::of_parquet(file, fields, chunk_bytes);
            }
            Self::of_arrow(file, bytes, &magic, fields, chunk_bytes)
        })
    }

    pub(crate) fn of_memory(
        bytes: &'a [u8],
        fields: &Fields,
        chunk_bytes: usize,
    ) -> Result<Self, String> {
        let mut cursor = Cursor::new(bytes);
        let magic = magic(&mut cursor)?;
        guarded(|| {
            if magic.starts_with(b"PAR1") {
                return Self::of_parquet(bytes::Bytes::copy_from_slice(bytes), fields, chunk_bytes);
            }
            Self::of_arrow(cursor, bytes.len() as u64, &magic, fields, chunk_bytes)
        })
    }

    fn of_parquet(
        from: impl ChunkReader + 'static,
        fields: &Fields,
        chunk_bytes: usize,
    ) -> Result<Self, String> {
        let (from, told) = (Pages(from), |error: parquet::errors::ParquetError| error.to_string());
        let metadata = ArrowReaderMetadata::load(&from, ArrowReaderOptions::new()).map_err(told)?;
        let columns = check(metadata.schema(), fields)?;
        let schema = views(&metadata, &columns);
        let hint = schema.fields().clone();
        let options = ArrowReaderOptions::new().with_schema(Arc::new(schema));
        let metadata = Arc::clone(metadata.metadata());
        // Refuses types that are not of the schema.
        ArrowReaderMetadata::try_new(Arc::clone(&metadata), options).map_err(told)?;
        let file = metadata.file_metadata();
        let mask = ProjectionMask::roots(file.schema_descr(), columns);
        let levels = parquet_to_arrow_field_levels(file.schema_descr(), mask, Some(&hint));
        let rows_total = u64::try_from(file.num_rows()).ok();
        let chunk_rows = chunk_rows(fields, chunk_bytes);
        let groups = Counted { from: Arc::new(from), metadata: Arc::clone(&metadata) };
        let levels = levels.map_err(told)?;
        let reader =
            ParquetRecordBatchReader::try_new_with_row_groups(&levels, &groups, chunk_rows, None);
        let mut reader = reader.map_err(told)?;
        let next = move || reader.next().transpose().map_err(|error| error.to_string());
        Ok(Self { batches: Box::new(next), rest: None, chunk_rows, rows: 0, rows_total })
    }

    fn of_arrow(
        from: impl Read + Seek + Send + 'a,
        bytes: u64,
        magic: &[u8],
        fields: &Fields,
        chunk_bytes: usize,
    ) -> Result<Self, String> {
        let mut refused = false;
        let project = |schema: &Schema| check(schema, fields).inspect_err(|_| refused = true);
        let ipc = Ipc::open(from, bytes, magic.starts_with(b"ARROW1"), project);
        let mut ipc = ipc.map_err(|error| {
            let unread = "it is no Parquet or Arrow file that can be read";
            if refused { error } else { format!("{unread}: {error}") }
        })?;
        let chunk_rows = chunk_rows(fields, chunk_bytes);
        let batches = Box::new(move || ipc.next());
        Ok(Self { batches, rest: None, chunk_rows, rows: 0, rows_total: None })
    }

    /// The next rows; none if there are no more.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>, String> {
        // Ends: each round takes a batch off the file.
        while self.rest.as_ref().is_none_or(|rest| rest.num_rows() == 0) {
            match guarded(|| (self.batches)())? {
                Some(batch) => self.rest = Some(batch),
                None => return Ok(None),
            }
        }
        let rest = self.rest.take().expect("the loop leaves one");
        let rows = rest.num_rows().min(self.chunk_rows);
        self.rest = Some(rest.slice(rows, rest.num_rows() - rows));
        self.rows += rows as u64;
        Ok(Some(rest.slice(0, rows)))
    }

    /// How many of `bytes` have been read, about.
    pub(crate) fn input_bytes(&self, bytes: u64) -> u64 {
        let part = |total: u64| (bytes as f64 * self.rows as f64 / total.max(1) as f64) as u64;
        self.rows_total.map_or(0, part).min(bytes)
    }
}

/// Runs what may panic at a hostile file. Whatever it has changed is not used after an error.
fn guarded<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(format!("it is damaged, in a way that its decoder does not expect: {text}"))
    })
}

/// The file's schema, with byte strings of these columns as views.
fn views(metadata: &ArrowReaderMetadata, columns: &[usize]) -> Schema {
    let view = |(place, field): (usize, &FieldRef)| {
        let kind = match field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
            DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
            _ => return Arc::clone(field),
        };
        if !columns.contains(&place) {
            return Arc::clone(field);
        }
        Arc::new(field.as_ref().clone().with_data_type(kind))
    };
    let schema = metadata.schema();
    let fields: Vec<_> = schema.fields().iter().enumerate().map(view).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

fn chunk_rows(fields: &Fields, chunk_bytes: usize) -> usize {
    (chunk_bytes / (fields.len() * VALUE_BYTES)).clamp(1, CHUNK_ROWS_MAX)
}

fn magic(from: &mut (impl Read + Seek)) -> Result<[u8; 8], String> {
    let mut magic = Vec::new();
    let read = from.by_ref().take(8).read_to_end(&mut magic);
    read.and_then(|_| from.seek(SeekFrom::Start(0))).map_err(|error| error.to_string())?;
    magic.resize(8, 0);
    Ok(magic.try_into().expect("it was made eight bytes long"))
}

/// The columns of the fields that are read; an error where there is none that one can be read from.
fn check(schema: &Schema, fields: &Fields) -> Result<Vec<usize>, String> {
    let mut columns = Vec::new();
    for (name, kind) in fields.iter().filter(|(_, kind)| *kind != FieldKind::Skip) {
        let Some((place, column)) = schema.fields().find(name) else {
            let there: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            return Err(format!("it has no column {name:?}, only {}", there.join(", ")));
        };
        let number = |kind: &DataType| kind.is_integer() || *kind == DataType::Boolean;
        let fits = match (kind, column.data_type()) {
            (
                _,
                DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView,
            ) => true,
            (FieldKind::Int32 | FieldKind::Int64 | FieldKind::Hex32, found) => number(found),
            (FieldKind::Float32, DataType::Float32 | DataType::Float64) => true,
            (FieldKind::Float32, found) => number(found),
            _ => false,
        };
        if !fits {
            return Err(format!(
                "its column {name:?} has the type {}, which a field of {kind:?} can't be read from",
                column.data_type()
            ));
        }
        columns.push(place);
    }
    if columns.is_empty() {
        // The number of rows would be whatever the file says it is.
        return Err(
            "no field of the pipeline is read from it, but for those that are skipped".to_owned()
        );
    }
    columns.sort_unstable();
    Ok(columns)
}

/// A value as a file has it.
#[derive(Debug, Clone, Copy)]
enum Cell<'a> {
    Signed(i64),
    Unsigned(u64),
    /// Of 32 bits: of a hexadecimal field it is the bits.
    Bits(i32),
    Float(f64),
    Text(&'a [u8]),
}

/// The value of a row that is not null.
fn cell(array: &dyn Array, row: usize) -> Cell<'_> {
    match array.data_type() {
        DataType::Boolean => Cell::Unsigned(u64::from(array.as_boolean().value(row))),
        DataType::Int8 => Cell::Signed(array.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => Cell::Signed(array.as_primitive::<Int16Type>().value(row).into()),
        DataType::Int32 => Cell::Bits(array.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => Cell::Signed(array.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => Cell::Unsigned(array.as_primitive::<UInt8Type>().value(row).into()),
        DataType::UInt16 => Cell::Unsigned(array.as_primitive::<UInt16Type>().value(row).into()),
        DataType::UInt32 => Cell::Unsigned(array.as_primitive::<UInt32Type>().value(row).into()),
        DataType::UInt64 => Cell::Unsigned(array.as_primitive::<UInt64Type>().value(row)),
        DataType::Float32 => Cell::Float(array.as_primitive::<Float32Type>().value(row).into()),
        DataType::Float64 => Cell::Float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => Cell::Text(array.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => Cell::Text(array.as_string::<i64>().value(row).as_bytes()),
        DataType::Utf8View => Cell::Text(array.as_string_view().value(row).as_bytes()),
        DataType::Binary => Cell::Text(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Cell::Text(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Cell::Text(array.as_binary_view().value(row)),
        other => unreachable!("{other} is refused when the input is begun"),
    }
}

impl<'a> Cell<'a> {
    fn int64(self) -> Result<Option<i64>, BadField> {
        match self {
            Self::Signed(value) => Ok(Some(value)),
            Self::Bits(value) => Ok(Some(value.into())),
            Self::Unsigned(value) => {
                i64::try_from(value).map(Some).map_err(|_| BadField::OutOfRange(FieldKind::Int64))
            }
            Self::Text(text) => int64(text),
            Self::Float(_) => Err(BadField::NotA(FieldKind::Int64)),
        }
    }

    fn int32(self) -> Result<Option<i32>, BadField> {
        if let Self::Text(text) = self {
            return int32(text);
        }
        let out = BadField::OutOfRange(FieldKind::Int32);
        let value = self.int64().map_err(|_| out)?;
        value.map(i32::try_from).transpose().map_err(|_| out)
    }

    fn hex32(self) -> Result<Option<u32>, BadField> {
        let out = BadField::OutOfRange(FieldKind::Hex32);
        match self {
            Self::Text(text) => hex32(text),
            Self::Bits(value) => Ok(Some(value.cast_unsigned())),
            Self::Signed(value) => u32::try_from(value).map(Some).map_err(|_| out),
            Self::Unsigned(value) => u32::try_from(value).map(Some).map_err(|_| out),
            Self::Float(_) => Err(BadField::NotA(FieldKind::Hex32)),
        }
    }

    fn float32(self) -> Result<Option<f32>, BadField> {
        match self {
            Self::Text(text) => float32(text),
            Self::Signed(value) => Ok(Some(value as f32)),
            Self::Unsigned(value) => Ok(Some(value as f32)),
            Self::Bits(value) => Ok(Some(value as f32)),
            Self::Float(value) if !value.is_finite() => Err(BadField::NotA(FieldKind::Float32)),
            Self::Float(value) if !(value as f32).is_finite() => {
                Err(BadField::OutOfRange(FieldKind::Float32))
            }
            Self::Float(value) => Ok(Some(value as f32)),
        }
    }

    /// For a report.
    fn snippet(self) -> Vec<u8> {
        let mut text = match self {
            Self::Text(text) => return text[..text.len().min(SNIPPET_BYTES)].to_vec(),
            Self::Signed(value) => value.to_string(),
            Self::Unsigned(value) => value.to_string(),
            Self::Bits(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
        };
        text.truncate(SNIPPET_BYTES);
        text.into_bytes()
    }
}

/// Fills `block` with some rows of a batch, without bad ones, which go to `bad` by their places in the batch.
pub(crate) fn read_columns(
    batch: &RecordBatch,
    rows: Range<usize>,
    names: &[String],
    layout: &Layout,
    block: &mut Block,
    bad: &mut Vec<BadRow>,
) {
    assert!(rows.len() <= BLOCK_ROWS, "a block has no room for more");
    block.clear();
    block.rows = rows.len();
    for plane in 0..layout.planes() {
        block.missing_mut(plane)[..rows.len()].fill(0);
    }
    let bad_before = bad.len();
    for (field, name) in names.iter().enumerate() {
        let Some(target) = layout.target(field) else { continue };
        let array = batch.column_by_name(name).expect("checked when the input is begun");
        let (kind, required, bytes_max) = layout.checks(field);
        for (place, row) in rows.clone().enumerate() {
            let cell = (!array.is_null(row)).then(|| cell(array, row));
            let stored = store(block, target.slot, place, kind, bytes_max, cell);
            let why = match stored {
                Ok(true) => continue,
                Ok(false) if required => BadField::Missing,
                Ok(false) => {
                    let (plane, bit) = target.missing;
                    block.missing_mut(plane)[place] |= 1 << bit;
                    continue;
                }
                Err(why) => why,
            };
            let snippet = cell.map(Cell::snippet).unwrap_or_default();
            bad.push(BadRow { line: row, fault: Fault::Value { field, why, snippet } });
        }
    }
    if bad.len() > bad_before {
        let mut kept = vec![true; block.rows];
        for bad in &bad[bad_before..] {
            kept[bad.line - rows.start] = false;
        }
        block.retain(&kept);
    }
}

/// Puts a value into its place; false if there is none.
fn store(
    block: &mut Block,
    slot: Slot,
    row: usize,
    kind: FieldKind,
    bytes_max: usize,
    cell: Option<Cell<'_>>,
) -> Result<bool, BadField> {
    let word = match (slot, kind) {
        (Slot::Bytes(column), _) => {
            let text = match cell {
                Some(Cell::Text(text)) => text,
                _ => &[],
            };
            let fits = text.len() <= bytes_max;
            block.bytes[column].push(if fits { text } else { &[] });
            return if fits { Ok(!text.is_empty()) } else { Err(BadField::TooLong(bytes_max)) };
        }
        (Slot::Wide(column), _) => {
            let value = cell.map_or(Ok(None), Cell::int64);
            let number = value.unwrap_or(None).unwrap_or(0).cast_unsigned();
            block.wides_mut()[column * COLUMN_STRIDE + row] = number;
            return value.map(|value| value.is_some());
        }
        (_, FieldKind::Hex32) => cell.map_or(Ok(None), Cell::hex32),
        (_, FieldKind::Float32) => {
            cell.map_or(Ok(None), Cell::float32).map(|value| value.map(f32::to_bits))
        }
        _ => cell.map_or(Ok(None), Cell::int32).map(|value| value.map(i32::cast_unsigned)),
    };
    let Slot::Word(column) = slot else { unreachable!("others are stored above") };
    block.words_mut()[column * COLUMN_STRIDE + row] = word.unwrap_or(None).unwrap_or(0);
    word.map(|word| word.is_some())
}
