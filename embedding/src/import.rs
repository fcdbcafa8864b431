//! Tables out of files; see the module `files` for how.

use std::ops::ControlFlow;
use std::path::Path;

use embank_kv::{Access, Clock, Operation};

use crate::config::TableConfig;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::files::batch::{ReadBatch, RowFile, Wanted, rows_per_batch};
use crate::files::settings::HeldValues;
use crate::files::{
    FileFormat, TransferProgress, npy_set, report, safetensors, settings, unreadable,
};
use crate::row::RowLayout;
use crate::table::Table;
use crate::tracking::{TRACKING_BYTES, Tracking};
use crate::unique::UniqueKeys;

/// What an import takes of a file. Default: what an export wrote there, in the format that the file's suffix stands
/// for; of files that others made, a single matrix.
///
/// # Examples
/// See [`Table::import`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportOptions {
    /// Default: by the suffix ([`FileFormat::of_path`]).
    pub format: Option<FileFormat>,
    /// The tensor or column of the keys (for npy the file). Default: `keys`, in Parquet `key`, if it is there; else row
    /// i is the row of key i, but for Parquet that has other columns of integers: there one must be named.
    pub keys: Option<String>,
    /// The tensor or column of the vectors (for npy the file). Default: `rows`, in Parquet `vector`, or the only
    /// matrix.
    pub rows: Option<String>,
    /// Whether the optimizer's state is taken too, and in a table with [tracking](crate::Tracking) each row's uses and
    /// last use, if the file has them. Default: yes.
    pub state: bool,
    /// Whether NaN and infinite values are taken, and values that the table's dtype makes infinite. Default: no, they are
    /// an error.
    pub non_finite: bool,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { format: None, keys: None, rows: None, state: true, non_finite: false }
    }
}

/// What an import put.
///
/// # Examples
/// See [`Table::import`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// Rows of the file.
    pub rows: u64,
    /// Whether they came with the optimizer's state.
    pub with_state: bool,
}

/// The settings of the table that a file was exported from; `None` for a file that others made, and for a dense npy
/// matrix by itself, which has no place for them.
///
/// # Errors
/// The file can't be read, or its settings are a newer program's.
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
    let path = path.as_ref();
    let pairs = match format.map_or_else(|| FileFormat::of_path(path), Ok)? {
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
    /// Puts the rows of a file into the table, in constant memory (some MiB): those that an [export](Self::export)
    /// wrote, or a matrix of f16, bf16, f32 or f64 that others did, of which row i is that of key i unless keys are
    /// there or named.
    ///
    /// A row that is there is replaced. With the optimizer's state, it trains on as the exported one would have;
    /// without, it keeps the state that it has, and a new row's starts afresh. Of equal keys, the last one in the
    /// file stays. With uses in the file and [tracking](crate::Tracking) in the table, a row has the uses and the last
    /// use that the file tells, the present time in place of the latter if the exported table's tracking was another;
    /// else the import counts as one use. Staleness clocks play no part. The rows are in memory when the call returns;
    /// [`Bank::checkpoint`](crate::Bank::checkpoint) makes them durable. After an error, the batches before it are
    /// in the table.
    ///
    /// # Errors
    /// [`UnreadableFile`](crate::Error::UnreadableFile) names the file, and row and column where it
    /// is damaged, is of another dim, has the state of another optimizer, was exported from a table of another
    /// vocabulary than the table's, or of one with other values, has keys that are no ids of the table's vocabulary, or
    /// holds what is not finite;
    /// [`InvalidArgument`](embank_kv::Error::InvalidArgument) for a suffix that says no format; a failure of the
    /// store.
    ///
    /// # Examples
    /// See [`export`](Self::export).
    pub fn import(&self, path: impl AsRef<Path>, options: &ImportOptions) -> Result<Imported> {
        self.import_with(path, options, |_| ControlFlow::Continue(()))
    }

    /// As [`import`](Self::import), and tells `progress` after each batch of rows how far it is. Ends with
    /// [`Error::Cancelled`](crate::Error::Cancelled) if that says so.
    ///
    /// # Errors
    /// As [`import`](Self::import); [`Cancelled`](crate::Error::Cancelled).
    ///
    /// # Examples
    /// See [`export_with`](Self::export_with).
    pub fn import_with(
        &self,
        path: impl AsRef<Path>,
        options: &ImportOptions,
        mut progress: impl FnMut(TransferProgress) -> ControlFlow<()>,
    ) -> Result<Imported> {
        let path = path.as_ref();
        let is_tracked = self.config().tracking != Tracking::None;
        let (mut file, held, values) = open(path, options, is_tracked)?;
        let with_state = self.check_fit(path, file.as_ref(), held.as_ref())?;
        let taken = self.taken(file.as_ref(), held.as_ref(), with_state);
        if let Some(values) = values.filter(|_| file.rows() > 0) {
            self.check_values(path, held.as_ref(), values)?;
        }
        let (dim, total) = (self.dim(), file.rows());
        let row_bytes = 4 * (dim + file.state_columns().unwrap_or(0)) + 8;
        let uses_bytes = if file.has_uses() { TRACKING_BYTES } else { 0 };
        let batch_rows = rows_per_batch(row_bytes + uses_bytes);
        let mut batch = ReadBatch::default();
        let mut done = 0;
        // Ends: with the file's rows.
        loop {
            batch.clear();
            file.read_batch(batch_rows, &mut batch)?;
            if batch.keys.is_empty() {
                return Ok(Imported { rows: done, with_state });
            }
            if !options.non_finite {
                let dtype = self.config().dtype;
                check_range(path, "vector", dtype, done, &batch.keys, &batch.vectors)?;
                if with_state {
                    check_range(path, "state", Dtype::F32, done, &batch.keys, &batch.state)?;
                }
            }
            self.check_imported_ids(path, done, &batch.keys)?;
            self.put_imported(&batch, taken)?;
            done += batch.keys.len() as u64;
            report(&mut progress, done, total)?;
        }
    }

    /// What of the file goes into rows beside the vectors.
    fn taken(&self, file: &dyn RowFile, held: Option<&TableConfig>, state: bool) -> Taken {
        let same_time = held.is_some_and(|held| held.tracking == self.config().tracking);
        let uses = match (file.has_uses(), same_time) {
            (false, _) => TakenUses::None,
            (true, true) => TakenUses::All,
            (true, false) => TakenUses::Count,
        };
        Taken { state, uses }
    }

    /// Whether the file's rows come with state; an error if they are none of this table's.
    fn check_fit(
        &self,
        path: &Path,
        file: &dyn RowFile,
        held: Option<&TableConfig>,
    ) -> Result<bool> {
        // Without a row, lists of any length and tensors of no column tell no dim.
        if file.rows() == 0 && file.columns() == 0 {
            return Ok(false);
        }
        if file.columns() != self.dim() {
            return Err(unreadable(
                path,
                format!(
                    "its vectors have {} values, those of table {:?} have {}; make a table of that dim",
                    file.columns(),
                    self.name(),
                    self.dim()
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
            |held| format!("the state of {:?}", held.optimizer),
        );
        Err(unreadable(
            path,
            format!(
                "it has {whose}, and table {:?} has {:?} with {wanted}; import without the state, or into a table with \
                 that optimizer",
                self.name(),
                config.optimizer
            ),
        ))
    }

    /// Refuses rows for ids of another vocabulary than the table's, where both are known.
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
                Err(unreadable(path, what))
            }
            _ => Ok(()),
        }
    }

    /// Refuses rows for ids that the vocabulary has given to other values: it may have come to them on another way,
    /// after its bank was taken back to a checkpoint or copied.
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
        Err(unreadable(
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

    /// Refuses rows of keys that are no ids of the table's vocabulary.
    fn check_imported_ids(&self, path: &Path, first: u64, keys: &[u64]) -> Result<()> {
        let Err(error) = self.check_ids(keys) else { return Ok(()) };
        let row = match &error {
            Error::KeyIsNoId { key, .. } => keys.iter().position(|of| of == key).unwrap_or(0),
            _ => 0,
        };
        Err(unreadable(path, format!("row {}: {error}", first + row as u64)))
    }

    fn put_imported(&self, batch: &ReadBatch, taken: Taken) -> Result<()> {
        let as_stored = self.shared.layout().dtype() == Dtype::Int8 && !batch.scales.is_empty();
        if taken == (Taken { state: false, uses: TakenUses::None }) && !as_stored {
            return self.put_unchecked(&batch.keys, &batch.vectors);
        }
        let unique = UniqueKeys::new(&batch.keys);
        let sources = unique.last_places();
        let (layout, counters) = (self.shared.layout(), &self.shared.counters);
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

/// A file's rows, with what it tells of the table that they came from.
type Opened = (Box<dyn RowFile>, Option<TableConfig>, Option<HeldValues>);

/// `is_tracked` tells whether the rows of the table that imports tell of their uses.
fn open(path: &Path, options: &ImportOptions, is_tracked: bool) -> Result<Opened> {
    let (keys, rows) = (options.keys.as_deref(), options.rows.as_deref());
    let (state, uses) = (options.state, options.state && is_tracked);
    // Columns of these names mean something else in a file of another program, or of a table without tracking.
    let wanted_of = |held: Option<&TableConfig>| {
        let has_uses = held.is_some_and(|held| held.tracking != Tracking::None);
        Wanted { state, uses: uses && has_uses }
    };
    match options.format.map_or_else(|| FileFormat::of_path(path), Ok)? {
        FileFormat::Safetensors => {
            let contents = safetensors::read(path)?;
            let held = settings::from_pairs(path, &contents.pairs)?;
            let values = settings::values_of(path, &contents.pairs)?;
            let wanted = wanted_of(held.as_ref());
            Ok((Box::new(contents.rows(path, keys, rows, wanted)?), held, values))
        }
        FileFormat::Npy => {
            // The set's list tells which files are its own.
            let (found, pairs) = npy_set::read(path, keys, rows, Wanted { state, uses })?;
            let held = settings::from_pairs(path, &pairs)?;
            Ok((Box::new(found), held, settings::values_of(path, &pairs)?))
        }
        #[cfg(feature = "parquet")]
        FileFormat::Parquet => {
            use crate::files::parquet;
            let pairs = parquet::read_pairs(path)?;
            let (held, values) =
                (settings::from_pairs(path, &pairs)?, settings::values_of(path, &pairs)?);
            let wanted = wanted_of(held.as_ref());
            Ok((Box::new(parquet::read(path, keys, rows, wanted)?), held, values))
        }
        #[cfg(not(feature = "parquet"))]
        FileFormat::Parquet => Err(crate::files::no_parquet()),
    }
}

/// Refuses values that are not finite as `dtype`. `first` is the row of the file that `keys` begin with.
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
    let (row, column) = (at / columns, at % columns);
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

/// What of a file goes into rows beside the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Taken {
    state: bool,
    uses: TakenUses,
}

/// What of a file's uses goes into rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TakenUses {
    /// The import counts as one use.
    None,
    /// The number. The last use is the present time: the file's times have another unit than the table's.
    Count,
    /// The number and the last use.
    All,
}

/// A batch of a file on its way into the table.
#[derive(Debug)]
struct PutImported<'a> {
    layout: &'a RowLayout,
    batch: &'a ReadBatch,
    /// Where in the batch each distinct key's row lies.
    sources: &'a [u32],
    uses: TakenUses,
}

impl PutImported<'_> {
    /// An int8 row that the file has as it is stored goes in so: its scale would not come back from its values.
    fn write_vector(&self, i: usize, value: &mut [u8]) {
        let (place, layout) = (self.sources[i] as usize, self.layout);
        let dim = layout.dim;
        match self.batch.int8_row(place, dim).filter(|_| layout.dtype() == Dtype::Int8) {
            Some((bytes, scale)) => layout.write_int8(value, bytes, scale),
            None => layout.write_vector(value, &self.batch.vectors[place * dim..][..dim]),
        }
        let last = match self.uses {
            TakenUses::None => return layout.note_use(value),
            TakenUses::Count => None,
            TakenUses::All => Some(self.batch.last_used[place]),
        };
        layout.import_uses(value, last, self.batch.uses[place]);
    }
}

/// Replaces whole rows, the optimizer's state too.
#[derive(Debug)]
struct PutWithState<'a>(PutImported<'a>);

impl Operation for PutWithState<'_> {
    const ACCESS: Access = Access::Put;

    fn update(&mut self, i: usize, value: &mut [u8]) {
        let Self(put) = self;
        let columns = put.layout.state_values();
        put.layout.fill_rest(value);
        put.write_vector(i, value);
        let place = put.sources[i] as usize;
        put.layout.import_state(value, &put.batch.state[place * columns..][..columns]);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Replaces vectors and keeps the optimizer's state.
#[derive(Debug)]
struct PutKeepingState<'a>(PutImported<'a>);

impl Operation for PutKeepingState<'_> {
    const ACCESS: Access = Access::Update;

    fn update(&mut self, i: usize, value: &mut [u8]) {
        self.0.write_vector(i, value);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.0.layout.fill_rest(value);
        self.0.write_vector(i, value);
        true
    }
}
