//! `Prefetch`: rows on their way into a buffer.

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
/// `rows()` waits for them if it has to. Dropping the object, `cancel` or the end of a `with` block
/// cancels what has not been read. Thread safe.
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
        let id = cell.keep_of_table(py, table.id, |table| table.prefetch(keys))?;
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
    /// The rows, float32 `(n, dim)`, one for each key, as they were when they were read. Waits for
    /// them the first time; gives the same array every time.
    ///
    /// Raises:
    ///     MissingRow: With `missing="error"`, when a key has no row.
    ///     ValueError: It was cancelled, failed before, or its bank is closed.
    ///     EmbankError: Reading failed. Raised once.
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

    /// Whether `rows` would not wait.
    #[getter]
    fn ready(&self) -> bool {
        let is_ready = || self.cell.look_at(self.id, Prefetch::is_ready);
        self.rows.lock().is_some() || is_ready().is_ok_and(|ready| ready == Some(true))
    }

    /// Cancels what has not been read and gives the memory back. Nothing happens once `rows` has
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

/// What a peek or prefetch does about a key without a row.
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
