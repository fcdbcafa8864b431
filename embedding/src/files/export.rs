//! Exports tables to files. The parent module `files` describes the method.

use std::collections::HashMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::batch::{Part, RowBatch, parts_of, rows_per_batch};
use crate::files::settings::HeldValues;
use crate::files::tensors::TensorWriter;
use crate::files::{FileFormat, npy_set, output, safetensors, settings};
use crate::table::Table;
use crate::table::progress::{OnProgress, TransferProgress, report};
use crate::table::scan::Scan;
use crate::vocabulary::shared::Published;

/// Options of an export. By default, an export writes keys and vectors in the format of the file's
/// suffix.
///
/// # Examples
/// See [`Table::export`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExportOptions {
    /// File format. Default: the file's suffix gives it, see [`FileFormat::of_path`].
    pub format: Option<FileFormat>,
    /// Also writes the optimizer's state. An import of the file then restores training exactly. For
    /// a table with [tracking](crate::Tracking), also writes each row's use count and time of last
    /// use. Default: no.
    pub state: bool,
    /// Writes one matrix sorted by key, and no keys. Default: no.
    pub dense: Option<DenseRows>,
}

/// Options to export a table with keys 0 to n - 1 as one matrix. Row i is the row of key i, as in
/// an embedding's weight in a PyTorch state dict. Parquet does not support this.
///
/// # Examples
/// See [`Table::export`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DenseRows {
    /// Rows of the matrix. A key that is not below this number is an error. By default, an
    /// additional pass over the table finds the largest key, and the matrix ends with that key's
    /// row.
    pub rows: Option<u64>,
    /// Fills the rows of missing keys with their initial values. Default: no; a missing key is an
    /// error.
    pub fill_missing: bool,
}

/// The result of an export.
///
/// # Examples
/// See [`Table::export`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// Number of the exported checkpoint.
    pub checkpoint: u64,
    /// Number of exported rows, without filled rows.
    pub rows: u64,
    /// Number of rows of a dense file that were filled with initial values.
    pub filled_rows: u64,
    /// Total length of all files in bytes.
    pub bytes: u64,
    /// Paths of the written files.
    pub files: Vec<PathBuf>,
}

/// While an export looks for the largest key, it reports progress once per this number of rows.
const KEYS_PER_REPORT: u64 = 1 << 16;

/// The destination of an export.
enum Place<'a> {
    File(&'a Path),
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "Parquet is what is streamed"))]
    Stream(Box<dyn Write + Send>),
}

enum Writer {
    Tensors(TensorWriter),
    /// The path that the caller gave, and the set of npy files derived from it.
    Npy(PathBuf, TensorWriter),
    #[cfg(feature = "parquet")]
    Parquet(Box<crate::files::parquet::ParquetWriter>),
}

/// A scan, and the sizes of what it is written to.
struct SizedScan {
    scan: Scan,
    /// Number of rows that the scan returns.
    rows: u64,
    /// Number of rows of a dense file. `None` if the file has keys.
    dense_rows: Option<u64>,
}

impl Table {
    /// Writes the table's rows in the newest checkpoint to a file. The file has keys and vectors.
    /// With `options.state` it also has the optimizer's state and the rows' uses. The file does not
    /// contain changes after the checkpoint; take a checkpoint first to include them.
    ///
    /// Training can continue during the export. The export uses constant memory: some MiB, and the
    /// pages that a [scan](Self::scan) borrows from the memory budget. The order of the rows is
    /// unspecified unless the file is dense. When the call returns, the file is complete and on
    /// stable storage, and has replaced any older file of the same name. Until the file is
    /// complete, the name still has the older file or none. After an error, no partial file
    /// remains. An npy export writes several files; docs/export.md describes how they appear.
    ///
    /// # Errors
    /// The errors of [`scan`](Self::scan). [`InvalidOption`](crate::StoreError::InvalidOption) if
    /// the suffix is unknown. [`NotDense`](crate::Error::NotDense) if the keys do not fit a dense
    /// file, or the disk has no room for it. [`UnusableOutput`](crate::StoreError::UnusableOutput)
    /// if no file can have the name, or if a later import would mistake an existing file for a part
    /// of an npy export. [`Io`](crate::StoreError::Io) if a write fails, for example on a full
    /// disk.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, ExportOptions, ImportOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(2))?;
    /// table.put(&[7, 9], &[0.5, 1.5, 2.5, 3.5])?;
    /// bank.checkpoint(b"")?;
    ///
    /// let file = dir.path().join("user.safetensors");
    /// let exported = table.export(&file, &ExportOptions::default())?;
    /// assert_eq!((exported.rows, &exported.files[..]), (2, &[file.clone()][..]));
    ///
    /// let other = bank.table("copy", TableConfig::new(2))?;
    /// assert_eq!(other.import(&file, &ImportOptions::default())?.rows, 2);
    /// assert_eq!(other.contains(&[7, 8, 9])?, [true, false, true]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn export(&self, path: impl AsRef<Path>, options: &ExportOptions) -> Result<Exported> {
        self.export_with(path, options, |_| ControlFlow::Continue(()))
    }

    /// Exports like [`export`](Self::export), and calls `progress` after each batch of rows. The
    /// export reports 0 rows while it looks for the largest key of a dense table and while it
    /// writes initial values. If `progress` returns `Break`, the export fails with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    ///
    /// # Errors
    /// The errors of [`export`](Self::export), and [`Cancelled`](crate::Error::Cancelled).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, DenseRows, ExportOptions, TableConfig};
    /// use std::ops::ControlFlow;
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(2))?;
    /// table.put(&[2, 0], &[0.5, 1.5, 2.5, 3.5])?;
    /// bank.checkpoint(b"")?;
    ///
    /// let dense = Some(DenseRows { fill_missing: true, ..Default::default() });
    /// let options = ExportOptions { dense, ..Default::default() };
    /// let exported = table.export_with(dir.path().join("user.npy"), &options, |progress| {
    ///     println!("{} of {} rows", progress.rows_done, progress.rows_total);
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!((exported.rows, exported.filled_rows), (2, 1));
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn export_with(
        &self,
        path: impl AsRef<Path>,
        options: &ExportOptions,
        mut progress: impl FnMut(TransferProgress) -> ControlFlow<()>,
    ) -> Result<Exported> {
        let path = &output::resolved(path.as_ref())?;
        output::refuse_within_bank(path, self.context().store.path())?;
        let format = options.format.map_or_else(|| FileFormat::of_path(path), Ok)?;
        self.export_as(Place::File(path), format, options, &mut progress)
    }

    /// Exports like [`export_with`](Self::export_with), but to a stream such as standard output.
    /// Only Parquet can be streamed. A file of another format has all of one column before the next
    /// column, so an export would need the whole table in memory to stream it.
    ///
    /// # Errors
    /// The errors of [`export_with`](Self::export_with).
    /// [`InvalidOption`](crate::StoreError::InvalidOption) unless `options.format` is Parquet.
    ///
    /// # Examples
    /// ```no_run
    /// use embank::{Bank, BankOptions, ExportOptions, FileFormat};
    /// use std::ops::ControlFlow;
    ///
    /// let bank = Bank::open_read_only("my.bank", BankOptions::default(), None)?;
    /// let options = ExportOptions { format: Some(FileFormat::Parquet), ..Default::default() };
    /// let user = bank.open_table("user")?;
    /// user.export_to(std::io::stdout(), &options, |_| ControlFlow::Continue(()))?;
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn export_to(
        &self,
        to: impl Write + Send + 'static,
        options: &ExportOptions,
        mut progress: impl FnMut(TransferProgress) -> ControlFlow<()>,
    ) -> Result<Exported> {
        if options.format != Some(FileFormat::Parquet) {
            let problem = "must be Parquet for a stream: only Parquet can be streamed, as other formats have one column \
                           after another; give it, or export to a file";
            return Err(Error::option("format", problem));
        }
        self.export_as(Place::Stream(Box::new(to)), FileFormat::Parquet, options, &mut progress)
    }

    fn export_as(
        &self,
        place: Place<'_>,
        format: FileFormat,
        options: &ExportOptions,
        progress: &mut OnProgress<'_>,
    ) -> Result<Exported> {
        if format == FileFormat::Parquet && options.dense.is_some() {
            let problem = "must be safetensors or npy here, as Parquet has no dense tables; or export with keys";
            return Err(Error::option("format", problem));
        }
        let SizedScan { scan, rows: table_rows, dense_rows } =
            self.scan_for(options.dense, progress)?;
        let parts = parts_of(self.shared.layout(), format, options.state);
        let rows = dense_rows.unwrap_or(table_rows);
        let with_keys = dense_rows.is_none();
        let missing = rows - table_rows.min(rows);
        if missing > 0 && !options.dense.is_some_and(|dense| dense.fill_missing) {
            return Err(self.not_dense(format!(
                "has {} rows, so {missing} of the keys 0 to {} have none; export it with keys, or fill missing rows with \
                 their initial values",
                table_rows,
                rows - 1
            )));
        }
        if let (Some(rows), Place::File(path)) = (dense_rows, &place) {
            self.check_space(path, rows, &parts)?;
        }
        let pairs = settings::to_pairs(
            self.name(),
            &self.config(),
            scan.checkpoint(),
            self.vocabulary_values(),
        );
        let mut writer = Writer::begin(place, format, rows, parts.clone(), with_keys, pairs)?;
        if missing > 0 {
            self.fill_dense(&mut writer, &parts, rows, table_rows, progress)?;
        }
        let mut sized = SizedScan { scan, rows: table_rows, dense_rows };
        self.write_rows(&mut sized, &mut writer, &parts, progress)?;
        let (files, bytes) = writer.commit()?;
        Ok(Exported {
            checkpoint: sized.scan.checkpoint(),
            rows: table_rows,
            filled_rows: missing,
            bytes,
            files,
        })
    }

    /// Returns a scan of the newest checkpoint, its number of rows, and the number of rows of the
    /// file if it is dense. Reads all keys first if one of the numbers is not known.
    fn scan_for(
        &self,
        dense: Option<DenseRows>,
        progress: &mut OnProgress<'_>,
    ) -> Result<SizedScan> {
        let is_dense = dense.is_some();
        let asked_rows = dense.and_then(|dense| dense.rows);
        // The loop ends when no checkpoint was taken between the starts of the two scans, so that
        // both read one checkpoint.
        loop {
            let mut first = self.scan()?;
            if first.has_exact_rows() && (!is_dense || asked_rows.is_some()) {
                return Ok(SizedScan { rows: first.rows(), scan: first, dense_rows: asked_rows });
            }
            let scan = self.scan()?;
            if first.checkpoint() != scan.checkpoint() {
                continue;
            }
            let mut rows = 0;
            let mut end = 0;
            while let Some((key, _)) = first.next_value()? {
                let beyond = || {
                    let why = "which is too large for a dense table; export it with keys";
                    self.not_dense(format!("has a row of key {key}, {why}"))
                };
                rows += 1;
                if is_dense {
                    end = end.max(key.checked_add(1).ok_or_else(beyond)?);
                }
                if first.remaining().is_multiple_of(KEYS_PER_REPORT) {
                    report(progress, 0, scan.rows())?;
                }
            }
            let dense_rows = is_dense.then(|| asked_rows.unwrap_or(end));
            return Ok(SizedScan { scan, rows, dense_rows });
        }
    }

    fn not_dense(&self, why: String) -> Error {
        Error::NotDense { table: self.name().to_owned(), why }
    }

    /// Fails if the disk has no room for a dense file. One wrong key can make such a file very
    /// long.
    fn check_space(&self, path: &Path, rows: u64, parts: &[Part]) -> Result<()> {
        let row_bytes = parts.iter().map(Part::row_bytes).sum::<usize>() as u64;
        let bytes = u128::from(rows) * u128::from(row_bytes);
        let free = output::free_bytes(path)?;
        if bytes <= u128::from(free) {
            return Ok(());
        }
        Err(self.not_dense(format!(
            "as a dense file has a row for each of the keys 0 to {}, {bytes} bytes, and {} has {free} free; export it \
             with keys",
            rows - 1,
            path.display()
        )))
    }

    /// Writes initial values into all rows of a dense file. `write_rows` then overwrites the rows
    /// that the table has.
    fn fill_dense(
        &self,
        writer: &mut Writer,
        parts: &[Part],
        rows: u64,
        total: u64,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        let layout = self.shared.layout();
        let mut words = vec![0_u64; self.config().value_bytes() as usize / 8];
        let mut vector = vec![0.0; layout.dim];
        let mut batch = RowBatch::new(parts);
        let batch_rows = rows_per_batch(words.len() * 8) as u64;
        let mut first = 0;
        if let Some(tracker) = layout.tracker() {
            tracker.refresh();
        }
        while first < rows {
            let end = rows.min(first + batch_rows);
            batch.clear();
            for key in first..end {
                let value: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
                layout.begin(key, value, &mut vector);
                batch.push(layout, parts, key, value);
            }
            writer.write(first, &batch)?;
            report(progress, 0, total)?;
            first = end;
        }
        Ok(())
    }

    fn write_rows(
        &self,
        sized: &mut SizedScan,
        writer: &mut Writer,
        parts: &[Part],
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        let layout = self.shared.layout();
        let SizedScan { scan, rows: total, dense_rows } = sized;
        let (total, dense_rows) = (*total, *dense_rows);
        let row_bytes = 8 + parts.iter().map(Part::row_bytes).sum::<usize>();
        let batch_rows = rows_per_batch(row_bytes);
        let mut batch = RowBatch::new(parts);
        let mut done = 0;
        // The loop ends when the scan has no more rows.
        loop {
            batch.clear();
            while batch.keys.len() < batch_rows
                && let Some((key, value)) = scan.next_value()?
            {
                if dense_rows.is_some_and(|rows| key >= rows) {
                    return Err(self.not_dense(format!(
                        "has a row of key {key}, beyond the {} rows of the dense table",
                        dense_rows.unwrap_or(0)
                    )));
                }
                batch.push(layout, parts, key, value);
            }
            if batch.keys.is_empty() {
                return Ok(());
            }
            if dense_rows.is_some() {
                batch.sort(parts);
            }
            writer.write(done, &batch)?;
            done += batch.keys.len() as u64;
            report(progress, done, total)?;
        }
    }

    /// Returns the length and hash of the table's vocabulary, to be stored in the file's settings.
    /// Both cover at least the ids of the checkpoint, and perhaps ids that were added after it.
    pub(crate) fn vocabulary_values(&self) -> Option<HeldValues> {
        let vocabulary = self.own_vocabulary()?;
        let Published { len, fingerprint, numbering } = vocabulary.shared.published();
        let wanted = self.shared.vocabulary()?.identity?;
        (numbering == wanted.generation).then_some(HeldValues { len, fingerprint })
    }
}

impl Writer {
    fn begin(
        place: Place<'_>,
        format: FileFormat,
        rows: u64,
        parts: Vec<Part>,
        with_keys: bool,
        pairs: HashMap<String, String>,
    ) -> Result<Self> {
        match (place, format) {
            (Place::File(path), FileFormat::Safetensors) => {
                Ok(Self::Tensors(safetensors::create(path, rows, parts, with_keys, pairs)?))
            }
            (Place::File(path), FileFormat::Npy) => {
                let files = npy_set::create(path, rows, parts, with_keys, pairs)?;
                Ok(Self::Npy(path.to_owned(), files))
            }
            #[cfg(feature = "parquet")]
            (place, FileFormat::Parquet) => {
                use crate::files::output::Output;
                use crate::files::parquet::ParquetWriter;
                let output = match place {
                    Place::File(path) => Output::File(Box::new(output::OutputFile::create(path)?)),
                    Place::Stream(to) => Output::stream(to),
                };
                Ok(Self::Parquet(Box::new(ParquetWriter::create(output, parts, pairs)?)))
            }
            #[cfg(not(feature = "parquet"))]
            (_, FileFormat::Parquet) => Err(crate::files::no_parquet()),
            (Place::Stream(_), _) => unreachable!("refused by `export_to`"),
        }
    }

    fn write(&mut self, first: u64, batch: &RowBatch) -> Result<()> {
        match self {
            Self::Tensors(writer) | Self::Npy(_, writer) => writer.write(first, batch),
            #[cfg(feature = "parquet")]
            Self::Parquet(writer) => writer.write(batch),
        }
    }

    /// Completes the files and gives them their names. Returns their paths and their total length.
    fn commit(self) -> Result<(Vec<PathBuf>, u64)> {
        match self {
            Self::Npy(path, writer) => npy_set::commit(&path, writer.files),
            Self::Tensors(writer) => {
                let mut paths = Vec::new();
                let mut bytes = 0;
                for file in writer.files {
                    paths.push(file.path().to_owned());
                    bytes += output::commit(file)?;
                }
                Ok((paths, bytes))
            }
            #[cfg(feature = "parquet")]
            Self::Parquet(writer) => {
                let (path, bytes) = writer.commit()?;
                Ok((path.into_iter().collect(), bytes))
            }
        }
    }
}
