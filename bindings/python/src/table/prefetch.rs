//! Rows on their way into a buffer, and how many batches to look ahead.

use std::sync::Arc;

use embank::locks::Mutex;
use embank::{AutoDepth, Missing};
use numpy::PyArray2;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Rows;
use crate::bank::PyBank;
use crate::cell::bank_cell::{BankCell, PrefetchId, TableKey};

/// Rows that are read in the background. Made by `Table.prefetch`.
///
/// `rows()` waits for them if it has to. Dropping the object, `cancel` or the end of a `with` block cancels
/// what has not been read. Thread safe.
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
        let id = cell.begin_prefetch(py, table.id, |table| table.prefetch(keys))?;
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
    /// The rows, float32 `(n, dim)`, one for each key, as they were when they were read. Waits for them the first
    /// time; gives the same array every time.
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
        self.cell
            .with_prefetch(py, self.id, |prefetch| prefetch.wait(values, missing).map(drop))?;
        let rows = rows.into_array();
        *self.rows.lock() = Some(rows.clone().unbind());
        Ok(rows)
    }

    /// Whether `rows` would not wait.
    #[getter]
    fn ready(&self) -> bool {
        self.rows.lock().is_some() || self.cell.is_prefetched(self.id)
    }

    /// Cancels what has not been read and gives the memory back. Nothing happens once `rows` has returned.
    fn cancel(&self) {
        self.cell.cancel_prefetch(self.id);
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
        self.cell.cancel_prefetch(self.id);
    }
}

/// Finds out how many batches to look ahead, from what reading and computing take.
///
/// `embank.torch.LookaheadLoader` has its own; this is for loops that call `Table.lookahead` themselves.
///
/// Args:
///     bank: The bank whose tables are looked ahead in.
///     together: From a depth of 2 on, so many batches are announced with one call, and so up to so many less one
///         more than the depth are ahead. Default 1.
///
/// Raises:
///     ValueError: `together` is below 1.
///
/// >>> import embank
/// >>> bank = embank.Bank("depth.bank", memory_budget="16MiB")
/// >>> items = bank.table("item", dim=2)
/// >>> auto, announced = embank.AutoDepth(bank), 1
/// >>> batches = [range(step, step + 10) for step in range(20)]
/// >>> for step, batch in enumerate(batches):
/// ...     last = min(step + auto.step(), len(batches) - 1)
/// ...     while announced <= last:
/// ...         _ = items.lookahead(batches[announced])
/// ...         announced += 1
/// ...     items.get(batch).release()
/// >>> bank.stats()["lookahead"]["depth"] == auto.depth
/// True
/// >>> bank.close()
#[pyclass(name = "AutoDepth", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyAutoDepth {
    cell: Arc<BankCell>,
    auto: Mutex<AutoDepth>,
}

#[pymethods]
impl PyAutoDepth {
    #[new]
    #[pyo3(signature = (bank, together=1))]
    fn new(bank: &PyBank, together: usize) -> PyResult<Self> {
        if together == 0 {
            return Err(PyValueError::new_err("together must be at least 1 batch, not 0"));
        }
        let auto = Mutex::new(AutoDepth::announcing_together(together));
        Ok(Self { cell: Arc::clone(&bank.cell), auto })
    }

    /// To be called once a step: how many batches beside the one in hand to have announced, at least 1.
    fn step(&self, py: Python<'_>) -> PyResult<usize> {
        self.cell.with_bank(py, |bank| Ok(self.auto.lock().step(bank)))
    }

    /// To be called where a pass over the data begins: what happened since the last step counts as nothing, and rows
    /// that are late at first neither.
    fn begin_pass(&self) {
        self.auto.lock().begin_pass();
    }

    /// What `step` returned last; where it begins before the first.
    #[getter]
    fn depth(&self) -> usize {
        self.auto.lock().depth()
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
