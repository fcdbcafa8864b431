//! `Bank`: a directory of tables.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use embank::locks::Mutex;
use embank::{BankOptions, CompactionOptions, DeviceChoice, Recovered, TableConfig, Unknown};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

use crate::bank_cell::BankCell;
use crate::table::PyTable;
use crate::vocabulary::PyVocabulary;
use crate::{errors, life, scalars, settings, stats, vocabulary};

/// What a bank found when it was opened: the newest checkpoint and its blob.
#[pyclass(name = "Recovered", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyRecovered {
    /// The checkpoint's number.
    #[pyo3(get)]
    checkpoint: u64,
    blob: Py<PyBytes>,
}

#[pymethods]
impl PyRecovered {
    /// The bytes that `Bank.checkpoint` was given.
    #[getter]
    fn blob(&self, py: Python<'_>) -> Py<PyBytes> {
        self.blob.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let length = self.blob.bind(py).len()?;
        Ok(format!("<embank.Recovered checkpoint={}, blob of {length} bytes>", self.checkpoint))
    }
}

/// A directory that holds embedding tables under one memory budget.
///
/// Opening it creates it where it is absent, and recovers its newest checkpoint where there is one:
/// what came after that checkpoint is gone. Use it as a context manager, or call `close`: neither takes a checkpoint
/// unless it is told to, and both warn with a `ResourceWarning` of changes that no checkpoint has.
///
/// Args:
///     path: The directory.
///     memory_budget: Bytes, or text such as "64MiB". Default: 1 GiB, or a quarter of the memory limit of the
///         process's control group, if that is less; above that limit, opening warns with a UserWarning. It covers the rows in
///         memory, the index and the buffers.
///     device: "auto" (`io_uring` where the kernel grants it, else threads), "io_uring" or "threads".
///     checkpoints_kept: How many of the newest checkpoints stay on disk.
///     wait_timeout: Seconds that a get waits at a staleness bound; Ctrl-C takes effect after it.
///     lease_timeout: Seconds after which a lease expires, when somebody else gets rows of its table: its
///         counts are given back, and an update through it raises `LeaseExpired`. Take several times what
///         the slowest step takes. None by default: a lease is good for ever, and one that is never
///         ended blocks its rows.
///     compaction: Whether space on disk is given back in the background; else only `compact` does it.
///         Default: only with a `disk_quota`, because what is copied pushes rows that were looked ahead
///         for out of memory. Switch it on for runs whose log would outgrow the disk.
///     space_amplification_target: The log's length over its rows' beyond which it is, 1.1 to 10; 1.4 by
///         default. Less saves space and costs writing.
///     compaction_throttle: Bytes, or text such as "20MiB", that it reads and writes each second at most;
///         None for as fast as writers need it.
///     disk_quota: Bytes, or text such as "8GiB", that the log may take on disk; None for no limit.
///     read_only: Whether to open it at a checkpoint beside the process that writes it, or none, and change
///         not a byte. Tables can be opened, peeked at and scanned; what would write, a get too, raises
///         `ReadOnly`. The writer keeps the checkpoint until `refresh`, `close` or the end of this process.
///     checkpoint: With `read_only`, the checkpoint's number; the newest by default.
///     create: Whether a bank is made where there is none. With False, a mistyped path, or a file system that is not
///         mounted, raises `ValueError`, and training does not begin anew without a word.
///
/// Raises:
///     BudgetTooSmall: The budget can't hold what it must; has the number that would do.
///     Locked: The bank is open already, here or in another process.
///     Damaged: A file is cut short or does not match its checksum.
///     StoreIOError: The directory or a file can't be read or written; also an `OSError`.
///     ValueError, TypeError: An argument is wrong.
///
/// >>> import embank
/// >>> with embank.Bank("clicks.bank", memory_budget="16MiB") as bank:
/// ...     users = bank.table("user", dim=2, initializer=embank.Constant(0.5))
/// ...     users.get([7]).release()
/// ...     number = bank.checkpoint(b"step 1")
/// >>> with embank.Bank("clicks.bank", memory_budget="16MiB") as bank:
/// ...     print(bank.recovered.blob, bank.tables(), bank.open_table("user").contains([7, 8]))
/// b'step 1' ['user'] [ True False]
#[pyclass(name = "Bank", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyBank {
    pub(crate) cell: Arc<BankCell>,
    /// Changes with `refresh`.
    recovered: Mutex<Option<Py<PyRecovered>>>,
    position: Mutex<Position>,
    /// None of a bank that is open to read only.
    options: Option<BankOptions>,
}

/// Time between two looks at pending signals while a call waits for lookahead.
const LOOKAHEAD_SLICE: Duration = Duration::from_millis(100);

/// The newest checkpoint that this object knows to be in what it shows.
#[derive(Debug, Clone, Copy)]
struct Position {
    checkpoint: Option<u64>,
    /// The bank's count of changed rows when that checkpoint began.
    changed: u64,
}

impl PyRecovered {
    fn of(py: Python<'_>, found: Option<&Recovered>) -> PyResult<Option<Py<Self>>> {
        let Some(found) = found else { return Ok(None) };
        let blob = PyBytes::new(py, &found.blob).unbind();
        Py::new(py, Self { checkpoint: found.checkpoint, blob }).map(Some)
    }
}

impl PyBank {
    /// Closes the bank. The inner result is that of the warning of what is lost, which may be an error.
    fn close_and_warn(&self, py: Python<'_>) -> PyResult<PyResult<()>> {
        let unsaved = self.cell.close()?;
        Ok(unsaved.map_or(Ok(()), |unsaved| errors::warn_unsaved(py, self.cell.path(), unsaved)))
    }

    /// Rows made, changed and deleted since the bank was opened, and tables dropped.
    fn changed(&self, py: Python<'_>) -> PyResult<u64> {
        self.cell.with_bank(py, |bank| Ok(bank.state_id().changes()))
    }
}

#[pymethods]
impl PyBank {
    #[new]
    #[pyo3(signature = (
        path, *, memory_budget = None, device = "auto", checkpoints_kept = None, wait_timeout = 60.0,
        lease_timeout = None, compaction = None, space_amplification_target = 1.4, compaction_throttle = None,
        disk_quota = None, read_only = false, checkpoint = None, create = true
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        memory_budget: Option<&Bound<'_, PyAny>>,
        device: &str,
        checkpoints_kept: Option<&Bound<'_, PyAny>>,
        wait_timeout: f64,
        lease_timeout: Option<f64>,
        compaction: Option<bool>,
        space_amplification_target: f64,
        compaction_throttle: Option<&Bound<'_, PyAny>>,
        disk_quota: Option<&Bound<'_, PyAny>>,
        read_only: bool,
        checkpoint: Option<&Bound<'_, PyAny>>,
        create: bool,
    ) -> PyResult<Self> {
        let mut options = BankOptions { create, ..BankOptions::default() };
        if let Some(budget) = memory_budget {
            options.memory_budget_bytes = scalars::size_bytes("memory_budget", budget)?;
        }
        if let Some(kept) = checkpoints_kept {
            options.checkpoints_kept = scalars::unsigned_32("checkpoints_kept", kept)? as usize;
        }
        options.device = device_choice(device)?;
        options.wait_timeout = scalars::seconds("wait_timeout", wait_timeout)?;
        options.lease_timeout =
            lease_timeout.map(|seconds| scalars::seconds("lease_timeout", seconds)).transpose()?;
        options.compaction = CompactionOptions {
            background: compaction.unwrap_or(disk_quota.is_some()),
            space_amplification_target,
            throttle_bytes_per_s: compaction_throttle.map(throttle).transpose()?,
        };
        options.disk_quota_bytes =
            disk_quota.map(|quota| scalars::size_bytes("disk_quota", quota)).transpose()?;
        let number = checkpoint
            .map(|number| scalars::unsigned("checkpoint", number, u64::MAX))
            .transpose()?;
        if number.is_some() && !read_only {
            return Err(PyValueError::new_err(
                "checkpoint goes with read_only=True: for writing, a bank opens at its newest checkpoint",
            ));
        }
        // Before the bank is made: the program may take warnings for errors.
        if let Some(warning) = embank::memory_budget_warning(options.memory_budget_bytes) {
            errors::warn_user(py, &warning)?;
        }
        let kept = (!read_only).then(|| options.clone());
        let bank = py
            .detach(|| {
                if read_only {
                    embank::Bank::open_read_only(path, options, number)
                } else {
                    embank::Bank::open(path, options)
                }
            })
            .map_err(|error| errors::to_python(py, &error))?;
        let reading = bank.reading();
        let found = reading.as_deref().or(bank.recovered());
        let recovered = PyRecovered::of(py, found)?;
        let checkpoint = found.map(|found| found.checkpoint);
        Ok(Self {
            cell: Arc::new(BankCell::new(bank)),
            recovered: Mutex::new(recovered),
            position: Mutex::new(Position { checkpoint, changed: 0 }),
            options: kept,
        })
    }

    /// The directory.
    #[getter]
    fn path(&self) -> PathBuf {
        self.cell.path().to_owned()
    }

    /// What opening it found, or None if there was no checkpoint. With `read_only`: the checkpoint that it is at.
    #[getter]
    fn recovered(&self, py: Python<'_>) -> Option<Py<PyRecovered>> {
        self.recovered.lock().as_ref().map(|recovered| recovered.clone_ref(py))
    }

    /// The number of the newest checkpoint: taken by this object, or found when it was opened; None before the first.
    /// With `read_only`: the one that it is at.
    #[getter]
    fn last_checkpoint(&self) -> Option<u64> {
        self.position.lock().checkpoint
    }

    /// Whether a row was made, changed or deleted, or a table dropped, since that checkpoint, or, where there is
    /// none, since the bank was opened. Closing the bank, or a crash, would lose it.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("changed.bank", memory_budget="16MiB") as bank:
    /// ...     bank.table("user", dim=2).put([1], [[1.0, 2.0]])
    /// ...     print(bank.last_checkpoint, bank.changed_since_checkpoint)
    /// ...     number = bank.checkpoint()
    /// ...     print(bank.last_checkpoint, bank.changed_since_checkpoint)
    /// None True
    /// 1 False
    #[getter]
    fn changed_since_checkpoint(&self, py: Python<'_>) -> PyResult<bool> {
        let changed = self.changed(py)?;
        Ok(changed != self.position.lock().changed)
    }

    /// A text that stays the same as long as the bank is open and no row is made, changed or deleted and no table
    /// dropped. Never the same for two openings. `embank.checkpoint_id` tells by it which checkpoint holds that state.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("state.bank", memory_budget="16MiB") as bank:
    /// ...     before = bank.state_id
    /// ...     print(bank.state_id == before)
    /// ...     bank.table("user", dim=2).put([1], [[1.0, 2.0]])
    /// ...     print(bank.state_id == before)
    /// True
    /// False
    #[getter]
    fn state_id(&self, py: Python<'_>) -> PyResult<String> {
        self.cell.with_bank(py, |bank| Ok(bank.state_id().to_string()))
    }

    /// Keeps a checkpoint beyond `checkpoints_kept`, also after a reopen, until `unpin`: that of the best epoch.
    ///
    /// It holds the space of its rows on disk.
    ///
    /// Args:
    ///     checkpoint: Its number, as `checkpoint()` returned it.
    ///
    /// Raises:
    ///     ValueError: There is no such checkpoint.
    ///     ReadOnly: The bank was opened with `read_only`.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("pin.bank", memory_budget="16MiB", checkpoints_kept=1) as bank:
    /// ...     bank.pin(bank.checkpoint(b"best"))
    /// ...     later = bank.checkpoint(), bank.checkpoint()
    /// >>> [found["number"] for found in embank.list_checkpoints("pin.bank")]
    /// [1, 3]
    fn pin(&self, py: Python<'_>, checkpoint: &Bound<'_, PyAny>) -> PyResult<()> {
        let checkpoint = scalars::unsigned("checkpoint", checkpoint, u64::MAX)?;
        self.cell.with_bank(py, |bank| bank.pin(checkpoint))
    }

    /// Lets go of a checkpoint that was pinned: it goes with the next checkpoint if it is an old one.
    ///
    /// Raises: as `pin`.
    fn unpin(&self, py: Python<'_>, checkpoint: &Bound<'_, PyAny>) -> PyResult<()> {
        let checkpoint = scalars::unsigned("checkpoint", checkpoint, u64::MAX)?;
        self.cell.with_bank(py, |bank| bank.unpin(checkpoint))
    }

    /// Takes the open bank back to a kept checkpoint for good, such as that of the best epoch.
    ///
    /// Every row, its optimizer state and the vocabularies are as that checkpoint has them; newer checkpoints and changes
    /// that no checkpoint has are gone. `recovered` is that checkpoint with its blob. `Table` and `Vocabulary` objects, and
    /// models over them, go on; those of tables that the checkpoint lacks raise `NoSuchTable`. Leases, prefetches, scans,
    /// pipelines and their feeds end. `embank.torch.resume` then restores the rest of a training run from the blob. It
    /// takes as long as opening the bank.
    ///
    /// Args:
    ///     checkpoint: The number of a kept checkpoint; no other process may read a newer one.
    ///
    /// Returns:
    ///     The numbers of the checkpoints that are gone, the newest first; they are given anew.
    ///
    /// Raises:
    ///     ValueError: There is no such checkpoint; nothing has changed.
    ///     ReadOnly: The bank was opened with `read_only`; nothing has changed.
    ///     EmbankError: A newer checkpoint is being read. After this and other failures of the store the bank is open at
    ///         its newest checkpoint.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("early.bank", memory_budget="16MiB") as bank:
    /// ...     table = bank.table("user", dim=1)
    /// ...     table.put([1], [[1.0]])
    /// ...     best = bank.checkpoint(b"epoch 1")
    /// ...     table.put([1], [[9.0]])
    /// ...     worse = bank.checkpoint(b"epoch 2")
    /// ...     print(bank.roll_back(best), table.peek([1]), bank.recovered.blob)
    /// [2] [[1.]] b'epoch 1'
    fn roll_back(&self, py: Python<'_>, checkpoint: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
        let checkpoint = scalars::unsigned("checkpoint", checkpoint, u64::MAX)?;
        let Some(options) = &self.options else {
            let path = self.cell.path().to_owned();
            let error = embank::Error::ReadOnly { path };
            return Err(errors::to_python(py, &error));
        };
        let gone = self.cell.roll_back(py, options, checkpoint);
        if self.cell.is_closed()? {
            return gone;
        }
        let found = self.cell.with_bank(py, |bank| Ok(bank.recovered().cloned()))?;
        *self.recovered.lock() = PyRecovered::of(py, found.as_ref())?;
        let checkpoint = found.map(|found| found.checkpoint);
        *self.position.lock() = Position { checkpoint, changed: 0 };
        gone
    }

    /// Moves a bank that was opened with `read_only` on to its newest checkpoint, if that is newer.
    ///
    /// `Table` objects show the new one from then on; calls and scans that other threads have begun show the old
    /// one to their end, and until then both indexes are in memory. After an error the bank is where it was.
    ///
    /// Returns:
    ///     The number of the checkpoint that the bank is at then.
    ///
    /// Raises:
    ///     ValueError: The bank is open for writing.
    ///     Damaged, StoreIOError, BudgetTooSmall: The newer checkpoint can't be opened.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("serve.bank", memory_budget="16MiB") as training:
    /// ...     training.table("user", dim=2).put([1], [[1.0, 2.0]])
    /// ...     first = training.checkpoint(b"step 1")
    /// ...     with embank.Bank("serve.bank", memory_budget="16MiB", read_only=True) as serving:
    /// ...         training.open_table("user").put([1], [[3.0, 4.0]])
    /// ...         second = training.checkpoint(b"step 2")
    /// ...         old = serving.open_table("user").peek([1])
    /// ...         assert serving.refresh() == second
    /// ...         print(old, serving.open_table("user").peek([1]), serving.recovered.blob)
    /// [[1. 2.]] [[3. 4.]] b'step 2'
    fn refresh(&self, py: Python<'_>) -> PyResult<u64> {
        let (number, reading) =
            self.cell.with_bank(py, |bank| Ok((bank.refresh()?, bank.reading())))?;
        let recovered = PyRecovered::of(py, reading.as_deref())?;
        *self.recovered.lock() = recovered;
        self.position.lock().checkpoint = Some(number);
        Ok(number)
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> PyResult<bool> {
        self.cell.is_closed()
    }

    /// Opens a table, or creates it if the bank has none of this name.
    ///
    /// `dim`, the optimizer's kind and what it keeps beside a row, `initializer` and `seed` belong to the table
    /// for good. The learning rate and the optimizer's other numbers, `clip_row_norm` and the staleness bound are
    /// those of the latest call.
    ///
    /// Args:
    ///     name: The table's name.
    ///     dim: Columns of a row, 1 or more.
    ///     optimizer: `SGD`, `Adagrad`, `RowWiseAdagrad`, `Adam`, `AdamW`, `FTRL`, or None for a table that
    ///         takes no gradients.
    ///     initializer: What a new row holds: `Uniform`, `Normal`, `TruncatedNormal`, `XavierUniform`,
    ///         `XavierNormal`, `Constant` or `Zeros`; by default `Uniform(-0.05, 0.05)`. A pure function of
    ///         seed, table name, key and column.
    ///     seed: From 0 to 2**64 - 1; 0 by default.
    ///     staleness_bound: A get waits while more than this many leases hold one of its rows; None
    ///         (the default) never waits.
    ///     clip_row_norm: A row's gradient whose L2 norm is above it is scaled down to it, after those of equal
    ///         keys are summed; None (the default) takes gradients as they come.
    ///     tracking: "minutes" or "set_time" (see `Table.set_time`): rows tell when they were used last
    ///         and how often, in 8 more bytes each; eviction by age and frequency needs it. None by default.
    ///         Belongs to the table for good.
    ///     admit_after_gets: A key gets its row with its so-manyth get; before that, gets return its initial
    ///         value and its gradients are dropped. Belongs to the table for good.
    ///     admit_probability: Each get of a key without a row gives it one with this probability; else as above.
    ///         Without either, every get makes a row.
    ///     dtype: How values are stored: "float32" (the default), "float16", "bfloat16", or "int8" with a scale a
    ///         row; or NumPy's or PyTorch's object. Rows go in and out as float32.
    ///     state_dtype: How the optimizer's vectors are stored: "float32" (the default), "float16" or "bfloat16".
    ///     vocabulary: The bank's vocabulary whose ids are the keys, if they are one's: the table is opened with no
    ///         other numbering than the one that it was made with. Belongs to the table for good.
    ///     rounding: How updates are rounded to a `dtype` below float32: "nearest" or "stochastic"; by default
    ///         stochastic for int8, else nearest. Reproducible: the draws depend on seed, table, key and the
    ///         count of the row's updates.
    ///
    /// Raises:
    ///     TableMismatch: The table exists with other settings; the text names both.
    ///     ValueError, TypeError: An argument is wrong.
    #[pyo3(signature = (
        name, dim, *, optimizer = None, initializer = None, seed = None, staleness_bound = None,
        clip_row_norm = None, tracking = None, admit_after_gets = None, admit_probability = None,
        dtype = None, state_dtype = None, rounding = None, vocabulary = None
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
    ) -> PyResult<PyTable> {
        let seed = seed.map_or(Ok(0), |seed| scalars::unsigned("seed", seed, u64::MAX))?;
        let bound = staleness_bound
            .map(|bound| scalars::unsigned_32("staleness_bound", bound))
            .transpose()?;
        let mut config = TableConfig::new(scalars::unsigned_32("dim", dim)?)
            .optimizer(settings::optimizer(optimizer)?)
            .initializer(settings::initializer(initializer)?)
            .seed(seed)
            .tracking(life::tracking(tracking)?)
            .admission(life::admission(admit_after_gets, admit_probability)?)
            .dtype(settings::dtype("dtype", dtype)?)
            .state_dtype(settings::dtype("state_dtype", state_dtype)?)
            .rounding(settings::rounding(rounding)?)
            .clip_row_norm(clip_row_norm.map(|norm| norm as f32))
            .staleness_bound(bound);
        if let Some(name) = vocabulary {
            config = config.vocabulary(name);
        }
        PyTable::open(slf, |bank| bank.table(name, config))
    }

    /// Opens a table that is there, with the settings it has.
    ///
    /// Raises:
    ///     NoSuchTable: The bank has none of this name.
    fn open_table(slf: &Bound<'_, Self>, name: &str) -> PyResult<PyTable> {
        PyTable::open(slf, |bank| bank.open_table(name))
    }

    /// Opens a vocabulary, or makes it if the bank has none of this name: values to dense ids, in order of first
    /// appearance. A new one is durable with the next checkpoint.
    ///
    /// Args:
    ///     name: The vocabulary's name; tables may have the same.
    ///     kind: Of the values: "u64" (int64 and uint64, as keys of tables) or "bytes" (text is taken as UTF-8).
    ///     first_id: The first value's id. Smaller ones are yours, for padding or unknown values.
    ///     unknown_id: What `lookup` gives values that have no id; below `first_id`. None: it raises `UnknownValue`.
    ///     counts: Whether it counts how often values come.
    ///     value_bytes_max: The longest byte string; 1,024 by default.
    ///
    /// Raises:
    ///     VocabularyMismatch: It exists with other settings; the text names both.
    ///     ValueError, TypeError: An argument is wrong.
    #[pyo3(signature = (
        name, kind = "u64", *, first_id = None, unknown_id = None, counts = false, value_bytes_max = None
    ))]
    fn vocabulary(
        slf: &Bound<'_, Self>,
        name: &str,
        kind: &str,
        first_id: Option<&Bound<'_, PyAny>>,
        unknown_id: Option<&Bound<'_, PyAny>>,
        counts: bool,
        value_bytes_max: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyVocabulary> {
        let mut config = vocabulary::config(kind)?.counts(counts);
        if let Some(id) = first_id {
            config = config.first_id(scalars::unsigned("first_id", id, u64::MAX)?);
        }
        if let Some(id) = unknown_id {
            config = config.unknown(Unknown::Id(scalars::unsigned("unknown_id", id, u64::MAX)?));
        }
        if let Some(bytes) = value_bytes_max {
            config = config.value_bytes_max(scalars::unsigned_32("value_bytes_max", bytes)?);
        }
        PyVocabulary::open(slf, |bank| bank.vocabulary(name, config))
    }

    /// Opens a vocabulary that is there, with the settings it has.
    ///
    /// Raises:
    ///     NoSuchVocabulary: The bank has none of this name.
    fn open_vocabulary(slf: &Bound<'_, Self>, name: &str) -> PyResult<PyVocabulary> {
        PyVocabulary::open(slf, |bank| bank.open_vocabulary(name))
    }

    /// The names of the bank's vocabularies.
    fn vocabularies(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let names =
            |bank: &embank::Bank| bank.vocabularies().into_iter().map(|of| of.name).collect();
        self.cell.with_bank(py, |bank| Ok(names(bank)))
    }

    /// Drops a vocabulary: its values are gone at once, durably with the next checkpoint. Tables that were made for it
    /// stay, and can't be opened.
    ///
    /// Raises:
    ///     NoSuchVocabulary: The bank has none of this name.
    fn drop_vocabulary(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.cell.with_bank(py, |bank| bank.drop_vocabulary(name))?;
        Ok(())
    }

    /// The names of the bank's tables.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.cell.with_bank(py, |bank| Ok(bank.tables().into_iter().map(|t| t.name).collect()))
    }

    /// Drops a table: its rows are gone at once, for every thread.
    ///
    /// Any later call on its `Table` objects and leases raises `NoSuchTable`, as do gets that wait for one of its
    /// rows; releasing a lease is no error. Durable with the next checkpoint: a crash before that brings
    /// the table back whole. Space on disk comes back by compaction, once no kept checkpoint holds it.
    /// The name may be used again at once, with other settings.
    ///
    /// Raises:
    ///     NoSuchTable: The bank has none of this name.
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

    /// Gives space on disk back now: one pass of compaction over all of the log that is on disk.
    ///
    /// Other threads go on meanwhile. What kept checkpoints hold follows with the next checkpoints. Tries again
    /// where background compaction had stopped (`stats()["compaction"]["stopped"]`).
    ///
    /// Returns:
    ///     A dictionary: `scanned_bytes` of log gone through, `copied_bytes` of rows moved to the log's end,
    ///     `freed_bytes` given back to the file system so far; `out_of_room`, true if the pass ended early because the
    ///     disk has little room: then take a checkpoint, which lets go of older log, and compact again.
    ///
    /// Raises:
    ///     Damaged, StoreIOError: A page can't be read; no row is lost that could be read before.
    ///     DiskFull: There is no room to move the rows of a single page.
    ///     PoisonedError: An earlier write failed.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("compact.bank", memory_budget="16MiB", compaction=False) as bank:
    /// ...     bank.compact()["freed_bytes"]  # nothing is on disk yet
    /// 0
    fn compact<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let done = self.cell.with_bank(py, |bank| bank.compact())?;
        let bytes = [
            ("scanned_bytes", done.scanned_bytes),
            ("copied_bytes", done.copied_bytes),
            ("freed_bytes", done.freed_bytes),
        ];
        let dict = bytes.into_py_dict(py)?;
        dict.set_item("out_of_room", done.out_of_room)?;
        Ok(dict)
    }

    /// Makes everything durable: every row, optimizer state, and `blob`.
    ///
    /// When it returns, all of it is on stable storage, and a crash at any later moment recovers
    /// exactly this checkpoint or a later one. Nothing between two checkpoints is promised.
    ///
    /// Args:
    ///     blob: The caller's own state (step, dense weights, position in the data), handed back as
    ///         `recovered.blob`.
    ///
    /// Returns:
    ///     The checkpoint's number, one more than the last one's.
    ///
    /// Raises:
    ///     StoreIOError: Writing failed, the disk being full for one; the last checkpoint is good.
    ///     PoisonedError: An earlier write failed.
    #[pyo3(signature = (blob = None))]
    pub(crate) fn checkpoint(&self, py: Python<'_>, blob: Option<&[u8]>) -> PyResult<u64> {
        let blob = blob.unwrap_or_default();
        // Counted before: a change that another thread makes meanwhile may not be in the checkpoint.
        let changed = self.changed(py)?;
        let number = self.cell.with_bank(py, |bank| bank.checkpoint(blob))?;
        *self.position.lock() = Position { checkpoint: Some(number), changed };
        Ok(number)
    }

    /// Takes announced keys that wait for their turn out of the queue, of all tables.
    ///
    /// Returns:
    ///     How many there were.
    fn cancel_lookahead(&self, py: Python<'_>) -> PyResult<usize> {
        self.cell.with_bank(py, |bank| Ok(bank.cancel_lookahead()))
    }

    /// Waits until no announced key waits for its turn, for measurements and tests.
    ///
    /// Args:
    ///     timeout: Seconds to wait at most.
    ///
    /// Returns:
    ///     False if keys were still waiting at the end.
    #[pyo3(signature = (timeout = 60.0))]
    fn wait_lookahead(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = scalars::seconds("timeout", timeout)?;
        let began = Instant::now();
        // Ends: with the timeout, or when a signal handler raises.
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let slice = left.min(LOOKAHEAD_SLICE);
            let idle = self.cell.with_bank(py, |bank| Ok(bank.wait_lookahead(slice)))?;
            py.check_signals()?;
            if idle || left == slice {
                return Ok(idle);
            }
        }
    }

    /// The leases of all tables that are out, the oldest first: what to look at when gets time out.
    ///
    /// Returns:
    ///     A dictionary for each: `table`, distinct `keys`, `age_seconds`, and `thread`, the name and id of the
    ///     thread that took it, as `threading.get_native_id()` gives it.
    fn outstanding_leases<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let found = self.cell.with_bank(py, |bank| Ok(bank.outstanding_leases()))?;
        stats::leases(py, &found)
    }

    /// Counters since the bank was opened, and gauges of memory and log, as a nested dictionary.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (found, holders) =
            self.cell.with_bank(py, |bank| Ok((bank.stats(), bank.space_holders())))?;
        stats::bank(py, &found, &holders)
    }

    /// The same numbers as text that Prometheus scrapes, in the OpenMetrics format.
    fn prometheus(&self, py: Python<'_>) -> PyResult<String> {
        self.cell.with_bank(py, |bank| Ok(bank.stats().to_prometheus()))
    }

    /// Closes the bank. A second call does nothing; with `checkpoint` it raises `ValueError`.
    ///
    /// Without `checkpoint` it takes none: what came after the last one is lost. It then warns with a `ResourceWarning`
    /// that says how many changes of rows were lost since which checkpoint, as the end of a `with` block and the garbage
    /// collector do. (Python shows a `ResourceWarning` with `-X dev` or `-W default`, and pytest does.) Leases that
    /// are held are given back, feeds and runs of its pipelines end, and any later call on the bank, its tables,
    /// leases, vocabularies, pipelines or feeds raises `ValueError("bank is closed")`. Calls that other threads are
    /// making come to their end first.
    ///
    /// Args:
    ///     checkpoint: The blob of a checkpoint to take first, as by `checkpoint`; `b""` for an empty one. Before it,
    ///         the bank's pipelines save their vocabularies, as by `Pipeline.checkpoint`. If any of this fails, its
    ///         error is raised and the bank stays open. What other threads change between the two, and what feeds
    ///         make of their inputs then, is not in it.
    ///
    /// Returns:
    ///     The checkpoint's number; None without one.
    ///
    /// Raises:
    ///     RuntimeError: Inside a call on the bank, as a progress function is. With `checkpoint`, also where a pipeline
    ///         can't save: a run is under way, or a feed that does not save each batch.
    ///     ReadOnly: `checkpoint` on a bank that was opened with `read_only`.
    ///     ValueError: `checkpoint` on a bank that is closed.
    ///     StoreIOError, PoisonedError, PipelineError: The checkpoint failed; the bank is still open.
    ///
    /// >>> import embank
    /// >>> bank = embank.Bank("closed.bank", memory_budget="16MiB")
    /// >>> bank.table("user", dim=2).put([1], [[1.0, 2.0]])
    /// >>> bank.close(checkpoint=b"step 1")
    /// 1
    #[pyo3(signature = (*, checkpoint = None))]
    fn close(&self, py: Python<'_>, checkpoint: Option<&[u8]>) -> PyResult<Option<u64>> {
        let Some(blob) = checkpoint else {
            self.close_and_warn(py)??;
            return Ok(None);
        };
        // Before the checkpoint: a call that is refused changes nothing.
        self.cell.check_closable()?;
        self.cell.save_pipelines(py)?;
        let number = self.checkpoint(py, Some(blob))?;
        self.close_and_warn(py)??;
        Ok(Some(number))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if slf.get().cell.is_closed()? {
            return Err(errors::bank_closed());
        }
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = exception.py();
        let warned = self.close_and_warn(py)?;
        let (Err(error), Ok(class)) = (&warned, exception.get_item(0)) else { return warned };
        if class.is_none() {
            return warned;
        }
        // The block's own exception is on its way, and one that is raised here would take its place.
        error.clone_ref(py).write_unraisable(py, None);
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<embank.Bank {}>", self.cell.path().display())
    }
}

fn throttle(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    match scalars::size_bytes("compaction_throttle", value)? {
        0 => Err(PyValueError::new_err(
            "compaction_throttle must be 1 byte a second or more; compaction=False turns it off",
        )),
        bytes_per_s => Ok(bytes_per_s),
    }
}

fn device_choice(name: &str) -> PyResult<DeviceChoice> {
    match name {
        "auto" => Ok(DeviceChoice::Auto),
        "io_uring" => Ok(DeviceChoice::IoUring),
        "threads" => Ok(DeviceChoice::Threads),
        _ => Err(PyValueError::new_err(format!(
            "device must be \"auto\", \"io_uring\" or \"threads\", not {name:?}"
        ))),
    }
}
