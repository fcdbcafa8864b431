//! `Bank`: a directory of tables.
//!
//! The class and how it closes are here, its other methods in the files of this folder.

use std::path::PathBuf;
use std::sync::Arc;

use embank::BankOptions;
use embank::locks::Mutex;
use pyo3::prelude::*;

use self::recovered::PyRecovered;
use crate::cell::BankCell;
use crate::errors;

pub(crate) mod auto_depth;
mod checkpoints;
mod opening;
pub(crate) mod recovered;
mod stats;
mod tables;
mod upkeep;
mod vocabularies;

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
///     threads: Threads that share a large batch (2,048 keys or more), the calling one among them. Results are those of
///         one thread, bit for bit. Default: the processors that the process may use, at most 16.
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

/// The newest checkpoint that this object knows to be in what it shows.
#[derive(Debug, Clone, Copy)]
struct Position {
    checkpoint: Option<u64>,
    /// The bank's count of changed rows when that checkpoint began.
    changed: u64,
}

impl PyBank {
    /// Closes the bank. The inner result is that of the warning of what is lost, which may be an error.
    fn close_and_warn(&self, py: Python<'_>) -> PyResult<PyResult<()>> {
        let unsaved = self.cell.close()?;
        Ok(unsaved.map_or(Ok(()), |unsaved| errors::warn_unsaved(py, self.cell.path(), unsaved)))
    }
}

#[pymethods]
impl PyBank {
    /// The directory.
    #[getter]
    fn path(&self) -> PathBuf {
        self.cell.path().to_owned()
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> PyResult<bool> {
        self.cell.is_closed()
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
        self.cell.save_dependents(py)?;
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
