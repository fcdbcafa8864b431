//! Reads record files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fault::{Fault, RecordDamage, wrong_sum};
use super::footer::{self, TRAILER_BYTES, Trailer};
use super::head::{Description, PREFIX_BYTES, Prefix};
use super::segment::Layout;
use crate::batch::{Batch, MatrixInfo};
use crate::error::{Error, Result};

/// A record file, open for reading. Threads may share it.
///
/// # Examples
/// ```
/// use embank_pipeline::{
///     FeedInput, FeedOptions, Pipeline, RecordFile, RecordOptions, RecordWriter, RunOptions, Spec,
/// };
///
/// let pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("rows.records");
/// let mut writer = RecordWriter::create(&path, pipeline.outputs(), RecordOptions::default())?;
/// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
/// let inputs = vec![FeedInput::memory("ten rows", row.repeat(10).into_bytes())];
/// for batch in pipeline.feed(inputs, &FeedOptions { batch_rows: 4, ..Default::default() })? {
///     writer.write(&batch?)?;
/// }
/// writer.finish()?;
///
/// let file = RecordFile::open(&path)?;
/// assert_eq!((file.rows(), file.groups().len(), file.outputs()[0].name.as_str()), (10, 1, "row"));
/// assert_eq!(file.read(0)?.bits32(0).unwrap().len(), 400);
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug)]
pub struct RecordFile {
    file: File,
    path: PathBuf,
    file_bytes: u64,
    head_bytes: u64,
    footer_offset: u64,
    infos: Arc<[MatrixInfo]>,
    layout: Layout,
    metadata: BTreeMap<String, String>,
    fidelity: String,
    groups: Vec<RecordGroup>,
}

/// A group of a record file: consecutive rows that are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordGroup {
    /// The number of the group's first row in the file, from 0.
    pub first_row: u64,
    /// Number of rows, 1 to 65,536.
    pub rows: usize,
    /// The group begins at this byte of the file, a multiple of 4,096.
    pub offset: u64,
    /// Bytes of the group in the file.
    pub stored_bytes: u64,
    /// Bytes of the group's values, with zeros between the outputs.
    pub bytes: u64,
    /// True if the group is compressed by zstd.
    pub is_compressed: bool,
    /// CRC-32C of the bytes in the file.
    pub(super) crc: u32,
}

/// How exactly a record file can be read, and what that costs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RecordFidelity {
    /// The fidelity's name: `full`, all values as they were written.
    pub name: String,
    /// Mean of the bytes of the file that are read for a row. 0 if there are no rows.
    pub mean_row_bytes: f64,
}

impl RecordFile {
    /// Opens a record file and reads its head and its index.
    ///
    /// # Errors
    /// [`Error::Records`] if the head, the index or the end of the file is damaged.
    /// [`Error::NewerRecords`] if a newer version of Embank wrote the file. [`Error::Io`] if the
    /// path is not that of a regular file, or if it can't be read.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |doing, source| Error::Io { doing, path: path.to_owned(), source };
        // A pipe is refused by its path, because to open it may take forever.
        let found = std::fs::metadata(path).map_err(|error| failed("open", error))?;
        if !found.is_file() {
            let why = "it is no regular file, and a record file is read from several places";
            return Err(failed("open", io::Error::new(ErrorKind::InvalidInput, why)));
        }
        let file = File::open(path).map_err(|error| failed("open", error))?;
        let file_bytes = file.metadata().map_err(|error| failed("open", error))?.len();
        let read = |bytes: &mut [u8], offset| {
            file.read_exact_at(bytes, offset).map_err(|error| failed("read", error))
        };
        let fault = |fault: Fault| fault.of(path);

        if file_bytes < (PREFIX_BYTES + TRAILER_BYTES) as u64 {
            let what = format!("it has {file_bytes} bytes, too few for a record file");
            return Err(fault(Fault::damage(0, what)));
        }
        let mut bytes = [0; PREFIX_BYTES];
        read(&mut bytes, 0)?;
        let prefix = Prefix::parse(&bytes).map_err(fault)?;
        let head_bytes = prefix.head_bytes();
        if head_bytes > file_bytes - TRAILER_BYTES as u64 {
            let what = format!("its head is to have {head_bytes} bytes, and it has {file_bytes}");
            return Err(fault(Fault::damage(0, what)));
        }
        let mut rest = vec![0; head_bytes as usize - PREFIX_BYTES];
        read(&mut rest, PREFIX_BYTES as u64)?;
        let description = Description::parse(&prefix, &rest).map_err(fault)?;
        let infos = description.infos().map_err(fault)?;
        let layout = Layout::of(&infos).ok_or_else(|| {
            fault(Fault::newer("its rows have more bytes than groups of this version"))
        })?;

        let mut bytes = [0; TRAILER_BYTES];
        read(&mut bytes, file_bytes - TRAILER_BYTES as u64)?;
        let trailer = Trailer::parse(&bytes, prefix.crc, head_bytes, file_bytes).map_err(fault)?;
        let mut bytes = vec![0; trailer.footer_bytes as usize];
        read(&mut bytes, trailer.footer_offset)?;
        let groups = footer::parse(&bytes, &trailer, head_bytes, &layout).map_err(fault)?;
        Ok(Self {
            path: path.to_owned(),
            file_bytes,
            head_bytes,
            footer_offset: trailer.footer_offset,
            infos: infos.into(),
            layout,
            fidelity: description.fidelity().to_owned(),
            metadata: description.metadata,
            groups,
            file,
        })
    }

    /// The path that the file was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names and shapes of the outputs.
    #[must_use]
    pub fn outputs(&self) -> &[MatrixInfo] {
        &self.infos
    }

    /// What the writer's caller said of the file: [`RecordOptions::metadata`](super::RecordOptions).
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The groups, in the order of their rows.
    #[must_use]
    pub fn groups(&self) -> &[RecordGroup] {
        &self.groups
    }

    /// Number of rows of all groups.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.groups.last().map_or(0, |group| group.first_row + group.rows as u64)
    }

    /// Bytes of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The fidelities at which the file can be read, lowest first. In this version there is one.
    #[must_use]
    pub fn fidelities(&self) -> Vec<RecordFidelity> {
        let bytes = footer::prefixes_bytes(&self.groups) as f64;
        let mean_row_bytes = bytes / (self.rows().max(1) as f64);
        vec![RecordFidelity { name: self.fidelity.clone(), mean_row_bytes }]
    }

    /// Reads a group into a new batch. See [`read_into`](Self::read_into).
    ///
    /// # Errors
    /// Those of [`read_into`](Self::read_into).
    ///
    /// # Panics
    /// If the file has no group of this number.
    pub fn read(&self, group: usize) -> Result<Batch> {
        let mut batch = Batch::new(Arc::clone(&self.infos));
        self.read_into(group, &mut batch, &mut Vec::new())?;
        Ok(batch)
    }

    /// Reads a group in place of a batch's rows. The batch's [`first_row`](Batch::first_row) is the
    /// number of the row in the file. Memory of the batch is used again if the batch has the
    /// outputs of this file. `scratch` holds the group's bytes in the file; its content does not
    /// matter.
    ///
    /// # Errors
    /// [`Error::Records`] if the group is damaged, and [`Error::Io`] if it can't be read. The batch
    /// then has no rows. Other groups can still be read.
    ///
    /// # Panics
    /// If the file has no group of this number.
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{Batch, RecordFile, Result};
    ///
    /// /// Counts the rows of all groups in one batch's memory.
    /// fn count(file: &RecordFile) -> Result<usize> {
    ///     let (mut batch, mut scratch) = (Batch::default(), Vec::new());
    ///     let mut rows = 0;
    ///     for group in 0..file.groups().len() {
    ///         file.read_into(group, &mut batch, &mut scratch)?;
    ///         rows += batch.rows();
    ///     }
    ///     Ok(rows)
    /// }
    /// ```
    pub fn read_into(&self, group: usize, batch: &mut Batch, scratch: &mut Vec<u8>) -> Result<()> {
        if batch.infos != self.infos {
            *batch = Batch::new(Arc::clone(&self.infos));
        }
        batch.reserve(0);
        let number = group as u64;
        let group = &self.groups[group];
        self.read_at(group.offset, group.stored_bytes, scratch)?;
        let damaged = |what| Error::Records(self.damage(Some(number), group.offset, what));
        let computed = crc32c::crc32c(scratch);
        if computed != group.crc {
            return Err(damaged(wrong_sum(group.crc, computed)));
        }
        self.decode(group, scratch, batch).map_err(|error| {
            damaged(match error.kind() {
                ErrorKind::UnexpectedEof => "its values end early".to_owned(),
                ErrorKind::InvalidData => error.to_string(),
                _ => format!("it can't be decompressed: {error}"),
            })
        })?;
        batch.first_row = group.first_row;
        (batch.input_bytes, batch.inputs) = (0, 0);
        Ok(())
    }

    fn decode(&self, group: &RecordGroup, stored: &[u8], batch: &mut Batch) -> io::Result<()> {
        if !group.is_compressed {
            return self.layout.read(group.rows, &mut &*stored, batch);
        }
        let mut decoder = zstd::stream::read::Decoder::with_buffer(stored)?;
        // No more memory than the values take: a frame names its window itself.
        decoder.window_log_max(window_log(group.bytes))?;
        self.layout.read(group.rows, &mut decoder as &mut dyn Read, batch)
    }

    /// Returns the place of the first byte after a group that should be zero and is not.
    pub(super) fn nonzero_after(&self, group: usize, scratch: &mut Vec<u8>) -> Result<Option<u64>> {
        let end = self.groups[group].offset + self.groups[group].stored_bytes;
        self.read_at(end, self.next_offset(group) - end, scratch)?;
        Ok(super::first_nonzero(scratch).map(|at| end + at as u64))
    }

    /// Offset of what follows a group and the zeros after it.
    pub(super) fn next_offset(&self, group: usize) -> u64 {
        self.groups.get(group + 1).map_or(self.footer_offset, |next| next.offset)
    }

    /// Bytes of the head.
    pub(super) fn head_bytes(&self) -> u64 {
        self.head_bytes
    }

    pub(super) fn damage(&self, group: Option<u64>, offset: u64, what: String) -> RecordDamage {
        RecordDamage { path: self.path.clone(), group, offset, what }
    }

    fn read_at(&self, offset: u64, bytes: u64, into: &mut Vec<u8>) -> Result<()> {
        let failed = |source| Error::Io { doing: "read", path: self.path.clone(), source };
        into.resize(bytes as usize, 0);
        self.file.read_exact_at(into, offset).map_err(failed)
    }
}

/// Returns the binary logarithm of the smallest window of zstd that holds `bytes`. zstd has no
/// window below 1 KiB.
fn window_log(bytes: u64) -> u32 {
    bytes.next_power_of_two().ilog2().max(10)
}
