//! Work in the background: compaction, gets ahead and looking ahead.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use super::PyBank;
use crate::scalars;
use crate::table::ahead::PyAheadQueue;

/// Interval at which a call that waits for lookahead checks for pending signals, so that Ctrl-C
/// ends the call.
const LOOKAHEAD_SLICE: Duration = Duration::from_millis(100);

#[pymethods]
impl PyBank {
    /// Frees space on disk now: one pass of compaction over the whole log on disk.
    ///
    /// Other threads keep working. Space that kept checkpoints hold is freed with the next
    /// checkpoints. The call also works if background compaction has stopped
    /// (`stats()["compaction"]["stopped"]`).
    ///
    /// In a bank with two tiers, rows go to the cold tier instead, and files that are due are
    /// merged. The disk needs room for the new files beside those that kept checkpoints hold. After
    /// blind puts, the call moves all rows of the log to the cold tier, those in memory too, and
    /// rewrites the cold tier once. The number of rows is then exact, unless rows have outstanding
    /// gets, other threads write meanwhile, files are damaged or the disk has no room.
    ///
    /// Returns:
    ///     A dictionary: `scanned_bytes` of the log were read, `copied_bytes` of rows were moved to
    ///     the log's end, and `freed_bytes` were given back to the file system. `out_of_room` is
    ///     true if the pass ended early because the disk has little room; then take a checkpoint,
    ///     which frees older log, and compact again.
    ///
    /// Raises:
    ///     Damaged, StoreIOError: A page can't be read. No row is lost that could be read before.
    ///     DiskFull: The disk has no room for the rows of a single page.
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

    /// Makes a queue of gets ahead, and starts its thread.
    ///
    /// A training loop has one queue. Use it in a `with` block, or close it.
    ///
    /// Returns:
    ///     An `AheadQueue`, which `Table.get_ahead` takes.
    fn ahead_queue(&self, py: Python<'_>) -> PyResult<PyAheadQueue> {
        PyAheadQueue::new(py, &self.cell)
    }

    /// Removes the announced keys of all tables from the queue, except keys whose rows the bank
    /// reads at the moment.
    ///
    /// Returns:
    ///     The number of removed keys.
    fn cancel_lookahead(&self, py: Python<'_>) -> PyResult<usize> {
        self.cell.with_bank(py, |bank| Ok(bank.cancel_lookahead()))
    }

    /// Waits until the queue of announced keys is empty. For measurements and tests.
    ///
    /// Args:
    ///     timeout: Seconds to wait at most.
    ///
    /// Returns:
    ///     False if keys were still in the queue after `timeout`.
    #[pyo3(signature = (timeout = 60.0))]
    fn wait_lookahead(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = scalars::seconds("timeout", timeout)?;
        let mut left = timeout;
        // The loop ends when the queue is empty, with the timeout, or when a signal handler raises.
        loop {
            // Counts slices, so a suspension of the process counts as one slice at most.
            let slice = left.min(LOOKAHEAD_SLICE);
            left -= slice;
            let idle = self.cell.with_bank(py, |bank| Ok(bank.wait_lookahead(slice)))?;
            py.check_signals()?;
            if idle || left.is_zero() {
                return Ok(idle);
            }
        }
    }
}
