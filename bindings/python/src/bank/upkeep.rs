//! Work in the background: compaction and looking ahead.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use super::PyBank;
use crate::scalars;

/// Time between two looks at pending signals while a call waits for lookahead.
const LOOKAHEAD_SLICE: Duration = Duration::from_millis(100);

#[pymethods]
impl PyBank {
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
}
