//! What the bank counts.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::PyBank;
use crate::stats;

#[pymethods]
impl PyBank {
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
}
