//! Opens a Parquet file, and reads the columns of a pipeline's fields.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{DataType, FieldRef, Schema, TimeUnit as FileUnit};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::ChunkReader;
use parquet::schema::types::SchemaDescriptor;

use super::groups::{CheckedGroups, check_counts};
use super::pages::Pages;
use super::partitions::Partitions;
use super::types::{Found, as_bytes, check, int96_units, parquet_as_bytes, views};
use super::{Batches, Fields, FileRows, guarded};
use crate::spec::TimeUnit;

/// A Parquet file whose types and counts are checked.
pub(super) struct ParquetFile<R> {
    from: Arc<Pages<R>>,
    metadata: Arc<ParquetMetaData>,
    /// The types in which the columns are read.
    schema: Schema,
    /// The file's schema with plain bytes in place of text.
    descriptor: SchemaDescriptor,
    /// The units in which columns of 96-bit times are read, for each column of the Parquet schema.
    int96_units: Arc<[Option<TimeUnit>]>,
    /// Empty if the file has no rows and its columns do not fit.
    pub(super) found: Found,
    pub(super) rows: u64,
}

impl<R: ChunkReader + 'static> ParquetFile<R> {
    /// # Errors
    /// A text that says why the file can't be read. A file without rows can be read whatever its
    /// columns are, because it has no value that could be wrong.
    pub(super) fn open(from: R, fields: &Fields, partitions: &Partitions) -> Result<Self, String> {
        let from = Pages(from);
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&from).map_err(told)?;
        let metadata = Arc::new(metadata);
        let arrow = arrow_metadata(&metadata)?;
        let found = match check(arrow.schema(), fields, partitions) {
            Ok(found) => found,
            Err(_) if check_counts(&metadata, &[])? == 0 => Found::default(),
            Err(why) => return Err(why),
        };
        let descriptor = metadata.file_metadata().schema_descr();
        let is_read = |leaf: &usize| {
            found.columns.binary_search(&descriptor.get_column_root_idx(*leaf)).is_ok()
        };
        let leaves: Vec<usize> = (0..descriptor.num_columns()).filter(is_read).collect();
        let rows = check_counts(&metadata, &leaves)?;
        let int96 = int96_units(&arrow, fields);
        let schema = views(arrow.schema(), &found.columns, &int96);
        let options = ArrowReaderOptions::new().with_schema(Arc::new(schema.clone()));
        // Called for its error: it fails if a column's type does not fit the schema in `options`.
        ArrowReaderMetadata::try_new(Arc::clone(&metadata), options).map_err(told)?;
        let unit = |leaf: usize| int96.get(&descriptor.column(leaf).path().string()).copied();
        let int96_units = (0..descriptor.num_columns()).map(unit).collect();
        let descriptor = parquet_as_bytes(descriptor).map_err(told)?;
        let schema = as_bytes(&schema, &found.columns);
        let from = Arc::new(from);
        Ok(Self { from, metadata, schema, descriptor, int96_units, found, rows })
    }

    /// Returns a function that gives the next rows of the row groups `groups` at each call.
    pub(super) fn batches(
        self,
        chunk_rows: usize,
        groups: Range<usize>,
    ) -> Result<Batches<'static>, String> {
        if self.found.columns.is_empty() {
            return Ok(Box::new(|| Ok(None)));
        }
        let mut reader = self.reader(&self.found.columns, groups.clone(), chunk_rows)?;
        let mut rows = 0;
        Ok(Box::new(move || match guarded(|| reader.next().transpose().map_err(told)) {
            Ok(batch) => {
                rows += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
                Ok(batch)
            }
            Err(why) => Err(self.with_column(why, &groups, rows, chunk_rows)),
        }))
    }

    /// The row groups with these rows, and the number of rows in earlier row groups of the part.
    pub(super) fn groups(&self, rows: &FileRows) -> Result<(Range<usize>, u64), String> {
        let mut groups = self.groups_of_part(rows.part.clone())?;
        let mut passed = 0;
        // The loop ends: each round leaves a row group out.
        while !groups.is_empty() {
            let rows_of = self.metadata.row_group(groups.start).num_rows();
            let end = passed + u64::try_from(rows_of).unwrap_or(0);
            if end > rows.first_row {
                break;
            }
            passed = end;
            groups.start += 1;
        }
        Ok((groups, passed))
    }

    /// The row groups of a part, or all.
    fn groups_of_part(&self, part: Option<Range<u64>>) -> Result<Range<usize>, String> {
        let all = self.metadata.num_row_groups();
        let Some(part) = part else { return Ok(0..all) };
        if part.start <= part.end && part.end <= all as u64 {
            return Ok(part.start as usize..part.end as usize);
        }
        Err(format!(
            "it has {all} row groups, and a part of it has those from {} to {}: it is another file than the one that was \
             split; split it again",
            part.start, part.end
        ))
    }

    fn reader(
        &self,
        columns: &[usize],
        groups: Range<usize>,
        chunk_rows: usize,
    ) -> Result<ParquetRecordBatchReader, String> {
        let mask = ProjectionMask::roots(&self.descriptor, columns.iter().copied());
        let fields = self.schema.fields();
        let levels = parquet_to_arrow_field_levels(&self.descriptor, mask, Some(fields));
        let levels = levels.map_err(told)?;
        let groups = CheckedGroups {
            from: Arc::clone(&self.from),
            metadata: Arc::clone(&self.metadata),
            groups,
            int96_units: Arc::clone(&self.int96_units),
        };
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, &groups, chunk_rows, None)
            .map_err(told)
    }

    /// Adds the column's name to the error of reading `chunk_rows` rows of the row groups `read`,
    /// from their row `begin` on. The decoder reads all columns of these rows in one call, and its
    /// error does not say which column it is about. So this function reads the row groups of these
    /// rows again, column by column, up to the first column that fails.
    #[cold]
    fn with_column(
        &self,
        why: String,
        read: &Range<usize>,
        begin: u64,
        chunk_rows: usize,
    ) -> String {
        if why.starts_with("its column ") {
            return why;
        }
        let groups = self.groups_of(read, &(begin..begin + chunk_rows as u64));
        for &column in &self.found.columns {
            let read = guarded(|| {
                let mut reader = self.reader(&[column], groups.clone(), chunk_rows)?;
                reader.try_for_each(|batch| batch.map(drop)).map_err(told)
            });
            match read {
                Ok(()) => {}
                Err(why) if why.starts_with("its column ") => return why,
                Err(why) => {
                    return format!(
                        "its column {:?}: {why}; it is damaged, or encoded in a way that is not read: write it anew",
                        self.schema.field(column).name()
                    );
                }
            }
        }
        why
    }

    /// Those of the row groups `read` that have these rows. Rows count from the first of `read`.
    fn groups_of(&self, read: &Range<usize>, rows: &Range<u64>) -> Range<usize> {
        let mut all = read.start..read.start;
        let mut begin = 0;
        for place in read.clone() {
            let group = self.metadata.row_group(place);
            let end = begin + u64::try_from(group.num_rows()).unwrap_or(0);
            if end <= rows.start {
                all.start = place + 1;
            }
            if begin < rows.end {
                all.end = place + 1;
            }
            begin = end;
        }
        all
    }
}

/// The compressed bytes of each row group.
pub(super) fn row_group_bytes(from: impl ChunkReader + 'static) -> Result<Vec<u64>, String> {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&Pages(from)).map_err(told)?;
    let bytes = |group: &RowGroupMetaData| u64::try_from(group.compressed_size()).unwrap_or(0);
    Ok(metadata.row_groups().iter().map(bytes).collect())
}

/// Derives the Arrow types of the columns from the Parquet schema. Writers of Arrow data also store
/// its schema in the file (`ARROW:schema`). A later program may have changed the columns and kept
/// that text. So it counts only for types that Parquet does not have, which writers store as plain
/// numbers.
fn arrow_metadata(metadata: &Arc<ParquetMetaData>) -> Result<ArrowReaderMetadata, String> {
    let of = |options| ArrowReaderMetadata::try_new(Arc::clone(metadata), options);
    let alone = of(ArrowReaderOptions::new().with_skip_arrow_metadata(true)).map_err(told)?;
    let Ok(stored) = of(ArrowReaderOptions::new()) else { return Ok(alone) };
    let mut is_hinted = false;
    let fields = alone.schema().fields().iter().zip(stored.schema().fields());
    let fields: Vec<FieldRef> = fields
        .map(|(own, stored)| match (own.data_type(), stored.data_type()) {
            (
                DataType::Int64,
                kind @ (DataType::Duration(_)
                | DataType::Date64
                | DataType::Timestamp(FileUnit::Second, _)),
            )
            | (DataType::Int32, kind @ DataType::Time32(FileUnit::Second)) => {
                is_hinted = true;
                Arc::new(own.as_ref().clone().with_data_type(kind.clone()))
            }
            _ => Arc::clone(own),
        })
        .collect();
    if !is_hinted {
        return Ok(alone);
    }
    of(ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(fields)))).map_err(told)
}

/// The text of an error, without the names of the crates' error types before it.
fn told(error: impl Display) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("Parquet argument error: ").unwrap_or(&text);
    text.strip_prefix("Parquet error: ").unwrap_or(text).to_owned()
}
