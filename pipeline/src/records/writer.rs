//! Writes record files.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use embank::OutputFile;

use super::footer;
use super::head::Description;
use super::reader::RecordGroup;
use super::segment::Layout;
use super::{ALIGNMENT, GROUP_BYTES_MAX, GROUP_ROWS_MAX, GROUPS_MAX, aligned};
use crate::batch::{Batch, MatrixInfo};
use crate::error::{Error, Result, of_output, refused};

/// How a record file is written.
///
/// # Examples
/// ```
/// use embank_pipeline::RecordOptions;
///
/// let options = RecordOptions {
///     zstd_level: Some(3),
///     metadata: [("key".to_owned(), "5f1b8c0a".to_owned())].into(),
///     ..Default::default()
/// };
/// assert_eq!(options.rows_per_group, 65_536);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordOptions {
    /// Rows of a group, 1 to 65,536. A group has fewer rows if their values would take more than
    /// 256 MiB. The last group has the rest. Default: 65,536.
    pub rows_per_group: usize,
    /// Level at which groups are compressed by zstd, 1 (fast) to 22 (small); below 0, faster still.
    /// A group that would not become smaller is stored as it is. `None` to compress no group.
    /// Default: `None`.
    pub zstd_level: Option<i32>,
    /// What the caller wants to say of the file, such as the key of a cache. Default: nothing.
    pub metadata: BTreeMap<String, String>,
}

impl Default for RecordOptions {
    fn default() -> Self {
        Self { rows_per_group: GROUP_ROWS_MAX, zstd_level: None, metadata: BTreeMap::new() }
    }
}

impl RecordOptions {
    /// Checks that a file can be written with these options.
    ///
    /// # Errors
    /// [`Error::Spec`] if an option is out of its range; the message names it.
    pub fn check(&self) -> Result<()> {
        let rows = self.rows_per_group;
        if !(1..=GROUP_ROWS_MAX).contains(&rows) {
            return refused(format!(
                "a group of a record file has 1 to {GROUP_ROWS_MAX} rows, not {rows}"
            ));
        }
        let levels = zstd::compression_level_range();
        match self.zstd_level {
            Some(level) if !levels.contains(&level) => refused(format!(
                "zstd has levels from {} to {}, not {level}",
                levels.start(),
                levels.end()
            )),
            _ => Ok(()),
        }
    }
}

/// Writes rows of batches to a record file.
///
/// The file gets its name at [`finish`](Self::finish), when it is on stable storage, in place of an
/// existing file of this name. If the writer is dropped earlier, nothing stays on disk. The writer
/// keeps the rows of one group in memory, once more while it compresses them.
///
/// # Examples
/// See [`RecordFile`](super::RecordFile).
#[derive(Debug)]
pub struct RecordWriter {
    file: OutputFile,
    infos: Arc<[MatrixInfo]>,
    layout: Layout,
    rows_per_group: usize,
    zstd_level: Option<i32>,
    head_crc: u32,
    /// The values of the group that is not complete, for each output.
    pending: Vec<Vec<u8>>,
    pending_rows: usize,
    groups: Vec<RecordGroup>,
    /// Number of rows of all groups.
    grouped_rows: u64,
    /// Bytes of the file that are written.
    end: u64,
    /// True after a failed write. The file's bytes are then unknown.
    has_failed: bool,
}

impl RecordWriter {
    /// Begins a record file for rows with these outputs.
    ///
    /// # Errors
    /// [`Error::Spec`] if an option is out of its range, if the outputs or the metadata are too
    /// large, or if the path can't be that of a file. [`Error::Io`] if the file can't be made.
    pub fn create(path: &Path, outputs: &[MatrixInfo], options: RecordOptions) -> Result<Self> {
        options.check()?;
        let Some(layout) = Layout::of(outputs) else {
            return refused(format!(
                "a row of a record file has at most {GROUP_BYTES_MAX} bytes; give it fewer outputs"
            ));
        };
        let RecordOptions { rows_per_group, zstd_level, metadata } = options;
        let (head, head_crc) = Description::new(outputs, metadata).to_head()?;
        let mut writer = Self {
            file: OutputFile::create(path).map_err(of_output)?,
            infos: outputs.into(),
            rows_per_group: layout.rows_max(rows_per_group),
            layout,
            zstd_level,
            head_crc,
            pending: vec![Vec::new(); outputs.len()],
            pending_rows: 0,
            groups: Vec::new(),
            grouped_rows: 0,
            end: 0,
            has_failed: false,
        };
        writer.checked(|writer| writer.append(&head))?;
        Ok(writer)
    }

    /// The path that the file will have.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Number of rows that the writer has taken.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.grouped_rows + self.pending_rows as u64
    }

    /// Writes the rows of a batch. Groups are cut without regard to batches.
    ///
    /// # Errors
    /// [`Error::Spec`] if the batch has other outputs, or if the file would have more than
    /// 1,048,576 groups. [`Error::Io`] if a group can't be written. After an error, the file can't
    /// be finished.
    pub fn write(&mut self, batch: &Batch) -> Result<()> {
        self.write_rows(batch, 0..batch.rows())
    }

    /// Writes some rows of a batch, as [`write`](Self::write) does.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    ///
    /// # Panics
    /// If the batch has no such rows.
    pub fn write_rows(&mut self, batch: &Batch, rows: Range<usize>) -> Result<()> {
        assert!(
            rows.start <= rows.end && rows.end <= batch.rows(),
            "{rows:?} are rows of the batch"
        );
        if batch.infos != self.infos {
            return refused(
                "the rows have other outputs than the record file; write one file each",
            );
        }
        self.checked(|writer| writer.take(batch, rows))
    }

    /// Completes the file, brings it to stable storage and gives it its name. Returns the file's
    /// length in bytes.
    ///
    /// # Errors
    /// [`Error::Io`] if the file can't be written or named, or if an earlier write failed. Nothing
    /// stays on disk then, except if the folder could not be synced.
    pub fn finish(mut self) -> Result<u64> {
        self.checked(|writer| {
            if writer.pending_rows > 0 {
                writer.end_group()?;
            }
            let footer = footer::encoded(&writer.groups, writer.head_crc, writer.end);
            writer.append(&footer)
        })?;
        let file_bytes = self.file.sync().map_err(of_output)?;
        self.file.publish().map_err(of_output)?;
        Ok(file_bytes)
    }

    /// Does a part of the work, unless an earlier part has failed.
    fn checked(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.has_failed {
            return Err(self.failed(io::Error::other("an earlier write failed; begin again")));
        }
        let done = work(self);
        self.has_failed = done.is_err();
        done
    }

    fn take(&mut self, batch: &Batch, rows: Range<usize>) -> Result<()> {
        let values: Vec<_> =
            (0..self.infos.len()).map(|output| batch.little_endian(output)).collect();
        let mut at = rows.start;
        // The loop ends: each turn takes at least one row, because no group is full at its begin.
        while at < rows.end {
            let count = (rows.end - at).min(self.rows_per_group - self.pending_rows);
            let row_bytes = self.layout.row_bytes();
            for ((pending, values), &row_bytes) in
                self.pending.iter_mut().zip(&values).zip(row_bytes)
            {
                let row_bytes = row_bytes as usize;
                pending.extend_from_slice(&values[at * row_bytes..(at + count) * row_bytes]);
            }
            self.pending_rows += count;
            at += count;
            if self.pending_rows == self.rows_per_group {
                self.end_group()?;
            }
        }
        Ok(())
    }

    /// Writes the pending rows as a group, with the zeros after it.
    fn end_group(&mut self) -> Result<()> {
        if self.groups.len() as u64 == GROUPS_MAX {
            return refused(format!(
                "a record file has at most {GROUPS_MAX} groups; give each group more rows, or write several files"
            ));
        }
        let rows = std::mem::take(&mut self.pending_rows);
        let bytes = self.layout.bytes(rows).expect("a group has no more rows than fit");
        let offset = self.end;
        let compressed = match self.zstd_level {
            Some(level) => {
                let packed = compress(&self.layout, &self.pending, bytes, level);
                packed.map_err(|error| self.failed(error))?.filter(|it| (it.len() as u64) < bytes)
            }
            None => None,
        };
        let mut to = Summed { to: &mut self.file, crc: 0, bytes: 0 };
        let written = match &compressed {
            Some(compressed) => to.write_all(compressed),
            None => self.layout.write(&self.pending, &mut to),
        };
        let (crc, stored_bytes) = (to.crc, to.bytes);
        written.map_err(|error| self.failed(error))?;
        self.end += stored_bytes;
        let zeros = aligned(self.end) - self.end;
        self.append(&[0; ALIGNMENT as usize][..zeros as usize])?;
        self.pending.iter_mut().for_each(Vec::clear);
        let first_row = self.grouped_rows;
        self.grouped_rows += rows as u64;
        let is_compressed = compressed.is_some();
        self.groups.push(RecordGroup {
            first_row,
            rows,
            offset,
            stored_bytes,
            bytes,
            is_compressed,
            crc,
        });
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.failed(error))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Io { doing: "write", path: self.file.path().to_owned(), source }
    }
}

/// Returns a segment compressed by zstd. `None` if it has no bytes.
fn compress(
    layout: &Layout,
    matrices: &[Vec<u8>],
    bytes: u64,
    level: i32,
) -> io::Result<Option<Vec<u8>>> {
    if bytes == 0 {
        return Ok(None);
    }
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level)?;
    // With the length known, zstd takes no larger window than the values need. A reader allows no
    // larger one.
    encoder.set_pledged_src_size(Some(bytes))?;
    layout.write(matrices, &mut encoder)?;
    encoder.finish().map(Some)
}

/// A writer that counts and sums what goes through it.
struct Summed<'w> {
    to: &'w mut dyn Write,
    crc: u32,
    bytes: u64,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::tests::{info, random};
    use crate::spec::Dtype;

    #[test]
    fn a_file_has_a_bounded_number_of_groups() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.records");
        let infos: Arc<[MatrixInfo]> = [info("a", Dtype::F32, 1)].into();
        let options = RecordOptions { rows_per_group: 1, ..Default::default() };
        let mut writer = RecordWriter::create(&path, &infos, options).unwrap();
        let group = RecordGroup {
            first_row: 0,
            rows: 1,
            offset: 0,
            stored_bytes: 4,
            bytes: 4,
            is_compressed: false,
            crc: 0,
        };
        writer.groups = vec![group; GROUPS_MAX as usize];
        let error = writer.write(&random(&infos, 1, 1, false)).unwrap_err().to_string();
        assert!(error.contains("1048576 groups"), "{error}");
        assert!(matches!(writer.finish(), Err(Error::Io { .. })));
        assert!(!path.exists());
    }
}
