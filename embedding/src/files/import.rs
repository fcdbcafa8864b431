//! Imports files into tables. The parent module `files` describes the method.

mod open;
pub(crate) mod options;
mod put;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use embank_kv::Clock;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::files::batch::{ReadBatch, RowFile, rows_per_batch};
use crate::files::inputs::{self, Source};
use crate::files::settings::HeldValues;
use crate::files::{FileFormat, file_mismatch, npy_set, safetensors, settings, unreadable};
use crate::keys::UniqueKeys;
use crate::row::config::TableConfig;
use crate::row::tracking::{TRACKING_BYTES, Tracking};
use crate::table::Table;
use crate::table::progress::{OnProgress, TransferProgress, report};
use open::{Contents, open};
use options::ImportOptions;
use put::{PutImported, PutKeepingState, PutWithState, Taken, TakenUses};

/// The result of an import.
///
/// # Examples
/// See [`Table::import`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// Number of imported rows.
    pub rows: u64,
    /// True if the import took optimizer state from the file.
    pub with_state: bool,
}

/// Returns the settings of the table that a file was exported from. `None` if another program wrote
/// the file, or if the file is a single dense npy matrix, which has no place for settings. For a
/// directory, returns the settings in its first file.
///
/// # Errors
/// The file can't be read, or a newer version of Embank wrote its settings.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, ExportOptions, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("user", TableConfig::new(2).seed(7))?;
/// bank.checkpoint(b"")?;
/// let file = dir.path().join("user.safetensors");
/// table.export(&file, &ExportOptions::default())?;
///
/// let config = embank::exported_config(&file, None)?.expect("Embank wrote it");
/// assert_eq!((config.dim, config.seed), (2, 7));
/// # Ok::<(), embank::Error>(())
/// ```
pub fn exported_config(
    path: impl AsRef<Path>,
    format: Option<FileFormat>,
) -> Result<Option<TableConfig>> {
    let sources = inputs::expand(&[path], format)?;
    let Some(Source { path, format }) = sources.first() else { return Ok(None) };
    let pairs = match format {
        FileFormat::Safetensors => safetensors::read(path)?.pairs,
        FileFormat::Npy => npy_set::read_pairs(path)?,
        #[cfg(feature = "parquet")]
        FileFormat::Parquet => crate::files::parquet::read_pairs(path)?,
        #[cfg(not(feature = "parquet"))]
        FileFormat::Parquet => return Err(crate::files::no_parquet()),
    };
    settings::from_pairs(path, &pairs)
}

impl Table {
    /// Puts the rows of a file into the table. The import uses constant memory (some MiB). It reads
    /// a file that [export](Self::export) wrote, or another program's matrix of f16, bf16, f32 or
    /// f64. If the file holds only a matrix, row i is the row of key i. If another part of the file
    /// may hold the keys, the caller must name that part, or set [`ImportOptions::first_key`] to
    /// import by position. If `path` is a directory, the import reads its files, sorted by name,
    /// but not files whose names begin with `_` or `.`.
    ///
    /// A row of the file replaces the table's row. If the file has the optimizer's state, training
    /// continues as it would have in the exported table. Otherwise an existing row keeps its state,
    /// and a new row starts with a fresh state. If a key occurs twice in the file, the last row
    /// wins. If the file has uses and the table has [tracking](crate::Tracking), a row gets the
    /// file's use count and time of last use. If the exported table tracked time in a different
    /// unit than this table, the row's last use is the time of the import. If the file has no uses,
    /// the import counts as one use of each row. Staleness clocks do not move. The rows are in
    /// memory when the call returns; [`Bank::checkpoint`](crate::Bank::checkpoint) makes them
    /// durable. If the import fails, the batches before the error stay in the table.
    ///
    /// # Errors
    /// [`UnreadableFile`](crate::Error::UnreadableFile) if the file is damaged, holds a value that
    /// is not finite, or does not show which of its parts are keys and vectors. The error names the
    /// file, and the row and column if known.
    ///
    /// [`FileMismatch`](crate::Error::FileMismatch) if the file does not fit the table: its vectors
    /// have another dim, its state belongs to another optimizer, or a key is not an id of the
    /// table's vocabulary. Also if the exported table used another vocabulary, or the same
    /// vocabulary with other values.
    ///
    /// [`InvalidOption`](crate::StoreError::InvalidOption) if the suffix is unknown. Also any
    /// failure of the store.
    ///
    /// # Examples
    /// See [`export`](Self::export).
    pub fn import(&self, path: impl AsRef<Path>, options: &ImportOptions) -> Result<Imported> {
        self.import_with(path, options, |_| ControlFlow::Continue(()))
    }

    /// Imports like [`import`](Self::import), and calls `progress` after each batch of rows. If
    /// `progress` returns `Break`, the import fails with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    ///
    /// # Errors
    /// The errors of [`import`](Self::import), and [`Cancelled`](crate::Error::Cancelled).
    ///
    /// # Examples
    /// See [`export_with`](Self::export_with).
    pub fn import_with(
        &self,
        path: impl AsRef<Path>,
        options: &ImportOptions,
        progress: impl FnMut(TransferProgress) -> ControlFlow<()>,
    ) -> Result<Imported> {
        self.import_files_with(&[path], options, progress)
    }

    /// Imports several files or directories like [`import`](Self::import), one after another. The
    /// call checks all files before it puts the first row. Only one file is open at a time.
    ///
    /// # Errors
    /// The errors of [`import`](Self::import). Also [`FileMismatch`](crate::Error::FileMismatch) if
    /// only some of the files have the optimizer's state. Also
    /// [`UnreadableFile`](crate::Error::UnreadableFile) if one of several files has no keys and
    /// [`first_key`](ImportOptions::first_key) is not set.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, ExportOptions, ImportOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let files = ["a.safetensors", "b.safetensors"].map(|name| dir.path().join(name));
    /// for (key, file) in (0..).zip(&files) {
    ///     let part = bank.table(&format!("part {key}"), TableConfig::new(1))?;
    ///     part.put(&[key], &[key as f32])?;
    ///     bank.checkpoint(b"")?;
    ///     part.export(file, &ExportOptions::default())?;
    /// }
    /// let whole = bank.table("whole", TableConfig::new(1))?;
    /// assert_eq!(whole.import_files(&files, &ImportOptions::default())?.rows, 2);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn import_files<P: AsRef<Path>>(
        &self,
        paths: &[P],
        options: &ImportOptions,
    ) -> Result<Imported> {
        self.import_files_with(paths, options, |_| ControlFlow::Continue(()))
    }

    /// Imports like [`import_files`](Self::import_files), and calls `progress` after each batch of
    /// rows. If `progress` returns `Break`, the import fails with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    ///
    /// # Errors
    /// The errors of [`import_files`](Self::import_files), and
    /// [`Cancelled`](crate::Error::Cancelled).
    ///
    /// # Examples
    /// See [`import_files`](Self::import_files) and [`export_with`](Self::export_with).
    pub fn import_files_with<P: AsRef<Path>>(
        &self,
        paths: &[P],
        options: &ImportOptions,
        mut progress: impl FnMut(TransferProgress) -> ControlFlow<()>,
    ) -> Result<Imported> {
        if let (Some(keys), Some(first)) = (&options.keys, options.first_key) {
            let problem = format!(
                "gives the keys by position from key {first} on, and they are to come from {keys:?}, too; leave one of \
                 them out"
            );
            return Err(Error::option("first_key", problem));
        }
        let sources = inputs::expand(paths, options.format)?;
        if let [source] = &sources[..] {
            let opened = self.open_to_import(source, options, 0)?;
            let rows = opened.file.rows();
            let with_state = opened.with_state;
            let done = self.put_file(opened, options, 0, rows, &mut progress)?;
            return Ok(Imported { rows: done, with_state });
        }
        let (total, with_state) = self.check_files(&sources, options)?;
        let mut done = 0;
        for source in &sources {
            let opened = self.open_to_import(source, options, done)?;
            done += self.put_file(opened, options, done, total, &mut progress)?;
        }
        Ok(Imported { rows: done, with_state })
    }

    /// Checks that the rows of all files fit this table. Returns the total number of rows, and true
    /// if the files have state.
    fn check_files(&self, sources: &[Source], options: &ImportOptions) -> Result<(u64, bool)> {
        let mut total = 0_u64;
        let mut with_state: Option<(bool, &Path)> = None;
        for source in sources {
            let opened = self.open_to_import(source, options, total)?;
            let rows = opened.file.rows();
            if rows == 0 {
                continue;
            }
            let path = &source.path;
            if !opened.file.has_keys() && options.first_key.is_none() {
                return Err(unreadable(
                    path,
                    "it is one of several files and has no keys; import by position with `first_key`, and the rows of \
                     each file follow those of the one before",
                ));
            }
            match with_state {
                Some((state, other)) if state != opened.with_state => {
                    let what = format!(
                        "one of it and {} has the optimizer's state, and the other has not; import without the state",
                        other.display()
                    );
                    return Err(file_mismatch(path, what));
                }
                _ => with_state = Some((opened.with_state, path)),
            }
            total = total.saturating_add(rows);
        }
        Ok((total, with_state.is_some_and(|(state, _)| state)))
    }

    /// Opens a file. Fails if its rows do not fit this table. `rows_before` is the number of rows
    /// in the files before this one.
    fn open_to_import(
        &self,
        source: &Source,
        options: &ImportOptions,
        rows_before: u64,
    ) -> Result<Opened> {
        let path = &source.path;
        let first_key = match options.first_key {
            None => None,
            Some(first) => Some(first.checked_add(rows_before).ok_or_else(|| {
                unreadable(
                    path,
                    format!("{rows_before} rows from key {first} on are more keys than there are"),
                )
            })?),
        };
        let is_tracked = self.config().tracking != Tracking::None;
        let Contents { file, held, values } = open(source, options, first_key, is_tracked)?;
        let with_state = self.check_fit(path, file.as_ref(), held.as_ref())?;
        let taken = self.taken(file.as_ref(), held.as_ref(), with_state);
        if let Some(values) = values.filter(|_| file.rows() > 0) {
            self.check_values(path, held.as_ref(), values)?;
        }
        Ok(Opened { path: path.clone(), file, with_state, taken })
    }

    /// Puts a file's rows into the table and returns their number. For progress reports, `before`
    /// is the number of rows in earlier files, and `total` the number in all files.
    fn put_file(
        &self,
        opened: Opened,
        options: &ImportOptions,
        before: u64,
        total: u64,
        progress: &mut OnProgress<'_>,
    ) -> Result<u64> {
        let Opened { path, mut file, with_state, taken } = opened;
        let path = &path;
        let dim = self.dim();
        let row_bytes = 4 * (dim + file.state_columns().unwrap_or(0)) + 8;
        let uses_bytes = if file.has_uses() { TRACKING_BYTES } else { 0 };
        let batch_rows = rows_per_batch(row_bytes + uses_bytes);
        let mut batch = ReadBatch::default();
        let mut done = 0;
        // The loop ends when the file has no more rows.
        loop {
            batch.clear();
            file.read_batch(batch_rows, &mut batch)?;
            if batch.keys.is_empty() {
                return Ok(done);
            }
            if !options.non_finite {
                let dtype = self.config().dtype;
                check_range(path, "vector", dtype, done, &batch.keys, &batch.vectors)?;
                if with_state {
                    check_range(path, "state", Dtype::F32, done, &batch.keys, &batch.state)?;
                    self.check_imported_state(path, done, &batch)?;
                }
            }
            self.check_imported_ids(path, done, &batch.keys)?;
            self.put_imported(&batch, taken)?;
            done += batch.keys.len() as u64;
            report(progress, before + done, total)?;
        }
    }

    /// Returns the parts of the file that the import takes in addition to the vectors.
    fn taken(&self, file: &dyn RowFile, held: Option<&TableConfig>, state: bool) -> Taken {
        let same_time = held.is_some_and(|held| held.tracking == self.config().tracking);
        let uses = match (file.has_uses(), same_time) {
            (false, _) => TakenUses::None,
            (true, true) => TakenUses::All,
            (true, false) => TakenUses::Count,
        };
        Taken { state, uses }
    }

    /// Returns true if the file has optimizer state. Fails if the file's rows do not fit this
    /// table.
    fn check_fit(
        &self,
        path: &Path,
        file: &dyn RowFile,
        held: Option<&TableConfig>,
    ) -> Result<bool> {
        // An empty file of lists, or of empty tensors, does not show its dim.
        if file.rows() == 0 && file.columns() == 0 {
            return Ok(false);
        }
        if file.columns() != self.dim() {
            return Err(file_mismatch(
                path,
                format!(
                    "its vectors have {found} values, and those of table {:?} have {}; import into a table of dim {found}",
                    self.name(),
                    self.dim(),
                    found = file.columns(),
                ),
            ));
        }
        let config = self.config();
        self.check_vocabulary(path, held)?;
        let Some(found) = file.state_columns() else { return Ok(false) };
        let wanted = self.shared.layout().state_values();
        let other = held.filter(|held| !config.optimizer.is_kind_of(&held.optimizer));
        if other.is_none() && found == wanted {
            return Ok(true);
        }
        let whose = other.map_or_else(
            || format!("{found} values of optimizer state a row"),
            |held| format!("the state of {}", held.optimizer.name()),
        );
        Err(file_mismatch(
            path,
            format!(
                "it has {whose}, and table {:?} keeps {wanted} values of state a row for its optimizer, {}; import \
                 without the state, or into a table with the file's optimizer",
                self.name(),
                config.optimizer.name()
            ),
        ))
    }

    /// Fails if the keys of the file are ids of another vocabulary than the keys of the table.
    /// Checks nothing if the vocabulary of the file or of the table is unknown.
    fn check_vocabulary(&self, path: &Path, held: Option<&TableConfig>) -> Result<()> {
        let theirs = held.and_then(|held| held.vocabulary.as_ref());
        match (theirs, self.shared.vocabulary()) {
            (Some(theirs), Some(own)) if theirs.identity != own.identity => {
                let what = format!(
                    "its rows are for ids of another vocabulary {:?} than that of table {:?}, or of another numbering \
                     of it; import into a table without a vocabulary if the ids are right all the same",
                    theirs.name,
                    self.name()
                );
                Err(file_mismatch(path, what))
            }
            _ => Ok(()),
        }
    }

    /// Fails if the table's vocabulary now has other values for the ids in the file. This happens
    /// if the table's bank was copied, or went back to a checkpoint, and its vocabulary then gave
    /// the ids to other values.
    fn check_values(
        &self,
        path: &Path,
        held: Option<&TableConfig>,
        values: HeldValues,
    ) -> Result<()> {
        let theirs = held.and_then(|held| held.vocabulary.as_ref());
        let Some(own) = self.shared.vocabulary() else { return Ok(()) };
        if theirs.is_none_or(|theirs| theirs.identity != own.identity) {
            return Ok(());
        }
        let Some(vocabulary) = self.own_vocabulary() else { return Ok(()) };
        let HeldValues { len, fingerprint } = values;
        let found = vocabulary.fingerprint_of_first(len)?;
        if found == Some(fingerprint) {
            return Ok(());
        }
        let what = found
            .map_or_else(|| format!("only {} of them", vocabulary.len()), |_| "others".to_owned());
        Err(file_mismatch(
            path,
            format!(
                "its rows are for ids of the {len} values that vocabulary {:?} had, and that of table {:?} has {what} \
                 now, as after going back to a checkpoint; import into a table without a vocabulary if the ids are \
                 right all the same",
                own.name,
                self.name()
            ),
        ))
    }

    /// Fails if a key is not an id of the table's vocabulary.
    fn check_imported_ids(&self, path: &Path, first: u64, keys: &[u64]) -> Result<()> {
        let Err(error) = self.check_ids(keys) else { return Ok(()) };
        let row = match &error {
            Error::KeyIsNoId { key, .. } => keys.iter().position(|of| of == key).unwrap_or(0),
            _ => 0,
        };
        Err(file_mismatch(path, format!("row {}: {error}", first + row as u64)))
    }

    /// Fails if a sum of squares or a count in the batch's state is negative. `first` is the row
    /// number of the batch's first row in the file.
    fn check_imported_state(&self, path: &Path, first: u64, batch: &ReadBatch) -> Result<()> {
        let layout = self.shared.layout();
        let columns = layout.state_values().max(1);
        let wrong = |&at: &usize| batch.state[at] < 0.0 && layout.is_never_negative(at % columns);
        let Some(at) = (0..batch.state.len()).find(wrong) else { return Ok(()) };
        let row = at / columns;
        Err(unreadable(
            path,
            format!(
                "row {} (key {}), column {} of the state is {}, which {} never makes negative; mend the file, import without \
                 the state, or import with `non_finite` to take it as it is",
                first + row as u64,
                batch.keys[row],
                at % columns,
                batch.state[at],
                self.config().optimizer.name()
            ),
        ))
    }

    fn put_imported(&self, batch: &ReadBatch, taken: Taken) -> Result<()> {
        let as_stored = self.shared.layout().dtype() == Dtype::Int8 && !batch.scales.is_empty();
        if taken == (Taken { state: false, uses: TakenUses::None }) && !as_stored {
            return self.put_unchecked(&batch.keys, &batch.vectors);
        }
        let unique = UniqueKeys::new(&batch.keys)?;
        let sources = unique.last_places();
        let layout = self.shared.layout();
        let counters = &self.shared.counters;
        let put = PutImported { layout, batch, sources: &sources, uses: taken.uses };
        let outcome = match taken.state {
            true => self.execute(unique.keys(), Clock::Keep, &mut PutWithState(put))?,
            false => self.execute(unique.keys(), Clock::Keep, &mut PutKeepingState(put))?,
        };
        counters.disk_reads.add(outcome.disk_reads);
        counters.puts.add(1);
        counters.put_rows.add(unique.len() as u64);
        Ok(())
    }
}

/// An opened file whose rows fit the table.
struct Opened {
    path: PathBuf,
    file: Box<dyn RowFile>,
    with_state: bool,
    taken: Taken,
}

/// Fails if a value is not finite after its conversion to `dtype`. `first` is the row number, in
/// the file, of the first key in `keys`.
fn check_range(
    path: &Path,
    what: &str,
    dtype: Dtype,
    first: u64,
    keys: &[u64],
    values: &[f32],
) -> Result<()> {
    let range = dtype.range();
    if range.holds(values) {
        return Ok(());
    }
    let Some(at) = range.first_beyond(values) else { return Ok(()) };
    let columns = values.len() / keys.len();
    let row = at / columns;
    let column = at % columns;
    Err(unreadable(
        path,
        format!(
            "row {} (key {}), column {column} of the {what} is {}, which {} can't hold as a finite value; mend the file, \
             or import with `non_finite` to take it as it is",
            first + row as u64,
            keys[row],
            values[at],
            dtype.name()
        ),
    ))
}
