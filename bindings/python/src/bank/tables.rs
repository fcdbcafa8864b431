//! Methods that make, open and drop the bank's tables.

use std::path::PathBuf;

use embank::TableConfig;
use pyo3::prelude::*;

use super::PyBank;
use crate::table::PyTable;
use crate::table::files::format_of;
use crate::{scalars, settings};

/// Returns the number of handles of tables that a bank holds for `Table` objects. Only for tests.
#[pyfunction]
#[pyo3(name = "_table_handles")]
pub(crate) fn table_handles(bank: &PyBank) -> PyResult<usize> {
    bank.cell.table_handles()
}

#[pymethods]
impl PyBank {
    /// Opens a table, or creates it if the bank has no table of this name.
    ///
    /// `dim`, the dtypes, the optimizer's kind and state, `initializer` and `seed` belong to the
    /// table for good. The learning rate and the optimizer's other numbers, `clip_row_norm` and
    /// `staleness_bound` are those of the latest call.
    ///
    /// Args:
    ///     name: The table's name.
    ///     dim: Columns of a row, 1 or more.
    ///     optimizer: `SGD`, `Adagrad`, `RowWiseAdagrad`, `Adam`, `AdamW`, `FTRL`, or None for a
    ///         table that takes no gradients. Default: None.
    ///     initializer: The initial values of a row: `Uniform`, `Normal`, `TruncatedNormal`,
    ///         `XavierUniform`, `XavierNormal`, `Constant` or `Zeros`. They are a pure function of
    ///         seed, table name, key and column. Default: `Uniform(-0.05, 0.05)`.
    ///     seed: The seed of initial values, stochastic rounding and `admit_probability`, from 0 to
    ///         2**64 - 1. Default: 0.
    ///     staleness_bound: A get waits while more than this many leases hold one of its rows.
    ///         Default: None, a get never waits.
    ///     clip_row_norm: The largest L2 norm of a row's gradient. A longer gradient is scaled down
    ///         to it, after the gradients of equal keys are summed. Default: None, no limit.
    ///     tracking: Whether rows record their last use and their number of uses, in 8 more bytes
    ///         each. Eviction by age and by frequency needs it. The unit of time is "minutes", or
    ///         with "set_time" a unit of the program's choice (see `Table.set_time`). Belongs to
    ///         the table for good. Default: None, rows record nothing.
    ///     admit_after_gets: The number of the get that makes a key's row: with 3, the third get of
    ///         the key. Earlier gets return the key's initial values, and the table drops its
    ///         gradients. Belongs to the table for good. Default: None, every get makes a row.
    ///     admit_probability: The probability with which a get of a key without a row makes one.
    ///         Other gets return the key's initial values, and the table drops its gradients. Can't
    ///         be combined with `admit_after_gets`. Default: None, every get makes a row.
    ///     dtype: How values are stored: "float32", "float16", "bfloat16", or "int8" with a scale
    ///         for each row; or NumPy's or PyTorch's object for one of them. Rows go in and out as
    ///         float32. Default: "float32".
    ///     state_dtype: How the optimizer's vectors are stored: "float32", "float16" or "bfloat16".
    ///         Default: "float32".
    ///     vocabulary: The name of the bank's vocabulary whose ids are the keys. The table then
    ///         refuses other keys. It opens only while the vocabulary has the numbering that it had
    ///         when the table was made. Belongs to the table for good. Default: None, the table
    ///         takes every key.
    ///     rounding: How updates are rounded to a `dtype` below float32: "nearest" or "stochastic".
    ///         Stochastic rounding is reproducible: the draws depend on seed, table, key and the
    ///         number of the row's updates. Default: "stochastic" for int8, otherwise "nearest".
    ///     shard: Only for the bank of a fleet's shard: the number of the shard that holds all rows
    ///         of the table. The banks of all shards have the table, with equal settings. Belongs
    ///         to the table for good. Default: None, each row is on the shard of its key.
    ///
    /// Raises:
    ///     TableMismatch: The table exists with other settings; the text names both. Or its
    ///         vocabulary was renumbered or replaced since the table was made.
    ///     NoSuchVocabulary: The bank does not have the `vocabulary`: make it first.
    ///     ValueError, TypeError: An argument is wrong.
    #[pyo3(signature = (
        name, dim, *, optimizer = None, initializer = None, seed = None, staleness_bound = None,
        clip_row_norm = None, tracking = None, admit_after_gets = None, admit_probability = None,
        dtype = None, state_dtype = None, rounding = None, vocabulary = None, shard = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn table(
        slf: &Bound<'_, Self>,
        name: &str,
        dim: &Bound<'_, PyAny>,
        optimizer: Option<&Bound<'_, PyAny>>,
        initializer: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
        staleness_bound: Option<&Bound<'_, PyAny>>,
        clip_row_norm: Option<f64>,
        tracking: Option<&str>,
        admit_after_gets: Option<&Bound<'_, PyAny>>,
        admit_probability: Option<f64>,
        dtype: Option<&Bound<'_, PyAny>>,
        state_dtype: Option<&Bound<'_, PyAny>>,
        rounding: Option<&str>,
        vocabulary: Option<&str>,
        shard: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyTable> {
        let seed = seed.map_or(Ok(0), |seed| scalars::unsigned("seed", seed, u64::MAX))?;
        let bound = staleness_bound
            .map(|bound| scalars::unsigned_32("staleness_bound", bound))
            .transpose()?;
        let mut config = TableConfig::new(scalars::unsigned_32("dim", dim)?)
            .optimizer(settings::optimizer(optimizer)?)
            .initializer(settings::initializer(initializer)?)
            .seed(seed)
            .tracking(settings::tracking(tracking)?)
            .admission(settings::admission(admit_after_gets, admit_probability)?)
            .dtype(settings::dtype("dtype", dtype)?)
            .state_dtype(settings::dtype("state_dtype", state_dtype)?)
            .rounding(settings::rounding(rounding)?)
            .clip_row_norm(clip_row_norm.map(|norm| norm as f32))
            .staleness_bound(bound);
        let shard = shard.map(|shard| scalars::unsigned_32("shard", shard)).transpose()?;
        config = config.shard(shard);
        if let Some(name) = vocabulary {
            config = config.vocabulary(name);
        }
        PyTable::open(slf, |bank| bank.table(name, config))
    }

    /// Opens a table, or creates it, with the settings of the table that a file was exported from.
    /// It puts no row: `Table.import_from` does.
    ///
    /// The settings are dim, dtypes, optimizer, initializer, seed, admission, tracking and
    /// vocabulary.
    ///
    /// Args:
    ///     name: The table's name; it need not be the exported table's.
    ///     path: The file or directory, as for `Table.import_from`.
    ///     format: "safetensors", "npy" or "parquet". Default: the one that the file's suffix
    ///         stands for.
    ///     vocabulary: Whether the table has the exported table's vocabulary, if that had one.
    ///         False for a bank that does not have this vocabulary: then the table takes every key.
    ///         Default: True.
    ///
    /// Raises:
    ///     FileMismatch: The file tells no settings: another program wrote it, or it is a dense npy
    ///         matrix by itself.
    ///     UnreadableFile: The file or its settings are damaged.
    ///     TableMismatch: A table of this name exists with other settings.
    ///     NoSuchVocabulary: The bank does not have the exported table's vocabulary.
    ///     ValueError: `format` is unknown, or the suffix stands for no format.
    ///     StoreIOError: The file is not there, or can't be read.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("exported.bank", memory_budget="16MiB") as bank:
    /// ...     table = bank.table("user", dim=2, dtype="float16", optimizer=embank.Adam(lr=0.01))
    /// ...     table.put([7], [[0.5, 1.5]])
    /// ...     number = bank.checkpoint()
    /// ...     exported = table.export("user.parquet", state=True)
    /// ...     copy = bank.table_as_exported("copy", "user.parquet")
    /// ...     copy.import_from("user.parquet")
    /// ...     copy.dim, copy.dtype, copy.optimizer.lr
    /// {'rows': 1, 'with_state': True}
    /// (2, 'float16', 0.01)
    #[pyo3(signature = (name, path, *, format = None, vocabulary = true))]
    fn table_as_exported(
        slf: &Bound<'_, Self>,
        name: &str,
        path: PathBuf,
        format: Option<&str>,
        vocabulary: bool,
    ) -> PyResult<PyTable> {
        let format = format_of(format)?;
        PyTable::open(slf, |bank| {
            bank.table_as_exported(name, path, format, |config| {
                if !vocabulary {
                    config.vocabulary = None;
                }
            })
        })
    }

    /// Opens a table that exists, with the settings that it has.
    ///
    /// Raises:
    ///     NoSuchTable: The bank has no table of this name.
    fn open_table(slf: &Bound<'_, Self>, name: &str) -> PyResult<PyTable> {
        PyTable::open(slf, |bank| bank.open_table(name))
    }

    /// The names of the bank's tables.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.cell.with_bank(py, |bank| Ok(bank.tables().into_iter().map(|t| t.name).collect()))
    }

    /// Drops a table. Its rows are gone at once, for every thread.
    ///
    /// Later calls on `Table` objects and leases of the dropped table raise `NoSuchTable`, and so
    /// do gets that wait for one of its rows. Releasing a lease is no error. The drop is durable
    /// with the next checkpoint: a crash before that brings the whole table back. Compaction frees
    /// the space on disk when no kept checkpoint needs it. The name can be used again at once, with
    /// other settings.
    ///
    /// Raises:
    ///     NoSuchTable: The bank has no table of this name.
    ///     PoisonedError: An earlier write failed; the table is still there.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("drop.bank", memory_budget="16MiB") as bank:
    /// ...     bank.table("user", dim=2).put([1], [[1.0, 2.0]])
    /// ...     bank.drop_table("user")
    /// ...     print(bank.tables(), bank.table("user", dim=3).contains([1]))
    /// [] [False]
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.cell.with_bank(py, |bank| bank.drop_table(name))?;
        Ok(())
    }
}
