//! `len(table)`: how many rows it has.

use pyo3::prelude::*;

use super::PyTable;

#[pymethods]
impl PyTable {
    /// The number of rows, without a scan: the store counts them. Exact while no other thread makes
    /// or deletes rows.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let rows = self.with(py, embank::Table::rows)?;
        // Each row has a record in the log, whose bytes have 64-bit addresses.
        Ok(usize::try_from(rows).unwrap_or(usize::MAX))
    }

    /// True, also of a table without a row: `if table:` asks whether there is a table.
    fn __bool__(&self) -> bool {
        true
    }
}
