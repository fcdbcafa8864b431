//! Counters of the bank.

use std::collections::BTreeMap;

use embank::BankStats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::PyBank;
use crate::stats;

#[pymethods]
impl PyBank {
    /// The outstanding leases of all tables, the oldest first. If gets time out, the list shows
    /// which leases they may have waited for.
    ///
    /// Returns:
    ///     A dictionary for each lease: `table`, the number of distinct `keys`, `age_seconds`, and
    ///     `thread`, the name of the thread that took it and its id as `threading.get_native_id()`
    ///     gives it.
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

    /// The numbers of `stats` as text in the OpenMetrics format, which Prometheus reads. For
    /// several banks, use `embank.prometheus`.
    fn prometheus(&self, py: Python<'_>) -> PyResult<String> {
        self.cell.with_bank(py, |bank| Ok(bank.stats().to_prometheus()))
    }
}

/// The numbers of several banks as one text in the OpenMetrics format, which Prometheus reads.
///
/// Args:
///     banks: The banks by name. Each number has the label `bank` with the name of its bank.
///
/// Returns:
///     The text. The texts of `Bank.prometheus` can't be joined, because they have the same series.
///
/// >>> import embank
/// >>> with embank.Bank("a.bank") as a, embank.Bank("b.bank") as b:
/// ...     text = embank.prometheus({"users": a, "items": b})
/// >>> 'embank_keys_total{bank="items",operation="get"} 0.0' in text
/// True
#[pyfunction]
pub(crate) fn prometheus(
    py: Python<'_>,
    banks: BTreeMap<String, Bound<'_, PyBank>>,
) -> PyResult<String> {
    let mut stats = BTreeMap::new();
    for (name, bank) in &banks {
        let of_one = bank.get().cell.with_bank(py, |bank| Ok(bank.stats()))?;
        stats.insert(name.as_str(), of_one);
    }
    Ok(BankStats::banks_to_prometheus(&stats))
}
