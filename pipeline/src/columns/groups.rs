//! The row groups of a Parquet file, with checked counts and checked pages.
//!
//! **Problem.** A row group says its number of rows, and each of its columns has pages that say
//! their numbers of values. The `parquet` crate reads the pages of a column one after the other,
//! across row groups, and does not compare the numbers. If a column has fewer or more values than
//! a row group has rows, each later value of the column comes to another row: a label would get the
//! features of another row.
//!
//! **Approach.** A field is never read from a column of lists, so such a column has one value for
//! each row. [`check_counts`] compares the numbers of the file's metadata when the file is opened.
//! [`CheckedPages`] compares what the pages say: it fails at the page that goes beyond the row
//! group, and at the end of a column chunk that has fewer values. It also checks each page before a
//! decoder gets it ([`super::counts`], [`super::int96`]).

use std::ops::Range;
use std::sync::Arc;

use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::Type;
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, SerializedPageReader};
use parquet::schema::types::ColumnDescPtr;

use super::counts::{DICTIONARY_VALUE_BYTES, check};
use super::int96::check_times;
use crate::spec::TimeUnit;

/// Fails unless the file's numbers of rows and values fit together. `leaves` are the columns that
/// are read. Returns the number of rows.
pub(super) fn check_counts(
    metadata: &ParquetMetaData,
    leaves: &[usize],
) -> std::result::Result<u64, String> {
    let groups = metadata.num_row_groups();
    let mut rows = 0_u64;
    for (place, group) in metadata.row_groups().iter().enumerate() {
        let place = place + 1;
        let of_group = u64::try_from(group.num_rows()).ok();
        let of_group = of_group.ok_or_else(|| {
            format!(
                "its row group {place} of {groups} has a negative number of rows: it is damaged"
            )
        })?;
        rows = rows.saturating_add(of_group);
        for &leaf in leaves {
            let Some(chunk) = group.columns().get(leaf) else {
                return Err(format!(
                    "its row group {place} of {groups} has {} columns, and its schema has more: it is damaged",
                    group.num_columns()
                ));
            };
            if u64::try_from(chunk.num_values()) != Ok(of_group) {
                let name = chunk.column_path().string();
                return Err(misfit(&name, chunk.num_values(), (place, groups), of_group));
            }
        }
    }
    let declared = metadata.file_metadata().num_rows();
    if u64::try_from(declared) != Ok(rows) {
        return Err(format!(
            "it says that it has {declared} rows, and its {groups} row groups have {rows}: it is damaged, or its writer \
             has a defect; write it anew"
        ));
    }
    Ok(rows)
}

/// The text of an error: the row group number `place` of `groups` has `rows` rows, and another
/// number of values of the column.
fn misfit(
    column: &str,
    values: impl std::fmt::Display,
    (place, groups): (usize, usize),
    rows: u64,
) -> String {
    format!(
        "its column {column:?} has {values} values in row group {place} of {groups}, which has {rows} rows: it is \
         damaged, or its writer has a defect; write it anew"
    )
}

/// Some row groups of a file, with checked pages.
pub(super) struct CheckedGroups<R> {
    pub(super) from: Arc<R>,
    pub(super) metadata: Arc<ParquetMetaData>,
    pub(super) groups: Range<usize>,
    /// The units in which columns of 96-bit times are read. Other columns have `None`.
    pub(super) int96_units: Arc<[Option<TimeUnit>]>,
}

impl<R: ChunkReader + 'static> RowGroups for CheckedGroups<R> {
    fn num_rows(&self) -> usize {
        let rows = |group: &RowGroupMetaData| usize::try_from(group.num_rows()).unwrap_or(0);
        self.row_groups().map(rows).fold(0, usize::saturating_add)
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>> {
        let from = Arc::clone(&self.from);
        let metadata = Arc::clone(&self.metadata);
        let int96_unit = self.int96_units.get(column).copied().flatten();
        Ok(Box::new(Chunks { from, groups: self.groups.clone(), metadata, column, int96_unit }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.metadata.row_groups()[self.groups.clone()].iter())
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// The column chunks of one column.
struct Chunks<R> {
    from: Arc<R>,
    metadata: Arc<ParquetMetaData>,
    groups: Range<usize>,
    column: usize,
    int96_unit: Option<TimeUnit>,
}

impl<R: ChunkReader + 'static> Iterator for Chunks<R> {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let place = self.groups.next()?;
        let group = self.metadata.row_group(place);
        let chunk = group.column(self.column);
        let rows = usize::try_from(group.num_rows()).unwrap_or(0);
        let pages = SerializedPageReader::new(Arc::clone(&self.from), chunk, rows, None);
        let checked = |pages| CheckedPages {
            pages,
            column: chunk.column_descr_ptr(),
            int96_unit: self.int96_unit,
            rows: rows as u64,
            values: 0,
            group: (place + 1, self.metadata.num_row_groups()),
        };
        Some(pages.map(|pages| Box::new(checked(pages)) as _))
    }
}

impl<R: ChunkReader + 'static> PageIterator for Chunks<R> {}

/// The pages of a column chunk, each checked.
struct CheckedPages<R: ChunkReader> {
    pages: SerializedPageReader<R>,
    column: ColumnDescPtr,
    int96_unit: Option<TimeUnit>,
    /// Rows of the row group. The pages must have this number of values together.
    rows: u64,
    /// Values of the pages so far.
    values: u64,
    /// The number of the row group, from 1, and the number of row groups.
    group: (usize, usize),
}

impl<R: ChunkReader> CheckedPages<R> {
    fn check(&mut self, page: &Page) -> Result<()> {
        let levels = (self.column.max_rep_level(), self.column.max_def_level());
        let value_bytes = match self.column.physical_type() {
            Type::FIXED_LEN_BYTE_ARRAY => usize::try_from(self.column.type_length()).unwrap_or(0),
            _ => DICTIONARY_VALUE_BYTES,
        };
        check(page, levels, value_bytes.clamp(1, DICTIONARY_VALUE_BYTES))?;
        if let Some(unit) = self.int96_unit {
            check_times(page, levels, unit)?;
        }
        match page {
            Page::DictionaryPage { .. } => return Ok(()),
            Page::DataPage { .. } => {}
            Page::DataPageV2 { num_rows, num_values, .. } => {
                if num_rows != num_values {
                    return self.refuse(format!(
                        "a page of it says that it has {num_values} values and {num_rows} rows"
                    ));
                }
            }
        }
        self.values += u64::from(page.num_values());
        if self.values > self.rows {
            return self.refuse_values(format!("{} or more", self.values));
        }
        Ok(())
    }

    #[cold]
    fn refuse<T>(&self, why: String) -> Result<T> {
        let name = self.column.path().string();
        Err(ParquetError::General(format!(
            "its column {name:?}: {why}: it is damaged, or its writer has a defect; write it anew"
        )))
    }

    #[cold]
    fn refuse_values<T>(&self, values: impl std::fmt::Display) -> Result<T> {
        let name = self.column.path().string();
        Err(ParquetError::General(misfit(&name, values, self.group, self.rows)))
    }
}

impl<R: ChunkReader> Iterator for CheckedPages<R> {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl<R: ChunkReader> PageReader for CheckedPages<R> {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        // The loop ends: each round reads a page.
        loop {
            let Some(page) = self.pages.get_next_page()? else {
                return if self.values == self.rows {
                    Ok(None)
                } else {
                    self.refuse_values(self.values)
                };
            };
            self.check(&page)?;
            // The crate would take a data page without values for the end of the column chunk.
            if page.is_data_page() && page.num_values() == 0 {
                continue;
            }
            return Ok(Some(page));
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    /// Called only for a selection of rows. A pipeline reads all rows.
    fn skip_next_page(&mut self) -> Result<()> {
        self.refuse("pages are not skipped".to_owned())
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}
