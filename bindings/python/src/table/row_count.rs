//! `len(table)` and `bool(table)`.

use pyo3::prelude::*;

use super::PyTable;

#[pymethods]
impl PyTable {
    /// The number of rows. The store counts them, so this scans nothing. Exact while no other
    /// thread makes or deletes rows. After blind puts in a bank with two tiers, it may be wrong
    /// until `Bank.compact` has counted the rows, with the conditions and the cost that it names.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let rows = self.with(py, embank::Table::rows)?;
        // The number fits, because each row has a record in the log, and the log has 64-bit
        // addresses.
        Ok(usize::try_from(rows).unwrap_or(usize::MAX))
    }

    /// Always True, so that `if table:` tells a table without rows from None.
    fn __bool__(&self) -> bool {
        true
    }
}
