//! `Prefetch`: rows that the store reads into a buffer in the background.

use std::sync::Arc;

use embank::locks::Mutex;
use embank::{Missing, Prefetch};
use numpy::PyArray2;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Rows;
use crate::cell::{BankCell, PrefetchId, TableKey};

/// Rows that are read in the background. Made by `Table.prefetch`.
///
/// `rows()` waits until the rows are read. `cancel`, the end of a `with` block and dropping the
/// object cancel the reads that are left. Threads may share a prefetch.
///
/// >>> import embank
/// >>> bank = embank.Bank("prefetch.bank", memory_budget="16MiB")
/// >>> features = bank.table("feature", dim=2)
/// >>> features.put([1, 2], [[0.5, 1.5], [2.5, 3.5]])
/// >>> prefetch = features.prefetch([2, 1, 2])
/// >>> prefetch.rows().tolist()  # ... after computing something else
/// [[2.5, 3.5], [0.5, 1.5], [2.5, 3.5]]
/// >>> bank.close()
#[pyclass(name = "Prefetch", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyPrefetch {
    cell: Arc<BankCell>,
    id: PrefetchId,
    table: Arc<str>,
    len: usize,
    dim: usize,
    missing: Missing,
    rows: Mutex<Option<Py<PyArray2<f32>>>>,
}

impl PyPrefetch {
    pub(crate) fn begin(
        py: Python<'_>,
        cell: &Arc<BankCell>,
        table: &TableKey,
        keys: &[u64],
        missing: Missing,
    ) -> PyResult<Self> {
        let id = cell.keep_of_table(py, table.handle, |table| table.prefetch(keys))?;
        Ok(Self {
            cell: Arc::clone(cell),
            id,
            table: Arc::clone(&table.name),
            len: keys.len(),
            dim: table.dim,
            missing,
            rows: Mutex::new(None),
        })
    }
}

#[pymethods]
impl PyPrefetch {
    /// The rows as they were when the bank read them, float32 `(n, dim)`, one for each key. The
    /// first call waits until all are read. Every call returns the same array.
    ///
    /// Raises:
    ///     MissingRow: With `missing="error"`, when a key has no row.
    ///     ValueError: The prefetch was cancelled or failed before, or its bank is closed.
    ///     EmbankError: Reading failed. Raised only once.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        if let Some(rows) = &*self.rows.lock() {
            return Ok(rows.bind(py).clone());
        }
        let mut rows = Rows::new(py, None, self.len, self.dim)?;
        let values = rows.as_slice_mut()?;
        let missing = self.missing;
        let waited =
            self.cell.with_taken(py, self.id, |prefetch| prefetch.wait(values, missing).map(drop));
        waited?.ok_or_else(prefetch_gone)?;
        let rows = rows.into_array();
        *self.rows.lock() = Some(rows.clone().unbind());
        Ok(rows)
    }

    /// True if `rows` would not wait.
    #[getter]
    fn ready(&self) -> bool {
        let is_ready = || self.cell.look_at(self.id, Prefetch::is_ready);
        self.rows.lock().is_some() || is_ready().is_ok_and(|ready| ready == Some(true))
    }

    /// Cancels the reads that are left and gives the memory back. Does nothing after `rows` has
    /// returned.
    fn cancel(&self) {
        self.cell.forget(self.id);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.cancel();
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        format!("<embank.Prefetch of table {:?}, rows ({}, {})>", &*self.table, self.len, self.dim)
    }
}

impl Drop for PyPrefetch {
    fn drop(&mut self) {
        self.cell.forget(self.id);
    }
}

/// What a peek or prefetch does with a key without a row.
pub(crate) fn missing_choice(missing: &str) -> PyResult<Missing> {
    match missing {
        "initial" => Ok(Missing::Initial),
        "error" => Ok(Missing::Error),
        _ => Err(PyValueError::new_err(format!(
            "missing must be \"initial\" or \"error\", not {missing:?}"
        ))),
    }
}

fn prefetch_gone() -> PyErr {
    PyValueError::new_err(
        "this prefetch was cancelled, or has failed: prefetch the rows again, or peek at them",
    )
}
