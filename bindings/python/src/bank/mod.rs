//! `Bank`: a directory of tables.
//!
//! This file has the class and how it closes. The other files of this folder have its other
//! methods.

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
pub(crate) mod stats;
pub(crate) mod tables;
mod upkeep;
mod vocabularies;

/// A directory that holds embedding tables under one memory budget.
///
/// `Bank(path)` creates the directory if it is missing. Otherwise it opens the bank at its newest
/// checkpoint, and changes after that checkpoint are gone. Use the bank as a context manager, or
/// call `close`. By default, neither the end of the `with` block nor `close` takes a checkpoint.
/// Both warn with a `ResourceWarning` if the bank has changes that no checkpoint holds.
///
/// Args:
///     path: The directory.
///     memory_budget: Bytes, or text such as "64MiB". It covers the rows in memory, the index and
///         the buffers. Default: 1 GiB, or a quarter of the memory limit of the process's control
///         group, if that is less. Opening warns with a UserWarning if the budget is larger than
///         that limit.
///     device: "auto", "io_uring" or "threads". Default: "auto", which takes `io_uring` if the
///         kernel grants it and threads otherwise.
///     checkpoints_kept: The number of newest checkpoints that stay on disk. Default: 2.
///     wait_timeout: The longest wait of a get at a staleness bound, in seconds. Default: 60.
///     lease_timeout: The age in seconds from which a lease can expire. It expires when another get
///         of its table starts or waits. The lease then no longer counts on its rows, and an update
///         through it raises `LeaseExpired`. Choose several times the duration of the slowest step.
///         Default: None, a lease never expires. With a staleness bound, a lease that is never
///         ended then blocks its rows.
///     compaction: Whether the bank frees space on disk in the background. Without it only
///         `compact` frees space. Default: None, which means only with a `disk_quota`, because the
///         rows that compaction copies push looked-ahead rows out of memory. With
///         `cold_tier="auto"` and None, a thread also moves rows and merges files once the bank has
///         two tiers. Switch it on for runs whose log would outgrow the disk.
///     space_amplification_target: Background compaction starts when the log is longer than its
///         rows by this factor, 1.1 to 10. A lower target saves space and writes more: with a
///         quarter of the rows in memory, training wrote 7 to 17 times as many bytes at 1.4, and
///         1.1 times at 3. Default: 1.4.
///     compaction_throttle: The largest number of bytes that background compaction reads and writes
///         in a second, or text such as "20MiB". Default: None, as fast as the writers need it.
///     disk_quota: The largest size on disk of the log and of the cold tier's files together, in
///         bytes, or text such as "8GiB". Default: None, no limit.
///     read_only: Whether to open the bank only for reading, at a checkpoint. Another process may
///         write the bank meanwhile. Tables can be opened, peeked at and scanned. A get, or a call
///         that would write, raises `ReadOnly`. The writing process keeps the checkpoint until
///         `refresh`, `close` or the end of this process. Default: False.
///     checkpoint: With `read_only`, the number of the checkpoint to open. Default: the newest.
///     create: Whether to create a bank if there is none. With False, a mistyped path or a file
///         system that is not mounted raises `ValueError`; otherwise training would begin again
///         without notice. Default: True.
///     threads: The number of threads that share a large batch (2,048 keys or more), the calling
///         thread included. Results are those of one thread, bit for bit. Default: the processors
///         that the process may use, at most 16.
///     cold_tier: With "auto", rows that no call has used for long move from the log to sorted
///         files, if the index would take more than a quarter of the budget. Such a row takes about
///         1 byte of memory, where a row of the log takes 15 bytes of index. A thread of the bank
///         moves rows and merges the files; with `compaction=False` only `compact` does. A bank
///         that has a cold tier keeps it, and programs older than format 7 can't open it. With
///         "never", a bank without a cold tier stays as it is. A bank with a cold tier that is
///         opened without "auto" has no such thread, unless compaction runs in the background: its
///         log grows until `compact`. So a resumed run needs "auto" again. With "auto", a bank
///         whose index does not fit the budget opens, too: the opening first moves all rows of the
///         log to the sorted files. Default: "never".
///
/// Raises:
///     BudgetTooSmall: The budget is smaller than the bank needs. `needed_bytes` is the smallest
///         budget that is enough.
///     Locked: The bank is already open for writing, in this process or another.
///     Damaged: A file is cut short, or does not match its checksum.
///     NewerFormat: A newer version of Embank wrote the bank.
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
    /// The checkpoint that the bank is at, with its blob. `refresh` and `roll_back` replace it.
    recovered: Mutex<Option<Py<PyRecovered>>>,
    position: Mutex<Position>,
    /// The options that `roll_back` opens the bank with again. `None` if the bank is open to read
    /// only.
    options: Option<BankOptions>,
}

/// The newest checkpoint that this object has taken, opened or moved to.
#[derive(Debug, Clone, Copy)]
struct Position {
    checkpoint: Option<u64>,
    /// The bank's count of changed rows when that checkpoint began.
    changed: u64,
}

impl PyBank {
    /// Closes the bank, and warns of changes that are lost. The outer `Result` is an error of
    /// closing. The inner `Result` is the error that Python makes of the warning.
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

    /// True after `close`.
    #[getter]
    fn closed(&self) -> PyResult<bool> {
        self.cell.is_closed()
    }

    /// Closes the bank. A second call does nothing; with `checkpoint` it raises `ValueError`.
    ///
    /// Without `checkpoint` the call takes no checkpoint, and changes since the last checkpoint are
    /// lost. If there are such changes, it warns with a `ResourceWarning`. The warning has the
    /// number of lost changes of rows, and the last checkpoint's number. The end of a `with` block
    /// and the garbage collector give this warning too. Python shows a `ResourceWarning` with
    /// `-X dev` or `-W default`; pytest shows it by default.
    ///
    /// Closing gives back the leases that are held and ends the feeds and runs of the bank's
    /// pipelines. Any later call on the bank, its tables, leases, vocabularies, pipelines or feeds
    /// raises `ValueError("bank is closed")`. Calls of other threads that have begun finish first.
    ///
    /// Args:
    ///     checkpoint: The blob of a checkpoint to take before closing, as `Bank.checkpoint` takes
    ///         it; `b""` for an empty one. The bank's pipelines save their vocabularies first. If
    ///         one of these steps fails, the call raises its error and the bank stays open. Changes
    ///         that other threads make after the checkpoint are lost.
    ///
    /// Returns:
    ///     The checkpoint's number; None without one.
    ///
    /// Raises:
    ///     RuntimeError: `close` was called inside a call on the bank, such as by a progress
    ///         function. With `checkpoint`, also if a pipeline can't save its vocabularies now,
    ///         because a run, or a feed with `save_each_batch=False`, is under way.
    ///     ReadOnly: `checkpoint` on a bank that was opened with `read_only`.
    ///     ValueError: `checkpoint` on a bank that is closed.
    ///     ShardMismatch: `checkpoint` on a shard of a fleet; the bank is still open.
    ///     StoreIOError, PoisonedError, PipelineError: The checkpoint failed; the bank is still
    ///         open.
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
        // The check comes before the checkpoint, so that a refused call takes no checkpoint.
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
        // The `with` block raises an exception already. Raising the warning's error would replace
        // it.
        error.clone_ref(py).write_unraisable(py, None);
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<embank.Bank {}>", self.cell.path().display())
    }
}

crate::copies::shared_by_copies!(
    PyBank,
    |bank| format!("the bank {}", bank.cell.path().display()),
    "it is open in this process. Another process opens it with embank.Bank(path, read_only=True); save a model with \
     embank.torch.save, or its state_dict()"
);
