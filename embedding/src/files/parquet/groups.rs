//! Reads a Parquet file one row group at a time, so that the rows of its columns stay together.
//!
//! The `parquet` crate reads the chunks of a column one after the other, across row groups, and
//! does not compare their numbers of values with the numbers of rows. In a file whose columns have
//! other numbers of values, later vectors would come to other keys. Within one row group, the crate
//! refuses columns of different lengths, and this module checks the number of rows.

use std::fs::File;

use arrow_array::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::{ParquetError, Result};

/// The rows of a Parquet file, in batches.
pub(super) struct Groups {
    file: File,
    metadata: ArrowReaderMetadata,
    mask: ProjectionMask,
    batch_rows: usize,
    /// The row group after the current one.
    next_group: usize,
    current: Option<ParquetRecordBatchReader>,
    /// Rows of the current row group that are to come.
    left: u64,
}

impl Groups {
    pub(super) fn new(
        file: File,
        metadata: ArrowReaderMetadata,
        mask: ProjectionMask,
        batch_rows: usize,
    ) -> Self {
        Self { file, metadata, mask, batch_rows, next_group: 0, current: None, left: 0 }
    }

    /// Returns the next rows, at least one. `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        // The loop ends: each round reads rows or moves to the next row group.
        loop {
            if let Some(batch) = self.current.as_mut().and_then(Iterator::next).transpose()? {
                let rows = batch.num_rows() as u64;
                self.left = self.left.checked_sub(rows).ok_or_else(|| self.misfit("more"))?;
                if rows > 0 {
                    return Ok(Some(batch));
                }
                continue;
            }
            if self.left > 0 {
                return Err(self.misfit("fewer"));
            }
            let group = self.next_group;
            let Some(rows) = self.metadata.metadata().row_groups().get(group) else {
                return Ok(None);
            };
            self.left = u64::try_from(rows.num_rows())?;
            self.next_group += 1;
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(
                self.file.try_clone()?,
                self.metadata.clone(),
            );
            let reader = builder
                .with_row_groups(vec![group])
                .with_projection(self.mask.clone())
                .with_batch_size(self.batch_rows)
                .build()?;
            self.current = Some(reader);
        }
    }

    #[cold]
    fn misfit(&self, what: &str) -> ParquetError {
        ParquetError::General(format!(
            "row group {} has {what} values than rows: the file is damaged, or its writer has a defect",
            self.next_group
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, UInt64Array};
    use arrow_schema::{DataType, Field};
    use parquet::arrow::arrow_writer::ArrowWriter;
    use parquet::file::metadata::ParquetMetaDataWriter;

    use super::super::super::batch::{ReadBatch, RowFile as _, Wanted};
    use super::super::super::selection::Selection;
    use super::super::read;
    use super::*;
    use crate::error::Error;

    /// Regression test: the columns of a file were read one after the other, across row groups. In
    /// a file whose key column has fewer values than a row group has rows, later vectors came to
    /// other keys.
    #[test]
    fn keys_and_vectors_of_other_numbers_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let keys = |rows: std::ops::Range<u64>| Arc::new(UInt64Array::from_iter_values(rows)) as _;
        let lists = |rows: std::ops::Range<u64>| {
            let values = Float32Array::from_iter_values(rows.map(|row| row as f32));
            let item = Arc::new(Field::new("item", DataType::Float32, false));
            Arc::new(FixedSizeListArray::new(item, 1, Arc::new(values), None)) as ArrayRef
        };
        let batch = |rows: std::ops::Range<u64>| {
            RecordBatch::try_from_iter([("key", keys(rows.clone())), ("vector", lists(rows))])
        };
        let mut writer = ArrowWriter::try_new(Vec::new(), batch(0..1).unwrap().schema(), None);
        let writer = writer.as_mut().unwrap();
        for rows in [0..5, 0..3, 5..12, 5..10] {
            writer.write(&batch(rows).unwrap()).unwrap();
            writer.flush().unwrap();
        }
        let written = writer.finish().unwrap();
        let bytes = writer.inner().clone();
        // Makes a row group of 5 rows of the keys of one row group and the vectors of another.
        let group = |keys: usize, vectors: usize| {
            let mut all = written.row_group(0).clone().into_builder().set_num_rows(5);
            let columns = [written.row_group(keys).column(0), written.row_group(vectors).column(1)];
            all = all.set_column_metadata(columns.map(Clone::clone).into());
            all.build().unwrap()
        };
        let read_all = |groups: &[(usize, usize)]| -> crate::error::Result<Vec<(u64, f32)>> {
            let groups = groups.iter().map(|&(keys, vectors)| group(keys, vectors)).collect();
            let metadata = written.clone().into_builder().set_row_groups(groups).build();
            let mut file = bytes.clone();
            let footer = ParquetMetaDataWriter::new(&mut file, &metadata);
            footer.finish().unwrap();
            std::fs::write(&path, file).unwrap();
            let wanted = Wanted { state: false, uses: false };
            let selection = Selection { keys: None, rows: None, first_key: None, wanted };
            let mut found = read(&path, selection)?;
            let mut batch = ReadBatch::default();
            let mut rows = Vec::new();
            // The loop ends when the file has no more rows.
            loop {
                batch.clear();
                found.read_batch(2, &mut batch)?;
                if batch.keys.is_empty() {
                    return Ok(rows);
                }
                rows.extend(batch.keys.iter().copied().zip(batch.vectors.iter().copied()));
            }
        };
        let right = read_all(&[(0, 0), (3, 3)]);
        assert_eq!(right.unwrap(), (0..10).map(|row| (row, row as f32)).collect::<Vec<_>>());
        for groups in [
            &[(1, 0), (2, 3)][..],
            &[(0, 1), (3, 2)],
            &[(1, 1), (3, 3)],
            &[(2, 2)],
            &[(0, 0), (3, 1)],
        ] {
            let error = read_all(groups).unwrap_err();
            assert!(matches!(error, Error::UnreadableFile { .. }), "{groups:?}: {error}");
        }
    }
}
