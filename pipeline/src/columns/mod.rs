//! Reads Parquet, Arrow and tar files. Columns are found by name, for the fields of a pipeline.
//!
//! As for compressed text ([`crate::input::stream`]), the thread that claims the next chunk also
//! reads it. A chunk is some rows of a record batch. When an input is opened, this module checks
//! that required fields have columns and that the columns' types fit the fields ([`types`]). For
//! each value, it then checks only that the value fits. The columns of a Parquet file must have as
//! many values as its row groups have rows ([`groups`]).
//!
//! **Hostile files.** The `parquet` and `arrow` crates return errors for most damage, but panic for
//! some. This module catches the panic, drops the input's decoder, and returns an error that names
//! the input. Before memory is allocated for a declared size, this module checks that the file has
//! enough bytes for it ([`ipc`], [`pages`], [`counts`]). Byte strings of Parquet are read as views.
//! A view points into the page's dictionary, so a value that many rows have is in memory once.

mod cell;
mod counts;
mod foreign;
mod groups;
mod int96;
mod ipc;
mod pages;
mod parquet_file;
mod partitions;
mod tar;
mod types;

use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_schema::Schema;
use parquet::file::reader::ChunkReader;

use crate::decode::{
    BLOCK_ROWS, BadField, BadRow, Block, COLUMN_STRIDE, Fault, FieldKind, FieldLayout, Layout, Slot,
};
use cell::{Cell, cell};
use ipc::Ipc;
use parquet_file::ParquetFile;
pub(crate) use partitions::Partitions;
use tar::Tar;
pub(crate) use types::FieldMeaning;
use types::{Found, Origin, as_bytes, check};

/// Largest number of rows of a chunk. If a file has few small columns, this limit keeps a chunk a
/// small piece of work.
const CHUNK_ROWS_MAX: usize = 1 << 16;
/// Approximate bytes of a value in a chunk.
const VALUE_BYTES: usize = 8;

type Batches<'a> = Box<dyn FnMut() -> Result<Option<RecordBatch>, String> + Send + 'a>;

/// A Parquet or Arrow file that is being read.
pub(crate) struct ColumnStream<'a> {
    batches: Batches<'a>,
    /// The unread rows of a batch. `None` if there are no such rows.
    rest: Option<RecordBatch>,
    chunk_rows: usize,
    /// Number of the next rows to leave out.
    pass: u64,
    /// Number of rows that were read or left out.
    rows: u64,
    /// Number of rows in the file. `None` if it is not known.
    rows_total: Option<u64>,
    found: Found,
    /// True if the last column of a batch has the names of the rows.
    has_names: bool,
}

/// The rows of a file to read.
#[derive(Debug, Clone)]
pub(crate) struct FileRows {
    /// The row groups of a part of a Parquet file. `None` if the whole file is read.
    pub(crate) part: Option<Range<u64>>,
    /// The first row to read, counted from the first row of the part.
    pub(crate) first_row: u64,
}

/// Some rows of a file.
#[derive(Debug)]
pub(crate) struct ColumnRows {
    batch: RecordBatch,
    /// The origin of each field's values.
    origins: Arc<[Origin]>,
    has_names: bool,
}

impl ColumnRows {
    pub(crate) fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// The name of a row, if rows have names.
    pub(crate) fn name(&self, row: usize) -> Option<&str> {
        let names = self.has_names.then(|| self.batch.columns().last())??;
        Some(names.as_string::<i32>().value(row))
    }
}

impl std::fmt::Debug for ColumnStream<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ColumnStream").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// The fields of a pipeline's rows.
pub(crate) type Fields = [(String, FieldLayout)];

impl<'a> ColumnStream<'a> {
    /// Reads these rows of a file.
    pub(crate) fn of_file(
        file: &File,
        fields: &Fields,
        partitions: &Partitions,
        chunk_bytes: usize,
        rows: FileRows,
    ) -> Result<Self, String> {
        let first_row = rows.first_row;
        let mut file = file.try_clone().map_err(|error| error.to_string())?;
        let bytes = file.metadata().map_err(|error| error.to_string())?.len();
        // Other readers of the file share its place.
        file.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
        let magic = magic(&mut file)?;
        guarded(|| {
            if magic.starts_with(b"PAR1") {
                return Self::of_parquet(file, fields, partitions, chunk_bytes, rows);
            }
            let whole = if is_tar(&mut file)? {
                Self::of_tar(file, fields, partitions, chunk_bytes)
            } else {
                Self::of_arrow(file, bytes, &magic, fields, partitions, chunk_bytes)
            };
            Ok(Self { pass: first_row, ..whole? })
        })
    }

    pub(crate) fn of_memory(
        bytes: &'a [u8],
        fields: &Fields,
        chunk_bytes: usize,
        first_row: u64,
    ) -> Result<Self, String> {
        let mut cursor = Cursor::new(bytes);
        let magic = magic(&mut cursor)?;
        let none = Partitions::default();
        guarded(|| {
            if magic.starts_with(b"PAR1") {
                let bytes = bytes::Bytes::copy_from_slice(bytes);
                let rows = FileRows { part: None, first_row };
                return Self::of_parquet(bytes, fields, &none, chunk_bytes, rows);
            }
            let whole = if is_tar(&mut cursor)? {
                Self::of_tar(cursor, fields, &none, chunk_bytes)
            } else {
                Self::of_arrow(cursor, bytes.len() as u64, &magic, fields, &none, chunk_bytes)
            };
            Ok(Self { pass: first_row, ..whole? })
        })
    }

    fn of_tar(
        from: impl Read + Seek + Send + 'a,
        fields: &Fields,
        partitions: &Partitions,
        chunk_bytes: usize,
    ) -> Result<Self, String> {
        let (tar, found, rows) =
            Tar::open(from, fields, partitions, chunk_rows(fields, chunk_bytes))?;
        let chunk_rows = usize::MAX;
        let rows_total = Some(rows);
        let batches = tar.batches();
        let (rest, has_names) = (None, true);
        Ok(Self { batches, rest, chunk_rows, pass: 0, rows: 0, rows_total, found, has_names })
    }

    fn of_parquet(
        from: impl ChunkReader + 'static,
        fields: &Fields,
        partitions: &Partitions,
        chunk_bytes: usize,
        rows: FileRows,
    ) -> Result<Self, String> {
        let chunk_rows = chunk_rows(fields, chunk_bytes);
        let file = ParquetFile::open(from, fields, partitions)?;
        let rows_total = Some(file.rows);
        let found = file.found.clone();
        let (groups, passed) = file.groups(&rows)?;
        let batches = file.batches(chunk_rows, groups)?;
        let (rest, has_names) = (None, false);
        let (pass, rows) = (rows.first_row - passed, passed);
        Ok(Self { batches, rest, chunk_rows, pass, rows, rows_total, found, has_names })
    }

    fn of_arrow(
        from: impl Read + Seek + Send + 'a,
        bytes: u64,
        magic: &[u8; 8],
        fields: &Fields,
        partitions: &Partitions,
        chunk_bytes: usize,
    ) -> Result<Self, String> {
        if let Some(what) = foreign::of_bytes(magic) {
            return Err(what);
        }
        // The columns do not fit for this reason. A file without rows has no values that could be
        // wrong, so the error comes with the first row.
        let mut refused = None;
        let mut found = Found::default();
        let project = |schema: &Schema| match check(schema, fields, partitions) {
            Ok(all) => {
                found = all;
                (as_bytes(schema, &found.columns), found.columns.clone())
            }
            Err(why) => {
                refused = Some(why);
                (schema.clone(), Vec::new())
            }
        };
        let ipc = Ipc::open(from, bytes, magic.starts_with(b"ARROW1"), project);
        let mut ipc = ipc
            .map_err(|error| format!("it is no Parquet or Arrow file that can be read: {error}"))?;
        let chunk_rows = chunk_rows(fields, chunk_bytes);
        let batches = Box::new(move || match ipc.next()? {
            Some(batch) if batch.num_rows() > 0 => refused.take().map_or(Ok(Some(batch)), Err),
            other => Ok(other),
        });
        let (rest, rows_total, has_names) = (None, None, false);
        Ok(Self { batches, rest, chunk_rows, pass: 0, rows: 0, rows_total, found, has_names })
    }

    /// Returns the next rows. `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<ColumnRows>, String> {
        // The loop ends: each round reads a batch of the file. The batch before has no unread rows
        // then, and is not kept: a batch may be as large as the file.
        let batch = loop {
            if let Some(rest) = self.rest.take() {
                break rest;
            }
            match guarded(|| (self.batches)())? {
                Some(batch) => self.rest = self.after_passed(batch),
                None if self.pass > 0 => {
                    return Err(format!(
                        "it has {} rows, and a feed is to continue {} rows after these: it has changed",
                        self.rows, self.pass
                    ));
                }
                None => return Ok(None),
            }
        };
        let rows = batch.num_rows().min(self.chunk_rows);
        let left = batch.num_rows() - rows;
        self.rest = (left > 0).then(|| batch.slice(rows, left));
        self.rows += rows as u64;
        let origins = Arc::clone(&self.found.origins);
        Ok(Some(ColumnRows { batch: batch.slice(0, rows), origins, has_names: self.has_names }))
    }

    /// The rows of a batch after those to leave out. `None` if there are no such rows.
    fn after_passed(&mut self, batch: RecordBatch) -> Option<RecordBatch> {
        let rows = batch.num_rows();
        let passed = usize::try_from(self.pass).unwrap_or(usize::MAX).min(rows);
        self.pass -= passed as u64;
        self.rows += passed as u64;
        (passed < rows).then(|| batch.slice(passed, rows - passed))
    }

    /// Number of rows of the file. `None` for an Arrow file, which does not say it.
    pub(crate) fn rows_total(&self) -> Option<u64> {
        self.rows_total
    }

    /// Fields without a column in the file. Their values are missing.
    pub(crate) fn absent(&self) -> &[String] {
        &self.found.absent
    }

    /// What the values of the file's columns mean.
    pub(crate) fn meanings(&self) -> &[FieldMeaning] {
        &self.found.meanings
    }

    /// True if the file has a column of a field, and its columns fit.
    pub(crate) fn has_columns(&self) -> bool {
        !self.found.columns.is_empty()
    }

    /// Returns approximately how many of the file's `bytes` bytes have been read.
    pub(crate) fn input_bytes(&self, bytes: u64) -> u64 {
        let part = |total: u64| (bytes as f64 * self.rows as f64 / total.max(1) as f64) as u64;
        self.rows_total.map_or(0, part).min(bytes)
    }
}

/// Returns the compressed bytes of each row group of a Parquet file. `None` for other files.
pub(crate) fn row_group_bytes(file: &File) -> Result<Option<Vec<u64>>, String> {
    let mut file = file.try_clone().map_err(|error| error.to_string())?;
    // Other readers of the file share its place.
    file.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
    if !magic(&mut file)?.starts_with(b"PAR1") {
        return Ok(None);
    }
    guarded(|| parquet_file::row_group_bytes(file)).map(Some)
}

/// Runs code that may panic on a hostile file, and turns a panic into an error. Unwind safe: after
/// an error, the caller does not use data that the code may have changed.
fn guarded<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(format!("it is damaged, in a way that its decoder does not expect: {text}"))
    })
}

/// Rows of a chunk. Of many columns, a chunk has at least the rows of a block: each chunk costs
/// some work for each column.
fn chunk_rows(fields: &Fields, chunk_bytes: usize) -> usize {
    let is_costly = |kind| matches!(kind, FieldKind::Blob | FieldKind::File);
    if fields.iter().any(|(_, field)| is_costly(field.kind)) {
        return crate::arrays::chunk_rows(chunk_bytes);
    }
    let values = chunk_bytes / VALUE_BYTES;
    (values / fields.len()).clamp(values.clamp(1, BLOCK_ROWS), CHUNK_ROWS_MAX)
}

/// True if the file is a tar archive. Goes back to its beginning.
fn is_tar(from: &mut (impl Read + Seek)) -> Result<bool, String> {
    let mut block = Vec::new();
    let read = from.by_ref().take(512).read_to_end(&mut block);
    read.and_then(|_| from.seek(SeekFrom::Start(0))).map_err(|error| error.to_string())?;
    Ok(tar::is_tar(&block))
}

fn magic(from: &mut (impl Read + Seek)) -> Result<[u8; 8], String> {
    let mut magic = Vec::new();
    let read = from.by_ref().take(8).read_to_end(&mut magic);
    read.and_then(|_| from.seek(SeekFrom::Start(0))).map_err(|error| error.to_string())?;
    magic.resize(8, 0);
    Ok(magic.try_into().expect("it was made eight bytes long"))
}

/// Fills `block` with the good rows among `rows` of a batch. Bad rows go to `bad`; their lines are
/// row numbers in the batch.
pub(crate) fn read_columns(
    from: &ColumnRows,
    rows: Range<usize>,
    layout: &Layout,
    block: &mut Block,
    bad: &mut Vec<BadRow>,
) {
    assert!(rows.len() <= BLOCK_ROWS, "a block has no room for more");
    block.clear();
    block.rows = rows.len();
    block.first_line = rows.start;
    for plane in 0..layout.planes() {
        block.missing_mut(plane)[..rows.len()].fill(0);
    }
    let bad_before = bad.len();
    let read = (0..layout.fields()).filter_map(|field| Some((field, layout.target(field)?)));
    for ((field, target), origin) in read.zip(&*from.origins) {
        let how = layout.field(field);
        let (array, constant, is_text) = match origin {
            Origin::Column { place, is_text } => (Some(from.batch.column(*place)), None, *is_text),
            Origin::Folder(value) => (None, value.as_deref().map(Cell::Text), true),
            Origin::Absent => (None, None, false),
        };
        for (place, row) in rows.clone().enumerate() {
            let cell = array.map_or(constant, |array| cell(array, row, how.time_unit));
            let stored = store(block, target.slot, place, how, cell, is_text);
            let why = match stored {
                Ok(true) => continue,
                Ok(false) if how.required => BadField::Missing,
                Ok(false) => {
                    let missing = target.missing;
                    block.missing_mut(missing.plane)[place] |= 1 << missing.bit;
                    continue;
                }
                Err(why) => why,
            };
            let snippet = cell.map(Cell::snippet).unwrap_or_default();
            bad.push(BadRow { line: row, lines: 1, fault: Fault::Value { field, why, snippet } });
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

/// Stores a value in its slot. Returns false if the value is missing. `is_text` is true if a byte
/// string must be UTF-8.
fn store(
    block: &mut Block,
    slot: Slot,
    row: usize,
    how: &FieldLayout,
    cell: Option<Cell<'_>>,
    is_text: bool,
) -> Result<bool, BadField> {
    let spelling = &how.spelling;
    let missing = |cell: &Cell<'_>| spelling.is_first() && cell.is_spelt_as(spelling);
    let cell = cell.filter(|cell| !missing(cell));
    let word = match (slot, how.kind) {
        (Slot::Bytes(column), _) => {
            let text = match cell {
                Some(Cell::Text(text)) => text,
                _ => &[],
            };
            let checked = if text.len() > how.bytes_max {
                Err(BadField::TooLong(how.bytes_max))
            } else if is_text && std::str::from_utf8(text).is_err() {
                Err(BadField::NotUtf8)
            } else {
                Ok(text)
            };
            block.bytes[column].push(checked.unwrap_or_default());
            return checked.map(|text| !text.is_empty());
        }
        (Slot::Wide(column), kind) => {
            let value = match cell {
                None => Ok(None),
                Some(cell) if kind == FieldKind::Uint64 => cell.uint64(spelling),
                Some(cell) => cell.int64(spelling).map(|value| value.map(i64::cast_unsigned)),
            };
            block.wides_mut()[column * COLUMN_STRIDE + row] = value.unwrap_or(None).unwrap_or(0);
            return value.map(|value| value.is_some());
        }
        (_, FieldKind::Hex32) => cell.map_or(Ok(None), |cell| cell.hex32(spelling)),
        (_, FieldKind::Float32) => {
            let value = cell.map_or(Ok(None), |cell| cell.float32(spelling));
            value.map(|value| value.map(f32::to_bits))
        }
        _ => {
            let value = cell.map_or(Ok(None), |cell| cell.int32(spelling));
            value.map(|value| value.map(i32::cast_unsigned))
        }
    };
    let Slot::Word(column) = slot else { unreachable!("others are stored above") };
    block.words_mut()[column * COLUMN_STRIDE + row] = word.unwrap_or(None).unwrap_or(0);
    word.map(|word| word.is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use arrow_array::{ArrayRef, Int8Array};
    use arrow_buffer::{Buffer, ScalarBuffer};
    use bytes::Bytes;

    use super::*;

    /// Memory of a batch. The reference tells how long it exists.
    struct Memory([u8; 7], #[expect(dead_code, reason = "it is counted")] Arc<()>);

    impl AsRef<[u8]> for Memory {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    /// Regression test: the memory of a batch was kept until the next batch was read.
    #[test]
    fn a_batch_is_freed_before_the_next_one_is_read() {
        let mut read: Vec<Weak<()>> = Vec::new();
        let batches = Box::new(move || {
            if read.iter().any(|batch| batch.strong_count() > 0) {
                return Err("a batch still has its memory".to_owned());
            }
            if read.len() == 3 {
                return Ok(None);
            }
            let counted = Arc::new(());
            read.push(Arc::downgrade(&counted));
            let memory = Buffer::from(Bytes::from_owner(Memory([1; 7], counted)));
            let numbers: ArrayRef = Arc::new(Int8Array::new(ScalarBuffer::from(memory), None));
            Ok(Some(RecordBatch::try_from_iter([("x", numbers)]).unwrap()))
        });
        let found = Found::default();
        let mut stream = ColumnStream {
            batches,
            rest: None,
            pass: 0,
            chunk_rows: 3,
            rows: 0,
            rows_total: None,
            found,
            has_names: false,
        };
        let mut chunks = Vec::new();
        while let Some(rows) = stream.next().unwrap() {
            chunks.push(rows.rows());
        }
        assert_eq!(chunks, [3, 3, 1, 3, 3, 1, 3, 3, 1]);
    }
}
